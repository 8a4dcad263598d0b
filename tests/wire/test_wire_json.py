"""The JSON that is accepted from a peer, and the JSON that is written."""

from __future__ import annotations

import json
import math
import re
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.model.errors import WireError
from fleetsim.model.limits import CONTAINERS_MAX, DEPTH_MAX, TEXT_CHARS_MAX, VALUES_MAX
from fleetsim.wire import sse
from fleetsim.wire.json import dump, parse_untrusted

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)

REFUSED = {
    "empty": b"",
    "half": b'{"a":',
    "two values": b"{} {}",
    "html": b"<html>502</html>",
    "not a number": b'{"a": NaN}',
    "infinity": b"[Infinity]",
    "minus infinity": b"[-Infinity]",
    "a float too large": b"[1e999]",
    "thousands of digits": b"[" + b"9" * 5000 + b"]",
    "a member twice": b'{"id": 1, "id": 2}',
    "a member twice, deep": b'{"a": [{"b": 1, "b": 1}]}',
    "latin-1": b'{"a": "\xe9"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "a raw surrogate": b'"\xed\xa0\xbd"',
    "too deep": b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    "far too deep": b"[" * 100_000,
    "too deep in objects": b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
    "a control character": b'"\x01"',
}


@pytest.mark.parametrize("name", REFUSED)
def test_ambiguous_or_oversized_json_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        parse_untrusted(REFUSED[name])


def test_a_body_one_byte_over_the_limit_is_refused_and_one_at_it_is_not() -> None:
    assert parse_untrusted(b'"12345"', bytes_max=7) == "12345"
    with pytest.raises(WireError, match="7 bytes"):
        parse_untrusted(b'"123456"', bytes_max=7)


def test_the_deepest_allowed_nesting_is_read() -> None:
    assert parse_untrusted(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX) is not None


def test_many_shallow_brackets_do_not_count_as_depth() -> None:
    assert len(parse_untrusted(b"[" + b"{}," * 500 + b"[]]")) == 501


UNREADABLE = b" and then no JSON"
TOO_MUCH = {
    "arrays": (b"[" + b"[]," * CONTAINERS_MAX + b"[]]", "arrays and objects"),
    "objects": (b'{"x":[' + b"{}," * CONTAINERS_MAX + b"{}]}", "arrays and objects"),
    "values": (b"[" + b"1," * VALUES_MAX + b"1]", "values"),
    "members": (b'{"a":1' + b',"b":2' * (VALUES_MAX + 1) + b"}", "values"),
    "depth": (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), "deeper"),
    "depth and breadth": (b"[" + b"[],{}," * 999 + b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX + b"]", "deeper"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_many_values_are_refused_before_the_first_is_built(name: str) -> None:
    data, why = TOO_MUCH[name]
    with pytest.raises(WireError, match=why):
        parse_untrusted(data + UNREADABLE)  # a parser that came this far would report invalid JSON instead


def test_the_allowed_number_of_values_is_read() -> None:
    assert len(parse_untrusted(b"[" + b"[]," * (CONTAINERS_MAX - 2) + b"[]]")) == CONTAINERS_MAX - 1
    assert len(parse_untrusted(b"[" + b"1," * (VALUES_MAX - 1) + b"1]")) == VALUES_MAX
    assert len(parse_untrusted(b"[" + b"1," * (VALUES_MAX - 1) + b'","]')) == VALUES_MAX, "and a mark in a text"


@pytest.mark.parametrize("mark", [",", "[", "{", '"', "\\", '\\"[', '"],[{'])
def test_brackets_inside_a_text_do_not_count_as_values(mark: str) -> None:
    text = mark * (TEXT_CHARS_MAX // len(mark))
    assert parse_untrusted(dump({"x": [text, text]})) == {"x": [text, text]}


def _containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(_containers, inner))


TRICKY = st.recursive(
    st.text('ab\\"[]{},:') | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab\\"[]{},:'), inner),
)


@pytest.mark.slow
@given(TRICKY, st.booleans())
def test_arrays_and_objects_are_counted_correctly_beside_any_texts(value: Any, ascii_only: bool) -> None:
    left = CONTAINERS_MAX - 2 - _containers(value)
    for more in (0, 1):
        data = json.dumps([value, [[]] * (left + more)], ensure_ascii=ascii_only).encode()
        if more:
            with pytest.raises(WireError, match="arrays and objects"):
                parse_untrusted(data)
        else:
            assert parse_untrusted(data) == json.loads(data)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_untrusted(b"\xef\xbb\xbf{}") == {}


@given(JSON)
def test_a_written_value_is_read_back(value: Any) -> None:
    assert parse_untrusted(dump(value)) == value


BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@given(st.text(st.sampled_from(BREAKS) | st.characters(codec="utf-8")))
@example(BREAKS)
def test_written_json_has_no_line_break_for_any_reader(text: str) -> None:
    written = dump({"t": text})
    assert len(written.decode().splitlines()) == 1
    assert json.loads(written) == {"t": text}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = {_whole(name): value for name, value in pairs}
    if len(members) != len(pairs):
        raise WireError("a member twice")
    return members


def _whole(value: Any) -> Any:
    """The value with U+FFFD instead of each lone surrogate."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def _number(text: str) -> float:
    if not math.isfinite(float(text)):
        raise WireError("not finite")
    return float(text)


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_number, parse_constant=_number)


def strictly_read(data: bytes) -> Any:
    """The value that the standard library reads from an unambiguous document. Raises WireError."""
    try:
        return _whole(STRICT.decode(data.decode().removeprefix("\ufeff")))
    except (ValueError, RecursionError):
        raise WireError("not JSON") from None


def read_by(read: Any, data: bytes) -> str:
    try:
        return repr(read(data))
    except WireError:
        return "refused"


SPECIAL = st.sampled_from(
    [
        *(r"\ud83d\ude00", r"\ud83d", r"\\ud83d", r"\\\ud83d\ude00", r"\ude00", r"\"", r"\\", r"\u00e9", r"\n"),
        *("é", "\U0001f600", " ", "a" * 40, "[", "{", ",", "]", r"\x", "\x01", r"\u12", "\\", "\0"),
        *(r"\u0022", r"\\u0022", r"\\\u0022", r"\u005c", r"\uD83D", r"\uDE00", r"\/"),
    ]
)
STRINGS = st.lists(SPECIAL, max_size=6).map(lambda parts: f'"{"".join(parts)}"')
OBJECTS = st.lists(st.tuples(st.sampled_from(['"a"', '"b"', r'"\u0061"', r'"\""']) | STRINGS, STRINGS), max_size=4).map(
    lambda members: "{" + ",".join(f"{name}:{value}" for name, value in members) + "}"
)
DOCUMENTS = st.one_of(
    st.builds(lambda value, indent: json.dumps(value, indent=indent), JSON, st.sampled_from([None, 1])),
    st.builds(lambda value: json.dumps(value, ensure_ascii=False), JSON),
    st.lists(STRINGS | OBJECTS, max_size=3).map(lambda texts: f"[{','.join(texts)}]"),
    st.text(alphabet='[]{}",:\\ \t01-.eEtrufalsn', max_size=12),
).map(lambda text: text.encode("utf-8", "replace"))


@given(DOCUMENTS)
@example(b"\xef\xbb\xbf[1]")
@example(b'{"\\ud800":1,"\\ud801":2}')
@example(b'{"a":"x","a":"\\u0022\\u0022\\u0022\\u0022"}')
@example(b'{"a":"\\\\u0022","a":""}')
@example(b"[-1.50e+3,-0,1.,tru]")
@example(b"[-1.50e+3,-0,-0.0,1E5,123456789012345678901234567890]")
@example(b" [ true , false , null , -1.5E3 , {} ] ")
def test_a_document_is_read_as_the_standard_library_reads_it_unless_it_is_ambiguous(document: bytes) -> None:
    assert read_by(parse_untrusted, document) == read_by(strictly_read, document)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_wire_error(data: bytes) -> None:
    try:
        value = parse_untrusted(data)
    except WireError:
        return
    assert parse_untrusted(dump(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {None: 1}, {(1, 2): 1}])
def test_values_without_a_json_form_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        dump({"v": value})


def test_read_only_mappings_and_lone_surrogates_of_our_own_are_written() -> None:
    assert dump(MappingProxyType({"a": "\ud800"})) == b'{"a":"?"}'


def test_each_line_of_a_frame_gets_its_own_field() -> None:
    assert sse.frame("one\r\ntwo\rthree\nfour") == b"data: one\ndata: two\ndata: three\ndata: four\n\n"


def test_line_breaks_in_name_or_comment_do_not_split_a_frame() -> None:
    assert sse.frame("x", event_id="1\n2") == b"id: 1 2\ndata: x\n\n"
    framed = sse.frame("x", event="sta\ntus", comment="a\nb")
    assert framed == b": a\n: b\nevent: sta tus\ndata: x\n\n"
    assert sse.KEEPALIVE == b": keep-alive\n\n"
