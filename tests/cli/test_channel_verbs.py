"""Notices on the machine's own loopback: a real receiver, a real program, a hub in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent.builtin import reference_agent
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.server import listen, serving
from fleetsim.runtime.webhook import verify, write_secret
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets

SECRET = b"canary-secret-of-the-webhook"


async def test_people_get_a_signed_webhook_and_a_program_and_no_secret_is_shown(tmp_path: Path) -> None:
    taken: list[tuple[dict[str, str], bytes]] = []
    page = tmp_path / "page.py"
    page.write_text(f"import sys; open({str(tmp_path / 'paged')!r}, 'a').write(sys.stdin.read())\n")

    async def receive(request: Request) -> Response:
        taken.append((dict(request.headers), await request.body()))
        return Response(status_code=200 if request.url.path == "/canary-in" else 500)

    app = Starlette(routes=[Route("/{rest:path}", receive, methods=["POST"])])
    async with serving(app, ServerLimits(), listen("127.0.0.1", 0)) as url:
        shell = Shell(tmp_path, env={"OPS_URL": f"{url}/canary-in", "OPS_HOOK": write_secret(SECRET)})
        shell.write(
            "agents.yaml",
            "agents: []\n"
            "channels:\n"
            "  ops:\n"
            "    sinks:\n"
            "      - {kind: webhook, url: '${OPS_URL}', secretEnv: OPS_HOOK, internal: true}\n"
            f"      - {{kind: command, argv: ['{sys.executable}', '{page}']}}\n"
            "  broken:\n"
            f"    sinks: [{{kind: slack, url: '{url}/canary-gone', internal: true}}]\n",
        )
        with shell.up():
            done = await shell.arun("channel", "test", "ops")
            assert (done.returncode, done.stdout) == (
                0,
                f"webhook 127.0.0.1: delivered\ncommand {sys.executable}: delivered\n",
            )
            broken = await shell.arun("channel", "test", "broken")
            assert (broken.returncode, broken.stdout) == (1, "slack 127.0.0.1: HTTP 500\n")
            listing = await shell.arun("channel", "list")
            rows = await asyncio.to_thread(shell.json, "channel", "list")
            health = await shell.arun("health")
        headers, body = taken[0]
        assert verify(headers.items(), SECRET, time.time(), body)
        assert (tmp_path / "paged").read_text().startswith("· test of channel ops\n")
        assert [line.split()[:2] for line in listing.stdout.splitlines()[1:]] == [
            ["ops", "webhook"],
            ["ops", "command"],
            ["broken", "slack"],
        ]
        assert "channel broken: slack 127.0.0.1 " in listing.stderr
        assert "channel broken: slack 127.0.0.1 " in health.stderr
        assert [row["sinks"][0]["failed"] for row in rows] == [0, 1]
        said = f"{done}{broken}{listing}{rows}{health}{shell.said}"
        assert "canary" not in said
        assert write_secret(SECRET) not in said
        kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
        assert b"channel.broken.failed" in kept
        assert b"canary" not in kept


async def test_a_ceremony_on_loopback_reports_its_end_to_a_real_receiver(tmp_path: Path) -> None:
    taken: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()

    async def receive(request: Request) -> Response:
        taken.put_nowait((dict(request.headers), await request.body()))
        return Response()

    app = Starlette(routes=[Route("/in", receive, methods=["POST"])])
    async with serving(app, ServerLimits(), listen("127.0.0.1", 0)) as url, reference_agent("scout").serving() as agent:
        shell = Shell(tmp_path, env={"OPS_URL": f"{url}/in", "OPS_HOOK": write_secret(SECRET)})
        shell.write(
            "agents.yaml",
            f"agents: [{{name: scout, url: '{agent}/a2a'}}]\n"
            "channels:\n"
            "  '1469080556720623699':\n"
            "    sinks: [{kind: webhook, url: '${OPS_URL}', secretEnv: OPS_HOOK, internal: true}]\n",
        )
        shell.write(
            "ceremonies/scout.digest.yaml",
            "id: scout.digest\nname: Scout Daily Digest\nschedule: '0 14 1 1 *'\nskill: echo\ntargets: [scout]\n"
            "notifyChannel: '1469080556720623699'\nprompt: all is well\n",
        )
        with shell.up():
            done = await shell.arun("ceremony", "run", "scout.digest", "--wait")
            assert done.returncode == 0, done.stderr
            async with asyncio.timeout(20):
                headers, body = await taken.get()
        assert verify(headers.items(), SECRET, time.time(), body)
        told = json.loads(body)
        assert (told["type"], told["data"]["ceremonyId"], told["data"]["text"]) == (
            "fleetsim.run",
            "scout.digest",
            "all is well",
        )
        assert told["data"]["headline"].startswith("✓ Scout Daily Digest [scout.digest]: success in ")
