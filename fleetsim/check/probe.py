"""How a probe is registered and how it says what it found.

A probe is an async function of a ``Session`` that returns when the promise is kept and raises a ``Stop``
otherwise. ``demand`` fails the promise; ``need`` only says that the probe could not get to it, so that one
broken promise is told once and not by every probe that leans on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fleetsim.check.row import Verdict
from fleetsim.check.rows import ROWS

if TYPE_CHECKING:
    from fleetsim.check.session import Session


class Evidence(Protocol):
    """Something a person can be shown."""

    def shown(self) -> str:
        """As text, trimmed and without secrets."""
        ...


class Stop(Exception):
    """A probe's verdict other than pass; ``lost`` if a connection or the probe itself broke."""

    def __init__(self, verdict: Verdict, reason: str, evidence: Sequence[Evidence] = (), *, lost: bool = False) -> None:
        super().__init__(reason)
        self.verdict, self.reason, self.evidence, self.lost = verdict, reason, tuple(evidence), lost


def demand(kept: object, reason: str, *evidence: Evidence) -> None:
    """Fail the promise unless it is kept."""
    if not kept:
        raise Stop(Verdict.FAIL, reason, evidence)


def need(there: object, reason: str, *evidence: Evidence) -> None:
    """Say that the promise could not be tested unless what the probe leans on is there."""
    if not there:
        raise Stop(Verdict.NOT_TESTED, reason, evidence)


def applies(there: object, reason: str) -> None:
    """Say that the promise does not apply unless it does."""
    if not there:
        raise Stop(Verdict.NOT_APPLICABLE, reason)


class Phase(IntEnum):
    """When a probe runs: by itself because it takes times, among others, or at the end of everything."""

    ALONE = 0
    TOGETHER = 1
    LAST = 2


SLOW_S = 4.0
"""What a row with the slow skill takes unless it says otherwise."""

Probing: TypeAlias = Callable[["Session"], Awaitable[None]]


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
