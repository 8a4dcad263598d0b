"""When to try again: delays with jitter, and what a Retry-After header may ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

RETRY_AFTER_MAX_S = 120.0
"""The longest pause that a Retry-After header gets."""

RETRY_STATUSES = frozenset({408, 425, 429})
"""The only 4xx that say "later" rather than "no"."""

DELAYS_S = (1.0, 3.0, 9.0)
JITTER = 0.2

YOUNG_S = 60.0
"""A task is young for this many seconds: the agent's store may lag behind its reply."""

LOST_CONFIRM_S = 5.0
"""The pause before an agent that does not know its task is asked again."""


class RandomSource(Protocol):
    """The one thing asked of a stream of chance."""

    def uniform(self, a: float, b: float) -> float: ...


def jittered(seconds: float, rng: RandomSource, *, spread: float = JITTER) -> float:
    """``seconds`` give or take ``spread`` of it."""
    return seconds * rng.uniform(1 - spread, 1 + spread)


def pause_s(
    attempt: int,
    draw: float,
    asked_s: float | None = None,
    *,
    waits_s: tuple[float, ...] = DELAYS_S,
    asked_max_s: float = RETRY_AFTER_MAX_S,
) -> float | None:
    """Seconds before a refused send is repeated; None if it was repeated often enough.

    ``attempt`` counts the repetitions so far, and ``draw`` (0 to 1) is the jitter. The pause is never shorter than the
    peer asked for (``asked_s``), up to ``asked_max_s``.
    """
    if attempt >= len(waits_s):
        return None
    return max(waits_s[attempt] * draw, 0.05, min(max(asked_s or 0.0, 0.0), asked_max_s))


def misses_max(age_s: float, young_s: float = YOUNG_S) -> int:
    """How many -32001 in a row may come before the agent has lost its task, by the age of the task (F-12)."""
    return 3 if age_s < young_s else 1


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds a Retry-After header asks for; None if absent or garbage.

    Both forms of RFC 9110 section 10.2.3 are read. ``now`` is aware.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII):
        return float(text)
    if not text or len(text) > 64:
        return None
    try:
        at = parsedate_to_datetime(text)
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return max(seconds, 0.0)
