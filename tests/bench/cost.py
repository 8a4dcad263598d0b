"""CPU per unit of work, of the one process that is measured, beside a floor in the same rounds.

A row measures one side: our client, the hub or our agent, in a process of its own over real loopback HTTP. Who it
speaks to is cheap and lives in this process. Each round measures the floor and then ours, so that a busy machine
slows both: a bare aiohttp client, or an ASGI application that answers at once on a bare uvicorn. Told are the medians
of CPU time per unit, the median of the same-round ratios, and how busy the machine was with other work meanwhile.
Ratios can be compared between days, milliseconds hardly. ``python -m tests.bench.cost --row send --rounds 5``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from starlette.types import Receive, Scope, Send

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.client import AgentClient
from fleetsim.hub.server import running_hub
from fleetsim.model.call import SendMessage
from fleetsim.model.event import fold
from fleetsim.model.task import Message, Role, Task, TaskState, TextPart
from fleetsim.model.work import OutcomeKind
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import listen
from tests.bench.flood import read_http

IN_FLIGHT = 64
STREAMS = 200
EVENTS = 50
"""Events of one stream."""

TEXT = "Please look at the last run and tell me in a few words what is wrong with it, and what to do first. " * 2
CHUNK = "some words of an answer that is told bit by bit, as they come, "
Json = dict[str, Any]


# ------------------------------------------------------------------ what is said


def task(state: str, task_id: str = "t", **more: Any) -> Json:
    return {"kind": "task", "id": task_id, "contextId": "c", "status": {"state": state}, **more}


def artifact(text: str) -> Json:
    return {"artifactId": "a", "parts": [{"kind": "text", "text": text}]}


def update(state: str, task_id: str, *, final: bool = False) -> Json:
    return {"kind": "status-update", "taskId": task_id, "contextId": "c", "status": {"state": state}, "final": final}


def chunk(task_id: str, *, append: bool = True) -> Json:
    ids = {"taskId": task_id, "contextId": "c"}
    return {"kind": "artifact-update", **ids, "artifact": artifact(CHUNK), "append": append}


def send_body(method: str, request_id: str, skill: str = "") -> bytes:
    """An A2A 0.3 send, as a plain caller writes it."""
    parts = [{"kind": "text", "text": TEXT}]
    message = {"kind": "message", "messageId": request_id, "role": "user", "parts": parts}
    params: Json = {"message": message, "configuration": {"blocking": False}}
    if skill:
        params["metadata"] = {"skillHint": skill}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


def frame(request_id: Any, result: Json) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n\n"


# ------------------------------------------------------------------ agents that cost little, in this process


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STREAMED = ("streamed", "chatty")
"""Ways of answering that are streams; the others are ``submitted``, ``answered`` and ``polled``."""


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection; the first part of a path says how its agent answers."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            first, headers, body = await read_http(reader)
            verb, path, _ = first.split(" ")
            way = path.split("/")[1]
            if verb == "GET":
                write_json(writer, card(way, headers["host"]))
                continue
            said = json.loads(body)
            if said["method"] == "message/stream":
                writer.write(STREAM_HEAD)
                await (talk if way == "chatty" else work)(writer, said["id"])
                break
            write_json(writer, {"jsonrpc": "2.0", "id": said["id"], "result": answer_of(way, said)})
    writer.close()


def write_json(writer: asyncio.StreamWriter, value: Json) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def answer_of(way: str, said: Json) -> Json:
    """A task at its end where it was answered at once or polled."""
    asked = said["params"].get("id")
    if way == "answered" or asked:
        return task("completed", asked or f"t-{said['id']}", artifacts=[artifact(CHUNK)])
    state = "working" if way == "polled" else "submitted"
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": TEXT}]}
    return task(state, f"t-{said['id']}", history=[message])


def card(way: str, host: str) -> Json:
    return {
        "name": way, "description": "", "version": "1", "protocolVersion": "0.3.0",
        "url": f"http://{host}/{way}", "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": way in STREAMED, "pushNotifications": False},
        "defaultInputModes": ["text"], "defaultOutputModes": ["text"],
        "skills": [{"id": way, "name": way, "description": "", "tags": []}],
    }  # fmt: skip


async def work(writer: asyncio.StreamWriter, request_id: str) -> None:
    """A short stream: four events to the end."""
    task_id = f"t-{request_id}"
    for event in (
        task("submitted", task_id),
        update("working", task_id),
        chunk(task_id, append=False),
        update("completed", task_id, final=True),
    ):
        writer.write(frame(request_id, event))
        await asyncio.sleep(0)


async def talk(writer: asyncio.StreamWriter, request_id: str) -> None:
    """``EVENTS`` events, one at a time while other streams have theirs: they arrive as live ones do."""
    task_id = f"t-{request_id}"
    writer.write(frame(request_id, task("working", task_id)))
    first, more = (frame(request_id, chunk(task_id, append=append)) for append in (False, True))
    for number in range(EVENTS - 2):
        writer.write(more if number else first)
        await asyncio.sleep(0)
    writer.write(frame(request_id, update("completed", task_id, final=True)))
    await writer.drain()


# ------------------------------------------------------------------ the side that is measured, in its own process


async def nothing(_: int) -> None:
    """What a server has left to do that does everything while it is asked."""


@dataclass(frozen=True)
class Side:
    """One side while it lives: where it listens, if it does, and what is left to do of so many units.

    A client does its units in ``finish``; a server is asked from outside, and ends there what it has begun.
    """

    finish: Callable[[int], Awaitable[None]] = nothing
    facts: Json = field(default_factory=dict)
    check: Callable[[int], Awaitable[None]] = nothing
    """Raises AssertionError if it did not do what it was asked; what this costs is not counted."""


async def in_flight(units: int, one: Callable[[int], Awaitable[None]], most: int = IN_FLIGHT) -> None:
    """So many units, ``most`` at a time."""
    numbers = iter(range(units))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(worker())


@asynccontextmanager
async def our_client(peer: str, way: str) -> AsyncIterator[AgentClient]:
    async with running_runtime() as runtime:
        client = AgentClient(f"{peer}/{way}", runtime=runtime, dialect="0.3", rpc_url=f"{peer}/{way}")
        await client.discover()
        yield client


@asynccontextmanager
async def bare_client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


JSON_HEAD = {"content-type": "application/json"}


@asynccontextmanager
async def sends(peer: str) -> AsyncIterator[Side]:
    """Our client: a text to a task that is submitted."""
    async with our_client(peer, "submitted") as client:

        async def one(_: int) -> None:
            sent = await client.send_task(TEXT, wait=False)
            assert sent.state is TaskState.SUBMITTED

        yield Side(lambda units: in_flight(units, one))


@asynccontextmanager
async def bare_sends(peer: str) -> AsyncIterator[Side]:
    """aiohttp alone: the same body, the answer parsed."""
    async with bare_client() as session:

        async def one(number: int) -> None:
            body = send_body("message/send", f"r{number}")
            async with session.post(f"{peer}/submitted", data=body, headers=JSON_HEAD) as reply:
                said = json.loads(await reply.read())
            assert said["result"]["status"]["state"] == "submitted"

        yield Side(lambda units: in_flight(units, one))


@asynccontextmanager
async def events(peer: str) -> AsyncIterator[Side]:
    """Our client: streams decoded and folded into tasks."""
    async with our_client(peer, "chatty") as client:

        async def one(number: int) -> None:
            message = Message(message_id=f"m{number}", role=Role.USER, parts=(TextPart(text=TEXT),))
            folded: Task | None = None
            async with client.events(SendMessage(message=message)) as stream:
                async for event in stream:
                    folded = fold(folded, event)
            assert folded is not None
            assert folded.artifacts[0].text == CHUNK * (EVENTS - 2)

        yield Side(lambda units: in_flight(units // EVENTS, one, STREAMS))


@asynccontextmanager
async def bare_events(peer: str) -> AsyncIterator[Side]:
    """aiohttp alone: the same streams, their bytes counted."""
    async with bare_client() as session:

        async def one(number: int) -> None:
            body, size = send_body("message/stream", f"r{number}"), 0
            async with session.post(f"{peer}/chatty", data=body, headers=JSON_HEAD) as reply:
                async for piece in reply.content.iter_any():
                    size += len(piece)
            assert size > EVENTS * len(CHUNK)

        yield Side(lambda units: in_flight(units // EVENTS, one, STREAMS))


@asynccontextmanager
async def hub(peer: str) -> AsyncIterator[Side]:
    """A hub on its ledger file. A unit is done when its outcome is on the disk."""
    ways = ("answered", "streamed", "polled")
    entries = tuple(
        AgentEntry(name=w, url=f"{peer}/{w}", rpc_url=f"{peer}/{w}", push="off", skills=(SkillEntry(name=w),))
        for w in ways
    )
    settings = FleetSettings(poll_interval_s=1.0, calls_per_agent_max=IN_FLIGHT)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        runtime = await stack.enter_async_context(running_runtime())
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=runtime.clock))
        config = FleetConfig(agents=entries, settings=settings)
        running = await stack.enter_async_context(running_hub(config, runtime, ledger))
        while any(view.card is None for view in running.broker.views()):  # noqa: ASYNC110 - three cards, no bell
            await asyncio.sleep(0.05)

        async def finish(_: int) -> None:
            while running.tracker.tracks():  # noqa: ASYNC110 - hundreds of bells, and each would cost
                await asyncio.sleep(0.02)

        async def check(units: int) -> None:
            outcomes = await ledger.outcomes(since=runtime.clock.now() - timedelta(minutes=5))
            kinds = [outcome.kind for outcome in outcomes][-units:]
            assert kinds == [OutcomeKind.COMPLETED] * units, kinds

        yield Side(finish, {"url": running.url, "key": running.keys.api_key}, check)


@asynccontextmanager
async def agent(_: str) -> AsyncIterator[Side]:
    """Our agent, with a skill that ends at once and one that tells its answer in chunks."""
    made = Agent("cost")

    @made.skill("answer")
    async def answer(said: SkillContext) -> str:
        return CHUNK

    @made.skill("talk")
    async def talk_(said: SkillContext) -> None:
        for _ in range(EVENTS):
            await said.say(CHUNK)

    async with made.serving() as url:
        yield Side(facts={"url": url})


@asynccontextmanager
async def echo(_: str) -> AsyncIterator[Side]:
    """A bare uvicorn whose application answers a fixed body, or so many fixed frames."""
    fixed = json.dumps({"jsonrpc": "2.0", "id": "r", "result": task("submitted")}).encode()
    event = frame("r", chunk("t"))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        streamed = scope["path"] == "/stream"
        kind = b"text/event-stream" if streamed else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for _ in range(EVENTS if streamed else 0):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"" if streamed else fixed})

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False, http="h11"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield Side(facts={"url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
    server.should_exit = True
    await serving


SIDES = {side.__name__: side for side in (sends, bare_sends, events, bare_events, hub, agent, echo)}


async def be(name: str, peer: str) -> None:
    """Be that side until standard input ends; one line asks for one turn to begin or to end."""
    logging.disable(logging.WARNING)  # a loop that is late on a busy machine is no news here
    loop = asyncio.get_running_loop()
    async with SIDES[name](peer) as side:
        print(json.dumps(side.facts), flush=True)
        began = 0.0
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            if words[0] == "begin":
                gc.collect()
                began = time.process_time()
                print("{}", flush=True)
                continue
            await side.finish(int(words[1]))
            print(json.dumps({"cpu_s": time.process_time() - began}), flush=True)
            await side.check(int(words[1]))


# ------------------------------------------------------------------ asking, in this process


Ask = Callable[[aiohttp.ClientSession, Json, int], Awaitable[None]]


async def ask_nothing(_: aiohttp.ClientSession, __: Json, ___: int) -> None:
    """A client asks by itself."""


def ask_hub(skill: str) -> Ask:
    async def ask(session: aiohttp.ClientSession, facts: Json, units: int) -> None:
        body = json.dumps({"text": TEXT, "skill": skill, "targets": [skill]}).encode()
        headers = {**JSON_HEAD, "x-api-key": facts["key"]}

        async def one(_: int) -> None:
            async with session.post(f"{facts['url']}/api/requests", data=body, headers=headers) as reply:
                assert reply.status == 202, await reply.text()
                await reply.read()

        await in_flight(units, one)

    return ask


def ask_agent(method: str, skill: str, path: str = "/a2a") -> Ask:
    marker, each = (b"data:", EVENTS) if method == "message/stream" else (b"jsonrpc", 1)

    async def ask(session: aiohttp.ClientSession, facts: Json, units: int) -> None:
        ids = itertools.count()

        async def one(_: int) -> None:
            body = send_body(method, f"r{next(ids)}", skill)
            async with session.post(f"{facts['url']}{path}", data=body, headers=JSON_HEAD) as reply:
                told = await reply.read()
            assert b'"error"' not in told, told[:300]
            assert told.count(marker) >= each, told[:300]

        await in_flight(units // each, one)

    return ask


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured: ``units`` a turn of ``ours`` and of its ``floor``, asked for with ``ask`` and ``ask_floor``."""

    unit: str
    ours: str
    floor: str
    units: int
    ask: Ask = ask_nothing
    ask_floor: Ask = ask_nothing


ECHO = ask_agent("message/send", "", "/")
ROWS: dict[str, Row] = {
    "send": Row(unit="message/send to submitted, our client", ours="sends", floor="bare_sends", units=2_000),
    "events": Row(unit="event decoded and folded, our client", ours="events", floor="bare_events", units=20_000),
    "hub-answered": Row(
        unit="request to its outcome, hub, answered at once",
        ours="hub", floor="echo", units=300, ask=ask_hub("answered"), ask_floor=ECHO,
    ),
    "hub-streamed": Row(
        unit="request to its outcome, hub, a stream of four events",
        ours="hub", floor="echo", units=300, ask=ask_hub("streamed"), ask_floor=ECHO,
    ),
    "hub-polled": Row(
        unit="request to its outcome, hub, polled",
        ours="hub", floor="echo", units=300, ask=ask_hub("polled"), ask_floor=ECHO,
    ),
    "agent-send": Row(
        unit="message/send served and its skill run, our agent",
        ours="agent", floor="echo", units=600, ask=ask_agent("message/send", "answer"), ask_floor=ECHO,
    ),
    "agent-events": Row(
        unit="event of a stream served, our agent",
        ours="agent", floor="echo", units=10_000, ask=ask_agent("message/stream", "talk"),
        ask_floor=ask_agent("message/stream", "", "/stream"),
    ),
}  # fmt: skip


class Measured:
    """The process of one side."""

    def __init__(self, process: asyncio.subprocess.Process, facts: Json) -> None:
        self._process, self.facts = process, facts

    @property
    def pid(self) -> int:
        return self._process.pid

    async def say(self, words: str) -> Json:
        assert self._process.stdin is not None
        self._process.stdin.write(words.encode() + b"\n")
        return await heard(self._process)

    async def turn(self, row: Row, ask: Ask, session: aiohttp.ClientSession, units: int) -> float:
        """CPU-ms per unit of one turn."""
        await self.say("begin")
        await ask(session, self.facts, units)
        found = await self.say(f"end {units}")
        return 1000 * float(found["cpu_s"]) / units


async def heard(process: asyncio.subprocess.Process) -> Json:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise SystemExit("the measured process ended; its words are above")
    said: Json = json.loads(line)
    return said


@asynccontextmanager
async def measured(side: str, peer: str) -> AsyncIterator[Measured]:
    words = (sys.executable, "-m", "tests.bench.cost", "--be", side, "--peer", peer)
    process = await asyncio.create_subprocess_exec(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Measured(process, await heard(process))
    finally:
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(15):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


class Machine:
    """How much of the machine others took, and how fast it was: a fixed loop in milliseconds."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._pids = pids
        self._began, self._all, self._own = time.monotonic(), all_cpu_s(), self._own_cpu_s()
        self.probes = [probe_ms()]

    def _own_cpu_s(self) -> float:
        return time.process_time() + sum(process_cpu_s(pid) for pid in self._pids)

    def __str__(self) -> str:
        others = (all_cpu_s() - self._all) - (self._own_cpu_s() - self._own)
        share = others / (time.monotonic() - self._began)
        cores, load = os.cpu_count() or 1, os.getloadavg()[0]
        probe = f"probe {min(self.probes):.0f}-{max(self.probes):.0f} ms"
        return f"others {max(share, 0):.2f} of {cores} cores, load {load:.1f}, {probe}"


def all_cpu_s() -> float:
    user, nice, system, _, _, irq, soft, *_ = (int(word) for word in Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def process_cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def probe_ms() -> float:
    began, total = time.process_time(), 0
    for number in range(200_000):
        total += number & 7
    return 1000 * (time.process_time() - began)


async def measure(name: str, rounds: int) -> str:
    """One row, as a line."""
    row = ROWS[name]
    server = await asyncio.start_server(converse, "127.0.0.1", 0, limit=2**20, backlog=1_000)
    peer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ours: list[float] = []
    floors: list[float] = []
    async with server, measured(row.ours, peer) as us, measured(row.floor, peer) as them, bare_client() as session:
        await them.turn(row, row.ask_floor, session, row.units // 2)
        await us.turn(row, row.ask, session, row.units // 2)
        machine = Machine((us.pid, them.pid))
        for _ in range(rounds):
            floors.append(await them.turn(row, row.ask_floor, session, row.units))
            ours.append(await us.turn(row, row.ask, session, row.units))
            machine.probes.append(probe_ms())
        ratio = statistics.median(a / b for a, b in zip(ours, floors, strict=True))
        spread = f"[{min(ours):.3f}-{max(ours):.3f}]"
        return (
            f"  {name:13} {statistics.median(ours):7.3f} CPU-ms {spread:15}  floor {statistics.median(floors):.3f}"
            f"  x {ratio:5.2f}  {row.unit}\n  {'':13} {machine}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, help="one row alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--be", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--peer", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        asyncio.run(be(options.be, options.peer))
        return
    print(f"CPU per unit of the measured process, {options.rounds} rounds in turn with the floor")
    for name in [options.row] if options.row else ROWS:
        print(asyncio.run(measure(name, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
