"""Requests, their outcomes, and the questions and answers between them."""

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
from fleetsim.model.parts import ListedPart, parts_for_list
from fleetsim.model.task import TERMINAL, JsonObject, Part, TaskState

ALL = "all"
"""The target for every agent with the skill; no agent may have this name."""

ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
"""The ids of ceremonies and requests that people and callers choose. Use ``fullmatch``, never ``search`` (T-35)."""

ID_RULE = "1 to 128 ASCII letters, digits, dots, dashes or underscores, the first no dot or dash"


ID_INVALID = "Invalid ceremony id (alphanumeric, dots, dashes only)"
"""Workstacean's message for a wrong id of a ceremony. Its pattern also takes underscores, as ``ID_RULE`` says."""


def ceremony_id(text: str) -> str:
    """Return a valid id of a ceremony. Raises ConfigError with Workstacean's message if it is invalid."""
    if not ID.fullmatch(text):
        raise ConfigError(ID_INVALID, hint=ID_RULE)
    return text


def plain_id(text: str) -> str:
    """Return a valid id. Raises ValueError with the rule, for a validator."""
    if not ID.fullmatch(text):
        raise ValueError(f"must be {ID_RULE}")
    return text


class Source(Struct, frozen=True, kw_only=True):
    """The origin of a request (Workstacean's ``source``)."""

    interface: str = "api"
    channel_id: str | None = None
    user_id: str | None = None


class SkillRequest(Struct, frozen=True, kw_only=True):
    """One request for work (``agent.skill.request``).

    ``targets`` are agent names; empty means any agent with the skill, ``("all",)`` every agent with it. A request that
    reaches the tracker has exactly one. ``system_actor`` names the caller. ``timeout_s`` limits the time from
    acceptance to outcome; None means the configured limit. ``task_id`` makes it a follow-up: another message on a task
    that the agent already has. With ``first_turn`` the agent chooses the context, as in the first turn of a
    conversation; any other request without a ``context_id`` gets a new one. ``parts`` are files and data beside
    ``text``. ``metadata`` goes into the message; keys that the hub sets itself win. ``traceparent`` is the caller's
    span (W3C Trace Context); empty without one. ``retry_of`` is the ended request that this one sends again.
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
    retry_of: str | None = None


DEFAULT_SKILL = "chat"
"""The skill of a request that names none, in topics, health and cooldowns (Workstacean's default). ``skill_hint`` may
choose another one from the agent's card."""

HINT_CHARS_MAX = 200
"""A longer skill id of a card is not sent to its agent. The API has the same limit."""


def skill_hint(card: AgentCard | None, named: str | None = None, *, continues: bool = False) -> str | None:
    """Return the ``skillHint`` of a message; None lets the agent choose.

    It is the skill that is ``named``, then ``chat`` if the card has it, then the card's only skill. A skill that
    declares effects (effect-domain-v1) is never guessed, because it changes the world. Careful agents refuse unknown
    hints, so there is no other guess. A message that ``continues`` a task has a hint only if its sender named one:
    the task already has its skill.
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
    """The end of a request: an agent's terminal state, or a conclusion of the caller."""

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
    """The reason for the end of a request. Kind and cause together give the blame (``BLAME``)."""

    meaning: str
    """The cause in a sentence for people."""

    def __new__(cls, value: str, meaning: str) -> Cause:
        cause = str.__new__(cls, value)
        cause._value_, cause.meaning = value, meaning
        return cause

    AGENT_SAID = "agent_said", "the agent ended the task in this state"
    SUCCESS_DENIED = "success_denied", "the agent reported completed, but its payload has `success: false`"
    INTERNAL_ERROR = "internal_error", "the agent replied to the request with an internal error"
    REFUSED = "refused", "the agent refused the request, or an answer, with an error"
    REQUEST_WRONG = (
        "request_wrong",
        "the agent reports that the request itself is wrong: its parameters, size, media type or task",
    )
    CANCELED_UNASKED = "canceled_unasked", "the agent canceled without being asked to"
    CANCELED_BY_PERSON = "canceled_by_person", "a person asked to cancel the task"
    REJECTED_BY_PERSON = "rejected_by_person", "a person rejected the agent's question"
    CANCEL_UNCONFIRMED = (
        "cancel_unconfirmed",
        "a person asked to cancel the task, and the agent did not confirm it in time",
    )
    UNANSWERED = "unanswered", "no person answered the agent's question in time"
    TASK_DEADLINE = "task_deadline", "the configured time limit passed"
    CALLER_DEADLINE = (
        "caller_deadline",
        "the caller's own time limit passed, which is shorter than the configured limit",
    )
    NEVER_SENT = "never_sent", "the time limit passed before the request could be sent"
    UNREACHABLE = "unreachable", "no connection, or the hub paused after failed connections"
    CREDENTIAL_REFUSED = (
        "credential_refused",
        "the agent refused our credential, or requires one and none is configured",
    )
    MISCONFIGURED = (
        "misconfigured",
        "the hub could not send the request, or read the task: address policy, configuration, storage",
    )
    REPLY_LOST = "reply_lost", "no reply arrived, and the hub did not find the task: it may have run"
    TASK_GONE = "task_gone", "the agent no longer knows the task"
    CANNOT_FOLLOW = "cannot_follow", "the agent offers no way to follow a task"
    PROTOCOL = "protocol", "the agent's reply breaks the protocol"
    LIMIT_REACHED = "limit_reached", "the agent's reply exceeds a limit"
    OVER_LIMIT = "over_limit", "a limit of agents.yaml held the request, and a person did not raise it"
    RECORD_LOST = "record_lost", "the record of the request was damaged"


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
    (OutcomeKind.UNDELIVERABLE, Cause.OVER_LIMIT): Blame.HUMAN,
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
"""The blame for each kind and cause that the caller can produce; tests/house checks that none is missing."""


class UpdateSource(StrEnum):
    """The channel of a signal."""

    REPLY = "reply"
    STREAM = "stream"
    POLL = "poll"
    PUSH = "push"
    LOCAL = "local"


class Outcome(Struct, frozen=True, kw_only=True):
    """The one result of one accepted request (``autonomous.outcome.{systemActor}.{skill}``).

    ``agent`` did the work, ``system_actor`` asked for it. ``success`` means that the goal was met. ``warnings`` are for
    the caller, for example that the agent used another task than the request named. ``cause`` and ``kind`` gave the
    blame; ``cause`` is None in ledgers of old versions, which recorded only the blame. ``duration_ms`` runs from
    dispatch to end. ``agent_ms`` is the agent's share of it, without the time of people and the time before the request
    was sent; None if it was not measured. Cost is in US dollars; with ``cost_estimated`` the agent named only tokens,
    and the configured rates priced them. ``text_chars`` is the length of the agent's text; ``truncated`` tells that
    ``text`` is only its beginning. ``parts`` are the first files and data of the answer, ``parts_total`` is their
    number (``model.parts.answer_parts``). ``chunks`` counts the pieces of a stream that carried the whole text; None
    without such a stream. ``retry_of`` is that of the request.
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
    retry_of: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts for the agent: a success, or a failure that is the agent's fault."""
        return self.success or self.blame is Blame.AGENT

    def excerpt(self, chars_max: int) -> Outcome:
        """Return the outcome for an event: the first ``chars_max`` characters, parts without content, no effects."""
        text, chars = self.text[:chars_max], max(self.text_chars, len(self.text))
        parts = parts_for_list(self.parts)
        return replace(self, text=text, text_chars=chars, truncated=chars > len(text), parts=parts, effects=())


WHOSE: Mapping[Blame, str] = {
    Blame.HUMAN: "ended by people",
    Blame.CALLER: "by the caller",
    Blame.NETWORK: "by the network",
    Blame.NOBODY: "by nobody known",
}
"""Words for people, for the blame of outcomes that do not count for the agent."""


class QuestionKind(StrEnum):
    """The state in which the agent waits."""

    INPUT = "input-required"
    AUTH = "auth-required"


class Question(Struct, frozen=True, kw_only=True):
    """A question of an agent. ``question_id`` is a digest of (agent, task, text, data, ``asked_at``).

    Without a ``task_id`` a limit asks it, before the request is sent.
    ``text_chars``, ``truncated`` and ``parts_total`` are those of an outcome. ``parts`` holds data with its content and
    files without (``model.asking``).
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
    """A person answers a question, or rejects it, which cancels the task."""

    ANSWER = "answer"
    REJECT = "reject"


class Answer(Struct, frozen=True, kw_only=True):
    """An answer to one question; it is sent at most once. ``parts`` and ``metadata`` are those of a request."""

    question_id: str
    text: str
    by: str = "operator"
    decision: Decision = Decision.ANSWER
    parts: tuple[Part, ...] = ()
    metadata: JsonObject = {}
