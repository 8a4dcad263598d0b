"""Secrets that the hubs of a fleet share. The ledger keeps them sealed, so that a copy of the database reveals none.

A sealed secret is a JWE (RFC 7516) with AES-256-GCM. Its authenticated header names the fleet's schema and the row, so
that a row copied from elsewhere is refused. The column ``key`` has the sealing key's thumbprint (RFC 7638).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import asyncpg
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.schema import migrate
from fleetsim.ledger.postgres.storage import CONNECT_S, refused
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Files

VARIABLE, FILE_VARIABLE = "FLEETSIM_LEDGER_KEY", "FLEETSIM_LEDGER_KEY_FILE"
KEY_BYTES = 32
_FILE_BYTES_MAX = 1_024
_OTHERS = """SELECT name FROM hubs
    WHERE ended_at IS NULL AND expires_at > clock_timestamp() AND name <> $1 LIMIT 1"""
_STORE = "INSERT INTO secrets (name, sealed, key) VALUES ($1, $2, $3) RETURNING sealed, key"
_ANNOUNCE = """INSERT INTO hubs (name, version, lease, expires_at)
    VALUES ($1, $2, interval '30 s', clock_timestamp() + interval '30 s')"""
"""A hub with keys of its own is a member from here on, so that another one that starts meanwhile finds it. Its row ends
when it joins under the same name.
"""
_JWE = jwe.JWERegistry(algorithms=["dir", "A256GCM"], strict_check_header=False)


async def sealing_key(env: Mapping[str, str], files: Files) -> OctKey | None:
    """The sealing key from the environment or its file; None if neither is named. Raises ConfigError."""
    text, path = env.get(VARIABLE, "").strip(), env.get(FILE_VARIABLE, "")
    if text and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set", hint="unset one of them")
    if path:
        text = (await files.read(Path(path), bytes_max=_FILE_BYTES_MAX, private=True)).decode("latin-1").strip()
    elif not text:
        return None
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{path or VARIABLE} holds no sealing key: it must be {KEY_BYTES} random bytes in base64",
            hint="make one with `openssl rand -base64 32`, and give the same to each hub of the fleet",
        )
    return OctKey.import_key(key)


async def shared(place: Place, name: str, mine: str, key: OctKey | None, *, hub: str) -> str:
    """The fleet's secret ``name``: the one in the ledger, else ``mine``, which is then stored for the other hubs.

    Hubs that start at the same time get the same secret. Without a sealing ``key``, a hub alone keeps its own. ``hub``
    is the name of this hub in the fleet. Raises ConfigError if the ledger cannot be opened, another live hub keeps its
    own secret, or the secret is damaged or sealed with a key that this hub lacks.
    """
    try:
        connection = await asyncpg.connect(place.dsn, timeout=CONNECT_S, command_timeout=CONNECT_S)
        try:
            async with connection.transaction():
                await migrate(connection, place.schema)  # until the end of the transaction, other hubs wait here
                row = await connection.fetchrow("SELECT sealed, key FROM secrets WHERE name = $1", name)
                others = None if row else await connection.fetchval(_OTHERS, hub)
                if not row and not others and key is not None:
                    sealed = jwe.encrypt_compact(_header(place, name), mine.encode(), key, registry=_JWE)
                    row = await connection.fetchrow(_STORE, name, sealed, key.thumbprint())
                elif not row and not others:
                    await connection.execute(_ANNOUNCE, hub, version("fleetsim"))
        finally:
            await connection.close()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise refused(place, error) from error
    if others:
        raise ConfigError(
            f"another hub of {place} runs with keys of its own: {others}",
            hint=f"stop it, then start both with the same {VARIABLE} (`openssl rand -base64 32`)",
        )
    if row is None:
        return mine
    if key is None:
        raise ConfigError(
            f"the hubs of {place} share keys, and this hub has no sealing key",
            hint=f"set {VARIABLE}, or name its file in {FILE_VARIABLE}, as on the other hubs",
        )
    if row["key"] != key.thumbprint():
        raise ConfigError(
            f"the keys of {place} are sealed with another sealing key",
            hint=f"give this hub the {VARIABLE} of the other hubs",
        )
    try:
        opened = jwe.decrypt_compact(row["sealed"], key, registry=_JWE)
        if opened.headers() != _header(place, name):
            raise ValueError("it was sealed for another place")
        return (opened.plaintext or b"").decode()
    except (JoseError, ValueError) as error:
        raise place.keys_damaged() from error


def _header(place: Place, name: str) -> dict[str, str]:
    return {"alg": "dir", "enc": "A256GCM", "fleet": place.schema, "name": name}
