"""The ``Files`` port in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import FileStamp


class MemoryFiles:
    """A tree of files that is a dict. ``put`` and ``take`` are for the test that plays the editor."""

    def __init__(self, files: dict[str, str | bytes] | None = None) -> None:
        self._content: dict[Path, bytes] = {}
        # A hub looks at its folders every few seconds of a day that is played in one, and hardly ever is there news.
        self._listings: dict[tuple[Path, tuple[str, ...]], tuple[FileStamp, ...]] = {}
        self._folders: dict[Path, tuple[Path, ...]] = {}
        self.modes: dict[Path, int] = {}
        for path, content in (files or {}).items():
            self.put(path, content)

    def put(self, path: str | Path, content: str | bytes) -> None:
        """Create or replace a file, as an editor would."""
        self._set(Path(path), content.encode() if isinstance(content, str) else content)

    def _set(self, path: Path, content: bytes | None) -> None:
        self._listings.clear()
        self._folders.clear()
        if content is None:
            self._content.pop(path, None)
        else:
            self._content[path] = content

    def take(self, path: str | Path) -> bytes:
        """The content. Raises KeyError if there is no such file."""
        return self._content[Path(path)]

    def content(self) -> dict[Path, bytes]:
        """Every file there is."""
        return dict(self._content)

    async def read(self, path: Path, *, bytes_max: int, private: bool = False) -> bytes:
        """The content. Raises ConfigError if missing, larger than ``bytes_max``, or not as ``private`` as asked."""
        content = self._content.get(path)
        if content is None:
            raise ConfigError(f"{path}: no such file")
        if private and self.modes.get(path, 0o600) & 0o077:
            raise ConfigError(f"{path}: others can read it", hint=f"chmod 600 {path}")
        if len(content) > bytes_max:
            raise ConfigError(f"{path}: larger than {bytes_max} bytes")
        return content

    async def listing(self, folder: Path, *, suffixes: tuple[str, ...]) -> tuple[FileStamp, ...]:
        """The folder's own files by name. Raises ConfigError if nothing was ever put into it."""
        if (folder, suffixes) not in self._listings:
            if not any(folder in path.parents for path in self._content):
                raise ConfigError(f"{folder}: no such folder") from FileNotFoundError(str(folder))
            self._listings[folder, suffixes] = tuple(
                FileStamp(path=path, digest=hashlib.sha256(content).hexdigest())
                for path, content in sorted(self._content.items())
                if path.parent == folder and path.suffix in suffixes
            )
        return self._listings[folder, suffixes]

    async def folders(self, folder: Path) -> tuple[Path, ...]:
        """The folders in a folder by name, no hidden ones; none if nothing was ever put into it."""
        if folder not in self._folders:
            inside = {path.relative_to(folder).parts for path in self._content if folder in path.parents}
            names = sorted({parts[0] for parts in inside if len(parts) > 1})
            self._folders[folder] = tuple(folder / name for name in names if not name.startswith("."))
        return self._folders[folder]

    async def stamp(self, path: Path) -> FileStamp | None:
        """One file with its digest; None if there is none."""
        content = self._content.get(path)
        return None if content is None else FileStamp(path=path, digest=hashlib.sha256(content).hexdigest())

    async def write(self, path: Path, data: bytes, *, mode: int | None = 0o600) -> None:
        """Replace at once; the mode is kept in ``modes``."""
        self._set(path, data)
        if mode is not None:
            self.modes[path] = mode

    async def create(self, path: Path, data: bytes, *, mode: int = 0o600) -> bool:
        """Write a new file. False: there is one already."""
        if path in self._content:
            return False
        await self.write(path, data, mode=mode)
        return True

    async def remove(self, path: Path) -> None:
        """Delete if there."""
        self._set(path, None)
        self.modes.pop(path, None)
