"""The state of a hub as one key sees it: the answer of ``GET /api/state``, with which every screen begins.

The hub computes every figure here; a screen only shows them. Dates are in UTC.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import field, structs

from fleetsim.api.answer import HubAnswer, Moment
from fleetsim.api.answers import (
    CeremonyFacts,
    ChannelRow,
    EndedRequest,
    FileProblem,
    OpenRequest,
    QuestionFacts,
    RunFacts,
    Veto,
)
from fleetsim.api.health import HubMember, LimitFacts, OutcomeStats
from fleetsim.model.task import JsonObject


class TrendCount(NamedTuple):
    """The outcomes of one cell of a trend that the agents are responsible for, and the successes among them."""

    successes: int
    outcomes: int


class CardFacts(HubAnswer, frozen=True, kw_only=True):
    """Facts of an agent's newest card; ``description`` has up to 300 characters. ``failed_at`` and ``error`` are of a
    later fetch that failed.
    """

    url: str = ""
    rpc_url: str = ""
    dialect: str = ""
    description: str = ""
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

    An agent's key sees name, health word, description, the names of the skills and when the card was fetched.
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
    ``limits`` are limits of accounts that were reached, ``limit_uses`` those of agents.yaml. Requests, questions,
    ceremonies, channels, hubs and limits are rows as their own endpoints have them; ``events`` are the
    newest up to ``seq``.
    """

    seq: int
    at: Moment
    figures: FleetFigures | None = None
    stopping: bool = False
    storage: str = ""
    agents: tuple[AgentState, ...] = ()
    ceremonies: tuple[CeremonyFacts, ...] = ()
    ceremony_errors: tuple[FileProblem, ...] = ()
    runs: tuple[RunFacts, ...] = ()
    channels: tuple[ChannelRow, ...] = ()
    hubs: tuple[HubMember, ...] = ()
    rejected: tuple[str, ...] = ()
    limits: tuple[tuple[str, str], ...] = ()
    limit_uses: tuple[LimitFacts, ...] = ()
    open: tuple[OpenRequest, ...] = ()
    next: str | None = None
    questions: tuple[QuestionFacts, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    recent: tuple[EndedRequest, ...] = ()
    events: tuple[JsonObject, ...] = ()

    def then(self, page: HubState) -> HubState:
        """The state with the requests and questions of its next page, too."""
        flying, questions = self.open + page.open, self.questions + page.questions
        return structs.replace(self, open=flying, questions=questions, next=page.next)
