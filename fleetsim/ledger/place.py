"""Where a ledger in PostgreSQL is: its address, and the fleet's schema in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fleetsim.model.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Place:
    """``dsn`` is libpq's address, and ``schema`` holds one fleet's tables (``?schema=NAME``; default ``fleetsim``)."""

    dsn: str
    schema: str = "fleetsim"

    @classmethod
    def read(cls, url: str, *, password: bool = False) -> Self:
        """Read ``postgresql://USER@HOST:PORT/DATABASE?schema=NAME``.

        Raises ConfigError for another form, and for a password in the URL unless ``password`` allows it: other
        users can read a command line, and files of settings are shared.
        """
        parts = urlsplit(url)
        options = parse_qsl(parts.query)
        if parts.scheme not in SCHEMES:
            raise ConfigError(
                "the ledger's address must begin with postgresql://", hint="a file needs no option: see --state"
            )
        if (parts.password is not None or "password" in dict(options)) and not password:
            raise ConfigError(
                "the ledger's address has a password in it",
                hint="set PGPASSWORD, name a file in PGPASSFILE, or put the whole address into FLEETSIM_LEDGER",
            )
        schema = dict(options).get("schema", "fleetsim")
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(f"{schema!r} is not the name of a schema", hint="use a-z, 0-9 and _, at most 63 of them")
        query = urlencode([option for option in options if option[0] != "schema"])
        return cls(urlunsplit(parts._replace(query=query)), schema)

    @classmethod
    def configured(cls, setting: str | None, env: Mapping[str, str]) -> Self | None:
        """The place of the ``fleet.ledger`` setting, else of FLEETSIM_LEDGER. Raises ConfigError."""
        variable = None if setting else env.get("FLEETSIM_LEDGER")
        url = setting or variable
        return cls.read(url, password=bool(variable)) if url else None

    @property
    def address(self) -> str:
        """The address without a password and options."""
        parts = urlsplit(self.dsn)
        user, _, hosts = parts.netloc.rpartition("@")  # several hosts have no ``hostname`` and ``port``
        user = f"{user.partition(':')[0]}@" if user else ""
        return f"postgresql://{user}{hosts or 'localhost'}{parts.path}"

    def keys_damaged(self) -> ConfigError:
        """The error for shared keys that cannot be used."""
        deleted = f"`DELETE FROM {self.schema}.secrets`"
        hint = f"stop the hubs, {deleted}, then start the first hub: it stores its own keys"
        return ConfigError(f"the shared keys of {self} are damaged", hint=hint)

    def __str__(self) -> str:
        """The address and the schema, for people."""
        return f"{self.address} ({self.schema})"
