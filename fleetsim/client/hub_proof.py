"""The proof that a program on a port is the hub that announced itself there."""

from __future__ import annotations

import hashlib
import hmac
import re

CHALLENGE = re.compile(r"[A-Za-z0-9_-]{16,128}")
"""The form of a challenge."""


def prove(proof: str, url: str, challenge: str) -> str:
    """Return the answer of the hub at ``url`` with the secret ``proof`` to a challenge.

    The address is part of the answer: a stranger who forwards the challenge to the hub gets an answer for another
    address.
    """
    return hmac.new(proof.encode(), f"fleetsim hub\n{url}\n{challenge}".encode(), hashlib.sha256).hexdigest()
