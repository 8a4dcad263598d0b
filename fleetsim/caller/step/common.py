"""One step under way: what the parts of ``step`` share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetsim.caller.events import CallRetried, Event, Level
from fleetsim.caller.outcome import outcome_of
from fleetsim.caller.signals import Cancel, Close, Effect, Publish, ResolveQuestion, Save
from fleetsim.caller.track import Now, Rules, Track
from fleetsim.model.task import TaskState
from fleetsim.model.work import Cause, OutcomeKind


class StepContext:
    """One step under way: the track as it stands, the effects so far. Lives only inside ``step``."""

    __slots__ = ("effects", "now", "rules", "track")

    def __init__(self, track: Track, now: Now, rules: Rules) -> None:
        self.track = track
        self.now = now
        self.rules = rules
        self.effects: list[Effect] = []

    def set(self, **changes: Any) -> None:
        """Change the track. What is so already makes no new one: most of a stream's events change next to nothing."""
        new = {name: value for name, value in changes.items() if getattr(self.track, name) is not value}
        if new:
            self.track = self.track.changed(new)

    def record(self, **changes: Any) -> None:
        """Change the durable part and have it saved."""
        self.track = replace(self.track, record=replace(self.track.record, **changes))
        if not any(isinstance(e, Save) for e in self.effects):
            self.effects.append(Save())

    def emit(self, *effects: Effect) -> None:
        """Ask for effects, in order."""
        self.effects.extend(effects)

    def publish(self, event: Event) -> None:
        """Tell of something about this request; who it is about is filled in."""
        self.effects.append(Publish(event=event))

    def retried(self, reason: str, level: Level = Level.WARN, *, attempt: int = 0, wait_s: float = 0) -> None:
        """Tell of what is tried again, or looked for: the coming attempt, and how long until then."""
        self.publish(CallRetried(level=level, attempt=attempt, in_seconds=round(wait_s, 1), reason=reason))

    def jitter(self, seconds: float, spread: float = 0.1) -> float:
        """``seconds`` plus or minus ``spread`` of it, by the moment's luck."""
        return seconds * (1 + spread * (2 * self.now.jitter - 1))

    def poll_at(self, when: float) -> None:
        """Poll then, or earlier if one is due earlier. At most one poll is in the air (I-10)."""
        if self.track.stopped is not None:
            return
        due = self.track.poll_due
        self.set(poll_due=when if due is None else min(due, when))

    @property
    def soon(self) -> float:
        """In a second, or in an interval where that is shorter."""
        return self.now.mono + min(self.rules.look_first_s, self.rules.poll_interval_s)

    def agents_turn(self) -> None:
        """From now on time is the agent's, if it is not so already."""
        if self.track.turn_from is None:
            self.set(turn_from=self.now.mono, record=replace(self.track.record, agent_since=self.now.wall))

    def agents_turn_over(self) -> None:
        """The agent has done its part: it has ended, or it waits for somebody."""
        had = self.track.agent_s(self.now.mono)
        self.set(turn_from=None, record=replace(self.track.record, agent_s=had, agent_since=None))

    def not_taken(self) -> None:
        """What was sent did not arrive: the time of trying is not the agent's."""
        self.set(turn_from=None, record=replace(self.track.record, agent_since=None))

    @property
    def ended(self) -> bool:
        """Whether the agent is known to have ended the task, be all of it known or not."""
        return self.track.task is not None and self.track.task.terminal

    def give_up(self, kind: OutcomeKind, cause: Cause, reason: str) -> None:
        """End the track from our side, and have the agent stop unless it has."""
        if not self.ended:
            self.emit(Cancel())
        self.close(kind, cause, reason)

    def close(self, kind: OutcomeKind | None = None, cause: Cause | None = None, reason: str = "") -> None:
        """End the track: fix its outcome, and settle a question nobody needs any more.

        ``kind`` and ``cause`` None mean the agent's own terminal state. Once that is known, nothing we find
        instead of it is the outcome: terminal states do not change (decision 7). ``reason`` is then why a result
        is not known whole.
        """
        if self.ended:
            completed = self.track.task is not None and self.track.task.state is TaskState.COMPLETED
            unsure = f"the agent said completed, and its result could not be confirmed: {reason}"
            kind, cause, reason = None, None, unsure if reason and completed else ""
        asked = self.track.asked
        if asked is not None:
            state = "expired" if kind is OutcomeKind.EXPIRED else "withdrawn"
            self.emit(ResolveQuestion(question_id=asked.question.question_id, state=state))
            self.set(asked=None)
        outcome = outcome_of(self.track, self.now, kind=kind, cause=cause, reason=reason, rates=self.rules.rates)
        self.set(outcome=outcome, early_updates=())
        self.emit(Close(outcome=outcome))
