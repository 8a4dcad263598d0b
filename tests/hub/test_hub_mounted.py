"""Agents that are called at another address than their URL: mounted below a path, or pinned in agents.yaml."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.runtime import virtual_runtime
from tests.client.mounted import PATH, RPC, mounted
from tests.hub.local_hub import local_hub, worker

ORIGIN = "http://x.example:8000"
FLEET = f"""
agents:
  - name: x
    url: {ORIGIN}{{}}
fleet: {{{{base_url: "http://hub.example:8080"}}}}
"""
PINNED = f"""
    rpcUrl: {ORIGIN}{PATH}{RPC}
    cardUrl: {ORIGIN}{PATH}/.well-known/agent.json"""


@pytest.mark.parametrize("address", [PATH, PINNED], ids=["mounted", "pinned"])
@pytest.mark.parametrize("push", ["auto", "off"])
async def test_a_mounted_agent_does_its_work_through_the_hub_and_over_a_restart(address: str, push: str) -> None:
    async with local_hub(agents_yaml=FLEET.format(f"{address}\n    push: {push}")) as t:
        agent = worker("x")
        t.network.mount(ORIGIN, mounted(ORIGIN, virtual_runtime(9, t.network, name="x"), agent=agent))
        await asyncio.sleep(5)
        for cid, skill in (("c-1", "echo"), ("c-2", "ponder")):
            await t.hub.submit(SkillRequest(correlation_id=cid, text="hi", skill=skill, targets=("x",)))
        assert (await t.hub.tracker.wait("c-1")).text == "you said hi"
        await t.restart()
        outcome = await t.hub.tracker.wait("c-2")
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "at last")
        await t.hub.submit(SkillRequest(correlation_id="c-3", text="again", skill="echo", targets=("x",)))
        assert (await t.hub.tracker.wait("c-3")).text == "you said again"
    posted = {request.url for request in t.network.seen if request.method == "POST" and request.url.startswith(ORIGIN)}
    assert posted == {ORIGIN + PATH + RPC}
