"""Every figure of a day against a recount hour by hour, and every health word with its reason and start."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from fleetsim.api.answer import to_json
from fleetsim.api.health import AgentHealth, HealthWord, OutcomeStats, RecentFailure, SystemActor, TrendBucket
from fleetsim.health.fleet_health import Condition, FleetHealth, Thresholds
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource
from tests.health.test_health import NOW, ago, folded, outcome

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
EMPTY = (TrendBucket(outcomes=0, successes=0),) * 16


def any_outcome(n: int, rng: random.Random) -> Outcome:
    """An outcome with any fields, up to a day old; several end in the same second."""
    success = rng.random() < 0.6
    return outcome(
        n,
        ago_s=rng.randrange(0, 86_401, 60),
        agent=rng.choice(["quinn", "ava"]),
        skill=rng.choice(["echo", "plan"]),
        system_actor=rng.choice(["user", "ceremony.digest"]),
        success=success,
        kind=OutcomeKind.COMPLETED if success else rng.choice(list(OutcomeKind)),
        blame=Blame.NOBODY if success else rng.choice(list(Blame)),
        via=rng.choice(list(UpdateSource)),
        duration_ms=rng.randrange(100),
        agent_ms=rng.choice([None, rng.randrange(100)]),
        cost_usd=rng.choice([None, rng.randrange(10**6) / 1e6]),
        confidence=rng.choice([None, rng.randrange(101) / 100]),
        usage=rng.choice([None, Usage(input_tokens=rng.randrange(1_000), output_tokens=rng.randrange(1_000))]),
        reason=rng.choice(["", f"r{n}"]),
    )


def recount(outcomes: Sequence[Outcome], now: datetime) -> OutcomeStats:
    """Recount the figures as docs/reference/health.md defines them."""
    mine = sorted((o for o in outcomes if o.ended_at >= now - DAY), key=lambda o: o.ended_at)
    answered = [o for o in mine if o.success or o.blame is Blame.AGENT]
    beside = [o for o in mine if not o.success and o.blame is not Blame.AGENT]
    won = [o for o in answered if o.success]
    hour = [o for o in answered if o.ended_at >= now - HOUR]
    times = sorted(o.duration_ms if o.agent_ms is None else o.agent_ms for o in answered)
    sure = [o.confidence for o in mine if o.confidence is not None]
    buckets: list[list[Outcome]] = [[] for _ in range(16)]
    for ended in answered:
        buckets[min(int((ended.ended_at - now + DAY) / (DAY / 16)), 15)].append(ended)
    return OutcomeStats(
        total_outcomes=len(mine),
        answered_outcomes=len(answered),
        success_count=len(won),
        failure_count=len(answered) - len(won),
        beside_counts=Counter(o.blame.value for o in beside),
        unknown_count=sum(o.kind is OutcomeKind.UNKNOWN for o in mine),
        undeliverable_count=sum(o.kind is OutcomeKind.UNDELIVERABLE for o in mine),
        success_rate=len(won) / len(answered) if answered else None,
        p50_latency_ms=times[min(len(times) * 50 // 100, len(times) - 1)] if times else 0,
        p95_latency_ms=times[min(len(times) * 95 // 100, len(times) - 1)] if times else 0,
        max_latency_ms=max(times, default=0),
        total_cost_usd=pytest.approx(sum(o.cost_usd or 0 for o in mine), abs=1e-9),  # type: ignore[arg-type]
        cost_per_successful_outcome=pytest.approx(  # type: ignore[arg-type]
            sum(o.cost_usd or 0 for o in answered) / len(won) if won else 0, abs=1e-9
        ),
        input_tokens=sum(o.usage.input_tokens for o in mine if o.usage),
        output_tokens=sum(o.usage.output_tokens for o in mine if o.usage),
        failure_rate_1h=sum(not o.success for o in hour) / len(hour) if hour else 0.0,
        mean_confidence=pytest.approx(sum(sure) / len(sure)) if sure else None,  # type: ignore[arg-type]
        confident_failures=sum((o.confidence or 0) >= 0.8 and not o.success for o in answered),
        kinds=Counter(o.kind.value for o in mine),
        channels=Counter(o.via.value for o in mine),
        recent_failures=tuple(
            RecentFailure(
                timestamp=o.ended_at,
                skill=o.skill,
                correlation_id=o.correlation_id,
                kind=o.kind,
                blame=o.blame,
                failure_reason=o.reason or o.kind.value,
            )
            for o in [o for o in mine if not o.success][-10:][::-1]
        ),
        trend=tuple(TrendBucket(outcomes=len(b), successes=sum(o.success for o in b)) for b in buckets),
        last_outcome_at=mine[-1].ended_at if mine else None,
        last_outcome_kind=mine[-1].kind if mine else None,
    )


@pytest.mark.slow
def test_every_figure_of_a_passing_day_equals_a_recount() -> None:
    rng = random.Random(7)
    outcomes = [any_outcome(n, rng) for n in range(160)]
    health = folded(*outcomes)
    for minutes in [*range(90), *range(90, 1_440, 90), 1_439, 1_440]:
        now = NOW + timedelta(minutes=minutes)
        found = health.snapshot(now)
        kept = [o for o in outcomes if o.ended_at >= now - DAY]
        assert (found.total_outcomes, len(health)) == (len(kept), len(kept))
        for agent in ("quinn", "ava"):
            theirs = [o for o in kept if o.agent == agent]
            row = found.agent(agent)
            assert (OutcomeStats.of(row) if row else None) == (recount(theirs, now) if theirs else None), minutes
        pairs = sorted({(o.agent, o.skill) for o in kept})
        assert [(s.agent_name, s.skill) for s in found.skills] == pairs
        for skill in found.skills:
            theirs = [o for o in kept if (o.agent, o.skill) == (skill.agent_name, skill.skill)]
            assert OutcomeStats.of(skill) == recount(theirs, now)
        actors = sorted({o.system_actor for o in kept})
        assert found.system_actors == tuple(_actor(name, kept) for name in actors)
        assert found.total_cost_usd_1d == pytest.approx(sum(o.cost_usd or 0 for o in kept), abs=1e-9)
        assert found.max_failure_rate_1h == max((a.failure_rate_1h for a in found.agents), default=0.0)
    assert found.total_outcomes <= 1


def _actor(name: str, kept: Sequence[Outcome]) -> SystemActor:
    theirs = recount([o for o in kept if o.system_actor == name], NOW - DAY)
    return SystemActor(
        system_actor=name,
        total_outcomes=theirs.total_outcomes,
        success_count=theirs.success_count,
        failure_count=theirs.failure_count,
        beside_counts=theirs.beside_counts,
    )


# ---------------------------------------------------------------------- the fleet


def test_configured_agents_come_first_in_their_order_and_others_by_name() -> None:
    health = folded(outcome(1, agent="zoe"), outcome(2, agent="ava"), outcome(3, agent="quinn"))
    found = health.snapshot(NOW, {"quinn": Condition(), "idle": Condition(reachable=True)})
    assert [agent.agent_name for agent in found.agents] == ["quinn", "idle", "ava", "zoe"]
    assert found.agent("idle") == AgentHealth(agent_name="idle", health=HealthWord.UP, why="", since=None, trend=EMPTY)
    assert found.agent("nobody") is None


def test_a_snapshot_has_its_time_in_utc_and_the_length_of_its_window() -> None:
    found = FleetHealth().snapshot(NOW.astimezone(timezone(timedelta(hours=2))))
    assert (found.collected_at, found.collected_at.tzinfo) == (NOW, UTC)
    assert (found.window_hours, found.outcomes_shed, found.max_failure_rate_1h) == (24, 0, 0.0)
    flat = to_json(folded(outcome(1, skill="s")).snapshot(NOW))
    assert flat["skills"][0]["totalOutcomes"] == flat["agents"][0]["totalOutcomes"] == 1
    assert "figures" not in {*flat["skills"][0], *flat["agents"][0]}


def test_weights_ignore_outcomes_older_than_a_day() -> None:
    health = folded(outcome(1, ago_s=86_401, success=False), outcome(2))
    assert health.weights()["quinn"] == 0.5
    health.prune(NOW)
    assert health.weights()["quinn"] == 1.0
    health.prune(NOW + timedelta(days=1))
    assert health.weights() == {}


# ---------------------------------------------------------------------- the words

GONE: dict[str, Any] = {"success": False, "blame": Blame.NETWORK, "cause": Cause.UNREACHABLE}
REFUSED: dict[str, Any] = {"success": False, "cause": Cause.CREDENTIAL_REFUSED}


@pytest.mark.parametrize(
    ("outcomes", "condition", "word", "why", "since_s"),
    [
        ([], Condition(), HealthWord.UNKNOWN, "not reached yet", None),
        ([], Condition(paused=True), HealthWord.PAUSED, "not enabled in agents.yaml", None),
        ([], Condition(paused=True, paused_why="no key", reachable=False), HealthWord.PAUSED, "no key", None),
        ([], Condition(reachable=False, auth_refused=True), HealthWord.DOWN, "unreachable", None),
        ([GONE, GONE], Condition(reachable=False), HealthWord.DOWN, "unreachable", 99),
        ([GONE, REFUSED, REFUSED], Condition(auth_refused=True), HealthWord.DOWN, "refused the credential", 98),
        ([REFUSED, REFUSED, GONE], Condition(auth_refused=True), HealthWord.DOWN, "refused the credential", None),
        (
            [{}, GONE, {**GONE, "cause": Cause.NEVER_SENT}],
            Condition(reachable=True, breaker_open=True),
            HealthWord.DOWN,
            "left alone after repeated failures",
            98,
        ),
        (
            [REFUSED, GONE],
            Condition(reachable=True, breaker_open=True, breaker_since=ago(200)),
            HealthWord.DOWN,
            "left alone after repeated failures",
            200,
        ),
        ([{}] * 2 + [{"success": False}] * 3, Condition(), HealthWord.DOWN, "under 50 % succeeded", 95),
        ([{}] * 4 + [{"success": False}], Condition(), HealthWord.UNKNOWN, "not reached yet", None),
        (
            [{}] * 4 + [{"success": False}],
            Condition(reachable=True, push_silent=True),
            HealthWord.DEGRADED,
            "under 95 % succeeded",
            95,
        ),
        (
            [{"duration_ms": 1_500}] * 5,
            Condition(reachable=True, push_silent=True),
            HealthWord.DEGRADED,
            "p95 is over 1000 ms",
            99,
        ),
        (
            [{}] * 5,
            Condition(reachable=True, push_silent=True, silent_since=ago(7)),
            HealthWord.DEGRADED,
            "its webhooks do not arrive",
            7,
        ),
        ([{}] * 5, Condition(reachable=True), HealthWord.UP, "", None),
        (
            [{"success": False}] * 4,
            Condition(reachable=True),
            HealthWord.TOO_FEW,
            "fewer than 5 outcomes, and not all of them are successes",
            None,
        ),
    ],
)
def test_the_most_severe_word_wins_with_its_reason_and_start(
    outcomes: list[dict[str, Any]], condition: Condition, word: HealthWord, why: str, since_s: float | None
) -> None:
    health = folded(
        *(outcome(n, ago_s=99 - n, **changes) for n, changes in enumerate(outcomes)),
        thresholds=Thresholds(p95_limit_ms=1_000),
    )
    (found,) = health.snapshot(NOW, {"quinn": condition}).agents
    assert (found.health, found.why) == (word, why)
    assert found.since == (None if since_s is None else ago(since_s))


@pytest.mark.parametrize(
    ("condition", "barred"),
    [
        (Condition(), False),
        (Condition(reachable=True, push_silent=True), False),
        (Condition(reachable=False), True),
        (Condition(breaker_open=True), True),
        (Condition(auth_refused=True), True),
    ],
)
def test_an_agent_that_would_accept_no_work_now_is_barred(condition: Condition, barred: bool) -> None:
    assert condition.barred is barred
    assert Condition() == Condition(breaker_open=False, push_silent=False, auth_refused=False, paused=False)


def test_a_rate_is_low_since_the_outcome_that_took_it_there_to_the_last_of_sixty_four() -> None:
    for failures in (1, 21, 22, 23, 40, 64):
        history = [outcome(n, ago_s=5_000 - n) for n in range(400)]
        history += [outcome(1_000 + n, ago_s=1_000 - n, success=False) for n in range(failures)]
        found = folded(*history).snapshot(NOW, {"quinn": Condition(reachable=True)}).agents[0].since
        low = next((n for n in range(failures) if 400 / (401 + n) < 0.95), None)
        assert found == (None if low is None else ago(1_000 - low)), failures


def test_outcomes_that_ended_at_once_lower_a_rate_together() -> None:
    history = [outcome(n, ago_s=100) for n in range(5)] + [outcome(9 + n, ago_s=50, success=False) for n in range(5)]
    found = folded(*history).snapshot(NOW, {"quinn": Condition(reachable=True)}).agents[0]
    assert (found.health, found.since) == (HealthWord.DEGRADED, ago(50))
    few = [outcome(n, ago_s=50 - n, success=False) for n in range(5)]
    assert folded(*few).snapshot(NOW, {"quinn": Condition(reachable=True)}).agents[0].since == ago(46)


def test_only_outcomes_of_the_agent_make_it_slow() -> None:
    health = folded(
        outcome(1, ago_s=90, duration_ms=9_000, success=False, blame=Blame.HUMAN),
        outcome(2, ago_s=80, duration_ms=1_000),
        outcome(3, ago_s=70, duration_ms=1_001),
        thresholds=Thresholds(p95_limit_ms=1_000),
    )
    found = health.snapshot(NOW, {"quinn": Condition(reachable=True)}).agents[0]
    assert (found.why, found.since) == ("p95 is over 1000 ms", ago(70))
