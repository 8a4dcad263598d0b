"""A tape as an agent of a simulated fleet, on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.errors import ConfigError
from fleetsim.pytest_plugin.fleet import Fleet, VirtualTime
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.live import check_clock
from fleetsim.sim.scenario import parse_scenario
from tests.tape.test_tape import RECORDER, recording

SCENARIO = """
name: day
duration: 2h
fleet:
  quinn: {tape: quinn.tape, replicas: 2, skills: {greet: {}}}
  ava: {skills: {plan: {}}}
traffic:
  - {skill: greet, rate: 30/h}
  - {skill: plan, rate: 10/h}
weather:
  - {at: 30m, fault: agent-restart, agent: quinn, lasts: 10s}
expect: ["fleet.success_rate >= 95%", "quinn-1.p50 > 39s", "quinn-2.p50 < 43s", "quinn-1.requests > 10"]
"""


async def record(folder: Path) -> None:
    agent = Agent("quinn")

    @agent.skill("greet")
    async def greet(task: SkillContext) -> str:
        """Greets, slowly."""
        await asyncio.sleep(40)
        return "hello"

    fleet = Fleet(0, folder=folder)
    async with fleet, recording(fleet, folder / "quinn.tape", agent), fleet.client(RECORDER) as client:
        await client.send_task("hi", metadata={"skillHint": "greet"})
        await client.follow("hi", skill="greet").end()


def test_a_tape_is_an_agent_of_a_simulated_fleet(tmp_path: Path) -> None:
    VirtualTime(0).run(lambda: record(tmp_path))
    (tmp_path / "day.yaml").write_text(SCENARIO)
    Fleet(0, folder=tmp_path).sim("day.yaml")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("quinn.tape", "none.tape", "5:17: .*none.tape"),
        ("greet: {}", "greet: {takes: 3s}", "5:"),
        ("replicas: 2", "push: false", "5:29: 'push' is not a key of an agent with a 'tape'"),
    ],
)
def test_a_mistake_in_an_agent_of_a_tape_is_named_with_its_place(
    old: str, new: str, place: str, tmp_path: Path
) -> None:
    VirtualTime(0).run(lambda: record(tmp_path))
    with pytest.raises(ConfigError, match=f"day.yaml:{place}"):
        parse_scenario(SCENARIO.replace(old, new), str(tmp_path / "day.yaml"))


def test_a_tape_has_virtual_time_alone(tmp_path: Path) -> None:
    VirtualTime(0).run(lambda: record(tmp_path))
    scenario, written = parse_scenario(SCENARIO, str(tmp_path / "day.yaml"))
    with pytest.raises(ConfigError, match=r"day.yaml:5:11: "):
        check_clock(scenario, written, ClockRate.read("real"))
