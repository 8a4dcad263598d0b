"""The HTTP front: every bound that holds before a byte is parsed, and how refusals look on HTTP.

Order: header size, content type and declared length, then who calls, then the body under its cap and
deadline, and only then JSON. Knows nothing of tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.auth import Authenticator
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.model.errors import ContentTypeNotSupported, InvalidRequest, RpcError
from fleetsim.runtime.inbound import Refusal, read_body, too_large
from fleetsim.runtime.responses import PacedResponse
from fleetsim.wire import jsonrpc
from fleetsim.wire.json import dump

RETRY_AFTER_S = 5

_PROBLEMS: Mapping[int, type[RpcError]] = {401: RpcError, 415: ContentTypeNotSupported, 429: AtCapacity}


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


def problem_of(refusal: Refusal) -> RpcError:
    """The JSON-RPC error that goes with an HTTP status."""
    return _PROBLEMS.get(refusal.status, InvalidRequest)(str(refusal))


class RequestGuard:
    """What every request to the agent's operations passes through."""

    def __init__(self, gate: Authenticator, limits: AgentLimits) -> None:
        self._gate, self._limits = gate, limits
        self._held = 0

    def admit(self, request: Request) -> str:
        """Check everything that headers tell, and return who calls. Raises Refusal."""
        headers = request.headers.raw
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._limits.header_bytes_max:
            raise Refusal(431, "TOO_LARGE", f"headers are larger than {self._limits.header_bytes_max} bytes")
        self._check_length(request)
        owner = self._gate.admit(headers)
        if owner is None:
            challenge = {"www-authenticate": self._gate.challenge()}
            raise Refusal(401, "UNAUTHORIZED", "Unauthorized", headers=challenge)
        return owner

    def check_json(self, request: Request) -> None:
        """Demand a JSON content type, which no web page can send unasked. Raises Refusal."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Refusal(415, "NOT_JSON", "send the request as application/json")

    async def body(self, request: Request) -> bytes:
        """The body, under its cap, all bodies' cap and the deadline. Raises Refusal."""
        limits, size = self._limits, 0

        def make_room(read: int) -> None:
            nonlocal size
            self._held += read - size
            size = read
            if read <= limits.body_bytes_max and self._held > limits.bodies_bytes_max:
                full = f"the agent reads at most {limits.bodies_bytes_max} bytes at once"
                raise Refusal(429, "NO_ROOM", full, headers={"connection": "close", "retry-after": "1"})

        try:
            return await read_body(
                request, bytes_max=limits.body_bytes_max, seconds=limits.body_deadline_s, make_room=make_room
            )
        finally:
            self._held -= size

    def _check_length(self, request: Request) -> None:
        declared = request.headers.getlist("content-length")
        if not declared:
            return
        if len(declared) > 1 or not (declared[0].isascii() and declared[0].isdigit()):
            raise Refusal(400, "BAD_REQUEST", "content-length is malformed")
        if len(declared[0]) > 15 or int(declared[0]) > self._limits.body_bytes_max:
            raise too_large(self._limits.body_bytes_max)
