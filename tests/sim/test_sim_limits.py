"""Limits of agents.yaml in a simulated fleet, and the rule that finds a hub without them."""

from __future__ import annotations

from collections import Counter

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Cause
from fleetsim.recording.events import SubmitRefused
from fleetsim.sim.invariants import verdicts
from fleetsim.sim.run import Run
from tests.sim.scenes import recorded, run_of, scenario

CAPPED = """
name: capped
duration: 3h
hubs: {hubs}
start: 2026-03-29T00:00:00+01:00
fleet:
  quinn:
    skills:
      review: {{takes: 20s, cost: 0.5}}
      sweep: {{takes: 5s, cost: 0.5}}
limits:
  hourly: {{requests: 20, per: hour, zone: Europe/Berlin}}
  reviews: {{usd: 8, skill: review, zone: Europe/Berlin, reserve: 0.5}}
traffic:
  - {{skill: review, rate: 30/h}}
  - {{skill: sweep, rate: 30/h}}
settings: {{lease_s: 5}}
weather:
  - {{fault: hub-dies-writing, at: 20m, lasts: 20s{of_hub}}}
  - {{fault: hub-restart, at: 80m, lasts: 20s{of_hub}}}
"""


def text(hubs: int) -> str:
    return CAPPED.format(hubs=hubs, of_hub=", hub: 1" if hubs > 1 else "")


@pytest.mark.parametrize("hubs", [1, 2])
def test_a_fleet_keeps_its_limits_over_kills_and_breaks_no_rule(hubs: int) -> None:
    run = Run.of(recorded(run_of(scenario(text(hubs)))[0]))
    refused = Counter(event.limit for event in run.all(SubmitRefused))
    assert min(refused["hourly"], refused["reviews"]) > 10
    assert [verdict.violations for verdict in verdicts(run) if verdict.violations] == []
    begun = Counter(int(request.begun.t // 3600) for request in run.requests.values() if request.begun)
    assert max(begun.values()) == 20
    cost = sum(end.outcome.cost_usd or 0 for r in run.requests.values() for end in r.decided if end.outcome)
    assert cost > 20, "sweeps go on when the reviews' dollars are used"
    reviews = [end for r in run.requests.values() if (end := r.end) and end.outcome and end.outcome.skill == "review"]
    assert len(reviews) == 16


@pytest.mark.parametrize("hubs", [1, 2])
def test_people_of_a_simulated_fleet_raise_limits_that_ask_and_no_rule_is_broken(hubs: int) -> None:
    asking = text(hubs).replace("zone:", "atLimit: ask, zone:") + "people: {answerAfter: 3m, reject: 0.2}\n"
    run = Run.of(recorded(run_of(scenario(asking))[0]))
    assert [verdict.violations for verdict in verdicts(run) if verdict.violations] == []
    ends = Counter(end.outcome.cause for r in run.requests.values() for end in r.decided if end.outcome)
    assert ends[Cause.AGENT_SAID] > 60
    questions = [asked.asked for request in run.requests.values() for asked in request.questions]
    assert 2 < len(questions) < 20


def test_a_hub_that_ignores_its_limits_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetsim.caller.limits.CurrentLimits.bookings", lambda *_: ())
    run = Run.of(recorded(run_of(scenario(text(1)))[0]))
    assert {verdict.invariant.number for verdict in verdicts(run) if verdict.violations} == {"I-35"}


def test_a_scenario_with_a_wrong_limit_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"small.yaml:13:.*exactly one"):
        scenario(text(1).replace("{usd: 8,", "{usd: 8, tokens: 1,"))
