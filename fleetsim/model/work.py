"""What someone wants done, what became of it, and what a person is asked meanwhile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.card import AgentCard
from fleetsim.model.errors import Blame, ConfigError
from fleetsim.model.extensions import EFFECT_DOMAIN, EffectDelta, Usage, declared
from fleetsim.model.parts import ListedPart, noted
from fleetsim.model.task import TERMINAL, JsonObject, Part, TaskState

ALL = "all"
"""The target that means every agent with the skill; no agent may have this name."""

ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
"""The ids that people and callers give: of ceremonies and requests. Matched in full, never searched (T-35)."""

ID_RULE = "1 to 128 ASCII letters, digits, dots, dashes or underscores, the first no dot or dash"


ID_INVALID = "Invalid ceremony id (alphanumeric, dots, dashes only)"
"""As Workstacean says it of a ceremony's id; what its pattern takes beside is in the rule."""


def ceremony_id(text: str) -> str:
    """The id as it was given. Raises ConfigError, in the words of Workstacean, if it can be no ceremony's."""
    if not ID.fullmatch(text):
        raise ConfigError(ID_INVALID, hint=ID_RULE)
    return text


def plain_id(text: str) -> str:
    """The id as it was given. Raises ValueError with the rule, for a validator to pass on."""
    if not ID.fullmatch(text):
        raise ValueError(f"must be {ID_RULE}")
    return text


class Source(Struct, frozen=True, kw_only=True):
    """Where a request came from (Workstacean's ``source``)."""

    interface: str = "api"
    channel_id: str | None = None
    user_id: str | None = None


class SkillRequest(Struct, frozen=True, kw_only=True):
    """What someone wants done (``agent.skill.request``).

    ``targets`` are agent names; empty means any agent with the skill, ``("all",)`` every one with it. A
    request that reaches the tracker has exactly one. ``system_actor`` names who asked. ``timeout_s``
    limits the whole of it, None meaning the configured limit. ``task_id`` makes it a follow-up: one more
    message on a task the agent has already. ``first_turn`` leaves the context to the agent, as the first turn
    of a conversation does; any other request without a ``context_id`` is in one of its own. ``parts`` are
    files and data to go with ``text``; ``metadata`` goes with the message, below what we say there ourselves.
    ``traceparent`` is the place in a trace of whoever asked (``model.trace``), empty if none was named.
    """

    correlation_id: str
    text: str = ""
    parts: tuple[Part, ...] = ()
    skill: str | None = None
    targets: tuple[str, ...] = ()
    parent_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    system_actor: str = "user"
    dispatcher_agent: str | None = None
    source: Source = Source()
    metadata: JsonObject = {}
    timeout_s: float | None = None
    first_turn: bool = False
    traceparent: str = ""


DEFAULT_SKILL = "chat"
"""The skill of a request without one, in topics, health and cooldowns (Workstacean's default), unless the agent's card
has a skill that fits better (``skill_hint``)."""

HINT_CHARS_MAX = 200
"""A longer skill id of a card is not sent back to it; the API takes no longer one either."""


def skill_hint(card: AgentCard | None, named: str | None = None, *, continues: bool = False) -> str | None:
    """The ``skillHint`` a message goes out with; None: none, and the agent chooses.

    The skill that is ``named``; else ``chat``, if the card has it; else the card's only skill, unless that declares
    effects (effect-domain-v1): what changes the world is asked for by name. A hint that an agent does not know is
    refused by careful ones, so there is no other guess. A message that ``continues`` a task says no more than
    its sender did: the task has its skill.
    """
    if named or continues or card is None:
        return named or None
    offered = {skill.skill_id for skill in card.skills if skill.skill_id}
    if DEFAULT_SKILL in offered:
        return DEFAULT_SKILL
    if len(offered) != 1:
        return None
    (only,) = offered
    effects = (declared(card, EFFECT_DOMAIN, only) or {}).get("effects")
    return None if effects or len(only) > HINT_CHARS_MAX else only


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
    state: OutcomeKind(state.value) for state in TaskState if state in TERMINAL
}


class Cause(StrEnum):
    """What brought a request to its end; with the kind it says whose doing that was (``BLAME``)."""

    meaning: str
    """In a person's words."""

    def __new__(cls, value: str, meaning: str) -> Cause:
        cause = str.__new__(cls, value)
        cause._value_, cause.meaning = value, meaning
        return cause

    AGENT_SAID = "agent_said", "the agent ended the task so"
    SUCCESS_DENIED = "success_denied", "the agent said completed, and its own payload says `success: false`"
    INTERNAL_ERROR = "internal_error", "the agent answered the send with an internal error"
    REFUSED = "refused", "the agent refused the send, or an answer, with an error"
    REQUEST_WRONG = (
        "request_wrong",
        "the agent says that the request itself is wrong: its parameters, size, media type or task",
    )
    CANCELED_UNASKED = "canceled_unasked", "the agent canceled, and nobody had asked for it"
    CANCELED_BY_PERSON = "canceled_by_person", "somebody had asked for it to be canceled"
    REJECTED_BY_PERSON = "rejected_by_person", "somebody rejected the agent's question"
    CANCEL_UNCONFIRMED = (
        "cancel_unconfirmed",
        "somebody asked for it to be canceled, and the agent did not confirm it in time",
    )
    UNANSWERED = "unanswered", "nobody answered the agent's question in time"
    TASK_DEADLINE = "task_deadline", "the configured time limit passed"
    CALLER_DEADLINE = "caller_deadline", "the caller's own time limit passed, which is shorter than the configured one"
    NEVER_SENT = "never_sent", "the time limit passed before it could be sent"
    UNREACHABLE = "unreachable", "no connection, or the agent was being left alone after failed ones"
    CREDENTIAL_REFUSED = "credential_refused", "the agent refused our credential, or wants one and none is configured"
    MISCONFIGURED = (
        "misconfigured",
        "the hub could not send it, or ask about it: address policy, configuration, storage",
    )
    REPLY_LOST = "reply_lost", "no reply arrived, and the task was never found: it may have run"
    TASK_GONE = "task_gone", "the agent no longer knows the task"
    CANNOT_FOLLOW = "cannot_follow", "the agent offers no way to follow a task"
    PROTOCOL = "protocol", "what the agent sent is not the protocol"
    LIMIT_REACHED = "limit_reached", "what the agent sent is more than a limit allows"
    RECORD_LOST = "record_lost", "the record of it was damaged"


BLAME: Mapping[tuple[OutcomeKind, Cause], Blame] = {
    (OutcomeKind.COMPLETED, Cause.AGENT_SAID): Blame.NOBODY,
    (OutcomeKind.COMPLETED, Cause.SUCCESS_DENIED): Blame.AGENT,
    (OutcomeKind.COMPLETED, Cause.CANCELED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.COMPLETED, Cause.REJECTED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.FAILED, Cause.AGENT_SAID): Blame.AGENT,
    (OutcomeKind.FAILED, Cause.CANCELED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.FAILED, Cause.REJECTED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.FAILED, Cause.INTERNAL_ERROR): Blame.AGENT,
    (OutcomeKind.FAILED, Cause.REFUSED): Blame.AGENT,
    (OutcomeKind.FAILED, Cause.REQUEST_WRONG): Blame.CALLER,
    (OutcomeKind.FAILED, Cause.CREDENTIAL_REFUSED): Blame.CALLER,
    (OutcomeKind.FAILED, Cause.MISCONFIGURED): Blame.CALLER,
    (OutcomeKind.FAILED, Cause.UNREACHABLE): Blame.NETWORK,
    (OutcomeKind.FAILED, Cause.PROTOCOL): Blame.AGENT,
    (OutcomeKind.FAILED, Cause.LIMIT_REACHED): Blame.AGENT,
    (OutcomeKind.REJECTED, Cause.AGENT_SAID): Blame.AGENT,
    (OutcomeKind.REJECTED, Cause.REQUEST_WRONG): Blame.CALLER,
    (OutcomeKind.REJECTED, Cause.CANCELED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.REJECTED, Cause.REJECTED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.CANCELED, Cause.CANCELED_UNASKED): Blame.AGENT,
    (OutcomeKind.CANCELED, Cause.CANCELED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.CANCELED, Cause.REJECTED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON): Blame.HUMAN,
    (OutcomeKind.UNDELIVERABLE, Cause.UNREACHABLE): Blame.NETWORK,
    (OutcomeKind.UNDELIVERABLE, Cause.CREDENTIAL_REFUSED): Blame.CALLER,
    (OutcomeKind.UNDELIVERABLE, Cause.MISCONFIGURED): Blame.CALLER,
    (OutcomeKind.UNDELIVERABLE, Cause.REQUEST_WRONG): Blame.CALLER,
    (OutcomeKind.UNDELIVERABLE, Cause.REFUSED): Blame.AGENT,
    (OutcomeKind.UNKNOWN, Cause.REPLY_LOST): Blame.NETWORK,
    (OutcomeKind.UNKNOWN, Cause.MISCONFIGURED): Blame.CALLER,
    (OutcomeKind.UNKNOWN, Cause.RECORD_LOST): Blame.NOBODY,
    (OutcomeKind.LOST, Cause.TASK_GONE): Blame.AGENT,
    (OutcomeKind.LOST, Cause.CANNOT_FOLLOW): Blame.AGENT,
    (OutcomeKind.LOST, Cause.CREDENTIAL_REFUSED): Blame.CALLER,
    (OutcomeKind.LOST, Cause.MISCONFIGURED): Blame.CALLER,
    (OutcomeKind.EXPIRED, Cause.TASK_DEADLINE): Blame.AGENT,
    (OutcomeKind.EXPIRED, Cause.CALLER_DEADLINE): Blame.CALLER,
    (OutcomeKind.EXPIRED, Cause.REPLY_LOST): Blame.NETWORK,
    (OutcomeKind.EXPIRED, Cause.NEVER_SENT): Blame.NETWORK,
    (OutcomeKind.EXPIRED, Cause.CANCEL_UNCONFIRMED): Blame.HUMAN,
    (OutcomeKind.EXPIRED, Cause.UNANSWERED): Blame.HUMAN,
    (OutcomeKind.PROTOCOL_ERROR, Cause.PROTOCOL): Blame.AGENT,
    (OutcomeKind.PROTOCOL_ERROR, Cause.LIMIT_REACHED): Blame.AGENT,
}
"""The one table of who answers for what. Total over what the caller can produce (tests/house)."""


class UpdateSource(StrEnum):
    """Which channel brought a signal."""

    REPLY = "reply"
    STREAM = "stream"
    POLL = "poll"
    PUSH = "push"
    LOCAL = "local"


class Outcome(Struct, frozen=True, kw_only=True):
    """The one result of one accepted request (``autonomous.outcome.{systemActor}.{skill}``).

    It names the agent that did the work and the ``system_actor`` that asked. ``success`` means the goal
    was met. ``warnings`` are what whoever asked should know besides: that the agent went on in another task
    than the one asked for. ``cause`` with ``kind`` gave the blame; None in ledgers of versions that had none,
    whose blame stays as recorded. ``duration_ms`` runs from dispatch to end; ``agent_ms`` is what of it the agent had,
    without the time people took and the time before the request left (None: not measured). Cost is in US
    dollars; ``cost_estimated``: the agent named tokens and no cost, and the rates in force priced them.
    ``text_chars`` is how much the agent said as far as it was counted; ``truncated`` that ``text`` is only its
    beginning. ``parts`` are the files and data the agent answered with, of ``parts_total`` it sent
    (``model.parts.answer_parts``). ``chunks`` is in how many pieces a stream brought what it said (None: no stream
    brought all of it, or nobody counted).
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
    via: UpdateSource = UpdateSource.LOCAL
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str | None = None
    confidence: float | None = None
    confidence_explanation: str | None = None
    effects: tuple[EffectDelta, ...] = ()
    warnings: tuple[str, ...] = ()
    cause: Cause | None = None
    agent_ms: int | None = None
    cost_estimated: bool = False
    truncated: bool = False
    text_chars: int = 0
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0
    chunks: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it is the agent's: a success, or a failure blamed on it. Everything else is counted beside."""
        return self.success or self.blame is Blame.AGENT

    def excerpt(self, chars_max: int) -> Outcome:
        """The outcome as events carry it: the first characters of its text, parts without content, no effects."""
        text, chars = self.text[:chars_max], max(self.text_chars, len(self.text))
        parts = noted(self.parts)
        return replace(self, text=text, text_chars=chars, truncated=chars > len(text), parts=parts, effects=())


WHOSE: Mapping[Blame, str] = {
    Blame.HUMAN: "ended by people",
    Blame.CALLER: "by the caller",
    Blame.NETWORK: "by the network",
    Blame.NOBODY: "by nobody known",
}
"""Whose doing an outcome was that is not the agent's, in a person's words."""


class QuestionKind(StrEnum):
    """What the agent waits for."""

    INPUT = "input-required"
    AUTH = "auth-required"


class Question(Struct, frozen=True, kw_only=True):
    """An agent waits for somebody. ``question_id`` is a digest of (agent, task, words, data, ``asked_at``).

    ``text_chars`` and ``truncated`` are as an outcome's. ``parts`` are the data and files it is asked with, of
    ``parts_total``: data with its content, files listed (``model.asking``).
    """

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
    truncated: bool = False
    text_chars: int = 0
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0


class Decision(StrEnum):
    """What a person does with a question: answer it, or reject it, which cancels the task."""

    ANSWER = "answer"
    REJECT = "reject"


class Answer(Struct, frozen=True, kw_only=True):
    """A reply to one question; it lands at most once. ``parts`` and ``metadata`` go with it as with a request."""

    question_id: str
    text: str
    by: str = "operator"
    decision: Decision = Decision.ANSWER
    parts: tuple[Part, ...] = ()
    metadata: JsonObject = {}
