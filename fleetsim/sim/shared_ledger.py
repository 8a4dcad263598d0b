"""A ledger that several hubs of one process share: the rules of the ledger in PostgreSQL, over SQLite on virtual time.

``SharedStore`` is the database, and a ``MemberLedger`` one hub's way to it, which can be cut.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from fleetsim.api.health import HubMember
from fleetsim.events.request import Event
from fleetsim.ledger import (
    EarlyWebhook,
    LeaseLost,
    LedgerLimits,
    MessageKind,
    NoticeRecord,
    PassedMessage,
    RunRecord,
    RunStatus,
    SharedLedger,
    TakenOver,
)
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import Operation, Storage
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.request.limits import Booking
from fleetsim.request.records import QuestionState, RequestRecord
from fleetsim.runtime.ports import Clock
from fleetsim.sim.calls import LineWriter

T = TypeVar("T")


@dataclass
class _Member:
    name: str
    lease_s: float
    started_at: datetime
    renewed_s: float
    ended: bool = False
    took: int = 0
    took_at: datetime | None = None


@dataclass
class SharedStore:
    """The rows that SQLite's tables lack: members, owners, messages, and the publishers of events. ``clock`` is the
    database's own. ``record`` writes a line for each take-over.
    """

    clock: Clock
    lease_s: float
    record: LineWriter = lambda kind, **members: None
    members: dict[int, _Member] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    inherited: set[int] = field(default_factory=set)
    """Hubs of which everything was taken over."""
    runs: dict[str, int] = field(default_factory=dict)
    messages: dict[int, PassedMessage] = field(default_factory=dict)
    notices: dict[tuple[str, str], int] = field(default_factory=dict)
    publishers: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Those of messages."""
    readers: list[MemberLedger] = field(default_factory=list)

    def end_lapsed(self, but: int) -> None:
        for hub, member in self.members.items():
            if hub != but and self.clock.monotonic() > member.renewed_s + member.lease_s:
                member.ended = True

    def notify(self, kind: str) -> None:
        for reader in self.readers:
            reader.hear(kind)


class BorrowedStorage:
    """A way to a storage that others use, too, and that is open."""

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""


class _Fenced(BorrowedStorage):
    """The storage of one member: each write renews its lease, and is refused once another hub has ended it.

    A write that waits for a slow disk belongs to the member that began it, also after the hub has joined again.
    """

    def __init__(self, storage: Storage, ledger: MemberLedger) -> None:
        self._storage = storage
        self._ledger = ledger

    async def write(self, operation: Operation[T]) -> T:
        ledger, hub, before, then = self._ledger, self._ledger.hub, self._ledger.before, self._ledger.then
        ledger.before = ledger.then = None
        ledger.gate()

        def fenced(connection: Any) -> T:
            ledger.renew(hub)
            if before is not None:
                before(connection)
            result = operation(connection)
            if then is not None:
                then(result)
            return result

        return await self._storage.write(fenced)

    async def read(self, operation: Operation[T]) -> T:
        self._ledger.gate()
        return await self._storage.read(operation)


class MemberLedger(SqliteLedger, SharedLedger):
    """One hub's way to a SharedStore. ``cut``: the database does not answer. ``appended`` gets the events that this hub
    wrote to the journal; ``before`` and ``then`` run within the next write.
    """

    def __init__(self, store: SharedStore, storage: Storage, limits: LedgerLimits, *, name: str, clock: Clock) -> None:
        super().__init__(_Fenced(storage, self), limits)
        self.lease_s = store.lease_s
        self.cut = False
        self.appended: Callable[[Sequence[Event]], None] = lambda events: None
        self.before: Callable[[Any], None] | None = None
        self.then: Callable[[Any], None] | None = None
        self._store, self._name, self._clock = store, name, clock
        self.hub = 0
        self._renewed_s = float("-inf")
        self._is_lost = False
        self._heard = set[str]()
        self._any = asyncio.Event()

    async def __aenter__(self) -> MemberLedger:
        self._store.readers.append(self)
        await self.rejoin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._store.readers.remove(self)
        if not self.cut:
            self._store.members[self.hub].ended = True
            self._store.notify("hubs")

    def gate(self) -> None:
        """Raises NotAccepting while it is cut off."""
        if self not in self._store.readers:
            raise NotAccepting("the ledger is closed")
        if self.cut:
            raise NotAccepting("the ledger cannot be reached")

    def renew(self, hub: int) -> None:
        """Renew the lease of a member. If another hub has ended it, notify this hub once. Raises LeaseLost then."""
        member = self._store.members[hub]
        if member.ended:
            if hub == self.hub and not self._is_lost and self._listener is not None:
                self._is_lost = True
                self._listener.lease_lost("another hub has taken over")
            raise LeaseLost
        member.renewed_s = self._renewed_s = self._store.clock.monotonic()

    def require_lease(self) -> None:
        if self._is_lost or self._clock.monotonic() > self._renewed_s + self.lease_s:
            raise LeaseLost

    async def rejoin(self) -> None:
        self.gate()
        for member in self._store.members.values():
            member.ended |= member.name == self._name
        self.hub = len(self._store.members) + 1
        self._renewed_s = self._store.clock.monotonic()
        self._store.members[self.hub] = _Member(self._name, self.lease_s, self._store.clock.now(), self._renewed_s)
        self._is_lost = False
        self._store.notify("hubs")

    # -- writes that have an owner

    def _owns(self, correlation_id: str) -> bool:
        """Raises NotAccepting, as the write would."""
        self.gate()
        self.renew(self.hub)
        return self._store.owners.get(correlation_id) == self.hub

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        def own(accepted: bool) -> None:
            if accepted:
                self._store.owners |= {record.request.correlation_id: self.hub for record in records}
                self._store.runs |= {run.claim.run_id: self.hub} if run is not None else {}

        self.then = own
        return await super().accept(records, run=run)

    async def update(self, *records: RequestRecord) -> None:
        await super().update(*(record for record in records if self._owns(record.request.correlation_id)))

    async def _close(self, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        return await super()._close(outcome, bookings) if self._owns(outcome.correlation_id) else False

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        return await super().keep_webhook(webhook) if self._owns(webhook.correlation_id) else False

    async def ask(self, question: Question) -> bool:
        return await super().ask(question) if self._owns(question.correlation_id) else False

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        def pass_on(question: Question | None) -> None:
            if question is not None and not self._owns(question.correlation_id):
                cid = question.correlation_id
                self._add(PassedMessage(correlation_id=cid, kind=MessageKind.ANSWER, answer=answer))

        self.then = pass_on
        return await super().answer(answer, at)

    async def append(self, events: Sequence[Event]) -> None:
        numbered: list[Event] = []

        def number(connection: Any) -> None:
            last = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
            numbered[:] = [event if event.seq else replace(event, seq=last + n) for n, event in enumerate(events, 1)]

        def publish(_: None) -> None:
            self._store.publishers |= {event.seq: self.hub for event in numbered}
            self.appended(numbered)

        self.before, self.then = number, publish
        await super().append(numbered)
        self._store.notify("events")

    # -- several hubs

    async def members(self) -> tuple[HubMember, ...]:
        self.gate()
        now_s = self._store.clock.monotonic()
        owned = [self._store.owners.get(record.request.correlation_id) for record in await self.open_requests()]
        return tuple(
            HubMember(
                hub=hub,
                name=member.name,
                version="",
                started_at=member.started_at,
                lease_age_s=now_s - member.renewed_s,
                lease_s=member.lease_s,
                owned=owned.count(hub),
                took=member.took,
                took_at=member.took_at,
                here=hub == self.hub,
            )
            for hub, member in self._store.members.items()
            if not member.ended
        )

    async def take_over(self, *, limit: int = 200) -> TakenOver:
        await self.require_writable()
        store = self._store
        store.end_lapsed(self.hub)
        left = {hub for hub, member in store.members.items() if member.ended}  # they write no more
        if left <= store.inherited:  # to look is expensive
            self.require_lease()
            return TakenOver()
        opened, unannounced = await self.open_requests(), await self.unannounced()
        untold, questions = await self.untold_requests(), await self.questions()
        webhooks, runs = await self.early_webhooks(), await self.runs(limit=10_000)
        records = {outcome.correlation_id: await self.request(outcome.correlation_id) for outcome in unannounced}
        self.renew(self.hub)  # from here on nothing waits
        requests = [row for row in opened if store.owners.get(row.request.correlation_id) in {None, *left}][:limit]
        ended = [end for end in unannounced if store.owners.get(end.correlation_id) in {None, *left}][:limit]
        going_on = [
            run for run in runs if run.status is RunStatus.RUNNING and store.runs.get(run.claim.run_id) in {None, *left}
        ]
        if max(len(requests), len(ended)) < limit:
            store.inherited |= left
        taken = {row.request.correlation_id for row in requests}
        mine = taken | {end.correlation_id for end in ended}
        store.owners |= dict.fromkeys(mine, self.hub)
        store.runs |= {run.claim.run_id: self.hub for run in going_on}
        if taken:
            store.record("taken", hub=self._name, requests=sorted(taken))
            member = store.members[self.hub]
            member.took, member.took_at = member.took + len(taken), store.clock.now()
        waiting = (QuestionState.OPEN, QuestionState.ANSWERED)
        return TakenOver(
            requests=tuple(requests),
            untold=tuple(row for row in untold if row.request.correlation_id in mine),
            unannounced=tuple((end, record) for end in ended if (record := records[end.correlation_id]) is not None),
            questions=tuple(q for q in questions if q.question.correlation_id in taken and q.state in waiting),
            webhooks=tuple(webhook for webhook in webhooks if webhook.correlation_id in taken),
            runs=tuple(reversed(going_on)),
        )

    async def save_notice(self, notice: NoticeRecord) -> None:
        self._store.notices[notice.subject, notice.place] = self.hub
        await super().save_notice(notice)

    async def take_notices(self) -> tuple[NoticeRecord, ...]:
        store = self._store
        living = {hub for hub, member in store.members.items() if not member.ended}
        left = [row for row in await super().take_notices() if store.notices[row.subject, row.place] not in living]
        store.notices |= {(row.subject, row.place): self.hub for row in left}
        return tuple(left)

    async def pass_on(self, message: PassedMessage) -> bool:
        cid = message.correlation_id
        if cid not in await self.open_ids(limit=1_000_000) or ():  # type: ignore[operator]
            return False
        self.then = lambda _: self._add(message)
        await self.require_writable()
        return True

    def _add(self, message: PassedMessage) -> None:
        seq = next(self._store.numbers)
        self._store.messages[seq] = replace(message, seq=seq)
        self._store.notify("messages")

    async def passed_on(self) -> tuple[PassedMessage, ...]:
        self.gate()
        return tuple(message for message in self._store.messages.values() if self._owns(message.correlation_id))

    async def discard(self, messages: Sequence[PassedMessage]) -> None:
        await self.require_writable()
        for message in messages:
            self._store.messages.pop(message.seq, None)

    async def journaled(self, *, after_seq: int, limit: int = 1_000) -> tuple[tuple[Event, bool], ...]:
        events = await self.events(after_seq=after_seq, limit=limit)
        return tuple((event, self._store.publishers.get(event.seq) == self.hub) for event in events)

    async def holder(self, agent: str, task_id: str) -> str | None:
        held = (row for row in await self.open_requests() if row.agent == agent and row.task is not None)
        return next((row.request.correlation_id for row in held if row.task and row.task.task_id == task_id), None)

    async def changed(self, within_s: float) -> frozenset[str]:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._any.wait()
        kinds, self._heard = frozenset(self._heard), set()
        self._any.clear()
        return kinds

    def hear(self, kind: str) -> None:
        """Note what another hub wrote, unless the notice is lost."""
        if not self.cut:
            self._heard.add(kind)
            self._any.set()
