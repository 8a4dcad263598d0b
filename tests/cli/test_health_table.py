"""The output of ``fleetsim health``: the figures, and under them why an agent is not up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fleetsim.api.health import HealthSnapshot
from fleetsim.cli.health import figures_of, require_known, show
from fleetsim.cli.main import CommonOptions
from fleetsim.health.figures import METRICS, Expectation
from fleetsim.health.fleet_health import Condition, FleetHealth
from fleetsim.model.errors import Blame, ConfigError
from fleetsim.model.work import Outcome
from tests.outcomes import made

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)


def outcome(n: int, agent: str, *, blame: Blame = Blame.NOBODY, reason: str = "") -> Outcome:
    at, success = NOW - timedelta(minutes=100 - n), blame is Blame.NOBODY
    facts = {"agent": agent, "blame": blame, "reason": reason, "duration_ms": 1_200, "cost_usd": 0.01}
    return made(f"c-{agent}-{n}", at, success=success, **facts)


def seen() -> HealthSnapshot:
    """The figures of the hub's API."""
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
    return health.snapshot(NOW, conditions)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(CommonOptions(), seen().agents)
    return capsys.readouterr().out.splitlines()


def test_the_reason_and_start_of_a_problem_stand_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert any(line.startswith("frank: down since 2026-11-22 07:30Z") for line in lines)
    assert any(line.startswith("ava: degraded since 2026-11-22 07:55Z") for line in lines)
    assert any(line.startswith("nora: unknown") for line in lines)
    assert not any(line.startswith("quinn is") for line in lines)


def test_failures_of_others_are_shown_beside_an_agents_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    (quinn,) = [line for line in lines if line.split()[2:3] == ["quinn"]]
    assert quinn.split()[1:6] == ["up", "quinn", "16", "100.0", "6"]
    assert any(line.startswith("quinn: ") and "6 ended by people" in line for line in lines)
    assert not any("rejected" in line for line in lines)


def test_the_health_table_fits_eighty_columns_and_agents_words_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert any(line.startswith("ava: last failure 2026-11-22 07:59Z, echo: ") for line in lines)
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("success_rate < 80%", 15 / 20),
        ("quinn.success_rate < 1", 1.0),
        ("ava/echo.failures > 4", 5.0),
        ("fleet/echo.outcomes == 26", 26.0),
        ("failed > 10", 11.0),
        ("quinn.p95 > 1s", 1.2),
        ("max > 1s", 1.2),
        ("cost > $0.25", 0.26),
        ("cost_per_success > $0.01", 0.2 / 15),
        ("frank.success_rate < 95%", None),
        ("frank.p95 > 1s", None),
        ("quinn/never.lost > 0", None),
    ],
)
def test_conditions_are_compared_with_the_figures_of_their_scope(text: str, figure: float | None) -> None:
    condition, figures = Expectation.read(text), figures_of(seen())
    require_known(condition, figures)
    assert condition.figure(figures) == (None if figure is None else pytest.approx(figure))
    assert condition.holds(figures) is (figure is not None and text != "quinn.success_rate < 1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("quin.lost > 0", "no agent 'quin' (did you mean 'quinn'?)"),
        ("p95 > 2m", "no p95 of the fleet as a whole: outcomes, successes"),
        ("quinn.questions > 3", "no questions of an agent: outcomes"),
        ("quinn.duration_p95 > 3s", "no duration_p95 of an agent"),
    ],
)
def test_an_unknown_figure_is_refused_with_the_known_ones(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_known(Expectation.read(text), figures_of(seen()))
    assert why in str(refused.value)


def test_every_figure_of_health_is_one_that_expectations_know() -> None:
    assert {name for figures in figures_of(seen()).values() for name in figures} <= METRICS.keys()
