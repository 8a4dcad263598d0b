"""What the ledger records: values to rows and back, and SQL on one connection, in a transaction somebody else commits.

Bodies are the dataclasses in snake-case JSON, so that a person can read the file and a new field with a
default needs no migration. A row's sum covers every column that means something; it is checked whenever
the row is read, so that a flipped bit on the disk is an error and never an answer.

Each function is run again from the start if its group could not be committed, so none keeps state of its
own. Knows SQL and the values; not threads, files or clocks.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from fleetsim.caller.ledger import (
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    LedgerDamaged,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestNote,
    RequestRecord,
    RunRecord,
)
from fleetsim.caller.outcome_rows import OutcomeFacts
from fleetsim.model.changing import replace
from fleetsim.model.event import plain
from fleetsim.model.limits import PREFIX_CHARS_MIN
from fleetsim.model.parts import without_content
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question

Connection: TypeAlias = sqlite3.Connection
T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

SUMMED = {
    "runs": "run_id, ceremony_id, scheduled_at, status, started_at, body",
    "requests": "correlation_id, agent, phase, accepted_at, run_id, body",
    "webhooks": "correlation_id, received_at, body",
    "outcomes": "correlation_id, agent, skill, kind, success, ended_at, body",
    "questions": "question_id, correlation_id, state, body, answer, answered_at",
    "cards": "agent, fetched_at, body",
    "events": "seq, at, topic, body",
}
"""What the sum of each table's rows covers, in order. Outcomes are also linked into a chain (``link``)."""

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


_encoders: dict[type[Any], Callable[[object], bytes]] = {}
"""Of each class what its adapter's ``dump_json`` calls with a dozen of options, which cost as much as a short event."""


def encode(value: object) -> str:
    """The value as JSON. Half characters (lone surrogates) become U+FFFD, since no file can hold them.

    Raises:
        ValueError: it holds something JSON cannot carry, or is nested too deep.
    """
    kind = type(value)
    if kind not in _encoders:
        _encoders[kind] = _adapter(kind).serializer.to_json
    try:
        return _encoders[kind](value).decode()
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise ValueError(f"a {kind.__name__} cannot be recorded: {error}") from None
    return to_json(_mend(_adapter(kind).dump_python(value))).decode()


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(item) for item in value]
    return value


def decoder(kind: type[T]) -> Callable[[str], T]:
    """A function from JSON to ``kind``; it raises LedgerDamaged, naming no content, if the text is not one."""
    adapter = _adapter(kind)

    def decode(text: str) -> T:
        try:
            value: T = adapter.validate_json(text)
        except ValidationError as error:
            raise LedgerDamaged(
                f"a row of the ledger holds no {kind.__name__} ({error.error_count()} errors)"
            ) from None
        return value

    return decode


def micros(at: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly. Raises ValueError for a naive date."""
    if at.tzinfo is None:
        raise ValueError("a date without a time zone cannot be recorded")
    return (at - _EPOCH) // _MICROSECOND


def moment(at_micros: int) -> datetime:
    """The date of ``micros``."""
    return _EPOCH + at_micros * _MICROSECOND


def row_sum(table: str, *columns: object) -> int:
    """CRC-32 over the table's name and the columns; any one changed byte changes it."""
    return zlib.crc32(_bytes((table, *columns)))


def link(before: bytes, *columns: object) -> bytes:
    """The next link of the chain over all outcomes: it covers this one and, through ``before``, every earlier one."""
    return sha256(before + _bytes(columns)).digest()


def _bytes(columns: tuple[object, ...]) -> bytes:
    texts = [column if type(column) is str and column[:1] != "\x00" else _text(column) for column in columns]
    return "\x1f".join(texts).encode("utf-8", "replace")


def _text(column: object) -> str:
    """A column as it is summed. A text that begins as nothing is written does not look like nothing; no row has one."""
    if column is None:
        return "\x00"
    text = str(column)
    return f"\x00{text}" if text.startswith("\x00") else text


def teach(connection: sqlite3.Connection) -> None:
    """Let the connection's SQL compute sums: ``row_sum(table, ...)``."""
    connection.create_function("row_sum", -1, row_sum, deterministic=True)


def checked(table: str) -> str:
    """The SQL expression that is true for a row whose sum is right."""
    return f"{table}.sum = row_sum('{table}', {', '.join(f'{table}.{name}' for name in SUMMED[table].split(', '))})"


def read(kind: type[T], rows: sqlite3.Cursor) -> tuple[T, ...]:
    """Decode rows of (body, whether the sum is right). Raises LedgerDamaged."""
    return tuple(read_one_by_one(kind, rows))


def read_one_by_one(kind: type[T], rows: sqlite3.Cursor) -> Iterator[T]:
    """As ``read``, holding one row at a time."""
    decode = decoder(kind)
    for body, right in rows:
        yield decode(sound(body, right))


def sound(body: str, right: int) -> str:
    """The body, if its row's sum is right. Raises LedgerDamaged."""
    if not right:
        raise LedgerDamaged("a row of the ledger is not what was written (its sum is wrong)")
    return body


# -- requests and their outcomes ------------------------------------------------------------------------------

RECENT_MAX = 10_000
"""Among how many of the newest outcomes a task is looked for."""


class RequestRow(NamedTuple):
    """A RequestRecord, encoded."""

    correlation_id: str
    agent: str
    phase: str
    accepted_at: int
    body: str

    @classmethod
    def of(cls, record: RequestRecord) -> RequestRow:
        """Encode. Raises ValueError if it cannot be, or if it claims to be closed."""
        if record.phase is Phase.CLOSED:
            raise ValueError("a request is closed by its outcome alone")
        if record.task is not None and type(record.task.artifacts) is not tuple:
            record = replace(record, task=plain(record.task))
        return cls(
            record.request.correlation_id, record.agent, record.phase.value, micros(record.accepted_at), encode(record)
        )


@dataclass(frozen=True, slots=True)
class RunRow:
    """A RunRecord, encoded."""

    run_id: str
    ceremony_id: str
    scheduled_at: int
    status: str
    started_at: int
    body: str

    @classmethod
    def of(cls, run: RunRecord) -> RunRow:
        """Encode. Raises ValueError if it cannot be."""
        claim, status = run.claim, run.status.value
        return cls(
            claim.run_id, claim.ceremony_id, micros(claim.scheduled_at), status, micros(run.started_at), encode(run)
        )

    def values(self) -> tuple[Any, ...]:
        """The columns of ``runs``, its sum last."""
        columns = (self.run_id, self.ceremony_id, self.scheduled_at, self.status, self.started_at, self.body)
        return (*columns, row_sum("runs", *columns))


def accept(connection: Connection, rows: Sequence[RequestRow], run: RunRow | None) -> bool:
    """All rows or none; False if the run's slot was taken."""
    if run is not None:
        try:
            done = connection.execute(
                f"INSERT INTO runs ({SUMMED['runs']}, sum) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING",
                run.values(),
            )
        except sqlite3.IntegrityError:
            raise ValueError(f"the run id {run.run_id!r} is already in use") from None
        if done.rowcount != 1:
            return False
    run_id = run.run_id if run else None
    values = [(row.correlation_id, row.agent, row.phase, row.accepted_at, run_id, row.body) for row in rows]
    try:
        for columns in values:
            connection.execute(
                f"INSERT INTO requests ({SUMMED['requests']}, sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*columns, row_sum("requests", *columns)),
            )
    except sqlite3.IntegrityError as error:
        raise ValueError(f"a correlation id is already in use ({error})") from None
    return True


def update(connection: Connection, records: Sequence[RequestRecord]) -> None:
    """Overwrite what is known of open requests; who they are for and when they were accepted stay."""
    rows = map(RequestRow.of, records)
    connection.executemany(
        "UPDATE requests SET phase = ?, body = ?,"
        " sum = row_sum('requests', correlation_id, agent, ?, accepted_at, run_id, ?)"
        " WHERE correlation_id = ? AND phase <> 'closed'",
        # Python 3.12 to 3.12.3 warn of numbered placeholders, and where warnings are errors that broke the ledger.
        [(row.phase, row.body, row.phase, row.body, row.correlation_id) for row in rows],
    )


def close(connection: Connection, outcome: Outcome, body: str) -> bool:
    """Close the request and write its outcome, if no one did before. Open questions end with it."""
    correlation_id = outcome.correlation_id
    closed = connection.execute(
        "UPDATE requests SET phase = 'closed',"
        " sum = row_sum('requests', correlation_id, agent, 'closed', accepted_at, run_id, body)"
        " WHERE correlation_id = ? AND phase <> 'closed'",
        (correlation_id,),
    )
    if closed.rowcount != 1:
        return False
    add_outcome(connection, outcome_columns(outcome, body))
    ending = QuestionState.EXPIRED if outcome.kind is OutcomeKind.EXPIRED else QuestionState.WITHDRAWN
    _end_questions(connection, ending, "correlation_id = ? AND state = 'open'", correlation_id)
    connection.execute("DELETE FROM webhooks WHERE correlation_id = ?", (correlation_id,))
    return True


def keep_webhook(connection: Connection, correlation_id: str, received_at: int, body: str) -> bool:
    """Keep a webhook of an open request."""
    columns = (correlation_id, received_at, body)
    done = connection.execute(
        f"INSERT INTO webhooks ({SUMMED['webhooks']}, sum) SELECT ?, ?, ?, ?"
        " WHERE EXISTS (SELECT 1 FROM requests WHERE correlation_id = ? AND phase <> 'closed')",
        (*columns, row_sum("webhooks", *columns), correlation_id),
    )
    return done.rowcount == 1


def early_webhooks(connection: Connection) -> tuple[EarlyWebhook, ...]:
    """What is kept for open requests; an outcome takes its own with it."""
    return read(EarlyWebhook, connection.execute(f"SELECT body, {checked('webhooks')} FROM webhooks ORDER BY seq"))


def outcome_columns(outcome: Outcome, body: str) -> tuple[Any, ...]:
    kind, success, ended_at = outcome.kind.value, int(outcome.success), micros(outcome.ended_at)
    return (outcome.correlation_id, outcome.agent, outcome.skill, kind, success, ended_at, body)


def add_outcome(connection: Connection, columns: tuple[Any, ...]) -> None:
    """Write an outcome behind the last one, and its link of the chain."""
    last = connection.execute("SELECT chain FROM outcomes ORDER BY seq DESC LIMIT 1").fetchone()
    connection.execute(
        f"INSERT INTO outcomes ({SUMMED['outcomes']}, sum, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*columns, row_sum("outcomes", *columns), link(last[0] if last else b"", *columns)),
    )


def open_requests(connection: Connection, seq: int = -1, limit: int = -1) -> tuple[tuple[RequestRecord, ...], int]:
    """The next ``limit`` without an outcome after ``seq``, in the order they were accepted; and where they end."""
    rows = connection.execute(
        f"SELECT body, {checked('requests')}, seq FROM requests WHERE phase <> 'closed' AND seq > ?"
        " ORDER BY seq LIMIT ?",
        (seq, limit),
    ).fetchall()
    decode = decoder(RequestRecord)
    return tuple(decode(sound(body, right)) for body, right, _ in rows), rows[-1][2] if rows else seq


def open_ids(connection: Connection, after: str | None, limit: int) -> tuple[str, ...] | None:
    """The ids of the next ``limit`` without an outcome, in that order; None if there is no request ``after``."""
    begin: tuple[int] | None = (0,)
    if after is not None:
        begin = connection.execute("SELECT seq FROM requests WHERE correlation_id = ?", (after,)).fetchone()
    if begin is None:
        return None
    rows = connection.execute(
        "SELECT correlation_id FROM requests WHERE phase <> 'closed' AND seq > ? ORDER BY seq LIMIT ?", (*begin, limit)
    )
    return tuple(name for (name,) in rows)


def request(connection: Connection, correlation_id: str) -> RequestRecord | None:
    """One request. A closed one shows its last update, and that it is closed."""
    row = connection.execute(
        f"SELECT body, {checked('requests')}, phase FROM requests WHERE correlation_id = ?", (correlation_id,)
    ).fetchone()
    return None if row is None else request_of(*row)


def request_of(body: str, right: int, phase: str) -> RequestRecord:
    """A request as it was last updated; only its phase tells that it is closed."""
    return replace(decoder(RequestRecord)(sound(body, right)), phase=Phase(phase))


def request_notes(connection: Connection, since: int, limit: int) -> tuple[RequestNote, ...]:
    """The newest ``limit`` that were accepted at or after ``since``, oldest first."""
    rows = connection.execute(
        "SELECT correlation_id, agent, run_id IS NOT NULL, json_extract(body, '$.dialect'),"
        f" json_extract(body, '$.streaming'), json_extract(body, '$.push'), {checked('requests')}"
        " FROM requests WHERE accepted_at >= ? ORDER BY seq DESC LIMIT ?",
        (since, limit),
    ).fetchall()
    return tuple(
        RequestNote(sound(name, right), agent, bool(scheduled), dialect, bool(stream), bool(push))
        for name, agent, scheduled, dialect, stream, push, right in rows[::-1]
    )


def outcome(connection: Connection, correlation_id: str) -> Outcome | None:
    """A request's outcome."""
    rows = read(
        Outcome,
        connection.execute(
            f"SELECT body, {checked('outcomes')} FROM outcomes WHERE correlation_id = ?", (correlation_id,)
        ),
    )
    return rows[0] if rows else None


def outcomes(connection: Connection, since: int, limit: int) -> tuple[Outcome, ...]:
    """The newest ``limit`` that ended at or after ``since``, oldest first."""
    newest = connection.execute(
        f"SELECT body, {checked('outcomes')} FROM outcomes WHERE ended_at >= ?"
        " ORDER BY ended_at DESC, seq DESC LIMIT ?",
        (since, limit),
    )
    return tuple(map(listed, read_one_by_one(Outcome, newest)))[::-1]


def outcome_facts(
    connection: Connection, since: int, seq: int, limit: int
) -> tuple[tuple[OutcomeFacts, ...], int, int]:
    """The next ``limit`` that ended after ``since``, or then and were decided after ``seq``; and where they end."""
    rows = connection.execute(
        f"SELECT body, {checked('outcomes')}, ended_at, seq FROM outcomes WHERE (ended_at, seq) > (?, ?)"
        " ORDER BY ended_at, seq LIMIT ?",
        (since, seq, limit),
    ).fetchall()
    decode = decoder(OutcomeFacts)
    since, seq = rows[-1][2:] if rows else (since, seq)
    return tuple(decode(sound(body, right)) for body, right, *_ in rows), since, seq


def last_of_task(connection: Connection, agent: str, task_id: str) -> Outcome | None:
    """The newest outcome of an agent's task."""
    return next((found for found in _newest(connection, agent, "task_id", task_id) if found.task_id == task_id), None)


def last_of_context(connection: Connection, agent: str, context_id: str) -> Outcome | None:
    """The newest outcome in a context of an agent's."""
    found = _newest(connection, agent, "context_id", context_id)
    return next((outcome for outcome in found if outcome.context_id == context_id), None)


def _newest(connection: Connection, agent: str, member: str, value: str) -> Iterator[Outcome]:
    """An agent's newest outcomes that may have the value. No index knows it: few ask, and they ask soon after."""
    rows = connection.execute(
        f"SELECT body, {checked('outcomes')} FROM outcomes"
        " WHERE seq > (SELECT max(seq) FROM outcomes) - ? AND agent = ? AND instr(body, ?) ORDER BY seq DESC",
        (RECENT_MAX, agent, f'"{member}":{encode(value)}'),
    )
    yield from read(Outcome, rows)


def listed(outcome: Outcome) -> Outcome:
    """Without the content of its files and data: a day of them may not fit in memory."""
    if not outcome.parts:
        return outcome
    return replace(outcome, parts=tuple(without_content(part) for part in outcome.parts))


# -- ids ------------------------------------------------------------------------------------------------------

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
"""An agent's task ids are in no index: every row is looked through, but only parsed where the id occurs."""


def ids(connection: Connection, text: str, limit: int) -> tuple[KnownId, ...]:
    """What is known by an id that begins with ``text``; if nothing is, by an agent's task id that is ``text``."""
    upto = text + "\U0010ffff" if len(text) >= PREFIX_CHARS_MIN else text
    rows = [row for sql in (_BY_ID, _BY_QUESTION, _BY_RUN) for row in connection.execute(sql, (text, upto, limit))]
    if not rows:
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        rows = list(connection.execute(_BY_TASK, (text, text, written, written, limit)))
    return tuple(
        KnownId(id=known, kind=kind, correlation_id=cid, agent=agent, at=moment(at))
        for known, kind, cid, agent, at in rows
    )


# -- questions ------------------------------------------------------------------------------------------------


def ask(connection: Connection, question: Question, body: str) -> bool:
    """Open a question of an open request, unless its id was used before."""
    columns = (question.question_id, question.correlation_id, QuestionState.OPEN.value, body, None, None)
    done = connection.execute(
        f"INSERT INTO questions ({SUMMED['questions']}, sum) SELECT ?, ?, ?, ?, ?, ?, ?"
        " WHERE EXISTS (SELECT 1 FROM requests WHERE correlation_id = ? AND phase <> 'closed')"
        " ON CONFLICT (question_id) DO NOTHING",
        (*columns, row_sum("questions", *columns), question.correlation_id),
    )
    return done.rowcount == 1


def answer(connection: Connection, question_id: str, body: str, at: int) -> Question | None:
    """Claim an open question for one answer."""
    done = connection.execute(
        "UPDATE questions SET state = 'answered', answer = ?, answered_at = ?,"
        " sum = row_sum('questions', question_id, correlation_id, 'answered', body, ?, ?)"
        " WHERE question_id = ? AND state = 'open'",
        (body, at, body, at, question_id),
    )
    if done.rowcount != 1:
        return None
    row = connection.execute(
        f"SELECT body, {checked('questions')} FROM questions WHERE question_id = ?", (question_id,)
    )
    return read(Question, row)[0]


def settle(connection: Connection, question_id: str, state: QuestionState) -> None:
    """End a question that is open or answered."""
    _end_questions(connection, state, "question_id = ? AND state IN ('open', 'answered')", question_id)


def _end_questions(connection: Connection, state: QuestionState, which: str, value: str) -> None:
    connection.execute(
        "UPDATE questions SET state = ?,"
        " sum = row_sum('questions', question_id, correlation_id, ?, body, answer, answered_at)"
        f" WHERE {which}",
        (state.value, state.value, value),
    )


def questions(connection: Connection, open_only: bool, limit: int | None) -> tuple[QuestionRecord, ...]:
    """All or the newest ``limit``, oldest first. An answer whose request is closed needs no delivery any more."""
    waiting = (
        " JOIN requests ON requests.correlation_id = questions.correlation_id AND requests.phase <> 'closed'"
        " WHERE questions.state IN ('open', 'answered')"
    )
    rows = connection.execute(
        f"SELECT questions.body, {checked('questions')}, questions.state, questions.answer, questions.answered_at"
        f" FROM questions{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT ?",
        (-1 if limit is None else limit,),
    )
    newest = [
        QuestionRecord(
            question=decoder(Question)(sound(body, right)),
            state=QuestionState(state),
            answer=None if given is None else decoder(Answer)(given),
            answered_at=None if answered_at is None else moment(answered_at),
        )
        for body, right, state, given, answered_at in rows
    ]
    return tuple(newest[::-1])


# -- ceremony runs, cards, and the pruning of all that is old ----------------------------------------------------

PRUNED_MAX = 512
"""Rows one pruning deletes at most, so that a lowered limit does not stall the writer."""


def save_run(connection: Connection, run: RunRow) -> None:
    """Write a run's status, or record a slot nobody claimed; a slot another run has stays its own."""
    try:
        connection.execute(
            f"INSERT INTO runs ({SUMMED['runs']}, sum) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status,"
            " started_at = excluded.started_at, body = excluded.body, sum = excluded.sum"
            " WHERE run_id = excluded.run_id",
            run.values(),
        )
    except sqlite3.IntegrityError:
        raise ValueError(f"the run id {run.run_id!r} belongs to another slot") from None


def runs(connection: Connection, ceremony_id: str | None, limit: int) -> tuple[RunRecord, ...]:
    """Runs, the last recorded first."""
    only = "" if ceremony_id is None else " WHERE ceremony_id = ?"
    values = (limit,) if ceremony_id is None else (ceremony_id, limit)
    rows = connection.execute(f"SELECT body, {checked('runs')} FROM runs{only} ORDER BY seq DESC LIMIT ?", values)
    return read(RunRecord, rows)


def save_card(connection: Connection, snapshot: CardSnapshot, body: str) -> None:
    """Keep the newest card of an agent."""
    columns = (snapshot.agent, micros(snapshot.fetched_at), body)
    connection.execute(
        f"INSERT INTO cards ({SUMMED['cards']}, sum) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (agent) DO UPDATE SET fetched_at = excluded.fetched_at, body = excluded.body, sum = excluded.sum",
        (*columns, row_sum("cards", *columns)),
    )


def cards(connection: Connection) -> tuple[CardSnapshot, ...]:
    """Every agent's card, by name."""
    return read(CardSnapshot, connection.execute(f"SELECT body, {checked('cards')} FROM cards ORDER BY agent"))


def prune(connection: Connection, *, before: int, outcomes_min: int, outcomes_max: int) -> int:
    """Drop the oldest closed requests and runs: those that ended before a date, and those over a number.

    Outcomes go in the order they came, so that the chain over the rest still holds, and the newest
    ``outcomes_min`` stay. Returns how many were dropped, ``PRUNED_MAX`` at most.
    """
    newest = connection.execute("SELECT coalesce(max(seq), 0) FROM outcomes").fetchone()[0]
    oldest = connection.execute(
        "SELECT seq, ended_at, correlation_id FROM outcomes ORDER BY seq LIMIT ?", (PRUNED_MAX,)
    ).fetchall()
    old: list[tuple[str]] = []
    for seq, ended_at, correlation_id in oldest:
        if seq > newest - outcomes_min or (ended_at >= before and seq > newest - outcomes_max):
            break
        old.append((correlation_id,))
    for table in ("questions", "outcomes", "requests"):
        connection.executemany(f"DELETE FROM {table} WHERE correlation_id = ?", old)
    # Runs whose slot is long past and of whose requests none is left.
    connection.execute(
        "DELETE FROM runs WHERE seq IN (SELECT seq FROM runs ORDER BY seq LIMIT ?)"
        " AND started_at < ? AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.run_id = runs.run_id)",
        (PRUNED_MAX, before),
    )
    return len(old)
