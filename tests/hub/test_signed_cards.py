"""Agents whose card is signed, not signed, or changed, in a hub that requires a signature and in one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent.card_signer import CardSigner
from fleetsim.client import AgentClient
from fleetsim.client.card_trust import CardTrust
from fleetsim.fleet.settings import SkillEntry
from fleetsim.model.errors import Blame
from fleetsim.model.work import Outcome
from fleetsim.testbed.asgi import App, Receive, Scope, Send
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles, virtual_runtime
from tests.hub.local_hub import LocalHub, local_hub
from tests.wire.test_card_signing import SIGNER

URL = "http://mill.example:8000/a2a"


def peer(signer: CardSigner | None, **change: Any) -> App:
    """An agent whose card is signed, then changed; it completes each request."""
    skill = {"id": "mill", "name": "Mill", "description": "Mills", "tags": []}
    card = {
        "name": "mill",
        "url": URL,
        "version": "1",
        "protocolVersion": "0.3.0",
        "capabilities": {},
        "skills": [skill],
    }
    served = {**(signer.sign(card) if signer else card), **change}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"")
        task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"}}
        answer = {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": task} if body else served
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


def turning(*peers: App) -> tuple[App, Callable[[], None]]:
    """The first agent until the function is called, and then the next one."""
    left = list(peers)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await left[0](scope, receive, send)

    def turn() -> None:
        del left[0]

    return app, turn


def hub_with(app: App, **entry: Any) -> Any:
    return local_hub(peers={"mill": app}, entries={"mill": {"push": "off", **entry}})


async def row_of(t: LocalHub) -> dict[str, Any]:
    t.files.put("keys.json", json.dumps(SIGNER.key_set))
    await t.hub.broker.refresh("mill")
    (agent,) = (await t.remote.get("/health"))["agents"]
    return dict(agent)


async def ask(t: LocalHub) -> Outcome:
    (cid,) = await t.remote.submit({"targets": ["mill"], "skill": "mill", "text": "hi"})
    return await t.hub.tracker.wait(cid)


KEYS = {"signers": ("keys.json",)}


async def test_a_signed_card_is_used_where_one_is_required() -> None:
    async with hub_with(peer(SIGNER), trust="signed", **KEYS) as t:
        assert (await row_of(t))["health"] == "up"
        assert (await ask(t)).success


@pytest.mark.parametrize("app", [peer(None), peer(SIGNER, description="changed")], ids=["unsigned", "changed"])
async def test_an_agent_without_the_required_signature_is_down_and_gets_no_work(app: App) -> None:
    async with hub_with(app, trust="signed", wire="0.3", skills=(SkillEntry(name="mill"),), **KEYS) as t:
        row = await row_of(t)
        assert (row["health"], "trust: signed" in row["why"]) == ("down", True)
        outcome = await ask(t)
        assert (outcome.success, outcome.blame is Blame.AGENT) == (False, False)
        assert not [seen for seen in t.network.seen if seen.method == "POST" and "mill" in seen.url]


async def test_an_agent_whose_card_loses_its_signature_gets_no_more_work() -> None:
    app, turn = turning(peer(SIGNER), peer(SIGNER, description="changed"), peer(SIGNER))
    async with hub_with(app, trust="signed", **KEYS) as t:
        assert (await row_of(t))["health"] == "up"
        turn()
        assert (await row_of(t))["health"] == "down"
        assert not (await ask(t)).success
        assert not [seen for seen in t.network.seen if seen.method == "POST" and "mill" in seen.url]
        turn()
        assert (await row_of(t))["health"] == "up"
        assert (await ask(t)).success


async def test_a_changed_card_is_a_warning_where_no_signature_is_required() -> None:
    async with hub_with(peer(SIGNER, description="changed"), **KEYS) as t:
        row = await row_of(t)
        assert (row["health"], "signature" in row["why"]) == ("degraded", True)
        assert any("signature" in warning for event in t.events("agent.card") for warning in event.warnings)  # type: ignore[attr-defined]
        outcome = await ask(t)
        assert (outcome.success, ["signature" in warning for warning in outcome.warnings]) == (True, [True])


async def test_a_request_to_an_agent_with_a_changed_card_has_the_warning_also_without_a_hub() -> None:
    network = MemoryNetwork()
    network.mount("http://mill.example:8000", peer(SIGNER, description="changed"))
    files = MemoryFiles({"keys.json": json.dumps(SIGNER.key_set)})
    async with network:
        runtime = replace(virtual_runtime(0, network), files=files)
        request = AgentClient(URL, runtime=runtime, trust=CardTrust(**KEYS)).follow("hi")
        await request.end()
    assert ["signature" in warning for warning in request.report().warnings] == [True]
