"""The question of a waiting task: every door reads the same."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.model.asking import DATA_BYTES_MAX, SILENT, answer_schema, asking_of, check_answer, key_of
from fleetsim.model.errors import UnfitAnswer
from fleetsim.model.extensions import COST_TYPE
from fleetsim.model.task import (
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)

FORM = {"title": "Refund", "schema": {"type": "object", "required": ["amount"]}}


def waiting(*said: Part, made: tuple[Part, ...] = (), message_id: str = "m-1") -> Task:
    message = Message(message_id=message_id, role=Role.AGENT, parts=said) if said else None
    return Task(
        task_id="t-1",
        context_id="c-1",
        status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message),
        artifacts=(Artifact(artifact_id="a-1", parts=made),) if made else (),
    )


def text(words: str) -> TextPart:
    return TextPart(text=words)


def data(value: Any) -> DataPart:
    return DataPart(data=value)


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        (waiting(text("which?"), data(FORM)), "which?"),
        (waiting(data({"a": "ä"})), '{\n  "a": "ä"\n}'),
        (waiting(data([1]), FilePart(uri="https://x.example/y", filename="y.pdf")), "y.pdf"),
        (waiting(made=(text("choose"), data([1, 2]))), "choose"),
        (waiting(made=(data("choose"),)), '"choose"'),
        (waiting(text(""), made=(data("choose"),)), '"choose"'),
        (waiting(), SILENT),
        (waiting(made=(DataPart(data={"usage": {}}, metadata={"mimeType": COST_TYPE}),)), SILENT),
        (waiting(data("x" * DATA_BYTES_MAX)), "data 1: 65,538 bytes"),
    ],
)
def test_the_question_is_a_text_for_people(task: Task, shown: str) -> None:
    assert shown in asking_of(task).text


def test_data_keeps_its_content_up_to_a_limit_and_files_are_listed() -> None:
    asked = asking_of(waiting(data(FORM), data("x" * DATA_BYTES_MAX), FilePart(raw="YQ==", filename="a")))
    assert [(part.kind, part.data, part.raw, part.truncated) for part in asked.parts] == [
        ("data", FORM, None, False),
        ("data", None, None, True),
        ("file", None, None, False),
    ]
    assert answer_schema(asked.parts) == FORM["schema"]


def test_data_of_an_answer_is_checked_against_the_schema_and_text_is_not() -> None:
    asked = asking_of(waiting(data(FORM))).parts
    check_answer(asked, (data({"amount": 1}), text("please")))
    check_answer(asked, (text("one"),))
    check_answer((), (data("anything"),))
    with pytest.raises(UnfitAnswer, match="amount is missing") as refused:
        check_answer(asked, (data({}),))
    assert '"required": ["amount"]' in (refused.value.hint or "")


def test_questions_with_different_parts_are_different_questions() -> None:
    forms = [
        waiting(data({"page": 1})),
        waiting(data({"page": 2})),
        waiting(text("next"), data({"page": 1})),
        waiting(FilePart(uri="https://x.example/1")),
        waiting(FilePart(uri="https://x.example/2")),
        waiting(made=(data({"page": 1}),)),
        waiting(made=(data({"page": 2}),)),
    ]
    assert (
        len({key_of(task) for task in forms}) == len(forms) - 2
    )  # a person reads the same text in a message and in an artifact
    assert key_of(forms[0]) == key_of(waiting(data({"page": 1}), message_id="m-2"))


def test_an_artifact_made_meanwhile_does_not_change_a_question_in_words() -> None:
    asked = waiting(text("which?"))
    assert key_of(asked) == key_of(replace(asked, artifacts=(Artifact(artifact_id="x", parts=(data(1),)),)))
