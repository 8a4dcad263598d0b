"""How much a program of ours lets in and sends out: connections, turns a second, and tries at who does not answer."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import chain
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Protocol

from fleetsim.model.limits import KIB
from fleetsim.runtime.ports import Clock
from fleetsim.runtime.retry import jittered

BUCKETS_MAX = 1_000
FAILURES_MAX = 5
PAUSE_S = 30.0
RECEIVERS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server takes before a request is whole: bytes and lines of its head, seconds, and connections."""

    header_bytes_max: int = 32 * KIB
    headers_max: int = 100
    header_deadline_s: float = 5.0
    connections_max: int = 800
    connections_per_peer_max: int = 400
    keep_alive_s: float = 15.0


class TokenBucket:
    """``per_s`` turns a second, ``burst`` at once after a quiet time. Some wait for theirs, others do without."""

    def __init__(self, clock: Clock, *, per_s: float, burst: float) -> None:
        self._clock = clock
        self._apart_s = 1 / per_s
        self._slack_s = (burst - 1) / per_s
        self._next = clock.monotonic() - self._slack_s

    def take(self) -> bool:
        """Take a turn if there is one now. Asking in vain costs what had gathered: who never pauses gets nothing."""
        now = self._clock.monotonic()
        mine = max(self._next, now - self._slack_s)
        self._next = min(mine, now) + self._apart_s
        return mine <= now

    async def turn(self) -> None:
        """Wait for the next turn, in order. One that is cancelled while it waits is lost, and nobody else's."""
        now = self._clock.monotonic()
        mine = max(self._next, now - self._slack_s)
        self._next = mine + self._apart_s
        if mine > now:
            await asyncio.sleep(mine - now)


class TokenBuckets:
    """A bucket a name; the least recently used are forgotten beyond a thousand."""

    def __init__(self, clock: Clock, *, per_s: float, burst: float) -> None:
        self._clock, self._per_s, self._burst = clock, per_s, burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str) -> bool:
        """As ``TokenBucket.take``, of the bucket of that name."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._clock, per_s=self._per_s, burst=self._burst)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket.take()


@dataclass(slots=True)
class _Failures:
    in_a_row: int = 0
    until_s: float = 0.0


class Breaker:
    """A circuit breaker per receiver: who failed five times in a row is left alone for a while (threat T-23).

    So one piece of work after another cannot make us hammer a host that is down, or that never asked.
    """

    # Not the breaker of ``caller.agent_limiter``: a delivery may be given up without a word here (its task ends, the
    # agent stops), so a try is let through by the clock and holds nothing that somebody would have to give back.

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock, self._rng = clock, rng
        self._failures: dict[str, _Failures] = {}

    def allows(self, receiver: str) -> bool:
        """Whether to try. After the pause one try is let through; its result decides about the next."""
        failures = self._failures.get(receiver)
        if failures is None or failures.in_a_row < FAILURES_MAX:
            return True
        if self._clock.monotonic() < failures.until_s:
            return False
        failures.until_s = self._clock.monotonic() + jittered(PAUSE_S, self._rng)
        return True

    def note(self, receiver: str, *, delivered: bool) -> None:
        if delivered:
            self._failures.pop(receiver, None)
            return
        if receiver not in self._failures and len(self._failures) >= RECEIVERS_MAX:
            del self._failures[next(iter(self._failures))]
        failures = self._failures.setdefault(receiver, _Failures())
        failures.in_a_row += 1
        if failures.in_a_row >= FAILURES_MAX:
            failures.until_s = self._clock.monotonic() + jittered(PAUSE_S, self._rng)


# -- connections of a server -----------------------------------------------------------------------------------------
# The connections of a server of ours, and which of them is closed when there is no room.


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
