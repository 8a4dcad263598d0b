"""The writes of a ledger in PostgreSQL: each verb takes many calls, as one statement over arrays. It may run again if
its group could not be committed, so it keeps no state. Rows are made here before a call waits for its group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import asyncpg

from fleetsim.events.request import Event, RequestAccepted
from fleetsim.events.wire import to_wire
from fleetsim.ledger.bodies import ACTIONS, decoder, encode, micros, request_body, request_content, share_of
from fleetsim.ledger.interface import NOTICES_MAX, USES_KEPT_MICROS, LedgerLimits
from fleetsim.ledger.postgres.storage import Connection
from fleetsim.ledger.records import RunRecord
from fleetsim.model.errors import OverLimit
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.request.limits import Booking, LimitUse, PeriodKey
from fleetsim.request.limits import book as book_all
from fleetsim.request.records import QuestionState, RequestRecord

_MINE = "requests.phase <> 'closed' AND requests.hub IS NOT DISTINCT FROM this_hub()"
"""An open request of this hub. The comparison uses no index: the planner knows no rows of a hub that has just joined,
and would read all its open requests by the index (hub, seq) instead of one by its id."""

_NO_ACTION = f"agent <> '{ACTIONS}'"
"""The other events of the journal; written out, so that the planner knows how many they are."""

PRUNED_MAX = 512
"""Rows that one pruning deletes at most."""


class AcceptCall(NamedTuple):
    requests: list[tuple[Any, ...]]
    run: tuple[Any, ...] | None
    bookings: list[Booking]


class CloseCall(NamedTuple):
    outcome: tuple[Any, ...]
    bookings: Sequence[Booking]


class AppendCall(NamedTuple):
    events: list[tuple[Any, ...]]
    announced: list[str | None]
    sent: int
    """The highest number that this hub read: a database that went back must not give it again."""


class TrimCall(NamedTuple):
    events_max: int
    most: int
    gaps: int | None
    """Result of an earlier call; None lets this one count."""


async def touch(_: Connection, calls: Sequence[Any]) -> Sequence[Any]:
    """Change nothing: the group itself writes, and renews the lease."""
    return calls


async def probe(connection: Connection, calls: Sequence[Any]) -> Sequence[Any]:
    """Add a request of 16 KiB, and undo it: on a full disk the group's own small write may still have room."""
    trial = connection.transaction()
    await trial.start()
    try:
        await connection.execute(
            "INSERT INTO requests (correlation_id, agent, phase, accepted_at, streaming, push, body)"
            " SELECT 'probe of hub ' || this_hub(), '', 'closed', 0, false, false, string_agg(md5(random()::text), '')"
            " FROM generate_series(1, 512)"
        )
    finally:
        await trial.rollback()
    return calls


async def accept(connection: Connection, calls: Sequence[AcceptCall]) -> Sequence[bool | OverLimit]:
    claims = [call.run for call in calls if call.run is not None]
    uses = await _uses(connection, [call.bookings for call in calls])
    try:
        claimed = set()
        if claims:
            rows = await connection.fetch(
                f"INSERT INTO runs ({_RUN}) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[],"
                " $5::bigint[], $6::text[]) ON CONFLICT (ceremony_id, scheduled_at) DO NOTHING RETURNING run_id",
                *columns(claims),
            )
            claimed = {row[0] for row in rows}
        accepted: list[bool | OverLimit] = [call.run is None or call.run[0] in claimed for call in calls]
        booked = [call.bookings if taken else [] for call, taken in zip(calls, accepted, strict=True)]
        refusals = await _book(connection, uses, booked)
        accepted = [refused or taken for refused, taken in zip(refusals, accepted, strict=True)]
        unclaimed = [call.run[0] for call, refused in zip(calls, refusals, strict=True) if refused and call.run]
        if unclaimed:
            await connection.execute("DELETE FROM runs WHERE run_id = ANY ($1::text[])", unclaimed)
        records = [row for call, taken in zip(calls, accepted, strict=True) if taken is True for row in call.requests]
        if records:
            await connection.execute(
                f"INSERT INTO requests ({_REQUEST}) SELECT {_REQUEST} FROM {_REQUESTS} ORDER BY place",
                *columns(records),
            )
    except asyncpg.UniqueViolationError as error:
        raise ValueError(f"an id is already in use ({error})") from None
    return accepted


async def update(connection: Connection, calls: Sequence[list[tuple[Any, ...]]]) -> Sequence[None]:
    await connection.execute(
        "UPDATE requests SET agent = new.agent, phase = new.phase, task_id = new.task_id, dialect = new.dialect,"
        f" streaming = new.streaming, push = new.push, body = new.body FROM {_REQUESTS}"
        f" WHERE requests.correlation_id = new.correlation_id AND {_MINE}",
        *columns([row for rows in calls for row in rows]),
    )
    return [None] * len(calls)


async def close(connection: Connection, calls: Sequence[CloseCall]) -> Sequence[bool]:
    uses = await _uses(connection, [call.bookings for call in calls])
    rows = await connection.fetch(
        f"""WITH new AS (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[],
            $7::text[]) WITH ORDINALITY AS new ({_OUTCOME}, place)),
        closed AS (UPDATE requests SET phase = 'closed' FROM new
            WHERE requests.correlation_id = new.correlation_id AND {_MINE}
            RETURNING requests.correlation_id),
        added AS (INSERT INTO outcomes ({_OUTCOME})
            SELECT {_OUTCOME} FROM new JOIN closed USING (correlation_id) ORDER BY place),
        ended AS (UPDATE questions SET state = CASE new.kind WHEN '{OutcomeKind.EXPIRED.value}'
                THEN '{QuestionState.EXPIRED.value}' ELSE '{QuestionState.WITHDRAWN.value}' END
            FROM new JOIN closed USING (correlation_id)
            WHERE questions.correlation_id = new.correlation_id AND state = 'open'),
        dropped AS (DELETE FROM webhooks USING closed WHERE webhooks.correlation_id = closed.correlation_id)
        SELECT correlation_id FROM closed""",
        *columns([call.outcome for call in calls]),
    )
    closed = {row[0] for row in rows}
    decided = [call.outcome[0] in closed for call in calls]
    await _book(connection, uses, [call.bookings if ended else () for call, ended in zip(calls, decided, strict=True)])
    return decided


async def book(connection: Connection, calls: Sequence[Sequence[Booking]]) -> Sequence[OverLimit | None]:
    return await _book(connection, await _uses(connection, calls), calls)


async def _uses(connection: Connection, bookings: Sequence[Sequence[Booking]]) -> dict[PeriodKey, LimitUse]:
    """The uses of the places that are booked. From now to the commit no other hub changes any."""
    places = {booking.key for some in bookings for booking in some}
    if not places:
        return {}
    # In a statement of its own: a statement sees what was committed when it began.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 1))")
    rows = await connection.fetch(
        "SELECT name, period, body FROM limits JOIN unnest($1::text[], $2::text[]) AS booked (name, period)"
        " USING (name, period)",
        *columns(sorted(places)),
    )
    return {(name, period): decoder(LimitUse)(body) for name, period, body in rows}


async def _book(
    connection: Connection, uses: dict[PeriodKey, LimitUse], calls: Sequence[Sequence[Booking]]
) -> list[OverLimit | None]:
    """Make the bookings of each call, all or none of them. Returns the refusals."""
    refusals: list[OverLimit | None] = []
    rows: dict[PeriodKey, tuple[Any, ...]] = {}
    for bookings in calls:
        changed = book_all(uses, bookings)
        refusals.append(changed if isinstance(changed, OverLimit) else None)
        if not isinstance(changed, OverLimit):
            uses |= changed
            rows |= {b.key: (*b.key, micros(b.ends), encode(uses[b.key])) for b in bookings}
    if rows:
        await connection.execute(
            "INSERT INTO limits (name, period, ends, body) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[],"
            " $4::text[]) ON CONFLICT (name, period) DO UPDATE SET ends = excluded.ends, body = excluded.body",
            *columns(rows.values()),
        )
        before = max(row[2] for row in rows.values()) - USES_KEPT_MICROS
        await connection.execute("DELETE FROM limits WHERE ends < $1", before)
    return refusals


async def keep_webhook(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[bool]:
    rows = await connection.fetch(
        "WITH open AS (SELECT new.* FROM unnest($1::text[], $2::text[])"
        " WITH ORDINALITY AS new (correlation_id, body, place)"
        f" JOIN requests USING (correlation_id) WHERE {_MINE} FOR SHARE OF requests),"
        " added AS (INSERT INTO webhooks (correlation_id, body) SELECT correlation_id, body FROM open ORDER BY place)"
        " SELECT place FROM open",
        *columns(calls),
    )
    kept = {row[0] for row in rows}
    return [place in kept for place in range(1, len(calls) + 1)]


async def ask(connection: Connection, calls: Sequence[tuple[str, str, str]]) -> Sequence[bool]:
    rows = await connection.fetch(
        "WITH open AS (SELECT new.* FROM unnest($1::text[], $2::text[], $3::text[])"
        " WITH ORDINALITY AS new (question_id, correlation_id, body, place)"
        f" JOIN requests USING (correlation_id) WHERE {_MINE} FOR SHARE OF requests)"
        " INSERT INTO questions (question_id, correlation_id, state, body)"
        f" SELECT question_id, correlation_id, '{QuestionState.OPEN.value}', body FROM open ORDER BY place"
        " ON CONFLICT (question_id) DO NOTHING RETURNING question_id",
        *columns(calls),
    )
    asked = {row[0] for row in rows}
    return [call[0] in asked for call in calls]


async def answer(connection: Connection, calls: Sequence[tuple[str, str, int]]) -> Sequence[str | None]:
    """Claim questions; the owners of their requests get the answers as messages."""
    claimed = []
    for call in calls:
        body = await connection.fetchval(
            "WITH taken AS (UPDATE questions SET state = 'answered', answer = $2, answered_at = $3"
            " WHERE question_id = $1 AND state = 'open' RETURNING correlation_id, body),"
            " passed AS (INSERT INTO signals (correlation_id, kind, body) SELECT correlation_id, $4, $5"
            " FROM taken JOIN requests USING (correlation_id) WHERE hub <> this_hub() RETURNING seq)"
            " SELECT body, (SELECT pg_notify(current_schema(), 'messages') FROM passed) FROM taken",
            *call,
        )
        claimed.append(body)
    return claimed


async def pass_on(connection: Connection, calls: Sequence[tuple[str, str, str]]) -> Sequence[bool]:
    rows = await connection.fetch(
        "INSERT INTO signals (correlation_id, kind, body) SELECT new.correlation_id, kind, new.body"
        " FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS new (correlation_id, kind, body, place)"
        " JOIN requests USING (correlation_id) WHERE phase <> 'closed' ORDER BY place RETURNING correlation_id",
        *columns(calls),
    )
    await notify(connection, "messages")
    passed = {row[0] for row in rows}
    return [call[0] in passed for call in calls]


async def discard(connection: Connection, calls: Sequence[list[int]]) -> Sequence[None]:
    await connection.execute(
        "DELETE FROM signals WHERE seq = ANY ($1::bigint[])", [seq for seqs in calls for seq in seqs]
    )
    return [None] * len(calls)


async def settle(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[None]:
    await connection.executemany(
        "UPDATE questions SET state = $2 FROM requests WHERE question_id = $1 AND state IN ('open', 'answered')"
        " AND requests.correlation_id = questions.correlation_id AND hub IS NOT DISTINCT FROM this_hub()",
        calls,
    )
    return [None] * len(calls)


async def take_over(connection: Connection, calls: Sequence[int]) -> Sequence[tuple[list[str], list[str], list[str]]]:
    """End the hubs whose lease has lapsed, then own requests and runs of ended hubs. Returns the ids of open requests,
    the ids of outcomes that were not announced, and runs.
    """
    await connection.execute(
        "UPDATE hubs SET ended_at = clock_timestamp() WHERE hub IN (SELECT hub FROM hubs WHERE ended_at IS NULL"
        " AND expires_at < clock_timestamp() AND hub <> this_hub() FOR UPDATE SKIP LOCKED)"
    )
    limit, ended = max(calls), "hub IN (SELECT hub FROM hubs WHERE ended_at IS NOT NULL)"
    opened = await connection.fetch(
        # SKIP LOCKED and a limit let all hubs that are left share the requests.
        # By a range, and in the order of the index (hub, seq): by equality the planner would read all open requests.
        "UPDATE requests SET hub = this_hub() WHERE seq = ANY (ARRAY(SELECT orphan.seq FROM hubs CROSS JOIN LATERAL"
        " (SELECT seq FROM requests WHERE phase <> 'closed' AND requests.hub BETWEEN hubs.hub AND hubs.hub"
        " ORDER BY requests.hub, seq LIMIT $1 FOR UPDATE SKIP LOCKED) AS orphan"
        " WHERE hubs.ended_at IS NOT NULL LIMIT $1)) RETURNING correlation_id, seq",
        limit,
    )
    closed = await connection.fetch(
        "UPDATE requests SET hub = this_hub() WHERE seq IN (SELECT requests.seq FROM outcomes JOIN requests"
        f" USING (correlation_id) WHERE NOT announced AND {ended} ORDER BY outcomes.seq LIMIT $1"
        " FOR UPDATE OF requests SKIP LOCKED) RETURNING correlation_id, seq",
        limit,
    )
    runs = await connection.fetch(
        "UPDATE runs SET hub = this_hub() WHERE seq IN (SELECT seq FROM runs WHERE status = 'running'"
        f" AND {ended} ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING body, seq",
        limit,
    )
    if opened:
        await connection.execute(
            "UPDATE hubs SET took = took + $1, took_at = clock_timestamp() WHERE hub = this_hub()", len(opened)
        )
    opened, closed, runs = ([row[0] for row in sorted(rows, key=itemgetter(1))] for rows in (opened, closed, runs))
    return [*[([], [], [])] * (len(calls) - 1), (opened, closed, runs)]


async def notify(connection: Connection, what: str) -> None:
    """Let the other hubs look at once."""
    await connection.execute("SELECT pg_notify(current_schema(), $1)", what)


async def save_run(connection: Connection, calls: Sequence[tuple[Any, ...]]) -> Sequence[None]:
    try:
        await connection.executemany(
            f"INSERT INTO runs ({_RUN}) VALUES ($1, $2, $3, $4, $5, $6)"
            " ON CONFLICT (ceremony_id, scheduled_at) DO UPDATE SET status = excluded.status,"
            " started_at = excluded.started_at, body = excluded.body WHERE runs.run_id = excluded.run_id"
            " AND (runs.hub = this_hub() OR runs.status <> 'running')",
            calls,
        )
    except asyncpg.UniqueViolationError:
        raise ValueError("the id of the run belongs to another slot") from None
    return [None] * len(calls)


async def save_card(connection: Connection, calls: Sequence[tuple[str, str]]) -> Sequence[None]:
    await connection.executemany(
        "INSERT INTO cards (agent, body) VALUES ($1, $2) ON CONFLICT (agent) DO UPDATE SET body = excluded.body", calls
    )
    return [None] * len(calls)


async def save_notice(connection: Connection, calls: Sequence[tuple[str, str, str, str]]) -> Sequence[None]:
    await connection.executemany(
        "INSERT INTO notices (subject, place, state, body) VALUES ($1, $2, $3, $4) ON CONFLICT (subject, place)"
        " DO UPDATE SET state = excluded.state, body = excluded.body, hub = this_hub()",
        calls,
    )
    await connection.execute(
        "DELETE FROM notices WHERE seq <= (SELECT max(seq) FROM notices) - $1 AND state <> 'raised'", NOTICES_MAX
    )
    return [None] * len(calls)


async def take_notices(connection: Connection, calls: Sequence[None]) -> Sequence[list[tuple[str, int]]]:
    rows = await connection.fetch(
        "UPDATE notices SET hub = this_hub() WHERE seq IN (SELECT seq FROM notices WHERE state = 'raised'"
        " AND hub IN (SELECT hub FROM hubs WHERE ended_at IS NOT NULL) ORDER BY seq FOR UPDATE SKIP LOCKED)"
        " RETURNING body, seq"
    )
    return [*[[]] * (len(calls) - 1), sorted(rows, key=itemgetter(1))]


async def append(connection: Connection, calls: Sequence[AppendCall]) -> Sequence[None]:
    """Insert events. Those without a number get the next ones: the order of their commits is the order of all hubs."""
    rows = [row for call in calls for row in call.events]
    # Last in its group, so that hubs wait for each other only from here to the commit.
    last = await connection.fetchval(
        "UPDATE journal SET last = greatest(last, $2) + $1 RETURNING last",
        sum(row[0] == 0 for row in rows),
        max(*(row[0] for row in rows), *(call.sent for call in calls)),
    )
    numbers = itertools.count(last - sum(row[0] == 0 for row in rows) + 1)
    try:
        await connection.execute(
            "INSERT INTO events (seq, at, agent, accepted_id, body)"
            " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[])",
            *columns([(row[0] or next(numbers), *row[1:]) for row in rows]),
        )
    except asyncpg.UniqueViolationError:
        raise ValueError("an event number was used twice") from None
    announced = [name for call in calls for name in call.announced]
    if announced:
        await connection.execute(
            "UPDATE outcomes SET announced = true WHERE correlation_id = ANY ($1::text[])", announced
        )
    await notify(connection, "events")
    return [None] * len(calls)


append.last = True  # type: ignore[attr-defined]


async def trim(connection: Connection, calls: Sequence[TrimCall]) -> Sequence[int | None]:
    """Delete old events beyond a number, at most some; an agent with more than half of them loses its own. So with old
    actions of people, which are counted apart: each of them is a gap among the other events.

    Returns how many numbers among the events have no row, for the next calls; None after an agent lost its own.
    """
    events_max, most, gaps = calls[-1]
    oldest, last = await connection.fetchrow("SELECT min(seq), max(seq) FROM events")
    first = await connection.fetchval(f"SELECT min(seq) FROM events WHERE {_NO_ACTION}")
    span = 0 if first is None else last - first + 1
    agent, count, actions = "", 0, 0
    if (
        gaps is None and oldest is not None and last - oldest >= events_max
    ):  # to count 100,000 rows takes more than 50 ms
        counts = dict(await connection.fetch("SELECT agent, count(*) FROM events GROUP BY agent"))
        actions = counts.pop(ACTIONS, 0)
        agent, count = max(((one, count) for one, count in counts.items() if one), key=itemgetter(1), default=("", 0))
        gaps = span - sum(counts.values())
    chatters = 2 * count > events_max
    beyond = span - (gaps or 0) - events_max, actions - events_max
    whose = ("agent = $2", agent) if chatters else (_NO_ACTION,)
    for excess, (which, *name) in zip(beyond, (whose, ("agent = $2", ACTIONS)), strict=True):
        if excess > 0:
            rows = f"SELECT seq FROM events WHERE {which} ORDER BY seq LIMIT $1"
            await connection.execute(f"DELETE FROM events WHERE seq = ANY (ARRAY({rows}))", min(excess, most), *name)
    return [None if chatters else gaps] * len(calls)


async def prune(connection: Connection, calls: Sequence[tuple[LedgerLimits, datetime]]) -> Sequence[int]:
    """Delete closed requests and runs that ended long ago or are too many; at most ``PRUNED_MAX`` of each."""
    limits, now = calls[-1]
    await probe(connection, calls)
    before = micros(now) - int(limits.keep_s * 1_000_000)
    deleted = await connection.fetch(
        "WITH newest AS (SELECT coalesce(max(seq), 0) AS seq FROM outcomes),"
        " oldest AS (SELECT outcomes.seq, ended_at, correlation_id FROM outcomes ORDER BY seq LIMIT $1),"
        " young AS (SELECT min(oldest.seq) AS seq FROM oldest, newest WHERE oldest.seq > newest.seq - $2"
        " OR NOT (ended_at < $4 OR oldest.seq <= newest.seq - $3))"
        " DELETE FROM requests USING oldest, young WHERE requests.correlation_id = oldest.correlation_id"
        " AND (young.seq IS NULL OR oldest.seq < young.seq) RETURNING requests.seq",
        PRUNED_MAX,
        limits.outcomes_min,
        limits.outcomes_max,
        before,
    )
    await connection.execute(
        "DELETE FROM runs WHERE seq = ANY (ARRAY(SELECT seq FROM runs ORDER BY seq LIMIT $1)) AND started_at < $2"
        " AND NOT EXISTS (SELECT FROM requests WHERE requests.run_id = runs.run_id)",
        PRUNED_MAX,
        before,
    )
    return [*[0] * (len(calls) - 1), len(deleted)]


# -- rows -----------------------------------------------------------------------------------------------------

_RUN = "run_id, ceremony_id, scheduled_at, status, started_at, body"
_REQUEST = "correlation_id, agent, phase, accepted_at, run_id, task_id, dialect, streaming, push, body, content"
_OUTCOME = "correlation_id, agent, kind, ended_at, task_id, context_id, body"
_REQUESTS = (
    "unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[],"
    f" $9::boolean[], $10::text[], $11::text[]) WITH ORDINALITY AS new ({_REQUEST}, place)"
)


def columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Rows as arrays, one for each column."""
    return [list(column) for column in zip(*rows, strict=True)]


def storable(value: Any) -> Any:
    """A value as a column holds it: in PostgreSQL's texts there are neither U+0000 nor half characters."""
    if not isinstance(value, str):
        return value
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def request_row(record: RequestRecord, run: RunRecord | None = None, *, content: bool = False) -> tuple[Any, ...]:
    """The columns of a request; its content, which is written once, only with ``content``."""
    return (
        record.request.correlation_id,
        record.agent,
        record.phase.value,
        micros(record.accepted_at),
        run and run.claim.run_id,
        record.task and storable(record.task.task_id),
        record.dialect,
        record.streaming,
        record.push,
        request_body(record),
        request_content(record) if content else None,
    )


def run_key(run: RunRecord) -> str:
    return f"run {run.claim.ceremony_id} {micros(run.claim.scheduled_at)}"


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    ids = storable(outcome.task_id), storable(outcome.context_id)
    return outcome.correlation_id, outcome.agent, outcome.kind.value, micros(outcome.ended_at), *ids, encode(outcome)


def event_row(event: Event) -> tuple[Any, ...]:
    accepted = event.correlation_id if isinstance(event, RequestAccepted) else None
    share = share_of(event.topic, event.agent)
    return event.seq, micros(event.at), share, accepted, encode(to_wire(event, exact=True))
