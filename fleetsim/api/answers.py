"""The answers of the hub's API: one struct for each. The hub writes them, ``HubClient`` reads them.

Health has a module of its own (``api.health``). A member that is UNSET is not written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

from msgspec import UNSET, UnsetType, field

from fleetsim.api.answer import HubAnswer, Moment, iso
from fleetsim.api.health import HealthWord
from fleetsim.api.part_rows import PartFacts
from fleetsim.model.extensions import DeclaredEffect, Usage

# ------------------------------------------------------------------ the hub


class LivenessReport(HubAnswer, frozen=True, kw_only=True):
    """``ok``, ``ready`` or ``unready``; ``proof`` answers a challenge, ``reason`` says why it takes no work."""

    status: str
    proof: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class AccessRole(StrEnum):
    """What a person's key may do at the hub. Each role includes those before it; ``owner`` is the hub's own key."""

    VIEWER = "viewer"
    ANSWERER = "answerer"
    OPERATOR = "operator"
    OWNER = "owner"

    def includes(self, other: AccessRole) -> bool:
        roles = list(AccessRole)
        return roles.index(self) >= roles.index(other)

    @property
    def or_above(self) -> str:
        """The roles of people that include this one, in words."""
        return " or ".join(role.one for role in PEOPLE if role.includes(self))

    @property
    def one(self) -> str:
        """The role with its article."""
        return f"{'an' if self.value[0] in 'aeiou' else 'a'} {self.value}"


PEOPLE = (AccessRole.VIEWER, AccessRole.ANSWERER, AccessRole.OPERATOR)
"""The roles of people."""


class KeyIdentity(HubAnswer, frozen=True, kw_only=True):
    """The agent or the person of the key (neither: the hub's own key), and what is wrong with the fleet's files
    (``rejected``). An agent has no ``role``."""

    agent: str | None
    person: str | None = None
    role: AccessRole | None = None
    rejected: tuple[str, ...] = ()
    version: str = ""
    last_seq: int


class ActionRow(HubAnswer, frozen=True, kw_only=True):
    """What a person, or a holder of the hub's own key, did to an ``object``: the id or name of a request, a question, a
    ceremony, an agent or a channel."""

    at: Moment
    by: str
    role: str
    action: str
    object: str
    detail: str
    correlation_id: str | None


class KnownId(HubAnswer, frozen=True, kw_only=True):
    """A match for an id in the ledger, and its request.

    ``kind`` is ``request``, ``question``, ``run`` (of a ceremony) or ``task`` (an agent's own id).
    """

    id: str
    kind: str
    correlation_id: str
    agent: str
    at: Moment


class JournalEvent(HubAnswer, frozen=True, kw_only=True):
    """A recorded event; events.schema.json has the payload of each topic."""

    seq: int
    at: Moment
    topic: str
    level: str
    correlation_id: str | None
    parent_id: str | None
    agent: str | None
    skill: str | None
    task_id: str | None
    payload: dict[str, Any]


# ------------------------------------------------------------------ agents


class SharedAgent(HubAnswer, frozen=True, kw_only=True):
    """One agent for other agents: without its address, its credential, and the problems of either."""

    name: str
    description: str
    tags: tuple[str, ...]
    enabled: bool
    health: HealthWord
    skills: tuple[str, ...]
    streaming: bool


class AgentFacts(HubAnswer, frozen=True, kw_only=True):
    """One agent. ``auth`` names the sources of its secrets; ``reachable`` is None until the hub has called it."""

    name: str
    url: str
    rpc_url: str | None
    dialect: str | None
    enabled: bool
    tags: tuple[str, ...]
    auth: str | None
    health: HealthWord
    why: str
    reachable: bool | None
    stale: bool
    stale_reason: str
    skills: tuple[str, ...]
    streaming: bool
    push_notifications: bool
    warnings: tuple[str, ...]
    latency_ms: int | None
    fetched_at: Moment | None
    description: str
    version: str


class FoundSkill(HubAnswer, frozen=True, kw_only=True):
    """One skill at one agent. ``effects`` are those that matched; all of them if the query names no effect.

    ``confidence`` is the highest that these declare, None without effects. ``success_rate`` is of the last day's
    ``answered_outcomes``, None without any. ``expected`` is the rank: 0 to 1.
    """

    agent: str
    skill: str
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()
    effects: tuple[DeclaredEffect, ...]
    confidence: float | None
    success_rate: float | None
    answered_outcomes: int
    expected: float
    health: HealthWord


class WireFrame(HubAnswer, frozen=True, kw_only=True):
    """One event of a stream, ``after_s`` seconds after the request."""

    after_s: float
    bytes: int
    text: str


class WireExchange(HubAnswer, frozen=False, kw_only=True):  # type: ignore[misc]  # the log completes it
    """An exchange with an agent (``call``), or its ``webhook``. Secrets are masked.

    ``status`` is None before the reply, ``seconds`` None until the exchange ends.
    """

    number: int
    at: str
    agent: str
    kind: Literal["call", "webhook"]
    method: str
    url: str
    headers: dict[str, str]
    body: str
    body_bytes: int
    status: int | None = None
    reply_headers: dict[str, str] = field(default_factory=dict)
    reply: str = ""
    reply_bytes: int = 0
    frames: tuple[WireFrame, ...] = ()
    frames_total: int = 0
    seconds: float | None = None
    problem: str = ""


class AgentReport(HubAnswer, frozen=True, kw_only=True):
    """One agent in Workstacean's form; ``error`` is why its card could not be read."""

    skills: tuple[str, ...]
    executor_type: str = "a2a"
    reachable: bool
    latency_ms: int | None
    last_probed_at: Moment | None
    streaming: bool
    push_notifications: bool
    card_available: bool
    error: str | None


class AgentsReport(HubAnswer, frozen=True, kw_only=True):
    """The agents by name; ``registration_count`` counts their skills."""

    agent_count: int
    reachable_count: int
    agents: dict[str, AgentReport]
    registration_count: int


# ------------------------------------------------------------------ requests


class OpenRequest(HubAnswer, frozen=True, kw_only=True):
    """A request without an outcome. While a question is open, ``text`` is what it asks.

    In the state of a hub, ``seq`` is the number of the last event before it was read.
    """

    correlation_id: str
    parent_id: str | None
    agent: str
    skill: str
    system_actor: str
    source: str
    prompt: str
    prompt_chars: int
    phase: str
    accepted_at: Moment
    deadline_at: Moment
    dialect: str
    task_id: str | None
    context_id: str | None
    state: str
    text: str
    truncated: bool
    text_chars: int
    warnings: tuple[str, ...]
    sent: tuple[PartFacts, ...]
    parts: tuple[PartFacts, ...]
    parts_total: int
    via: str | None = None
    question_id: str | None = None
    asks_for_data: bool = False
    poll_stopped: str | None = None
    poll_trouble: str | None = None
    retry_of: str | None = None
    open: Literal[True] = True
    seq: int | UnsetType = UNSET
    success: ClassVar[bool] = False
    reason: ClassVar[str] = ""
    cause: ClassVar[str | None] = None
    duration_ms: ClassVar[int | None] = None
    cost_usd: ClassVar[float | None] = None


class EndedRequest(HubAnswer, frozen=True, kw_only=True):
    """A request with its outcome (``model.work.Outcome``). The two dates are as in the event of the outcome.

    In the answer for one request, ``retried_as`` is the request that sends it again, and ``prompt`` and ``sent`` are
    its own text, files and data while the ledger has them.
    """

    correlation_id: str
    parent_id: str | None
    agent: str
    skill: str
    task_id: str | None
    state: str
    open: Literal[False] = False
    task_state: str
    system_actor: str
    kind: str
    success: bool
    blame: str
    started_at: str
    ended_at: str
    duration_ms: int
    text: str
    reason: str
    context_id: str | None
    via: str
    usage: Usage | None
    cost_usd: float | None
    model: str | None
    confidence: float | None
    confidence_explanation: str | None
    warnings: tuple[str, ...]
    cause: str | None
    agent_ms: int | None
    cost_estimated: bool
    truncated: bool
    text_chars: int
    parts: tuple[PartFacts, ...]
    parts_total: int
    chunks: int | None
    retry_of: str | None
    retried_as: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    sent: tuple[PartFacts, ...] | UnsetType = UNSET
    question_id: ClassVar[str | None] = None
    asks_for_data: ClassVar[bool] = False


class Accepted(HubAnswer, frozen=True, kw_only=True):
    """The ids of accepted requests, one per agent. Their events come after ``seq``."""

    correlation_ids: tuple[str, ...]
    seq: int | UnsetType = UNSET


class NamedRequest(HubAnswer, frozen=True, kw_only=True):
    """The request that was delegated, cancelled, retried, vetoed or answered; ``poll_url`` has its answer later."""

    correlation_id: str
    question_id: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    poll_url: str | UnsetType = UNSET


class RetryGroup(HubAnswer, frozen=True, kw_only=True):
    """Ended requests that may be sent again, first the one that ended first; the dates are those of first and last.

    ``may_have_run``: the agent may have done the work already, so each needs a confirmation.
    """

    agent: str
    kind: str
    reason: str
    may_have_run: bool
    oldest: Moment
    newest: Moment
    correlation_ids: tuple[str, ...]


class RetryReport(HubAnswer, frozen=True, kw_only=True):
    """What ``task retry`` would send again: ``count`` requests. ``left_out`` counts the others by the reason.

    ``complete`` is false if more requests match than one preview holds: then it has the newest.
    """

    count: int
    groups: tuple[RetryGroup, ...]
    left_out: dict[str, int]
    complete: bool = True


class TaskPage(HubAnswer, frozen=True, kw_only=True):
    """Open requests and the newest outcomes. The open ones after the id ``next`` are on the next page."""

    open: tuple[OpenRequest, ...]
    open_total: int
    next: str | None
    recent: tuple[EndedRequest, ...]


class OutcomeCounts(HubAnswer, frozen=True, kw_only=True):
    success: int
    failure: int
    timeout: int
    total: int


class Outcomes(HubAnswer, frozen=True, kw_only=True):
    summary: OutcomeCounts
    recent: tuple[EndedRequest, ...]


class ChatAnswer(HubAnswer, frozen=True, kw_only=True):
    """An agent's answer, its question, or that it still works."""

    status: Literal["done", "input-required", "working"]
    response: str
    truncated: bool | UnsetType = UNSET
    text_chars: int | UnsetType = UNSET
    parts: tuple[PartFacts, ...] | UnsetType = UNSET
    parts_total: int | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    question_id: str | UnsetType = UNSET
    answer_schema: dict[str, Any] | UnsetType | None = UNSET
    pending: bool | UnsetType = UNSET
    poll_url: str | UnsetType = UNSET
    correlation_id: str
    agent: str
    task_state: str
    context_id: str | UnsetType | None = UNSET
    task_id: str | UnsetType | None = UNSET
    duration_ms: int | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    confidence_explanation: str | UnsetType = UNSET
    warnings: tuple[str, ...]


# ------------------------------------------------------------------ questions


class QuestionFacts(HubAnswer, frozen=True, kw_only=True):
    """An open question. ``asks_for_data``: with a JSON Schema. The whole question has it in ``answer_schema``."""

    question_id: str
    correlation_id: str
    agent: str
    skill: str
    task_id: str
    context_id: str | None
    kind: str
    question: str
    truncated: bool
    text_chars: int
    asked_at: Moment
    expires_at: Moment
    checkpoint: int
    system_actor: str
    asks_for_data: bool
    parts: tuple[PartFacts, ...]
    parts_total: int
    answer_schema: dict[str, Any] | UnsetType | None = UNSET


class Veto(HubAnswer, frozen=True, kw_only=True):
    """Work that a person may still stop."""

    correlation_id: str
    agent: str
    skill: str
    expires_at: Moment


class InboxPage(HubAnswer, frozen=True, kw_only=True):
    questions: tuple[QuestionFacts, ...]
    vetoes: tuple[Veto, ...]


class HitlRequest(HubAnswer, frozen=True, kw_only=True):
    """An open question in Workstacean's form."""

    type: str = "hitl_request"
    correlation_id: str
    question_id: str
    title: str
    summary: str
    options: tuple[str, ...] = ("approve", "reject")
    expires_at: Moment
    checkpoint: dict[str, int]
    reply_topic: str
    agent: str
    skill: str
    parts: tuple[PartFacts, ...]
    parts_total: int
    answer_schema: dict[str, Any] | None


class QueueReport(HubAnswer, frozen=True, kw_only=True):
    pending_count: int
    unrendered_count: int = 0


# ------------------------------------------------------------------ ceremonies and channels


class RunFacts(HubAnswer, frozen=True, kw_only=True):
    """One run of a ceremony, or ``count`` slots that did not fire."""

    run_id: str
    ceremony_id: str
    trigger: str
    status: str
    scheduled_at: Moment
    started_at: Moment
    ended_at: Moment | None
    correlation_ids: tuple[str, ...]
    lateness_ms: int
    late: bool
    count: int
    error: str


class CeremonyFacts(HubAnswer, frozen=True, kw_only=True):
    """A ceremony under the keys of its file, with the next slot, the runs that go on and the last one that ended.

    ``schedule`` is None for one that fires once, ``at``. ``warnings`` name targets that the fleet cannot serve.
    """

    id: str
    name: str
    schedule: str | None
    once: bool
    at: Moment | None
    timezone: str
    skill: str
    targets: tuple[str, ...]
    enabled: bool
    description: str
    created_by: str
    notify_channel: str
    timeout_ms: int
    overlap: str
    catch_up: str
    catch_up_window: int
    late_after: int
    project: str | None
    path: str
    warnings: tuple[str, ...]
    next_fire_at: Moment | None
    running: tuple[str, ...]
    last_run: RunFacts | None


class FileProblem(HubAnswer, frozen=True, kw_only=True):
    """A file that is not, or not in its newest form, in force.

    ``ceremony_id`` is the id it gives itself, else the name of the file; ``kept``: its last good version is in force.
    """

    path: str
    error: str
    ceremony_id: str = ""
    kept: bool = False


class DeletedCeremony(HubAnswer, frozen=True, kw_only=True):
    id: str


class StartedRun(HubAnswer, frozen=True, kw_only=True):
    run_id: str


class PlannedRequest(HubAnswer, frozen=True, kw_only=True):
    agent: str
    skill: str
    text: str
    timeout_s: float


class DryRun(HubAnswer, frozen=True, kw_only=True):
    """The requests that a ceremony would send now, and why targets get none; no requests if it is disabled."""

    enabled: bool
    requests: tuple[PlannedRequest, ...]
    problems: tuple[str, ...]


class SinkRow(HubAnswer, frozen=True, kw_only=True):
    """How one sink has fared since the hub started. ``failing_since`` is None while the last notice arrived."""

    sink: str
    kind: str
    delivered: int = 0
    failed: int = 0
    left_out: int = 0
    waiting: int = 0
    undelivered: int = 0
    """Notices of questions and runs that will be sent again."""
    last_at: Moment | None = None
    failing_since: Moment | None = None
    last_error: str = ""


class ChannelRow(HubAnswer, frozen=True, kw_only=True):
    id: str
    agents: tuple[str, ...]
    sinks: tuple[SinkRow, ...]

    @property
    def failures(self) -> list[str]:
        """A line for each sink whose last notice did not arrive."""
        failing = [(sink, sink.failing_since) for sink in self.sinks if sink.failing_since]
        return [f"channel {self.id}: {sink.sink} fails since {iso(at)}: {sink.last_error}" for sink, at in failing]


class SinkResult(HubAnswer, frozen=True, kw_only=True):
    """The delivery of one notice to one sink; ``reason`` is empty if it arrived."""

    sink: str
    attempts: int = 1
    reason: str = ""
