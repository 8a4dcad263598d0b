"""Deletes old rows of a ledger, in small steps."""

from __future__ import annotations

from datetime import datetime

from fleetsim.caller.ledger.bodies import micros
from fleetsim.caller.ledger.interface import LedgerLimits
from fleetsim.caller.ledger.sqlite.storage import Connection

PRUNE_EVERY = 128
"""Outcomes between two prunings: each then deletes a few times as many rows as were added."""

PRUNED_MAX = 512
"""Rows that one pruning deletes at most, so that a lowered limit does not stall the writer."""


def prune(connection: Connection, limits: LedgerLimits, now: datetime) -> int:
    """Delete closed requests and runs that ended long ago or are too many; the number of outcomes.

    Outcomes go in the order they came, so that the chain over the rest still holds.
    """
    before = micros(now) - int(limits.keep_s * 1_000_000)
    newest = connection.execute("SELECT coalesce(max(seq), 0) FROM outcomes").fetchone()[0]
    oldest = connection.execute(
        "SELECT seq, ended_at, correlation_id FROM outcomes ORDER BY seq LIMIT ?", (PRUNED_MAX,)
    ).fetchall()
    old: list[tuple[str]] = []
    for seq, ended_at, correlation_id in oldest:
        too_old, too_many = ended_at < before, seq <= newest - limits.outcomes_max
        if seq > newest - limits.outcomes_min or not (too_old or too_many):
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
