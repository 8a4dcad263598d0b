"""A Dask cluster (``fleetsim[dask]``): an executor that plays seeds, and load that its workers play in parts.

A scheduler runs the code of everyone who reaches it, and its clients read pickles from it
(docs/howto/play-on-a-cluster.md). The functions with a name that begins with ``_on`` run on the workers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fleetsim import __version__
from fleetsim.health.figures import FigureCounters
from fleetsim.model.errors import ConfigError, FleetsimError, Unreachable
from fleetsim.model.spans import in_words
from fleetsim.model.text import one_line
from fleetsim.runtime.explain import combine
from fleetsim.runtime.real import SystemClock, UuidIds
from fleetsim.runtime.yaml import YamlDocument
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.invariants import InvariantResult
from fleetsim.sim.live import played, starts_now
from fleetsim.sim.load import LoadMetrics
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.report import ClusterWorker, SimulationReport
from fleetsim.sim.run import Run
from fleetsim.sim.scenario import Scenario
from fleetsim.sim.seeds import SeedRun
from fleetsim.sim.traffic import TrafficPart

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
CONNECT_S = 10.0
WORKERS_S = 10.0
_ADDRESS = re.compile(r"(?P<scheme>tcp|tls)://(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):(?P<port>\d{1,5})", re.ASCII)
DOCS = "docs/howto/play-on-a-cluster.md"
_ONE_RUN = Lock()
"""A run uses the log and the garbage collector of its process, so a process plays one at a time."""


class ClusterLost(FleetsimError):
    """The scheduler was lost, or the workers that played a seed were killed again and again."""


class ClusterClient(Executor):
    """A connection to a cluster. ``submit`` takes functions that return a SeedRun. Dask plays a seed again when its
    worker is lost before the client has the result.
    """

    def __init__(self, client: Client) -> None:
        self.dask = client
        self.version = __version__

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers that are there now, by address, as Dask describes them."""
        # scheduler_info() returns a copy that a timer of the client replaces by one without workers.
        seen = self.dask.sync(self.dask.scheduler.identity, n_workers=-1)["workers"]
        return cast("dict[str, dict[str, Any]]", seen)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return cast("Future[T]", _Handed(self.dask.submit(_on_worker, self.version, fn, *args, **kwargs, pure=False)))

    def notes(self) -> Iterator[str]:
        """Notes for the person before the first result."""
        workers = self.workers().values()
        threads = sum(worker["nthreads"] for worker in workers)
        if threads > len(workers):
            yield f"a worker plays one seed at a time, whatever its threads ({threads} here): --nthreads 1 --nworkers N"


class _Handed:
    """A future of Dask with the errors of this module."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def result(self) -> Any:
        return result_of(self._future)

    def cancel(self) -> None:
        self._future.cancel()


def result_of(future: Any, timeout_s: float | None = None) -> Any:
    """The result of a future of Dask. Raises TimeoutError, ClusterLost if the scheduler or the task was given up,
    ConfigError if a worker has no fleetsim, and the error of the task.
    """
    from distributed import CancelledError, KilledWorker

    try:
        return future.result(timeout_s)
    except CancelledError:
        raise ClusterLost("the scheduler was lost", hint="what it played until then is in the report") from None
    except KilledWorker as error:
        hint = "look at the worker's log: a worker that uses too much memory is killed"
        raise ClusterLost(f"a seed was given up: {one_line(str(error), 200)}", hint=hint) from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"a worker cannot import fleetsim: {error}", hint=_hint()) from None


@contextmanager
def cluster(address: str) -> Iterator[ClusterClient]:
    """Connects to a scheduler. At the end it forgets what it has not played.

    ``tls://`` takes the certificates from Dask's own settings. Raises ConfigError without distributed, for a wrong
    address or another fleetsim there, and Unreachable without a scheduler or workers.
    """
    place = _ADDRESS.fullmatch(address)
    if place is None:
        raise ConfigError("a cluster is tcp://HOST:PORT or tls://HOST:PORT", hint=f"see {DOCS}")
    try:
        from distributed import Client, Security
    except ImportError:
        raise ConfigError("Dask is not installed", hint="pip install 'fleetsim[dask]'") from None
    try:
        if place["scheme"] == "tls" and Security().get_connection_args("client")["ssl_context"] is None:
            raise ConfigError("tls:// needs certificates in Dask's settings", hint=f"which: {DOCS}")
        client = Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise Unreachable(
            f"no Dask scheduler can be reached: {one_line(str(error), 200)}",
            hint=f"start one: dask scheduler --host {place['host']} --port {place['port']}",
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            raise Unreachable(f"the scheduler at {address} has no workers", hint=f"dask worker {address}") from None
        for worker, there in sorted(client.run(version, "fleetsim", on_error="return").items()):
            if there != __version__:
                has = "no fleetsim" if isinstance(there, Exception) else f"fleetsim {there}"
                raise ConfigError(f"the worker {worker} has {has}, and this is fleetsim {__version__}", hint=_hint())
        yield ClusterClient(client)


def _hint() -> str:
    return f"on every worker: pip install 'fleetsim[dask]=={__version__}'"


@contextmanager
def playing(wanted: str) -> Iterator[str]:
    """The name of this worker, while this process plays one run and no other.

    Raises ConfigError for a client of another version: a worker may come after the versions were compared.
    """
    from distributed import get_worker

    name = str(get_worker().name)
    if wanted != __version__:
        raise ConfigError(f"the worker {name} has fleetsim {__version__}, and the caller {wanted}")
    with _ONE_RUN:
        yield name


def _on_worker(wanted: str, play: Callable[..., SeedRun], *args: Any) -> SeedRun:
    """Plays a seed on this worker."""
    with playing(wanted) as name:
        began = time.perf_counter()
        run = play(*args)
        return replace(run, worker=name, wall_s=time.perf_counter() - began)


# -- load ------------------------------------------------------------------------------------------------------------
# Each worker plays a part of a scenario's traffic, with a hub of its own. Every worker draws the whole traffic from the
# seed and sends each n-th request, so all parts together are the traffic of one machine, at the same moments. The parts
# begin at one moment, which each worker reads on its own clock.

LOOK_S = 0.5
LEAD_S = 1.0
"""How long before the common start the workers learn of it."""
READY_S = 300.0
RESULT_S = 60.0
"""A worker that is lost with its result never gives it."""
STOPS_MAX = 2
"""Ctrl-C ends the traffic, a second one the waiting for open requests; a third one leaves."""
CLOCK_LOOKS = 5


class PartProgress(NamedTuple):
    """How far a part is. ``ready``: its agents are known, and it waits for the common start."""

    ready: bool = False
    at_s: float = 0.0
    sent: int = 0
    ended: int = 0
    failed: int = 0


def check_parts(scenario: Scenario, written: YamlDocument) -> None:
    """Checks that a scenario can be played in parts. Raises ConfigError with places."""
    hint, said = "give it the url of a running agent", "the workers of a cluster cannot share a simulated agent"
    simulated = [name for name, agent in scenario.fleet.items() if agent.url is None]
    problems = [written.error(("fleet", name), said, hint=hint, key=True) for name in simulated]
    if scenario.settings.base_url:
        problems.append(written.error(("settings",), "each worker has a hub, and baseUrl is the address of one"))
    if problems:
        raise combine(tuple(problems))


def play_parts(
    cluster: ClusterClient,
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    *,
    source: str,
    rate: ClockRate,
    settle_s: float,
    command: str,
    show: Callable[[str], None],
) -> SimulationReport:
    """Plays a part on every worker and reports on all parts together. The first worker has the ceremonies.

    A worker that is lost is named in the report: its traffic cannot be sent again at its time. The first two Ctrl-C end
    traffic and waiting, as on one machine. Raises FleetsimError if a worker failed, and ClusterLost if the scheduler or
    all workers were lost.
    """
    from distributed import CancelledError, wait

    dask, run, before = cluster.dask, UuidIds().new(), time.perf_counter()
    if starts_now(scenario, rate):
        scenario = scenario.model_copy(update={"start": SystemClock().now()})
    workers = []
    for part, (address, row) in enumerate(sorted(cluster.workers().items(), key=lambda item: str(item[1]["name"]))):
        clock_s, error_s = _clock_of(dask, address)
        name = str(row["name"])
        workers.append(ClusterWorker(name=name, address=address, part=part, clock_s=clock_s, clock_error_s=error_s))
    scene = {"scenario": scenario, "source": source, "rate": rate, "settle_s": settle_s}
    futures = {
        w.address: dask.submit(
            _on_play, cluster.version, run, w.part, len(workers), ceremonies={} if w.part else ceremonies, **scene,
            workers=[w.address], allow_other_workers=False, pure=False,
        )
        for w in workers
    }  # fmt: skip
    began: float | None = None
    results: dict[str, tuple[SimulationReport, float]] = {}
    lost: dict[str, float] = {}
    seen: dict[str, PartProgress] = {}
    stops = 0
    try:
        while waiting := {at: future for at, future in futures.items() if at not in results.keys() | lost.keys()}:
            try:
                with suppress(TimeoutError):
                    wait(list(waiting.values()), timeout=LOOK_S, return_when="FIRST_COMPLETED")
                    results.update({at: result_of(future, RESULT_S) for at, future in waiting.items() if future.done()})
                    continue
                there = cluster.workers()
                at_s = 0.0 if began is None else max(0.0, SystemClock().now().timestamp() - began) * rate.times
                lost.update({address: at_s for address in waiting if address not in there})
                alive = [address for address in futures if address not in lost]
                looks = dask.run(_on_look, run, workers=alive, on_error="ignore")
                seen.update({address: progress for address, progress in looks.items() if progress.ready})
                if began is None and all(address in seen for address in alive):
                    began = SystemClock().now().timestamp() + LEAD_S
                    dask.run(_on_begin, run, {w.address: began + w.clock_s for w in workers}, on_error="ignore")
                elif began is None and time.perf_counter() - before > READY_S:
                    raise FleetsimError("the workers are not ready: do they play something else?")
                show(_line(scenario, list(seen.values()), len(alive)))
            except KeyboardInterrupt:
                stops += 1
                if began is None or stops > STOPS_MAX:
                    raise
                dask.run(_on_stop, run, on_error="ignore")
    except (OSError, CancelledError):
        raise ClusterLost("the scheduler was lost", hint="the workers end their parts by themselves") from None
    finally:
        if len(results) + len(lost) < len(futures):
            with suppress(OSError):
                for _ in range(STOPS_MAX):
                    dask.run(_on_stop, run, on_error="ignore")
    if not results or began is None:
        raise ClusterLost("all workers were lost", hint="look at their logs")
    for place, worker in enumerate(workers):
        if worker.address in results:
            report, late_s = results[worker.address]
            workers[place] = replace(worker, load=report.load, late_start_s=late_s, wall_s=report.wall_s)
        else:
            workers[place] = replace(worker, lost_s=lost[worker.address])
    return replace(
        _merged([report for report, _ in results.values()]),
        began=datetime.fromtimestamp(began, UTC),
        wall_s=time.perf_counter() - before,
        command=command,
        workers=tuple(workers),
    )


def _clock_of(dask: Any, address: str) -> tuple[float, float]:
    """The difference of a worker's clock from this one, and its largest error: half of the fastest round trip."""
    looks = []
    for _ in range(CLOCK_LOOKS):
        asked = SystemClock().now().timestamp()
        there = dask.run(_on_clock, workers=[address])[address]
        took = SystemClock().now().timestamp() - asked
        looks.append((there - asked - took / 2, took / 2))
    return min(looks, key=lambda look: look[1])


def _line(scenario: Scenario, seen: list[PartProgress], alive: int) -> str:
    at_s = max((part.at_s for part in seen), default=0.0)
    if not at_s:
        return f"{scenario.name}: {len(seen)} of {alive} workers are ready"
    sent, ended, failed = (sum(column) for column in zip(*(part[2:] for part in seen), strict=True))
    part = f"{in_words(at_s)} of {in_words(scenario.duration)}" if at_s < scenario.duration else "settling"
    counts = f"{sent:,} sent, {ended:,} ended, {sent - ended:,} open, {failed:,} failed"
    return f"{scenario.name}: {part} on {alive} workers, {counts}"


def _merged(parts: list[SimulationReport]) -> SimulationReport:
    figures = FigureCounters.merged([part.run.counters for part in parts]).all()
    loads = [part.load for part in parts if part.load is not None]
    verdicts: dict[str, list[InvariantResult]] = defaultdict(list)
    for verdict in (verdict for part in parts for verdict in part.verdicts):
        verdicts[verdict.invariant.number].append(verdict)
    hits = sum((Counter({trouble.fault: trouble.hits for trouble in part.troubles}) for part in parts), Counter())
    return replace(
        parts[0],
        figures=figures,
        expectations=tuple((e, e.figure(figures), e.holds(figures)) for e, *_ in parts[0].expectations),
        verdicts=tuple(
            replace(
                rows[0],
                cases=sum(row.cases for row in rows),
                violations=tuple(wrong for row in rows for wrong in row.violations),
            )
            for rows in verdicts.values()
        ),
        troubles=tuple(trouble._replace(hits=hits[trouble.fault]) for trouble in parts[0].troubles),
        cpu_s=sum(part.cpu_s for part in parts),
        load=LoadMetrics.merged(loads) if loads else None,
        stopped_s=min((part.stopped_s for part in parts if part.stopped_s is not None), default=None),
        unsettled=sum(part.unsettled for part in parts),
        ceremonies=tuple(totals for part in parts for totals in part.ceremonies),
        problems=tuple(problem for part in parts for problem in part.problems),
    )


# ------------------------------------------------------------------ on a worker


@dataclass(slots=True)
class _Part:
    """A part that this process plays. The functions below reach it from the worker's own thread."""

    progress: PartProgress = field(default_factory=PartProgress)
    late_start_s: float = 0.0
    loop: asyncio.AbstractEventLoop | None = None
    begin: asyncio.Future[float] | None = None
    stop: Callable[[], None] | None = None

    async def ready(self, stop: Callable[[], None]) -> None:
        """Waits for the common start."""
        self.loop, self.stop = asyncio.get_running_loop(), stop
        self.begin = self.loop.create_future()
        self.progress = PartProgress(ready=True)
        async with asyncio.timeout(READY_S):
            begins = await self.begin
        await asyncio.sleep(max(0.0, begins - _on_clock()))
        self.late_start_s = _on_clock() - begins

    def show(self, at_s: float, recorder: Recorder) -> None:
        load = recorder.load
        self.progress = PartProgress(True, at_s, load.sent, load.ended, load.failed)

    def end(self) -> None:
        """Ends the traffic, or the waiting for the start or for open requests."""
        if self.begin is not None and not self.begin.done():
            self.begin.cancel()
        elif self.stop is not None:
            self.stop()


_parts: dict[str, _Part] = {}
"""The parts that this process plays, by the id of their run."""


def _on_play(version: str, run: str, number: int, parts: int, **scene: Any) -> tuple[SimulationReport, float]:
    """The report of a part, with times in buckets, and how late it began. ``scene`` are arguments of ``played``."""
    part = _parts[run] = _Part()
    divided = TrafficPart(number=number, of=parts, ready=part.ready)
    try:
        with playing(version), TemporaryDirectory() as folder:
            report = played(**scene, record=Path(folder) / "run.jsonl", part=divided, progress=part.show)
    finally:
        del _parts[run]
    # Each process sends its counts; its events stay here.
    run_in_counts = Run()
    run_in_counts.counters = FigureCounters.merged([report.run.counters])
    load = None if report.load is None else LoadMetrics.merged([report.load])
    return replace(report, run=run_in_counts, load=load, digest=""), part.late_start_s


def _on_clock() -> float:
    return SystemClock().now().timestamp()


def _on_look(run: str) -> PartProgress:
    return _parts[run].progress if run in _parts else PartProgress()


def _on_begin(run: str, moments: Mapping[str, float], dask_worker: Any) -> None:
    part = _parts[run]
    if part.loop is not None and part.begin is not None:
        part.loop.call_soon_threadsafe(part.begin.set_result, moments[dask_worker.address])


def _on_stop(run: str) -> None:
    part = _parts.get(run)
    if part is not None and part.loop is not None:
        part.loop.call_soon_threadsafe(part.end)
