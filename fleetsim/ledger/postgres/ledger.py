"""The ledger in PostgreSQL: a write becomes a call of its verb (``verbs``) in the next group (``storage``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import asyncpg
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fleetsim.api.answers import KnownId
from fleetsim.api.health import DatabaseState, HubMember
from fleetsim.events.request import Event, OutcomeDecided
from fleetsim.events.wire import from_wire
from fleetsim.health.outcome_stats import OutcomeFacts
from fleetsim.ledger.bodies import ACTIONS, decoder, encode, micros, moment
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
    LedgerDamaged,
    MessageKind,
    NoticeRecord,
    PassedMessage,
    RequestNote,
    RunRecord,
    TakenOver,
)
from fleetsim.ledger.stored import IN_JOURNAL, StoredLedger, summary, within
from fleetsim.model.errors import ConfigError, NotAccepting, OverLimit
from fleetsim.model.limits import PREFIX_CHARS_MIN, TEXT_CHARS_MAX
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.limits import Booking, LimitUse, PeriodKey
from fleetsim.request.records import QuestionRecord, QuestionState, RequestRecord

WHOLE_MAX = 100
"""Outcomes that are in memory with their whole text at once."""


class PostgresLedger(StoredLedger, SharedLedger):
    """A SharedLedger whose rows are in one fleet's schema of a PostgreSQL database; made by ``open_postgres``."""

    HINT = "look at the log of the hub and of PostgreSQL, then start the hub again"

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
        claim = None if run is None else verbs.run_row(run)
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

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        return _decoded(EarlyWebhook, await self._read("SELECT body FROM webhooks ORDER BY seq"))

    async def request(self, correlation_id: str) -> RequestRecord | None:
        rows = await self._read(f"{_REQUESTS} WHERE correlation_id = $1", correlation_id)
        return verbs.request_of(*rows[0]) if rows else None

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        return tuple(verbs.request_of(*row) for row in await self._read(f"{_REQUESTS} WHERE {_OPEN} ORDER BY seq"))

    async def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        seq, more = -1, True
        while more:
            rows = await self._read(f"{_REQUESTS} WHERE {_OPEN} AND seq > $1 ORDER BY seq LIMIT $2", seq, page)
            yield tuple(verbs.request_of(*row) for row in rows)
            seq, more = rows[-1][-1] if rows else seq, len(rows) == page

    async def open_ids(self, *, after: str | None = None, limit: int = 1_000) -> tuple[str, ...] | None:
        begin = -1
        if after is not None:
            rows = await self._read("SELECT seq FROM requests WHERE correlation_id = $1", after)
            if not rows:
                return None
            begin = rows[0][0]
        rows = await self._read(
            "SELECT correlation_id FROM requests WHERE phase <> 'closed' AND seq > $1 ORDER BY seq LIMIT $2",
            begin,
            limit,
        )
        return tuple(row[0] for row in rows)

    async def request_notes(self, *, since: datetime, limit: int = 100_000) -> tuple[RequestNote, ...]:
        rows = await self._read(
            "SELECT correlation_id, agent, run_id IS NOT NULL, dialect, streaming, push FROM requests"
            " WHERE accepted_at >= $1 ORDER BY seq DESC LIMIT $2",
            micros(since),
            limit,
        )
        return tuple(RequestNote(*row) for row in rows[::-1])

    async def outcome(self, correlation_id: str) -> Outcome | None:
        rows = await self._read("SELECT body FROM outcomes WHERE correlation_id = $1", correlation_id)
        return _decoded(Outcome, rows)[0] if rows else None

    async def outcomes(
        self,
        *,
        since: datetime,
        limit: int = 100_000,
        kinds: Collection[str] = tuple(OutcomeKind),
        chars_max: int = TEXT_CHARS_MAX,
    ) -> tuple[Outcome, ...]:
        found: list[Outcome] = []
        before, more = (2**63 - 1, 0), limit > 0
        while more:
            rows = await self._read(
                "SELECT body, ended_at, seq FROM outcomes WHERE ended_at >= $1 AND (ended_at, seq) < ($2, $3)"
                " AND kind = ANY ($4::text[]) ORDER BY ended_at DESC, seq DESC LIMIT $5",
                micros(since),
                *before,
                [str(kind) for kind in kinds],
                min(limit - len(found), WHOLE_MAX),
            )
            found += [summary(outcome, chars_max) for outcome in _decoded(Outcome, rows)]
            if more := len(rows) == WHOLE_MAX and len(found) < limit:
                before = rows[-1][1], rows[-1][2]
        return tuple(reversed(found))

    async def outcome_facts(self, *, since: datetime, page: int = 5_000) -> AsyncIterator[tuple[OutcomeFacts, ...]]:
        at, seq, more = micros(since), -1, True
        while more:
            rows = await self._read(
                "SELECT body, ended_at, seq FROM outcomes WHERE (ended_at, seq) > ($1, $2)"
                " ORDER BY ended_at, seq LIMIT $3",
                at,
                seq,
                page,
            )
            yield _decoded(OutcomeFacts, rows)
            more = len(rows) == page
            if rows:
                at, seq = rows[-1][1], rows[-1][2]

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
        return _decoded(Outcome, rows)[0] if rows else None

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

    async def questions(self, *, open_only: bool = True, limit: int | None = None) -> tuple[QuestionRecord, ...]:
        waiting = (
            " JOIN requests USING (correlation_id) WHERE requests.phase <> 'closed'"
            " AND questions.state IN ('open', 'answered')"
        )
        rows = await self._read(
            f"{_QUESTIONS}{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT $1",
            limit,
        )
        return tuple(map(_question, rows[::-1]))

    async def question(self, question_id: str) -> QuestionRecord | None:
        rows = await self._read(f"{_QUESTIONS} WHERE question_id = $1", verbs.storable(question_id))
        return _question(rows[0]) if rows else None

    # -- ceremony runs and cards

    async def save_run(self, run: RunRecord) -> None:
        await self._write(verbs.save_run, verbs.run_row(run), verbs.run_key(run))

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        only = "" if ceremony_id is None else "WHERE ceremony_id = $2"
        values = () if ceremony_id is None else (ceremony_id,)
        return _decoded(
            RunRecord, await self._read(f"SELECT body FROM runs {only} ORDER BY seq DESC LIMIT $1", limit, *values)
        )

    async def save_card(self, snapshot: CardSnapshot) -> None:
        await self._write(verbs.save_card, (snapshot.agent, encode(snapshot)), f"card {snapshot.agent}")

    async def cards(self) -> tuple[CardSnapshot, ...]:
        return _decoded(CardSnapshot, await self._read("SELECT body FROM cards ORDER BY agent"))

    # -- notices

    async def save_notice(self, notice: NoticeRecord) -> None:
        subject, place = verbs.storable(notice.subject), verbs.storable(notice.place)
        row = subject, place, notice.state.value, encode(notice)
        await self._write(verbs.save_notice, row, f"notice {subject} {place}")

    async def take_notices(self) -> tuple[NoticeRecord, ...]:
        return _decoded(NoticeRecord, await self._write(verbs.take_notices, None))

    async def notices(self, subject: str) -> tuple[NoticeRecord, ...]:
        return _decoded(
            NoticeRecord, await self._read("SELECT body FROM notices WHERE subject = $1 ORDER BY seq", subject)
        )

    # -- limits

    async def book(self, bookings: Sequence[Booking]) -> None:
        if refusal := await self._write(verbs.book, bookings, "limits"):
            raise refusal

    async def limit_uses(self, now: datetime) -> dict[PeriodKey, LimitUse]:
        rows = await self._read("SELECT name, period, body FROM limits WHERE ends > $1", micros(now))
        return {(name, period): decoder(LimitUse)(body) for name, period, body in rows}

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
        return tuple((event, hub == self._storage.hub) for event, (_, _, hub) in zip(_events(rows), rows, strict=True))

    async def actions(self, *, since: datetime, before_seq: int, limit: int = 1_000) -> tuple[Event, ...]:
        rows = await self._read(
            "SELECT body, seq FROM events WHERE agent = $1 AND seq < $2 AND at >= $3 ORDER BY seq DESC LIMIT $4",
            ACTIONS,
            before_seq,
            micros(since),
            limit,
        )
        return _events(rows)

    async def last_seq(self) -> int:
        return int((await self._read("SELECT coalesce(max(seq), 0) FROM events"))[0][0])

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        rows = await self._read("SELECT body FROM outcomes WHERE NOT announced ORDER BY seq LIMIT $1", limit)
        return tuple(map(summary, _decoded(Outcome, rows)))

    async def untold_requests(self) -> tuple[RequestRecord, ...]:
        rows = await self._read(
            f"{_REQUESTS} WHERE correlation_id IN"
            " (SELECT correlation_id FROM requests WHERE phase <> 'closed'"
            " UNION SELECT correlation_id FROM outcomes WHERE NOT announced)"
            f" AND {IN_JOURNAL}"
            " AND NOT EXISTS (SELECT FROM events WHERE accepted_id = correlation_id) ORDER BY seq"
        )
        return tuple(verbs.request_of(*row) for row in rows)

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
        columns = "SELECT correlation_id, body, content, phase, seq FROM requests"
        rows = await self._read(f"{columns} {mine}", [*opened, *closed])
        records = {correlation_id: verbs.request_of(*row) for correlation_id, *row in rows}
        untold = await self._read(
            f"SELECT correlation_id FROM requests {mine} AND correlation_id NOT IN"
            " (SELECT accepted_id FROM events WHERE accepted_id = ANY ($1::text[]))"
            f" AND {IN_JOURNAL} ORDER BY seq",
            [*opened, *closed],
        )
        ended = _decoded(Outcome, await self._read(f"SELECT body FROM outcomes {mine} ORDER BY seq", closed))
        early = f"SELECT body FROM webhooks {mine} ORDER BY seq"
        taken = TakenOver(
            requests=tuple(records[correlation_id] for correlation_id in opened),
            untold=tuple(records[correlation_id] for (correlation_id,) in untold),
            unannounced=tuple((summary(outcome), records[outcome.correlation_id]) for outcome in ended),
            questions=tuple(
                map(_question, await self._read(f"{_QUESTIONS} {mine} AND state IN ('open', 'answered')", opened))
            ),
            webhooks=_decoded(EarlyWebhook, await self._read(early, opened)),
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

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        upto = text + "\U0010ffff" if len(text) >= PREFIX_CHARS_MIN else text
        rows = [row for sql in (_BY_ID, _BY_QUESTION, _BY_RUN) for row in await self._read(sql, text, upto, limit)]
        if not rows:
            rows = await self._read(_BY_TASK, text, limit)
        return tuple(
            KnownId(id=known, kind=kind, correlation_id=cid, agent=agent, at=moment(at))
            for known, kind, cid, agent, at in rows
        )


_REQUESTS = "SELECT body, content, phase, seq FROM requests"
_QUESTIONS = "SELECT questions.body, questions.state, questions.answer, questions.answered_at FROM questions"
_DATABASE = """SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - count(*) FILTER (WHERE backend_type = 'client backend'),
    coalesce(extract(epoch FROM clock_timestamp()
        - min(xact_start) FILTER (WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)), 0)::float8,
    current_setting('transaction_isolation'), (SELECT count(*) FROM pg_stat_replication),
    current_setting('synchronous_standby_names') FROM pg_stat_activity"""
_OPEN = "phase <> 'closed'"
_BY_ID = """SELECT correlation_id, 'request', correlation_id, agent, accepted_at FROM requests
    WHERE correlation_id >= $1 AND correlation_id <= $2 ORDER BY correlation_id LIMIT $3"""
_BY_QUESTION = """SELECT question_id, 'question', correlation_id, agent, accepted_at FROM questions
    JOIN requests USING (correlation_id) WHERE question_id >= $1 AND question_id <= $2 ORDER BY question_id LIMIT $3"""
_BY_RUN = """SELECT run_id, 'run', correlation_id, agent, accepted_at FROM requests
    WHERE run_id >= $1 AND run_id <= $2 ORDER BY run_id, seq LIMIT $3"""
_BY_TASK = """SELECT $1, 'task', correlation_id, agent, accepted_at FROM requests WHERE correlation_id IN
    (SELECT correlation_id FROM requests WHERE task_id = $1
     UNION SELECT correlation_id FROM outcomes WHERE task_id = $1) ORDER BY seq DESC LIMIT $2"""


def _question(row: Any) -> QuestionRecord:
    body, state, given, answered_at = row
    return QuestionRecord(
        question=decoder(Question)(body),
        state=QuestionState(state),
        answer=None if given is None else decoder(Answer)(given),
        answered_at=None if answered_at is None else moment(answered_at),
    )


def _events(rows: Sequence[Any]) -> tuple[Event, ...]:
    """The events in rows of a body and a number."""
    events = [from_wire(body) for body in _decoded(dict[str, Any], rows)]
    if None in events:
        raise LedgerDamaged("a row of the journal holds no event")
    return tuple(replace(event, seq=row[1]) for event, row in zip(events, rows, strict=True) if event is not None)


def _decoded(kind: Any, rows: Iterable[Any]) -> tuple[Any, ...]:
    decode = decoder(kind)
    return tuple(decode(row[0]) for row in rows)


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
