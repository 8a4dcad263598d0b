"""The signals that a track receives, and the effects that it requests."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fleetsim.caller.events import Event
from fleetsim.caller.track import TaskUpdate
from fleetsim.model.errors import FleetsimError, MethodNotFound, TaskNotFound, UnsupportedOperation
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import Message, Task
from fleetsim.model.work import Answer, Outcome, Question

LOOK_WITHIN_S = 4.0
"""After a restart."""


class Begin(Struct, frozen=True):
    """Start a new request."""


class Recovered(Struct, frozen=True):
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


class Left(Struct, frozen=True):
    """The request, or an answer, has its slot and leaves now: what comes is the agent's time."""


class Replied(Struct, frozen=True, kw_only=True):
    """The first send was answered."""

    reply: Task | Message
    began: float


class SendFailed(Struct, frozen=True, kw_only=True):
    """The first send, or the opening of its stream, failed."""

    error: FleetsimError


class StreamEnded(Struct, frozen=True, kw_only=True):
    """A stream that had begun ended, with or without an error."""

    error: FleetsimError | None = None


class PollFailed(Struct, frozen=True, kw_only=True):
    """A poll brought no task."""

    error: FleetsimError


class Found(Struct, frozen=True, kw_only=True):
    """The search for a task whose reply was lost came back.

    Without a task it says whether one was ``possible`` at all, and the ``error`` it failed with, if it did.
    """

    task: Task | None
    possible: bool = True
    error: FleetsimError | None = None


class PushRegistered(Struct, frozen=True, kw_only=True):
    """A webhook was registered after the reply (``error`` None) or refused."""

    error: FleetsimError | None = None


class TurnedAway(Struct, frozen=True):
    """A webhook about this request was not taken: too many, too large, or not to be recorded now."""


class QuestionRecorded(Struct, frozen=True, kw_only=True):
    """The question is in the ledger, which accepts an answer from now on."""

    question_id: str


class Answered(Struct, frozen=True, kw_only=True):
    """A person or a dispatching agent answered the open question; the ledger has claimed it."""

    answer: Answer


class Resumed(Struct, frozen=True, kw_only=True):
    """The agent took the answer."""

    reply: Task | Message
    began: float


class ResumeFailed(Struct, frozen=True, kw_only=True):
    """The answer did not get through."""

    error: FleetsimError


class CancelAsked(Struct, frozen=True, kw_only=True):
    """Somebody wants the task stopped."""

    by: str = "operator"


class CancelReplied(Struct, frozen=True, kw_only=True):
    """The agent answered a cancel."""

    task: Task
    began: float


class CancelFailed(Struct, frozen=True, kw_only=True):
    """The agent refused a cancel, or could not be reached."""

    error: FleetsimError


class Due(Struct, frozen=True):
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


class Send(Struct, frozen=True, kw_only=True):
    """Send the request; ``stream`` asks for the streaming form."""

    stream: bool


class Subscribe(Struct, frozen=True):
    """Rejoin the task's stream."""


class Poll(Struct, frozen=True):
    """Read the task."""


class LookUpTask(Struct, frozen=True):
    """Look for the task by our context id."""


class RegisterPush(Struct, frozen=True):
    """Register a webhook for the bound task."""


class Save(Struct, frozen=True):
    """Remember the record durably."""


class Ask(Struct, frozen=True, kw_only=True):
    """Put a question to somebody."""

    question: Question


class ResolveQuestion(Struct, frozen=True, kw_only=True):
    """A question is over: delivered, withdrawn or expired (``ledger.QuestionState`` value)."""

    question_id: str
    state: str


class Resume(Struct, frozen=True, kw_only=True):
    """Send the answer on the same task and the agent's own context."""

    answer: Answer


class Cancel(Struct, frozen=True):
    """Ask the agent to stop the task."""


class Close(Struct, frozen=True, kw_only=True):
    """The one outcome."""

    outcome: Outcome


class Publish(Struct, frozen=True, kw_only=True):
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
