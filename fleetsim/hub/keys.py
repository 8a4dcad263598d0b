"""The hub's secrets: the API's key, those its webhook tokens are derived from, and what it proves itself with."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetsim.caller.tokens import CallbackTokens
from fleetsim.runtime.ports import Ids

API_KEY_HEADER = "x-api-key"
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{16,128}")
"""What a hub may be asked to prove itself with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKeys:
    """Secrets by value; never shown. ``callback`` maps key epochs to secrets, ``epoch`` is the one in use.

    ``proof`` is of one run of the hub: who finds the hub through its state directory knows it too, and can have the
    hub prove itself before it is told the API key.
    """

    api_key: str = field(repr=False)
    callback: Mapping[int, bytes] = field(repr=False)
    proof: str = field(repr=False)
    epoch: int = 1

    @classmethod
    def fresh(cls, ids: Ids) -> HubKeys:
        """New secrets, for a hub that keeps no state."""
        return cls(api_key=ids.secret(), callback={1: ids.secret().encode()}, proof=ids.secret())

    def tokens(self) -> CallbackTokens:
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


def prove(proof: str, url: str, challenge: str) -> str:
    """What the hub at ``url`` that has the secret ``proof`` answers to a challenge.

    The address is part of it: a stranger who passes the challenge on to the hub gets a proof for another address.
    """
    return hmac.new(proof.encode(), f"fleetsim hub\n{url}\n{challenge}".encode(), hashlib.sha256).hexdigest()
