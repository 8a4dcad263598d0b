"""Expectations of figures."""

from __future__ import annotations

import pytest

from fleetsim.health.figures import METRICS, Expectation, Unit, shown

FIGURES = {
    "fleet": {"success_rate": 0.97, "lost": 0.0, "cost": 2.5, "p95": None},
    "quinn": {"p95": 90.0},
    "quinn/review": {"p95": 60.0},
    "a.b-1": {"lost": 2.0},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("fleet.success_rate >= 95%", True),
        ("success_rate >= 0.98", False),
        ("success_rate>=97%", True),
        ("lost == 0", True),
        ("lost != 0", False),
        ("cost < $2.50", False),
        ("cost <= 2.5", True),
        ("quinn.p95 < 2m", True),
        ("quinn.p95 < 90s", False),
        ("quinn/review.p95 <= 1m", True),
        ("a.b-1.lost > 1", True),
        ("a.b-1.lost >= 3", False),
    ],
)
def test_a_comparison_is_with_the_figure_of_its_scope(text: str, holds: bool) -> None:
    assert Expectation.read(text).holds(FIGURES) is holds


@pytest.mark.parametrize("text", ["fleet.p95 < 1h", "herald.p95 < 1h", "herald.p95 > 0s"])
def test_an_unknown_figure_does_not_meet_its_expectation(text: str) -> None:
    expectation = Expectation.read(text)
    assert expectation.figure(FIGURES) is None
    assert not expectation.holds(FIGURES)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("success >= 95%", "'success'"),
        ("p59 < 2m", "'p95'|'p50'|'p99'"),
        ("p95 < 2", "p95"),
        ("lost == 5%", "lost"),
        ("success_rate > 95", "success_rate"),
        ("p95 is low", "comparison"),
        (7, "comparison"),
    ],
)
def test_a_malformed_comparison_is_refused_with_the_known_figures(text: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Expectation.read(text)


@pytest.mark.parametrize(
    ("unit", "figure", "text"),
    [
        (Unit.SHARE, 0.9641, "96.41%"),
        (Unit.SECONDS, 12.5, "12.5s"),
        (Unit.DOLLARS, 2.5, "$2.5000"),
        (Unit.COUNT, 3.0, "3"),
        (Unit.COUNT, None, "none"),
    ],
)
def test_a_figure_is_shown_in_its_unit(unit: Unit, figure: float | None, text: str) -> None:
    assert shown(unit, figure) == text


def test_every_figure_has_a_description() -> None:
    assert all(said for _, said in METRICS.values())
