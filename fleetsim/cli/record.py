"""``fleetsim record``: keep what a running hub says, to be played on the dashboard and reported on later.

A recording of a hub has the form of a simulated run's. Of the kinds of lines it has the hub's state (``state``), its
later events and the health of its agents. The first state is whole; later ones have the figures.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from fleetsim.api.answer import to_json
from fleetsim.api.state import HubState
from fleetsim.cli.hub_client import connect, find_hub
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span
from fleetsim.cli.terminal import on_stop, rewrite
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_events import HubEvents
from fleetsim.events.fleet import StateRead
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.spans import in_words
from fleetsim.recording.reader import FORMAT, event_of
from fleetsim.recording.writer import RecordingWriter
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers

LOOK_EVERY_S = 15.0
"""Seconds between two looks at the figures, if there were events."""
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
        state, url = await hub.state(), hub.url
    path = out or Path(f"hub-{state.at:%Y%m%d-%H%M%S}.jsonl")
    try:
        path.touch(mode=0o600, exist_ok=False)
        file = path.open("w", encoding="utf-8", errors="replace", buffering=1)
    except OSError as error:
        another = "give another name with --out" if isinstance(error, FileExistsError) else None
        raise ConfigError(f"{path}: {error.strerror}", hint=another) from None
    stopped = asyncio.Event()
    on_stop(stopped.set, signal.SIGINT)
    begun_s = time.perf_counter()
    async with running_runtime() as runtime:
        with file:
            recorder = _HubRecorder(common, runtime, RecordingWriter(file), state, url)
            until = f"for {in_words(for_s)}" if for_s else "until Ctrl-C"
            common.note(f"recording the hub at {url} in {path} {until}")
            async with Workers("record") as workers:
                running = [workers.start(work, name=name) for name, work in recorder.work().items()]
                running.append(workers.start(stopped.wait(), name="stop"))
                await asyncio.wait(running, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            length_s = time.perf_counter() - begun_s
            await recorder.end(url, length_s)
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

    def __init__(
        self, common: CommonOptions, runtime: Runtime, recorder: RecordingWriter, state: HubState, url: str
    ) -> None:
        self.error: FleetsimError | None = None
        self._common = common
        self._runtime = runtime
        self._recorder = recorder
        self._began = state.at
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self._source = HubEvents(self._client, after=state.seq)
        self.at_s = 0.0
        self.events = self.left_out = self._looked = 0
        named = [{"agent": agent.name, "skills": []} for agent in state.agents]
        about = {"scenario": url, "seed": 0, "start": state.at.isoformat(), "duration_s": 0.0, "agents": named}
        recorder.write(0.0, "start", format=FORMAT, of="hub", **about, replicas={}, expect=[])
        self._write_state(state, whole=True)

    async def end(self, url: str, length_s: float) -> None:
        """Writes the events that wait, and the last lines."""
        while not self._waiting.empty():
            self._take(self._waiting.get_nowait())
        await self._look()
        self._recorder.write(max(self.at_s, length_s), "closed")
        self._recorder.played(source=url, wall_s=0.0, cpu_s=0.0)

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        works = {
            "listen": self._listen(),
            "write": self._write(),
            "look": self._look_again(),
            "loss": self._report_loss(),
        }
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
            self._take(await self._waiting.get())

    def _take(self, row: dict[str, Any]) -> None:
        try:
            event = event_of(row)
        except ValueError:
            self.left_out += 1
            return
        self._move(event.at)
        self._recorder.write(self.at_s, "event", type=type(event).__name__, event=row)
        self.events += 1

    def _move(self, at: datetime) -> None:
        self.at_s = max(self.at_s, round((at - self._began).total_seconds(), 6))

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look()

    async def _look(self) -> None:
        """Writes the figures, if events came since the last look."""
        if self._looked == self.events:
            return
        with suppress(FleetsimError, TimeoutError):  # the listener reports a hub that is gone
            async with asyncio.timeout(LOOK_EVERY_S):
                if (hub := self._client()) is not None:
                    looked = self.events
                    self._write_state(await hub.state(requests=False), whole=False)
                    self._looked = looked

    def _write_state(self, state: HubState, *, whole: bool) -> None:
        self._move(state.at)
        self._recorder.write(self.at_s, "state", **to_json(StateRead.of(state, whole=whole)))
        rows = {row.name: {"health": row.health, "outcomes": row.figures.total_outcomes} for row in state.agents}
        self._recorder.write(self.at_s, "health", now=state.at.isoformat(), agents=rows)

    async def _show(self) -> None:
        while True:
            rewrite(f"recording: {in_words(self.at_s)}, {self.events:,} events")
            await asyncio.sleep(SHOW_EVERY_S)
