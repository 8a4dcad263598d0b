"""Who gets in at the dashboard's page, what it shows, and when its processes end: over HTTP, without a browser."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests import command
from tests.browser.served import Served, command_line, recording, serving, until
from tests.cli.world import Shell

pytestmark = [pytest.mark.sockets, pytest.mark.slow]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, "--replay", str(recording(tmp_path)), "--viewers", "2") as served:
        yield served


@asynccontextmanager
async def browser(served: Served, *, known: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """The requests of one browser; if ``known``, it has used the newest address."""
    async with aiohttp.ClientSession(served.origin, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        if known:
            async with session.get(served.addresses[-1]) as response:
                assert response.status == 200
        yield session


async def status(session: aiohttp.ClientSession, path: str, **headers: str) -> int:
    async with session.get(path, headers=headers) as response:
        return response.status


@asynccontextmanager
async def viewer(session: aiohttp.ClientSession, served: Served) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with session.ws_connect("/ws?width=100&height=30", origin=served.origin) as socket:
        yield socket


async def until_bytes(socket: aiohttp.ClientWebSocketResponse, words: bytes) -> None:
    seen = b""
    while words not in seen:
        message = await socket.receive()
        assert message.type in {aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT}, seen[-500:]
        seen += message.data if isinstance(message.data, bytes) else b""


async def test_a_token_lets_one_browser_in_once(served: Served) -> None:
    async with browser(served, known=False) as session, browser(served, known=False) as other:
        for path in ("/", "/static/textual.js", "/?token=", "/?token=wrong", "/?token=%ff"):
            assert await status(session, path) == 403
        async with session.get(served.addresses[0]) as response:
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
        assert await status(session, "/") == 200
        assert await status(session, served.addresses[0]) == 200  # by its cookie: as a person who clicks it again
        assert await status(other, served.addresses[0]) == 403
        assert await status(other, await served.address(1)) == 200
        assert await status(other, "/") == 200


async def test_other_hosts_and_origins_are_refused(served: Served) -> None:
    async with browser(served) as session:
        port = served.origin.rpartition(":")[2]
        for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{int(port) + 1}", f"[::1]:{port}"):
            assert await status(session, "/", Host=host) == 403
            assert await status(session, served.addresses[0], Host=host) == 403
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect("/ws", headers={"Host": host, "Origin": f"http://{host}"})
            assert error.value.status == 403
        for origin in ("http://evil.example", f"http://localhost:{port}", f"https://127.0.0.1:{port}", "null", None):
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect("/ws", origin=origin)
            assert error.value.status == 403
        assert await status(session, "/", Origin="http://evil.example") == 403
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nCookie: fleetsim-{port}="
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(head.encode() + b"\xff\xfe\r\n\r\n")
    assert b"403" in await reader.readline()
    writer.close()
    assert served.viewers == []


async def test_a_public_address_is_printed_and_accepted_beside_the_own_one(tmp_path: Path, free_port: int) -> None:
    public = ("--port", str(free_port), "--public-url", "https://dash.example/")
    with serving(tmp_path, "--replay", str(recording(tmp_path)), *public) as served:
        assert served.addresses[0].startswith("https://dash.example/?token=")
        token = served.addresses[0].partition("?")[2]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{free_port}") as session:
            there = {"Host": "dash.example", "Origin": "https://dash.example"}
            async with session.get(f"/?{token}", headers=there) as response:
                cookie = response.headers["Set-Cookie"]
            assert "Secure" in cookie
            there["Cookie"] = cookie.partition(";")[0]
            async with session.get("/", headers=there) as response:
                assert "wss://dash.example/ws" in await response.text()
            async with session.ws_connect("/ws?width=100&height=30", headers=there) as socket:
                await until_bytes(socket, b"an-hour")
            assert await status(session, "/", **{**there, "Origin": "http://dash.example"}) == 403
            assert await status(session, "/", **{**there, "Host": "evil.example"}) == 403


async def test_the_page_needs_nothing_from_outside_and_no_more_than_its_files(served: Served) -> None:
    async with browser(served) as session:
        async with session.get("/") as response:
            page = await response.text()
        assert "://" not in page.replace(f"ws://{served.origin[7:]}/ws", "")
        for path in ("/", "/static/textual.js", "/static/xterm.css", "/static/none"):
            async with session.get(path) as response:
                policy = response.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "font-src 'self'"} <= {*policy}
                assert "frame-ancestors 'none'" in policy
        for path in ("/static/", "/static/..%2fserver.py", "/static/../server.py", "/download/x", "/static/none"):
            assert await status(session, path) == 404
    async with browser(served, known=False) as session, session.get("/") as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_only_so_many_pages_are_open_and_a_process_ends_with_its_page(served: Served) -> None:
    async with browser(served) as session:
        async with viewer(session, served) as one:
            await until_bytes(one, b"an-hour")
            async with viewer(session, served) as two:
                await until_bytes(two, b"an-hour")
                assert len(served.viewers) == 2
                with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                    await session.ws_connect("/ws?width=80&height=24", origin=served.origin)
                assert error.value.status == 503
                assert await status(session, "/") == 503
            await until(lambda: len(served.viewers) == 1)
        await until(lambda: served.viewers == [])
        assert await status(session, "/") == 200


async def test_quitting_closes_the_page(served: Served) -> None:
    async with browser(served) as session, viewer(session, served) as socket:
        await until_bytes(socket, b"an-hour")
        await socket.send_json(["stdin", "q"])
        async for message in socket:
            assert message.type is aiohttp.WSMsgType.BINARY
        assert socket.closed
    await until(lambda: served.viewers == [])


async def test_messages_in_another_form_are_left_out(served: Served) -> None:
    async with browser(served) as session, viewer(session, served) as socket:
        await until_bytes(socket, b"an-hour")
        junk = ("", "[", "[]", "{}", "null", '["stdin"]', '["stdin", 5]', '["resize", {"width": "a"}]', '["quit"]')
        big = '["resize", {"width": 1000000000, "height": 1000000000}]'
        for text in (*junk, big, '["resize", {"width": -5, "height": 0}]', "[" * 10_000, '["stdin", "\\ud800"]'):
            await socket.send_str(text)
        await socket.send_bytes(b"q")
        await socket.send_json(["ping", "still there"])
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                assert message.json() == ["pong", "still there"]
                break
        assert len(served.viewers) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_viewers_end_with_the_server(served: Served, number: int) -> None:
    async with browser(served) as session, viewer(session, served) as socket:
        await until_bytes(socket, b"an-hour")
        (pid,) = served.viewers
        served.process.send_signal(number)
        await until(lambda: served.process.poll() is not None)
        await until(lambda: not Path(f"/proc/{pid}").exists())
        assert served.process.returncode == (-number if number == signal.SIGKILL else 0)


async def test_what_cannot_be_shown_is_refused_before_a_page_opens(tmp_path: Path, free_port: int) -> None:
    shell = Shell(tmp_path, {"KEY": "k"})
    refused = (
        (3, ()),
        (3, ("--key-env", "KEY", f"http://127.0.0.1:{free_port}")),
        (2, ("--replay", "none.jsonl")),
        (2, ("--key-env", "NO_SUCH_VARIABLE", "http://127.0.0.1:1")),
    )
    for code, words in refused:
        done = await shell.arun("dashboard", "--serve", "--port", "0", *words)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr


def test_without_the_extra_the_command_that_installs_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "textual_serve.py").write_text("raise ImportError")
    shell = Shell(tmp_path, {"PYTHONPATH": str(tmp_path)})
    words = ("dashboard", "--serve", "--replay", str(recording(tmp_path)))
    with command.start(words, tmp_path, shell.environment()) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pip install 'fleetsim[web]'" in said


async def test_a_hub_at_an_address_is_shown_with_the_key_of_a_variable(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", "agents:\n  - {name: scout, url: http://127.0.0.1:9/a2a}\n")
    with shell.up():
        url = next(line for line in shell.told if line.startswith("hub at ")).split()[2].rstrip(",")
        key = (tmp_path / "state" / "api-key").read_text().strip()
        words = (url, "--key-env", "HUB_KEY", "--proxy", "none")
        with serving(tmp_path, *words, env={"HUB_KEY": key, "FLEETSIM_STATE": str(tmp_path / "none")}) as served:
            async with browser(served) as session, viewer(session, served) as socket:
                await until_bytes(socket, b"LIVE")
                pids = (served.process.pid, *served.viewers)
                assert not any(key in command_line(pid) for pid in pids)


async def test_a_port_in_use_is_named(served: Served, tmp_path: Path) -> None:
    port = served.origin.rpartition(":")[2]
    done = await Shell(tmp_path).arun("dashboard", "--serve", "--port", port, "--replay", str(tmp_path / "hour.jsonl"))
    assert done.returncode == 2
    assert port in done.stderr
