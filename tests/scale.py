"""The share of examples, seeds and kills that ``make test`` tries; ``make test-whole`` tries all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = bool(os.environ.get("TESTS_WHOLE"))
SHARE = 5


def scaled(whole: int, *, share: int = SHARE) -> int:
    """The number of examples, seeds or kills to try: one in ``share`` of ``whole``."""
    return whole if WHOLE else max(whole // share, 1)


def some(cases: Sequence[T]) -> Sequence[T]:
    """Every fifth of the cases, or all."""
    return cases if WHOLE else cases[::SHARE]
