"""The ledger at an address: open it, share keys through it, move it. PostgreSQL's driver is an extra, imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from fleetsim.ledger.interface import LedgerLimits, SharedLedger
from fleetsim.ledger.place import Place
from fleetsim.ledger.records import LedgerMoved
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Files


@contextmanager
def _driver() -> Iterator[None]:
    """Raise ConfigError if the driver is missing."""
    try:
        yield
    except ImportError:
        raise ConfigError("the driver of PostgreSQL is missing", hint="pip install 'fleetsim[pg]'") from None


def open_shared(
    place: Place, *, limits: LedgerLimits, name: str, lease_s: float, processes: Sequence[str]
) -> SharedLedger:
    """The ledger at ``place``, still closed; see ``open_postgres``. Raises ConfigError."""
    with _driver():
        from fleetsim.ledger.postgres.ledger import open_postgres
    return open_postgres(place, limits=limits, name=name, lease_s=lease_s, processes=processes)


async def shared_keys(place: Place, mine: str, *, hub: str, env: Mapping[str, str], files: Files) -> str:
    """The keys of the fleet, or ``mine`` if it has none yet; see ``secrets.shared``. Raises ConfigError."""
    with _driver():
        from fleetsim.ledger.postgres import secrets
    return await secrets.shared(place, "hub", mine, await secrets.sealing_key(env, files), hub=hub)


async def move_ledger(source: str, target: str, now: datetime, *, name: str) -> dict[str, int]:
    """Move between a file, or the file ``name`` of a folder, and an address in PostgreSQL; the rows by table, of which
    a ledger that was moved there before has none.

    Raises ConfigError as ``move_to_postgres``, and if not exactly one of the two is an address.
    """
    with _driver():
        from fleetsim.ledger.postgres import move
    out = "://" in target
    if out is ("://" in source):
        raise ConfigError("one of the two must be a file, and the other postgresql://…", hint="see --help")
    place, given = Place.read(target if out else source), Path(source if out else target)
    path = (given / name if given.is_dir() else given).resolve()  # noqa: ASYNC240 - nothing else runs beside a move
    if not (needed := path if out else path.parent).exists():
        raise ConfigError(f"{needed} does not exist", hint="name the state folder")
    try:
        return await (move.move_to_postgres(path, place, now) if out else move.move_to_file(place, path, now))
    except LedgerMoved as moved:
        if moved.to != str(place if out else path):
            raise
        return {}
