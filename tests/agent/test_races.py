"""Many orders of the same steps: a skill, a cancel, readers at their own pace, a webhook over a faulty network.

Each seed shuffles the loop's ready queue and draws every pause. In every order a task has one end, and each
receiver gets it once.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed, skill
from fleetsim.agent.agent import build_app
from fleetsim.model.task import TERMINAL
from fleetsim.testbed.loop import run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.agent.environment import HOOK, URL, Env, Hook, sent
from tests.scale import scaled

pytestmark = pytest.mark.slow

ENDS = {state.value for state in TERMINAL}
ORDER = {"working": 0, "input-required": 1, **dict.fromkeys(ENDS, 2)}


def made_skill(chance: random.Random) -> Any:
    @skill(cost=True)
    async def works(task: SkillContext) -> None:
        for at in range(chance.randrange(6)):
            await task.say(f"{at}.")
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.3]))
            if chance.random() < 0.2:
                await task.status(f"at {at}")
        task.use(1, 1)
        if chance.random() < 0.3:
            await task.say(f"[{await task.ask('go on?')}]")
        if chance.random() < 0.2:
            raise SkillFailed("bad luck")

    return works


async def watched(env: Env, chance: random.Random, method: str, params: Any) -> list[Any]:
    frames = []
    async with env.stream(method, params) as results:
        leaves_after = chance.choice([None, None, None, 1, 2])
        async for frame in results:
            frames.append(frame)
            if len(frames) == leaves_after:
                return []
            await asyncio.sleep(chance.choice([0, 0, 0.002, 0.5]))
    return frames


async def one_life(seed: int) -> None:
    chance = random.Random(seed)
    network = MemoryNetwork(seed=seed)
    network.addresses["hook"] = ("10.0.0.9",)
    options: dict[str, Any] = {"skills": [made_skill(chance)], "allow_webhook": ("10.0.0.9/32:8080",)}
    runtime = virtual_runtime(seed, network, name="agent")
    engine = Agent("racer", runtime=runtime, **options).engine()
    hook = Hook(answers=[200] * chance.randrange(3) + [503] * chance.randrange(4))
    network.mount(URL, build_app(engine))
    network.mount(HOOK, hook)
    async with network:
        env = Env(network=network, engine=engine, hook=hook, runtime=runtime)
        push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/x"}}}
        canceled: list[str] = []
        async with asyncio.TaskGroup() as group:
            task = await env.call("message/send", {**sent("x"), **push})
            readers = [
                group.create_task(watched(env, chance, "tasks/resubscribe", {"id": task["id"]}))
                for _ in range(chance.randrange(4))
            ]

            async def cancel() -> None:
                await asyncio.sleep(chance.choice([0, 0.001, 0.2, 0.9]))
                answer = await env.ask("tasks/cancel", {"id": task["id"]})
                canceled.append(answer["result"]["status"]["state"] if "result" in answer else "refused")

            async def answer() -> None:
                for _ in range(40):
                    await asyncio.sleep(0.1)
                    await env.ask("message/send", sent("yes", taskId=task["id"], messageId="answer"))

            group.create_task(answer())
            for _ in range(chance.randrange(3)):
                group.create_task(cancel())
        await asyncio.sleep(100)
        final = await env.call("tasks/get", {"id": task["id"]})
        check_end(final, canceled)
        check_told(hook, final)
        for reader in readers:
            check_read(reader.result(), final)
        assert engine.service.slots.total == 0


def check_end(final: dict[str, Any], canceled: list[str]) -> None:
    state = final["status"]["state"]
    assert state in ENDS
    assert canceled.count("canceled") == (state == "canceled")


def check_told(hook: Hook, final: dict[str, Any]) -> None:
    """Each notice is sent until it is accepted, in order, the end once."""
    told = hook.states
    assert told[-1] == final["status"]["state"]
    assert all(ORDER[a] <= ORDER[b] or (a, b) == ("input-required", "working") for a, b in pairwise(told))
    assert sum(state in ENDS for state in hook.taken) == 1
    assert all(a != b for a, b in pairwise(hook.taken))
    ends = [body for body in hook.bodies if body["status"]["state"] in ENDS]
    assert len({str(body) for body in ends}) == 1
    assert ends[0].get("artifacts") == final.get("artifacts")


def check_read(frames: list[Any], final: dict[str, Any]) -> None:
    """A snapshot, then only new events, and one final frame at the end or at the question."""
    if not frames:
        return
    assert frames[0]["kind"] == "task"
    assert [bool(f.get("final")) for f in frames].count(True) == 1
    assert frames[-1]["final"] is True
    if frames[-1]["status"]["state"] not in ENDS:
        return
    assert frames[-1]["status"]["state"] == final["status"]["state"]
    texts = [f["artifact"]["parts"][0]["text"] for f in frames if f.get("lastChunk") is False]
    past = [p["text"] for a in frames[0].get("artifacts", []) for p in a["parts"] if p["kind"] == "text"]
    whole = [p["text"] for a in final.get("artifacts", []) for p in a["parts"] if p["kind"] == "text"]
    if frames[0]["status"]["state"] not in ENDS:
        assert "".join(past + texts) == "".join(whole)


@pytest.mark.parametrize("block", range(8))
def test_in_any_order_every_receiver_gets_one_end_once(block: int) -> None:
    for seed in range(block * 25, block * 25 + scaled(25)):
        run(partial(one_life, seed), seed=seed, shuffle=True)
