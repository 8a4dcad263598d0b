"""Frames that differ in one text are decoded from that text, with the result of decoding each whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.client import stream
from fleetsim.client.stream import AnswerRequest, FrameReader, read_frame
from fleetsim.model.call import Operation
from fleetsim.model.errors import FleetsimError
from fleetsim.model.event import ArtifactUpdate, TaskEvent
from fleetsim.model.task import Artifact, TextPart
from fleetsim.wire.dialect import DIALECTS

FIRST = "some/first words"


def asked(dialect: str) -> AnswerRequest:
    return AnswerRequest(request_id="r", dialect=DIALECTS[dialect], operation=Operation.STREAM, where="agent:80")


def frame(dialect: str, *, bare: bool = False, compact: bool = True, **more: Any) -> str:
    artifact = Artifact(artifact_id="a", parts=(TextPart(text=FIRST, metadata={"depth": [1, 2.5, None]}),), **more)
    event = ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=True)
    result = DIALECTS[dialect].encode_event(event)
    separators = (",", ":") if compact else (" ,", " : ")
    bare = bare or bool(DIALECTS[dialect].paths)
    return json.dumps(result if bare else {"jsonrpc": "2.0", "id": "r", "result": result}, separators=separators)


def told(read: Any, *args: Any) -> TaskEvent | tuple[type, str]:
    try:
        event: TaskEvent = read(*args)
    except FleetsimError as error:
        return type(error), str(error)
    return event


MARKS = st.sampled_from(
    ['"', "\\", "\\\\", '\\"', "\\n", "\\u0041", "\\ud800", "\\ude00", "\\x", "\n", "\t", "\x00", "\x1f", "\x7f", "é",
     "\u2028", "😀", "a", " ", ",", ":", "}", "]", '"}]}', '","text":"', '"},{"text":"',
     '","metadata":{"a":1,"a":2},"x":"', FIRST]
)  # fmt: skip
TEXTS = st.one_of(st.lists(MARKS, max_size=6).map("".join), st.text(max_size=12))


@pytest.mark.slow
@given(st.sampled_from([*DIALECTS]), st.booleans(), st.booleans(), st.lists(TEXTS, min_size=1, max_size=4))
@example("0.3", False, True, ['x","text":"y'])
@example("1.0", False, True, ["a\\ud83d", "b"])
def test_any_text_in_a_known_frame_is_decoded_like_the_whole_frame(
    dialect: str, bare: bool, compact: bool, texts: list[str]
) -> None:
    first = frame(dialect, bare=bare, compact=compact)
    reader = FrameReader(asked(dialect))
    assert reader.read(first) == read_frame(first, asked(dialect))
    for raw in texts:  # as between its quotation marks, be it JSON or not
        data = first.replace(FIRST, raw)
        assert told(reader.read, data) == told(read_frame, data, asked(dialect))


@pytest.mark.parametrize(
    "change",
    [
        ('"append":true', '"append":false'), ('"taskId":"t"', '"taskId":"u"'), ('"id":"r"', '"id":"other"'),
        ('{"jsonrpc"', '{"jsonrpc":"2.0","jsonrpc"'), (FIRST + '"', FIRST + '","text":"more"'), (FIRST, ""),
        ('"artifactId":"a"', '"artifactId":"' + FIRST + '"'), ("2.5", "NaN"), ("2.5", "[" * 70 + "]" * 70),
        ("2.5", '{"a":1,"a":1}'), (FIRST + '"', ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_frame_with_another_difference_is_decoded_whole(dialect: str, change: tuple[str, str]) -> None:
    first = frame(dialect)
    other = first.replace(*change)
    for sequence in ((first, other), (other, first, other)):
        reader = FrameReader(asked(dialect))
        for data in sequence:
            assert told(reader.read, data) == told(read_frame, data, asked(dialect))


@pytest.mark.parametrize("text", [FIRST, 'line\nof "words" \t and é 😀', ""])
def test_a_frame_with_only_a_new_text_is_not_parsed_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FrameReader(asked("0.3"))
    reader.read(frame("0.3"))
    monkeypatch.setattr(stream, "parse_untrusted", None)
    event = reader.read(frame("0.3").replace(json.dumps(FIRST), json.dumps(text, ensure_ascii=False)))
    assert isinstance(event, ArtifactUpdate)
    assert event.artifact.text == text


@pytest.mark.parametrize("written", [FIRST, FIRST.replace("/", "\\/")])
def test_a_text_that_occurs_twice_in_its_frame_is_not_used(written: str) -> None:
    first = frame("0.3", name=FIRST).replace(f'"text":"{FIRST}"', f'"text":"{written}"')
    reader = FrameReader(asked("0.3"))
    reader.read(first)
    other = first.replace(FIRST, "x", 1)
    assert reader.read(other) == read_frame(other, asked("0.3"))
