"""Errors that were logged while a run was played: something failed that nobody waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fleetsim.model.text import one_line


class _Complaints(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._tell(one_line(f"{record.name}: {record.getMessage()}{why}", 400))


@contextmanager
def complaints_told(tell: Callable[[str], None]) -> Iterator[None]:
    """``tell`` is told of each, as one line. Of the rest nothing is logged unless somebody debugs."""
    complaints, log = _Complaints(tell), logging.getLogger("fleetsim")
    level, log.propagate = log.level, log.propagate and log.isEnabledFor(logging.DEBUG)
    if not log.propagate:  # a day of a fleet is thousands of lines that nobody asked for
        log.setLevel(logging.ERROR)
    log.addHandler(complaints)
    try:
        yield
    finally:
        log.removeHandler(complaints)
        log.setLevel(level)
        log.propagate = True
