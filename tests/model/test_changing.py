"""Frozen records that are made often, and copies with changes: written through another class, and nothing shows it."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from fleetsim.caller.events import Excerpt, StreamReceived, TaskMoved
from fleetsim.model.changing import changer, made_often, replace
from fleetsim.model.task import Task, TaskState, TaskStatus
from fleetsim.model.work import SkillRequest

HEARD = StreamReceived(type="artifact", text=Excerpt("words", 5), agent="quinn")
TASK = Task(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))


@pytest.mark.parametrize("record", [HEARD, TASK, Excerpt("words", 5), SkillRequest(correlation_id="c", text="do it")])
def test_a_copy_is_what_the_standard_one_makes(record: object) -> None:
    copy = replace(record)  # type: ignore[type-var]
    assert copy == dataclasses.replace(record)  # type: ignore[type-var]
    assert type(copy) is type(record)
    assert repr(copy) == repr(record)
    assert pickle.loads(pickle.dumps(copy)) == record


def test_what_changes_is_in_the_copy_and_not_in_the_record() -> None:
    told = replace(HEARD, seq=7, agent="ada")
    assert (told.seq, told.agent, told.text) == (7, "ada", HEARD.text)
    assert (HEARD.seq, HEARD.agent) == (0, "quinn")


def test_what_a_changer_makes_is_what_a_change_of_these_fields_is() -> None:
    changed = changer(Task, "context_id", "task_id")(TASK, "d", "u")
    assert changed == replace(TASK, context_id="d", task_id="u")
    assert (type(changed), TASK.context_id) == (Task, "c")
    with pytest.raises(FrozenInstanceError):
        changed.task_id = "third"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        changer(Task, "context_id", "contextual")


def test_a_copy_is_as_frozen_as_the_record() -> None:
    copy = replace(HEARD, seq=7)
    with pytest.raises(FrozenInstanceError):
        copy.type = "status"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del copy.type
    with pytest.raises(FrozenInstanceError):
        replace(TASK, task_id="other").task_id = "third"  # type: ignore[misc]


def test_a_change_of_what_is_no_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        replace(HEARD, sequel=7)  # type: ignore[call-arg]


def test_a_copy_is_matched_by_its_class() -> None:
    moved = TaskMoved(state="working", previous=None, via="poll", text=Excerpt())
    match replace(moved, seq=1):
        case TaskMoved(via=via):
            assert via == "poll"
        case _:
            pytest.fail("a copy is of its record's class")


@dataclass(frozen=True, slots=True)
class Plain:
    name: str
    kind: int = 3
    marks: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict, kw_only=True)


def often() -> type[Plain]:
    """A class like ``Plain`` of which no record was made."""

    @made_often
    @dataclass(frozen=True, slots=True)
    class Plain:
        name: str
        kind: int = 3
        marks: list[int] = field(default_factory=list)
        notes: dict[str, Any] = field(default_factory=dict, kw_only=True)

    return Plain  # type: ignore[return-value]


@pytest.mark.parametrize("made_before", [False, True])
def test_a_record_that_is_made_often_is_what_the_standard_one_would_be(made_before: bool) -> None:
    kind = often()
    if made_before:
        kind("another")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("a",), {}),
        (("a", 4, [5]), {"notes": {"b": 6}}),
        ((), {"kind": 7, "name": "c"}),
    ]
    for args, members in calls:
        made, other = kind(*args, **members), Plain(*args, **members)
        assert repr(made).partition(".Plain(")[2] == repr(other).partition("(")[2]
        assert (dataclasses.asdict(made), type(made)) == (dataclasses.asdict(other), kind)
        with pytest.raises(FrozenInstanceError):
            made.kind = 8  # type: ignore[misc]
    assert kind("a").marks is not kind("a").marks
    refused: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), {}), (("a", 1, [], {}), {}), (("a",), {"other": 1})]
    for args, members in refused:
        with pytest.raises(TypeError, match="__init__"):
            kind(*args, **members)
    assert list(inspect.signature(kind).parameters) == ["name", "kind", "marks", "notes"]


def test_who_inherits_from_a_record_that_is_made_often_is_of_its_own_class() -> None:
    kind: Any = often()

    class Same(kind):
        __slots__ = ()

    @dataclass(frozen=True, slots=True)
    class Longer(kind):
        more: str = ""

    assert type(Same("a")) is Same
    assert (Longer("a", more="b").more, type(Longer("a"))) == ("b", Longer)


def test_a_class_that_checks_itself_is_not_made_past_its_check() -> None:
    @made_often
    @dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self) -> None:
            raise ValueError(self.name)

    with pytest.raises(TypeError, match="Checked checks itself"):
        Checked("a")
