"""Common parts of the ledgers that keep their rows in a database: failures, reads, and pruning as outcomes come.

The SQL of reads is for every form. It has ``?`` for each value, and each form fills in the parts that differ.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol, Self, TypeVar

from msgspec.structs import replace

from fleetsim.api.answers import KnownId
from fleetsim.events.request import Event
from fleetsim.events.wire import from_wire
from fleetsim.health.outcome_stats import OutcomeFacts
from fleetsim.ledger.bodies import ACTIONS, decoder, encode, join, micros, moment, sound
from fleetsim.ledger.interface import Ledger, LedgerLimits, StorageListener
from fleetsim.ledger.records import (
    CardSnapshot,
    EarlyWebhook,
    LedgerBroken,
    LedgerDamaged,
    NoticeRecord,
    RequestNote,
    RunRecord,
)
from fleetsim.model.errors import NotAccepting, OverLimit
from fleetsim.model.limits import PREFIX_CHARS_MIN, TEXT_CHARS_MAX
from fleetsim.model.parts import without_content
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.limits import Booking, LimitUse, PeriodKey
from fleetsim.request.records import Phase, QuestionRecord, QuestionState, RequestRecord

T = TypeVar("T")
Row = TypeVar("Row", bound=Any)

log = logging.getLogger(__name__)

WHOLE_MAX = 100
"""Outcomes that are in memory with their whole text at once."""

ALL = 2**63 - 1
"""A number that is larger than that of every row, and that of all of them."""

PRUNE_EVERY = 128
"""Outcomes between two prunings: each then deletes a few times as many rows as were added."""

IN_JOURNAL = (
    "accepted_at >= coalesce((SELECT CASE seq WHEN 1 THEN 0 ELSE at END FROM events"
    f" WHERE agent <> '{ACTIONS}' ORDER BY seq LIMIT 1), 0)"
)
"""The condition in SQL for requests that are younger than the journal. While it has its first event, all are: a clock
that was set back makes no request older.
"""


class OpenableStorage(Protocol):
    """A database that is opened and closed with its ledger."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class StoredLedger(Ledger):
    """A Ledger whose rows are in ``storage``. ``HINT`` is the next step after a failure that a retry cannot cure.

    The other constants are SQL: the bodies, contents, phases and numbers of requests; the columns of a ``RequestNote``;
    and the conditions for an outcome without an event, and for a request whose acceptance has none.
    """

    HINT: ClassVar[str]
    REQUESTS: ClassVar[str]
    NOTE: ClassVar[str]
    UNANNOUNCED: ClassVar[str]
    UNTOLD: ClassVar[str]

    def __init__(self, storage: OpenableStorage, limits: LedgerLimits) -> None:
        self._storage = storage
        self.limits = limits
        self.refusal = ""
        self._decided = 0
        self._listener: StorageListener | None = None
        self._broken: LedgerBroken | None = None

    async def __aenter__(self) -> Self:
        await self._storage.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.stop()

    def report_to(self, listener: StorageListener) -> None:
        self._listener, self._broken = listener, None

    async def taken_over_at(self) -> datetime | None:
        return None

    def _note_refusal(self, reason: str) -> None:
        changed, self.refusal = bool(reason) is not bool(self.refusal), reason
        if changed and self._listener is not None:
            self._listener.ledger_refused(reason)

    def _failure(self, error: Exception, *, reads: bool) -> Exception:
        """The error to raise for a call that failed with ``error``, after the listener was notified."""
        if isinstance(error, NotAccepting) and not isinstance(error, LedgerBroken):
            if not reads:
                self._note_refusal(str(error))
            return error
        if isinstance(error, ValueError | OverLimit) or self._listener is None:
            return error
        if self._broken is None:
            said = f"the ledger failed: {str(error) or type(error).__name__}"
            self._broken = error if isinstance(error, LedgerBroken) else LedgerBroken(said, hint=self.HINT)
            self._listener.ledger_failed(self._broken)
        return self._broken.with_traceback(None)  # or it would keep the frames of every call that met it

    @abstractmethod
    async def _close(self, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        """Decide the outcome, as ``close`` does, and prune nothing."""

    async def close(self, outcome: Outcome, bookings: Sequence[Booking] = ()) -> bool:
        decided = await self._close(outcome, bookings)
        if decided:
            self._decided += 1
            if self._decided % PRUNE_EVERY == 0:
                try:
                    await self.prune(outcome.ended_at)
                except Exception as error:  # noqa: BLE001 - the outcome is decided, and must not be refused
                    log.warning("old rows of the ledger were not deleted: %s", error)
        return decided

    # -- reads

    @abstractmethod
    async def _select(self, take: Callable[[Iterable[Any]], T], sql: str, *values: object) -> T:
        """Run a query; ``take`` makes the result of its rows, beside the event loop where the storage has a thread."""

    @abstractmethod
    def sound(self, table: str, column: str = "body") -> str:
        """The SQL of a column, which is NULL in a row that is not what was written."""

    @abstractmethod
    async def _with_task(self, text: str, limit: int) -> list[Any]:
        """The requests of an agent's task in the form of ``ids``, the newest first."""

    async def _decoded(self, kind: type[T], rest: str, *values: object) -> tuple[T, ...]:
        """The bodies of a table's rows; ``rest`` begins with the table's name."""
        table = rest.partition(" ")[0]
        return await self._select(decoded(kind), f"SELECT {self.sound(table)} FROM {rest}", *values)

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        return await self._decoded(EarlyWebhook, "webhooks ORDER BY seq")

    async def request(self, correlation_id: str) -> RequestRecord | None:
        found = await self._select(requests_of, f"{self.REQUESTS} WHERE correlation_id = ?", correlation_id)
        return found[0] if found else None

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        return await self._select(requests_of, f"{self.REQUESTS} WHERE phase <> 'closed' ORDER BY seq")

    async def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        sql = f"{self.REQUESTS} WHERE phase <> 'closed' AND seq > ? ORDER BY seq LIMIT ?"
        seq, more = -1, True
        while more:
            records, last = await self._select(_paged(requests_of), sql, seq, page)
            yield records
            seq, more = last[-1] if last else seq, len(records) == page

    async def open_ids(self, *, after: str | None = None, limit: int = 1_000) -> tuple[str, ...] | None:
        begin = -1
        if after is not None:
            rows = await self._select(list, "SELECT seq FROM requests WHERE correlation_id = ?", after)
            if not rows:
                return None
            begin = rows[0][0]
        sql = "SELECT correlation_id FROM requests WHERE phase <> 'closed' AND seq > ? ORDER BY seq LIMIT ?"
        return tuple([name for (name,) in await self._select(list, sql, begin, limit)])

    async def request_notes(self, *, since: datetime, limit: int = 100_000) -> tuple[RequestNote, ...]:
        def notes(rows: Iterable[Any]) -> tuple[RequestNote, ...]:
            newest = [
                RequestNote(sound(name), agent, bool(scheduled), dialect, bool(stream), bool(push))
                for name, agent, scheduled, dialect, stream, push in rows
            ]
            return tuple(reversed(newest))

        name = self.sound("requests", "correlation_id")
        sql = f"SELECT {name}, agent, run_id IS NOT NULL, {self.NOTE} FROM requests WHERE accepted_at >= ?"
        return await self._select(notes, f"{sql} ORDER BY seq DESC LIMIT ?", micros(since), limit)

    async def outcome(self, correlation_id: str) -> Outcome | None:
        found = await self._decoded(Outcome, "outcomes WHERE correlation_id = ?", correlation_id)
        return found[0] if found else None

    async def outcomes(
        self,
        *,
        since: datetime,
        limit: int = 100_000,
        kinds: Collection[str] = tuple(OutcomeKind),
        chars_max: int = TEXT_CHARS_MAX,
    ) -> tuple[Outcome, ...]:
        def shown(rows: Iterable[Any]) -> list[Outcome]:
            return [summary(outcome, chars_max) for outcome in decoded(Outcome)(rows)]

        sql = (
            f"SELECT {self.sound('outcomes')}, ended_at, seq FROM outcomes WHERE ended_at >= ?"
            f" AND kind IN ({', '.join('?' * len(kinds))}) AND (ended_at, seq) < (?, ?)"
            " ORDER BY ended_at DESC, seq DESC LIMIT ?"
        )
        found: list[Outcome] = []
        before, more = (ALL, 0), limit > 0
        while more:
            most = min(limit - len(found), WHOLE_MAX)
            page, last = await self._select(_paged(shown), sql, micros(since), *map(str, kinds), *before, most)
            found += page
            before = last[1:] if last else before
            more = len(page) == WHOLE_MAX and len(found) < limit
        return tuple(reversed(found))

    async def outcome_facts(self, *, since: datetime, page: int = 5_000) -> AsyncIterator[tuple[OutcomeFacts, ...]]:
        after, more = (micros(since), -1), True
        sql = (
            f"SELECT {self.sound('outcomes')}, ended_at, seq FROM outcomes WHERE (ended_at, seq) > (?, ?)"
            " ORDER BY ended_at, seq LIMIT ?"
        )
        while more:
            facts, last = await self._select(_paged(decoded(OutcomeFacts)), sql, *after, page)
            yield facts
            after, more = last[1:] if last else after, len(facts) == page

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        rest = f"outcomes WHERE {self.UNANNOUNCED} ORDER BY seq LIMIT ?"
        return tuple(map(summary, await self._decoded(Outcome, rest, limit)))

    async def untold_requests(self) -> tuple[RequestRecord, ...]:
        return await self._select(
            requests_of,
            f"{self.REQUESTS} WHERE correlation_id IN (SELECT correlation_id FROM requests WHERE phase <> 'closed'"
            f" UNION SELECT correlation_id FROM outcomes WHERE {self.UNANNOUNCED})"
            f" AND {IN_JOURNAL} AND {self.UNTOLD} ORDER BY seq",
        )

    async def questions(self, *, open_only: bool = True, limit: int | None = None) -> tuple[QuestionRecord, ...]:
        waiting = (
            " JOIN requests USING (correlation_id) WHERE requests.phase <> 'closed'"
            " AND questions.state IN ('open', 'answered')"
        )
        which = f"{waiting if open_only else ''} ORDER BY questions.seq DESC LIMIT ?"
        return (await self._questions(which, ALL if limit is None else limit))[::-1]

    async def question(self, question_id: str) -> QuestionRecord | None:
        found = await self._questions(" WHERE question_id = ?", question_id)
        return found[0] if found else None

    async def _questions(self, which: str, *values: object) -> tuple[QuestionRecord, ...]:
        columns = f"{self.sound('questions')}, questions.state, questions.answer, questions.answered_at"
        return await self._select(questions_of, f"SELECT {columns} FROM questions{which}", *values)

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        only, values = ("", ()) if ceremony_id is None else (" WHERE ceremony_id = ?", (ceremony_id,))
        return await self._decoded(RunRecord, f"runs{only} ORDER BY seq DESC LIMIT ?", *values, limit)

    async def cards(self) -> tuple[CardSnapshot, ...]:
        return await self._decoded(CardSnapshot, "cards ORDER BY agent")

    async def notices(self, subject: str) -> tuple[NoticeRecord, ...]:
        return await self._decoded(NoticeRecord, "notices WHERE subject = ? ORDER BY seq", subject)

    async def limit_uses(self, now: datetime) -> dict[PeriodKey, LimitUse]:
        sql = f"SELECT {self.sound('limits')}, name, period FROM limits WHERE ends > ?"
        rows = await self._select(list, sql, micros(now))
        return {(name, period): decoder(LimitUse)(sound(body)) for body, name, period in rows}

    async def events(
        self, *, after_seq: int = 0, limit: int = 1_000, chars_max: int | None = None
    ) -> tuple[Event, ...]:
        sql = f"SELECT {self.sound('events')}, seq FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        return await self._select(lambda rows: events_of(within(rows, chars_max)), sql, after_seq, limit)

    async def actions(self, *, since: datetime, before_seq: int, limit: int = 1_000) -> tuple[Event, ...]:
        sql = f"SELECT {self.sound('events')}, seq FROM events WHERE agent = ? AND seq < ? AND at >= ?"
        values = ACTIONS, before_seq, micros(since), limit
        return await self._select(events_of, f"{sql} ORDER BY seq DESC LIMIT ?", *values)

    async def last_seq(self) -> int:
        return int((await self._select(list, "SELECT coalesce(max(seq), 0) FROM events"))[0][0])

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        upto = text + "\U0010ffff" if len(text) >= PREFIX_CHARS_MIN else text
        rows = [row for sql in _BY_ID for row in await self._select(list, sql, text, upto, limit)]
        return tuple(
            KnownId(id=known, kind=kind, correlation_id=cid, agent=agent, at=moment(at))
            for known, kind, cid, agent, at in rows or await self._with_task(text, limit)
        )


_BY_ID = (
    """SELECT correlation_id, 'request', correlation_id, agent, accepted_at FROM requests
    WHERE correlation_id >= ? AND correlation_id <= ? ORDER BY correlation_id LIMIT ?""",
    """SELECT question_id, 'question', correlation_id, agent, accepted_at FROM questions
    JOIN requests USING (correlation_id) WHERE question_id >= ? AND question_id <= ? ORDER BY question_id LIMIT ?""",
    """SELECT run_id, 'run', correlation_id, agent, accepted_at FROM requests
    WHERE run_id >= ? AND run_id <= ? ORDER BY run_id, seq LIMIT ?""",
)


def decoded(kind: type[T]) -> Callable[[Iterable[Any]], tuple[T, ...]]:
    """A function that reads the bodies of rows, which are their first column, one at a time."""
    decode = decoder(kind)
    return lambda rows: tuple([decode(sound(row[0])) for row in rows])


def _paged(take: Callable[[list[Any]], T]) -> Callable[[Iterable[Any]], tuple[T, Any]]:
    """The same with the last row, after which the next page begins; None without rows."""

    def both(rows: Iterable[Any]) -> tuple[T, Any]:
        page = list(rows)
        return take(page), page[-1] if page else None

    return both


def requests_of(rows: Iterable[Any]) -> tuple[RequestRecord, ...]:
    """The requests of ``REQUESTS`` as they were last updated; only the phase's column says that one is closed."""
    return tuple([replace(join(sound(body), content), phase=Phase(phase)) for body, content, phase, *_ in rows])


def questions_of(rows: Iterable[Any]) -> tuple[QuestionRecord, ...]:
    """The questions of rows of a body, a state, an answer and its time."""
    return tuple(
        [
            QuestionRecord(
                question=decoder(Question)(sound(body)),
                state=QuestionState(state),
                answer=None if given is None else decoder(Answer)(given),
                answered_at=None if answered_at is None else moment(answered_at),
            )
            for body, state, given, answered_at in rows
        ]
    )


def events_of(rows: Iterable[Any]) -> tuple[Event, ...]:
    """The events of rows of a body and a number, which a shared ledger gives later than the body."""
    bodies, events = decoder(dict[str, Any]), []
    for body, seq, *_ in rows:
        event = from_wire(bodies(sound(body)))
        if event is None:
            raise LedgerDamaged("a row of the journal holds no event")
        events.append(replace(event, seq=seq))
    return tuple(events)


def run_row(run: RunRecord) -> tuple[Any, ...]:
    """The columns of a run."""
    claim, scheduled_at, started_at = run.claim, micros(run.claim.scheduled_at), micros(run.started_at)
    return claim.run_id, claim.ceremony_id, scheduled_at, run.status.value, started_at, encode(run)


def within(rows: Iterable[Row], chars_max: int | None) -> Iterator[Row]:
    """The first rows, until their bodies have ``chars_max`` characters; None is no limit."""
    chars = 0
    for row in rows:
        yield row
        chars += len(row[0] or "")
        if chars_max is not None and chars >= chars_max:
            return


def summary(outcome: Outcome, chars_max: int = TEXT_CHARS_MAX) -> Outcome:
    """The outcome with at most ``chars_max`` characters of its text, and without the content of its files and data."""
    if not outcome.parts and len(outcome.text) <= chars_max:
        return outcome
    shown = outcome.excerpt(chars_max)
    parts = tuple(without_content(part) for part in outcome.parts)
    return replace(outcome, text=shown.text, text_chars=shown.text_chars, truncated=shown.truncated, parts=parts)
