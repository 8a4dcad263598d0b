"""What someone wants done, what became of it, and what a person is asked meanwhile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleetsim.model.errors import Blame
from fleetsim.model.extensions import EffectDelta, Usage
from fleetsim.model.task import JsonObject, TaskState

ID = re.compile(r"[A-Za-z0-9_][\w.\-]{0,127}", re.ASCII)
"""The ids that people and callers give: of ceremonies and requests. Matched in full, never searched (T-35)."""


def plain_id(text: str) -> str:
    """The id as it was given. Raises ValueError with the rule, for a validator to pass on."""
    if not ID.fullmatch(text):
        raise ValueError(
            "must be 1 to 128 ASCII letters, digits, dots, dashes or underscores, the first no dot or dash"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a request came from (Workstacean's ``source``)."""

    interface: str = "api"
    channel_id: str | None = None
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRequest:
    """What someone wants done (``agent.skill.request``).

    ``targets`` are agent names; empty means any agent with the skill, ``("all",)`` every one with it. A
    request that reaches the tracker has exactly one. ``system_actor`` names who asked. ``timeout_s``
    limits the whole of it, None meaning the configured limit. ``task_id`` makes it a follow-up: one more
    message on a task the agent has already. ``first_turn`` leaves the context to the agent, as the first turn
    of a conversation does; any other request without a ``context_id`` is in one of its own.
    """

    correlation_id: str
    text: str = ""
    skill: str | None = None
    targets: tuple[str, ...] = ()
    parent_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    system_actor: str = "user"
    dispatcher_agent: str | None = None
    source: Source = field(default_factory=Source)
    metadata: JsonObject = field(default_factory=dict)
    timeout_s: float | None = None
    first_turn: bool = False


class OutcomeKind(StrEnum):
    """How a request ended: an agent's terminal state, or one of the caller's own findings."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"
    UNDELIVERABLE = "undeliverable"
    UNKNOWN = "unknown"
    LOST = "lost"
    EXPIRED = "expired"
    PROTOCOL_ERROR = "protocol_error"


KIND_OF_STATE: Mapping[TaskState, OutcomeKind] = {
    TaskState.COMPLETED: OutcomeKind.COMPLETED,
    TaskState.FAILED: OutcomeKind.FAILED,
    TaskState.CANCELED: OutcomeKind.CANCELED,
    TaskState.REJECTED: OutcomeKind.REJECTED,
}

BESIDE_RATE = frozenset({OutcomeKind.UNKNOWN, OutcomeKind.UNDELIVERABLE})
"""Outcomes the agent does not answer for: counted beside the success rate, not in it."""


class Via(StrEnum):
    """Which channel brought a signal."""

    REPLY = "reply"
    STREAM = "stream"
    POLL = "poll"
    PUSH = "push"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The one result of one accepted request (``autonomous.outcome.{systemActor}.{skill}``).

    It names the agent that did the work and the ``system_actor`` that asked. ``success`` means the goal
    was met. Durations are milliseconds, cost US dollars. ``warnings`` are what whoever asked should know
    besides: that the agent went on in another task than the one asked for.
    """

    correlation_id: str
    agent: str
    skill: str
    system_actor: str
    kind: OutcomeKind
    success: bool
    blame: Blame
    started_at: datetime
    ended_at: datetime
    duration_ms: int
    text: str = ""
    reason: str = ""
    parent_id: str | None = None
    task_id: str | None = None
    context_id: str | None = None
    via: Via = Via.LOCAL
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str | None = None
    confidence: float | None = None
    confidence_explanation: str | None = None
    effects: tuple[EffectDelta, ...] = ()
    warnings: tuple[str, ...] = ()


class QuestionKind(StrEnum):
    """What the agent waits for."""

    INPUT = "input-required"
    AUTH = "auth-required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An agent waits for somebody. ``question_id`` is a digest of (agent, task, status message, answers so far)."""

    question_id: str
    correlation_id: str
    agent: str
    skill: str
    task_id: str
    context_id: str
    kind: QuestionKind
    text: str
    asked_at: datetime
    expires_at: datetime
    checkpoint: int = 1
    system_actor: str = "user"


class Decision(StrEnum):
    """What a person does with a question: answer it, or reject it, which cancels the task."""

    ANSWER = "answer"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply to one question; it lands at most once."""

    question_id: str
    text: str
    by: str = "operator"
    decision: Decision = Decision.ANSWER
