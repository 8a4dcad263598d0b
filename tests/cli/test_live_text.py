"""A streamed answer is shown whole and once, in any pieces."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.cli.terminal import LivePieces


def test_the_first_piece_is_shown_although_it_has_no_append_mark() -> None:
    live = LivePieces()
    shown = live.more("a", "one ", append=False) + live.more("a", "two", append=True)
    assert shown == "one two"


def test_a_closing_whole_artifact_is_not_shown_a_second_time() -> None:
    live = LivePieces()
    shown = live.more("a", "one ", append=False) + live.more("a", "two", append=True)
    assert shown + live.more("a", "one two", append=False) == "one two"


def test_an_artifact_is_shown_as_soon_as_those_before_it_are_whole() -> None:
    live = LivePieces()
    shown = [
        live.more("a", "one", append=False),
        live.more("b", "t", append=False),
        live.more("a", "!", append=True, last=True),
        live.more("b", "wo", append=True),
    ]
    assert shown == ["one", "", "!\nt", "wo"]


def test_a_replaced_text_shows_no_more_pieces() -> None:
    live = LivePieces()
    shown = [live.more("a", "draft", append=False), live.more("a", "final", append=False)]
    assert (shown, live.more("a", "!", append=True)) == (["draft", ""], "")


def test_a_stream_joined_in_the_middle_of_an_artifact_shows_no_partial_text() -> None:
    live = LivePieces(joined=True)
    assert live.more("a", "second half", append=True) + live.more("b", "whole", append=False) == ""
    whole = LivePieces(joined=True)
    assert whole.more("a", "first", append=False) + whole.more("a", " and second", append=True) == "first and second"


PIECES = st.lists(st.tuples(st.sampled_from("abc"), st.text("xy", max_size=3), st.booleans()), max_size=12)


@given(PIECES)
@example([("b", "", False), ("a", "xx", False), ("b", "x", False)])
@example([("a", "x", True), ("b", "", False), ("b", "x", False)])
def test_the_shown_text_is_the_beginning_of_the_answer_for_any_order_of_the_pieces(
    pieces: list[tuple[str, str, bool]],
) -> None:
    live, texts = LivePieces(), dict[str, str]()
    ended = {name: max(at for at, piece in enumerate(pieces) if piece[0] == name) for name, *_ in pieces}
    for at, (name, text, marked) in enumerate(pieces):
        live.more(name, text, append=True, last=marked and ended[name] == at)
        texts[name] = texts.get(name, "") + text
    assert "\n".join(filter(None, texts.values())).startswith(live.shown)


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
    assert whole.startswith(shown)
