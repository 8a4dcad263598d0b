"""What can be seen of an agent only from inside: its log, its memory, its store of tasks."""

from __future__ import annotations

import gc
import logging
import re
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any, Protocol

from fleetsim.model.text import one_line

LINES_MAX = 20_000
LINE_CHARS_MAX = 4_000
DEPTH_MAX = 3

_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class AgentLog:
    """The lines an agent has logged, ``LEVEL text`` each; of many, the last ``LINES_MAX``."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=LINES_MAX)
        self._count = 0

    def add(self, line: str) -> None:
        """Keep a line, cut to ``LINE_CHARS_MAX``; the oldest goes when ``LINES_MAX`` are kept."""
        self._kept.append(one_line(line, LINE_CHARS_MAX))
        self._count += 1

    def add_printed(self, line: str) -> None:
        """Keep a line that was printed, at the level it names; what it says is for debugging alone is left out."""
        found = _LEVEL.search(line[:120])
        level = found[1].upper() if found else "PRINTED"
        if level not in {"DEBUG", "TRACE"}:
            self.add(f"{level} {line}")

    def __len__(self) -> int:
        return self._count

    def since(self, count: int) -> list[str]:
        """The lines kept after the first ``count``."""
        return list(self._kept)[-(self._count - count) :] if self._count > count else []


class Internals(Protocol):
    """An agent that can be looked into."""

    log: AgentLog

    async def collect(self) -> None:
        """Run the garbage collector where the agent runs."""
        ...

    def holds(self, task_id: str) -> bool | None:
        """Whether its store has that task; None where nobody said which its store is."""
        ...


class LocalInternals:
    """An agent in this very process; ``store`` is its tasks by id, if somebody said which."""

    def __init__(self, log: AgentLog, store: object = None) -> None:
        self.log = log
        self._store = store

    async def collect(self) -> None:
        """Run the garbage collector of this process, which is the agent's."""
        gc.collect()

    def holds(self, task_id: str) -> bool | None:
        """Whether the store has that task; None where nobody said which the store is."""
        return None if self._store is None else holds(self._store, task_id)


def is_store(value: object) -> bool:
    """Whether tasks can be looked for in it: a mapping or another container of ids or of tasks."""
    return isinstance(value, Mapping) or (isinstance(value, Container) and isinstance(value, Sized))


def holds(store: object, task_id: str, depth: int = DEPTH_MAX) -> bool:
    """Whether a store has a task: by its id as a key, at most ``depth`` mappings deep, or among its items."""
    if isinstance(store, Mapping):
        if task_id in store:
            return True
        return depth > 1 and any(holds(value, task_id, depth - 1) for value in list(store.values()))
    if isinstance(store, list | tuple | set | frozenset | deque):
        return any(item == task_id or _id_of(item) == task_id for item in list(store))
    return depth == DEPTH_MAX and isinstance(store, Container) and task_id in store


def _id_of(item: Any) -> Any:
    if isinstance(item, Mapping):
        return item.get("id") or item.get("task_id")
    return getattr(item, "id", None) or getattr(item, "task_id", None)


@contextmanager
def capturing_logs(log: AgentLog, *names: str) -> Iterator[None]:
    """Write into ``log`` what these loggers, and those below them, let through at INFO and above, while inside.

    The empty name is every logger. They are heard whatever handlers the agent sets up or takes down; a logger
    that it has disabled stays silent.
    """

    def keep(record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO and any(
            not name or record.name == name or record.name.startswith(f"{name}.") for name in names
        ):
            log.add(f"{record.levelname} {text_of(record)}")

    watched = [logging.getLogger(name) for name in names]
    levels = [one.level for one in watched]
    let_info_through(*names)
    plain = logging.Logger.handle

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if not self.disabled:
            keep(record)
        plain(self, record)

    logging.Logger.handle = handle  # type: ignore[method-assign]
    try:
        yield
    finally:
        logging.Logger.handle = plain  # type: ignore[method-assign]
        for one, level in zip(watched, levels, strict=True):
            one.setLevel(level)


def let_info_through(*names: str) -> None:
    """Let these loggers speak from INFO on, whatever they were set to before."""
    for name in names:
        one = logging.getLogger(name)
        one.setLevel(min(one.level or logging.INFO, logging.INFO))


def text_of(record: logging.LogRecord) -> str:
    """A record's text, with the members that were handed in beside it."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - the agent's own format string
        text = str(record.msg)
    more = [f"{name}={value}" for name, value in vars(record).items() if name not in _USUAL]
    return " ".join([text, *more])
