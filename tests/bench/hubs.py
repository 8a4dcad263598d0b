"""Two hubs on one PostgreSQL beside one hub, as processes (``fleetsim up``) over real HTTP: ``make hubs``.

``rate``: durable outcomes a second of a hub on SQLite, of a hub on PostgreSQL, and of two hubs on PostgreSQL, in turns.
Each hub may use a share of one processor only (the CPU controller of Linux's control groups, so it needs root). So the
hubs are the limit also on a small machine, and the figures show it: the time of each process beside its share.

``open``: processor time of the hubs and of PostgreSQL for a task, from its request to the outcome by a webhook, beside
more and more tasks that stay open. The webhooks reach both hubs in turn, as behind a proxy. Fleets take turns, too.

Agents and clients are this process. ``--page`` writes the figures into docs/explanation/scale.md.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from tests.bench.cost import process_cpu_s
from tests.bench.sides import (
    ASKED_FOR_WEBHOOKS,
    CHUNK,
    IN_FLIGHT,
    JSON_HEAD,
    PUSHED,
    TEXT,
    artifact,
    asking_client,
    converse,
    in_flight,
    task,
)
from tests.ports import held_port
from tests.postgres import PASSWORD, Server
from tests.storms.hubs_rig import HubProcess, Line

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "scale.md"
AGENTS = 8
PERIOD_US = 5_000
"""In each of these the hub may use its share: short, so that it never waits long."""

GROUPS = Path("/sys/fs/cgroup")
READY_S = 60.0


class Share:
    """A control group whose processes together use at most a share of one processor."""

    def __init__(self, name: str, share: float) -> None:
        older = (GROUPS / "cpu").is_dir()
        self._folder = (GROUPS / "cpu" if older else GROUPS) / f"fleetsim-{os.getpid()}-{name}"
        self._folder.mkdir()
        quota = round(share * PERIOD_US)
        limits = {"cpu.max": f"{quota} {PERIOD_US}", "cpu.weight": "10000"}
        if older:
            limits = {"cpu.cfs_period_us": f"{PERIOD_US}", "cpu.cfs_quota_us": f"{quota}", "cpu.shares": "262144"}
        for name_of, value in limits.items():
            (self._folder / name_of).write_text(value)

    def hold(self, pid: int) -> None:
        for thread in Path(f"/proc/{pid}/task").iterdir():  # a real-time thread has no limit
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
        (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def periods(self) -> tuple[int, int]:
        """Periods in which it ran, and in which it was held back at the limit."""
        stat = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(stat["nr_periods"]), int(stat["nr_throttled"])

    def close(self) -> None:
        self._folder.rmdir()


@dataclass
class Fleet:
    """One or two hubs with one ledger."""

    name: str
    hubs: list[HubProcess]
    folder: Path
    shares: list[Share] = field(default_factory=list)

    @property
    def cpu_s(self) -> float:
        return sum(process_cpu_s(hub.pid) for hub in self.hubs)

    @property
    def headers(self) -> dict[str, str]:
        return {**JSON_HEAD, "x-api-key": (self.hubs[0].folder / self.hubs[0].name / "api-key").read_text().strip()}


@asynccontextmanager
async def fleet(
    name: str,
    hubs: int,
    names: Mapping[str, str],
    agents: str,
    runtime: Runtime,
    *,
    server: Server | None,
    share: float = 0,
) -> AsyncIterator[Fleet]:
    """Running hubs: ``server`` has their ledger, or each has a file; ``share`` 0 means no limit.

    ``names`` are the agents, each with its path below ``agents``.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"hubs-{name}-"))
    rows = [f"  - {{name: {one}, url: '{agents}/{place}', rpcUrl: '{agents}/{place}'}}" for one, place in names.items()]
    settings = f"fleet: {{poll_interval_s: 3600, calls_per_agent_max: 16, base_url: 'http://{name}.test'}}"
    (folder / "agents.yaml").write_text("\n".join([settings, "agents:", *rows]) + "\n")
    env = {"FLEETSIM_LEDGER_KEY": base64.b64encode(b"k" * 32).decode(), "PGPASSWORD": PASSWORD}
    if server is not None:
        env["FLEETSIM_LEDGER"] = server.url(name, password=None)
    with ExitStack() as stack:
        made = Fleet(name, [], folder)
        stack.callback(shutil.rmtree, folder)
        for number in range(hubs):
            hub = HubProcess(f"hub-{number}", folder, stack.enter_context(held_port()), Line(0), env)
            if share:
                made.shares.append(Share(f"{name}-{number}", share))
                stack.callback(made.shares[-1].close)
            stack.callback(hub.close)
            made.hubs.append(hub)
            hub.start()
            deadline = time.monotonic() + READY_S
            while (reply := await hub.ready(runtime))[0] != 200:
                if hub.exit_code is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{hub.name} did not start: {reply}\n{hub.log.read_text()[-2_000:]}")
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # it reads the cards
        for hub, limit in zip(made.hubs, made.shares, strict=False):
            limit.hold(hub.pid)
        yield made


async def submit(session: aiohttp.ClientSession, made: Fleet, names: Sequence[str], units: int) -> list[str]:
    """Submit ``units`` requests to each hub, and return their ids."""
    headers, ids = made.headers, list[str]()

    async def one(hub: HubProcess, number: int) -> None:
        body = json.dumps({"text": TEXT, "targets": [names[number % len(names)]]}).encode()
        async with session.post(f"{hub.url}/api/requests", data=body, headers=headers) as reply:
            assert reply.status == 202, await reply.text()
            ids.extend((await reply.json())["data"]["correlationIds"])

    def at(hub: HubProcess) -> asyncio.Task[None]:
        return asyncio.create_task(in_flight(units, lambda number: one(hub, number)))

    await asyncio.gather(*map(at, made.hubs))
    return ids


async def outcome(session: aiohttp.ClientSession, made: Fleet, correlation_id: str, number: int) -> None:
    """Wait until the outcome of a request is on record, at one of the hubs."""
    url = f"{made.hubs[number % len(made.hubs)].url}/api/tasks/{correlation_id}?wait=60"
    async with session.get(url, headers=made.headers) as reply:
        row = (await reply.json())["data"]
    assert row["kind"] == "completed", row


# ------------------------------------------------------------------ outcomes a second


@dataclass
class Turns:
    """Figures of each turn of one fleet; shares are of one processor."""

    a_second: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    """Processor time of the hubs for an outcome."""
    hub_share: list[float] = field(default_factory=list)
    server_share: list[float] = field(default_factory=list)
    here_share: list[float] = field(default_factory=list)
    held_back: list[float] = field(default_factory=list)
    """The part of its periods in which a hub came to its limit."""


async def rate(rounds: int, units: int, share: float) -> dict[str, Turns]:
    server = Server()
    server.start()
    names = {f"answered-{number}": f"answered/{number}" for number in range(AGENTS)}
    turns = {name: Turns() for name in ("file", "one", "two")}
    try:
        async with AsyncExitStack() as stack:
            listener = await asyncio.start_server(converse, "127.0.0.1", 0, limit=2**20, backlog=1_000)
            await stack.enter_async_context(listener)
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            runtime = await stack.enter_async_context(running_runtime())
            session = await stack.enter_async_context(asking_client())
            fleets = [
                await stack.enter_async_context(
                    fleet(
                        name, 2 if name == "two" else 1, names, url, runtime,
                        server=None if name == "file" else server, share=share,
                    )
                )
                for name in turns
            ]  # fmt: skip
            for number in range(rounds + 1):
                for made in fleets if number % 2 else reversed(fleets):
                    await _turn(session, made, [*names], units, server, turns[made.name] if number else Turns())
    finally:
        server.close()
    return turns


async def _turn(
    session: aiohttp.ClientSession, made: Fleet, names: Sequence[str], units: int, server: Server, turns: Turns
) -> None:
    began, hubs_s, server_s, here_s = time.perf_counter(), made.cpu_s, server_cpu_s(server), time.process_time()
    periods = [share.periods for share in made.shares]
    ids = await submit(session, made, names, units)
    last = ids[-IN_FLIGHT * 2 :]  # an agent gets its requests in their order: the others have ended before
    await asyncio.gather(*(outcome(session, made, one, number) for number, one in enumerate(last)))
    took_s = time.perf_counter() - began
    hubs_s, server_s, here_s = made.cpu_s - hubs_s, server_cpu_s(server) - server_s, time.process_time() - here_s
    after = [share.periods for share in made.shares]
    turns.a_second.append(len(ids) / took_s)
    turns.ms.append(1_000 * hubs_s / len(ids))
    turns.hub_share.append(hubs_s / took_s / len(made.hubs))
    turns.server_share.append(server_s / took_s)
    turns.here_share.append(here_s / took_s)
    turns.held_back += [(b[1] - a[1]) / max(1, b[0] - a[0]) for a, b in zip(periods, after, strict=True)]


def server_cpu_s(server: Server) -> float:
    """Processor time of PostgreSQL, that of ended connections included."""
    first, *others = server.processes
    words = Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()
    ended = (int(words[13]) + int(words[14])) / os.sysconf("SC_CLK_TCK")
    return ended + sum(map(process_cpu_s, [first, *others]))


# ------------------------------------------------------------------ the cost of a task beside open ones


async def tell(session: aiohttp.ClientSession, made: Fleet, task_id: str, number: int, state: str) -> None:
    """Send a webhook of a task to one of the hubs, whichever has the task."""
    push = ASKED_FOR_WEBHOOKS[task_id]
    if state == "completed":
        del ASKED_FOR_WEBHOOKS[task_id]
    headers = {**JSON_HEAD, "x-a2a-notification-token": push["token"]}
    url = f"{made.hubs[number % len(made.hubs)].url}{urlsplit(push['url']).path}"
    body = json.dumps(task(state, task_id, artifacts=[artifact(CHUNK)])).encode()
    while True:
        async with session.post(url, data=body, headers=headers) as reply:
            if reply.ok:
                return
            assert reply.status in {429, 503}, await reply.text()
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))


async def begin(session: aiohttp.ClientSession, made: Fleet, units: int) -> dict[str, str]:
    """Let ``units`` tasks begin, whose agents report it by webhook. Returns the task ids with their request's id."""
    known = set(ASKED_FOR_WEBHOOKS)
    await submit(session, made, PUSHED, units // len(made.hubs))
    while len(ASKED_FOR_WEBHOOKS) < len(known) + units:  # noqa: ASYNC110 - the hubs have their own time
        await asyncio.sleep(0.02)
    tasks = [one for one in ASKED_FOR_WEBHOOKS if one not in known]
    await in_flight(units, lambda number: tell(session, made, tasks[number], number, "working"))
    return {one: ASKED_FOR_WEBHOOKS[one]["url"].rpartition("/")[2] for one in tasks}


async def beside_open(sizes: Sequence[int], rounds: int, units: int) -> dict[int, list[tuple[float, float]]]:
    """CPU-ms of the hubs and of PostgreSQL for a task in each round, by the number of tasks that are open meanwhile."""
    server = Server()
    server.start()
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    try:
        async with AsyncExitStack() as stack:
            listener = await asyncio.start_server(converse, "127.0.0.1", 0, limit=2**20, backlog=1_000)
            await stack.enter_async_context(listener)
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            runtime = await stack.enter_async_context(running_runtime())
            session = await stack.enter_async_context(asking_client())
            fleets, tasks = dict[int, Fleet](), dict[int, dict[str, str]]()
            names = dict(zip(PUSHED, PUSHED, strict=True))
            for size in sizes:
                fleets[size] = made = await stack.enter_async_context(
                    fleet(f"open{size}", 2, names, url, runtime, server=server)
                )
                tasks[size] = await begin(session, made, size)
                print(f"{size:,} tasks are open", flush=True)
            for number in range(rounds + 1):
                for size, made in fleets.items():
                    hubs_s, server_s = made.cpu_s, server_cpu_s(server)
                    await one_round(session, made, tasks[size], units)
                    used = (1_000 * (made.cpu_s - hubs_s) / units, 1_000 * (server_cpu_s(server) - server_s) / units)
                    if number:  # the first is to get warm
                        found[size].append(used)
                    print(f"  {size:>7,} open: hubs {used[0]:.2f}, PostgreSQL {used[1]:.2f} CPU-ms", flush=True)
    finally:
        server.close()
    return found


async def one_round(session: aiohttp.ClientSession, made: Fleet, tasks: dict[str, str], units: int) -> None:
    """Begin ``units`` tasks, and end as many of the oldest."""
    tasks |= await begin(session, made, units)
    oldest = list(itertools.islice(tasks.items(), units))
    await in_flight(units, lambda number: tell(session, made, oldest[number][0], number, "completed"))
    await asyncio.gather(*(outcome(session, made, cid, n) for n, (_, cid) in enumerate(oldest[-IN_FLIGHT:])))
    for task_id, _ in oldest:
        del tasks[task_id]


# ------------------------------------------------------------------ figures


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def write_page(part: str, table: str) -> None:
    begin_, end = f"<!-- {part}: generated by make hubs -->", "<!-- end -->"
    before, _, rest = PAGE.read_text().partition(begin_)
    PAGE.write_text(f"{before}{begin_}\n\n{table}\n\n{end}{rest.partition(end)[2]}")


def rate_table(turns: Mapping[str, Turns], share: float) -> str:
    titles = {"file": "one hub on SQLite", "one": "one hub on PostgreSQL", "two": "two hubs on PostgreSQL"}
    lines = [
        "| Fleet | outcomes a second | in times of one hub on PostgreSQL | CPU-ms of the hubs for an outcome |"
        " processor: each hub, PostgreSQL, agents and clients | periods at the limit |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for name, one in turns.items():
        times = middle(a / b for a, b in zip(one.a_second, turns["one"].a_second, strict=True))
        shares = [f"{100 * middle(part):.0f} %" for part in (one.hub_share, one.server_share, one.here_share)]
        lines.append(
            f"| {titles[name]} | {middle(one.a_second):.0f} | {times:.2f} | {middle(one.ms):.2f} |"
            f" {', '.join(shares)} | {100 * middle(one.held_back):.0f} % |"
        )
    facts = f"{os.cpu_count()} processors, Python {platform.python_version()}, {len(turns['one'].ms)} rounds in turn"
    return "\n".join([*lines, "", f"Each hub may use {100 * share:.0f} % of a processor. Medians; {facts}."])


def open_table(found: Mapping[int, Sequence[tuple[float, float]]]) -> str:
    smallest = next(iter(found.values()))
    lines = ["| Open tasks | CPU-ms of the hubs for a task | CPU-ms of PostgreSQL | both, in times of the first row |"]
    lines.append("|---:|---:|---:|---:|")
    for size, used in found.items():
        hubs, server = (middle(one[part] for one in used) for part in (0, 1))
        times = middle(sum(a) / sum(b) for a, b in zip(used, smallest, strict=True))
        lines.append(f"| {size:,} | {hubs:.2f} | {server:.2f} | {times:.2f} |")
    facts = f"{os.cpu_count()} processors, Python {platform.python_version()}, {len(smallest)} rounds in turn"
    return "\n".join([*lines, "", f"Medians; {facts}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("rate", "open"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.25, help="of one processor, for each hub of rate")
    parser.add_argument("--units", type=int, default=1_000, help="requests in a turn, for each hub of rate")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 5_000, 20_000], help="open tasks")
    parser.add_argument("--page", action="store_true", help="write the figures into docs/explanation/scale.md")
    options = parser.parse_args()
    if options.part == "rate":
        table = rate_table(asyncio.run(rate(options.rounds, options.units, options.share)), options.share)
    else:
        table = open_table(asyncio.run(beside_open(options.sizes, options.rounds, options.units)))
    print(table)
    if options.page:
        write_page(options.part, table)


if __name__ == "__main__":
    main()
