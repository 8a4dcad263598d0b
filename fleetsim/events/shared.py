"""The event log of a hub that shares its journal with other hubs. The journal numbers the events of all hubs for its
readers. Readers within the hub receive its own events at once, and those of other hubs only if they want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fleetsim.events.log import E, EventLog
from fleetsim.events.request import Event
from fleetsim.runtime.ports import Clock


class SharedEventLog(EventLog):
    """An EventLog whose ``last_seq`` and ``recorded_seq`` are those of the journal; ``deliver`` has its events."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._own_settled = 0
        """The events of this log that are in the journal, or that another hub publishes."""

    @property
    def last_seq(self) -> int:
        return self._recorded_seq

    def continue_after(self, seq: int) -> None:
        self._recorded_seq, self._own_settled = seq, self._seq

    def publish(self, event: E, **about: Any) -> E:
        self._seq += 1
        event = replace(event, seq=self._seq, at=self._clock.now(), **about)
        self._readers.tell(event)
        return event

    def deliver(self, events: Sequence[tuple[Event, bool]]) -> None:
        """Hand events of the journal to its readers, each with whether this hub published it."""
        for event, own in events:
            self._keep(event)
            if not own and self._readers:
                self._seq += 1
                self._readers.tell(replace(event, seq=self._seq), elsewhere=True)
            self._own_settled += own or bool(self._readers)
            self._journal_readers.tell(event)
            self._recorded_seq = event.seq
        self._wake()

    def forgo(self, count: int) -> None:
        """``count`` events of this hub will not reach the journal: another hub publishes them."""
        self._own_settled += count
        self._wake()

    def record(self, seq: int) -> None:
        self._holding = True  # its readers get the events by ``deliver``

    def release(self) -> None:
        self._holding = False  # without the journal, events have no numbers: its readers wait
        self._wake()

    async def settle(self) -> None:
        last = self._seq
        while self._own_settled < last and self._holding:
            await self._more_settled.wait()

    def _wake(self) -> None:
        self._more_settled.set()
        self._more_settled.clear()

    def _start(self, after_seq: int | None, *, journaled: bool) -> int:
        if journaled:  # another hub may have reached a later number: events up to it are not told again
            return self._recorded_seq if after_seq is None else after_seq
        return super()._start(after_seq, journaled=journaled)

    def _past(self, after: int, *, journaled: bool) -> Sequence[Event]:
        return self._kept[self._place(after) :] if journaled else ()
