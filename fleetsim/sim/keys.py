"""The API keys of a run's agents: each asks for its own, and it must never be seen anywhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in

from fleetsim.caller.fleet import AuthEntry
from fleetsim.client.credential import API_KEY_HEADER
from fleetsim.runtime.ports import Request
from fleetsim.sim.agents import AgentDoor

MARK = "simulated-key-"
"""What every key begins with, so that one is found wherever it stands."""
MARK_BYTES = MARK.encode()


class FleetKeys:
    """A key for each agent, which the hub reads in the environment as it reads all keys.

    ``carried`` is how many requests had one, ``strayed`` says where one was seen that must not be there.
    """

    def __init__(self, agents: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._owners: dict[str, str] = {}
        self._variables = {agent: f"FLEETSIM_SIMULATED_KEY_{number}" for number, agent in enumerate(agents)}
        self._keys = {agent: self._new(agent) for agent in self._variables}
        self._doors = {agent: AgentDoor(key) for agent, key in self._keys.items()}
        self.carried = 0
        self.strayed: list[str] = []

    def entry(self, agent: str) -> AuthEntry:
        """How the hub's configuration names the key."""
        return AuthEntry(scheme="apiKey", env=self._variables[agent])

    def door(self, agent: str) -> AgentDoor:
        """Who asks for it; the same one however often the agent is started."""
        return self._doors[agent]

    def change(self, agent: str) -> None:
        """The agent asks for another key from now on, which the hub has not yet."""
        self._keys[agent] = self._new(agent)
        self._doors[agent].change(self._keys[agent])

    def hand_over(self, *agents: str) -> None:
        """The hub has these agents' keys from now on."""
        for agent in agents:
            os.environ[self._variables[agent]] = self._keys[agent]

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """The hub has all of them, for as long as this lasts."""
        try:
            self.hand_over(*self._keys)
            yield
        finally:
            for variable in self._variables.values():
                os.environ.pop(variable, None)

    def look_at(self, request: Request, target: str) -> None:
        """Note whose key is on its way to ``target``: an agent by its name, or whoever else."""
        key = request.headers.get(API_KEY_HEADER, "")
        self.carried += key in self._owners
        if key in self._owners and self._owners[key] != target:
            self.strayed.append(f"the key of {self._owners[key]} was sent to {target}")
        others = (value for name, value in request.headers.items() if name != API_KEY_HEADER)
        if MARK in request.url or MARK_BYTES in request.body or any(MARK in value for value in others):
            self.strayed.append(f"a key stood in a request to {target}, and not in the header for it")

    def look_for(self, kept: Iterable[bytes], where: str) -> None:
        """Note whether a key stands in what is kept, piece by piece."""
        before = b""
        for piece in kept:
            if MARK_BYTES in before + piece:
                self.strayed.append(f"a key stood in {where}")
                return
            before = piece[-len(MARK_BYTES) :]

    def _new(self, agent: str) -> str:
        key = f"{MARK}{self._rng.getrandbits(64):016x}"
        self._owners[key] = agent
        return key
