"""``fleetsim tape replay``: what a candidate does otherwise than the recorded agent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent import Agent, Effect, SkillContext, SkillFailed
from fleetsim.agent.builtin import reference_agent
from fleetsim.cli.main import Exit
from fleetsim.model.errors import AuthRefused
from fleetsim.model.task import TaskState
from fleetsim.pytest_plugin.fleet import Fleet
from fleetsim.tape.replay import EFFECTS, LOST, NO_END, NO_QUESTION, Replay
from fleetsim.tape.tape import Tape
from fleetsim.testbed.faults import Match, Refuse
from tests.tape.test_tape import DIALECTS, RECORDER, TOKEN, recording, story, with_a_file


def read(file: Path) -> Tape:
    return Tape.read(file.read_bytes(), file.name)


async def replayed(fleet: Fleet, file: Path, candidate: Agent, **options: bool | float) -> Replay:
    client = fleet.client(fleet.add(candidate).url)
    replay = Replay(tape=read(file), client=client, **options)  # type: ignore[arg-type]
    await replay.run()
    return replay


def agent(name: str, *, slower: int = 1, dollars: float = 0.01, asks: bool = True, broken: str = "") -> Agent:
    """Version A or B: with options B is slower or dearer, does not ask, or fails for one text."""
    made = Agent(name, allow_webhook=("recorder:9001",))

    @made.skill("chat", cost=True)
    async def chat(task: SkillContext) -> str:
        """Chats."""
        if task.text == broken:
            raise SkillFailed("not any more")
        answer = await task.ask("Who are you?") if task.text == "who" and asks else "done"
        await asyncio.sleep(4 * slower)
        task.use(input_tokens=10, output_tokens=5, cost_usd=dollars, model="m")
        return f"{name} 2026-01-02" if task.text == "name" else answer

    return made


async def taped(fleet: Fleet, file: Path) -> None:
    async with recording(fleet, file, agent("a")), fleet.client(RECORDER) as client:
        for text in ("one", "name"):
            await client.send_task(text)
        asked = await client.send_task("who")
        await client.send_task("Ada", task_id=asked.id, context_id=asked.context_id, answers=asked.task)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_agent_is_the_same_as_its_own_tape(dialect: str, tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()):
            sink = fleet.sink()
            async with fleet.client(RECORDER, dialect=dialect) as client:
                await story(client, sink.config(token=TOKEN))
        replay = await replayed(fleet, tmp_path / "real.tape", with_a_file().replace(name="b"), side_effects=True)
    compared = replay.comparison("real.tape", 1.5, frozenset({"text", "time", "cost"}))
    assert (compared.changed, compared.same, replay.left_out) == ((), replay.total, Counter())
    assert replay.total == 8
    assert [round(one.there.duration_s) for one in replay.compared][:1] == [3]


@pytest.mark.parametrize(
    ("candidate", "fail_on", "expected"),
    [
        ({}, {"text"}, {"name": ("text", True)}),
        ({"broken": "one"}, (), {"one": ("state", True), "name": ("text", False)}),
        ({"slower": 3}, {"time"}, {"one": ("time", True), "name": ("text,time", True), "Ada": ("time", True)}),
        ({"dollars": 0.02}, (), {"one": ("cost", False), "name": ("text,cost", False), "Ada": ("cost", False)}),
        ({"asks": False}, (), {"name": ("text", False), "who": ("state", True)}),
    ],
)
async def test_a_candidate_differs_by_state_text_time_and_cost(
    candidate: dict[str, bool | int], fail_on: set[str], expected: dict[str, tuple[str, bool]], tmp_path: Path
) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        await taped(fleet, tmp_path / "a.tape")
        replay = await replayed(fleet, tmp_path / "a.tape", agent("b", **candidate))  # type: ignore[arg-type]
    compared = replay.comparison("a.tape", 1.5, frozenset(fail_on))
    assert {row.title: (row.mark, row.worse) for row in compared.changed} == expected
    assert replay.left_out == ({} if "asks" not in candidate else {NO_QUESTION: 1})
    assert not compared.better


async def test_a_failure_on_the_tape_that_is_mended_is_better(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "a.tape", agent("a", broken="one")), fleet.client(RECORDER) as client:
            await client.send_task("one")
        replay = await replayed(fleet, tmp_path / "a.tape", agent("b"))
    compared = replay.comparison("a.tape", 1.5, frozenset())
    assert [(row.worse, row.better) for row in compared.changed] == [(False, True)]


async def test_skills_with_declared_effects_are_left_out_unless_allowed(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        deploys, calls = agent("a"), list[str]()

        @deploys.skill("deploy", effects=(Effect(domain="board", path="bugs.open"),))
        async def deploy(task: SkillContext) -> str:
            """Deploys."""
            calls.append(task.text)
            return "deployed"

        async with recording(fleet, tmp_path / "a.tape", deploys), fleet.client(RECORDER) as client:
            await client.send_task("one", metadata={"skillHint": "chat"})
            await client.send_task("two", metadata={"skillHint": "deploy"})
            await client.send_task("three")
        first = await replayed(fleet, tmp_path / "a.tape", deploys.replace(name="b"))
        assert calls == ["two"]
        second = await replayed(fleet, tmp_path / "a.tape", deploys.replace(name="c"), side_effects=True)
    assert ([one.text for one in first.compared], first.left_out) == (["one"], {EFFECTS: 2})
    assert ([one.text for one in second.compared], second.left_out) == (["one", "two", "three"], {})


async def test_what_the_tape_does_not_show_to_its_end_is_not_sent(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "a.tape", agent("a")), fleet.client(RECORDER) as client:
            await client.send_task("one", wait=False)
            canceled = await client.send_task("two", wait=False)
            await client.cancel(canceled.id)
        replay = await replayed(fleet, tmp_path / "a.tape", agent("b"))
    assert (replay.compared, replay.left_out) == ([], {NO_END: 2})


async def test_a_connection_that_fails_is_counted_and_a_refused_key_ends_it(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        await taped(fleet, tmp_path / "a.tape")
        fleet.network.fault(Refuse(), Match(origin="http://b:9000", rpc_method="SendMessage"))
        replay = await replayed(fleet, tmp_path / "a.tape", agent("b"))
        with pytest.raises(AuthRefused):
            await replayed(fleet, tmp_path / "a.tape", reference_agent(name="c", api_key="k" * 32), side_effects=True)
    assert (replay.compared, replay.left_out) == ([], {LOST: 4})


async def test_a_late_candidate_is_worse(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        await taped(fleet, tmp_path / "a.tape")
        replay = await replayed(fleet, tmp_path / "a.tape", agent("b", slower=100), timeout_s=60.0)
    states = [one.here.state for one in replay.compared]
    assert states == [TaskState.WORKING, TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.WORKING]
    assert len(replay.comparison("a.tape", 1.5, frozenset()).worse) == 3


@pytest.mark.sockets
async def test_an_interrupted_replay_shows_what_was_compared(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        await taped(fleet, tmp_path / "a.tape")
    candidate, reached = Agent("b"), asyncio.Event()

    @candidate.skill("chat")
    async def chat(task: SkillContext) -> str:
        """Replies to the first message alone."""
        if task.text == "one":
            return "two"
        reached.set()
        await asyncio.Event().wait()
        return ""

    async with candidate.serving() as url:
        argv = [sys.executable, "-m", "fleetsim", "-o", "json", "tape", "replay", str(tmp_path / "a.tape")]
        process = await asyncio.create_subprocess_exec(*argv, "--to", url, "--fail-on", "text", stdout=subprocess.PIPE)
        await reached.wait()
        process.send_signal(signal.SIGINT)
        told: dict[str, Any] = json.loads((await process.communicate())[0])
    assert process.returncode == Exit.INTERRUPTED
    assert (told["total"], [one["here"]["text"] for one in told["requests"]]) == (4, ["two"])
    assert told["comparison"]["worse"] == ["line 3"]
