"""Two limits are chosen. The worst text within them fits on the wire, and a cut text is marked as cut."""

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


def test_input_at_the_limit_is_accepted_and_one_character_more_is_refused_with_the_limits_name() -> None:
    check_text("x" * TEXT_CHARS_MAX, "the text")
    with pytest.raises(TooMuchText, match=r"1,048,577 characters; at most 1,048,576 .*text_chars_max"):
        check_text("x" * (TEXT_CHARS_MAX + 1), "the text")


def test_a_text_at_the_limit_is_whole_and_one_past_it_gives_its_full_length() -> None:
    whole = task("x" * 100)
    assert bounded(whole, 100) is whole
    cut = bounded(task("x" * 101), 100)
    assert text_of(cut) == ("x" * 100, 101)


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.INPUT_REQUIRED])
def test_a_message_is_cut_like_an_artifact(state: TaskState) -> None:
    cut = bounded(task(state=state, said="y" * 150), 100)
    assert text_of(cut) == ("y" * 100, 150)


def test_the_limit_counts_several_artifacts_and_the_lines_between_them() -> None:
    cut = bounded(task("a" * 60, "b" * 60, "c" * 60), 100)
    assert text_of(cut)[0] == "a" * 60 + "\n" + "b" * 39
    assert text_of(cut)[1] == 60 + 1 + 60 + 60


def test_chunks_past_the_limit_are_counted_and_not_appended_after_the_gap() -> None:
    now = task(state=TaskState.WORKING)
    for at in range(50):
        chunk = Artifact(artifact_id="a-0", parts=(TextPart(text=f"{at:03}"),))
        now = bounded(fold(now, ArtifactUpdate(task_id="t", context_id="c", artifact=chunk, append=at > 0)), 100)
    told = "".join(f"{at:03}" for at in range(50))
    assert text_of(now) == (told[:100], 150)
    assert bounded(now, 100) is now


def test_a_text_that_was_cut_once_is_not_counted_twice() -> None:
    cut = bounded(bounded(task("x" * 500), 200), 100)
    assert text_of(cut) == ("x" * 100, 500)


def test_chunks_after_a_cut_text_are_left_out() -> None:
    first, later = (Artifact(artifact_id=name, parts=(TextPart(text="x" * 60),)) for name in "ab")
    cut = bounded(replace(task(""), artifacts=(first, later)), 100)
    short = replace(first, parts=(TextPart(text="short"),))
    last = Artifact(artifact_id="c", parts=(TextPart(text="last"),))
    now = bounded(replace(cut, artifacts=(short, *cut.artifacts[1:], last)), 100)
    assert text_of(now) == ("short\n" + "x" * 39, 5 + 1 + 60 + 4)


def test_an_excerpt_is_marked_and_a_whole_text_is_not() -> None:
    assert excerpt("short") == {"text": "short"}
    assert excerpt("") == {"text": ""}
    long = "x" * (EXCERPT_CHARS_MAX + 1)
    assert excerpt(long) == {"text": long[:-1], "truncated": True, "textChars": len(long)}
    assert excerpt("kept", name="content", chars=9) == {"content": "kept", "truncated": True, "textChars": 9}
