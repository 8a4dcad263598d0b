"""The reference page says what the program does."""

from __future__ import annotations

from pathlib import Path

from fleetsim.dashboard.labels import HEALTH, RUN, STATE, plain_ascii
from fleetsim.dashboard.view import EVENTS_MAX, OPEN_MAX, SETTLED_MAX
from fleetsim.dashboard.view_tasks import LIVE_CHARS_MAX, TASKS_MAX

PAGE = (Path(__file__).parents[2] / "docs/reference/dashboard.md").read_text()


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
