"""Limits of our servers and senders: connections, requests a second, and attempts at a receiver that is down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Protocol

from fleetsim.model.limits import KIB
from fleetsim.runtime.ports import Clock
from fleetsim.runtime.retry import jittered

FAILURES_MAX = 5
PAUSE_S = 30.0
RECEIVERS_MAX = 1_000

LINGER_S = 2.0
LINGER_BYTES_MAX = 32 * KIB * KIB
"""How long, and how much, of a body nobody wants any more is taken in, so that its sender can read the answer."""

CHUNKS_FREE, CHUNK_BYTES = 1_000, 64
"""A body may have this number of chunks, and one more per 64 bytes: a chunk costs as much as a kilobyte."""

ADDRESSES_MAX = 1_000
STRANGER_WORK_PER_S, STRANGER_WORK_AHEAD_S, STRANGER_DEBT_S_MAX = 0.1, 0.05, 10.0
"""Processor seconds a second that one address may use without a key, some of them in advance; more debt is forgotten,
so that an address is served again soon after a flood."""

CONNECTION_S, CHUNK_S = 2e-4, 1e-6
"""The processor time of a new connection, and of a chunk of a body beyond one per 64 bytes. Addresses pay for both."""

HEAD_S, HEAD_BYTE_S, READING_S = 5e-5, 4e-9, 8e-9
"""The HTTP server's time for a request, for one byte of its head, and for one of its body: a millisecond for 128 KiB.
"""

CHEAP_S = 3e-4
"""The time for a card or a refusal, where it is not measured."""

PROBE_PAUSE_S_MAX, REFUSAL_PAUSE_S_MAX = 0.5, 5.0
"""The longest pause before an answer to a caller in debt: health checks often give up after a second."""

HEAVY_DEBT_S = 1.0
"""A debt in seconds of waiting, at which an address may send no more small chunks, and the server reads its new
connections later, by at most half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server before a request is complete: bytes and lines of its head, seconds, and connections."""

    header_bytes_max: int = 32 * KIB
    headers_max: int = 100
    header_deadline_s: float = 5.0
    connections_max: int = 800
    connections_per_peer_max: int = 400
    keep_alive_s: float = 15.0


class TokenBucket:
    """``per_s`` tokens a second, at most ``burst`` at once. ``take`` refuses without one, ``wait`` waits for it."""

    def __init__(self, clock: Clock, *, per_s: float, burst: float) -> None:
        self._clock = clock
        self._apart_s = 1 / per_s
        self._slack_s = (burst - 1) / per_s
        self._next = clock.monotonic() - self._slack_s

    def take(self) -> bool:
        """Take a token if one is free. A refused attempt costs saved tokens: a caller that never pauses gets none."""
        now = self._clock.monotonic()
        mine = max(self._next, now - self._slack_s)
        self._next = min(mine, now) + self._apart_s
        return mine <= now

    async def turn(self) -> None:
        """Wait for the next token, in the order of the calls. A caller that is canceled meanwhile loses its token."""
        now = self._clock.monotonic()
        mine = max(self._next, now - self._slack_s)
        self._next = mine + self._apart_s
        if mine > now:
            await asyncio.sleep(mine - now)


@dataclass(slots=True)
class _Failures:
    in_a_row: int = 0
    until_s: float = 0.0


class Breaker:
    """A circuit breaker per receiver: after five failures in a row it gets no request for a while (threat T-23). So
    requests one after another cannot flood a host that is down, or that never wanted them."""

    # Not the breaker of ``caller.agent_limiter``: a delivery may end here without a result (its task ends, the agent
    # stops), so the clock admits a try, and no caller has to return a place.

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock, self._rng = clock, rng
        self._failures: dict[str, _Failures] = {}

    def allows(self, receiver: str) -> bool:
        """Whether to try. After the pause one try is admitted, and its result decides about the next."""
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


class AddressAccount:
    """The account of one address: the processor time of its requests without a key, at every door of a server."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._at_s, self._work_s = now, now(), STRANGER_WORK_AHEAD_S

    def charge(self, work_s: float) -> float:
        """Charge seconds of work. Returns the seconds until the debt is paid; 0 while there is credit."""
        before_s, self._at_s = self._at_s, self._now()
        earned_s = (self._at_s - before_s) * STRANGER_WORK_PER_S
        least_s = -STRANGER_DEBT_S_MAX * STRANGER_WORK_PER_S
        self._work_s = max(min(self._work_s + earned_s, STRANGER_WORK_AHEAD_S) - work_s, least_s)
        return max(0.0, -self._work_s / STRANGER_WORK_PER_S)

    def charge_connection(self) -> float:
        """Charge a new connection. Returns the seconds until it may be read, at most half a second: the heavy part of
        the debt, which differs for each connection of a flood, so that they are not read in the same moment."""
        return min(max(0.0, self.charge(CONNECTION_S) - HEAVY_DEBT_S), PROBE_PAUSE_S_MAX)

    def charge_head(self, size: int) -> float:
        """Charge a request with a head of ``size`` bytes, which the server refuses itself."""
        return self.charge(HEAD_S + HEAD_BYTE_S * size)

    def charge_unread(self, size: int) -> float:
        """Charge bytes that arrive for no reader."""
        return self.charge(READING_S * size)

    def charge_chunk(self) -> bool:
        """Charge a small chunk of a body. Returns whether the debt is heavy."""
        return self.charge(CHUNK_S) > HEAVY_DEBT_S


# -- connections of a server -----------------------------------------------------------------------------------------
# The connections of one of our servers. At a limit it closes an idle one.


class ClosableConnection(Protocol):
    """A connection."""

    def give_way(self) -> None:
        """Close at once, to make room for another connection."""


class Connections:
    """The open connections, counted per peer address. At a cap the longest idle one (without a request under way) is
    closed, first of those that never sent a request. So idle connections lock nobody out, and no request is cut off."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.peers: Counter[str] = Counter()
        self._accounts: dict[str, AddressAccount] = {}
        self._silent: dict[ClosableConnection, str] = {}
        self._waiting: dict[ClosableConnection, str] = {}

    def admit(self, who: ClosableConnection, peer: str) -> bool:
        """Add a connection, in place of an idle one if a cap is reached. Returns False if none is idle."""
        limits = self.limits
        if self.peers.total() >= limits.connections_max and not self.make_room():
            return False
        if self.peers[peer] >= limits.connections_per_peer_max and not self.make_room(peer):
            return False
        self.peers[peer] += 1
        self._silent[who] = peer
        return True

    def account(self, peer: str, now: Callable[[], float]) -> AddressAccount:
        """The account of an address. The one of an address that was not seen for longest makes room for a new one."""
        found = self._accounts.pop(peer, None) or AddressAccount(now)
        if len(self._accounts) >= ADDRESSES_MAX:
            del self._accounts[next(iter(self._accounts))]
        self._accounts[peer] = found
        return found

    def leave(self, who: ClosableConnection, peer: str) -> None:
        self.asks(who)
        self.peers[peer] -= 1
        if self.peers[peer] <= 0:
            del self.peers[peer]

    def waits(self, who: ClosableConnection, peer: str | None) -> None:
        """The response to its last request was sent, or is put off: it is idle from now. Without a ``peer`` it left."""
        if peer is not None and who not in self._silent:
            self._waiting.setdefault(who, peer)

    def asks(self, who: ClosableConnection) -> None:
        """It has a request."""
        self._silent.pop(who, None)
        self._waiting.pop(who, None)

    def make_room(self, peer: str | None = None) -> bool:
        """Close the longest idle connection, of ``peer`` or of all. Returns False if none is idle."""
        for who, whose in chain(self._silent.items(), self._waiting.items()):
            if peer in {None, whose}:
                who.give_way()
                return True
        return False
