"""Figures that stand beside each other share a scale, and words are whole where they fit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleetsim.dashboard import chrome
from fleetsim.dashboard.chrome import ScreenName
from fleetsim.dashboard.labels import BARS, HEALTH, RUN, STATE, spark
from fleetsim.dashboard.screens.fleet import fleet_card
from fleetsim.dashboard.widgets import Page
from fleetsim.model.glyphs import ASCII
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind
from tests.dashboard.driver import EVENTS, fold_view, showing
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


@pytest.mark.sockets
async def test_each_figure_names_its_window() -> None:
    async with showing(EVENTS) as ui:
        assert "Fleet, last 20m" in ui.text
        assert "figures: last 20m" in ui.status
        for key, words in (("2", "finished, last 20m"), ("3", "Settled since 13:35Z")):
            await ui.press(key)
            assert words in ui.text
        await ui.press("1", "enter")
        assert "Last 20m" in ui.text
        assert "Skills, last 20m" in ui.text


def test_a_view_older_than_a_day_has_figures_of_24_hours() -> None:
    j = Journal(start=NOW - timedelta(days=3))
    j.card("quinn", "0.3", ("pr_review",))
    view = fold_view(j.events, NOW)
    assert (view.window, view.beginning) == ("24h", "11-18 13:55Z")


def test_the_words_of_states_are_those_of_the_hub() -> None:
    words = {*(state.value for state in TaskState), *(kind.value for kind in OutcomeKind)} - {"unspecified"}
    assert words <= set(STATE)
    assert {word: mark.word for word, mark in STATE.items()} == {word: word for word in STATE}
    assert {mark.glyph for mark in (*STATE.values(), *RUN.values(), *HEALTH.values())} <= set(ASCII)


@pytest.mark.sockets
async def test_a_screen_looks_after_a_resize_as_if_it_had_opened_so() -> None:
    async with showing(EVENTS, size=(120, 36)) as ui:
        at_first = {}
        for key in "12345":
            await ui.press(key)
            at_first[key] = ui.text
        for width, height in ((200, 50), (60, 24), (120, 36)):
            await ui.pilot.resize_terminal(width, height)
            await ui.pilot.pause()
        for key in "12345":
            await ui.press(key)
            assert ui.text == at_first[key]


@pytest.mark.sockets
async def test_a_page_that_gets_wider_without_an_event_is_made_again() -> None:
    async with showing(EVENTS, "2", size=(120, 36)) as ui:
        page = ui.app.query_one("#story", Page)
        page.styles.width = 90
        await ui.pilot.pause()
        wide = page.lines
        page.styles.width = 50
        await ui.pilot.pause()
        assert max(row.cell_len for row in page.lines) <= page.inner_width < max(row.cell_len for row in wide)
