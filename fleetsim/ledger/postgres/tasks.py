"""The A2A tasks of hubs that share a ledger, and calls about a task that another hub than its owner received. The owner
is the hub that began it, until another one adopts it. The bodies are the hub's (``hub.shared_tasks``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fleetsim.ledger.interface import SharedTaskRows
from fleetsim.ledger.postgres.storage import Connection, Storage
from fleetsim.ledger.postgres.verbs import columns, notify, storable
from fleetsim.ledger.records import CallRow, TaskRow
from fleetsim.model.errors import TaskNotFound


class PostgresTaskRows(SharedTaskRows):
    """``write`` and ``read`` are those of the ledger."""

    def __init__(
        self, storage: Storage, write: Callable[..., Awaitable[Any]], read: Callable[..., Awaitable[list[Any]]]
    ) -> None:
        self._storage, self._write, self._read = storage, write, read

    async def save(self, rows: Sequence[tuple[Any, ...]], gone: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        return set(await self._write(_save, (rows, gone), *(f"task {row[0]} {row[1]}" for row in (*rows, *gone))))

    async def adopt(self) -> list[TaskRow]:
        return list(await self._write(_adopt, None))

    async def task(self, owner: str, task_id: str) -> TaskRow | None:
        rows = await self._read(f"{_ROW} WHERE owner = $1 AND task_id = $2", owner, task_id)
        return TaskRow(*rows[0]) if rows else None

    async def places(self, *only: Any) -> list[tuple[int, tuple[str, str]]]:
        rows = await self._read(
            "SELECT changed, owner, task_id FROM a2a_tasks WHERE owner = $1 AND changed >= $2"
            " AND ($3::text IS NULL OR context_id = $3) AND ($4::text IS NULL OR state = $4) ORDER BY changed DESC",
            *only,
        )
        return [(changed, (owner, task_id)) for changed, owner, task_id in rows]

    async def pass_on(self, owner: str, task_id: str, body: str) -> int:
        seq: int | None = await self._write(_pass_on, (owner, storable(task_id), body))
        if seq is None:
            raise TaskNotFound
        return seq

    async def reply(self, seq: int, reply: str) -> None:
        await self._write(_reply, (seq, reply), "calls")

    async def discard(self, seq: int) -> None:
        await self._write(_discard, seq, "calls")

    async def calls(self) -> list[CallRow]:
        rows = await self._read(
            "SELECT seq, calls.owner, calls.task_id, calls.body, reply FROM a2a_calls AS calls"
            " JOIN a2a_tasks AS tasks USING (owner, task_id)"
            " WHERE CASE WHEN reply IS NULL THEN tasks.hub ELSE calls.hub END = $1 ORDER BY seq LIMIT 200",
            self._storage.hub,
        )
        return [CallRow(*row) for row in rows]


_ROW = "SELECT owner, task_id, context_id, state, changed, body FROM a2a_tasks"


async def _save(connection: Connection, calls: Sequence[Any]) -> Sequence[set[tuple[str, str]]]:
    if gone := [key for call in calls for key in call[1]]:
        await connection.execute(
            "DELETE FROM a2a_tasks USING unnest($1::text[], $2::text[]) AS gone (owner, task_id)"
            " WHERE a2a_tasks.owner = gone.owner AND a2a_tasks.task_id = gone.task_id AND hub = this_hub()",
            *columns([tuple(map(storable, key)) for key in gone]),
        )
    rows = [tuple(map(storable, row)) for call in calls for row in call[0]]
    if not rows:
        return [set()] * len(calls)
    saved = await connection.fetch(
        "INSERT INTO a2a_tasks (owner, task_id, context_id, state, changed, body)"
        " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[])"
        " ON CONFLICT (owner, task_id) DO UPDATE SET context_id = excluded.context_id, state = excluded.state,"
        " changed = excluded.changed, body = excluded.body WHERE a2a_tasks.hub = this_hub() RETURNING owner, task_id",
        *columns(rows),
    )
    ours = {tuple(row) for row in saved}
    return [{row[:2] for row in call[0] if (row[0], storable(row[1])) not in ours} for call in calls]


async def _adopt(connection: Connection, calls: Sequence[None]) -> Sequence[list[TaskRow]]:
    rows = await connection.fetch(
        "UPDATE a2a_tasks SET hub = this_hub() FROM (SELECT orphan.* FROM hubs CROSS JOIN LATERAL"
        " (SELECT owner, task_id FROM a2a_tasks WHERE a2a_tasks.hub BETWEEN hubs.hub AND hubs.hub"
        " ORDER BY a2a_tasks.hub LIMIT 200 FOR UPDATE SKIP LOCKED) AS orphan"
        " WHERE hubs.ended_at IS NOT NULL LIMIT 200) AS taken WHERE a2a_tasks.owner = taken.owner"
        " AND a2a_tasks.task_id = taken.task_id"
        " RETURNING a2a_tasks.owner, a2a_tasks.task_id, context_id, state, changed, body"
    )
    return [*[[]] * (len(calls) - 1), [TaskRow(*row) for row in rows]]


async def _pass_on(connection: Connection, calls: Sequence[tuple[str, str, str]]) -> Sequence[int | None]:
    insert = "INSERT INTO a2a_calls (owner, task_id, body) SELECT owner, task_id, $3 FROM a2a_tasks"
    seqs = [await connection.fetchval(f"{insert} WHERE owner = $1 AND task_id = $2 RETURNING seq", *c) for c in calls]
    await notify(connection, "messages")
    return seqs


async def _reply(connection: Connection, calls: Sequence[tuple[int, str]]) -> Sequence[None]:
    await connection.executemany("UPDATE a2a_calls SET reply = $2 WHERE seq = $1", calls)
    await notify(connection, "messages")
    return [None] * len(calls)


async def _discard(connection: Connection, calls: Sequence[int]) -> Sequence[None]:
    await connection.execute("DELETE FROM a2a_calls WHERE seq = ANY ($1::bigint[])", list(calls))
    return [None] * len(calls)
