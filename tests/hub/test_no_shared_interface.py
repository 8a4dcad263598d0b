"""An agent without an interface that fleetsim speaks: every door reports it, sends nothing, and blames nobody."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.check.agent_under_test import Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.runner import run_check
from fleetsim.client import AgentClient
from fleetsim.model.errors import Blame, NoSharedInterface
from fleetsim.model.work import OutcomeKind
from tests.client.scripted import CARD_10, ScriptedAgent, task
from tests.hub.local_hub import local_hub

URL = "http://odd.example:8000"


def card(binding: str, version: str) -> dict[str, Any]:
    interface = {"url": f"{URL}/a2a", "protocolBinding": binding, "protocolVersion": version}
    older = {"url": f"{URL}/a2a", "preferredTransport": binding, "protocolVersion": "0.3.0", "supportedInterfaces": []}
    skill = {"id": "chat", "name": "Chat", "description": "Talks.", "tags": []}
    modes = {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "capabilities": {}}
    return {
        **CARD_10,
        **modes,
        "description": "Odd.",
        "skills": [skill],
        "version": "1",
        **({"supportedInterfaces": [interface]} if version != "0.3" else older),
    }


OFFERS = [("GRPC", "1.0"), ("GRPC", "0.3"), ("JSONRPC", "2.0")]


@pytest.mark.parametrize(("binding", "version"), OFFERS)
async def test_every_door_reports_the_agents_interfaces_and_sends_nothing(binding: str, version: str) -> None:
    agent = ScriptedAgent({"*": task()}, card=card(binding, version))
    async with local_hub(peers={"odd": agent.app}) as t:
        async with AgentClient(URL, runtime=t.runtime) as client:
            for call in (client.send_task("hi"), client.follow("hi").end(), client.get("t-1")):
                with pytest.raises(NoSharedInterface, match=f"{binding} {version}".replace("+", r"\+")) as refused:
                    await call
                assert refused.value.blame is Blame.NOBODY
        (cid,) = await t.remote.submit({"targets": ["odd"], "text": "hi"})
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind, outcome.blame is Blame.AGENT) == (OutcomeKind.UNDELIVERABLE, False)
        (row,) = await t.remote.get("/agents")
        assert (row["health"], row["rpcUrl"], row["dialect"]) == ("paused", None, None)
        for said in (outcome.reason, row["why"], *row["warnings"]):
            assert f"{binding} {version}" in said
        report = await run_check(Target(url=URL), t.runtime)
        assert report.dialects == ()
        beside_the_card = [finding for finding in report.findings if finding.requirement.section != "Agent card"]
        assert {finding.verdict for finding in beside_the_card} <= {Verdict.NOT_TESTED, Verdict.NOT_APPLICABLE}
        failed = {finding.requirement.id for finding in report.of(Verdict.FAIL)}
        assert failed <= {"C-02", "C-08", "C-09", "C-10"}, "what every card should have, wherever its agent is called"
    assert agent.seen == []
