"""A scenario in real time: the hub on real sockets, its agents in this process, or real ones by their address."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.model.errors import ConfigError, Unreachable
from fleetsim.runtime.real import SystemClock
from fleetsim.sim.clocks import ClockRate, PacedClock, RunClock
from fleetsim.sim.live import LiveSimulation, check_clock
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.report import Result, SimulationReport, report_of
from fleetsim.sim.scenario import START, parse_scenario
from fleetsim.sim.traffic import WHOLE, TrafficPart
from fleetsim.testbed.loop import VirtualLoop
from tests.loop_time import own_time_s
from tests.sim.scenes import SMALL, recorded, scenario

REAL = ClockRate.read("real")
FAST = """
name: fast
duration: 3m
fleet:
  quinn:
    skills:
      review: {takes: 50ms, chunks: 2, cost: 0.01, asks: 0.2}
  ava:
    dialect: "1.0"
    skills: {sitrep: {takes: 20ms}}
people: {answerAfter: 10s}
traffic:
  - {skill: review, rate: 10/m, arrivals: steady}
  - {skill: sitrep, rate: 10/m, arrivals: steady, turns: 2, pause: 5s}
weather:
  - {fault: slow-answers, agent: quinn, at: 1m, lasts: 30s, amount: 0.3}
  - {fault: doubled-webhooks, amount: 1}
"""
EACH_MINUTE = b"""
id: round
name: Round
schedule: "* * * * *"
skill: sitrep
targets: [ava]
"""


async def played(text: str, folder: Path, rate: str, **options: Any) -> tuple[SimulationReport, list[dict[str, Any]]]:
    wanted, written = parse_scenario(text, "fast.yaml")
    clock = ClockRate.read(rate)
    check_clock(wanted, written, clock)
    file = io.StringIO()
    each_minute = {"round.yaml": EACH_MINUTE} if "ava" in wanted.fleet else {}
    settle_s = options.pop("settle_s", 300.0)
    run = LiveSimulation(wanted, Recorder(file), clock, folder, ceremonies=each_minute, settle_s=settle_s, **options)
    await run.play()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    return report_of(recorded(lines)), lines


def problems(text: str, rate: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_clock(*parse_scenario(text, "mine.yaml"), ClockRate.read(rate))
    return str(caught.value)


@pytest.mark.sockets
@pytest.mark.slow
async def test_a_scenario_is_played_over_http_with_traffic_and_ceremonies_faster_than_real_time(tmp_path: Path) -> None:
    began, began_own_s = time.perf_counter(), own_time_s()
    found, lines = await played(FAST, tmp_path, "x60")
    took_s, took_own_s = time.perf_counter() - began, own_time_s() - began_own_s
    assert found.result is Result.OK, [v for v in found.verdicts if v.violations]
    fleet = found.figures["fleet"]
    assert fleet["requests"] == fleet["outcomes"]
    assert 60 <= (fleet["requests"] or 0) <= 100
    assert (fleet["questions"] or 0) == fleet["answered"] != 0
    (rounds,) = found.ceremonies  # a round that takes a minute, a second here, does not begin again meanwhile
    assert rounds.fired >= 1
    assert 2 <= rounds.fired + rounds.skipped <= 3
    assert took_s >= 3.0
    assert took_own_s < 60.0
    assert (found.figures["ava"]["p50"] or 9.0) < 5.0  # the work of an agent takes the machine's time
    assert {trouble.fault: trouble.hits > 0 for trouble in found.troubles} == {
        "slow-answers": True,
        "doubled-webhooks": True,
    }
    assert "I-14" not in {verdict.invariant.number for verdict in found.verdicts}
    assert found.again.endswith("--clock x60 --record run.jsonl")
    assert found.load is not None
    assert found.load.meant == pytest.approx(30, abs=3)
    assert len(found.load.response) == sum(line["kind"] == "asked" for line in lines)


@pytest.mark.sockets
@pytest.mark.slow
async def test_a_real_agent_is_called_by_its_address_and_slow_work_is_canceled(tmp_path: Path) -> None:
    async with reference_agent().serving() as url:
        text = f"""
name: outside
duration: 1s
fleet:
  ref: {{url: "{url.rstrip("/")}/a2a", skills: {{echo: {{}}, slow: {{}}}}}}
traffic:
  - {{skill: echo, rate: 5/s, arrivals: steady}}
  - {{skill: slow, rate: 1/s, arrivals: steady, begins: 0s, ends: 500ms, text: "3600"}}
  - {{skill: slow, rate: 4/s, arrivals: steady, ends: 300ms, text: "3600"}}
expect:
  - response_p99 > 0s
  - canceled == 1
"""
        found, _ = await played(text, tmp_path, "real", settle_s=1.0)
    assert found.result is Result.OK, found.expectations
    assert found.unsettled == 1
    assert found.figures["ref/echo"]["successes"] == 4


DIVIDED = """
name: divided
duration: 1m
fleet: {ava: {skills: {sitrep: {takes: 1ms}}}}
people: {cancel: 0.2, cancelAfter: {p50: 1s, p95: 9s}}
traffic:
  - {skill: sitrep, rate: 30/m}
  - {skill: sitrep, rate: 20/m, burst: 2}
"""


@pytest.mark.sockets
@pytest.mark.slow
async def test_the_parts_of_a_scenario_are_its_traffic_at_the_same_moments(tmp_path: Path) -> None:
    async def moments(part: TrafficPart) -> list[float]:
        (folder := tmp_path / f"{part.number}-{part.of}").mkdir()
        _, lines = await played(DIVIDED, folder, "x60", part=part)
        return [line["due_s"] for line in lines if line["kind"] == "asked"]

    begun = []

    async def ready(stop: Callable[[], None]) -> None:
        begun.append(stop)

    parts = [await moments(TrafficPart(number=number, of=3, ready=ready)) for number in range(3)]
    whole = await moments(WHOLE)
    assert len(begun) == 3
    assert max(map(len, parts)) - min(map(len, parts)) <= 2
    # Each run's traffic begins some milliseconds, here parts of a second, after its clock.
    assert sorted(moment for part in parts for moment in part) == pytest.approx(sorted(whole), abs=1.0)


TALK = """
name: talk
duration: 1s
start: 2026-03-02T00:00:00Z
fleet: {ava: {skills: {sitrep: {takes: 1ms}}}}
traffic:
  - {skill: sitrep, rate: 2/s, arrivals: steady, turns: 2, pause: 2s}
"""


@pytest.mark.sockets
@pytest.mark.slow
async def test_a_conversation_that_continues_after_the_traffic_is_awaited(tmp_path: Path) -> None:
    found, _ = await played(TALK, tmp_path, "real")
    assert found.result is Result.OK, [v for v in found.verdicts if v.violations]
    assert found.figures["fleet"]["outcomes"] == 2
    assert found.start == START


@pytest.mark.sockets
@pytest.mark.slow
async def test_a_run_on_the_real_clock_has_its_real_start_unless_its_scenario_names_one(tmp_path: Path) -> None:
    before = SystemClock().now()
    now = TALK.replace("start: 2026-03-02T00:00:00Z\n", "").replace("ava", "eva").replace("turns: 2, pause: 2s", "")
    found, lines = await played(now, tmp_path, "real")
    assert found.began is not None
    assert before <= found.start == found.began <= SystemClock().now()
    events = [datetime.fromisoformat(line["event"]["at"]) for line in lines if line["kind"] == "event"]
    assert all(found.start <= at for at in events)
    assert found.as_json()["startedAt"] == found.began.isoformat()


def test_a_time_of_day_outside_a_run_on_the_real_clock_is_refused_with_its_place() -> None:
    later = (SystemClock().now() + timedelta(hours=2)).strftime("%H:%M")
    text = TALK.replace("start: 2026-03-02T00:00:00Z\n", "").replace("duration: 1s", "duration: 24h")
    text = f'{text}weather:\n  - {{fault: slower, agent: ava, at: "{later}"}}\n'
    wanted, written = parse_scenario(text, "mine.yaml")
    check_clock(wanted, written, REAL)
    with pytest.raises(ConfigError, match=r"mine\.yaml:\d+:\d+: .*--clock real"):
        check_clock(wanted.model_copy(update={"duration": 3_600.0}), written, REAL)


@pytest.mark.sockets
@pytest.mark.slow
async def test_a_stopped_run_sends_no_further_request(tmp_path: Path) -> None:
    wanted, _ = parse_scenario(TALK.replace("1s", "1h").replace("1ms", "300ms").replace("2/s", "20/s"), "talk.yaml")
    file = io.StringIO()
    run = LiveSimulation(wanted, Recorder(file), REAL, tmp_path, ceremonies={}, settle_s=5.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(run.play())
        while '"submitted"' not in file.getvalue():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    kinds = [json.loads(line)["kind"] for line in file.getvalue().splitlines()]
    assert "submitted" not in kinds[kinds.index("stopped") :]
    assert kinds[-1] == "end"


@pytest.mark.sockets
async def test_an_unreachable_agent_is_reported_before_any_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetsim.sim.live.CARDS_S", 0.5)
    text = "name: gone\nduration: 1s\nfleet: {ref: {url: 'http://127.0.0.1:9', skills: {echo: {}}}}\n"
    with pytest.raises(Unreachable, match="ref"):
        await played(text, tmp_path, "real")


def test_a_real_agent_has_no_virtual_time_and_behaves_as_it_does() -> None:
    real = "name: a\nduration: 1s\nfleet:\n  ref:\n    url: http://127.0.0.1:9\n    skills: {echo: {}}\n"
    assert problems(real, "virtual").startswith("mine.yaml:5:5: ")
    with pytest.raises(ConfigError, match=r"(?s)mine.yaml:6:.*skills"):
        parse_scenario(real.replace("{echo: {}}", "{echo: {takes: 5s}}"), "mine.yaml")
    with pytest.raises(ConfigError, match="replicas"):
        parse_scenario(real + "    replicas: 2\n", "mine.yaml")
    with pytest.raises(ConfigError, match="apiKeyEnv"):
        parse_scenario(SMALL.replace("    streaming: false", "    apiKeyEnv: KEY"), "mine.yaml")


def test_an_unset_key_is_reported_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REF_KEY", raising=False)
    text = (
        "name: a\nduration: 1s\nfleet:\n  ref:\n    url: http://h:9\n    apiKeyEnv: REF_KEY\n    skills: {echo: {}}\n"
    )
    assert "mine.yaml:6:16: the environment variable REF_KEY" in problems(text, "real")
    monkeypatch.setenv("REF_KEY", "s3cret")
    check_clock(*parse_scenario(text, "mine.yaml"), REAL)


@pytest.mark.parametrize("fault", ["agent-restart", "hub-restart", "hub-dies-writing", "disk-full"])
def test_trouble_that_real_time_cannot_have_is_refused_with_its_place(fault: str) -> None:
    text = f"{SMALL}weather:\n  - {{fault: {fault}}}\n"
    line = text.splitlines().index(f"  - {{fault: {fault}}}") + 1
    assert f"mine.yaml:{line}:" in problems(text, "x10")
    check_clock(*parse_scenario(text, "mine.yaml"), ClockRate.read("virtual"))
    assert "a mix draws" in problems(f"{SMALL}mix: {{scale: 1}}\n", "real")


def test_a_clock_is_virtual_real_or_a_multiple_of_real_time() -> None:
    assert [str(ClockRate.read(text)) for text in ("virtual", "real", "x1", "x60", "x2.5")] == [
        "virtual",
        "real",
        "real",
        "x60",
        "x2.5",
    ]
    for wrong in ("fast", "x0.5", "x", "60", "x1e3", "x100001"):
        with pytest.raises(ValueError, match="must be virtual"):
            ClockRate.read(wrong)


@pytest.mark.parametrize("worked", [False, True], ids=["stopped", "busy"])
async def test_a_clock_stops_while_the_process_cannot_run_and_not_while_it_works(
    worked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    monkeypatch.setattr("fleetsim.sim.clocks.process_time", lambda: loop.time() * worked)
    clock = RunClock(ClockRate.read("x60"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(clock.run())
        await asyncio.sleep(1.0)
        assert clock.now == pytest.approx(60.0)
        loop.hold_up(2.0)
        assert clock.now == pytest.approx(180.0 if worked else 63.0)  # no longer than until the next beat
        before, slept = loop.time(), group.create_task(clock.sleep(60.0))
        await asyncio.sleep(0.5)
        loop.hold_up(2.0)
        await slept
        assert loop.time() - before == pytest.approx(2.5 if worked else 2.95)
        running.cancel()


async def test_a_sleeper_on_a_paced_clock_wakes_when_it_is_set_and_not_before_the_run_begins() -> None:
    clock = RunClock(ClockRate.read("x1000"))
    paced = PacedClock(scenario().start, clock)
    async with asyncio.TaskGroup() as group:
        early = group.create_task(paced.sleep_until(scenario().start.replace(second=10)))
        await asyncio.sleep(0.03)
        assert not early.done()
        running = group.create_task(clock.run())
        await early
        assert clock.now >= 10.0
        far = group.create_task(paced.sleep_until(scenario().start.replace(year=2027)))
        await asyncio.sleep(0)
        paced.jump(3_600.0)
        await far
        assert clock.now < 3_600.0
        running.cancel()
    assert paced.now().hour >= 1
