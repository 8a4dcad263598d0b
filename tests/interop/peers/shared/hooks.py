"""A webhook listener on the standard library alone: it keeps what came and answers 200."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BODY_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Hook:
    """One delivery. Header names are lower case."""

    path: str
    headers: dict[str, str]
    body: Any


class HookListener:
    """Listens on ``127.0.0.1:port`` from construction until ``close``."""

    def __init__(self, port: int) -> None:
        self.hooks: list[Hook] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self.hooks))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def base(self) -> str:
        """The address to register, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    async def wait(self, path: str, wanted: Callable[[Hook], bool], limit_s: float = 8.0) -> Hook:
        """The first delivery to ``path`` that is wanted; TimeoutError names what came instead."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for hook in list(self.hooks):
                if hook.path == path and wanted(hook):
                    return hook
            await asyncio.sleep(0.03)
        seen = [json.dumps(h.body)[:200] for h in self.hooks if h.path == path]
        raise TimeoutError(f"no such webhook in {limit_s} s; {len(seen)} came: {seen[-3:]}")

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def hook_state(body: Any) -> str:
    """The state a webhook body speaks of, in the 0.3 spelling; empty if none. Reads every body of the field."""
    if not isinstance(body, dict):
        return ""
    inner = body.get("task") or body.get("statusUpdate") or body
    status = inner.get("status") if isinstance(inner, dict) else None
    state = status.get("state", "") if isinstance(status, dict) else ""
    return str(state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def hook_text(body: Any) -> str:
    """The text of all artifacts in a webhook body, whichever shape it has."""
    inner = body.get("task") or body
    parts = [part for artifact in inner.get("artifacts") or [] for part in artifact.get("parts") or []]
    return "".join(part.get("text", "") for part in parts)


def _handler(hooks: list[Hook]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length") or 0), BODY_BYTES_MAX)
            raw = self.rfile.read(length)
            try:
                body = json.loads(raw)
            except ValueError:
                body = None
            hooks.append(Hook(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing: standard output belongs to the report."""

    return Handler
