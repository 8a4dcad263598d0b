"""A track: the state of one request between its acceptance and its outcome.

``step.step(track, signal, now, rules)`` is the one decision about it (``step.machine`` draws it), ``signals`` holds its
inputs and effects. This module does not wait, send or read a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.asking import text_of
from fleetsim.model.event import Snapshot, TaskEvent
from fleetsim.model.extensions import Usage
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.task import INTERRUPTED, Task, TaskState, TaskStatus
from fleetsim.model.work import KIND_OF_STATE, Answer, Cause, Outcome, OutcomeKind, Question, UpdateSource
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.retry import DELAYS_S, LOST_CONFIRM_S, RETRY_AFTER_MAX_S, YOUNG_S

# ------------------------------------------------------------------ what tokens cost, when an agent does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """US dollars per million tokens. Cache reads and writes default to the usual share of the input price."""

    input_usd: float
    output_usd: float
    cache_read_usd: float | None = None
    cache_write_usd: float | None = None

    def price(self, usage: Usage) -> float:
        """US dollars for ``usage``."""
        read = self.input_usd * 0.1 if self.cache_read_usd is None else self.cache_read_usd
        write = self.input_usd * 1.25 if self.cache_write_usd is None else self.cache_write_usd
        total = usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd
        total += usage.cache_read_input_tokens * read + usage.cache_creation_input_tokens * write
        return total / 1e6


DEFAULT = "default"
BUILT_IN: Mapping[str, Rate] = {
    "claude-opus-4-6": Rate(input_usd=15, output_usd=75),
    "claude-sonnet-4-6": Rate(input_usd=3, output_usd=15),
    "claude-haiku-4-5": Rate(input_usd=0.25, output_usd=1.25),
    "gpt-4o": Rate(input_usd=2.5, output_usd=10),
    "gpt-4o-mini": Rate(input_usd=0.15, output_usd=0.6),
    DEFAULT: Rate(input_usd=3, output_usd=15),
}
"""Workstacean's table. A model's longest known prefix counts, so dated names find their rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The current table of prices. ``by_model`` must have ``default``."""

    by_model: Mapping[str, Rate] = field(default_factory=lambda: BUILT_IN)

    def rate(self, model: str | None) -> Rate:
        """The rate of ``model``: its own, else that of its longest listed prefix, else the default."""
        known = [name for name in self.by_model if model and model.startswith(name)]
        return self.by_model[max(known, key=len, default=DEFAULT)]

    def estimate(self, usage: Usage | None, model: str | None) -> float | None:
        """US dollars for tokens whose cost the agent did not report; None without tokens."""
        return self.rate(model).price(usage) if usage else None


# ------------------------------------------------------------------ tracks


class Rules(Struct, frozen=True, kw_only=True):
    """The limits of a track, in seconds and counts, and the prices of tokens. agents.yaml may set some of them.

    ``owed_s`` limits the polls for the rest of a result after the end. ``key_repeats`` counts the repeats of a call
    whose key was refused. ``text_chars_max`` None keeps texts whole. ``events``: publish what the agent sends.
    """

    poll_interval_s: float = 30.0
    task_limit_s: float = 3_600.0
    skill_limits_s: Mapping[str, float] = {}
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
    owed_s: float = float("inf")
    look_first_s: float = 1.0
    refused_polls_max: int = 3
    key_repeats: int = 1
    polls_beside_stream: bool = True
    text_chars_max: int | None = TEXT_CHARS_MAX
    events: bool = True
    stall_s: float = 1.0
    grace_s: float = 5.0
    rates: Rates = Rates()


class Now(Struct, frozen=True):
    """An instant: monotonic seconds for durations, wall time for people, and one random number for jitter."""

    mono: float
    wall: datetime
    jitter: float = 0.5


class Signal(Struct, frozen=True):
    """An input of the step."""


class TaskUpdate(Signal, frozen=True, kw_only=True):
    """An update of the task from the agent. ``began`` is the start of the request that brought it."""

    event: TaskEvent
    via: UpdateSource
    began: float


class Timer(StrEnum):
    """The timers of a request. If several expire at once, they run in this order."""

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


class Sending(Struct, frozen=True, kw_only=True):
    """The first send, until the task is bound.

    ``stream``: it requests the streaming form. ``attempt`` counts repeats. ``lost`` describes what arrived instead of
    the reply, in the agent's own words if it sent any; ``silent``: the agent ended its stream without an event.
    ``searches`` counts the searches that did not find its task; ``unsearchable``: the agent offers no search.
    ``early`` are webhooks that arrived before the reply; ``look_due``: the hub refused one. ``stream_refused`` is the
    agent's refusal of a stream, ``push_refused`` its refusal of the send with our webhook, until it accepts the same
    send without it. ``overdue``: the reply takes longer than other calls may. The hub still waits for it, and applies
    webhooks and polls before it arrives. ``not_accepted`` is the reason why the agent did not accept the request, which
    goes to the next one of the fallback now.
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
    not_accepted: str = ""


class StopReason(Struct, frozen=True, kw_only=True):
    """The reason why polling stopped, and the end of the request if no stream or webhook reports another."""

    kind: OutcomeKind
    cause: Cause
    reason: str


class Polling(Struct, frozen=True, kw_only=True):
    """The polls of a task.

    ``began`` is the start of the poll under way; ``next_at`` the time of the next one, if it was set meanwhile.
    ``failed`` counts polls in a row that failed for a reason that may pass. ``refusals`` lists the replies, since the
    last good poll, that a repeat cannot change, the first of them at ``refused_at``; ``trouble`` is the reason of the
    last failure. ``misses`` counts replies that the task does not exist, the last of them at ``missed_at``.
    ``looked_at`` is the time of the last poll.
    """

    began: float | None = None
    next_at: float | None = None
    count: int = 0
    failed: int = 0
    refusals: tuple[str, ...] = ()
    refused_at: float = float("inf")
    trouble: str = ""
    misses: int = 0
    missed_at: float = float("-inf")
    looked_at: float = float("-inf")
    stopped: StopReason | None = None


class Streaming(Struct, frozen=True, kw_only=True):
    """Following a stream. ``gap``: events may be missing since the last snapshot of the task.

    ``last_words`` is the error in the agent's words that ended the last stream. ``replaced``: a status message replaced
    another one's words.
    """

    open: bool = False
    joining: bool = False
    rejoins: int = 0
    gap: bool = False
    last_words: str = ""
    replaced: bool = False


class Pushing(Struct, frozen=True, kw_only=True):
    """Webhooks: the number received, and whether one was registered after the reply."""

    received: int = 0
    registered: bool = False


class Asking(Struct, frozen=True, kw_only=True):
    """The agent's question, and the answer on its way to it.

    ``key`` distinguishes the open ``question`` from others of the same task; ``recorded``: it is on record, so the hub
    accepts an answer. ``left_s`` is the rest of the request's time, which stands still meanwhile. ``answered_at`` is
    the end of the last question; ``answer_lost``: the last answer may not have arrived. ``attempt`` counts repeats of
    ``answer``; ``doubt``: the hub stopped while it was sending the answer, and only the agent knows whether it arrived.
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


class Ending(Struct, frozen=True, kw_only=True):
    """The end of the request.

    ``whole`` names artifacts that are known to be complete; ``polls_owed`` counts the polls that are still due before a
    terminal state may be believed complete. ``cancel_refused`` has the agent's words if it refused the last cancel.
    """

    cancel_sent: bool = False
    cancel_refused: str = ""
    whole: frozenset[str] = frozenset()
    polls_owed: int = 0


class Track(Struct, kw_only=True):
    """One request in flight: its durable record, the states of its parts, and its timers.

    Only a step changes a track, and only its own copy. Other code treats it as a value. Times are monotonic seconds.
    ``applied_at`` is the arrival of the last applied signal; a poll that began before it is stale. ``taken_at`` is the
    last time at which the agent accepted a message: a young task is polled often. ``turn_from`` is the start of the
    agent's turn; None while the request waits for its slot or for a person. ``chunks`` counts the chunks of the answer
    that streams brought; None once one may be missing. ``text_chars`` is an upper bound for the text of the task's
    artifacts; None if it is not known, or if text was left out.
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
        """The task as of the last applied update."""
        return self.record.task

    @property
    def question(self) -> Question | None:
        """The question as people see it and may answer it; None until it is on record."""
        return self.asking.question if self.asking.recorded else None

    @property
    def awaits_reply(self) -> bool:
        """Whether the send is under way and not overdue: its reply will name the task."""
        sending = self.sending
        return self.record.task is None and sending.in_air and not sending.overdue and self.outcome is None

    @property
    def correlation_id(self) -> str:
        return self.record.request.correlation_id


# ------------------------------------------------------------------ follow-ups
#
# A follow-up is a further message on a task that the agent has. An agent that accepts it may still show the task in its
# earlier state (ended, or waiting), in its reply or at the start of its stream. That is not the answer: only a poll
# that began afterwards decides.

_DIGEST_CHARS = 24


def follow_up(record: RequestRecord, last: Outcome | None, last_record: RequestRecord | None) -> RequestRecord:
    """The follow-up with the context of its task, and the state that the task was last seen in.

    ``last`` is the newest outcome of the same task and ``last_record`` its request. Without them the agent
    finds the context by the task.
    """
    if last is None:
        return record
    context = record.request.context_id or last.context_id or None
    state, earlier = next((state for state, kind in KIND_OF_STATE.items() if kind is last.kind), None), ""
    if state is not None:
        earlier = _digest(state, last.text)
    elif last_record is not None and last_record.task is not None:
        earlier = how_it_stands(last_record.task)
    return replace(record, request=replace(record.request, context_id=context), earlier=earlier)


def how_it_stands(task: Task) -> str:
    """A digest of a task that has ended or waits; the empty string for a task at work."""
    return _digest(task.state, text_of(task)[0]) if task.terminal or task.state in INTERRUPTED else ""


def _digest(state: TaskState, text: str) -> str:
    return sha256(f"{state.value}\0{text}".encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]


def shows_the_past(record: RequestRecord, event: TaskEvent) -> bool:
    """Whether an event shows a follow-up's task exactly in its state before the message."""
    return isinstance(event, Snapshot) and record.earlier != "" and how_it_stands(event.task) == record.earlier


def just_taken(event: TaskEvent) -> TaskEvent:
    """Replace a snapshot from before the message: the agent accepted the message, so the task is submitted."""
    assert isinstance(event, Snapshot)
    return Snapshot(task=replace(event.task, status=TaskStatus(state=TaskState.SUBMITTED)))


def shows_the_message(record: RequestRecord, task: Task) -> bool:
    """Whether a task shows that the message arrived, although its reply was lost."""
    if any(message.message_id == record.message_id for message in task.history):
        return True
    stands = how_it_stands(task)
    return stands == "" or (record.earlier != "" and stands != record.earlier)
