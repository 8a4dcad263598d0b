"""Who calls: API keys and bearer tokens, compared as bytes, before a byte of the body is parsed.

Secrets are held in memory only and never shown. An agent without any lets everybody in as one tenant.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from fleetsim.agent.record import ANYONE
from fleetsim.model.errors import ConfigError

CREDENTIAL_BYTES_MAX = 4_096
API_KEY_HEADER = "X-API-Key"

Headers = Iterable[tuple[bytes, bytes]]
"""Raw header pairs as ASGI has them: names in lower case, values as bytes."""


class Authenticator:
    """Knows the callers by their secrets. ``api_keys`` and ``bearers`` map a caller's name to a secret."""

    def __init__(self, *, api_keys: Mapping[str, str], bearers: Mapping[str, str]) -> None:
        for name, secret in [*api_keys.items(), *bearers.items()]:
            if not secret or secret != secret.strip():
                raise ConfigError(f"the secret of caller {name!r} is empty or has spaces around it")
            if len(secret.encode()) > CREDENTIAL_BYTES_MAX:
                raise ConfigError(f"the secret of caller {name!r} is longer than {CREDENTIAL_BYTES_MAX} bytes")
        self._api_keys = tuple((name, secret.encode()) for name, secret in api_keys.items())
        self._bearers = tuple((name, secret.encode()) for name, secret in bearers.items())

    def __repr__(self) -> str:
        return f"Gate({len(self._api_keys)} API keys, {len(self._bearers)} bearer tokens)"

    @property
    def open(self) -> bool:
        """Whether nobody needs a credential."""
        return not self._api_keys and not self._bearers

    def admit(self, headers: Headers) -> str | None:
        """The caller's name, or None. A repeated, empty or oversized credential header is a refusal."""
        if self.open:
            return ANYONE
        keys, tokens = [], []
        for name, value in headers:
            if name == b"x-api-key":
                keys.append(value)
            elif name == b"authorization":
                tokens.append(value)
        if len(keys) > 1 or len(tokens) > 1:
            return None
        found = {_match(self._api_keys, keys[0])} if keys and self._api_keys else set()
        if tokens and self._bearers:
            scheme, _, secret = tokens[0].partition(b" ")
            found.add(_match(self._bearers, secret.strip()) if scheme.lower() == b"bearer" else None)
        return found.pop() if len(found) == 1 else None

    def schemes(self) -> dict[str, dict[str, Any]]:
        """The security schemes for the card, in the 0.3 shape."""
        schemes: dict[str, dict[str, Any]] = {}
        if self._api_keys:
            schemes["apiKey"] = {"type": "apiKey", "in": "header", "name": API_KEY_HEADER}
        if self._bearers:
            schemes["bearer"] = {"type": "http", "scheme": "bearer"}
        return schemes

    def challenge(self) -> str:
        """The WWW-Authenticate header of a 401 (RFC 9110 section 11.6.1)."""
        return "Bearer" if self._bearers else f'ApiKey header="{API_KEY_HEADER}"'


def _match(known: tuple[tuple[str, bytes], ...], given: bytes) -> str | None:
    """The name whose secret this is. Every secret is compared, so that time tells nothing about which."""
    if not given or len(given) > CREDENTIAL_BYTES_MAX:
        return None
    matched: str | None = None
    for name, secret in known:
        if hmac.compare_digest(secret, given):
            matched = name
    return matched
