"""How a probe says what it found.

It returns when the promise is kept and raises a ``Stop`` otherwise. ``demand`` fails the promise; ``need`` only
says that the probe could not get to it, so that one broken promise is told once and not by every probe that
leans on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from fleetsim.check.row import Verdict


@dataclass(slots=True)
class Waits:
    """Whether something was waited for in vain, which another time it may not be."""

    in_vain: bool = False


WAITS: ContextVar[Waits | None] = ContextVar("waits", default=None)
"""Those of the probe under way."""


def waited_in_vain() -> None:
    """Note that the time for something was over before it came."""
    if (waits := WAITS.get()) is not None:
        waits.in_vain = True


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
