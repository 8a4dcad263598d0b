"""When to try again: delays with jitter, and what a Retry-After header may ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

RETRY_AFTER_MAX_S = 120.0
RETRY_STATUSES = frozenset({408, 425, 429})
"""The only 4xx that say "later" rather than "no"."""

DELAYS_S = (1.0, 3.0, 9.0)
JITTER = 0.2


class RandomSource(Protocol):
    """The one thing asked of a stream of chance."""

    def uniform(self, a: float, b: float) -> float: ...


def jittered(seconds: float, rng: RandomSource, *, spread: float = JITTER) -> float:
    """``seconds`` give or take ``spread`` of it."""
    return seconds * rng.uniform(1 - spread, 1 + spread)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds a Retry-After header asks for, clamped to 0..120; None if absent or garbage.

    Both forms of RFC 9110 section 10.2.3 are read. ``now`` is aware.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII):
        return min(float(text), RETRY_AFTER_MAX_S)
    if not text or len(text) > 64:
        return None
    try:
        at = parsedate_to_datetime(text)
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)
