"""A streamed answer is shown whole and once, however the agent cuts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetsim.cli.live import LivePieces, LiveText


@given(st.lists(st.text(max_size=8), max_size=6))
def test_what_is_shown_of_a_growing_answer_adds_up_to_it(pieces: list[str]) -> None:
    live, whole, shown = LiveText(), "", ""
    for piece in pieces:
        whole += piece
        shown += live.more(whole)
    assert shown == whole


def test_the_first_piece_is_shown_although_it_does_not_say_append() -> None:
    live = LivePieces()
    shown = live.more("a", "one ", append=False) + live.more("a", "two", append=True)
    assert shown == "one two"


def test_a_closing_whole_artifact_is_not_shown_a_second_time() -> None:
    live = LivePieces()
    shown = live.more("a", "one ", append=False) + live.more("a", "two", append=True)
    assert shown + live.more("a", "one two", append=False) == "one two"


def test_an_answer_that_takes_back_what_was_shown_begins_a_line() -> None:
    live = LiveText()
    assert live.more("draft") + live.more("final") == "draft\nfinal"


def test_artifacts_do_not_mix() -> None:
    live = LivePieces()
    assert live.more("a", "one", append=False) + live.more("b", "one", append=False) == "oneone"
