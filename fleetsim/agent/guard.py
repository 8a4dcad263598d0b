"""Authentication and the limits of a request before a byte is parsed, and how refusals look on HTTP.

Order: header size, content type and declared length, the key, the body under its cap and deadline, and only then JSON.
Secrets are compared as bytes and never shown; an agent without any serves all callers as one tenant.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.errors import ConfigError, ContentTypeNotSupported, InvalidRequest, RpcError
from fleetsim.runtime.inbound import BodyReader, PacedResponse, Refusal, too_large
from fleetsim.wire import jsonrpc
from fleetsim.wire.json import dump

CREDENTIAL_BYTES_MAX = 4_096
API_KEY_HEADER = "X-API-Key"

Headers = Iterable[tuple[bytes, bytes]]
"""Raw header pairs as ASGI has them: names in lower case, values as bytes."""


class Authenticator:
    """Knows the callers by their secrets. ``api_keys`` and ``bearers`` map a caller's name to a secret."""

    def __init__(self, *, api_keys: Mapping[str, str], bearers: Mapping[str, str]) -> None:
        for name, secret in [*api_keys.items(), *bearers.items()]:
            if not secret or secret != secret.strip():
                raise ConfigError(f"the secret of caller {name!r} is empty or has spaces around it")
            if len(secret.encode()) > CREDENTIAL_BYTES_MAX:
                raise ConfigError(f"the secret of caller {name!r} is longer than {CREDENTIAL_BYTES_MAX} bytes")
        self._api_keys = tuple((name, secret.encode()) for name, secret in api_keys.items())
        self._bearers = tuple((name, secret.encode()) for name, secret in bearers.items())

    def __repr__(self) -> str:
        return f"Authenticator({len(self._api_keys)} API keys, {len(self._bearers)} bearer tokens)"

    @property
    def open(self) -> bool:
        """Whether nobody needs a credential."""
        return not self._api_keys and not self._bearers

    def admit(self, headers: Headers) -> str | None:
        """The caller's name, or None. A repeated, empty or oversized credential header is a refusal."""
        if self.open:
            return ANYONE
        keys, tokens = [], []
        for name, value in headers:
            if name == b"x-api-key":
                keys.append(value)
            elif name == b"authorization":
                tokens.append(value)
        if len(keys) > 1 or len(tokens) > 1:
            return None
        callers = {_match(self._api_keys, keys[0])} if keys and self._api_keys else set()
        if tokens and self._bearers:
            scheme, _, secret = tokens[0].partition(b" ")
            callers.add(_match(self._bearers, secret.strip()) if scheme.lower() == b"bearer" else None)
        return callers.pop() if len(callers) == 1 else None

    def schemes(self) -> dict[str, dict[str, Any]]:
        """The security schemes for the card, in the 0.3 shape."""
        schemes: dict[str, dict[str, Any]] = {}
        if self._api_keys:
            schemes["apiKey"] = {"type": "apiKey", "in": "header", "name": API_KEY_HEADER}
        if self._bearers:
            schemes["bearer"] = {"type": "http", "scheme": "bearer"}
        return schemes

    def challenge(self) -> str:
        """The WWW-Authenticate header of a 401 (RFC 9110 section 11.6.1)."""
        return "Bearer" if self._bearers else f'ApiKey header="{API_KEY_HEADER}"'


def _match(known: tuple[tuple[str, bytes], ...], given: bytes) -> str | None:
    """The name whose secret this is. Compares every secret, so that the time does not depend on which one matches."""
    if not given or len(given) > CREDENTIAL_BYTES_MAX:
        return None
    matched: str | None = None
    for name, secret in known:
        if hmac.compare_digest(secret, given):
            matched = name
    return matched


RETRY_AFTER_S = 5

_PROBLEMS: Mapping[int, type[RpcError]] = {401: RpcError, 415: ContentTypeNotSupported, 429: AtCapacity}


def json_response(
    value: object,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """A compact JSON answer that no cache keeps."""
    always = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return PacedResponse(dump(value), status, {**always, **(headers or {})}, media_type=media_type)


def busy_status(problem: RpcError) -> int | None:
    """The HTTP status of a reply to try again later: 429, or 503 if the state cannot be written; else None."""
    return problem.http_status if isinstance(problem, AtCapacity) and problem.wire_code == AtCapacity.code else None


def error_response(
    problem: RpcError,
    *,
    request_id: jsonrpc.RequestId = None,
    dialect: str = "0.3",
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A JSON-RPC error. HTTP 200 as JSON-RPC has it, but ``busy_status`` with Retry-After."""
    busy = busy_status(problem)
    more = {**({"retry-after": str(RETRY_AFTER_S)} if busy else {}), **(headers or {})}
    return json_response(jsonrpc.error(request_id, problem, dialect), status=status or busy or 200, headers=more)


def problem_of(refusal: Refusal) -> RpcError:
    """The JSON-RPC error that goes with an HTTP status."""
    return _PROBLEMS.get(refusal.status, InvalidRequest)(str(refusal))


class RequestGuard:
    """Checks every request before the agent's operations."""

    def __init__(self, authenticator: Authenticator, limits: AgentLimits) -> None:
        self._authenticator, self._limits = authenticator, limits
        self._bodies = BodyReader(
            bytes_max=limits.body_bytes_max, seconds=limits.body_deadline_s, all_bytes_max=limits.bodies_bytes_max
        )
        self.body = self._bodies.read

    def admit(self, request: Request) -> str:
        """Check the headers and return the name of the caller. Raises Refusal."""
        headers = request.headers.raw
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._limits.header_bytes_max:
            raise Refusal(431, "TOO_LARGE", f"headers are larger than {self._limits.header_bytes_max} bytes")
        declared = request.headers.getlist("content-length")
        if len(declared) > 1 or not all(length.isascii() and length.isdigit() for length in declared):
            raise Refusal(400, "BAD_REQUEST", "content-length is malformed")
        if declared and (len(declared[0]) > 15 or int(declared[0]) > self._limits.body_bytes_max):
            raise too_large(self._limits.body_bytes_max)
        owner = self._authenticator.admit(headers)
        if owner is None:
            challenge = {"www-authenticate": self._authenticator.challenge()}
            raise Refusal(401, "UNAUTHORIZED", "Unauthorized", headers=challenge)
        return owner

    def check_json(self, request: Request) -> None:
        """Demand a JSON content type, which no web page can send unasked. Raises Refusal."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Refusal(415, "NOT_JSON", "send the request as application/json")
