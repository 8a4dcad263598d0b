"""How much a test does of what could go on for ever: a fifth or less in ``make test``, all in ``make test-whole``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = bool(os.environ.get("TESTS_WHOLE"))
SHARE = 5


def volume(whole: int, *, share: int = SHARE) -> int:
    """How many examples, seeds or kills to try of ``whole``: one in ``share``."""
    return whole if WHOLE else max(whole // share, 1)


def some(cases: Sequence[T]) -> Sequence[T]:
    """Every fifth of the cases, or all."""
    return cases if WHOLE else cases[::SHARE]
