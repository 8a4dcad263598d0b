"""Three days around every change of the clock in ten zones and ten years: the calendar, ours and cronsim."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path

import pytest

from tests.ceremony.cron_calendar import (
    EXPRESSIONS,
    REASONS,
    YEARS,
    ZONES,
    Expression,
    Window,
    changes,
    main,
    random_expressions,
    reason,
)
from tests.scale import WHOLE

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cron.md"
SOME = {zone: YEARS if WHOLE else (YEARS[at % len(YEARS)],) for at, zone in enumerate(ZONES)}


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_change_of_the_clock_the_calendar_decides(zone: str) -> None:
    rng = random.Random(zone)
    unexplained: list[tuple[str, datetime]] = []
    for change in changes(zone, SOME[zone]):
        window = Window.of(zone, change)
        for text in (*EXPRESSIONS, *random_expressions(rng, 5)):
            wanted = window.slots(Expression.of(text))
            assert window.ours(text) == wanted, f"{text} around {change}"
            theirs = window.cronsims(text)
            if theirs != wanted and reason(text, window, theirs) is None:
                unexplained.append((text, change))
    assert unexplained == []


def test_every_reason_to_differ_from_cronsim_occurs_and_is_on_the_page() -> None:
    cases = (
        ("America/New_York", "0 22-2 * * *"),
        ("America/New_York", "*/7 0-4 * * *"),
        ("America/New_York", "0 1-23/2 * * *"),
        ("Australia/Lord_Howe", "0 */2 * * *"),
        ("America/St_Johns", "17 */2 * * *"),
        ("America/Havana", "0 */14 * * 0"),
        ("Asia/Bishkek", "30 */3 * * *"),
    )
    found = set()
    for zone, text in cases:
        for change in changes(zone, [2003, 2010, 2025, 2026]):
            window = Window.of(zone, change)
            wanted, theirs = window.slots(Expression.of(text)), window.cronsims(text)
            if theirs != wanted:
                found.add(reason(text, window, theirs))
    assert found == set(REASONS)
    page = " ".join(PAGE.read_text().split())
    assert [told for told in REASONS.values() if told not in page] == []


def test_the_sweep_reports_differences(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--zones", "Europe/Berlin", "--years", "2026-2026", "--random", "0"]
    assert main(arguments) == 0
    assert f"1 zones, 2 changes, {2 * len(EXPRESSIONS)} pairs" in capsys.readouterr().out
    with monkeypatch.context() as silent:
        silent.setattr(Window, "cronsims", lambda self, text: [])
        assert main(arguments) == 1
    assert "UNEXPLAINED: " in capsys.readouterr().out
    monkeypatch.setattr(Window, "ours", lambda self, text: [])
    assert main(arguments) == 1
    assert "WRONG: " in capsys.readouterr().out
