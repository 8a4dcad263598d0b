"""Small files on disk: read under a cap, listed with digests, replaced atomically, always off the loop. ``FileWatch``
reports changes by content, once they have settled, of every file that the hub reads again while it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import REPLACEMENT, one_line
from fleetsim.runtime.ports import Files, FileStamp

IRREGULAR = "irregular"
"""The digest of an irregular file. It is listed, so that reading it can report why it is refused."""

_BLOCK = 256 * 1024
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class DiskFiles:
    """The real Files. Each call runs in a thread."""

    async def read(self, path: Path, *, bytes_max: int, private: bool = False) -> bytes:
        """The content. Raises ConfigError if missing, unreadable, irregular or larger than ``bytes_max``.

        ``private`` refuses a file that anybody but its owner can read.
        """
        return await asyncio.to_thread(read_file, path, bytes_max, private)

    async def listing(self, folder: Path, *, suffixes: tuple[str, ...]) -> tuple[FileStamp, ...]:
        """Files by name with digests; hidden ones are left out, irregular ones marked. Raises ConfigError."""
        return await asyncio.to_thread(_listing, folder, suffixes)

    async def folders(self, folder: Path) -> tuple[Path, ...]:
        """The folders in a folder by name, no hidden ones and no links; none if it is missing or unreadable."""
        return await asyncio.to_thread(_folders, folder)

    async def stamp(self, path: Path) -> FileStamp | None:
        """One file with its digest, an irregular one marked; None if there is none."""
        return await asyncio.to_thread(_stamp, path)

    async def write(self, path: Path, data: bytes, *, mode: int | None = 0o600) -> None:
        """Replace atomically: temporary file beside it, sync, rename, sync the folder. Raises ConfigError.

        ``mode`` None: that of the file replaced. A device or pipe is written to and stays: /dev/null, /dev/stdout.
        """
        await asyncio.to_thread(_write, path, data, mode)

    async def create(self, path: Path, data: bytes, *, mode: int = 0o600) -> bool:
        """Write a new file, and its folder if that is missing. False: there is one already. Raises ConfigError."""
        return await asyncio.to_thread(_create, path, data, mode)

    async def remove(self, path: Path) -> None:
        """Delete if there."""
        await asyncio.to_thread(path.unlink, missing_ok=True)


def _open(path: Path) -> int:
    """A descriptor of a regular file; never follows a link, never waits for a pipe's other end."""
    try:
        if path.is_symlink():
            raise ConfigError(f"{path}: is a symbolic link; only regular files are read")
        descriptor = os.open(path, _READ_FLAGS)
    except (OSError, ValueError) as error:
        raise _said(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path}: is not a regular file")
    return descriptor


def _said(path: Path, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "strerror", None) or "not a usable path"
    return ConfigError(f"{one_line(str(path), 400)}: {reason.lower()}")


def read_file(path: Path, bytes_max: int, private: bool) -> bytes:
    """As ``Files.read``, at once."""
    with open(_open(path), "rb") as file:
        if private and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ConfigError(f"{path}: others can read it", hint=f"chmod 600 {path}")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ConfigError(f"{path}: is larger than {bytes_max} bytes")
    return data


def _listing(folder: Path, suffixes: tuple[str, ...]) -> tuple[FileStamp, ...]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(suffixes) and not name.startswith("."))
    except OSError as error:
        raise _said(folder, error) from error
    return tuple(FileStamp(path=folder / name, digest=_digest(folder / name)) for name in names)


def _folders(folder: Path) -> tuple[Path, ...]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return ()
    return tuple(folder / name for name in sorted(names))


def _stamp(path: Path) -> FileStamp | None:
    return FileStamp(path=path, digest=_digest(path)) if os.path.lexists(path) else None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(_open(path), "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except (ConfigError, OSError):
        return IRREGULAR
    return digest.hexdigest()


_OPEN_FILES = frozenset({"/dev", "/dev/fd"})
"""Folders of links to files that are open, such as /dev/stderr: a link must not be replaced."""


def _write(path: Path, data: bytes, mode: int | None) -> None:
    temporary = None
    try:
        if path.is_char_device() or path.is_fifo() or str(path.parent) in _OPEN_FILES:
            with path.open("ab") as device:
                device.write(data)
            return
        temporary = _beside(path, data, mode if mode is not None else stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise _said(path, error) from error
    _sync_folder(path.parent)


def _create(path: Path, data: bytes, mode: int) -> bool:
    """A link to a file that is complete: it fails where there is one, and nobody ever sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path, data, mode)
        try:
            # Give a complete file its name, unless that is taken (FileExistsError).
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise
            except OSError:  # a file system without links: the name is taken by an empty file first
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                os.replace(temporary, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)
    except OSError as error:
        raise _said(path, error) from error
    _sync_folder(path.parent)
    return True


def _beside(path: Path, data: bytes, mode: int) -> str:
    """A complete, synced temporary file in the same folder. Raises OSError."""
    import tempfile  # and with it all of Python's compression, which most verbs never need

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- saving what an agent sent ---------------------------------------------------------------------------------------
# Writing what an agent sent into a folder a person named: under safe names, over nothing, through no symlink.
#
# The folder is the person's word and is taken as it is; the names in it are the agent's, and hostile.


NAME_BYTES_MAX = 200
"""Longest name made, in bytes of UTF-8; file systems take 255, and a number may have to be added."""

NAMESAKES_MAX = 1_000

_SUFFIX_MAX = 20
_NEVER = re.compile(f'[\x00-\x1f<>:"|?*{REPLACEMENT}]')  # ":" names another stream of a file, or another drive
_RESERVED = re.compile(r"(CON|PRN|AUX|NUL|CLOCK\$|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])", re.IGNORECASE)


def safe_name(name: str | None, otherwise: str) -> str:
    """A name that is one on every system and means nothing else anywhere; ``otherwise`` if nothing is left of it.

    The last part of a path, without control, format and bidirectional characters, without marks at the front that
    hide a file, make it an option or a home folder, not a device of Windows, and not too long; its suffix stays.
    """
    last = re.split(r"[/\\]", name or "")[-1][-4 * NAME_BYTES_MAX :]
    name_left = _NEVER.sub("", one_line(last, 4 * NAME_BYTES_MAX)).lstrip(" .-~").rstrip(" .")
    if not name_left:
        return otherwise
    if _RESERVED.fullmatch(name_left.split(".")[0].rstrip()):
        name_left = f"_{name_left}"
    stem, suffix = _split(name_left)
    cut = stem.encode()[: NAME_BYTES_MAX - len(suffix.encode())].decode(errors="ignore")
    return cut.rstrip(" .") + suffix


def _split(name: str) -> tuple[str, str]:
    stem, suffix = os.path.splitext(name)
    return (stem, suffix) if len(suffix.encode()) <= _SUFFIX_MAX else (name, "")


class Folder:
    """An open folder to save into, made if it is not there. Use as ``with``. Raises ConfigError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def __enter__(self) -> Folder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"the folder {self.path} cannot be used: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def save(self, name: str, content: bytes) -> Path:
        """Write a new file; ``report (2).pdf`` if there is a ``report.pdf``. ``name`` is a ``safe_name``.

        A file that cannot be written whole is taken away again. Raises ConfigError.
        """
        made, handle = self._create(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError as error:
            with suppress(OSError):
                os.unlink(made, dir_fd=self._handle)
            raise ConfigError(f"{self.path / made} cannot be written: {error.strerror}") from error
        return self.path / made

    def _create(self, name: str) -> tuple[str, int]:
        stem, suffix = _split(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for number in range(1, NAMESAKES_MAX + 1):
            tried = name if number == 1 else f"{stem} ({number}){suffix}"
            try:
                return tried, os.open(tried, flags, 0o666, dir_fd=self._handle)
            except FileExistsError:
                continue  # whatever it is, a symlink that leads nowhere included
            except OSError as error:
                raise ConfigError(f"{self.path / tried} cannot be written: {error.strerror}") from error
        raise ConfigError(f"{self.path} holds {NAMESAKES_MAX:,} files of the name {name}", hint="give another --out")


# ------------------------------------------------------------------ files that change

LOOK_EVERY_S = 4.5
SETTLE_S = 0.25
"""A file that still changes within this time is being written in place, and waits for the next look. Together
with the pause between looks: a change is in force within five seconds."""


@dataclass(frozen=True, slots=True)
class Changes:
    """New or changed files, and files that were removed."""

    changed: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)


class FileWatch:
    """Looks when it is called. ``listing`` gives the files as they are now."""

    def __init__(self, listing: Callable[[], Awaitable[Iterable[FileStamp]]]) -> None:
        self._listing = listing
        self._seen: dict[Path, str] = {}
        self._looked = False

    @classmethod
    def of_file(cls, files: Files, path: Path) -> Self:
        """Looks at one file. A missing file is a change like any other, once it stays missing."""

        async def listing() -> tuple[FileStamp, ...]:
            return (await files.stamp(path) or FileStamp(path=path, digest=""),)

        return cls(listing)

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


def create_all(files: Mapping[Path, str], must: Path) -> tuple[list[Path], list[Path]]:
    """Write new files, all or none, and the folders that they need. A file that is there stays, except that ``must`` is
    an error then. Returns (written, kept). Raises ConfigError if one could not be written; those before it are deleted
    again."""
    written: list[Path] = []
    unchanged: list[Path] = []
    folders: list[Path] = []
    try:
        for file, text in files.items():
            missing = [folder for folder in file.parents if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir()
                folders.append(folder)
            if file != must and os.path.lexists(file):
                unchanged.append(file)
                continue
            with open(file, "x", encoding="utf-8") as opened:
                written.append(file)
                opened.write(text)
    except BaseException as error:
        for file in written:
            with suppress(OSError):
                file.unlink()
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot write {error.filename or must}: {reason}; nothing was written") from None
        raise
    return written, unchanged
