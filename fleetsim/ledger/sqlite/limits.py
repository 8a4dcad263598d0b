"""The use of limits in the ledger's file: read, and changed by bookings within the transaction of their request."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from fleetsim.ledger.bodies import decoder, encode, micros, sound
from fleetsim.ledger.interface import USES_KEPT_MICROS
from fleetsim.ledger.sqlite.sums import checked, insert
from fleetsim.model.errors import OverLimit
from fleetsim.request.limits import Booking, LimitUse, PeriodKey, book

_REPLACE = "ON CONFLICT (name, period) DO UPDATE SET ends = excluded.ends, body = excluded.body, sum = excluded.sum"


def uses(connection: sqlite3.Connection, where: str, *values: object) -> dict[PeriodKey, LimitUse]:
    rows = connection.execute(f"SELECT name, period, body, {checked('limits')} FROM limits WHERE {where}", values)
    return {(name, period): decoder(LimitUse)(sound(body if right else None)) for name, period, body, right in rows}


def make(connection: sqlite3.Connection, bookings: Sequence[Booking]) -> None:
    """Make the bookings. Raises OverLimit."""
    ends = {booking.key: micros(booking.ends) for booking in bookings}
    before: dict[PeriodKey, LimitUse] = {}
    for key in ends:
        before |= uses(connection, "name = ? AND period = ?", *key)
    if isinstance(changed := book(before, bookings), OverLimit):
        raise changed
    for key, use in changed.items():
        insert(connection, "limits", (*key, ends[key], encode(use)), _REPLACE)
    connection.execute("DELETE FROM limits WHERE ends < ?", (max(ends.values(), default=0) - USES_KEPT_MICROS,))
