"""Which tasks are kept: who owns how many, how much they hold, and who has to go.

Finished tasks go after their time, or sooner when room is needed, the oldest first; open tasks never
go. A finished task whose webhooks are under way stays. Knows nothing of how tasks change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleetsim.agent.entry import Entry
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.record import ANYONE, TaskKey
from fleetsim.model.errors import TaskNotFound


class Retention:
    """All entries of one store. ``busy`` says whether a finished task is still needed."""

    def __init__(self, limits: AgentLimits) -> None:
        self.busy: Callable[[TaskKey], bool] = lambda _key: False
        self.forgotten: list[Callable[[TaskKey], None]] = []
        self.chars = 0
        self._limits = limits
        self._entries: dict[TaskKey, Entry] = {}
        self._finished: dict[TaskKey, Entry] = {}
        self._owned: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, key: TaskKey) -> Entry:
        """The entry. Raises TaskNotFound."""
        entry = self._entries.get(key)
        if entry is None:
            raise TaskNotFound
        return entry

    def find(self, key: TaskKey) -> Entry | None:
        """The entry, or None."""
        return self._entries.get(key)

    @property
    def open_keys(self) -> tuple[TaskKey, ...]:
        """The tasks that are not finished, oldest first."""
        return tuple(key for key in self._entries if key not in self._finished)

    def add(self, entry: Entry) -> None:
        """Keep an entry."""
        owner = entry.key[0]
        self._entries[entry.key] = entry
        self._owned[owner] = self._owned.get(owner, 0) + 1

    def finished(self, entry: Entry) -> None:
        """Note that an entry may go in time."""
        self._finished[entry.key] = entry

    def make_room(self, owner: str) -> None:
        """Let go of finished tasks until the owner may have one more. Raises AtCapacity."""
        limits = self._limits
        while len(self._entries) >= limits.tasks_max or self.chars >= limits.store_chars_max:
            self._forget_oldest(None, "the agent holds as many tasks as it may")
        while owner != ANYONE and self._owned.get(owner, 0) >= limits.tasks_per_caller_max:
            self._forget_oldest(owner, "you hold as many tasks as one caller may")

    def let_go(self, now_s: float) -> None:
        """Forget what finished longer ago than its time to live."""
        for key, entry in list(self._finished.items()):
            if now_s - entry.touched_s >= self._limits.terminal_ttl_s and not self.busy(key):
                self.drop(key)

    def overdue(self, now_s: float) -> tuple[TaskKey, ...]:
        """The tasks that have been open longer than a task may."""
        life_s = self._limits.task_life_s
        return tuple(key for key in self.open_keys if now_s - self._entries[key].opened_s >= life_s)

    def _forget_oldest(self, owner: str | None, otherwise: str) -> None:
        for key in self._finished:
            if owner in {None, key[0]} and not self.busy(key):
                self.drop(key)
                return
        raise AtCapacity(otherwise)

    def drop(self, key: TaskKey) -> None:
        """Forget an entry, and tell of it. Raises KeyError."""
        entry = self._entries.pop(key)
        self._finished.pop(key, None)
        self.chars -= entry.draft.chars + entry.history_chars
        owner = key[0]
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        for tell in self.forgotten:
            tell(key)
