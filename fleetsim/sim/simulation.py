"""A run: the production hub and agents on virtual time, with a scenario's traffic, people and weather over them.

Hub and agents are those of production; only the clock, the network, the disk and the skills are simulated
(``fleetsim.testbed``). A ``Recorder`` writes everything that happens, and the report reads nothing else.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os.path import normpath
from pathlib import Path
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from fleetsim.ceremonies.folder import contents_of
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.events.request import Event
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys, next_epoch
from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.checks import row_damage
from fleetsim.ledger.sqlite.file import image, open_memory
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.files import LOOK_EVERY_S
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.sim.agents import AgentTask, Engine, FleetKeys, simulated_agent, tasks_in_memory
from fleetsim.sim.calls import CallRecorder, SpoofedWebhookSender
from fleetsim.sim.ceremonies import CeremonyEditor
from fleetsim.sim.clocks import ClockRate, RunClock
from fleetsim.sim.hubs import KEEP_ALL, HubProcess, SimulatedDisk, Work
from fleetsim.sim.recorder import Recorder, digest_of
from fleetsim.sim.scenario import Scenario, mixed
from fleetsim.sim.scenario_run import ScenarioRun, background_failures
from fleetsim.sim.shared_ledger import SharedStore
from fleetsim.sim.traffic import TrafficSource
from fleetsim.sim.troubles import Trouble, match_of
from fleetsim.tape.servers import TapeServer
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match, Weather
from fleetsim.testbed.loop import Deadlock, LeftOver, Spinning, VirtualLoop, run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles, MemoryPrograms, VirtualClock, virtual_runtime

HUB = "http://hub.sim:8080"
HUB_ADDRESS = "93.184.216.34"
"""A public address, so that webhooks are held to the policy for those; nothing outside this process is dialled."""
FOLDER = Path("ceremonies")
LEDGER_BYTES_MAX = 2 * 1024 * 1024
"""The page cache of the ledger. SQLite walks it at every commit, so it is small."""
HEALTH_EVERY_S = 3_600.0
HEALTH_LOOKS_MIN = 24
"""How often health is looked at in a run too short for one look an hour."""
BEAT_S = 10.0
EDIT_EVERY_S = 30.0
"""Seconds between two edits of ceremony files, and between two spoofed webhooks."""
EDITS_FILES = frozenset({"ceremony-edits", "new-zone"})
UNTOUCHED_S = 86_400.0
"""How often the hub looks at files, or at cards, that nothing in the run changes or keeps from it."""
SETTLE_LOOK_S = 10.0
SETTLE_GRACE_S = 600.5
"""Not a whole number, so that it never ends at a slot of a ceremony."""


def origin_of(agent: str) -> str:
    return f"http://{agent.lower()}.sim:8000"


class Simulation(ScenarioRun):
    """One run of a scenario; ``play`` is all of it. ``ceremonies`` are the files of its folder, by name; ``entries``
    those of agents.yaml, of which the disabled ones are in the hub's fleet too.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder,
        ceremonies: Mapping[str, bytes],
        entries: Sequence[AgentEntry] = (),
    ) -> None:
        super().__init__(scenario, recorder, RunClock(ClockRate()), ceremonies=ceremonies, agents=dict(scenario.agents))
        self.network = MemoryNetwork(seed=scenario.seed)
        self.network.addresses[str(urlsplit(HUB).hostname)] = (HUB_ADDRESS,)
        self.network.seen = deque(maxlen=0)  # the observer sees each request when it is over
        places = {origin_of(name): name for name, _ in scenario.agents} | {HUB: "hub"}
        self.keys = FleetKeys((name for name, _ in scenario.agents), Random(f"{scenario.seed}/keys"))
        self.calls = CallRecorder(self.record, places, self.keys)
        self.network.witnesses.append(self.calls)
        self.forger = SpoofedWebhookSender(self.network, self.record)
        files = MemoryFiles({str(FOLDER / "README.md"): "about"})
        for name, content in ceremonies.items():
            files.put(normpath(FOLDER / name), content)
        self._entries = entries
        drawn, self._left_out = mixed(scenario, scenario.mix) if scenario.mix is not None else ((), ())
        self._troubles = (*scenario.weather, *drawn)
        edits = any(trouble.fault in EDITS_FILES for trouble in self._troubles)
        # A ceremony that one hub disables at the end is a change for the others.
        self._look_s = LOOK_EVERY_S if edits or scenario.hubs > 1 else UNTOUCHED_S
        undisturbed = all(trouble.kind.on == "webhook" for trouble in self._troubles)
        refresh_s = UNTOUCHED_S if undisturbed else scenario.settings.card_refresh_s
        self._settings = replace(
            scenario.settings, base_url=scenario.settings.base_url or HUB, card_refresh_s=refresh_s
        )
        self.editor = CeremonyEditor(files, FOLDER, self.record)
        self._people = MemoryPrograms()
        self._people.took_s = 90.0  # a hub may die before a notice is delivered
        self.runtime = self._hub_runtime("hub", files)
        self.disk = SimulatedDisk(InlineStorage(lambda: open_memory(scenario.start, LEDGER_BYTES_MAX)))
        self.hub_keys = HubKeys.fresh(self.runtime.ids)
        self.hubs = tuple(self._hub_processes(scenario.hubs, files))
        self._seq = 0
        """The number of the newest event of several hubs."""
        self._deaths: dict[str, int] = dict.fromkeys(self.agents, 0)
        self._dead: set[str] = set()
        self._over = False
        self._engines: dict[str, Engine] = {}
        self._stalled_s = 0.0
        self._workers = around = Workers("simulation")
        hub, within = (lambda: self.hub), self._within
        self.traffic = TrafficSource(
            scenario, recorder, self.runtime, self.clock, around, asking=around, hub=hub, within=within
        )

    # ------------------------------------------------------------------ the run

    async def play(self) -> None:
        """Plays traffic and trouble for ``duration``, waits until every request has ended, and records the outcomes."""
        scenario = self.scenario
        self.recorder.start(scenario, ClockRate(), self.ceremonies, self._entries)
        await self.disk.storage.start()
        for name in self.agents:
            self._mount(name)
        async with self.network, self._workers:
            for process in self.hubs:
                await process.start()
            for hub in filter(None, (process.hub for process in self.hubs)):
                # Traffic begins once every agent is known, as it would with a fleet that runs.
                while any(view.card is None for view in hub.broker.views() if view.entry.enabled):  # noqa: ASYNC110
                    await asyncio.sleep(1.0)
            scenario = self.scenario
            self.traffic.come()
            if scenario.mix is not None:
                self.record("mix", left_out=list(self._left_out))
            weather = Workers("weather")
            async with weather:
                for number, trouble in enumerate(self._troubles):
                    weather.start(self._bring_trouble(trouble), name=f"{number} {trouble.fault}")
                self._workers.start(self._look_at_health(), name="health")
                self._workers.start(self._measure_loop(), name="beat")
                await asyncio.sleep(scenario.duration)
            await self._settle()
            assert self.hub is not None
            self._record_health_of_hubs()
            # Sends the newest webhooks once more, in another order. Outcomes on record must not change.
            before = await self._record_outcomes(self.hub)
            arrived = await self.forger.repeat(tuple(self.calls.webhooks), self._stream("repeat"))
            after = {outcome.correlation_id: digest_of(repr(outcome)) for outcome in await self._outcomes(self.hub)}
            changed = sorted(cid for cid in before.keys() | after.keys() if before.get(cid) != after.get(cid))
            self.record("repeated", webhooks=arrived, changed=changed)
            asked = [record.question.question_id for record in await self.hub.ledger.questions(open_only=False)]
            rows = {name: await self.hub.ledger.notices(name) for name in asked if self._settings.question_channels}
            notices = {name: [row.reason or row.state for row in of] for name, of in rows.items()}
            damage = await self.disk.storage.read(lambda connection: row_damage(connection, None))
            self.record("ledger", damage=damage or "", notices=notices)
            self._record_memory()
            await self.disk.storage.read(lambda connection: self.keys.look_for(image(connection), "the ledger"))
            leaks = [f"a key stood in {self.recorder.with_keys} lines of the recording"] * bool(self.recorder.with_keys)
            self.record("keys", carried=self.keys.carried, strayed=[*self.keys.strayed, *leaks])
            self.record("reached", origins=sorted(f"{source} {origin}" for source, origin in self.calls.reached))
            self._over = True
            self.record("end", kept={what: count for what, count in self._kept().items() if count})
            await self._workers.close()
            for process in self.hubs:
                await process.stop()
        await self.disk.storage.stop()

    async def _settle(self) -> None:
        """Ends all trouble, and waits until every request has its outcome, at most for the longest limit."""
        self.disk.full, self.disk.slow_s, self.disk.failures = False, 0.0, 0
        for name in self.agents:
            self._slower[name] = 1.0
        put_back = await self.editor.put_back()
        for process in self.hubs:
            process.heal()
            await process.start()
        if put_back:
            await asyncio.sleep(SETTLE_LOOK_S)  # then the hub has read it, and can disable the ceremony
        await self.traffic.end_ceremonies()
        self.record("calm")
        calm_s = self.now
        asked_s = -1.0
        while asked_s < self.traffic.asked_s:  # conversations continue
            asked_s = self.traffic.asked_s
            await self._idle(calm_s)
            await asyncio.sleep(SETTLE_GRACE_S)  # agents finish sending
        await self._idle(calm_s)  # ceremonies fire meanwhile

    async def _idle(self, calm_s: float) -> None:
        """Wait until no request is in flight, or the longest that the newest one may take is over."""
        settings, folder = self.scenario.settings, contents_of(self.ceremonies, FOLDER)
        timeouts_s = (ceremony.timeout_s for ceremony in folder.ceremonies.values())
        limit_s = max(settings.task_limit_s, *settings.skill_limits_s.values(), *timeouts_s, 0.0)
        longest_s = limit_s + settings.question_ttl_s + SETTLE_GRACE_S
        while any(process.hub is None for process in self.hubs) or any(self._kept().values()):
            if self.now >= max(calm_s, self.traffic.asked_s) + longest_s:
                return
            await asyncio.sleep(SETTLE_LOOK_S)

    # ------------------------------------------------------------------ hub and agents

    def _mount(self, name: str) -> None:
        origin = origin_of(name)
        life = self._deaths[name]
        runtime = virtual_runtime(self.scenario.seed, self.network, self.scenario.start, name=f"{name}#{life}")
        if (tape := self.agents[name].recorded) is not None:
            server = TapeServer(tape, runtime, policy=AddressPolicy(), matching="skill")
            self.network.mount(origin, server.app)
            return
        agent = simulated_agent(name, self.agents[name], self, url=origin, life=life)
        agent = agent.replace(runtime=runtime, callers=self.keys.doors[name])
        self._engines[name] = agent.engine()
        self.network.mount(origin, agent.mount(self._engines[name]))

    async def _kill_agent(self, name: str) -> int:
        """Kills an agent with all its tasks; nothing that it still sends leaves it. Returns how often it was killed."""
        self.network.fault(faults.Refuse(), Match(source=f"{name}#{self._deaths[name]}"))
        self._deaths[name] = death = self._deaths[name] + 1
        self._dead.add(name)
        await self.network.crash(origin_of(name))
        return death

    def _hub_runtime(self, name: str, files: MemoryFiles) -> Runtime:
        seed, start = self.scenario.seed, self.scenario.start
        return virtual_runtime(seed, self.network, start, name=name, files=files, programs=self._people)

    def _hub_processes(self, count: int, files: MemoryFiles) -> Iterator[HubProcess]:
        start, lease_s = self.scenario.start, self.scenario.settings.lease_s
        if count == 1:
            yield HubProcess(self.runtime, self.network, self.disk, None, "hub", self._build_hub)
            return
        self.network.balance(HUB, lambda: self._reachable().origin)
        store = SharedStore(virtual_runtime(start=start).clock, lease_s, self.record)
        for name in (f"hub{number}" for number in range(1, count + 1)):
            yield HubProcess(self._hub_runtime(name, files), self.network, self.disk, store, name, self._build_hub)

    def _reachable(self) -> HubProcess:
        """A hub to which a proxy passes the next request on. Raises Unreachable."""
        reachable = [process for process in self.hubs if process.reachable]
        if not reachable:
            raise Unreachable(f"{HUB}: no hub is up")
        return reachable[0] if len(reachable) == 1 else self._stream("proxy").choice(reachable)

    @property
    def hub(self) -> Hub | None:
        """The hub that receives the next request; None if none is up."""
        return self._reachable().hub if any(process.reachable for process in self.hubs) else None

    async def _within(self, hub: Hub, work: Coroutine[Any, Any, Any]) -> Any:
        return await next(process for process in self.hubs if process.hub is hub).do(work)

    def _number(self, process: HubProcess, event: Event) -> None:
        """Record an event of one of several hubs. They number their events apart, so it gets a number here."""
        self._seq += 1
        self.recorder.event(self.now, structs.replace(event, seq=self._seq))
        process.published(self._seq, event)

    def _build_hub(self, process: HubProcess, ledger: Ledger) -> tuple[Hub, Work, Work]:
        entries = tuple(
            self.scenario.entry(
                name,
                agent,
                origin_of(name) + (urlsplit(agent.recorded.head.url).path if agent.recorded else "/a2a"),
                auth=self.keys.entry(name),
            )
            for name, agent in self.agents.items()
        )
        entries += tuple(entry for entry in self._entries if not entry.enabled)
        people = (Destination(kind=SinkKind.DESKTOP),)
        channels = {name: Channel(channel_id=name, sinks=people) for name in self._settings.question_channels}
        limits = self.scenario.limits
        config = FleetConfig(agents=entries, settings=self._settings, channels=channels, limits=limits)
        runtime, look_s = process.runtime, self._look_s
        hub = Hub(
            config, runtime, ledger, keys=self.hub_keys, url=process.origin, ceremonies=FOLDER, look_every_s=look_s
        )
        take = partial(self._number, process) if len(self.hubs) > 1 else None
        return hub, partial(self._listen, hub, take), partial(self.traffic.answer, hub)

    # ------------------------------------------------------------------ troubles

    def _add_faults(self, trouble: Trouble, names: tuple[str, ...]) -> list[Weather]:
        assert trouble.kind.fault is not None
        fault = trouble.kind.fault(trouble.how_much)
        everywhere = trouble.kind.on == "webhook" and trouble.agent is None
        matches = [
            match for name in (names[:1] if everywhere else names) for match in match_of(trouble, origin_of(name), HUB)
        ]
        return [self.network.fault(fault, match, probability=trouble.share) for match in matches]

    async def _disturb_processes(self, trouble: Trouble, names: tuple[str, ...], lasts: float) -> None:
        hubs = [self.hubs[trouble.hub - 1]] if trouble.hub is not None else list(self.hubs)
        match trouble.fault:
            case "agent-down":
                for name in names:
                    self.network.down(origin_of(name))
                await self._for(lasts, partial(self._reconnect, names))
            case "agent-restart":
                dead = {name: await self._kill_agent(name) for name in names}
                await self._for(lasts if trouble.lasts is not None else 1.0, partial(self._revive, dead))
            case "hub-restart" | "hub-dies-writing" | "new-webhook-keys":
                if trouble.fault == "hub-dies-writing":
                    writer = await self.disk.written(process.name for process in hubs)
                    hubs = [process for process in hubs if process.name == writer]
                if trouble.fault == "new-webhook-keys":
                    epoch, callback = next_epoch(self.hub_keys.epoch, self.hub_keys.callback, self.runtime.ids)
                    self.hub_keys = replace(self.hub_keys, epoch=epoch, callback=callback)
                for process in hubs:
                    if await process.kill():
                        several = len(self.hubs) > 1
                        last = self._seq if several else await SqliteLedger(self.disk.session(), KEEP_ALL).last_seq()
                        self.record("killed", journalled=last, **({"hub": process.name} if several else {}))
                        damage = await self.disk.storage.read(lambda rows: row_damage(rows, None))
                        self.record("ledger", damage=damage or "")
                await asyncio.sleep(lasts if trouble.lasts is not None else 1.0)
                for process in hubs:
                    await process.start()
            case "hub-pause" | "hub-cut":
                for process in hubs:
                    process.disturb(pause=trouble.fault == "hub-pause")
                await self._for(lasts, lambda: [process.heal() for process in hubs])  # type: ignore[func-returns-value]
            case "clock-jump":
                for process in hubs:
                    assert isinstance(process.runtime.clock, VirtualClock)
                    process.runtime.clock.jump(trouble.how_much)
            case "new-api-keys":
                for name in names:
                    self.keys.change(name)
                await self._for(trouble.how_much, partial(self.keys.hand_over, *names))
            case "new-zone":
                with host_in(zone := self._stream("zones").choice(ZONES)):
                    moved = await self.editor.move(self._stream("editor"), zone)
                    await asyncio.sleep(lasts)
                    if moved is not None:
                        await self.editor.move_back(moved)
            case "disk-error":
                self.disk.failures += round(trouble.how_much)
            case "slow-disk":
                self.disk.slow_s = trouble.how_much
                await self._for(lasts, lambda: setattr(self.disk, "slow_s", 0.0))
            case "stall":
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualLoop)
                self._stalled_s += trouble.how_much
                loop.hold_up(trouble.how_much)
            case "ceremony-edits":
                await self._every(EDIT_EVERY_S, lasts, lambda: self.editor.edit(self._stream("editor")))
            case "forged-webhooks":
                await self._every(
                    EDIT_EVERY_S, lasts, lambda: self.forger.forge(self.calls.webhooks, self._stream("forger"))
                )
            case "disk-full":
                self.disk.full = True
                await self._for(lasts, lambda: setattr(self.disk, "full", False))

    def _revive(self, dead: Mapping[str, int]) -> None:
        """Starts agents again, except those that another trouble killed meanwhile: that one will start them."""
        for name, deaths in dead.items():
            if self._deaths[name] == deaths:
                self._dead.discard(name)
                self._mount(name)

    def _reconnect(self, names: tuple[str, ...]) -> None:
        """Connect the network again to the agents that were not killed meanwhile."""
        for name in names:
            if name not in self._dead:
                self.network.up(origin_of(name))

    async def _every(self, pause_s: float, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        until = self.now + seconds
        while self.now < until:
            await do()
            await asyncio.sleep(pause_s)

    # ------------------------------------------------------------------ the recording

    def ended(self, task: AgentTask) -> None:
        if task.life != self._deaths[task.agent]:
            task.ended = "killed"
        elif self._over:
            task.ended = "open"  # the agent stops because the run is over
        super().ended(task)

    async def _measure_loop(self) -> None:
        """Records each delay of the loop: on virtual time only a trouble may block it."""
        while True:
            due = self.now + BEAT_S
            await asyncio.sleep(BEAT_S)
            if self.now > due:
                self.record("late", seconds=round(self.now - due, 6), stalled=round(self._stalled_s, 6))
            self._stalled_s = 0.0

    def _kept(self, *, settled: bool = False) -> dict[str, int]:
        """The entries in the memory of the hubs; with ``settled``, of those that missed nothing lately."""
        kept: Counter[str] = Counter()
        for process in self.hubs:
            if process.hub is not None and (process.settled or not settled):
                kept.update(process.hub.tracker.kept())
        return dict(kept)

    def _record_memory(self) -> None:
        """Records the entries in the memory of the hubs, and the tasks of each agent."""
        agents = {name: tasks_in_memory(engine, self.now) for name, engine in self._engines.items() if engine.started}
        self.record("kept", hub=self._kept(settled=True), agents=agents)

    async def _look_at_health(self) -> None:
        every_s = min(HEALTH_EVERY_S, self.scenario.duration / HEALTH_LOOKS_MIN)
        while True:
            await asyncio.sleep(every_s)
            self._record_health_of_hubs()
            if any(process.hub is not None for process in self.hubs):
                self._record_memory()

    def _record_health_of_hubs(self) -> None:
        """Records the health of the fleet as each hub sees it that missed nothing lately."""
        for process in self.hubs:
            if process.hub is not None and process.settled:
                self._record_health(process.hub, self._seq or None)

    def _stream(self, owner: str) -> Random:
        return self.runtime.rng.stream(f"sim/{owner}")


def play(
    scenario: Scenario,
    recorder: Recorder,
    ceremonies: Mapping[str, bytes] | None = None,
    *,
    entries: Sequence[AgentEntry] = (),
) -> None:
    """Plays a scenario on virtual time into ``recorder``. A failure in the background, or a run in which all workers
    wait for ever, becomes a line about which the invariants decide.
    """
    simulation = Simulation(scenario, recorder, ceremonies or {}, entries)
    seconds = 0.0

    async def main() -> None:
        nonlocal seconds
        try:
            await simulation.play()
        finally:
            seconds = simulation.now

    with (
        simulation.keys.handed_over(),
        background_failures(lambda said: recorder.write(simulation.now, "complaint", said=said)),
    ):
        try:
            run(main, seed=scenario.seed, start=scenario.start, shuffle=True)
        except (Deadlock, LeftOver, Spinning) as error:
            recorder.write(seconds, "complaint", said=f"{type(error).__name__}: {one_line(str(error), 2_000)}")


ZONES = ("Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Pacific/Chatham")
"""Far from UTC, and by no whole hour: what goes by the wrong one fires at other minutes."""


@contextmanager
def host_in(zone: str) -> Iterator[None]:
    """Let local time be that of ``zone``."""
    before = {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ", None)
        os.environ.update(before)
        time.tzset()
