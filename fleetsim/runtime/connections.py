"""Who is connected to a server of ours, who has to go when there is no room, and whose turn it is to begin."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import chain
from typing import Protocol

from fleetsim.runtime.limits import ServerLimits

REST_S = 0.001
"""How long newcomers are left alone: the shortest time for which a loop sleeps."""

IN_A_ROW = 4
"""So many newcomers begin before a rest for other programs of the machine."""


class Member(Protocol):
    """One that is connected."""

    def give_way(self) -> None:
        """Close at once, for somebody else's sake."""
        ...


class Connections:
    """Who is connected, counted per peer address, and who of them could go.

    A connection waits while no request of its own is under way: since it was made, or since its last answer. When
    there is no room, the one that has waited longest is closed, of those that never asked anything if there are any.
    So nobody is locked out by connections that ask nothing, and no request is cut off: a client that sends its next
    one over a connection which is being closed cannot know whether it arrived.

    Newcomers wait for their turn. The first request of a connection is begun with one turn of the loop for everybody
    else before the next one's; hundreds that come together would be a turn of many milliseconds otherwise. And a loop
    that never rests leaves a thread of ours without the interpreter for 5 ms at a time, as often as the thread asks for
    it: so while ``threads_at_work`` there is a rest between two newcomers. Such a program has another one behind every
    fourth while more wait, for other programs of the machine, which may be those that it waits for. Without
    ``threads_at_work`` there is no rest: it halves how many newcomers are answered a second.
    """

    def __init__(self, limits: ServerLimits, threads_at_work: Callable[[], bool] | None = None) -> None:
        self.limits, self._threads_at_work = limits, threads_at_work
        self.peers: Counter[str] = Counter()
        self._silent: dict[Member, str] = {}
        self._waiting: dict[Member, str] = {}
        self._newcomers: deque[Callable[[], bool]] = deque()
        self._begun = 0
        self._turn: asyncio.Handle | None = None

    def admit(self, who: Member, peer: str) -> bool:
        """Count a connection in, in another's place if a cap is reached; False if nobody can go."""
        limits = self.limits
        if self.peers.total() >= limits.connections_max and not self.make_room():
            return False
        if self.peers[peer] >= limits.connections_per_peer_max and not self.make_room(peer):
            return False
        self.peers[peer] += 1
        self._silent[who] = peer
        return True

    def leave(self, who: Member, peer: str) -> None:
        self.asks(who)
        self.peers[peer] -= 1
        if self.peers[peer] <= 0:
            del self.peers[peer]

    def waits(self, who: Member, peer: str) -> None:
        """Its last request is answered; it waits from now, if it did not already."""
        if who not in self._silent:
            self._waiting.setdefault(who, peer)

    def asks(self, who: Member) -> None:
        """A request of it is under way."""
        self._silent.pop(who, None)
        self._waiting.pop(who, None)

    def begin(self, newcomer: Callable[[], bool]) -> None:
        """Begin what a connection asked for first, at once or in its turn.

        ``newcomer`` returns False if its client has left, which takes no turn.
        """
        self._newcomers.append(newcomer)
        if self._turn is None:
            self._begin_next()

    async def rest(self) -> None:
        """Leave the interpreter to a thread that is at work."""
        if self._threads_at_work is not None and self._threads_at_work():
            await asyncio.sleep(REST_S)

    def _begin_next(self) -> None:
        self._turn, began = None, False
        while self._newcomers and not began:
            began = self._newcomers.popleft()()
        if began:
            self._begun += 1
            loop, at_work = asyncio.get_running_loop(), self._threads_at_work
            rests = at_work and (at_work() or (self._newcomers and self._begun % IN_A_ROW == 0))
            self._turn = loop.call_later(REST_S, self._begin_next) if rests else loop.call_soon(self._begin_next)

    def make_room(self, peer: str | None = None) -> bool:
        """Close the one that has waited longest, of ``peer`` or of all, silent ones first; False if none waits."""
        for who, whose in chain(self._silent.items(), self._waiting.items()):
            if peer in {None, whose}:
                who.give_way()
                return True
        return False
