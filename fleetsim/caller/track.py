"""A track: everything the caller believes about one request between acceptance and outcome.

``step.step(track, signal, now, rules)`` is the one decision about it (``step.machine`` draws it), ``signals`` what can
reach it and what it can ask for. Nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleetsim.caller.ledger import RequestRecord
from fleetsim.caller.rates import Rates
from fleetsim.model.changing import made_often
from fleetsim.model.event import TaskEvent
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.task import Task
from fleetsim.model.work import Answer, Cause, Outcome, OutcomeKind, Question, UpdateSource
from fleetsim.runtime.retry import DELAYS_S, LOST_CONFIRM_S, RETRY_AFTER_MAX_S, YOUNG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits a track lives by, in seconds and counts, and what tokens cost. agents.yaml may set some of them."""

    poll_interval_s: float = 30.0
    task_limit_s: float = 3_600.0
    question_ttl_s: float = 86_400.0
    question_expiry_cancels: bool = True
    call_s: float = 15.0
    retry_waits_s: tuple[float, ...] = DELAYS_S
    retry_after_max_s: float = RETRY_AFTER_MAX_S
    lost_confirm_s: float = LOST_CONFIRM_S
    young_s: float = YOUNG_S
    cancel_patience_s: float = 30.0
    resubscribes_max: int = 3
    owed_polls_max: int = 6
    look_first_s: float = 1.0
    refused_polls_max: int = 3
    text_chars_max: int = TEXT_CHARS_MAX
    stall_s: float = 1.0
    grace_s: float = 5.0
    rates: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class Now:
    """A moment: monotonic seconds for durations, wall time for people, and one draw of chance for jitter."""

    mono: float
    wall: datetime
    jitter: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUpdate:
    """The agent said something about the task. ``began`` is when the request that brought it was started."""

    event: TaskEvent
    via: UpdateSource
    began: float


class Timer(StrEnum):
    """What falls due, in order of weight: of what is due in the same moment the first is done first."""

    QUESTION = "question"
    REMINDER = "reminder"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    GIVE_UP = "give up"
    OVERDUE = "overdue"
    LOOK_UP = "look up"
    RETRY = "retry"
    REJOIN = "rejoin"
    RESUME = "resume"
    POLL = "poll"


@made_often
@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The first send, until the task is bound.

    ``stream``: it asks for the streaming form. ``attempt`` counts what was tried again. ``lost`` is what came instead
    of the reply, in the agent's own words where it had any; ``silent``: the agent ended its stream without a word.
    ``searches`` counts the looks for its task that found none; ``unsearchable``: it offers no such look. ``early`` are
    webhooks that came before the reply; ``look_due``: one was turned away. ``stream_refused`` is the agent's refusal of
    a stream, ``push_refused`` its refusal of the send with our webhook, until the same send without it is taken.
    ``overdue``: the reply takes longer than other calls may; it is still awaited, and webhooks and looks are believed
    before it comes.
    """

    stream: bool = False
    in_air: bool = False
    attempt: int = 0
    lost: str = ""
    silent: bool = False
    searches: int = 0
    unsearchable: bool = False
    early: tuple[TaskUpdate, ...] = ()
    look_due: bool = False
    stream_refused: str = ""
    push_refused: str = ""
    overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why a task is not polled any more, and how its request ends unless something else tells of it."""

    kind: OutcomeKind
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """Looking at the task from time to time.

    ``began``: since when a poll is in the air; ``next_at``: when to poll again, if that was decided meanwhile.
    ``failed`` counts, in a row, polls that what may pass kept from bringing the task. ``refusals`` names, since the
    last poll that brought it, each answer that polling cannot mend; ``trouble`` says why the last one did not.
    ``misses`` counts answers that the task is gone, the last of them at ``missed_at``. ``looked_at`` is when the agent
    was last asked for the task.
    """

    began: float | None = None
    next_at: float | None = None
    count: int = 0
    failed: int = 0
    refusals: tuple[str, ...] = ()
    trouble: str = ""
    misses: int = 0
    missed_at: float = float("-inf")
    looked_at: float = float("-inf")
    stopped: StopReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Following a stream. ``gap``: something may have been missed since the last snapshot of the task."""

    open: bool = False
    joining: bool = False
    rejoins: int = 0
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushing:
    """Webhooks: how many have come, and whether one was registered after the reply."""

    received: int = 0
    registered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The agent's question, and the answer on its way to it.

    ``key`` tells the open ``question`` from others of the same task; ``recorded``: it is on record, so that an answer
    to it is accepted. ``left_s`` is what is left of the request's time, which stands still meanwhile. ``answered_at``
    is when the last question was over; ``answer_lost``: whether the last answer arrived is not known. ``attempt``
    counts what was tried again of ``answer``; ``doubt``: it was on its way when the hub stopped, and only the agent
    knows whether it arrived.
    """

    question: Question | None = None
    key: str = ""
    recorded: bool = False
    left_s: float = 0.0
    answered_at: float = float("-inf")
    answer_lost: bool = False
    answer: Answer | None = None
    attempt: int = 0
    doubt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the request comes to its end.

    ``whole`` names artifacts known to be complete; ``polls_owed`` counts the polls that are still due before a
    terminal state may be believed complete.
    """

    cancel_sent: bool = False
    whole: frozenset[str] = frozenset()
    polls_owed: int = 0


@dataclass(slots=True, kw_only=True)
class Track:
    """One request in flight: its durable record, a state for each thing that goes on, and when what falls due.

    Only a step changes one, and only its own copy: to everybody else it is a value. Times are monotonic seconds.
    ``applied_at`` is when the last applied signal arrived; a poll begun before it is stale. ``taken_at`` is when the
    agent last took something from us: a young task is looked at often. ``turn_from`` is since when it has been the
    agent's turn; None while the request waits to leave, or for a person. ``chunks`` counts what streams brought of the
    answer; None once some of it may have been missed. ``text_chars`` is how much text the task's artifacts have at the
    most; None where that is not known, or some was left out.
    """

    record: RequestRecord
    began: float
    timers: dict[Timer, float]
    sending: Sending = Sending()
    polling: Polling = Polling()
    streaming: Streaming = Streaming()
    pushing: Pushing = Pushing()
    asking: Asking = Asking()
    ending: Ending = Ending()
    turn_from: float | None = None
    taken_at: float = float("-inf")
    applied_at: float = float("-inf")
    chunks: int | None = 0
    text_chars: int | None = None
    via: UpdateSource = UpdateSource.LOCAL
    outcome: Outcome | None = None

    @property
    def task(self) -> Task | None:
        """The task as last believed."""
        return self.record.task

    @property
    def question(self) -> Question | None:
        """The question that everybody may see and answer; None until it is on record."""
        return self.asking.question if self.asking.recorded else None

    @property
    def awaits_reply(self) -> bool:
        """Whether the send is in the air and not overdue, so that it will say which task this is."""
        sending = self.sending
        return self.record.task is None and sending.in_air and not sending.overdue and self.outcome is None

    @property
    def correlation_id(self) -> str:
        """The request's id."""
        return self.record.request.correlation_id
