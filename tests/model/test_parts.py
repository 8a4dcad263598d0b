"""Files and data of a message or task: measured, bounded, listed, and decoded from any form of base64."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import CONFIDENCE_TYPE, COST, COST_TYPE, WORLDSTATE_DELTA_TYPE
from fleetsim.model.limits import PARTS_BYTES_MAX
from fleetsim.model.parts import (
    PARTS_MAX,
    TooManyParts,
    answer_parts,
    content_of,
    listed_part,
    require_parts,
    size_of,
    weight_of,
    without_content,
)
from fleetsim.model.task import Artifact, DataPart, FilePart, Message, Part, Role, Task, TaskState, TaskStatus, TextPart


def file(size: int = 3, **about: Any) -> FilePart:
    return FilePart(raw=base64.b64encode(b"x" * size).decode(), **about)


def task(*parts: Part, said: tuple[Part, ...] = (), history: tuple[Part, ...] = ()) -> Task:
    def message(held: tuple[Part, ...]) -> Message:
        return Message(message_id="m", role=Role.AGENT, parts=held)

    return Task(
        task_id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.COMPLETED, message=message(said) if said else None),
        artifacts=(Artifact(artifact_id="a", name="made", parts=parts),) if parts else (),
        history=(message(history),) if history else (),
    )


@pytest.mark.parametrize("raw", ["+/+/AA==", "-_-_AA==", "-_-_AA", "+/+/\r\nAA==\n", " +/+/AA "])
def test_base64_of_either_alphabet_padded_or_not_is_the_same_content(raw: str) -> None:
    assert content_of(raw) == b"\xfb\xff\xbf\x00"
    assert size_of(FilePart(raw=raw)) == 4


@pytest.mark.parametrize("raw", ["A", "A===A", "caf\u00e9", "QQ!=", "\ud800"])
def test_invalid_base64_is_reported(raw: str) -> None:
    with pytest.raises(ValueError, match="not base64"):
        content_of(raw)
    assert size_of(FilePart(raw=raw)) >= 0


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 1000])
def test_the_size_of_a_file_is_the_size_of_its_decoded_content(size: int) -> None:
    assert size_of(file(size)) == size


def test_the_parts_of_a_result_are_those_of_the_artifacts_then_of_the_last_message() -> None:
    listed, total = answer_parts(task(TextPart(text="x"), file(1), DataPart(data=1), said=(file(2),)))
    assert [(p.index, p.kind, p.size_bytes, p.artifact_id) for p in listed] == [
        (1, "file", 1, "a"),
        (2, "data", 1, "a"),
        (3, "file", 2, ""),
    ]
    assert total == 3


def test_the_parts_of_an_agent_that_answers_only_in_its_history_are_found() -> None:
    assert answer_parts(task(history=(file(1),)))[1] == 1
    assert answer_parts(task(said=(TextPart(text="done"),), history=(file(1),)))[1] == 0


@pytest.mark.parametrize("kind", [COST_TYPE, COST, CONFIDENCE_TYPE, WORLDSTATE_DELTA_TYPE])
def test_the_payload_of_an_extension_is_not_part_of_the_result(kind: str) -> None:
    assert answer_parts(task(DataPart(data={"a": 1}, media_type=kind)))[1] == 0
    assert answer_parts(task(DataPart(data={"a": 1}, metadata={"mimeType": kind})))[1] == 0
    assert answer_parts(task(DataPart(data=[1], media_type=kind)))[1] == 1, "what is none is not hidden"


def test_a_part_over_the_limit_is_listed_with_its_size_and_a_later_smaller_one_is_kept() -> None:
    large = PARTS_BYTES_MAX * 2 // 5
    listed, total = answer_parts(task(file(large), file(PARTS_BYTES_MAX + 1), file(large), file(large)))
    assert [part.truncated for part in listed] == [False, True, False, True]
    assert (listed[1].size_bytes, listed[1].raw) == (PARTS_BYTES_MAX + 1, None)
    assert total == 4


def test_the_parts_over_the_number_limit_are_counted_and_the_first_are_listed() -> None:
    listed, total = answer_parts(task(*(DataPart(data=n) for n in range(PARTS_MAX + 3))))
    assert (len(listed), total) == (PARTS_MAX, PARTS_MAX + 3)


def test_the_metadata_of_a_part_counts_as_much_as_its_content() -> None:
    long = "x" * PARTS_BYTES_MAX
    for part in (
        FilePart(uri=long),
        FilePart(raw="", filename=long),
        file(1, media_type=long),
        DataPart(data=1, metadata={"a": long}),
    ):
        (listed,), _ = answer_parts(task(part))
        assert listed.truncated
        assert len(repr(listed)) < 10_000


@pytest.mark.parametrize(
    ("parts", "metadata"),
    [
        ((file(PARTS_BYTES_MAX + 1),), {}),
        ((file(PARTS_BYTES_MAX // 2), DataPart(data="x" * (PARTS_BYTES_MAX // 2))), {}),
        ((DataPart(data="\u00e9" * (PARTS_BYTES_MAX // 6 + 1)),), {}),
        ((TextPart(text="x" * PARTS_BYTES_MAX),), {}),
        ((), {"note": "x" * PARTS_BYTES_MAX}),
    ],
)
def test_a_message_over_a_limit_is_refused_with_the_limits_name(parts: Any, metadata: Any) -> None:
    with pytest.raises(TooManyParts, match=r"8,388,608 are taken \(parts_bytes_max\)") as refused:
        require_parts(parts, metadata)
    assert refused.value.blame == "caller"


def test_a_message_at_every_limit_passes() -> None:
    require_parts((file(PARTS_BYTES_MAX),), {})
    require_parts((DataPart(data=1),) * PARTS_MAX, {})
    with pytest.raises(TooManyParts, match="parts_max"):
        require_parts((DataPart(data=1),) * (PARTS_MAX + 1), {})


@pytest.mark.parametrize("data", ['x\n"\u00e9\u20ac\U0001f600', [None, 1.5, {"a": True}], "\ud800", 2**70])
def test_the_bytes_of_data_are_those_of_ascii_json(data: Any) -> None:
    assert weight_of((DataPart(data=data),), {}) == len(json.dumps(data, separators=(",", ":")))


def test_numbers_are_counted_in_a_fraction_of_the_time_that_json_takes_to_write_them() -> None:
    numbers = {"x": [number / 7 for number in range(98_000)]}

    def spent_s(count: Callable[[], object]) -> float:
        began = time.process_time()
        count()
        return time.process_time() - began

    ratios = [spent_s(lambda: weight_of((), numbers)) / spent_s(lambda: json.dumps(numbers)) for _ in range(5)]
    assert min(ratios) < 0.25


def test_data_without_a_json_form_is_refused() -> None:
    for data in (object(), float("nan"), {1: {2j}}):
        with pytest.raises(ConfigError, match="no JSON form"):
            require_parts((DataPart(data=data),), {})


def test_a_part_is_listed_on_one_line_without_control_characters() -> None:
    named = listed_part(file(48_211, filename="re\u202eport\n.pdf", media_type="application/pdf"), 1)
    assert str(named) == "file 1: re\N{REPLACEMENT CHARACTER}port .pdf, application/pdf, 48,211 bytes"
    assert str(listed_part(FilePart(uri="https://a.example/x"), 2)) == "file 2: at https://a.example/x"
    assert str(without_content(named, truncated=True)).endswith("48,211 bytes, too large to be kept")


def test_a_listed_part_can_be_read_back() -> None:
    for part in (file(3, filename="a", media_type="b/c", metadata={"d": 1}), FilePart(uri="u"), DataPart(data=None)):
        assert listed_part(part, 1).part == part
