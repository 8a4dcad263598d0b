"""Problems in a file as lines that a person can act on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fleetsim.runtime.explain import PROBLEMS_MAX, combine, did_you_mean, explain, nearest
from fleetsim.runtime.yaml import interpolate, load


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Auth(Strict):
    scheme: str


class Skill(Strict):
    name: str
    description: str = ""


class Agent(Strict):
    name: str
    url: str
    apiKeyEnv: str | None = None  # noqa: N815
    skills: list[Skill] = []
    timeoutMs: int = 1000  # noqa: N815
    enabled: bool = True
    auth: str | Auth | None = None
    tags: dict[str, Skill] = {}

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith("http"):
            raise ValueError("Must begin with http:// or https://")
        return value


class Fleet(Strict):
    agents: list[Agent]


def problems(text: str, env: dict[str, str] | None = None) -> list[str]:
    document = interpolate(load(text, "a.yaml"), env or {}).document
    raw = load(text, "a.yaml")
    try:
        Fleet.model_validate(document.value)
    except ValidationError as error:
        return [f"{problem}{' / ' + problem.hint if problem.hint else ''}" for problem in explain(raw, error, Fleet)]
    return []


def agent(**fields: Any) -> str:
    lines = {"name": "x", "url": "http://x", **fields}
    return "agents:\n  - " + "\n    ".join(f"{key}: {value}" for key, value in lines.items() if value is not None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            agent(apikeyenv="K"),
            [
                "a.yaml:4:5: unknown key 'apikeyenv' (did you mean 'apiKeyEnv'?)",
            ],
        ),
        (
            agent(zzz=1),
            [
                "a.yaml:4:5: unknown key 'zzz' (known: apiKeyEnv, auth, enabled, name, skills, tags, timeoutMs, url)",
            ],
        ),
        (
            agent(name="1.10"),
            [
                "a.yaml:2:11: 'name' must be text, not 1.1 / put it in quotes to make it text",
            ],
        ),
        (
            agent(name="123456789"),
            [
                "a.yaml:2:11: 'name' must be text, not 123456789 / put it in quotes to make it text",
            ],
        ),
        (
            agent(timeoutMs="fast"),
            [
                "a.yaml:4:16: 'timeoutMs' must be a whole number, not 'fast'",
            ],
        ),
        (
            agent(enabled="no"),
            [
                "a.yaml:4:14: 'enabled' must be true or false, not 'no'",
            ],
        ),
        (
            agent(skills="[{nme: a}]"),
            [
                "a.yaml:4:14: 'name' is missing (is 'nme' meant to be it?)",
                "a.yaml:4:15: unknown key 'nme' (did you mean 'name'?)",
            ],
        ),
        (
            agent(skills="5"),
            [
                "a.yaml:4:13: 'skills' must be a list, not 5",
            ],
        ),
        (
            agent(auth="{shceme: x}"),
            [
                "a.yaml:4:11: 'scheme' is missing (is 'shceme' meant to be it?)",
                "a.yaml:4:12: unknown key 'shceme' (did you mean 'scheme'?)",
            ],
        ),
        (
            agent(tags="{a: {naem: x}}"),
            [
                "a.yaml:4:15: 'name' is missing (is 'naem' meant to be it?)",
                "a.yaml:4:16: unknown key 'naem' (did you mean 'name'?)",
            ],
        ),
        (
            agent(url="ftp://x"),
            [
                "a.yaml:3:10: 'url' must begin with http:// or https://, not 'ftp://x'",
            ],
        ),
        (
            agent(url=None),
            [
                "a.yaml:2:5: 'url' is missing",
            ],
        ),
        (
            "agents: {}",
            [
                "a.yaml:1:9: 'agents' must be a list",
            ],
        ),
        (
            "agnets: []",
            [
                "a.yaml:1:1: 'agents' is missing (is 'agnets' meant to be it?)",
                "a.yaml:1:1: unknown key 'agnets' (did you mean 'agents'?)",
            ],
        ),
        (
            "5",
            [
                "a.yaml:1:1: the file must be a mapping, not 5",
            ],
        ),
        (
            "",
            [
                "a.yaml:1:1: the file must be a mapping",
            ],
        ),
    ],
)
def test_a_problem_is_one_line_with_place_value_and_nearest_key(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


def test_problems_come_in_the_order_of_the_file_and_their_number_is_limited() -> None:
    text = "agents:\n" + "".join(f"  - name: {n}\n    url: http://x\n" for n in range(PROBLEMS_MAX + 10))
    found = problems(text)
    assert len(found) == PROBLEMS_MAX == 20
    assert [line.split(":")[1] for line in found] == [str(2 + 2 * n) for n in range(PROBLEMS_MAX)]


def test_the_order_is_that_of_the_file_and_not_of_the_models() -> None:
    found = problems("agents:\n  - timeoutMs: x\n    url: ftp\n    name: 5\n")
    assert [line.split(":")[1] for line in found] == ["2", "3", "4"]


def test_a_missing_key_is_reported_where_its_entry_begins() -> None:
    found = problems("agents:\n  - name: a\n    url: http://x\n    zzz: 1\n  - name: b\n  - url: ftp\n    name: c\n")
    assert [line.split(":")[1] for line in found] == ["4", "5", "6"]


@pytest.mark.parametrize(("limit", "shown"), [(1, "1"), (1.0, "1"), (0.5, "0.5"), (1_000.0, "1000"), (2.25, "2.25")])
def test_a_limit_is_shown_as_a_person_writes_it(limit: float, shown: str) -> None:
    class Limited(BaseModel):
        value: float = Field(ge=limit)

    with pytest.raises(ValidationError) as caught:
        Limited.model_validate({"value": -1})
    (problem,) = explain(load("value: -1", "a.yaml"), caught.value, Limited)
    assert f"must be at least {shown}, not -1" in str(problem)


def test_the_value_of_a_variable_is_never_shown() -> None:
    (found,) = problems(agent(url="${SECRET}"), {"SECRET": "s3cr3t"})
    assert found.startswith("a.yaml:3:10: 'url' ")
    assert found.endswith("'${SECRET}'")


def test_a_value_with_the_name_of_a_secret_is_not_shown() -> None:
    (found,) = problems(agent(apiKeyEnv="[s3cr3t]"))
    assert "s3cr3t" not in found
    (found,) = problems(agent(auth="123456"))
    assert found.startswith("a.yaml:4:11: 'auth' ")


def test_control_characters_in_a_file_cannot_reach_the_terminal() -> None:
    found = problems(agent(timeoutMs='"\\x1b[2J\\u202e"')) + problems('agents: []\n"a\\x1b[31m": 1')
    assert all("\x1b" not in line and "\u202e" not in line and "\n" not in line for line in found)


def test_problems_combine_into_one_error_of_several_lines() -> None:
    document = load("agents: [{}]", "a.yaml")
    with pytest.raises(ValidationError) as caught:
        Fleet.model_validate(document.value)
    combined = combine(explain(document, caught.value, Fleet))
    assert str(combined).splitlines() == ["a.yaml:1:10: 'name' is missing", "a.yaml:1:10: 'url' is missing"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("descrption", "description"), ("API-KEY-ENV", "apiKeyEnv"), ("timeout", "timeoutMs"), ("qqqq", None), ("", None)],
)
def test_the_nearest_key_is_suggested(key: str, expected: str | None) -> None:
    assert nearest(key, ["description", "apiKeyEnv", "timeoutMs", "name"]) == expected


def test_without_valid_keys_there_is_no_suggestion() -> None:
    assert did_you_mean("x", []) == ""
    assert did_you_mean("x", ["kind", "argv", "kind"]) == " (known: argv, kind)"


class Inner(Strict):
    deep: int


class Near(Strict):
    name: str
    named: str = ""


class Wide(Strict):
    near: list[Near] = []
    word: Annotated[str, Field(min_length=1)] | Inner | None = None
    many: str | Inner | Skill = ""
    choice: list[Inner] | None = None
    named: dict[str, Inner] = {}
    either: Inner | list[Skill] | int = 0
    short: str = Field(default="x", min_length=1, max_length=3)
    few: list[int] = Field(default=[], max_length=2)
    spelt: int = Field(default=0, alias="spelt-out")


def told(text: str) -> list[str]:
    document = load(text, "f.yaml")
    with pytest.raises(ValidationError) as caught:
        Wide.model_validate(document.value)
    return [str(problem) for problem in explain(document, caught.value, Wide)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("choice: [{deep: 1, dep: 2}]", ["f.yaml:1:20: unknown key 'dep' (did you mean 'deep'?)"]),
        ("named: {a: {deep: 1, dep: 2}}", ["f.yaml:1:22: unknown key 'dep' (did you mean 'deep'?)"]),
        ("either: {deep: 1, dep: x}", ["f.yaml:1:19: unknown key 'dep' (did you mean 'deep'?)"]),
        ("either: [{name: x, descripton: x}]", ["f.yaml:1:20: unknown key 'descripton' (did you mean 'description'?)"]),
        ("short: ''", ["f.yaml:1:8: 'short' must not be empty"]),
        ("short: abcd", ["f.yaml:1:8: 'short' must have at most 3 characters"]),
        ("few: [1, 2, 3]", ["f.yaml:1:6: 'few' must have at most 2 items, not 3"]),
        ("few: [1, x]", ["f.yaml:1:10: item 2 of 'few' must be a whole number, not 'x'"]),
        ("few: [1, true]", ["f.yaml:1:10: item 2 of 'few' must be a whole number, not true"]),
        ("either: {x: {}}", ["f.yaml:1:9: 'deep' is missing", "f.yaml:1:10: unknown key 'x' (known: deep)"]),
        (
            "choice: [{deep: x}, {deep: y}]",
            [
                "f.yaml:1:17: 'deep' must be a whole number, not 'x'",
                "f.yaml:1:28: 'deep' must be a whole number, not 'y'",
            ],
        ),
        ("either: x", ["f.yaml:1:9: 'either' must be a mapping or a list or a whole number, not 'x'"]),
        ("either: {deep: x}", ["f.yaml:1:16: 'deep' must be a whole number, not 'x'"]),
        ("word: ''", ["f.yaml:1:7: 'word' must not be empty"]),
        ("many: 5", ["f.yaml:1:7: 'many' must be text or a mapping, not 5"]),
        ("near: [{named: x}]", ["f.yaml:1:8: 'name' is missing"]),
        ("spelt-ou: 1", ["f.yaml:1:1: unknown key 'spelt-ou' (did you mean 'spelt-out'?)"]),
        ("spelt-out: x", ["f.yaml:1:12: 'spelt-out' must be a whole number, not 'x'"]),
        (
            "few: [" + "1234567" * 2 + ", '" + "y" * 41 + "']",
            ["f.yaml:1:23: item 2 of 'few' must be a whole number, not '" + "y" * 39 + "…'"],
        ),
    ],
)
def test_a_problem_inside_lists_mappings_and_unions_is_reported_at_its_place(text: str, expected: list[str]) -> None:
    assert told(text) == expected


def test_a_long_key_is_cut_before_it_is_compared_and_shown() -> None:
    assert nearest("a" * 100 + "b" * 10_000, ["a" * 100]) == "a" * 100
    (problem,) = told(f"{'z' * 70}: 1")
    assert problem.startswith(f"f.yaml:1:1: unknown key '{'z' * 59}…' (known: ")


@pytest.mark.parametrize("name", ["apiKey", "TOKEN", "clientSecret", "password", "credentials", "authorization"])
def test_a_value_below_a_key_with_the_name_of_a_secret_is_not_shown(name: str) -> None:
    class Kept(Strict):
        value: dict[str, int]

    with pytest.raises(ValidationError) as caught:
        Kept.model_validate({"value": {name: "s3cr3t"}})
    (problem,) = explain(load(f"value: {{{name}: s3cr3t}}", "f.yaml"), caught.value, Kept)
    assert str(problem).endswith(f"'{name}' must be a whole number")


class LogSink(Strict):
    kind: Literal["log"]


class CommandSink(Strict):
    kind: Literal["command"]


class Channel(Strict):
    sink: Annotated[LogSink | CommandSink, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("{knd: log}", "a.yaml:1:7: 'sink' has no kind (is 'knd' meant to be it? one of command, log)"),
        ("{}", "a.yaml:1:7: 'sink' has no kind (one of command, log)"),
    ],
)
def test_a_missing_kind_lists_the_known_kinds_and_the_likely_one(sink: str, said: str) -> None:
    document = load(f"sink: {sink}", "a.yaml")
    with pytest.raises(ValidationError) as raised:
        Channel.model_validate(document.value)
    assert [str(problem) for problem in explain(document, raised.value, Channel)] == [said]
