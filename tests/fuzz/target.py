"""The form of every fuzz target: the source of its inputs, and the allowed results of one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.mutate import Mutator


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``draw`` makes the next input, ``judge`` uses it. ``judge`` says whether the input was accepted. Any error of it
    is a finding: the errors a reader declares are caught inside it, and nothing else is."""

    name: str
    promise: str
    draw: Callable[[random.Random], Callable[[], bytes]]
    judge: Callable[[bytes], bool]


def mutated(*seeds: bytes) -> Callable[[random.Random], Callable[[], bytes]]:
    """Inputs near these."""
    return lambda rng: Mutator(seeds, rng).next
