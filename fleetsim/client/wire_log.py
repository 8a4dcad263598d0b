"""The wire log: recent exchanges with agents and their webhooks, masked and bounded, in memory.

It is off until ``read`` looks at it, and off again ``LOOK_S`` seconds after the last look, when it forgets everything.
Off, it costs nothing: a tap's ``open`` and ``exchange`` are then those of its transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

from fleetsim.api.answers import WireExchange, WireFrame
from fleetsim.model.errors import FleetsimError
from fleetsim.model.masking import MASK, masked, masked_headers, masked_url
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.body import Room
from fleetsim.runtime.exchange import BoundedChunks
from fleetsim.runtime.ports import Clock, IncomingResponse, Reply, Request, Transport, WayOut

LOOK_S = 30.0
"""Seconds that the log stays on after a look."""
BODY_BYTES_MAX = 64 * 1024
"""Bytes of one body or of all frames of one stream that are kept; sizes count all."""
AGENT_ENTRIES_MAX = 200
AGENT_BYTES_MAX = 2 * 1024 * 1024
BYTES_MAX = 32 * 1024 * 1024
"""Bytes of all agents."""
ENTRY_BYTES = 1_024
"""Bytes that count for an entry beside its texts."""
FRAMES_MAX = 500


class WireLog:
    """The newest exchanges of each agent. ``on`` says whether it records."""

    def __init__(self, clock: Clock) -> None:
        self.on = False
        self._clock = clock
        self._taps: WeakSet[TappedTransport] = WeakSet()
        self._entries: dict[str, deque[WireExchange]] = {}
        self._held: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._number = 0
        self._kept_on = False
        self._off: asyncio.TimerHandle | None = None

    def tap(self, transport: Transport, agent: str) -> TappedTransport:
        """A transport that records the agent's exchanges while the log is on."""
        tap = TappedTransport(transport, agent, self)
        self._taps.add(tap)
        tap.switch(self.on)
        return tap

    def keep_on(self) -> None:
        """Record from now on, whether anybody looks or not."""
        self._kept_on = True
        self._switch(True)

    def read(self, agent: str, *, ids: tuple[str, ...] = (), after: int = 0) -> list[WireExchange]:
        """The agent's entries with a number above ``after``, oldest first; with ``ids``, those that name one of them.

        The log is on for the next ``LOOK_S`` seconds.
        """
        if self._off is not None:
            self._off.cancel()
        if not self._kept_on:
            self._off = asyncio.get_running_loop().call_later(LOOK_S, self._switch, False)
        self._switch(True)
        entries = self._entries.get(agent, ())
        # Copies: an exchange may still go on.
        return [replace(entry) for entry in entries if entry.number > after and (not ids or _names(entry, ids))]

    def begin(
        self, agent: str, method: str, url: str, headers: Mapping[str, str], body: bytes, *, webhook: bool = False
    ) -> tuple[WireExchange, tuple[str, ...]]:
        """A new entry, and the secrets to mask in its reply."""
        public, hidden = masked_headers(headers)
        address, in_query = masked_url(url)
        secrets = (*hidden, *in_query)
        form = "x-www-form-urlencoded" in headers.get("content-type", "")
        self._number += 1
        entry = WireExchange(
            number=self._number,
            at=self._clock.now().isoformat(),
            agent=agent,
            kind="webhook" if webhook else "call",
            method=method,
            url=masked(address, secrets),
            headers=public,
            body=MASK if form else _text(body, secrets),
            body_bytes=len(body),
        )
        self._entries.setdefault(agent, deque()).append(entry)
        self._sizes[entry.number] = 0
        self.hold(entry, ENTRY_BYTES + len(entry.body) + len(address) + _size(public))
        return entry, secrets

    def hold(self, entry: WireExchange, size: int) -> None:
        """Count further bytes of an entry, and drop the oldest entries over a limit."""
        if entry.number not in self._sizes:  # it was dropped
            return
        agent = entry.agent
        self._sizes[entry.number] += size
        self._held[agent] = self._held.get(agent, 0) + size
        while (mine := self._entries[agent]) and (len(mine) > AGENT_ENTRIES_MAX or self._held[agent] > AGENT_BYTES_MAX):
            self._drop(agent)
        while sum(self._held.values()) > BYTES_MAX:
            self._drop(min((entries[0].number, name) for name, entries in self._entries.items() if entries)[1])

    def _drop(self, agent: str) -> None:
        self._held[agent] -= self._sizes.pop(self._entries[agent].popleft().number)

    def _switch(self, on: bool) -> None:
        if on is not self.on:
            self.on = on
            for tap in self._taps:
                tap.switch(on)
        if not on:
            self._entries.clear()
            self._sizes.clear()
            self._held.clear()


class TappedTransport(Transport):
    """A transport that records the exchanges of one agent in a log."""

    def __init__(self, transport: Transport, agent: str, log: WireLog) -> None:
        self._inner, self._agent, self._log = transport, agent, log

    def switch(self, on: bool) -> None:
        """Record, or be the transport itself."""
        own: Any = vars(self)
        if on:
            own.pop("open", None)
            own.pop("exchange", None)
        else:
            own.update(open=self._inner.open, exchange=self._inner.exchange)

    def open(self, request: Request) -> AbstractAsyncContextManager[IncomingResponse]:
        return self._open(request)

    @asynccontextmanager
    async def _open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        log, entry, secrets, began = self._begin(request)
        try:
            async with self._inner.open(request) as incoming:
                entry.status = incoming.status
                entry.reply_headers = masked_headers(incoming.headers)[0]
                log.hold(entry, _size(entry.reply_headers))
                chunks = _Chunks(incoming, log, entry, secrets, began)
                try:
                    yield replace(incoming, chunks=chunks)
                finally:
                    chunks.end()
        except FleetsimError as error:
            entry.problem = masked(str(error), secrets)
            raise
        finally:
            entry.seconds = round(_now() - began, 4)

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        log, entry, secrets, began = self._begin(request)
        try:
            reply = await self._inner.exchange(request, room)
        except FleetsimError as error:
            entry.problem = masked(str(error), secrets)
            raise
        else:
            entry.status, entry.reply_bytes = reply.status, len(reply.body)
            entry.reply_headers = masked_headers(reply.headers)[0]
            entry.reply = _text(reply.body, secrets)
            log.hold(entry, len(entry.reply) + _size(entry.reply_headers))
            return reply
        finally:
            entry.seconds = round(_now() - began, 4)

    def _begin(self, request: Request) -> tuple[WireLog, WireExchange, tuple[str, ...], float]:
        entry, secrets = self._log.begin(self._agent, request.method, request.url, request.headers, request.body)
        return self._log, entry, secrets, _now()

    def guarded(self, policy: AddressPolicy) -> Transport:
        return self._log.tap(self._inner.guarded(policy), self._agent)

    def through(self, way: WayOut) -> Transport:
        return self._log.tap(self._inner.through(way), self._agent)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Chunks(BoundedChunks):
    """The chunks of a response, recorded as its reader takes them: the frames of a stream, else the text."""

    def __init__(
        self, incoming: IncomingResponse, log: WireLog, entry: WireExchange, secrets: tuple[str, ...], began: float
    ) -> None:
        self._chunks, self._log, self._entry, self._secrets, self._began = incoming.chunks, log, entry, secrets, began
        self._streams = incoming.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._buffer = bytearray()
        self._size = self._held = 0

    def extend(self, seconds: float) -> None:
        if isinstance(self._chunks, BoundedChunks):
            self._chunks.extend(seconds)

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self._entry.reply_bytes += len(chunk)
        for line in chunk.splitlines(keepends=True) if self._streams else (chunk,):
            self._size += len(line)
            self._buffer += line[: max(0, BODY_BYTES_MAX - len(self._buffer))]
            full = self._size > len(self._buffer)
            if self._streams and (self._buffer.endswith((b"\n\n", b"\r\n\r\n")) or (full and not line.strip())):
                self._frame()
        return chunk

    def end(self) -> None:
        """Keep what came since the last whole frame."""
        if self._streams and self._buffer:
            self._frame()
        elif self._buffer:
            self._entry.reply = _text(bytes(self._buffer), self._secrets)
            self._log.hold(self._entry, len(self._entry.reply))

    def _frame(self) -> None:
        entry = self._entry
        entry.frames_total += 1
        if len(entry.frames) < FRAMES_MAX:
            text = _text(bytes(self._buffer[: BODY_BYTES_MAX - self._held]).rstrip(), self._secrets)
            frame = WireFrame(after_s=round(_now() - self._began, 4), bytes=self._size, text=text)
            entry.frames = (*entry.frames, frame)
            self._held = min(BODY_BYTES_MAX, self._held + len(text))
            self._log.hold(entry, len(text) + 64)
        self._buffer.clear()
        self._size = 0


def _names(entry: WireExchange, ids: tuple[str, ...]) -> bool:
    """Whether its address or one of its bodies names one of the ids."""
    texts = (entry.url, entry.body, entry.reply, *(frame.text for frame in entry.frames))
    return any(known in text for known in ids for text in texts)


def _text(body: bytes, secrets: tuple[str, ...]) -> str:
    # Mask before the cut: a secret that is cut in two would not be recognised.
    head = masked(body[: BODY_BYTES_MAX + 8_192].decode("utf-8", "replace"), secrets)
    return head[:BODY_BYTES_MAX]


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())


def _now() -> float:
    return asyncio.get_running_loop().time()
