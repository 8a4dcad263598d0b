"""Real sockets: the server's deadlines and caps, shutting down, and the twenty-line agent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fleetsim.agent import Agent, AgentLimits, SkillContext
from fleetsim.agent.builtin import builtin_skills
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.http_sse import read_events
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import running_runtime

pytestmark = pytest.mark.sockets

TOP = Path(__file__).parents[2]


async def post(url: str, method: str, params: object) -> dict[str, object]:
    async with running_runtime() as runtime:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = Request(method="POST", url=f"{url}/a2a", headers={"content-type": "application/json"}, body=body)
        return dict(json.loads((await runtime.transport.exchange(request)).body))


def message(text: str) -> dict[str, object]:
    return {"message": {"messageId": "1", "role": "user", "parts": [{"kind": "text", "text": text}]}}


async def test_an_agent_serves_on_a_free_loopback_port() -> None:
    agent = Agent("greeter")

    @agent.skill
    async def greet(task: SkillContext) -> str:
        return f"Hello {task.text}"

    async with agent.serving() as url:
        assert url.startswith("http://127.0.0.1:")
        answer = await post(url, "message/send", message("Ada"))
        task_id = answer["result"]["id"]  # type: ignore[index]
        await asyncio.sleep(0.1)
        done = await post(url, "tasks/get", {"id": task_id})
        assert done["result"]["artifacts"][0]["parts"][0]["text"] == "Hello Ada"  # type: ignore[index]


async def test_a_stream_over_a_socket_arrives_as_it_is_told() -> None:
    agent = Agent("reference", skills=builtin_skills())
    async with agent.serving() as url, running_runtime() as runtime:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": message("/stream a b c")})
        request = Request(
            method="POST",
            url=f"{url}/a2a",
            headers={"content-type": "application/json"},
            body=body.encode(),
            limits=Limits(total_s=None),
            streaming=True,
        )
        async with runtime.transport.open(request) as incoming:
            kinds = [json.loads(event.data)["result"]["kind"] async for event in read_events(incoming)]
        assert kinds[0] == "task"
        assert kinds[-2:] == ["artifact-update", "status-update"]


async def test_closing_does_not_wait_for_open_streams() -> None:
    agent = Agent("reference", skills=builtin_skills())
    loop = asyncio.get_running_loop()
    async with running_runtime() as runtime:
        async with agent.serving() as url:
            params = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": message("/slow 500")}
            request = Request(
                method="POST",
                url=f"{url}/a2a",
                headers={"content-type": "application/json"},
                body=json.dumps(params).encode(),
                limits=Limits(total_s=None),
                streaming=True,
            )
            opened = runtime.transport.open(request)
            incoming = await opened.__aenter__()
            events = read_events(incoming)
            await anext(events)
            before = loop.time()
        assert loop.time() - before < 3
        rest = [json.loads(event.data)["result"] async for event in events]
        assert rest[-1]["status"]["state"] == "failed"
        await opened.__aexit__(None, None, None)


async def until_closed(reader: asyncio.StreamReader, limit_s: float) -> float:
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with asyncio.timeout(limit_s):
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
    return loop.time() - before


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@pytest.mark.parametrize("start", [b"", b"POST /a2a HTTP/1.1\r\nhost: x\r\n"])
async def test_a_silent_or_half_head_is_closed_at_the_deadline(start: bytes) -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(header_deadline_s=0.3))
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(start)
        assert await until_closed(reader, 3) < 2
        writer.close()


async def test_a_trickled_second_head_is_closed_at_the_deadline_too() -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(header_deadline_s=0.4))
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        head = b"GET /.well-known/agent.json HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

        async def trickle() -> None:
            with suppress(ConnectionError):
                for byte in head:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            group.create_task(trickle())
            assert await until_closed(reader, 4) < 3
        writer.close()


async def test_a_stalled_body_is_given_up() -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(body_deadline_s=0.3))
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        head = b"POST /a2a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_one_peer_gets_so_many_connections() -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(connections_per_peer_max=3))
    async with agent.serving() as url:
        kept = [await asyncio.open_connection("127.0.0.1", port_of(url)) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        assert await until_closed(reader, 3) < 1
        writer.close()
        for _, kept_writer in kept:
            kept_writer.close()
        await asyncio.sleep(0.1)
        assert (await post(url, "tasks/get", {"id": "x"}))["error"]


async def test_a_huge_head_is_refused() -> None:
    agent = Agent("reference", skills=builtin_skills())
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"x" * 200_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_a_reader_that_stalls_is_dropped_and_its_socket_with_it() -> None:
    agent = Agent("floods", limits=AgentLimits(stream_write_s=0.3, output_chars_max=10**8))

    @agent.skill
    async def floods(task: SkillContext) -> None:
        for _ in range(300):  # more than the kernel keeps for a reader that is away
            await task.say("x" * 100_000)
        await asyncio.sleep(30)

    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url), limit=1024)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": message("x")}).encode()
        writer.write(
            b"POST /a2a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1.5)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await until_closed(reader, 5)
        writer.close()


async def test_a_port_that_is_taken_is_a_config_error() -> None:
    agent = Agent("reference", skills=builtin_skills())
    async with agent.serving() as url:
        with pytest.raises(ConfigError, match="cannot listen"):
            async with agent.serving(port=port_of(url)):
                pass


async def test_a_state_file_that_cannot_be_had_says_so_and_frees_the_port(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"not a database" * 100)
    agent = Agent("reference", skills=builtin_skills(), state=tmp_path / "s.db")
    with pytest.raises(ConfigError, match="state file"):
        async with agent.serving(port=0):
            pass


async def test_a_skill_that_will_not_stop_does_not_hold_up_the_agent() -> None:
    agent = Agent("stubborn", limits=AgentLimits(stop_s=0.3, drain_s=0.1))
    released = asyncio.Event()

    @agent.skill
    async def stubborn(task: SkillContext) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    loop = asyncio.get_running_loop()
    async with agent.serving() as url:
        await post(url, "message/send", message("x"))
        before = loop.time()
    assert loop.time() - before < 3
    released.set()
    await asyncio.sleep(0.05)


SCRIPT = """
from fleetsim.agent import Agent
agent = Agent("greeter")

@agent.skill
async def greet(task):
    return "hi"

agent.serve(port=0)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_served_agent_quietly(signum: int, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TOP
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "startup complete" in line:
                break
        process.send_signal(signum)
        rest = process.stderr.read()
    assert process.returncode == code
    assert "Traceback" not in rest
