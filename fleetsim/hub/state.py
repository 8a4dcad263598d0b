"""The state directory (0700, files 0600; T-32): the hub's ledger and keys, and the announcement for other processes.
These functions block on the disk; they run before the hub starts and after it ends.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleetsim.client.hub_client import HubClient
from fleetsim.hub.keys import HubKeys, callback_document, read_callback_document
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Ids, Runtime

log = logging.getLogger(__name__)

API_KEY_FILE = "api-key"
PROCESSES_FILE = "processes"
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Linux's id of the time since the machine booted."""
CALLBACK_KEYS_FILE = "callback-keys.json"
HUB_FILE = "hub.json"
DEMO_FILES = ("demo-", ".json")
LEDGER_FILE = "ledger.db"
A2A_FILE = "a2a-tasks.db"
_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """The announcement of a running hub on this machine; ``demo``: the hub of a demo. ``shared``: its ledger is not
    the file of the state directory, but in a database.

    ``proof`` is the secret with which the hub proves that it wrote the announcement (``client.hub_client.prove``). A
    hub elsewhere has neither, and its client's key is in the environment.
    """

    url: str
    pid: int
    demo: bool = False
    shared: bool = False
    api_key: str | None = field(repr=False)
    proof: str | None = field(repr=False)

    def client(self, runtime: Runtime) -> HubClient:
        """A client of this hub; it refuses another program on the same port."""
        return HubClient(self.url, api_key=self.api_key, proof=self.proof, runtime=runtime)


def state_path(env: Mapping[str, str], given: Path | None = None) -> Path:
    """The state directory: as given, else FLEETSIM_STATE, else the user's XDG state directory."""
    if given is not None:
        return given
    if env.get("FLEETSIM_STATE"):
        return Path(env["FLEETSIM_STATE"])
    base = env.get("XDG_STATE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "fleetsim"


class StateDir:
    """One state directory. ``open`` creates it; the other methods require it."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger_path, self.key_path = path, path / LEDGER_FILE, path / API_KEY_FILE
        self._announcement: int | None = None

    def open(self) -> StateDir:
        """Create the directory, or close an existing one to others. Raises ConfigError if it cannot be created, or if
        others can write in it and it is not empty, so that a person must check it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o022 and any(self.path.iterdir()):
                self._require_own()
            if mode & 0o077:
                self.path.chmod(0o700)
                if any(self.path.iterdir()):
                    log.warning("%s could be read by others; now only its owner can", self.path)
        except OSError as error:
            hint = "choose another directory with --state or FLEETSIM_STATE"
            raise ConfigError(f"{self.path}: {error.strerror}", hint=hint) from None
        return self

    def _require_own(self) -> None:
        """Raises ConfigError if others can write here: they could write an announcement that receives the API key."""
        try:
            folder = self.path.stat()
        except OSError:
            return
        if stat.S_IMODE(folder.st_mode) & 0o022 or os.geteuid() not in {0, folder.st_uid}:
            raise ConfigError(
                f"{self.path}: others can write in it, and may have written its files",
                hint=f"look at its files, then `chmod 700 {shlex.quote(str(self.path))}`, or give another --state",
            )

    def keys(self, ids: Ids) -> HubKeys:
        """The hub's secrets, created at the first start. Raises ConfigError if a file is damaged."""
        api_key = self._secret_file(API_KEY_FILE, lambda: ids.secret()).strip()
        if len(api_key) < 16 or not api_key.isascii():
            raise ConfigError(
                f"{self.key_path}: holds no usable key", hint="delete the file, and the hub makes a new one"
            )
        epoch, callback = self._callback_keys(ids)
        return HubKeys(api_key=api_key, callback=callback, epoch=epoch, proof=ids.secret())

    def processes(self, ids: Ids) -> tuple[str, ...]:
        """Ids of this hub's last processes since the machine booted, with a new one for this process at the end.

        So a clone of the machine never has the id of a process that runs on the other one.
        """
        path, boot = self.path / PROCESSES_FILE, _read(BOOT)[:8] if BOOT.exists() else ""
        known = _read(path).split() if path.exists() else []
        processes = (*(name for name in known[-7:] if name.startswith(boot)), boot + ids.secret()[:16])
        self._write(PROCESSES_FILE, " ".join(processes))
        return processes

    def adopt(self, api_key: str) -> bool:
        """Replace the API key by the fleet's, so that verbs on this machine find it; True if it was another one."""
        changed = _read(self.key_path).strip() != api_key
        if changed:
            self._write(API_KEY_FILE, api_key)
        return changed

    def announce(self, url: str, pid: int, proof: str, *, shared: bool = False) -> None:
        """Announce the hub to other processes. The file stays locked until ``withdraw`` or the end of this process,
        because its number may soon belong to another one. ``shared``: its ledger is in a database."""
        announcement = json.dumps({"url": url, "pid": pid, "proof": proof, "shared": shared})
        self._announcement = self._write(HUB_FILE, announcement, keep_locked=True)

    def withdraw(self, pid: int) -> None:
        """Remove the announcement, unless another hub has replaced it."""
        with suppress(ConfigError):
            if (self._announced() or {}).get("pid") == pid:
                with suppress(OSError):
                    (self.path / HUB_FILE).unlink()
        if self._announcement is not None:
            os.close(self._announcement)
            self._announcement = None

    def find(self) -> HubAddress | None:
        """The running hub of this directory, or None; the announcement of a dead hub is ignored. Raises ConfigError if
        others can write in the directory."""
        self._require_own()
        with suppress(ConfigError):
            announcement = self._announced()
            if announcement is None or not _is_locked(self.path / HUB_FILE):
                return None
            url, pid, proof = announcement.get("url"), announcement.get("pid"), announcement.get("proof")
            if not isinstance(url, str) or type(pid) is not int or not isinstance(proof, str) or not proof:
                return None
            shared = announcement.get("shared") is True
            return HubAddress(url=url, pid=pid, shared=shared, api_key=_read(self.key_path).strip(), proof=proof)
        return None

    @contextmanager
    def announce_demo(self, demo: StateDir, pid: int) -> Iterator[bool]:
        """Let verbs without a hub find the demo's hub, whose state is in ``demo``.

        Yields whether verbs find this demo: they prefer a hub, then the demo that started first. The exit removes all
        files and folders again; the next demo deletes the file of a killed one.
        """
        new_folders = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        name = f"{DEMO_FILES[0]}{pid}{DEMO_FILES[1]}"
        try:
            announced = False
            with suppress(ConfigError):
                for left in (path for path, hub in self.open()._demos() if hub is None):
                    left.unlink(missing_ok=True)
                announced = self.find() is None and self.find_demo() is None
                self._write(name, json.dumps({"state": str(demo.path.resolve()), "pid": pid}))
            yield announced
        finally:
            with suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
                for folder in new_folders:
                    folder.rmdir()

    def find_demo(self) -> HubAddress | None:
        """The hub of the earliest running demo; None if none runs."""
        return next((hub for _, hub in self._demos() if hub is not None), None)

    def _demos(self) -> Iterator[tuple[Path, HubAddress | None]]:
        """The announcements of demos, the earliest first, each with its hub."""
        with suppress(OSError):
            for path in sorted(self.path.glob("*".join(DEMO_FILES)), key=lambda path: path.stat().st_mtime_ns):
                hub = None
                with suppress(ConfigError):
                    announcement = self._announced(path.name) or {}
                    if isinstance(where := announcement.get("state"), str) and os.path.isabs(where):
                        hub = StateDir(Path(where)).find()
                    hub = replace(hub, demo=True) if hub and hub.pid == announcement.get("pid") else None
                yield path, hub

    def _announced(self, name: str = HUB_FILE) -> dict[str, Any] | None:
        try:
            announcement = json.loads(_read(self.path / name))
        except ValueError:
            return None
        return announcement if isinstance(announcement, dict) else None

    def _callback_keys(self, ids: Ids) -> tuple[int, dict[int, bytes]]:
        text = self._secret_file(
            CALLBACK_KEYS_FILE, lambda: json.dumps(callback_document(1, {1: ids.secret().encode()}))
        )
        try:
            return read_callback_document(json.loads(text))
        except ValueError:
            path = self.path / CALLBACK_KEYS_FILE
            hint = "delete it: the hub makes new keys, and refuses webhooks that are still on their way"
            raise ConfigError(f"{path}: holds no usable keys", hint=hint) from None

    def _secret_file(self, name: str, make: Any) -> str:
        """The file's text; a missing file is created atomically for its owner only."""
        path = self.path / name
        if not path.exists():
            self._write(name, make())
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path}: others can read it", hint=f"chmod 600 {path}, or delete it, and the hub makes a new one"
            )
        return _read(path)

    def _write(self, name: str, text: str, *, keep_locked: bool = False) -> int | None:
        """Replace the file atomically; others can never read it.

        ``keep_locked`` locks it first and returns the descriptor with the lock.
        """
        path, temporary = self.path / name, self.path / f".{name}.{os.getpid()}"
        try:
            with suppress(FileNotFoundError):
                temporary.unlink()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                kept = os.dup(file.fileno()) if keep_locked else None
                if kept is not None:
                    fcntl.flock(kept, fcntl.LOCK_EX)
            os.replace(temporary, path)
            return kept
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise ConfigError(f"{path}: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with open(descriptor, encoding="utf-8") as file:
            return file.read(_BYTES_MAX)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'is not text'}") from None


def _is_locked(path: Path) -> bool:
    """Whether the process that wrote the file still lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
