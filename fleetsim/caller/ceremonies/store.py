"""Ceremonies as something to list, create, update and delete. What it keeps are the files of the folder and nothing
else, so that people and programs change the same thing.

Who may do what is decided by whoever calls it: ``created_by`` is that caller's word, and an update changes neither
it nor the id. A project's overrides are shown and never written: they are the project's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsim.caller.ceremonies.folder import CEREMONIES_MAX, PER_OWNER_MAX, CeremonyFolder, FileProblem
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.ceremony.written import CeremonyInvalid, changed, checked, timed, written
from fleetsim.model.errors import ConfigError, FleetsimError, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Clock, Files
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

FILE_MODE = 0o644


class CeremonyExists(FleetsimError):
    """There is a ceremony, or a file, of that id already."""


class CeremonyNotFound(UnknownTarget):
    """There is no ceremony of that id."""


class CeremonyNotWritable(FleetsimError):
    """Its file is not to be changed from here: a project's, one of two with the id, or one that is broken."""


class TooManyCeremonies(FleetsimError):
    """No room for one more: of this owner, or at all (T-34)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCeremony:
    """A ceremony in force: checked, and with the keys and values as they stand in its file."""

    ceremony: Ceremony
    path: str
    values: Mapping[str, Any]


class CeremonyStore:
    """The ceremonies of a folder. Changes are made one after another; ``changed`` is called after each."""

    def __init__(
        self, folder: CeremonyFolder, files: Files, clock: Clock, *, changed: Callable[[], object] = lambda: None
    ) -> None:
        self._folder = folder
        self._files = files
        self._clock = clock
        self._changed = changed
        self._lock = asyncio.Lock()

    def list(self) -> tuple[StoredCeremony, ...]:
        """Every ceremony in force, by id, disabled ones included."""
        return tuple(self.get(key) for key in sorted(self._folder.contents.ceremonies))

    def get(self, ceremony_id: str, *, owner: str | None = None) -> StoredCeremony:
        """One ceremony in force; with ``owner``, one of theirs, as if there were no others. Raises CeremonyNotFound."""
        contents = self._folder.contents
        ceremony = contents.ceremonies.get(ceremony_id)
        if owner is not None and (ceremony is None or ceremony.created_by != owner):
            raise CeremonyNotFound(f'Ceremony "{one_line(ceremony_id, 64)}" not found')
        if ceremony_id not in contents.ceremonies:
            told = [problem.error for problem in self._problems(ceremony_id)]
            hint = f"its file is broken: {told[0]}" if told else None
            raise CeremonyNotFound(f'Ceremony "{one_line(ceremony_id, 64)}" not found', hint=hint)
        return StoredCeremony(
            ceremony=contents.ceremonies[ceremony_id],
            path=contents.paths[ceremony_id],
            values=contents.values[ceremony_id],
        )

    def errors(self) -> tuple[FileProblem, ...]:
        """The files that are not in force as they stand."""
        return self._folder.contents.problems

    async def create(self, values: Mapping[str, Any], *, created_by: str) -> StoredCeremony:
        """Write a new ceremony, as ``ID.yaml``; never over another (T-33).

        ``values`` has the keys of a file. ``in`` (seconds, or 30m, 2h, 1d) is stored as the time it means, and ``at``
        without a schedule means once.

        Raises:
            CeremonyInvalid: a value is wrong, or one is missing.
            CeremonyExists: the id or the file is taken.
            TooManyCeremonies: one more is too many.
            ConfigError: the file cannot be written.
        """
        wanted = {key: value for key, value in values.items() if value is not None}
        wanted = timed({**wanted, "createdBy": created_by}, self._clock.now())
        ceremony = checked(written(wanted))
        path = self._folder.path / f"{ceremony.ceremony_id}.yaml"
        async with self._lock:
            taken = CeremonyExists(
                f"a ceremony “{ceremony.ceremony_id}” exists already", hint="update it, or delete it"
            )
            contents = self._folder.contents
            if ceremony.ceremony_id in contents.ceremonies or self._problems(ceremony.ceremony_id):
                raise taken
            if len(contents.ceremonies) >= CEREMONIES_MAX:
                raise TooManyCeremonies(f"there are {CEREMONIES_MAX} ceremonies already")
            if sum(one.created_by == created_by for one in contents.ceremonies.values()) >= PER_OWNER_MAX:
                raise TooManyCeremonies(f"“{created_by}” has {PER_OWNER_MAX} ceremonies already")
            if not await self._files.create(path, written(wanted).encode(), mode=FILE_MODE):
                raise taken
            await self._take_up(path)
            return self.get(ceremony.ceremony_id)

    async def update(self, ceremony_id: str, changes: Mapping[str, Any], *, owner: str | None = None) -> StoredCeremony:
        """Change keys of a ceremony; None takes one out. What is not named stays, ``enabled`` too. With ``owner`` only
        one of theirs is there.

        Raises:
            CeremonyNotFound: there is none of that id.
            CeremonyInvalid: a value is wrong, or ``id`` or ``createdBy`` would change.
            CeremonyNotWritable: its file is not to be changed from here.
            ConfigError: the file cannot be read or written.
        """
        async with self._lock:
            self.get(ceremony_id, owner=owner)
            stored = self._writable(ceremony_id)
            path = Path(stored.path)
            fixed = {"id": ceremony_id, "createdBy": stored.ceremony.created_by}
            for key, value in fixed.items():
                if key in changes and changes[key] != value:
                    raise CeremonyInvalid(key, f"'{key}' cannot be changed")
            wanted = timed({k: v for k, v in changes.items() if k not in fixed}, self._clock.now())
            text = (await self._files.read(path, bytes_max=CEREMONY_BYTES_MAX)).decode("utf-8-sig", "replace")
            try:
                parse_ceremony(load(text, stored.path))
            except ConfigError as error:
                raise CeremonyNotWritable(f"its file is broken: {error}", hint="correct it first") from None
            edited = changed(text, wanted)
            checked(edited)
            if edited != text:
                await self._files.write(path, edited.encode(), mode=None)
                await self._take_up(path)
            return self.get(ceremony_id)

    async def delete(self, ceremony_id: str, *, owner: str | None = None) -> None:
        """Remove a ceremony's file, a broken one too. With ``owner`` only one of theirs is there.

        Raises:
            CeremonyNotFound: there is none of that id.
            CeremonyNotWritable: its file is not to be removed from here.
        """
        async with self._lock:
            if owner is not None:
                self.get(ceremony_id, owner=owner)
            broken = [Path(problem.path) for problem in self._problems(ceremony_id)]
            in_force = ceremony_id in self._folder.contents.ceremonies
            path = Path(self._writable(ceremony_id).path) if in_force or len(broken) != 1 else broken[0]
            await self._files.remove(path)
            await self._take_up(path)

    def _writable(self, ceremony_id: str) -> StoredCeremony:
        stored = self.get(ceremony_id)
        others = [problem.path for problem in self._problems(ceremony_id) if problem.path != stored.path]
        if stored.ceremony.project:
            raise CeremonyNotWritable(
                f"“{ceremony_id}” is replaced by the project “{stored.ceremony.project}”", hint=f"edit {stored.path}"
            )
        if others:
            raise CeremonyNotWritable(
                f"two files have the id “{ceremony_id}”: {stored.path} and {others[0]}", hint="remove one of them"
            )
        return stored

    def _problems(self, ceremony_id: str) -> tuple[FileProblem, ...]:
        """The files of that id that are not in force as they stand."""
        return tuple(problem for problem in self.errors() if problem.ceremony_id == ceremony_id)

    async def _take_up(self, path: Path) -> None:
        await self._folder.take_up(path)
        self._changed()
