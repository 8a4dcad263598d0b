"""JSON from outside, bounded and unambiguous, and JSON to outside, compact and safe inside a stream.

The one place that turns bytes into values. What passes here has no numbers that are not numbers, no
duplicate keys, no half characters, and a bounded depth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.limits import CONTAINERS_MAX, DEPTH_MAX, VALUES_MAX, WIRE_BYTES_MAX

BODY_BYTES_MAX = WIRE_BYTES_MAX
"""Largest JSON body read from a peer, in bytes (limits table: docs/reference/limits.md)."""

NUMBER_CHARS_MAX = 4_300
"""Characters of one number: what Python reads of a whole one."""

_BOM = b"\xef\xbb\xbf"
_LINE_BREAKS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_HALF = re.compile("[\ud800-\udfff]")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_untrusted(data: bytes, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """The value of ``data``. Half surrogate pairs become U+FFFD, since peers cut text inside them.

    Raises:
        WireError: too large, too many values, arrays or objects (``model.limits``; in proportion for what may be
            larger than ``WIRE_BYTES_MAX``), not UTF-8, not JSON, nested deeper than 64, NaN or infinite
            numbers, numbers of thousands of digits, or an object that names a member twice.
    """
    if len(data) > bytes_max:
        raise WireError(f"JSON is larger than {bytes_max} bytes")
    _weigh(data)
    try:
        text = data.removeprefix(_BOM).decode()
        # As ``decode`` does, which looks for blanks on both sides with two patterns.
        value, end = _STRICT.raw_decode(text) if text[:1] in {"{", "["} else (_STRICT.decode(text), len(text))
        if end != len(text) and text[end:].strip(" \t\n\r"):
            raise WireError("not JSON")
    except UnicodeDecodeError:
        raise WireError("JSON is not UTF-8") from None
    except RecursionError:
        raise WireError(f"JSON is nested deeper than {DEPTH_MAX}") from None
    except ValueError:
        raise WireError("not JSON") from None
    return _mend(value) if b"\\ud" in data or b"\\uD" in data else value


def _weigh(data: bytes) -> None:
    """Refuse what would cost too much as values, before a single one is built: counting is the cheap part.

    Counted is with the standard library's searches alone, which run a hundred times as fast as a loop would.
    """
    times = max(1, -(-len(data) // WIRE_BYTES_MAX))
    opened = data.count(b"[") + data.count(b"{")
    if opened <= DEPTH_MAX and (len(data) <= VALUES_MAX or opened + data.count(b",") <= VALUES_MAX):
        return
    bare = _without_text(data)
    opened = bare.count(b"[") + bare.count(b"{")
    if opened > CONTAINERS_MAX * times:
        raise WireError(f"JSON holds more than {CONTAINERS_MAX * times} arrays and objects")
    if opened + bare.count(b",") > VALUES_MAX * times:
        raise WireError(f"JSON holds more than {VALUES_MAX * times} values")
    if opened > DEPTH_MAX:
        _check_depth(bare)


def _without_text(data: bytes) -> bytes:
    """``data`` without its strings: what is no JSON may lose more or less, and is refused when it is read."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(data.split(b'"')[::2])


def _check_depth(bare: bytes) -> None:
    """Take the innermost pairs away, again and again: as often as that goes, so deep it is."""
    pairs = bare.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):
        pairs = pairs.replace(b"[]", b"")
        if not pairs:
            return
    raise WireError(f"JSON is nested deeper than {DEPTH_MAX}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireError("JSON names a member twice")
    return found


def finite(digits: str) -> float:
    """The number that is written so. Raises WireError."""
    if len(digits) > NUMBER_CHARS_MAX:
        raise WireError("JSON holds a number of thousands of digits")
    number = float(digits)
    if not math.isfinite(number):
        raise WireError("JSON holds a number that is not finite")
    return number


def _refuse_constant(name: str) -> Any:
    raise WireError(f"JSON holds {name}")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=finite, parse_constant=_refuse_constant)


def mended(text: str) -> str:
    """``text`` without half characters."""
    return text if text.isascii() else _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return _unique([(mended(key), _mend(item)) for key, item in value.items()])
    return value


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON on one line, whatever a reader takes for a line break.

    Raises:
        WireError: the value holds something JSON has no form for.
    """
    try:
        text = _COMPACT.encode(value)
    except (TypeError, ValueError, RecursionError):
        raise WireError("value has no JSON form") from None
    if not text.isascii():
        for character, escape in _LINE_BREAKS.items():
            text = text.replace(character, escape)
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


_COMPACT = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain, check_circular=False
)


_CONTAINERS = (dict, list, tuple, Mapping)
"""What may be empty, the commonest first: to ask the abstract class is many times as dear."""


def present(**members: Any) -> dict[str, Any]:
    """The members that are neither None nor empty; zero, false and the empty string are kept."""
    return {
        name: value
        for name, value in members.items()
        if value or (value is not None and not isinstance(value, _CONTAINERS))
    }
