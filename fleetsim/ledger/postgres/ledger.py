"""The ledger in PostgreSQL: a write becomes a call of its verb (``verbs``) in the next group (``storage``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import asyncpg
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fleetsim.api.health import DatabaseState, HubMember
from fleetsim.events.request import Event, OutcomeDecided
from fleetsim.ledger.bodies import decoder, encode, micros
from fleetsim.ledger.interface import RECENT_MAX, LedgerLimits, SharedLedger
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres import verbs
from fleetsim.ledger.postgres.storage import Storage, Verb, explain
from fleetsim.ledger.postgres.tasks import PostgresTaskRows
from fleetsim.ledger.records import (
    CardSnapshot,
    DatabaseBehind,
    EarlyWebhook,
    LeaseLost,
    MessageKind,
    NoticeRecord,
    PassedMessage,
    RunRecord,
    TakenOver,
)
from fleetsim.ledger.stored import (
    IN_JOURNAL,
    StoredLedger,
    decoded,
    events_of,
    requests_of,
    run_row,
    summary,
    within,
)
from fleetsim.model.errors import ConfigError, NotAccepting, OverLimit
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.request.limits import Booking
from fleetsim.request.records import QuestionState, RequestRecord

T = TypeVar("T")


class PostgresLedger(StoredLedger, SharedLedger):
    """A SharedLedger whose rows are in one fleet's schema of a PostgreSQL database; made by ``open_postgres``."""

    HINT = "look at the log of the hub and of PostgreSQL, then start the hub again"

    REQUESTS = "SELECT body, content, phase, seq FROM requests"
    NOTE = "dialect, streaming, push"
    UNANNOUNCED = "NOT announced"
    UNTOLD = "NOT EXISTS (SELECT FROM events WHERE accepted_id = correlation_id)"

    _storage: Storage
    _appended = 0
    _seen = 0
    _probed_until = 0.0
    _trims = 0
    _gaps: int | None = None
    _is_lost = False
    _taken: tuple[list[str], list[str], list[str]] | None = None
    """Requests, outcomes and runs that this hub owns by now, and whose rows it has still to read."""

    def __init__(self, storage: Storage, limits: LedgerLimits, *, lease_s: float) -> None:
        super().__init__(storage, limits)
        self.lease_s = lease_s
        self.tasks = PostgresTaskRows(storage, self._write, self._read)

    @property
    def limits(self) -> LedgerLimits:
        """In force at the next pruning. ConfigError for ``bytes_max``: PostgreSQL gives no space back, so every outcome
        would go.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: LedgerLimits) -> None:
        if limits.bytes_max is not None:
            hint = "remove it; `days` and `outcomes` limit a ledger in PostgreSQL"
            raise ConfigError("fleet.keep.bytes limits the file of a hub, and this ledger is in PostgreSQL", hint=hint)
        self._limits = limits

    async def _write(self, verb: Verb, call: Any, *ids: str) -> Any:
        """Run a write; without ``ids`` it concerns every id."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        try:
            result = await self._storage.write(verb, call, frozenset(ids) if ids else None)
        except LeaseLost as error:
            if not self._is_lost and self._listener is not None:
                self._is_lost = True
                if isinstance(error, DatabaseBehind):
                    self._note_refusal(str(error))
                self._listener.lease_lost(str(error))
            raise
        except Exception as error:  # noqa: BLE001 - each is raised again, or the reason why the ledger broke
            raise self._failure(error, reads=False)  # noqa: B904 - it may be the same error
        if self.refusal:
            self._note_refusal("")
        return result

    async def _read(self, sql: str, *values: Any) -> list[Any]:
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        try:
            return await self._storage.read(sql, *map(verbs.storable, values))
        except Exception as error:  # noqa: BLE001 - each is raised again, or the reason why the ledger broke
            raise self._failure(error, reads=True)  # noqa: B904 - it may be the same error

    async def _select(self, take: Callable[[Iterable[Any]], T], sql: str, *values: object) -> T:
        return take(await self._read(_numbered(sql), *values))

    def sound(self, table: str, column: str = "body") -> str:
        return f"{table}.{column}"

    async def require_writable(self) -> None:
        # ``/readyz`` needs no key: a row for each call would let strangers fill the log of the database.
        now = asyncio.get_running_loop().time()
        if now < self._probed_until:
            await self._write(verbs.touch, None, "")
        else:
            await self._write(verbs.probe, None, "")
            self._probed_until = now + PROBE_S
        await self._read("SELECT FROM requests WHERE correlation_id = $1", "")

    # -- requests and their outcomes

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        rows = [verbs.request_row(record, run, content=True) for record in records]
        claim = None if run is None else run_row(run)
        ids = [row[0] for row in rows] + ([] if run is None else [verbs.run_key(run)])
        bookings = [booking for record in records for booking in record.bookings]
        accepted = await self._write(verbs.accept, verbs.AcceptCall(rows, claim, bookings), *ids)
        if isinstance(accepted, OverLimit):
            raise accepted
        return bool(accepted)

    async def update(self, *records: RequestRecord) -> None:
        rows = {record.request.correlation_id: verbs.request_row(record) for record in records}
        if rows:
            await self._write(verbs.update, list(rows.values()), *rows)

    async def _close(self, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        call = verbs.CloseCall(verbs.outcome_row(outcome), bookings)
        return bool(await self._write(verbs.close, call, outcome.correlation_id))

    async def prune(self, now: datetime) -> int:
        return int(await self._write(verbs.prune, (self.limits, now)))

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        row = webhook.correlation_id, encode(webhook)
        return bool(await self._write(verbs.keep_webhook, row, webhook.correlation_id))

    async def last_outcome(
        self, agent: str, *, task_id: str | None = None, context_id: str | None = None
    ) -> Outcome | None:
        column, value = ("context_id", context_id) if task_id is None else ("task_id", task_id)
        rows = await self._read(
            f"SELECT body FROM outcomes WHERE {column} = $1 AND agent = $2"
            " AND seq > (SELECT coalesce(max(seq), 0) FROM outcomes) - $3 ORDER BY seq DESC LIMIT 1",
            value,
            agent,
            RECENT_MAX,
        )
        return decoded(Outcome)(rows)[0] if rows else None

    # -- questions

    async def ask(self, question: Question) -> bool:
        row = question.question_id, question.correlation_id, encode(question)
        return bool(await self._write(verbs.ask, row, question.question_id, question.correlation_id))

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        passed = PassedMessage(correlation_id="", kind=MessageKind.ANSWER, answer=answer)
        call = verbs.storable(answer.question_id), encode(answer), micros(at), passed.kind.value, encode(passed)
        body = await self._write(verbs.answer, call)
        return None if body is None else decoder(Question)(body)

    async def settle(self, question_id: str, state: QuestionState) -> None:
        await self._write(verbs.settle, (verbs.storable(question_id), state.value))

    # -- ceremony runs and cards

    async def save_run(self, run: RunRecord) -> None:
        await self._write(verbs.save_run, run_row(run), verbs.run_key(run))

    async def save_card(self, snapshot: CardSnapshot) -> None:
        await self._write(verbs.save_card, (snapshot.agent, encode(snapshot)), f"card {snapshot.agent}")

    # -- notices

    async def save_notice(self, notice: NoticeRecord) -> None:
        subject, place = verbs.storable(notice.subject), verbs.storable(notice.place)
        row = subject, place, notice.state.value, encode(notice)
        await self._write(verbs.save_notice, row, f"notice {subject} {place}")

    async def take_notices(self) -> tuple[NoticeRecord, ...]:
        return decoded(NoticeRecord)(await self._write(verbs.take_notices, None))

    # -- limits

    async def book(self, bookings: Sequence[Booking]) -> None:
        if refusal := await self._write(verbs.book, bookings, "limits"):
            raise refusal

    # -- the event journal

    async def append(self, events: Sequence[Event]) -> None:
        if not events:
            return
        announced = [event.correlation_id for event in events if isinstance(event, OutcomeDecided)]
        call = verbs.AppendCall([verbs.event_row(event) for event in events], announced, self._seen)
        await self._write(verbs.append, call, "the journal", *filter(None, announced))
        step, before = max(1, self.limits.events_max // 100), self._appended
        self._appended += len(events)
        if self._appended // step > before // step:
            most = step + len(events) + verbs.PRUNED_MAX
            self._trims += 1
            gaps = self._gaps if self._trims % min(COUNT_EACH, step) else None
            with suppress(NotAccepting):  # the events are on record: a refusal would make the caller repeat them
                trim = verbs.TrimCall(self.limits.events_max, most, gaps)
                self._gaps = await self._write(verbs.trim, trim, "the journal")

    async def events(
        self, *, after_seq: int = 0, limit: int = 1_000, chars_max: int | None = None
    ) -> tuple[Event, ...]:
        found = await self.journaled(after_seq=after_seq, limit=limit, chars_max=chars_max)
        return tuple(event for event, _ in found)

    async def journaled(
        self, *, after_seq: int, limit: int = 1_000, chars_max: int | None = None
    ) -> tuple[tuple[Event, bool], ...]:
        rows = await self._read(
            "SELECT body, seq, hub FROM events WHERE seq > $1 ORDER BY seq LIMIT $2", after_seq, limit
        )
        rows = list(within(rows, chars_max))
        self._seen = max(self._seen, rows[-1][1] if rows else 0)
        return tuple(
            (event, hub == self._storage.hub) for event, (_, _, hub) in zip(events_of(rows), rows, strict=True)
        )

    # -- several hubs

    def require_lease(self) -> None:
        if self._storage.lost or asyncio.get_running_loop().time() > self._storage.renewed + self.lease_s:
            raise LeaseLost

    async def rejoin(self) -> None:
        try:
            await self._storage.join()
            self._is_lost, self._taken = False, None
        except Exception as error:  # noqa: BLE001 - each is raised again, or the reason why the ledger broke
            raise self._failure(explain(error), reads=False)  # type: ignore[arg-type]  # noqa: B904

    async def members(self) -> tuple[HubMember, ...]:
        hub = self._storage.hub
        rows = await self._read(
            "SELECT hub, name, version, started_at, extract(epoch FROM clock_timestamp() - renewed_at)::float8,"
            " extract(epoch FROM lease)::float8, (SELECT count(*) FROM requests WHERE phase <> 'closed'"
            " AND requests.hub BETWEEN hubs.hub AND hubs.hub), took, took_at"
            " FROM hubs WHERE ended_at IS NULL ORDER BY hub"
        )
        return tuple(
            HubMember(
                hub=row[0], name=row[1], version=row[2], started_at=row[3], lease_age_s=row[4], lease_s=row[5],
                owned=row[6], took=row[7], took_at=row[8], here=row[0] == hub,
            )
            for row in rows
        )  # fmt: skip

    async def database_state(self) -> DatabaseState | UnsetType:
        try:
            rows = await self._storage.read(_DATABASE)
        except asyncpg.InsufficientPrivilegeError:  # these views may be closed: figures must not end the hub
            return UNSET
        free, oldest_s, isolation, standbys, synchronous = rows[0]
        return DatabaseState(
            connections_free=free,
            oldest_snapshot_s=round(max(0.0, oldest_s), 3),
            isolation=isolation,
            standbys=standbys,
            synchronous=synchronous,
        )

    async def take_over(self, *, limit: int = 200) -> TakenOver:
        hub = self._storage.hub
        if self._taken is None:
            self._taken = await self._write(verbs.take_over, limit)
        opened, closed, runs = self._taken
        if not (opened or closed or runs):
            self._taken = None
            return TakenOver()
        mine = "WHERE correlation_id = ANY ($1::text[])"
        rows = await self._read(f"SELECT body, content, phase, correlation_id FROM requests {mine}", [*opened, *closed])
        records = {row[-1]: record for record, row in zip(requests_of(rows), rows, strict=True)}
        untold = await self._read(
            f"SELECT correlation_id FROM requests {mine} AND correlation_id NOT IN"
            " (SELECT accepted_id FROM events WHERE accepted_id = ANY ($1::text[]))"
            f" AND {IN_JOURNAL} ORDER BY seq",
            [*opened, *closed],
        )
        ended = await self._decoded(Outcome, f"outcomes {mine} ORDER BY seq", closed)
        taken = TakenOver(
            requests=tuple(records[correlation_id] for correlation_id in opened),
            untold=tuple(records[correlation_id] for (correlation_id,) in untold),
            unannounced=tuple((summary(outcome), records[outcome.correlation_id]) for outcome in ended),
            questions=await self._questions(f" {mine} AND state IN ('open', 'answered')", opened),
            webhooks=await self._decoded(EarlyWebhook, f"webhooks {mine} ORDER BY seq", opened),
            runs=tuple(map(decoder(RunRecord), runs)),
        )
        if self._storage.lost or self._storage.hub != hub:  # while the rows were read
            raise LeaseLost
        self._taken = None
        return taken

    async def pass_on(self, message: PassedMessage) -> bool:
        call = message.correlation_id, message.kind.value, encode(message)
        return bool(await self._write(verbs.pass_on, call))

    async def passed_on(self) -> tuple[PassedMessage, ...]:
        rows = await self._read(
            "SELECT signals.body, signals.seq, correlation_id FROM signals JOIN requests USING (correlation_id)"
            " WHERE hub IS NOT DISTINCT FROM $1 ORDER BY signals.seq LIMIT 1000",
            self._storage.hub,
        )
        decode = decoder(PassedMessage)
        return tuple(replace(decode(body), seq=seq, correlation_id=cid) for body, seq, cid in rows)

    async def discard(self, messages: Sequence[PassedMessage]) -> None:
        await self._write(verbs.discard, [message.seq for message in messages], "messages")

    async def holder(self, agent: str, task_id: str) -> str | None:
        rows = await self._read(
            "SELECT correlation_id FROM requests WHERE task_id = $1 AND agent = $2 AND phase <> 'closed' LIMIT 1",
            task_id,
            agent,
        )
        return rows[0][0] if rows else None

    async def changed(self, within_s: float) -> frozenset[str]:
        heard = self._storage.heard
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await heard.any.wait()
        return heard.take()

    # -- ids

    async def _with_task(self, text: str, limit: int) -> list[Any]:
        return await self._read(_BY_TASK, text, limit)


_DATABASE = """SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - (SELECT sum(numbackends) FROM pg_stat_database)::int,
    coalesce(extract(epoch FROM clock_timestamp()
        - min(xact_start) FILTER (WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)), 0)::float8,
    current_setting('transaction_isolation'), (SELECT count(*) FROM pg_stat_replication),
    current_setting('synchronous_standby_names') FROM pg_stat_activity"""
_BY_TASK = """SELECT $1, 'task', correlation_id, agent, accepted_at FROM requests WHERE correlation_id IN
    (SELECT correlation_id FROM requests WHERE task_id = $1
     UNION SELECT correlation_id FROM outcomes WHERE task_id = $1) ORDER BY seq DESC LIMIT $2"""


@cache
def _numbered(sql: str) -> str:
    """The SQL with numbers at the places of its values."""
    first, *parts = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(parts, 1))


LEASE_S = 30.0
PROBE_S = 1.0
"""Seconds from a probe that found room to the next."""

COUNT_EACH = 10
"""Trims of the journal from one count of its events to the next. Between two, only another hub can remove events in the
middle; so at most a tenth of the journal could go too early."""


def open_postgres(
    place: Place,
    *,
    limits: LedgerLimits | None = None,
    name: str = "",
    lease_s: float = LEASE_S,
    processes: Sequence[str] = (),
) -> PostgresLedger:
    """The ledger at ``place``; tables are created if missing. Use as ``async with``; entering raises ConfigError.

    A hub that starts again under its ``name`` takes over the requests of its earlier process at once, which is one of
    ``processes`` (see ``StateDir.processes``). ConfigError, too, for ``bytes_max``, and if another hub has the name.
    """
    bounds = limits or LedgerLimits()
    storage = Storage(place, pending_max=bounds.pending_max, name=name, lease_s=lease_s, processes=processes)
    return PostgresLedger(storage, bounds, lease_s=lease_s)
