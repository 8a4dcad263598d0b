"""What health keeps of outcomes takes little room, and nothing of it is mistaken for another's."""

from __future__ import annotations

import pickle
import tracemalloc
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.caller.health import FleetHealth
from fleetsim.caller.outcome_rows import TOKENS_MAX, OutcomeGroups, RecentIds
from fleetsim.caller.outcome_stats import EXACT_MAX
from fleetsim.model.extensions import Usage
from tests.caller.test_health import NOW, folded, outcome, row


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 300)), max_size=60))
def test_an_id_is_known_until_its_second_is_forgotten(noted: list[tuple[str, int]]) -> None:
    ids, known, cutoff = RecentIds(), dict[str, int](), 0
    for at, (name, second) in enumerate(noted):
        if at % 7 == 6:
            cutoff = 100 + at
            ids.forget_before(cutoff)
        fresh = known.get(name, -1) < cutoff
        assert ids.add(name, second) == fresh
        if fresh:
            known[name] = second


def test_the_room_of_forgotten_ids_is_used_again() -> None:
    ids = RecentIds()
    for second in range(400_000):
        ids.forget_before(second - 1_000)
        assert ids.add(f"c-{second}", second)
    assert len(pickle.dumps(ids)) < 8 * 200_000


def test_a_number_goes_to_another_ending_once_nothing_ended_so() -> None:
    endings = OutcomeGroups()
    first = endings.of(outcome(1))
    first.count = 2
    assert endings.of(outcome(2)) is first
    assert endings.of(outcome(3, system_actor="mcp")).number == 1
    endings.drop(first.number, 2)
    again = endings.of(outcome(4, success=False))
    assert (again.number, endings[0], len(list(endings))) == (0, again, 2)


def test_more_ways_to_end_than_a_short_number_holds_are_told_apart() -> None:
    health = folded(*(outcome(n, system_actor=f"user-{n}", ago_s=1_000) for n in range(66_000)), outcome(70_000))
    actors = health.snapshot(NOW).system_actors
    assert len(actors) == 66_001
    assert {actor.total_outcomes for actor in actors} == {1}
    assert [a.system_actor for a in health.snapshot(NOW + timedelta(days=1, seconds=-500)).system_actors] == ["user"]


def test_what_an_outcome_costs_is_counted_whichever_outcomes_had_told_none_before() -> None:
    told = {"cost_usd": 0.25, "usage": Usage(input_tokens=3, output_tokens=5), "confidence": 0.9}
    health = folded(
        outcome(1, ago_s=90), outcome(2, ago_s=80), outcome(3, ago_s=70, **told), outcome(4, ago_s=85, **told)
    )
    figures = row(health)
    assert (figures.total_cost_usd, figures.input_tokens, figures.output_tokens) == (0.5, 6, 10)
    assert figures.mean_confidence == pytest.approx(0.9)
    later = row(health, now=NOW + timedelta(days=1, seconds=-75))
    assert (later.total_outcomes, later.total_cost_usd, later.input_tokens) == (1, 0.25, 3)


def test_more_tokens_and_time_than_can_be_is_counted_as_the_most_there_is() -> None:
    huge = outcome(1, usage=Usage(input_tokens=10**12, output_tokens=1), duration_ms=10**12)
    health = folded(huge, outcome(2, duration_ms=-5))
    figures = row(health)
    assert (figures.input_tokens, figures.output_tokens, figures.max_latency_ms) == (TOKENS_MAX, 1, 2**32 - 1)
    health.prune(NOW + timedelta(days=2))
    assert len(health) == 0


def test_of_many_outcomes_percentiles_are_right_to_a_hundredth_and_of_few_exact() -> None:
    health = folded(*(outcome(n, duration_ms=1_000 + n) for n in range(EXACT_MAX)))
    assert row(health).p95_latency_ms == 1_000 + int(EXACT_MAX * 0.95)
    health.fold(outcome(EXACT_MAX, duration_ms=1_000 + EXACT_MAX))
    assert row(health).p95_latency_ms == pytest.approx(1_000 + int(EXACT_MAX * 0.95), rel=0.006)


@pytest.mark.slow
def test_an_outcome_is_kept_in_a_tenth_of_a_kilobyte_whatever_it_said() -> None:
    health = FleetHealth()
    usage = Usage(input_tokens=900, output_tokens=100)
    tracemalloc.start()
    try:
        for n in range(50_000):
            health.fold(outcome(n, ago_s=80_000 - n, cost_usd=0.1, usage=usage, text=f"{n:01000d}"))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes / 50_000 < 100


def test_what_is_counted_late_after_a_read_is_in_its_place_in_the_next_of_the_same_moment() -> None:
    health = folded(outcome(1), outcome(2, success=False))
    assert row(health).failure_rate_1h == 0.5
    health.fold(outcome(3, success=False, ago_s=7_200))
    assert row(health).failure_rate_1h == 0.5
    assert [bucket.outcomes for bucket in row(health).trend[-2:]] == [1, 2]
