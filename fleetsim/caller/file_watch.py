"""Which files changed since they were read last: told by content, and only once they have settled.

Used for every file that the hub reads again while it runs (ceremonies, agents.yaml). The contents do not matter here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fleetsim.runtime.ports import FileStamp

LOOK_EVERY_S = 4.5
SETTLE_S = 0.25
"""A file that still changes within this time is being written in place, and waits for the next look. Together
with the pause between looks: a change is in force within five seconds."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Files to read, because they are new or other than they were, and files that are gone."""

    changed: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)


class FileWatch:
    """Looks as often as it is asked to. ``listing`` gives the files as they are now."""

    def __init__(self, listing: Callable[[], Awaitable[Iterable[FileStamp]]]) -> None:
        self._listing = listing
        self._seen: dict[Path, str] = {}
        self._looked = False

    async def look(self) -> Changes:
        """The changes since the last look; the first look reports every file. Raises the errors of ``listing``."""
        first, self._looked = not self._looked, True
        listed = await self._list()
        new = {path for path, digest in listed.items() if self._seen.get(path) != digest}
        if new and not first:
            await asyncio.sleep(SETTLE_S)
            again = await self._list()
            new = {path for path in new if again.get(path) == listed[path]}
        gone = tuple(sorted(self._seen.keys() - listed.keys()))
        for path in gone:
            del self._seen[path]
        self._seen.update({path: listed[path] for path in new})
        return Changes(changed=tuple(sorted(new)), gone=gone)

    def note(self, path: Path, stamp: FileStamp | None) -> None:
        """Do not report a file that somebody else has read, or whose removal is known."""
        self._seen.pop(path, None)
        if stamp is not None:
            self._seen[path] = stamp.digest

    async def _list(self) -> dict[Path, str]:
        return {stamp.path: stamp.digest for stamp in await self._listing()}
