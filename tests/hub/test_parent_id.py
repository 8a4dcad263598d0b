"""The parent id of a caller reaches the agent, and is recorded with the work."""

from __future__ import annotations

import json

import pytest

from fleetsim.agent import Agent
from fleetsim.agent.skills import SkillContext
from fleetsim.model.errors import FleetsimError
from tests.hub.local_hub import ready_hub


def teller() -> Agent:
    agent = Agent("teller")

    @agent.skill("tell")
    async def tell(task: SkillContext) -> str:
        return str(task.metadata.get("parentId"))

    return agent


@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
async def test_a_parent_id_given_over_the_api_reaches_the_agent(wire: str) -> None:
    async with ready_hub(teller(), entries={"teller": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["teller"], "text": "x", "parentId": "span-1"})
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.text, outcome.parent_id) == ("span-1", "span-1")
        assert (await t.remote.task(cid))["parentId"] == "span-1"
        sent = [
            seen for seen in t.network.seen if seen.url.startswith("http://teller") and b"span-1" in seen.request.body
        ]
        assert sent
        assert all(seen.request.headers["x-parent-id"] == "span-1" for seen in sent)
        (cid,) = await t.remote.submit({"targets": ["teller"], "text": "x"})
        assert (await t.hub.tracker.wait(cid)).text == "None"


async def test_a_parent_id_that_is_not_a_header_value_is_refused() -> None:
    async with ready_hub(teller()) as t:
        with pytest.raises(FleetsimError, match="parentId"):
            await t.remote.submit({"targets": ["teller"], "text": "x", "parentId": "a\r\nX-Evil: 1"})


async def test_only_0_3_writes_the_context_beside_the_message_too() -> None:
    for wire, beside in (("0.3", True), ("1.0", False), ("0.1", False)):
        async with ready_hub(teller(), entries={"teller": {"wire": wire}}) as t:
            (cid,) = await t.remote.submit({"targets": ["teller"], "text": "x"})
            await t.hub.tracker.wait(cid)
            sent = [
                json.loads(seen.request.body)["params"] for seen in t.network.seen if b"skillHint" in seen.request.body
            ]
            assert [params.get("contextId") for params in sent if "message" in params] == [cid if beside else None]
