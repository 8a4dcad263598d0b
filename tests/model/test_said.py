"""The text of a task: one cascade for an answer, a question and the reason of a failure."""

from __future__ import annotations

import pytest

from fleetsim.model.asking import SILENT, asking_of, text_of
from fleetsim.model.event import Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.parts import answer_parts
from fleetsim.model.task import Artifact, DataPart, Message, Role, Task, TaskState, TaskStatus, TextPart

HI = Message(message_id="u-1", role=Role.USER, parts=(TextPart(text="hi"),))


def agent(text: str) -> Message:
    return Message(message_id=f"m-{text}", role=Role.AGENT, parts=(TextPart(text=text), DataPart(data=text)))


def task(state: str, *, said: str = "", made: str = "", history: tuple[Message, ...] = ()) -> Task:
    artifacts = (Artifact(artifact_id="a-1", parts=(TextPart(text=made),)),) if made else ()
    status = TaskStatus(state=TaskState(state), message=agent(said) if said else None)
    return Task(task_id="t-1", context_id="c-1", status=status, artifacts=artifacts, history=history)


def working(said: str = "", state: str = "working") -> StatusUpdate:
    return StatusUpdate(task_id="t-1", context_id="c-1", status=task(state, said=said).status)


@pytest.mark.parametrize(
    ("state", "said", "made", "told", "text"),
    [
        ("completed", "said", "made", "told", "made"),
        ("completed", "said", "", "told", "said"),
        ("completed", "", "", "told", "told"),
        ("failed", "said", "made", "told", "said"),
        ("failed", "", "made", "told", "told"),
        ("failed", "", "made", "", "made"),
        ("input-required", "said", "made", "told", "said"),
        ("auth-required", "", "made", "told", "made"),
        ("input-required", "", "", "told", "told"),
        ("working", "said", "", "told", "said"),
        ("working", "", "", "told", ""),
    ],
)
def test_a_text_comes_from_the_first_source_that_has_one(
    state: str, said: str, made: str, told: str, text: str
) -> None:
    history = (HI, agent("older"), agent(told)) if told else (HI,)
    assert text_of(task(state, said=said, made=made, history=history)) == (text, len(text))


@pytest.mark.parametrize("state", ["completed", "failed", "input-required"])
def test_messages_before_the_users_last_one_are_neither_answer_nor_question(state: str) -> None:
    assert text_of(task(state, history=(agent("Which city?"), HI))) == ("", 0)


def test_a_question_without_text_has_a_description_for_people_and_is_empty_for_programs() -> None:
    assert asking_of(task("input-required")).text == SILENT
    assert text_of(task("input-required")) == ("", 0)


BARE = Snapshot(task=task("completed"))
USERS_OWN = Snapshot(task=task("completed", history=(HI,)))
WHOLE = Snapshot(task=task("completed", history=(HI, agent("Hel"), agent("there"))))


@pytest.mark.parametrize("after", [(), (BARE,), (USERS_OWN,), (WHOLE,), (USERS_OWN, BARE)])
@pytest.mark.parametrize("between", [(), (working(),)])
def test_an_answer_in_statuses_is_the_newest_text_by_stream_and_by_poll(
    between: tuple[TaskEvent, ...], after: tuple[TaskEvent, ...]
) -> None:
    seen = None
    for event in (working("Hel"), working("there"), *between, working(state="completed"), *after):
        seen = fold(seen, event)
    assert seen is not None
    assert text_of(seen) == ("there", 5)


def test_a_progress_message_adds_no_parts_to_an_answer_in_artifacts() -> None:
    seen = fold(fold(None, working("a remark")), Snapshot(task=task("completed", made="the answer")))
    assert (text_of(seen)[0], answer_parts(seen)) == ("the answer", ((), 0))


def test_an_answered_question_is_not_the_answer() -> None:
    seen = fold(fold(None, working("Which city?", "input-required")), working(state="completed"))
    assert text_of(seen) == ("", 0)
