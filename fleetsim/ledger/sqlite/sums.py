"""Sums over the rows of a ledger's file, and the chain over its outcomes. A row's sum covers every column with a
meaning and is checked at each read, so that a flipped bit on the disk is an error and never an answer.
"""

from __future__ import annotations

import sqlite3
import zlib
from hashlib import sha256

SUMMED = {
    "runs": "run_id, ceremony_id, scheduled_at, status, started_at, body",
    "requests": "correlation_id, agent, phase, accepted_at, run_id, body",
    "contents": "correlation_id, body",
    "webhooks": "correlation_id, received_at, body",
    "outcomes": "correlation_id, agent, skill, kind, success, ended_at, body",
    "questions": "question_id, correlation_id, state, body, answer, answered_at",
    "cards": "agent, fetched_at, body",
    "notices": "subject, place, state, body",
    "limits": "name, period, ends, body",
    "events": "seq, at, topic, body",
}
"""The columns that the sum of a row covers, in order. Outcomes are also linked into a chain (``link``)."""


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


def insert(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[object, ...],
    conflict: str = "",
    *,
    open_request: str | None = None,
) -> bool:
    """Add a row with its sum; with ``open_request``, only while that request is open. Whether a row was written."""
    marks = ", ".join("?" * (len(columns) + 1))
    source, values = f"VALUES ({marks})", (*columns, row_sum(table, *columns))
    if open_request is not None:
        source = f"SELECT {marks} WHERE EXISTS (SELECT 1 FROM requests WHERE correlation_id = ? AND phase <> 'closed')"
        values = (*values, open_request)
    done = connection.execute(f"INSERT INTO {table} ({SUMMED[table]}, sum) {source} {conflict}", values)
    return done.rowcount == 1
