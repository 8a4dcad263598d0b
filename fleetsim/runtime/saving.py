"""Writing what an agent sent into a folder a person named: under safe names, over nothing, through no symlink.

The folder is the person's word and is taken as it is; the names in it are the agent's, and hostile.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import REPLACEMENT, one_line

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
    found = _NEVER.sub("", one_line(last, 4 * NAME_BYTES_MAX)).lstrip(" .-~").rstrip(" .")
    if not found:
        return otherwise
    if _RESERVED.fullmatch(found.split(".")[0].rstrip()):
        found = f"_{found}"
    stem, suffix = _split(found)
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
