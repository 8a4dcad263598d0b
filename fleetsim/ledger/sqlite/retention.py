"""Retention: the ledger deletes old rows and payloads in small steps, and the file shrinks."""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter

from msgspec.structs import replace

from fleetsim.ledger.bodies import ACTIONS, decoder, encode, micros
from fleetsim.ledger.interface import LedgerLimits
from fleetsim.ledger.sqlite.storage import Connection
from fleetsim.ledger.sqlite.sums import checked
from fleetsim.model.parts import without_content
from fleetsim.model.work import Outcome
from fleetsim.request.records import RequestRecord

PRUNED_MAX = 512
"""Rows that one pruning deletes at most, so that a lowered limit does not stall the writer."""

FREED_PAGES_MAX = 2_000
"""Free pages that one pruning returns to the file system: 8 MB."""

WHOLE_S = 3_600.0
"""For how long after its end an outcome stays whole, however large the file is: somebody may still read it."""


def prune(connection: Connection, limits: LedgerLimits, now: datetime) -> int:
    """Delete closed requests and runs that ended long ago or are too many, or whose file is too large.

    Payloads go before rows. Outcomes go in the order they came, so that the chain over the rest still holds. Returns
    the number of outcomes that it changed or deleted; at most ``PRUNED_MAX`` of each.
    """
    before = micros(now) - int(limits.keep_s * 1_000_000)
    newest = connection.execute("SELECT coalesce(max(seq), 0) FROM outcomes").fetchone()[0]
    excess_bytes = 0
    if limits.bytes_max is not None:  # free pages do not count
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        excess_bytes = int((pages - free) * size) - limits.bytes_max
    last_hour = micros(now) - int(WHOLE_S * 1_000_000)
    slimmed = _slim(connection, newest, last_hour, excess_bytes) if excess_bytes > 0 else 0
    too_large = excess_bytes > 0 and not slimmed
    oldest = connection.execute(
        "SELECT seq, ended_at, correlation_id FROM outcomes ORDER BY seq LIMIT ?", (PRUNED_MAX,)
    ).fetchall()
    old: list[tuple[str]] = []
    for seq, ended_at, correlation_id in oldest:
        too_old, too_many = ended_at < before, seq <= newest - limits.outcomes_max
        if seq > newest - limits.outcomes_min or not (too_old or too_many or (too_large and ended_at < last_hour)):
            break
        old.append((correlation_id,))
    for table in ("questions", "outcomes", "contents", "requests"):
        connection.executemany(f"DELETE FROM {table} WHERE correlation_id = ?", old)
    # Runs whose slot is long past and of whose requests none is left.
    connection.execute(
        "DELETE FROM runs WHERE seq IN (SELECT seq FROM runs ORDER BY seq LIMIT ?)"
        " AND started_at < ? AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.run_id = runs.run_id)",
        (PRUNED_MAX, before),
    )
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(free, FREED_PAGES_MAX)):
        connection.execute("PRAGMA incremental_vacuum(1)")  # Python's sqlite3 makes one step whatever the number
    return len(old) + slimmed


def _slim(connection: Connection, newest: int, ended_before: int, excess_bytes: int) -> int:
    """Delete the oldest payloads of outcomes and their requests, until the excess is freed; returns their number."""
    first, end = 0, newest + 1  # slim outcomes are the oldest ones, so their end is searched by halves
    while first < end:
        middle = (first + end) // 2
        row = connection.execute(
            "SELECT seq, slim FROM outcomes WHERE seq >= ? ORDER BY seq LIMIT 1", (middle,)
        ).fetchone()
        first, end = (row[0] + 1, end) if row and row[1] else (first, middle)
    count = 0
    rows = connection.execute(
        "SELECT seq, correlation_id, ended_at FROM outcomes WHERE seq >= ? ORDER BY seq LIMIT ?", (first, PRUNED_MAX)
    ).fetchall()
    for seq, correlation_id, ended_at in rows:
        if ended_at >= ended_before or excess_bytes <= 0:
            break
        count += 1
        connection.execute("UPDATE outcomes SET slim = 1 WHERE seq = ?", (seq,))
        outcome, outcome_right, request, request_right = connection.execute(
            f"SELECT outcomes.body, {checked('outcomes')}, requests.body, {checked('requests')}"
            " FROM outcomes JOIN requests USING (correlation_id) WHERE outcomes.seq = ?",
            (seq,),
        ).fetchone()
        if not (outcome_right and request_right):
            continue  # a damaged row stays as it is
        whole = decoder(Outcome)(outcome)
        without_payload = replace(
            whole,
            text="",
            text_chars=whole.text_chars or len(whole.text),
            truncated=whole.truncated or whole.text != "",
            parts=tuple(without_content(part, truncated=True) for part in whole.parts),
        )
        facts = encode(without_payload)
        connection.execute(
            "UPDATE outcomes SET body = ?,"
            " sum = row_sum('outcomes', correlation_id, agent, skill, kind, success, ended_at, ?) WHERE seq = ?",
            (facts, facts, seq),
        )
        record = decoder(RequestRecord)(request)
        task = None if record.task is None else replace(record.task, artifacts=(), history=())
        asked = encode(replace(record, request=replace(record.request, text="", parts=()), task=task))
        connection.execute(
            "UPDATE requests SET body = ?,"
            " sum = row_sum('requests', correlation_id, agent, phase, accepted_at, run_id, ?) WHERE correlation_id = ?",
            (asked, asked, correlation_id),
        )
        apart = connection.execute("SELECT length(body) FROM contents WHERE correlation_id = ?", (correlation_id,))
        excess_bytes -= len(outcome) + len(request) - len(facts) - len(asked) + sum(size for (size,) in apart)
        connection.execute("DELETE FROM contents WHERE correlation_id = ?", (correlation_id,))
    return count


def trim_events(connection: Connection, events_max: int, *, most: int) -> None:
    """Delete old events if there are more than ``events_max``, at most ``most``, and so old actions of people.

    An agent with more than half of the events loses its own, so that it cannot push out the history of the others.
    """
    counts = dict(connection.execute("SELECT agent, count(*) FROM events GROUP BY agent"))
    actions = counts.pop(ACTIONS, 0)
    agent, count = max(((one, count) for one, count in counts.items() if one), key=itemgetter(1), default=("", 0))
    own = ("agent = ?", agent) if 2 * count > events_max else ("agent <> ?", ACTIONS)
    for whose, name, kept in ((*own, sum(counts.values())), ("agent = ?", ACTIONS, actions)):
        if kept > events_max:
            oldest = f"SELECT seq FROM events WHERE {whose} ORDER BY seq LIMIT ?"
            connection.execute(f"DELETE FROM events WHERE seq IN ({oldest})", (name, min(kept - events_max, most)))
