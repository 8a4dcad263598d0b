"""When the requests of a scenario come in. Pure but for the chance that is handed in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from random import Random  # noqa: TID251 - the type of a stream of chance, which the caller hands in

from fleetsim.sim.scenario import Traffic

DAY_S = 86_400.0


def arrivals(traffic: Traffic, rng: Random, *, start: datetime, duration: float) -> Iterator[float]:
    """Seconds after the start at which requests (or conversations) begin, in order; bursts as single requests.

    With a curve the rate is that of the mean weight: candidates come at the rate of the highest weight, and each is
    taken with the share that its time has of that (thinning; Lewis and Shedler, 1979).
    """
    begins = traffic.begins.after(start) if traffic.begins is not None else 0.0
    ends = min(duration, traffic.ends.after(start)) if traffic.ends is not None else duration
    curve = traffic.curve or [1.0]
    highest = max(curve)
    mean = sum(curve) / len(curve)
    if mean <= 0:
        return
    peak = traffic.rate * highest / mean
    midnight = start.hour * 3_600 + start.minute * 60 + start.second
    at, waiting = begins, []
    while True:
        at += 1 / peak if traffic.arrivals == "steady" else rng.expovariate(peak)
        if at >= ends:
            break
        weight = curve[int((midnight + at) % DAY_S / DAY_S * len(curve))]
        if rng.random() * highest >= weight:
            continue
        if traffic.burst == 1:
            yield at
            continue
        waiting += [at + rng.uniform(0.0, traffic.within) for _ in range(traffic.burst)]
        waiting.sort()
        while waiting and waiting[0] <= at:
            yield waiting.pop(0)
    yield from (moment for moment in waiting if moment < ends)
