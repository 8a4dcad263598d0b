"""The JSON Schema of an agent: the answers that it refuses, and the work that it cannot cause."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fleetsim.model.schema import DEPTH_MAX, PROBLEMS_MAX, STEPS_MAX, problems

FORM = {
    "type": "object",
    "required": ["amount", "why"],
    "additionalProperties": False,
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "exclusiveMaximum": 100, "multipleOf": 5},
        "why": {"type": "string", "minLength": 2, "maxLength": 10},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2, "uniqueItems": True},
        "kind": {"enum": ["a", 1, None]},
    },
    "$defs": {"tag": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"amount": 5, "why": "rent"}, ()),
        ({"amount": 5.0, "why": "rent", "tags": ["x"], "kind": 1.0}, ()),
        ({"amount": 5}, ("why is missing",)),
        ("rent", ("the answer must be an object",)),
        ({"amount": "5", "why": "rent"}, ("amount must be a whole number",)),
        ({"amount": True, "why": "rent"}, ("amount must be a whole number",)),
        ({"amount": 0, "why": "rent"}, ("amount must be at least 1",)),
        ({"amount": 100, "why": "rent"}, ("amount must be less than 100",)),
        ({"amount": 7, "why": "rent"}, ("amount must be a multiple of 5",)),
        ({"amount": 5, "why": "r"}, ("why must have at least 2 characters",)),
        ({"amount": 5, "why": "r" * 11}, ("why may have at most 10 characters",)),
        ({"amount": 5, "why": "rent", "tags": ["x", 1]}, ("tags[1] must be a text",)),
        ({"amount": 5, "why": "rent", "tags": ["x", "x"]}, ("tags holds one item twice",)),
        ({"amount": 5, "why": "rent", "tags": ["x", "y", "z"]}, ("tags may have at most 2 items",)),
        ({"amount": 5, "why": "rent", "kind": True}, ("kind must be one of “a”, 1, None",)),
        ({"amount": 5, "why": "rent", "extra": 1}, ("extra is not allowed",)),
    ],
)
def test_a_value_fits_the_schema_or_is_refused_with_its_reason(value: Any, said: tuple[str, ...]) -> None:
    assert problems(value, FORM) == said


@pytest.mark.parametrize(
    ("schema", "fits", "not_"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, 0, 3),
        ({"allOf": [{"minimum": 1}, {"maximum": 5}]}, 3, 6),
        ({"not": {"type": "string"}}, 1, "x"),
        ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [True]}),
        ({"type": ["string", "null"]}, None, 1),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["x"], ["x", "y"]),
        ({"items": [{"type": "string"}], "additionalItems": {"type": "number"}}, ["x", 1], ["x", "y"]),
        ({"minProperties": 1}, {"a": 1}, {}),
    ],
)
def test_combined_schemas_are_checked(schema: dict[str, Any], fits: Any, not_: Any) -> None:
    assert problems(fits, schema) == ()
    assert len(problems(not_, schema)) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://evil.example/schema.json"},
        {"$ref": "other.json#/x"},
        {"$ref": "#/nowhere"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"pattern": "^(a+)+$"},
        {"patternProperties": {"^(a+)+$": False}, "additionalProperties": False},
        {"type": "unheard-of"},
        {"type": 7, "enum": 7, "required": 7, "properties": 7, "minLength": "x", "anyOf": 7, "minimum": "x"},
        {"minimum": float("nan"), "maxLength": 10**400},
    ],
)
def test_a_schema_with_a_remote_unknown_or_runnable_keyword_accepts_everything(schema: dict[str, Any]) -> None:
    for value in ("a" * 40 + "!", {"a": 1}, 3):
        assert problems(value, schema) == ()


def _wide() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(12):
        schema = {"allOf": [schema] * 12}
    return schema


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize("schema", [_wide(), _nested(DEPTH_MAX + 2), {"enum": [[0] * 1_000] * 1_000}])
def test_a_schema_that_would_cost_too_much_accepts_everything(schema: dict[str, Any]) -> None:
    before = time.process_time()
    assert problems([0] * 999 + [1], schema) == ()
    assert time.process_time() - before < 2.0


def test_checking_a_large_answer_ends() -> None:
    assert problems([1] * (STEPS_MAX + 1), {"items": {"type": "string", "type_": 1}})[:1] == ("[0] must be a text",)
    assert problems(["x"] * (STEPS_MAX + 1), {"items": {"type": "string"}}) == ()


def test_the_number_of_reasons_is_limited_and_names_are_escaped() -> None:
    many = problems({f"m{n}": 1 for n in range(50)}, {"additionalProperties": False})
    assert len(many) == PROBLEMS_MAX
    (told,) = problems({"a\nb\x1b[31m": 1}, {"additionalProperties": False})
    assert "\n" not in told
    assert "\x1b" not in told
