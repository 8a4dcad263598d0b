"""``fleetsim dashboard`` on a terminal, through a real HTTP proxy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.screen import Screen
from tests.cli.world import Shell
from tests.runtime.proxies import connect_proxy


@pytest.mark.slow
@pytest.mark.sockets
async def test_a_dashboard_reaches_its_hub_through_a_proxy(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", "agents:\n  - {name: quinn, url: 'http://127.0.0.1:9/a2a'}\n")
    with shell.up():
        url = json.loads((tmp_path / "state" / "hub.json").read_text())["url"]
        shell.env["HUB_KEY"] = (tmp_path / "state" / "api-key").read_text().strip()
        named = url.replace("127.0.0.1", "localhost")
        async with connect_proxy({"localhost": "127.0.0.1"}) as proxy:
            screen = Screen(shell, "dashboard", named, "--proxy", proxy.url, "--key-env", "HUB_KEY")
            await screen.until("LIVE", 60)
            await screen.until("quinn", 60)
            await screen.close()
    assert proxy.asked
    assert all(head.startswith(f"CONNECT {named.removeprefix('http://')} ") for head in proxy.asked)
