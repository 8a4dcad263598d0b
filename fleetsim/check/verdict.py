"""The four verdicts, and how a probe gives one.

A probe returns when the requirement is met and raises ``NotPassed`` otherwise, by one of three helpers named after
the verdicts. ``fail_unless`` blames the agent for this requirement. ``not_tested_unless`` only says that the probe
could not get to it, so that one broken promise is told once and not by every probe that leans on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from fleetsim.check.exchange import Exchange

T = TypeVar("T")


class Verdict(StrEnum):
    """What a probe found. The four never blur: a promise nobody looked at has not been kept."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    NOT_TESTED = "not tested"


@dataclass(slots=True)
class Timeouts:
    """Whether a wait ran out; on a busy machine it may not another time, so such a probe is repeated alone."""

    noted: bool = False


TIMEOUTS: ContextVar[Timeouts | None] = ContextVar("timeouts", default=None)
"""Those of the probe under way; each asyncio task of a probe sees its probe's."""


def note_timeout() -> None:
    """Note, for the probe under way, that the time for something was over before it came."""
    if (timeouts := TIMEOUTS.get()) is not None:
        timeouts.noted = True


class Evidence(Protocol):
    """What a verdict is founded on and a person can be shown: an exchange or a webhook that came."""

    def shown(self) -> str:
        """As text for a report, trimmed and without secrets."""
        ...


class NotPassed(Exception):
    """A probe's verdict other than pass; ``lost`` if a connection or the probe itself broke."""

    def __init__(self, verdict: Verdict, reason: str, evidence: Sequence[Evidence] = (), *, lost: bool = False) -> None:
        super().__init__(reason)
        self.verdict, self.reason, self.evidence, self.lost = verdict, reason, tuple(evidence), lost


def fail_unless(kept: T | None, reason: str, *evidence: Evidence) -> T:
    """End the probe with *fail* unless the agent keeps what the requirement asks; returns ``kept``."""
    if not kept:
        raise NotPassed(Verdict.FAIL, reason, evidence)
    return kept


def not_tested_unless(there: T | None, reason: str, *evidence: Evidence) -> T:
    """End the probe with *not tested* unless what it leans on (an answer, a skill, a webhook) is there; returns it."""
    if not there:
        raise NotPassed(Verdict.NOT_TESTED, reason, evidence)
    return there


def not_applicable_unless(there: object, reason: str) -> None:
    """End the probe with *not applicable* unless the agent offers what the requirement is about."""
    if not there:
        raise NotPassed(Verdict.NOT_APPLICABLE, reason)


def fail_unless_error(exchange: Exchange, what: str, *codes: int) -> None:
    """End the probe with *fail* unless the answer is a JSON-RPC error of one of these codes; ``what`` was asked."""
    wanted = " or ".join(map(str, codes))
    fail_unless(exchange.code in codes, f"{what} must be {wanted}, not {exchange}", exchange)
