"""One webhook delivery on virtual time: address checks, headers, retries, results and log lines (T-20, T-23)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Incoming
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import BlockedAddress
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.webhook import (
    BODY_BYTES_MAX,
    REPLY_BYTES_MAX,
    Delivery,
    DeliveryResult,
    WebhookSender,
    verify,
    write_secret,
)
from fleetsim.testbed.network import MemoryNetwork

URL = "http://hooks.example/in?x=1"
DELIVERY = Delivery(url=URL, body=b'{"a":1}', token="t0ken", task_id="t1", state="working")

Answer = Callable[[int], Response]


class Receiver:
    """A webhook receiver that records each request and its time, and gives the n-th request its n-th response."""

    def __init__(
        self, network: MemoryNetwork, answer: Answer | int = 200, origin: str = "http://hooks.example"
    ) -> None:
        self.at: list[float] = []
        self.requests: list[Incoming] = []
        self.bodies: list[bytes] = []
        self._answer = answer
        network.mount("http://hooks.example", Starlette(routes=[Route("/in", self._take, methods=["POST"])]))

    async def _take(self, request: Incoming) -> Response:
        self.at.append(asyncio.get_running_loop().time())
        self.requests.append(request)
        self.bodies.append(await request.body())
        return Response(status_code=self._answer) if isinstance(self._answer, int) else self._answer(len(self.at))

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.at)]


async def deliver(runtime: Runtime, network: MemoryNetwork, delivery: Delivery = DELIVERY) -> DeliveryResult:
    async with network:
        return await WebhookSender(runtime, AddressPolicy()).deliver(delivery)


async def test_a_delivery_arrives_once_with_both_token_headers(runtime: Runtime, network: MemoryNetwork) -> None:
    receiver = Receiver(network)
    result = await deliver(runtime, network)
    assert result == DeliveryResult(delivered=True, attempts=1, status=200)
    assert receiver.bodies == [b'{"a":1}']
    headers = receiver.requests[0].headers
    assert headers["authorization"] == "Bearer t0ken"
    assert headers["x-a2a-notification-token"] == "t0ken"
    assert headers["content-type"] == "application/json"


async def test_given_credentials_take_the_authorization_header(runtime: Runtime, network: MemoryNetwork) -> None:
    receiver = Receiver(network)
    await deliver(
        runtime, network, replace(DELIVERY, scheme="ApiKey", credentials="c red", content_type="application/a2a+json")
    )
    headers = receiver.requests[0].headers
    assert headers["authorization"] == "ApiKey c red"
    assert headers["x-a2a-notification-token"] == "t0ken"
    assert headers["content-type"] == "application/a2a+json"


async def test_without_a_token_no_token_header_is_sent(runtime: Runtime, network: MemoryNetwork) -> None:
    receiver = Receiver(network)
    await deliver(runtime, network, replace(DELIVERY, token=None))
    assert {"authorization", "x-a2a-notification-token"}.isdisjoint(receiver.requests[0].headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(runtime: Runtime, network: MemoryNetwork, status: int) -> None:
    Receiver(network, status)
    assert (await deliver(runtime, network)).delivered


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 422])
async def test_a_refusal_is_final_at_once(runtime: Runtime, network: MemoryNetwork, status: int) -> None:
    receiver = Receiver(network, status)
    result = await deliver(runtime, network)
    assert result == DeliveryResult(
        delivered=False, attempts=1, status=status, gone=status == 410, reason=f"HTTP {status}"
    )
    assert len(receiver.at) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
async def test_a_temporary_failure_is_retried_three_times_at_growing_gaps(
    runtime: Runtime, network: MemoryNetwork, status: int
) -> None:
    receiver = Receiver(network, status)
    result = await deliver(runtime, network)
    assert (result.delivered, result.attempts, result.status) == (False, 4, status)
    for gap, expected in zip(receiver.gaps, (1, 3, 9), strict=True):
        assert 0.8 * expected <= gap <= 1.2 * expected + 0.01


async def test_the_gaps_have_jitter(network: MemoryNetwork, runtime: Runtime) -> None:
    receiver = Receiver(network, 500)
    async with network:
        sender = WebhookSender(runtime, AddressPolicy())
        await sender.deliver(DELIVERY)
        first = receiver.gaps
        receiver.at.clear()
        await sender.deliver(DELIVERY)
    assert [round(gap, 3) for gap in first] != [round(gap, 3) for gap in receiver.gaps]


async def test_a_receiver_that_recovers_gets_the_delivery(runtime: Runtime, network: MemoryNetwork) -> None:
    Receiver(network, lambda n: Response(status_code=500 if n < 3 else 200))
    assert await deliver(runtime, network) == DeliveryResult(delivered=True, attempts=3, status=200)


async def test_a_dead_receiver_is_retried_and_reported(runtime: Runtime, network: MemoryNetwork) -> None:
    began = asyncio.get_running_loop().time()
    network.addresses["hooks.example"] = ("8.8.8.8",)
    result = await deliver(runtime, network)
    assert (result.delivered, result.attempts, result.status) == (False, 4, None)
    assert "hooks.example" in result.reason
    assert asyncio.get_running_loop().time() - began > 10


async def test_a_silent_receiver_costs_ten_seconds_an_attempt(runtime: Runtime, network: MemoryNetwork) -> None:
    async def hang(request: Incoming) -> Response:
        await asyncio.sleep(1_000)
        return Response()

    network.mount("http://hooks.example", Starlette(routes=[Route("/in", hang, methods=["POST"])]))
    loop = asyncio.get_running_loop()
    async with network:
        began = loop.time()
        result = await WebhookSender(runtime, AddressPolicy()).deliver(DELIVERY)
        took = loop.time() - began
    assert (result.delivered, result.attempts) == (False, 4)
    assert 50 <= took <= 56


@pytest.mark.parametrize(
    ("header", "least", "most"), [("20", 20, 20.1), ("100000", 120, 120.1), ("-5", 0.8, 1.3), ("soon", 0.8, 1.3)]
)
async def test_retry_after_is_obeyed_up_to_two_minutes(
    runtime: Runtime, network: MemoryNetwork, header: str, least: float, most: float
) -> None:
    receiver = Receiver(
        network, lambda n: Response(status_code=429 if n == 1 else 200, headers={"Retry-After": header})
    )
    assert (await deliver(runtime, network)).delivered
    assert least <= receiver.gaps[0] <= most


async def test_a_large_response_does_not_undo_a_success(runtime: Runtime, network: MemoryNetwork) -> None:
    Receiver(network, lambda n: Response(b"x" * 1_000_000))
    assert (await deliver(runtime, network)).delivered


async def test_a_body_over_the_limit_is_not_sent(runtime: Runtime, network: MemoryNetwork) -> None:
    receiver = Receiver(network)
    assert (await deliver(runtime, network, replace(DELIVERY, body=b"x" * BODY_BYTES_MAX))).delivered
    result = await deliver(runtime, network, replace(DELIVERY, body=b"x" * (BODY_BYTES_MAX + 1)))
    assert (result.delivered, result.attempts) == (False, 1)
    assert len(receiver.at) == 1


@pytest.mark.parametrize("field", ["token", "scheme", "credentials"])
@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "\x00", "é", "", " a", "x" * 5_000])
async def test_a_secret_that_is_not_a_header_value_sends_nothing_and_is_not_repeated(
    runtime: Runtime, network: MemoryNetwork, field: str, value: str
) -> None:
    receiver = Receiver(network)
    result = await deliver(runtime, network, replace(DELIVERY, **{field: value}))  # type: ignore[arg-type]
    assert not result.delivered
    assert receiver.at == []
    assert len(value) < 3 or value not in result.reason


async def test_a_name_that_now_resolves_to_a_private_address_is_refused_without_a_retry(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    receiver = Receiver(network)
    sender = WebhookSender(runtime, AddressPolicy())
    async with network:
        assert (await sender.vet(URL)).host == "hooks.example"
        network.addresses["hooks.example"] = ("127.0.0.1",)
        result = await sender.deliver(DELIVERY)
    assert (result.delivered, result.attempts) == (False, 1)
    assert receiver.at == []


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/",
            "http://localhost/",
            "http://10.0.0.1:8080/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
        ),
        *("http://inside.example/", "http://mixed.example/", "http://nosuch.example/", "http://hooks.example:22/"),
        *("http://hooks.example:9000/", "ftp://hooks.example/", "http://a@hooks.example/"),
    ],
)
async def test_a_forbidden_address_is_refused_at_registration(
    runtime: Runtime, network: MemoryNetwork, url: str
) -> None:
    network.addresses["hooks.example"] = ("8.8.8.8",)
    network.addresses["inside.example"] = ("192.168.1.1",)
    network.addresses["mixed.example"] = ("8.8.8.8", "127.0.0.1")
    with pytest.raises(BlockedAddress):
        await WebhookSender(runtime, AddressPolicy()).vet(url)


async def test_an_allowed_address_is_accepted_and_a_refusal_names_the_entry_to_add(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    assert (
        await WebhookSender(runtime, AddressPolicy.allowing("localhost:9000")).vet("http://localhost:9000/x")
    ).port == 9000
    with pytest.raises(BlockedAddress) as caught:
        await WebhookSender(runtime, AddressPolicy()).vet("http://localhost:9000/x")
    assert "--allow-webhook localhost:9000" in str(caught.value.hint)


async def test_the_advice_to_allow_a_name_is_given_only_if_it_is_not_allowed_yet(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    for allowed, advised in (((), True), (("nosuch.example:9000",), False), (("nosuch.example:9001",), True)):
        with pytest.raises(BlockedAddress) as caught:
            await WebhookSender(runtime, AddressPolicy.allowing(*allowed)).vet("http://nosuch.example:9000/x")
        assert ("--allow-webhook" in (caught.value.hint or "")) is advised


async def test_https_can_be_required(runtime: Runtime, network: MemoryNetwork) -> None:
    network.addresses["hooks.example"] = ("8.8.8.8",)
    with pytest.raises(BlockedAddress, match="https"):
        await WebhookSender(runtime, AddressPolicy(), schemes=("https",)).vet(URL)


async def test_every_attempt_is_logged_in_one_line_without_body_token_or_path(
    runtime: Runtime, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fleetsim")
    Receiver(network, lambda n: Response(b"s3cr3t-answer", status_code=500 if n == 1 else 200))
    secret = replace(
        DELIVERY, url="http://hooks.example/in?key=s3cr3t", body=b"s3cr3t", token="s3cr3t", task_id="t\n1\x1b[2J"
    )
    await deliver(runtime, network, secret)
    lines = [record.getMessage() for record in caplog.records if record.name == "fleetsim.runtime.webhook"]
    assert len(lines) == 2
    assert all(line.startswith("webhook http://hooks.example:80 task=t 1") and "\n" not in line for line in lines)
    assert tuple(line.split(" attempt=")[1].split()[1] for line in lines) == ("status=500", "status=200")
    assert "s3cr3t" not in caplog.text
    assert "\x1b" not in caplog.text
    assert "s3cr3t" not in repr(replace(secret, url=""))


@pytest.mark.parametrize(("said", "bound"), [({"deliveries_max": 4}, 4), ({}, 32)])
async def test_the_number_of_deliveries_under_way_is_limited(
    runtime: Runtime, network: MemoryNetwork, said: dict[str, int], bound: int
) -> None:
    now = most = 0

    async def slow(request: Incoming) -> Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1
        return Response()

    network.mount("http://hooks.example", Starlette(routes=[Route("/in", slow, methods=["POST"])]))
    async with network:
        sender = WebhookSender(runtime, AddressPolicy(), **said)  # type: ignore[arg-type]
        results = await asyncio.gather(*(sender.deliver(DELIVERY) for _ in range(2 * bound + 3)))
    assert all(result.delivered for result in results)
    assert most == bound


async def test_an_endless_response_is_abandoned_and_the_webhook_counts_as_delivered(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * REPLY_BYTES_MAX:
            sent += 4096
            yield b"x" * 4096
            await asyncio.sleep(0.001)

    Receiver(network, lambda _: StreamingResponse(endless()))
    assert (await deliver(runtime, network)).delivered
    assert REPLY_BYTES_MAX < sent <= 4 * REPLY_BYTES_MAX


@pytest.mark.parametrize(("status", "asked"), [(429, True), (503, True), (500, False), (408, False)])
async def test_retry_after_is_read_from_429_and_503_only(
    runtime: Runtime, network: MemoryNetwork, status: int, asked: bool
) -> None:
    receiver = Receiver(
        network, lambda n: Response(status_code=status if n < 3 else 200, headers={"Retry-After": "50"})
    )
    assert (await deliver(runtime, network)).attempts == 3
    assert [gap >= 50 for gap in receiver.gaps] == [asked, asked]


async def test_every_attempt_of_a_signed_delivery_has_one_id_and_its_own_time(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    receiver = Receiver(network, 500)
    secret = bytes(range(32))
    signed = replace(DELIVERY, token=None, scheme="standard-webhooks", credentials=write_secret(secret))
    async with network:
        sender = WebhookSender(runtime, AddressPolicy())
        await sender.deliver(signed)
        await sender.deliver(replace(signed, message_id="mine"))
    *requests, last = receiver.requests[:5]
    heads = [request.headers for request in requests]
    assert len({head["webhook-id"] for head in heads}) == 1
    assert len({head["webhook-timestamp"] for head in heads}) == 4
    assert all("authorization" not in head for head in heads)
    for head in heads:
        at = int(head["webhook-timestamp"])
        assert verify(head.items(), secret, at, DELIVERY.body) == head["webhook-id"]
    assert last.headers["webhook-id"] == "mine"
