"""A large document read piece by piece is read as one that is there at once, and nobody waits for the whole of it."""

from __future__ import annotations

import gc
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.model.errors import WireError
from fleetsim.model.limits import CONTAINERS_MAX, DEPTH_MAX, LARGE_JSON_BYTES, VALUES_MAX
from fleetsim.wire.json import parse_untrusted
from fleetsim.wire.json_pieces import JsonReader, read_in_turns
from tests.runtime.test_http_sse import Counted
from tests.wire.test_wire_json import JSON, REFUSED

NOT_UTF8 = {"latin-1", "utf-16", "a raw surrogate"}
"""Of an event of a stream such bytes were replaced before it is JSON."""


def in_pieces(pieces: list[bytes]) -> Any:
    reader = JsonReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.value()


def slices(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def told(read: Any, *asked: Any) -> str:
    try:
        return repr(read(*asked))
    except WireError:
        return "refused"


SPECIAL = st.sampled_from(
    [
        *(r"\ud83d\ude00", r"\ud83d", r"\\ud83d", r"\\\ud83d\ude00", r"\ude00", r"\"", r"\\", r"\u00e9", r"\n"),
        *("é", "\U0001f600", " ", "a" * 40, "[", "{", ",", "]", r"\x", "\x01", r"\u12", "\\"),
    ]
)
STRINGS = st.lists(SPECIAL, max_size=8).map(lambda parts: f'"{"".join(parts)}"')
DOCUMENTS = st.one_of(
    st.builds(lambda value, indent: json.dumps(value, indent=indent), JSON, st.sampled_from([None, 1])),
    st.builds(lambda value: json.dumps(value, ensure_ascii=False), JSON),
    st.lists(STRINGS, max_size=3).map(lambda texts: f"[{','.join(texts)}]"),
    st.text(alphabet='[]{}",:\\ \t01-.eEtrufalsn', max_size=12),
).map(lambda text: text.encode("utf-8", "replace"))


@given(DOCUMENTS, st.data())
@example(b"\xef\xbb\xbf[1]", None)
@example(b'{"\\ud800":1,"\\ud801":2}', None)
@example(b"-", None)
@example(b"[1,]", None)
@example(b'{"a":1,}', None)
@example(b"[-1.50e+3,-0,1.,tru]", None)
@example(b" [ true , false , null , -1.5E3 , {} ] ", None)
def test_whatever_pieces_it_comes_in_a_document_is_what_it_is_as_a_whole(
    document: bytes, data: st.DataObject | None
) -> None:
    cuts = range(len(document)) if data is None else sorted(data.draw(st.sets(st.integers(0, len(document)))))
    edges = [0, *cuts, len(document)]
    assert told(in_pieces, [document[a:b] for a, b in pairwise(edges)]) == told(parse_untrusted, document)


EVERYTHING = (
    rb' {"\\ud83d" : ["\ud83d\ude00 \\\ud83d\ude00", "\ud83dx", "\"\u00e9\n"], "n": [-1.5e+3, 0, 12], "": [{}, []],'
    rb' "t": true, "f": false, "z": null, "'
    b'\xc3\xa9\xf0\x9f\x98\x80": "\xe2\x80\xa8"} '
)


def test_wherever_it_is_cut_in_two_a_document_is_the_same() -> None:
    for at in range(len(EVERYTHING)):
        assert in_pieces([EVERYTHING[:at], EVERYTHING[at:]]) == parse_untrusted(EVERYTHING)


@pytest.mark.parametrize("size", [1, 7, 10**9])
@pytest.mark.parametrize("name", sorted(REFUSED.keys() - NOT_UTF8))
def test_what_is_refused_as_a_whole_is_refused_in_pieces(name: str, size: int) -> None:
    with pytest.raises(WireError):
        in_pieces(slices(REFUSED[name][:10_000], size))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"[" + b"[]," * CONTAINERS_MAX + b"[]]", "arrays and objects"),
        (b"[" + b"1," * VALUES_MAX + b"1]", "values"),
        (b"[" * 100_000, "arrays and objects|deeper"),
        (b'["' + b'\\",[' * 100_000 + b'",' + b"1," * VALUES_MAX + b"1]", "values"),
    ],
)
def test_too_much_is_refused_before_any_of_it_is_read_and_not_kept(document: bytes, why: str) -> None:
    reader = JsonReader()
    for piece in slices(document, 1_000):
        reader.feed(piece)
    assert not reader.work()
    with pytest.raises(WireError, match=why):
        reader.value()


def test_as_much_as_is_taken_as_a_whole_is_taken_in_pieces() -> None:
    for document in (
        b"[" + b"[]," * (CONTAINERS_MAX - 2) + b"[]]",
        b"[" + b"1," * (VALUES_MAX - 1) + b"1]",
        b"[" * DEPTH_MAX + b"]" * DEPTH_MAX,
        b'["' + b'\\",[{' * 200_000 + b'"]',
        b'["' + b"\\\\" * 200_001 + b'",[]]',
        b"\n" * 300_000 + b'{"a" : [' + b" " * 300_000 + b"1]}",
    ):
        assert in_pieces(slices(document, 999)) == parse_untrusted(document)


@pytest.mark.parametrize("member", [b"[]", b"{}", b'"a":1', b"1", b'""', b'"' + b"x" * 5_000 + b'"'])
def test_no_step_reads_much(member: bytes) -> None:
    """A thousand small values take a millisecond, and so do some thousand characters."""
    whole = b"{%s}" if member.startswith(b'"a"') else b"[%s]"
    items = [member.replace(b"a", b"k%d" % n) for n in range(min(20_000, 500_000 // len(member)))]
    document = whole % b",".join(items)
    reader, steps = JsonReader(), 1
    for piece in slices(document, 8 * 1024):
        reader.feed(piece)
    while reader.work():
        steps += 1
    assert len(reader.value()) == len(items)
    assert steps >= max(len(items) / 1_000, len(document) / (8 * 1024))


def test_what_was_read_of_a_refused_document_is_gone_at_once() -> None:

    reader = JsonReader()
    for piece in slices(b"[" + b"[1]," * 20_000 + b"!]", 4_096):
        reader.feed(piece)
    gc.collect()
    before = len(gc.get_objects())
    gc.disable()
    try:
        with pytest.raises(WireError):
            reader.value()
        assert len(gc.get_objects()) < before + 5_000, "no traceback keeps the lists until the next collection"
    finally:
        gc.enable()


@pytest.mark.parametrize("document", [*REFUSED.values(), EVERYTHING])
async def test_a_large_body_is_what_it_is_as_a_whole_while_others_have_turns(document: bytes) -> None:
    large, turns = b" " * LARGE_JSON_BYTES + document, Counted()
    try:
        found = repr((await read_in_turns(large, turns.turn)).value())
    except WireError:
        found = "refused"
    assert found == told(parse_untrusted, large)
    assert turns.turns > LARGE_JSON_BYTES // 8192
