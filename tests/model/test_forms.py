"""Answers to the questions that frameworks ask in a form of their own."""

from __future__ import annotations

import pytest

from fleetsim.model.asking import in_form, question_parts
from fleetsim.model.task import DataPart, FilePart, Message, Part, Role, Task, TaskState, TaskStatus, TextPart

STRANDS = (
    TextPart(text="Agent requires input:\n- colour: Which colour?"),
    DataPart(data={"interrupts": [{"interruptId": "v1:a:b", "name": "colour", "reason": "Which colour?"}]}),
)
CALL = {"id": "call-1", "name": "colour", "args": {"question": "Which colour?"}}
ADK = (DataPart(data=CALL, metadata={"adk_type": "function_call", "adk_is_long_running": True}),)


def interrupt(response: object) -> Part:
    return DataPart(data={"interruptResponse": {"interruptId": "v1:a:b", "response": response}})


def function(response: object) -> Part:
    return DataPart(
        data={"id": "call-1", "name": "colour", "response": response}, metadata={"adk_type": "function_response"}
    )


@pytest.mark.parametrize(("asked", "sent"), [(STRANDS, interrupt("blue")), (ADK, function({"result": "blue"}))])
def test_a_text_becomes_the_result_of_the_call_in_question(asked: tuple[Part, ...], sent: Part) -> None:
    assert in_form(asked, "blue", ()) == ("", (sent,))


@pytest.mark.parametrize(("asked", "sent"), [(STRANDS, interrupt({"ok": True})), (ADK, function({"ok": True}))])
def test_data_alone_becomes_the_result_too(asked: tuple[Part, ...], sent: Part) -> None:
    assert in_form(asked, "", (DataPart(data={"ok": True}),)) == ("", (sent,))


def test_a_result_that_is_not_an_object_is_wrapped_where_the_form_needs_one() -> None:
    assert in_form(ADK, "", (DataPart(data=[1, 2]),)) == ("", (function({"result": [1, 2]}),))


@pytest.mark.parametrize(("asked", "sent"), [(STRANDS, interrupt("blue")), (ADK, function({"result": "blue"}))])
def test_an_answer_that_already_has_the_form_is_sent_unchanged(asked: tuple[Part, ...], sent: Part) -> None:
    assert in_form(asked, "", (sent,)) == ("", (sent,))


@pytest.mark.parametrize(
    "parts",
    [(FilePart(raw="aGk="),), (DataPart(data=1), DataPart(data=2))],
    ids=["a file", "two pieces of data"],
)
def test_an_answer_with_more_than_one_result_is_sent_unchanged(parts: tuple[Part, ...]) -> None:
    assert in_form(STRANDS, "", parts) == ("", parts)


def test_text_beside_data_is_sent_unchanged() -> None:
    parts = (DataPart(data=1),)
    assert in_form(ADK, "see here", parts) == ("see here", parts)


@pytest.mark.parametrize(
    "asked",
    [
        (),
        (TextPart(text="Which colour?"),),
        (DataPart(data={"schema": {"type": "string"}}),),
        (DataPart(data=["interrupts"]),),
        (DataPart(data={"interrupts": "v1"}),),
        (DataPart(data={"interrupts": [{"interruptId": 7}]}),),
        (DataPart(data={"interrupts": [{"interruptId": "a"}, {"interruptId": "b"}]}),),
        (DataPart(data=CALL),),
        (DataPart(data={"id": {}, "name": "x"}, metadata={"adk_type": "function_call"}),),
        (*ADK, *ADK),
    ],
    ids=[
        "nothing",
        "words",
        "a schema",
        "a list",
        "no list",
        "no id",
        "two interrupts",
        "no function call",
        "an id that is none",
        "two calls",
    ],
)
def test_an_answer_to_any_other_question_is_sent_unchanged(asked: tuple[Part, ...]) -> None:
    assert in_form(asked, "blue", ()) == ("blue", ())


def test_only_a_waiting_task_has_a_question() -> None:
    def task(state: TaskState, message: Message | None) -> Task:
        return Task(task_id="t", context_id="c", status=TaskStatus(state=state, message=message))

    told = Message(message_id="m", role=Role.AGENT, parts=ADK)
    assert question_parts(task(TaskState.INPUT_REQUIRED, told)) == ADK
    assert question_parts(task(TaskState.WORKING, told)) == ()
    assert question_parts(task(TaskState.INPUT_REQUIRED, None)) == ()
    assert question_parts(None) == ()
