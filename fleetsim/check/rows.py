"""The checklist: every promise, by id, in the order of the report. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fleetsim.check import rows_card, rows_more, rows_push, rows_streams, rows_tasks, rows_wire
from fleetsim.check.row import Row

_ORDER = (
    *rows_card.ROWS,
    *rows_wire.ROWS,
    *rows_tasks.ROWS,
    *rows_streams.ROWS,
    *rows_push.ROWS,
    *rows_more.ROWS,
)

ROWS: Mapping[str, Row] = MappingProxyType({row.id: row for row in _ORDER})
"""Every row by its id."""

assert len(ROWS) == len(_ORDER), "two rows share an id"
