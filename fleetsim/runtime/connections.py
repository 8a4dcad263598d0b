"""The connections of a server of ours, and which of them is closed when there is no room."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Protocol

from fleetsim.runtime.limits import ServerLimits


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
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.peers: Counter[str] = Counter()
        self._silent: dict[Member, str] = {}
        self._waiting: dict[Member, str] = {}

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

    def make_room(self, peer: str | None = None) -> bool:
        """Close the one that has waited longest, of ``peer`` or of all, silent ones first; False if none waits."""
        for who, whose in chain(self._silent.items(), self._waiting.items()):
            if peer in {None, whose}:
                who.give_way()
                return True
        return False
