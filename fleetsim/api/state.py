"""The state of a hub as one key sees it: the answer of ``GET /api/state``, with which every screen begins.

The hub computes every figure here; a screen only shows them. Dates are in UTC.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import field, structs

from fleetsim.api.answer import HubAnswer, Moment
from fleetsim.model.errors import Blame
from fleetsim.model.task import JsonObject
from fleetsim.model.work import OutcomeKind


class RecentFailure(HubAnswer, frozen=True, kw_only=True):
    """One outcome that was not a success, and its blame; ``failure_reason`` is one harmless line."""

    timestamp: Moment
    skill: str
    correlation_id: str
    kind: OutcomeKind
    blame: Blame
    failure_reason: str


class TrendBucket(HubAnswer, frozen=True):
    """1.5 hours: the outcomes that the agent is responsible for, and the successes among them."""

    outcomes: int
    successes: int


class OutcomeStats(HubAnswer, frozen=True, kw_only=True):
    """The numbers of one set of outcomes. Rates are 0 to 1, None without data; latencies 0 without data.

    ``answered_outcomes`` counts those that the agent is responsible for: its successes, and the failures blamed on it
    (``failure_count``). ``beside_counts`` counts all others by their blame.
    """

    total_outcomes: int = 0
    answered_outcomes: int = 0
    success_count: int = 0
    failure_count: int = 0
    beside_counts: dict[str, int] = field(default_factory=dict)
    unknown_count: int = 0
    undeliverable_count: int = 0
    success_rate: float | None = None
    p50_latency_ms: int = 0
    p95_latency_ms: int = 0
    max_latency_ms: int = 0
    total_cost_usd: float = 0.0
    cost_per_successful_outcome: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    failure_rate_1h: float = 0.0
    mean_confidence: float | None = None
    confident_failures: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    recent_failures: tuple[RecentFailure, ...] = ()
    trend: tuple[TrendBucket, ...] = ()
    last_outcome_at: Moment | None = None
    last_outcome_kind: OutcomeKind | None = None


class TrendCount(NamedTuple):
    """The outcomes of one cell of a trend that the agents are responsible for, and the successes among them."""

    successes: int
    outcomes: int


class CardFacts(HubAnswer, frozen=True, kw_only=True):
    """Facts of an agent's newest card. ``failed_at`` and ``error`` are of a later fetch that failed."""

    url: str = ""
    rpc_url: str = ""
    dialect: str = ""
    skills: tuple[str, ...] = ()
    streaming: bool | None = None
    push: bool | None = None
    auth: str = ""
    warnings: tuple[str, ...] = ()
    latency_ms: int | None = None
    fetched_at: Moment | None = None
    changed_at: Moment | None = None
    changes: str = ""
    failed_at: Moment | None = None
    error: str = ""


class AgentState(HubAnswer, frozen=True, kw_only=True):
    """One agent. ``why`` is the reason for its health word, ``push`` whether its webhooks arrive.

    An agent's key sees name, health word, the names of the skills and when the card was fetched.
    """

    name: str
    health: str
    why: str = ""
    since: Moment | None = None
    figures: OutcomeStats = OutcomeStats()
    skills: dict[str, OutcomeStats] = field(default_factory=dict)
    trend: tuple[TrendCount, ...] = ()
    card: CardFacts = CardFacts()
    push: str = "unknown"
    breaker_until: Moment | None = None


class FleetFigures(HubAnswer, frozen=True, kw_only=True):
    """The figures of all agents. ``window_from`` is the beginning of the outcomes that they count.

    ``trend`` covers the last ``span``, as ``pushes``, the webhooks by what became of them (ok, again, refused).
    """

    window_from: Moment
    total: OutcomeStats = OutcomeStats()
    span: str = ""
    trend: tuple[TrendCount, ...] = ()
    pushes: dict[str, int] = field(default_factory=dict)
    errors_5m: int = 0


class HubState(HubAnswer, frozen=True, kw_only=True):
    """The state after the event number ``seq``; events with later numbers may be applied again.

    The first page has ``fleet`` and everything else. Later pages have only ``open``, ``vetoes`` and ``questions`` of
    further requests; ``next`` is the ``after`` of the next page. With ``limit=0`` a page has no requests and events.
    Requests, questions, ceremonies, channels and hubs are rows as their own endpoints have them; ``events`` are the
    newest up to ``seq``.
    """

    seq: int
    at: Moment
    figures: FleetFigures | None = None
    stopping: bool = False
    storage: str = ""
    agents: tuple[AgentState, ...] = ()
    ceremonies: tuple[JsonObject, ...] = ()
    ceremony_errors: tuple[JsonObject, ...] = ()
    runs: tuple[JsonObject, ...] = ()
    channels: tuple[JsonObject, ...] = ()
    hubs: tuple[JsonObject, ...] = ()
    rejected: tuple[str, ...] = ()
    limits: tuple[tuple[str, str], ...] = ()
    open: tuple[JsonObject, ...] = ()
    next: str | None = None
    questions: tuple[JsonObject, ...] = ()
    vetoes: tuple[JsonObject, ...] = ()
    recent: tuple[JsonObject, ...] = ()
    events: tuple[JsonObject, ...] = ()

    def then(self, page: HubState) -> HubState:
        """The state with the requests and questions of its next page, too."""
        flying, questions = self.open + page.open, self.questions + page.questions
        return structs.replace(self, open=flying, questions=questions, next=page.next)
