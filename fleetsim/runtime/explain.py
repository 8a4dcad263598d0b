"""The problems of a file, one line each: file:line:col, the value, and the nearest valid key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from fleetsim.model.errors import ConfigError
from fleetsim.model.spans import SPAN, seconds_of
from fleetsim.model.text import one_line
from fleetsim.runtime.yaml import Path, YamlDocument

PROBLEMS_MAX = 20
WORDS_LISTED_MAX = 8
"""A message lists the words that a value may be up to this number, even if one of them is close."""

DECLARED = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""For dataclasses whose values people write: no unknown key, and what editors show is the text below a member."""


Span: TypeAlias = Annotated[
    float,
    BeforeValidator(seconds_of),
    WithJsonSchema({"type": "string", "pattern": f"^{SPAN}$", "examples": ["30s", "5m", "1h30m"]}),
]
"""Seconds that people write as a span."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Marks a text of a model that a pattern must match in full.

    The JSON Schema has both; an error says ``rule``, here and in editors, as nobody reads a pattern in an error.
    """

    pattern: str
    rule: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "patternErrorMessage": f"must be {self.rule}"}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text, re.ASCII):
            raise ValueError(f"must be {self.rule}")
        return text


_QUOTE = "'"

_SECRETIVE = re.compile(r"key|token|secret|password|credential|auth", re.IGNORECASE)
_URL = re.compile(r"(?P<origin>[a-z+]{2,10}://[^/?#@]*)[/?#@].*", re.DOTALL | re.IGNORECASE)
"""Of an address only the origin is shown: the rest of a chat's webhook is a secret."""
_UNKNOWN_KEY = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Pydantic's names for an unknown key, in a model and in a dataclass."""

_PLAIN_WORDS = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dataclass_type": "must be a mapping",
}


def nearest(key: str, valid: Iterable[str]) -> str | None:
    """The valid key somebody probably meant, or None. Case, ``-`` and ``_`` count little."""
    by_folded = {_fold(name): name for name in valid}
    near = difflib.get_close_matches(_fold(key), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def _fold(key: str) -> str:
    return key[:100].lower().replace("-", "").replace("_", "")


def did_you_mean(key: str, valid: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" or, if nothing is near, " (known: …)"; ready to append."""
    names = sorted(set(valid))
    near = nearest(key, names)
    if near is not None:
        return f" (did you mean {near!r}?)"
    return f" (known: {', '.join(names[:12])})" if names else ""


def unknown_key(document: YamlDocument, path: Path, valid: Iterable[str]) -> ConfigError:
    key = str(path[-1]) if path else ""
    return document.error(path, f"unknown key {one_line(key, 60)!r}{did_you_mean(key, valid)}", key=True)


def explain(document: YamlDocument, error: ValidationError, model: type[BaseModel]) -> tuple[ConfigError, ...]:
    """One ConfigError per problem, in the order of the file, at most ``PROBLEMS_MAX``.

    ``model`` lends its keys to hints.
    """
    problems: list[tuple[Path, dict[str, Any]]] = [
        (_real_path(document, dict(problem)), dict(problem)) for problem in error.errors()
    ]
    # A value that fits no branch of a union is one problem, told once with all that it may be.
    merged: dict[tuple[Path, str], dict[str, Any]] = {}
    for path, problem in problems:
        if _beaten((path, problem), problems):
            continue
        words = _PLAIN_WORDS.get(problem["type"])
        earlier = merged.setdefault((path, "" if words else str(len(merged))), problem)
        if words is not None:
            said, bare = earlier.get("said", words), words.removeprefix("must be ")
            earlier["said"] = said if bare in said else f"{said} or {bare}"
    told = sorted(merged.items(), key=lambda item: document.place(item[0][0], key=True))
    return tuple(_one(document, problem, path, model) for (path, _), problem in told[:PROBLEMS_MAX])


def _beaten(one: tuple[Path, dict[str, Any]], others: list[tuple[Path, dict[str, Any]]]) -> bool:
    """Whether a wrong type is only the other branch of a union, of which another problem tells more."""
    path, problem = one
    return _is_type(problem) and any(
        other[: len(path)] == path and (len(other) > len(path) or not _is_type(told)) for other, told in others
    )


def _is_type(problem: Mapping[str, Any]) -> bool:
    return str(problem["type"]).endswith("_type")


def combine(problems: tuple[ConfigError, ...]) -> ConfigError:
    """All problems as one error to raise: the first line is the first problem, one line each."""
    hint = next((problem.hint for problem in problems if problem.hint), None)
    error = ConfigError("\n".join(str(problem) for problem in problems), hint=hint)
    error.path, error.said = (problems[0].path, problems[0].said) if problems else ((), "")
    return error


def _real_path(document: YamlDocument, problem: dict[str, Any]) -> Path:
    """The path without the union branches pydantic puts into it: steps the document does not have."""
    loc: Path = tuple(problem["loc"])
    real: Path = ()
    for step in loc:
        candidate = (*real, step)
        if candidate in document.places or candidate in document.keys:
            real = candidate
    return (*real, loc[-1]) if problem["type"] == "missing" else real


def _one(document: YamlDocument, problem: dict[str, Any], path: Path, model: type[BaseModel]) -> ConfigError:
    kind: str = problem["type"]
    name = _named(path)
    if kind in _UNKNOWN_KEY:
        return unknown_key(document, path, known_keys(model, path[:-1]))
    if kind == "missing":
        known = set(document.at(path[:-1]) or ()) if isinstance(document.at(path[:-1]), dict) else set()
        near = nearest(str(path[-1]), known - set(known_keys(model, path[:-1])))
        return document.error(path, f"{name} is missing" + (f" (is {near!r} meant to be it?)" if near else ""))
    value = document.at(path)
    if kind == "union_tag_not_found":
        tag = problem["ctx"]["discriminator"].strip(_QUOTE)
        near = nearest(tag, value if isinstance(value, dict) else ())
        meant = f"is {near!r} meant to be it? " if near else ""
        parts = _parts_at(model, path)
        tags = (word for part in parts for word in part.get("discriminator", {}).get("mapping", ()))
        return document.error(path, f"{name} has no {tag} ({meant}one of {', '.join(tags)})")
    said = problem.get("said") or in_words(problem)
    meant = ""
    if kind == "literal_error" and isinstance(value, str):
        words = re.findall(r"'([^']+)'", problem["ctx"]["expected"])
        if (near := nearest(value, words)) is not None:
            meant = f" (did you mean {near!r}?)"
            said = said if len(words) <= WORDS_LISTED_MAX else f"must be one of {len(words)} words"
    text = f"{name} {said}{_shown(path, value, problem)}{meant}"
    wants_text = kind == "string_type" and isinstance(value, (int, float))
    return document.error(path, text, hint="put it in quotes to make it text" if wants_text else None)


def in_words(problem: Mapping[str, Any]) -> str:
    """The message for a value that breaks a rule of one of our models. It never repeats the value."""
    kind: str = problem["type"]
    ctx: Mapping[str, Any] = problem.get("ctx") or {}
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "is not known here"
        case "value_error" | "assertion_error":
            reason = one_line(str(ctx.get("error") or "cannot be used here"), 200)
            return reason[:1].lower() + reason[1:]
        case "literal_error":
            return f"must be {ctx['expected']}"
        case "union_tag_invalid":
            return f"{ctx['discriminator'].strip(_QUOTE)} must be {ctx['expected_tags']}"
        case "union_tag_not_found":
            return f"{ctx['discriminator'].strip(_QUOTE)} is missing"
        case "string_too_short" | "too_short" if ctx["min_length"] == 1:
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {ctx['max_length']} characters"
        case "too_long":
            return f"must have at most {ctx['max_length']} items"
        case "greater_than":
            return f"must be more than {ctx['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {_plain(ctx['ge'])}"
        case "less_than_equal":
            return f"must be at most {_plain(ctx['le'])}"
        case _:
            return _PLAIN_WORDS.get(kind, "cannot be used here")


def _plain(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else str(limit)


def _named(path: Path) -> str:
    if not path:
        return "the file"
    if isinstance(path[-1], int):
        return f"item {path[-1] + 1} of {one_line(str(path[-2]), 60)!r}"
    return repr(one_line(str(path[-1]), 60))


def _shown(path: Path, value: Any, problem: Mapping[str, Any]) -> str:
    """The value as written (never an environment variable's), unless its name or shape suggests a secret."""
    if problem["type"] == "too_long":
        return f", not {problem['ctx']['actual_length']}"
    if problem["type"] in {"string_too_long", "string_too_short"}:
        return ""
    if isinstance(value, (dict, list)) or value is None:
        return ""
    if any(isinstance(step, str) and _SECRETIVE.search(step) for step in path):
        return ""
    shown = _URL.sub(r"\g<origin>…", str(value).lower() if isinstance(value, bool) else str(value))
    text = one_line(shown, 40)
    return f", not {text!r}" if isinstance(value, str) else f", not {text}"


def known_keys(model: type[BaseModel], path: Path) -> tuple[str, ...]:
    """The keys that a mapping at ``path`` may have, by the model's JSON Schema."""
    return tuple(key for part in _parts_at(model, path) for key in part.get("properties", ()))


@cache  # a stranger's wrong body may not cost a schema each time
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _parts_at(model: type[BaseModel], path: Path) -> list[dict[str, Any]]:
    schema = _schema_of(model)
    parts = list(_alternatives(schema, schema))
    for step in path:
        inside = [part.get("items" if isinstance(step, int) else "additionalProperties") for part in parts]
        inside += [part["properties"].get(step) for part in parts if "properties" in part]
        inside += [other for part in parts for other in part.get("patternProperties", {}).values()]
        parts = [other for part in inside if isinstance(part, dict) for other in _alternatives(part, schema)]
    return parts


def _alternatives(part: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a JSON Schema that one stands for: itself, what it refers to, the branches of a union."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    for branch in (*part.get("anyOf", ()), *part.get("oneOf", ())):
        yield from _alternatives(branch, schema)
    yield part
