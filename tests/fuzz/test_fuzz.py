"""A smaller ``make fuzz``, and proof that it would see a fault."""

from __future__ import annotations

import pytest

from tests.fuzz.run import TARGETS, drive
from tests.fuzz.target import Target
from tests.scale import scaled

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_but_declared_errors_escapes(target: Target) -> None:
    count = 320 if target.name == "schedule" else scaled(9_600, share=10)
    done = drive(target, seed=1, seconds=500, inputs_max=count)  # by number: how fast they go is the machine's affair
    assert done.inputs >= count
    assert done.taken, "some inputs must be near enough to be taken"
    assert done.taken < done.inputs or target.name == "schedule", "and some far enough to be refused"
