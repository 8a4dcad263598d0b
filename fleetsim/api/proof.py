"""How a hub proves to be the one that announced itself, before it is told a key."""

from __future__ import annotations

import hashlib
import hmac
import re

CHALLENGE = re.compile(r"[A-Za-z0-9_-]{16,128}")
"""What a hub may be asked to prove itself with."""


def prove(proof: str, url: str, challenge: str) -> str:
    """What the hub at ``url`` that has the secret ``proof`` answers to a challenge.

    The address is part of it: a stranger who passes the challenge on to the hub gets a proof for another address.
    """
    return hmac.new(proof.encode(), f"fleetsim hub\n{url}\n{challenge}".encode(), hashlib.sha256).hexdigest()
