"""Files and data come back from the rows that show them, and a list shows no more of them than it can."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from fleetsim.api.answer import to_json
from fleetsim.api.bodies import RequestBody, read
from fleetsim.api.part_rows import PartFacts, body_part, part_notes, part_row, read_part_row
from fleetsim.model.parts import LISTED_MAX, ListedPart
from fleetsim.model.task import DataPart, FilePart, Part, TextPart

FILE = ListedPart(
    index=3,
    kind="file",
    name="plan.pdf",
    media_type="application/pdf",
    size_bytes=7,
    artifact_id="a-1",
    artifact_name="plan",
    uri="https://files.example/plan.pdf",
    raw="cGxhbg==",
    metadata={"pages": 2},
)
DATA = ListedPart(index=0, kind="data", data={"n": [1, None]})
BARE = {"index": 0, "kind": "data", "name": None, "mimeType": None, "sizeBytes": None, "artifactId": None}


@pytest.mark.parametrize(
    ("part", "row"),
    [
        (
            FILE,
            {
                "index": 3,
                "kind": "file",
                "name": "plan.pdf",
                "mimeType": "application/pdf",
                "sizeBytes": 7,
                "artifactId": "a-1",
                "artifactName": "plan",
                "truncated": False,
                "metadata": {"pages": 2},
                "uri": "https://files.example/plan.pdf",
                "bytes": "cGxhbg==",
            },
        ),
        (DATA, {**BARE, "artifactName": None, "truncated": False, "data": {"n": [1, None]}}),
        (ListedPart(index=0, kind="data"), {**BARE, "artifactName": None, "truncated": False, "data": None}),
        (
            ListedPart(index=1, kind="file", name="x", truncated=True),
            {**BARE, "index": 1, "kind": "file", "name": "x", "artifactName": None, "truncated": True},
        ),
    ],
)
def test_a_part_has_its_row_and_comes_back_from_it(part: ListedPart, row: dict[str, Any]) -> None:
    assert to_json(part_row(part)) == row
    assert read_part_row(convert(row, PartFacts)) == part
    assert read_part_row(part_row(part)) == part


def test_a_row_may_lack_all_but_its_number_and_kind() -> None:
    assert read_part_row(PartFacts(index=0, kind="data")) == ListedPart(index=0, kind="data")


def test_a_note_has_what_is_known_and_no_content() -> None:
    assert to_json(part_notes([FILE])[0]) == {
        "index": 3,
        "kind": "file",
        "name": "plan.pdf",
        "mimeType": "application/pdf",
        "sizeBytes": 7,
        "uri": "https://files.example/plan.pdf",
    }
    assert to_json(part_notes([DATA])[0]) == {"index": 0, "kind": "data"}
    assert to_json(part_notes([ListedPart(index=0, kind="data", artifact_name="plan", truncated=True)])[0]) == {
        "index": 0,
        "kind": "data",
        "name": "plan",
        "truncated": True,
    }


@pytest.mark.parametrize(("chars", "shown"), [(199, "x" * 199), (200, "x" * 200), (201, "x" * 199 + "…")])
def test_a_name_is_shown_up_to_two_hundred_characters(chars: int, shown: str) -> None:
    text = "x" * chars
    note = part_notes([ListedPart(index=0, kind="file", name=text, media_type=text, uri=text)])[0]
    assert (note["name"], note["mimeType"], note["uri"]) == (shown, shown, shown)


def test_a_list_names_the_first_of_many() -> None:
    parts = [ListedPart(index=n, kind="data") for n in range(40)]
    assert LISTED_MAX == 32
    assert [note["index"] for note in part_notes(parts)] == list(range(32))
    assert part_notes(parts[:2]) == (*part_notes(parts[:1]), *part_notes(parts[1:2]))


@pytest.mark.parametrize(
    "part",
    [
        TextPart(text="more"),
        DataPart(data=[None, {"n": 1}], media_type="application/json", metadata={"page": 2}),
        FilePart(raw="cGxhbg==", filename="plan.pdf", media_type="application/pdf", metadata={"page": 2}),
        FilePart(uri="https://files.example/plan.pdf"),
    ],
)
def test_a_part_that_is_written_into_a_body_is_read_from_it_whole(part: Part) -> None:
    assert read(RequestBody, {"parts": [body_part(part)]}).request("c").parts == (part,)
