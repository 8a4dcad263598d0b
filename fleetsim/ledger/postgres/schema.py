"""The tables of one fleet in PostgreSQL. Each fleet has a schema of its own.

A migration, once released, never changes: the next one is added behind it. Hubs of the versions from its ``oldest`` on
go on beside it, so each statement names its columns, and a new column has a default. No migration changes the columns
of ``hubs`` and ``schema_version`` by which a hub finds that it is too old, and leaves. Dates are microseconds since
1970, as in every form of the ledger.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import NamedTuple

import asyncpg

from fleetsim.ledger.records import HubTooOld

MIGRATION_S = 3_600.0
"""Seconds that a migration may take. Writes of the other hubs wait meanwhile, and are refused after a while."""

_TABLES = """
CREATE FUNCTION this_hub() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT current_setting('fleetsim.hub')::bigint $$;

CREATE TABLE hubs (
    hub bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, version text NOT NULL,
    lease interval NOT NULL, started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(), expires_at timestamptz NOT NULL,
    ended_at timestamptz, took_at timestamptz, took bigint NOT NULL DEFAULT 0, groups bigint NOT NULL DEFAULT 0);
CREATE INDEX hubs_living ON hubs (hub) WHERE ended_at IS NULL;

CREATE TABLE moved (place text NOT NULL);

CREATE TABLE journal (last bigint NOT NULL);
INSERT INTO journal VALUES (0);

CREATE TABLE secrets (name text COLLATE "C" PRIMARY KEY, sealed text NOT NULL, key text NOT NULL);

CREATE TABLE runs (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id text COLLATE "C" NOT NULL UNIQUE,
    ceremony_id text NOT NULL, scheduled_at bigint NOT NULL, status text NOT NULL, started_at bigint NOT NULL,
    body text NOT NULL, hub bigint NOT NULL DEFAULT this_hub(), UNIQUE (ceremony_id, scheduled_at));
CREATE INDEX runs_by_ceremony ON runs (ceremony_id, seq);
CREATE INDEX runs_going_on ON runs (hub) WHERE status = 'running';

CREATE TABLE requests (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, correlation_id text COLLATE "C" NOT NULL UNIQUE,
    agent text NOT NULL, phase text NOT NULL, accepted_at bigint NOT NULL, run_id text COLLATE "C", task_id text,
    dialect text, streaming boolean NOT NULL, push boolean NOT NULL, body text NOT NULL, content text,
    hub bigint NOT NULL DEFAULT this_hub());
CREATE INDEX requests_open ON requests (seq) WHERE phase <> 'closed';
CREATE INDEX requests_owned ON requests (hub, seq) WHERE phase <> 'closed';
CREATE INDEX requests_by_run ON requests (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX requests_by_task ON requests (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX requests_by_time ON requests (accepted_at);

CREATE TABLE outcomes (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    correlation_id text COLLATE "C" NOT NULL UNIQUE REFERENCES requests (correlation_id) ON DELETE CASCADE,
    agent text NOT NULL, kind text NOT NULL, ended_at bigint NOT NULL, task_id text, context_id text,
    announced boolean NOT NULL DEFAULT false, slim boolean NOT NULL DEFAULT false, body text NOT NULL);
CREATE INDEX outcomes_by_end ON outcomes (ended_at, seq);
CREATE INDEX outcomes_unannounced ON outcomes (seq) WHERE NOT announced;
CREATE INDEX outcomes_whole ON outcomes (seq) WHERE NOT slim;
CREATE INDEX outcomes_by_task ON outcomes (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX outcomes_by_context ON outcomes (context_id) WHERE context_id IS NOT NULL;

CREATE TABLE questions (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, question_id text COLLATE "C" NOT NULL UNIQUE,
    correlation_id text COLLATE "C" NOT NULL REFERENCES requests (correlation_id) ON DELETE CASCADE,
    state text NOT NULL, body text NOT NULL, answer text, answered_at bigint);
CREATE INDEX questions_open ON questions (seq) WHERE state IN ('open', 'answered');
CREATE INDEX questions_by_request ON questions (correlation_id);

CREATE TABLE webhooks (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    correlation_id text COLLATE "C" NOT NULL REFERENCES requests (correlation_id) ON DELETE CASCADE,
    body text NOT NULL);
CREATE INDEX webhooks_by_request ON webhooks (correlation_id);

CREATE TABLE signals (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    correlation_id text COLLATE "C" NOT NULL REFERENCES requests (correlation_id) ON DELETE CASCADE,
    kind text NOT NULL, body text NOT NULL);
CREATE INDEX signals_by_request ON signals (correlation_id);

CREATE TABLE cards (agent text COLLATE "C" PRIMARY KEY, body text NOT NULL);

CREATE TABLE events (
    seq bigint PRIMARY KEY, at bigint NOT NULL, agent text NOT NULL, accepted_id text, body text NOT NULL,
    hub bigint NOT NULL DEFAULT this_hub());
CREATE INDEX events_by_agent ON events (agent, seq);
CREATE INDEX events_accepted ON events (accepted_id) WHERE accepted_id IS NOT NULL;
"""

_TASKS = """
CREATE TABLE a2a_tasks (
    owner text COLLATE "C" NOT NULL, task_id text COLLATE "C" NOT NULL, context_id text NOT NULL, state text NOT NULL,
    changed bigint NOT NULL, body text NOT NULL, hub bigint NOT NULL DEFAULT this_hub(), PRIMARY KEY (owner, task_id));
CREATE INDEX a2a_tasks_changed ON a2a_tasks (owner, changed);
CREATE INDEX a2a_tasks_owned ON a2a_tasks (hub);

CREATE TABLE a2a_calls (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text COLLATE "C" NOT NULL,
    task_id text COLLATE "C" NOT NULL, body text NOT NULL, reply text, hub bigint NOT NULL DEFAULT this_hub(),
    FOREIGN KEY (owner, task_id) REFERENCES a2a_tasks ON DELETE CASCADE);
CREATE INDEX a2a_calls_by_task ON a2a_calls (owner, task_id);
"""
"""The tasks of the hubs as A2A agents, and calls about them that reached a hub that does not own the task."""


_PROCESSES = "ALTER TABLE hubs ADD COLUMN process text NOT NULL DEFAULT ''"
"""The id of the hub's process, by which an earlier process of a hub differs from another hub of the same name."""


_NOTICES = """
CREATE TABLE notices (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, subject text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL, state text NOT NULL, body text NOT NULL, hub bigint NOT NULL DEFAULT this_hub(),
    UNIQUE (subject, place));
CREATE INDEX notices_raised ON notices (seq) WHERE state = 'raised';
"""

_LIMITS = """
CREATE TABLE limits (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL,
    period text COLLATE "C" NOT NULL, ends bigint NOT NULL, body text NOT NULL, UNIQUE (name, period));
"""


class Migration(NamedTuple):
    """Statements that make the next version. ``oldest`` is the oldest version whose hubs may write after them."""

    statements: str
    oldest: int


MIGRATIONS: tuple[Migration, ...] = (
    Migration(_TABLES, oldest=1),
    Migration(_TASKS, oldest=1),
    Migration(_PROCESSES, oldest=1),
    Migration(_NOTICES, oldest=1),
    Migration(_LIMITS, oldest=1),
)
"""Version n is made from version n - 1 by the n-th of these."""

VERSION = len(MIGRATIONS)


async def migrate(connection: asyncpg.Connection, schema: str, *, alone: bool = False) -> None:
    """Create the fleet's tables, or bring them to this version; the connection then uses them.

    Hubs that start at the same time wait for each other, and writes of running hubs wait too: each begins with their
    row in ``hubs``. Raises HubTooOld, as ``require_version``; ``alone``: also for tables of any newer version.
    """
    quoted = f'"{schema}"'  # its characters are checked by ``Place``
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
        await connection.execute(lock, f"fleetsim {schema}", timeout=MIGRATION_S)
        # Neither statement runs without need: each needs a right that a hub with tables does not.
        if await connection.fetchval("SELECT to_regnamespace($1)", quoted) is None:
            await connection.execute(f"CREATE SCHEMA {quoted}")
        await connection.execute(f"SET LOCAL search_path = {quoted}")
        if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
            await connection.execute(
                "CREATE TABLE schema_version (version int PRIMARY KEY, oldest int NOT NULL,"
                " program text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
        await require_version(connection, "version" if alone else "oldest")
        there = await connection.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
        if 0 < there < VERSION:
            await connection.execute("LOCK TABLE hubs IN SHARE ROW EXCLUSIVE MODE", timeout=MIGRATION_S)
        for number, migration in enumerate(MIGRATIONS[there:], there + 1):
            await connection.execute(migration.statements, timeout=MIGRATION_S)
            await connection.execute(
                "INSERT INTO schema_version (version, oldest, program) VALUES ($1, $2, $3)",
                number,
                migration.oldest,
                version("fleetsim"),
            )


async def require_version(connection: asyncpg.Connection, column: str = "oldest") -> None:
    """Raise HubTooOld if a newer fleetsim changed the tables so that this one may not write them."""
    program = await connection.fetchval(
        f"SELECT program FROM schema_version WHERE {column} > $1 ORDER BY version DESC LIMIT 1", VERSION
    )
    if program is not None:
        raise HubTooOld(
            f"this fleetsim ({version('fleetsim')}) is too old for the ledger, which fleetsim {program} has changed",
            hint=f"install fleetsim {program} or newer here, then start the hub again",
        )
