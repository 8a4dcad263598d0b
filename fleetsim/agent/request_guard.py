"""The HTTP front: every bound that holds before a byte is parsed, and how refusals look on HTTP.

Order: header size, content type and declared length, then who calls, then the body under its cap and
deadline, and only then JSON. Knows nothing of tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.auth import Authenticator
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.paced_response import PacedResponse
from fleetsim.model.errors import ContentTypeNotSupported, FleetsimError, InvalidRequest, RpcError
from fleetsim.wire import jsonrpc
from fleetsim.wire.json import dump

T = TypeVar("T")

RETRY_AFTER_S = 5


class Refusal(FleetsimError):
    """A request refused at the door: an HTTP status, and the JSON-RPC error that goes with it."""

    def __init__(self, status: int, problem: RpcError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(problem))
        self.status, self.problem, self.headers = status, problem, headers or {}


class ClientLeft(FleetsimError):
    """The client hung up before it had sent everything; nobody is left to answer."""


def json_response(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A compact JSON answer that no cache keeps."""
    always = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return PacedResponse(dump(value), status, {**always, **(headers or {})}, media_type="application/json")


def error_response(
    problem: RpcError,
    *,
    request_id: jsonrpc.RequestId = None,
    dialect: str = "0.3",
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A JSON-RPC error. HTTP 200 as JSON-RPC has it, but 429 with Retry-After for a full agent."""
    full = isinstance(problem, AtCapacity) and problem.wire_code == AtCapacity.code
    code = status or (429 if full else 200)
    more = {"retry-after": str(RETRY_AFTER_S)} if full else {}
    return json_response(jsonrpc.error(request_id, problem, dialect), status=code, headers={**more, **(headers or {})})


class RequestGuard:
    """What every request to the agent's operations passes through."""

    def __init__(self, gate: Authenticator, limits: AgentLimits, *, oversize_status: int = 413) -> None:
        self._gate, self._limits, self._oversize_status = gate, limits, oversize_status
        self._held = 0

    def admit(self, request: Request) -> str:
        """Check everything that headers tell, and return who calls. Raises Refusal."""
        headers = request.headers.raw
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._limits.header_bytes_max:
            raise Refusal(431, InvalidRequest(f"headers are larger than {self._limits.header_bytes_max} bytes"))
        self._check_length(request)
        owner = self._gate.admit(headers)
        if owner is None:
            raise Refusal(401, RpcError("Unauthorized"), {"www-authenticate": self._gate.challenge()})
        return owner

    def check_json(self, request: Request) -> None:
        """Demand a JSON content type, which no web page can send unasked. Raises Refusal."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Refusal(415, ContentTypeNotSupported("send the request as application/json"))

    async def body(self, request: Request) -> bytes:
        """The body, under its cap, all bodies' cap and the deadline. Raises Refusal, ClientLeft."""
        read = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_deadline_s):
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft("the client left before the request was complete")
                    chunk = message.get("body", b"")
                    self._held += len(chunk)
                    read += chunk
                    if len(read) > self._limits.body_bytes_max:
                        raise self._too_large()
                    if self._held > self._limits.bodies_bytes_max:
                        full = AtCapacity(f"the agent reads at most {self._limits.bodies_bytes_max} bytes at once")
                        raise Refusal(429, full, {"connection": "close", "retry-after": "1"})
                    if not message.get("more_body", False):
                        return bytes(read)
        except TimeoutError:
            late = InvalidRequest(f"the body did not arrive within {self._limits.body_deadline_s:g} s")
            raise Refusal(408, late, {"connection": "close"}) from None
        finally:
            self._held -= len(read)

    def _check_length(self, request: Request) -> None:
        declared = request.headers.getlist("content-length")
        if not declared:
            return
        if len(declared) > 1 or not (declared[0].isascii() and declared[0].isdigit()):
            raise Refusal(400, InvalidRequest("content-length is malformed"))
        if len(declared[0]) > 15 or int(declared[0]) > self._limits.body_bytes_max:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        limit = self._limits.body_bytes_max
        return Refusal(
            self._oversize_status, InvalidRequest(f"the body is larger than {limit} bytes"), {"connection": "close"}
        )


async def while_there(request: Request, answer: Callable[[], Awaitable[T]]) -> T | None:
    """Work out an answer as long as the client waits for it; None if it left. The task lives on."""
    found: list[T] = []

    async def work() -> None:
        found.append(await answer())

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        listening = group.create_task(hang_up())
        working.add_done_callback(lambda _done: listening.cancel())
    return found[0] if found else None
