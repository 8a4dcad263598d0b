"""The hub's two secrets: the key that opens its API, and those its webhook tokens are derived from."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetsim.caller.tokens import CallbackTokens
from fleetsim.runtime.ports import Ids

API_KEY_HEADER = "x-api-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKeys:
    """Secrets by value; never shown. ``callback`` maps key epochs to secrets, ``epoch`` is the one in use."""

    api_key: str = field(repr=False)
    callback: Mapping[int, bytes] = field(repr=False)
    epoch: int = 1

    @classmethod
    def fresh(cls, ids: Ids) -> HubKeys:
        """New secrets, for a hub that keeps no state."""
        return cls(api_key=ids.secret(), callback={1: ids.secret().encode()})

    def tokens(self) -> CallbackTokens:
        """The mint of webhook tokens."""
        return CallbackTokens(self.callback, current=self.epoch)

    def opens(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether exactly one credential was sent and it is the API key; compared as bytes in constant time."""
        given: list[bytes] = []
        for name, value in headers:
            if name == API_KEY_HEADER.encode():
                given.append(value)
            elif name == b"authorization":
                scheme, _, credentials = value.partition(b" ")
                given.append(credentials if scheme.lower() == b"bearer" else b"")
        if len(given) != 1:
            return False
        return hmac.compare_digest(given[0].strip(), self.api_key.encode())
