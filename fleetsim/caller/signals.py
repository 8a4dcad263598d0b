"""The signals that a track receives, and the effects that it requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fleetsim.caller.events import Event
from fleetsim.caller.track import TaskUpdate
from fleetsim.model.errors import FleetsimError, MethodNotFound, TaskNotFound, UnsupportedOperation
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import Message, Task
from fleetsim.model.work import Answer, Outcome, Question

LOOK_WITHIN_S = 4.0
"""After a restart."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a new request."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Start again after a restart, from what the ledger kept. ``question`` is the open one, if any.

    ``early`` is what webhooks told before the reply to the send, in the order they came. ``uncallable``: why its
    agent cannot be asked about it any more. Its first look comes within ``look_within_s``: of many that are taken
    up, not all at once.
    """

    question: Question | None = None
    answer: Answer | None = None
    early: tuple[TaskEvent, ...] = ()
    uncallable: str = ""
    look_within_s: float = LOOK_WITHIN_S


@dataclass(frozen=True, slots=True)
class Left:
    """The request, or an answer, has its slot and leaves now: what comes is the agent's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """The first send was answered."""

    reply: Task | Message
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed:
    """The first send, or the opening of its stream, failed."""

    error: FleetsimError


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded:
    """A stream that had begun ended, with or without an error."""

    error: FleetsimError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailed:
    """A poll brought no task."""

    error: FleetsimError


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The search for a task whose reply was lost came back.

    Without a task it says whether one was ``possible`` at all, and the ``error`` it failed with, if it did.
    """

    task: Task | None
    possible: bool = True
    error: FleetsimError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRegistered:
    """A webhook was registered after the reply (``error`` None) or refused."""

    error: FleetsimError | None = None


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A webhook about this request was not taken: too many, too large, or not to be recorded now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecorded:
    """The question is in the ledger, which accepts an answer from now on."""

    question_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A person or a dispatching agent answered the open question; the ledger has claimed it."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The agent took the answer."""

    reply: Task | Message
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFailed:
    """The answer did not get through."""

    error: FleetsimError


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """Somebody wants the task stopped."""

    by: str = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReplied:
    """The agent answered a cancel."""

    task: Task
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelFailed:
    """The agent refused a cancel, or could not be reached."""

    error: FleetsimError


@dataclass(frozen=True, slots=True)
class Due:
    """A timer of the track expired."""


Signal: TypeAlias = (
    Begin
    | Recovered
    | Left
    | Replied
    | SendFailed
    | TaskUpdate
    | StreamEnded
    | PollFailed
    | Found
    | PushRegistered
    | TurnedAway
    | QuestionRecorded
    | Answered
    | Resumed
    | ResumeFailed
    | CancelAsked
    | CancelReplied
    | CancelFailed
    | Due
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send the request; ``stream`` asks for the streaming form."""

    stream: bool


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Rejoin the task's stream."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Read the task."""


@dataclass(frozen=True, slots=True)
class LookUpTask:
    """Look for the task by our context id."""


@dataclass(frozen=True, slots=True)
class RegisterPush:
    """Register a webhook for the bound task."""


@dataclass(frozen=True, slots=True)
class Save:
    """Remember the record durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Put a question to somebody."""

    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveQuestion:
    """A question is over: delivered, withdrawn or expired (``ledger.QuestionState`` value)."""

    question_id: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Send the answer on the same task and the agent's own context."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask the agent to stop the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The one outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """An event about this request; the tracker fills in its agent, skill and ids."""

    event: Event


Effect: TypeAlias = (
    Send
    | Subscribe
    | Poll
    | LookUpTask
    | RegisterPush
    | Save
    | Ask
    | ResolveQuestion
    | Resume
    | Cancel
    | Close
    | Publish
)


def failed(effect: Effect, error: FleetsimError, silent: bool) -> Signal:
    """The signal that reports a failed effect. ``silent``: a stream had brought nothing yet. Raises other errors."""
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
