"""The strict YAML reader: what it reads and refuses, and the position in its errors (T-36)."""

from __future__ import annotations

import re
import time
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, DEPTH_MAX, NODES_MAX, Place, load


def refusal(text: str | bytes, **options: int) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, "f.yaml", **options)
    return str(caught.value)


def verdict(text: str | bytes) -> str:
    """Whether the text is read or refused with the one error."""
    try:
        load(text, "f.yaml")
    except ConfigError as error:
        return "refused" if str(error).startswith("f.yaml:") else str(error)
    return "read"


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("null", None), ("~", None), ("", None), ("0", 0),
        ("-7", -7), ("+7", 7), ("123456789012345678", 123456789012345678), ("1.10", 1.1), (".5", 0.5), ("1.", 1.0),
        ("1e3", 1000.0), ("1.5E-2", 0.015), ("no", "no"), ("on", "on"), ("Yes", "Yes"), ("off", "off"), ("y", "y"),
        ("12:30", "12:30"), ("12:30:00", "12:30:00"), ("2026-02-30", "2026-02-30"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), ("007", "007"), ("017", "017"), ("0x1f", "0x1f"),
        ("0o17", "0o17"), ("0b1", "0b1"), ("1_000", "1_000"), (".inf", ".inf"), (".nan", ".nan"), ("1e", "1e"),
        ("e3", "e3"), ("-", None), ("'true'", "true"), ('"1.10"', "1.10"), ("'~'", "~"), ('""', ""),
        ('"\\u00e9"', "é"), ("=", "="), ("${A}", "${A}"), ("a: b", None),
    ],
)  # fmt: skip
def test_a_scalar_is_read_as_yaml_1_2_and_not_as_1_1(scalar: str, value: Any) -> None:
    if scalar in {"-", "a: b"}:  # structure, not a scalar
        with pytest.raises(ConfigError):
            load(f"k: {scalar}", "f.yaml")
        return
    found = load(f"k: {scalar}", "f.yaml").value["k"]
    assert found == value
    assert type(found) is type(value)


def test_block_text_lists_and_mappings_are_built_with_their_places() -> None:
    document = load("a:\n  - x: 1\n    y: |\n      two\n      lines\n  - [p, q]\nb: {c: d}\n", "f.yaml")
    assert document.value == {"a": [{"x": 1, "y": "two\nlines\n"}, ["p", "q"]], "b": {"c": "d"}}
    assert document.places[("a", 0, "x")] == Place(2, 8)
    assert document.keys[("a", 0, "y")] == Place(3, 5)
    assert document.where(("a", 1, 1)) == "f.yaml:6:9"
    assert document.where(("b", "missing")) == "f.yaml:7:4"
    assert document.where(("b", "c"), key=True) == "f.yaml:7:5"
    assert document.at(("a", 0, "x")) == 1
    assert document.at(("a", 9, "x")) is None


def test_keys_are_always_text() -> None:
    assert load("1: a\nno: b\nnull: c\n1.5: d", "f.yaml").value == {"1": "a", "no": "b", "null": "c", "1.5": "d"}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_nothing(text: str) -> None:
    assert load(text, "f.yaml").value is None


def test_a_byte_order_mark_is_skipped() -> None:
    assert load(b"\xef\xbb\xbfa: 1", "f.yaml").value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x 1", "f.yaml:1:4: an anchor"),
        ("a: 1\nb: *x", "f.yaml:2:4: an alias"),
        ("a: &x\n  b: 1\nc:\n  <<: *x", "f.yaml:1:4: an anchor"),
        ("c:\n  <<: {a: 1}", "f.yaml:2:3: a merge key"),
        ("a: !!str 1", "f.yaml:1:4: a tag"),
        ("a: !!python/object/apply:os.system [ls]", "f.yaml:1:4: a tag"),
        ("!x\na: 1", "f.yaml:1:1: a tag"),
        ("a: ! 1", "f.yaml:1:4: a tag"),
        ("%TAG !e! tag:example,2000:\n---\na: 1", "f.yaml:1:1: a tag directive"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: the key 'a' stands here twice; first on line 1"),
        ("{x: {a: 1, 'a': 2}}", "f.yaml:1:12: the key 'a'"),
        ("? [a]\n: 1", "f.yaml:1:3: a key that is not plain text"),
        ("? {a: 1}\n: 1", "f.yaml:1:3: a key that is not plain text"),
        ("'': 1", "a key that is not plain text"),
        (": 1", "f.yaml:1:1:"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document"),
        ("a: [1, 2", "f.yaml:"),
        ("a: 'x", "f.yaml:"),
        ("a: b: c", "f.yaml:1:5:"),
        ("a: 1\n b: 2", "f.yaml:2:"),
        ("a: 1234567890123456789", "f.yaml:1:4: a number of more than 18"),
        ("a: " + "9" * 5_000, "f.yaml:1:4: a number"),
        ("a: \x07", "f.yaml:1:1:"),
        ("a: \x00", "f.yaml:1:1:"),
    ],
)
def test_refused_yaml_is_named_with_its_place(text: str, says: str) -> None:
    assert says in refusal(text)
    assert "\n" not in refusal(text)


def test_a_tab_as_indent_is_explained() -> None:
    with pytest.raises(ConfigError) as caught:
        load("a:\n\tb: 1", "f.yaml")
    assert "tabs" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    ["schedule: * * * * *", "schedule: */5 * * * *", "targets: [*]", "schedule: *name", "schedule: @daily", "a:\n- *"],
)
def test_an_unquoted_value_that_begins_with_a_special_character_gets_advice_to_quote_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, "f.yaml")
    assert "quotes" in (caught.value.hint or "")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a: \xe9", b"\x00\x00\xfe\xff", "a: \ud800"])
def test_invalid_utf_8_is_refused(data: str | bytes) -> None:
    assert "UTF-8" in refusal(data)


@pytest.mark.parametrize(("extra", "passes"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("limit", [CEREMONY_BYTES_MAX, 256 * 1024])
def test_size_is_limited_in_bytes(extra: int, passes: bool, limit: int) -> None:
    text = "a: '" + "é" * ((limit + extra - 5) // 2)
    text += "x" * (limit + extra - 1 - len(text.encode())) + "'"
    assert len(text.encode()) == limit + extra
    if passes:
        load(text, "f.yaml", bytes_max=limit)
    else:
        assert str(limit) in refusal(text, bytes_max=limit)


@pytest.mark.parametrize(("depth", "passes"), [(DEPTH_MAX - 1, True), (DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
def test_the_depth_of_nesting_is_limited(depth: int, passes: bool) -> None:
    text = "[" * depth + "]" * depth
    if passes:
        load(text, "f.yaml")
    else:
        assert f"deeper than {DEPTH_MAX}" in refusal(text)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "passes"), [(NODES_MAX - 1, True), (NODES_MAX, True), (NODES_MAX + 1, False)])
def test_the_number_of_values_is_limited(nodes: int, passes: bool) -> None:
    text = "[" + ",".join(["1"] * (nodes - 1)) + "]"
    if passes:
        load(text, "f.yaml")
    else:
        assert str(NODES_MAX) in refusal(text)
        load(text, "f.yaml", nodes_max=nodes)


def _layers(form: str) -> str:
    """Nine names, each a list of nine times the one before."""
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    return "".join(form.format(name=new, inner=",".join([f"*{old}"] * 9)) for old, new in pairs)


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n" + _layers("{name}: &{name} [{inner}]\n"),
    "merge": "a: &a {x: 1}\n" + _layers("{name}: &{name} {{<<: [{inner}]}}\n"),
    "brackets": "[" * 32_000,
    "braces": "{a: " * 8_000,
    "dashes": "- " * 16_000,
    "keys": "? " * 16_000,
    "flat": "[" + "1," * 16_000 + "]",
    "long number": "a: " + "1" * 32_000,
    "long float": "a: 1." + "1" * 32_000,
    "comments": "#" * 32_000,
    "lines": "\n" * 32_000,
    "quotes": "a: '" + "''" * 16_000 + "'",
    "folded": "a: >\n" + " x\n" * 10_000,
    "duplicate keys": "a: 1\n" * 6_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_file_costs_little_time_and_memory(name: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    assert verdict(BOMBS[name]) in {"read", "refused"}
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 0.5
    assert peak < 16 * 1024 * 1024


@given(
    st.one_of(
        st.text(max_size=60), st.binary(max_size=60), st.text(alphabet="ab:-[]{}&*!|>'\"%@#?, \n\t0", max_size=40)
    )
)
def test_any_text_is_read_or_a_config_error(text: str | bytes) -> None:
    assert verdict(text) in {"read", "refused"}


KEYS = st.text("abc<", min_size=1, max_size=4)
# PyYAML writes YAML 1.1, where 0E0 is text and needs no quotes; in YAML 1.2, which is read here, it is a number.
TEXTS = st.text(max_size=8).filter(lambda text: not re.fullmatch(r"[-+]?[0-9._]+[eE][-+]?[0-9]+", text))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**15), 10**15), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@given(VALUES)
def test_plain_values_survive_being_written_and_read(value: Any) -> None:
    text = yaml.safe_dump(value, default_style='"') if isinstance(value, str) else yaml.safe_dump(value)
    if any(mark in text for mark in ("&", "*", "<<", "!", "? ")):
        return
    assert load(text, "f.yaml").value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("123456789012345678", 123456789012345678),
        ("1.23456789012345678", None),
        ("1.2345678901234567", 1.2345678901234567),
        ("0.30000000000000004", 0.1 + 0.2),
        ("-299.99999999999994", -299.99999999999994),
        ("'12345678901234567890'", "12345678901234567890"),
        ("1e999", float("inf")),
        ("1e1000", "1e1000"),
        ("+.5e+3", 500.0),
        ("5.e-1", 0.5),
        ("1.2.3", "1.2.3"),
        ("00", "00"),
        ("-0", 0),
        ("nulL", "nulL"),
        ("NULL", None),
    ],
)
def test_a_number_is_read_up_to_eighteen_characters_and_a_fraction_as_it_is_written(text: str, value: Any) -> None:
    if value is None and text != "NULL":
        assert refusal(f"k: {text}").startswith("f.yaml:1:4: ")
    else:
        found = load(f"k: {text}", "f.yaml").value["k"]
        assert (found, type(found)) == (value, type(value))
