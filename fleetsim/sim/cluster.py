"""A connection to a Dask cluster (``fleetsim[dask]``), as an executor that plays seeds; ``cluster_load`` plays load.

A scheduler runs the code of everyone who reaches it, and its clients read pickles from it
(docs/howto/play-on-a-cluster.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fleetsim import __version__
from fleetsim.model.errors import ConfigError, FleetsimError, Unreachable
from fleetsim.model.text import one_line
from fleetsim.sim.seeds import SeedRun

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
