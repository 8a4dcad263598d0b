"""Two times of a fleet compared: figures that differ by more than chance, and figures of one side only."""

from __future__ import annotations

from random import Random

import pytest

from fleetsim.model.work import Outcome
from fleetsim.sim.comparison import Comparison, Difference, FitVerdict, compare, rows, verdict_of
from fleetsim.sim.observed import Observed
from tests.sim.outcomes import failed, outcome, seen


def day(seed: int, *, count: int = 400, slower: float = 1.0, fails: float = 0.05, skill: str = "review") -> Observed:
    rng = Random(seed)

    def one(number: int) -> Outcome:
        took_s = rng.lognormvariate(0.0, 0.5) * slower
        made = failed if rng.random() < fails else outcome
        return made(f"c{number}", number, took_s=took_s, cost_usd=rng.uniform(0.01, 0.03), skill=skill)

    return seen(one(number) for number in range(count))


def by_figure(comparison: Comparison) -> dict[str, Difference]:
    return {difference.measure.name: difference for difference in comparison.differences}


def test_the_same_side_twice_has_no_difference_and_lies_in_its_own_intervals() -> None:
    found = compare(day(1), day(1))
    names = [d.measure.name for d in found.differences]
    assert names == ["p50", "p95", "success_rate", "cost", "volume", "gap_p50"]
    assert found.verdict is FitVerdict.FITS
    assert all(d.within and not d.significant and d.relative == 0 for d in found.differences)


@pytest.mark.slow
def test_chance_alone_is_not_a_difference() -> None:
    told = [compare(day(2 * n), day(2 * n + 1)) for n in range(20)]
    assert sum(bool(found.beyond(0.0)) for found in told) <= 3, "95 of 100 comparisons of the same fleet say so"


def test_a_side_that_is_twice_as_slow_differs_only_in_its_times() -> None:
    found = by_figure(compare(day(1), day(2, slower=2.0)))
    assert {name for name, d in found.items() if d.significant} == {"p50", "p95"}
    relative = found["p50"].relative
    assert relative is not None
    assert 0.8 < relative < 1.25
    assert verdict_of(found["p50"]) == "off"


def test_a_side_that_fails_more_often_differs_in_its_success() -> None:
    found = compare(day(1), day(2, fails=0.3))
    assert {d.measure.name for d in found.differences if d.significant} == {"success_rate"}
    assert [d.measure.name for d in found.beyond(0.2)] == ["success_rate"]
    assert found.beyond(0.5) == ()


def test_a_figure_of_one_side_only_is_named() -> None:
    found = compare(day(1, count=5), day(1, count=5, skill="audit"))
    assert {(d.skill, d.measure.name) for d in found.differences} == {("review", "volume"), ("audit", "volume")}
    assert (found.only_a, found.only_b) == ((("quinn", "review"),), (("quinn", "audit"),))


def test_a_recorded_skill_that_was_not_played_is_a_misfit_however_well_the_others_fit() -> None:
    both = [*day(1).outcomes, *day(2, count=2, skill="audit").outcomes]
    found = compare(seen(both), day(1))
    assert found.verdict is FitVerdict.NOT
    (off,) = [d for d in found.differences if verdict_of(d) not in {"within", "near"}]
    assert (off.skill, off.measure.name, off.tasks, verdict_of(off)) == ("audit", "volume", (2, 0), "not played")


def test_a_twin_of_a_few_outcomes_gets_no_verdict() -> None:
    few, played = day(1, count=29), day(2, count=3, skill="audit")
    assert compare(few, played).verdict is FitVerdict.TOO_FEW
    assert {row[-1] for row in rows(compare(few, played), fit=True)} == {""}
    assert compare(day(1, count=30), played).verdict is FitVerdict.NOT


def test_volume_and_arrivals_are_compared() -> None:
    rng = Random(1)
    by_chance = sorted(rng.uniform(0, 36_000) for _ in range(400))
    recorded = seen(outcome(f"c{n}", at) for n, at in enumerate(by_chance))
    even = seen(outcome(f"c{n}", n * 90) for n in range(400))
    half = seen(outcome(f"c{n}", n * 180) for n in range(200))
    assert {name for name, d in by_figure(compare(recorded, even)).items() if verdict_of(d) == "off"} == {"gap_p50"}
    off = {name: d for name, d in by_figure(compare(recorded, half)).items() if verdict_of(d) == "off"}
    assert off.keys() == {"volume", "gap_p50"}
    assert (off["volume"].a, off["volume"].b) == (pytest.approx(40, rel=0.01), pytest.approx(20, rel=0.01))
    assert compare(recorded, half).verdict is FitVerdict.PARTLY


def test_a_figure_without_data_is_left_out() -> None:
    free = seen(outcome(f"c{n}", n) for n in range(5))
    assert "cost" not in by_figure(compare(day(1), free))


def test_the_table_names_the_figure_its_samples_and_its_difference() -> None:
    (p50, *_) = rows(compare(day(1), day(2, slower=2.0)), fit=False)
    assert p50[:3] == ("quinn/review", "p50", "400 / 400")
    assert p50[5].startswith("+")
    assert p50[-1] == "differs"


@pytest.mark.slow
def test_the_same_two_sides_give_the_same_table() -> None:
    assert list(rows(compare(day(1), day(2)), fit=True)) == list(rows(compare(day(1), day(2)), fit=True))
