"""``--timeout`` is kept to within a second whatever hangs, exits 5 and names the place of the work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.cli.world import Shell
from tests.loop_time import loop_seconds

pytestmark = pytest.mark.sockets
LIMIT_S = 2.0
Send: TypeAlias = Callable[[bytes], Awaitable[None]]

WORKING = {"state": "working"}


class Slow:
    """An agent on a real socket that hangs at a given point."""

    def __init__(self, hangs: str, dialect: str) -> None:
        self.hangs, self.dialect = hangs, dialect
        self.url = ""
        self.tasks = 0
        self.closing = asyncio.Event()
        self.passed: Callable[[], float] = float
        self.asked_at: float | None = None
        self.left_at: float | None = None
        self.left = asyncio.Event()

    def card(self) -> dict[str, Any]:
        card: dict[str, Any] = {
            "name": "slow",
            "url": f"{self.url}/a2a",
            "version": "1",
            "capabilities": {"streaming": True},
            "skills": [{"id": "chat", "name": "Chat", "description": "talks", "tags": []}],
        }
        if self.dialect == "1.0":
            interface = {"url": f"{self.url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            return {**card, "supportedInterfaces": [interface]}
        return {**card, "protocolVersion": "0.3.0"}

    def task(self, task_id: str = "t-1") -> dict[str, Any]:
        if self.dialect == "1.0":
            return {"task": {"id": task_id, "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}}
        own = {"id": task_id, "status": WORKING}
        return own if self.dialect == "0.1" else {**own, "kind": "task", "contextId": "c-1"}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = [int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length:")]
                body = await reader.readexactly(length[0] if length else 0)
                if self.asked_at is None:
                    self.asked_at = self.passed()
                await self.answer(head, body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left_at = self.passed()
            self.left.set()
        finally:
            writer.close()

    async def hang(self, reader: asyncio.StreamReader) -> None:
        """Send nothing more, until the other side leaves or the test is over."""
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(self.closing.wait())
            gone = group.create_task(reader.read(1))
            await asyncio.wait({waits, gone}, return_when=asyncio.FIRST_COMPLETED)
            waits.cancel()
            gone.cancel()
        raise ConnectionResetError

    async def answer(self, head: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        card = head.startswith("GET")
        if self.hangs == "card" or (self.hangs == "reply" and not card):
            await self.hang(reader)
        if card:
            await _whole(writer, self.card())
            return
        said = json.loads(body)
        get = said["method"] in {"tasks/get", "GetTask"}
        self.tasks += not get
        task = self.task(said["params"]["id"] if get else f"t-{self.tasks}")
        reply = {"jsonrpc": "2.0", "id": said["id"], "result": task.get("task", task) if get else task}
        if self.hangs == "trickle" and not get:
            text = json.dumps(reply).encode()
            writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode()
            )
            for byte in text:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)
        elif "tream" in said["method"] or "Subscribe" in said["method"]:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            writer.write(b"data: " + json.dumps(reply).encode() + b"\n\n")
            await writer.drain()
            await self.hang(reader)
        else:
            await _whole(writer, reply)


async def _whole(writer: asyncio.StreamWriter, value: object) -> None:
    text = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode())
    writer.write(text)
    await writer.drain()


@asynccontextmanager
async def slow(hangs: str, dialect: str = "0.3") -> AsyncIterator[Slow]:
    agent = Slow(hangs, dialect)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    agent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with loop_seconds() as agent.passed:
            yield agent
    finally:
        agent.closing.set()
        server.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("hangs", "stream", "dialect", "says"),
    [
        ("card", False, "0.3", "nothing was sent"),
        ("reply", False, "0.3", "may have taken the work"),
        ("trickle", False, "1.0", "may have taken the work"),
        ("nothing", False, "0.3", "task t-1 is still working"),
        ("nothing", False, "1.0", "task t-1 is still working"),
        ("nothing", False, "0.1", "is still working"),
        ("nothing", True, "0.3", "task t-1 is still working"),
        ("nothing", True, "1.0", "task t-1 is still working"),
        ("reply", True, "0.3", "may have taken the work"),
    ],
)
async def test_send_by_url_returns_on_time_with_the_place_of_the_task(
    hangs: str, stream: bool, dialect: str, says: str, tmp_path: Path
) -> None:
    async with slow(hangs, dialect) as agent:
        pinned = ["--dialect", dialect] if dialect == "0.1" else []
        flags = ["--stream"] if stream else []
        began = time.monotonic()
        done = await Shell(tmp_path).arun("send", agent.url, "hi", "--timeout", f"{LIMIT_S:g}", *flags, *pinned)
        assert time.monotonic() - began >= LIMIT_S
        async with asyncio.timeout(60):
            await agent.left.wait()  # the sender notices with one of the next bytes
    assert done.returncode == 5, done.stderr
    assert says in done.stderr
    assert f"{LIMIT_S:g} s" in done.stderr
    if "is still" in says:
        assert "did not stop it" in done.stderr
        assert f"--agent {agent.url}" in done.stderr
    assert agent.asked_at is not None
    assert agent.left_at is not None
    assert agent.left_at - agent.asked_at <= LIMIT_S + 1.0


async def test_a_task_left_running_is_read_from_its_agent_by_the_printed_command(tmp_path: Path) -> None:
    async with slow("nothing") as agent:
        shell = Shell(tmp_path)
        done = await shell.arun("task", "get", "t-1", "--agent", agent.url, "-o", "json")
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        assert (row["state"], row["open"], row["taskId"]) == ("working", True, "t-1")
        late = await shell.arun("task", "get", "t-1", "--agent", agent.url, "--wait", "--timeout", "1")
        assert (late.returncode, "t-1 is still working" in late.stderr) == (5, True)


async def test_chat_waits_no_longer_than_its_timeout(tmp_path: Path) -> None:
    async with slow("nothing") as agent:
        done = await Shell(tmp_path).arun("chat", agent.url, "--timeout", "1.5", stdin="hello\n")
    assert (done.returncode, "no answer within 1.5 s" in done.stderr) == (5, True), done.stderr
    assert agent.asked_at is not None
    assert agent.left_at is not None
    assert agent.left_at - agent.asked_at <= 2.5


CEREMONY = """
id: dawn
name: Dawn
schedule: "0 6 * * *"
skill: chat
targets: [slow]
enabled: true
"""


async def test_through_the_hub_every_wait_ends_on_time_even_if_the_hub_hangs(tmp_path: Path) -> None:
    """Each verb is timed whole, minus the start of its interpreter, which a verb without a wait measures."""
    shell = Shell(tmp_path)
    async with slow("nothing") as agent:
        shell.write("agents.yaml", f"agents:\n  - name: slow\n    url: {agent.url}\n")
        shell.write("ceremonies/dawn.yaml", CEREMONY)
        with shell.up() as hub:
            asked = await timed(shell, "send", "slow", "hi", "--timeout", "2")
            assert (asked.code, "did not stop it" in asked.told) == (5, True), asked.told
            assert "fleetsim task get" in asked.told
            cid = asked.told.split("fleetsim task get ")[1].split()[0]
            live = await timed(shell, "send", "slow", "hi", "--stream", "--timeout", "2")
            got = await timed(shell, "task", "get", cid, "--wait", "--timeout", "2")
            fired = await timed(shell, "ceremony", "run", "dawn", "--wait", "--timeout", "2")
            assert (got.code, live.code, fired.code) == (5, 5, 5), got.told + live.told + fired.told
            assert "goes on" in fired.told
            os.kill(hub.pid, signal.SIGSTOP)
            try:
                hung = [
                    await timed(shell, "send", "slow", "hi", "--timeout", "2"),
                    await timed(shell, "task", "get", cid, "--wait", "--timeout", "2"),
                    await timed(shell, "ceremony", "run", "dawn", "--wait", "--timeout", "2"),
                ]
            finally:
                os.kill(hub.pid, signal.SIGCONT)
            assert [verb.code for verb in hung] == [5, 5, 5], [verb.told for verb in hung]
            empty = await timed(shell, "task", "list")
            for verb in (asked, live, got, fired, *hung):
                assert verb.took_s <= 2.0 + 1.0 + 3 * empty.took_s


@dataclass(frozen=True, slots=True)
class Verb:
    code: int
    told: str
    took_s: float


async def timed(shell: Shell, *args: str) -> Verb:
    async with loop_seconds() as passed:
        done = await shell.arun(*args)
        return Verb(done.returncode, done.stderr, passed())


@asynccontextmanager
async def busy(retry_after: str, times: int) -> AsyncIterator[str]:
    """An agent that refuses its first calls with 503 and a pause."""
    agent, refused = Slow("nothing", "0.3"), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = [int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length:")]
                said = json.loads(await reader.readexactly(length[0])) if length else None
                if said is not None and refused < times:
                    refused += 1
                    writer.write(f"HTTP/1.1 503 X\r\nretry-after: {retry_after}\r\ncontent-length: 0\r\n\r\n".encode())
                elif said is not None:
                    done = {"id": "t-1", "kind": "task", "contextId": "c-1", "status": {"state": "completed"}}
                    await _whole(writer, {"jsonrpc": "2.0", "id": said["id"], "result": done})
                else:
                    await _whole(writer, {**agent.card(), "capabilities": {}})
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    agent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield agent.url
    server.close()


@pytest.mark.parametrize(("pause", "times", "code"), [("1", 1, 0), ("600", 9, 1)])
async def test_send_by_url_is_repeated_at_the_retry_after_of_a_busy_agent_or_reports_it(
    pause: str, times: int, code: int, tmp_path: Path
) -> None:
    async with busy(pause, times) as url:
        done = await Shell(tmp_path).arun("send", url, "hi", "--timeout", "40")
    assert done.returncode == code, done.stderr
    assert f"{pause} s" in done.stderr
