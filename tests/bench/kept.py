"""The sides that nobody calls: what the hub keeps of its work, and looks at from time to time.

Polls of many tasks that never end, through a transport without sockets; durable steps of the ledger; health over a
day of outcomes. Beside them what each costs at least, or as others do it.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import random
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import aiosqlite
from msgspec.structs import replace

from fleetsim.client.follow import Following, OutgoingMessage
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.ledger.bodies import encode
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.call import Call
from fleetsim.model.card import AgentCard, Capabilities
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import Artifact, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Outcome
from fleetsim.request.records import Phase
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.wire.dialect import Reply
from tests.bench.polls import polling_hub
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


@asynccontextmanager
async def polls(_: str, __: Around) -> AsyncIterator[Side]:
    """A hub that follows ``TRACKS`` tasks, of which ``POLLS_PER_S`` are to be looked at each second."""
    async with polling_hub(TRACKS, POLLS_PER_S) as transport:

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
    """Requests in three steps each, many at a time, every step awaited until it is durable.

    What is recorded is made beforehand, for the turn after this one: recording is measured, not making.
    """
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
    """A dictionary that counts: what taking anything in costs at least."""
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
