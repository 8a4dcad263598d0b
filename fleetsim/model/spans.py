"""Spans of time as people write them: ``90s``, ``1h30m``, ``250ms``."""

from __future__ import annotations

import re

SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
SPAN = r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+"
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
SPAN_S_MAX = 366 * 86_400.0


def seconds_of(text: object) -> float:
    """The seconds of a span such as ``90s``, ``1h30m`` or ``250ms``. Raises ValueError."""
    if not isinstance(text, str) or not re.fullmatch(SPAN, text.strip(), re.ASCII):
        raise ValueError("must be a span such as 30s, 5m or 1h30m")
    seconds = sum(float(amount) * SECONDS_IN[unit] for amount, unit in _SPAN_PART.findall(text))
    if seconds > SPAN_S_MAX:
        raise ValueError("must be at most 366d")
    return seconds


def in_words(seconds: float) -> str:
    """A span as people write it, in at most two units: ``1h30m``, ``12.5s``, ``250ms``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    for unit, small in (("d", "h"), ("h", "m"), ("m", "s")):
        if whole >= SECONDS_IN[unit]:
            count, rest = divmod(whole, int(SECONDS_IN[unit]))
            rest //= int(SECONDS_IN[small])
            return f"{count}{unit}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"
