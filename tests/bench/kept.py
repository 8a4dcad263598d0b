"""Sides without a caller: the hub's polls, its ledger and its health.

Polls of many tasks that never end, through a transport without sockets; durable steps of the ledger; health over a
day of outcomes. Beside each stands its floor, or the same work by others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import random
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace as changed
from datetime import timedelta
from pathlib import Path

import aiosqlite
from msgspec.structs import replace

from fleetsim.client.follow import Following, OutgoingMessage
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.ledger.bodies import encode
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.call import Call
from fleetsim.model.card import AgentCard, Capabilities
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import Artifact, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Outcome, SkillRequest
from fleetsim.request.records import Phase
from fleetsim.runtime.body import Room
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.exchange import exchange
from fleetsim.runtime.ports import IncomingResponse, Request, Runtime
from fleetsim.runtime.ports import Reply as HttpReply
from fleetsim.runtime.real import running_runtime
from fleetsim.wire.choice import Choice
from fleetsim.wire.dialect import Reply
from tests.bench.sides import TEXT, Around, Side, in_flight
from tests.ledger import ledgers as make

TRACKS, POLLS_PER_S = 10_000, 1_000
OUTCOMES = 100_000
TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    seq INTEGER PRIMARY KEY, correlation_id TEXT NOT NULL UNIQUE, phase TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS requests_open ON requests (seq) WHERE phase <> 'closed';
CREATE TABLE IF NOT EXISTS outcomes (
    seq INTEGER PRIMARY KEY, correlation_id TEXT NOT NULL UNIQUE, ended_at INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS outcomes_by_end ON outcomes (ended_at, seq);
"""
"""The tables of the floor and the peer: which requests are open, which outcomes are recent."""


# ------------------------------------------------------------------ polls

AGENTS = 50


class EndlessTransport:
    """Every agent accepts every task and never ends it. ``polls`` counts the polls."""

    def __init__(self) -> None:
        self.polls = 0
        self.sent = 0

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        body = json.dumps(self._response(json.loads(request.body or b"{}"))).encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        yield IncomingResponse(status=200, headers={"content-type": "application/json"}, chunks=chunks())

    def _response(self, call: dict[str, object]) -> dict[str, object]:
        if "method" not in call:
            return {"name": "endless", "url": "http://127.0.0.1:1/a2a", "protocolVersion": "0.3.0", "skills": []}
        params = call["params"]
        assert isinstance(params, dict)
        task = params.get("id")
        self.polls += task is not None
        self.sent += task is None
        task = task or f"task-{self.sent:08d}"
        result = {"kind": "task", "id": task, "contextId": f"context-of-{task}", "status": {"state": "working"}}
        return {"jsonrpc": "2.0", "id": call["id"], "result": result}

    async def exchange(self, request: Request, room: Room | None = None) -> HttpReply:
        return await exchange(self.open, request, room)

    def guarded(self, policy: object) -> EndlessTransport:
        return self

    def through(self, way: object) -> EndlessTransport:
        return self

    async def aclose(self) -> None:
        return


@asynccontextmanager
async def polling_hub(tracks: int, polls_per_s: float) -> AsyncIterator[EndlessTransport]:
    """A hub with ``tracks`` open tasks, polled ``polls_per_s`` times a second once all of them are old."""
    skill = (SkillEntry(name="endless"),)
    entries = tuple(
        AgentEntry(name=f"agent-{n}", url=f"http://127.0.0.1:{n}/a2a", skills=skill, dialect="0.3")
        for n in range(1, AGENTS + 1)
    )
    config = FleetConfig(agents=entries, settings=FleetSettings(poll_interval_s=tracks / polls_per_s))
    transport = EndlessTransport()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polls-")))
        real = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=real.clock))
        runtime = changed(real, transport=transport)  # type: ignore[arg-type]
        tune_gc()
        hub = await stack.enter_async_context(Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids)))
        for n in range(tracks):
            agent = entries[n % AGENTS].name
            await hub.submit(SkillRequest(correlation_id=f"{n:036d}", text=TEXT, skill="endless", targets=(agent,)))
        await asyncio.sleep(3 * config.settings.poll_interval_s + 10)
        yield transport


@asynccontextmanager
async def polls(_: str, around: Around) -> AsyncIterator[Side]:
    """A hub that follows ``TRACKS`` tasks, of which ``POLLS_PER_S`` are polled each second."""
    async with polling_hub(around.tracked or TRACKS, POLLS_PER_S) as transport:

        async def finish(units: int) -> None:
            last = transport.polls + units
            while transport.polls < last:  # noqa: ASYNC110 - an event per poll would cost
                await asyncio.sleep(0.05)

        yield Side(finish)


@asynccontextmanager
async def loop_timers(_: str, __: Around) -> AsyncIterator[Side]:
    """A timer of the event loop for each poll, and nothing else: up to ``TRACKS`` at a time."""
    loop, left, done, rng = asyncio.get_running_loop(), 0, asyncio.Event(), random.Random(1)

    def due(name: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def finish(units: int) -> None:
        nonlocal left
        left, now = units, loop.time()
        done.clear()
        timers = {str(n): loop.call_at(now + 1 + rng.random() * units / 10_000, due, str(n)) for n in range(units)}
        await done.wait()
        assert len(timers) == units

    yield Side(finish)


# ------------------------------------------------------------------ durable steps

Steps = Callable[[str], tuple[Callable[[], Awaitable[object]], ...]]


def in_steps(steps: Steps) -> Side:
    """Requests in three steps each, many at a time, every step awaited until it is durable. What is recorded is made
    beforehand, for the turn after this one: recording is measured, not making."""
    names = (f"{number:036d}" for number in itertools.count())
    made: list[tuple[Callable[[], Awaitable[object]], ...]] = []

    async def make_ready(units: int) -> None:
        made.extend(map(steps, itertools.islice(names, units // 3)))

    async def one(_: int) -> None:
        for step in made.pop() if made else steps(next(names)):
            await step()

    return Side(lambda units: in_flight(units // 3, one), check=make_ready)


@asynccontextmanager
async def steps(_: str, __: Around) -> AsyncIterator[Side]:
    """Our ledger, its collector of cycles as a hub's."""
    tune_gc()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        runtime = await stack.enter_async_context(running_runtime())
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=runtime.clock))

        def steps(name: str) -> tuple[Callable[[], Awaitable[object]], ...]:
            record, done = make.record(name, text=TEXT), make.outcome(name, text=TEXT)
            bound = replace(record, phase=Phase.ACCEPTED, task=make.task(TEXT))
            return (lambda: ledger.accept([record]), lambda: ledger.update(bound), lambda: ledger.close(done))

        yield in_steps(steps)


@asynccontextmanager
async def aiosqlite_steps(_: str, __: Around) -> AsyncIterator[Side]:
    """aiosqlite with one statement at a time; no sums, no chain, no witness."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        base = await stack.enter_async_context(aiosqlite.connect(folder / "theirs.db", isolation_level=None))
        await base.execute("PRAGMA journal_mode = WAL")
        await base.execute("PRAGMA synchronous = FULL")
        await base.executescript(TABLES)

        def steps(name: str) -> tuple[Callable[[], Awaitable[object]], ...]:
            return tuple(lambda s=s: base.execute(*s()) for s in written(name))

        yield in_steps(steps)


@asynccontextmanager
async def grouped_steps(_: str, __: Around) -> AsyncIterator[Side]:
    """A thread that commits whatever has gathered, by hand; no sums, no chain, no witness."""
    loop, jobs = (
        asyncio.get_running_loop(),
        queue.SimpleQueue[tuple[tuple[str, tuple[str, ...]], asyncio.Future[None]]](),
    )
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:

        def write() -> None:
            base = sqlite3.connect(Path(folder) / "grouped.db", isolation_level=None)
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.executescript(TABLES)
            while True:
                group = [jobs.get()]
                with suppress(queue.Empty):
                    while len(group) < 256:
                        group.append(jobs.get_nowait())
                base.execute("BEGIN")
                for statement, _ in group:
                    base.execute(*statement)
                base.execute("COMMIT")
                loop.call_soon_threadsafe(told, [done for _, done in group])

        def told(done: list[asyncio.Future[None]]) -> None:
            for future in done:
                future.set_result(None)

        def submit(statement: tuple[str, tuple[str, ...]]) -> asyncio.Future[None]:
            done: asyncio.Future[None] = loop.create_future()
            jobs.put((statement, done))
            return done

        threading.Thread(target=write, daemon=True).start()
        yield in_steps(lambda name: tuple(lambda s=s: submit(s()) for s in written(name)))


def written(name: str) -> tuple[Callable[[], tuple[str, tuple[str, ...]]], ...]:
    """The three steps as statements, of values that are encoded as ours are, when they are asked for."""
    record, done = make.record(name, text=TEXT), make.outcome(name, text=TEXT)
    bound = replace(record, phase=Phase.ACCEPTED, task=make.task(TEXT))
    first = "INSERT INTO requests (correlation_id, phase, body) VALUES (?, 'intent', ?)"
    second = "UPDATE requests SET body = ?, phase = 'accepted' WHERE correlation_id = ?"
    third = "INSERT INTO outcomes (correlation_id, ended_at, body) VALUES (?, 0, ?)"
    return (
        lambda: (first, (name, encode(record))),
        lambda: (second, (encode(bound), name)),
        lambda: (third, (name, encode(done))),
    )


# ------------------------------------------------------------------ health


def day(count: int) -> Iterator[Outcome]:
    """Outcomes of ten agents, as they end over a day."""
    rng, base = random.Random(1), make.outcome("x", text="done")
    for n in range(count):
        ended = base.ended_at + timedelta(seconds=n * 80_000 / OUTCOMES)
        yield replace(
            base, correlation_id=f"{n:036d}", agent=f"agent-{n % 10}", ended_at=ended,
            duration_ms=int(rng.lognormvariate(7, 1)), agent_ms=None,
        )  # fmt: skip


@asynccontextmanager
async def health_folds(_: str, __: Around) -> AsyncIterator[Side]:
    """Outcomes taken into a day of ``OUTCOMES``."""
    health, outcomes = FleetHealth(), day(2 * OUTCOMES)
    for outcome in itertools.islice(outcomes, OUTCOMES):
        health.fold(outcome)
    ready: list[Outcome] = list(outcomes)
    ready.reverse()

    async def finish(units: int) -> None:
        for _ in range(units):
            health.fold(ready.pop())

    yield Side(finish)


@asynccontextmanager
async def health_reads(_: str, __: Around) -> AsyncIterator[Side]:
    """Fleet health with ``OUTCOMES`` in its day."""
    health, outcomes = FleetHealth(), list(day(OUTCOMES))
    for outcome in outcomes:
        health.fold(outcome)
    now = outcomes[-1].ended_at

    async def finish(units: int) -> None:
        for _ in range(units):
            assert health.snapshot(now).total_outcomes == OUTCOMES

    yield Side(finish)


@asynccontextmanager
async def counting(_: str, __: Around) -> AsyncIterator[Side]:
    """A dictionary that counts: the least cost of folding an outcome."""
    counts: dict[str, int] = {}

    async def finish(units: int) -> None:
        for n in range(units):
            name = f"agent-{n % 10}"
            counts[name] = counts.get(name, 0) + 1

    yield Side(finish)


# ------------------------------------------------------------------ a followed stream

SAID = [
    ArtifactUpdate(
        task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=(TextPart(text="word "),)), append=n > 0
    )
    for n in range(500)
]
COMPLETED = TaskStatus(state=TaskState.COMPLETED)
END = Snapshot(task=fold(fold(None, SAID[0]), StatusUpdate(task_id="t", context_id="c", status=COMPLETED)))


class StreamInMemory:
    """The part of ``AgentClient`` that following needs, with events that are already decoded."""

    where, spoken, doubts = "memory", "", ()

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def choice(self) -> Choice:
        return Choice(dialect_name="1.0", url="")

    async def card_if_any(self, timeout_s: float | None = None) -> AgentCard:
        return AgentCard(name="memory", capabilities=Capabilities(streaming=True))

    async def call_raw(self, call: Call, **_: object) -> tuple[Reply, None]:
        return END.task, None

    @asynccontextmanager
    async def events(self, call: Call, **_: object) -> AsyncIterator[AsyncIterator[TaskEvent]]:
        async def said() -> AsyncIterator[TaskEvent]:
            for event in (*SAID, END):
                await asyncio.sleep(0)  # each event arrives by itself
                yield event

        yield said()


@asynccontextmanager
async def follows(_: str, __: Around) -> AsyncIterator[Side]:
    """A streamed request, followed to its end. A unit is an event."""
    async with running_runtime() as runtime:

        async def finish(units: int) -> None:
            for _ in range(units // len(SAID)):
                outgoing = OutgoingMessage(text=TEXT)
                done = await Following(StreamInMemory(runtime), outgoing, streamed=True, timeout_s=60).end()
                assert done.done

        yield Side(finish)


@asynccontextmanager
async def folds(_: str, __: Around) -> AsyncIterator[Side]:
    """The same events, folded."""

    async def finish(units: int) -> None:
        for _ in range(units // len(SAID)):
            task: Task | None = None
            for event in (*SAID, END):
                await asyncio.sleep(0)
                task = fold(task, event)

    yield Side(finish)


KEPT_SIDES = {
    side.__name__: side
    for side in (
        follows, folds, polls, loop_timers, steps, aiosqlite_steps, grouped_steps, health_folds, health_reads, counting,
    )
}  # fmt: skip
