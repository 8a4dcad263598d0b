"""Our values as JSON: our names in camelCase, the keys of others unchanged, and only values that JSON has."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import pytest

from fleetsim.api.answer import camel, iso, to_json


class Word(StrEnum):
    UP = "up"


class Number(IntEnum):
    TWO = 2


@dataclass(frozen=True)
class Row:
    failure_rate_1h: float
    given: Any = None
    secret: str = field(default="canary", repr=False)


AT = datetime(2026, 11, 21, 12, 0, 0, 123_999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        (None, None),
        (True, True),
        (7, 7),
        ("text", "text"),
        (1.5, 1.5),
        (math.nan, None),
        (-math.inf, None),
        (Word.UP, "up"),
        (Number.TWO, 2),
        (AT, "2026-11-21T12:00:00.123Z"),
        (Row(0.5), {"failureRate1h": 0.5, "given": None}),
        (
            Row(0.5, given=Row(math.inf, given=Word.UP)),
            {"failureRate1h": 0.5, "given": {"failureRate1h": None, "given": "up"}},
        ),
        ({"a_key": Word.UP, 7: (1, AT)}, {"a_key": "up", "7": [1, "2026-11-21T12:00:00.123Z"]}),
        ((1, Word.UP), [1, "up"]),
        ([Row(0.0)], [{"failureRate1h": 0.0, "given": None}]),
        ({3}, [3]),
        (frozenset({"x"}), ["x"]),
        (PurePosixPath("a/b"), "a/b"),
    ],
    ids=repr,
)
def test_a_value_has_one_form_in_json(value: Any, json_value: Any) -> None:
    found = to_json(value)
    assert found == json_value
    assert type(found) is type(json_value), "of a word of ours only its text"
    assert json.loads(json.dumps(found, allow_nan=False)) == json_value


@pytest.mark.parametrize("value", [object(), Row, b"bytes", 1j])
def test_an_unknown_type_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(TypeError):
        to_json([value])


@pytest.mark.parametrize(
    ("name", "json_name"),
    [("at", "at"), ("failure_rate_1h", "failureRate1h"), ("p95_latency_ms", "p95LatencyMs"), ("a__b_", "aB")],
)
def test_a_name_of_ours_becomes_camel_case(name: str, json_name: str) -> None:
    assert camel(name) == json_name


def test_a_date_is_written_in_utc_to_the_millisecond_from_any_zone() -> None:
    assert iso(datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31T23:30:00.000Z"
