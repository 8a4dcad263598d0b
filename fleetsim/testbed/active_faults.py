"""Which faults are up, and for which requests. What a fault is stands in ``faults``."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fleetsim.runtime.ports import Request
from fleetsim.testbed.faults import Fault, Match, Moment


@dataclass(slots=True, kw_only=True)
class Weather:
    """A fault that is up. ``hits`` counts the requests it was applied to; ``lift`` ends it."""

    fault: Fault
    match: Match
    times: int | None
    probability: float
    hits: int = 0
    lifted: bool = False

    def lift(self) -> None:
        """Take the fault down; requests under way keep it."""
        self.lifted = True

    def __enter__(self) -> Weather:
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()


class ActiveFaults:
    """All the weather there is, in the order it was put up."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._weather: list[Weather] = []

    def put_up(self, weather: Weather) -> Weather:
        # What was lifted goes now: a day of a storm puts up hundreds, and each request is held against all there are.
        self._weather = [*(other for other in self._weather if not other.lifted), weather]
        return weather

    def clear(self) -> None:
        for weather in self._weather:
            weather.lift()
        self._weather.clear()

    def over(self, request: Request, source: str) -> list[tuple[Fault, Moment]]:
        """The faults this request meets, each with its own moment; their hits are counted."""
        chosen = []
        for weather in self._weather:
            if weather.lifted or weather.times == weather.hits or not weather.match(request, source):
                continue
            if weather.probability >= 1 or self._rng.random() < weather.probability:
                weather.hits += 1
                chosen.append((weather.fault, Moment(request, self._rng)))
        return chosen
