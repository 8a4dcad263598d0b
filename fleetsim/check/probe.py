"""How a probe is registered: an async function of a ``Session``, for one row. How it speaks: ``found``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from fleetsim.check.rows import ROWS
from fleetsim.check.session import Session


class Phase(IntEnum):
    """When a probe runs: by itself because it takes times, among others, or at the end of everything."""

    ALONE = 0
    TOGETHER = 1
    LAST = 2


SLOW_S = 4.0
"""What a row with the slow skill takes unless it says otherwise."""

Probing: TypeAlias = Callable[[Session], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of one row. ``lasts_s`` says about how many seconds it waits; the longest begin first."""

    row_id: str
    run: Probing
    phase: Phase
    lasts_s: float


PROBES: dict[str, Probe] = {}
"""The probe of each row, filled by importing ``fleetsim.check.probes``."""


def probe(row_id: str, phase: Phase = Phase.TOGETHER, *, lasts_s: float = 0.0) -> Callable[[Probing], Probing]:
    """Register a probe. Raises ValueError for an unknown row or a second probe of one."""

    def register(run: Probing) -> Probing:
        if row_id not in ROWS or row_id in PROBES:
            raise ValueError(f"{row_id}: no such row, or probed already")
        usual = SLOW_S if "slow" in ROWS[row_id].needs else 0.0
        PROBES[row_id] = Probe(row_id, run, phase, lasts_s or usual)
        return run

    return register
