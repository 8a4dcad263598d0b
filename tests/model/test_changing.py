"""Copies of frozen records with changes: written through another class, and nothing of that shows."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import FrozenInstanceError

import pytest

from fleetsim.caller.events import Excerpt, StreamReceived, TaskMoved
from fleetsim.model.changing import changer, replace
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
