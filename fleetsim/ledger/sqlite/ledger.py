"""The ledger in one SQLite file, or in memory: each verb is one function with its SQL.

A verb runs in a transaction that the storage commits, and again from the start if its group could not be committed, so
it keeps no state. It encodes its values, which keeps the event loop free in the threaded form.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from msgspec.structs import replace

from fleetsim.api.answers import KnownId
from fleetsim.events.request import Event, OutcomeDecided, RequestAccepted
from fleetsim.events.wire import from_wire, to_wire
from fleetsim.health.outcome_stats import OutcomeFacts
from fleetsim.ledger import bodies
from fleetsim.ledger.bodies import ACTIONS, decoder, encode, join, micros, moment, request_body, request_content
from fleetsim.ledger.interface import NOTICES_MAX, RECENT_MAX, LedgerLimits
from fleetsim.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    LedgerDamaged,
    NoticeRecord,
    NoticeState,
    RequestNote,
    RunRecord,
)
from fleetsim.ledger.sqlite import limits
from fleetsim.ledger.sqlite.file import open_file, open_memory, open_to_read
from fleetsim.ledger.sqlite.retention import PRUNED_MAX, prune, trim_events
from fleetsim.ledger.sqlite.storage import (
    Connection,
    Database,
    InlineStorage,
    Storage,
    ThreadedStorage,
    touch,
)
from fleetsim.ledger.sqlite.sums import SUMMED, checked, insert, link, read, read_one_by_one, row_sum, sound
from fleetsim.ledger.stored import IN_JOURNAL, StoredLedger, summary, within
from fleetsim.model.limits import PREFIX_CHARS_MIN, TEXT_CHARS_MAX
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.limits import Booking, LimitUse, PeriodKey
from fleetsim.request.records import Phase, QuestionRecord, QuestionState, RequestRecord
from fleetsim.runtime.ports import Clock

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_SqlVerb = Callable[Concatenate["SqliteLedger", Connection, P], T]
_Verb = Callable[Concatenate["SqliteLedger", P], Coroutine[Any, Any, T]]


def _verb(verb: _SqlVerb[P, T], *, reads: bool) -> _Verb[P, T]:
    @wraps(verb)
    async def call(self: SqliteLedger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # or it would keep the frames of every call that met it
        run = self._storage.read if reads else self._storage.write
        try:
            result = await run(lambda connection: verb(self, connection, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 - each is raised again, or the reason why the ledger broke
            raise self._failure(error, reads=reads)  # noqa: B904 - it may be the same error
        if self.refusal and not reads:
            self._note_refusal("")
        return result

    return call


def _writes(verb: _SqlVerb[P, T]) -> _Verb[P, T]:
    """Run the verb in a transaction of the writing connection."""
    return _verb(verb, reads=False)


def _reads(verb: _SqlVerb[P, T]) -> _Verb[P, T]:
    """Run the verb on the reading connection."""
    return _verb(verb, reads=True)


class SqliteLedger(StoredLedger):
    """A Ledger whose rows are in the database that ``storage`` opens; made by ``open_ledger``."""

    HINT = (
        "stop the hub and start it with --salvage: it copies what can be read into a new ledger and keeps the old file"
    )

    _storage: Storage

    @_writes
    def require_writable(self, connection: Connection) -> None:
        touch(connection)

    # -- requests and their outcomes

    @_writes
    def accept(self, connection: Connection, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        bookings: list[Booking] = []
        try:
            unless_claimed = "ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING"
            if run and not insert(connection, "runs", _run_row(run), unless_claimed):
                return False
            for record in records:
                bookings += record.bookings
                name, phase, body = record.request.correlation_id, record.phase.value, request_body(record)
                columns = (name, record.agent, phase, micros(record.accepted_at), run and run.claim.run_id, body)
                insert(connection, "requests", columns)
                if (content := request_content(record)) is not None:
                    insert(connection, "contents", (name, content))
            if bookings:
                limits.make(connection, bookings)
        except sqlite3.IntegrityError as error:
            raise ValueError(f"an id is already in use ({error})") from None
        return True

    @_writes
    def update(self, connection: Connection, *records: RequestRecord) -> None:
        rows = [
            ((record.agent, record.phase.value), request_body(record), record.request.correlation_id)
            for record in records
        ]
        connection.executemany(
            "UPDATE requests SET agent = ?, phase = ?, body = ?,"
            " sum = row_sum('requests', correlation_id, ?, ?, accepted_at, run_id, ?)"
            " WHERE correlation_id = ? AND phase <> 'closed'",
            # Python 3.12 to 3.12.3 warn of numbered placeholders, and where warnings are errors that broke the ledger.
            [(*where, body, *where, body, name) for where, body, name in rows],
        )

    @_writes
    def _close(self, connection: Connection, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        correlation_id = outcome.correlation_id
        closed = connection.execute(
            "UPDATE requests SET phase = 'closed',"
            " sum = row_sum('requests', correlation_id, agent, 'closed', accepted_at, run_id, body)"
            " WHERE correlation_id = ? AND phase <> 'closed'",
            (correlation_id,),
        )
        if closed.rowcount != 1:
            return False
        add_outcome(connection, outcome_row(outcome))
        ending = QuestionState.EXPIRED if outcome.kind is OutcomeKind.EXPIRED else QuestionState.WITHDRAWN
        _end_questions(connection, ending, "correlation_id = ? AND state = 'open'", correlation_id)
        connection.execute("DELETE FROM webhooks WHERE correlation_id = ?", (correlation_id,))
        if bookings:
            limits.make(connection, bookings)
        return True

    @_writes
    def prune(self, connection: Connection, now: datetime) -> int:
        touch(connection)
        return prune(connection, self.limits, now)

    @_writes
    def keep_webhook(self, connection: Connection, webhook: EarlyWebhook) -> bool:
        columns = (webhook.correlation_id, micros(webhook.received_at), encode(webhook))
        return insert(connection, "webhooks", columns, open_request=webhook.correlation_id)

    @_reads
    def early_webhooks(self, connection: Connection) -> tuple[EarlyWebhook, ...]:
        return read(EarlyWebhook, connection.execute(f"SELECT body, {checked('webhooks')} FROM webhooks ORDER BY seq"))

    @_reads
    def request(self, connection: Connection, correlation_id: str) -> RequestRecord | None:
        row = connection.execute(f"{_WITH_CONTENT} WHERE correlation_id = ?", (correlation_id,)).fetchone()
        return None if row is None else _request_of(*row)

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        records, _ = await self._open_page(-1, -1)
        return records

    async def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        seq, more = -1, True
        while more:
            records, seq = await self._open_page(seq, page)
            yield records
            more = len(records) == page

    @_reads
    def _open_page(self, connection: Connection, seq: int, limit: int) -> tuple[tuple[RequestRecord, ...], int]:
        rows = connection.execute(
            f"{_WITH_CONTENT} WHERE phase <> 'closed' AND requests.seq > ? ORDER BY requests.seq LIMIT ?", (seq, limit)
        ).fetchall()
        return tuple(_request_of(*row) for row in rows), rows[-1][-1] if rows else seq

    @_reads
    def open_ids(
        self, connection: Connection, *, after: str | None = None, limit: int = 1_000
    ) -> tuple[str, ...] | None:
        begin: tuple[int] | None = (0,)
        if after is not None:
            begin = connection.execute("SELECT seq FROM requests WHERE correlation_id = ?", (after,)).fetchone()
        if begin is None:
            return None
        rows = connection.execute(
            "SELECT correlation_id FROM requests WHERE phase <> 'closed' AND seq > ? ORDER BY seq LIMIT ?",
            (*begin, limit),
        )
        return tuple(name for (name,) in rows)

    @_reads
    def request_notes(
        self, connection: Connection, *, since: datetime, limit: int = 100_000
    ) -> tuple[RequestNote, ...]:
        rows = connection.execute(
            "SELECT correlation_id, agent, run_id IS NOT NULL, json_extract(body, '$.dialect'),"
            f" json_extract(body, '$.streaming'), json_extract(body, '$.push'), {checked('requests')}"
            " FROM requests WHERE accepted_at >= ? ORDER BY seq DESC LIMIT ?",
            (micros(since), limit),
        ).fetchall()
        return tuple(
            RequestNote(sound(name, right), agent, bool(scheduled), dialect, bool(stream), bool(push))
            for name, agent, scheduled, dialect, stream, push, right in rows[::-1]
        )

    @_reads
    def outcome(self, connection: Connection, correlation_id: str) -> Outcome | None:
        rows = connection.execute(
            f"SELECT body, {checked('outcomes')} FROM outcomes WHERE correlation_id = ?", (correlation_id,)
        )
        return next(read_one_by_one(Outcome, rows), None)

    @_reads
    def outcomes(
        self,
        connection: Connection,
        *,
        since: datetime,
        limit: int = 100_000,
        kinds: Collection[str] = tuple(OutcomeKind),
        chars_max: int = TEXT_CHARS_MAX,
    ) -> tuple[Outcome, ...]:
        newest = connection.execute(
            f"SELECT body, {checked('outcomes')} FROM outcomes WHERE ended_at >= ?"
            f" AND kind IN ({', '.join('?' * len(kinds))}) ORDER BY ended_at DESC, seq DESC LIMIT ?",
            (micros(since), *kinds, limit),
        )
        return tuple(summary(outcome, chars_max) for outcome in read_one_by_one(Outcome, newest))[::-1]

    async def outcome_facts(self, *, since: datetime, page: int = 5_000) -> AsyncIterator[tuple[OutcomeFacts, ...]]:
        at, seq = micros(since), -1
        while True:
            facts, at, seq = await self._facts_page(at, seq, page)
            yield facts
            if len(facts) < page:
                return

    @_reads
    def _facts_page(
        self, connection: Connection, since: int, seq: int, limit: int
    ) -> tuple[tuple[OutcomeFacts, ...], int, int]:
        rows = connection.execute(
            f"SELECT body, {checked('outcomes')}, ended_at, seq FROM outcomes WHERE (ended_at, seq) > (?, ?)"
            " ORDER BY ended_at, seq LIMIT ?",
            (since, seq, limit),
        ).fetchall()
        decode = decoder(OutcomeFacts)
        since, seq = rows[-1][2:] if rows else (since, seq)
        return tuple(decode(sound(body, right)) for body, right, *_ in rows), since, seq

    @_reads
    def last_outcome(
        self, connection: Connection, agent: str, *, task_id: str | None = None, context_id: str | None = None
    ) -> Outcome | None:
        member, value = ("context_id", context_id) if task_id is None else ("task_id", task_id)
        # Neither has an index: lookups are rare, and soon after the end.
        rows = connection.execute(
            f"SELECT body, {checked('outcomes')} FROM outcomes"
            " WHERE seq > (SELECT max(seq) FROM outcomes) - ? AND agent = ? AND instr(body, ?) ORDER BY seq DESC",
            (RECENT_MAX, agent, f'"{member}":{encode(value)}'),
        )
        return next((row for row in read_one_by_one(Outcome, rows) if getattr(row, member) == value), None)

    # -- questions

    @_writes
    def ask(self, connection: Connection, question: Question) -> bool:
        name, request = question.question_id, question.correlation_id
        columns = (name, request, QuestionState.OPEN.value, encode(question), None, None)
        return insert(connection, "questions", columns, "ON CONFLICT (question_id) DO NOTHING", open_request=request)

    @_writes
    def answer(self, connection: Connection, answer: Answer, at: datetime) -> Question | None:
        body, when = encode(answer), micros(at)
        done = connection.execute(
            "UPDATE questions SET state = 'answered', answer = ?, answered_at = ?,"
            " sum = row_sum('questions', question_id, correlation_id, 'answered', body, ?, ?)"
            " WHERE question_id = ? AND state = 'open'",
            (body, when, body, when, answer.question_id),
        )
        if done.rowcount != 1:
            return None
        row = connection.execute(
            f"SELECT body, {checked('questions')} FROM questions WHERE question_id = ?", (answer.question_id,)
        )
        return read(Question, row)[0]

    @_writes
    def settle(self, connection: Connection, question_id: str, state: QuestionState) -> None:
        _end_questions(connection, state, "question_id = ? AND state IN ('open', 'answered')", question_id)

    @_reads
    def questions(
        self, connection: Connection, *, open_only: bool = True, limit: int | None = None
    ) -> tuple[QuestionRecord, ...]:
        waiting = (
            " JOIN requests ON requests.correlation_id = questions.correlation_id AND requests.phase <> 'closed'"
            " WHERE questions.state IN ('open', 'answered')"
        )
        clause = f"{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT ?"
        return tuple(_read_questions(connection, clause, -1 if limit is None else limit)[::-1])

    @_reads
    def question(self, connection: Connection, question_id: str) -> QuestionRecord | None:
        return next(iter(_read_questions(connection, " WHERE question_id = ?", question_id)), None)

    # -- ceremony runs and cards

    @_writes
    def save_run(self, connection: Connection, run: RunRecord) -> None:
        try:
            insert(
                connection,
                "runs",
                _run_row(run),
                "ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status,"
                " started_at = excluded.started_at, body = excluded.body, sum = excluded.sum"
                " WHERE run_id = excluded.run_id",
            )
        except sqlite3.IntegrityError:
            raise ValueError(f"the run id {run.claim.run_id!r} belongs to another slot") from None

    @_reads
    def taken_over_at(self, connection: Connection) -> datetime | None:
        row = connection.execute("SELECT taken_over_at FROM file").fetchone()
        return moment(row[0]) if row and row[0] is not None else None

    @_reads
    def runs(
        self, connection: Connection, ceremony_id: str | None = None, *, limit: int = 100
    ) -> tuple[RunRecord, ...]:
        only = "" if ceremony_id is None else " WHERE ceremony_id = ?"
        values = (limit,) if ceremony_id is None else (ceremony_id, limit)
        rows = connection.execute(f"SELECT body, {checked('runs')} FROM runs{only} ORDER BY seq DESC LIMIT ?", values)
        return read(RunRecord, rows)

    @_writes
    def save_card(self, connection: Connection, snapshot: CardSnapshot) -> None:
        insert(
            connection,
            "cards",
            (snapshot.agent, micros(snapshot.fetched_at), encode(snapshot)),
            "ON CONFLICT (agent) DO UPDATE SET fetched_at = excluded.fetched_at, body = excluded.body,"
            " sum = excluded.sum",
        )

    @_reads
    def cards(self, connection: Connection) -> tuple[CardSnapshot, ...]:
        return read(CardSnapshot, connection.execute(f"SELECT body, {checked('cards')} FROM cards ORDER BY agent"))

    # -- notices

    @_writes
    def save_notice(self, connection: Connection, notice: NoticeRecord) -> None:
        columns = notice.subject, notice.place, notice.state.value, encode(notice)
        replaced = "state = excluded.state, body = excluded.body, sum = excluded.sum"
        insert(connection, "notices", columns, f"ON CONFLICT (subject, place) DO UPDATE SET {replaced}")
        if notice.state is not NoticeState.RAISED:
            connection.execute(
                "DELETE FROM notices WHERE seq <= (SELECT max(seq) FROM notices) - ? AND state <> 'raised'",
                (NOTICES_MAX,),
            )

    @_reads
    def take_notices(self, connection: Connection) -> tuple[NoticeRecord, ...]:
        rows = f"SELECT body, {checked('notices')} FROM notices WHERE state = 'raised' ORDER BY seq"
        return read(NoticeRecord, connection.execute(rows))

    @_reads
    def notices(self, connection: Connection, subject: str) -> tuple[NoticeRecord, ...]:
        rows = f"SELECT body, {checked('notices')} FROM notices WHERE subject = ? ORDER BY seq"
        return read(NoticeRecord, connection.execute(rows, (subject,)))

    # -- limits

    @_writes
    def book(self, connection: Connection, bookings: Sequence[Booking]) -> None:
        limits.make(connection, bookings)

    @_reads
    def limit_uses(self, connection: Connection, now: datetime) -> dict[PeriodKey, LimitUse]:
        return limits.uses(connection, "ends > ?", micros(now))

    # -- the event journal

    @_writes
    def append(self, connection: Connection, events: Sequence[Event]) -> None:
        if not events:
            return
        rows = []
        for event in events:
            wire = to_wire(event, exact=True)
            rows.append((event.seq, micros(event.at), wire["topic"], encode(wire)))
        try:
            connection.executemany(
                f"INSERT INTO events ({SUMMED['events']}, sum, agent) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*columns, row_sum("events", *columns), bodies.share_of(columns[2], event.agent))
                    for columns, event in zip(rows, events, strict=True)
                ],
            )
        except sqlite3.IntegrityError:
            raise ValueError("an event number was used twice") from None
        announced = [(event.correlation_id,) for event in events if isinstance(event, OutcomeDecided)]
        if announced:
            connection.executemany("UPDATE outcomes SET announced = 1 WHERE correlation_id = ?", announced)
        step = max(1, self.limits.events_max // 100)  # to count them takes milliseconds
        if events[-1].seq // step > (events[0].seq - 1) // step:
            trim_events(connection, self.limits.events_max, most=step + len(events) + PRUNED_MAX)

    @_reads
    def events(
        self, connection: Connection, *, after_seq: int = 0, limit: int = 1_000, chars_max: int | None = None
    ) -> tuple[Event, ...]:
        rows = connection.execute(
            f"SELECT body, {checked('events')} FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit)
        )
        return _events(within(rows, chars_max))

    @_reads
    def actions(
        self, connection: Connection, *, since: datetime, before_seq: int, limit: int = 1_000
    ) -> tuple[Event, ...]:
        rows = connection.execute(
            f"SELECT body, {checked('events')} FROM events WHERE agent = ? AND seq < ? AND at >= ?"
            " ORDER BY seq DESC LIMIT ?",
            (ACTIONS, before_seq, micros(since), limit),
        )
        return _events(rows)

    @_reads
    def last_seq(self, connection: Connection) -> int:
        return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    @_reads
    def unannounced(self, connection: Connection, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        rows = connection.execute(
            f"SELECT body, {checked('outcomes')} FROM outcomes WHERE announced = 0 ORDER BY seq LIMIT ?", (limit,)
        )
        return tuple(map(summary, read_one_by_one(Outcome, rows)))

    @_reads
    def untold_requests(self, connection: Connection) -> tuple[RequestRecord, ...]:
        rows = connection.execute(
            f"{_WITH_CONTENT} WHERE correlation_id IN"
            " (SELECT correlation_id FROM requests WHERE phase <> 'closed'"
            " UNION SELECT correlation_id FROM outcomes WHERE announced = 0)"
            f" AND {IN_JOURNAL}"
            " AND correlation_id NOT IN (SELECT coalesce(json_extract(body, '$.correlationId'), '') FROM events"
            f" WHERE topic = ? AND {checked('events')}) ORDER BY requests.seq",
            (RequestAccepted.TOPIC,),
        )
        return tuple(_request_of(*row) for row in rows)

    # -- ids

    @_reads
    def ids(self, connection: Connection, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        upto = text + "\U0010ffff" if len(text) >= PREFIX_CHARS_MIN else text
        rows = [row for sql in (_BY_ID, _BY_QUESTION, _BY_RUN) for row in connection.execute(sql, (text, upto, limit))]
        if not rows:
            written = json.dumps(text, ensure_ascii=False)[1:-1]
            rows = list(connection.execute(_BY_TASK, (text, text, written, written, limit)))
        return tuple(
            KnownId(id=known, kind=kind, correlation_id=cid, agent=agent, at=moment(at))
            for known, kind, cid, agent, at in rows
        )


_BY_ID = """SELECT correlation_id, 'request', correlation_id, agent, accepted_at FROM requests
    WHERE correlation_id >= ? AND correlation_id <= ? ORDER BY correlation_id LIMIT ?"""
_BY_QUESTION = """SELECT question_id, 'question', correlation_id, agent, accepted_at FROM questions
    JOIN requests USING (correlation_id) WHERE question_id >= ? AND question_id <= ? ORDER BY question_id LIMIT ?"""
_BY_RUN = """SELECT run_id, 'run', correlation_id, agent, accepted_at FROM requests
    WHERE run_id >= ? AND run_id <= ? ORDER BY run_id, requests.seq LIMIT ?"""
_BY_TASK = """SELECT ?, 'task', correlation_id, requests.agent, accepted_at FROM requests
    LEFT JOIN outcomes USING (correlation_id)
    WHERE ? IN (CASE WHEN instr(outcomes.body, ?) THEN json_extract(outcomes.body, '$.task_id') END,
        CASE WHEN instr(requests.body, ?) THEN json_extract(requests.body, '$.task.task_id') END)
    ORDER BY requests.seq DESC LIMIT ?"""
"""Agents' task ids have no index: this reads every row, but parses only those that contain the id."""


_WITH_CONTENT = (
    f"SELECT requests.body, {checked('requests')}, contents.body, contents.body IS NULL OR {checked('contents')},"
    " phase, requests.seq FROM requests LEFT JOIN contents USING (correlation_id)"
)


def _events(rows: Any) -> tuple[Event, ...]:
    events = [from_wire(body) for body in read(dict[str, Any], rows)]
    if None in events:
        raise LedgerDamaged("a row of the journal holds no event")
    return tuple(event for event in events if event is not None)


def _request_of(body: str, right: int, content: str | None, content_right: int, phase: str, _: int) -> RequestRecord:
    """The record as it was last updated; only the phase's column says that it is closed."""
    return replace(join(sound(body, right and content_right), content), phase=Phase(phase))


def _run_row(run: RunRecord) -> tuple[Any, ...]:
    claim, scheduled_at, started_at = run.claim, micros(run.claim.scheduled_at), micros(run.started_at)
    return claim.run_id, claim.ceremony_id, scheduled_at, run.status.value, started_at, encode(run)


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    """The columns that the sum of an outcome covers."""
    kind, success, ended_at = outcome.kind.value, int(outcome.success), micros(outcome.ended_at)
    return outcome.correlation_id, outcome.agent, outcome.skill, kind, success, ended_at, encode(outcome)


def add_outcome(connection: Connection, columns: tuple[Any, ...]) -> None:
    """Write an outcome behind the last one, with its link of the chain."""
    last = connection.execute("SELECT chain FROM outcomes ORDER BY seq DESC LIMIT 1").fetchone()
    connection.execute(
        f"INSERT INTO outcomes ({SUMMED['outcomes']}, sum, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*columns, row_sum("outcomes", *columns), link(last[0] if last else b"", *columns)),
    )


def _read_questions(connection: Connection, clause: str, value: object) -> list[QuestionRecord]:
    rows = connection.execute(
        f"SELECT questions.body, {checked('questions')}, questions.state, questions.answer, questions.answered_at"
        f" FROM questions{clause}",
        (value,),
    )
    return [
        QuestionRecord(
            question=decoder(Question)(sound(body, right)),
            state=QuestionState(state),
            answer=None if given is None else decoder(Answer)(given),
            answered_at=None if answered_at is None else moment(answered_at),
        )
        for body, right, state, given, answered_at in rows
    ]


def _end_questions(connection: Connection, state: QuestionState, which: str, value: str) -> None:
    connection.execute(
        "UPDATE questions SET state = ?,"
        " sum = row_sum('questions', question_id, correlation_id, ?, body, answer, answered_at)"
        f" WHERE {which}",
        (state.value, state.value, value),
    )


def open_ledger(
    path: Path | str | None,
    *,
    clock: Clock,
    storage: Literal["threaded", "inline"] = "threaded",
    limits: LedgerLimits | None = None,
    take_over: bool = False,
) -> SqliteLedger:
    """The ledger in the file ``path``, created if missing; None keeps it in memory. Use as ``async with``.

    ``storage``: threads of its own wait for the disk, or the caller does ("inline", for tests and simulations).
    ``take_over`` opens a copy too: the caller promises that no hub uses the original any more. Entering
    raises LedgerLocked, LedgerCopied, LedgerDamaged or ConfigError.
    """
    bounds, now = limits or LedgerLimits(), clock.now()

    def opener() -> Database:
        if path is None:
            return open_memory(now)
        inline = storage == "inline"
        return open_file(Path(path), now, one_connection=inline, busy_s=bounds.busy_s, take_over=take_over)

    form: Storage = InlineStorage(opener)
    if storage == "threaded":
        form = ThreadedStorage(opener, pending_max=bounds.pending_max)
    return SqliteLedger(form, bounds)


def read_ledger(path: Path | str) -> SqliteLedger:
    """The ledger in the file ``path``, to read only, even while a hub writes it. Use as ``async with``.

    Entering raises LedgerDamaged or ConfigError.
    """
    return SqliteLedger(InlineStorage(lambda: open_to_read(Path(path), LedgerLimits().busy_s)), LedgerLimits())
