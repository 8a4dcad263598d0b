"""The catalogue of broken agents: it covers the checklist, and each of its agents starts and replies."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from fleetsim.agent import Agent
from fleetsim.agent.builtin import reference_agent
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.runtime.ports import Request
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.broken.build import Mutant
from tests.broken.catalogue import MUTANTS, mutant

NAMED = {
    "missing-kind": "#40",
    "token-shape": "#61",
    "card-url-root": "#6",
    "cancel-without-push": "#19",
    "closed-over-push-config": "hardening 5",
    "producer-tied": "#22",
    "full-text-deltas": "#22",
    "leaked-store": "#11",
    "no-push-set": "#25",
    "no-push-get": "#25",
    "no-push-list": "#25",
    "no-push-delete": "#25",
    "blocking-send": "#11",
}


def test_every_row_has_a_broken_agent() -> None:
    assert set(REQUIREMENTS) == {found.row for found in MUTANTS}


def test_ids_are_unique_and_fit_a_command_line() -> None:
    assert [name for name, count in Counter(m.mutant_id for m in MUTANTS).items() if count > 1] == []
    assert all(m.mutant_id == m.mutant_id.lower() and " " not in m.mutant_id for m in MUTANTS)


def test_other_rows_are_real_and_have_a_reason() -> None:
    for found in MUTANTS:
        listed = [row for rows in found.also for row in rows.split()]
        assert set(listed) <= set(REQUIREMENTS) - {found.row}, found.mutant_id
        assert len(listed) == len(set(listed)), found.mutant_id
        assert all(len(reason) > 10 for reason in found.also.values()), found.mutant_id


@pytest.mark.parametrize(("mutant_id", "incident"), NAMED.items())
def test_each_incident_of_the_guide_has_an_agent(mutant_id: str, incident: str) -> None:
    assert incident in (mutant(mutant_id).incident or "")


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda found: found.mutant_id)
async def test_each_broken_agent_starts_and_replies(broken: Mutant) -> None:
    network = MemoryNetwork()
    agent = broken.make(reference_agent(runtime=virtual_runtime(0, network, name="agent"), api_key="key"))
    assert isinstance(agent, Agent)
    network.mount("http://agent:9000", agent.app())
    headers = {"content-type": "application/json", "x-api-key": "key"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "none"}}).encode()
    async with network:
        reply = await network.exchange(Request(method="POST", url="http://agent:9000/a2a", headers=headers, body=body))
    assert reply.status in {200, 400}, reply.body
