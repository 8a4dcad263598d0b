"""A hub's state folder, copied while the hub runs, and put back (docs/howto/back-up-and-restore.md, decision 61)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from fleetsim.hub.state import A2A_FILE, API_KEY_FILE, CALLBACK_KEYS_FILE, LEDGER_FILE, StateDir
from fleetsim.ledger.place import Place
from fleetsim.ledger.records import LedgerLocked
from fleetsim.ledger.sqlite.backup import (
    Contents,
    Progress,
    copy_database,
    copy_ledger,
    explained,
    finish_restore,
    sync,
)
from fleetsim.ledger.sqlite.copies import UNFINISHED, mark_of
from fleetsim.ledger.sqlite.file import lock, open_file, sync_folder
from fleetsim.model.errors import ConfigError
from fleetsim.runtime import failpoints

_KEYS = (API_KEY_FILE, CALLBACK_KEYS_FILE)
_BESIDE = ("-wal", "-shm", "-journal", ".head")
"""Files beside a database that belong to it alone. A log that stayed would be written into its successor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """A finished copy at ``path``. ``replaced``: the folder with the files that were there before, if any were."""

    path: Path
    contents: Contents
    replaced: Path | None = None

    def facts(self) -> dict[str, object]:
        """All of it for JSON."""
        last_at = self.contents.last_at
        facts: dict[str, object] = {
            "path": str(self.path),
            "bytes": self.contents.size,
            "lastEventAt": None if last_at is None else last_at.isoformat(),
            "requests": self.contents.requests,
            "open": self.contents.open_requests,
            "questions": self.contents.open_questions,
        }
        return facts if self.replaced is None else {**facts, "replaced": str(self.replaced)}


def refuse_postgres(setting: str | None, env: Mapping[str, str]) -> None:
    """Raise ConfigError if ``fleet.ledger`` or the environment places the ledger in PostgreSQL."""
    if (place := Place.configured(setting, env)) is not None:
        hint = f"pg_dump --schema={place.schema} --file=fleet.sql '{place.address}', and psql puts it back"
        raise ConfigError(f"this fleet's ledger is in PostgreSQL: {place}", hint=hint)


def back_up(state: StateDir, target: Path, now: datetime, progress: Progress) -> CopyReport:
    """Copy the state folder into a new folder in ``target``, named after the time; the hub may run.

    ``target`` is made if it is missing. The new folder appears whole or not at all. It holds the hub's keys, so only
    its owner can read it. Raises ConfigError if the ledger is missing, the hub uses another one, the target cannot be
    used or the disk is full.
    """
    _require_own_ledger(state)
    place = target / f"fleetsim-{now:%Y%m%dT%H%M%SZ}"
    taken = place if target.is_dir() else target
    if os.path.lexists(taken):
        raise ConfigError(f"there is a {taken} already", hint="choose another name: a backup overwrites no file")
    if not target.parent.is_dir():
        raise ConfigError(f"there is no folder {target.parent}", hint="make it, or look whether its disk is mounted")
    if target.resolve().is_relative_to(state.path.resolve()):
        raise ConfigError(f"{place} is inside the state folder", hint="choose a folder on another disk")
    staged = target if target.is_dir() else target.parent  # on the file system of ``target``
    with explained(state.ledger_path, place), _folder_in(staged, ".fleetsim-backup-") as folder:
        _copy_tasks(state.path, folder, progress)  # first, so that the ledger has the request of each task
        contents = copy_ledger(state.ledger_path, folder / LEDGER_FILE, now, progress)
        _copy_keys(state.path, folder)
        _sync_all(folder)
        failpoints.reached("backup.written")
        target.mkdir(mode=0o700, exist_ok=True)
        folder.rename(place)
        sync_folder(target)
        sync_folder(target.parent)
    return CopyReport(path=place, contents=contents)


def restore(state: StateDir, source: Path, now: datetime, progress: Progress, *, take_over: bool) -> CopyReport:
    """Put a backup, or a ledger's file alone, in the place of the state folder's files, which are kept beside them.

    The ledger is then a copy, which a hub uses after ``take_over`` here or at its start. Interrupted at any moment, the
    old ledger is in its place, or one that is refused until the restore is repeated. Raises ConfigError if the backup
    is missing, damaged or of a newer fleetsim, a hub runs, or the disk is full.
    """
    ledger = _ledger_in(source)
    source = ledger.parent if source.is_dir() else source
    if state.ledger_path.exists() and ledger.samefile(state.ledger_path):
        raise ConfigError(f"{source} is the state folder itself", hint="name the folder of a backup")
    with ExitStack() as held:
        try:
            held.callback(lock(state.open().ledger_path).release)
        except LedgerLocked as error:
            raise LedgerLocked(str(error), pid=error.pid, hint="stop the hub, then restore again") from None
        if (hub := state.find()) is not None:
            raise ConfigError(f"a hub runs here (process {hub.pid})", hint="stop it, then restore again")
        for left in state.path.glob(".restore-*"):  # of restores that were killed
            shutil.rmtree(left, ignore_errors=True)
        held.enter_context(explained(ledger, state.ledger_path))
        folder = held.enter_context(_folder_in(state.path, ".restore-"))
        contents = copy_ledger(ledger, folder / LEDGER_FILE, now, progress, restoring=True)
        if source.is_dir():
            _copy_tasks(source, folder, progress)
            _copy_keys(source, folder)
        _sync_all(folder)
        failpoints.reached("restore.staged")
        replaced = _keep_aside(state, now)
        failpoints.reached("restore.kept")
        _put(folder / LEDGER_FILE, state.ledger_path)  # it is refused from here on, until the end
        if source.is_dir():
            _put(folder / A2A_FILE, state.path / A2A_FILE)
            for name in _KEYS:
                if (folder / name).exists():
                    (folder / name).replace(state.path / name)
        sync_folder(state.path)
        failpoints.reached("restore.put")
        finish_restore(state.ledger_path)  # last, so that a kill before it leaves a ledger that is refused
    if take_over:
        with closing(open_file(state.ledger_path, now, one_connection=True, busy_s=0, take_over=True)):
            pass
    return CopyReport(path=state.path, contents=contents, replaced=replaced)


def _require_own_ledger(state: StateDir) -> None:
    """Require a ledger that the hub of this folder uses, if one runs. Raises ConfigError."""
    if not state.ledger_path.exists():
        hint = "--state or FLEETSIM_STATE names the hub's folder; `fleetsim config show` says which one is used"
        raise ConfigError(f"there is no ledger in {state.path}", hint=hint)
    if (hub := state.find()) is not None:
        if hub.shared:
            hint = "pg_dump --schema=FLEET; the address and the schema are in its --ledger or fleet.ledger"
            raise ConfigError(f"the hub that runs here (process {hub.pid}) has its ledger in PostgreSQL", hint=hint)
        with suppress(LedgerLocked):
            lock(state.ledger_path).release()  # this raises if the hub uses the file
            hint = "stop it, and start it without --memory"
            raise ConfigError(f"the hub that runs here (process {hub.pid}) has its ledger in memory", hint=hint)


def _ledger_in(source: Path) -> Path:
    """The ledger's file of a backup, or of the only backup in a folder. Raises ConfigError."""
    if source.is_file():
        return source
    if not source.exists():
        raise ConfigError(f"there is no {source}", hint="name a folder that `fleetsim backup` made")
    if not (ledger := source / LEDGER_FILE).is_file():
        below = sorted(source.glob(f"*/{LEDGER_FILE}"), key=lambda path: path.stat().st_mtime)
        if len(below) == 1:
            return below[0]
        hint = f"the newest one in it is {below[-1].parent}" if below else "name a folder that `fleetsim backup` made"
        raise ConfigError(f"{source} is not a backup: it has no {LEDGER_FILE}", hint=hint)
    return ledger


@contextmanager
def _folder_in(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder that only its owner can read; unless it is moved away, it is deleted at the end."""
    with TemporaryDirectory(dir=parent, prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name, "files")
        folder.mkdir(mode=0o700)
        yield folder


def _copy_tasks(source: Path, target: Path, progress: Progress) -> None:
    if (tasks := source / A2A_FILE).exists():
        with explained(tasks, target / A2A_FILE):
            copy_database(tasks, target / A2A_FILE, progress)


def _copy_keys(source: Path, target: Path) -> None:
    for name in _KEYS:
        with suppress(FileNotFoundError):
            content = (source / name).read_bytes()
            with open(os.open(target / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)


def _sync_all(folder: Path) -> None:
    for path in folder.iterdir():
        sync(path)
    sync_folder(folder)


def _keep_aside(state: StateDir, now: datetime) -> Path | None:
    """Give the present files a second name in a new folder, which is returned. None if there is nothing to keep."""
    if not state.ledger_path.exists() or mark_of(state.ledger_path) == UNFINISHED:
        return max(state.path.glob("replaced-*"), default=None)  # a restore that was interrupted has kept them
    beside = [f"{name}{suffix}" for name in (A2A_FILE, LEDGER_FILE) for suffix in _BESIDE]
    kept = state.path / f"replaced-{now:%Y%m%dT%H%M%SZ}"
    kept.mkdir(mode=0o700)
    for name in (*_KEYS, *beside, A2A_FILE, LEDGER_FILE):  # the ledger last: for a moment it has two names
        with suppress(FileNotFoundError):
            try:
                os.link(state.path / name, kept / name)
            except PermissionError:  # a file system without links
                shutil.copy2(state.path / name, kept / name)
    sync_folder(kept)
    return kept


def _put(new: Path, path: Path) -> None:
    """Replace a database, by nothing if there is no ``new`` one, and delete what belongs to the old one."""
    if new.exists():
        new.replace(path)
    else:
        path.unlink(missing_ok=True)
    for suffix in _BESIDE:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
        failpoints.reached("restore.replaced")
