"""Counts over time, in cells: successes and outcomes, or webhooks. Pure."""

from __future__ import annotations

from datetime import datetime

from fleetsim.api.state import TrendCount

DAY_S = 24 * 3600
FINE_S = 15
COARSE_S = 900
CELLS = 16
SPANS = (("4m", 240), ("16m", 960), ("1h", 3600), ("4h", 14_400), ("24h", DAY_S))
"""The possible widths of a trend; the smallest that covers the window is used."""


def span_for(age_s: float) -> tuple[str, int]:
    """The label and width in seconds of a trend over a window of ``age_s``."""
    return next((item for item in SPANS if item[1] >= age_s), SPANS[-1])


class Trend:
    """Successes and outcomes per quarter of a minute for an hour, and per quarter of an hour for a day."""

    def __init__(self) -> None:
        self._fine: dict[int, tuple[int, int]] = {}
        self._coarse: dict[int, tuple[int, int]] = {}

    def add(self, at: datetime, ok: bool) -> None:
        second = int(at.timestamp())
        for cells, size, keep in ((self._fine, FINE_S, 3600), (self._coarse, COARSE_S, DAY_S)):
            good, all_ = cells.get(second // size, (0, 0))
            cells[second // size] = (good + ok, all_ + 1)
            if len(cells) > 2 * keep // size:
                for old in sorted(cells)[: -keep // size]:
                    del cells[old]

    def cells(self, now: datetime, seconds: int) -> tuple[TrendCount, ...]:
        """The cells of the ``seconds`` that end with the current cell, oldest first."""
        source, size = (self._fine, FINE_S) if seconds <= 3600 else (self._coarse, COARSE_S)
        per_cell = seconds // CELLS // size
        first = int(now.timestamp()) // size - CELLS * per_cell + 1
        cells: list[TrendCount] = []
        for cell in range(CELLS):
            parts = [source.get(first + cell * per_cell + at, (0, 0)) for at in range(per_cell)]
            cells.append(TrendCount(sum(good for good, _ in parts), sum(all_ for _, all_ in parts)))
        return tuple(cells)
