"""The tables of the ledger's file and their migrations. A released migration never changes: the next one follows it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from fleetsim.ledger.sqlite.sums import SUMMED, link

APPLICATION_ID = 0x666C7473
"""``flts``, in the file's header, so that ``file(1)`` and we can tell a ledger from another database."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. ``statements`` run in order, then ``fill`` if there is one, in the same transaction."""

    version: int
    name: str
    statements: tuple[str, ...]
    fill: Callable[[sqlite3.Connection], None] | None = None


_TABLES = (
    """CREATE TABLE schema_version (
        version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)""",
    """CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE,
        ceremony_id TEXT NOT NULL, scheduled_at INTEGER NOT NULL, status TEXT NOT NULL,
        started_at INTEGER NOT NULL, body TEXT NOT NULL,
        UNIQUE (ceremony_id, scheduled_at))""",
    "CREATE INDEX runs_by_ceremony ON runs (ceremony_id, seq)",
    """CREATE TABLE requests (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, correlation_id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL, phase TEXT NOT NULL, accepted_at INTEGER NOT NULL,
        run_id TEXT REFERENCES runs (run_id), body TEXT NOT NULL)""",
    "CREATE INDEX requests_open ON requests (seq) WHERE phase <> 'closed'",
    "CREATE INDEX requests_by_run ON requests (run_id) WHERE run_id IS NOT NULL",
    """CREATE TABLE outcomes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        correlation_id TEXT NOT NULL UNIQUE REFERENCES requests (correlation_id),
        agent TEXT NOT NULL, skill TEXT NOT NULL, kind TEXT NOT NULL, success INTEGER NOT NULL,
        ended_at INTEGER NOT NULL, body TEXT NOT NULL)""",
    "CREATE INDEX outcomes_by_end ON outcomes (ended_at, seq)",
    """CREATE TABLE questions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, question_id TEXT NOT NULL UNIQUE,
        correlation_id TEXT NOT NULL REFERENCES requests (correlation_id),
        state TEXT NOT NULL, body TEXT NOT NULL, answer TEXT, answered_at INTEGER)""",
    "CREATE INDEX questions_open ON questions (seq) WHERE state IN ('open', 'answered')",
    "CREATE INDEX questions_by_request ON questions (correlation_id)",
    """CREATE TABLE cards (
        agent TEXT PRIMARY KEY, fetched_at INTEGER NOT NULL, body TEXT NOT NULL)""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, topic TEXT NOT NULL, body TEXT NOT NULL)""",
)

_OF_VERSION_1 = ("runs", "requests", "outcomes", "questions", "cards", "events")

_SUMS = (
    *(f"ALTER TABLE {table} ADD COLUMN sum INTEGER NOT NULL DEFAULT 0" for table in _OF_VERSION_1),
    "ALTER TABLE outcomes ADD COLUMN chain BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE outcomes ADD COLUMN announced INTEGER NOT NULL DEFAULT 0",
    *(f"UPDATE {table} SET sum = row_sum('{table}', {SUMMED[table]})" for table in _OF_VERSION_1),
    "UPDATE outcomes SET announced = 1",
    "CREATE INDEX outcomes_unannounced ON outcomes (seq) WHERE announced = 0",
)

_WEBHOOKS = (
    """CREATE TABLE webhooks (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        correlation_id TEXT NOT NULL REFERENCES requests (correlation_id),
        received_at INTEGER NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL)""",
    "CREATE INDEX webhooks_by_request ON webhooks (correlation_id)",
)


_FILE = (
    """CREATE TABLE file (
        seq INTEGER PRIMARY KEY CHECK (seq = 1), path BLOB NOT NULL, device TEXT NOT NULL, inode TEXT NOT NULL)""",
)


_KEEP = (
    "ALTER TABLE events ADD COLUMN agent TEXT NOT NULL DEFAULT ''",
    "UPDATE events SET agent = coalesce(json_extract(body, '$.agent'), '')",
    "CREATE INDEX events_by_agent ON events (agent, seq)",
    "ALTER TABLE outcomes ADD COLUMN slim INTEGER NOT NULL DEFAULT 0",
)


_CONTENTS = ("CREATE TABLE contents (correlation_id TEXT PRIMARY KEY, body TEXT NOT NULL, sum INTEGER NOT NULL)",)
"""Short, as all that follow: damage to one of the few pages with the schema makes every table unreadable."""


_TAKEN_OVER = ("ALTER TABLE file ADD COLUMN taken_over_at INTEGER",)

_NOTICES = (
    "CREATE TABLE notices (seq INTEGER PRIMARY KEY, subject TEXT NOT NULL, place TEXT NOT NULL, state TEXT NOT NULL,"
    " body TEXT NOT NULL, sum INTEGER NOT NULL, UNIQUE (subject, place))",
)

_LIMITS = (
    "CREATE TABLE limits (seq INTEGER PRIMARY KEY, name, period, ends, body, sum INTEGER, UNIQUE (name, period))",
)


def _chain_up(connection: sqlite3.Connection) -> None:
    before = b""
    for seq, *columns in connection.execute(f"SELECT seq, {SUMMED['outcomes']} FROM outcomes ORDER BY seq").fetchall():
        before = link(before, *columns)
        connection.execute("UPDATE outcomes SET chain = ? WHERE seq = ?", (before, seq))


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "requests, outcomes, questions, runs, cards, events", _TABLES),
    Migration(2, "sums on every row, a chain over outcomes, announced outcomes", _SUMS, _chain_up),
    Migration(3, "webhooks that came before the reply", _WEBHOOKS),
    Migration(4, "the file that the ledger is in", _FILE),
    Migration(5, "the agent of each event, outcomes whose payload was deleted", _KEEP),
    Migration(6, "the content of large requests", _CONTENTS),
    Migration(7, "the time at which a copy was taken over", _TAKEN_OVER),
    Migration(8, "notices to people", _NOTICES),
    Migration(9, "the use of limits", _LIMITS),
)
"""All steps, oldest first."""

VERSION = MIGRATIONS[-1].version


def version_of(connection: sqlite3.Connection) -> int:
    """The file's schema version; 0 for an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, *, at_micros: int) -> None:
    """Bring the file to ``VERSION``, each step in a transaction of its own, recorded with the time."""
    for step in MIGRATIONS:
        if step.version <= version_of(connection):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in step.statements:
                connection.execute(statement)
            if step.fill is not None:
                step.fill(connection)
            connection.execute(
                "INSERT INTO schema_version (version, name, applied_at) VALUES (?, ?, ?)",
                (step.version, step.name, at_micros),
            )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {step.version}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
