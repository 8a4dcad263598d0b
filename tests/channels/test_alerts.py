"""When an alert begins and ends, and when each is reported: at once, but no more often than the cooldown allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from fleetsim.channels.alerts import (
    AGAIN_S,
    AlertFacts,
    AlertKey,
    AlertKind,
    Alerts,
    AlertSettings,
    what_holds,
)
from fleetsim.events.fleet import AlertCleared, AlertRaised, NoticeDelivered
from fleetsim.health.fleet_health import Condition, FleetHealth
from fleetsim.health.outcome_stats import FailureRate
from fleetsim.model.work import Cause, Outcome
from tests.outcomes import made

NOW = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)
DOWN = AlertKey(AlertKind.AGENT_DOWN, "quinn")
COOLDOWN_S = 3_600.0


def outcome(n: int, *, agent: str = "quinn", skill: str = "echo", **facts: Any) -> Outcome:
    return made(f"c-{agent}-{skill}-{n}", NOW, agent=agent, skill=skill, cause=Cause.AGENT_SAID, **facts)


def holds(
    *outcomes: Outcome,
    conditions: dict[str, Condition] | None = None,
    missed: dict[str, str] | None = None,
    at: datetime = NOW,
    **settings: Any,
) -> dict[str, str]:
    health = FleetHealth()
    for outcome in outcomes:
        health.fold(outcome)
    known = conditions or {"quinn": Condition(reachable=True)}
    found = what_holds(
        AlertSettings(channels=("ops",), **settings),
        health.snapshot(at, known),
        health.last_hour(at),
        missed or {},
        known,
    )
    return {f"{key.kind.value} {key.subject}".strip(): said for key, said in found.holding.items()}


def some(successes: int, failures: int, **more: Any) -> list[Outcome]:
    return [outcome(n, success=n < successes, **more) for n in range(successes + failures)]


def test_an_agent_that_fails_more_than_its_share_of_an_hour_is_an_alert() -> None:
    assert holds(*some(4, 6)) == {"failure_rate quinn": "6 of 10 in the last hour"}
    assert holds(*some(5, 5)) == {}
    assert holds(*some(4, 6), failure_rate_above=None) == {}


def test_the_defaults_are_half_of_five_outcomes_a_minute_down_and_an_hour_of_cooldown() -> None:
    assert holds(*some(2, 3)) == {"failure_rate quinn": "3 of 5 in the last hour"}
    assert holds(*some(1, 3)) == holds(*some(5, 5)) == {}
    gone = Condition(reachable=False, unreachable_since=NOW - timedelta(seconds=60))
    assert holds(conditions={"quinn": gone}) == {"agent_down quinn": "unreachable"}
    assert AlertSettings().cooldown_s == COOLDOWN_S


def test_an_agent_without_outcomes_does_not_fail_at_any_limit() -> None:
    assert holds(failure_rate_above=0.0, failure_outcomes_min=1) == {}


def test_too_few_or_too_old_outcomes_are_not_an_alert() -> None:
    assert holds(*some(1, 4), failure_outcomes_min=6) == {}
    assert holds(*some(1, 4), failure_outcomes_min=5) == {"failure_rate quinn": "4 of 5 in the last hour"}
    assert holds(*some(4, 6), at=NOW + timedelta(hours=1, seconds=1)) == {}


def test_a_day_that_costs_more_than_its_limit_is_an_alert() -> None:
    assert holds(outcome(1, success=True, cost_usd=10.01), cost_usd_1d_above=10.0).keys() == {"cost"}
    assert holds(outcome(1, success=True, cost_usd=10.0), cost_usd_1d_above=10.0) == {}
    assert holds(outcome(1, success=True, cost_usd=1e6)) == {}


def test_a_skill_without_any_success_is_an_alert() -> None:
    failed, worked = outcome(1, success=False, skill="plan"), outcome(2, success=True, skill="plan", agent="ava")
    assert list(holds(failed)) == ["orphaned_skill plan"]
    assert holds(failed, worked) == {}
    assert holds(failed, orphaned_skills=False) == {}


@pytest.mark.parametrize(
    ("since_s", "limit_s", "alert"), [(60, 60.0, True), (59, 60.0, False), (0, 0.0, True), (999, None, False)]
)
def test_an_agent_that_has_been_down_for_long_enough_is_an_alert(
    since_s: int, limit_s: float | None, alert: bool
) -> None:
    gone = Condition(reachable=False, unreachable_since=NOW - timedelta(seconds=since_s))
    found = holds(conditions={"quinn": gone}, agent_down_s=limit_s)
    assert found == ({"agent_down quinn": "unreachable"} if alert else {})


def test_an_agent_that_was_never_reached_is_neither_down_nor_up() -> None:
    snapshot = FleetHealth().snapshot(NOW, {"quinn": Condition()})
    found = what_holds(AlertSettings(channels=("ops",)), snapshot, {}, {}, {"quinn": Condition()})
    assert found == AlertFacts({}, {DOWN})
    young = Condition(reachable=False, unreachable_since=NOW - timedelta(seconds=59))
    found = what_holds(
        AlertSettings(channels=("ops",)), FleetHealth().snapshot(NOW, {"quinn": young}), {}, {}, {"quinn": young}
    )
    assert found == AlertFacts({}, {DOWN})


def test_agents_outside_the_fleet_are_not_an_alert() -> None:
    snapshot = FleetHealth().snapshot(NOW, {"quinn": Condition(reachable=False)})
    found = what_holds(AlertSettings(channels=("ops",)), snapshot, {"quinn": FailureRate(10, 10)}, {}, {})
    assert found.holding == {}


def test_a_ceremony_that_missed_its_time_is_an_alert() -> None:
    assert holds(missed={"digest": "too late"}) == {"ceremony_missed digest": "too late"}
    assert holds(missed={"digest": "too late"}, ceremony_missed=False) == {}


class Told:
    """The events of ``Alerts`` as seconds pass: (second, raised or cleared), and whether a recovery follows. Each alert
    is delivered at once, or never."""

    def __init__(self, cooldown_s: float = COOLDOWN_S, *, delivered: bool = True) -> None:
        self.alerts = Alerts()
        self.cooldown_s = cooldown_s
        self.delivered = delivered
        self.said: list[tuple[float, str]] = []
        self.announced: list[bool] = []

    def at(self, second: float, *, down: bool | None) -> None:
        facts, now = AlertFacts({DOWN: "unreachable"} if down else {}, {DOWN} if down is None else ()), later(second)
        for event in self.alerts.judge(facts, now, self.cooldown_s):
            self.said.append((second, type(event).__name__.removeprefix("Alert").lower()))
            if isinstance(event, AlertCleared):
                self.announced.append(event.delivered)
            elif self.delivered:
                self.alerts.delivered(DOWN, now)


def later(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def test_an_alert_is_reported_once_at_its_beginning_and_once_at_its_end() -> None:
    told = Told()
    for second in range(0, 60, 15):
        told.at(second, down=True)
    for second in range(60, 120, 15):
        told.at(second, down=False)
    assert told.said == [(0, "raised"), (60, "cleared")]


def test_an_undelivered_alert_is_raised_again_and_its_end_is_not_reported() -> None:
    told = Told(delivered=False)
    for second in (0, 15, AGAIN_S - 1, AGAIN_S):
        told.at(second, down=True)
    told.at(AGAIN_S + 15, down=False)
    assert told.said == [(0, "raised"), (AGAIN_S, "raised")], "it may still be delivered"
    told.at(2 * AGAIN_S, down=False)
    assert told.said[2:] == [(2 * AGAIN_S, "cleared")]
    assert told.announced == [False]
    told.at(2 * AGAIN_S + 15, down=True)
    assert told.said[3:] == [(2 * AGAIN_S + 15, "raised")], "no alert was sent, so none is too soon"


def test_an_alert_delivered_after_its_end_is_followed_by_its_recovery() -> None:
    told = Told(delivered=False)
    told.at(0, down=True)
    told.at(15, down=False)
    told.alerts.delivered(DOWN, later(20))
    told.at(30, down=False)
    assert (told.said, told.announced) == ([(0, "raised"), (30, "cleared")], [True])


def test_after_a_restart_an_alert_that_was_not_delivered_is_raised_again_if_it_still_holds() -> None:
    raised = AlertRaised(at=NOW, kind="agent_down", subject="quinn", detail="unreachable", since=NOW)
    told = Told()
    assert told.alerts.recall([raised]) == (DOWN,)
    told.at(1, down=None)
    told.at(2, down=True)
    told.at(15, down=False)
    assert (told.said, told.announced) == ([(2, "raised"), (15, "cleared")], [True])

    told = Told()
    told.alerts.recall([raised])
    told.at(2, down=False)
    assert (told.said, told.announced) == ([(2, "cleared")], [False])


def test_a_repeated_alert_is_raised_after_the_cooldown_if_it_still_holds() -> None:
    told = Told()
    for second, down in ((0, True), (15, False), (30, True), (45, False), (60, True), (3_599, True), (3_600, True)):
        told.at(second, down=down)
    told.at(3_615, down=False)
    assert told.said == [(0, "raised"), (15, "cleared"), (3_600, "raised"), (3_615, "cleared")]


def test_a_moment_without_a_known_condition_ends_no_alert() -> None:
    told = Told()
    for second, down in ((0, True), (15, None), (30, True), (45, None), (60, False)):
        told.at(second, down=down)
    assert told.said == [(0, "raised"), (60, "cleared")]


def test_a_clock_set_back_silences_no_alert() -> None:
    told = Told()
    told.at(0, down=True)
    told.at(15, down=False)
    told.at(-365 * 86_400, down=True)
    assert told.said == [(0, "raised"), (15, "cleared"), (-365 * 86_400, "raised")]


def test_since_is_the_beginning_and_not_the_report() -> None:
    alerts = Alerts()
    for second, down in ((0, True), (15, False), (30, True), (3_600, True)):
        news = alerts.judge(AlertFacts({DOWN: "x"} if down else {}), later(second), COOLDOWN_S)
        alerts.delivered(DOWN, later(second))
    (raised,) = news
    assert (raised.kind, raised.subject, raised.agent) == ("agent_down", "quinn", "quinn")
    assert raised.since == NOW + timedelta(seconds=30)


def test_the_end_of_one_alert_is_reported_while_another_lasts() -> None:
    alerts, cost = Alerts(), AlertKey(AlertKind.COST)
    alerts.judge(AlertFacts({DOWN: "x", cost: "y"}), NOW, COOLDOWN_S)
    alerts.delivered(cost, NOW)
    (over,) = alerts.judge(AlertFacts({DOWN: "x"}), NOW + timedelta(seconds=15), COOLDOWN_S)
    assert (type(over), over.kind, over.since) == (AlertCleared, "cost", NOW)


def test_alerts_of_removed_agents_are_forgotten_and_others_are_not() -> None:
    agents = [
        AlertKey(kind, name) for kind in (AlertKind.AGENT_DOWN, AlertKind.FAILURE_RATE) for name in ("ava", "quinn")
    ]
    others = [
        AlertKey(AlertKind.COST),
        AlertKey(AlertKind.ORPHANED_SKILL, "quinn"),
        AlertKey(AlertKind.CEREMONY_MISSED, "q"),
    ]
    alerts = Alerts()
    alerts.judge(AlertFacts(dict.fromkeys([*agents, *others], "x")), NOW, COOLDOWN_S)
    for key in (*agents, *others):
        alerts.delivered(key, NOW)
    alerts.forget_agents_but({"ava"})
    over = alerts.judge(AlertFacts({}), NOW, COOLDOWN_S)
    assert [(event.kind, event.subject) for event in over] == [
        (key.kind.value, key.subject) for key in (*agents, *others) if key not in agents or key.subject == "ava"
    ]


def test_an_alert_and_its_end_name_their_agent_or_skill() -> None:
    alerts, facts = Alerts(), AlertFacts({AlertKey(kind, "it"): "x" for kind in AlertKind})
    about = {
        "failure_rate": ("it", None),
        "cost": (None, None),
        "orphaned_skill": (None, "it"),
        "agent_down": ("it", None),
        "ceremony_missed": (None, None),
        "storage": (None, None),
        "limit": (None, None),
    }
    for now in (facts, AlertFacts({})):
        news = alerts.judge(now, NOW, COOLDOWN_S)
        assert {event.kind: (event.agent, event.skill) for event in news} == about
        for key in facts.holding:
            alerts.delivered(key, NOW)


def test_after_a_restart_no_alert_is_repeated_and_its_end_is_reported() -> None:
    told = Told()
    raised = AlertRaised(at=NOW, kind="agent_down", subject="quinn", detail="unreachable", since=NOW)
    sent = NoticeDelivered(
        at=NOW, channel="ops", sink="log", kind="alert", attempts=1, alert="agent_down", subject="quinn"
    )
    over = [
        AlertRaised(at=NOW, kind="cost", subject="", detail="", since=NOW),
        AlertCleared(at=NOW, kind="cost", subject="", since=NOW),
        AlertRaised(at=NOW, kind="of a later version", subject="", detail=""),
    ]
    assert told.alerts.recall([raised, sent, *over]) == (DOWN,)
    for second, down in ((15, None), (30, True), (45, False), (60, True)):
        told.at(second, down=down)
    assert told.said == [(45, "cleared")]


def test_after_a_restart_the_beginning_and_the_cooldown_stay() -> None:
    begun, told_at, ended = (NOW + timedelta(seconds=second) for second in (0, 60, 600))
    raised = AlertRaised(at=told_at, kind="agent_down", subject="quinn", detail="", since=begun)
    sent = NoticeDelivered(
        at=told_at, channel="ops", sink="log", kind="alert", attempts=1, alert="agent_down", subject="quinn"
    )
    alerts = Alerts()
    alerts.recall([raised, sent])
    (over,) = alerts.judge(AlertFacts({}), ended, COOLDOWN_S)
    assert (type(over), over.since) == (AlertCleared, begun)
    assert alerts.judge(AlertFacts({DOWN: "x"}), ended, COOLDOWN_S) == ()

    alerts = Alerts()
    alerts.recall([replace(raised, since=None), sent])
    (over,) = alerts.judge(AlertFacts({}), ended, COOLDOWN_S)
    assert over.since == told_at

    alerts, later = Alerts(), told_at + timedelta(hours=1)
    assert alerts.recall([raised, sent, AlertCleared(at=ended, kind="agent_down", subject="quinn", since=begun)]) == ()
    assert alerts.judge(AlertFacts({DOWN: "x"}), later - timedelta(seconds=30), COOLDOWN_S) == ()
    (again,) = alerts.judge(AlertFacts({DOWN: "x"}), later, COOLDOWN_S)
    assert again.since == later - timedelta(seconds=30)


@given(st.lists(st.tuples(st.integers(1, 2_000), st.sampled_from([True, False, None])), max_size=60))
def test_beginnings_and_ends_alternate_and_beginnings_are_a_cooldown_apart(
    steps: list[tuple[int, bool | None]],
) -> None:
    told, second = Told(cooldown_s=600.0), 0
    for gap, down in steps:
        second += gap
        told.at(second, down=down)
    words = [word for _, word in told.said]
    assert words == [("raised", "cleared")[n % 2] for n in range(len(words))]
    raised = [at for at, word in told.said if word == "raised"]
    assert all(later - earlier >= 600 for earlier, later in pairwise(raised))


def test_a_ledger_that_refuses_writes_is_an_alert() -> None:
    snapshot = structs.replace(FleetHealth().snapshot(NOW, {}), storage="the disk is full")
    for settings, expected in ((AlertSettings(), {AlertKey(AlertKind.STORAGE)}), (AlertSettings(storage=False), set())):
        assert set(what_holds(settings, snapshot, {}, {}, {}).holding) == expected
