"""``fleetsim ledger move``: the ledger in another place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import ConfigError


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
    from fleetsim.caller.ledger.postgres.place import SCHEMES, Place
    from fleetsim.cli import render
    from fleetsim.hub.state import LEDGER_FILE
    from fleetsim.runtime.real import SystemClock

    try:
        from fleetsim.caller.ledger.postgres.move import move_to_file, move_to_postgres
    except ImportError:
        raise ConfigError("the driver of PostgreSQL is missing", hint="pip install 'fleetsim[pg]'") from None
    out = target.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))
    place, path = Place.read(target if out else source), Path(source if out else target)
    path = (path / LEDGER_FILE if path.is_dir() else path).resolve()
    if not (path if out else path.parent).exists():
        raise ConfigError(f"there is no {path if out else path.parent}", hint="name the state folder")
    now = SystemClock().now()
    rows = asyncio.run(move_to_postgres(path, place, now) if out else move_to_file(place, path, now))
    if common.as_json:
        render.emit_json({"schema": "fleetsim/ledger-move/1", "to": str(place) if out else str(path), "rows": rows})
        return
    render.line(f"moved {', '.join(f'{count:,} {table}' for table, count in rows.items())}")
    start = f"--ledger '{target}', or fleet.ledger in agents.yaml" if out else "no --ledger and no fleet.ledger"
    common.note(f"  next: start the hub with {start}")
