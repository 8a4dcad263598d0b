from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import ConnectionLost, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.ports import Limits, Reply, Request
from fleetsim.testbed.faults import (
    HTML_ERROR,
    CutAfter,
    Drip,
    DropAfter,
    Duplicate,
    EditChunk,
    EditRequest,
    EditStart,
    Fault,
    Late,
    Latency,
    LoseReply,
    LoseRequest,
    Match,
    Refuse,
    SlowStart,
    Stall,
    Status,
    called,
    html_error,
)
from fleetsim.testbed.loop import run
from fleetsim.testbed.network import MemoryNetwork
from tests.testbed.serving import outcome, until_lost

AGENT = "http://agent-a:8000"
STREAM = Request(method="GET", url=AGENT + "/stream", limits=Limits(total_s=None))
SEND = Request(method="POST", url=AGENT + "/a2a", body=b'{"method":"message/send"}')


def now() -> float:
    return asyncio.get_running_loop().time()


class Witness:
    """An agent that records the requests that reached it, to compare with the caller's view."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, bytes]] = []
        self.closed_at: list[float] = []

    async def answer(self, request: WebRequest) -> Response:
        self.arrived.append((now(), await request.body()))
        return PlainTextResponse("done")

    async def stream(self, request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                for number in range(4):
                    yield b"event-%d;" % number
                    await asyncio.sleep(1)
            finally:
                self.closed_at.append(now())

        return StreamingResponse(chunks(), media_type="text/event-stream")


@pytest.fixture
def agent() -> Witness:
    return Witness()


@pytest.fixture
async def ground(network: MemoryNetwork, agent: Witness) -> AsyncIterator[MemoryNetwork]:
    routes = [Route("/a2a", agent.answer, methods=["POST"]), Route("/stream", agent.stream)]
    network.mount(AGENT, Starlette(routes=routes))
    async with network:
        yield network


async def test_refuse_means_that_nothing_was_sent(ground: MemoryNetwork, agent: Witness) -> None:
    ground.fault(Refuse())
    error = await outcome(ground, SEND)
    assert isinstance(error, Unreachable)
    assert not error.sent
    assert agent.arrived == []


@pytest.mark.parametrize(
    ("fault", "error", "sent", "at"),
    [
        (Stall(at="connect"), Unreachable, False, 3),
        (Stall(at="response"), TimedOut, True, 15),
        (Stall(at="body"), TimedOut, True, 15),
        (Stall(at="body", after_bytes=2), TimedOut, True, 15),
    ],
)
async def test_silence_ends_at_the_callers_own_deadline(
    ground: MemoryNetwork, fault: Fault, error: type[FleetsimError], sent: bool, at: float
) -> None:
    ground.fault(fault)
    result = await outcome(ground, SEND)
    assert isinstance(result, error)
    assert getattr(result, "sent") is sent  # noqa: B009 - both kinds have it
    assert now() == at


async def test_a_short_stall_only_delays(ground: MemoryNetwork) -> None:
    ground.fault(Stall(at="body", after_bytes=2, seconds=5))
    result = await outcome(ground, SEND)
    assert isinstance(result, Reply)
    assert result.body == b"done"
    assert now() == 5


@pytest.mark.parametrize(("fault", "arrived"), [(LoseRequest(), []), (LoseReply(), [SEND.body])])
async def test_a_caller_cannot_tell_a_lost_request_from_a_lost_reply(
    ground: MemoryNetwork, agent: Witness, fault: Fault, arrived: list[bytes]
) -> None:
    ground.fault(fault)
    error = await outcome(ground, SEND)
    assert isinstance(error, ConnectionLost)
    assert error.sent
    assert [body for _, body in agent.arrived] == arrived


async def test_a_duplicate_arrives_again_and_only_the_first_gets_the_reply(
    ground: MemoryNetwork, agent: Witness
) -> None:
    ground.fault(Duplicate(copies=2, after_s=7))
    assert isinstance(await outcome(ground, SEND), Reply)
    await asyncio.sleep(60)
    assert agent.arrived == [(0, SEND.body), (7, SEND.body), (14, SEND.body)]


async def test_delayed_requests_arrive_out_of_order(ground: MemoryNetwork, agent: Witness) -> None:
    ground.fault(Late(low_s=0, high_s=9))
    bodies = [b"%d" % number for number in range(10)]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(ground.exchange(Request(method="POST", url=AGENT + "/a2a", body=body)))
    arrived = [body for _, body in agent.arrived]
    assert sorted(arrived) == bodies
    assert arrived != bodies


async def test_an_edited_request_reaches_the_agent(ground: MemoryNetwork, agent: Witness) -> None:
    ground.fault(EditRequest(edit=lambda body: body[:5]))
    await outcome(ground, SEND)
    assert agent.arrived == [(0, SEND.body[:5])]


@pytest.mark.parametrize(
    ("fault", "reply"),
    [
        (Status(status=401), (401, "text/plain", b"")),
        (Status(status=503, body=b"busy", headers={"retry-after": "7"}), (503, None, b"busy")),
        (html_error(), (502, "text/html", HTML_ERROR)),
    ],
)
async def test_a_reply_by_an_intermediary_never_reaches_the_application(
    ground: MemoryNetwork, agent: Witness, fault: Fault, reply: tuple[int, str | None, bytes]
) -> None:
    ground.fault(fault)
    result = await outcome(ground, SEND)
    assert isinstance(result, Reply)
    assert (result.status, result.headers.get("content-type"), result.body) == reply
    assert agent.arrived == []


async def test_a_slow_start_delays_only_the_start(ground: MemoryNetwork) -> None:
    ground.fault(SlowStart(seconds=14))
    assert isinstance(await outcome(ground, SEND), Reply)
    assert now() == 14
    ground.fault(SlowStart(seconds=2))
    assert isinstance(await outcome(ground, SEND), TimedOut)


async def test_an_edited_start_changes_only_status_and_headers(ground: MemoryNetwork) -> None:
    with ground.fault(EditStart(headers={"content-type": "application/octet-stream"})):
        result = await outcome(ground, SEND)
        assert isinstance(result, Reply)
        assert (result.status, result.headers["content-type"]) == (200, "application/octet-stream")
    with ground.fault(EditStart(status=202, headers={"content-type": None, "x-new": "1"})):
        result = await outcome(ground, SEND)
        assert isinstance(result, Reply)
        assert (result.status, result.headers.get("content-type"), result.headers["x-new"]) == (202, None, "1")


@pytest.mark.parametrize("passed", [0, 1, 7, 8, 9, 31])
async def test_a_stream_breaks_at_the_given_byte_for_both_sides(
    ground: MemoryNetwork, agent: Witness, passed: int
) -> None:
    ground.fault(DropAfter(bytes_passed=passed))
    async with ground.open(STREAM) as incoming:
        received = await until_lost(incoming)
        await asyncio.sleep(10)
        assert agent.closed_at == [(passed - 1) // 8 if passed else 0]
    assert received == b"event-0;event-1;event-2;event-3;"[:passed]


@pytest.mark.parametrize("passed", [0, 1, 8, 20])
async def test_a_truncated_stream_ends_as_if_it_were_whole(ground: MemoryNetwork, agent: Witness, passed: int) -> None:
    ground.fault(CutAfter(bytes_passed=passed))
    result = await outcome(ground, STREAM)
    assert isinstance(result, Reply)
    assert result.body == b"event-0;event-1;event-2;event-3;"[:passed]
    await asyncio.sleep(10)
    assert agent.closed_at == [(passed - 1) // 8 if passed else 0]


async def test_a_truncated_json_body_declares_no_length(ground: MemoryNetwork) -> None:
    ground.fault(CutAfter(bytes_passed=2))
    result = await outcome(ground, SEND)
    assert isinstance(result, Reply)
    assert result.body == b"do"
    assert "content-length" not in result.headers


async def test_a_drip_sends_the_same_bytes_slowly(ground: MemoryNetwork) -> None:
    ground.fault(Drip(size=3, every_s=0.5))
    async with ground.open(SEND) as incoming:
        pieces = [(now(), chunk) async for chunk in incoming.chunks]
    assert pieces == [(0.5, b"don"), (1.0, b"e")]


async def test_edited_chunks_reach_the_caller(ground: MemoryNetwork) -> None:
    ground.fault(EditChunk(edit=lambda chunk: chunk.replace(b"event", b"evt")))
    result = await outcome(ground, STREAM)
    assert isinstance(result, Reply)
    assert result.body == b"evt-0;evt-1;evt-2;evt-3;"


async def test_latency_delays_a_stream_without_slowing_it(ground: MemoryNetwork) -> None:
    ground.fault(Latency(low_s=2, high_s=2))
    async with ground.open(STREAM) as incoming:
        assert now() == 4, "there and back"
        arrivals = [now() async for _ in incoming.chunks]
    assert arrivals == [4, 5, 6, 7]


async def test_faults_apply_in_the_order_in_which_they_were_added(ground: MemoryNetwork) -> None:
    ground.fault(EditChunk(edit=lambda chunk: b"<" + chunk + b">"))
    ground.fault(DropAfter(bytes_passed=10))
    async with ground.open(STREAM) as incoming:
        received = await until_lost(incoming)
    assert received == b"<event-0;>"


# Which requests a fault applies to.


async def test_a_fault_ends_after_its_times_or_when_it_is_lifted(ground: MemoryNetwork) -> None:
    twice = ground.fault(Status(status=500), times=2)
    statuses = [(await ground.exchange(SEND)).status for _ in range(4)]
    assert statuses == [500, 500, 200, 200]
    assert twice.hits == 2
    lifted = ground.fault(Status(status=500))
    assert (await ground.exchange(SEND)).status == 500
    lifted.lift()
    assert (await ground.exchange(SEND)).status == 200
    with ground.fault(Status(status=429)):
        assert (await ground.exchange(SEND)).status == 429
    assert (await ground.exchange(SEND)).status == 200


@pytest.mark.slow
async def test_probability_is_drawn_from_the_seed() -> None:
    async def pattern(seed: int) -> str:
        network = MemoryNetwork(seed=seed)
        network.mount(AGENT, Starlette(routes=[Route("/a2a", Witness().answer, methods=["POST"])]))
        network.fault(Status(status=500), probability=0.3)
        async with network:
            return "".join([str((await network.exchange(SEND)).status)[0] for _ in range(200)])

    first = await pattern(1)
    assert first == await pattern(1)
    assert first != await pattern(2)
    assert 30 < first.count("5") < 90


@pytest.mark.parametrize(
    ("method", "path", "version", "operation"),
    [
        ("POST", "/a2a/message:send", "1.0", ("SendMessage", "")),
        ("POST", "/deep/down/a2a/v1/message:stream", None, ("message/stream", "")),
        ("POST", "/a2a/message:send", None, ("message/send", "")),
        ("GET", "/a2a/tasks/t-1", "1.0", ("GetTask", "t-1")),
        ("GET", "/a2a/v1/tasks", None, ("tasks/list", "")),
        ("GET", "/a2a/tasks", None, ("tasks/list", "")),
        ("GET", "/tenant/tasks/t-1", "1.0", ("GetTask", "t-1")),
        ("POST", "/a2a/v1/tasks/t-1:cancel", None, ("tasks/cancel", "t-1")),
        ("POST", "/a2a/v1/tasks/t-1/pushNotificationConfigs", None, ("tasks/pushNotificationConfig/set", "t-1")),
        ("GET", "/.well-known/agent-card.json", "1.0", ("", "")),
        ("POST", "/callback/t-1", None, ("", "")),
        ("POST", "/a2a/message:send", "9.9", ("", "")),
    ],
)
def test_an_operation_over_http_json_has_its_name_in_json_rpc(
    method: str, path: str, version: str | None, operation: tuple[str, str]
) -> None:
    headers = {} if version is None else {"a2a-version": version}
    assert called(Request(method=method, url=AGENT + path, headers=headers)) == operation


@pytest.mark.parametrize(
    ("match", "meant"),
    [
        (Match(), True),
        (Match(origin=AGENT), True),
        (Match(origin=AGENT + "/"), True),
        (Match(origin="http://agent-*:8000"), True),
        (Match(origin="http://agent-b:8000"), False),
        (Match(path="/a2a"), True),
        (Match(path="/a*"), True),
        (Match(path="/"), False),
        (Match(method="POST"), True),
        (Match(method="GET"), False),
        (Match(rpc_method="message/send"), True),
        (Match(rpc_method="message/*"), True),
        (Match(rpc_method="tasks/get"), False),
        (Match(source="hub"), True),
        (Match(source="agent-b"), False),
        (Match(where=lambda request: b"send" in request.body), True),
        (Match(where=lambda request: False), False),
        (Match(origin=AGENT, path="/a2a", rpc_method="tasks/get"), False),
    ],
)
async def test_a_fault_applies_to_the_requests_it_matches(ground: MemoryNetwork, match: Match, meant: bool) -> None:
    ground.fault(Status(status=500), match)
    assert ((await ground.seen_from("hub").exchange(SEND)).status == 500) is meant


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"method":5}', b"\xff"])
async def test_a_body_without_a_method_matches_no_method(ground: MemoryNetwork, body: bytes) -> None:
    ground.fault(Status(status=500), Match(rpc_method="message/send"))
    assert (await ground.exchange(Request(method="POST", url=SEND.url, body=body))).status == 200


async def test_default_ports_match_with_and_without_the_number(network: MemoryNetwork) -> None:
    network.mount("http://plain", Starlette(routes=[Route("/", Witness().answer, methods=["POST"])]))
    async with network:
        for written in ("http://plain", "http://plain:80", "http://plain/", "HTTP://PLAIN"):
            with network.fault(Status(status=500), Match(origin=written)):
                assert (await network.exchange(Request(method="POST", url="http://plain/"))).status == 500


async def test_heal_removes_every_fault(ground: MemoryNetwork) -> None:
    ground.fault(Refuse())
    ground.fault(Stall())
    ground.down(AGENT)
    assert isinstance(await outcome(ground, SEND), Unreachable)
    ground.heal()
    assert isinstance(await outcome(ground, SEND), Reply)


# Under any faults.

harmless = st.one_of(
    st.builds(Drip, size=st.integers(1, 20), every_s=st.floats(0, 2)),
    st.builds(Latency, low_s=st.just(0.0), high_s=st.floats(0, 2)),
    st.builds(Stall, at=st.just("body"), after_bytes=st.integers(0, 60), seconds=st.floats(0, 30)),
    st.builds(SlowStart, seconds=st.floats(0, 5)),
)


def carried(chunks: list[bytes], faults: list[Fault]) -> tuple[bytes, bool]:
    """The bytes of ``chunks`` that a reader gets through ``faults``, and whether the body ended whole."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await asyncio.sleep(0.5)
            await send({"type": "http.response.body"})

    async def main() -> tuple[bytes, bool]:
        network = MemoryNetwork()
        network.mount(AGENT, app)
        for fault in faults:
            network.fault(fault)
        received = b""
        async with network:
            limits = Limits(connect_s=10, first_byte_s=100, total_s=None)
            async with network.open(Request(method="GET", url=AGENT, limits=limits)) as incoming:
                try:
                    async for chunk in incoming.chunks:
                        received += chunk
                except ConnectionLost:
                    return received, False
        return received, True

    return run(main)


@pytest.mark.slow
@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(harmless, max_size=4))
def test_faults_that_only_delay_never_change_a_byte(chunks: list[bytes], faults: list[Fault]) -> None:
    assert carried(chunks, faults) == (b"".join(chunks), True)


@pytest.mark.slow
@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(harmless, max_size=3), st.integers(0, 100), st.data())
def test_a_break_anywhere_leaves_exactly_the_bytes_before_it(
    chunks: list[bytes], faults: list[Fault], passed: int, data: st.DataObject
) -> None:
    whole = b"".join(chunks)
    faults.insert(data.draw(st.integers(0, len(faults))), DropAfter(bytes_passed=passed))
    # An empty body has no byte at which it could break.
    breaks = bool(whole) and passed <= len(whole)
    assert carried(chunks, faults) == (whole[:passed], not breaks)
