"""Plays a scenario: on virtual time by ``simulation``, or here in real time.

In real time the production hub is on loopback HTTP, with simulated agents or real ones by their addresses.

Traffic, people, troubles and the clock of ceremonies go at the rate of the run; deadlines, polls and the work of agents
take seconds of the machine. Proxies make the trouble on messages. Only agents that meet such trouble get a proxy, so it
does not slow the others.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from io import StringIO
from os.path import normpath
from pathlib import Path
from urllib.parse import urlsplit

from fleetsim.fleet.auth import credentials_of
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import ConfigError, UnknownTarget, Unreachable
from fleetsim.recording.reader import lines_of
from fleetsim.runtime.collector import own_garbage
from fleetsim.runtime.explain import combine
from fleetsim.runtime.real import SystemClock, running_runtime
from fleetsim.runtime.server import Listener, listen
from fleetsim.runtime.workers import Workers
from fleetsim.runtime.yaml import YamlDocument
from fleetsim.sim.agents import simulated_agent
from fleetsim.sim.clocks import VIRTUAL, ClockRate, PacedClock, RunClock
from fleetsim.sim.hubs import KEEP_ALL
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.report import SimulationReport, report_of
from fleetsim.sim.run import WANTED
from fleetsim.sim.scenario import Scenario
from fleetsim.sim.scenario_run import ScenarioRun, background_failures
from fleetsim.sim.simulation import HEALTH_LOOKS_MIN, play
from fleetsim.sim.traffic import WHOLE, TrafficPart, TrafficSource
from fleetsim.sim.troubles import Trouble, match_of
from fleetsim.testbed.faults import Weather
from fleetsim.testbed.proxy import FaultProxy

SETTLE_S = 300.0
CARDS_S = 15.0
CANCELED_S = 15.0
LOOK_S = 0.25
PROCESSES = frozenset({"agent-down", "slower", "clock-jump"})
"""The troubles of processes that are possible in real time."""


def check_clock(scenario: Scenario, written: YamlDocument, rate: ClockRate) -> None:
    """Checks that a scenario can be played at this rate. Raises ConfigError with places."""
    problems = tuple(_problems(scenario, written, rate))
    if problems:
        raise combine(problems)


def starts_now(scenario: Scenario, rate: ClockRate) -> bool:
    """Whether the clock of the run is the machine's: it is, unless the scenario says when it starts."""
    return not rate.virtual and rate.times == 1 and "start" not in scenario.model_fields_set


def _problems(scenario: Scenario, written: YamlDocument, rate: ClockRate) -> Iterator[ConfigError]:
    real = {name for name, agent in scenario.fleet.items() if agent.url is not None}
    if rate.virtual:
        for name in sorted(real):
            hint = "play it with --clock real, or --clock x60"
            yield written.error(("fleet", name, "url"), "a real agent has no virtual time", hint=hint, key=True)
        return
    for name in sorted(real):
        agent = scenario.fleet[name]
        for credential in credentials_of(agent.auth, agent.api_key_env):
            try:
                credential.require()
            except ConfigError as error:
                yield written.error(("fleet", name, "auth" if agent.auth is not None else "apiKeyEnv"), str(error))
    if starts_now(scenario, rate):
        now = SystemClock().now()
        moments = [(("weather", at, "at"), trouble.begins_s(now)) for at, trouble in enumerate(scenario.weather)]
        begun = [(at, traffic.begins.after(now)) for at, traffic in enumerate(scenario.traffic) if traffic.begins]
        for path, begins_s in (*moments, *((("traffic", at, "begins"), begins_s) for at, begins_s in begun)):
            if begins_s >= scenario.duration:
                hint = "write a span after the start, or give the scenario a start"
                yield written.error(path, f"with --clock {rate} the run starts now, and ends before that", hint=hint)
    hint = "play it with --clock virtual"
    for name in (name for name, agent in scenario.fleet.items() if agent.tape is not None):
        more = f"{hint}, or give the url of `fleetsim tape play`"
        yield written.error(("fleet", name, "tape"), "a tape has virtual time alone here", hint=more, key=True)
    if scenario.hubs > 1:
        yield written.error(("hubs",), f"several hubs are not possible with --clock {rate}", hint=hint)
    if scenario.mix is not None:
        yield written.error(("mix",), f"a mix draws trouble that is not possible with --clock {rate}", hint=hint)
    for at, trouble in enumerate(scenario.weather):
        met = real if trouble.agent is None else real & {trouble.agent}
        why = ""
        if trouble.kind.on == "process" and trouble.fault not in PROCESSES:
            why = "not possible in real time"
        elif trouble.fault == "slower" and met:
            why = "a real agent is as fast as it is"
        elif trouble.kind.on == "webhook" and (trouble.agent is not None or real):
            why = "in real time webhooks meet trouble only from all agents together, all simulated"
        elif trouble.kind.on in {"agent", "card"} or trouble.fault == "agent-down":
            https = [name for name in sorted(met) if str(scenario.fleet[name].url).startswith("https")]
            why = f"trouble cannot be put between the hub and {https[0]}, which speaks https" if https else ""
        if why:
            yield written.error(("weather", at, "fault"), f"'{trouble.fault}' with --clock {rate}: {why}", hint=hint)


class LiveSimulation(ScenarioRun):
    """One run of a scenario in real time; ``play`` is all of it. ``folder`` is an empty one, for the hub's files.
    ``entries`` are real agents of agents.yaml, which stand for all of the scenario's.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder,
        rate: ClockRate,
        folder: Path,
        *,
        ceremonies: Mapping[str, bytes],
        entries: Sequence[AgentEntry] = (),
        settle_s: float,
        part: TrafficPart = WHOLE,
    ) -> None:
        self._part = part
        self._began = SystemClock().now()
        if starts_now(scenario, rate):
            scenario = scenario.model_copy(update={"start": self._began})
        agents = {} if entries else dict(scenario.agents)
        super().__init__(scenario, recorder, RunClock(rate), ceremonies=ceremonies, agents=agents)
        self.folder = folder
        self._entries = entries
        self._settle_s = settle_s
        self._paced = PacedClock(scenario.start, self.clock)
        self._proxies: dict[str, FaultProxy] = {}
        self._webhooks: FaultProxy | None = None
        self._workers, self._asking = Workers("live simulation"), Workers("traffic")
        self._stopped = asyncio.Event()

    async def play(self) -> None:
        """Plays traffic and trouble for ``duration``, waits for open requests, and records the ledger's outcomes.

        The first SIGINT ends the traffic, the second the waiting. The recording stays. Raises Unreachable if an agent's
        card cannot be read.
        """
        scenario = self.scenario
        self.recorder.start(scenario, self.clock.rate, self.ceremonies, self._entries, began=self._began)
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread: nobody interrupts it
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._stopped.set)
        async with AsyncExitStack() as stack:
            stack.enter_context(background_failures(lambda said: self.record("complaint", said=said)))
            self._write_ceremonies()
            listener, config = await self._fleet(stack)
            runtime = await stack.enter_async_context(running_runtime(seed=scenario.seed))
            ledger = open_ledger(self.folder / "ledger.db", clock=runtime.clock, limits=KEEP_ALL)
            hub = await stack.enter_async_context(
                running_hub(
                    config,
                    runtime,
                    await stack.enter_async_context(ledger),
                    listener=listener,
                    ceremonies=self.folder / "ceremonies",
                    ceremony_clock=self._paced,
                )
            )
            await stack.enter_async_context(self._workers)
            await stack.enter_async_context(self._asking)
            self._workers.start(self._listen(hub), name="events")
            await self._cards_read(hub)
            if self._part.ready is not None:
                await self._part.ready(self._stopped.set)
            traffic = TrafficSource(
                scenario,
                self.recorder,
                runtime,
                self.clock,
                self._workers,
                asking=self._asking,
                hub=lambda: hub,
                part=self._part,
            )
            self._workers.start(traffic.answer(hub), name="people")
            self._workers.start(self._show_progress(), name="progress")
            self._workers.start(self._look_at_health(hub), name="health")
            self._workers.start(self.clock.run(), name="clock")
            traffic.come()
            async with Workers("weather") as weather:
                for number, trouble in enumerate(scenario.weather):
                    weather.start(self._bring_trouble(trouble), name=f"{number} {trouble.fault}")
                await self._until(scenario.duration)
            await self._settle(hub, traffic)
            self._record_health(hub)
            await self._record_outcomes(hub)
            await self._workers.close()
            self.record("end", kept={what: count for what, count in hub.tracker.kept().items() if count})

    def _write_ceremonies(self) -> None:
        (self.folder / "ceremonies").mkdir()
        for name, content in self.ceremonies.items():
            path = Path(normpath(self.folder / "ceremonies" / name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    async def _fleet(self, stack: AsyncExitStack) -> tuple[Listener, FleetConfig]:
        """Start agents and proxies; where the hub is to listen, and its configuration."""
        scenario = self.scenario
        listener = listen("127.0.0.1", 0)  # bound first: proxies of webhooks must know its port
        stack.callback(listener.close)
        port: int = listener.getsockname()[1]
        settings = scenario.settings
        if any(trouble.kind.on == "webhook" for trouble in scenario.weather):
            self._webhooks = await stack.enter_async_context(FaultProxy(f"http://127.0.0.1:{port}", seed=scenario.seed))
            settings = replace(settings, base_url=self._webhooks.url)
        met = {
            name
            for trouble in scenario.weather
            if trouble.kind.on in {"agent", "card"} or trouble.fault == "agent-down"
            for name in (scenario.replicas_of(trouble.agent) if trouble.agent else self.agents)
        }
        entries = list(self._entries)
        for name, agent in self.agents.items():
            url = agent.url
            if url is None:
                served = simulated_agent(name, agent, self, url=None, life=0).replace(allow_webhook=("127.0.0.1/32:*",))
                url = f"{await stack.enter_async_context(served.serving())}/a2a"
            if name in met:
                proxy = FaultProxy(url, seed=scenario.seed)
                self._proxies[name] = await stack.enter_async_context(proxy)
                url = urlsplit(url)._replace(scheme="http", netloc=urlsplit(proxy.url).netloc).geturl()
            own = {"auth": agent.auth, "api_key_env": agent.api_key_env, "external": self._webhooks is not None}
            entries.append(scenario.entry(name, agent, url, **own))
        return listener, FleetConfig(agents=tuple(entries), settings=settings, limits=self.scenario.limits)

    async def _cards_read(self, hub: Hub) -> None:
        """Traffic begins once every agent is known. Raises Unreachable if one is not after a while."""
        for _ in range(round(CARDS_S / LOOK_S)):
            unread = [view for view in hub.broker.views() if view.entry.enabled and view.card is None]
            if not unread or self._stopped.is_set():
                return
            await asyncio.sleep(LOOK_S)
        first = unread[0]
        raise Unreachable(
            f"the card of {first.entry.name} could not be read within {CARDS_S:.0f} s: {first.stale_reason}",
            hint=f"fleetsim card {first.entry.url}",
        )

    async def _until(self, moment_s: float) -> None:
        """Wait until that moment of the run, or until it is to stop."""
        while not self._stopped.is_set() and (left_s := moment_s - self.clock.now) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s / self.clock.rate.times):
                    await self._stopped.wait()

    async def _settle(self, hub: Hub, traffic: TrafficSource) -> None:
        """Wait until all that is under way has ended, conversations too; cancel what is too slow."""
        self._slower.update(dict.fromkeys(self._slower, 1.0))
        if self._stopped.is_set():
            self.record("stopped")
            self._stopped.clear()
            await self._asking.close()
        await traffic.end_ceremonies()
        self.record("calm")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settle_s
        while self._asking or hub.tracker.kept()["tracks"]:
            if self._stopped.is_set() or loop.time() >= deadline:
                break
            await asyncio.sleep(LOOK_S)
        await self._asking.close()
        left = [record.request.correlation_id for record in await hub.ledger.open_requests()]
        if left:
            waited_s = round(self._settle_s - (deadline - loop.time()), 1)
            self.record("unsettled", requests=len(left), after_s=max(0.0, waited_s))
            for correlation_id in left:
                with suppress(UnknownTarget):
                    await hub.tracker.cancel(correlation_id, by="end of the run")
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCELED_S):
                while any(hub.tracker.kept().values()):  # noqa: ASYNC110 - no event shows it
                    await asyncio.sleep(LOOK_S / 5)

    # ------------------------------------------------------------------ troubles

    async def _disturb_processes(self, trouble: Trouble, names: tuple[str, ...], lasts: float) -> None:
        match trouble.fault:
            case "agent-down":
                for name in names:
                    await self._proxies[name].down()
                try:
                    await self.clock.sleep(lasts)
                finally:
                    for name in names:
                        await self._proxies[name].up()
            case "clock-jump":
                self._paced.jump(trouble.how_much)

    def _add_faults(self, trouble: Trouble, names: tuple[str, ...]) -> list[Weather]:
        assert trouble.kind.fault is not None
        fault = trouble.kind.fault(trouble.how_much)
        if trouble.kind.on == "webhook":
            assert self._webhooks is not None
            proxies = [self._webhooks]
        else:
            proxies = [self._proxies[name] for name in names]
        return [
            proxy.fault(fault, match, probability=trouble.share)
            for proxy in proxies
            for match in match_of(trouble, proxy.target, proxy.target)
        ]

    # ------------------------------------------------------------------ the recording

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.recorder.look(self.now)

    async def _look_at_health(self, hub: Hub) -> None:
        while True:
            await self.clock.sleep(self.scenario.duration / HEALTH_LOOKS_MIN)
            self._record_health(hub)


def played(
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    *,
    source: str,
    record: Path,
    rate: ClockRate = VIRTUAL,
    settle_s: float = SETTLE_S,
    entries: Sequence[AgentEntry] = (),
    command: str = "",
    twice: bool = False,
    part: TrafficPart = WHOLE,
    progress: Callable[[float, Recorder], None] = lambda at_s, recorder: None,
) -> SimulationReport:
    """Play the scenario, write the recording and the verdict to the file ``record``, and report.

    At a ``rate`` that is not virtual, the hub is on real sockets, and what is under way at the end of the traffic has
    ``settle_s`` of the machine's seconds to end; ``entries`` are then real agents, in place of the scenario's. On
    virtual time only the disabled ones count. ``command`` is what plays it again, unless that is ``fleetsim sim`` of
    the ``source``. One on virtual time may be played ``twice``: both must be the same. ``part`` is of a run in real
    time. Raises ConfigError if ``record`` cannot be written, and Unreachable if a real agent is not there.
    """
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        # In real time each line is written at once, for the dashboard; on virtual time lines come by the thousand.
        with record.open("w", encoding="utf-8", buffering=-1 if rate.virtual else 1) as file:
            recorder = Recorder(file, progress)
            again = ""
            if rate.virtual:
                play(scenario, recorder, ceremonies, entries=entries)
                if twice:
                    second = Recorder(StringIO())
                    play(scenario, second, ceremonies)
                    again = second.digest
            else:
                with tempfile.TemporaryDirectory(prefix="fleetsim-sim-") as home:
                    live = LiveSimulation(
                        scenario,
                        recorder,
                        rate,
                        Path(home),
                        ceremonies=ceremonies,
                        entries=entries,
                        settle_s=settle_s,
                        part=part,
                    )
                    asyncio.run(live.play())
            recorder.played(
                source=source,
                wall_s=time.perf_counter() - began,
                cpu_s=time.process_time() - began_cpu,
                command=command,
                again=again,
            )
            file.flush()
            with own_garbage():
                report = report_of(lines_of(record, WANTED))
            recorder.verdict(report)
            return report
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
