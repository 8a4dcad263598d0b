"""What ``timeout_s`` of a followed request covers, and what is repeated within it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from email.utils import format_datetime

import pytest

from fleetsim.client import AgentClient
from fleetsim.model.errors import HttpRefused, TaskNotFound, TimedOut
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import Match, SlowStart, Stall, Status
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, ScriptedAgent, status, task
from tests.client.test_client_follow import client, methods

CARDS = Match(method="GET")
PLAIN = {**CARD, "capabilities": {}}
FORGETS = TaskNotFound("no idea")


def now() -> float:
    return asyncio.get_running_loop().time()


def agent(*, streaming: bool = False) -> ScriptedAgent:
    done = task("completed")
    return ScriptedAgent(
        {"message/send": done, "message/stream": [status("completed", final=True)], "tasks/get": done},
        card=CARD if streaming else PLAIN,
    )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("slow", ["card", "head", "body"])
async def test_timeout_s_covers_the_card_the_head_and_the_first_event(
    runtime: Runtime, network: MemoryNetwork, slow: str, streaming: bool
) -> None:
    where = CARDS if slow == "card" else Match(method="POST")
    network.fault(Stall(at="body", seconds=35) if slow == "body" else SlowStart(seconds=35), where, times=1)
    async with network:
        following = client(runtime, network, agent(streaming=streaming)).follow("hi", timeout_s=40)
        assert (await following.end()).done
        assert now() == pytest.approx(35, abs=1)


async def test_a_poll_may_take_as_long_as_the_request(runtime: Runtime, network: MemoryNetwork) -> None:
    network.fault(SlowStart(seconds=35), Match(rpc_method="tasks/get"))
    async with network:
        at_work = ScriptedAgent({"message/send": task("working", None), "tasks/get": task("completed")}, card=PLAIN)
        assert (await client(runtime, network, at_work).follow("hi", timeout_s=40).end()).done


# ------------------------------------------------------------------ an overloaded agent


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("refused", [CARDS, Match(method="POST")], ids=["card", "send"])
@pytest.mark.parametrize("code", [429, 503])
async def test_a_call_that_an_overloaded_agent_refused_is_repeated_at_its_retry_after(
    runtime: Runtime, network: MemoryNetwork, code: int, refused: Match, streaming: bool
) -> None:
    network.fault(Status(status=code, headers={"retry-after": "20"}), refused, times=1)
    pauses = list[float]()
    async with network:
        following = client(runtime, network, agent(streaming=streaming)).follow(
            "hi", timeout_s=40, retrying=lambda _, seconds: pauses.append(seconds)
        )
        assert (await following.end()).done
        assert (pauses, now()) == ([20.0], pytest.approx(20, abs=0.5))


async def test_the_date_of_a_retry_after_is_kept(runtime: Runtime, network: MemoryNetwork) -> None:
    at = format_datetime(runtime.clock.now() + timedelta(seconds=30), usegmt=True)
    network.fault(Status(status=503, headers={"retry-after": at}), Match(method="POST"), times=1)
    async with network:
        assert (await client(runtime, network, agent()).send_task("hi")).done
        assert now() == pytest.approx(30, abs=1)


async def test_a_refused_send_is_repeated_three_times_with_one_message_id(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    network.fault(Status(status=503), Match(method="POST"), times=3)
    async with network:
        assert (await client(runtime, network, agent()).send_task("hi")).done
        assert 0 < now() <= 13
        sent = [seen.request.body for seen in network.seen if seen.method == "POST"]
    assert len(sent) == 4
    assert len({body.split(b'"messageId"')[1][:40] for body in sent}) == 1


@pytest.mark.parametrize("asked_s", [60, 3_600])
async def test_a_pause_beyond_the_remaining_time_is_not_begun_and_the_error_names_it(
    runtime: Runtime, network: MemoryNetwork, asked_s: int
) -> None:
    network.fault(Status(status=503, headers={"retry-after": str(asked_s)}), Match(method="POST"))
    async with network:
        with pytest.raises(HttpRefused, match=f"{asked_s} s") as caught:
            await client(runtime, network, agent()).send_task("hi", timeout_s=40)
        assert (caught.value.status, caught.value.retry_after_s) == (503, asked_s)
        assert now() < 1


async def test_another_refusal_is_final(runtime: Runtime, network: MemoryNetwork) -> None:
    network.fault(Status(status=502), Match(method="POST"))
    async with network:
        with pytest.raises(HttpRefused):
            await client(runtime, network, agent()).send_task("hi")
        assert len([seen for seen in network.seen if seen.method == "POST"]) == 1


# ------------------------------------------------------------------ -32001


@pytest.mark.parametrize("misses", [1, 3])
async def test_a_task_that_its_agent_does_not_know_yet_is_polled_again(
    runtime: Runtime, network: MemoryNetwork, misses: int
) -> None:
    looks = iter([FORGETS] * misses + [task("completed")])
    lagging = ScriptedAgent({"message/send": task("working", None), "tasks/get": lambda _: next(looks)}, card=PLAIN)
    async with network:
        assert (await client(runtime, network, lagging).send_task("hi")).done
        assert now() == pytest.approx(5 * misses, abs=1)


async def test_a_task_that_stays_unknown_is_named_with_its_agent_and_the_method(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    forgetful = ScriptedAgent({"message/send": task("working", None), "tasks/get": FORGETS}, card=PLAIN)
    async with network:
        with pytest.raises(TaskNotFound) as caught:
            await client(runtime, network, forgetful).send_task("hi")
    assert methods(forgetful) == ["message/send"] + ["tasks/get"] * 4
    for part in ("agent.example:80", "tasks/get", "t1", "no idea"):
        assert part in str(caught.value)


async def test_a_task_that_was_never_seen_is_polled_once(runtime: Runtime, network: MemoryNetwork) -> None:
    forgetful = ScriptedAgent({"tasks/get": FORGETS}, card=PLAIN)
    async with network:
        with pytest.raises(TaskNotFound):
            await client(runtime, network, forgetful).follow_task("t9").end()
        assert now() < 1
    assert methods(forgetful) == ["tasks/get"]


async def test_python_waits_for_a_reply_as_long_as_send_task_waits(runtime: Runtime, network: MemoryNetwork) -> None:
    network.fault(SlowStart(seconds=250), Match(method="POST"))
    async with network:
        network.mount("http://agent.example", agent().app)
        asked = AgentClient("http://agent.example", runtime=runtime)
        assert (await asked.send_task("hi", wait=False)).done
        with pytest.raises(TimedOut):
            await asked.send_task("hi", timeout_s=200)
