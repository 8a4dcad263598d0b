"""One step under way: what the parts of ``step`` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fleetsim.caller.events import CallRetried, Level
from fleetsim.caller.fleet_events import WebhooksDegraded
from fleetsim.caller.signals import Effect, Publish, Save
from fleetsim.caller.track import Now, Rules, Timer, Track
from fleetsim.model.task import TERMINAL
from fleetsim.runtime.address import on_this_machine


@dataclass(slots=True)
class StepContext:
    """The copy of the track that the step may change, and the effects so far. Lives only inside ``step``."""

    track: Track
    now: Now
    rules: Rules
    effects: list[Effect] = field(default_factory=list)

    def save(self, **changes: Any) -> None:
        """Change the durable part and have it saved, before all else and once however many changes there are."""
        if changes:
            self.track.record = replace(self.track.record, **changes)
        if not self.effects or not isinstance(self.effects[0], Save):
            self.effects.insert(0, Save())

    def retried(self, reason: str, level: Level = Level.WARN, *, attempt: int = 0, wait_s: float = 0) -> None:
        """Publish the next attempt to send or to find the task, and the seconds until then."""
        event = CallRetried(level=level, attempt=attempt, in_seconds=round(wait_s, 1), reason=reason)
        self.effects.append(Publish(event=event))

    def jitter(self, seconds: float, spread: float = 0.1) -> float:
        """``seconds`` plus or minus ``spread`` of it, by the moment's draw of chance."""
        return seconds * (1 + spread * (2 * self.now.jitter - 1))

    def poll_at(self, when: float) -> None:
        """Poll then, or earlier if one is due earlier. At most one poll is in the air (I-10)."""
        timers, polling = self.track.timers, self.track.polling
        if polling.stopped is not None:
            return
        if polling.began is None:
            timers[Timer.POLL] = min(when, timers.get(Timer.POLL, when))
        else:
            self.track.polling = replace(
                polling, next_at=when if polling.next_at is None else min(polling.next_at, when)
            )

    @property
    def soon(self) -> float:
        """In a second, or in an interval where that is shorter."""
        return self.now.mono + min(self.rules.look_first_s, self.rules.poll_interval_s)

    def agents_turn(self) -> None:
        """From now on time is the agent's, if it is not so already."""
        if self.track.turn_from is None:
            self.track.turn_from = self.now.mono
            self.track.record = replace(self.track.record, agent_since=self.now.wall)

    def agents_turn_over(self) -> None:
        """The agent has done its part: it has ended, or it waits for somebody."""
        agent_s = agent_seconds(self.track, self.now)
        self.track.turn_from = None
        self.track.record = replace(self.track.record, agent_s=agent_s, agent_since=None)

    def taken(self) -> None:
        """The agent took the send. If it refused it with our webhook before, the webhook was the part it refused."""
        if why := self.track.sending.push_refused:
            self.push_refused(f"refused with the send: {why}")
        self.track.sending = replace(self.track.sending, in_air=False, push_refused="")

    def push_refused(self, why: str) -> None:
        """The agent refuses our webhooks. Agents on this machine do so for safety, which needs no warning."""
        level = Level.INFO if on_this_machine(self.track.record.sent_to) else Level.WARN
        self.effects.append(Publish(event=WebhooksDegraded(level=level, why=why, refused=True)))

    def not_taken(self) -> None:
        """The send did not arrive, so the time of the attempt does not count as the agent's."""
        self.track.turn_from = None
        self.track.record = replace(self.track.record, agent_since=None)

    @property
    def ended(self) -> bool:
        """Whether the agent is known to have ended the task, be all of it known or not."""
        task = self.track.record.task
        return task is not None and task.status.state in TERMINAL


def agent_seconds(track: Track, now: Now) -> float:
    """How long the agent has had the request by now."""
    turn_s = 0.0 if track.turn_from is None else max(0.0, now.mono - track.turn_from)
    return track.record.agent_s + turn_s
