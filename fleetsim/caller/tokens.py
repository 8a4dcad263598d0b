"""Webhook tokens that prove themselves: no lookup is needed to know a forged one.

A token carries a key epoch, the agent and our request id, and an HMAC-SHA256 over the three under that
epoch's key (reliability T-10). Two epochs are valid at a time, so keys can be rotated under running tasks.
A token may say that its webhooks are signed; the signing secret is derived as well, and nothing is stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

_DOMAIN = b"fleetsim callback v1\0"
_SIGNING_DOMAIN = b"fleetsim callback signature v1\0"
_SIGNED = "signed"
TOKEN_CHARS_MAX = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    """What a verified token says. ``signed``: its webhooks count only with a signature."""

    epoch: int
    agent: str
    correlation_id: str
    signed: bool


class CallbackTokens:
    """Mints and verifies tokens. ``keys`` maps key epochs to secrets; ``current`` is the one to mint with."""

    def __init__(self, keys: Mapping[int, bytes], *, current: int) -> None:
        if current not in keys:
            raise ValueError(f"no callback key of epoch {current}")
        self._keys = dict(keys)
        self.current = current

    def mint(self, agent: str, correlation_id: str, *, epoch: int | None = None, signed: bool = False) -> str:
        """A token for one request to one agent."""
        claims = _claims_bytes(self._known(epoch), agent, correlation_id, signed)
        return f"{_b64(claims)}.{_b64(self._mac(self._known(epoch), claims))}"

    def signing_secret(self, agent: str, correlation_id: str, *, epoch: int | None = None) -> bytes:
        """What the webhooks of one request are signed with."""
        epoch = self._known(epoch)
        return hmac.new(
            self._keys[epoch], _SIGNING_DOMAIN + _claims_bytes(epoch, agent, correlation_id, True), hashlib.sha256
        ).digest()

    def verify(self, token: str) -> TokenClaims | None:
        """What the token says if it is ours, None otherwise. Never raises, whatever the text."""
        if len(token) > TOKEN_CHARS_MAX:
            return None
        body, _, signature = token.partition(".")
        try:
            claims, signature_bytes = _unb64(body), _unb64(signature)
            epoch_text, agent, correlation_id, *marks = claims.decode().split("\0")
            epoch = int(epoch_text)
        except ValueError:
            return None
        if epoch not in self._keys or not hmac.compare_digest(signature_bytes, self._mac(epoch, claims)):
            return None
        return TokenClaims(epoch=epoch, agent=agent, correlation_id=correlation_id, signed=marks == [_SIGNED])

    def _known(self, epoch: int | None) -> int:
        return self.current if epoch is None or epoch not in self._keys else epoch

    def _mac(self, epoch: int, claims: bytes) -> bytes:
        return hmac.new(self._keys[epoch], _DOMAIN + claims, hashlib.sha256).digest()


def _claims_bytes(epoch: int, agent: str, correlation_id: str, signed: bool) -> bytes:
    return "\0".join((str(epoch), agent, correlation_id, *([_SIGNED] if signed else []))).encode()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    data = base64.urlsafe_b64decode(text + "==")
    if _b64(data) != text:
        raise ValueError("not the canonical spelling")
    return data
