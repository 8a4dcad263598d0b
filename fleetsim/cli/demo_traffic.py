"""What keeps the demo's fleet busy, and what a demo without a terminal waits to have seen."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from fleetsim.caller.events import CeremonyCompleted, CeremonyFired, Event, OutcomeDecided
from fleetsim.cli.main import Common
from fleetsim.cli.progress import Progress
from fleetsim.hub.hub import Hub
from fleetsim.hub.remote import HubRemote
from fleetsim.hub.state import StateDir
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import SkillRequest, Source
from fleetsim.runtime.workers import Workers

SCRIPT = (
    ("quinn", "pr_review", "Review the change that renews sessions."),
    ("protopen", "scan", "staging"),
    ("herald", "sitrep", "How do the boards stand?"),
    ("flaky", "echo", "are you there?"),
    ("archivist", "lookup", "the first release"),
    ("quinn", "bug_triage", "Login loops on one browser"),
    ("protopen", "inventory", "What could be scanned?"),
    ("flaky", "echo", "still there?"),
)
QUESTIONS_MAX = 2
PAUSE_S = 1.5
E = TypeVar("E", bound=Event)


@asynccontextmanager
async def visitors(hub: Hub, *, forever: bool) -> AsyncIterator[Workers]:
    """Somebody who keeps asking for things; ``forever``, or through the script once."""
    async with Workers("demo") as workers:
        workers.start(_visit(hub, forever=forever), name="visitor")
        yield workers


async def _visit(hub: Hub, *, forever: bool) -> None:
    await _until_known(hub)
    rng = hub.runtime.rng.stream("demo")
    for agent, skill, text in itertools.cycle(SCRIPT) if forever else SCRIPT:
        if skill != "scan" or len(hub.tracker.questions()) < QUESTIONS_MAX:
            request = SkillRequest(
                correlation_id=hub.runtime.ids.new(),
                text=text,
                skill=skill,
                targets=(agent,),
                source=Source(interface="demo"),
            )
            try:
                await hub.submit(request)
            except FleetsimError:
                await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(PAUSE_S * rng.uniform(0.7, 2.5) if forever else 0.2)


async def _until_known(hub: Hub) -> None:
    """Wait until every card was read, so that the first request is not refused for an unknown skill."""
    async with hub.events.subscribe(after_seq=0) as heard:
        while any(view.card is None for view in hub.broker.views()):
            await heard.next_batch()


async def watch(common: Common, hub: Hub, home: Path, *, deadline_s: float) -> list[str]:
    """Wait until all there is to see was seen, answering one question as a second process would.

    Returns what is missing when the time is up; nothing if the demo showed everything.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    seen = _Seen(hub, home)
    async with Progress("waiting for the fleet", quiet=common.quiet or not sys.stderr.isatty()) as progress:
        while missing := seen.missing():
            if loop.time() > deadline:
                return missing
            progress.say("waiting for " + "; ".join(missing))
            await seen.answer_one()
            await asyncio.sleep(0.25)
    return []


class _Seen:
    def __init__(self, hub: Hub, home: Path) -> None:
        self._hub = hub
        self._home = home
        self._answered = False

    def missing(self) -> list[str]:
        """What has not been seen yet, in words."""
        found: list[str] = []
        done = {event.agent for event in self._events(OutcomeDecided)}
        quiet = [view.entry.name for view in self._hub.broker.views() if view.entry.name not in done]
        if quiet:
            found.append("an outcome of " + ", ".join(quiet))
        if not self._ceremony_done():
            found.append("a ceremony fired by its schedule (up to a minute)")
        if not self._answered:
            found.append("a question to answer")
        elif not any(event.skill == "scan" for event in self._events(OutcomeDecided)):
            found.append("the end of the task whose question was answered")
        return found

    def _ceremony_done(self) -> bool:
        by_clock = {"cron", "catch-up"}
        fired = {event.run_id for event in self._events(CeremonyFired) if event.trigger in by_clock}
        return any(event.run_id in fired for event in self._events(CeremonyCompleted))

    def _events(self, kind: type[E]) -> list[E]:
        return [event for event in self._hub.events.recent(limit=20_000) if isinstance(event, kind)]

    async def answer_one(self) -> None:
        """Answer the first question through the public API, key and all."""
        if self._answered:
            return
        address = StateDir(self._home / "state").find()
        if address is None:
            return
        remote = HubRemote(address, self._hub.runtime)
        questions = (await remote.get("/inbox"))["questions"]
        if questions:
            await remote.answer(questions[0]["questionId"], "yes, go ahead", by="demo")
            self._answered = True
