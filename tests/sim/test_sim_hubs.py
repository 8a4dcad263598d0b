"""Scenarios of several hubs: hubs die, stand still or lose the ledger, and their clocks differ."""

from __future__ import annotations

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.recording.events import HubKilled, RequestsTaken
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.live import check_clock
from fleetsim.sim.report import Result
from fleetsim.sim.run import Run
from fleetsim.sim.scenario import parse_scenario
from tests.scale import scaled
from tests.sim.scenes import recorded, report, run_of, scenario

STORM = """
name: hubs
duration: 8m
hubs: 3
fleet:
  quinn:
    skills:
      review: {takes: {p50: 20s, p95: 60s}, chunks: 4, asks: 0.3}
  scribe:
    dialect: "1.0"
    streaming: false
    skills:
      note: {takes: {low: 2s, high: 30s}}
  archivist:
    dialect: "0.1"
    streaming: false
    skills:
      lookup: {takes: {low: 5s, high: 3m}}
settings: {lease_s: 5, poll_interval_s: 15}
traffic:
  - {skill: review, rate: 60/h}
  - {skill: note, rate: 60/h}
  - {skill: lookup, rate: 60/h}
ceremonies: ceremonies
people: {answerAfter: {low: 5s, high: 30s}, cancel: 0.05}
expect:
  - missed == 0
  - lost == 0
"""
TROUBLES = "hub-restart", "hub-dies-writing", "hub-pause", "hub-cut"
WEATHER = """weather:
  - {fault: clock-jump, hub: 2, amount: 5}
  - {fault: clock-jump, hub: 3, amount: -5}
"""
EACH_MINUTE = {
    "rounds.yaml": b"id: rounds\nname: rounds\nschedule: '* * * * *'\nskill: note\ntargets: [scribe]\noverlap: allow\n"
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", (5, 13, 19, 24, *range(1, 5), *range(6, 13), 14)[: scaled(16, share=4)])
def test_no_request_is_lost_or_repeated_whatever_happens_to_one_of_three_hubs_at_a_time(seed: int) -> None:
    weather = WEATHER
    for at in range(1, 15):
        fault, hub = TROUBLES[(at + seed) % 4], (at * 7 + seed) % 3 + 1
        weather += f"  - {{fault: {fault}, hub: {hub}, at: {30 * at}s, lasts: {2 + at}s}}\n"
    judged = report(scenario(STORM + weather, seed=seed), EACH_MINUTE)
    assert [violation for verdict in judged.verdicts for violation in verdict.violations] == []
    assert judged.result is Result.OK


def test_a_killed_hub_is_replaced_and_a_hub_that_stood_still_sends_nothing_afterwards() -> None:
    weather = "weather:\n" + "".join(
        f"  - {{fault: {fault}, hub: {hub}, at: {at}, lasts: 20s}}\n"
        for fault, hub, at in (("hub-restart", 1, "1m"), ("hub-pause", 2, "2m"), ("hub-cut", 3, "3m"))
    )
    lines, digest = run_of(scenario(STORM.replace("8m", "4m") + weather), EACH_MINUTE)
    run = Run.of(recorded(lines))
    assert [killed.hub for killed in run.all(HubKilled)] == ["hub1"]
    assert any(line["kind"] == "lost" for line in lines)
    took = {(taken.hub, cid) for taken in run.all(RequestsTaken) for cid in taken.requests}
    assert {hub for hub, _ in took} >= {"hub2"}
    assert run_of(scenario(STORM.replace("8m", "4m") + weather), EACH_MINUTE)[1] == digest


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("hubs: 0", "4:"),
        ("hubs: 10", "4:"),
        ("hubs: 2\nweather: [{fault: hub-pause, hub: 3}]", "5:"),
        ("weather: [{fault: hub-pause}]", "4:"),
        ("weather: [{fault: hub-cut}]", "4:"),
        ("hubs: 2\nweather: [{fault: slower, hub: 1}]", "5:"),
    ],
)
def test_contradictory_hubs_are_refused_with_their_place(written: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(f"name: x\nduration: 1m\nfleet: {{a: {{skills: {{s: {{}}}}}}}}\n{written}\n", "x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{place}")


def test_several_hubs_need_virtual_time() -> None:
    wanted, written = parse_scenario(STORM, "x.yaml")
    check_clock(wanted, written, ClockRate())
    with pytest.raises(ConfigError):
        check_clock(wanted, written, ClockRate(virtual=False))
