"""The hub's secrets: the keys that open its API, those its webhook tokens are derived from, and what it proves itself
with.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetsim.caller.tokens import CallbackTokens
from fleetsim.runtime.ports import Ids

API_KEY_HEADER = "x-api-key"
EPOCHS_KEPT = 2
"""How many epochs of webhook keys are good at a time."""
KEY = re.compile(r"[\x21-\x7e]{16,512}")
"""What a key of the API may be: printable ASCII, at least 16 characters. Anything shorter, "" first of all, is none."""


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

    @property
    def hub_id(self) -> str:
        """The hub's public id, by which other hubs know it again. It tells nothing of the secret it is made of."""
        secret = self.callback[min(self.callback)]
        return hmac.new(secret, b"fleetsim hub id", hashlib.sha256).hexdigest()[:16]

    def tokens(self) -> CallbackTokens:
        return CallbackTokens(self.callback, current=self.epoch)


def next_epoch(epoch: int, callback: Mapping[int, bytes], ids: Ids) -> tuple[int, dict[int, bytes]]:
    """A new epoch of webhook keys after ``epoch``, and all that are good then: tokens of the one before stay valid."""
    kept = {n: callback[n] for n in sorted(callback)[-(EPOCHS_KEPT - 1) :]}
    return epoch + 1, {**kept, epoch + 1: ids.secret().encode()}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request comes from: the agent whose key it carries, or (None) whoever has the hub's own key."""

    agent: str | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it is the hub's owner."""
        return self.agent is None


ADMIN = Principal()


class Keyring:
    """Which key is whose. A secret that two hold is nobody's: it would not tell who asks."""

    def __init__(self, api_key: str) -> None:
        self._api_key = api_key
        self._holders: tuple[tuple[bytes, Principal], ...] = ()
        self.problems: tuple[str, ...] = ()
        self.replace({})

    def replace(self, agents: Mapping[str, str]) -> None:
        """Take these keys of agents in place of all before. ``problems`` says, without a secret, what is refused."""
        holders: dict[bytes, list[Principal]] = {}
        problems = []
        for principal, key in ((ADMIN, self._api_key), *((Principal(name), key) for name, key in agents.items())):
            if KEY.fullmatch(key):
                holders.setdefault(_digest(key.encode()), []).append(principal)
            else:
                problems.append(f"the key of {_named(principal)} is refused: it is not 16 to 512 printable characters")
        for shared in holders.values():
            if len(shared) > 1:
                who = " and ".join(sorted(_named(principal) for principal in shared))
                problems.append(f"{who} have the same key: it is refused, since it would not tell who asks")
        self._holders = tuple((digest, found[0]) for digest, found in holders.items() if len(found) == 1)
        self.problems = tuple(problems)

    def principal(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal | None:
        """Whose credential was sent, if exactly one was. Every key is compared, each in constant time."""
        given: list[bytes] = []
        for name, value in headers:
            if name == API_KEY_HEADER.encode():
                given.append(value)
            elif name == b"authorization":
                scheme, _, credentials = value.partition(b" ")
                given.append(credentials if scheme.lower() == b"bearer" else b"")
        if len(given) != 1:
            return None
        digest = _digest(given[0].strip())
        found = [principal for held, principal in self._holders if hmac.compare_digest(digest, held)]
        return found[0] if found else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _named(principal: Principal) -> str:
    return "the hub itself" if principal.is_admin else f"agent {principal.agent}"
