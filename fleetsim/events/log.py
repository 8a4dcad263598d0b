"""The event log: what happened, in order, for many readers.

``publish`` never waits and never fails. Each reader has a bounded queue of its own: a slow reader loses its oldest
events, learns how many, and delays nobody. Readers within the hub receive an event at once; a reader that may come back
to another run of the hub receives it once it is in the journal (decision 0024).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from fleetsim.events.request import EffectsReported, Event, Excerpt, Level, OutcomeDecided, RequestAnswered
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import PromisedEffect, SkillPolicy
from fleetsim.model.work import Outcome
from fleetsim.runtime.ports import Clock

KEEP_MAX = 20_000
SPARE = 1_000
"""The log grows by this many events before it removes the oldest, all at once."""

_SEQ = attrgetter("seq")

E = TypeVar("E", bound=Event)


class Subscription:
    """One reader's queue. Use ``async with`` or call ``close``. ``dropped`` counts events lost to slow reading."""

    def __init__(
        self,
        keep_max: int,
        on_close: Callable[[Subscription], None],
        kinds: tuple[type[Event], ...],
        wanted: Callable[[Event], bool] | None,
        about: str | None,
        after_seq: int = 0,
        everywhere: bool = False,
    ) -> None:
        self.kinds = kinds
        self.about = about
        self.everywhere = everywhere
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
        """Queue an event of one of its ``kinds`` if it is wanted. A full queue drops its oldest event."""
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

    def clear(self) -> int:
        """Drop the events that wait; the number of them."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

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


class _Readers:
    """The readers, found by the class of an event, or by the one request that a reader is about."""

    def __init__(self) -> None:
        self._all: dict[Subscription, None] = {}
        self._of_kind: dict[type[Event], tuple[Subscription, ...]] = {}
        self._of_request: dict[str, list[Subscription]] = {}

    def __bool__(self) -> bool:
        return bool(self._all or self._of_request)

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
        """Remove a reader; False if the log does not have it."""
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

    def tell(self, event: Event, *, elsewhere: bool = False) -> None:
        """Offer an event to its readers. An event of no request also goes to readers about one request.

        ``elsewhere``: it is another hub's.
        """
        kind = type(event)
        readers = self._of_kind.get(kind)
        if readers is None:
            readers = self._of_kind[kind] = tuple(reader for reader in self._all if issubclass(kind, reader.kinds))
        for reader in readers:
            if reader.everywhere or not elsewhere:
                reader.offer(event)
        if self._of_request:
            named = event.correlation_id
            waiting = self._of_request.values() if named is None else (self._of_request.get(named, ()),)
            for reader in [reader for readers in waiting for reader in readers if issubclass(kind, reader.kinds)]:
                if reader.everywhere or not elsewhere:
                    reader.offer(event)


class EventLog:
    """The newest events, and their readers. ``first_seq`` continues an earlier journal."""

    def __init__(self, clock: Clock, *, keep_max: int = KEEP_MAX, first_seq: int = 0) -> None:
        self._clock = clock
        self._kept: list[Event] = []
        self._keep_max = keep_max
        self._readers, self._journal_readers = _Readers(), _Readers()
        self._holding = False
        self._dropped_before = 0
        self._seq = self._recorded_seq = self._settled_seq = first_seq
        self._more_settled = asyncio.Event()

    @property
    def last_seq(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._seq

    @property
    def recorded_seq(self) -> int:
        """The number up to which all events are in the journal. No other event will get one of these numbers."""
        return self._recorded_seq

    @property
    def dropped(self) -> int:
        """How many events were dropped for slow readers, including readers that have left."""
        return self._dropped_before + sum(r.dropped for r in chain(self._readers, self._journal_readers))

    @property
    def unread(self) -> int:
        """How many events wait for the slowest reader of the journal."""
        return max((reader.behind for reader in self._journal_readers), default=0)

    def continue_after(self, seq: int) -> None:
        """Number events after ``seq``: a restart goes on where the durable journal ended."""
        self._seq = max(self._seq, seq)
        self._recorded_seq = max(self._recorded_seq, seq)
        self._settle_up_to(seq)

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        if len(self._kept) >= self._keep_max + SPARE:
            del self._kept[: -self._keep_max]

    def publish(self, event: E, **about: Any) -> E:
        """Give an event the next number and the time, set the members in ``about``, and hand it to its readers."""
        self._seq += 1
        event = replace(event, seq=self._seq, at=self._clock.now(), **about)
        self._keep(event)
        self._readers.tell(event)
        if not self._holding:
            self._settle_up_to(self._seq)
        return event

    def record(self, seq: int) -> None:
        """The events up to ``seq`` are in the journal: its readers get them, and wait for the journal from now on."""
        self._recorded_seq, self._holding = max(self._recorded_seq, seq), True
        self._settle_up_to(seq)

    def release(self) -> None:
        """The journal cannot be written now: its readers get events at once, until the next ``record``."""
        self._holding = False
        self._settle_up_to(self._seq)

    def _settle_up_to(self, seq: int) -> None:
        if seq <= self._settled_seq:
            return
        if self._journal_readers:
            for event in self._kept[self._place(self._settled_seq) : self._place(seq)]:
                self._journal_readers.tell(event)
        self._settled_seq = seq
        self._more_settled.set()
        self._more_settled.clear()

    async def settle(self) -> None:
        """Wait until all events up to now are in the journal, or the journal cannot be written."""
        last = self._seq
        while self._settled_seq < last:
            await self._more_settled.wait()

    def recent(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """The newest ``limit`` kept events after ``after_seq``, oldest first."""
        return tuple(self._kept[max(self._place(after_seq), len(self._kept) - limit) :])

    def _place(self, seq: int) -> int:
        """The index of the first kept event after ``seq``."""
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
        journaled: bool = False,
        everywhere: bool = False,
    ) -> Subscription:
        """Receive events from now on; with ``after_seq``, the kept events after it first.

        Only events of ``kinds`` that ``wanted`` accepts are queued, so that the others do not wake the reader. A reader
        ``about`` one request receives its events and those of no request, and costs the events of others nothing.
        ``journaled``: each event once it is in the journal, or at once while nothing can be written there.
        ``everywhere``: events of other hubs that share the journal too, which a ``journaled`` reader always gets.
        """
        after = self._start(after_seq, journaled=journaled)
        reader = Subscription(keep_max, self._unsubscribe, kinds, wanted, about, after, everywhere)
        for event in self._past(after, journaled=journaled):
            if (about is None or event.correlation_id in {about, None}) and isinstance(event, kinds):
                reader.offer(event)
        (self._journal_readers if journaled else self._readers).add(reader)
        return reader

    def _start(self, after_seq: int | None, *, journaled: bool) -> int:
        """The number after which a reader starts. A number that this log has not reached belongs to another log: the
        reader starts now.
        """
        return self._seq if after_seq is None else min(after_seq, self._seq)

    def _past(self, after: int, *, journaled: bool) -> Sequence[Event]:
        """The kept events that a new reader receives first. ``SharedEventLog`` has others."""
        # A killed hub's next run gives the numbers of unwritten events to other events.
        return self._kept[self._place(after) : self._place(self._settled_seq) if journaled else None]

    def _unsubscribe(self, reader: Subscription) -> None:
        if self._readers.drop(reader) or self._journal_readers.drop(reader):
            self._dropped_before += reader.dropped


_LEVEL = {
    Blame.AGENT: Level.ERROR,
    Blame.NETWORK: Level.WARN,
    Blame.CALLER: Level.WARN,
    Blame.HUMAN: Level.INFO,
    Blame.NOBODY: Level.WARN,
}
"""The level of an outcome without success, by blame: an error only if the agent failed."""


def publish_outcome(events: EventLog, outcome: Outcome, declared: SkillPolicy) -> None:
    """Publish the one outcome of a request, its reply, and the effects the agent reported.

    ``declared`` is what the agent's card promised when the work was dispatched.
    """
    drift = undeclared_effects(declared, outcome)
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
            content=Excerpt.of(outcome.text, outcome.text_chars) if outcome.success else None,
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


DRIFT_MAX = 20


def undeclared_effects(promised: SkillPolicy, outcome: Outcome) -> list[str]:
    """Where declared and observed effects of successful work differ, in words; empty if none were declared.

    If the agent chose the skill, no effect counts as missing: the skill that it chose is not known.
    """
    if promised.effects is None or not outcome.success:
        return []
    expected = set(promised.effects)
    seen = {PromisedEffect(delta.domain, delta.path) for delta in outcome.effects}
    owed = set() if promised.any_skill else expected
    missing = [f"declared but not seen: {effect}" for effect in sorted(owed - seen)]
    extra = [f"seen but not declared: {effect}" for effect in sorted(seen - expected)]
    return (missing + extra)[:DRIFT_MAX]
