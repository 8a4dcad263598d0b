"""Delivering one webhook body to an address somebody else named: vetted, guarded, retried, logged. The address is
judged at registration and again at every connection, because a name may answer differently then.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleetsim.model.errors import BlockedAddress, FleetsimError, TransportError
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy, WebhookUrl, blocked, parse_webhook_url
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.runtime.retry import DELAYS_S, RETRY_AFTER_MAX_S, RETRY_STATUSES, jittered, retry_after_s

log = logging.getLogger(__name__)

BODY_BYTES_MAX = WIRE_BYTES_MAX
"""Largest body sent; what receivers of the fleet take (reference "Default limits")."""

REPLY_BYTES_MAX = 64 * 1024
"""Largest answer read; its content is dropped."""

ATTEMPT_S = 10.0
DELIVERIES_MAX = 32
"""Deliveries under way at once, over all configs."""

_ANY_SIZE = 1 << 62  # reading stops at REPLY_BYTES_MAX, which does not make a 2xx a failure
_HEADER_TEXT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One body for one webhook. ``scheme`` and ``credentials`` make an exact Authorization header.

    With the scheme of signed webhooks the credentials are the secret to sign with, and are never sent; every
    try of a delivery has the same ``message_id``, a fresh one if none is given. ``task_id`` and ``state`` are
    for the log line alone.
    """

    url: str
    body: bytes = field(repr=False)
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
    task_id: str = ""
    state: str = ""
    content_type: str = "application/json"
    message_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """How a delivery ended. ``gone`` is 410: the receiver wants no more. ``reason`` is empty on success."""

    delivered: bool
    attempts: int
    status: int | None = None
    gone: bool = False
    reason: str = ""


class WebhookSender:
    """Sends webhooks under one address policy. Times in seconds."""

    def __init__(
        self,
        runtime: Runtime,
        policy: AddressPolicy,
        *,
        delays_s: tuple[float, ...] = DELAYS_S,
        attempt_s: float = ATTEMPT_S,
        deliveries_max: int = DELIVERIES_MAX,
        schemes: tuple[str, ...] = ("http", "https"),
    ) -> None:
        self._runtime = runtime
        self._policy = policy
        self._transport = runtime.transport.guarded(policy)
        self._rng = runtime.rng.stream("webhook")
        self._delays_s = delays_s
        self._limits = Limits(total_s=attempt_s, body_bytes_max=_ANY_SIZE)
        self._gate = asyncio.Semaphore(deliveries_max)
        self._schemes = schemes

    async def vet(self, url: str) -> WebhookUrl:
        """Judge a URL at registration: its form, its port, and every address its name has now. Raises BlockedAddress,
        whose text reveals nothing about our network and may be shown to the subscriber."""
        parsed = parse_webhook_url(url, schemes=self._schemes)
        try:
            addresses = await self._runtime.resolver.resolve(parsed.host, parsed.port)
        except TransportError as error:
            if self._policy.names(parsed.host, parsed.port):
                raise BlockedAddress(f"{parsed.host} is allowed, but its name does not resolve here") from error
            raise blocked(parsed.host, parsed.port) from error
        self._policy.require(parsed.host, parsed.port, addresses)
        return parsed

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Send until it is taken, refused for good, or all retries are spent. Never raises for a bad receiver."""
        attempts = 0
        if not delivery.message_id and is_signing(delivery.scheme):
            delivery = replace(delivery, message_id=self._runtime.ids.new())
        while True:
            attempts += 1
            async with self._gate:
                result, asked_s = await self._attempt(delivery, attempts)
            if result is not None:
                return result
            wait_s = jittered(self._delays_s[attempts - 1], self._rng)
            await asyncio.sleep(max(wait_s, asked_s))

    async def _attempt(self, delivery: Delivery, attempt: int) -> tuple[DeliveryResult | None, float]:
        """One try: the final result, or None and the seconds the receiver asked us to wait."""
        began = self._runtime.clock.monotonic()
        status, asked_s, refusal, origin = None, 0.0, None, "(refused URL)"
        try:
            parsed = parse_webhook_url(delivery.url, schemes=self._schemes)
            origin = f"{parsed.scheme}://{parsed.host}:{parsed.port}"  # a path or query may hold a secret
            if len(delivery.body) > BODY_BYTES_MAX:
                raise BlockedAddress(f"the body is larger than {BODY_BYTES_MAX} bytes")
            headers = _headers(delivery, round(self._runtime.clock.now().timestamp()))
            request = Request(method="POST", url=delivery.url, headers=headers, body=delivery.body, limits=self._limits)
            async with self._transport.open(request) as incoming:
                status = incoming.status
                if status in {429, 503}:
                    asked_s = min(retry_after_s(incoming.headers, self._runtime.clock.now()) or 0.0, RETRY_AFTER_MAX_S)
                seen = 0
                async for chunk in incoming.chunks:  # so that the connection can serve again, unless it is too much
                    seen += len(chunk)
                    if seen > REPLY_BYTES_MAX:
                        break
        except FleetsimError as error:
            refusal = error if status is None else None
        # 2xx alone is success; a redirect is a refusal, and a refusal would be repeated for ever.
        if status is None:
            assert refusal is not None  # either an answer or a refusal
            final, reason = not isinstance(refusal, TransportError), str(refusal)
        elif 200 <= status < 300:
            final, reason = True, ""
        else:
            final, reason = status < 500 and status not in RETRY_STATUSES, f"HTTP {status}"
        log.info(
            "webhook %s task=%s state=%s attempt=%d status=%s %s in %d ms",
            origin,
            one_line(delivery.task_id, 128),
            one_line(delivery.state, 32),
            attempt,
            "-" if status is None else status,
            f"not delivered ({one_line(reason, 120)})" if reason else "delivered",
            round((self._runtime.clock.monotonic() - began) * 1000),
        )
        if not final and attempt <= len(self._delays_s):
            return None, asked_s
        gone = status == 410
        result = DeliveryResult(delivered=not reason, attempts=attempt, status=status, gone=gone, reason=reason)
        return result, 0.0


def check_secret(text: str | None) -> None:
    """Raises BlockedAddress, without a secret, for one that a header cannot carry (RFC 9110 section 5.5)."""
    if text is not None and (len(text) > 4_096 or not _HEADER_TEXT.fullmatch(text)):
        raise BlockedAddress("the webhook's token or credentials cannot be sent in a header")


def _headers(delivery: Delivery, seconds: int) -> Mapping[str, str]:
    """Both token headers, since receivers look at one or the other; and the signature if one is wanted."""
    for text in (delivery.token, delivery.scheme, delivery.credentials):
        check_secret(text)
    headers = {"content-type": delivery.content_type}
    if delivery.traceparent:
        headers["traceparent"] = delivery.traceparent
    if delivery.token:
        headers["x-a2a-notification-token"] = delivery.token
        headers["authorization"] = f"Bearer {delivery.token}"
    if is_signing(delivery.scheme):
        headers |= sign(read_secret(delivery.credentials), delivery.message_id, seconds, delivery.body)
    elif delivery.scheme and delivery.credentials:
        headers["authorization"] = f"{delivery.scheme} {delivery.credentials}"
    return headers


# -- signatures ------------------------------------------------------------------------------------------------------
# Signed webhooks (Standard Webhooks 1.0, symmetric): both ends of one signature, no clock and no memory.
#
# A webhook's token travels with it; a signing secret never does. The signature covers id, time and body, so a
# copied webhook is useless later and a changed one at once (reliability T-13). The receiver remembers ids.


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
    """The bytes of a written secret, 24 to 64 of them. Raises BlockedAddress: it is none; the text is not repeated."""
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
    return message_id if any(hmac.compare_digest(signature, expected) for signature in given) else None


def _decoded(text: str) -> bytes:
    version, _, signature = text.partition(",")
    try:
        return base64.b64decode(signature, validate=True) if version == "v1" and len(signature) <= 64 else b""
    except (ValueError, binascii.Error):
        return b""


def _mac(secret: bytes, message_id: str, sent: str, body: bytes) -> bytes:
    return hmac.new(secret, b".".join((message_id.encode(), sent.encode(), body)), hashlib.sha256).digest()
