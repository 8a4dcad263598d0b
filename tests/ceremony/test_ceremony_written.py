"""The exact form of a ceremony's file: plain where it is read as text, in lines where the text has lines."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.ceremony.written import changed, written
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import load


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("do it", "do it"),
        ("a.b/c-d@e _f", "a.b/c-d@e _f"),
        ("a: b", '"a: b"'),
        ("0 14 * * *", '"0 14 * * *"'),
        ("@daily", '"@daily"'),
        ("Größe 😀", '"Größe 😀"'),
        ('a\tb "c" \\ d\r', r'"a\tb \"c\" \\ d\r"'),
        ("\0\x7f\x85\x9f\xa0", '"\\u0000\\u007f\\u0085\\u009f\xa0"'),
        ("\u2027\u2028\u2029\u202a\ufeff", '"\u2027\\u2028\\u2029\u202a\\ufeff"'),
        (True, "true"),
        (None, "null"),
        (7, "7"),
        (["a", "b c", 1], "[a, b c, 1]"),
        (("a",), "[a]"),
        ({"contains": ["a"], "b: c": "no"}, '{contains: [a], "b: c": "no"}'),
    ],
)
def test_a_value_is_written_so_that_a_person_can_read_it(value: Any, text: str) -> None:
    assert written({"name": value}) == f"name: {text}\n"
    assert load(written({"name": value}), "x").value == {"name": list(value) if isinstance(value, tuple) else value}


@pytest.mark.parametrize("word", ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "Off", "NULL"])
def test_a_word_that_some_yaml_reads_as_another_type_is_quoted(word: str) -> None:
    assert written({"name": word, word: word}) == f'name: "{word}"\n"{word}": "{word}"\n'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "|-\n  a\n  b"),
        ("a\nb\n", "|\n  a\n  b"),
        ("a\n\n b", "|-\n  a\n\n   b"),
        ("a: #\n- b", "|-\n  a: #\n  - b"),
        ("a\n", r'"a\n"'),
        (" a\nb", r'" a\nb"'),
        ("\na\nb", r'"\na\nb"'),
        ("a\nb\n\n", r'"a\nb\n\n"'),
        ("a\nb\n ", r'"a\nb\n "'),
        ("a\tb\nc", r'"a\tb\nc"'),
        ("a\nb\x85c", r'"a\nb\u0085c"'),
        ("a\nb\u2028c", r'"a\nb\u2028c"'),
        ("a\nb\u2029c", r'"a\nb\u2029c"'),
    ],
)
def test_lines_are_written_as_lines_if_they_are_read_back_unchanged(value: str, text: str) -> None:
    assert written({"prompt": value}) == f"prompt: {text}\n"
    assert load(written({"prompt": value}), "x").value == {"prompt": value}


def test_keys_are_written_in_the_order_of_a_file_and_unknown_ones_last() -> None:
    values = {"unknown": 1, "catchUpWindow": 2, "notifyChannel": "c", "name": "n", "timeoutMs": 3, "id": "i"}
    assert [line.partition(":")[0] for line in written(values).splitlines()] == [
        *("id", "name", "notifyChannel", "timeoutMs", "catchUpWindow", "unknown"),
    ]


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("id: a # why\nskill:\n", {"id": "b"}, "id: b # why\nskill:\n"),
        ("id: a # why\nskill:\n", {"skill": None}, "id: a # why\n"),
        ("id: a # why\n", {"skill": None}, "id: a # why\n"),
        ("id: a # why", {"skill": None}, "id: a # why"),
        ("id: a # why", {"id": None}, ""),
        ("name: b\n", {"name": None, "skill": "c"}, "skill: c\n"),
        ("# mine\nname: b", {"name": None, "skill": "c"}, "# mine\nskill: c\n"),
        ("id: a\nprompt: |\n\nskill: e\n", {"prompt": "x"}, "id: a\nprompt: x\n\nskill: e\n"),
        ("id: a\ntargets:\n  - b\n", {"targets": ["c"]}, "id: a\ntargets: [c]\n"),
        ("targets: [b] # why\nid: a", {"id": "b"}, "targets: [b] # why\nid: b"),
    ],
)
def test_keys_outside_the_change_stay_to_the_letter(before: str, changes: dict[str, Any], after: str) -> None:
    assert changed(before, changes) == after


@pytest.mark.parametrize("text", ["- a\n", "a: [", "just text"])
def test_a_document_that_is_not_a_mapping_is_not_changed(text: str) -> None:
    with pytest.raises(ConfigError):
        changed(text, {"id": "b"})
