"""Figures that stand beside each other share a scale, and words are whole where they fit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleetsim.dashboard import chrome
from fleetsim.dashboard.chrome import ScreenName
from fleetsim.dashboard.labels import BARS, spark
from fleetsim.dashboard.screens.fleet import fleet_card
from tests.dashboard.driver import EVENTS, fold_view
from tests.dashboard.journal import NOW, Journal

HOUR = fold_view(EVENTS, NOW)


def test_bars_of_two_rows_share_the_scale_that_is_given() -> None:
    assert spark([1653, 0]) == BARS[6] + BARS[0]
    assert spark([81, 0], 1653) == BARS[1] + BARS[0], "small, and not nothing"
    assert spark([0, 0]) == BARS[0] * 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_screen_is_named_from_60_columns_on(width: int) -> None:
    text = chrome.tabs(ScreenName.FLEET, HOUR, width).plain
    for name in ("Fleet", "Tasks", "Inbox", "Ceremonies", "Events"):
        assert name in text


def test_a_request_that_was_refused_needs_nobody() -> None:
    journal = Journal()
    journal.say("dispatch.dropped.unknown_target", reason="unknown_target", message="no agent quin", targets=("quin",))
    assert fold_view(journal.events, NOW).notices == ()


def test_webhooks_are_counted_in_the_window_that_the_card_names() -> None:
    journal = Journal(start=NOW - timedelta(days=3))
    for hours in (0, 70):  # 72 and 2 hours ago
        journal.later(hours * 3600)
        journal.say("agent.push.accepted", agent="quinn", duplicate=False)
        journal.say("agent.push.rejected", why="token mismatch")
    counters = fold_view(journal.events, NOW).counters
    assert (counters.span, counters.push_ok, counters.push_refused) == ("24h", 1, 1)


@pytest.mark.parametrize("width", [18, 26, 40])
def test_the_fleets_card_has_its_p95(width: int) -> None:
    assert any("p95" in line.plain for line in fleet_card(HOUR, width))
