"""The ledger in one SQLite file, or in memory: each verb is one function with its SQL.

A verb runs in a transaction that the storage commits, and again from the start if its group could not be committed, so
it keeps no state. It encodes its values, which keeps the event loop free in the threaded form.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from fleetsim.events.request import Event, OutcomeDecided, RequestAccepted
from fleetsim.events.wire import to_wire
from fleetsim.ledger import bodies
from fleetsim.ledger.bodies import encode, micros, moment, request_body, request_content
from fleetsim.ledger.interface import NOTICES_MAX, RECENT_MAX, LedgerLimits
from fleetsim.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    NoticeRecord,
    NoticeState,
    RunRecord,
)
from fleetsim.ledger.sqlite import limits
from fleetsim.ledger.sqlite.file import open_file, open_memory, open_to_read
from fleetsim.ledger.sqlite.retention import PRUNED_MAX, prune, trim_events
from fleetsim.ledger.sqlite.storage import (
    Connection,
    Database,
    InlineStorage,
    Operation,
    Storage,
    ThreadedStorage,
    touch,
)
from fleetsim.ledger.sqlite.sums import SUMMED, checked, insert, link, row_sum
from fleetsim.ledger.stored import StoredLedger, decoded, run_row
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.limits import Booking
from fleetsim.request.records import QuestionState, RequestRecord
from fleetsim.runtime.ports import Clock

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_SqlVerb = Callable[Concatenate["SqliteLedger", Connection, P], T]
_Verb = Callable[Concatenate["SqliteLedger", P], Coroutine[Any, Any, T]]


def _writes(verb: _SqlVerb[P, T]) -> _Verb[P, T]:
    """Run the verb in a transaction of the writing connection."""

    @wraps(verb)
    def call(self: SqliteLedger, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._run(lambda connection: verb(self, connection, *args, **kwargs), reads=False)

    return call


class SqliteLedger(StoredLedger):
    """A Ledger whose rows are in the database that ``storage`` opens; made by ``open_ledger``."""

    HINT = (
        "stop the hub and start it with --salvage: it copies what can be read into a new ledger and keeps the old file"
    )

    REQUESTS = (
        f"SELECT CASE WHEN {checked('requests')} AND (contents.body IS NULL OR {checked('contents')})"
        " THEN requests.body END, contents.body, phase, seq FROM requests LEFT JOIN contents USING (correlation_id)"
    )
    NOTE = "json_extract(body, '$.dialect'), json_extract(body, '$.streaming'), json_extract(body, '$.push')"
    UNANNOUNCED = "announced = 0"
    UNTOLD = (
        "correlation_id NOT IN (SELECT coalesce(json_extract(body, '$.correlationId'), '') FROM events"
        f" WHERE topic = '{RequestAccepted.TOPIC}' AND {checked('events')})"
    )

    _storage: Storage

    async def _run(self, operation: Operation[T], *, reads: bool) -> T:
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # or it would keep the frames of every call that met it
        try:
            result = await (self._storage.read if reads else self._storage.write)(operation)
        except Exception as error:  # noqa: BLE001 - each is raised again, or the reason why the ledger broke
            raise self._failure(error, reads=reads)  # noqa: B904 - it may be the same error
        if self.refusal and not reads:
            self._note_refusal("")
        return result

    async def _select(self, take: Callable[[Iterable[Any]], T], sql: str, *values: object) -> T:
        return await self._run(lambda connection: take(connection.execute(sql, values)), reads=True)

    def sound(self, table: str, column: str = "body") -> str:
        return f"CASE WHEN {checked(table)} THEN {table}.{column} END"

    @_writes
    def require_writable(self, connection: Connection) -> None:
        touch(connection)

    # -- requests and their outcomes

    @_writes
    def accept(self, connection: Connection, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        bookings: list[Booking] = []
        try:
            unless_claimed = "ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING"
            if run and not insert(connection, "runs", run_row(run), unless_claimed):
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

    async def last_outcome(
        self, agent: str, *, task_id: str | None = None, context_id: str | None = None
    ) -> Outcome | None:
        member, value = ("context_id", context_id) if task_id is None else ("task_id", task_id)
        # Neither has an index: lookups are rare, and soon after the end.
        read = decoded(Outcome)
        return await self._select(
            lambda rows: next((one for row in rows for one in read([row]) if getattr(one, member) == value), None),
            f"SELECT {self.sound('outcomes')} FROM outcomes"
            " WHERE seq > (SELECT max(seq) FROM outcomes) - ? AND agent = ? AND instr(body, ?) ORDER BY seq DESC",
            RECENT_MAX,
            agent,
            f'"{member}":{encode(value)}',
        )

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
        sql = f"SELECT {self.sound('questions')} FROM questions WHERE question_id = ?"
        return decoded(Question)(connection.execute(sql, (answer.question_id,)))[0]

    @_writes
    def settle(self, connection: Connection, question_id: str, state: QuestionState) -> None:
        _end_questions(connection, state, "question_id = ? AND state IN ('open', 'answered')", question_id)

    # -- ceremony runs and cards

    @_writes
    def save_run(self, connection: Connection, run: RunRecord) -> None:
        try:
            insert(
                connection,
                "runs",
                run_row(run),
                "ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status,"
                " started_at = excluded.started_at, body = excluded.body, sum = excluded.sum"
                " WHERE run_id = excluded.run_id",
            )
        except sqlite3.IntegrityError:
            raise ValueError(f"the run id {run.claim.run_id!r} belongs to another slot") from None

    async def taken_over_at(self) -> datetime | None:
        rows = await self._select(list, "SELECT taken_over_at FROM file")
        return moment(rows[0][0]) if rows and rows[0][0] is not None else None

    @_writes
    def save_card(self, connection: Connection, snapshot: CardSnapshot) -> None:
        insert(
            connection,
            "cards",
            (snapshot.agent, micros(snapshot.fetched_at), encode(snapshot)),
            "ON CONFLICT (agent) DO UPDATE SET fetched_at = excluded.fetched_at, body = excluded.body,"
            " sum = excluded.sum",
        )

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

    async def take_notices(self) -> tuple[NoticeRecord, ...]:
        return await self._decoded(NoticeRecord, "notices WHERE state = 'raised' ORDER BY seq")

    # -- limits

    @_writes
    def book(self, connection: Connection, bookings: Sequence[Booking]) -> None:
        limits.make(connection, bookings)

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

    async def _with_task(self, text: str, limit: int) -> list[Any]:
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        return await self._select(list, _BY_TASK, text, text, written, written, limit)


_BY_TASK = """SELECT ?, 'task', correlation_id, requests.agent, accepted_at FROM requests
    LEFT JOIN outcomes USING (correlation_id)
    WHERE ? IN (CASE WHEN instr(outcomes.body, ?) THEN json_extract(outcomes.body, '$.task_id') END,
        CASE WHEN instr(requests.body, ?) THEN json_extract(requests.body, '$.task.task_id') END)
    ORDER BY requests.seq DESC LIMIT ?"""
"""Agents' task ids have no index: this reads every row, but parses only those that contain the id."""


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
