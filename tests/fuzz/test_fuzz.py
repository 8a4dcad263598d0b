"""A smaller ``make fuzz``, and proof that it would see a fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.fuzz.mutate import Mutator
from tests.fuzz.run import TARGETS, Found, Volume, chosen, drive
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


def test_the_same_seed_makes_the_same_inputs() -> None:
    seeds = [b'{"a": 1}', b"[1, 2]"]
    first, second = Mutator(seeds, random.Random(3)), Mutator(seeds, random.Random(3))
    assert [first.next() for _ in range(200)] == [second.next() for _ in range(200)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_an_undeclared_error_is_found_with_its_input(target: Target) -> None:
    """The fault: whatever was to be taken raises what nobody declared."""

    def broken(data: bytes) -> bool:
        if target.judge(data):
            raise KeyError("undeclared")
        return False

    with pytest.raises(Found) as found:
        drive(replace(target, judge=broken), seed=2, seconds=500)
    assert target.judge(found.value.data)


def test_a_name_that_is_no_target_is_told() -> None:
    assert [target.name for target in chosen(["sse", "auth"])] == ["sse", "auth"]
    assert "8 inputs" in str(Volume(TARGETS[0], inputs=8, taken=1, seconds=1.0))
    with pytest.raises(SystemExit):
        chosen(["nosuch"])
