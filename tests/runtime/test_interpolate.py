"""Environment variables in text values: only in values, only after parsing, never shown (T-37)."""

from __future__ import annotations

import re

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import interpolate, load

ENV = {"HOST": "example.com", "EMPTY": "", "ODD": "a: [${HOST}]\n- b", "API_KEY": "s3cr3t"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${HOST}", "example.com"),
        ("http://${HOST}:${PORT:-80}/${HOST}", "http://example.com:80/example.com"),
        ("${NONE:-}", ""),
        ("${NONE:-a b:c}", "a b:c"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("$HOST", "$HOST"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("100%", "100%"),
        ("${ODD}", "a: [${HOST}]\n- b"),
    ],
)
def test_a_reference_is_replaced_by_its_value_once(text: str, value: str) -> None:
    document = load(f"a: '{text}'", "f.yaml")
    got = interpolate(document, ENV)
    assert got.document.value == {"a": value}
    assert got.missing == ()
    assert document.value == {"a": text}  # messages show the text as it was written


def test_keys_and_values_of_other_types_stay_unchanged() -> None:
    document = load("${HOST}: 1\nb: [true, 2, '${HOST}']", "f.yaml")
    assert interpolate(document, ENV).document.value == {"${HOST}": 1, "b": [True, 2, "example.com"]}


def test_a_document_that_is_one_text_is_a_value_too() -> None:
    assert interpolate(load("'${HOST}'", "f.yaml"), ENV).document.value == "example.com"


def test_a_missing_variable_is_reported_with_its_place_and_left_as_written() -> None:
    got = interpolate(load("a:\n  - url: http://${NOPE}/", "f.yaml"), ENV)
    assert got.document.value == {"a": [{"url": "http://${NOPE}/"}]}
    (missing,) = got.missing
    assert (missing.path, missing.name) == (("a", 0, "url"), "NOPE")
    assert str(missing.error).startswith("f.yaml:2:10: ")


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A B}", "${A", "${A:+x}", "${A:-${B}}", "x ${HOST} ${"])
def test_a_malformed_reference_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml:1:4"):
        interpolate(load(f"a: '{text}'", "f.yaml"), {"A": "1"})


@pytest.mark.parametrize("text", ["${home}", "${API_KEY}"])
def test_a_name_that_is_not_allowed_is_refused_and_its_value_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        interpolate(load(f"a: '{text}'", "f.yaml"), {**ENV, "home": "s3cr3t"}, names=re.compile("FLEET_.*|HOST"))
    assert "s3cr3t" not in str(caught.value)


def test_only_the_requested_places_are_filled_in() -> None:
    document = load("url: ${HOST}\ndescription: ${HOST} ${", "f.yaml")
    got = interpolate(document, ENV, where=lambda path: path == ("url",))
    assert got.document.value == {"url": "example.com", "description": "${HOST} ${"}


def test_a_value_that_grows_too_long_is_refused() -> None:
    with pytest.raises(ConfigError):
        interpolate(load("a: ${BIG}", "f.yaml"), {"BIG": "x" * 9_000})


def test_a_filled_in_value_may_be_8192_characters_long() -> None:
    document = load("a: 'x${LONG}'", "f.yaml")
    assert interpolate(document, {"LONG": "y" * 8_191}).document.value == {"a": "x" + "y" * 8_191}
    with pytest.raises(ConfigError) as caught:
        interpolate(document, {"LONG": "y" * 8_192})
    assert str(caught.value).startswith("f.yaml:1:4: ")
