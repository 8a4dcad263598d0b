"""``fleetsim record``: keep what a running hub says, to be played on the dashboard and reported on later.

A recording of a hub is of the form of a simulated run's, with the hub's events alone. It begins with the newest of
those that were before (kind ``past``), as the dashboard over a hub does, so that the same screens come of it.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from fleetsim.api.answers import AgentFacts
from fleetsim.api.health import HealthSnapshot
from fleetsim.cli.hub_client import connect, find_hub
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span
from fleetsim.cli.terminal import rewrite
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_events import HubEvents
from fleetsim.events.log import KEEP_MAX
from fleetsim.events.wire import from_iso
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.spans import in_words
from fleetsim.recording.reader import FORMAT, event_of
from fleetsim.recording.writer import RecordingWriter
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers

QUIET_S = 1.0
"""After this many seconds without an event, the hub has sent all earlier ones."""
HEALTH_EVERY_S = 60.0
SHOW_EVERY_S = 0.5
WAITING_MAX = 10_000


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="The file, which must not be there yet [hub-TIME.jsonl].")
@click.option("--for", "for_s", callback=read_span, metavar="SPAN", help="How long, such as 10m or 8h [until Ctrl-C].")
@click.pass_obj
def record(common: CommonOptions, out: Path | None, for_s: float | None) -> int:
    """Record the events of the running hub in a file, until Ctrl-C or for a while.

    \b
    fleetsim record --for 8h --out day.jsonl
    fleetsim dashboard --replay day.jsonl --speed x600   the same screens at the same moments
    fleetsim sim --replay day.jsonl                      its figures

    It needs the hub's own key, which it finds as the other verbs do. A restart of the hub loses no event: the missing
    ones are fetched from its journal. The file has excerpts of the agents' texts, as the hub's events have them; only
    you may read it.

    Exit codes: 0, 2 if the file is there already, 3 if no hub runs.
    """
    return asyncio.run(_record(common, out, for_s))


async def _record(common: CommonOptions, out: Path | None, for_s: float | None) -> int:
    async with connect(common) as hub:
        health = await hub.read(HealthSnapshot, "/health")
        agents = await hub.read(list[AgentFacts], "/agents")
        url = hub.url
    began = health.collected_at
    path = out or Path(f"hub-{began:%Y%m%d-%H%M%S}.jsonl")
    try:
        path.touch(mode=0o600, exist_ok=False)
        file = path.open("w", encoding="utf-8", errors="replace", buffering=1)
    except OSError as error:
        another = "give another name with --out" if isinstance(error, FileExistsError) else None
        raise ConfigError(f"{path}: {error.strerror}", hint=another) from None
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    begun_s = time.perf_counter()
    async with running_runtime() as runtime:
        with file:
            recorder = _HubRecorder(common, runtime, RecordingWriter(file), began)
            recorder.begin(url, agents, health)
            until = f"for {in_words(for_s)}" if for_s else "until Ctrl-C"
            common.note(f"recording the hub at {url} in {path} {until}")
            async with Workers("record") as workers:
                running = [workers.start(work, name=name) for name, work in recorder.work().items()]
                running.append(workers.start(stopped.wait(), name="stop"))
                await asyncio.wait(running, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            length_s = time.perf_counter() - begun_s
            recorder.end(url, length_s)
    if sys.stderr.isatty() and not common.quiet:
        rewrite("")
    strange = f", {recorder.left_out} that were none left out" if recorder.left_out else ""
    common.note(f"{recorder.events:,} events of {in_words(length_s)} in {path}{strange}")
    if recorder.error is not None:
        raise recorder.error
    common.note(f"  next: fleetsim dashboard --replay {shlex.quote(str(path))}")
    return Exit.OK


class _HubRecorder:
    """Writes a hub's events in order, each once, over restarts of the hub. ``error`` is what ended it, if any."""

    def __init__(self, common: CommonOptions, runtime: Runtime, recorder: RecordingWriter, began: datetime) -> None:
        self.error: FleetsimError | None = None
        self._common = common
        self._runtime = runtime
        self._recorder = recorder
        self._began = began
        self._before: deque[dict[str, Any]] | None = deque(maxlen=KEEP_MAX)
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self._source = HubEvents(self._client)
        self.at_s = 0.0
        self.events = self.left_out = 0

    def begin(self, url: str, agents: Sequence[AgentFacts], health: HealthSnapshot) -> None:
        """Writes the start, and the health of the agents."""
        named = [{"agent": agent.name, "skills": []} for agent in agents]
        about = {"scenario": url, "seed": 0, "start": self._began.isoformat(), "duration_s": 0.0, "agents": named}
        self._recorder.write(0.0, "start", format=FORMAT, of="hub", **about, replicas={}, expect=[])
        self.health(health)

    def end(self, url: str, length_s: float) -> None:
        """Writes the events that wait, and the last lines."""
        while not self._waiting.empty():
            self._take(self._waiting.get_nowait())
        self._tell_past()
        self._recorder.write(max(self.at_s, length_s), "closed")
        self._recorder.played(source=url, wall_s=0.0, cpu_s=0.0)

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The workers, by name."""
        works = {"listen": self._listen(), "write": self._write(), "health": self._look(), "loss": self._report_loss()}
        if sys.stderr.isatty() and not self._common.quiet:
            works["progress"] = self._show()
        return works

    async def _listen(self) -> None:
        """Reads the hub's events; those of a lost connection are read after it."""
        try:
            async for row in self._source:
                await self._waiting.put(row)
        except FleetsimError as error:
            self.error = error

    def _client(self) -> HubClient | None:
        address = find_hub(self._common)
        return None if address is None else address.client(self._runtime)

    async def _report_loss(self) -> None:
        """Notes once for each loss that the hub is gone."""
        lost = ""
        while True:
            if self._source.lost and not lost:
                self._common.note("the hub is gone; waiting for it to come back")
            lost = self._source.lost
            await asyncio.sleep(SHOW_EVERY_S)

    async def _write(self) -> None:
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    row = await self._waiting.get()
            except TimeoutError:
                self._tell_past()
            else:
                self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        at = from_iso(row.get("at"))
        if self._before is not None and at is not None and at < self._began:
            self._before.append(row)
            return
        self._tell_past()
        self._event("event", row, at)

    def _tell_past(self) -> None:
        """Writes the events from before the recording began."""
        before, self._before = self._before or (), None
        for row in before:
            self._event("past", row, None)

    def _event(self, kind: str, row: dict[str, Any], at: datetime | None) -> None:
        if at is not None:
            self.at_s = max(self.at_s, round((at - self._began).total_seconds(), 6))
        try:
            event = event_of(row)
        except ValueError:
            self.left_out += 1
            return
        self._recorder.write(self.at_s, kind, type=type(event).__name__, event=row)
        self.events += kind == "event"

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            with suppress(FleetsimError):  # the listener reports a hub that is gone
                if (address := find_hub(self._common)) is not None:
                    self.health(await address.client(self._runtime).read(HealthSnapshot, "/health"))

    def health(self, snapshot: HealthSnapshot) -> None:
        """Writes the health of each agent at that moment."""
        now = snapshot.collected_at
        self.at_s = max(self.at_s, round((now - self._began).total_seconds(), 6))
        rows = {row.agent_name: {"health": row.health.value, "outcomes": row.total_outcomes} for row in snapshot.agents}
        self._recorder.write(self.at_s, "health", now=now.isoformat(), agents=rows)

    async def _show(self) -> None:
        while True:
            rewrite(f"recording: {in_words(self.at_s)}, {self.events:,} events")
            await asyncio.sleep(SHOW_EVERY_S)
