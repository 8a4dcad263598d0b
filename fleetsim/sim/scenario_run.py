"""The common part of every run of a scenario: the recording, and each trouble at its time."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fleetsim.events.request import EPOCH, Event
from fleetsim.hub.hub import Hub
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome
from fleetsim.sim.agents import AgentTask
from fleetsim.sim.clocks import RunClock
from fleetsim.sim.recorder import Recorder, digest_of
from fleetsim.sim.scenario import Scenario, SimulatedAgent
from fleetsim.sim.troubles import Trouble
from fleetsim.testbed.faults import Weather

OUTCOMES_MAX = 10_000_000


class ScenarioRun(ABC):
    """One run, written to ``recorder``. ``ceremonies`` are the files of the scenario's folder, by name; ``agents`` are
    the simulated agents.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder,
        clock: RunClock,
        *,
        ceremonies: Mapping[str, bytes],
        agents: Mapping[str, SimulatedAgent],
    ) -> None:
        self.scenario = scenario
        self.recorder = recorder
        self.clock = clock
        self.ceremonies = ceremonies
        self.agents = dict(agents)
        self._slower: dict[str, float] = dict.fromkeys(self.agents, 1.0)

    # ------------------------------------------------------------------ troubles

    async def _bring_trouble(self, trouble: Trouble) -> None:
        """Plays one trouble from its begin to its end."""
        await self.clock.sleep(trouble.begins_s(self.scenario.start))
        names = self.scenario.replicas_of(trouble.agent) if trouble.agent else tuple(self.agents)
        self.record("trouble", fault=trouble.fault, agent=trouble.agent, phase="begins", said=trouble.in_words)
        lasts = self.scenario.duration if trouble.lasts is None else trouble.lasts
        try:
            if trouble.kind.fault is not None:
                up = self._add_faults(trouble, names)
                try:
                    await self.clock.sleep(lasts)
                finally:
                    for fault in up:
                        fault.lift()
                    self.record("hits", fault=trouble.fault, hits=sum(fault.hits for fault in up))
            elif trouble.fault == "slower":
                for name in names:
                    self._slower[name] *= trouble.how_much
                await self._for(lasts, lambda: self._slower.update(dict.fromkeys(names, 1.0)))
            else:
                await self._disturb_processes(trouble, names, lasts)
        finally:
            self.record("trouble", fault=trouble.fault, agent=trouble.agent, phase="ends")

    async def _for(self, seconds: float, end: Callable[[], object]) -> None:
        try:
            await self.clock.sleep(seconds)
        finally:
            end()

    @abstractmethod
    def _add_faults(self, trouble: Trouble, names: tuple[str, ...]) -> Sequence[Weather]:
        """Adds the faults of a trouble to messages of these agents."""

    @abstractmethod
    async def _disturb_processes(self, trouble: Trouble, names: tuple[str, ...], lasts: float) -> None:
        """Disturbs processes, clocks or storage for ``lasts`` seconds of the run."""

    # ------------------------------------------------------------------ the recording

    @property
    def now(self) -> float:
        return self.clock.now

    def ended(self, task: AgentTask) -> None:
        self.recorder.task(self.now, task)

    def slowness(self, agent: str) -> float:
        return self._slower[agent]

    def record(self, kind: str, **members: object) -> None:
        self.recorder.write(self.now, kind, **members)

    async def _listen(self, hub: Hub, take: Callable[[Event], None] | None = None) -> None:
        """Records all events of a hub until it stops, or hands them to ``take``."""
        take = take or (lambda event: self.recorder.event(self.now, event))
        async with hub.events.subscribe(after_seq=0, keep_max=10_000_000) as events:
            try:
                async for batch in events:
                    for event in batch:
                        take(event)
            finally:
                while events.behind:
                    for event in await events.next_batch():
                        take(event)

    def _record_health(self, hub: Hub, seq: int | None = None) -> None:
        """``seq`` is the number of the newest event; by default, the hub's."""
        self.record(
            "health",
            now=hub.runtime.clock.now().isoformat(),
            seq=hub.events.last_seq if seq is None else seq,
            agents={
                row.agent_name: {"health": row.health.value, "outcomes": row.total_outcomes}
                for row in hub.snapshot().agents
            },
        )

    async def _record_outcomes(self, hub: Hub) -> Mapping[str, str]:
        """Records the outcomes in the ledger. Returns a digest of each, by correlation id."""
        recorded: dict[str, str] = {}
        for outcome in await self._outcomes(hub):
            intent = await hub.ledger.request(outcome.correlation_id)
            self.recorder.outcome(self.now, outcome, accepted=intent is not None)
            recorded[outcome.correlation_id] = digest_of(repr(outcome))
        return recorded

    async def _outcomes(self, hub: Hub) -> Sequence[Outcome]:
        return await hub.ledger.outcomes(since=EPOCH, limit=OUTCOMES_MAX)


class _ErrorLog(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(logging.ERROR)
        self._record = write

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._record(one_line(f"{record.name}: {record.getMessage()}{why}", 400))


@contextmanager
def background_failures(write: Callable[[str], object]) -> Iterator[None]:
    """Passes each logged error to ``write`` as one line, and logs the rest only at level DEBUG."""
    handler, log = _ErrorLog(write), logging.getLogger("fleetsim")
    level, log.propagate = log.level, log.propagate and log.isEnabledFor(logging.DEBUG)
    if not log.propagate:  # a day of a fleet is thousands of lines
        log.setLevel(logging.ERROR)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = True
