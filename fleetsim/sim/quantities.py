"""The quantities in a scenario: spans, rates, times of day, and amounts that vary. Pure: randomness is handed in."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random  # noqa: TID251 - the type of a stream of chance, which the caller hands in
from typing import Annotated, Generic, Self, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from fleetsim.model.spans import SECONDS_IN, SPAN, seconds_of
from fleetsim.runtime.explain import Span

_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)")
NORMAL_95 = 1.6448536269514722
"""How many standard deviations the 95th percentile of a normal distribution lies above its middle."""


def per_second(text: object) -> float:
    """How many a second a rate such as ``12/h`` or ``2/s`` is. Raises ValueError."""
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not float(match[1]) > 0:
        raise ValueError("must be a rate such as 12/h, 3/m or 0.5/s")
    return float(match[1]) / SECONDS_IN[match[2]]


Rate: TypeAlias = Annotated[
    float,
    BeforeValidator(per_second),
    WithJsonSchema({"type": "string", "pattern": f"^{_RATE.pattern}$", "examples": ["12/h", "2/s"]}),
]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Moment(str):
    """A moment of a run: a span after its start, or a time of day (``14:00``), the first one after its start."""

    __slots__ = ()

    @classmethod
    def read(cls, text: object) -> Moment:
        """Check it. Raises ValueError."""
        if isinstance(text, str) and re.fullmatch(f"{SPAN}|{_CLOCK}", text.strip(), re.ASCII):
            return cls(text.strip())
        raise ValueError("must be a time of day such as 14:00, or a span after the start such as 2h")

    def after(self, start: datetime) -> float:
        """Seconds from ``start``, on the clock of its zone."""
        if ":" not in self:
            return seconds_of(str(self))
        hour, minute = map(int, self.split(":"))
        at = start.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (at - start if at >= start else at + timedelta(days=1) - start).total_seconds()


When: TypeAlias = Annotated[
    Moment,
    PlainValidator(Moment.read),
    WithJsonSchema({"type": "string", "pattern": f"^({SPAN}|{_CLOCK})$", "examples": ["14:00", "2h"]}),
]


A = TypeVar("A", bound=float)


class _Spread(BaseModel, Generic[A]):
    """An amount that varies, in one of four forms."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    p50: A | None = None
    """Half of the amounts lie below this; with p95, of a log-normal distribution, as durations and costs mostly are."""
    p95: A | None = None
    """One in twenty lies above this."""
    low: A | None = None
    """The least, with high: all between are as likely."""
    high: A | None = None
    """The most."""
    mean: A | None = None
    """The mean of an exponential distribution."""
    quantiles: Annotated[list[A], Field(min_length=2, max_length=201)] | None = None
    """Amounts as they were seen, in order: as many lie between any two neighbours. A fitted scenario has these."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = self.model_fields_set
        if given not in ({"p50", "p95"}, {"low", "high"}, {"mean"}, {"quantiles"}):
            raise ValueError("must be one amount, or p50 and p95, or low and high, or mean, or quantiles")
        if self.p50 is not None and self.p95 is not None and not 0 < self.p50 <= self.p95:
            raise ValueError("p50 must be more than 0, and p95 no less than it")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low must not be more than high")
        if self.quantiles is not None and sorted(self.quantiles) != self.quantiles:
            raise ValueError("quantiles must be in order")
        return self

    def draw(self, rng: Random) -> float:
        if self.p50 is not None and self.p95 is not None:
            sigma = math.log(self.p95 / self.p50) / NORMAL_95
            return self.p50 * math.exp(rng.gauss(0.0, 1.0) * sigma)
        if self.low is not None and self.high is not None:
            return rng.uniform(self.low, self.high)
        if self.mean is not None:
            return rng.expovariate(1.0) * self.mean
        return between(self.quantiles or [], rng.random())


class SpanSpread(_Spread[Span]):
    """A span that varies: ``{p50: 20s, p95: 90s}``."""


_Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]


class NumberSpread(_Spread[_Amount]):
    """A number that varies: ``{low: 3, high: 12}``."""


Spans: TypeAlias = SpanSpread | Span
Numbers: TypeAlias = NumberSpread | _Amount


def draw(amount: SpanSpread | NumberSpread | float, rng: Random) -> float:
    """Draws one amount. The number of draws does not depend on the result."""
    return amount.draw(rng) if isinstance(amount, _Spread) else amount


def between(quantiles: Sequence[float], share: float) -> float:
    """The amount below which ``share`` of all lie, on the line through ``quantiles``, which lie evenly."""
    at = share * (len(quantiles) - 1)
    below = min(int(at), len(quantiles) - 2)
    return quantiles[below] + (quantiles[below + 1] - quantiles[below]) * (at - below)
