"""Recordings: read while they are written, and by any author."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetsim.events.request import OtherEvent
from fleetsim.model.errors import ConfigError
from fleetsim.recording.events import FailureLogged, HealthLooked, ScenarioStarted, TroubleBegan
from fleetsim.recording.reader import FORMAT, LINE_BYTES_MAX, RecordingLine, RecordingReader, lines_of, read_line
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.recorder import Recorder
from tests.sim.scenes import scenario

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


def line(**members: Any) -> bytes:
    return json.dumps(members).encode() + b"\n"


def next_of(reader: RecordingReader) -> RecordingLine:
    line = reader.read()
    assert line is not None
    return line


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    whole = line(**START) + line(t=1, kind="calm")
    file.write_bytes(whole[:-5])
    with RecordingReader(file) as reader, file.open("ab") as more:
        assert isinstance(next_of(reader).event, ScenarioStarted)
        assert reader.read() is None
        assert reader.partial
        more.write(whole[-5:-1])
        more.flush()
        assert reader.read() is None
        more.write(whole[-1:] + line(t=2, kind="calm"))
        more.flush()
        assert [next_of(reader).at_s for _ in range(2)] == [1, 2]
        assert reader.read() is None
        assert not reader.partial
        reader.rewind()
        assert isinstance(next_of(reader).event, ScenarioStarted)
        assert reader.number == 1


def test_a_file_that_is_rewritten_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(line(**START) + line(t=1, kind="calm"))
    with RecordingReader(file) as reader:
        assert reader.read()
        assert reader.read()
        file.write_bytes(line(**START))
        with pytest.raises(ConfigError):
            reader.read()


def test_an_endless_line_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(line(**START) + b"x" * (LINE_BYTES_MAX + 100))
    with RecordingReader(file) as reader:
        assert reader.read()
        with pytest.raises(ConfigError, match=r"run\.jsonl:2: "):
            reader.read()


def test_the_texts_of_a_recording_have_no_control_characters() -> None:
    evil = "\x1b]0;owned\x07\n[bold]" + "x" * 5_000
    agents = {evil: {"health": evil, "outcomes": 1}}
    health = read_line({"t": 1, "kind": "health", "now": "2026-03-02T00:00:00Z", "agents": agents}, 2).event
    row = {"t": 1, "kind": "trouble", "phase": "begins", "fault": evil, "agent": None, "said": evil}
    trouble = read_line(row, 2).event
    failure = read_line({"t": 1, "kind": "complaint", "said": evil}, 2).event
    assert isinstance(health, HealthLooked)
    assert isinstance(trouble, TroubleBegan)
    assert isinstance(failure, FailureLogged)
    words = (seen.health for seen in health.agents.values())
    for text in (*health.agents, *words, trouble.fault, trouble.said, failure.said):
        assert len(text) <= 300
        assert "\x1b" not in text
        assert "\n" not in text


def test_an_event_of_the_hub_round_trips_even_if_this_version_does_not_know_it() -> None:
    told = {"seq": 7, "at": "2026-03-02T00:00:01Z", "topic": "scout.said"}
    assert read_line({"t": 1, "kind": "event", "type": "Unheard", "event": told}, 2) == (
        2,
        1.0,
        OtherEvent(seq=7, at=datetime(2026, 3, 2, 0, 0, 1, tzinfo=UTC), name="scout.said", payload={}),
        False,
    )


def test_an_unwanted_event_is_not_decoded() -> None:
    row = {"t": 1, "kind": "event", "type": "TaskBound", "event": "no event"}
    assert read_line(row, 2, wanted={"TaskMoved"}).event is None
    with pytest.raises(ValueError, match="event"):
        read_line(row, 2)


def test_an_unknown_kind_of_line_needs_only_its_second() -> None:
    assert read_line({"t": 1, "kind": "comet"}, 2).event is None
    with pytest.raises(ValueError, match="comet"):
        read_line({"t": -1, "kind": "comet"}, 2)


@pytest.mark.parametrize("kind", ["refused", "unsettled", "complaint", "reached", "end", "verdict", "trouble", "event"])
def test_a_line_without_the_members_of_its_kind_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        read_line({"t": 1, "kind": kind}, 2)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("start", f"{year}-03-02T00:00:00Z") for year in (1969, 9000)),
        ("start", "2026-03-02T00:00:00"),
        ("expect", ["nonsense"]),
        ("clock", "x0"),
        ("duration_s", float("nan")),
        ("rules", {"calls_max": -1}),
    ],
)
def test_a_start_that_is_out_of_range_is_refused(member: str, value: object) -> None:
    assert read_line(START, 1).event is not None
    with pytest.raises(ValueError, match="start"):
        read_line({**START, member: value}, 1)


def test_half_a_surrogate_pair_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(file)
        recorder.start(scenario(), ClockRate(), {})
        recorder.write(1.0, "complaint", said="an agent said \ud83d and ü")
    said = list(lines_of(path))[-1].event
    assert isinstance(said, FailureLogged)
    assert said.said.startswith("an agent said ")
