"""Requests while a hub reads its agents' cards for the first time: each waits for the cards that may change its
routing, and is then accepted or refused as at any other time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.fleet.cards import FIRST_READ_S_MAX
from fleetsim.model.errors import NotAccepting
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.asgi import App
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.hub.test_a2a import begun, client, message, until
from tests.hub.test_reload import AVA as AVA_ENTRY
from tests.hub.test_reload import QUINN as QUINN_ENTRY
from tests.hub.test_reload import edit, fleet

CEREMONY = 'id: digest\nname: n\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [quinn]\n'


class SlowCards:
    """Each agent's card comes this many seconds after the request; further ones come at once."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)

    def __call__(self, app: Any) -> App:
        seconds = self._seconds.pop(0) if self._seconds else 0.0

        async def door(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and "/.well-known/" in scope["path"]:
                await asyncio.sleep(seconds)
            await app(scope, receive, send)

        return door


def now(t: LocalHub) -> float:
    return t.runtime.clock.monotonic()


async def post(t: LocalHub, **body: Any) -> tuple[int, dict[str, Any]]:
    reply = await t.http("POST", "/api/requests", json.dumps({"text": "hi", **body}).encode())
    return reply.status, json.loads(reply.body)


def sent(t: LocalHub, name: str) -> int:
    return sum(seen.method == "POST" and seen.url.startswith(f"http://{name}.") for seen in t.network.seen)


@pytest.mark.parametrize("asked", [{"skill": "echo", "targets": ["quinn"]}, {"skill": "echo"}])
async def test_work_waits_for_the_card_of_an_agent_that_may_have_the_skill(asked: Mapping[str, Any]) -> None:
    async with local_hub(worker(), door=SlowCards(3)) as t:
        status, told = await post(t, **asked)
        assert (status, now(t)) == (202, 3)
        (cid,) = told["data"]["correlationIds"]
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.agent, outcome.text) == ("quinn", "you said hi")
        assert sent(t, "quinn") == 1


async def test_work_for_all_includes_agents_with_late_cards() -> None:
    async with local_hub(worker(), worker("ava"), door=SlowCards(0, 3)) as t:
        _, told = await post(t, skill="echo", targets=["all"])
        outcomes = [await t.hub.tracker.wait(cid) for cid in told["data"]["correlationIds"]]
        assert {outcome.agent for outcome in outcomes} == {"quinn", "ava"}


async def test_work_by_skill_goes_to_the_agent_with_a_read_card_without_waiting_for_others() -> None:
    async with local_hub(worker(), worker("ava"), door=SlowCards(9, 2)) as t:
        status, told = await post(t, skill="echo")
        assert (status, now(t)) == (202, 2)
        (cid,) = told["data"]["correlationIds"]
        assert (await t.hub.tracker.wait(cid)).agent == "ava"


async def test_work_for_an_agent_with_a_read_card_does_not_wait_for_others() -> None:
    async with ready_hub(worker(), worker("ava"), door=SlowCards(0, 9)) as t:
        status, _ = await post(t, skill="echo", targets=["quinn"])
        assert (status, now(t)) == (202, 1)


async def test_work_for_an_unknown_skill_is_refused_once_the_cards_are_read() -> None:
    async with local_hub(worker(), worker("ava"), door=SlowCards(1, 3)) as t:
        status, told = await post(t, skill="sing")
        assert (status, told["code"], now(t)) == (404, "FLEETSIM_ERR_UNKNOWN_TARGET", 3)
        status, told = await post(t, skill="echo", targets=["rex"])
        assert (status, now(t)) == (404, 3)


async def test_work_is_refused_after_ten_seconds_if_a_card_does_not_come() -> None:
    async with local_hub(worker(), door=SlowCards(3_600), entries={"quinn": {"timeout_ms": 600_000}}) as t:
        status, _ = await post(t, skill="echo", targets=["quinn"])
        assert (status, now(t)) == (404, FIRST_READ_S_MAX)
        assert sent(t, "quinn") == 0


async def test_a_failed_first_read_ends_the_wait() -> None:
    async with local_hub(worker(), door=SlowCards(1)) as t:
        t.network.down("http://quinn.example:8000")
        status, _ = await post(t, skill="echo", targets=["quinn"])
        assert status == 404
        assert now(t) < FIRST_READ_S_MAX


async def test_a_skill_with_a_veto_is_held_from_the_first_moment() -> None:
    """agents.yaml lists the skill; only the card says that it may be vetoed."""
    agent = Agent("quinn")

    @agent.skill("deploy", hitl="veto")
    async def deploy(task: SkillContext) -> str:
        await asyncio.sleep(30)
        return "deployed"

    yaml = fleet(f"{QUINN_ENTRY}, skills: [deploy]")
    async with local_hub(agent, door=SlowCards(2), agents_yaml=yaml) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="deploy", targets=("quinn",)))
        await asyncio.sleep(1)
        assert [veto.correlation_id for veto in t.hub.hitl.vetoes()] == ["c-1"]


async def test_a_skill_added_while_the_hub_was_down_can_be_called_at_once() -> None:
    agent = Agent("quinn")

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    async with ready_hub(agent) as t:

        async def learn() -> None:
            await t.network.unmount("http://quinn.example:8000")
            t.network.mount("http://quinn.example:8000", worker().replace(url="http://quinn.example:8000/a2a").app())

        await t.restart(meanwhile=learn)
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="fail", targets=("quinn",)))
        assert (await t.hub.tracker.wait("c-1")).kind is OutcomeKind.FAILED


async def test_work_for_a_newly_added_agent_waits_for_its_card() -> None:
    async with ready_hub(worker(), worker("ava"), door=SlowCards(0, 4), agents_yaml=fleet(QUINN_ENTRY)) as t:
        await edit(t, fleet(QUINN_ENTRY, AVA_ENTRY))
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="echo", targets=("ava",)))
        assert (await t.hub.tracker.wait("c-1")).success


async def test_a_caller_that_leaves_while_it_waits_starts_no_work() -> None:
    async with local_hub(worker(), door=SlowCards(5)) as t:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="echo", targets=("quinn",)))
        await asyncio.sleep(10)
        assert await t.ledger.request("c-1") is None
        assert sent(t, "quinn") == 0


async def test_waiting_work_is_refused_at_once_when_the_hub_closes() -> None:
    async with local_hub(worker(), door=SlowCards(8)) as t:
        request = SkillRequest(correlation_id="c-1", text="x", skill="echo", targets=("quinn",))
        waiting = asyncio.ensure_future(t.hub.submit(request))
        await asyncio.sleep(2)
        await t.hub.stop_streams()
        with pytest.raises(NotAccepting, match="closing"):
            await waiting
        assert now(t) == 2
        assert await t.ledger.request("c-1") is None


# -- the other doors


@pytest.mark.parametrize("dialect", ["1.0", "0.3", "0.1"])
async def test_a_task_of_the_hubs_own_agent_waits_as_a_task(dialect: str) -> None:
    async with local_hub(worker(), door=SlowCards(4)) as t:
        caller = client(t, dialect)
        task = await begun(caller, message("hi"))
        assert (task.state in {TaskState.SUBMITTED, TaskState.WORKING}, now(t)) == (True, 0)
        done = await until(caller, task.task_id, TaskState.COMPLETED)
        assert done.text == "you said hi"
        assert sent(t, "quinn") == 1


async def test_a_task_that_is_cancelled_while_it_waits_never_reaches_an_agent() -> None:
    async with local_hub(worker(), door=SlowCards(6)) as t:
        caller = client(t, "1.0")
        task = await begun(caller, message("hi"))
        await asyncio.sleep(2)
        await caller.cancel(task.task_id)
        await asyncio.sleep(20)
        assert sent(t, "quinn") == 0
        assert (await until(caller, task.task_id, TaskState.CANCELED)).state is TaskState.CANCELED


async def test_a_manual_run_of_a_ceremony_waits_and_so_does_its_dry_run() -> None:
    async with local_hub(worker(), door=SlowCards(3), ceremony=CEREMONY) as t:
        told = await t.remote.dry_run("digest")
        assert ([request["agent"] for request in told["requests"]], told["problems"]) == (["quinn"], [])
    async with local_hub(worker(), door=SlowCards(3), ceremony=CEREMONY) as t:
        began = now(t)
        await t.remote.run_ceremony("digest")
        assert now(t) - began == 3
        await asyncio.sleep(60)
        (run,) = await t.ledger.runs("digest")
        assert (run.status.value, run.error) == ("success", "")
