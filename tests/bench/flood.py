"""One agent floods the hub; how does another fare? A real hub, real agents, real sockets, all on this machine.

Each scenario starts two hubs (``fleetsim up --headless``). Both send work to an innocent agent at the same steady rate
and at the same times, so that other work on the machine slows both. The attacking agent of one hub floods it within
every limit of bytes and counts. Run it with ``chrt -r 1``, so that the attackers wait for the hubs (with ``-r 2`` the
hubs wait for the other agents and the callers, too). It prints p50 and p99, processor time, peak memory, and each
outcome of the innocent agent that is not *completed*. ``python -m tests.bench.flood --only streams``

An entry of ``SCENARIOS`` says what the attacker does (``Attack``) and what others do to the hub (``meanwhile``). With a
``door`` the attacker sends requests to the hub with its own key; then the innocent agent gets work over MCP, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from fleetsim.client.hub_client import HubClient
from fleetsim.hub.state import HubAddress, StateDir
from fleetsim.model.errors import FleetsimError
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.wire.json import parse_untrusted
from tests.ports import held_port

P99_RATIO_MAX = 2.0
RATE = 20.0
"""Requests a second for the innocent agent."""

FLOOD_S = 25.0
PROBE_S_MAX = 30.0
STOP_S_MAX = 120.0

# ------------------------------------------------------------------ the attacker, in a process of its own

Head = dict[str, str]


@dataclass(frozen=True)
class Asked:
    """One JSON-RPC request to the attacker."""

    id: Any
    method: str
    task_id: str
    params: dict[str, Any]
    writer: asyncio.StreamWriter

    def result(self, value: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "result": value}).encode()

    def task(self, state: str = "working", **more: Any) -> dict[str, Any]:
        return {"kind": "task", "id": self.task_id, "contextId": "c", "status": {"state": state}, **more}

    def update(self, **more: Any) -> dict[str, Any]:
        status = {"state": "working"}
        said = {"kind": "status-update", "taskId": self.task_id, "contextId": "c", "status": status, "final": False}
        return {**said, **more}

    async def open_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        await self.event(self.result(self.task()))

    async def event(self, data: bytes, times: int = 1) -> None:
        self.writer.write(b"data: " + data + b"\n\n")
        await self.writer.drain()

    async def repeat(self, data: bytes, times: int) -> None:
        """The same event so many times, as fast as it is taken."""
        frame = b"data: " + data + b"\n\n"
        batch = max(1, 65_536 // len(frame))
        for at in range(0, times, batch):
            self.writer.write(frame * min(batch, times - at))
            await self.writer.drain()


Attack = Callable[[Asked], Awaitable[None]]
"""Answers one stream that the hub opened; the hub polls beside it and is told *working*."""


def empty_lists(count: int) -> list[list[Any]]:
    return [[] for _ in range(count)]


async def status_events(asked: Asked) -> None:
    await asked.open_stream()
    await asked.repeat(asked.result(asked.update()), 19_900)


async def chunk_events(asked: Asked) -> None:
    artifact = {"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}
    update = {"kind": "artifact-update", "taskId": asked.task_id, "contextId": "c", "artifact": artifact}
    await asked.open_stream()
    await asked.event(asked.result({**update, "append": False}))
    await asked.repeat(asked.result({**update, "append": True}), 19_900)


async def many_artifacts(asked: Asked) -> None:
    await asked.open_stream()
    for number in range(19_900):
        artifact = {"artifactId": f"a{number}", "parts": [{"kind": "text", "text": "x"}]}
        update = {"kind": "artifact-update", "taskId": asked.task_id, "contextId": "c", "artifact": artifact}
        await asked.event(asked.result(update))


async def keepalives(asked: Asked) -> None:
    await asked.open_stream()
    for _ in range(190):
        asked.writer.write(b":\n" * 1_000)
        await asked.writer.drain()


async def heavy_events(asked: Asked) -> None:
    await asked.open_stream()
    await asked.repeat(asked.result(asked.update(metadata={"x": empty_lists(80_000)})), 180)


HUGE = (b"[" + b"[]," * 1_000_000 + b"[]]", b'"' + rb"\\u00e9" * 3_000_000 + b'"', b'"' + rb"\u00e9" * 3_500_000 + b'"')
"""JSON made once: an attacker that has much to do itself takes the processor of both hubs."""


async def huge_events(asked: Asked) -> None:
    await asked.open_stream()
    around = asked.result(asked.update(metadata={"x": 0}))
    for value in HUGE:
        await asked.event(around.replace(b'"x": 0', b'"x": ' + value))


MEMBERS = json.dumps({f"k{number}": number for number in range(99_000)}).encode()


async def events_of_members(asked: Asked) -> None:
    await asked.open_stream()
    around = asked.result(asked.update(metadata={"x": 0}))
    await asked.repeat(around.replace(b'"x": 0', b'"x": ' + MEMBERS), 25)


async def held_open(asked: Asked) -> None:
    """Send only the first event; the attack happens elsewhere."""
    await asked.open_stream()
    await asyncio.sleep(600)


async def hung(asked: Asked) -> None:
    """Not a byte."""
    await asyncio.sleep(600)


async def webhooks(asked: Asked) -> None:
    """200 webhooks of 240 KB, eight at once, again and again; a refusal only makes it come sooner."""
    config = asked.params["configuration"]["pushNotificationConfig"]
    url = urlsplit(config["url"])
    body = json.dumps(asked.update(metadata={"x": empty_lists(80_000)}), separators=(",", ":")).encode()
    head = (
        f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {config['token']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    await asked.open_stream()
    told: Counter[str] = Counter()

    async def shout() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(url.hostname, url.port)
                try:
                    while True:
                        writer.write(head + body)
                        await writer.drain()
                        status, headers, _ = await read_http(reader)
                        told[status.split(" ")[1]] += 1
                        if headers.get("connection") == "close":
                            break
                except ConnectionError:
                    told["cut"] += 1
                finally:
                    writer.close()
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(shout())
        await asyncio.sleep(FLOOD_S)
        print(f"  the attacker's webhooks were answered {dict(told)}", file=sys.stderr, flush=True)


async def slow_webhooks(asked: Asked) -> None:
    """600 connections, each with a webhook that is announced with 250 KB and comes a kilobyte at a time."""
    config = asked.params["configuration"]["pushNotificationConfig"]
    url = urlsplit(config["url"])
    head = (
        f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {config['token']}\r\n"
        f"content-type: application/json\r\ncontent-length: 250000\r\n\r\n"
    ).encode()
    await asked.open_stream()
    told: Counter[str] = Counter()

    async def drip() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(url.hostname, url.port)
                answered = asyncio.ensure_future(read_http(reader))
                try:
                    writer.write(head)
                    while not answered.done():
                        writer.write(b" " * 1_000)
                        await writer.drain()
                        await asyncio.wait([answered], timeout=0.3)
                    told[(await answered)[0].split(" ")[1]] += 1
                except (OSError, asyncio.IncompleteReadError):
                    told["cut"] += 1
                finally:
                    answered.cancel()
                    writer.close()
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        for _ in range(600):
            group.create_task(drip())
        await asyncio.sleep(FLOOD_S)
        print(f"  the attacker's slow webhooks were answered {dict(told)}", file=sys.stderr, flush=True)


async def completed(asked: Asked) -> None:
    """Four events, of which the last one ends the task."""
    await asked.open_stream()
    await asked.repeat(asked.result(asked.update()), 2)
    status = {"state": "completed", "message": {"kind": "message", "messageId": "m", "role": "agent", "parts": []}}
    await asked.event(asked.result(asked.update(status=status, final=True)))


ATTACKS: dict[str, Attack] = {}


async def read_http(reader: asyncio.StreamReader) -> tuple[str, Head, bytes]:
    """One request or answer with a length."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return first, headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def serve_attacker(port: int) -> None:
    """A2A 0.3 by hand: cheap for the attacker, so that what is measured is the hub. On a machine of its own it would
    take no processor from the hubs; on this one it lets them, and whoever else is measured, go first."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(10)
    tasks: dict[str, str] = {}
    heavy = {"replies": json.dumps(empty_lists(80_000)).encode(), "huge-replies": HUGE[2]}
    card = {
        "name": "attacker", "description": "", "version": "1", "protocolVersion": "0.3.0",
        "url": f"http://127.0.0.1:{port}/a2a", "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": True, "pushNotifications": True},
        "defaultInputModes": ["text"], "defaultOutputModes": ["text"],
        "skills": [{"id": "attack", "name": "attack", "description": "", "tags": []}],
    }  # fmt: skip

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, _, body = await read_http(reader)
                if first.startswith("GET"):
                    await answer(writer, json.dumps(card).encode())
                    continue
                said = json.loads(body)
                params = said["params"]
                if said["method"] == "message/stream":
                    text = params["message"]["parts"][0]["text"]
                    task_id = f"t{len(tasks)}"
                    tasks[task_id] = text
                    await ATTACKS[text](Asked(said["id"], said["method"], task_id, params, writer))
                    writer.close()
                    return
                task_id = params.get("id", "")
                asked = Asked(said["id"], said["method"], task_id, params, writer)
                value = heavy.get(tasks.get(task_id, ""), b"0")
                around = asked.result(asked.task(metadata={"x": 0}))
                await answer(writer, around.replace(b'"x": 0', b'"x": ' + value))

    server = await asyncio.start_server(handle, "127.0.0.1", port, limit=2**20)
    async with server:
        await server.serve_forever()


async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


# ------------------------------------------------------------------ strangers, who are no agents


async def silent_sockets(hub: HubAddress) -> None:
    """Hold 2,000 connections without a request, and send requests with the key over new ones. Prints their number."""
    place = urlsplit(hub.url)
    figures, asked = Figures(), 0

    async def silent() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                with suppress(OSError):
                    await reader.read()
                writer.close()
            await asyncio.sleep(5)

    async def ask() -> None:
        began = time.perf_counter()
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(
                f"GET /api/agents HTTP/1.1\r\nhost: {place.netloc}\r\nx-api-key: {hub.api_key}\r\n"
                "connection: close\r\n\r\n".encode()
            )
            figures.ended[(await read_http(reader))[0].split(" ")[1]] += 1
            figures.add(began)
            writer.close()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(2_000):
                group.create_task(silent())
            while True:
                await asyncio.sleep(0.05)
                asked += 1
                group.create_task(ask())
    finally:
        print(f"  of {asked} requests over new connections were answered {dict(figures.ended)}: {figures}", flush=True)


# ------------------------------------------------------------------ one agent's key, at every door

KEYS = {"ATTACKER": "attacker" * 4, "INNOCENT": "innocent" * 4}
FILE_BYTES = 8_000_000
PATHS = {"api": "/api/a2a/delegate", "a2a": "/a2a", "mcp": "/mcp", "read": "/api/a2a/delegate"}


def request_body(door: str, agent: str, skill: str, file: str = "") -> bytes:
    """A request for work at a door, with a file of base64 if one is given."""
    parts = [{"kind": "file", "bytes": file, "name": "f"}] if file else []
    asked = {"agent": agent, "skill": skill, "message": "done", "parts": parts}
    if door == "mcp":
        params: dict[str, Any] = {"name": "delegate", "arguments": asked}
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    if door == "a2a":
        text: list[dict[str, Any]] = [{"kind": "text", "text": "done"}]
        files = [{"kind": "file", "file": {"bytes": file, "name": "f"}}] if file else []
        message = {"kind": "message", "messageId": os.urandom(8).hex(), "role": "user", "parts": text + files}
        params = {"message": message, "metadata": {"skillHint": skill}, "configuration": {"blocking": False}}
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}).encode()
    return json.dumps(asked).encode()


@dataclass(kw_only=True)
class Door:
    """One address of the hub or of its MCP server, and the attacker's results there."""

    name: str
    url: str
    key: str = KEYS["ATTACKER"]
    told: Counter[str] = field(default_factory=Counter)

    async def send(
        self, body: bytes, *, method: str = "POST", path: str = "", chunk: int = 0, pause_s: float = 0.0
    ) -> bytes:
        """One request over a connection of its own, its body in chunks of so many bytes; returns the answer's body,
        which is read after ``pause_s``."""
        place = urlsplit(self.url)
        framing = "transfer-encoding: chunked" if chunk else f"content-length: {len(body)}"
        head = (
            f"{method} {path or PATHS[self.name]} HTTP/1.1\r\nhost: {place.netloc}\r\nx-api-key: {self.key}\r\n"
            f"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
            f"connection: close\r\n{framing}\r\n\r\n"
        ).encode()
        if chunk:
            body = b"".join(b"%x\r\n%b\r\n" % (chunk, body[at : at + chunk]) for at in range(0, len(body), chunk))
        status, found = "cut", b""
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            if pause_s:
                writer.write(head)
                await asyncio.sleep(pause_s)
            answered = asyncio.ensure_future(read_http(reader))
            try:
                with suppress(OSError):
                    writer.write(b"" if pause_s else head)
                    for at in range(0, len(body), 65_536):
                        if answered.done():
                            break
                        writer.write(body[at : at + 65_536])
                        await writer.drain()
                first, _, found = await answered
                status = first.split(" ")[1]
            finally:
                answered.cancel()
                writer.close()
        self.told[status] += 1
        return found

    async def keep(self, count: int, send: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Keep so many requests under way; a refusal only makes the next one come sooner."""

        async def worker() -> None:
            while True:
                await send()
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(worker())
            await asyncio.sleep(seconds)
            print(f"  the attacker's requests were answered {dict(self.told)}", file=sys.stderr, flush=True)


async def flood_door(name: str, url: str, seconds: float) -> None:
    """Send requests to one door until this process is ended."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(10)
    kind, _, count = name.partition("-")
    door = Door(name=kind, url=url)
    file = b64encode(os.urandom(FILE_BYTES)).decode()
    body = request_body(kind, "attacker", "attack", "" if count == "small" or kind == "cheap" else file)
    match kind, count:
        case "cheap", _:
            names = [count] * CHEAP[count][0] if count in CHEAP else [name for name in CHEAP for _ in range(16)]
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    for each in names:
                        group.create_task(send_cheap(each, url, door.told))
            print(f"  the requests were answered {dict(door.told)}", file=sys.stderr, flush=True)
        case "read", _:
            told = json.loads(await door.send(body))
            path, pause_s = told["data"]["pollUrl"], 3 * seconds if count == "slow" else 0.0
            await asyncio.sleep(1)
            await door.keep(48, lambda: door.send(b"", method="GET", path=path, pause_s=pause_s), seconds)
        case _, "waits":
            told = json.loads(await door.send(request_body(kind, "attacker", "attack").replace(b'"done"', b'"hung"')))
            path = told["data"]["pollUrl"] + "?wait=60"
            await door.keep(450, lambda: door.send(b"", method="GET", path=path), seconds)
        case _, "chunks":
            body = body[:-1] + b" " * (24_000_000 - len(body)) + body[-1:]
            await door.keep(1, lambda: door.send(body, chunk=2), seconds)
        case _, "small":
            await door.keep(32, lambda: door.send(body), seconds)
        case _:
            await door.keep(int(count), lambda: door.send(body), seconds)


# ------------------------------------------------------------------ cheap requests

STRANGER = "127.0.0.2"
"""The address of the floods below: callers without a key share the account of their address."""
_KEY = b"x-api-key: " + KEYS["ATTACKER"].encode() + b"\r\n"
_LONG_HEAD = _KEY + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 280) for n in range(95)) + b"\r\n"
_CHUNKED = b"POST /a2a HTTP/1.1\r\nhost: %b\r\ntransfer-encoding: chunked\r\n\r\n" + b"2\r\n{}\r\n" * 37_000
CHEAP: dict[str, tuple[int, bytes, bool]] = {
    "401": (64, b"GET /api/agents HTTP/1.1\r\nhost: %b\r\n\r\n", False),
    "new": (64, b"GET /api/agents HTTP/1.1\r\nhost: %b\r\n\r\n", True),
    "cards": (32, b"GET /.well-known/agent-card.json HTTP/1.1\r\nhost: %b\r\n\r\n", False),
    "heads": (32, b"GET /api/whoami HTTP/1.1\r\nhost: %b\r\n" + _LONG_HEAD, False),
    "events": (16, b"GET /api/events?after=0 HTTP/1.1\r\nhost: %b\r\n" + _KEY + b"\r\n", True),
    "chunks": (16, _CHUNKED, True),
}
"""Connections at once, the bytes of one request, and whether each request has a new connection."""


async def send_cheap(name: str, url: str, told: Counter[str]) -> None:
    """Send the requests of one entry of ``CHEAP`` over one connection at a time, without a pause."""
    place, (_, request, anew) = urlsplit(url), CHEAP[name]
    request = request.replace(b"%b", place.netloc.encode(), 1)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port, local_addr=(STRANGER, 0))
            try:
                while True:
                    writer.write(request)
                    first = await reader.readline() if anew else (await read_http(reader))[0].encode()
                    told[name + first[8:12].decode()] += 1
                    if anew:
                        await reader.read(65_536)
                        break
            finally:
                writer.transport.abort()


# ------------------------------------------------------------------ scenarios


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """``requests`` are kept under way at the attacker, which answers each with ``attack``."""

    about: str
    attack: Attack | None = None
    requests: int = 4
    meanwhile: Callable[[HubAddress], Awaitable[None]] | None = None
    door: str = ""


SCENARIOS: dict[str, Scenario] = {
    "nothing": Scenario(about="no flood at all: how far two hubs left alone lie apart"),
    "hung": Scenario(about="sixteen requests that are never answered", attack=hung, requests=16),
    "streams": Scenario(about="four streams of 19,900 status updates each", attack=status_events),
    "chunks": Scenario(about="four streams of 19,900 chunks of one letter", attack=chunk_events),
    "artifacts": Scenario(about="four streams of 19,900 artifacts each", attack=many_artifacts),
    "comments": Scenario(about="four streams of 190,000 lines of comment", attack=keepalives),
    "heavy-events": Scenario(about="four streams of events of 80,000 empty lists each", attack=heavy_events),
    "huge-events": Scenario(about="four streams with an event of a million lists, or of 21 MB", attack=huge_events),
    "members": Scenario(about="four streams of events of 99,000 members each", attack=events_of_members),
    "webhooks": Scenario(about="webhooks of 240 KB with 80,000 empty lists", attack=webhooks, requests=1),
    "slow-webhooks": Scenario(about="600 webhooks at once, a kilobyte at a time", attack=slow_webhooks, requests=1),
    "silent": Scenario(about="2,000 connections that ask nothing", meanwhile=silent_sockets),
    "replies": Scenario(about="sixteen tasks whose polls bring 80,000 lists", attack=held_open, requests=16),
    "huge-replies": Scenario(about="sixteen tasks whose polls bring 21 MB", attack=held_open, requests=16),
    **{
        f"{door}-{count}": Scenario(about=f"{count} requests at once with a file of 8 MB each, over {door}", door=door)
        for door in ("api", "a2a", "mcp")
        for count in (8, 48)
    },
    **{
        f"{door}-chunks": Scenario(about=f"a body of 24 MB in chunks of 2 bytes, over {door}", door=door)
        for door in ("api", "a2a", "mcp")
    },
    "api-small": Scenario(about="32 small requests at once, each with four events", door="api"),
    "api-waits": Scenario(about="450 requests at once that wait for the end of one task", door="api"),
    "read-48": Scenario(about="48 readers at once of one request with a file of 8 MB", door="read"),
    "cheap-401": Scenario(about="64 connections without a key that ask again and again", door="cheap"),
    "cheap-new": Scenario(about="64 callers without a key, with a new connection for each request", door="cheap"),
    "cheap-cards": Scenario(about="32 readers of the hub's card without a key", door="cheap"),
    "cheap-heads": Scenario(about="32 connections of one key with heads of 27 KB", door="cheap"),
    "cheap-events": Scenario(about="16 readers of all events with one key, again and again", door="cheap"),
    "cheap-chunks": Scenario(about="16 callers without a key that send chunks of 2 bytes", door="cheap"),
    "cheap-doors": Scenario(about="16 callers at each of these doors at once", door="cheap"),
    "read-slow": Scenario(about="48 clients that ask for it and do not read", door="read"),
}
ATTACKS.update({name: scenario.attack for name, scenario in SCENARIOS.items() if scenario.attack is not None})
ATTACKS["done"] = completed

# ------------------------------------------------------------------ the two hubs


@dataclass
class Figures:
    """The times and ends of the innocent agent's requests."""

    began: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    slowest: tuple[float, float] = (0.0, 0.0)
    ended: Counter[str] = field(default_factory=Counter)

    def quantile_ms(self, share: float) -> float:
        found = sorted(self.times)
        return found[min(int(len(found) * share), len(found) - 1)] * 1000 if found else float("nan")

    def add(self, began: float) -> None:
        took = time.perf_counter() - began
        self.times.append(took)
        self.slowest = max(self.slowest, (took, began - self.began))

    @property
    def false(self) -> dict[str, int]:
        return {kind: count for kind, count in self.ended.items() if kind != "completed"}

    def __str__(self) -> str:
        p50, p99, top = (self.quantile_ms(share) for share in (0.5, 0.99, 1))
        told = f"p50 {p50:.1f} p99 {p99:.1f} max {top:.0f} ms"
        return f"{told} of {len(self.times)}, the slowest after {self.slowest[1]:.1f} s"


@dataclass(frozen=True)
class Ground:
    """A hub at work with both agents."""

    address: HubAddress
    remote: HubClient
    pid: int
    mcp: str
    mcp_pid: int

    def cpu_s(self) -> float:
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self, pid: int) -> float:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def url_of(self, door: str) -> str:
        return self.mcp if door == "mcp" else self.address.url

    async def alone_s(self, name: str) -> float:
        """The seconds of one request with a file of 8 MB while there is no other."""
        body = request_body(name, "attacker", "attack", b64encode(os.urandom(FILE_BYTES)).decode())
        began = time.perf_counter()
        await Door(name=name, url=self.url_of(name)).send(body)
        return time.perf_counter() - began

    async def submit(self, door: str) -> str:
        """Ask the innocent agent for work; returns the request's id."""
        if door != "mcp":
            return (await self.remote.submit({"text": "hello", "skill": "echo", "targets": ["innocent"]}))[0]
        answer = json.loads(
            await Door(name="mcp", url=self.mcp, key=KEYS["INNOCENT"]).send(request_body("mcp", "innocent", "echo"))
        )
        return str(answer["result"]["structuredContent"]["correlationId"])

    async def probe(self, seconds: float, rate: float, door: str = "") -> Figures:
        """Send requests to the innocent agent at a steady rate, however long the answers take."""
        figures = Figures()

        async def one() -> None:
            began = time.perf_counter()
            try:
                cid = await self.submit(door)
                while (row := await self.remote.task(cid, wait_s=10))["open"]:
                    if time.perf_counter() - began > PROBE_S_MAX:
                        break
                figures.ended["still open" if row["open"] else row["state"]] += 1
            except FleetsimError as error:
                figures.ended[f"{type(error).__name__}: {error}"] += 1
            figures.add(began)

        async with asyncio.TaskGroup() as group:
            ends = time.perf_counter() + seconds
            while time.perf_counter() < ends:
                group.create_task(one())
                await asyncio.sleep(1 / rate)
        return figures

    async def agents(self) -> list[dict[str, Any]]:
        """The row of every agent, once the hub responds; empty if it does not within a minute."""
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while True:
                    with suppress(FleetsimError):
                        rows: list[dict[str, Any]] = await self.remote.get("/agents", total_s=60)
                        return rows
        return []

    async def attack(self, name: str, requests: int) -> None:
        """Keep so many requests under way at the attacker."""

        async def keep() -> None:
            while True:
                with suppress(FleetsimError):
                    (cid,) = await self.remote.submit({"text": name, "skill": "attack", "targets": ["attacker"]})
                    while (await self.remote.task(cid, wait_s=20)).get("open"):
                        pass
                await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as group:
            for _ in range(requests):
                group.create_task(keep())


@asynccontextmanager
async def process(*words: str, output: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    with output.open("ab") as out:
        running = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **env}
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.terminate()
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await running.wait()
            except TimeoutError:
                running.kill()
                await running.wait()


@asynccontextmanager
async def ground(folder: Path, runtime: Runtime) -> AsyncIterator[Ground]:
    """A hub of its own with an innocent agent and the attacker, each in a process."""
    async with AsyncExitStack() as stack:
        innocent, attacker, port, mcp = (stack.enter_context(held_port()) for _ in range(4))
        (folder / "agents.yaml").write_text(
            "fleet: { poll_interval_s: 1 }\n"
            "agents:\n"
            f"  - {{ name: innocent, url: 'http://127.0.0.1:{innocent}/a2a' }}\n"
            f"  - {{ name: attacker, url: 'http://127.0.0.1:{attacker}/a2a', push: inline }}\n"
        )
        state = folder / "state"
        common = ["-m", "fleetsim", "--state", str(state), "--config", str(folder / "agents.yaml")]
        enter, log = stack.enter_async_context, folder / "log"
        allow = f"127.0.0.1:{port}"
        agent = ("-m", "fleetsim", "agent", "--port", str(innocent), "--allow-webhook", allow)
        await enter(process(*agent, output=log))
        await enter(process("-m", "tests.bench.flood", "--attacker", str(attacker), output=Path("/dev/stderr")))
        keys = {f"WORKSTACEAN_API_KEY_{name}": key for name, key in KEYS.items()}
        hub = await enter(process(*common, "up", "--headless", "--port", str(port), output=log, **keys))
        _let_others_first(hub.pid)
        address = await _when_ready(state, runtime)
        tools = await enter(process(*common, "mcp", "--http", "--port", str(mcp), output=log))
        _let_others_first(tools.pid)
        found = Ground(address, address.client(runtime), hub.pid, f"http://127.0.0.1:{mcp}", tools.pid)
        for _ in range(300):  # until the MCP server listens
            if await Door(name="mcp", url=found.mcp).send(request_body("mcp", "innocent", "echo")):
                break
            await asyncio.sleep(0.1)
        yield found


def _let_others_first(hub_pid: int) -> None:
    """With ``chrt -r 2`` agents and clients run before the hubs, as on machines of their own; with 1 they do not."""
    policy, level = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    if policy == os.SCHED_RR and level > 1:
        os.sched_setscheduler(hub_pid, policy, os.sched_param(level - 1))


async def _when_ready(state: Path, runtime: Runtime) -> HubAddress:
    """The hub, once it has read both cards."""
    async with asyncio.timeout(30):
        while True:
            with suppress(FleetsimError):
                found = StateDir(state).find()
                rows = await found.client(runtime).get("/agents") if found else []
                if found and rows and all(row["reachable"] for row in rows):
                    return found
            await asyncio.sleep(0.1)


async def measure(name: str, scenario: Scenario, options: argparse.Namespace) -> list[str]:
    """Run one scenario and print its figures. Returns the broken promises."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        folders = [stack.enter_context(TemporaryDirectory(prefix="flood-", dir=options.folder)) for _ in range(2)]
        hub = await stack.enter_async_context(ground(Path(folders[0]), runtime))
        other = await stack.enter_async_context(ground(Path(folders[1]), runtime))
        alone_s = await other.alone_s(scenario.door) if scenario.door not in ("", "cheap") else 0.0
        await asyncio.sleep(bool(alone_s) * 3)
        await asyncio.gather(*(side.probe(2.0, options.rate, scenario.door) for side in (hub, other)))
        cpu, other_cpu = hub.cpu_s(), other.cpu_s()
        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(hub.attack(name, scenario.requests))] if scenario.attack else []
            if scenario.meanwhile:
                floods.append(group.create_task(as_coroutine(scenario.meanwhile(hub.address))))
            if scenario.door:
                words = (
                    "-m",
                    "tests.bench.flood",
                    "--flood",
                    name,
                    "--hub",
                    hub.url_of(scenario.door),
                    "--seconds",
                    str(options.seconds),
                )
                await stack.enter_async_context(process(*words, output=Path("/dev/stderr")))
            await asyncio.sleep(2.0 if scenario.door else 0.5)
            flood, quiet = await asyncio.gather(
                *(side.probe(options.seconds, options.rate, scenario.door) for side in (hub, other))
            )
            cpu, other_cpu = hub.cpu_s() - cpu, other.cpu_s() - other_cpu
            at_mcp = scenario.door == "mcp"
            peak, other_peak = (
                max(side.peak_mib(pid) for pid in (side.pid, side.mcp_pid if at_mcp else side.pid))
                for side in (hub, other)
            )
            for task in floods:
                task.cancel()
        agents = await hub.agents()
    alone = f"; one request with a file of 8 MB alone: {alone_s * 1000:.0f} ms" if alone_s else ""
    ratio, middle = (flood.quantile_ms(share) / quiet.quantile_ms(share) for share in (0.99, 0.5))
    print(
        f"{name}: {scenario.about}\n"
        f"  flooded  {flood}; processor {cpu:.1f} s; peak memory {peak:.0f} MiB\n"
        f"  other    {quiet}; processor {other_cpu:.1f} s; peak memory {other_peak:.0f} MiB\n"
        f"  p50 {middle:.2f} and p99 {ratio:.2f} times the other's; false outcomes: {flood.false or 'none'}{alone}",
        flush=True,
    )
    most_s = P99_RATIO_MAX * quiet.quantile_ms(0.99) / 1000 + (alone_s or document_s())
    slow = flood.quantile_ms(0.99) > most_s * 1000
    wrong = [f"{name}: the innocent agent's p99 is {ratio:.1f} times the other hub's"] if slow else []
    wrong += [f"{name}: {count} false outcomes, {kind}" for kind, count in flood.false.items()]
    unreachable = [row["name"] for row in agents if not row["reachable"]]
    wrong += [f"{name}: {agent} is said to be unreachable" for agent in unreachable]
    return wrong if agents else [*wrong, f"{name}: the hub does not answer a minute after the flood"]


@cache
def document_s() -> float:
    """How long one document of the largest size is parsed: others wait for at most one."""
    began = time.perf_counter()
    parse_untrusted(b"[" + HUGE[2] + b"]", bytes_max=WIRE_BYTES_MAX)
    return time.perf_counter() - began


async def as_coroutine(work: Awaitable[None]) -> None:
    await work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="these scenarios (repeatable)")
    parser.add_argument("--seconds", type=float, default=FLOOD_S, help="how long each flood is measured")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second for the innocent agent")
    parser.add_argument("--folder", type=Path, help="where ledgers are; /dev/shm leaves a busy disk out of the figures")
    parser.add_argument("--attacker", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--hub", help=argparse.SUPPRESS)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # thousands of connections, on both sides
    if options.attacker:
        asyncio.run(serve_attacker(options.attacker))
        return
    if options.flood:
        asyncio.run(flood_door(options.flood, options.hub, options.seconds))
        return
    wrong = []
    for name in options.only or SCENARIOS:
        wrong += asyncio.run(measure(name, SCENARIOS[name], options))
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("no flood more than doubles the innocent agent's p99, and no outcome is false")


if __name__ == "__main__":
    main()
