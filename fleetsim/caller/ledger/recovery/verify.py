"""Whether an open ledger is whole: its structure, the sums of its rows, the chain of its outcomes."""

from __future__ import annotations

import sqlite3

from fleetsim.caller.ledger.schema import version_of
from fleetsim.caller.ledger.tables import SUMMED, checked, link

FULL_CHECK_BYTES = 64 * 1024 * 1024
"""Up to this size the structure and every index are checked at opening (about 0.2 s)."""

QUICK_CHECK_BYTES = 512 * 1024 * 1024
"""Up to this size the structure alone is; a larger file is checked where it is read."""

NEWEST_MAX = 10_000
"""Closed rows of each table whose sums, and outcomes whose links, are checked at opening."""


def structure_damage(connection: sqlite3.Connection, size_bytes: int | None) -> str | None:
    """What SQLite finds wrong, or None. ``size_bytes`` None asks for the full check whatever the size."""
    if size_bytes is None or size_bytes <= FULL_CHECK_BYTES:
        check = "integrity_check(1)"
    elif size_bytes <= QUICK_CHECK_BYTES:
        check = "quick_check(1)"
    else:
        return None
    found = str(connection.execute(f"PRAGMA {check}").fetchone()[0])
    return None if found == "ok" else found


def version_damage(connection: sqlite3.Connection) -> str | None:
    """Whether the header and the version table agree."""
    newest = connection.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    return None if newest == version_of(connection) else "its schema version is not the one it was migrated to"


def row_damage(connection: sqlite3.Connection, newest: int | None = NEWEST_MAX) -> str | None:
    """The first wrong sum or broken link, or None: all open work, and the ``newest`` rows (None: all)."""
    limit = -1 if newest is None else newest
    for table in SUMMED:
        wrong = connection.execute(
            f"SELECT seq FROM (SELECT rowid AS seq, {checked(table)} AS good FROM {table} ORDER BY rowid DESC LIMIT ?)"
            " WHERE NOT good LIMIT 1",
            (limit,),
        ).fetchone()
        if wrong:
            return f"row {wrong[0]} of {table} is not what was written"
    waiting = connection.execute(
        f"SELECT seq FROM requests WHERE phase <> 'closed' AND NOT {checked('requests')} LIMIT 1"
    ).fetchone()
    return f"row {waiting[0]} of requests is not what was written" if waiting else _chain_damage(connection, limit)


def _chain_damage(connection: sqlite3.Connection, limit: int) -> str | None:
    """Walk the links from the oldest row looked at, whose own link is taken as given."""
    rows = connection.execute(
        f"SELECT * FROM (SELECT seq, chain, {SUMMED['outcomes']} FROM outcomes ORDER BY seq DESC LIMIT ?) ORDER BY seq",
        (limit,),
    )
    before: bytes | None = None
    for seq, chain, *columns in rows:
        if before is not None and chain != link(before, *columns):
            return f"row {seq} of outcomes does not follow the one before it"
        before = chain
    return None
