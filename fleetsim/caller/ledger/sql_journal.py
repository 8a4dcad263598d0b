"""Ceremony runs, cards and the event journal as SQL, and the pruning of all that is old.

Like ``work``: functions on one connection, in a transaction somebody else commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeAlias

from fleetsim.caller.event_wire import from_wire, to_wire
from fleetsim.caller.events import Event, OutcomeDecided
from fleetsim.caller.ledger import CardSnapshot, LedgerDamaged, RunRecord
from fleetsim.caller.ledger.rows import SUMMED, checked, encode, micros, read, row_sum
from fleetsim.caller.ledger.work import RunRow

Connection: TypeAlias = sqlite3.Connection

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


def event_row(event: Event) -> tuple[int, int, str, str, str | None]:
    """An event, encoded, and the request whose outcome it announces, if it is one. Raises ValueError as ``encode``."""
    told = event.correlation_id if isinstance(event, OutcomeDecided) else None
    body = encode({**to_wire(event), "at": event.at.isoformat()})
    return event.seq, micros(event.at), event.topic, body, told


def append(connection: Connection, rows: Sequence[tuple[int, int, str, str, str | None]], events_max: int) -> None:
    """Add ``event_row`` rows and drop what is older than the newest ``events_max`` numbers."""
    try:
        connection.executemany(
            f"INSERT INTO events ({SUMMED['events']}, sum) VALUES (?, ?, ?, ?, ?)",
            [(*row[:4], row_sum("events", *row[:4])) for row in rows],
        )
    except sqlite3.IntegrityError:
        raise ValueError("an event number was used twice") from None
    told = [(row[4],) for row in rows if row[4] is not None]
    if told:
        connection.executemany("UPDATE outcomes SET announced = 1 WHERE correlation_id = ?", told)
    oldest, newest = connection.execute(
        "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
    ).fetchone()
    floor = min(newest - events_max, oldest + len(rows) + PRUNED_MAX)
    if floor >= oldest:
        connection.execute("DELETE FROM events WHERE seq <= ?", (floor,))


def events(connection: Connection, after_seq: int, limit: int) -> tuple[Event, ...]:
    """Journal rows after a number, oldest first."""
    rows = connection.execute(
        f"SELECT body, {checked('events')} FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit)
    )
    found = tuple(from_wire(body) for body in read(dict[str, Any], rows))
    if None in found:
        raise LedgerDamaged("a row of the journal holds no event")
    return tuple(event for event in found if event is not None)


def last_seq(connection: Connection) -> int:
    """The highest event number: the newest rows are never dropped."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


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
    _prune_runs(connection, before)
    return len(old)


def _prune_runs(connection: Connection, before: int) -> None:
    """Runs whose slot is long past and of whose requests none is left."""
    connection.execute(
        "DELETE FROM runs WHERE seq IN (SELECT seq FROM runs ORDER BY seq LIMIT ?)"
        " AND started_at < ? AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.run_id = runs.run_id)",
        (PRUNED_MAX, before),
    )
