"""Secrets in exchanges with agents, masked: one place for the reports of the check and for the wire log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

MASK = "***"
_CHARS_MIN = 8
"""A shorter value of a header or a query is not masked in bodies: it may be a usual word."""

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "x-a2a-notification-token", "cookie", "set-cookie"}
)
_SECRET_MEMBERS = re.compile(
    r'("(?:(?!\w*[pP]age)\w*[tT]oken|credentials|api_?[kK]ey|password|\w*[sS]ecret|assertion)"\s*:\s*)'
    r'"(?:[^"\\]|\\.)*(?:"|\\?$)'
)
"""A text may end inside a secret: it was cut."""
_PUBLIC_HEADERS = re.compile(
    "accept|accept-encoding|(x-)?a2a-extensions|a2a-version|cache-control|connection|content-(encoding|length|type)|date"
    "|etag|host|if-none-match|keep-alive|last-event-id|retry-after|server|traceparent|transfer-encoding|user-agent|vary"
    "|webhook-id|webhook-timestamp|x-accel-buffering|x-content-type-options|x-correlation-id",
    re.IGNORECASE,
)
_PUBLIC_QUERY = re.compile(
    "A2A-Version|contextId|historyLength|includeArtifacts|lastUpdatedAfter|pageSize|pageToken|state|status"
    "|statusTimestampAfter"
)


_SHAPES = re.compile(  # each form starts where a word does, so that a search of megabytes is linear
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JWT
    r"|\bwhsec_[\w+/=-]{16,}|(?<![\w-])[\w-]{8,200}\.[A-Za-z0-9_-]{43}(?![\w-])"  # signing secrets, callback tokens
    r"|\b(?:sk|pk|rk|gh[opsu]|github_pat|glpat|xox[abeprs]|AIza|ya29)[-_.]?[A-Za-z0-9][\w-]{15,}|\bA[KS]IA[A-Z0-9]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*|\b[bB]earer [\w.~+/=-]{20,}|(?<=://)[^/\s\"@:]+:[^/\s\"@]+(?=@)"
)
_RANDOM = re.compile(
    r'("(?:raw|bytes|fileWithBytes|etag|if-none-match)":"(?:W/)?(?:\\")?|base64:)?(?<![\w+/=-])([\w+/=-]{24,})'
)


def masked_shapes(text: str) -> tuple[str, list[str]]:
    """``text`` without strings that have the shape of a known kind of secret; and the strings left in it that look
    random, which may be secrets: with digits and letters of both cases. Content of files is left out."""
    text = _SHAPES.sub(MASK, text)
    words = [found[2] for found in _RANDOM.finditer(text) if not found[1]]
    kinds = (str.isdigit, str.islower, str.isupper)
    return text, [word for word in words if all(any(map(kind, word)) for kind in kinds)]


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without secrets: known ones, and members that usually hold one."""
    for secret in secrets:
        if len(secret) > 3:
            text = text.replace(secret, MASK)
    return _SECRET_MEMBERS.sub(rf'\1"{MASK}"', text)


def masked_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The headers with the values of public ones only, and the masked values: a key may be in a header of any name."""
    hidden = [value for name, value in headers.items() if not _PUBLIC_HEADERS.fullmatch(name)]
    public = {name: value if _PUBLIC_HEADERS.fullmatch(name) else MASK for name, value in headers.items()}
    pieces = (piece for value in hidden for piece in (value, value.partition(" ")[2]))
    return public, tuple(piece for piece in pieces if len(piece) >= _CHARS_MIN)


def masked_url(url: str) -> tuple[str, tuple[str, ...]]:
    """The URL with the values of A2A's own query parameters only, without a login, and the masked values."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    hidden = tuple(value for name, value in query if not _PUBLIC_QUERY.fullmatch(name) and len(value) >= _CHARS_MIN)
    public = urlencode([(name, value if _PUBLIC_QUERY.fullmatch(name) else MASK) for name, value in query], safe="*")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, public, "")), hidden
