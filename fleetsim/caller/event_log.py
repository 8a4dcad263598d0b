"""The event log: what happened, in order, for many readers.

One writer side (``publish``, never waiting, never failing) and any number of readers, each with a bounded
queue of its own: a slow reader loses its oldest events and is told how many, and slows nobody. An outcome is told
in up to three: one for the fleet, one for whoever asked, one for the effects.

Readers within the hub hear what happens at once. Who may come back to another hub on the same ledger, and ask for what
came after a number, hears of it once that number is in the journal (decision 0024). Of those there may be hundreds, who
read everything: they have no queue, but a place among the events that are kept for all.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from operator import attrgetter
from typing import Any, TypeVar

from fleetsim.caller.events import EffectsReported, Event, Level, OutcomeDecided, RequestAnswered
from fleetsim.model.changing import changer
from fleetsim.model.errors import Blame
from fleetsim.model.work import Outcome
from fleetsim.runtime.ports import Clock

KEEP_MAX = 20_000
SPARE = 1_000
"""So many more are kept before the oldest go, all of these at once."""

TURN_S = 0.001
"""Between two times that readers of what is in the journal are woken, for each of them: however many there are, they
take the same share of the processor, and the more of them the more each is told of at once."""

_SEQ = attrgetter("seq")
_placed: dict[tuple[object, ...], Callable[..., Any]] = {}
"""What gives an event of a class its number, its moment and the members that are named."""

E = TypeVar("E", bound=Event)


class Subscription:
    """One reader's queue. Use ``async with`` or call ``close``; ``dropped`` counts what it was too slow for."""

    def __init__(
        self,
        keep_max: int,
        on_close: Callable[[Subscription], None],
        kinds: tuple[type[Event], ...],
        wanted: Callable[[Event], bool] | None,
        about: str | None,
        after_seq: int = 0,
    ) -> None:
        self.kinds = kinds
        self.about = about
        self._wanted = wanted
        self._after_seq = after_seq
        self._waiting: deque[Event] = deque()
        self._keep_max = keep_max
        self._arrived = asyncio.Event()
        self._on_close = on_close
        self.dropped = 0

    @property
    def behind(self) -> int:
        """How many events wait to be read."""
        return len(self._waiting)

    def offer(self, event: Event) -> None:
        """Queue an event of one of its ``kinds``, if it is one to be heard of, dropping the oldest when full."""
        if event.seq <= self._after_seq:
            return
        if self._wanted is not None and not self._wanted(event):
            return
        if len(self._waiting) >= self._keep_max:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()

    async def next_batch(self, limit: int = 1_000) -> tuple[Event, ...]:
        """Wait for at least one event, then return up to ``limit`` of them in order."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        waiting = self._waiting
        if len(waiting) > limit:
            return tuple(waiting.popleft() for _ in range(limit))
        batch = tuple(waiting)
        waiting.clear()
        return batch

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        return await self.next_batch()

    def close(self) -> None:
        """Stop listening."""
        self._on_close(self)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class RecordReader:
    """One reader of what is in the journal: a place among the kept events. An event costs the same however many there
    are of them. ``dropped`` counts what was not kept any more when it came to read it.
    """

    def __init__(self, events: EventLog, after_seq: int) -> None:
        self._events, self._after_seq = events, after_seq
        self.dropped = 0

    @property
    def behind(self) -> int:
        """How many events wait to be read."""
        return self._events.told_count(self._after_seq)

    async def next_batch(self, limit: int = 1_000) -> tuple[Event, ...]:
        """Up to ``limit`` events in order, once there is one; none if the log woke its readers before."""
        batch = self._events.told(self._after_seq, limit)
        if not batch:
            await self._events.more_told.wait()
            batch = self._events.told(self._after_seq, limit)
        if batch:
            self.dropped += batch[0].seq - self._after_seq - 1
            self._after_seq = batch[-1].seq
        return batch

    def close(self) -> None:
        """Stop reading."""
        self._events.leave(self)

    async def __aenter__(self) -> RecordReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Readers:
    """Who listens, found by the class of what is told, or by the one request they wait for: most are told of little."""

    def __init__(self) -> None:
        self._all: dict[Subscription, None] = {}
        self._of_kind: dict[type[Event], tuple[Subscription, ...]] = {}
        self._of_request: dict[str, list[Subscription]] = {}

    def __iter__(self) -> Iterator[Subscription]:
        yield from self._all
        for readers in self._of_request.values():
            yield from readers

    def add(self, reader: Subscription) -> None:
        if reader.about is not None:
            self._of_request.setdefault(reader.about, []).append(reader)
            return
        self._all[reader] = None
        self._of_kind.clear()

    def drop(self, reader: Subscription) -> bool:
        """False if it is not among them."""
        if reader.about is not None:
            others = self._of_request.get(reader.about, [])
            if reader not in others:
                return False
            others.remove(reader)
            if not others:
                del self._of_request[reader.about]
            return True
        if reader not in self._all:
            return False
        del self._all[reader]
        self._of_kind.clear()
        return True

    def tell(self, event: Event) -> None:
        """Offer an event to whoever is to hear of it; what is of no request, to whoever waits for one too."""
        kind = type(event)
        readers = self._of_kind.get(kind)
        if readers is None:
            readers = self._of_kind[kind] = tuple(reader for reader in self._all if issubclass(kind, reader.kinds))
        for reader in readers:
            reader.offer(event)
        if self._of_request:
            named = event.correlation_id
            waiting = self._of_request.values() if named is None else (self._of_request.get(named, ()),)
            for reader in [reader for readers in waiting for reader in readers if issubclass(kind, reader.kinds)]:
                reader.offer(event)


class EventLog:
    """The newest events, and where to hear of the next. ``first_seq`` continues an earlier journal.

    ``more_told`` is set for a moment whenever readers of what is in the journal are woken, as they are when there is
    more, but no sooner than ``TURN_S`` after the last time for each of them.
    """

    def __init__(self, clock: Clock, *, keep_max: int = KEEP_MAX, first_seq: int = 0) -> None:
        self._clock = clock
        self._kept: list[Event] = []
        self._keep_max = keep_max
        self._readers = _Readers()
        self._record_readers: set[RecordReader] = set()
        self._holding = False
        self._dropped_before = 0
        self._seq = self._recorded_seq = self._settled_seq = self._told_seq = first_seq
        self._told_at = -math.inf
        self._telling: asyncio.TimerHandle | None = None
        self.more_told, self._more_settled = asyncio.Event(), asyncio.Event()

    @property
    def last_seq(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._seq

    @property
    def recorded_seq(self) -> int:
        """The number up to which all are in the journal: no other event will ever have one of these."""
        return self._recorded_seq

    @property
    def dropped(self) -> int:
        """How many events readers were too slow for, those who have gone included."""
        readers: tuple[Subscription | RecordReader, ...] = (*self._readers, *self._record_readers)
        return self._dropped_before + sum(reader.dropped for reader in readers)

    @property
    def unread(self) -> int:
        """How many events the slowest reader of what is in the journal has yet to take."""
        return max((reader.behind for reader in self._record_readers), default=0)

    def continue_after(self, seq: int) -> None:
        """Number events after ``seq``: a restart goes on where the durable journal ended."""
        self._seq = max(self._seq, seq)
        self._recorded_seq = max(self._recorded_seq, seq)
        self._settle_up_to(seq)

    def publish(self, event: E, **about: Any) -> E:
        """Record a happening, now, under the next number, and hand it to every reader; ``about`` are members to set."""
        self._seq += 1
        members = (type(event), *about)
        placed = _placed.get(members) or _placed.setdefault(members, changer(type(event), "seq", "at", *about))
        event = placed(event, self._seq, self._clock.now(), *about.values())
        self._kept.append(event)
        if len(self._kept) >= self._keep_max + SPARE:
            del self._kept[: -self._keep_max]
        self._readers.tell(event)
        if not self._holding:
            self._settle_up_to(self._seq)
        return event

    def record(self, seq: int) -> None:
        """All up to ``seq`` are in the journal: readers of what is recorded hear of them, and from here on wait."""
        self._recorded_seq, self._holding = max(self._recorded_seq, seq), True
        self._settle_up_to(seq)

    def release(self) -> None:
        """Nothing can be recorded for now: nobody waits for it, until ``record`` says that something was."""
        self._holding = False
        self._settle_up_to(self._seq)

    def _settle_up_to(self, seq: int) -> None:
        if seq <= self._settled_seq:
            return
        self._settled_seq = seq
        self._more_settled.set()
        self._more_settled.clear()
        if not self._record_readers:
            self._told_seq = seq
        elif self._telling is None:
            loop = asyncio.get_running_loop()
            due = self._told_at + len(self._record_readers) * TURN_S
            if due > loop.time():
                self._telling = loop.call_at(due, self._tell)
            else:
                self._tell()

    def _tell(self) -> None:
        self._telling = None
        self._told_seq, self._told_at = self._settled_seq, asyncio.get_running_loop().time()
        self.wake_readers()

    def wake_readers(self) -> None:
        """Have those who wait for more of what is in the journal go on, if only to look at the time."""
        self.more_told.set()
        self.more_told.clear()

    async def settle(self) -> None:
        """Wait until all that has happened up to now is in the journal, or nothing can be recorded for now."""
        last = self._seq
        while self._settled_seq < last:
            await self._more_settled.wait()

    def recent(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """The newest ``limit`` kept events after ``after_seq``, oldest first."""
        return tuple(self._kept[max(self._place(after_seq), len(self._kept) - limit) :])

    def told(self, after_seq: int, limit: int = KEEP_MAX) -> tuple[Event, ...]:
        """The oldest ``limit`` kept events after ``after_seq`` that are in the journal, or need not wait for it."""
        first = self._place(after_seq)
        return tuple(self._kept[first : min(first + limit, self._place(self._told_seq))])

    def told_count(self, after_seq: int) -> int:
        """How many those are in all."""
        return max(0, self._place(self._told_seq) - self._place(after_seq))

    def _place(self, seq: int) -> int:
        """Where what came after ``seq`` begins, of what is kept."""
        oldest = max(0, len(self._kept) - self._keep_max)
        return bisect_left(self._kept, seq + 1, oldest, key=_SEQ)

    def subscribe(
        self,
        *,
        after_seq: int | None = None,
        keep_max: int = KEEP_MAX,
        kinds: tuple[type[Event], ...] = (Event,),
        wanted: Callable[[Event], bool] | None = None,
        about: str | None = None,
    ) -> Subscription:
        """Listen from now on, or, with ``after_seq``, to the kept events after it first.

        Of these ``kinds`` alone, and ``wanted`` is asked when one is told: who waits for one of them is not woken by
        all the others. ``about``: of one request alone, and of what is of none; it costs the others nothing.
        """
        after = self._known(after_seq)
        reader = Subscription(keep_max, self._unsubscribe, kinds, wanted, about, after)
        for event in self._kept[self._place(after) :]:
            if (about is None or event.correlation_id in {about, None}) and isinstance(event, kinds):
                reader.offer(event)
        self._readers.add(reader)
        return reader

    def read_record(self, *, after_seq: int) -> RecordReader:
        """Read what is kept after ``after_seq``, and what comes: each once in the journal, or while nothing can be put
        there.
        """
        oldest = self._kept[first].seq if (first := self._place(0)) < len(self._kept) else self._seq + 1
        reader = RecordReader(self, max(self._known(after_seq), oldest - 1))
        self._record_readers.add(reader)
        return reader

    def _known(self, seq: int | None) -> int:
        """The number after which somebody listens. One that is not reached yet is another log's: what happens here is
        news to that reader.
        """
        return self._seq if seq is None else min(seq, self._seq)

    def _unsubscribe(self, reader: Subscription) -> None:
        if self._readers.drop(reader):
            self._dropped_before += reader.dropped

    def leave(self, reader: RecordReader) -> None:
        """Forget a reader, but for what it was too slow for; again is harmless."""
        if reader in self._record_readers:
            self._record_readers.remove(reader)
            self._dropped_before += reader.dropped


_LEVEL = {
    Blame.AGENT: Level.ERROR,
    Blame.NETWORK: Level.WARN,
    Blame.CALLER: Level.WARN,
    Blame.HUMAN: Level.INFO,
    Blame.NOBODY: Level.WARN,
}
"""How loud an end without success is: an error is what an agent failed at."""


def publish_outcome(events: EventLog, outcome: Outcome, *, drift: list[str]) -> None:
    """Publish the one outcome of a request, its reply, and the effects the agent reported."""
    about: dict[str, Any] = {
        "correlation_id": outcome.correlation_id,
        "parent_id": outcome.parent_id,
        "agent": outcome.agent,
        "skill": outcome.skill,
        "task_id": outcome.task_id,
    }
    decided = OutcomeDecided.of(outcome, level=Level.INFO if outcome.success else _LEVEL[outcome.blame])
    events.publish(decided)
    events.publish(
        RequestAnswered(
            **about,
            content=decided.text if outcome.success else None,
            error=None if outcome.success else outcome.reason,
            task_state=outcome.kind.value,
            context_id=outcome.context_id,
        )
    )
    if outcome.effects or drift:
        events.publish(
            EffectsReported(
                level=Level.WARN if drift else Level.INFO,
                **about,
                deltas=tuple(asdict(delta) for delta in outcome.effects),
                source=outcome.agent,
                drift=tuple(drift),
            )
        )
