"""The limits in force: what a request books in them, and what is used of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from fleetsim.api.health import LimitFacts
from fleetsim.ledger import Ledger
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import SkillRequest
from fleetsim.request.limits import Booking, Limit, LimitUse, Unit
from fleetsim.runtime.explain import did_you_mean
from fleetsim.runtime.ports import Clock


class Estimates(Protocol):
    """Knows what requests cost (fleet health)."""

    def estimates(self, agent: str, skill: str, /) -> Mapping[Unit, float]:
        """What a request of the skill costs at most in 95 of 100 cases, in each unit with enough known costs."""


class CurrentLimits:
    """``limits`` are those of agents.yaml in force. ``newest`` is the last result of ``read``."""

    def __init__(self, clock: Clock, ledger: Ledger, costs: Estimates, limits: Mapping[str, Limit]) -> None:
        self.limits = limits
        self.newest: tuple[LimitFacts, ...] = ()
        self._clock, self._ledger, self._costs = clock, ledger, costs

    def bookings(self, request: SkillRequest, skill: str, agents: Sequence[str]) -> tuple[Booking, ...]:
        """What a request books when it is accepted: also in the limits of agents that get it if others fail."""
        now = self._clock.now()
        chosen = {name: [a for a in agents if limit.applies(request, a, skill)] for name, limit in self.limits.items()}
        return tuple(
            self.limits[name].booking(name, now, self._costs.estimates(fitting[0], skill))
            for name, fitting in chosen.items()
            if fitting
        )

    async def read(self) -> tuple[LimitFacts, ...]:
        """What is used of each limit now, at all hubs. Raises NotAccepting."""
        limits, now, facts = self.limits, self._clock.now(), []
        uses = await self._ledger.limit_uses(now) if limits else {}
        for name, limit in limits.items():
            booking = limit.booking(name, now, {})
            use, number = uses.get(booking.key) or LimitUse(), booking.unit.number
            most = (booking.most or 0) + use.raised
            taken = use.used + use.reserved
            chosen = (f"{kind} {of}" for kind in ("agent", "skill", "key", "ceremony") if (of := getattr(limit, kind)))
            facts.append(
                LimitFacts(
                    name=name,
                    subject=", ".join(chosen) or "fleet",
                    unit=booking.unit.value,
                    per=limit.per,
                    zone=limit.zone,
                    most=number(most),
                    raised=number(use.raised),
                    used=number(use.used),
                    reserved=number(use.reserved),
                    left=number(max(0, most - taken)),
                    share=round(taken / most, 4) if most else 1.0,
                    resets_at=booking.ends,
                )
            )
        self.newest = tuple(facts)
        return self.newest

    async def raise_by(self, name: str, number: float) -> LimitFacts:
        """Raise a limit by a number of its unit until its period ends. Raises UnknownTarget and NotAccepting."""
        if name not in self.limits:
            raise UnknownTarget(f"there is no limit “{one_line(name, 64)}”{did_you_mean(name, self.limits)}")
        usual = self.limits[name].booking(name, self._clock.now(), {})
        more = usual.unit.amount(number)
        await self._ledger.book((replace(usual, used=0, reserved=0, raised=more, most=None),))
        return next(facts for facts in await self.read() if facts.name == name)
