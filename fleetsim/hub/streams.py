"""``GET /api/events``: events as they happen, and those after a given one first, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.events.fleet import HubStopping
from fleetsim.events.log import KEEP_MAX, EventLog
from fleetsim.events.request import Event
from fleetsim.events.wire import to_wire
from fleetsim.hub.http import PAGE_CHARS_MAX, number, principal_of
from fleetsim.hub.hub import Hub
from fleetsim.hub.ownership import Ownership
from fleetsim.ledger import SharedLedger
from fleetsim.ledger.bodies import encode
from fleetsim.runtime.inbound import CHARGED, EventStreamResponse, Refusal
from fleetsim.wire.sse import KEEPALIVE, frame

STREAMS_MAX = 256
STREAMS_PER_AGENT_MAX = 16
KEEPALIVE_S = 15.0
WRITE_S = 600.0
BATCH_MAX = 256
"""Events in one write, after which the others have their turn. A reader who does not read has one write in memory."""

FRAMES_KEPT = 4_000
"""More events than two readers that keep up are apart: with fewer, each reader would have all encoded again."""

PATTERNS_MAX = 32
PATTERN_CHARS_MAX = 300
SEQ_MAX = 2**53


class EventStreams:
    """The open streams of events."""

    def __init__(self, hub: Hub, ownership: Ownership) -> None:
        self._hub = hub
        self._ownership = ownership
        self._open: Counter[str] = Counter()
        self._frames = EventFrames(hub.events)

    async def events(self, request: Request) -> Response:
        """Events as they happen; with ``?after=SEQ``, or ``Last-Event-ID`` from a reader that comes again, those since
        then first. ``?topic=`` are patterns, of which one must fit."""
        principal = principal_of(request)
        if self._open.total() >= STREAMS_MAX:
            raise Refusal(429, "TOO_MANY_STREAMS", f"{STREAMS_MAX} event streams are open already")
        if principal.account and self._open[principal.account] >= STREAMS_PER_AGENT_MAX:
            raise Refusal(429, "TOO_MANY_STREAMS", f"{STREAMS_PER_AGENT_MAX} event streams of yours are open already")
        patterns = request.query_params.getlist("topic")
        if len(patterns) > PATTERNS_MAX or any(len(pattern) > PATTERN_CHARS_MAX for pattern in patterns):
            most = f"topic: at most {PATTERNS_MAX} patterns of {PATTERN_CHARS_MAX} characters"
            raise Refusal(400, "BAD_REQUEST", most)
        if any("#" in pattern.split(".")[:-1] for pattern in patterns):
            raise Refusal(400, "BAD_REQUEST", "topic: # stands at the end of a pattern, for any number of levels")
        last = request.headers.get("last-event-id")
        if last is not None and last.isascii() and last.isdigit() and len(last) <= 16:
            after = min(int(last), SEQ_MAX)  # of a later moment than the address, which stays what it was
        else:
            after = number(request, "after", self._hub.events.last_seq, SEQ_MAX)
        if after > self._hub.events.last_seq and isinstance(self._hub.ledger, SharedLedger):
            after = min(after, await self._hub.ledger.last_seq())  # a later number is of another ledger

        async def wanted(event: Event) -> bool:
            fits = not patterns or any(topic_fits(pattern, event.topic) for pattern in patterns)
            return fits and await self._ownership.may_see(principal, event)

        chosen = None if principal.sees_all and not patterns else wanted
        frames = _Frames(self._follow(request, after, chosen))
        return EventStreamResponse[bytes](frames, bytes, keepalive=KEEPALIVE, write_s=WRITE_S)

    async def _follow(
        self, request: Request, after: int, wanted: Callable[[Event], Awaitable[bool]] | None
    ) -> AsyncGenerator[bytes | None, None]:
        """Frames for one reader, of at most ``BATCH_MAX`` events at once; ``wanted`` None is every event. The account
        pays for the events that the reader does not get, too. The frames end within ``KEEPALIVE_S`` after the key has
        lost its holder."""
        now, closing, ring = asyncio.get_running_loop().time, self._hub.closing, self._hub.keyring
        principal, account, keys = principal_of(request), request.scope[CHARGED].account, ring.version
        self._open[principal.account] += 1
        try:
            # The reader joins before the journal is read, and the journal ends where memory begins: no gap, none twice.
            async with self._hub.events.subscribe(after_seq=after, journaled=True) as reader:
                async for page in self._replayed(after):
                    if frames := await self._written(page, wanted):
                        yield frames
                    await account.turn()
                dropped, quiet_until, ended = 0, now() + KEEPALIVE_S, closing.is_set()
                while not ended:
                    batch: tuple[Event, ...] = ()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(quiet_until):
                            batch = await reader.next_batch(BATCH_MAX)
                    frames = await self._written(batch, wanted)
                    if reader.dropped > dropped:
                        frames = frame(json.dumps({"dropped": reader.dropped - dropped}), event="dropped") + frames
                        dropped = reader.dropped
                    await account.turn()
                    if keys != ring.version and ring.principal(request.headers.raw) != principal:
                        return
                    quiet = not frames and now() >= quiet_until
                    if frames or quiet:
                        yield frames or None
                        quiet_until = now() + KEEPALIVE_S
                    if len(batch) == BATCH_MAX:
                        await asyncio.sleep(0)  # the next batch may be there already, and neither it nor a write waits
                    if closing.is_set():
                        ended = quiet or any(isinstance(event, HubStopping) for event in batch)
        finally:
            self._open[principal.account] -= 1

    async def _written(self, batch: tuple[Event, ...], wanted: Callable[[Event], Awaitable[bool]] | None) -> bytes:
        """The frames of the events that a reader wants."""
        return b"".join([self._frames.of(event) for event in batch if wanted is None or await wanted(event)])

    async def _replayed(self, after: int) -> AsyncIterator[tuple[Event, ...]]:
        """Events older than those kept in memory, from the journal, a page at a time."""
        recent = self._hub.events.recent(limit=KEEP_MAX)
        first = recent[0].seq if recent else self._hub.events.last_seq + 1
        while after < first - 1:
            page = await self._hub.ledger.events(after_seq=after, limit=BATCH_MAX, chars_max=PAGE_CHARS_MAX)
            older = tuple(event for event in page if event.seq < first)
            if not older:
                return
            yield older
            after = older[-1].seq


class _Frames:
    """The frames of one reader, as an ``EventSource``."""

    about, ready = "/api/events", False

    def __init__(self, frames: AsyncGenerator[bytes | None, None]) -> None:
        self._frames = frames

    def events(self) -> AsyncGenerator[bytes | None, None]:
        return self._frames

    def close(self) -> None:
        """The generator was closed by its reader."""


class EventFrames:
    """Events as they are sent: each is encoded once, however many readers it has. Only an event in the journal has an
    id: after a kill, the next run gives the number of any other to another event."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._written: OrderedDict[int, bytes] = OrderedDict()

    def of(self, event: Event) -> bytes:
        if event.seq > self._events.recorded_seq:
            return frame(encode(to_wire(event)))
        written = self._written.get(event.seq)
        if written is None:
            written = self._written[event.seq] = frame(encode(to_wire(event)), event_id=str(event.seq))
            if len(self._written) > FRAMES_KEPT:
                self._written.popitem(last=False)
        return written


def topic_fits(pattern: str, topic: str) -> bool:
    """Whether a topic is of a pattern: level by level, ``*`` is any one, ``#`` at the end any number, none too."""
    wanted, levels = pattern.split("."), topic.split(".")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(part in {"*", level} for part, level in zip(wanted, levels, strict=True))
