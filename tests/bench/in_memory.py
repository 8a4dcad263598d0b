"""The sides that need no socket: what a simulation is made of, on virtual time, and a floor of plain ASGI.

Each turn is a run of its own in a thread, since the loop of the process waits for the next word.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from starlette.types import Receive, Scope, Send

from fleetsim import testbed
from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.network import MemoryNetwork
from tests.bench.sides import CHUNK, IN_FLIGHT, JSON_HEAD, TEXT, Around, Side, in_flight, send_body, task

ORIGIN = "http://agent.example:8000"


def memory_agent() -> Agent:
    made = Agent("cost", url=f"{ORIGIN}/a2a")

    @made.skill("answer")
    async def answer(said: SkillContext) -> str:
        return CHUNK

    return made


def in_thread(run: Callable[[int], None]) -> Callable[[int], Awaitable[None]]:
    return lambda units: asyncio.to_thread(run, units)


@asynccontextmanager
async def memory_exchange(_: str, __: Around) -> AsyncIterator[Side]:
    """Our client and our agent on the network in memory: a text to its answer, on virtual time."""

    async def talk(units: int) -> None:
        network = MemoryNetwork()
        # On virtual time too: an agent on the machine's clock finds an hour of looks in a second too many.
        network.mount(ORIGIN, memory_agent().replace(runtime=testbed.virtual_runtime(1, network, name="agent")).app())
        async with network:
            client = AgentClient(ORIGIN, runtime=testbed.virtual_runtime(network=network))

            async def one(_: int) -> None:
                done = await client.send_task(TEXT)
                assert done.state is TaskState.COMPLETED

            await in_flight(units, one)

    yield Side(in_thread(lambda units: testbed.run(lambda: talk(units))))


@asynccontextmanager
async def memory_hub(_: str, __: Around) -> AsyncIterator[Side]:
    """The hub before our agent on the network in memory: a request to its outcome, on virtual time."""

    async def work(units: int) -> None:
        network = MemoryNetwork()
        # On virtual time too: an agent on the machine's clock finds an hour of looks in a second too many.
        network.mount(ORIGIN, memory_agent().replace(runtime=testbed.virtual_runtime(1, network, name="agent")).app())
        runtime = testbed.virtual_runtime(network=network)
        entry = AgentEntry(name="cost", url=ORIGIN, skills=(SkillEntry(name="answer"),))
        config = FleetConfig(agents=(entry,), settings=FleetSettings(calls_per_agent_max=IN_FLIGHT))
        numbers = itertools.count()
        async with (
            network,
            open_ledger(None, clock=runtime.clock, storage="inline") as ledger,  # virtual time would overtake a thread
            Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids)) as hub,
        ):

            async def one(_: int) -> None:
                cid = f"{next(numbers):036d}"
                await hub.submit(SkillRequest(correlation_id=cid, text=TEXT, skill="answer", targets=("cost",)))

            await in_flight(units, one)
            while hub.tracker.tracks():  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.1)
            outcomes = await ledger.outcomes(since=runtime.clock.now() - timedelta(hours=1))
            kinds = Counter(outcome.kind for outcome in outcomes)
            assert kinds == {OutcomeKind.COMPLETED: units}, kinds

    yield Side(in_thread(lambda units: testbed.run(lambda: work(units))))


@asynccontextmanager
async def memory_floor(_: str, __: Around) -> AsyncIterator[Side]:
    """httpx's transport for ASGI and an application with a fixed body: the least cost of a call in memory."""
    fixed = json.dumps({"jsonrpc": "2.0", "id": "r", "result": task("completed")}).encode()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": fixed})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:

        async def one(number: int) -> None:
            reply = await http.post(ORIGIN, content=send_body("message/send", f"r{number}"), headers=JSON_HEAD)
            assert reply.json()["result"]["status"]["state"] == "completed"

        yield Side(lambda units: in_flight(units, one))


MEMORY_SIDES = {side.__name__: side for side in (memory_exchange, memory_hub, memory_floor)}
