"""Clients of a fleet of several hubs, which reach it through its proxy and note each reply."""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import FleetsimError, HttpRefused
from fleetsim.runtime.ports import Runtime
from tests.storms.caller_fleet import HASTY, WAYS
from tests.storms.hubs_rig import Sink

FLEET = {**WAYS, **HASTY}
LIMIT = 5
LIMITS = {"refuses": "hana", "asks": "hope"}
"""Limits of ``LIMIT`` requests of the skill ``work`` in an hour, and their agents."""


@dataclass
class Seen:
    """Results that clients saw: ids that a hub accepted, answers and cancels that it took, runs, and events."""

    accepted: set[str] = field(default_factory=set)
    refused: int = 0
    over: Counter[str] = field(default_factory=Counter)
    """Requests that a limit refused, by its name."""
    canceled: set[str] = field(default_factory=set)
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The texts that were taken, by question."""
    runs: set[str] = field(default_factory=set)
    events: list[int] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    """How many events of an outcome were read, by request. The ledger keeps the newest 100,000 events alone."""
    sink: Sink = field(default_factory=Sink)
    streams: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    losses: list[tuple[str, str, int, float]] = field(default_factory=list)
    """Fault, name and number of a hub that lost its requests, and when."""
    woken: list[tuple[str, float]] = field(default_factory=list)
    """Name of a hub that was stopped, and when it went on."""
    overtaken: set[str] = field(default_factory=set)
    """Requests whose call left a hub just after another one had taken them over (decision 72)."""
    refusals: Counter[str] = field(default_factory=Counter)
    """What ``/readyz`` replied while PostgreSQL was away."""
    problems: list[str] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    """The requests that had an outcome before the hubs ended."""
    notes: list[str] = field(default_factory=list)
    """The steps of the storm, with the time and the load of the machine."""

    def note(self, what: str) -> None:
        self.notes.append(f"{datetime.now():%H:%M:%S.%f} load {os.getloadavg()[0]:.1f}: {what}")  # noqa: DTZ005 - as logs


class Clients:
    """Traffic through the proxy: ``work`` continues without end, ``rest`` ends new work."""

    def __init__(self, runtime: Runtime, url: str, key: str, seen: Seen, rng: random.Random, *, per_s: float) -> None:
        self._hub = HubClient(url, api_key=key, runtime=runtime)
        self._seen, self._rng, self._per_s = seen, rng, per_s
        self._quiet = False
        self._calls: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in (
                self._begin(self._ask, self._per_s),
                self._begin(self._fire, 0.5),
                self._answer_all(),
                self._answer_all(),
                self._follow(),
            ):
                group.create_task(worker)

    async def rest(self) -> None:
        """Start no new work, and return once each call that started some has its reply."""
        self._quiet = True
        while self._calls:
            await asyncio.wait(self._calls)

    async def _begin(self, work: Callable[[], Coroutine[None, None, None]], per_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(per_s))
            if not self._quiet:
                call = asyncio.create_task(work())  # a stopped hub must not delay the traffic
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _ask(self) -> None:
        cid = f"{self._rng.getrandbits(64):016x}"
        skill = self._rng.choices(("echo", "work", "ask"), (5, 3, 2))[0]
        body = {"text": cid, "skill": skill, "targets": [self._rng.choice(list(FLEET))], "correlationId": cid}
        cancels = self._rng.random() < 0.04
        try:
            assert await self._hub.submit(body) == (cid,)
        except FleetsimError as error:
            self._seen.refused += 1
            self._seen.over.update(
                name for name in LIMITS if isinstance(error, HttpRefused) and f"{name} of" in str(error)
            )
            return
        self._seen.accepted.add(cid)
        if cancels:
            self._seen.canceled.add(cid)
            with suppress(FleetsimError):
                await self._hub.cancel(cid)

    async def _answer_all(self) -> None:
        """Two of these answer each question, so that they often do it at the same time at two hubs. Of eight questions
        one is for a person, who knows of it by its notice alone, and at the end without one.
        """
        due: dict[str, float] = {}
        while True:
            await asyncio.sleep(0.2)
            with suppress(FleetsimError):
                for question in (await self._hub.get("/inbox"))["questions"]:
                    name = question["questionId"]
                    person = zlib.crc32(name.encode()) % 8 == 0
                    if person and name not in self._seen.sink.taken and not self._quiet:
                        continue
                    if time.monotonic() < due.setdefault(name, time.monotonic() + self._rng.choice((0, 1, 5))):
                        continue
                    of_limit = name.startswith("limit-")
                    text = "approve" if of_limit else f"{name} {self._rng.getrandbits(32):08x}"
                    with suppress(FleetsimError):
                        await self._hub.answer(name, text)
                        self._seen.answers[name].append(text)

    async def _fire(self) -> None:
        with suppress(FleetsimError):
            self._seen.runs.add(await self._hub.run_ceremony("hand"))

    async def _follow(self) -> None:
        """The events of the fleet, from one hub and then from another."""
        while True:
            with suppress(FleetsimError):
                after = self._seen.events[-1] if self._seen.events else 0
                self._seen.streams += 1
                async for event in self._hub.events(after=after):
                    if event["topic"] == "events.dropped":
                        break  # too slow: read on from the ledger
                    if event["seq"]:
                        self._seen.events.append(event["seq"])
                        if event["topic"].startswith("autonomous.outcome"):
                            self._seen.told[event["correlationId"]] += 1
            await asyncio.sleep(0.2)
