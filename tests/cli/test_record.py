"""``fleetsim record``: all events of a hub, over its restart too, from which the same screens are drawn."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.events.fleet import HubStarted, StateRead
from fleetsim.events.request import OutcomeDecided
from fleetsim.recording.events import RunEvent
from fleetsim.recording.reader import RecordingReader, lines_of
from tests.cli.world import Shell
from tests.command import start
from tests.dashboard.driver import SetClock

pytestmark = [pytest.mark.slow, pytest.mark.sockets]


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    agent = Agent("echo")

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        if "fail" in task.text:
            raise ValueError("as you wish")
        return task.text

    async with agent.serving() as found:
        yield found


@contextmanager
def recording(shell: Shell) -> Iterator[subprocess.Popen[str]]:
    process = start(("record", "--out", "day.jsonl"), shell.home, shell.environment())
    assert process.stderr is not None
    try:
        assert "http://127.0.0.1:" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    return said


async def at_moment(path: Path, at_s: float) -> View:
    """The content of the screens then."""
    builder = ViewBuilder()
    with RecordingReader(path) as reader:
        playback = Playback(reader, SetClock())
        playback.jump(at_s)
        feed = aiter(playback)
        while playback.at_s < at_s:
            builder.fold_all(await anext(feed))
    assert playback.at_s == at_s
    return builder.snapshot(playback.now, exact=True)


async def test_a_recording_over_a_restart_is_complete_and_gives_the_same_screens(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: echo\n    url: {url}/a2a\n")
    day = shell.home / "day.jsonl"
    with ExitStack() as stack:
        with shell.up():
            assert (await shell.arun("send", "echo", "before")).returncode == 0
            process = stack.enter_context(recording(shell))
            assert (await shell.arun("send", "echo", "one")).returncode == 0
        with shell.up():
            assert (await shell.arun("send", "echo", "two")).returncode == 0
            assert "failed" in (await shell.arun("send", "echo", "fail")).stderr
            for _ in range(300):
                if day.read_text().count('"type":"OutcomeDecided"') == 3:
                    break
                await asyncio.sleep(0.1)
            said = await asyncio.to_thread(stopped, process)
    assert "next: fleetsim dashboard --replay day.jsonl" in said
    assert day.stat().st_mode & 0o777 == 0o600
    told = [line for line in lines_of(day) if line.event is not None and not isinstance(line.event, RunEvent)]
    began = told[0].event
    assert isinstance(began, StateRead)
    assert began.whole
    assert [row["state"] for row in began.state.recent] == ["completed"]
    numbers = [line.event.seq for line in told if line.event is not None and not isinstance(line.event, StateRead)]
    # a hub numbers its events without a gap
    assert numbers == list(range(began.seq + 1, began.seq + len(numbers) + 1))
    ended = [line for line in told if isinstance(line.event, OutcomeDecided)]
    assert len(ended) == 3
    last = await at_moment(day, told[-1].at_s)
    assert last.counters.figures.total_outcomes == 4
    assert len(last.recent) == 4
    for moment in [line.at_s for line in told if isinstance(line.event, OutcomeDecided | HubStarted)][-4:]:
        live = ViewBuilder()
        live.fold_all(line.event for line in told if line.event is not None and line.at_s <= moment)
        played = await at_moment(day, moment)
        assert replace(played, scenario=None) == live.snapshot(played.now, exact=True)
        assert abs(played.now - played.events[-1].at) < timedelta(seconds=1)
    done = await shell.arun("sim", "--replay", "day.jsonl")
    assert done.returncode == 0
    assert "3 requests, 3 outcomes, 1 agent" in done.stdout
    assert ": I-01, I-02" in done.stdout
    assert "play it again" not in done.stdout


async def test_a_recording_ends_by_itself_and_overwrites_no_file(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: echo\n    url: {url}/a2a\n")
    none = await shell.arun("record")
    assert none.returncode == 3
    assert "no hub is running" in none.stderr
    assert not list(shell.home.glob("*.jsonl"))
    with shell.up("--memory"):
        done = await shell.arun("record", "--for", "1s", "--out", "day.jsonl")
        assert done.returncode == 0
        assert "for 1s" in done.stderr
        kept = (shell.home / "day.jsonl").read_text()
        again = await shell.arun("record", "--for", "1s", "--out", "day.jsonl")
        assert again.returncode == 2
        assert "day.jsonl: File exists" in again.stderr
        assert (shell.home / "day.jsonl").read_text() == kept
    last = json.loads(kept.splitlines()[-1])
    assert last["kind"] == "played"
    assert 1.0 <= last["t"] < 10.0


async def test_a_hub_without_a_ledger_starts_its_numbers_again_and_is_recorded(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: echo\n    url: {url}/a2a\n")
    day = shell.home / "day.jsonl"
    with ExitStack() as stack:
        with shell.up("--memory"):
            assert (await shell.arun("send", "echo", "before")).returncode == 0
            process = stack.enter_context(recording(shell))
            for text in ("one", "two"):
                assert (await shell.arun("send", "echo", text)).returncode == 0
        with shell.up("--memory"):
            async with asyncio.timeout(40):
                while day.read_text().count('"type":"HubStarted"') < 1:
                    await shell.arun("send", "echo", "three")
            await asyncio.to_thread(stopped, process)
    events = [line.event for line in lines_of(day)]
    again = [event.seq for event in events if event is not None and not isinstance(event, RunEvent | StateRead)]
    anew = again.index(1)
    assert again[anew:] == list(range(1, len(again) - anew + 1))
