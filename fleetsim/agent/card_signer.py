"""Signs the card of an agent (A2A 1.0 section 8.4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.files import read_file
from fleetsim.wire.card_signing import ALGORITHMS, KEYS_BYTES_MAX, base64url, canonical, forms_of, read_keys

SIGNED_MAX = 16
"""Signed cards whose signatures are kept in memory: one agent's, as its addresses and callers' versions differ."""


class CardSigner:
    """Signs cards with the private key in ``data`` (JWK or PEM).

    Raises ConfigError: the key is not private, or no algorithm of ``ALGORITHMS`` uses its kind.
    """

    def __init__(self, data: bytes, where: str) -> None:
        from joserfc.jws import JWSRegistry

        self._key = read_keys(data, where)[0]
        fits = JWSRegistry.filter_algorithms(self._key, list(ALGORITHMS))
        if not self._key.is_private or not fits:
            raise ConfigError(f"{where}: a private key is needed to sign a card, e.g. of P-256 (PEM or JWK)")
        self._algorithm, self.key_id = fits[0], self._key.kid or self._key.thumbprint()
        self._signed: dict[tuple[bytes, str], list[dict[str, str]]] = {}

    @classmethod
    def of_file(cls, path: Path) -> CardSigner:
        """With the key in a file that only its owner can read. Raises ConfigError."""
        return cls(read_file(path, KEYS_BYTES_MAX, private=True), str(path))

    @property
    def key_set(self) -> dict[str, Any]:
        """The JWK Set with the public key."""
        key = self._key.as_dict(private=False)
        return {"keys": [{**key, "kid": self.key_id, "use": "sig", "alg": self._algorithm.name}]}

    def sign(self, card: Mapping[str, Any], key_url: str = "") -> dict[str, Any]:
        """``card`` with a signature by section 8.4.1 and, if that differs, one that a2a-sdk can verify.

        ``key_url`` is where the public key can be read. The same card has the same signatures, so that its ETag stays.
        """
        place = canonical(card), key_url
        if place not in self._signed:
            header = {"alg": self._algorithm.name, "typ": "JOSE", "kid": self.key_id}
            protected = base64url(canonical({**header, "jku": key_url} if key_url else header))
            payloads = dict.fromkeys(payload for _, payload in forms_of(card)[:2])
            if len(self._signed) >= SIGNED_MAX:
                self._signed.clear()
            self._signed[place] = [
                {"protected": protected, "signature": base64url(self._algorithm.sign(signed.encode(), self._key))}
                for signed in (f"{protected}.{base64url(payload)}" for payload in payloads)
            ]
        return {**card, "signatures": self._signed[place]}
