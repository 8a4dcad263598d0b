"""What ``fleetsim health`` prints: the figures, and under them why an agent is not up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetsim.caller.health import Condition, FleetHealth
from fleetsim.cli.health import show
from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import Blame
from fleetsim.model.work import Outcome, OutcomeKind

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)


def outcome(n: int, agent: str, *, blame: Blame = Blame.NOBODY, reason: str = "") -> Outcome:
    at = NOW - timedelta(minutes=100 - n)
    success = blame is Blame.NOBODY
    return Outcome(
        correlation_id=f"c-{agent}-{n}",
        agent=agent,
        skill="echo",
        system_actor="user",
        kind=OutcomeKind.COMPLETED if success else OutcomeKind.FAILED,
        success=success,
        blame=blame,
        started_at=at,
        ended_at=at,
        duration_ms=1_200,
        reason=reason,
        cost_usd=0.01,
    )


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    health = FleetHealth()
    for n in range(10):
        health.fold(outcome(n, "quinn"))
        health.fold(outcome(n, "ava", blame=Blame.NOBODY if n < 5 else Blame.AGENT, reason="the disk is\x1b[31m full"))
    for n in range(10, 16):
        health.fold(outcome(n, "quinn", blame=Blame.HUMAN, reason="rejected"))
    conditions = {
        "quinn": Condition(reachable=True),
        "ava": Condition(reachable=True),
        "frank": Condition(reachable=False, unreachable_since=NOW - timedelta(hours=2)),
        "nora": Condition(),
    }
    rows: Any = health.snapshot(NOW, conditions).to_json()["agents"]
    show(CommonOptions(), rows)
    return capsys.readouterr().out.splitlines()


def test_why_an_agent_is_not_up_and_since_when_stands_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert "frank is down since 2026-11-22 07:30Z: unreachable" in lines
    assert "ava is degraded since 2026-11-22 07:55Z: 50% of 10 succeeded" in lines
    assert "nora is unknown: not reached yet" in lines
    assert not any(line.startswith("quinn is") for line in lines)


def test_what_was_not_the_agents_doing_is_shown_beside_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    (quinn,) = [line for line in lines if line.split()[2:3] == ["quinn"]]
    assert quinn.split()[1:6] == ["up", "quinn", "16", "100.0", "6"]
    assert "quinn: beside its figures: 6 ended by people" in lines
    assert not any("rejected" in line for line in lines)


def test_the_health_table_fits_eighty_columns_and_agents_words_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any(line.startswith("ava: last failure 2026-11-22 07:59Z, echo: the disk is") for line in lines)
    assert not any("\x1b" in line for line in lines)
