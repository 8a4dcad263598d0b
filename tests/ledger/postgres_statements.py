"""The statements of the ledger in PostgreSQL, and the indexes and tables that each reads beside many open requests.

The server logs each statement. So this list is complete without being kept by hand.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from msgspec.structs import replace

from fleetsim.events.request import OutcomeDecided, RequestAccepted
from fleetsim.ledger import LedgerLimits, MessageKind, PassedMessage, SharedLedger
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.request.records import QuestionState, RequestRecord
from tests.ledger import ledgers as make
from tests.postgres import Server

SCHEMA = "statements"
LARGE = ("requests", "outcomes", "questions", "webhooks", "runs", "events")
"""The tables that grow with the work. The others have a row for each hub, agent or message that waits."""

_RECORD = re.compile(r"^\d{4}-\d\d-\d\d [^\n]*? LOG:  ", re.MULTILINE)
_STATEMENT = re.compile(r"duration: ([\d.]+) ms  (bind|execute) [^:]+: (.*)", re.DOTALL)


@dataclass
class Statement:
    """One statement with the milliseconds of each execution, and what its plan reads."""

    sql: str
    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    scans: frozenset[str] = frozenset()
    indexes: frozenset[str] = frozenset()


def _record(name: str) -> RequestRecord:
    return replace(make.record(name, text="x" * 202), task=make.task())


def _message(name: str) -> PassedMessage:
    return PassedMessage(correlation_id=name, kind=MessageKind.CANCEL, by="operator")


async def fill(ledger: SharedLedger, connection: asyncpg.Connection, rows: int) -> None:
    """Add ``rows`` open requests and as many closed ones; one in ten has a question, a webhook and a run."""
    for name in ("open", "closed"):
        await ledger.accept([_record(name)], run=make.run(name, run_id=f"r-{name}"))
        await ledger.ask(make.question(f"q-{name}", name))
        await ledger.keep_webhook(make.webhook(name))
    await ledger.append(
        [replace(RequestAccepted.of(_record("closed").request, agent="a", skill="echo"), seq=1, at=make.at(0))]
    )
    assert await ledger.close(make.outcome("closed"))
    for table, source in (
        ("runs", "run_id = 'r-closed'"),
        ("requests", "correlation_id = 'open'"),
        ("requests", "correlation_id = 'closed'"),
        ("outcomes", "correlation_id = 'closed'"),
        ("questions", "correlation_id = 'open'"),
        ("webhooks", "correlation_id = 'open'"),
        ("events", "seq = 1"),
    ):
        count = rows // 10 if table in {"runs", "questions", "webhooks"} else rows
        await _copy(connection, table, source, count)
    await connection.execute("UPDATE journal SET last = (SELECT max(seq) FROM events)")
    await connection.execute("ANALYZE")


async def _copy(connection: asyncpg.Connection, table: str, source: str, count: int) -> None:
    """Add copies of a row; ids and dates get the number of the copy."""
    columns = [
        row[0]
        for row in await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2"
            " AND is_identity = 'NO'",
            SCHEMA,
            table,
        )
    ]
    changed = {
        "correlation_id": "correlation_id || '-' || n",
        "accepted_id": "'closed-' || n",
        "question_id": "question_id || '-' || n",
        "run_id": "CASE WHEN run_id IS NOT NULL THEN run_id || '-' || (n / 10) END",
        "task_id": "'t-' || n",
        "context_id": "'k-' || n",
        "accepted_at": "accepted_at + n * 1000::bigint",
        "ended_at": "ended_at + n * 1000::bigint",
        "seq": "seq + n",
        "announced": "true",
    }
    if table == "runs":
        changed |= {
            "run_id": "run_id || '-' || n",
            "status": "'success'",
            "scheduled_at": "scheduled_at + n * 60000000::bigint",
        }
    values = ", ".join(changed.get(column, column) for column in columns)
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, generate_series(1, {count}) AS n"
        f" WHERE {source}"
    )


async def work(ledger: SharedLedger, turns: int) -> None:
    """Call each method of the ledger that a hub at work calls, while it takes over the requests of a hub that left."""
    for turn in range(turns):
        name = f"w-{turn}"
        record = _record(name)
        await ledger.accept([record], run=make.run("work", turn, run_id=f"r-{name}"))
        await ledger.update(record)
        await ledger.keep_webhook(make.webhook(name))
        await ledger.ask(make.question(f"q-{name}", name))
        await ledger.answer(make.answer(f"q-{name}"), make.at(1))
        await ledger.settle(f"q-{name}", QuestionState.DELIVERED)
        await ledger.pass_on(_message(name))
        await ledger.discard(await ledger.passed_on())
        await ledger.take_over()
        await ledger.members()
        await ledger.holder("a", "t-7")
        await ledger.journaled(after_seq=await ledger.last_seq() - 100, limit=100)
        outcome = make.outcome(name, ended=200 + turn)
        assert await ledger.close(outcome)
        seq = await ledger.last_seq()
        await ledger.append([replace(OutcomeDecided.of(outcome), seq=0, at=make.at(1))])
        await ledger.save_run(make.run("work", turn, run_id=f"r-{name}"))
        await ledger.save_card(make.card())
        await ledger.require_writable()
        await ledger.request(name)
        await ledger.outcome(name)
        await ledger.last_outcome("a", task_id="t-7")
        await ledger.last_outcome("a", context_id="k-7")
        await ledger.open_ids(after="open-7", limit=50)
        await ledger.ids("open-70", limit=20)
        await ledger.questions(limit=50)
        await ledger.runs("work", limit=10)
        await ledger.outcomes(since=make.at(100), limit=50)
        await ledger.events(after_seq=seq - 100, limit=100)
        message = PassedMessage(correlation_id="open-7", kind=MessageKind.CANCEL, by="ana")
        await ledger.pass_on(message)
        await ledger.discard(await ledger.passed_on())
        await ledger.take_over(limit=1)
        await ledger.members()
        await ledger.holder("a", "t-7")
        await ledger.unannounced(limit=100)
        await ledger.prune(make.at(7200))


def logged(text: str) -> dict[str, Statement]:
    """The statements of the server's log that read or write rows."""
    statements: dict[str, Statement] = {}
    for entry in _RECORD.split(text):
        if (found := _STATEMENT.match(entry)) and "SELECT pg_catalog" not in entry:
            sql = re.sub(r"\s+", " ", found[3].split("\n20", 1)[0]).strip()
            if sql.split(" ", 1)[0] in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}:
                statements.setdefault(sql, Statement(sql)).ms[found[2]].append(float(found[1]))
    return statements


async def explain(connection: asyncpg.Connection, statement: Statement) -> None:
    """Let the server plan the statement for values that it does not know."""
    count = max((int(number) for number in re.findall(r"\$(\d+)", statement.sql)), default=0)
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE explained AS {statement.sql}")
    values = f"({', '.join(['NULL'] * count)})" if count else ""
    plan = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE explained{values}"))
    await connection.execute("DEALLOCATE explained")
    nodes = list(_nodes(plan[0]["Plan"]))
    statement.scans = frozenset(node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan")
    statement.indexes = frozenset(node["Index Name"] for node in nodes if "Index Name" in node)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


async def statements(server: Server, rows: int, *, turns: int) -> list[Statement]:
    """The statements of a hub at work beside ``rows`` open requests."""
    place = Place.read(server.url(SCHEMA), password=True)
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": SCHEMA, "fleetsim.hub": "1"})
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.execute("ALTER DATABASE postgres SET log_parameter_max_length = 0")
        async with open_postgres(place) as ledger:
            await fill(ledger, connection, rows)
        before = (server.data / "log").stat().st_size
        await connection.execute("ALTER DATABASE postgres SET log_min_duration_statement = 0")
        async with open_postgres(
            place, limits=LedgerLimits(events_max=100)
        ) as ledger:  # it trims the journal each turn
            await work(ledger, turns)
        await connection.execute("ALTER DATABASE postgres RESET log_min_duration_statement")
        with (server.data / "log").open("rb") as log:
            log.seek(before)
            listed = logged(log.read().decode())
        for statement in listed.values():
            await explain(connection, statement)
    finally:
        await connection.close()
    return [*listed.values()]
