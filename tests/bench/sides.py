"""What is measured, each side in a process of its own: our client, the hub, our agent, and the floors below them.

Who they speak to is cheap and lives in the process that asks (``converse``). Sides of peers are in ``peers``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import aiohttp
import httpx
import uvicorn
from httpx_sse import aconnect_sse
from msgspec import structs
from starlette.types import Receive, Scope, Send

from fleetsim.agent import Agent, AgentLimits, SkillContext
from fleetsim.client import AgentClient
from fleetsim.client.hub_client import KEY_VARIABLE, HubClient
from fleetsim.client.wire_log import WireLog
from fleetsim.dashboard.feed import AttachedSource, HubFeed
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.hub.server import running_hub
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.call import SendMessage
from fleetsim.model.event import fold
from fleetsim.model.task import Message, Role, Task, TaskState, TextPart
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import listen
from fleetsim.runtime.workers import Workers
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
    """An A2A 0.3 send, as a plain caller writes it; peers without skills stream where the text begins with talk."""
    parts = [{"kind": "text", "text": f"talk. {TEXT}" if skill == "talk" else TEXT}]
    message = {"kind": "message", "messageId": request_id, "role": "user", "parts": parts}
    params: Json = {"message": message, "configuration": {"blocking": False, "acceptedOutputModes": ["text"]}}
    if skill:
        params["metadata"] = {"skillHint": skill}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


def in_1_0(result: Json) -> Json:
    """A result of 0.3 as 1.0 has it: named by what it is, without kinds, and with states of another spelling."""
    kind = {"task": "task", "status-update": "statusUpdate", "artifact-update": "artifactUpdate"}[result["kind"]]
    told = {name: value for name, value in result.items() if name not in {"kind", "final", "history"}}
    if "status" in told:
        told["status"] = {"state": f"TASK_STATE_{told['status']['state'].upper()}"}
    if "artifact" in told:
        told["artifact"] = {"artifactId": "a", "parts": [{"text": CHUNK}]}
    return {kind: told}


def frame(request_id: Any, result: Json) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n\n"


# ------------------------------------------------------------------ agents that cost little, in this process


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STREAMED = ("streamed", "chatty", "chatty10", "burst")
"""Ways of answering that are streams, ``burst`` all at once; the others are ``submitted``, ``answered`` and ``polled``.
A 10 at the end: in A2A 1.0."""

PUSHED = tuple(f"pushed-{n}" for n in range(8))
"""Agents whose tasks end by webhook; eight, since each has a rate that it may not exceed."""

ENDLESS = tuple(f"endless-{n}" for n in range(8))
"""Agents that never end a task; eight, since no single one gets more than a quarter of a hub's processor."""


ASKED_FOR_WEBHOOKS: dict[str, Json] = {}
"""Where the webhooks of a task at work are to be sent, and with what, by its id."""


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
            if said["method"] in {"message/stream", "SendStreamingMessage"}:
                writer.write(STREAM_HEAD)
                if way == "streamed":
                    await work(writer, said["id"])
                else:
                    await talk(writer, said["id"], in_1_0 if way == "chatty10" else dict, at_once=way == "burst")
                break
            result = answer_of(way, said)
            if push := said["params"].get("configuration", {}).get("pushNotificationConfig"):
                ASKED_FOR_WEBHOOKS[result["id"]] = push
            result = in_1_0(result) if way == "submitted10" else result
            write_json(writer, {"jsonrpc": "2.0", "id": said["id"], "result": result})
    writer.close()


def write_json(writer: asyncio.StreamWriter, value: Json) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def answer_of(way: str, said: Json) -> Json:
    """A task at its end where it was answered at once or polled."""
    asked = said["params"].get("id")
    if way in ENDLESS or (way in PUSHED and (not asked or asked in ASKED_FOR_WEBHOOKS)):
        return task("working", asked or f"t-{said['id']}")
    if way == "answered" or asked:
        return task("completed", asked or f"t-{said['id']}", artifacts=[artifact(CHUNK)])
    state = "submitted" if way.startswith("submitted") else "working"
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": TEXT}]}
    return task(state, f"t-{said['id']}", history=[message])


def card(way: str, host: str) -> Json:
    url = f"http://{host}/{way}"
    address: Json
    if way.endswith("10"):
        address = {"supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]}
    else:
        address = {"protocolVersion": "0.3.0", "url": url, "preferredTransport": "JSONRPC"}
    return {
        "name": way, "description": "", "version": "1", **address,
        "capabilities": {"streaming": way in STREAMED, "pushNotifications": way in PUSHED},
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


async def talk(
    writer: asyncio.StreamWriter, request_id: str, written: Callable[[Json], Json], *, at_once: bool
) -> None:
    """``EVENTS`` events, one at a time while other streams have theirs, so that they arrive as live ones do."""
    task_id = f"t-{request_id}"
    writer.write(frame(request_id, written(task("working", task_id))))
    first, more = (frame(request_id, written(chunk(task_id, append=append))) for append in (False, True))
    for number in range(EVENTS - 2):
        writer.write(more if number else first)
        if not at_once:
            await asyncio.sleep(0)
    writer.write(frame(request_id, written(update("completed", task_id, final=True))))
    await writer.drain()


# ------------------------------------------------------------------ the side that is measured, in its own process


@dataclass(frozen=True, kw_only=True)
class Around:
    """How much there is beside the measured work: agents, tasks that stay open, tasks that the agent keeps."""

    agents: int = 0
    tracked: int = 0
    in_flight: int = IN_FLIGHT
    streams: int = STREAMS
    stored: int = 0
    state: int = 0


async def nothing(_: int) -> None:
    """A server that does everything within the request has no work left."""


@dataclass(frozen=True)
class Side:
    """One side while it lives: where it listens, if it does, and what is left to do of so many units. A client does its
    units in ``finish``; a server is asked from outside, and ends there what it has begun."""

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
async def our_client(peer: str, way: str, *, tapped: bool = False, on: bool = False) -> AsyncIterator[AgentClient]:
    """With ``tapped``, its transport has the tap of a wire log, which records if ``on``."""
    async with running_runtime() as runtime:
        log = WireLog(runtime.clock)
        if on:
            log.keep_on()
        if tapped:
            runtime = replace(runtime, transport=log.tap(runtime.transport, way))
        client = AgentClient(f"{peer}/{way}", runtime=runtime, dialect="0.3", rpc_url=f"{peer}/{way}")
        await client.discover()
        yield client


@asynccontextmanager
async def bare_client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@asynccontextmanager
async def asking_client() -> AsyncIterator[aiohttp.ClientSession]:
    """For asking servers in turn: it closes idle connections before they do, which else may meet its next request."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2)) as session:
        yield session


JSON_HEAD = {"content-type": "application/json"}


@asynccontextmanager
async def sends(peer: str, around: Around, *, tapped: bool = False, on: bool = False) -> AsyncIterator[Side]:
    """Our client: a text to a task that is submitted."""
    async with our_client(peer, "submitted", tapped=tapped, on=on) as client:

        async def one(_: int) -> None:
            sent = await client.send_task(TEXT, wait=False)
            assert sent.state is TaskState.SUBMITTED

        yield Side(lambda units: in_flight(units, one, around.in_flight))


def sends_wire_off(peer: str, around: Around) -> AbstractAsyncContextManager[Side]:
    """The same beside a wire log that is off, as in a hub."""
    return sends(peer, around, tapped=True)


def sends_wire_on(peer: str, around: Around) -> AbstractAsyncContextManager[Side]:
    return sends(peer, around, tapped=True, on=True)


@asynccontextmanager
async def bare_sends(peer: str, _: Around) -> AsyncIterator[Side]:
    """aiohttp alone: the same body, the answer parsed."""
    async with bare_client() as session:

        async def one(number: int) -> None:
            body = send_body("message/send", f"r{number}")
            async with session.post(f"{peer}/submitted", data=body, headers=JSON_HEAD) as reply:
                said = json.loads(await reply.read())
            assert said["result"]["status"]["state"] == "submitted"

        yield Side(lambda units: in_flight(units, one))


@asynccontextmanager
async def events(peer: str, around: Around, way: str = "chatty") -> AsyncIterator[Side]:
    """Our client: streams decoded and folded into tasks."""
    async with our_client(peer, way) as client:

        async def one(number: int) -> None:
            message = Message(message_id=f"m{number}", role=Role.USER, parts=(TextPart(text=TEXT),))
            folded: Task | None = None
            async with client.events(SendMessage(message=message)) as stream:
                async for event in stream:
                    folded = fold(folded, event)
            assert folded is not None
            assert folded.artifacts[0].text == CHUNK * (EVENTS - 2)

        yield Side(lambda units: in_flight(units // EVENTS, one, around.streams))


def burst(peer: str, around: Around) -> AbstractAsyncContextManager[Side]:
    """The same of streams that are written at once."""
    return events(peer, around, "burst")


@asynccontextmanager
async def bare_events(peer: str, _: Around, way: str = "chatty") -> AsyncIterator[Side]:
    """aiohttp alone: the same streams, their bytes counted."""
    async with bare_client() as session:

        async def one(number: int) -> None:
            body, size = send_body("message/stream", f"r{number}"), 0
            async with session.post(f"{peer}/{way}", data=body, headers=JSON_HEAD) as reply:
                async for piece in reply.content.iter_any():
                    size += len(piece)
            assert size > EVENTS * len(CHUNK)

        yield Side(lambda units: in_flight(units // EVENTS, one, STREAMS))


def bare_burst(peer: str, around: Around) -> AbstractAsyncContextManager[Side]:
    return bare_events(peer, around, "burst")


@asynccontextmanager
async def hub(peer: str, around: Around) -> AsyncIterator[Side]:
    """A hub on its ledger file. A unit is done when its outcome is on the disk."""
    ways = ("answered", "streamed", "polled")
    idle = [f"idle-{n}" for n in range(around.agents - len(ways))]
    entries = tuple(
        AgentEntry(name=w, url=f"{peer}/{w}", rpc_url=f"{peer}/{w}", push="off", skills=(SkillEntry(name=w),))
        for w in (*ways, *(ENDLESS if around.tracked else ()), *idle)
    ) + tuple(
        AgentEntry(name=w, url=f"{peer}/{w}", rpc_url=f"{peer}/{w}", skills=(SkillEntry(name=w),)) for w in PUSHED
    )
    poll_s = 3_600.0 if around.tracked else 1.0
    settings = FleetSettings(poll_interval_s=poll_s, calls_per_agent_max=IN_FLIGHT)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        runtime = await stack.enter_async_context(running_runtime())
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=runtime.clock))
        config = FleetConfig(agents=entries, settings=settings)
        running = await stack.enter_async_context(running_hub(config, runtime, ledger))
        while any(view.card is None for view in running.broker.views()):  # noqa: ASYNC110 - three cards, no bell
            await asyncio.sleep(0.05)

        if around.tracked:  # they are beside the work, and what a look at them costs has rows of its own
            running.tracker.rules = structs.replace(running.tracker.rules, look_first_s=poll_s)

        async def follow(number: int) -> None:
            target = ENDLESS[number % len(ENDLESS)]
            await running.submit(SkillRequest(correlation_id=f"{number:036d}", text=TEXT, targets=(target,)))

        await in_flight(around.tracked, follow)
        while any(track.task is None for track in running.tracker.tracks()):  # noqa: ASYNC110 - each send would ring the bell
            await asyncio.sleep(0.1)

        async def finish(_: int) -> None:
            while len(running.tracker.open_tracks) > around.tracked:  # noqa: ASYNC110 - hundreds of bells, and each would cost
                await asyncio.sleep(0.02)
            await running.events.settle()
            while running.events.unread:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.002)

        async def check(units: int) -> None:
            outcomes = await ledger.outcomes(since=runtime.clock.now() - timedelta(minutes=5))
            kinds = [outcome.kind for outcome in outcomes][-units:]
            assert kinds == [OutcomeKind.COMPLETED] * units, kinds

        tune_gc()  # as `fleetsim up` does
        yield Side(finish, {"url": running.url, "key": running.keys.api_key}, check)


@asynccontextmanager
async def hub_viewed(peer: str, around: Around) -> AsyncIterator[Side]:
    """The same with a dashboard's reader of its events, in a process whose work is not counted."""
    async with hub(peer, around) as side:
        words = (sys.executable, "-m", "tests.bench.cost", "--be", "viewer", "--peer", side.facts["url"])
        env = {**os.environ, KEY_VARIABLE: side.facts["key"]}
        reader = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, env=env)
        assert reader.stdout is not None
        await reader.stdout.readline()  # it has the first events
        yield side
        reader.terminate()
        await reader.wait()


@asynccontextmanager
async def viewer(peer: str, _: Around) -> AsyncIterator[Side]:
    """The feed of an attached dashboard; it is there once it has events."""
    async with running_runtime() as runtime:
        feed = aiter(HubFeed(lambda: AttachedSource(HubClient(peer, runtime=runtime))))
        await anext(feed)

        async def read() -> None:
            async for _ in feed:
                pass

        async with Workers("viewer") as workers:
            workers.start(read(), name="read")
            yield Side()


@asynccontextmanager
async def agent(_: str, around: Around) -> AsyncIterator[Side]:
    """Our agent, with a skill that ends at once and one that tells its answer in chunks."""
    kept = max(around.stored, AgentLimits().tasks_max)
    limits = AgentLimits(tasks_max=kept, tasks_per_caller_max=kept)
    folder = tempfile.TemporaryDirectory(prefix="cost-")
    made = Agent("cost", limits=limits, state=Path(folder.name, "state.db") if around.state else None)

    @made.skill("answer")
    async def answer(said: SkillContext) -> str:
        return CHUNK

    @made.skill("talk")
    async def talk_(said: SkillContext) -> None:
        for _ in range(EVENTS):
            await said.say(CHUNK)

    async with AsyncExitStack() as stack:
        stack.enter_context(folder)
        url = await stack.enter_async_context(made.serving())
        session = await stack.enter_async_context(bare_client())
        tune_gc()  # as ``Agent.serve`` does

        async def fill(number: int) -> None:
            body = send_body("message/send", f"stored-{number}", "answer")
            async with session.post(f"{url}/a2a", data=body, headers=JSON_HEAD) as reply:
                assert b'"error"' not in await reply.read()

        await in_flight(around.stored, fill)
        yield Side(facts={"url": url})


def agent_state(peer: str, around: Around) -> AbstractAsyncContextManager[Side]:
    """The same with a state file on the disk."""
    return agent(peer, replace(around, state=1))


@asynccontextmanager
async def bare_uvicorn(http: Literal["httptools", "h11"]) -> AsyncIterator[Side]:
    """A bare uvicorn whose application answers a fixed body, or so many fixed frames."""
    fixed = json.dumps({"jsonrpc": "2.0", "id": "r", "result": task("submitted")}).encode()
    event = frame("r", chunk("t"))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        streamed = scope["path"] == "/stream"
        kind = b"text/event-stream" if streamed else b"application/json"
        headers = [(b"content-type", kind)] + ([] if streamed else [(b"content-length", b"%d" % len(fixed))])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(EVENTS if streamed else 0):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"" if streamed else fixed})

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False, http=http))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield Side(facts={"url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
    server.should_exit = True
    await serving


def echo(_: str, __: Around) -> AbstractAsyncContextManager[Side]:
    """The floor of servers: it reads HTTP with the parser of ours."""
    return bare_uvicorn("httptools")


def echo_h11(_: str, __: Around) -> AbstractAsyncContextManager[Side]:
    """The former floor: it reads HTTP with h11."""
    return bare_uvicorn("h11")


@asynccontextmanager
async def sse_reader(peer: str, _: Around) -> AsyncIterator[Side]:
    """httpx with httpx-sse, and each event's JSON parsed, as a hand-written caller in Python does it."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:

        async def one(number: int) -> None:
            body, size = send_body("message/stream", f"r{number}"), 0
            async with aconnect_sse(http, "POST", f"{peer}/chatty", content=body, headers=JSON_HEAD) as source:
                async for event in source.aiter_sse():
                    said = json.loads(event.data)["result"]
                    size += len(said["artifact"]["parts"][0]["text"]) if "artifact" in said else 0
            assert size == len(CHUNK) * (EVENTS - 2)

        yield Side(lambda units: in_flight(units // EVENTS, one, STREAMS))


SIDES = {
    side.__name__: side
    for side in (
        sends, sends_wire_off, sends_wire_on, bare_sends, events, bare_events, burst, bare_burst, sse_reader,
        hub, hub_viewed, viewer, agent, agent_state, echo, echo_h11,
    )
}  # fmt: skip


async def be(side: AbstractAsyncContextManager[Side]) -> None:
    """Be that side until standard input ends; one line asks for one turn to begin or to end."""
    logging.disable(logging.WARNING)  # a loop that is late on a busy machine is no news here
    loop = asyncio.get_running_loop()
    async with side as living:
        print(json.dumps(living.facts), flush=True)
        began = 0.0
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            if words[0] == "begin":
                gc.collect()
                began = time.process_time()
                print("{}", flush=True)
                continue
            await living.finish(int(words[1]))
            print(json.dumps({"cpu_s": time.process_time() - began}), flush=True)
            await living.check(int(words[1]))
