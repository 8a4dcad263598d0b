"""A fleet of processes works, a twin is fitted to it, and the twin is held to what the fleet does next.

``python -m tests.bench.twin.trial --minutes 4 --rate 5``: five agents, two of them on released a2a-sdks, work that long
for a hub. A twin is fitted to its ledger, and compared with the next time of the same length. Then quinn becomes twice
as slow, in the twin and in the fleet, and both are compared. Exits 1 if a figure differs by more than chance allows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from fleetsim.events.request import OutcomeDecided, QuestionAsked
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import Answer, SkillRequest
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers
from fleetsim.sim.comparison import Comparison, compare, rows, verdict_of
from fleetsim.sim.live import played
from fleetsim.sim.observed import Observed, of_ledger, of_recording
from fleetsim.sim.scenario import Scenario, parse_scenario
from fleetsim.sim.troubles import Trouble
from fleetsim.sim.twin import twin_of, twin_text
from tests.bench.twin.pace import AGENTS, SKILL

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PEERS = ROOT / "tests" / "interop" / "peers"
ANSWER_P50_S = 0.5
SETTLE_S = 60.0
WARM_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came out: the twin's fit on what it was fitted to, on what came next, and the prediction. ``itself`` is what
    came before held to what came next, as the twin is: no twin can know more."""

    fitted: Comparison
    next: Comparison
    itself: Comparison
    predicted: Comparison
    twin: str


@asynccontextmanager
async def agent_process(name: str, python: Mapping[str, str], *, seed: int, slower: float = 1.0) -> AsyncIterator[str]:
    """Run an agent; ``python`` has the interpreter of each SDK. Yields its address."""
    sdk = AGENTS[name].sdk
    env, words = dict(os.environ), [sys.executable, "-m", "tests.bench.twin.own_agent"]
    if sdk:
        words = [python[sdk], str(HERE / "sdk_agent.py")]
        env["PYTHONPATH"] = os.pathsep.join(map(str, (PEERS / sdk, PEERS / "shared", HERE)))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, name, str(seed), str(slower), stdin=pipe, stdout=pipe, cwd=ROOT, env=env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = str(json.loads(await process.stdout.readline())["url"])
        yield f"{url}/a2a" if sdk else url
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(5.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _ask(hub: Hub, names: list[str], rng: Random, seconds: float, rate: float) -> None:
    """Send requests at random moments, whatever the earlier ones do, and then wait for their ends."""
    loop = asyncio.get_running_loop()
    due, end, asked = loop.time(), loop.time() + seconds, set()
    async with hub.events.subscribe(keep_max=1_000_000, kinds=(OutcomeDecided,)) as ended:
        while (due := due + rng.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            name = rng.choice(names)
            cid = hub.runtime.ids.new()
            asked |= set(
                await hub.submit(SkillRequest(correlation_id=cid, text="please work", skill=SKILL, targets=(name,)))
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while asked:
                    asked -= {event.correlation_id for event in await ended.next_batch()}


async def _people(hub: Hub, workers: Workers, rng: Random) -> None:
    async def answer(question_id: str) -> None:
        await asyncio.sleep(rng.lognormvariate(0.0, 0.5) * ANSWER_P50_S)
        with suppress(FleetsimError):
            await hub.tracker.answer(Answer(question_id=question_id, text="yes"))

    async with hub.events.subscribe(kinds=(QuestionAsked,)) as asked:
        async for batch in asked:
            for event in batch:
                if isinstance(event, QuestionAsked):
                    workers.start(answer(event.question_id), name="answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Which agents take part, on which interpreters, and how they are asked."""

    names: list[str]
    python: Mapping[str, str]
    seconds: float
    rate: float
    seed: int = 1


async def _period(fleet: Fleet, path: Path, number: int, *, slower: Mapping[str, float]) -> datetime:
    """A hub and fresh agents, for so long; returns since when requests count."""
    rng = Random(f"{fleet.seed}/{number}")
    async with AsyncExitStack() as stack:
        entries = []
        for name in fleet.names:
            made = agent_process(name, fleet.python, seed=number, slower=slower.get(name, 1.0))
            entries.append(AgentEntry(name=name, url=await stack.enter_async_context(made)))
        runtime = await stack.enter_async_context(running_runtime())
        ledger = await stack.enter_async_context(open_ledger(path, clock=runtime.clock))
        config = FleetConfig(agents=tuple(entries), settings=FleetSettings())
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger))
        workers = await stack.enter_async_context(Workers("people"))
        workers.start(_people(hub, workers, rng), name="people")
        while any(view.card is None for view in hub.broker.views()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await _ask(hub, fleet.names, rng, min(WARM_S, fleet.seconds / 4), fleet.rate)
        since = runtime.clock.now()
        await _ask(hub, fleet.names, rng, fleet.seconds, fleet.rate)
        return since


def _played(scenario: Scenario, folder: Path) -> Observed:
    record = folder / "run.jsonl"
    played(scenario, {}, source="twin.yaml", record=record)
    return of_recording(record)


def trial(fleet: Fleet, folder: Path, tell: Callable[[str], object] = print) -> Trial:
    """All of it, with the ledger in ``folder``. Raises AssertionError where a period brought nothing."""

    def period(number: int, **slower: float) -> Observed:
        path = folder / "ledger.db"
        since = asyncio.run(_period(fleet, path, number, slower=slower))
        seen = asyncio.run(of_ledger(path, since=since))
        assert seen.outcomes
        tell(f"period {number}: {len(seen.outcomes):,} requests in {seen.seconds:.0f} s")
        return seen

    first = period(1)
    twin = twin_of(first, ceremonies=(), poll_interval_s=FleetSettings().poll_interval_s)
    text = twin_text(twin, first, name="twin", ceremonies=None, settings={})
    scenario, _ = parse_scenario(text, "twin.yaml")
    simulated = _played(scenario, folder)
    second = period(2)
    slow = scenario.model_copy(update={"weather": [Trouble(fault="slower", agent="quinn", amount=2.0)]})
    prediction = _played(slow, folder)
    third = period(3, quinn=2.0)
    return Trial(
        fitted=compare(first, simulated),
        next=compare(second, simulated),
        itself=compare(second, first),
        predicted=compare(third, prediction),
        twin=text,
    )


def _table(comparison: Comparison) -> Iterator[str]:
    heads = ("agent/skill", "figure", "tasks", "recorded", "simulated", "error", "chance (95 %)", "fit")
    lines = [heads, *rows(comparison, fit=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    told = [verdict_of(d) for d in comparison.differences]
    yield f"{told.count('within')} of {len(told)} within, {told.count('near')} near (15 %), {told.count('off')} off"


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--minutes", type=float, default=4.0, help="how long each of the three periods is")
    words.add_argument("--rate", type=float, default=5.0, help="requests a second, of all agents together")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--own", action="store_true", help="without the agents on released SDKs")
    given = words.parse_args()
    python = {} if given.own else _interpreters()
    names = [name for name, pace in AGENTS.items() if not pace.sdk or pace.sdk in python]
    tune_gc()  # as ``fleetsim up`` does: a look through all that a hub holds is half a second for nobody
    fleet = Fleet(names=names, python=python, seconds=given.minutes * 60, rate=given.rate, seed=given.seed)
    with tempfile.TemporaryDirectory() as folder:
        done = trial(fleet, Path(folder))
    print(f"\n{done.twin}")
    for title, comparison in (
        ("the twin on what it was fitted to", done.fitted),
        ("the twin on what came next", done.next),
        ("the first period itself on what came next: no twin knows more", done.itself),
        ("quinn twice as slow: predicted, and really done", done.predicted),
    ):
        print(f"\n{title}")
        print("\n".join(_table(comparison)))
    off = [d for c in (done.next, done.predicted) for d in c.differences if verdict_of(d) == "off"]
    for d in off:
        chance = "more than chance brings" if d.significant else "as chance brings among so few"
        print(f"off: {d.agent}'s {d.measure.name}, {chance}")
    return int(any(d.significant for d in off))


def _interpreters() -> dict[str, str]:
    """Of each SDK, from the environments of ``make interop``."""
    sys.path.insert(0, str(ROOT / "tests" / "interop"))
    from driver.envs import Env, Kind, python, ready  # type: ignore[import-not-found]

    made = {}
    for name in sorted({pace.sdk for pace in AGENTS.values()} - {""}):
        env = Env(name=name, kind=Kind.VENV)
        made[name] = python(env, ready(env))
    return made


if __name__ == "__main__":
    sys.exit(main())
