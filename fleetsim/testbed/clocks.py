"""The clocks of a whole process on virtual time, for code that asks ``time`` and ``datetime`` and not the loop.

Call ``Clocks.install`` at the start of a process, before the import of modules that shall follow it: modules keep the
functions that they imported. Only the passing of time is virtual; dates begin at the machine's date.
"""

from __future__ import annotations

import asyncio
import copyreg
import datetime as dates
import time
from typing import Any

_DATETIME, _DATE = dates.datetime, dates.date


class Clocks:
    """Virtual seconds since the installation, added to the machine's clocks at that moment."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began: dict[str, int] = {}
        self.start = _DATETIME.now(dates.UTC)

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let time pass as it does on this loop."""
        self._loop = loop

    def passed_s(self) -> float:
        """Virtual seconds since the installation."""
        return 0.0 if self._loop is None else self._loop.time()

    def install(self) -> None:
        """Replace the functions of ``time`` that return the time, and the classes of ``datetime`` that call them."""
        for name in ("time", "monotonic", "perf_counter"):
            self._began[name] = getattr(time, f"{name}_ns")()
            setattr(time, name, self._seconds(name))
            setattr(time, f"{name}_ns", self._nanoseconds(name))
        localtime, gmtime = time.localtime, time.gmtime
        time.localtime = lambda seconds=None: localtime(time.time() if seconds is None else seconds)
        time.gmtime = lambda seconds=None: gmtime(time.time() if seconds is None else seconds)
        dates.datetime = _stand_in("datetime", _DATETIME, now=_now, today=_now, utcnow=_utcnow)  # type: ignore[misc]
        today = lambda _cls: _DATE.fromtimestamp(time.time())  # noqa: E731
        dates.date = _stand_in("date", _DATE, today=today)  # type: ignore[misc]
        # Values keep the real classes, because copies and pickles look these names up.
        copyreg.pickle(_DATETIME, lambda value: (dates.datetime, tuple(value.__reduce_ex__(2)[1])))
        copyreg.pickle(_DATE, lambda value: (dates.date, tuple(value.__reduce_ex__(2)[1])))

    def _nanoseconds(self, name: str) -> Any:
        return lambda: self._began[name] + round(self.passed_s() * 1e9)

    def _seconds(self, name: str) -> Any:
        return lambda: self._began[name] / 1e9 + self.passed_s()


def _stand_in(name: str, real: type, **methods: Any) -> Any:
    """A replacement for the class ``real`` with other class methods. It creates values of ``real``."""

    class Like(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, real)

    members = {"__new__": lambda _cls, *given, **named: real(*given, **named), "__module__": "datetime"}
    return Like(name, (real,), members | {key: classmethod(method) for key, method in methods.items()})


def _now(_cls: Any, tz: dates.tzinfo | None = None) -> Any:
    return _DATETIME.fromtimestamp(time.time(), tz)


def _utcnow(_cls: Any) -> Any:
    return _DATETIME.fromtimestamp(time.time(), dates.UTC).replace(tzinfo=None)
