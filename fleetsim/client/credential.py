"""The credential for an agent, read again for every request, so that a key can be changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line

Scheme: TypeAlias = Literal["apiKey", "bearer"]

API_KEY_HEADER = "x-api-key"

_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Credential:
    """An API key or bearer token, by the name of the environment variable that holds it.

    ``secret`` holds the text itself instead, for scripts and tests; it is never shown.
    """

    scheme: Scheme
    env: str = ""
    header: str = API_KEY_HEADER
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, scheme: Scheme, secret: str) -> Credential:
        """A credential from the text itself."""
        return cls(scheme=scheme, secret=secret)

    @property
    def source(self) -> str:
        """Where the secret comes from, in words for a message."""
        return "the secret given" if self.secret is not None else f"the environment variable {self.env}"

    def headers(self) -> Mapping[str, str]:
        """The request header that carries it.

        Raises:
            ConfigError: the variable is unset, empty, or holds what no header can carry.
        """
        secret = self.secret if self.secret is not None else os.environ.get(self.env, "").strip()
        if not secret:
            raise ConfigError(f"{one_line(self.source, 160)} is not set", hint=f"export {one_line(self.env, 120)}=…")
        if not _SECRET.fullmatch(secret):
            raise ConfigError(f"{one_line(self.source, 160)} holds characters that no header can carry")
        if self.scheme == "bearer":
            return {"authorization": f"Bearer {secret}"}
        return {self.header.lower(): secret}
