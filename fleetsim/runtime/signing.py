"""Signed webhooks (Standard Webhooks 1.0, symmetric): both ends of one signature, no clock and no memory.

A webhook's token travels with it; a signing secret never does. The signature covers id, time and body, so a
copied webhook is useless later and a changed one at once (reliability T-13). Who remembers ids is the receiver.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable

from fleetsim.model.errors import BlockedAddress

SCHEME = "Standard-Webhooks"
"""The authentication scheme of a push config whose credentials are a signing secret."""

ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300
"""How far a webhook's time may be from ours, either way."""

SIGNATURES_MAX = 10
_PREFIX = "whsec_"
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


def is_signing(scheme: str | None) -> bool:
    """Whether a push config asks for signatures."""
    return scheme is not None and scheme.lower() == SCHEME.lower()


def write_secret(secret: bytes) -> str:
    """A signing secret as it is handed to a sender: ``whsec_`` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str | None) -> bytes:
    """The bytes of a written secret, 24 to 64 of them.

    Raises:
        BlockedAddress: it is none; the text is not repeated.
    """
    try:
        if text is None or not text.startswith(_PREFIX):
            raise ValueError
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        secret = b""
    if not 24 <= len(secret) <= 64:
        raise BlockedAddress("the webhook's signing secret is not whsec_ and the base64 of 24 to 64 bytes")
    return secret


def sign(secret: bytes, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of one signed webhook, sent at ``seconds`` since 1970."""
    signature = base64.b64encode(_mac(secret, message_id, str(seconds), body)).decode()
    return {ID_HEADER: message_id, TIME_HEADER: str(seconds), SIGNATURE_HEADER: f"v1,{signature}"}


def verify(headers: Iterable[tuple[str, str]], secret: bytes, seconds: float, body: bytes) -> str | None:
    """The id of a genuine and timely webhook received at ``seconds`` since 1970, else None. Never raises.

    Each header comes exactly once; the time is a whole number; the id has no dot, which separates the parts.
    """
    named: dict[str, list[str]] = {ID_HEADER: [], TIME_HEADER: [], SIGNATURE_HEADER: []}
    for name, value in headers:
        if name.lower() in named:
            named[name.lower()].append(value)
    if any(len(values) != 1 for values in named.values()):
        return None
    message_id, sent, signatures = (values[0] for values in named.values())
    if not _ID.fullmatch(message_id) or not _TIME.fullmatch(sent) or abs(seconds - int(sent)) > TOLERANCE_S:
        return None
    expected = _mac(secret, message_id, sent, body)
    given = [_decoded(text) for text in signatures.split(" ", SIGNATURES_MAX)[:SIGNATURES_MAX]]
    return message_id if any(hmac.compare_digest(one, expected) for one in given) else None


def _decoded(text: str) -> bytes:
    version, _, signature = text.partition(",")
    try:
        return base64.b64decode(signature, validate=True) if version == "v1" and len(signature) <= 64 else b""
    except (ValueError, binascii.Error):
        return b""


def _mac(secret: bytes, message_id: str, sent: str, body: bytes) -> bytes:
    return hmac.new(secret, b".".join((message_id.encode(), sent.encode(), body)), hashlib.sha256).digest()
