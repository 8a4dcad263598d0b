"""Many seeds of a scenario on any executor: results in order, totals, and a failing scenario cut down to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fleetsim
from fleetsim.sim.invariants import INVARIANTS
from fleetsim.sim.report import Result
from fleetsim.sim.scenario import (
    Mix,
    ceremonies_of,
    mixed,
    parse_scenario,
    read_scenario,
    scenario_text,
    shipped_scenarios,
    with_mix_written,
    with_seed,
)
from fleetsim.sim.seeds import Coverage, SeedRun, Shrinker, coverage_lines, run_seed, run_seeds
from fleetsim.sim.troubles import KINDS
from tests.scale import scaled, some
from tests.sim.here import Here
from tests.sim.planted import DEFECTS, DRIZZLE, STORM, Planted, look_for
from tests.sim.scenes import run_of

TINY = b"""
name: tiny
duration: 3m
fleet:
  quinn: {skills: {review: {takes: 2s}}}
traffic:
  - {skill: review, rate: 2/m}
mix: {scale: 20}
expect:
  - fleet.success_rate >= 0%
"""


@pytest.mark.slow
def test_seeds_are_reported_in_their_order_and_their_counts_are_added_up() -> None:
    here, coverage = Here(), Coverage()
    for run in run_seeds(here, TINY, "tiny.yaml", {}, first=5, seeds=4):
        coverage.add(run)
    assert (coverage.first, coverage.last, coverage.runs, here.submitted) == (5, 8, 4, 4)
    assert coverage.violated == []
    assert coverage.virtual_s == 4 * 180.0
    assert coverage.cases["I-01"] == coverage.requests > 0
    assert coverage.seeds_with.keys() == KINDS.keys()
    assert coverage.cases.keys() == {invariant.number for invariant in INVARIANTS}
    assert max(coverage.seeds_with.values()) <= 4 <= sum(coverage.seeds_with.values())


def test_the_report_names_the_seeds_of_each_worker_of_a_cluster() -> None:
    coverage = Coverage()
    for seed, worker in enumerate("abaab", 1):
        run = SeedRun(
            seed=seed, result=Result.OK, violations=(), broken=(), times={}, hits={}, cases={}, requests=1,
            duration_s=60.0, cpu_s=1.0, worker=worker, wall_s=2.0,
        )  # fmt: skip
        coverage.add(run)
    lines = list(coverage_lines(coverage, "tiny", wanted=5, wall_s=6.0))
    assert lines[2:4] == ["  a played 3 in 6s: 1, 3-4", "  b played 2 in 4s: 2, 5"]


@pytest.mark.slow
def test_only_the_seeds_that_are_needed_soon_are_submitted() -> None:
    here = Here()
    runs = run_seeds(here, TINY, "tiny.yaml", {}, first=1, seeds=1_000)
    assert next(runs).seed == 1
    runs.close()
    assert here.submitted <= 3


@pytest.mark.slow
def test_a_short_storm_over_a_few_seeds_breaks_no_rule() -> None:
    source, text, folder = read_scenario("storm")
    wanted, written = parse_scenario(text, source)
    ceremonies = ceremonies_of(wanted, written, folder)
    shorter = text.replace(b"duration: 2h", b"duration: 25m").replace(b"mix: {}", b"mix: {scale: 4}")
    coverage = Coverage()
    for run in run_seeds(Here(), shorter, source, ceremonies, first=1, seeds=scaled(10)):
        coverage.add(run)
    assert [run.violations for run in coverage.violated] == []


@pytest.mark.slow
def test_the_written_mix_of_a_seed_gives_the_same_run() -> None:
    source, text, folder = read_scenario("storm")
    wanted, written = parse_scenario(text, source)
    ceremonies = ceremonies_of(wanted, written, folder)
    wanted = with_seed(wanted, 3).model_copy(update={"duration": 900.0, "mix": Mix(scale=5.0)})
    values = {**written.value, "duration": "15m", "seed": 3, "mix": {"scale": 5.0}}
    again, _ = parse_scenario(scenario_text(with_mix_written(values, wanted)), "written")
    assert again.mix is None
    assert len(again.weather) > 10
    there, _ = run_of(wanted, ceremonies)
    here, _ = run_of(again, ceremonies)
    told = [[line for line in run if line["kind"] not in {"mix", "played"}] for run in (there, here)]
    assert told[0] == told[1]


BIG = {
    "name": "big",
    "about": "yes: [no]",
    "duration": "2h",
    "seed": 7,
    "fleet": {
        "quinn": {"replicas": 3, "skills": {"review": {"takes": {"p50": "20s", "p95": "90s"}, "chunks": 6}}},
        "herald": {"skills": {"sitrep": {"takes": "3s"}}},
    },
    "traffic": [{"skill": "review", "rate": "30/h", "turns": 2}, {"skill": "sitrep", "rate": "20/h"}],
    "people": {"answerAfter": "60s"},
    "weather": [
        *({"fault": "junk", "agent": "quinn-2", "at": f"{at}m", "lasts": "30s", "share": 0.25} for at in range(20)),
        {"fault": "hub-restart", "at": "25m"},
        {"fault": "agent-restart", "agent": "herald", "at": "26m", "lasts": "5s"},
    ],
    "expect": ["fleet.success_rate >= 1%"],
}


@pytest.mark.slow
def test_a_cut_down_scenario_is_minimal_and_can_be_read_back() -> None:
    tried: list[str] = []

    def breaks(text: str) -> bool:
        tried.append(text)
        found = parse_scenario(text, "shrunk")[0]
        faults = {trouble.fault for trouble in found.weather}
        return {"hub-restart", "agent-restart"} <= faults and any(t.skill == "sitrep" for t in found.traffic)

    smallest = Shrinker(BIG, breaks, lambda tries, so_far: True).run(1_800.0)
    assert [trouble["fault"] for trouble in smallest["weather"]] == ["hub-restart", "agent-restart"]
    assert smallest["fleet"] == {"herald": {"skills": {"sitrep": {}}}}
    assert smallest["traffic"] == [{"skill": "sitrep", "rate": "20/h"}]
    assert smallest["name"] == "big"
    assert smallest["seed"] == 7
    assert {"people", "expect", "about"}.isdisjoint(smallest)
    assert parse_scenario(scenario_text(smallest), "again")[0].duration < 1_900.0
    assert breaks(scenario_text(smallest))
    assert len(tried) == len(set(tried)) + 1 < 120


def test_cutting_down_ends_on_request_with_the_smallest_scenario_so_far() -> None:
    smallest = Shrinker(BIG, lambda text: "hub-restart" in text, lambda tries, _: tries < 2).run(1_800.0)
    assert smallest["duration"] == "1860s"
    assert len(smallest["weather"]) < 22


def test_a_written_scenario_is_read_back_unchanged() -> None:
    for name in shipped_scenarios():
        source, text, _ = read_scenario(name)
        wanted, written = parse_scenario(text, source)
        assert parse_scenario(scenario_text(written.value), source)[0] == wanted


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_mix_of_any_seed_can_be_read_back(seed: int) -> None:
    wanted, written = parse_scenario(DRIZZLE, "drizzle.yaml")
    values = with_mix_written(written.value, with_seed(wanted, seed))
    assert parse_scenario(scenario_text(values), "written")[1].value == values


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_text_that_a_defect_replaces_occurs_once(defect: Planted) -> None:
    assert (Path(fleetsim.__file__).parent / defect.file).read_text(encoding="utf-8").count(defect.old) == 1


@pytest.mark.slow
@pytest.mark.parametrize("defect", some(DEFECTS), ids=lambda defect: defect.name)
def test_a_planted_defect_is_found(defect: Any) -> None:
    seed, *rules = look_for(defect, first=defect.seed, seeds=1).split()
    assert int(seed) == defect.seed
    assert defect.found_by in rules


@pytest.mark.slow
def test_a_planted_defect_is_cut_down_to_a_file_that_finds_it_again(tmp_path: Path) -> None:
    defect = next(defect for defect in DEFECTS if defect.name == "open-requests")  # its runs are the shortest
    cut = tmp_path / "cut.yaml"
    assert look_for(defect, first=defect.seed, seeds=1, cut=cut)
    found = parse_scenario(cut.read_bytes(), "cut.yaml")[0]
    whole = parse_scenario(STORM, "canary.yaml")[0]
    assert found.mix is None
    assert found.seed == defect.seed
    drawn = mixed(with_seed(whole, defect.seed), whole.mix or Mix())[0]
    assert (found.duration, len(found.weather)) < (whole.duration, len(drawn))
    assert defect.found_by in look_for(defect, first=defect.seed, seeds=1, cut=cut)


@pytest.mark.slow
def test_a_sound_seed_breaks_no_rule() -> None:
    run: SeedRun = run_seed(TINY.replace(b"mix: {scale: 20}", b""), "tiny.yaml", {}, 1)
    assert run.result is Result.OK
    assert run.violations == ()
    assert run.broken == ()
