"""The ceremonies folder: which ceremonies are in force, what is wrong with the other files, and changes to them.

A change is detected by content, not by size; a broken file keeps its last good version (reliability U17, F-48). A
project may have ceremonies of its own (``.proto/projects/SLUG/ceremonies``), which replace those with their ids.
Programs and people change the same files, so ``CeremonyStore`` keeps nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path
from typing import Any, Protocol

from fleetsim.api.answers import FileProblem
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.ceremony.written import CeremonyInvalid, changed, checked, timed, written
from fleetsim.model.errors import ConfigError, FleetsimError, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import ID
from fleetsim.runtime.files import Changes, FileWatch
from fleetsim.runtime.ports import Clock, Files, FileStamp
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

SUFFIXES = (".yaml", ".yml")
PROJECTS = Path(".proto", "projects")
PROJECTS_MAX = 100
CEREMONIES_MAX = 1_000
PER_OWNER_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCeremony:
    """A ceremony in force: checked, and with the keys and values as they stand in its file."""

    ceremony: Ceremony
    path: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """The folder's ceremonies by id, also as they stand in their files, and the problems by file."""

    ceremonies: Mapping[str, Ceremony] = field(default_factory=dict)
    stored: Mapping[str, StoredCeremony] = field(default_factory=dict)
    problems: tuple[FileProblem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    ceremony_id: str = ""
    good: Ceremony | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class CeremonyFolder:
    """Reads the folder as often as it is asked to."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self._projects = path.parent / PROJECTS
        self._files_read: dict[Path, _File] = {}
        self._folder_error = ""
        self._watch = FileWatch(self._listing)
        self._lock = asyncio.Lock()
        self.contents = FolderContents()

    async def poll(self) -> bool:
        """Look once; True if ``contents`` changed. Never raises: what is wrong is among the problems."""
        async with self._lock:
            trouble, changes = "", Changes()
            try:
                changes = await self._watch.look()
            except ConfigError as error:
                trouble = str(error)
            if not (changes or trouble or self._folder_error):
                return False
            for path in changes.gone:
                del self._files_read[path]
            for path in changes.changed:
                self._files_read[path] = await self._read(path)
            before, self._folder_error = self.contents, trouble
            self.contents = self._in_force()
            return self.contents != before

    async def take_up(self, path: Path) -> None:
        """Read one file now, or remove its ceremony if it is gone. Its writer need not wait for the next look."""
        async with self._lock:
            stamp = await self._files.stamp(path)
            self._watch.note(path, stamp)
            self._files_read.pop(path, None)
            if stamp is not None:
                self._files_read[path] = await self._read(path)
            self.contents = self._in_force()

    async def _listing(self) -> list[FileStamp]:
        """The files of the folder and of all projects. Raises ConfigError."""
        stamps: list[FileStamp] = []
        try:
            stamps += await self._files.listing(self.path, suffixes=SUFFIXES)
        except ConfigError as error:
            # A fleet without ceremonies has no folder; only a folder that disappears is an error.
            ours = any(path.parent == self.path for path in self._files_read)
            if ours or not isinstance(error.__cause__, FileNotFoundError):
                raise
        for project in (await self._files.folders(self._projects))[:PROJECTS_MAX]:
            folder = project / "ceremonies"
            if ID.fullmatch(project.name) and folder in await self._files.folders(project):
                stamps += await self._files.listing(folder, suffixes=SUFFIXES)
        return stamps

    async def _read(self, path: Path) -> _File:
        before = self._files_read.get(path, _File())
        try:
            text = await self._files.read(path, bytes_max=CEREMONY_BYTES_MAX)
        except ConfigError as error:
            return replace(before, ceremony_id=path.stem, error=_said(error))
        return _parsed(path, text, self.path, before)

    def _in_force(self) -> FolderContents:
        problems = [FileProblem(path=str(self.path), error=self._folder_error)] if self._folder_error else []
        return _in_force(self._files_read, self.path, problems)


def contents_of(texts: Mapping[str, bytes], folder: Path) -> FolderContents:
    """What ``folder`` would hold with these files in it, by their names as seen from it."""
    paths = {Path(normpath(folder / name)): text for name, text in texts.items()}
    return _in_force({path: _parsed(path, text, folder, _File()) for path, text in paths.items()}, folder, [])


def _project(path: Path, folder: Path) -> str:
    """Whose override a file is, "" for one of the folder itself."""
    return "" if path.parent == folder else path.parent.parent.name


def _parsed(path: Path, text: bytes, folder: Path, before: _File) -> _File:
    key = path.stem
    try:
        document = load(text, str(path))
        id_place = document.at(("id",))
        key = one_line(id_place, 128) if isinstance(id_place, str) else key
        ceremony = replace(parse_ceremony(document), project=_project(path, folder))
        return _File(ceremony_id=key, good=ceremony, values=document.value)
    except ConfigError as error:
        return replace(before, ceremony_id=key, error=_said(error))


def _said(error: ConfigError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _in_force(files: Mapping[Path, _File], folder: Path, problems: list[FileProblem]) -> FolderContents:
    """A project's file counts before the folder's, then the first by name; limits are per owner and overall (T-34)."""
    stored: dict[str, StoredCeremony] = {}
    owners: Counter[str] = Counter()
    for path, file in sorted(files.items(), key=lambda item: (not _project(item[0], folder), item[0])):
        error, good = file.error, file.good
        if good is not None:
            replaced = stored.get(good.ceremony_id)
            refusal = _refusal(good, stored, owners)
            if replaced is not None and replaced.ceremony.project and not good.project:
                pass
            elif refusal:
                error = error or f"{path}: {refusal}"
            else:
                stored[good.ceremony_id] = StoredCeremony(ceremony=good, path=str(path), values=file.values)
                owners[good.created_by] += 1
        if error:
            stays = good is not None and good.ceremony_id in stored and stored[good.ceremony_id].path == str(path)
            problems.append(FileProblem(path=str(path), error=error, ceremony_id=file.ceremony_id, kept=stays))
    ceremonies = {key: one.ceremony for key, one in stored.items()}
    return FolderContents(ceremonies=ceremonies, stored=stored, problems=tuple(problems))


def _refusal(ceremony: Ceremony, stored: Mapping[str, StoredCeremony], owners: Counter[str]) -> str:
    key, owner = ceremony.ceremony_id, ceremony.created_by
    if key in stored:
        return f"the id '{key}' is taken by {stored[key].path}"
    if len(stored) >= CEREMONIES_MAX:
        return f"more than {CEREMONIES_MAX} ceremonies"
    if owners[owner] >= PER_OWNER_MAX:
        return f"more than {PER_OWNER_MAX} ceremonies of '{owner}'"
    return ""


# -- changes

FILE_MODE = 0o644


class CeremonyExists(FleetsimError):
    """There is a ceremony, or a file, of that id already."""


class CeremonyNotFound(UnknownTarget):
    """No ceremony has that id."""


class CeremonyNotWritable(FleetsimError):
    """Its file is not to be changed from here: a project's, one of two with the id, or one that is broken."""


class TooManyCeremonies(FleetsimError):
    """No room for one more: of this owner, or at all (T-34)."""


class FolderFollower(Protocol):
    """Acts on what the folder holds (the scheduler)."""

    def follow_folder(self) -> None:
        """Use the ceremonies that were read last."""


class CeremonyStore:
    """Ceremonies to list, create, update and delete, one change after another; ``follower`` learns of each.

    The caller decides who may do what: ``created_by`` is its word, and an update changes neither it nor the id. A
    project's overrides are shown and never written: they are the project's.
    """

    def __init__(
        self, folder: CeremonyFolder, files: Files, clock: Clock, follower: FolderFollower | None = None
    ) -> None:
        self._folder = folder
        self._files = files
        self._clock = clock
        self._follower = follower
        self._lock = asyncio.Lock()

    def list(self) -> tuple[StoredCeremony, ...]:
        """Every ceremony in force, by id, disabled ones included."""
        return tuple(self.get(key) for key in sorted(self._folder.contents.ceremonies))

    def get(self, ceremony_id: str, *, owner: str | None = None) -> StoredCeremony:
        """One ceremony in force; with ``owner``, only one that they own. Raises CeremonyNotFound."""
        stored = self._folder.contents.stored.get(ceremony_id)
        if stored is None or owner not in {None, stored.ceremony.created_by}:
            errors = [problem.error for problem in self._problems(ceremony_id)] if owner is None else []
            hint = f"its file is broken: {errors[0]}" if errors else None
            raise CeremonyNotFound(f'Ceremony "{one_line(ceremony_id, 64)}" not found', hint=hint)
        return stored

    def errors(self) -> tuple[FileProblem, ...]:
        """The files that are not in force as they stand."""
        return self._folder.contents.problems

    async def create(self, values: Mapping[str, Any], *, created_by: str) -> StoredCeremony:
        """Write a new ceremony, as ``ID.yaml``; never over another (T-33).

        ``values`` has the keys of a file. ``in`` (seconds, or 30m, 2h, 1d) is stored as the time it means, and ``at``
        without a schedule means once. Raises CeremonyInvalid for a wrong or missing value, CeremonyExists if the id or
        the file is taken, TooManyCeremonies, and ConfigError if the file cannot be written.
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
            owners = Counter(known.created_by for known in contents.ceremonies.values())
            if refusal := _refusal(ceremony, contents.stored, owners):
                raise TooManyCeremonies(refusal)
            if not await self._files.create(path, written(wanted).encode(), mode=FILE_MODE):
                raise taken
            await self._take_up(path)
            return self.get(ceremony.ceremony_id)

    async def update(self, ceremony_id: str, changes: Mapping[str, Any], *, owner: str | None = None) -> StoredCeremony:
        """Change keys of a ceremony; None removes one. Other keys stay, ``enabled`` too. With ``owner``, only one that
        they own. Raises CeremonyNotFound, CeremonyInvalid for a wrong value or another ``id`` or ``createdBy``,
        CeremonyNotWritable, and ConfigError if the file cannot be read or written.
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

        Raises CeremonyNotFound for an unknown id, and CeremonyNotWritable for a file that only a person may remove.
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
        if self._follower is not None:
            self._follower.follow_folder()
