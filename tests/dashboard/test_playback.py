"""Recordings as a feed: the same at each moment at any speed, rewound, followed, and by any author."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from fleetsim.api.answer import to_json
from fleetsim.api.state import HubState
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event, RequestAccepted
from fleetsim.model.errors import ConfigError
from fleetsim.recording.events import ClockMoved
from fleetsim.recording.reader import RecordingReader
from fleetsim.sim.report import report_of
from fleetsim.sim.view import RunBuckets, RunState, ScenarioFold, ScenarioView
from tests.dashboard.driver import EVENTS, SetClock
from tests.dashboard.recordings import BEGAN, a_run, start, told, trouble, verdict, write
from tests.sim.scenes import SMALL, recorded, run_of, scenario


class Player:
    """A playback whose batches are folded when a test says so, on a clock that it sets."""

    def __init__(self, playback: Playback, clock: SetClock) -> None:
        self.playback = playback
        self._clock = clock
        self._feed = aiter(playback)
        self._builder, self._restarts = ViewBuilder(ScenarioFold()), 0

    async def after(self, seconds: float = 0.0) -> list[Event]:
        """Let this much real time pass, and read a batch."""
        self._clock.pass_(seconds)
        batch = list(await anext(self._feed))
        if self.playback.restarts != self._restarts:
            self._restarts, self._builder = self.playback.restarts, ViewBuilder(ScenarioFold())
        self._builder.fold_all(batch)
        return batch

    @property
    def view(self) -> View:
        return self._builder.snapshot(self.playback.now, exact=True)

    @property
    def run(self) -> ScenarioView:
        run = self.view.scenario
        assert isinstance(run, ScenarioView)
        return run


@contextmanager
def playing(path: Path, speed: float = 1.0) -> Iterator[Player]:
    clock = SetClock()
    with RecordingReader(path) as reader:
        yield Player(Playback(reader, clock, speed=speed), clock)


@pytest.mark.slow
async def test_a_moment_shows_the_same_at_any_speed_and_from_any_direction(tmp_path: Path) -> None:
    path, seen = write(tmp_path / "run.jsonl", a_run()), []
    for speed, seconds in ((1.0, 640.0), (10.0, 64.0), (640.0, 1.0)):
        with playing(path, speed) as player:
            for _ in range(8):
                await player.after(seconds / 8)
            seen.append(player.view)
    with playing(path) as player:
        for to_s in (900.0, 640.0):
            player.playback.jump(to_s)
            await player.after()
        seen.append(player.view)
    assert seen[0].now == BEGAN + timedelta(seconds=640)
    assert seen[0].counters.figures.total_outcomes > 20
    assert [view == seen[0] for view in seen] == [True] * 4


@pytest.mark.slow
async def test_no_later_event_is_shown_and_at_full_speed_all_are(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [*a_run(), verdict()])
    with playing(path) as player:
        batch = await player.after(120.0)
        assert batch
        assert max(event.at for event in batch) <= player.playback.now == BEGAN + timedelta(seconds=120)
        player.playback.speed = math.inf
        await player.after()
        assert player.playback.ended
        assert player.playback.waiting
        assert player.run.verdict is not None
        assert player.view.counters.events == len(EVENTS) + 4


async def test_an_older_recording_of_a_hub_begins_with_its_earlier_events(tmp_path: Path) -> None:
    past = [line | {"t": 0.0, "kind": "past"} for line in told(EVENTS) if line["t"] < 0]
    later = [line for line in told(EVENTS) if line["t"] >= 0]
    with playing(write(tmp_path / "hub.jsonl", [start(of="hub"), *past, *later])) as player:
        batch = await player.after(1_200.0)
        assert [event.seq for event in batch[1:]] == [event.seq for event in EVENTS]
        assert not any(isinstance(event, ClockMoved) for event in batch)


async def test_states_in_a_recording_leave_the_numbers_of_its_events(tmp_path: Path) -> None:
    later = [line for line in told(EVENTS) if line["t"] >= 0]
    first = later[0]["event"]["seq"]
    states = [
        {
            "t": at_s,
            "kind": "state",
            **to_json(StateRead.of(HubState(seq=seq, at=BEGAN + timedelta(seconds=at_s), limits=(("a", "b"),)))),
            "whole": at_s == 0.0,
        }
        for at_s, seq in ((0.0, first - 1), (1_100.0, first + 2))
    ]
    lines = sorted([*states, *later], key=lambda line: line["t"])
    with playing(write(tmp_path / "hub.jsonl", [start(of="hub"), *lines])) as player:
        batch = await player.after(1_200.0)
        assert [event.seq for event in batch[1:] if not isinstance(event, StateRead)] == [
            line["event"]["seq"] for line in later
        ]
        assert [event.whole for event in batch if isinstance(event, StateRead)] == [True, False]


async def test_time_stops_while_it_is_paused_and_continues_from_there(tmp_path: Path) -> None:
    with playing(write(tmp_path / "run.jsonl", a_run()), 10.0) as player:
        await player.after(6.0)
        player.playback.pause()
        assert await player.after(600.0) == []
        assert player.playback.at_s == 60.0
        player.playback.pause()
        await player.after(1.0)
        assert player.playback.at_s == 70.0


@pytest.mark.slow
async def test_a_recording_that_is_written_is_followed_line_by_line(tmp_path: Path) -> None:
    lines = [*a_run(), verdict()]
    written = "".join(json.dumps(line) + "\n" for line in lines)
    path = tmp_path / "run.jsonl"
    half = len(written) // 2
    path.write_text(written[:half])
    with playing(path, math.inf) as player, path.open("a") as file:
        await player.after()
        at_s, there = player.playback.at_s, player.view.counters.events
        assert player.playback.waiting
        assert not player.playback.ended
        assert await player.after(5.0) == []
        assert player.playback.at_s == at_s  # the time after the last line is unknown
        file.write(written[half:])
        file.flush()
        await player.after()
        assert player.playback.ended
        whole = player.view
    with playing(write(tmp_path / "again.jsonl", lines), math.inf) as player:
        await player.after()
        assert player.view == whole
    assert there < whole.counters.events


async def test_the_hubs_clock_may_be_set_and_the_runs_time_continues(tmp_path: Path) -> None:
    early, late = EVENTS[:40], EVENTS[40:80]
    lines = [start(), *told(early)]
    for line in told(late):
        at = BEGAN + timedelta(seconds=line["t"] - 3_600)
        lines.append({**line, "event": {**line["event"], "at": at.isoformat()}})
    with playing(write(tmp_path / "run.jsonl", lines), math.inf) as player:
        batch = await player.after()
        assert [event.by_s for event in batch if isinstance(event, ClockMoved)] == [pytest.approx(-3_600)]
        assert player.playback.now == BEGAN + timedelta(seconds=lines[-1]["t"] - 3_600)
        run = player.run
        assert run.at_s == pytest.approx(lines[-1]["t"])
        assert sum(run.requests_cells) == run.requests == sum(line.get("type") == "RequestAccepted" for line in lines)


async def test_events_that_a_killed_hub_repeats_have_numbers_of_their_own(tmp_path: Path) -> None:
    at = (BEGAN + timedelta(seconds=90)).isoformat()
    again = [{**line, "t": 90.0, "event": {**line["event"], "at": at}} for line in told(EVENTS[:20])]
    lines = [start(), *told(EVENTS[:30]), {"t": 80.0, "kind": "killed", "journalled": 0}, *again]
    with playing(write(tmp_path / "run.jsonl", lines), math.inf) as player:
        await player.after()
        numbers = [event.seq for event in player.view.events]
        assert len(numbers) == 51
        assert numbers == sorted(set(numbers))
        assert numbers[:30] == [event.seq for event in EVENTS[:30]]
        run = player.run
        assert run.kills == 1
        asked = {e.correlation_id for e in EVENTS[:30] if isinstance(e, RequestAccepted)}
        assert run.requests == len(asked) > 0
        assert run.in_flight == len(asked) - sum(run.ends.values())


@pytest.mark.slow
async def test_what_is_told_of_a_run_so_far(tmp_path: Path) -> None:
    with playing(write(tmp_path / "run.jsonl", [*a_run(), verdict()])) as player:
        player.playback.jump(650.0)
        await player.after()
        run = player.run
        about = run.started
        assert (about.scenario, about.seed, about.duration_s, run.at_s) == ("an-hour", 42, 1_200.0, 650.0)
        assert [(row.fault, row.begins_s, row.ends_s) for row in run.troubles] == [
            ("lost-webhooks", 600.0, None),
            ("hang", 300.0, 420.0),
        ]
        assert [row.holds for row in run.expectations] == [True, True, False]
        assert run.expectations[2].figure == run.requests == sum(run.requests_cells)
        assert sum(run.ends.values()) == player.view.counters.figures.total_outcomes
        assert sum(run.failures_cells) == run.failures > 0
        assert run.looks["quinn"] == ((60.0, "up"), (360.0, "down"))
        assert run.verdict is None
        player.playback.jump(math.inf)
        await player.after()
        run = player.run
        assert run.state is RunState.ENDED
        assert run.log_lines == ("a worker failed",)
        assert [row.figure for row in run.expectations] == [0.5, 0.5, 0.5]


def test_parts_become_twice_as_wide_where_nobody_knows_how_long_it_takes() -> None:
    cells = RunBuckets(0.0)
    for at_s in range(0, 1_000, 10):
        cells.level(at_s, at_s // 10)
        cells.add(at_s, "requests")
    row = cells.row("requests", 990)
    assert len(row) <= 48
    assert sum(row) == 100
    assert cells.width_s == 32
    assert cells.peaks(990)[-1] == 99
    assert cells.peaks(0)[:2] == (3, 6)


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2h30m", 9_000.0),
        ("90s", 90.0),
        ("1d", 86_400.0),
        ("start", 0.0),
        ("13:36:00", 0.6),
        ("14:00", 1_440.6),
        ("13:00", 84_240.6),
        ("25:00", None),
        ("soon", None),
        ("", None),
        ("-5m", None),
        ("²h", None),
    ],
)
async def test_a_moment_is_a_time_of_day_or_a_span(tmp_path: Path, text: str, second: float | None) -> None:
    with playing(write(tmp_path / "run.jsonl", a_run())) as player:
        found = player.playback.second_of(text)
        assert found == (second if second is None else pytest.approx(second))


async def test_a_malformed_line_ends_the_playback_and_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", a_run()[:10])
    with path.open("a") as file:
        file.write("what is this\n")
    with playing(path, math.inf) as player:
        await player.after()
        assert player.view.counters.events > 0
        with pytest.raises(ConfigError):
            await player.after()
        assert player.playback.error is not None


def test_an_empty_file_is_not_a_recording(tmp_path: Path) -> None:
    with RecordingReader(write(tmp_path / "run.jsonl", [])) as reader, pytest.raises(ConfigError):
        Playback(reader, SetClock())


async def test_troubles_without_end_are_bounded(tmp_path: Path) -> None:
    lines = [start(), *(trouble(1.0, "begins", f"f{at}") for at in range(1_000))]
    with playing(write(tmp_path / "run.jsonl", lines), math.inf) as player:
        await player.after()
        assert len(player.run.troubles) == 200


EXPECTING = """
weather:
  - {fault: hub-restart, at: 20m, lasts: 10s}
expect:
  - fleet.success_rate >= 50%
  - quinn/review.duration_p95 < 1s
  - cost < $0.01
  - questions > 3
  - archivist.requests >= 1
"""


@pytest.mark.slow
def test_the_figures_at_the_end_of_a_run_are_those_of_its_report(tmp_path: Path) -> None:
    lines, _ = run_of(scenario(SMALL + EXPECTING))
    told = report_of(recorded(lines)).expectations

    async def played(player: Player) -> None:
        while not player.playback.waiting:
            await player.after()

    with playing(write(tmp_path / "run.jsonl", lines), math.inf) as player:
        asyncio.run(played(player))
        run = player.run
        assert [(row.figure, row.holds) for row in run.expectations] == [(figure, holds) for _, figure, holds in told]
        assert [holds for *_, holds in told] == [True, False, False, True, True]
        assert run.kills == 1
        assert run.in_flight == 0
        assert run.looks.keys() == {"quinn", "herald", "archivist"}
