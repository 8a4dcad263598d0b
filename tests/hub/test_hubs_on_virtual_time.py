"""Three hubs share a ledger on virtual time, while some of them die, stand still or lose the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.events import OutcomeDecided, RequestAccepted
from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings
from fleetsim.caller.ledger import LedgerLimits, RunStatus
from fleetsim.caller.ledger.sqlite.storage import InlineStorage
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import Answer, SkillRequest
from fleetsim.sim.shared_ledger import MemberLedger, SharedStore
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from fleetsim.testbed.loop import run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles, VirtualClock, virtual_runtime
from tests.caller.ledgers import START, opener
from tests.hub.local_hub import FOLDER, KEYS
from tests.scale import scaled

FRONT = "http://hub.example:8080"
LEASE_S = 5.0
SKEW_S = (0.0, 5.0, -5.0)
PLAYED_S = 420.0
EACH_MINUTE = """
id: each-minute
name: each minute
schedule: "* * * * *"
skill: echo
targets: [quinn]
overlap: allow
"""


@dataclass
class Life:
    """One hub, until it is killed."""

    hub: Hub
    ledger: MemberLedger
    app: Any
    origin: str
    source: str


@dataclass
class Storm:
    """Three hubs, an agent, and what happened to them."""

    seed: int
    network: MemoryNetwork = field(init=False)
    store: SharedStore = field(init=False)
    lives: dict[int, Life] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    births: int = 0

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.network = MemoryNetwork(seed=self.seed)
        self.network.addresses["hub.example"] = ("93.184.216.34",)
        self.files = MemoryFiles({str(FOLDER / "README.md"): "about"})
        self.files.put(FOLDER / "a.yaml", EACH_MINUTE)
        self.storage = InlineStorage(opener(None))
        self.store = SharedStore(virtual_runtime(self.seed).clock)
        at = "http://quinn.example:8000"
        own = virtual_runtime(100, self.network, name="quinn")
        agent = self.agent().replace(url=f"{at}/a2a", runtime=own)
        self.network.mount(at, agent.app())
        self.config = FleetConfig(
            agents=(AgentEntry(name="quinn", url=f"{at}/a2a"),),
            settings=FleetSettings(base_url=FRONT, poll_interval_s=20.0, task_limit_s=240.0, lease_s=LEASE_S),
        )
        self.network.mount(FRONT, self.front)

    def agent(self) -> Agent:
        agent = Agent("quinn")

        @agent.skill("echo")
        async def echo(task: SkillContext) -> str:
            self.executed[task.text] += 1
            await asyncio.sleep(self.rng.choice([0.1, 3.0, 20.0]))
            return f"you said {task.text}"

        @agent.skill("ask")
        async def ask(task: SkillContext) -> str:
            self.executed[task.text] += 1
            answer = await task.ask("which branch?")
            self.answered[task.text] += 1
            return f"going with {answer}"

        return agent

    async def front(self, scope: Any, receive: Any, send: Any) -> None:
        """The proxy before the hubs: any of them will do."""
        alive = list(self.lives.values())
        if scope["type"] == "http" and alive:
            await self.rng.choice(alive).app(scope, receive, send)

    async def start(self, number: int) -> None:
        self.births += 1
        source = f"hub{number}.{self.births}"
        runtime = virtual_runtime(self.seed, self.network, name=source, files=self.files)
        assert isinstance(runtime.clock, VirtualClock)
        runtime.clock.jump(SKEW_S[number])
        ledger = MemberLedger(
            self.store, self.storage, LedgerLimits(), name=f"hub {number}", clock=runtime.clock, lease_s=LEASE_S
        )
        await ledger.__aenter__()
        origin = f"http://{source.replace('.', '-')}.example:8080"
        hub = Hub(self.config, runtime, ledger, keys=KEYS, url=origin, ceremonies=FOLDER)
        app = build_app(hub)
        self.network.mount(origin, app)
        await hub.__aenter__()
        self.lives[number] = Life(hub, ledger, app, origin, source)

    async def stop(self, number: int, *, kill: bool) -> None:
        life = self.lives.pop(number)
        if kill:
            life.ledger.cut = True
            self.network.fault(faults.Refuse(), Match(source=life.source))
        await self.network.crash(life.origin)
        with suppress(FleetsimError):
            await life.hub.__aexit__(None, None, None)
        await life.ledger.__aexit__()

    async def trouble(self) -> None:
        """One hub at a time is in trouble for up to twice its lease."""
        while True:
            await asyncio.sleep(self.rng.uniform(5.0, 25.0))
            number, kind = self.rng.choice(list(self.lives)), self.rng.choice(["kill", "stop", "cut", "hold"])
            if kind in {"kill", "stop"}:
                await self.stop(number, kill=kind == "kill")
                await asyncio.sleep(self.rng.uniform(0.0, 2 * LEASE_S))
                await self.start(number)
                continue
            ledger, seconds = self.lives[number].ledger, self.rng.uniform(0.5, 2.5) * LEASE_S
            if kind == "cut":
                ledger.cut = True
            else:
                ledger.held.clear()
            await asyncio.sleep(seconds)
            ledger.cut = False
            ledger.held.set()

    async def requests(self) -> None:
        for number in range(round(PLAYED_S / 2)):
            await asyncio.sleep(self.rng.uniform(0.5, 3.5))
            life = self.rng.choice(list(self.lives.values()))
            skill, cid = self.rng.choice(["echo", "echo", "ask"]), f"c-{number}"
            request = SkillRequest(correlation_id=cid, text=f"{skill} {number}", skill=skill, targets=("quinn",))
            with suppress(FleetsimError):
                await life.hub.submit(request)
                self.accepted.append(cid)

    async def people(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(1.0, 4.0))
            life = self.rng.choice(list(self.lives.values()))
            with suppress(FleetsimError):
                for question in await life.hub.tracker.find_questions():
                    await life.hub.tracker.answer(Answer(question_id=question.question_id, text="main"))

    async def play(self) -> None:
        await self.storage.start()
        async with self.network:
            for number in range(3):
                await self.start(number)
            people = asyncio.ensure_future(self.people())
            trouble = asyncio.ensure_future(self.trouble())
            await self.requests()
            trouble.cancel()
            await asyncio.wait([trouble])
            for number in range(3):
                if number not in self.lives:
                    await self.start(number)
                self.lives[number].ledger.cut = False
                self.lives[number].ledger.held.set()
            await asyncio.sleep(400.0)
            people.cancel()
            await self.judge()
            for number in range(3):
                await self.stop(number, kill=False)
        await self.storage.stop()

    async def judge(self) -> None:
        ledgers = [life.ledger for life in self.lives.values()]
        ledger = ledgers[0]
        recent = self.store.clock.now() - timedelta(seconds=60)  # the newest run of the ceremony may go on
        assert [record for record in await ledger.open_requests() if record.accepted_at < recent] == []
        outcomes = {cid: await ledger.outcome(cid) for cid in self.accepted}
        assert [cid for cid, outcome in outcomes.items() if outcome is None] == []
        assert {text: count for text, count in self.executed.items() if count > 1} == {}
        assert {text: count for text, count in self.answered.items() if count > 1} == {}
        succeeded = [cid for cid, outcome in outcomes.items() if outcome is not None and outcome.success]
        assert len(succeeded) > len(self.accepted) / 2
        events = await ledger.events(limit=100_000)
        told, decided = Counter[str](), Counter[str]()
        for event in events:
            told[event.correlation_id or ""] += isinstance(event, RequestAccepted)
            decided[event.correlation_id or ""] += isinstance(event, OutcomeDecided)
        assert {cid: told[cid] for cid in self.accepted if told[cid] != 1} == {}
        assert {cid: decided[cid] for cid in self.accepted if decided[cid] != 1} == {}
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        runs = await ledger.runs(limit=1_000)
        assert [run for run in runs if run.status is RunStatus.RUNNING and run.started_at < recent] == []
        slots = Counter(run.claim.scheduled_at for run in runs if run.status is not RunStatus.MISSED)
        first, last = min(slots), max(slots)
        assert {slot: count for slot, count in slots.items() if count > 1} == {}
        assert len(slots) == round((last - first).total_seconds() / 60) + 1
        kept = sum(life.hub.tracker.kept()["tracks"] for life in self.lives.values())
        assert kept == len(await ledger.open_requests())
        health = [life.hub.snapshot().total_outcomes for life in self.lives.values()]
        assert len(set(health)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(8, share=4)))
def test_no_request_is_lost_or_done_twice_whatever_happens_to_one_hub_at_a_time(seed: int) -> None:
    storm = Storm(seed)
    run(storm.play, seed=seed, start=START, shuffle=True)
