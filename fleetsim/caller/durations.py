"""Durations of a day, each of which comes and goes in a moment, and their quantiles, read without looking at all. Pure.

Durations are whole milliseconds, and many are alike: each is counted under itself, within a class of those that differ
by a hundredth at most. A quantile goes along the classes, of which there are some hundreds however many durations there
are, and then along the few of one class. Up to ``EXACT_MAX`` durations it is exact; beyond that they are counted by
class alone, and it is right to half a hundredth.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import accumulate
from math import exp, log

EXACT_MAX = 50_000
_STEP = log(1.01)


class Durations:
    """A set of durations in milliseconds, the same one as often as it came."""

    def __init__(self, *, exact_max: int = EXACT_MAX) -> None:
        self._exact_max = exact_max
        self._classes: list[int] = []
        self._counts: dict[int, int] = {}
        self._within: dict[int, dict[int, int]] | None = {}
        self._upto: list[int] | None = []
        """How many there are up to each class, itself included; None once that is out of date."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, ms: int) -> None:
        """One more."""
        self._upto = None
        number = _class_of(ms)
        if number in self._counts:
            self._counts[number] += 1
        else:
            insort(self._classes, number)
            self._counts[number] = 1
        self._size += 1
        if self._within is not None:
            within = self._within.get(number)
            if within is None:
                within = self._within[number] = {}
            within[ms] = within.get(ms, 0) + 1
            if self._size > self._exact_max:
                self._within = None

    def drop(self, ms: int) -> None:
        """One that was added is gone."""
        self._upto = None
        number = _class_of(ms)
        self._size -= 1
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number]
            del self._classes[bisect_left(self._classes, number)]
        if not self._size:
            self._within = {}
        elif self._within is not None:
            within = self._within[number]
            within[ms] -= 1
            if not within[ms]:
                del within[ms]
            if not within:
                del self._within[number]

    def at(self, *indices: int) -> tuple[int, ...]:
        """The durations at these indices of all of them in order. Raises IndexError."""
        if self._upto is None:
            self._upto = list(accumulate(map(self._counts.__getitem__, self._classes)))
        found = []
        for index in indices:
            place = bisect_right(self._upto, index)
            found.append(self._one_of(self._classes[place], index - (self._upto[place - 1] if place else 0)))
        return tuple(found)

    def _one_of(self, number: int, index: int) -> int:
        if self._within is None:
            return round(exp((number - 0.5) * _STEP)) if number else 0
        for ms, count in sorted(self._within[number].items()):
            index -= count
            if index < 0:
                return ms
        raise IndexError(index)


def _class_of(ms: int) -> int:
    """0 for nothing; durations of one class differ by a hundredth at most."""
    return 1 + int(log(ms) / _STEP) if ms > 0 else 0
