"""The reference page says what the program does."""

from __future__ import annotations

from pathlib import Path

from textual.binding import Binding

from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.labels import HEALTH, RUN, STATE, plain_ascii
from fleetsim.dashboard.screens.ceremonies import CeremoniesPane
from fleetsim.dashboard.screens.events import EventsPane
from fleetsim.dashboard.screens.fleet import FleetPane
from fleetsim.dashboard.screens.inbox import InboxPane
from fleetsim.dashboard.screens.pane import Pane
from fleetsim.dashboard.screens.scenario import ScenarioPane
from fleetsim.dashboard.screens.tasks import TasksPane
from fleetsim.dashboard.view import EVENTS_MAX, OPEN_MAX, SETTLED_MAX
from fleetsim.dashboard.view_tasks import LIVE_CHARS_MAX, TASKS_MAX

PAGE = (Path(__file__).parents[2] / "docs/reference/dashboard.md").read_text()
NAMES = {
    "slash": "/",
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
}


def test_every_key_is_on_the_page() -> None:
    kinds = (FleetApp, Pane, FleetPane, TasksPane, InboxPane, CeremoniesPane, EventsPane, ScenarioPane)
    bindings = [binding for kind in kinds for binding in kind.BINDINGS if isinstance(binding, Binding)]
    keys = [key for binding in bindings for key in binding.key.split(",")]
    assert len(keys) > 20
    assert [key for key in keys if f"`{NAMES.get(key, key)}`" not in PAGE] == []


def test_every_word_is_on_the_page_with_its_glyph_and_its_ascii_form() -> None:
    rows = [row.split("|") for row in PAGE.split("\n") if row.count("|") == 5]
    told = {
        (word.strip(), glyph, ascii)
        for _, words, glyphs, asciis, *_ in rows
        for word in words.split(",")
        for glyph in glyphs.split()
        for ascii in asciis.strip().strip("`").split()
    }
    for mark in (*HEALTH.values(), *STATE.values(), *RUN.values()):
        assert (mark.word, mark.glyph, plain_ascii(mark.glyph)) in told or mark.word == "running"


def test_every_limit_is_on_the_page() -> None:
    for limit in (EVENTS_MAX, TASKS_MAX, OPEN_MAX, SETTLED_MAX, LIVE_CHARS_MAX):
        assert f"{limit:,}" in PAGE
