"""The text of an agent cannot change a terminal or mislead a reader (T-38)."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fleetsim.model.text import GUTTER, REPLACEMENT, Gutter, neutralise, one_line


@pytest.mark.slow
def test_every_control_format_and_surrogate_character_is_removed() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = neutralise(every, limit=len(every))
    assert {c for c in left if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} == {"\n", "\t"}


HARMFUL = (
    "\x1b]52;c;aGk=\x07", "\x1b[2J", "\x9b2J", "\x1bP+q\x1b\\", "\x90x\x9c", "a\x08b", "a\x7fb", "abc\u202edef",
    "a\u2066b", "a\u200bb", "a\u2028b", "a\U000e0041b", "a\ufe0fb", "a\ud800b", "a\U0001d173b", "a\u0600b", "a\u3164b",
)  # fmt: skip


@pytest.mark.parametrize("text", HARMFUL)
def test_a_character_that_could_mislead_is_replaced_in_its_place(text: str) -> None:
    left = neutralise(text)
    assert REPLACEMENT in left
    assert [c for c in left if c != REPLACEMENT] == [c for c in text if c.isprintable() and c not in "\ufe0f\u3164"]


def test_letters_of_every_script_and_emoji_stay() -> None:
    text = "Grüße, Привет, שלום, مرحبا, नमस्ते, 你好, e\u0301, 🚀 — “so”"
    assert neutralise(text) == text


def test_of_many_combining_marks_four_are_kept() -> None:
    assert neutralise("z" + "\u0301" * 50 + "y") == "z" + "\u0301" * 4 + "y"


def test_one_line_stays_one_line_within_its_limit() -> None:
    assert one_line("a\r\nb\rc\td\u2028e") == f"a b c d{REPLACEMENT}e"
    assert neutralise("abcdef", limit=4) == "abc…"
    assert neutralise("abcd", limit=4) == "abcd"


@given(st.lists(st.text("ab ✓漢é\u0301\n\t\r\x1b", max_size=60)), st.integers(12, 40))
def test_each_row_of_a_text_in_pieces_stands_behind_the_gutter(pieces: list[str], width: int) -> None:
    gutter = Gutter(width)
    shown = "".join(map(gutter.add, pieces))
    *rows, last = shown.split("\n")
    assert all(row.startswith(GUTTER) and cell_len(row) <= width for row in rows)
    assert (last.startswith(GUTTER), bool(last)) == (gutter.open, gutter.open)
    letters = "".join(neutralise(piece) for piece in pieces)
    assert "".join(shown.replace(GUTTER, "").split()) == "".join(letters.split())
