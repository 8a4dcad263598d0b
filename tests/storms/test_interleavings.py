"""A property over random interleavings through receiver, tracker, executor and the reference agent.

Each seed is three requests under its own faults. ``make storm SEEDS=134`` is a part of every submission.
"""

from __future__ import annotations

import os

import pytest

from fleetsim.testbed.loop import run
from tests.scale import scaled
from tests.storms.interleavings import storm

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("STORM_SEEDS", scaled(668, share=20)))
FIRST = int(os.environ.get("STORM_FIRST", "0"))
BLOCKS = 8


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_request_ends_once_with_its_whole_text_and_cost(block: int) -> None:
    for seed in range(FIRST + block, FIRST + SEEDS, BLOCKS):
        run(lambda seed=seed: storm(seed), seed=seed, shuffle=seed % 2 == 1)
