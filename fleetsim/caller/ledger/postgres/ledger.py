"""The ledger in PostgreSQL: each write verb is one function that takes many calls, as one statement over arrays.

A verb's function runs in the transaction of its group (``storage``). It may run again if the group could not be
committed, so it keeps no state.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

import asyncpg
from msgspec.structs import replace

from fleetsim.caller.event_wire import from_wire, to_wire
from fleetsim.caller.events import Event, OutcomeDecided, RequestAccepted
from fleetsim.caller.ledger.bodies import decoder, encode, micros, moment
from fleetsim.caller.ledger.interface import RECENT_MAX, Ledger, LedgerLimits, StorageListener
from fleetsim.caller.ledger.postgres.place import Place
from fleetsim.caller.ledger.postgres.storage import Connection, Storage, Verb
from fleetsim.caller.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    LedgerBroken,
    LedgerDamaged,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestNote,
    RequestRecord,
    RunRecord,
)
from fleetsim.caller.outcome_stats import OutcomeFacts
from fleetsim.model.errors import NotAccepting
from fleetsim.model.event import plain
from fleetsim.model.limits import PREFIX_CHARS_MIN
from fleetsim.model.parts import without_content
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question

log = logging.getLogger(__name__)

PRUNE_EVERY = 128
PRUNED_MAX = 512
HINT = "look at the log of the hub and of PostgreSQL, then start the hub again"
_CLAIMED = "a request is closed by its outcome alone"


class PostgresLedger(Ledger):
    """A Ledger whose rows are in one fleet's schema of a PostgreSQL database; made by ``open_postgres``."""

    def __init__(self, storage: Storage, limits: LedgerLimits) -> None:
        self._storage = storage
        self.limits = limits
        self.refusal = ""
        self._decided = 0
        self._listener: StorageListener | None = None
        self._broken: LedgerBroken | None = None

    async def __aenter__(self) -> Self:
        await self._storage.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.stop()

    def report_to(self, listener: StorageListener) -> None:
        self._listener, self._broken = listener, None

    async def _write(self, verb: Verb, call: Any, *ids: str) -> Any:
        """Run a write; without ``ids`` it concerns every id."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        try:
            result = await self._storage.write(verb, call, frozenset(ids) if ids else None)
        except NotAccepting as error:
            self._note_refusal(str(error))
            raise
        except ValueError:
            raise
        except Exception as error:
            raise self._break(error) from error
        if self.refusal:
            self._note_refusal("")
        return result

    async def _read(self, sql: str, *values: Any) -> list[Any]:
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        try:
            return await self._storage.read(sql, *values)
        except (NotAccepting, ValueError):
            raise
        except Exception as error:
            raise self._break(error) from error

    def _note_refusal(self, reason: str) -> None:
        changed, self.refusal = bool(reason) is not bool(self.refusal), reason
        if changed and self._listener is not None:
            self._listener.ledger_refused(reason)

    def _break(self, error: Exception) -> Exception:
        if self._listener is None:
            return error
        if self._broken is None:
            self._broken = LedgerBroken(f"the ledger failed: {str(error) or type(error).__name__}", hint=HINT)
            self._listener.ledger_failed(self._broken)
        return self._broken.with_traceback(None)

    async def require_writable(self) -> None:
        await self._write(_touch, None, "")

    # -- requests and their outcomes

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        rows = [_request_row(record, run) for record in records]
        claim = None if run is None else _run_row(run)
        ids = [row[0] for row in rows] + ([] if run is None else [_run_key(run)])
        return bool(await self._write(_accept, _Acceptance(rows, claim), *ids))

    async def update(self, *records: RequestRecord) -> None:
        rows = {record.request.correlation_id: _request_row(record, None) for record in records}
        if rows:
            await self._write(_update, list(rows.values()), *rows)

    async def close(self, outcome: Outcome) -> bool:
        decided = bool(await self._write(_close, _outcome_row(outcome), outcome.correlation_id))
        if decided:
            self._decided += 1
            if self._decided % PRUNE_EVERY == 0:
                try:
                    await self.prune(outcome.ended_at)
                except Exception as error:  # noqa: BLE001 - the outcome is decided, and must not be refused
                    log.warning("old rows of the ledger were not deleted: %s", error)
        return decided

    async def prune(self, now: datetime) -> int:
        return int(await self._write(_prune, (self.limits, now)))

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        row = webhook.correlation_id, encode(webhook)
        return bool(await self._write(_keep_webhook, row, webhook.correlation_id))

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        return _decoded(EarlyWebhook, await self._read("SELECT body FROM webhooks ORDER BY seq"))

    async def request(self, correlation_id: str) -> RequestRecord | None:
        rows = await self._read("SELECT body, phase FROM requests WHERE correlation_id = $1", correlation_id)
        return _request_of(*rows[0]) if rows else None

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        return _decoded(RequestRecord, await self._read(f"{_OPEN} ORDER BY seq"))

    async def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        seq, more = -1, True
        while more:
            rows = await self._read(f"{_OPEN} AND seq > $1 ORDER BY seq LIMIT $2", seq, page)
            yield _decoded(RequestRecord, rows)
            seq, more = rows[-1][1] if rows else seq, len(rows) == page

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

    async def outcomes(self, *, since: datetime, limit: int = 100_000) -> tuple[Outcome, ...]:
        rows = await self._read(
            "SELECT body FROM outcomes WHERE ended_at >= $1 ORDER BY ended_at DESC, seq DESC LIMIT $2",
            micros(since),
            limit,
        )
        return tuple(map(_without_content, _decoded(Outcome, rows[::-1])))

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
            _text(value),
            agent,
            RECENT_MAX,
        )
        return _decoded(Outcome, rows)[0] if rows else None

    # -- questions

    async def ask(self, question: Question) -> bool:
        row = question.question_id, question.correlation_id, encode(question)
        return bool(await self._write(_ask, row, question.question_id, question.correlation_id))

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        body = await self._write(_answer, (answer.question_id, encode(answer), micros(at)))
        return None if body is None else decoder(Question)(body)

    async def settle(self, question_id: str, state: QuestionState) -> None:
        await self._write(_settle, (question_id, state.value))

    async def questions(self, *, open_only: bool = True, limit: int | None = None) -> tuple[QuestionRecord, ...]:
        waiting = (
            " JOIN requests USING (correlation_id) WHERE requests.phase <> 'closed'"
            " AND questions.state IN ('open', 'answered')"
        )
        rows = await self._read(
            "SELECT questions.body, questions.state, questions.answer, questions.answered_at FROM questions"
            f"{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT $1",
            limit,
        )
        return tuple(
            QuestionRecord(
                question=decoder(Question)(body),
                state=QuestionState(state),
                answer=None if given is None else decoder(Answer)(given),
                answered_at=None if answered_at is None else moment(answered_at),
            )
            for body, state, given, answered_at in rows[::-1]
        )

    # -- ceremony runs and cards

    async def save_run(self, run: RunRecord) -> None:
        await self._write(_save_run, _run_row(run), _run_key(run))

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        only = "" if ceremony_id is None else "WHERE ceremony_id = $2"
        values = () if ceremony_id is None else (ceremony_id,)
        return _decoded(
            RunRecord, await self._read(f"SELECT body FROM runs {only} ORDER BY seq DESC LIMIT $1", limit, *values)
        )

    async def save_card(self, snapshot: CardSnapshot) -> None:
        await self._write(_save_card, (snapshot.agent, encode(snapshot)), f"card {snapshot.agent}")

    async def cards(self) -> tuple[CardSnapshot, ...]:
        return _decoded(CardSnapshot, await self._read("SELECT body FROM cards ORDER BY agent"))

    # -- the event journal

    async def append(self, events: Sequence[Event]) -> None:
        if not events:
            return
        announced = [event.correlation_id for event in events if isinstance(event, OutcomeDecided)]
        call = _Journal([_event_row(event) for event in events], announced)
        await self._write(_append, call, "the journal", *filter(None, announced))
        step = max(1, self.limits.events_max // 100)
        if events[-1].seq // step > (events[0].seq - 1) // step:
            await self._write(_trim, (self.limits.events_max, step + len(events) + PRUNED_MAX), "the journal")

    async def events(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        rows = await self._read("SELECT body FROM events WHERE seq > $1 ORDER BY seq LIMIT $2", after_seq, limit)
        events = [from_wire(body) for body in _decoded(dict[str, Any], rows)]
        if None in events:
            raise LedgerDamaged("a row of the journal holds no event")
        return tuple(event for event in events if event is not None)

    async def last_seq(self) -> int:
        return int((await self._read("SELECT coalesce(max(seq), 0) FROM events"))[0][0])

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        rows = await self._read("SELECT body FROM outcomes WHERE NOT announced ORDER BY seq LIMIT $1", limit)
        return tuple(map(_without_content, _decoded(Outcome, rows)))

    async def untold_requests(self) -> tuple[RequestRecord, ...]:
        rows = await self._read(
            "SELECT body, phase FROM requests WHERE correlation_id IN"
            " (SELECT correlation_id FROM requests WHERE phase <> 'closed'"
            " UNION SELECT correlation_id FROM outcomes WHERE NOT announced)"
            " AND accepted_at >= coalesce((SELECT at FROM events ORDER BY seq LIMIT 1), 0)"
            " AND NOT EXISTS (SELECT FROM events WHERE accepted_id = correlation_id) ORDER BY seq"
        )
        return tuple(_request_of(*row) for row in rows)

    # -- ids

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        text = _text(text) or ""
        upto = text + "\U0010ffff" if len(text) >= PREFIX_CHARS_MIN else text
        rows = [row for sql in (_BY_ID, _BY_QUESTION, _BY_RUN) for row in await self._read(sql, text, upto, limit)]
        if not rows:
            rows = await self._read(_BY_TASK, text, limit)
        return tuple(
            KnownId(id=known, kind=kind, correlation_id=cid, agent=agent, at=moment(at))
            for known, kind, cid, agent, at in rows
        )


_OPEN = "SELECT body, seq FROM requests WHERE phase <> 'closed'"
_BY_ID = """SELECT correlation_id, 'request', correlation_id, agent, accepted_at FROM requests
    WHERE correlation_id >= $1 AND correlation_id <= $2 ORDER BY correlation_id LIMIT $3"""
_BY_QUESTION = """SELECT question_id, 'question', correlation_id, agent, accepted_at FROM questions
    JOIN requests USING (correlation_id) WHERE question_id >= $1 AND question_id <= $2 ORDER BY question_id LIMIT $3"""
_BY_RUN = """SELECT run_id, 'run', correlation_id, agent, accepted_at FROM requests
    WHERE run_id >= $1 AND run_id <= $2 ORDER BY run_id, seq LIMIT $3"""
_BY_TASK = """SELECT $1, 'task', correlation_id, agent, accepted_at FROM requests WHERE correlation_id IN
    (SELECT correlation_id FROM requests WHERE task_id = $1
     UNION SELECT correlation_id FROM outcomes WHERE task_id = $1) ORDER BY seq DESC LIMIT $2"""


# -- the verbs, each for many calls ---------------------------------------------------------------------------


class _Acceptance(NamedTuple):
    requests: list[tuple[Any, ...]]
    run: tuple[Any, ...] | None


class _Journal(NamedTuple):
    events: list[tuple[Any, ...]]
    announced: list[str | None]


async def _touch(connection: Connection, calls: Sequence[Any]) -> Sequence[Any]:
    await connection.execute("UPDATE schema_version SET applied_at = applied_at")
    return calls


async def _accept(connection: Connection, calls: Sequence[_Acceptance]) -> Sequence[bool]:
    claims = [call.run for call in calls if call.run is not None]
    try:
        claimed = set()
        if claims:
            rows = await connection.fetch(
                f"INSERT INTO runs ({_RUN}) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[],"
                " $5::bigint[], $6::text[]) ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING RETURNING run_id",
                *_columns(claims),
            )
            claimed = {row[0] for row in rows}
        accepted = [call.run is None or call.run[0] in claimed for call in calls]
        records = [row for call, taken in zip(calls, accepted, strict=True) if taken for row in call.requests]
        if records:
            await connection.execute(
                f"INSERT INTO requests ({_REQUEST}) SELECT {_REQUEST} FROM {_REQUESTS} ORDER BY place",
                *_columns(records),
            )
    except asyncpg.UniqueViolationError as error:
        raise ValueError(f"an id is already in use ({error})") from None
    return accepted


async def _update(connection: Connection, calls: Sequence[list[tuple[Any, ...]]]) -> Sequence[None]:
    await connection.execute(
        "UPDATE requests SET phase = new.phase, task_id = new.task_id, dialect = new.dialect,"
        f" streaming = new.streaming, push = new.push, body = new.body FROM {_REQUESTS}"
        " WHERE requests.correlation_id = new.correlation_id AND requests.phase <> 'closed'",
        *_columns([row for rows in calls for row in rows]),
    )
    return [None] * len(calls)


async def _close(connection: Connection, calls: Sequence[tuple[Any, ...]]) -> Sequence[bool]:
    rows = await connection.fetch(
        f"""WITH new AS (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[],
            $7::text[]) WITH ORDINALITY AS new ({_OUTCOME}, place)),
        closed AS (UPDATE requests SET phase = 'closed' FROM new
            WHERE requests.correlation_id = new.correlation_id AND phase <> 'closed' RETURNING requests.correlation_id),
        added AS (INSERT INTO outcomes ({_OUTCOME})
            SELECT {_OUTCOME} FROM new JOIN closed USING (correlation_id) ORDER BY place),
        ended AS (UPDATE questions SET state = CASE new.kind WHEN '{OutcomeKind.EXPIRED.value}'
                THEN '{QuestionState.EXPIRED.value}' ELSE '{QuestionState.WITHDRAWN.value}' END
            FROM new JOIN closed USING (correlation_id)
            WHERE questions.correlation_id = new.correlation_id AND state = 'open'),
        dropped AS (DELETE FROM webhooks USING closed WHERE webhooks.correlation_id = closed.correlation_id)
        SELECT correlation_id FROM closed""",
        *_columns(calls),
    )
    closed = {row[0] for row in rows}
    return [call[0] in closed for call in calls]


async def _keep_webhook(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[bool]:
    rows = await connection.fetch(
        "WITH open AS (SELECT new.* FROM unnest($1::text[], $2::text[])"
        " WITH ORDINALITY AS new (correlation_id, body, place)"
        " JOIN requests USING (correlation_id) WHERE phase <> 'closed' FOR SHARE OF requests),"
        " added AS (INSERT INTO webhooks (correlation_id, body) SELECT correlation_id, body FROM open ORDER BY place)"
        " SELECT place FROM open",
        *_columns(calls),
    )
    kept = {row[0] for row in rows}
    return [place in kept for place in range(1, len(calls) + 1)]


async def _ask(connection: Connection, calls: Sequence[tuple[str, str, str]]) -> Sequence[bool]:
    rows = await connection.fetch(
        "WITH open AS (SELECT new.* FROM unnest($1::text[], $2::text[], $3::text[])"
        " WITH ORDINALITY AS new (question_id, correlation_id, body, place)"
        " JOIN requests USING (correlation_id) WHERE phase <> 'closed' FOR SHARE OF requests)"
        " INSERT INTO questions (question_id, correlation_id, state, body)"
        f" SELECT question_id, correlation_id, '{QuestionState.OPEN.value}', body FROM open ORDER BY place"
        " ON CONFLICT (question_id) DO NOTHING RETURNING question_id",
        *_columns(calls),
    )
    asked = {row[0] for row in rows}
    return [call[0] in asked for call in calls]


async def _answer(connection: Connection, calls: Sequence[tuple[str, str, int]]) -> Sequence[str | None]:
    return [
        await connection.fetchval(
            "UPDATE questions SET state = 'answered', answer = $2, answered_at = $3"
            " WHERE question_id = $1 AND state = 'open' RETURNING body",
            *call,
        )
        for call in calls
    ]


async def _settle(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[None]:
    await connection.executemany(
        "UPDATE questions SET state = $2 WHERE question_id = $1 AND state IN ('open', 'answered')", calls
    )
    return [None] * len(calls)


async def _save_run(connection: Connection, calls: Sequence[tuple[Any, ...]]) -> Sequence[None]:
    try:
        await connection.executemany(
            f"INSERT INTO runs ({_RUN}) VALUES ($1, $2, $3, $4, $5, $6)"
            " ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status,"
            " started_at = excluded.started_at, body = excluded.body WHERE runs.run_id = excluded.run_id",
            calls,
        )
    except asyncpg.UniqueViolationError:
        raise ValueError("the id of the run belongs to another slot") from None
    return [None] * len(calls)


async def _save_card(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[None]:
    await connection.executemany(
        "INSERT INTO cards (agent, body) VALUES ($1, $2) ON CONFLICT (agent) DO UPDATE SET body = excluded.body", calls
    )
    return [None] * len(calls)


async def _append(connection: Connection, calls: Sequence[_Journal]) -> Sequence[None]:
    try:
        await connection.execute(
            "INSERT INTO events (seq, at, agent, accepted_id, body)"
            " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[])",
            *_columns([row for call in calls for row in call.events]),
        )
    except asyncpg.UniqueViolationError:
        raise ValueError("an event number was used twice") from None
    announced = [name for call in calls for name in call.announced]
    if announced:
        await connection.execute(
            "UPDATE outcomes SET announced = true WHERE correlation_id = ANY ($1::text[])", announced
        )
    return [None] * len(calls)


async def _trim(connection: Connection, calls: Sequence[tuple[int, int]]) -> Sequence[None]:
    """Delete old events beyond a number, at most some; an agent with more than half of them loses its own."""
    events_max, most = calls[-1]
    counts = await connection.fetch("SELECT agent, count(*) FROM events GROUP BY agent")
    excess = min(sum(count for _, count in counts) - events_max, most)
    if excess > 0:
        agent, count = max((row for row in counts if row[0]), key=lambda row: row[1], default=("", 0))
        own, values = ("WHERE agent = $2", (agent,)) if 2 * count > events_max else ("", ())
        await connection.execute(
            f"DELETE FROM events WHERE seq IN (SELECT seq FROM events {own} ORDER BY seq LIMIT $1)", excess, *values
        )
    return [None] * len(calls)


async def _prune(connection: Connection, calls: Sequence[tuple[LedgerLimits, datetime]]) -> Sequence[int]:
    """Delete closed requests and runs that ended long ago or are too many; at most ``PRUNED_MAX`` of each."""
    limits, now = calls[-1]
    await _touch(connection, calls)
    before = micros(now) - int(limits.keep_s * 1_000_000)
    deleted = await connection.fetch(
        "WITH newest AS (SELECT coalesce(max(seq), 0) AS seq FROM outcomes),"
        " oldest AS (SELECT outcomes.seq, ended_at, correlation_id FROM outcomes ORDER BY seq LIMIT $1),"
        " young AS (SELECT min(oldest.seq) AS seq FROM oldest, newest WHERE oldest.seq > newest.seq - $2"
        " OR NOT (ended_at < $4 OR oldest.seq <= newest.seq - $3))"
        " DELETE FROM requests USING oldest, young WHERE requests.correlation_id = oldest.correlation_id"
        " AND (young.seq IS NULL OR oldest.seq < young.seq) RETURNING requests.seq",
        PRUNED_MAX,
        limits.outcomes_min,
        limits.outcomes_max,
        before,
    )
    await connection.execute(
        "DELETE FROM runs WHERE seq IN (SELECT seq FROM runs ORDER BY seq LIMIT $1) AND started_at < $2"
        " AND NOT EXISTS (SELECT FROM requests WHERE requests.run_id = runs.run_id)",
        PRUNED_MAX,
        before,
    )
    return [*[0] * (len(calls) - 1), len(deleted)]


# -- rows -----------------------------------------------------------------------------------------------------

_RUN = "run_id, ceremony_id, scheduled_at, status, started_at, body"
_REQUEST = "correlation_id, agent, phase, accepted_at, run_id, task_id, dialect, streaming, push, body"
_OUTCOME = "correlation_id, agent, kind, ended_at, task_id, context_id, body"
_REQUESTS = (
    "unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[],"
    f" $9::boolean[], $10::text[]) WITH ORDINALITY AS new ({_REQUEST}, place)"
)


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Rows as arrays, one for each column."""
    return [list(column) for column in zip(*rows, strict=True)]


def _text(value: str | None) -> str | None:
    """A text of an agent as a column holds it: PostgreSQL has neither U+0000 nor half characters."""
    if value is None:
        return None
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _request_row(record: RequestRecord, run: RunRecord | None) -> tuple[Any, ...]:
    if record.phase is Phase.CLOSED:
        raise ValueError(_CLAIMED)
    if record.task is not None and type(record.task.artifacts) is not tuple:
        record = replace(record, task=plain(record.task))
    return (
        record.request.correlation_id,
        record.agent,
        record.phase.value,
        micros(record.accepted_at),
        run and run.claim.run_id,
        record.task and _text(record.task.task_id),
        record.dialect,
        record.streaming,
        record.push,
        encode(record),
    )


def _request_of(body: str, phase: str) -> RequestRecord:
    """The record as it was last updated; only the phase's column says that it is closed."""
    return replace(decoder(RequestRecord)(body), phase=Phase(phase))


def _run_row(run: RunRecord) -> tuple[Any, ...]:
    claim, scheduled_at, started_at = run.claim, micros(run.claim.scheduled_at), micros(run.started_at)
    return claim.run_id, claim.ceremony_id, scheduled_at, run.status.value, started_at, encode(run)


def _run_key(run: RunRecord) -> str:
    return f"run {run.claim.ceremony_id} {micros(run.claim.scheduled_at)}"


def _outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    ids = _text(outcome.task_id), _text(outcome.context_id)
    return outcome.correlation_id, outcome.agent, outcome.kind.value, micros(outcome.ended_at), *ids, encode(outcome)


def _event_row(event: Event) -> tuple[Any, ...]:
    accepted = event.correlation_id if isinstance(event, RequestAccepted) else None
    return event.seq, micros(event.at), event.agent or "", accepted, encode(to_wire(event, exact=True))


def _decoded(kind: Any, rows: Iterable[Any]) -> tuple[Any, ...]:
    decode = decoder(kind)
    return tuple(decode(row[0]) for row in rows)


def _without_content(outcome: Outcome) -> Outcome:
    if not outcome.parts:
        return outcome
    return replace(outcome, parts=tuple(without_content(part) for part in outcome.parts))


def open_postgres(place: Place, *, limits: LedgerLimits | None = None) -> PostgresLedger:
    """The ledger at ``place``; tables are created if missing. Use as ``async with``; entering raises ConfigError."""
    bounds = limits or LedgerLimits()
    return PostgresLedger(Storage(place, pending_max=bounds.pending_max), bounds)
