"""Making a new ledger of what can be read of a damaged one, which is kept. Rows are taken over only if their sums are
right, and half a request is made safe rather than complete: a salvage never leads to a second sending.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from fleetsim.ledger.bodies import decoder, encode, micros
from fleetsim.ledger.records import LedgerDamaged
from fleetsim.ledger.sqlite.copies import counted_as_sent
from fleetsim.ledger.sqlite.file import connect, head_path, lock, open_file, sync_folder
from fleetsim.ledger.sqlite.ledger import add_outcome, outcome_row
from fleetsim.ledger.sqlite.schema import migrate
from fleetsim.ledger.sqlite.sums import SUMMED, checked, insert
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import BLAME, Cause, Outcome, OutcomeKind, SkillRequest
from fleetsim.request.records import Phase, RequestRecord

Row: TypeAlias = dict[str, Any]

KEYS = {
    table: "seq" if table in {"webhooks", "notices", "limits"} else columns.partition(",")[0]
    for table, columns in SUMMED.items()
}
"""The key of each table, in the order in which the tables are filled."""

_LOST = "its outcome was lost when the ledger was damaged; it may have run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageReport:
    """The result of a salvage. ``kept`` and ``unreadable`` count rows by table; ``old`` is where the damaged file is.

    ``made_up`` outcomes stand in for lost ones (kind ``unknown``), and requests for those whose outcome alone
    was left. ``careful`` requests count as sent, since nobody can tell any more.
    """

    old: Path
    kept: Mapping[str, int]
    unreadable: Mapping[str, int]
    made_up: Mapping[str, int]
    careful: int


def salvage(path: Path, now: datetime) -> SalvageReport:
    """Replace the ledger at ``path`` by a new one of its readable rows; blocks. The old files are renamed.

    Raises:
        LedgerLocked: a process has it open.
        LedgerDamaged: no row can be read; the file was not changed.
        ConfigError: the file is missing, or the disk has no room for the new one.
    """
    if not path.exists():
        raise ConfigError(f"there is no ledger {path}")
    held = lock(path)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".salvage-") as name:
            folder = Path(name)
            # Copy the file and its log, so that SQLite can apply the log without a change to the originals.
            source = folder / "copy.db"
            shutil.copyfile(path, source)
            with suppress(FileNotFoundError):
                shutil.copyfile(path.with_name(path.name + "-wal"), source.with_name(source.name + "-wal"))
            found = _collect(source)
            if not any(found.rows.values()):
                raise LedgerDamaged(f"not one row of {path} can be read; it was left as it is")
            new = folder / "new" / path.name
            with closing(open_file(new, now, one_connection=True, busy_s=0)) as opened:
                made_up, careful = _rebuild(opened.writer, found.rows, now)
            old = _swap(path, new, now)
    except OSError as error:
        raise ConfigError(f"the ledger {path} cannot be salvaged: {error.strerror}") from error
    finally:
        held.release()
    return SalvageReport(
        old=old,
        kept={table: len(rows) for table, rows in found.rows.items()},
        unreadable=dict(found.unreadable),
        made_up=made_up,
        careful=careful,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    rows: dict[str, dict[Any, Row]]
    unreadable: Counter[str]


def _collect(source: Path) -> _Found:
    """Read the rows of each table and check their sums."""
    rows = _Found({table: {} for table in KEYS}, Counter())
    with closing(connect(str(source), 0)) as connection, suppress(sqlite3.Error):
        connection.execute("PRAGMA trusted_schema = ON")
        with suppress(sqlite3.Error):
            migrate(connection, at_micros=0)
        for table in KEYS:
            seen: set[int] = set()
            for direction in ("ASC", "DESC"):  # from both ends, each up to the first page that cannot be read
                with suppress(sqlite3.Error):
                    found = connection.execute(
                        f"SELECT rowid, {checked(table)}, * FROM {table} NOT INDEXED ORDER BY rowid {direction}"
                    )
                    names = [column[0] for column in found.description[2:]]
                    for number, good, *values in found:
                        if number in seen:
                            break
                        seen.add(number)
                        row = dict(zip(names, values, strict=True))
                        if good:
                            rows.rows[table][row[KEYS[table]]] = row
                        else:
                            rows.unreadable[table] += 1
    return rows


def _rebuild(
    connection: sqlite3.Connection, rows: dict[str, dict[Any, Row]], now: datetime
) -> tuple[dict[str, int], int]:
    """Fill the new ledger; (made up rows by table, requests that now count as sent)."""
    made_up = {"outcomes": 0, "requests": 0}
    careful = 0
    requests, outcomes = rows["requests"], rows["outcomes"]
    for name, row in outcomes.items():
        if name not in requests:
            requests[name] = _request_of(row)
            made_up["requests"] += 1
    for name, row in requests.items():
        if name in outcomes:
            row["phase"] = Phase.CLOSED.value  # an outcome is final, so an older row of its request is wrong
        elif row["phase"] == Phase.CLOSED.value:
            outcomes[name] = _outcome_of(row, now)  # its waiter must learn an end, if only "unknown"
            made_up["outcomes"] += 1
        elif row["phase"] == Phase.INTENT.value:
            row["phase"], row["body"] = counted_as_sent(row["body"])  # an older state may be all that was left
            careful += 1
        row["run_id"] = row["run_id"] if row["run_id"] in rows["runs"] else None
    for table in ("contents", "questions"):
        for name in [name for name, row in rows[table].items() if row["correlation_id"] not in requests]:
            del rows[table][name]
    waiting = {name for name, row in requests.items() if row["phase"] != Phase.CLOSED.value}
    for number in [n for n, row in rows["webhooks"].items() if row["correlation_id"] not in waiting]:
        del rows["webhooks"][number]
    connection.execute("BEGIN IMMEDIATE")
    for table in KEYS:
        columns = SUMMED[table].split(", ")
        for row in sorted(rows[table].values(), key=lambda row: row.get("seq") or 0):
            values = tuple(row[name] for name in columns)
            if table != "outcomes":
                insert(connection, table, values, "ON CONFLICT DO NOTHING")
                if table == "events":  # whose it is decides how long it is kept
                    connection.execute("UPDATE events SET agent = ? WHERE seq = ?", (row["agent"], row["seq"]))
                continue
            add_outcome(connection, values)
            connection.execute("UPDATE outcomes SET announced = ? WHERE seq = last_insert_rowid()", (row["announced"],))
    connection.execute("COMMIT")
    return made_up, careful


def _request_of(outcome: Row) -> Row:
    """A request for an outcome that lost its own."""
    result = decoder(Outcome)(outcome["body"])
    record = RequestRecord(
        request=SkillRequest(
            correlation_id=result.correlation_id,
            skill=result.skill,
            targets=(result.agent,),
            parent_id=result.parent_id,
            context_id=result.context_id,
            system_actor=result.system_actor,
        ),
        agent=result.agent,
        skill=result.skill,
        accepted_at=result.started_at,
        deadline_at=result.ended_at,
        message_id=result.correlation_id,
        phase=Phase.ACCEPTED,
    )
    return {
        "seq": outcome["seq"],
        "correlation_id": result.correlation_id,
        "agent": result.agent,
        "phase": Phase.CLOSED.value,
        "accepted_at": micros(result.started_at),
        "run_id": None,
        "body": encode(record),
    }


def _outcome_of(request: Row, now: datetime) -> Row:
    """An outcome for a closed request that lost its own."""
    record = decoder(RequestRecord)(request["body"])
    outcome = Outcome(
        correlation_id=record.request.correlation_id,
        agent=record.agent,
        skill=record.skill,
        system_actor=record.request.system_actor,
        kind=OutcomeKind.UNKNOWN,
        success=False,
        blame=BLAME[OutcomeKind.UNKNOWN, Cause.RECORD_LOST],
        cause=Cause.RECORD_LOST,
        started_at=record.accepted_at,
        ended_at=now,
        duration_ms=0,
        reason=_LOST,
        parent_id=record.request.parent_id,
    )
    columns = outcome_row(outcome)
    return {**dict(zip(SUMMED["outcomes"].split(", "), columns, strict=True)), "seq": 1 << 60, "announced": 0}


def _swap(path: Path, new: Path, now: datetime) -> Path:
    """Put the old files aside under the time, and the new one in their place."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    old = next(
        candidate
        for n in range(1_000)
        if not (candidate := path.with_name(f"{path.name}.damaged-{stamp}{f'-{n}' if n else ''}")).exists()
    )
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(old.with_name(old.name + suffix))
    head_path(new).replace(head_path(path))
    new.replace(path)
    sync_folder(path.parent)
    return old
