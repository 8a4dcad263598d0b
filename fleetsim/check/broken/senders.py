"""Faulty senders of webhooks: they vet, sign, retry or log as agents once did it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

from fleetsim.model.errors import BlockedAddress, FleetsimError, TransportError
from fleetsim.runtime.address import WebhookUrl, parse_webhook_url
from fleetsim.runtime.webhook import Delivery, DeliveryResult, WebhookSender, _verdict

log = logging.getLogger("fleetsim.runtime.webhook")


class TrustingSender(WebhookSender):
    """Calls whatever address it is given (seed "SSRF guard")."""

    async def vet(self, url: str) -> WebhookUrl:
        """Look at the form of the URL, and resolve nothing."""
        return parse_webhook_url(url, schemes=self._schemes)


class TextAllowingSender(WebhookSender):
    """Takes whatever address contains the host that was allowed (reliability T-22)."""

    async def vet(self, url: str) -> WebhookUrl:
        """Look for the name of the bench's listener anywhere."""
        if "checker" in url:
            return _somewhere(url)
        return await super().vet(url)


class NameBlindSender(WebhookSender):
    """Judges addresses that are written out, and trusts every name."""

    async def vet(self, url: str) -> WebhookUrl:
        """Judge literals only."""
        parsed = parse_webhook_url(url, schemes=self._schemes)
        if parsed.host.replace(".", "").isdigit() or ":" in parsed.host:
            return await super().vet(url)
        return parsed


class OneShotSender(WebhookSender):
    """Never tries again."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{**options, "delays_s": ()})


class RapidSender(WebhookSender):
    """Tries again at once, three times within a moment."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{**options, "delays_s": (0.01, 0.01, 0.01)})


class StubbornSender(WebhookSender):
    """Tries again after a refusal that will not change."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Until it is taken or all tries are spent."""
        for delay_s in (1.0, 3.0, 9.0):
            result = await super().deliver(delivery)
            if result.delivered or result.status is None or result.status >= 500:
                return result
            await asyncio.sleep(delay_s)
        return await super().deliver(delivery)


class EasySender(WebhookSender):
    """Takes every answer for a success (U26)."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{**options, "delays_s": ()})

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Once, whatever comes back."""
        result = await super().deliver(delivery)
        return replace(result, delivered=True, reason="")


def trusting(*networks: str) -> type[WebhookSender]:
    """A sender that takes webhooks in these networks at registration; it still does not call them."""
    known = [ipaddress.ip_network(network) for network in networks]

    class Gap(WebhookSender):
        """Forgets some addresses."""

        async def vet(self, url: str) -> WebhookUrl:
            """Take an address of the forgotten networks, and judge every other."""
            parsed = parse_webhook_url(url, schemes=self._schemes)
            with suppress(TransportError, ValueError):
                addresses = await self._runtime.resolver.resolve(parsed.host, parsed.port)
                if all(any(ipaddress.ip_address(a) in network for network in known) for a in addresses):
                    return parsed
            return await super().vet(url)

    return Gap


class AnySchemeSender(WebhookSender):
    """Takes webhooks of every scheme."""

    async def vet(self, url: str) -> WebhookUrl:
        """Judge http and https; take every other scheme as it is."""
        if url.lower().startswith(("http:", "https:")):
            return await super().vet(url)
        return _somewhere(url)


class UnresolvedSender(WebhookSender):
    """Takes hosts that do not resolve."""

    async def vet(self, url: str) -> WebhookUrl:
        """Judge a host that resolves, and take one that does not."""
        parsed = parse_webhook_url(url, schemes=self._schemes)
        try:
            await self._runtime.resolver.resolve(parsed.host, parsed.port)
        except TransportError:
            return parsed
        return await super().vet(url)


class LaxFormSender(WebhookSender):
    """Judges addresses in their usual spelling, and takes every other spelling for a name."""

    async def vet(self, url: str) -> WebhookUrl:
        """Judge what it can read, and take what it cannot."""
        if not url.lower().startswith(("http:", "https:")):
            return await super().vet(url)
        try:
            parse_webhook_url(url, schemes=self._schemes)
        except BlockedAddress:
            return _somewhere(url)
        return await super().vet(url)


class OneHeaderSender(WebhookSender):
    """Sends the token as Authorization alone."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """With the token as credentials, which go into no header but that."""
        if delivery.token is not None:
            delivery = replace(delivery, token=None, scheme="Bearer", credentials=delivery.token)
        return await super().deliver(delivery)


class FollowingSender(WebhookSender):
    """Goes where a redirect sends it."""

    async def _attempt(self, delivery: Delivery, attempt: int) -> tuple[DeliveryResult | None, float]:
        try:
            reply = await self._transport.exchange(self._request(delivery))
        except FleetsimError:
            return await super()._attempt(delivery, attempt)
        if reply.status in {301, 302, 303, 307, 308}:
            there = urljoin(delivery.url, reply.headers.get("location", ""))
            return await super()._attempt(replace(delivery, url=there), attempt)
        final, reason = _verdict(reply.status, None)
        self._log(delivery, attempt, reply.status, reason, 0.0)
        if not final and attempt <= len(self._delays_s):
            return None, 0.0
        return DeliveryResult(delivered=not reason, attempts=attempt, status=reply.status, reason=reason), 0.0


class SilentSender(WebhookSender):
    """Logs deliveries where nobody sees them."""

    def _log(self, delivery: Delivery, attempt: int, status: int | None, reason: str, took_s: float) -> None:
        """At DEBUG."""
        log.debug("webhook task=%s state=%s status=%s", delivery.task_id, delivery.state, status)


class ChattySender(WebhookSender):
    """Logs what it delivers, token and all."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Everything, before it goes out."""
        log.info("webhook token=%s body=%s", delivery.token or delivery.credentials, delivery.body.decode())
        return await super().deliver(delivery)


class WeakSender(WebhookSender):
    """Nobody holds on to a delivery that waits to be retried, so the collector may take it."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Once here; the rest in a task of its own."""
        result, _ = await self._attempt(delivery, 1)
        if result is None:
            asyncio.get_running_loop().create_task(self._rest(delivery))
            result = DeliveryResult(delivered=True, attempts=1)
        return result

    async def _rest(self, delivery: Delivery) -> None:
        for attempt, delay_s in enumerate(self._delays_s, start=2):
            await _weak_sleep(delay_s)
            result, _ = await self._attempt(delivery, attempt)
            if result is not None:
                return


async def _weak_sleep(seconds: float) -> None:
    """Sleep so that the loop knows the sleeper by a weak reference only."""
    loop = asyncio.get_running_loop()
    waking: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, _wake, weakref.ref(waking))
    await waking


def _wake(sleeper: weakref.ref[asyncio.Future[None]]) -> None:
    waking = sleeper()
    if waking is not None and not waking.done():
        waking.set_result(None)


def _somewhere(url: str) -> WebhookUrl:
    return WebhookUrl(url=url, scheme="http", host="somewhere", port=80)


class FragileSender(WebhookSender):
    """Says at once when a receiver has failed."""

    broken: Callable[[str], None] = staticmethod(lambda _task_id: None)

    async def _attempt(self, delivery: Delivery, attempt: int) -> tuple[DeliveryResult | None, float]:
        result, asked_s = await super()._attempt(delivery, attempt)
        if result is None or not result.delivered:
            self.broken(delivery.task_id)
        return result, asked_s
