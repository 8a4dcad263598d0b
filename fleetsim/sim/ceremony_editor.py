"""Somebody at work in a run's folder of ceremonies: files are disabled, deleted, half written, and put back."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in

from fleetsim.sim.calls import CallListener
from fleetsim.testbed.runtime import MemoryFiles

EDITS = ("disabled", "deleted", "half written", "as it was")
_ZONE = re.compile(rb"^timezone:.*\n", re.MULTILINE)


class CeremonyEditor:
    """Edits the files that a run began with. Each edit is told to ``tell``, with the ceremony's id."""

    def __init__(self, files: MemoryFiles, folder: Path, tell: CallListener) -> None:
        self._files = files
        self._tell = tell
        self._edited: set[Path] = set()
        self._whole = {path: content for path, content in files.content().items() if path.suffix in {".yaml", ".yml"}}

    async def edit(self, rng: Random) -> None:
        """One edit of one file, drawn."""
        if self._whole:
            await self._make(rng.choice(sorted(self._whole)), rng.choice(EDITS))

    async def move(self, rng: Random, zone: str) -> Path | None:
        """Let one ceremony go by the clock of ``zone``; which file says so."""
        if not self._whole:
            return None
        path = rng.choice(sorted(self._whole))
        await self._make(path, "as it was", zone)
        return path

    async def move_back(self, path: Path) -> None:
        """Let it go by its own clock again."""
        await self._make(path, "as it was")

    async def put_back(self) -> bool:
        """Make every file what it was; whether one was not."""
        edited = sorted(self._edited)
        for path in edited:
            await self._make(path, "as it was")
        return bool(edited)

    async def _make(self, path: Path, what: str, zone: str = "") -> None:
        whole = self._whole[path]
        if zone:
            whole = _ZONE.sub(b"", whole) + f"timezone: {zone}\n".encode()
        match what:
            case "deleted":
                await self._files.remove(path)
            case "disabled" if b"enabled:" not in whole:
                self._files.put(path, whole + b"enabled: false\n")
            case "half written":
                self._files.put(path, whole[: len(whole) // 2])
            case _:
                self._files.put(path, whole)
        (self._edited.discard if what == EDITS[-1] and not zone else self._edited.add)(path)
        self._tell("edited", file=path.stem, what=what, zone=zone)
