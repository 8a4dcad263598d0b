"""One account per principal: an agent, or a key. Every door and every reader of an agent's answers charges it.

It counts processor time, events, requests, open requests and bytes in memory. Over a limit a request or webhook gets
429 with ``Retry-After``; replies and streams are read later, so that TCP slows their sender, and calls leave later.
Other principals do not wait: the next piece of work for a principal starts when its earlier work is paid for, and
large documents of all principals are read one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.model.limits import LARGE_JSON_BYTES, WIRE_BYTES_MAX
from fleetsim.model.text import one_line
from fleetsim.runtime.body import SMALL_BYTES, BodyPlace, Deadline
from fleetsim.runtime.inbound import CHARGED, Refusal, drop
from fleetsim.runtime.ports import Runtime

T = TypeVar("T")

log = logging.getLogger(__name__)

_CLOCK_S = 1e-6
"""Shorter than any timer can wait."""

NOTICE_S = 0.25
"""A shorter wait for a limit is not reported: each burst of work has some."""

ROOM_S = 0.1
"""How often an answer that waits for room looks for it."""

REACHED_S = 60.0
"""The time for which a limit counts as reached, and is not reported again."""

BYTE_S = 4e-8
"""The time for one byte of a request in the HTTP server, and in the ledger's thread when it is accepted; the writes of
all others wait behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """One principal's share: processor seconds, events and requests (webhooks, too) in a second; some of each
    (``…_ahead``) may be used in advance. Its key may have ``at_once_max`` HTTP requests without a complete answer,
    ``open_max`` requests in flight, ``bytes_max`` bytes of their content and of bodies in memory, and as many bytes of
    answers that it has not read. After ``turn_s`` of work or ``turn_events`` at a stretch others have a turn, as long
    as that work. A request waits ``wait_s`` for its turn and its place in memory; then it gets 429, as beyond the other
    limits."""

    work_per_s: float = 0.25
    work_ahead_s: float = 0.05
    events_per_s: float = 1_000.0
    events_ahead: float = 200.0
    requests_per_s: float = 100.0
    requests_ahead: float = 200.0
    at_once_max: int = 128
    open_max: int = 1_000
    bytes_max: int = 4 * WIRE_BYTES_MAX
    wait_s: float = 5.0
    turn_s: float = 0.001
    turn_events: int = 16


_OPERATOR = AccountLimits(work_per_s=1e9, events_per_s=1e9, at_once_max=2**31, bytes_max=2**63, wait_s=3600.0)
"""The hub's own key (owner ""): its large bodies take their place and their turn, and nothing else limits it."""


class Account:
    """The account of one principal. Work and events used in advance are paid by waiting. ``reached`` has the moment
    (monotonic) at which each limit was reached last. ``busy_with`` is the limit for which a request that waits for its
    turn is refused."""

    def __init__(self, owner: str, accounts: Accounts) -> None:
        self.owner, self._accounts = owner, accounts
        self.limits = limits = accounts.limits if owner else _OPERATOR
        self._clock, self._work = accounts.runtime.clock, accounts.runtime.work
        self._at_work_since: float | None = None
        self._at = self._clock.monotonic()
        self._work_s, self._events, self._requests = limits.work_ahead_s, limits.events_ahead, limits.requests_ahead
        self._turn_s, self._turn_events = 0.0, 0
        self._paying, self.working = asyncio.Lock(), asyncio.Lock()
        self.at_once = self.open = self.bytes = self.unread_bytes = 0
        self.reached: dict[str, float] = {}
        self.busy_with = "wait_s"

    # ------------------------------------------------------------------ work and events

    def charge(self, work_s: float, events: int = 0) -> None:
        others_s = self._settle() - work_s
        self._work_s -= work_s
        self._events -= events
        if others_s > 0.0:
            self._turn_s = self._turn_s - others_s if self._turn_s > others_s else 0.0
        self._turn_s += work_s
        self._turn_events += events

    def begin(self) -> None:
        """Start to measure work for the principal, until ``end``; each turn charges the part that is done."""
        self._at_work_since = self._work.mark()

    def end(self) -> None:
        """Stop to measure, and charge the work."""
        if self._at_work_since is not None:
            self.charge(self._work.since_s(self._at_work_since))
            self._at_work_since = None

    def debt_s(self) -> float:
        """The seconds until the debt is paid; 0 while there is credit."""
        self._settle()
        limits = self.limits
        owed_s = max(-self._work_s / limits.work_per_s, -self._events / limits.events_per_s)
        return owed_s if owed_s > _CLOCK_S else 0.0

    def _settle(self) -> float:
        """Returns the seconds since it was settled before."""
        limits, now = self.limits, self._clock.monotonic()
        passed, self._at = now - self._at, now
        self._work_s = min(self._work_s + passed * limits.work_per_s, limits.work_ahead_s)
        self._events = min(self._events + passed * limits.events_per_s, limits.events_ahead)
        self._requests = min(self._requests + passed * limits.requests_per_s, limits.requests_ahead)
        return passed

    async def turn(self, events: int = 0) -> float:
        """Charge events that were read. At the end of a turn, let others have theirs and wait until the debt is paid.
        Within a turn it does not wait: a timer for each event of a stream would cost more than the event. Returns the
        seconds waited, which do not count as silence of the agent."""
        work_s = 0.0
        if self._at_work_since is not None:
            work_s, self._at_work_since = self._work.since_s(self._at_work_since), self._work.mark()
        self.charge(work_s, events)
        if self._turn_s < self.limits.turn_s and self._turn_events < self.limits.turn_events:
            return 0.0
        return await self.turn_over()

    async def paid(self) -> float:
        """Wait until the work so far is paid for and nobody else's large document is being read: one may be read now,
        until the caller waits next. Returns the seconds waited."""
        waited_s = await self.turn_over()
        await self.document_turn()
        return waited_s

    async def document_turn(self) -> None:
        """Wait until nobody else's large document is being read."""
        await self._accounts.document.acquire()
        asyncio.get_running_loop().call_soon(self._accounts.document.release)

    async def turn_over(self) -> float:
        """Wait until the debt is paid. Others have a turn in any case; after a long turn theirs is as long. Only one
        piece of the principal's work goes on at a time. Returns the seconds waited."""
        began, limit = self._clock.monotonic(), self._owing()
        turn_s, self._turn_s, self._turn_events = self._turn_s, 0.0, 0
        async with self._paying:
            # also for 0: others run
            await asyncio.sleep(max(self.debt_s(), turn_s if turn_s >= self.limits.turn_s else 0.0))
        waited_s = self._clock.monotonic() - began
        if waited_s >= NOTICE_S and limit:
            self.reach(limit, waited_s)
        return waited_s

    def _owing(self) -> str:
        """The limit to which the debt is owed; "" without a debt."""
        if not self.debt_s():
            return ""
        limits = self.limits
        over = self._events / limits.events_per_s < self._work_s / limits.work_per_s
        return "events_per_s" if over else "work_per_s"

    # ------------------------------------------------------------------ requests and bytes

    def admit(self, *, debt_s_max: float) -> None:
        """Count one more request or webhook. Raises Refusal (429) over a limit, a debt of ``debt_s_max`` included."""
        limits, debt_s = self.limits, self.debt_s()
        if debt_s > debt_s_max:
            raise self.refusal(self._owing(), debt_s)
        if self._requests < 1.0:
            raise self.refusal("requests_per_s", (1.0 - self._requests) / limits.requests_per_s)
        self._requests -= 1.0

    def place(self) -> BodyPlace:
        """The place of one body in memory."""
        return self._accounts.runtime.room.document(self.owner)

    async def hold(self, more: int, place: BodyPlace, size: int, deadline: Deadline | None) -> None:
        """Count ``more`` bytes of a body, and wait until its ``size`` bytes may be held, without its ``deadline``. The
        caller subtracts them from ``bytes``. Raises Refusal (429) after ``wait_s``."""
        self.bytes += more
        if size > SMALL_BYTES and self.bytes > self.limits.bytes_max:
            raise self.refusal("bytes_max")
        if place.try_reserve(size):
            return
        began, at = asyncio.get_running_loop().time(), deadline.at if deadline is not None else None
        try:
            if deadline is not None:
                deadline.reschedule(None)  # waiting for our memory is not the sender's silence
            async with asyncio.timeout(self.limits.wait_s):
                await place.reserve(size)
        except TimeoutError:
            raise self.refusal("places_per_owner", self.debt_s()) from None
        if deadline is not None and at is not None:
            deadline.reschedule(at + asyncio.get_running_loop().time() - began)

    def refusal(self, limit: str, after_s: float = 1.0) -> Refusal:
        """The answer to a request over a limit, which is reported."""
        self.reach(limit)
        headers = {"retry-after": str(max(1, math.ceil(after_s)))}
        hint = f"{limit} (docs/reference/limits.md); send it again after the seconds of Retry-After"
        return Refusal(429, "OVER_LIMIT", f"over the limit {limit} of your key", hint=hint, headers=headers)

    def reach(self, limit: str, waited_s: float = 0.0) -> None:
        """Report a limit that was not reached in the minute before."""
        now, before = self._clock.monotonic(), self.reached.get(limit, -math.inf)
        self.reached[limit] = now
        if now - before < REACHED_S:
            return
        how = f"its work waited {waited_s:.1f} s" if waited_s else "requests get 429"
        log.warning("%s reached the limit %s: %s", one_line(self.owner, 64), limit, how)
        self._accounts.reached(self.owner, limit, how)


class ChargedRequest:
    """One HTTP request of a principal. While it works it has the principal's turn, which one request has at a time. It
    gives the turn back while it waits, and for good when its answer begins. The operator's requests need no turn."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._works = self._waited = False
        self._unread_bytes = 0

    async def begin(self, size: int = 0, *, patient: bool = False) -> None:
        """Wait for the turn and earlier debts; charge ``size`` bytes. Raises Refusal (429) unless it is ``patient``."""
        account = self.account
        try:
            async with asyncio.timeout(None if patient else account.limits.wait_s):
                if account.owner and not self._works:
                    await account.working.acquire()
                    self._works = True
                    await account.turn_over()
                if size > LARGE_JSON_BYTES:
                    await account.document_turn()
        except TimeoutError:
            raise account.refusal(account._owing() or account.busy_with, account.debt_s()) from None
        account.charge(size * BYTE_S)

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Let other requests of the principal work while this one waits."""
        self._waited = True
        self._end()
        yield
        await self.begin(patient=True)

    async def answers(self, size: int, scope: Scope) -> None:
        """The answer begins: its ``size`` bytes are in memory until the client has read them. A large one keeps the
        turn until there is room, so that no other is written meanwhile. Without room for it after ``wait_s`` it is
        refused (429); a request that waited may have had an effect, so it loses its connection."""
        account = self.account
        account.busy_with = "bytes_max"
        try:
            async with asyncio.timeout(account.limits.wait_s):
                await self.hold(size)
        except TimeoutError:
            if not self._waited:
                raise account.refusal("bytes_max") from None
            account.reach("bytes_max")
            drop(scope)
        finally:
            account.busy_with = "wait_s"
        self._end()

    def holds(self, size: int) -> bool:
        """Count ``size`` bytes of the answer in place of those before. Returns False, and counts none, without room."""
        account = self.account
        account.unread_bytes -= self._unread_bytes
        fits = size <= SMALL_BYTES or account.unread_bytes + size <= account.limits.bytes_max
        self._unread_bytes = size if fits else 0
        account.unread_bytes += self._unread_bytes
        return fits

    async def hold(self, size: int) -> None:
        """Reserve the bytes once there is room."""
        waited_s = 0.0
        while not self.holds(size):
            await asyncio.sleep(ROOM_S)
            waited_s += ROOM_S
            if waited_s >= NOTICE_S:
                self.account.reach("bytes_max", waited_s)

    def leave(self) -> None:
        """The request has ended."""
        self._end()
        self.holds(0)

    def _end(self) -> None:
        if self._works:
            self._works = False
            self.account.working.release()


_Listener: TypeAlias = Callable[[str, str, str], object]


class Accounts:
    """The accounts of all principals. ``reached`` is called with a principal, a limit and the effect of reaching it."""

    def __init__(
        self, runtime: Runtime, limits: AccountLimits | None = None, reached: _Listener = lambda *_: None
    ) -> None:
        self.runtime, self.reached = runtime, reached
        self.limits = limits or AccountLimits()
        self.document = asyncio.Lock()
        self._accounts: dict[str, Account] = {}
        self._open: dict[str, tuple[Account, int]] = {}

    def account(self, owner: str) -> Account:
        if owner not in self._accounts:
            self._accounts[owner] = Account(owner, self)
        return self._accounts[owner]

    def require_open(self, owner: str) -> None:
        """Raises Refusal (429) if the principal has as many open requests as it may."""
        if self.account(owner).open >= self.limits.open_max:
            raise self.account(owner).refusal("open_max")

    def open(self, owner: str, correlation_id: str, size: int) -> None:
        """Count a request that the principal made, until ``close``; ``size`` bytes of it are in memory."""
        account = self.account(owner)
        account.open += 1
        account.bytes += size
        self._open[correlation_id] = account, size

    def close(self, correlation_id: str) -> None:
        """A request has ended."""
        if (found := self._open.pop(correlation_id, None)) is not None:
            account, size = found
            account.open -= 1
            account.bytes -= size

    def at_limit(self) -> Iterator[tuple[str, str]]:
        """The principals that reached a limit in the last minute, with its name."""
        since = self.runtime.clock.monotonic() - REACHED_S
        for owner, account in self._accounts.items():
            yield from ((owner, limit) for limit, at in account.reached.items() if at >= since)

    def charged(self, owner: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """``work``, with the time of each stretch between two waits charged to the principal."""
        return _Charged(work, self.account(owner))

    async def serve(self, owner: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out one HTTP request at the principal's expense. Raises Refusal (429) before it is answered."""
        account = self.account(owner)
        asked = scope[CHARGED] = ChargedRequest(account)
        if not owner:
            await app(scope, receive, send)
            return
        account.admit(debt_s_max=account.limits.wait_s)
        if account.at_once >= account.limits.at_once_max:
            raise account.refusal("at_once_max")
        streams = False

        async def answering(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                sizes = [int(value) for name, value in message["headers"] if name == b"content-length"]
                streams = not sizes
                await asked.answers(sum(sizes), scope)
            elif streams:
                await account.turn()
            await send(message)

        async def work() -> None:
            if scope["method"] in {"GET", "HEAD"}:  # any other begins when its body is complete
                await asked.begin()
            await app(scope, receive, answering)

        account.at_once += 1
        try:
            await self.charged(owner, work())
        finally:
            account.at_once -= 1
            asked.leave()


class _Charged(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """``work``, with the time between two waits taken. If it is cancelled before it began, ``work`` is too."""

    def __init__(self, work: Coroutine[Any, Any, T], account: Account) -> None:
        self._work, self._account = work, account

    def __next__(self) -> Any:  # what a task calls; as inherited it is one call more
        return self.send(None)

    def send(self, value: Any) -> Any:
        self._account.begin()
        try:
            return self._work.send(value)
        finally:
            self._account.end()

    def throw(self, *error: Any) -> Any:
        self._account.begin()
        try:
            return self._work.throw(*error)
        finally:
            self._account.end()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self
