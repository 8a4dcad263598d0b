"""A track: everything the caller believes about one request between acceptance and outcome.

A value: ``step.step(track, signal, now, rules)`` is the one decision about it, ``signals`` what can reach it
and what it can ask for. Nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from fleetsim.caller.ledger import RequestRecord
from fleetsim.caller.rates import Rates
from fleetsim.model.event import TaskEvent
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.task import Task
from fleetsim.model.work import Answer, Cause, Outcome, OutcomeKind, Question, UpdateSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits a track lives by, in seconds and counts (defaults: docs/reference/limits.md), and what tokens cost."""

    poll_interval_s: float = 30.0
    task_limit_s: float = 3600.0
    question_ttl_s: float = 24 * 3600.0
    question_expiry_cancels: bool = True
    retry_waits_s: tuple[float, ...] = (1.0, 3.0, 9.0)
    retry_after_max_s: float = 120.0
    lost_confirm_s: float = 5.0
    young_s: float = 60.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """An open question, when it lapses and when somebody is reminded of it (monotonic seconds; None: was)."""

    question: Question
    key: str
    due: float
    remind: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Why a task is not polled any more, and how its request ends unless something else tells of it."""

    kind: OutcomeKind
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One request in flight. Times are monotonic seconds; None means not scheduled or not going on.

    ``applied_at`` is when the last applied signal arrived; a poll begun before it is stale. ``whole``
    names artifacts known to be complete, ``gap`` that a stream may have been missed in between.
    ``confirming_polls_left`` counts the polls still owed before a terminal state may be believed complete.
    ``answer_lost``: whether the last answer arrived is not known. ``resume_doubt``: an answer
    was on its way when the hub stopped, and only the agent knows whether it arrived. ``taken_at`` is when the agent
    last took something from us: a young task is looked at often. ``refusals`` names, since the last poll that brought
    the task, each answer that polling cannot mend; ``trouble`` says why the last poll brought nothing,
    ``lost`` what came instead of the reply to the send, in the agent's own words where it had any.
    ``silent``: the agent ended its stream without a word, and ``searches`` counts the looks for its task that
    found none; ``unsearchable``: it offers no such look. ``look_due``: a webhook was turned away before the task
    was bound. ``looked_at`` is when the agent was last asked for the task. ``turn_from`` is since when it has
    been the agent's turn; None while the request waits to leave, or for a person.
    """

    record: RequestRecord
    began: float
    deadline: float
    in_air: bool = False
    stream_open: bool = False
    joining: bool = False
    try_stream: bool = False
    attempt: int = 0
    resubscribes: int = 0
    retry_due: float | None = None
    reconcile_due: float | None = None
    find_due: float | None = None
    poll_due: float | None = None
    poll_began: float | None = None
    polls: int = 0
    failed_polls: int = 0
    refusals: tuple[str, ...] = ()
    trouble: str = ""
    lost: str = ""
    stopped: Stopped | None = None
    taken_at: float = float("-inf")
    silent: bool = False
    searches: int = 0
    unsearchable: bool = False
    turn_from: float | None = None
    misses: int = 0
    missed_at: float = float("-inf")
    applied_at: float = float("-inf")
    whole: frozenset[str] = frozenset()
    gap: bool = False
    confirming_polls_left: int = 0
    via: UpdateSource = UpdateSource.LOCAL
    asked: OpenQuestion | None = None
    paused_left: float | None = None
    answered_at: float = float("-inf")
    answer_lost: bool = False
    resume: Answer | None = None
    resume_attempt: int = 0
    resume_due: float | None = None
    resume_doubt: bool = False
    cancel_due: float | None = None
    cancel_sent: bool = False
    pushes: int = 0
    registered: bool = False
    look_due: bool = False
    looked_at: float = float("-inf")
    early_updates: tuple[TaskUpdate, ...] = ()
    outcome: Outcome | None = None

    def changed(self, new: Mapping[str, Any]) -> Track:
        """As ``dataclasses.replace``, in half the time: of all that a step does it took the most."""
        return Track(**dict(zip(_NAMES, _values(self), strict=True)) | dict(new))

    @property
    def task(self) -> Task | None:
        """The task as last believed."""
        return self.record.task

    @property
    def awaits_reply(self) -> bool:
        """Whether the send is in the air, so that it will say which task this is."""
        return self.task is None and self.in_air and self.outcome is None

    @property
    def correlation_id(self) -> str:
        """The request's id."""
        return self.record.request.correlation_id

    def agent_s(self, mono: float) -> float:
        """How long the agent has had the request by ``mono``."""
        return self.record.agent_s + (0.0 if self.turn_from is None else max(0.0, mono - self.turn_from))

    @property
    def limit_s(self) -> float:
        """How long the request may take, questions apart."""
        return (self.record.deadline_at - self.record.accepted_at).total_seconds()

    @property
    def wake(self) -> float | None:
        """When something falls due next; None once closed."""
        if self.outcome is not None:
            return None
        times = (
            None if self.asked else self.deadline,
            self.retry_due,
            self.reconcile_due,
            self.find_due,
            self.poll_due if self.poll_began is None else None,
            self.asked.due if self.asked else None,
            self.asked.remind if self.asked else None,
            self.resume_due,
            self.cancel_due,
        )
        return min((t for t in times if t is not None), default=None)


_NAMES = tuple(member.name for member in fields(Track))
_values = attrgetter(*_NAMES)
