"""Outcomes by time, in cells of a width that suits the hub's age. Pure."""

from __future__ import annotations

from datetime import datetime

DAY_S = 24 * 3600
FINE_S = 15
COARSE_S = 900
CELLS = 16
SPANS = (("4m", 240), ("16m", 960), ("1h", 3600), ("4h", 14_400), ("24h", DAY_S))
"""The widths a trend can have: the smallest that covers the hub's life is shown."""


def span_for(age_s: float) -> tuple[str, int]:
    """The label and width in seconds of a trend for a hub that is ``age_s`` old."""
    return next((item for item in SPANS if item[1] >= age_s), SPANS[-1])


class Trend:
    """Successes and outcomes per quarter of a minute for an hour, and per quarter of an hour for a day."""

    def __init__(self) -> None:
        self._fine: dict[int, tuple[int, int]] = {}
        self._coarse: dict[int, tuple[int, int]] = {}

    def add(self, at: datetime, ok: bool) -> None:
        """One outcome the agent answers for."""
        second = int(at.timestamp())
        for cells, size, keep in ((self._fine, FINE_S, 3600), (self._coarse, COARSE_S, DAY_S)):
            good, all_ = cells.get(second // size, (0, 0))
            cells[second // size] = (good + ok, all_ + 1)
            if len(cells) > 2 * keep // size:
                for old in sorted(cells)[: -keep // size]:
                    del cells[old]

    def cells(self, now: datetime, seconds: int) -> tuple[tuple[int, int], ...]:
        """(successes, outcomes) per cell, oldest first, of the ``seconds`` that end with the current cell."""
        source, size = (self._fine, FINE_S) if seconds <= 3600 else (self._coarse, COARSE_S)
        per_cell = seconds // CELLS // size
        first = int(now.timestamp()) // size - CELLS * per_cell + 1
        found: list[tuple[int, int]] = []
        for cell in range(CELLS):
            parts = [source.get(first + cell * per_cell + at, (0, 0)) for at in range(per_cell)]
            found.append((sum(good for good, _ in parts), sum(all_ for _, all_ in parts)))
        return tuple(found)
