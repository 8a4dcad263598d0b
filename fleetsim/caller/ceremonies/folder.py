"""The ceremonies folder: which ceremonies are in force, and what is wrong with the files that are not.

Change is told by content, not by size; a broken file keeps its last good version; a deleted one is gone
(reliability U17, F-48). Beside the folder a project may have ceremonies of its own
(``.proto/projects/SLUG/ceremonies``): one with the id of one in the folder replaces it. Knows files and ceremonies,
no time and no requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path
from typing import Any

from fleetsim.caller.file_watch import Changes, FileWatch
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.model.work import ID
from fleetsim.runtime.ports import Files, FileStamp
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

SUFFIXES = (".yaml", ".yml")
PROJECTS = Path(".proto", "projects")
PROJECTS_MAX = 100
CEREMONIES_MAX = 1_000
PER_OWNER_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file that is not, or not in its newest form, in force.

    ``ceremony_id`` is the id it gives itself, else the name of the file; ``kept``: its last good version is in force.
    """

    path: str
    error: str
    ceremony_id: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """What the folder holds: ceremonies by id, the file each came from and its keys, and the problems by file."""

    ceremonies: Mapping[str, Ceremony] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
            return await self._poll()

    async def take_up(self, path: Path) -> None:
        """Read one file now, or see that it is gone: whoever wrote or removed it need not wait for the next look."""
        async with self._lock:
            stamp = await self._files.stamp(path)
            self._watch.note(path, stamp)
            self._files_read.pop(path, None)
            if stamp is not None:
                self._files_read[path] = await self._read(path)
            self.contents = self._in_force()

    async def _poll(self) -> bool:
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

    async def _listing(self) -> list[FileStamp]:
        """The files of the folder and of all projects. Raises ConfigError."""
        found: list[FileStamp] = []
        try:
            found += await self._files.listing(self.path, suffixes=SUFFIXES)
        except ConfigError as error:
            # A fleet without ceremonies has no folder, and that is no trouble; one that was there and is gone is.
            ours = any(path.parent == self.path for path in self._files_read)
            if ours or not isinstance(error.__cause__, FileNotFoundError):
                raise
        for project in (await self._files.folders(self._projects))[:PROJECTS_MAX]:
            folder = project / "ceremonies"
            if ID.fullmatch(project.name) and folder in await self._files.folders(project):
                found += await self._files.listing(folder, suffixes=SUFFIXES)
        return found

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
        said = document.at(("id",))
        key = one_line(said, 128) if isinstance(said, str) else key
        ceremony = replace(parse_ceremony(document), project=_project(path, folder))
        return _File(ceremony_id=key, good=ceremony, values=document.value)
    except ConfigError as error:
        return replace(before, ceremony_id=key, error=_said(error))


def _said(error: ConfigError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _in_force(files: Mapping[Path, _File], folder: Path, problems: list[FileProblem]) -> FolderContents:
    """A project's file counts before the folder's, then the first of an id by name; limits are per owner and
    overall (T-34).
    """
    ceremonies: dict[str, Ceremony] = {}
    paths: dict[str, str] = {}
    values: dict[str, Mapping[str, Any]] = {}
    owners: Counter[str] = Counter()
    for path, file in sorted(files.items(), key=lambda item: (not _project(item[0], folder), item[0])):
        error, good = file.error, file.good
        if good is not None:
            replaced = ceremonies.get(good.ceremony_id)
            refusal = _refusal(good, paths, owners)
            if replaced is not None and replaced.project and not good.project:
                pass
            elif refusal:
                error = error or f"{path}: {refusal}"
            else:
                ceremonies[good.ceremony_id] = good
                paths[good.ceremony_id] = str(path)
                values[good.ceremony_id] = file.values
                owners[good.created_by] += 1
        if error:
            kept = good is not None and paths.get(good.ceremony_id) == str(path)
            problems.append(FileProblem(path=str(path), error=error, ceremony_id=file.ceremony_id, kept=kept))
    return FolderContents(ceremonies=ceremonies, paths=paths, values=values, problems=tuple(problems))


def _refusal(ceremony: Ceremony, paths: Mapping[str, str], owners: Counter[str]) -> str:
    key, owner = ceremony.ceremony_id, ceremony.created_by
    if key in paths:
        return f"the id '{key}' is taken by {paths[key]}"
    if len(paths) >= CEREMONIES_MAX:
        return f"more than {CEREMONIES_MAX} ceremonies"
    if owners[owner] >= PER_OWNER_MAX:
        return f"more than {PER_OWNER_MAX} ceremonies of '{owner}'"
    return ""
