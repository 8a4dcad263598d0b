"""Webhooks: the tokens that prove them, those that arrive before the reply to their send, and agents that send none.

A token carries a key epoch, the agent and our request id, and an HMAC-SHA256 over the three under the key of that epoch
(reliability T-10), so that a forged one is recognized without a lookup. Two epochs are valid at a time: keys can be
rotated while tasks run. A token may say that its webhooks are signed; the signing secret is derived from the same keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleetsim.events.fleet import WebhooksDegraded
from fleetsim.events.log import EventLog
from fleetsim.ledger import EarlyWebhook, Ledger
from fleetsim.model.errors import NotAccepting
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.work import KIND_OF_STATE, Outcome, UpdateSource
from fleetsim.request.track import Track

CALLBACK_PATH = "/api/a2a/callback/"

_DOMAIN = b"fleetsim callback v1\0"
_SIGNING_DOMAIN = b"fleetsim callback signature v1\0"
_SIGNED = "signed"
TOKEN_CHARS_MAX = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    """The contents of a verified token. ``signed``: its webhooks count only with a signature."""

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
        """Make a token for one request to one agent."""
        claims = _claims_bytes(self._known(epoch), agent, correlation_id, signed)
        return f"{_b64(claims)}.{_b64(self._mac(self._known(epoch), claims))}"

    def signing_secret(self, agent: str, correlation_id: str, *, epoch: int | None = None) -> bytes:
        """The secret that signs the webhooks of one request."""
        epoch = self._known(epoch)
        return hmac.new(
            self._keys[epoch], _SIGNING_DOMAIN + _claims_bytes(epoch, agent, correlation_id, True), hashlib.sha256
        ).digest()

    def verify(self, token: str) -> TokenClaims | None:
        """The claims of a token that this hub made; None for any other text. Never raises."""
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


SILENT_AFTER = 3
"""After this many tasks in a row that only polling ended, although a webhook was registered, an agent is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyLimits:
    """Webhooks kept before their reply is there, and their bytes: of one request, of one agent, and in all.

    Most are small, and one of the largest size always fits. They also stay in memory until the reply arrives; these
    limits bound that memory.
    """

    per_request_max: int = 16
    per_agent_max: int = 1_000
    per_agent_bytes_max: int = 2 * WIRE_BYTES_MAX
    webhooks_max: int = 10_000
    bytes_max: int = 4 * WIRE_BYTES_MAX


class EarlyWebhooks:
    """Webhooks that arrive before the reply to their send: recorded before the acknowledgement, within limits.

    Their token names the request, and no task is bound yet. After a 2xx an agent does not repeat them, so they stay in
    the ledger until their request ends, also over a restart. A webhook beyond the limits is not acknowledged.
    """

    def __init__(self, ledger: Ledger, limits: EarlyLimits | None = None) -> None:
        self._ledger = ledger
        self._limits = limits or EarlyLimits()
        self._sizes: dict[str, list[tuple[str, int]]] = {}
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    async def keep(self, webhook: EarlyWebhook) -> None:
        """Record a webhook until its request ends. Raises NotAccepting if a limit or the storage refuses it."""
        self._require_room(webhook)
        self._add(webhook)
        try:
            await self._ledger.keep_webhook(webhook)
        except BaseException as error:
            others = self._sizes.get(webhook.correlation_id, [])
            if others:  # its request has not ended meanwhile
                others.remove((webhook.agent, webhook.body_bytes))
                self._count[webhook.agent] -= 1
                self._bytes[webhook.agent] -= webhook.body_bytes
            if isinstance(error, ValueError):
                raise NotAccepting(f"the webhook cannot be recorded: {error}") from error
            raise

    def take_over(self, webhooks: Iterable[EarlyWebhook]) -> None:
        """Count the webhooks that an earlier run kept, even beyond the limits."""
        for webhook in webhooks:
            self._add(webhook)

    def forget(self, correlation_id: str) -> None:
        """Drop the webhooks of a request that has ended."""
        for agent, size in self._sizes.pop(correlation_id, ()):
            self._count[agent] -= 1
            self._bytes[agent] -= size

    def _require_room(self, webhook: EarlyWebhook) -> None:
        limits, agent, more = self._limits, webhook.agent, webhook.body_bytes
        full = {
            "per_request_max": len(self._sizes.get(webhook.correlation_id, ())) >= limits.per_request_max,
            "per_agent_max": self._count[agent] >= limits.per_agent_max,
            "per_agent_bytes_max": self._bytes[agent] + more > limits.per_agent_bytes_max,
            "webhooks_max": self._count.total() >= limits.webhooks_max,
            "bytes_max": self._bytes.total() + more > limits.bytes_max,
        }
        if reached := next((name for name, over in full.items() if over), None):
            raise NotAccepting(f"too many webhooks wait for the reply to their send ({reached})")

    def _add(self, webhook: EarlyWebhook) -> None:
        self._sizes.setdefault(webhook.correlation_id, []).append((webhook.agent, webhook.body_bytes))
        self._count[webhook.agent] += 1
        self._bytes[webhook.agent] += webhook.body_bytes


class PushWatch:
    """Marks agents whose webhooks do not arrive (reliability F-38): three in a row that are missing, not one.

    Counts, per agent, ends that only a poll brought. One webhook that does arrive clears the count. ``refusing`` are
    the agents that refused a webhook. They receive none until their address or card changes.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._missed: dict[str, int] = {}
        self.refusing = set[str]()

    def refused(self, agent: str) -> bool:
        """Record that the agent refused a webhook; True if that was known."""
        known = agent in self.refusing
        self.refusing.add(agent)
        return known

    def forget(self, agent: str) -> None:
        """Offer webhooks again: the address may belong to another agent by now."""
        self.refusing.discard(agent)

    def arrived(self, agent: str) -> None:
        """A verified webhook of this agent arrived, early, late or in time."""
        self._missed.pop(agent, None)
        self.refusing.discard(agent)

    def ended(self, track: Track, outcome: Outcome) -> None:
        """A request ended. Publishes ``agent.push.degraded`` after three ends in a row without a webhook."""
        agent = track.record.agent
        if track.pushing.received:
            self.arrived(agent)
        elif track.record.push and outcome.via is UpdateSource.POLL and outcome.kind in KIND_OF_STATE.values():
            missed = self._missed[agent] = self._missed.get(agent, 0) + 1
            if missed == SILENT_AFTER:
                why = f"the last {missed} tasks ended by polling; no webhook of theirs arrived"
                self._events.publish(WebhooksDegraded(agent=agent, why=why, refused=False))
