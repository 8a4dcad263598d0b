"""The journal of events, and what it has no event of yet: rows and SQL, as ``tables``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from fleetsim.caller.event_wire import from_wire, to_wire
from fleetsim.caller.events import Event, OutcomeDecided, RequestAccepted
from fleetsim.caller.ledger.records import LedgerDamaged, RequestRecord
from fleetsim.caller.ledger.tables import (
    PRUNED_MAX,
    SUMMED,
    Connection,
    checked,
    encode,
    listed,
    micros,
    read,
    read_one_by_one,
    request_of,
    row_sum,
)
from fleetsim.model.work import Outcome


def event_row(event: Event) -> tuple[int, int, str, str, str | None]:
    """An event, encoded, and the request whose outcome it announces, if it is one. Raises ValueError as ``encode``."""
    ended = event.correlation_id if isinstance(event, OutcomeDecided) else None
    wire = to_wire(event, exact=True)
    return event.seq, micros(event.at), wire["topic"], encode(wire), ended


def append(connection: Connection, rows: Sequence[tuple[int, int, str, str, str | None]], events_max: int) -> None:
    """Add ``event_row`` rows and drop what is older than the newest ``events_max`` numbers."""
    announced = [(row[4],) for row in rows if row[4] is not None]
    try:
        connection.executemany(
            f"INSERT INTO events ({SUMMED['events']}, sum) VALUES (?, ?, ?, ?, ?)",
            [(*row[:4], row_sum("events", *row[:4])) for row in rows],
        )
    except sqlite3.IntegrityError:
        raise ValueError("an event number was used twice") from None
    if announced:
        connection.executemany("UPDATE outcomes SET announced = 1 WHERE correlation_id = ?", announced)
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
    read_events = tuple(from_wire(body) for body in read(dict[str, Any], rows))
    if None in read_events:
        raise LedgerDamaged("a row of the journal holds no event")
    return tuple(event for event in read_events if event is not None)


def last_seq(connection: Connection) -> int:
    """The highest event number: the newest rows are never dropped."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def unannounced(connection: Connection, limit: int) -> tuple[Outcome, ...]:
    """Outcomes of which the journal has no event, oldest first."""
    rows = connection.execute(
        f"SELECT body, {checked('outcomes')} FROM outcomes WHERE announced = 0 ORDER BY seq LIMIT ?", (limit,)
    )
    return tuple(map(listed, read_one_by_one(Outcome, rows)))


def untold_requests(connection: Connection) -> tuple[RequestRecord, ...]:
    """Requests without their event. Of one that is older than the journal the event is no longer there."""
    rows = connection.execute(
        f"SELECT body, {checked('requests')}, phase FROM requests WHERE correlation_id IN"
        " (SELECT correlation_id FROM requests WHERE phase <> 'closed'"
        " UNION SELECT correlation_id FROM outcomes WHERE announced = 0)"
        " AND accepted_at >= coalesce((SELECT at FROM events ORDER BY seq LIMIT 1), 0)"
        " AND correlation_id NOT IN (SELECT coalesce(json_extract(body, '$.correlationId'), '') FROM events"
        f" WHERE topic = ? AND {checked('events')}) ORDER BY seq",
        (RequestAccepted.TOPIC,),
    )
    return tuple(request_of(*row) for row in rows)
