"""Two limits are chosen; what goes over the wire at their worst fits, and what is cut says so."""

from __future__ import annotations

import base64
import json

import pytest
from msgspec.structs import replace

from fleetsim.model.asking import text_of
from fleetsim.model.event import ArtifactUpdate, bounded, fold
from fleetsim.model.limits import (
    EXCERPT_CHARS_MAX,
    PARTS_BYTES_MAX,
    TEXT_CHARS_MAX,
    WIRE_BYTES_MAX,
    TooMuchText,
    check_text,
    excerpt,
)
from fleetsim.model.task import (
    Artifact,
    Message,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)


def message(text: str) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=(TextPart(text=text),))


def task(*texts: str, state: TaskState = TaskState.COMPLETED, said: str = "") -> Task:
    artifacts = tuple(Artifact(artifact_id=f"a-{at}", parts=(TextPart(text=t),)) for at, t in enumerate(texts))
    status = TaskStatus(state=state, message=message(said) if said else None)
    return Task(task_id="t", context_id="c", status=status, artifacts=artifacts)


def test_the_worst_text_and_the_largest_file_fit_into_one_body() -> None:
    text = json.dumps("\U0001f600" * TEXT_CHARS_MAX)
    file = base64.b64encode(b"\0" * PARTS_BYTES_MAX)
    assert len(text) + len(file) < WIRE_BYTES_MAX


def test_input_at_the_limit_is_taken_and_one_character_more_is_refused_by_name() -> None:
    check_text("x" * TEXT_CHARS_MAX, "the text")
    with pytest.raises(TooMuchText, match=r"1,048,577 characters; at most 1,048,576 .*text_chars_max"):
        check_text("x" * (TEXT_CHARS_MAX + 1), "the text")


def test_a_text_at_the_limit_is_whole_and_one_past_it_says_how_much_there_was() -> None:
    whole = task("x" * 100)
    assert bounded(whole, 100) is whole
    cut = bounded(task("x" * 101), 100)
    assert text_of(cut) == ("x" * 100, 101)


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.INPUT_REQUIRED])
def test_a_message_is_cut_as_an_artifact_is(state: TaskState) -> None:
    cut = bounded(task(state=state, said="y" * 150), 100)
    assert text_of(cut) == ("y" * 100, 150)


def test_several_artifacts_share_the_limit_with_the_lines_between_them() -> None:
    cut = bounded(task("a" * 60, "b" * 60, "c" * 60), 100)
    assert text_of(cut)[0] == "a" * 60 + "\n" + "b" * 39
    assert text_of(cut)[1] == 60 + 1 + 60 + 60


def test_chunks_past_the_limit_are_counted_and_none_lands_behind_the_hole() -> None:
    now = task(state=TaskState.WORKING)
    for at in range(50):
        chunk = Artifact(artifact_id="a-0", parts=(TextPart(text=f"{at:03}"),))
        now = bounded(fold(now, ArtifactUpdate(task_id="t", context_id="c", artifact=chunk, append=at > 0)), 100)
    told = "".join(f"{at:03}" for at in range(50))
    assert text_of(now) == (told[:100], 150)
    assert bounded(now, 100) is now


def test_what_was_cut_once_is_not_counted_twice() -> None:
    cut = bounded(bounded(task("x" * 500), 200), 100)
    assert text_of(cut) == ("x" * 100, 500)


def test_what_follows_a_text_that_was_cut_is_left_out_with_the_rest_of_it() -> None:
    first, later = (Artifact(artifact_id=name, parts=(TextPart(text="x" * 60),)) for name in "ab")
    cut = bounded(replace(task(""), artifacts=(first, later)), 100)
    short = replace(first, parts=(TextPart(text="short"),))
    last = Artifact(artifact_id="c", parts=(TextPart(text="last"),))
    now = bounded(replace(cut, artifacts=(short, *cut.artifacts[1:], last)), 100)
    assert text_of(now) == ("short\n" + "x" * 39, 5 + 1 + 60 + 4)


def test_an_excerpt_says_that_it_is_one_and_a_whole_text_stands_alone() -> None:
    assert excerpt("short") == {"text": "short"}
    assert excerpt("") == {"text": ""}
    long = "x" * (EXCERPT_CHARS_MAX + 1)
    assert excerpt(long) == {"text": long[:-1], "truncated": True, "textChars": len(long)}
    assert excerpt("kept", name="content", chars=9) == {"content": "kept", "truncated": True, "textChars": 9}
