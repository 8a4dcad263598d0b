"""Policies of agents.yaml in a simulated fleet: repeats, fallbacks, and the rule that forbids undeclared repeats."""

from __future__ import annotations

from collections import Counter

import pytest

from fleetsim.fleet.settings import RetryPolicy
from fleetsim.hub.fleet import CurrentFleet
from fleetsim.model.errors import ConfigError
from fleetsim.sim.invariants import verdicts
from fleetsim.sim.run import Run
from tests.sim.scenes import recorded, run_of, scenario

OUTAGE = """
name: outage
duration: 40m
hubs: {hubs}
fleet:
  quinn:
    skills:
      review: {{takes: 5s, retry: {{attempts: 2, waits: [2m]}}, fallback: [herald]}}
      sweep: {{takes: 5s, succeeds: 0.3, idempotent: {declared}, retry: {{attempts: 2, on: [failed], waits: [1m]}}}}
  herald:
    replicas: 2
    skills:
      review: {{takes: 5s}}
traffic:
  - {{skill: review, agent: quinn, rate: 60/h}}
  - {{skill: sweep, rate: 60/h}}
settings: {{retry_waits_s: [1], breaker_failures: 1000, lease_s: 5}}
weather:
  - {{fault: agent-down, agent: quinn, at: 8m, lasts: 12m}}
  - {{fault: hub-restart, at: 12m, lasts: 20s{of_hub}}}
"""


@pytest.mark.parametrize("hubs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_fleet_repeats_and_falls_back_over_restarts_and_breaks_no_rule(hubs: int) -> None:
    text = OUTAGE.format(hubs=hubs, declared="true", of_hub=", hub: 1" if hubs > 1 else "")
    run = Run.of(recorded(run_of(scenario(text))[0]))
    assert [verdict.violations for verdict in verdicts(run) if verdict.violations] == []
    ends = [end.outcome for request in run.requests.values() for end in request.decided if end.outcome is not None]
    reviews = Counter((end.agent.partition("-")[0], end.kind.value) for end in ends if end.skill == "review")
    assert reviews["herald", "completed"] > 3, "the outage was longer than all pauses"
    assert reviews["quinn", "completed"] > 15
    assert reviews["quinn", "undeliverable"] == 0
    sweeps = [end for end in ends if end.skill == "sweep"]
    again = [end for end in sweeps if end.retry_of is not None]
    failed = {end.correlation_id for end in sweeps if end.kind == "failed"}
    assert len(again) > 8
    assert {end.retry_of for end in again} <= failed


def test_a_hub_that_repeats_undeclared_work_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CurrentFleet, "idempotent", lambda *_: True)
    wanted = scenario(OUTAGE.format(hubs=1, declared="true", of_hub=""), duration=600.0, weather=[])
    wanted.fleet["quinn"].skills["sweep"].idempotent = False
    run = Run.of(recorded(run_of(wanted)[0]))
    assert {verdict.invariant.number for verdict in verdicts(run) if verdict.violations} == {"I-34"}


def test_a_scenario_with_undeclared_repeats_or_an_unknown_fallback_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"small.yaml:9:.*idempotent"):
        scenario(OUTAGE.format(hubs=1, declared="false", of_hub=""))
    with pytest.raises(ConfigError, match=r"small.yaml:8:.*herold"):
        scenario(OUTAGE.format(hubs=1, declared="true", of_hub="").replace("[herald]", "[herold]"))


def test_the_pauses_of_a_policy_are_spans() -> None:
    (quinn, *_) = scenario(OUTAGE.format(hubs=1, declared="true", of_hub="")).fleet.values()
    assert quinn.skills["review"].retry == RetryPolicy(attempts=2, waits=(120.0,))
