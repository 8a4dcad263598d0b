"""Real sockets: the server's deadlines and caps, shutting down, and the twenty-line agent."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent import Agent, AgentLimits, SkillContext
from fleetsim.agent.builtin import builtin_skills
from fleetsim.model.errors import ConfigError
from fleetsim.runtime import server
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.sse import read_events
from tests.loop_time import loop_seconds

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


async def test_a_stream_over_a_socket_arrives_event_by_event() -> None:
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
    async with running_runtime() as runtime, loop_seconds() as passed:
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
            before = passed()
        assert passed() - before < 3
        rest = [json.loads(event.data)["result"] async for event in events]
        assert rest[-1]["status"]["state"] == "failed"
        await opened.__aexit__(None, None, None)


async def until_closed(reader: asyncio.StreamReader) -> float:
    """Seconds until the server has closed the connection."""
    async with loop_seconds() as passed, asyncio.timeout(60):
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
    return passed()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@pytest.mark.parametrize("start", [b"", b"POST /a2a HTTP/1.1\r\nhost: x\r\n"])
async def test_an_incomplete_head_is_closed_at_the_deadline(start: bytes) -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(header_deadline_s=0.3))
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(start)
        assert await until_closed(reader) < 2
        writer.close()


async def test_a_stalled_body_ends_its_connection() -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(body_deadline_s=0.3))
    async with agent.serving() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        head = b"POST /a2a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


CARD = b"GET /.well-known/agent.json HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_new_connection_replaces_the_one_without_a_request_for_longest() -> None:
    agent = Agent("reference", skills=builtin_skills(), limits=AgentLimits(connections_per_peer_max=3))
    async with agent.serving() as url:
        crowd = [await asyncio.open_connection("127.0.0.1", port_of(url)) for _ in range(3)]
        for reader, _ in [*crowd]:
            crowd.append(await asyncio.open_connection("127.0.0.1", port_of(url)))
            crowd[-1][1].write(CARD)
            assert (await crowd[-1][0].readline()).startswith(b"HTTP/1.1 200")
            assert await until_closed(reader) < 1
        for _, writer in crowd:
            writer.close()


async def test_bytes_that_are_not_http_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("reference", skills=builtin_skills())
    async with agent.serving() as url:
        for junk in [b"\x16\x03\x01 hello\r\n\r\n", CARD[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"] * 5:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
            writer.write(junk)
            assert (await reader.readline()).startswith(b"HTTP/1.1 ")
            writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_reader_that_stalls_loses_its_connection() -> None:
    agent = Agent("floods", limits=AgentLimits(stream_write_s=0.3, output_chars_max=10**8))

    @agent.skill
    async def floods(task: SkillContext) -> None:
        for _ in range(300):  # more than the kernel buffers for a reader that does not read
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
        assert await until_closed(reader) < 5
        writer.close()


async def test_a_used_port_is_a_config_error() -> None:
    agent = Agent("reference", skills=builtin_skills())
    async with agent.serving() as url:
        with pytest.raises(ConfigError):
            async with agent.serving(port=port_of(url)):
                pass


async def test_an_unusable_state_file_is_an_error_that_frees_the_port(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"not a database" * 100)
    agent = Agent("reference", skills=builtin_skills(), state=tmp_path / "s.db")
    with pytest.raises(ConfigError):
        async with agent.serving(port=0):
            pass


async def test_a_skill_that_ignores_its_cancel_does_not_delay_the_agents_stop() -> None:
    agent = Agent("stubborn", limits=AgentLimits(stop_s=0.3, drain_s=0.1))
    released = asyncio.Event()

    @agent.skill
    async def stubborn(task: SkillContext) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    async with loop_seconds() as passed:
        async with agent.serving() as url:
            await post(url, "message/send", message("x"))
            before = passed()
        assert passed() - before < 3
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


def test_a_script_that_serves_at_a_used_port_ends_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        script = SCRIPT.replace("port=0", f"port={taken.getsockname()[1]}")
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=TOP, check=False, timeout=60
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "port=" in done.stderr, "it says what to change"


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("127.0.0.1", None, False), ("0.0.0.0", "k", False), ("0.0.0.0", None, True)]
)
def test_a_served_agent_prints_its_address_and_a_warning_without_keys(
    host: str, key: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    agent = Agent("greeter", api_key=key, path="/calls", middleware=[lambda app: interrupted(app)])
    agent.add(builtin_skills()[0])
    agent.serve(host, 0)
    records = [record for record in caplog.records if record.name == "fleetsim.agent.agent"]
    assert re.search(rf" http://{host}:[1-9]\d*/calls$", records[-1].getMessage())
    assert [record.levelname for record in records[:-1]] == ["WARNING"] * warns


def interrupted(app: Any) -> Any:
    """As after Ctrl-C, once the agent serves."""

    async def up(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

        await app(scope, receive, sent)

    return up


NARROW = """
import resource
from fleetsim.agent import Agent, AgentLimits
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
agent = Agent("greeter", limits=AgentLimits(header_deadline_s=60.0))

@agent.skill
async def greet(task):
    return "hi"

agent.serve(port=0)
"""


def test_running_out_of_descriptors_is_logged_once_and_refuses_no_client() -> None:
    async def crowded(port: int) -> None:
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _ in range(3):
            assert (await post(f"http://127.0.0.1:{port}", "tasks/get", {"id": "x"}))["error"]
            await asyncio.sleep(0.5)
        for _, writer in crowd:
            writer.transport.abort()
        assert (await post(f"http://127.0.0.1:{port}", "tasks/get", {"id": "x"}))["error"]

    with subprocess.Popen(
        [sys.executable, "-c", NARROW], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=TOP
    ) as process:
        assert process.stderr is not None
        served = next(line for line in iter(process.stderr.readline, "") if "serves A2A at" in line)
        try:
            asyncio.run(crowded(int(served.rsplit(":", 1)[1].split("/")[0])))
        finally:
            process.send_signal(signal.SIGTERM)
            told = process.stderr.read().splitlines()
    assert len([line for line in told if "descriptor" in line]) == 1
    assert len(told) < 12, told[:20]


async def test_an_agent_waits_for_skills_that_clean_up() -> None:
    agent = Agent("tidy")
    tidied = []

    @agent.skill
    async def work(task: SkillContext) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            tidied.append(task.text)
        return "never"

    async with agent.serving() as url:
        await post(url, "message/send", message("desk"))
        await asyncio.sleep(0.1)
    assert tidied == ["desk"]


async def test_the_extended_card_has_the_address_of_the_agent() -> None:
    agent = Agent("reference", api_key="k")

    @agent.skill(public=False)
    async def inner(task: SkillContext) -> str:
        return task.text

    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "agent/getAuthenticatedExtendedCard"}).encode()
    headers = {"content-type": "application/json", "x-api-key": "k"}
    async with agent.serving() as url, running_runtime() as runtime:
        request = Request(method="POST", url=f"{url}/a2a", headers=headers, body=body)
        reply = await runtime.transport.exchange(request)
        assert json.loads(reply.body)["result"]["url"].startswith(url)


def test_serving_starts_the_agent_first_and_stops_it_at_a_signal() -> None:
    went: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            asked = (await receive())["type"]
            went.append(asked)
            await send({"type": f"{asked}.complete"})

    async def on_start() -> None:
        went.append("start")
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

    async def on_stop() -> None:
        went.append("stop")

    listener = server.listen("127.0.0.1", 0)
    server.serve(app, AgentLimits(), listener, on_start=on_start, on_stop=on_stop)
    assert went == ["start", "lifespan.startup", "stop", "lifespan.shutdown"]
    assert listener.fileno() == -1


def test_an_error_at_the_start_of_an_agent_is_raised_by_serving() -> None:
    async def on_start() -> None:
        raise ConfigError("no")

    listener = server.listen("127.0.0.1", 0)
    with pytest.raises(ConfigError):
        server.serve(Agent("x").app, AgentLimits(), listener, on_start=on_start, on_stop=on_start)  # type: ignore[arg-type]
    assert listener.fileno() == -1
