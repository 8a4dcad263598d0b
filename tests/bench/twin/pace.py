"""How the agents of the trial behave. The standard library alone: programs on other SDKs read it too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

NORMAL_95 = 1.6448536269514722
SKILL = "mill"


@dataclass(frozen=True)
class Pace:
    """Of one agent: seconds that half and 95 of 100 tasks take at most, and which share takes ``long_s`` besides;
    pieces of an answer, shares that fail and that ask, cost in US dollars."""

    p50_s: float
    p95_s: float
    pieces: int = 1
    fails: float = 0.0
    asks: float = 0.0
    cost: tuple[float, float] = (0.0, 0.0)
    long_share: float = 0.0
    long_s: float = 0.0
    dialect: str = "0.3"
    streaming: bool = True
    push: bool = True
    sdk: str = ""


@dataclass(frozen=True)
class Work:
    """The work of one task."""

    seconds: float
    fails: bool
    asks: bool
    cost_usd: float


AGENTS = {
    "quinn": Pace(0.6, 1.5, pieces=4, fails=0.06, cost=(0.01, 0.03)),
    "herald": Pace(0.4, 0.9, pieces=3, fails=0.03, cost=(0.002, 0.004), sdk="py03"),
    "archivist": Pace(0.8, 2.0, fails=0.1, cost=(0.0, 0.01), sdk="py10"),
    "protopen": Pace(0.3, 0.6, long_share=0.25, long_s=1.2, asks=0.2, cost=(0.005, 0.006), dialect="1.0"),
    "poller": Pace(0.5, 1.8, fails=0.04, streaming=False, push=False),
}


def drawn(pace: Pace, rng: Random, slower: float) -> Work:
    """One task."""
    sigma = math.log(pace.p95_s / pace.p50_s) / NORMAL_95
    seconds = pace.p50_s * math.exp(rng.gauss(0.0, sigma)) + (pace.long_s if rng.random() < pace.long_share else 0.0)
    return Work(seconds * slower, rng.random() < pace.fails, rng.random() < pace.asks, rng.uniform(*pace.cost))
