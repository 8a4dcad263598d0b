"""A streamed answer is shown whole and once, however the agent cuts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetsim.cli.terminal import LivePieces, LiveText


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
    shown = live.more("a", "one", append=False) + live.more("b", "one", append=False)
    assert (shown, live.rest("one\none")) == ("one\none", "")


def test_pieces_that_come_back_to_an_earlier_artifact_wait_for_the_whole() -> None:
    live = LivePieces()
    shown = "".join(live.more(name, text, append=True) for name, text in (("a", "1"), ("b", "2"), ("a", "3")))
    assert shown == "1\n2"
    assert live.rest("13\n2") == "\n13\n2"


@given(st.lists(st.tuples(st.text(max_size=6), st.booleans()), max_size=8), st.integers(0, 9))
def test_excerpts_and_lost_pieces_still_add_up_to_the_answer(pieces: list[tuple[str, bool]], lost_at: int) -> None:
    live, shown = LivePieces(), ""
    for at, (piece, cut) in enumerate(pieces):
        if at == lost_at:
            live.hold()
            continue
        cut = cut and len(piece) > 3
        shown += live.more("a", piece[:3] if cut else piece, append=at > 0, cut=cut)
    whole = "".join(piece for piece, _ in pieces)
    assert shown + live.rest(whole) == whole
