"""A run: the production hub and agents on virtual time, with a scenario's traffic, people and weather over them.

What runs is what a fleet runs in production; only the clock, the network, the disk and the skills are simulated
(``fleetsim.testbed``). Everything that happens is told to a ``Recorder``, which is all that is read afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from urllib.parse import urlsplit

from fleetsim.caller.events import EPOCH, QuestionAsked
from fleetsim.caller.fleet import AgentEntry, FleetConfig
from fleetsim.caller.ledger.file import open_memory
from fleetsim.caller.ledger.sqlite import Ledger, LedgerLimits
from fleetsim.caller.ledger.storage import InlineStorage
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import Answer, Decision, Outcome, SkillRequest, Source
from fleetsim.runtime.exchange import origin_of as _origin
from fleetsim.runtime.workers import Workers
from fleetsim.sim.agents import TaskTruth, simulated_agent
from fleetsim.sim.disk import DiskSession, SimulatedDisk
from fleetsim.sim.lines import FORMAT
from fleetsim.sim.quantities import draw
from fleetsim.sim.recording import Recorder
from fleetsim.sim.scenario import Mix, Scenario, Traffic
from fleetsim.sim.traffic import arrivals
from fleetsim.sim.troubles import MixedTroubles, Trouble, match_of, standard_mix
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from fleetsim.testbed.files import MemoryFiles
from fleetsim.testbed.loop import Deadlock, LeftOver, Spinning, run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import VirtualClock, virtual_runtime

HUB = "http://hub.sim:8080"
HUB_ADDRESS = "93.184.216.34"
"""A public address, so that webhooks are held to the policy for those; nothing outside this process is dialled."""
FOLDER = Path("ceremonies")
KEEP_ALL = LedgerLimits(outcomes_max=10_000_000, keep_s=366 * 86_400.0)
HEALTH_EVERY_S = 3_600.0
HEALTH_LOOKS_MIN = 24
"""How often health is looked at in a run too short for one look an hour."""
SETTLE_LOOK_S = 10.0
SETTLE_GRACE_S = 600.0
RETRY_ANSWER_S = 5.0


def origin_of(agent: str) -> str:
    """Where a simulated agent is."""
    return f"http://{agent.lower()}.sim:8000"


def mixed(scenario: Scenario, mix: Mix) -> MixedTroubles:
    """The trouble that the scenario's seed draws."""
    return standard_mix(
        Random(f"{scenario.seed}/mix"),
        agents=tuple(name for name, _ in scenario.agents),
        duration=scenario.duration,
        scale=mix.scale,
        off=mix.off,
    )


class Simulation:
    """One run of a scenario; ``play`` is all of it. ``ceremonies`` are the files of its folder, by name."""

    def __init__(self, scenario: Scenario, recorder: Recorder, ceremonies: Mapping[str, bytes]) -> None:
        self.scenario = scenario
        self.recorder = recorder
        self.network = MemoryNetwork(seed=scenario.seed)
        self.network.addresses[str(urlsplit(HUB).hostname)] = (HUB_ADDRESS,)
        files = MemoryFiles({str(FOLDER / "README.md"): "about"})
        for name, content in ceremonies.items():
            files.put(FOLDER / name, content)
        self.runtime = virtual_runtime(scenario.seed, self.network, scenario.start, name="hub", files=files)
        self.disk = SimulatedDisk(InlineStorage(lambda: open_memory(scenario.start)))
        self.keys = HubKeys.fresh(self.runtime.ids)
        self.agents = dict(scenario.agents)
        self.hub: Hub | None = None
        self._session: DiskSession | None = None
        self._slower: dict[str, float] = dict.fromkeys(self.agents, 1.0)
        self._deaths: dict[str, int] = dict.fromkeys(self.agents, 0)
        self._decided: set[str] = set()
        self._around_hub = Workers("hub's surroundings")
        self._hub_changes = asyncio.Lock()
        self._workers = Workers("simulation")

    # ------------------------------------------------------------------ the run

    async def play(self) -> None:
        """All of it: traffic and trouble for ``duration``, then calm until everything has ended, then the truth."""
        scenario = self.scenario
        self.tell(
            "start",
            format=FORMAT,
            scenario=scenario.name,
            seed=scenario.seed,
            start=scenario.start.isoformat(),
            duration_s=scenario.duration,
            agents=[{"agent": name, "skills": list(agent.skills)} for name, agent in self.agents.items()],
            replicas={run: name for name in scenario.fleet for run in scenario.replicas_of(name) if run != name},
            expect=[expectation.text for expectation in scenario.expect],
        )
        await self.disk.storage.start()
        for name in self.agents:
            self._mount(name)
        async with self.network, self._workers, self._around_hub:
            await self._start_hub()
            await self._cards_read()
            await self._have_weather_and_traffic()
            await self._settle()
            assert self.hub is not None
            self._tell_health(self.hub)
            for outcome in await self.hub.ledger.outcomes(since=EPOCH, limit=10_000_000):
                intent = await self.hub.ledger.request(outcome.correlation_id)
                self.recorder.outcome(self.now, outcome, accepted=intent is not None)
            self.tell(
                "reached", origins=sorted({f"{s.source.partition('#')[0]} {_origin(s.url)}" for s in self.network.seen})
            )
            self.tell("end", kept={what: count for what, count in self.hub.tracker.kept().items() if count})
            await self._workers.close()
            await self._around_hub.close()
            await self.hub.__aexit__(None, None, None)
        await self.disk.storage.stop()

    async def _have_weather_and_traffic(self) -> None:
        scenario = self.scenario
        for number, traffic in enumerate(scenario.traffic):
            self._workers.start(self._come(traffic, self._stream(f"traffic/{number}")), name=f"traffic {number}")
        troubles = list(scenario.weather)
        if scenario.mix is not None:
            drawn = mixed(scenario, scenario.mix)
            self.tell("mix", left_out=list(drawn.left_out))
            troubles += drawn.troubles
        weather = Workers("weather")
        async with weather:
            for number, trouble in enumerate(troubles):
                weather.start(self._befall(trouble), name=f"{number} {trouble.fault}")
            self._workers.start(self._look_at_health(), name="health")
            await asyncio.sleep(scenario.duration)

    async def _settle(self) -> None:
        """All trouble has ended; wait until every request has its outcome, or the longest that one may take is over."""
        self.disk.full = False
        for name in self.agents:
            self._slower[name] = 1.0
        await self._start_hub()
        self.tell("calm")
        settings = self.scenario.settings
        deadline = self.now + settings.task_limit_s + settings.question_ttl_s + SETTLE_GRACE_S
        while self.now < deadline and (self.hub is None or any(self.hub.tracker.kept().values())):  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_LOOK_S)
        await asyncio.sleep(SETTLE_GRACE_S)  # what agents still have to say comes to nobody who waits for it

    # ------------------------------------------------------------------ who runs

    def _mount(self, name: str) -> None:
        origin = origin_of(name)
        life = self._deaths[name]
        runtime = virtual_runtime(self.scenario.seed, self.network, self.scenario.start, name=f"{name}#{life}")
        agent = simulated_agent(name, self.agents[name], self, url=origin, life=life)
        self.network.mount(origin, agent.replace(runtime=runtime).app())

    async def _kill_agent(self, name: str) -> None:
        """It is gone at once, with all its tasks: nothing that it still tries leaves it."""
        self.network.fault(faults.Refuse(), Match(source=f"{name}#{self._deaths[name]}"))
        self._deaths[name] += 1
        await self.network.crash(origin_of(name))

    async def _start_hub(self) -> None:
        """Start it, if it does not run."""
        async with self._hub_changes:
            if self.hub is None:
                await self._start_anew()

    async def _start_anew(self) -> None:
        self._session = self.disk.session()
        ledger = Ledger(self._session, KEEP_ALL)
        entries = tuple(
            # The cards of 0.1 do not say what they speak: whoever lists such an agent does.
            AgentEntry(name=name, url=f"{origin_of(name)}/a2a", wire="0.1" if agent.dialect == "0.1" else None)
            for name, agent in self.agents.items()
        )
        settings = self.scenario.settings
        config = FleetConfig(agents=entries, settings=replace(settings, base_url=settings.base_url or HUB))
        hub = Hub(config, self.runtime, ledger, keys=self.keys, url=HUB, ceremonies=FOLDER)
        self.network.mount(HUB, build_app(hub))
        # Listening begins before the hub does, so that nothing it says is missed.
        self._around_hub.start(self._listen(hub), name="events")
        await asyncio.sleep(0)
        await hub.__aenter__()
        self.hub, self._session.up = hub, True
        self._around_hub.start(self._answer(hub), name="people")

    async def _written(self) -> None:
        """Wait until the hub has written something, of which it hears nothing any more."""
        if self.disk.written is None:
            self.disk.written = asyncio.get_running_loop().create_future()
        try:
            await self.disk.written
        finally:
            self.disk.written = None

    async def _kill_hub(self) -> None:
        """It is gone at once: nothing it still tries reaches the disk or the network."""
        async with self._hub_changes:
            hub, self.hub = self.hub, None
            if hub is None or self._session is None:
                return
            self._session.cut = True
            with self.network.fault(faults.Refuse(), Match(source="hub")):
                await self.network.crash(HUB)
                await self._around_hub.close()
                with suppress(FleetsimError):
                    await hub.__aexit__(None, None, None)
            self.tell("killed", journalled=await Ledger(self.disk.session(), KEEP_ALL).last_seq())

    async def _listen(self, hub: Hub) -> None:
        async with hub.events.subscribe(after_seq=0, keep_max=10_000_000) as events:
            try:
                async for batch in events:
                    for event in batch:
                        self.recorder.event(self.now, event)
            finally:
                while events.behind:
                    for event in await events.next_batch():
                        self.recorder.event(self.now, event)

    async def _cards_read(self) -> None:
        """Traffic begins once every agent is known, as it would with a fleet that runs."""
        hub = self.hub
        while hub is not None and any(view.card is None for view in hub.broker.views()):  # noqa: ASYNC110
            await asyncio.sleep(1.0)

    # ------------------------------------------------------------------ what comes in

    async def _come(self, traffic: Traffic, rng: Random) -> None:
        targets = self.scenario.replicas_of(traffic.agent) if traffic.agent else ()
        began = self.now
        moments = arrivals(traffic, rng, start=self.scenario.start, duration=self.scenario.duration)
        for number, moment in enumerate(moments):
            await asyncio.sleep(max(0.0, began + moment - self.now))
            target = (targets[number % len(targets)],) if targets else ()
            people = self.scenario.people
            pauses = [draw(traffic.pause, rng) for _ in range(traffic.turns - 1)]
            gives_up = draw(people.cancel_after, rng) if rng.random() < people.cancel else None
            self._workers.start(self._ask(traffic, target, pauses, gives_up), name="request")

    async def _ask(
        self, traffic: Traffic, targets: tuple[str, ...], pauses: list[float], gives_up: float | None
    ) -> None:
        """One request, or the turns of a conversation, each after the answer to the one before."""
        context: str | None = None
        for turn, pause in enumerate([0.0, *pauses]):
            await asyncio.sleep(pause)
            cid = self.runtime.ids.new()
            request = SkillRequest(
                correlation_id=cid,
                text=f"{traffic.text} ({cid[-6:]})",
                skill=traffic.skill,
                targets=targets,
                context_id=context,
                first_turn=turn == 0 and traffic.turns > 1,
                system_actor="sim",
                source=Source(interface="sim"),
            )
            try:
                if self.hub is None:
                    raise NotAccepting("the hub is down")
                (cid,) = await self.hub.submit(request)
            except FleetsimError as error:
                self.tell("refused", skill=traffic.skill, why=str(error)[:200])
                return
            if gives_up is not None and turn == 0:
                self._workers.start(self._give_up(cid, gives_up), name="cancel")
            if turn == len(pauses):
                return
            outcome = await self._outcome_of(cid)
            if not outcome.success:
                return
            context, targets = outcome.context_id, (outcome.agent,)

    async def _outcome_of(self, cid: str) -> Outcome:
        """Wait for it, over restarts of the hub too."""
        while True:
            hub = self.hub
            if hub is not None:
                with suppress(FleetsimError):
                    outcome = await hub.ledger.outcome(cid)
                    if outcome is not None:
                        return outcome
            await asyncio.sleep(1.0)

    async def _give_up(self, cid: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(UnknownTarget):
            if self.hub is not None:
                self.hub.tracker.cancel(cid, by="simulated person")
                self.tell("canceled", correlation_id=cid)

    async def _answer(self, hub: Hub) -> None:
        """People see a question once; whether and when they answer is drawn then."""
        async with hub.events.subscribe(after_seq=0, keep_max=10_000_000, kinds=(QuestionAsked,)) as asked:
            for question in hub.tracker.questions():  # asked before a restart
                self._think_about(question.question_id)
            async for batch in asked:
                for event in batch:
                    if isinstance(event, QuestionAsked):
                        self._think_about(event.question_id)

    def _think_about(self, question_id: str) -> None:
        if question_id in self._decided:
            return
        self._decided.add(question_id)
        people = self.scenario.people
        rng = Random(f"{self.scenario.seed}/question/{question_id}")
        after_s = draw(people.answer_after, rng)
        if rng.random() < people.never:
            return
        decision = Decision.REJECT if rng.random() < people.reject else Decision.ANSWER
        answer = Answer(question_id=question_id, text=people.says, by="simulated person", decision=decision)
        self._workers.start(self._say(answer, after_s), name="answer")

    async def _say(self, answer: Answer, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            try:
                if self.hub is None:
                    raise NotAccepting("the hub is down")
                question = await self.hub.tracker.answer(answer)
            except UnknownTarget:
                return  # it was answered, withdrawn or is over
            except NotAccepting:
                await asyncio.sleep(RETRY_ANSWER_S)
                continue
            self.tell("answer", question_id=answer.question_id, correlation_id=question.correlation_id)
            return

    # ------------------------------------------------------------------ what befalls them

    async def _befall(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.begins_s(self.scenario.start))
        names = self.scenario.replicas_of(trouble.agent) if trouble.agent else tuple(self.agents)
        self.tell("trouble", fault=trouble.fault, agent=trouble.agent, phase="begins", said=trouble.in_words)
        lasts = self.scenario.duration if trouble.lasts is None else trouble.lasts
        try:
            if trouble.kind.fault is not None:
                await self._over_messages(trouble, names, lasts)
            else:
                await self._over_processes(trouble, names, lasts)
        finally:
            self.tell("trouble", fault=trouble.fault, agent=trouble.agent, phase="ends")

    async def _over_messages(self, trouble: Trouble, names: tuple[str, ...], lasts: float) -> None:
        assert trouble.kind.fault is not None
        fault = trouble.kind.fault(trouble.how_much)
        everywhere = trouble.kind.on == "webhook" and trouble.agent is None
        matches = [
            match for name in (names[:1] if everywhere else names) for match in match_of(trouble, origin_of(name), HUB)
        ]
        up = [self.network.fault(fault, match, probability=trouble.share) for match in matches]
        try:
            await asyncio.sleep(lasts)
        finally:
            for one in up:
                one.lift()
            self.tell("hits", fault=trouble.fault, hits=sum(one.hits for one in up))

    async def _over_processes(self, trouble: Trouble, names: tuple[str, ...], lasts: float) -> None:
        match trouble.fault:
            case "agent-down":
                for name in names:
                    self.network.down(origin_of(name))
                await self._for(lasts, partial(self._each, names, lambda name: self.network.up(origin_of(name))))
            case "agent-restart":
                for name in names:
                    await self._kill_agent(name)
                dead = {name: self._deaths[name] for name in names}
                await self._for(lasts if trouble.lasts is not None else 1.0, partial(self._revive, dead))
            case "hub-restart" | "hub-dies-writing":
                if trouble.fault == "hub-dies-writing":
                    await self._written()
                await self._kill_hub()
                await asyncio.sleep(lasts if trouble.lasts is not None else 1.0)
                await self._start_hub()
            case "slower":
                for name in names:
                    self._slower[name] *= trouble.how_much
                await self._for(lasts, lambda: self._slower.update(dict.fromkeys(names, 1.0)))
            case "clock-jump":
                assert isinstance(self.runtime.clock, VirtualClock)
                self.runtime.clock.jump(trouble.how_much)
            case "disk-full":
                self.disk.full = True
                await self._for(lasts, lambda: setattr(self.disk, "full", False))

    def _revive(self, dead: Mapping[str, int]) -> None:
        """Mount those again that did not die once more meanwhile: whoever killed them last brings them back."""
        for name, deaths in dead.items():
            if self._deaths[name] == deaths:
                self._mount(name)

    def _each(self, names: tuple[str, ...], do: Callable[[str], None]) -> None:
        for name in names:
            do(name)

    async def _for(self, seconds: float, end: Callable[[], object]) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            end()

    # ------------------------------------------------------------------ what is told

    def ended(self, truth: TaskTruth) -> None:
        if truth.life != self._deaths[truth.agent]:
            truth.ended = "killed"
        self.recorder.task(self.now, truth)

    def slowness(self, agent: str) -> float:
        return self._slower[agent]

    def tell(self, kind: str, **members: object) -> None:
        self.recorder.write(self.now, kind, **members)

    async def _look_at_health(self) -> None:
        every_s = min(HEALTH_EVERY_S, self.scenario.duration / HEALTH_LOOKS_MIN)
        while True:
            await asyncio.sleep(every_s)
            if self.hub is not None:
                self._tell_health(self.hub)

    def _tell_health(self, hub: Hub) -> None:
        self.tell(
            "health",
            now=self.runtime.clock.now().isoformat(),
            agents={
                row.agent_name: {"health": row.health.value, "outcomes": row.figures.total_outcomes}
                for row in hub.snapshot().agents
            },
        )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _stream(self, owner: str) -> Random:
        return self.runtime.rng.stream(f"sim/{owner}")


class _Complaints(logging.Handler):
    """Errors that were logged while it ran: something failed that nobody waited for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._tell(one_line(f"{record.name}: {record.getMessage()}{why}", 400))


def play(scenario: Scenario, recorder: Recorder, ceremonies: Mapping[str, bytes] | None = None) -> None:
    """Run a scenario on virtual time, telling ``recorder`` all of it.

    What fails unseen, and a run in which everybody waits for something that cannot come, is a complaint in the
    recording: the checker decides.
    """
    simulation = Simulation(scenario, recorder, ceremonies or {})
    seconds = 0.0

    async def main() -> None:
        nonlocal seconds
        try:
            await simulation.play()
        finally:
            seconds = simulation.now

    complaints = _Complaints(lambda said: recorder.write(simulation.now, "complaint", said=said))
    log = logging.getLogger("fleetsim")
    level, log.propagate = log.level, log.propagate and log.isEnabledFor(logging.DEBUG)
    if not log.propagate:  # a day of a fleet is thousands of lines that nobody asked for
        log.setLevel(logging.ERROR)
    log.addHandler(complaints)
    try:
        run(main, seed=scenario.seed, start=scenario.start, shuffle=True)
    except (Deadlock, LeftOver, Spinning) as error:
        recorder.write(seconds, "complaint", said=f"{type(error).__name__}: {one_line(str(error), 2_000)}")
    finally:
        log.removeHandler(complaints)
        log.setLevel(level)
        log.propagate = True
