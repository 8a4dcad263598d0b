"""``fleetsim backup`` and ``fleetsim restore``: the hub's state folder, copied and put back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import ConfigError

if TYPE_CHECKING:
    from fleetsim.caller.ledger.sqlite.backup import Progress
    from fleetsim.hub.backup import CopyReport
    from fleetsim.hub.state import StateDir

_SHOWN_FROM_PAGES = 65_536


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_obj
def backup(common: CommonOptions, /, folder: Path) -> None:
    """Copy the hub's ledger, tasks and keys, while the hub runs.

    FOLDER is new; in one that exists, the backup gets a folder with the time as its name. It appears whole or not at
    all, was checked, and its path is printed. It holds the hub's keys: keep it as safe as the state folder.

    \b
    fleetsim backup /var/backups/fleetsim
    fleetsim --state /var/lib/fleetsim backup monday

    Exit codes: 0 done, 2 not done, for a reason that you can remove.
    """
    from fleetsim.hub.backup import back_up
    from fleetsim.runtime.real import SystemClock

    done = back_up(_state(common), folder, SystemClock().now(), _progress(common))
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

    done = put_back(_state(common), source, SystemClock().now(), _progress(common), take_over=take_over)
    _show(common, done, "fleetsim/restore/1", f"restored {source} into {done.path}")
    if done.replaced is not None:
        common.note(f"the files that were there are in {done.replaced}")
    start = "fleetsim up" if take_over else "fleetsim up --take-over"
    common.note(f"  next: `{start}`{'' if take_over else ', once no hub uses the original any more'}")


def _state(common: CommonOptions) -> StateDir:
    """The state folder, if the ledger is in it. Raises ConfigError for one in PostgreSQL."""
    from fleetsim.caller.config import AGENTS_BYTES_MAX, parse_fleet
    from fleetsim.caller.ledger.postgres.place import Place
    from fleetsim.hub.state import StateDir, state_path

    given = None
    if (path := common.agents_yaml).exists():
        with path.open("rb") as file:
            given = parse_fleet(file.read(AGENTS_BYTES_MAX + 1), source=str(path), env=os.environ).settings.ledger
    if (place := Place.configured(given, os.environ)) is not None:
        hint = f"pg_dump --schema={place.schema} --file=fleet.sql '{place.address}', and psql puts it back"
        raise ConfigError(f"this fleet's ledger is in PostgreSQL: {place}", hint=hint)
    return StateDir(state_path(os.environ, common.state))


def _progress(common: CommonOptions) -> Progress:
    """Count up on a terminal while a large file is copied."""
    shown = not common.quiet and sys.stderr.isatty()

    def show(left: int, pages: int) -> None:
        if shown and pages >= _SHOWN_FROM_PAGES:
            click.echo(f"\r{100 * (pages - left) // pages:3} % copied", err=True, nl=left == 0)

    return show


def _show(common: CommonOptions, done: CopyReport, schema: str, line: str) -> None:
    """Print the line, or all facts as JSON, and what the copy holds."""
    from fleetsim.cli import render

    contents = done.contents
    if common.as_json:
        counts = {"requests": contents.requests, "open": contents.open_requests, "questions": contents.open_questions}
        last_at = None if contents.last_at is None else contents.last_at.isoformat()
        facts = {"path": str(done.path), "bytes": contents.size, "lastEventAt": last_at, **counts}
        kept = {} if done.replaced is None else {"replaced": str(done.replaced)}
        render.emit_json({"schema": schema, **facts, **kept})
        return
    last = f"{contents.last_at:%Y-%m-%d %H:%M:%SZ}" if contents.last_at else "never"
    render.line(line)
    common.note(
        f"requests: {contents.requests:,}, of these open: {contents.open_requests:,}; open questions:"
        f" {contents.open_questions:,}; last event: {last}; {contents.size / 1024**2:,.1f} MiB"
    )
