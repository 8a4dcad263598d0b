"""JSON from outside, bounded and unambiguous, and JSON to outside, compact and safe inside a stream.

The one place that turns bytes into values. What passes here has no numbers that are not numbers, no
duplicate keys, no half characters, and a bounded depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.limits import TEXT_CHARS_MAX, WIRE_BYTES_MAX

BODY_BYTES_MAX = WIRE_BYTES_MAX
"""Largest JSON body read from a peer, in bytes (limits table: docs/reference/limits.md)."""

VALUES_MAX = 2 * TEXT_CHARS_MAX
"""Most commas and opening brackets in ``BODY_BYTES_MAX``: what a body may cost as values in memory."""

DEPTH_MAX = 64
"""Deepest nesting of arrays and objects read from a peer."""

_LINE_BREAKS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def parse_untrusted(data: bytes, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """The value of ``data``. Half surrogate pairs become U+FFFD, since peers cut text inside them.

    Raises:
        WireError: too large, too many values, not UTF-8, not JSON, nested deeper than 64, NaN or infinite
            numbers, numbers of thousands of digits, or an object that names a member twice.
    """
    if len(data) > bytes_max:
        raise WireError(f"JSON is larger than {bytes_max} bytes")
    values_max = VALUES_MAX * -(-len(data) // WIRE_BYTES_MAX)
    if len(data) > values_max and sum(map(data.count, (b",", b"[", b"{"))) > values_max:
        raise WireError(f"JSON holds more than {values_max} values")
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError:
        raise WireError("JSON is not UTF-8") from None
    except RecursionError:
        raise WireError(f"JSON is nested deeper than {DEPTH_MAX}") from None
    except ValueError:
        raise WireError("not JSON") from None
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX:
        _check_depth(value)
    return _mend(value) if b"\\ud" in data.lower() else value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireError("JSON names a member twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise WireError("JSON holds a number that is not finite")
    return number


def _refuse_constant(name: str) -> Any:
    raise WireError(f"JSON holds {name}")


def _check_depth(value: Any) -> None:
    """Level by level, so that the check itself needs no depth."""
    level, depth = _containers([value]), 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise WireError(f"JSON is nested deeper than {DEPTH_MAX}")
        level = [found for outer in level for found in _containers(outer)]


def _containers(outer: Any) -> list[Any]:
    inner = outer.values() if isinstance(outer, dict) else outer
    return [value for value in inner if isinstance(value, dict | list)]


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    return value


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON on one line, whatever a reader takes for a line break.

    Raises:
        WireError: the value holds something JSON has no form for.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise WireError("value has no JSON form") from None
    for character, escape in _LINE_BREAKS.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
