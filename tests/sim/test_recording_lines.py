"""Recordings, read while they are written and whoever wrote them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetsim.caller.events import OtherEvent
from fleetsim.model.errors import ConfigError
from fleetsim.sim.recording import FORMAT, LINE_BYTES_MAX, RecordingReader, event_of, problem_of
from fleetsim.sim.scenario_events import FailureLogged, HealthLooked, TroubleBegan

START: dict[str, Any] = {
    "t": 0,
    "kind": "start",
    "format": FORMAT,
    "scenario": "x",
    "seed": 1,
    "start": "2026-03-02T00:00:00Z",
    "duration_s": 60,
    "agents": [],
    "replicas": {},
    "expect": [],
}
AT = datetime(2026, 3, 2, tzinfo=UTC)


def line(**members: Any) -> bytes:
    return json.dumps(members).encode() + b"\n"


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    whole = line(**START) + line(t=1, kind="calm")
    file.write_bytes(whole[:-5])
    with RecordingReader(file) as reader, file.open("ab") as more:
        assert (reader.read() or {})["kind"] == "start"
        assert reader.read() is None
        assert reader.partial
        more.write(whole[-5:-1])
        more.flush()
        assert reader.read() is None
        more.write(whole[-1:] + line(t=2, kind="calm"))
        more.flush()
        assert [(reader.read() or {})["t"] for _ in range(2)] == [1, 2]
        assert reader.read() is None
        assert not reader.partial
        reader.rewind()
        assert (reader.read() or {})["kind"] == "start"
        assert reader.number == 1


def test_a_file_that_is_written_anew_while_it_is_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(line(**START) + line(t=1, kind="calm"))
    with RecordingReader(file) as reader:
        assert reader.read()
        assert reader.read()
        file.write_bytes(line(**START))
        with pytest.raises(ConfigError, match="written anew"):
            reader.read()


def test_an_endless_line_is_refused_before_it_is_all_read(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(line(**START) + b"x" * (LINE_BYTES_MAX + 100))
    with RecordingReader(file) as reader:
        assert reader.read()
        with pytest.raises(ConfigError, match=r"run\.jsonl:2: not a line of a recording: more than"):
            reader.read()


def test_what_a_recording_says_is_harmless() -> None:
    evil = "\x1b]0;owned\x07\n[bold]" + "x" * 5_000
    health = event_of({"t": 1, "kind": "health", "now": "", "agents": {evil: {"health": evil, "outcomes": 1}}}, AT)
    trouble = event_of({"t": 1, "kind": "trouble", "phase": "begins", "fault": evil, "agent": None, "said": evil}, AT)
    failure = event_of({"t": 1, "kind": "complaint", "said": evil}, AT)
    assert isinstance(health, HealthLooked)
    assert isinstance(trouble, TroubleBegan)
    assert isinstance(failure, FailureLogged)
    for text in (*health.agents, *health.agents.values(), trouble.fault, trouble.said, failure.said):
        assert len(text) <= 300
        assert "\x1b" not in text
        assert "\n" not in text


def test_what_the_hub_said_is_an_event_again() -> None:
    told = {"at": "2026-03-02T00:00:01Z", "topic": "scout.said"}
    assert event_of({"t": 1, "kind": "event", "type": "Unheard", "event": told}, AT) == OtherEvent(
        at=datetime(2026, 3, 2, 0, 0, 1, tzinfo=UTC), name="scout.said", payload={}
    )


@pytest.mark.parametrize("kind", ["refused", "unsettled", "answer", "complaint", "reached", "end", "verdict"])
def test_a_line_that_lacks_what_its_kind_tells_is_no_line(kind: str) -> None:
    assert "not a line of a recording" in problem_of({"t": 1, "kind": kind}, first=False)


@pytest.mark.parametrize(("year", "taken"), [(1969, False), (1970, True), (8999, True), (9000, False)])
def test_a_moment_is_of_a_year_that_dates_can_be_reckoned_with(year: int, taken: bool) -> None:
    assert (problem_of({**START, "start": f"{year}-03-02T00:00:00Z"}, first=True) == "") is taken
