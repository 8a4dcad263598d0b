"""``GET /api/state``: the state of the hub as one key sees it, with which every screen begins.

The number of the last event is read first, and the state after it. So the state has at least every event up to that
number, and a reader that applies the later ones once more has the same state as the hub, also with several hubs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from fleetsim.api.answer import camel, to_json
from fleetsim.api.answers import OpenRequest
from fleetsim.api.health import HealthSnapshot, HubMember, OutcomeStats
from fleetsim.api.state import AgentState, CardFacts, FleetFigures, HubState
from fleetsim.ceremonies.runs import run_facts
from fleetsim.events.log import KEEP_MAX
from fleetsim.events.request import Event, Level
from fleetsim.events.wire import to_wire
from fleetsim.health.fleet_health import window_start
from fleetsim.health.trend import span_for
from fleetsim.health.webhooks import PushState
from fleetsim.hub.http import PAGE_CHARS_MAX, PAGE_MAX, number, principal_of
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import ADMIN, Principal
from fleetsim.hub.ownership import Ownership
from fleetsim.hub.rows import outcome_row, question_row, track_row
from fleetsim.ledger.bodies import encode
from fleetsim.model.errors import NotAccepting, UnknownTarget
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.text import one_line
from fleetsim.request.track import Track
from fleetsim.runtime.inbound import PacedResponse

T = TypeVar("T")

ROWS = (
    "ceremonies",
    "ceremonyErrors",
    "runs",
    "channels",
    "hubs",
    "limitUses",
    "open",
    "questions",
    "vetoes",
    "recent",
)
"""The members of the state whose dates have milliseconds, as at the endpoints that these rows are of."""
ROWS_A_TURN = 50
"""Rows that are written at once: other work runs between two groups."""
RECENT_MAX = 200
EVENTS_MAX = 500
RUNS_MAX = 1_000
ERRORS_WINDOW = timedelta(minutes=5)


async def open_page(
    hub: Hub, after: str | None, sees: Callable[[str], Awaitable[bool]] | None = None
) -> tuple[list[tuple[Track, OpenRequest]], str | None]:
    """The open requests after a request that a caller ``sees``, and the id that the next page begins after: at most
    ``PAGE_MAX``, with ``PAGE_CHARS_MAX`` characters of their texts. Raises UnknownTarget."""
    ids = await hub.ledger.open_ids(after=after, limit=PAGE_MAX + 1)
    if ids is None:
        raise UnknownTarget(f"no request “{one_line(after or '', 64)}” is known")
    page: list[tuple[Track, OpenRequest]] = []
    chars = 0
    async for track in in_turns(await hub.tracker.find_tracks(ids[:PAGE_MAX])):
        if chars > PAGE_CHARS_MAX:
            return page, page[-1][1].correlation_id
        if sees is None or await sees(track.record.request.correlation_id):
            row = track_row(track, chars_max=EXCERPT_CHARS_MAX)
            chars += len(row.prompt) + len(row.text)
            page.append((track, row))
    return page, ids[PAGE_MAX - 1] if len(ids) > PAGE_MAX else None


class CurrentState:
    """The state of a hub, read by its API and by a screen in its process."""

    def __init__(self, hub: Hub, ownership: Ownership | None = None) -> None:
        self._hub = hub
        self._ownership = ownership or Ownership(hub.tracker, hub.ledger, hub.fleet)

    async def state(self, request: Request) -> Response:
        """A page of the state."""
        limit, after = number(request, "limit", PAGE_MAX, PAGE_MAX), request.query_params.get("after")
        state = await self.read(principal_of(request), limit=limit, after=after)
        data: dict[str, Any] = {camel(name): value for name, value in structs.asdict(state).items()}
        for name in ROWS:
            data[name] = [to_json(row) async for row in in_turns(data[name])]
        body = encode({"success": True, "data": data})
        return PacedResponse(body, headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def read(self, principal: Principal = ADMIN, *, limit: int = PAGE_MAX, after: str | None = None) -> HubState:
        """A page of the state; with ``limit`` 0 without requests and events. Raises UnknownTarget, NotAccepting."""
        hub, seq = self._hub, self._hub.events.recorded_seq
        page = await self._requests(principal, after) if limit else {}
        if after is not None:
            return HubState(seq=seq, at=hub.runtime.clock.now(), **page)
        if limit:
            after_seq = seq - EVENTS_MAX
            newest = await hub.ledger.events(after_seq=after_seq, limit=EVENTS_MAX, chars_max=PAGE_CHARS_MAX)
            told = await self._seen(principal, newest)
            page["events"] = tuple([to_wire(event) async for event in in_turns(told)])
            runs = await hub.ledger.runs(limit=RUNS_MAX)
            page["runs"] = tuple([run_facts(run) for run in runs if await self._ownership.owns_run(principal, run)])
        owns = self._ownership.owns
        vetoes = tuple([v for v in hub.hitl.vetoes() if principal.sees_all or await owns(principal, v.correlation_id)])
        hubs: tuple[HubMember, ...] = ()
        if principal.sees_all:
            with suppress(NotAccepting):  # ``storage`` has the reason
                hubs = await hub.hub_rows()
        now = hub.runtime.clock.now()
        recent = hub.events.recent(limit=KEEP_MAX)
        late = [event for event in recent if event.level is Level.ERROR and event.at > now - ERRORS_WINDOW]
        errors, snapshot = len(await self._seen(principal, late)), hub.snapshot()
        span, span_s = span_for((now - hub.window_from).total_seconds())
        figures = FleetFigures(window_from=hub.window_from, span=span, errors_5m=errors)
        state = HubState(
            seq=seq,
            at=now,
            figures=figures,
            stopping=hub.closing.is_set(),
            storage=snapshot.storage,
            agents=tuple(self._agents(snapshot, span_s, principal)),
            ceremonies=await self._ownership.ceremonies(principal, hub.scheduler.rows() if hub.scheduler else ()),
            vetoes=vetoes,
            **page,
        )
        if not principal.sees_all:
            shared = ("description", "skills", "fetched_at")
            cards = (CardFacts(**{name: getattr(a.card, name) for name in shared}) for a in state.agents)
            agents = tuple(
                AgentState(name=a.name, health=a.health, card=card) for a, card in zip(state.agents, cards, strict=True)
            )
            return structs.replace(state, storage="", agents=agents)
        health, pushes = hub.fleet.health, hub.webhooks.counts(now, span_s)
        total, trend = health.total.figures(now.timestamp()), health.trend.cells(now, span_s)
        return structs.replace(
            state,
            figures=structs.replace(figures, total=total, trend=trend, pushes=pushes),
            ceremony_errors=tuple(hub.scheduler.problems()) if hub.scheduler else (),
            channels=tuple(hub.channels.rows()),
            hubs=hubs,
            rejected=hub.rejected(),
            limits=tuple(hub.limiter.accounts.at_limit()),
            limit_uses=hub.fleet.limits.newest,
        )

    async def whole(self, *, requests: bool = True) -> HubState:
        """The state for the hub's own key, of all pages."""
        state = await self.read(limit=PAGE_MAX if requests else 0)
        while state.next is not None:
            state = state.then(await self.read(after=state.next))
        return state

    async def _requests(self, principal: Principal, after: str | None) -> dict[str, Any]:
        """A page of the open requests with their questions; the first page also has the newest outcomes."""
        hub, flying, questions = self._hub, [], []
        sees = None if principal.sees_all else partial(self._ownership.owns, principal)
        rows, following = await open_page(hub, after, sees)
        for track, row in rows:
            flying.append(structs.replace(row, seq=hub.events.last_seq))
            if track.question is not None:
                questions.append(question_row(track.question, chars_max=EXCERPT_CHARS_MAX))
        page: dict[str, Any] = {"open": tuple(flying), "questions": tuple(questions), "next": following}
        if after is None:
            since = window_start(hub.runtime.clock.now())
            newest = await hub.ledger.outcomes(since=since, limit=RECENT_MAX, chars_max=EXCERPT_CHARS_MAX)
            page["recent"] = tuple(
                [
                    outcome_row(outcome, chars_max=EXCERPT_CHARS_MAX)
                    async for outcome in in_turns(newest[::-1])
                    if principal.sees_all or await self._ownership.owns(principal, outcome.correlation_id)
                ]
            )
        return page

    async def _seen(self, principal: Principal, events: Sequence[Event]) -> list[Event]:
        return [event for event in events if await self._ownership.may_see(principal, event)]

    def _agents(self, snapshot: HealthSnapshot, span_s: int, principal: Principal) -> Iterator[AgentState]:
        hub, skills = self._hub, defaultdict[str, dict[str, OutcomeStats]](dict)
        for skill in snapshot.skills:
            skills[skill.agent_name][skill.skill] = OutcomeStats.of(skill)
        health, webhooks = {row.agent_name: row for row in snapshot.agents}, hub.webhooks.states
        for view in hub.fleet.views(principal.caller):
            name = view.entry.name
            row, choice, failed = health[name], view.choice, view.stale_reason
            card = CardFacts(
                url=view.entry.url,
                rpc_url=choice.url if choice else "",
                dialect=(choice.spoken if choice else view.entry.wire) or "",
                description=one_line(view.card.description, 300) if view.card else "",
                skills=tuple(view.skills),
                streaming=view.capabilities.streaming if view.card else None,
                push=view.capabilities.push_notifications if view.card else None,
                auth=view.entry.secrets,
                warnings=choice.warnings if choice else (),
                latency_ms=view.latency_ms,
                fetched_at=view.fetched_at,
                failed_at=(view.unreachable_since or view.tried_at) if failed else None,
                error=failed,
            )
            yield AgentState(
                name=name,
                health=row.health.value,
                why=row.why,
                since=row.since,
                figures=OutcomeStats.of(row),
                skills=skills[name],
                trend=hub.fleet.health.trends[name].cells(snapshot.collected_at, span_s),
                card=card,
                push=webhooks.get(name, PushState.UNKNOWN).value,
                breaker_until=hub.limiter.opens_at(name),
            )


async def in_turns(values: Sequence[T]) -> AsyncIterator[T]:
    """The values; other work runs after each group of them."""
    for at, value in enumerate(values):
        if at % ROWS_A_TURN == ROWS_A_TURN - 1:
            await asyncio.sleep(0)
        yield value
