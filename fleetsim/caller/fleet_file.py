"""agents.yaml while the hub runs: its last good version, and what is wrong with it now.

A broken, empty or missing file changes nothing (docs/decisions/0010). Knows the file, not who goes by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleetsim.caller.config import load_fleet
from fleetsim.caller.file_watch import FileWatch
from fleetsim.caller.fleet import FleetConfig
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Files, FileStamp


class FleetFile:
    """Reads agents.yaml as often as it is asked to. ``config`` is what it held when the hub started."""

    def __init__(self, files: Files, path: Path, config: FleetConfig, *, env: Mapping[str, str]) -> None:
        self._files = files
        self._env = env
        self._watch = FileWatch(self._listing)
        self.path = path
        self.config = config
        self.problem = ""

    async def poll(self) -> bool:
        """Look once; True if ``config`` or ``problem`` changed. Never raises."""
        before = self.config, self.problem
        try:
            if await self._watch.look():
                config = await load_fleet(self.path, files=self._files, env=self._env)
                if not config.agents:
                    hint = "stop the hub to be without agents, or set enabled: false"
                    raise ConfigError(f"{self.path}: names no agent", hint=hint)
                self.config, self.problem = config, ""
        except ConfigError as error:
            self.problem = f"{error}{f' ({error.hint})' if error.hint else ''}"
        return (self.config, self.problem) != before

    async def _listing(self) -> tuple[FileStamp, ...]:
        """The one file; that it is missing is told as a content of its own, once it stays so."""
        return (await self._files.stamp(self.path) or FileStamp(path=self.path, digest=""),)
