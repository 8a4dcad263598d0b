"""Ways out of a company's network at every door: a proxy, a private authority, a client certificate, compression.

The first tests need nothing. The others run with nginx and tinyproxy (`make ways` installs them).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.world import Shell
from tests.field.parts import LOGIN, MISSING, nginx, tinyproxy
from tests.field.peer import Peer, case
from tests.runtime.authority import Authority
from tests.runtime.proxies import connect_proxy
from tests.runtime.rawserver import Peer as Server
from tests.runtime.rawserver import raw_server

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

installed = pytest.mark.skipif(
    bool(MISSING) and "WAYS" not in os.environ, reason=f"{' and '.join(MISSING)} not installed; make ways installs them"
)


@pytest.mark.parametrize(
    "command",
    [("send", "{}", "hi"), ("send", "{}", "hi", "--stream"), ("card", "{}"), ("init", "{}"), ("check", "{}")],
    ids=["send", "stream", "card", "init", "check"],
)
def test_a_wrong_ssl_cert_file_is_named_at_every_verb(tmp_path: Path, command: tuple[str, ...]) -> None:
    shell = Shell(tmp_path, {"SSL_CERT_FILE": "/nope.pem"})
    done = shell.run(*(word.format("https://127.0.0.1:9") for word in command))
    assert done.returncode != 0
    assert "SSL_CERT_FILE" in done.stderr
    assert "/nope.pem" in done.stderr


@pytest.mark.parametrize(
    "command",
    [("send", "{}", "hi"), ("send", "{}", "hi", "--stream"), ("card", "{}"), ("init", "{}"), ("check", "{}")],
    ids=["send", "stream", "card", "init", "check"],
)
def test_an_unused_proxy_variable_is_named_at_every_verb(tmp_path: Path, command: tuple[str, ...]) -> None:
    shell = Shell(tmp_path, {"HTTPS_PROXY": "http://me:s3cr3t@127.0.0.1:9"})
    done = shell.run(*(word.format("https://agent.invalid") for word in command))
    assert done.returncode != 0
    assert "HTTPS_PROXY" in done.stderr
    assert "--proxy environment" in done.stderr
    assert "s3cr3t" not in done.stderr + done.stdout


async def test_an_external_file_is_fetched_through_the_proxy_of_the_agent_that_names_it(tmp_path: Path) -> None:
    async def file(peer: Server) -> None:
        await peer.reply(b"hello")

    async with raw_server(file) as server, connect_proxy({"files.test": "127.0.0.1"}) as proxy:
        there = f"files.test:{server.port}"
        script = json.loads(json.dumps(case("14")).replace("data:text/plain;base64,aGVsbG8=", f"http://{there}/a.txt"))
        async with Peer(script) as peer:
            shell = Shell(tmp_path)
            shell.write("agents.yaml", f"agents:\n  - {{name: ours, url: '{peer.base}', proxy: '{proxy.url}'}}\n")
            asked = ["task", "download", "t-1", "--agent", "ours", "--out", "d", "--remote", "--allow", there]
            done = await shell.arun(*asked)
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "d/a.txt").read_bytes() == b"hello"


def test_mcp_reaches_an_external_hub_through_a_proxy(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"HTTPS_PROXY": "http://127.0.0.1:9", "KEY": "k"})
    for more, words in {(): "HTTPS_PROXY is set", ("--proxy", "environment"): "the proxy 127.0.0.1:9"}.items():
        done = shell.run("mcp", "--hub", "https://hub.invalid", "--key-env", "KEY", *more)
        assert words in done.stderr


def test_a_hub_names_the_error_on_its_way_out(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"HTTPS_PROXY": "http://me:s3cr3t@127.0.0.1:9"})
    shell.write(
        "agents.yaml",
        "agents:\n"
        "  - {name: outside, url: 'https://agent.invalid'}\n"
        "  - {name: private, url: 'https://127.0.0.1:9', ca: nope.pem}\n"
        "  - {name: proxied, url: 'https://agent.invalid', proxy: environment}\n",
    )
    with shell.up():
        for name, words in {"outside": "HTTPS_PROXY", "private": "nope.pem", "proxied": "127.0.0.1:9"}.items():
            done = shell.run("send", name, "hi", "--timeout", "20")
            assert done.returncode != 0
            assert words in done.stderr, done.stderr
            assert "s3cr3t" not in done.stderr
            assert words in shell.run("health", name).stdout


@installed
async def test_an_agent_behind_a_proxy_a_gateway_and_a_private_authority_replies_at_every_door(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.client("hub")
    auth = f"{{scheme: mutualTLS, certificateFile: {files.certificate}, keyFile: {files.key}}}"
    script = case("22")  # it streams "there"; nginx compresses
    (send,) = case("16")["rules"]  # "pong"
    async with Peer({**script, "rules": [*script["rules"], send]}) as peer:
        with tinyproxy(tmp_path) as (proxy, log), nginx(tmp_path, peer.base, authority) as url:
            shell = Shell(tmp_path, {"PROXY_LOGIN": LOGIN, "HTTPS_PROXY": proxy.replace("//", f"//{LOGIN}@")})
            entry = f"url: '{url}', ca: {Path(authority.ca).name}, auth: {auth}"
            shell.write(
                "agents.yaml",
                "agents:\n"
                f"  - {{name: ours, {entry}, proxy: {{url: '{proxy}', credentialsEnv: PROXY_LOGIN}}}}\n"
                f"  - {{name: nologin, {entry}, proxy: '{proxy}'}}\n"
                f"  - {{name: nocertificate, url: '{url}', ca: {Path(authority.ca).name}}}\n"
                f"  - {{name: untrusted, url: '{url}'}}\n",
            )
            direct = ["--ca", authority.ca, "--auth", auth]
            for agent in (["ours"], [url, *direct]):
                for words, command in {"pong\n": [], "there\n": ["--stream"]}.items():
                    done = await shell.arun("send", agent[0], "hi", *agent[1:], *command)
                    assert (done.returncode, done.stdout) == (0, words), done.stderr
            for command in (["card", "ours"], ["card", url, *direct], ["check", "ours", "--only", "C-01"]):
                done = await shell.arun(*command)
                assert done.returncode == 0, (command, done.stderr)
            plain = await shell.arun("card", url.replace("https://", "http://"))
            assert "next: write its address with https://" in plain.stderr
            (tmp_path / "new").mkdir()
            begun = await Shell(tmp_path / "new", shell.env).arun("init", url, "--proxy", "environment", *direct)
            assert begun.returncode == 0, begun.stderr
            assert "proxy: environment" in (tmp_path / "new/agents.yaml").read_text()
            tunnels = log.read_text().count("CONNECT 127.0.0.1")
            assert tunnels >= 3
            for name, words in {
                "nologin": "407",
                "nocertificate": "No required SSL certificate was sent",
                "untrusted": "SSL_CERT_FILE",
            }.items():
                for command in (["send", name, "hi"], ["card", name]):
                    done = await shell.arun(*command)
                    assert done.returncode != 0
                    assert words in done.stderr, (command, done.stderr)
                    assert ("mutualTLS" in done.stderr) is (name == "nocertificate")
            await _through_the_hub(shell)


async def _through_the_hub(shell: Shell) -> None:
    import asyncio

    def use() -> None:
        with shell.up():
            for command in (["send", "ours", "hi"], ["send", "ours", "hi", "--stream"]):
                done = shell.run(*command)
                assert (done.returncode, done.stdout) == (0, "there\n"), (command, done.stderr)
            for name, words in {"nologin": "407", "nocertificate": "No required SSL certificate was sent"}.items():
                done = shell.run("send", name, "hi", "--timeout", "20")
                assert done.returncode != 0
                assert words in done.stderr, done.stderr

    await asyncio.to_thread(use)
