"""Durations of a day, counted in classes that differ by a hundredth, and their quantiles, right to half of one. Pure.

There are some two thousand classes of whole milliseconds, however many durations there are: each comes and goes in a
moment, and a quantile goes along the classes alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, repeat
from math import exp, log

LONGEST_MS = 2**32 - 1
"""Seven weeks, in milliseconds; what takes longer counts as this long."""

_STEP = log(1.01)


class Durations:
    """How many durations there are of each class. ``quantiles`` is their reader's, and None once one came or went."""

    __slots__ = ("_counts", "_size", "quantiles")

    def __init__(self) -> None:
        self._counts = array("I")
        self._size = 0
        self.quantiles: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self._size

    def add(self, number: int) -> None:
        """One more of that class (``class_of``)."""
        self.quantiles = None
        self._size += 1
        try:
            self._counts[number] += 1
        except IndexError:
            self._counts.extend(repeat(0, number + 1 - len(self._counts)))
            self._counts[number] = 1

    def drop(self, numbers: Mapping[int, int]) -> None:
        """So many of each class are gone, all of which were added."""
        self.quantiles = None
        for number, count in numbers.items():
            self._counts[number] -= count
            self._size -= count

    def at(self, *indices: int) -> tuple[int, ...]:
        """The durations at these indices of all of them in order, in milliseconds. Raises IndexError."""
        if not all(0 <= index < self._size for index in indices):
            raise IndexError(indices)
        upto = list(accumulate(self._counts))
        return tuple(_middle_of(bisect_right(upto, index)) for index in indices)


def class_of(ms: int) -> int:
    """0 for nothing; durations of one class differ by a hundredth at most."""
    return 1 + int(log(ms) / _STEP) if ms > 0 else 0


def _middle_of(number: int) -> int:
    return round(exp((number - 0.5) * _STEP)) if number else 0
