"""Access to the outside: one factory for connections, and few places that start a process (T-03, T-43, T-44)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import parsed, shown, sources

DIALLING = {
    "aiohappyeyeballs", "aiohttp", "httpx", "httpx_sse", "httpcore", "requests", "urllib3", "socket", "ssl", "ftplib",
    "smtplib", "telnetlib", "imaplib", "poplib", "urllib.request", "http.client", "xmlrpc.client", "webbrowser",
    "multiprocessing.connection", "asyncio.streams",
}  # fmt: skip
STARTING = {"subprocess", "multiprocessing", "pty", "concurrent.futures.process", "asyncio.subprocess"}
CALLS = {
    "open_connection", "open_unix_connection", "create_connection", "create_datagram_endpoint", "start_server",
    "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec",
    "subprocess_shell", "system", "popen", "fork", "posix_spawn", "execv", "execve",
}  # fmt: skip

ALLOWED: dict[str, str] = {
    "fleetsim/runtime/dialer.py": "the one way out of the product: its sockets are made, vetted and checked there",
    "fleetsim/runtime/http.py": "tells a failure of TLS from other failures of a connection",
    "fleetsim/runtime/exchange.py": "errors of the system and of TLS, to convert them into ours",
    "fleetsim/runtime/http_connection.py": "tells a failure of TLS from other failures of a connection",
    "fleetsim/runtime/tls.py": "reads authorities and client certificates into a TLS context",
    "fleetsim/runtime/http_given.py": "a client that a program of its own hands in; nothing in the product does",
    "fleetsim/runtime/real.py": "name resolution, and the operating system's certificates",
    "fleetsim/runtime/programs.py": "starts the programs that the operator's file names, and nothing else does",
    "fleetsim/runtime/server.py": "the listening socket",
    "fleetsim/check/app_parent.py": "starts the agent named with --app, and talks with it by a socket pair",
    "fleetsim/check/app_child.py": "the other end of that pair",
    "fleetsim/sim/cli/play.py": "plays the seeds of a scenario in processes of its own; they talk by pipes",
    "fleetsim/sim/cli/watch.py": "plays a scenario in a process of its own, and follows the file that it writes",
    "fleetsim/cli/dashboard_browser.py": "serves the dashboard on loopback",
    "fleetsim/dashboard/viewer.py": "starts a process of ours for each browser that shows the dashboard",
    "fleetsim/dashboard/outside.py": "starts the editor and the pager of the person at the terminal",
    "fleetsim/testbed/proxy.py": "the fault proxy forwards to the one target it is given",
}
"""Path: why it may touch the network itself."""


def _found(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if any(name == call or name.startswith(f"{call}.") for call in DIALLING | STARTING):
                yield name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            yield f"{ast.unparse(node.func)}()"


@pytest.mark.slow
def test_only_the_one_factory_and_its_neighbours_touch_the_network() -> None:
    found = {shown(path): sorted(set(_found(path))) for path in sources("fleetsim")}
    stray = {path: names for path, names in found.items() if names and path not in ALLOWED}
    assert stray == {}
    assert [path for path in ALLOWED if not found.get(path)] == [], "an exception nobody needs any more"
