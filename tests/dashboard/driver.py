"""An app on a ui: a feed that is fed by hand, a clock that is set, and controls that remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from msgspec import convert
from textual.pilot import Pilot
from textual.widget import Widget

from fleetsim.api.answers import AccessRole, FoundSkill, WireExchange
from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import Controls, TypedRequest, WholeText
from fleetsim.dashboard.screens.pane import Pane
from fleetsim.dashboard.settings import Settings
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.dashboard.widgets import Grid, Lines
from fleetsim.events.request import Event
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.parts import ListedPart
from tests.dashboard.journal import NOW, Journal, an_hour

FILES = (
    ListedPart(index=1, kind="file", name="report.pdf", media_type="application/pdf", size_bytes=3, raw="QUJD"),
    ListedPart(index=2, kind="data", size_bytes=40, data={"total": 3, "rows": [{"id": "x" * 200}, {"on": None}]}),
)
"""The parts of every answer."""
EVENTS = tuple(an_hour(minutes=20))


def detail(j: Journal, about: Mapping[str, Any]) -> TaskDetail:
    """The detail of a task of the journal."""
    builder = ViewBuilder()
    builder.fold_all(j.events)
    found = builder.detail(about["correlation_id"])
    assert found is not None
    return found


def fold_view(recording: Iterable[Event], now: datetime) -> View:
    """The view of a whole recording at once."""
    builder = ViewBuilder()
    builder.fold_all(recording)
    return builder.snapshot(now)


class HandFeed:
    """A live feed that yields the given events; an exception ends it."""

    dropped = 0
    lost = ""
    restarts = 0

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: asyncio.Queue[Sequence[Event] | Exception] = asyncio.Queue()
        if first := tuple(events):
            self.say(*first)

    def say(self, *events: Event) -> None:
        self._waiting.put_nowait(events)

    def fail(self, error: Exception) -> None:
        self._waiting.put_nowait(error)

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        while True:
            said = await self._waiting.get()
            if isinstance(said, Exception):
                self._waiting.task_done()
                raise said
            yield said
            self._waiting.task_done()

    async def heard(self) -> None:
        """Wait until every event was folded."""
        await self._waiting.join()


class SetClock:
    """A clock that is moved by hand."""

    def __init__(self, at: datetime = NOW) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - NOW).total_seconds()

    def pass_(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class Desk(Controls):
    """Controls that record their calls. ``error`` is raised instead, also for ids in ``refused``;
    ``gate`` is waited for first."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None
        self.whole: WholeText | None = None
        self.gate: asyncio.Event | None = None
        self.refused: set[str] = set()
        self.exchanges: list[Mapping[str, Any]] = []
        self.offered: list[FoundSkill] = []
        self.role_there = AccessRole.OWNER

    async def _do(self, *what: str) -> None:
        self.asked.append(what)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if what[1] in self.refused:
            raise UnknownTarget("gone")

    async def attach(self, url: str) -> tuple[str, str, AccessRole]:
        await self._do("attach", url)
        return url, "", self.role_there

    async def send(self, draft: TypedRequest) -> str:
        await self._do("send", *astuple(draft))
        return "sent-1"

    async def answer(self, question_id: str, text: str) -> str:
        await self._do("answer", question_id, text)
        return "the agent took it"

    async def reject(self, question_id: str) -> None:
        await self._do("reject", question_id)

    async def veto(self, correlation_id: str) -> None:
        await self._do("veto", correlation_id)

    async def cancel(self, correlation_id: str) -> None:
        await self._do("cancel", correlation_id)

    async def retry(self, correlation_id: str, *, may_repeat: bool) -> None:
        await self._do("retry", correlation_id, *(("may repeat",) * may_repeat))

    async def fire(self, ceremony_id: str) -> None:
        await self._do("fire", ceremony_id)

    async def refresh(self, agent: str) -> None:
        await self._do("refresh", agent)

    async def skills(self, agent: str) -> Sequence[FoundSkill]:
        await self._do("skills", agent)
        return self.offered

    async def text(self, correlation_id: str) -> WholeText:
        await self._do("text", correlation_id)
        return self.whole or WholeText(text="", chars=0, parts=FILES)

    async def wire(self, *, agent: str = "", task: str = "", after: int = 0) -> Sequence[WireExchange]:
        await self._do("wire", agent, task)
        return [row for row in convert(list(self.exchanges), list[WireExchange]) if row.number > after]

    async def save(self, correlation_id: str, indexes: Sequence[int], folder: str) -> Mapping[int, str]:
        await self._do("save", correlation_id, folder)
        return {index: f"{folder}/part-{index}" for index in indexes}


@dataclass
class Driver:
    """Everything a test of the app holds."""

    app: FleetApp
    pilot: Pilot[None]
    feed: HandFeed
    desk: Desk
    clock: SetClock

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        await self.feed.heard()
        await self.pilot.pause()
        self.app.draw()
        await self.pilot.pause()

    async def say(self, *events: Event) -> None:
        self.feed.say(*events)
        await self.settle()

    @property
    def text(self) -> str:
        """The text on the screen."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    @property
    def focused(self) -> str:
        """The id of the focused widget."""
        found: Widget | None = self.app.focused
        return (found.id or "") if found is not None else ""

    @property
    def main(self) -> Grid:
        return self.app.pane.main

    @property
    def pane(self) -> Pane:
        return self.app.pane

    @property
    def status_line(self) -> Lines:
        return self.app.query_one("#status", Lines)

    @property
    def status(self) -> str:
        return self.status_line.lines[0].plain


@asynccontextmanager
async def showing(
    events: Iterable[Event] = EVENTS,
    *keys: str,
    size: tuple[int, int] = (120, 36),
    ascii: bool = False,
    read_only: bool = False,
    role: AccessRole = AccessRole.OWNER,
    settings: Settings | None = None,
) -> AsyncIterator[Driver]:
    """The app over these events, after these keys."""
    feed, desk, clock = HandFeed(events), Desk(), SetClock()
    options: dict[str, Any] = {"ascii": ascii, "read_only": read_only, "role": role, "settings": settings}
    app = FleetApp(feed, desk, clock=clock, title="demo-fleet", **options)
    async with app.run_test(size=size) as pilot:
        ui = Driver(app, pilot, feed, desk, clock)
        await ui.settle()
        if keys:
            await ui.press(*keys)
        yield ui


def bare() -> Journal:
    """A hub that has read its files and has no agent, no ceremony and no task."""
    j = Journal(start=NOW - timedelta(minutes=1))
    j.say("config.loaded", agents=[], path="agents.yaml")
    j.say("ceremony.loaded", ceremonies=[], errors=[])
    return j


def asking() -> tuple[Journal, dict[str, str], str, dict[str, str], str]:
    """A short journal with two open questions."""
    j = Journal(start=NOW - timedelta(minutes=2))
    j.card("quinn", "0.3", ("pr_review",))
    j.card("protopen", "0.3", ("scan",))
    one, two = j.request("quinn", "pr_review"), j.request("protopen", "scan")
    j.bind(one)
    j.bind(two)
    first = j.ask(one, "which branch?")
    j.later(1)
    second = j.ask(two, "which target?")
    return j, one, first, two, second


def answered() -> tuple[Journal, dict[str, str]]:
    """A short journal with one task, whose answer has Markdown, a file and data."""
    j = Journal(start=NOW - timedelta(minutes=2))
    about = j.request("quinn", "pr_review", text="look at it")
    j.bind(about)
    listed = [
        {"index": 1, "kind": "file", "name": "report.pdf", "mimeType": "application/pdf", "sizeBytes": 3},
        {"index": 2, "kind": "data", "sizeBytes": 40},
    ]
    j.end(about, text="# Title\n\nA **bold** word.", parts=listed, partsTotal=2)
    return j, about
