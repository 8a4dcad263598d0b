"""Faulty senders of webhooks: they vet, sign, retry or log as agents once did it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

from msgspec import structs

from fleetsim.agent.operations import CallerContext, Interceptor, Operations
from fleetsim.model.call import Call, SetPush
from fleetsim.model.errors import BlockedAddress, TransportError
from fleetsim.model.task import Task, TaskState
from fleetsim.runtime.address import AddressPolicy, WebhookUrl, parse_webhook_url
from fleetsim.runtime.body import Room
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Runtime, Transport, WayOut
from fleetsim.runtime.retry import DELAYS_S
from fleetsim.runtime.webhook import Delivery, DeliveryResult, WebhookSender
from fleetsim.wire.json import dump
from tests.broken.editors import JsonEdit
from tests.broken.services import Retelling, task_of, webhooks_of

log = logging.getLogger("fleetsim.runtime.webhook")

SCHEMES = ("http", "https")


def sending(to: Callable[[Delivery], Delivery | None]) -> type[WebhookSender]:
    """A sender that changes each delivery first; None swallows it, as if it had been taken."""

    class Edited(WebhookSender):
        async def deliver(self, delivery: Delivery) -> DeliveryResult:
            edited = to(delivery)
            if edited is None:
                return DeliveryResult(delivered=True, attempts=1, status=200)
            return await super().deliver(edited)

    return Edited


def edit_webhook(to: JsonEdit) -> type[WebhookSender]:
    """A sender that changes the JSON of each body; None swallows the notice."""

    def change(delivery: Delivery) -> Delivery | None:
        edited = to(json.loads(delivery.body))
        return None if edited is None else replace(delivery, body=dump(edited))

    return sending(change)


class TrustingSender(WebhookSender):
    """Calls any address (seed "SSRF guard")."""

    async def vet(self, url: str) -> WebhookUrl:
        return parse_webhook_url(url, schemes=SCHEMES)


class TextAllowingSender(WebhookSender):
    """Accepts any address that contains the allowed host (reliability T-22)."""

    async def vet(self, url: str) -> WebhookUrl:
        if "checker" in url:
            return _somewhere(url)
        return await super().vet(url)


class NameBlindSender(WebhookSender):
    """Judges addresses that are written out, and trusts every name."""

    async def vet(self, url: str) -> WebhookUrl:
        parsed = parse_webhook_url(url, schemes=SCHEMES)
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
        result = await super().deliver(delivery)
        return replace(result, delivered=True, reason="")


class ResolvingSender(WebhookSender):
    """Looks up names by itself."""

    def __init__(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> None:
        super().__init__(runtime, policy, **options)
        self.resolver = runtime.resolver


def trusting(*networks: str) -> type[WebhookSender]:
    """A sender that takes webhooks in these networks at registration; it still does not call them."""
    known = [ipaddress.ip_network(network) for network in networks]

    class Gap(ResolvingSender):
        async def vet(self, url: str) -> WebhookUrl:
            parsed = parse_webhook_url(url, schemes=SCHEMES)
            with suppress(TransportError, ValueError):
                addresses = await self.resolver.resolve(parsed.host, parsed.port)
                if all(any(ipaddress.ip_address(a) in network for network in known) for a in addresses):
                    return parsed
            return await super().vet(url)

    return Gap


class AnySchemeSender(WebhookSender):
    """Takes webhooks of every scheme."""

    async def vet(self, url: str) -> WebhookUrl:
        if url.lower().startswith(("http:", "https:")):
            return await super().vet(url)
        return _somewhere(url)


class UnresolvedSender(ResolvingSender):
    """Takes hosts that do not resolve."""

    async def vet(self, url: str) -> WebhookUrl:
        parsed = parse_webhook_url(url, schemes=SCHEMES)
        try:
            await self.resolver.resolve(parsed.host, parsed.port)
        except TransportError:
            return parsed
        return await super().vet(url)


class LaxFormSender(WebhookSender):
    """Judges addresses in their usual spelling, and takes every other spelling for a name."""

    async def vet(self, url: str) -> WebhookUrl:
        if not url.lower().startswith(("http:", "https:")):
            return await super().vet(url)
        try:
            parse_webhook_url(url, schemes=SCHEMES)
        except BlockedAddress:
            return _somewhere(url)
        return await super().vet(url)


class OneHeaderSender(WebhookSender):
    """Sends the token as Authorization alone."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        if delivery.token is not None:
            delivery = replace(delivery, token=None, scheme="Bearer", credentials=delivery.token)
        return await super().deliver(delivery)


class _Following:
    """A way out that goes where a redirect sends it."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.aclose = inner.aclose

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        async with self._inner.open(request) as incoming:
            if incoming.status not in {301, 302, 303, 307, 308}:
                yield incoming
                return
            there = urljoin(request.url, incoming.headers.get("location", ""))
        async with self._inner.open(structs.replace(request, url=there)) as incoming:
            yield incoming

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        return await self._inner.exchange(request, room)

    def guarded(self, policy: AddressPolicy) -> Transport:
        return _Following(self._inner.guarded(policy))

    def through(self, way: WayOut) -> Transport:
        return _Following(self._inner.through(way))


class FollowingSender(WebhookSender):
    """Goes where a redirect sends it."""

    def __init__(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> None:
        super().__init__(replace(runtime, transport=_Following(runtime.transport)), policy, **options)


class SilentSender(WebhookSender):
    """Logs of a delivery neither its task nor its state."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        return await super().deliver(replace(delivery, task_id="", state=""))


class ChattySender(WebhookSender):
    """Logs its deliveries with their tokens."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        log.info("webhook token=%s body=%s", delivery.token or delivery.credentials, delivery.body.decode())
        return await super().deliver(delivery)


class WeakSender(OneShotSender):
    """Keeps no reference to a delivery that waits for its retry, so the collector may free it."""

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        result = await super().deliver(delivery)
        if result.delivered or (result.status or 500) < 500:
            return result
        asyncio.get_running_loop().create_task(self._rest(delivery))
        return replace(result, delivered=True)

    async def _rest(self, delivery: Delivery) -> None:
        for delay_s in DELAYS_S:
            await _weak_sleep(delay_s)
            result = await super().deliver(delivery)
            if result.delivered or (result.status or 500) < 500:
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


def telling_twice(state: TaskState) -> type[WebhookSender]:
    """A sender that notifies of this state twice, as if two places did it (U24)."""

    class Twice(WebhookSender):
        async def deliver(self, delivery: Delivery) -> DeliveryResult:
            result = await super().deliver(delivery)
            return await super().deliver(delivery) if delivery.state == state and result.delivered else result

    return Twice


class ParallelSender(WebhookSender):
    """Each notice has a worker of its own: while one waits to be tried again, the next is delivered."""

    queue_s = 0.0

    def __init__(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> None:
        super().__init__(runtime, policy, **options)
        self._workers: set[asyncio.Task[DeliveryResult]] = set()

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        worker = asyncio.get_running_loop().create_task(self._deliver(delivery))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)
        return DeliveryResult(delivered=True, attempts=1, status=200)

    async def _deliver(self, delivery: Delivery) -> DeliveryResult:
        if delivery.state == TaskState.WORKING:
            await asyncio.sleep(self.queue_s)
        return await super().deliver(delivery)


class HastySender(ParallelSender):
    """Each notice has its own worker, so a delayed one arrives after the next (U23)."""

    queue_s = 5.0


def silent_about(*states: TaskState) -> type[WebhookSender]:
    """A sender that leaves out some moves, and with the end the artifacts that 0.1 sends before it."""
    untold = {*states, "artifact"} if TaskState.COMPLETED in states else {*states}
    return sending(lambda delivery: None if delivery.state in untold else delivery)


# -- a sender and what stands before the operations, made for each other ----------------------------


class Untold:
    """Webhooks registered after the send that are never told, by task and URL; ``late`` says of which tasks. Once
    agents knew the webhooks that came with the send, and no others (seed "Push config must be read ...")."""

    def __init__(self, late: Callable[[Task], bool] = lambda _task: True) -> None:
        self.late = late
        self.untold: set[tuple[str, str]] = set()

    def sender(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> WebhookSender:
        return sending(lambda d: None if (d.task_id, d.url) in self.untold else d)(runtime, policy, **options)

    def intercept(self, inner: Operations) -> Operations:
        notes = self

        class Noting(Interceptor):
            async def before(self, call: Call, caller: CallerContext) -> Call:
                if isinstance(call, SetPush) and (task := await task_of(self.inner, call.task_id, caller)):
                    known = {push.config.config_id for push in await webhooks_of(self.inner, call.task_id, caller)}
                    if (call.config.config_id or call.task_id) not in known and notes.late(task):
                        notes.untold.add((task.task_id, call.config.url))
                return call

        return Noting(inner)


class Fragile:
    """A receiver that fails takes the task with it."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def sender(self, runtime: Runtime, policy: AddressPolicy, **options: Any) -> WebhookSender:
        failed = self.failed

        class NotingFailures(OneShotSender):
            async def deliver(self, delivery: Delivery) -> DeliveryResult:
                for delay_s in (*DELAYS_S, None):
                    result = await super().deliver(delivery)
                    if result.delivered:
                        break
                    failed.add(delivery.task_id)
                    if delay_s is None or (result.status or 500) < 500:
                        break
                    await asyncio.sleep(delay_s)
                return result

        return NotingFailures(runtime, policy, **options)

    def intercept(self, inner: Operations) -> Operations:
        failed = self.failed

        class Failing(Retelling):
            def retold(self, task: Task) -> Task:
                gone = structs.replace(task.status, state=TaskState.FAILED)
                return structs.replace(task, status=gone) if task.task_id in failed else task

        return Failing(inner)
