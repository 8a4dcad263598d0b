"""Streams of events: patterns of topics, readers that return, and the limit of their number."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from fleetsim.events.fleet import ConfigRejected
from fleetsim.events.log import EventLog
from fleetsim.events.request import Event
from fleetsim.events.wire import to_wire
from fleetsim.fleet.settings import FleetConfig, FleetSettings
from fleetsim.hub import streams
from fleetsim.hub.journal import BATCH_MAX
from fleetsim.hub.server import running_hub
from fleetsim.hub.streams import KEEPALIVE_S, STREAMS_MAX, STREAMS_PER_AGENT_MAX, EventFrames, topic_fits
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.sse import read_events
from fleetsim.testbed.runtime import CountedWork, VirtualClock
from fleetsim.wire.sse import KEEPALIVE
from tests.hub.local_hub import HUB, KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.B", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#", "a.b", True),
        ("*.#", "a", True),
        ("a*", "ab", False),
    ],
)
def test_a_pattern_matches_level_by_level(pattern: str, topic: str, fits: bool) -> None:
    assert topic_fits(pattern, topic) is fits


def stream(query: str = "", *, key: str = KEY, **headers: str) -> Request:
    return Request(
        method="GET",
        url=f"{HUB}/api/events{query}",
        headers={"x-api-key": key, **{name.replace("_", "-"): value for name, value in headers.items()}},
        limits=Limits(total_s=None, body_bytes_max=2**30),
        streaming=True,
    )


async def told(t: LocalHub, request: Request, count: int = 10_000) -> list[dict[str, Any]]:
    """The first events of a stream; fewer if no more come within ten seconds."""
    found: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(10), t.runtime.transport.open(request) as incoming:
            assert incoming.status == 200
            async for event in read_events(incoming):
                found.append(json.loads(event.data))
                if len(found) == count:
                    break
    except TimeoutError:
        pass
    return found


async def test_only_events_that_match_a_pattern_are_sent() -> None:
    async with ready_hub(worker()) as t:
        (cid,) = await t.remote.submit({"text": "hi", "skill": "echo"})
        await t.hub.tracker.wait(cid)
        found = await told(t, stream("?after=0&topic=autonomous.outcome.%23&topic=agent.card.*"))
        assert {event["topic"] for event in found} == {"autonomous.outcome.user.echo", "agent.card.updated"}


@pytest.mark.parametrize("query", ["?topic=a.%23.b", "?topic=%23.b", "?topic=" + "a" * 301, "?" + "&topic=a" * 33])
async def test_an_empty_pattern_is_refused(query: str) -> None:
    async with local_hub(worker()) as t:
        assert (await t.http("GET", "/api/events" + query)).status == 400


async def test_a_reader_that_returns_continues_after_its_last_event() -> None:
    async with ready_hub(worker()) as t:
        first = await told(t, stream("?after=0"), 2)
        again = await told(t, stream("?after=0", last_event_id=str(first[-1]["seq"])))
        assert [event["seq"] for event in first + again] == list(range(1, t.hub.events.last_seq + 1))


async def test_an_event_is_encoded_once_however_many_readers_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Counter[int]()

    def count(event: Event) -> dict[str, Any]:
        written[event.seq] += 1
        return to_wire(event)

    monkeypatch.setattr(streams, "to_wire", count)
    async with ready_hub(worker()) as t:
        readers = [asyncio.ensure_future(told(t, stream("?topic=config.rejected"), BATCH_MAX)) for _ in range(5)]
        await asyncio.sleep(1)
        for number in range(BATCH_MAX):
            t.hub.events.publish(ConfigRejected(path="a", error=str(number)))
        assert {len(events) for events in await asyncio.gather(*readers)} == {BATCH_MAX}
    assert set(written.values()) == {1}


async def test_others_run_between_two_batches_of_a_reader_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = in_turn = written = 0

    def count(event: Event) -> dict[str, Any]:
        nonlocal most, in_turn, written
        written, in_turn = written + 1, in_turn + 1
        most = max(most, in_turn)
        return to_wire(event)

    async def others() -> None:
        nonlocal in_turn
        while True:
            in_turn = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(streams, "to_wire", count)
    async with local_hub(worker()) as t:
        for number in range(4_000):
            t.hub.events.publish(ConfigRejected(path="a", error=str(number)))
        await asyncio.sleep(10)
        turns = asyncio.ensure_future(others())
        async with t.runtime.transport.open(stream("?after=0")) as incoming:
            async for _ in incoming.chunks:
                if written >= 4_000:
                    break
        turns.cancel()
    assert 0 < most <= streams.BATCH_MAX


def test_only_an_event_in_the_journal_has_an_id() -> None:
    events = EventLog(VirtualClock())
    first, second = (events.publish(ConfigRejected(path="a", error=str(n))) for n in range(2))
    frames = EventFrames(events)
    assert b"id:" not in frames.of(first)
    events.record(1)
    assert b"id: 1\n" in frames.of(first)
    assert frames.of(first) is frames.of(first)
    assert b"id:" not in frames.of(second)


async def test_a_client_that_accepts_deflate_gets_plain_frames() -> None:
    async with ready_hub(worker()) as t:
        request = stream("?after=0")
        offers = replace(request, headers={**request.headers, "accept-encoding": "gzip, deflate, br"})
        async with t.runtime.transport.open(offers) as incoming:
            assert "content-encoding" not in incoming.headers
        assert await told(t, offers) == await told(t, request)


@pytest.mark.parametrize("query", ["", "?topic=none"])
async def test_a_reader_without_events_gets_heartbeats(query: str) -> None:
    """Both without any event, and with an event each second that does not match."""
    async with local_hub(worker()) as t:
        await asyncio.sleep(300)

        async def talk() -> None:
            while query:
                t.hub.events.publish(ConfigRejected(path="a", error="b"))
                await asyncio.sleep(1)

        talking = asyncio.ensure_future(talk())
        began, beats = asyncio.get_running_loop().time(), []
        async with asyncio.timeout(120), t.runtime.transport.open(stream(query)) as incoming:
            async for piece in incoming.chunks:
                if piece.strip() == KEEPALIVE.strip():
                    beats.append(asyncio.get_running_loop().time() - began)
                if len(beats) == 3:
                    break
        talking.cancel()
    assert all(KEEPALIVE_S <= later - earlier <= KEEPALIVE_S + 1 for earlier, later in pairwise([0.0, *beats]))


async def open_streams(t: LocalHub, key: str, count: int) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(told(t, stream("?topic=none", key=key))) for _ in range(count)]
    await asyncio.sleep(0.1)
    return tasks


@pytest.mark.slow
async def test_one_agent_cannot_use_the_streams_of_others() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        tasks = await open_streams(t, QUINN, STREAMS_PER_AGENT_MAX)
        assert (await t.http("GET", "/api/events", key=QUINN)).status == 429
        tasks += await open_streams(t, AVA, 1)
        tasks += await open_streams(t, KEY, STREAMS_MAX - len(tasks))
        assert (await t.http("GET", "/api/events")).status == 429
        await asyncio.gather(*tasks)
        await asyncio.sleep(60)
        assert await told(t, stream("?after=0", key=QUINN)) == []


async def test_events_that_a_key_may_not_see_are_read_at_its_expense() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        for number in range(40 * streams.BATCH_MAX):
            t.hub.events.publish(ConfigRejected(path="a", error=str(number)))
        await asyncio.sleep(5)
        assert isinstance(t.runtime.work, CountedWork)
        t.runtime.work.step_s = 0.05
        reading = asyncio.create_task(told(t, stream("?after=0", key=AVA)))
        await asyncio.sleep(5)
        assert t.hub.limiter.accounts.account("ava").debt_s() > 0
        assert await reading == []


@pytest.mark.sockets
async def test_a_reader_that_does_not_read_delays_no_other_and_loses_no_event() -> None:
    """On real sockets: six megabytes fill every buffer between the hub and the reader that waits."""
    count, mark = 1_500, b"read-to-here"
    async with (
        running_runtime() as runtime,
        open_ledger(None, clock=runtime.clock) as ledger,
        running_hub(FleetConfig(agents=(), settings=FleetSettings()), runtime, ledger) as hub,
        AsyncExitStack() as stack,
    ):
        host = urlsplit(hub.url or "")

        async def connected() -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(host.hostname, host.port)
            stack.callback(writer.close)
            head = f"GET /api/events?topic=config.rejected HTTP/1.1\r\nHost: {host.netloc}\r\n"
            writer.write(f"{head}X-API-Key: {hub.keys.api_key}\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            return reader

        async def read(reader: asyncio.StreamReader) -> None:
            for _ in range(count):
                await reader.readuntil(mark)

        stalled, *others = [await connected() for _ in range(5)]
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            for reader in others:
                group.create_task(read(reader))
            for number in range(count):
                hub.events.publish(ConfigRejected(path="x" * 4_000, error=mark.decode()))
                if number % 10 == 9:
                    await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await read(stalled)
