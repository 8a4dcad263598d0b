"""The check waits for an agent as long as its timeout says."""

from __future__ import annotations

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.agent_under_test import Options, Target
from fleetsim.check.evidence import Verdict
from fleetsim.check.report import Report
from fleetsim.check.runner import run_check, select
from fleetsim.model.errors import Unreachable
from fleetsim.testbed.faults import Fault, Match, SlowStart, Stall
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.broken.inprocess import AGENT


async def checked(fault: Fault, match: Match, reply_s: float) -> Report:
    network = MemoryNetwork()
    network.mount(AGENT, reference_agent(runtime=virtual_runtime(0, network, name="agent")).app())
    network.fault(fault, match)
    async with network:
        return await run_check(
            Target(url=AGENT),
            virtual_runtime(0, network, name="checker"),
            options=Options(reply_s=reply_s, virtual=True),
            requirements=select(["S-02"]),
        )


CALLS = Match(method="POST")


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
@pytest.mark.parametrize("fault", [SlowStart(seconds=35), Stall(at="body", seconds=35)], ids=["head", "first event"])
async def test_a_stream_that_begins_within_the_timeout_is_tested(fault: Fault, dialect: str) -> None:
    assert (await checked(fault, CALLS, 40)).finding("S-02", dialect).verdict is Verdict.PASS
    assert (await checked(fault, CALLS, 30)).finding("S-02", dialect).verdict is not Verdict.PASS


async def test_the_timeout_covers_the_card() -> None:
    slow, card = SlowStart(seconds=35), Match(method="GET")
    assert (await checked(slow, card, 40)).finding("S-02", "1.0").verdict is Verdict.PASS
    with pytest.raises(Unreachable):
        await checked(slow, card, 30)
