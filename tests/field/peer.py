"""A scripted agent that reproduces a problem from the field: ``Peer.start(case)`` serves one on loopback.

A case is JSON: a ``card``, served at both card paths, and ``rules``. The first rule that fits a request answers it.

- Fits: ``rpc`` (a method name or a list), ``http`` (GET or POST), ``path``, ``if_task`` and ``unless_task`` (the
  message names a task), ``answered`` (an earlier message named a task), ``if_header`` and ``unless_header``
  (``{name: text}``), ``query`` (a text in the address),
  ``nth`` (only the n-th request that fits the rest).
- Reply: ``after_s``, ``status``, ``headers``, ``type`` (null for none), ``gzip``, ``headers_more`` (a count of
  further headers), and one of ``result`` and ``error`` (a JSON-RPC
  reply), ``json`` and ``text`` (the whole body), ``raw`` (the bytes of the whole response), ``sse`` (a list of
  ``{result}``, ``{error}``, ``{raw: text}`` and ``{wait_s}``, then held open for ``hold_s``).

``$BASE``, ``$OTHER`` and ``$ID`` in a reply stand for the agent's address, that of a second agent that plays ``other``,
and the request's id.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")


def case(name: str) -> dict[str, Any]:
    """The case whose file name begins with ``name``, such as ``04``."""
    (path,) = CASES.glob(f"{name}*.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


class Peer:
    """One scripted agent. ``log`` contains its POST requests; use it as a context to stop it."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.base = ""
        self.other = Peer(script["other"]) if "other" in script else None
        self.log: list[dict[str, Any]] = []
        self._script = script
        self._fitted: Counter[int] = Counter()
        self._answered = False
        self._server: asyncio.Server | None = None
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Peer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 25)
        self.base = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        if self.other is not None:
            await self.other.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._stopping.set()
        self._server.close()
        if self.other is not None:
            await self.other.__aexit__()

    def methods(self) -> list[str]:
        """The JSON-RPC methods of the requests so far."""
        return [entry["method"] for entry in self.log if "method" in entry]

    def _fill(self, value: Any, request_id: Any = None) -> Any:
        text = json.dumps(value).replace("$BASE", self.base)
        text = text.replace("$OTHER", self.other.base if self.other else "")
        return json.loads(text.replace('"$ID"', json.dumps(request_id)))

    def _reply_to(self, http: str, path: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        method, params = body.get("method"), body.get("params") or {}
        names_task = isinstance(params, dict) and bool((params.get("message") or {}).get("taskId"))
        answered, self._answered = self._answered, self._answered or names_task
        for number, rule in enumerate(self._script.get("rules", [])):
            wanted = [rule["rpc"]] if isinstance(rule.get("rpc"), str) else rule.get("rpc")
            fits = (
                (not wanted or method in wanted)
                and rule.get("http", "POST") == http
                and rule.get("path", path.partition("?")[0]) == path.partition("?")[0]
                and rule.get("query", "") in path.partition("?")[2]
                and not (rule.get("if_task") and not names_task)
                and not (rule.get("unless_task") and names_task)
                and rule.get("answered", answered) == answered
                and all(text in headers.get(name, "") for name, text in rule.get("if_header", {}).items())
                and not any(text in headers.get(name, "") for name, text in rule.get("unless_header", {}).items())
            )
            if fits:
                self._fitted[number] += 1
                if rule.get("nth", self._fitted[number]) == self._fitted[number]:
                    found: dict[str, Any] = rule["reply"]
                    return found
        if http == "GET" and path.partition("?")[0] in _CARDS and self._script.get("card") is not None:
            return {"json": self._script["card"]}
        if http == "POST" and method:
            return {"error": {"code": -32601, "message": "Method not found"}}
        return {"status": 404, "json": {"error": "nothing here"}}

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _send(self, reply: dict[str, Any], writer: asyncio.StreamWriter, request_id: Any) -> None:
        await self._wait(reply.get("after_s", 0))
        if "raw" in reply:
            writer.write(reply["raw"].encode())
            return
        kind = reply.get("type", "text/event-stream" if "sse" in reply else "application/json")
        head = [f"HTTP/1.1 {reply.get('status', 200)} X"] + ([f"Content-Type: {kind}"] if kind else [])
        head += [f"{name}: {self._fill(text)}" for name, text in reply.get("headers", {}).items()]
        head += [f"X-H{number}: y" for number in range(reply.get("headers_more", 0))]
        head += ["Content-Encoding: gzip"] if reply.get("gzip") else []
        if "sse" in reply:
            writer.write("\r\n".join([*head, "Transfer-Encoding: chunked", "", ""]).encode())
            for item in reply["sse"]:
                await self._wait(item.get("wait_s", 0))
                said = {name: self._fill(item[name], request_id) for name in ("result", "error") if name in item}
                text = item.get("raw", "").replace("$ID", json.dumps(request_id))
                if said:
                    text = f"data: {json.dumps({'jsonrpc': '2.0', 'id': request_id, **said})}\n\n"
                if text:
                    data = gzip.compress(text.encode()) if reply.get("gzip") else text.encode()
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                    await writer.drain()
            for _ in range(int(reply.get("hold_s", 0))):
                await self._wait(1)
                writer.write(b"5\r\n: ka\n\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return
        said = {name: self._fill(reply[name], request_id) for name in ("result", "error") if name in reply}
        if said:
            body = json.dumps({"jsonrpc": "2.0", "id": request_id, **said}).encode()
        else:
            body = (json.dumps(self._fill(reply["json"], request_id)) if "json" in reply else reply["text"]).encode()
        body = gzip.compress(body) if reply.get("gzip") else body
        writer.write("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()) and not self._stopping.is_set():
                http, path = line.decode("latin-1").split()[:2]
                headers = {}
                while (field := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = field.decode("latin-1").partition(":")
                    headers[name.strip().lower()] = value.strip()
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                is_json = raw and "json" in headers.get("content-type", "")
                body = json.loads(raw) if is_json else {}
                if http == "POST":
                    self.log.append(body)
                await self._send(self._reply_to(http, path, headers, body), writer, body.get("id"))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
