"""Common parts of the ledgers that keep their rows in a database: failures, and pruning as outcomes come."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol, Self, TypeVar

from msgspec.structs import replace

from fleetsim.ledger.bodies import ACTIONS
from fleetsim.ledger.interface import Ledger, LedgerLimits, StorageListener
from fleetsim.ledger.records import LedgerBroken
from fleetsim.model.errors import NotAccepting, OverLimit
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.parts import without_content
from fleetsim.model.work import Outcome
from fleetsim.request.limits import Booking

Row = TypeVar("Row", bound=Any)

log = logging.getLogger(__name__)

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
    """A Ledger whose rows are in ``storage``. ``HINT`` is the next step after a failure that a retry cannot cure."""

    HINT: ClassVar[str]

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


def within(rows: Iterable[Row], chars_max: int | None) -> Iterator[Row]:
    """The first rows, until their bodies have ``chars_max`` characters; None is no limit."""
    chars = 0
    for row in rows:
        yield row
        chars += len(row[0])
        if chars_max is not None and chars >= chars_max:
            return


def summary(outcome: Outcome, chars_max: int = TEXT_CHARS_MAX) -> Outcome:
    """The outcome with at most ``chars_max`` characters of its text, and without the content of its files and data."""
    if not outcome.parts and len(outcome.text) <= chars_max:
        return outcome
    shown = outcome.excerpt(chars_max)
    parts = tuple(without_content(part) for part in outcome.parts)
    return replace(outcome, text=shown.text, text_chars=shown.text_chars, truncated=shown.truncated, parts=parts)
