"""What an HTTP response says: the result of a call, or which kind of refusal.

The status comes first, then the body: peers refuse with a status alone, with a JSON-RPC error under any
status, or with a page of HTML, and the three must not be taken for each other (interop.md section 7).
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetsim.client.redirect import destination
from fleetsim.model.errors import AuthRefused, HttpRefused, WireError
from fleetsim.model.text import one_line
from fleetsim.runtime.retry import retry_after_s
from fleetsim.wire.json import parse_untrusted
from fleetsim.wire.jsonrpc import read_response

EXCERPT_CHARACTERS = 200

_LATER = frozenset({429, 503})
_TITLE = re.compile(rb"<title[^>]{0,200}>(.{0,400}?)</title", re.IGNORECASE | re.DOTALL)
_HTML = re.compile(rb"\s{0,200}(?:<!--.{0,2000}?-->\s{0,200})?<(?:!doctype\s+html|html|head|body)", re.I | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What a response is the answer to. ``where`` and ``credential`` are words for messages."""

    request_id: str
    dialect_name: str
    where: str
    credential: str | None = None


def read_result(asked: AnswerRequest, status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Any:
    """The JSON-RPC result in a response.

    Raises:
        AuthRefused: 401 or 403.
        HttpRefused: another status outside 2xx without a JSON-RPC error, and 429 and 503 whatever they hold.
        RpcError: a JSON-RPC error, under whatever status.
        WireError: a redirect, or a 2xx that holds no JSON-RPC answer to this request.
    """
    refuse_status(asked.where, asked.credential, status, headers, body, now, tolerate_rpc=True)
    try:
        value = parse_untrusted(body, bytes_max=len(body))  # its size was bounded while it was read
        return read_response(value, expect_id=asked.request_id, dialect_name=asked.dialect_name)
    except WireError as error:
        if not 200 <= status < 300:
            raise http_refused(asked.where, status, headers, body, now) from None
        raise wire_error(asked.where, str(error), headers, body) from error


def refuse_status(
    where: str,
    credential: str | None,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    *,
    tolerate_rpc: bool = False,
) -> None:
    """Raise what the status alone says; with ``tolerate_rpc`` leave statuses that may carry a JSON-RPC error."""
    if status in {401, 403}:
        raise auth_refused(where, credential, status)
    if 300 <= status < 400:
        raise WireError(
            f"{where}: answered with a redirect (HTTP {status}) to {destination(headers)}, which is not followed",
            hint="configure the address it leads to",
        )
    if 200 <= status < 300 or (tolerate_rpc and status not in _LATER):
        return
    raise http_refused(where, status, headers, body, now)


def auth_refused(where: str, credential: str | None, status: int) -> AuthRefused:
    """The error for 401 and 403."""
    if credential is None:
        text, hint = "wants a credential and none is configured", "configure an API key or bearer token for it"
    else:
        text, hint = "refused the credential", f"check {one_line(credential, 160)}"
    return AuthRefused(f"{where}: the agent {text} (HTTP {status})", status=status, hint=hint)


def http_refused(where: str, status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> HttpRefused:
    """The error for a status that is no answer."""
    unclear = not 200 <= status < 600
    return HttpRefused(
        f"{where}: HTTP {status}, {describe(headers, body)}"
        + ("; it does not say what became of the request" if unclear else ""),
        status=status,
        retry_after_s=retry_after_s(headers, now) if status in _LATER else None,
    )


def wire_error(where: str, why: str, headers: Mapping[str, str], body: bytes) -> WireError:
    """The error for a body that is not the protocol."""
    kind = one_line(headers.get("content-type", "") or "no content type", 80)
    return WireError(f"{where}: {why} ({kind}): {describe(headers, body)}")


def describe(headers: Mapping[str, str], body: bytes) -> str:
    """One harmless line about a body: HTML by its title, JSON by its error message, the rest by an excerpt."""
    if not body.strip():
        return "an empty body"
    if _HTML.match(body) or headers.get("content-type", "").lower().startswith("text/html"):
        title = _TITLE.search(body[:65_536])
        if title is None:
            return "an HTML page"
        said = html.unescape(title[1].decode("utf-8", "replace"))
        return f"an HTML page titled {one_line(' '.join(said.split()), 100)!r}"
    return repr(one_line(_error_message(body) or body[:2_000].decode("utf-8", "replace").strip(), EXCERPT_CHARACTERS))


def _error_message(body: bytes) -> str | None:
    """The message of ``{"error": ...}`` in the forms in use."""
    try:
        value = parse_untrusted(body, bytes_max=len(body))
    except WireError:
        return None
    found = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    if isinstance(found, dict):
        found = found.get("message")
    return found if isinstance(found, str) else None


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether the content type is that of server-sent events."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
