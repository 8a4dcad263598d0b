"""The signals that a track receives, the effects that it requests, and the context that the parts of a step share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.events.fleet import WebhooksDegraded
from fleetsim.events.request import CallRetried, Event, Level
from fleetsim.model.errors import FleetsimError, MethodNotFound, TaskNotFound, UnsupportedOperation
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import TERMINAL, Message, Task
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.request.limits import Booking
from fleetsim.request.track import Now, Rules, Signal, Timer, Track
from fleetsim.runtime.address import on_this_machine

LOOK_WITHIN_S = 4.0
"""After a restart."""


class Begin(Signal, frozen=True):
    """Start a new request."""


class Join(Signal, frozen=True, kw_only=True):
    """Follow a task that the agent has already. ``seen``: the agent showed it like this; else only its id is known."""

    task: Task
    seen: bool


class Recovered(Signal, frozen=True):
    """Start again after a restart, from the ledger. ``question`` is the open one, if any.

    ``early`` are the events of webhooks before the reply to the send, in the order of arrival. ``uncallable``: why its
    agent cannot be called any more. The first poll comes within ``look_within_s``, so that many requests are not
    polled at once.
    """

    question: Question | None = None
    answer: Answer | None = None
    early: tuple[TaskEvent, ...] = ()
    uncallable: str = ""
    look_within_s: float = LOOK_WITHIN_S


class LimitDecided(Signal, frozen=True, kw_only=True):
    """The limits refuse a held request, or ask a person for more room, or have room for these bookings."""

    refusal: str = ""
    question: Question | None = None
    bookings: tuple[Booking, ...] = ()


class Left(Signal, frozen=True):
    """The request, or an answer, has its slot and is sent now. The agent's time begins."""


class Replied(Signal, frozen=True, kw_only=True):
    """The first send was answered."""

    reply: Task | Message
    began: float


class SendFailed(Signal, frozen=True, kw_only=True):
    """The first send, or the opening of its stream, failed."""

    error: FleetsimError


class StreamEnded(Signal, frozen=True, kw_only=True):
    """A stream that had begun ended, with or without an error."""

    error: FleetsimError | None = None


class PollFailed(Signal, frozen=True, kw_only=True):
    """A poll brought no task."""

    error: FleetsimError


class Found(Signal, frozen=True, kw_only=True):
    """The search for a task whose reply was lost ended.

    ``possible``: the agent offers a search. ``error`` is the failure of the search, if it failed.
    """

    task: Task | None
    possible: bool = True
    error: FleetsimError | None = None


class PushRegistered(Signal, frozen=True, kw_only=True):
    """A webhook was registered after the reply (``error`` None) or refused."""

    error: FleetsimError | None = None


class TurnedAway(Signal, frozen=True):
    """A webhook about this request was refused: over a limit, too large, or the ledger could not record it."""


class QuestionRecorded(Signal, frozen=True, kw_only=True):
    """The question is in the ledger, which accepts an answer from now on."""

    question_id: str


class Answered(Signal, frozen=True, kw_only=True):
    """A person or a dispatching agent answered the open question; the ledger has claimed it."""

    answer: Answer


class Resumed(Signal, frozen=True, kw_only=True):
    """The agent took the answer."""

    reply: Task | Message
    began: float


class ResumeFailed(Signal, frozen=True, kw_only=True):
    """The answer could not be sent."""

    error: FleetsimError


class CancelAsked(Signal, frozen=True, kw_only=True):
    """A person or a caller requested the cancel of the task."""

    by: str = "operator"


class CancelReplied(Signal, frozen=True, kw_only=True):
    """The agent answered a cancel."""

    task: Task
    began: float


class CancelFailed(Signal, frozen=True, kw_only=True):
    """The agent refused a cancel, or could not be reached."""

    error: FleetsimError


class Due(Signal, frozen=True):
    """A timer of the track expired."""


class Effect(Struct, frozen=True):
    """An action that the step requests; the tracker or the client carries it out."""


class Send(Effect, frozen=True, kw_only=True):
    """Send the request; ``stream`` asks for the streaming form."""

    stream: bool


class Subscribe(Effect, frozen=True):
    """Rejoin the task's stream."""


class Poll(Effect, frozen=True):
    """Read the task."""


class LookUpTask(Effect, frozen=True):
    """Search for the task by our context id."""


class RegisterPush(Effect, frozen=True):
    """Register a webhook for the bound task."""


class Save(Effect, frozen=True):
    """Write the record to the ledger."""


class Ask(Effect, frozen=True, kw_only=True):
    """Ask a person a question."""

    question: Question


class ResolveQuestion(Effect, frozen=True, kw_only=True):
    """A question is over: delivered, withdrawn or expired (``ledger.QuestionState`` value)."""

    question_id: str
    state: str


class Resume(Effect, frozen=True, kw_only=True):
    """Send the answer on the same task and the agent's own context."""

    answer: Answer


class Cancel(Effect, frozen=True):
    """Ask the agent to stop the task."""


class Close(Effect, frozen=True, kw_only=True):
    """The one outcome."""

    outcome: Outcome


class Publish(Effect, frozen=True, kw_only=True):
    """An event about this request; the tracker fills in its agent, skill and ids."""

    event: Event


def failed(effect: Effect, error: FleetsimError, silent: bool) -> Signal:
    """The signal that reports a failed effect. ``silent``: no event of a stream arrived yet. Raises other errors."""
    match effect:
        case Send():
            return SendFailed(error=error) if silent else StreamEnded(error=error)
        case Subscribe():
            return StreamEnded(error=error)
        case Poll():
            return PollFailed(error=error)
        case LookUpTask() if isinstance(error, TaskNotFound | MethodNotFound | UnsupportedOperation):
            return Found(task=None, possible=isinstance(error, TaskNotFound))
        case LookUpTask():
            return Found(task=None, error=error)
        case RegisterPush():
            return PushRegistered(error=error)
        case Resume():
            return ResumeFailed(error=error)
        case Cancel():
            return CancelFailed(error=error)
    raise error


@dataclass(slots=True)
class StepContext:
    """The copy of the track that the step may change, and the effects so far. It exists only inside ``step``."""

    track: Track
    now: Now
    rules: Rules
    effects: list[Effect] = field(default_factory=list)

    def save(self, **changes: Any) -> None:
        """Change the record and save it: before all other effects, and once for any number of changes."""
        if changes:
            self.track.record = replace(self.track.record, **changes)
        if not self.effects or not isinstance(self.effects[0], Save):
            self.effects.insert(0, Save())

    def retried(self, reason: str, level: Level = Level.WARN, *, attempt: int = 0, wait_s: float = 0) -> None:
        """Publish the next attempt to send or to find the task, and the seconds until then."""
        event = CallRetried(level=level, attempt=attempt, in_seconds=round(wait_s, 1), reason=reason)
        self.effects.append(Publish(event=event))

    def jitter(self, seconds: float, spread: float = 0.1) -> float:
        """``seconds`` plus or minus ``spread`` of it, by the random number of ``Now``."""
        return seconds * (1 + spread * (2 * self.now.jitter - 1))

    def poll_at(self, when: float) -> None:
        """Poll at that time, or earlier if a poll is due earlier. At most one poll is under way (I-10)."""
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
        """In a second, or after the poll interval if that is shorter."""
        return self.now.mono + min(self.rules.look_first_s, self.rules.poll_interval_s)

    def agents_turn(self) -> None:
        """The agent's turn begins, unless it has begun."""
        if self.track.turn_from is None:
            self.track.turn_from = self.now.mono
            self.track.record = replace(self.track.record, agent_since=self.now.wall)

    def agents_turn_over(self) -> None:
        """The agent's turn is over: it has ended, or it waits for an answer."""
        agent_s = agent_seconds(self.track, self.now)
        self.track.turn_from = None
        self.track.record = replace(self.track.record, agent_s=agent_s, agent_since=None)

    def taken(self) -> None:
        """The agent accepted the send. If it refused the same send with our webhook before, it refused the webhook."""
        if why := self.track.sending.push_refused:
            self.push_refused(f"refused with the send: {why}")
        self.track.sending = replace(self.track.sending, in_air=False, push_refused="")

    def push_refused(self, why: str) -> None:
        """The agent refuses our webhooks. An agent on this machine may do so for safety; that needs no warning."""
        level = Level.INFO if on_this_machine(self.track.record.sent_to) else Level.WARN
        self.effects.append(Publish(event=WebhooksDegraded(level=level, why=why, refused=True)))

    def not_taken(self) -> None:
        """The send did not arrive: the time of the attempt does not count as the agent's."""
        self.track.turn_from = None
        self.track.record = replace(self.track.record, agent_since=None)

    @property
    def ended(self) -> bool:
        """Whether the agent is known to have ended the task. The result may still be incomplete."""
        task = self.track.record.task
        return task is not None and task.status.state in TERMINAL


def agent_seconds(track: Track, now: Now) -> float:
    """The seconds that the agent has had the request."""
    turn_s = 0.0 if track.turn_from is None else max(0.0, now.mono - track.turn_from)
    return track.record.agent_s + turn_s
