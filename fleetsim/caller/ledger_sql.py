"""The ledger's operations as functions on one connection, inside a transaction somebody else commits.

Each is run again from the start if its group could not be committed, so none keeps state of its own.
Knows SQL and the values; not threads, files or clocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from fleetsim.caller.ledger import (
    CardSnapshot,
    LedgerDamaged,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
)
from fleetsim.caller.ledger_rows import decoder, encode, micros, moment
from fleetsim.model.journal import Event
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question

T = TypeVar("T")
Connection: TypeAlias = sqlite3.Connection

EVENTS_PRUNED_MAX = 1_000
"""Journal rows one append deletes at most, so that a lowered limit does not stall the writer."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A RequestRecord, encoded before it is handed over: what is written is what it was at the call."""

    correlation_id: str
    agent: str
    phase: str
    accepted_at: int
    body: str

    @classmethod
    def of(cls, record: RequestRecord) -> RequestRow:
        """Encode. Raises ValueError if it cannot be."""
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
        claim = run.claim
        return cls(
            claim.run_id,
            claim.ceremony_id,
            micros(claim.scheduled_at),
            run.status.value,
            micros(run.started_at),
            encode(run),
        )


def read(kind: type[T], rows: sqlite3.Cursor) -> tuple[T, ...]:
    """Every row's first column, decoded. Raises LedgerDamaged."""
    decode = decoder(kind)
    return tuple(_sound(decode, row[0]) for row in rows)


def _sound(decode: Callable[[str], T], text: str) -> T:
    try:
        return decode(text)
    except ValueError as error:
        raise LedgerDamaged(f"the ledger is damaged: {error}") from None


# -- requests and their outcomes ------------------------------------------------------------------------------


def accept(connection: Connection, rows: Sequence[RequestRow], run: RunRow | None) -> bool:
    """All rows or none; False if the run's slot was taken."""
    if run is not None and not _claim(connection, run):
        return False
    run_id = run.run_id if run else None
    try:
        connection.executemany(
            "INSERT INTO requests (correlation_id, agent, phase, accepted_at, run_id, body) VALUES (?, ?, ?, ?, ?, ?)",
            [(row.correlation_id, row.agent, row.phase, row.accepted_at, run_id, row.body) for row in rows],
        )
    except sqlite3.IntegrityError as error:
        raise ValueError(f"a correlation id is already in use ({error})") from None
    return True


def _claim(connection: Connection, run: RunRow) -> bool:
    try:
        done = connection.execute(
            "INSERT INTO runs (run_id, ceremony_id, scheduled_at, status, started_at, body) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING",
            (run.run_id, run.ceremony_id, run.scheduled_at, run.status, run.started_at, run.body),
        )
    except sqlite3.IntegrityError:
        raise ValueError(f"the run id {run.run_id!r} is already in use") from None
    return done.rowcount == 1


def update(connection: Connection, row: RequestRow) -> None:
    """Overwrite what is known of an open request."""
    connection.execute(
        "UPDATE requests SET phase = ?, body = ? WHERE correlation_id = ? AND phase <> 'closed'",
        (row.phase, row.body, row.correlation_id),
    )


def close(connection: Connection, outcome: Outcome, body: str) -> bool:
    """Close the request and write its outcome, if no one did before. Open questions end with it."""
    correlation_id = outcome.correlation_id
    closed = connection.execute(
        "UPDATE requests SET phase = 'closed' WHERE correlation_id = ? AND phase <> 'closed'", (correlation_id,)
    )
    if closed.rowcount != 1:
        return False
    connection.execute(
        "INSERT INTO outcomes (correlation_id, agent, skill, kind, success, ended_at, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            correlation_id,
            outcome.agent,
            outcome.skill,
            outcome.kind.value,
            int(outcome.success),
            micros(outcome.ended_at),
            body,
        ),
    )
    ending = QuestionState.EXPIRED if outcome.kind is OutcomeKind.EXPIRED else QuestionState.WITHDRAWN
    connection.execute(
        "UPDATE questions SET state = ? WHERE correlation_id = ? AND state = 'open'", (ending.value, correlation_id)
    )
    return True


def open_requests(connection: Connection) -> tuple[RequestRecord, ...]:
    """Requests without an outcome, in the order they were accepted."""
    return read(RequestRecord, connection.execute("SELECT body FROM requests WHERE phase <> 'closed' ORDER BY seq"))


def request(connection: Connection, correlation_id: str) -> RequestRecord | None:
    """One request. A closed one shows its last update, and that it is closed."""
    row = connection.execute("SELECT body, phase FROM requests WHERE correlation_id = ?", (correlation_id,)).fetchone()
    if row is None:
        return None
    return replace(_sound(decoder(RequestRecord), row[0]), phase=Phase(row[1]))


def outcome(connection: Connection, correlation_id: str) -> Outcome | None:
    """A request's outcome."""
    found = read(Outcome, connection.execute("SELECT body FROM outcomes WHERE correlation_id = ?", (correlation_id,)))
    return found[0] if found else None


def outcomes(connection: Connection, since: int, limit: int) -> tuple[Outcome, ...]:
    """The newest ``limit`` that ended at or after ``since``, oldest first."""
    newest = connection.execute(
        "SELECT body FROM outcomes WHERE ended_at >= ? ORDER BY ended_at DESC, seq DESC LIMIT ?", (since, limit)
    )
    return read(Outcome, newest)[::-1]


# -- questions ------------------------------------------------------------------------------------------------


def ask(connection: Connection, question: Question, body: str) -> bool:
    """Open a question of an open request, unless its id was used before."""
    done = connection.execute(
        "INSERT INTO questions (question_id, correlation_id, state, body)"
        " SELECT ?, correlation_id, 'open', ? FROM requests WHERE correlation_id = ? AND phase <> 'closed'"
        " ON CONFLICT (question_id) DO NOTHING",
        (question.question_id, body, question.correlation_id),
    )
    return done.rowcount == 1


def answer(connection: Connection, question_id: str, body: str, at: int) -> Question | None:
    """Claim an open question for one answer."""
    done = connection.execute(
        "UPDATE questions SET state = 'answered', answer = ?, answered_at = ? WHERE question_id = ? AND state = 'open'",
        (body, at, question_id),
    )
    if done.rowcount != 1:
        return None
    row = connection.execute("SELECT body FROM questions WHERE question_id = ?", (question_id,))
    return read(Question, row)[0]


def settle(connection: Connection, question_id: str, state: QuestionState) -> None:
    """End a question that is open or answered."""
    connection.execute(
        "UPDATE questions SET state = ? WHERE question_id = ? AND state IN ('open', 'answered')",
        (state.value, question_id),
    )


def questions(connection: Connection, open_only: bool, limit: int) -> tuple[QuestionRecord, ...]:
    """The newest ``limit``, oldest first. An answer whose request is closed needs no delivery any more."""
    waiting = (
        " JOIN requests ON requests.correlation_id = questions.correlation_id AND requests.phase <> 'closed'"
        " WHERE questions.state IN ('open', 'answered')"
    )
    rows = connection.execute(
        "SELECT questions.body, questions.state, questions.answer, questions.answered_at FROM questions"
        f"{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT ?",
        (limit,),
    )
    return tuple(_question(row) for row in rows)[::-1]


def _question(row: tuple[Any, ...]) -> QuestionRecord:
    body, state, given, answered_at = row
    return QuestionRecord(
        question=_sound(decoder(Question), body),
        state=QuestionState(state),
        answer=None if given is None else _sound(decoder(Answer), given),
        answered_at=None if answered_at is None else moment(answered_at),
    )


# -- ceremonies, cards, journal -------------------------------------------------------------------------------


def save_run(connection: Connection, run: RunRow) -> None:
    """Write a run's status, or record a slot nobody claimed; a slot another run has stays its own."""
    try:
        connection.execute(
            "INSERT INTO runs (run_id, ceremony_id, scheduled_at, status, started_at, body) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status, body = excluded.body"
            " WHERE run_id = excluded.run_id",
            (run.run_id, run.ceremony_id, run.scheduled_at, run.status, run.started_at, run.body),
        )
    except sqlite3.IntegrityError:
        raise ValueError(f"the run id {run.run_id!r} belongs to another slot") from None


def runs(connection: Connection, ceremony_id: str | None, limit: int) -> tuple[RunRecord, ...]:
    """Runs, the last recorded first."""
    only = "" if ceremony_id is None else " WHERE ceremony_id = ?"
    values = (limit,) if ceremony_id is None else (ceremony_id, limit)
    return read(RunRecord, connection.execute(f"SELECT body FROM runs{only} ORDER BY seq DESC LIMIT ?", values))


def save_card(connection: Connection, snapshot: CardSnapshot, body: str) -> None:
    """Keep the newest card of an agent."""
    connection.execute(
        "INSERT INTO cards (agent, fetched_at, body) VALUES (?, ?, ?)"
        " ON CONFLICT (agent) DO UPDATE SET fetched_at = excluded.fetched_at, body = excluded.body",
        (snapshot.agent, micros(snapshot.fetched_at), body),
    )


def cards(connection: Connection) -> tuple[CardSnapshot, ...]:
    """Every agent's card, by name."""
    return read(CardSnapshot, connection.execute("SELECT body FROM cards ORDER BY agent"))


def append(connection: Connection, rows: Sequence[tuple[int, int, str, str]], events_max: int) -> None:
    """Add (seq, at, topic, body) rows and drop what is older than the newest ``events_max`` numbers."""
    try:
        connection.executemany("INSERT INTO events (seq, at, topic, body) VALUES (?, ?, ?, ?)", rows)
    except sqlite3.IntegrityError:
        raise ValueError("an event number was used twice") from None
    oldest, newest = connection.execute(
        "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
    ).fetchone()
    if oldest is not None and newest - events_max >= oldest:
        floor = min(newest - events_max, oldest + EVENTS_PRUNED_MAX)
        connection.execute("DELETE FROM events WHERE seq <= ?", (floor,))


def events(connection: Connection, after_seq: int, limit: int) -> tuple[Event, ...]:
    """Journal rows after a number, oldest first."""
    rows = connection.execute("SELECT body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit))
    return read(Event, rows)


def last_seq(connection: Connection) -> int:
    """The highest event number: the newest rows are never dropped."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
