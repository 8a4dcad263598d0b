from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from fleetsim.api.answer import to_json
from fleetsim.api.health import HealthWord
from fleetsim.health.fleet_health import Condition, FleetHealth, Thresholds
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.work import Cause, Outcome, OutcomeKind
from fleetsim.request.track import BUILT_IN, Rate, Rates
from tests.outcomes import made

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
UP = {"quinn": Condition(reachable=True)}


def outcome(n: int = 0, *, ago_s: float = 60, **facts: Any) -> Outcome:
    return made(**{"name": f"c-{n}", "at": NOW - timedelta(seconds=ago_s), "duration_ms": 100, **facts})


def folded(*outcomes: Outcome, **settings_: Any) -> FleetHealth:
    health = FleetHealth(**settings_)
    for outcome in outcomes:
        health.fold(outcome)
    return health


def row(health: FleetHealth, name: str = "quinn", now: datetime = NOW) -> Any:
    found = health.snapshot(now).agent(name)
    assert found is not None
    return found


def test_the_agent_that_did_the_work_gets_the_outcome_and_the_actor_is_counted_beside_it() -> None:
    health = folded(outcome(1, system_actor="ceremony.digest"), outcome(2, success=False))
    snapshot = to_json(health.snapshot(NOW))
    assert [a["agentName"] for a in snapshot["agents"]] == ["quinn"]
    assert snapshot["agents"][0]["successRate"] == 0.5
    assert snapshot["systemActors"] == [
        {
            "systemActor": "ceremony.digest",
            "totalOutcomes": 1,
            "successCount": 1,
            "failureCount": 0,
            "besideCounts": {},
        },
        {"systemActor": "user", "totalOutcomes": 1, "successCount": 0, "failureCount": 1, "besideCounts": {}},
    ]


def test_the_same_correlation_id_counts_once() -> None:
    health = FleetHealth()
    assert health.fold(outcome(1, cost_usd=0.5))
    assert not health.fold(outcome(1, cost_usd=0.5))
    assert row(health).total_outcomes == 1
    assert row(health).total_cost_usd == 0.5


@pytest.mark.parametrize(
    ("durations", "p50", "p95"),
    [([], 0, 0), ([7], 7, 7), ([10, 30], 30, 30), (list(range(1, 21)), 11, 20), (list(range(1, 101)), 51, 96)],
)
def test_percentiles_follow_the_definition(durations: list[int], p50: int, p95: int) -> None:
    health = folded(*(outcome(n, duration_ms=d, success=n % 2 == 0) for n, d in enumerate(durations)))
    figures = health.snapshot(NOW, UP).agents[0]
    assert (figures.p50_latency_ms, figures.p95_latency_ms) == (p50, p95)


def test_tokens_are_priced_by_the_models_rate_then_by_the_default() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=100_000)
    rates = Rates()
    assert rates.estimate(usage, "gpt-4o") == pytest.approx(3.5)
    assert rates.estimate(usage, "gpt-4o-mini") == pytest.approx(0.21)
    assert rates.estimate(usage, "claude-haiku-4-5-20251001") == pytest.approx(0.375)
    assert rates.estimate(usage, "somebody-else") == rates.estimate(usage, None) == pytest.approx(4.5)
    assert rates.estimate(None, "gpt-4o") is None
    mine = Rates(by_model={**BUILT_IN, "somebody": Rate(input_usd=1, output_usd=0)})
    assert mine.estimate(usage, "somebody-else") == 1.0


def test_cached_tokens_are_priced() -> None:
    usage = Usage(cache_creation_input_tokens=1_000_000, cache_read_input_tokens=1_000_000)
    assert Rate(input_usd=2, output_usd=0).price(usage) == pytest.approx(2.7)
    assert Rate(input_usd=2, output_usd=0, cache_read_usd=1, cache_write_usd=1).price(usage) == pytest.approx(2.0)


def test_the_window_of_24_hours_includes_its_edge() -> None:
    health = folded(outcome(1, ago_s=86_400), outcome(2, ago_s=86_401), outcome(3, ago_s=5))
    assert row(health).total_outcomes == 2
    assert row(health, now=NOW + timedelta(seconds=1)).total_outcomes == 1
    assert health.snapshot(NOW + timedelta(days=2)).agents == ()
    assert len(health) == 0


def test_agent_text_in_a_failure_is_one_line_without_control_characters() -> None:
    health = folded(outcome(1, success=False, reason="boom\n\x1b[31mred\u202e" + "x" * 1_000))
    reason = row(health).recent_failures[0].failure_reason
    assert "\x1b" not in reason
    assert "\n" not in reason
    assert len(reason) == 200


def test_a_skill_is_orphaned_until_any_agent_succeeds_at_it() -> None:
    health = folded(outcome(1, skill="triage", success=False), outcome(2, skill="echo"))
    assert health.snapshot(NOW).orphaned_skills == ("triage",)
    health.fold(outcome(3, skill="triage", agent="ava"))
    assert to_json(health.snapshot(NOW))["orphanedSkillCount"] == 0


def test_weights_fall_with_failures_and_with_cost() -> None:
    health = folded(outcome(1, cost_usd=1.0), outcome(2, agent="ava"), outcome(3, agent="ava", success=False))
    assert health.weights() == {"quinn": 0.5, "ava": 0.5}
    unknown = folded(outcome(1, kind=OutcomeKind.UNKNOWN, success=False, blame=Blame.NETWORK))
    assert unknown.weights() == {}


@pytest.mark.parametrize(
    ("successes", "failures", "condition", "word"),
    [
        (0, 0, Condition(), HealthWord.UNKNOWN),
        (0, 0, Condition(reachable=True), HealthWord.UP),
        (0, 0, Condition(reachable=False), HealthWord.DOWN),
        (100, 0, Condition(reachable=False), HealthWord.DOWN),
        (100, 0, Condition(reachable=True, breaker_open=True), HealthWord.DOWN),
        (19, 1, Condition(reachable=True), HealthWord.UP),
        (18, 2, Condition(reachable=True), HealthWord.DEGRADED),
        (10, 10, Condition(reachable=True), HealthWord.DEGRADED),
        (9, 11, Condition(reachable=True), HealthWord.DOWN),
        (0, 3, Condition(reachable=True), HealthWord.TOO_FEW),
        (2, 1, Condition(reachable=True), HealthWord.TOO_FEW),
        (0, 1, Condition(), HealthWord.UNKNOWN),
        (0, 3, Condition(reachable=True, push_silent=True), HealthWord.DEGRADED),
        (4, 0, Condition(reachable=True), HealthWord.UP),
        (0, 5, Condition(reachable=True), HealthWord.DOWN),
        (100, 0, Condition(reachable=True, push_silent=True), HealthWord.DEGRADED),
        (100, 0, Condition(reachable=True, paused=True), HealthWord.PAUSED),
    ],
)
def test_the_health_word_follows_the_thresholds(
    successes: int, failures: int, condition: Condition, word: HealthWord
) -> None:
    health = folded(*(outcome(n, success=n < successes) for n in range(successes + failures)))
    assert health.snapshot(NOW, {"quinn": condition}).agents[0].health is word


def test_a_configured_agent_appears_without_outcomes_and_json_has_no_rate_for_it() -> None:
    found = to_json(FleetHealth().snapshot(NOW, UP))["agents"][0]
    assert (found["agentName"], found["health"], found["successRate"], found["totalOutcomes"]) == (
        "quinn",
        "up",
        None,
        0,
    )


def test_json_has_the_field_names_of_workstacean() -> None:
    found = to_json(folded(outcome(1, success=False)).snapshot(NOW))
    assert {"agents", "windowHours", "maxFailureRate1h", "totalCostUsd1d", "orphanedSkillCount"} <= set(found)
    assert {"systemActors", "collectedAt"} <= set(found)
    assert {
        "agentName",
        "successRate",
        "p50LatencyMs",
        "p95LatencyMs",
        "costPerSuccessfulOutcome",
        "totalCostUsd",
        "recentFailures",
        "totalOutcomes",
        "failureRate1h",
    } <= set(found["agents"][0])
    assert set(found["agents"][0]["recentFailures"][0]) == {
        "timestamp",
        "skill",
        "correlationId",
        "kind",
        "blame",
        "failureReason",
    }
    assert found["collectedAt"] == "2026-11-21T12:00:00.000Z"


def test_past_the_limit_the_oldest_outcomes_are_counted_by_the_hour_and_every_figure_keeps_them() -> None:
    usage = {"cost_usd": 0.25, "usage": Usage(input_tokens=3, output_tokens=5), "confidence": 0.9}
    history = [
        outcome(n, ago_s=80_000 - 600 * n, success=n % 4 > 0, duration_ms=1_000 + n, **usage) for n in range(130)
    ]
    exact, coarse = folded(*history).snapshot(NOW), folded(*history, outcomes_max=100).snapshot(NOW)
    assert (exact.outcomes_shed, coarse.outcomes_shed) == (0, 30)
    assert coarse.system_actors == exact.system_actors
    before, after = exact.agents[0], coarse.agents[0]
    latencies = ("p50_latency_ms", "p95_latency_ms", "max_latency_ms")
    for name in latencies:
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=0.006)
    same = structs.replace(after, trend=before.trend, **{name: getattr(before, name) for name in latencies})
    assert same == before
    assert sum(bucket.outcomes for bucket in after.trend) == 130
    assert [b.outcomes for b in after.trend[8:]] == [b.outcomes for b in before.trend[8:]]


def test_outcomes_that_are_counted_by_the_hour_leave_the_window_with_their_hour() -> None:
    health = folded(*(outcome(n, ago_s=80_000 - n) for n in range(20)), outcomes_max=10)
    assert row(health).total_outcomes == 20
    assert health.snapshot(NOW + timedelta(hours=4)).agents == ()


def test_percentiles_of_more_than_a_thousand_outcomes_are_right_to_a_hundredth() -> None:
    health = folded(*(outcome(n, duration_ms=1_000 + n) for n in range(1_000)))
    assert row(health).p95_latency_ms == 1_950
    health.fold(outcome(1_000, duration_ms=2_000))
    assert row(health).p95_latency_ms == pytest.approx(1_950, rel=0.006)


def test_a_late_outcome_is_counted_in_its_hour() -> None:
    health = folded(outcome(1), outcome(2, success=False))
    assert row(health).failure_rate_1h == 0.5
    health.fold(outcome(3, success=False, ago_s=7_200))
    assert row(health).failure_rate_1h == 0.5
    assert [bucket.outcomes for bucket in row(health).trend[-2:]] == [1, 2]
    assert row(health, now=NOW + timedelta(hours=23)).total_outcomes == 2


def test_counting_continues_after_a_clock_jumped_ahead_and_back() -> None:
    health = folded(outcome(1))
    health.prune(NOW + timedelta(days=3))
    assert health.fold(outcome(2))
    assert row(health).total_outcomes == 1


def by(blame: Blame, n: int, **changes: Any) -> Outcome:
    return outcome(n, success=False, kind=OutcomeKind.CANCELED, blame=blame, **changes)


def test_failures_blamed_on_others_change_no_figure_of_the_agent() -> None:
    """Rate, word, trend, 1 h failure rate, latencies, weights and orphaned skills ignore them."""
    own = [outcome(n, cost_usd=0.1) for n in range(5)]
    alone = folded(*own)
    others = [Blame.HUMAN, Blame.CALLER, Blame.NETWORK, Blame.NOBODY]
    noise = [by(blame, 10 + n, duration_ms=99_000, cost_usd=5.0, skill="gate") for n, blame in enumerate(others * 3)]
    crowded = folded(*own, *noise)
    for figure in ("success_rate", "answered_outcomes", "failure_count", "failure_rate_1h", "trend", "p95_latency_ms"):
        assert getattr(row(crowded), figure) == getattr(row(alone), figure), figure
    assert row(crowded).cost_per_successful_outcome == pytest.approx(0.1)
    assert crowded.weights() == alone.weights()
    assert crowded.snapshot(NOW).orphaned_skills == ()
    assert crowded.snapshot(NOW, UP).agents[0].health is HealthWord.UP
    assert row(crowded).total_outcomes == 17
    assert row(crowded).beside_counts == {"caller": 3, "human": 3, "network": 3, "nobody": 3}


def since(health: FleetHealth, condition: Condition) -> datetime | None:
    return health.snapshot(NOW, {"quinn": condition}).agents[0].since


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_an_agent_with_a_fallen_rate_is_not_up_since_then() -> None:
    well = [outcome(n, ago_s=5_000 - n) for n in range(20)]
    badly = [outcome(100 + n, ago_s=1_000 - n, success=False) for n in range(30)]
    # 20 of 22 outcomes are 91 %: the second failure took the rate under 95 %, the 21st under 50 %.
    assert since(folded(*well, *badly[:3]), Condition(reachable=True)) == ago(999)
    assert since(folded(*well, *badly), Condition(reachable=True)) == ago(980)
    assert since(folded(*well), Condition(reachable=True)) is None


def test_an_agent_that_recovered_in_between_is_not_up_since_it_fell_again() -> None:
    first = [outcome(n, ago_s=9_000 - n, success=False) for n in range(5)]
    well = [outcome(50 + n, ago_s=5_000 - n) for n in range(100)]
    again = [outcome(200 + n, ago_s=100 - n, success=False) for n in range(5)]
    found = folded(*first, *well, *again)
    assert since(found, Condition(reachable=True)) == ago(100)  # 5 failures of 105: 95.2 %; 6 of 106: 94.3 %


def test_an_agent_is_down_since_its_first_failed_look_or_its_outcomes_if_earlier() -> None:
    gone = {"kind": OutcomeKind.UNDELIVERABLE, "blame": Blame.NETWORK, "cause": Cause.UNREACHABLE, "success": False}
    health = folded(outcome(1, ago_s=900), *(outcome(2 + n, ago_s=600 - n, **gone) for n in range(5)))
    noticed = Condition(reachable=False, unreachable_since=ago(60))
    assert since(health, noticed) == ago(600)  # the hub that noticed it a minute ago had just started
    assert since(folded(outcome(1)), noticed) == ago(60)
    refused = Condition(reachable=True, auth_refused=True, refused_since=ago(30))
    assert since(health, refused) == ago(30)
    assert since(health, Condition(reachable=True, push_silent=True, silent_since=ago(7))) == ago(7)
    assert since(health, Condition(paused=True)) is None


def test_a_slow_agent_is_degraded_since_its_first_slow_outcome() -> None:
    slow = [outcome(n, ago_s=300 - n, duration_ms=2_000) for n in range(5)]
    health = folded(outcome(99, ago_s=400), *slow, thresholds=Thresholds(p95_limit_ms=1_000))
    assert since(health, Condition(reachable=True)) == ago(300)
