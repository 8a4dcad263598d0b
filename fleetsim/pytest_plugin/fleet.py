"""The values of the pytest plugin's fixtures: a small fleet in memory, without a socket, whose hours pass at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import pytest

from fleetsim.agent import Agent
from fleetsim.check.listener import Listener, ReceivedWebhook, WebhookAddress, state_of
from fleetsim.client import AgentClient
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.files import read_file
from fleetsim.tape.replay import Replay
from fleetsim.tape.servers import TapeServer
from fleetsim.tape.talks import Matching
from fleetsim.tape.tape import TAPE_BYTES_MAX, Tape
from fleetsim.testbed.loop import run
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

if TYPE_CHECKING:
    from fleetsim.sim.report import SimulationReport

T = TypeVar("T")
AgentT = TypeVar("AgentT")

SINK = "http://webhooks:8080"
SINK_ADDRESS = "10.0.0.9"
ALLOWED = (f"{SINK_ADDRESS}/32:8080",)


class VirtualTime:
    """Runs stories on virtual time: ``asyncio.sleep(3600)`` passes at once, and a standstill is an error."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.after: list[Callable[[], Awaitable[None]]] = []

    def run(self, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an async function to its end and return its result. Raises Deadlock if nothing can happen any more."""

        async def whole() -> T:
            try:
                return await story()
            finally:
                for close in self.after:
                    await close()

        return run(whole, seed=self.seed)


@dataclass(slots=True, eq=False)
class WebhookSink:
    """A webhook address and what came to it."""

    hook: WebhookAddress

    @property
    def url(self) -> str:
        """The address to register with an agent; each sink of a fleet has one of its own."""
        return self.hook.url

    @property
    def arrivals(self) -> list[ReceivedWebhook]:
        """Every webhook that came, in order: headers, body and when (``ReceivedWebhook``)."""
        return self.hook.arrivals

    @property
    def bodies(self) -> list[Any]:
        """The JSON of every webhook that came, in order; None for a body that is no JSON."""
        return [arrival.value for arrival in self.hook.arrivals]

    @property
    def states(self) -> list[str]:
        """The states of the received webhooks, in the words of A2A 0.3."""
        return [state_of(arrival) for arrival in self.hook.arrivals]

    def answers(self, *statuses: int, otherwise: int = 200) -> None:
        """Answer the next webhooks with these HTTP statuses, and all after them with ``otherwise``."""
        self.hook.answers, self.hook.otherwise = list(statuses), otherwise

    def config(self, token: str | None = None) -> PushConfig:
        """The registration to send with a message or to set, with a token if one is given."""
        return PushConfig(url=self.url, token=token)


@dataclass(slots=True, eq=False)
class Member(Generic[AgentT]):
    """One agent of a fleet: where it is, and the agent itself as it runs there."""

    name: str
    url: str
    agent: AgentT
    fleet: Fleet = field(repr=False)

    def client(self, **options: Any) -> AgentClient:
        """A client of this agent; use as ``async with``. ``options`` are those of ``AgentClient``."""
        return self.fleet.client(self.url, **options)


class Fleet:
    """Agents at addresses of one network in memory.

    ``fleet.add(agent)`` puts one there and returns its ``Member``; ``fleet.network`` takes faults. ``folder`` is where
    ``sim`` finds scenarios, ``scenario_seed`` the seed they are played with if not with their own.
    """

    def __init__(self, seed: int, *, folder: Path = Path(), scenario_seed: int | None = None) -> None:
        self.seed = seed
        self._folder = folder
        self._scenario_seed = scenario_seed
        self.network = MemoryNetwork(seed=seed)
        self.network.addresses["webhooks"] = (SINK_ADDRESS,)
        self.runtime = virtual_runtime(seed, self.network, name="caller")
        self.members: dict[str, Member[Agent]] = {}
        self._listener = Listener(SINK)
        self._hooks = 0
        self.network.mount(SINK, self._listener.sink)

    def add(self, agent: Agent, name: str | None = None) -> Member[Agent]:
        """Put an agent into the fleet at ``http://NAME:9000``; its webhooks may go to the fleet's sinks. Raises
        ValueError for a name that is taken."""
        label = name or agent.settings.name
        if label in self.members:
            raise ValueError(f"there is an agent {label!r} in the fleet already")
        runtime = virtual_runtime(self.seed, self.network, name=label)
        moved = agent.replace(allow_webhook=(*agent.settings.allow_webhook, *ALLOWED), runtime=runtime)
        url = f"http://{label}:9000"
        self.network.mount(url, moved.app())
        member = self.members[label] = Member(name=label, url=f"{url}/a2a", agent=moved, fleet=self)
        return member

    def tape(self, file: str | Path, name: str | None = None, *, matching: Matching = "text") -> Member[TapeServer]:
        """Put the agent of a tape into the fleet at ``http://NAME:9000``, at the recorded pace of virtual time.

        ``file`` is as seen from the test's; ``agent.misses`` are requests without a recorded reply. Raises ConfigError.
        """
        tape, label = self._tape(file), name or Path(file).stem
        runtime = virtual_runtime(self.seed, self.network, name=label)
        server = TapeServer(tape, runtime, policy=AddressPolicy.allowing(*ALLOWED), matching=matching)
        url = f"http://{label}:9000"
        self.network.mount(url, server.app)
        return Member(name=label, url=url + urlsplit(tape.head.url).path.rstrip("/"), agent=server, fleet=self)

    async def replay(self, file: str | Path, member: Member[Any]) -> Replay:
        """Send the messages of a tape to a member, also those for skills with declared effects. ``compared`` has how
        each ends ``here`` and ``there``, on the tape. Raises ConfigError."""
        replay = Replay(tape=self._tape(file), client=member.client(), side_effects=True)
        await replay.run()
        return replay

    def _tape(self, file: str | Path) -> Tape:
        return Tape.read(read_file(self._folder / file, TAPE_BYTES_MAX, private=False), str(file))

    def client(self, url: str, **options: Any) -> AgentClient:
        """A client at any address of the fleet."""
        return AgentClient(url, runtime=self.runtime, **options)

    def sink(self) -> WebhookSink:
        """A fresh webhook address, which the fleet's agents may call."""
        self._hooks += 1
        return WebhookSink(self._listener.hook(str(self._hooks)))

    def sim(
        self, scenario: str | Path, *, seed: int | None = None, check: bool = True, clock: str = "virtual"
    ) -> SimulationReport:
        """Play a scenario, a fleet of its own that has nothing to do with the agents of this one, and report.

        ``scenario`` is a file, as seen from the test's, or the name of one that comes with fleetsim. Unless ``check``
        is off, the test fails with the report's text if an expectation, or a rule that must always hold, is broken. It
        fails for a wrong scenario too. ``clock`` is as for ``fleetsim sim --clock``. Not for tests that are async.
        """
        from fleetsim.sim.clocks import ClockRate
        from fleetsim.sim.live import check_clock, played
        from fleetsim.sim.report import Result
        from fleetsim.sim.report_formats import render
        from fleetsim.sim.scenario import ceremonies_of, parse_scenario, read_scenario, with_seed

        file = self._folder / scenario
        rate, source = ClockRate.read(clock), os.path.relpath(file) if file.exists() else str(scenario)
        try:
            source, text, folder = read_scenario(source)
            wanted, written = parse_scenario(text, source)
            check_clock(wanted, written, rate)
            ceremonies = ceremonies_of(wanted, written, folder)
        except ConfigError as error:
            pytest.fail(f"{error} ({error.hint})" if error.hint else str(error), pytrace=False)
        given = self._scenario_seed if seed is None else seed
        if given is not None:
            wanted = with_seed(wanted, given)
        with tempfile.TemporaryDirectory() as home:
            report = played(wanted, ceremonies, source=source, record=Path(home) / "run.jsonl", rate=rate)
        if check and report.result is not Result.OK:
            pytest.fail("\n".join(render(report)), pytrace=False)
        return report

    def now(self) -> datetime:
        """The fleet's time of day, in UTC."""
        return self.runtime.clock.now()

    async def aclose(self) -> None:
        """Stop every agent and close the network; what they still have running ends."""
        await self.network.aclose()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
