"""A card that is known: asked for where it was, sent only if it is another, looked for everywhere when it is gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient
from fleetsim.model.errors import HttpRefused, WireError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD

ORIGIN = "http://agent.example"
BELOW, BELOW_OLD = "/a2a/.well-known/agent-card.json", "/a2a/.well-known/agent.json"
ROOT = "/.well-known/agent-card.json"


def card(version: str = "1", **headers: str) -> JSONResponse:
    return JSONResponse({**CARD, "version": version}, headers=headers)


@dataclass
class Places:
    """The cards by path, and the requests for them: each path with its If-None-Match. An ETag that is asked about is
    answered with 304 while it is the card's, as RFC 9110 section 13.1.2 has it."""

    cards: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        known = request.headers.get("if-none-match")
        self.asked.append((request.url.path, known))
        there: Response = self.cards.get(request.url.path, Response(status_code=404))
        if known is not None and known == there.headers.get("etag"):
            return Response(status_code=304, headers={"etag": known})
        return there

    def new_requests(self) -> list[tuple[str, str | None]]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def places(network: MemoryNetwork) -> Places:
    there = Places({ROOT: card(etag='"one"')})
    network.mount(ORIGIN, there.app)
    return there


@pytest.fixture
async def asking(runtime: Runtime, places: Places) -> AgentClient:
    client = AgentClient(f"{ORIGIN}/a2a", runtime=runtime)
    await client.discover()
    assert [path for path, _ in places.new_requests()] == [BELOW, BELOW_OLD, ROOT]
    return client


async def test_a_known_card_is_requested_at_its_place_and_sent_only_if_it_changed(
    asking: AgentClient, places: Places
) -> None:
    known = asking.card
    assert await asking.discover(refresh=True, where_found=True) is known
    assert places.new_requests() == [(ROOT, '"one"')]
    places.cards[ROOT] = card("2", etag='"two"')
    assert (await asking.discover(refresh=True, where_found=True)).version == "2"
    await asking.discover(refresh=True, where_found=True)
    assert places.new_requests() == [(ROOT, '"one"'), (ROOT, '"two"')]
    assert asking.card_at == ORIGIN + ROOT


async def test_a_card_that_is_fetched_again_is_searched_everywhere_and_read_whole(
    asking: AgentClient, places: Places
) -> None:
    places.cards[ROOT] = card("2", etag='"one"')
    assert (await asking.discover(refresh=True)).version == "2"
    assert places.new_requests() == [(BELOW, None), (BELOW_OLD, None), (ROOT, None)]
    places.cards[BELOW] = card("3")
    assert (await asking.discover(refresh=True)).version == "3"
    assert asking.card_at == ORIGIN + BELOW


@pytest.mark.parametrize("instead", [404, 401, 500, HTMLResponse("<html>")])
async def test_a_known_card_that_left_its_place_is_searched_everywhere(
    asking: AgentClient, places: Places, instead: int | Response
) -> None:
    places.cards[ROOT] = Response(status_code=instead) if isinstance(instead, int) else instead
    places.cards[BELOW_OLD] = card("2")
    found = await asking.discover(refresh=True, where_found=True)
    assert (found.version, asking.card_at) == ("2", ORIGIN + BELOW_OLD)
    places.new_requests()
    await asking.discover(refresh=True, where_found=True)
    assert places.new_requests() == [(BELOW_OLD, None)], "and is asked for there from then on"


async def test_an_overloaded_agent_is_asked_for_its_known_card_once(asking: AgentClient, places: Places) -> None:
    places.cards[ROOT] = Response(status_code=503)
    with pytest.raises(HttpRefused):
        await asking.discover(refresh=True, where_found=True)
    assert places.new_requests() == [(ROOT, '"one"')]
    assert asking.card is not None


@pytest.mark.parametrize("etag", ["", "one", '"one', '"' + "x" * 201 + '"', '"caf\xe9"', 'W/"one", "two"'])
async def test_an_invalid_etag_is_not_sent(asking: AgentClient, places: Places, etag: str) -> None:
    places.cards[ROOT] = card("2", etag=etag)
    await asking.discover(refresh=True)
    places.new_requests()
    await asking.discover(refresh=True, where_found=True)
    assert places.new_requests() == [(ROOT, None)]


async def test_a_weak_etag_is_sent_unchanged(asking: AgentClient, places: Places) -> None:
    places.cards[ROOT] = card(etag='W/"one"')
    await asking.discover(refresh=True)
    known = asking.card
    assert await asking.discover(refresh=True, where_found=True) is known
    assert places.asked[-1] == (ROOT, 'W/"one"')


async def test_a_304_without_an_etag_in_the_request_is_no_card(runtime: Runtime, places: Places) -> None:
    places.cards = {ROOT: Response(status_code=304, headers={"etag": '"one"'})}
    client = AgentClient(ORIGIN, runtime=runtime)
    for where_found in (False, True):
        with pytest.raises(WireError):
            await client.discover(refresh=True, where_found=where_found)
    assert client.card is None


async def test_a_card_that_was_given_is_read_whole_the_first_time(asking: AgentClient, places: Places) -> None:
    assert asking.card is not None
    asking.adopt(asking.card, ORIGIN + ROOT)
    await asking.discover(refresh=True, where_found=True)
    assert places.new_requests() == [(ROOT, None)]


async def test_a_card_without_an_etag_is_never_the_same(asking: AgentClient, places: Places) -> None:
    places.cards[ROOT] = card()
    await asking.discover(refresh=True)
    places.cards = {ROOT: Response(status_code=304), BELOW: card("2")}
    assert (await asking.discover(refresh=True, where_found=True)).version == "2"
