"""JSON from peers, bounded and unambiguous, and JSON for peers, compact and safe inside a stream.

This is the one place that turns bytes into values. The values hold no NaN, no infinite number, no lone surrogate, and
no object that named a member twice; their depth is bounded. Why msgspec reads it: decision 0045.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetsim.model.errors import WireError
from fleetsim.model.limits import CONTAINERS_MAX, DEPTH_MAX, VALUES_MAX, WIRE_BYTES_MAX
from fleetsim.model.parts import ENCODER, plain_mapping, require_finite

BODY_BYTES_MAX = WIRE_BYTES_MAX
"""Largest JSON body read from a peer, in bytes (limits table: docs/reference/limits.md)."""

_BOM = b"\xef\xbb\xbf"
_LINE_BREAKS = {c.encode(): b"\\u%04x" % ord(c) for c in "\u0085\u2028\u2029"}
_LONE_SURROGATE = re.compile(  # one prefix for both halves, which is searched for fast
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_QUOTATION_MARK = re.compile(rb"\\u0022")
_DECODER = msgspec.json.Decoder()
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_untrusted(data: bytes, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """Return the value of ``data``. A lone surrogate becomes U+FFFD, since peers cut text inside a pair.

    Raises:
        WireError: too large; too many values, arrays or objects (``model.limits``; a document that may be larger
            than ``WIRE_BYTES_MAX`` may have proportionally more); not UTF-8; not JSON; nested deeper than 64; a NaN,
            an infinite number or an integer of more than 4,300 digits; an object that names a member twice.
    """
    if len(data) > bytes_max:
        raise WireError(f"JSON is larger than {bytes_max} bytes")
    _check_values(data)
    if b"\\u0022" in data:  # the other spelling of a quotation mark, which are counted below
        data = _with_escapes(data, _QUOTATION_MARK, rb'\\"')
    try:
        value = _decoded(data.removeprefix(_BOM))
    except UnicodeDecodeError:
        raise WireError("JSON is not UTF-8") from None
    except RecursionError:
        raise WireError(f"JSON is nested deeper than {DEPTH_MAX}") from None
    except msgspec.DecodeError:
        raise WireError("not JSON") from None
    # msgspec keeps the last of two members with one name: written again, the document has fewer quotation marks.
    if ENCODER.encode(value).count(b'"') != data.count(b'"'):
        raise WireError("JSON names a member twice")
    return value


def _decoded(data: bytes) -> Any:
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError:
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
    return _DECODER.decode(_with_escapes(data, _LONE_SURROGATE, rb"\\ufffd"))


def _with_escapes(data: bytes, escape: re.Pattern[bytes], other: bytes) -> bytes:
    """Replace an escape in all strings of ``data``. Two NULs, which JSON cannot contain, stand for an escaped backslash
    meanwhile, so that each backslash left begins an escape."""
    if b"\0" in data:
        raise WireError("not JSON")
    return escape.sub(other, data.replace(b"\\\\", b"\0\0")).replace(b"\0\0", b"\\\\")


def _check_values(data: bytes) -> None:
    """Refuse a document that would cost too much as values, before one is built. It counts with searches of the
    standard library alone, which run a hundred times as fast as a loop."""
    times = max(1, -(-len(data) // WIRE_BYTES_MAX))
    opened = data.count(b"[") + data.count(b"{")
    # most documents end here
    if opened <= DEPTH_MAX and (len(data) <= VALUES_MAX or opened + data.count(b",") <= VALUES_MAX):
        return
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each string is a value or the name of one; to split at more of them would take half a second.
    if data.count(b'"') > 4 * VALUES_MAX * times + 2:
        raise WireError(f"JSON holds more than {VALUES_MAX * times} values")
    bare = b"".join(data.split(b'"')[::2])  # without its strings
    opened = bare.count(b"[") + bare.count(b"{")
    if opened > CONTAINERS_MAX * times:
        raise WireError(f"JSON holds more than {CONTAINERS_MAX * times} arrays and objects")
    if opened + bare.count(b",") > VALUES_MAX * times:
        raise WireError(f"JSON holds more than {VALUES_MAX * times} values")
    if opened > DEPTH_MAX:
        # Remove the innermost pairs of brackets until none is left; each round is one level.
        pairs = bare.translate(_BRACKETS, _NO_BRACKETS)
        for _ in range(DEPTH_MAX):
            pairs = pairs.replace(b"[]", b"")
            if not pairs:
                return
        raise WireError(f"JSON is nested deeper than {DEPTH_MAX}")


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON on one line, whatever a reader takes for a line break. A lone surrogate becomes "?". Raises
    WireError for a value without a JSON form."""
    try:
        try:
            data = ENCODER.encode(value)
            if b"null" in data:  # msgspec writes a NaN and an infinite number as null
                require_finite(value)
        except UnicodeEncodeError:
            # msgspec refuses lone surrogates, and agents send them
            data = _STRICT.encode(value).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        raise WireError("value has no JSON form") from None
    if not data.isascii():
        for character, escape in _LINE_BREAKS.items():
            data = data.replace(character, escape)
    return data


_STRICT = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=plain_mapping, check_circular=False
)


_CONTAINERS = (dict, list, tuple, Mapping)
"""Types of values that may be empty, the commonest first: a check of the abstract class costs many times as much."""


def present(**members: Any) -> dict[str, Any]:
    """The members that are neither None nor empty; zero, false and the empty string are kept."""
    return {
        name: value
        for name, value in members.items()
        if value or (value is not None and not isinstance(value, _CONTAINERS))
    }
