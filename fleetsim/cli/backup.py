"""``fleetsim backup``, ``restore`` and ``ledger move``: the hub's state in other places."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.cli.terminal import rewrite
from fleetsim.model.errors import ConfigError

if TYPE_CHECKING:
    from fleetsim.hub.backup import CopyReport
    from fleetsim.hub.state import StateDir

_SHOWN_FROM_PAGES = 65_536


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_obj
def backup(common: CommonOptions, /, folder: Path) -> None:
    """Copy the hub's ledger, tasks and keys, while the hub runs.

    The backup is a new folder in FOLDER, named after the time. It appears whole or not at all, was checked, and its
    path is printed. FOLDER is made if it is missing. It holds the hub's keys: keep it as safe as the state folder.

    \b
    fleetsim backup /var/backups/fleetsim
    fleetsim --state /var/lib/fleetsim backup monday

    Exit codes: 0 done, 2 not done, for a reason that you can remove.
    """
    from fleetsim.hub.backup import back_up
    from fleetsim.runtime.real import SystemClock

    done = back_up(_state(common), folder, SystemClock().now(), _progress)
    _show(common, done, "fleetsim/backup/1", str(done.path))
    common.note(f"  next: `fleetsim restore {done.path}` puts it back")


@click.command()
@click.argument("source", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.option("--take-over", is_flag=True, help="Let the next `fleetsim up` use it: no hub uses the original any more.")
@click.pass_obj
def restore(common: CommonOptions, /, source: Path, take_over: bool) -> None:
    """Put a backup back into the state folder, while no hub runs.

    FOLDER comes from `fleetsim backup`; FILE is a ledger alone, and the keys stay. The files that were there are
    kept in replaced-TIME beside the new ones.

    The hub does not start on it before you agree, with --take-over here or at `fleetsim up`. Then it continues
    the open requests. Nothing that may have been sent since the backup is sent again, and ceremonies go on with
    their next slot.

    \b
    fleetsim restore /var/backups/fleetsim/fleetsim-20261127T030000Z

    Exit codes: 0 done, 2 not done, for a reason that you can remove.
    """
    from fleetsim.hub.backup import restore as put_back
    from fleetsim.runtime.real import SystemClock

    done = put_back(_state(common), source, SystemClock().now(), _progress, take_over=take_over)
    _show(common, done, "fleetsim/restore/1", f"restored {source} into {done.path}")
    if done.replaced is not None:
        common.note(f"the files that were there are in {done.replaced}")
    agreed = "" if take_over else " --take-over`, once no hub uses the original any more"
    common.note(f"  next: `fleetsim up{agreed or '`'}")


@click.group()
def ledger() -> None:
    """Move the hub's ledger."""


@ledger.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.pass_obj
def move(common: CommonOptions, /, source: str, target: str) -> None:
    """Move the ledger from a file to PostgreSQL, or back, while no hub uses it.

    One of FROM and TO is the state folder or the ledger's file, the other postgresql://USER@HOST/DATABASE?schema=FLEET.
    All rows are copied, read back and compared. Then the source is marked, so that no hub starts on it. After an
    interruption, give the same command again. The password comes from PGPASSWORD or PGPASSFILE.

    \b
    fleetsim ledger move /var/lib/fleetsim postgresql://fleet@db.example/fleet
    fleetsim ledger move postgresql://fleet@db.example/fleet /var/lib/fleetsim

    Exit codes: 0 done, 2 not done, for a reason that you can remove.
    """
    from fleetsim.cli import render
    from fleetsim.hub.state import LEDGER_FILE
    from fleetsim.ledger.shared import move_ledger
    from fleetsim.runtime.real import SystemClock

    rows = asyncio.run(move_ledger(source, target, SystemClock().now(), name=LEDGER_FILE))
    if common.as_json:
        render.emit_json({"schema": "fleetsim/ledger-move/1", "to": target, "rows": rows})
        return
    moved = ", ".join(f"{count:,} {table}" for table, count in rows.items())
    render.line(f"moved {moved}" if rows else f"already moved to {target}")
    with_it = f"--ledger '{target}', or fleet.ledger in agents.yaml" if "://" in target else "no --ledger"
    common.note(f"  next: start the hub with {with_it}")


def _state(common: CommonOptions) -> StateDir:
    """The state folder, if the ledger is in it. Raises ConfigError for one in PostgreSQL."""
    from fleetsim.fleet.config import AGENTS_BYTES_MAX, parse_fleet
    from fleetsim.hub.backup import refuse_postgres
    from fleetsim.hub.state import StateDir, state_path

    setting = None
    with suppress(OSError, ConfigError), common.agents_yaml.open("rb") as file:  # a broken file stops no backup
        setting = parse_fleet(file.read(AGENTS_BYTES_MAX + 1), source=file.name, env=os.environ).settings.ledger
    refuse_postgres(setting, os.environ)
    return StateDir(state_path(os.environ, common.state))


def _progress(left: int, pages: int) -> None:
    """Count up on a terminal while a large file is copied."""
    if pages >= _SHOWN_FROM_PAGES and sys.stderr.isatty():
        rewrite(f"{100 * (pages - left) // pages:3} % copied" if left else "")


def _show(common: CommonOptions, done: CopyReport, schema: str, line: str) -> None:
    """Print the line, or all facts as JSON, and what the copy holds."""
    from fleetsim.cli import render

    if common.as_json:
        render.emit_json({"schema": schema, **done.facts()})
        return
    render.line(line)
    common.note(str(done.contents))
