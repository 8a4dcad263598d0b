"""The screens over a recording: their content, and the keys that play it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.pilot import Pilot

from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import Controls
from fleetsim.dashboard.playback import Playback
from fleetsim.recording.reader import RecordingReader
from tests.dashboard.driver import EVENTS, SetClock, showing
from tests.dashboard.journal import HOSTILE
from tests.dashboard.recordings import a_run, health, start, trouble, verdict, write

pytestmark = [pytest.mark.slow, pytest.mark.sockets]  # the real loop, no socket is opened


@dataclass
class Screen:
    """An app over a recording, on a clock that is set."""

    app: FleetApp
    pilot: Pilot[None]
    playback: Playback
    clock: SetClock

    async def until(self, at_s: float) -> None:
        """Wait until this much is played and drawn."""
        limit = time.monotonic() + 20
        while self.playback.at_s < at_s and not self.playback.waiting:
            assert time.monotonic() < limit
            await self.pilot.pause(0.01)
        await self.pilot.pause()
        self.app.draw()
        await self.pilot.pause()

    async def jump(self, text: str, at_s: float) -> None:
        await self.pilot.press("J", *text, "enter")
        while self.playback.at_s != at_s:
            await self.pilot.pause(0.01)
        await self.until(at_s)

    @property
    def text(self) -> str:
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())


@asynccontextmanager
async def replaying(path: Path, *, speed: float = 10.0, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Screen]:
    clock = SetClock()
    with RecordingReader(path) as reader:
        playback = Playback(reader, clock, speed=speed)
        app = FleetApp(playback, Controls(), clock=clock, title=playback.name, read_only=True)
        async with app.run_test(size=size) as pilot:
            yield Screen(app, pilot, playback, clock)


async def test_the_same_moment_is_drawn_the_same_at_any_speed(tmp_path: Path) -> None:
    path, texts = write(tmp_path / "run.jsonl", a_run()), []
    for speed in (1.0, 600.0):
        async with replaying(path, speed=speed) as screen:
            screen.clock.pass_(600.0 / speed)
            await screen.until(600.0)
            await screen.pilot.press("space")
            for key in "123456":
                await screen.pilot.press(key)
                await screen.until(600.0)
                texts.append(screen.text.replace("PAUSED x600", "PAUSED x1 ").split("\n"))
    async with replaying(path, speed=1.0) as screen:
        await screen.pilot.press("space")
        await screen.pilot.press("5")
        await screen.jump("15m", 900.0)
        await screen.jump("10m", 600.0)
        for key in "123456":
            await screen.pilot.press(key)
            await screen.until(600.0)
            texts.append(screen.text.split("\n"))
    ways = [[[line.rstrip() for line in text] for text in texts[at : at + 6]] for at in (0, 6, 12)]
    assert "13:45:59Z" in texts[0][0]
    for way in ways[1:]:
        for first, again in zip(ways[0], way, strict=True):
            assert [" ".join(line.split()) for line in again] == [" ".join(line.split()) for line in first]


async def test_the_scenario_screen_shows_the_progress_and_then_the_result(tmp_path: Path) -> None:
    wrong = {"at_s": 61.0, "rule": "I-03 a request that has ended does not move", "who": "quinn", "said": "moved"}
    lines = [*a_run(), verdict(result="violated", violations=1, first=[wrong])]
    async with replaying(write(tmp_path / "run.jsonl", lines)) as screen:
        await screen.jump("650s", 650.0)
        for words in (
            *("[6 Scenario]", "an-hour", "▶ x10", "! 1 of 3 expectations not met so far", "54% 00:10:50 of 00:20:00"),
            *("seed 42", "rules: ", "since 00:10:00", "lost-webhooks, 50% of messages"),
            *("00:05:00 to 00:07:00", "hang of quinn at 5m for 2m", "✓ fleet.success_rate >= 50%", "✓ completed"),
            *("! fleet.requests >= 100000", "OVER TIME", "1 active", "in flight", "read only"),
        ):
            assert words in screen.text
        assert "●●●●●" in screen.text
        await screen.jump("end", 1_200.0)
        for words in (
            "■ ENDED",
            "✗ a rule was broken",
            "✗ fleet.requests",
            "00:01:01 quinn: moved",
        ):
            assert words in screen.text
        assert "fleetsim logged an error: a worker failed" in screen.text


async def test_keys_stop_it_change_its_speed_and_go_back_and_forth(tmp_path: Path) -> None:
    async with replaying(write(tmp_path / "run.jsonl", a_run())) as screen:
        await screen.until(0.0)
        await screen.pilot.press("space", "plus", "plus", "minus")
        assert screen.playback.paused
        assert screen.playback.speed == 60.0
        await screen.pilot.press("right_square_bracket")
        await screen.until(50.0)
        assert screen.playback.at_s == 50.0
        await screen.pilot.press("right_square_bracket")
        await screen.until(100.0)
        await screen.pilot.press("left_square_bracket")
        while screen.playback.at_s != 50.0:
            await screen.pilot.pause(0.01)
        assert "‖ PAUSED x60" in screen.text
        await screen.pilot.press("J", *"soon", "enter")
        await screen.until(0.0)
        assert "is not a moment" in screen.text


@pytest.mark.parametrize("size", [(80, 24), (60, 18), (45, 14)])
async def test_a_narrow_terminal_has_verdict_time_and_agents(tmp_path: Path, size: tuple[int, int]) -> None:
    async with replaying(write(tmp_path / "run.jsonl", a_run()), size=size) as screen:
        await screen.jump("10m", 600.0)
        for words in ("not met so far", "50% 00:10:00", "quinn", "requests"):
            assert words in screen.text


async def test_without_a_recording_the_screen_does_not_exist() -> None:
    async with showing(EVENTS, "6") as ui:
        assert ui.pane.id == "fleet"
        assert "Scenario" not in ui.text
        await ui.press("space", "J", "plus")
        assert ui.pane.id == "fleet"


async def test_a_recording_of_a_hub_names_its_missing_parts(tmp_path: Path) -> None:
    lines = [start(of="hub", duration_s=0.0, expect=[]), *a_run()[1:]]
    async with replaying(write(tmp_path / "run.jsonl", lines)) as screen:
        await screen.jump("10m", 600.0)
        for words in (
            "a recording of a hub",
            "no rules: ",
            "since the recording began",
            "fleetsim sim",
        ):
            assert words in screen.text


async def test_a_malformed_line_is_reported_and_the_rest_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", a_run()[:60])
    with path.open("a") as file:
        file.write("what is this\n")
    async with replaying(path, size=(200, 40)) as screen:
        screen.clock.pass_(1_000.0)
        async with asyncio.timeout(20):
            while "○ LOST" not in screen.text:
                await screen.until(0.0)
        assert "run.jsonl:61: not a line" in screen.text.replace("\n", "")


async def test_control_characters_of_a_recording_do_not_reach_the_screen(tmp_path: Path) -> None:
    safe = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    lines = [start(scenario=safe[2], agents=[{"agent": text, "skills": []} for text in safe])]
    for text in safe:
        lines += [trouble(1.0, "begins", text, text, said=text), health(2.0, **{text: text, "quinn": text})]
        lines += [{"t": 3.0, "kind": "complaint", "said": text}]
    first = [{"at_s": 1.0, "rule": text, "who": text, "said": text} for text in safe]
    lines.append(verdict(9.0, violations=99, first=first, result="violated"))
    async with replaying(write(tmp_path / "run.jsonl", lines)) as screen:
        screen.clock.pass_(1.0)
        await screen.until(9.0)
        for key in ("6", "tab", "G", "5", "enter", "1"):
            await screen.pilot.press(key)
            await screen.until(9.0)
            assert not {mark for mark in ("\x1b", "\x07", "\u202e", "\u200b", "\x9b") if mark in screen.text}
            assert screen.app.is_running
