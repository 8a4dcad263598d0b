"""Stand between SQLite and the disk, in the process under test and without a change of the code under test.

SQLite reaches files through a table of functions (its VFS). ``Disk`` puts a copy of the default table in
its place in which open, write, sync, truncate, delete and lock first come to us, then go to the original. So a
test sees every call of the storage, can let the Nth one fail, and can rebuild the files as they
may have been at any moment between two syncs. It works on the very library that Python's ``sqlite3`` uses.
"""

from __future__ import annotations

import _sqlite3
import ctypes as c
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FULL = sqlite3.SQLITE_FULL
READONLY = sqlite3.SQLITE_READONLY
BUSY = sqlite3.SQLITE_BUSY
IOERR = {"write": sqlite3.SQLITE_IOERR_WRITE, "sync": sqlite3.SQLITE_IOERR_FSYNC}

_P = c.c_void_p
_OPEN = c.CFUNCTYPE(c.c_int, _P, _P, _P, c.c_int, _P)
_DELETE = c.CFUNCTYPE(c.c_int, _P, c.c_char_p, c.c_int)
_CLOSE = c.CFUNCTYPE(c.c_int, _P)
_WRITE = c.CFUNCTYPE(c.c_int, _P, _P, c.c_int, c.c_int64)
_TRUNCATE = c.CFUNCTYPE(c.c_int, _P, c.c_int64)
_SYNC = c.CFUNCTYPE(c.c_int, _P, c.c_int)
_SHM_LOCK = c.CFUNCTYPE(c.c_int, _P, c.c_int, c.c_int, c.c_int)
_TAKE = 2  # SQLITE_SHM_LOCK


class _Methods(c.Structure):
    """``sqlite3_io_methods``, version 3: the operations on an open file."""

    _fields_ = (
        ("iVersion", c.c_int),
        ("xClose", _CLOSE),
        ("xRead", _P),
        ("xWrite", _WRITE),
        ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC),
        ("others", _P * 8),
        ("xShmLock", _SHM_LOCK),
        ("more", _P * 4),
    )


class _Vfs(c.Structure):
    """``sqlite3_vfs``, version 3: the operations on names."""

    _fields_ = (
        ("iVersion", c.c_int),
        ("szOsFile", c.c_int),
        ("mxPathname", c.c_int),
        ("pNext", _P),
        ("zName", c.c_char_p),
        ("pAppData", _P),
        ("xOpen", _OPEN),
        ("xDelete", _DELETE),
        ("others", _P * 14),
    )


@dataclass(frozen=True)
class Step:
    """One call. ``what`` is write, sync, truncate, delete, lock, or note (put there by the test)."""

    what: str
    file: str
    offset: int = 0
    data: bytes = field(default=b"", repr=False)


def available() -> bool:
    """Whether Python's SQLite can be reached: some builds of Python hide it inside themselves."""
    try:
        library = c.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = c.POINTER(_Vfs)
    except (AttributeError, OSError):
        return False
    return bool(library.sqlite3_vfs_find(None).contents.iVersion >= 3)


WHY_NOT = "this Python hides its SQLite, so that nothing can stand between it and the disk"

_numbers = itertools.count()
_alive: list[Any] = []  # SQLite keeps pointers to these as long as the process lives


class Disk:
    """Every call of SQLite on files in ``folder``, in order, and whether the next one may succeed."""

    def __init__(self, folder: Path, fail: Callable[[Step], int] | None = None) -> None:
        self.steps: list[Step] = []
        self.fail = fail
        self._folder = str(folder)
        self._names: dict[int, str] = {}

    def note(self, text: str) -> None:
        """Mark a moment, such as an acknowledgement."""
        self.steps.append(Step("note", text))

    def reached(self, step: Step) -> int:
        """Record a call; the error code it must end with, or 0."""
        code = self.fail(step) if self.fail else 0
        if code == 0:
            self.steps.append(step)
        return code

    @contextmanager
    def installed(self) -> Iterator[Disk]:
        """Be the disk of every connection that is opened meanwhile; close them before leaving."""
        library = c.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = c.POINTER(_Vfs)
        original = library.sqlite3_vfs_find(None)
        mine = self._table(original)
        library.sqlite3_vfs_register(c.byref(mine), 1)
        try:
            yield self
        finally:
            library.sqlite3_vfs_unregister(c.byref(mine))
            library.sqlite3_vfs_register(original, 1)

    def _table(self, original: Any) -> _Vfs:
        real = original.contents
        mine = _Vfs.from_buffer_copy(real)
        mine.zName = f"watched-{next(_numbers)}".encode()
        tables: dict[int, _Methods] = {}

        def on_open(_: int, name: int, file: int, flags: int, out: int) -> int:
            code: int = real.xOpen(c.addressof(real), name, file, flags, out)
            path = c.string_at(name).decode() if name else ""
            if code == 0 and path.startswith(self._folder):
                self._names[file] = Path(path).name
                slot = _P.from_address(file)
                if slot.value not in tables:
                    tables[slot.value or 0] = self._methods(_Methods.from_address(slot.value or 0))
                slot.value = c.addressof(tables[slot.value or 0])
            return code

        def on_delete(_: int, name: bytes, sync_folder: int) -> int:
            if name.decode().startswith(self._folder):
                code = self.reached(Step("delete", Path(name.decode()).name))
                if code:
                    return code
            result: int = real.xDelete(c.addressof(real), name, sync_folder)
            return result

        mine.xOpen, mine.xDelete = _OPEN(on_open), _DELETE(on_delete)
        _alive.extend((mine, tables, real))
        return mine

    def _methods(self, real: _Methods) -> _Methods:
        mine = _Methods.from_buffer_copy(real)

        def on_write(file: int, data: int, size: int, offset: int) -> int:
            step = Step("write", self._names[file], offset, c.string_at(data, size))
            code: int = self.reached(step) or real.xWrite(file, data, size, offset)
            return code

        def on_truncate(file: int, size: int) -> int:
            code: int = self.reached(Step("truncate", self._names[file], size)) or real.xTruncate(file, size)
            return code

        def on_sync(file: int, flags: int) -> int:
            code: int = self.reached(Step("sync", self._names[file])) or real.xSync(file, flags)
            return code

        def on_lock(file: int, offset: int, count: int, flags: int) -> int:
            code = self.reached(Step("lock", self._names[file])) if flags & _TAKE else 0
            result: int = code or real.xShmLock(file, offset, count, flags)
            return result

        mine.xShmLock = _SHM_LOCK(on_lock)
        mine.xWrite, mine.xTruncate, mine.xSync = _WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync)
        _alive.extend((mine, real))
        return mine
