"""Limits that refuse requests: their periods, what a request books in them, and whether there is room. Pure.

An amount is a whole number: of requests, tokens, or millionths of a US dollar. A request books in each limit that
applies to it, in the transaction of the ledger that accepts it. In limits of dollars and tokens it reserves an
estimate, which the real amount replaces in the transaction of its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from fleetsim.ceremony.cron import first_instant
from fleetsim.ceremony.file import zone_of
from fleetsim.model.errors import OverLimit, UnfitAnswer
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest
from fleetsim.runtime.explain import DECLARED

MICRO = 1_000_000


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    USD = "usd"
    TOKENS = "tokens"

    def amount(self, number: float) -> int:
        return round(number * MICRO) if self is Unit.USD else round(number)

    def number(self, amount: int) -> float:
        return amount / MICRO if self is Unit.USD else amount

    def shown(self, number: float) -> str:
        return f"${number:,.2f}" if self is Unit.USD else f"{number:,.0f} {self}"


class Period(NamedTuple):
    """``key`` names it: the local date or month, so it stays the same if the zone changes; an hour has its offset."""

    key: str
    ends: datetime


def period_at(per: str, zone: str, now: datetime) -> Period:
    """The hour, day or month of the zone that has ``now`` in it. An hour is one of local wall time."""
    place = zone_of(zone)
    local = now.astimezone(place)
    if per == "hour":
        begins = local.replace(minute=0, second=0, microsecond=0)
        past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        key, ends = begins.isoformat(timespec="minutes"), now.astimezone(UTC) - past + timedelta(hours=1)
        return Period(key, _fixed(ends.astimezone(place)))
    day = local.date()
    after = day + timedelta(days=1) if per == "day" else (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    key = day.isoformat() if per == "day" else f"{day:%Y-%m}"
    return Period(key, _fixed(first_instant(datetime.combine(after, time()), place).astimezone(place)))


def _fixed(at: datetime) -> datetime:
    """The date with its offset alone: comparisons of a repeated hour by its zone are wrong (PEP 495)."""
    return at.replace(tzinfo=timezone(at.utcoffset() or timedelta()))


Count: TypeAlias = Annotated[int, Field(ge=0, le=10**15, strict=True)]
_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One entry of ``limits``: exactly one of requests, usd and tokens."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED | ConfigDict(alias_generator=to_camel)
    requests: Count | None = None
    """How many requests are accepted."""
    usd: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """How many US dollars they may cost, by the agents' cost-v1 or the rates."""
    tokens: Count | None = None
    """How many tokens they may use, input and output."""
    per: Literal["hour", "day", "month"] = "day"
    """In which period of local time."""
    zone: _Name = "UTC"
    """The zone of that time, such as Europe/Berlin."""
    agent: _Name | None = None
    """Only requests to this agent."""
    skill: _Name | None = None
    """Only requests for this skill."""
    key: _Name | None = None
    """Only requests with the key of this agent (agent-keys.yaml), and of the ceremonies that it created."""
    ceremony: _Name | None = None
    """Only requests of this ceremony."""
    reserve: Annotated[float, Field(gt=0, le=1e15)] | None = None
    """The dollars or tokens that an open request reserves while fewer than 20 costs of its skill are known; a
    hundredth of the limit unless given. Then it is the 95th percentile."""
    at_limit: Literal["refuse", "ask"] = "refuse"
    """At the limit, requests are refused, or held while one question asks a person for all of them."""

    @property
    def units(self) -> dict[Unit, float]:
        """The units that are given: one, in a checked limit."""
        return {unit: number for unit in Unit if (number := getattr(self, unit)) is not None}

    def applies(self, request: SkillRequest, agent: str, skill: str) -> bool:
        """Whether a request of that agent and skill counts."""
        source = request.source
        ceremony = request.metadata.get("ceremonyId") if source.interface == "cron" else None
        chosen = (self.agent, agent), (self.skill, skill), (self.key, source.user_id), (self.ceremony, ceremony)
        return all(wanted in {None, value} for wanted, value in chosen)

    def booking(self, name: str, now: datetime, estimates: Mapping[Unit, float]) -> Booking:
        """What a request books when it is accepted. ``estimates`` has the units of which enough costs are known."""
        ((unit, most),) = self.units.items()
        at_once, period = unit is Unit.REQUESTS, period_at(self.per, self.zone, now)
        fixed = most / 100 if self.reserve is None else self.reserve
        return Booking(
            limit=name,
            unit=unit,
            period=period.key,
            ends=period.ends,
            used=1 if at_once else 0,
            reserved=0 if at_once else max(1, unit.amount(estimates.get(unit, fixed))),
            most=unit.amount(most),
            agent=self.agent or "",
        )


class Booking(Struct, frozen=True, kw_only=True):
    """A change of what is used and reserved in one period of a limit. There must be room for it below ``most``, unless
    that is None. ``raised`` adds to the limit in this period alone, which ends at ``ends``. ``agent`` is the limit's.
    ``question`` is the number of the question whose answer raises it, once.
    """

    limit: str
    unit: Unit
    period: str
    ends: datetime
    used: int = 0
    reserved: int = 0
    raised: int = 0
    most: int | None = None
    agent: str = ""
    question: int | None = None

    @property
    def key(self) -> PeriodKey:
        return self.limit, self.period


PeriodKey: TypeAlias = tuple[str, str]
"""A limit and one of its periods."""


class LimitUse(Struct, frozen=True, kw_only=True):
    """The amounts in one period of a limit. Its questions below the number ``questions`` have had their effect."""

    used: int = 0
    reserved: int = 0
    raised: int = 0
    questions: int = 0


def book(uses: Mapping[PeriodKey, LimitUse], bookings: Iterable[Booking]) -> dict[PeriodKey, LimitUse] | OverLimit:
    """The uses that change with all of the bookings, or the refusal by the first limit without room."""
    changed: dict[PeriodKey, LimitUse] = {}
    for booking in bookings:
        use = changed.get(booking.key) or uses.get(booking.key) or LimitUse()
        more = booking.used + booking.reserved
        if booking.most is not None and use.used + use.reserved + more > booking.most + use.raised:
            return refusal(booking, use, booking.most)
        if booking.question is not None and booking.question < use.questions:
            continue
        changed[booking.key] = LimitUse(
            used=use.used + booking.used,
            reserved=use.reserved + booking.reserved,
            raised=use.raised + booking.raised,
            questions=use.questions if booking.question is None else booking.question + 1,
        )
    return changed


def refusal(booking: Booking, use: LimitUse, most: int) -> OverLimit:
    """The refusal of a request for which a limit has no room."""
    limit, used, reserved, more = (
        booking.unit.shown(booking.unit.number(amount))
        for amount in (most + use.raised, use.used, use.reserved, booking.reserved)
    )
    apart = f", {reserved} reserved by open requests, and this one reserves {more}" if booking.reserved else ""
    ends = booking.ends.isoformat(timespec="minutes")
    words = f"the limit {booking.limit} of {limit} is reached until {ends}: {used} used{apart}"
    refused = OverLimit(words)
    refused.limit, refused.resets_at = booking.limit, booking.ends
    return refused


def raise_in(answer: str, approved: float = 1) -> float:
    """The number in the answer to a limit's question; ``approved`` for “approve”. Raises UnfitAnswer for others."""
    with suppress(ValueError):
        if 0 < (number := approved if answer.strip().casefold() == "approve" else float(answer)) <= 1e9:
            return number
    raise UnfitAnswer("the answer is “approve”, or the number to raise the limit by")


def settlement(bookings: Iterable[Booking], outcome: Outcome, *, sent: bool) -> tuple[Booking, ...]:
    """What the outcome of a request books: its real amounts in place of the reserved ones.

    A request that no agent accepted cost nothing. Where an agent named no amount, the reserved one counts. The limits
    of agents that did not get it in the end are as before.
    """
    usage, settled = outcome.usage, []
    for booking in bookings:
        if elsewhere := booking.agent not in {"", outcome.agent}:
            settled.append(replace(booking, used=-booking.used, reserved=-booking.reserved, most=None))
        if elsewhere or booking.unit is Unit.REQUESTS:
            continue
        number = outcome.cost_usd
        if booking.unit is Unit.TOKENS:
            number = None if usage is None else usage.input_tokens + usage.output_tokens
        unknown = booking.reserved if sent and outcome.kind is not OutcomeKind.UNDELIVERABLE else 0
        used = unknown if number is None else booking.unit.amount(number)
        settled.append(replace(booking, used=used, reserved=-booking.reserved, most=None))
    return tuple(settled)
