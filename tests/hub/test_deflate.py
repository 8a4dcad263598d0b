"""Streams in the content coding deflate: what any inflater makes of shared pieces, and real clients of a real hub."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.caller.fleet import FleetConfig
from fleetsim.caller.fleet_events import ConfigRejected
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.deflate import deflated, is_accepted
from fleetsim.hub.server import running_hub
from fleetsim.runtime.real import running_runtime

PIECES = st.one_of(st.binary(max_size=300), st.integers(1, 90_000).map(lambda length: b"\xff" * length))


async def saying(pieces: list[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


@given(st.lists(PIECES, max_size=6), st.integers(0, 6))
def test_each_piece_can_be_read_once_it_is_there_and_the_end_has_the_sum_of_all(pieces: list[bytes], late: int) -> None:
    """By two readers, one of whom began later: what they share is in both."""

    async def read(pieces: list[bytes]) -> None:
        inflater = zlib.decompressobj()
        sent = [part async for part in deflated(saying(pieces))]
        assert [inflater.decompress(part) for part in sent] == [b"", *pieces, b""]
        assert inflater.eof, "zlib has compared the sum"
        assert not inflater.unused_data

    async def both() -> None:
        await read(pieces)
        await read(pieces[late:])

    asyncio.run(both())


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("deflate", True),
        ("gzip, deflate, br", True),
        ("gzip;q=1.0,DEFLATE ; q=0.5", True),
        ("deflate;q=0.05", True),
        ("deflate;q=0", False),
        ("br, deflate; q=0.000", False),
        ("gzip", False),
        ("identity", False),
        ("x-deflate", False),
        ("", False),
        (",;,", False),
    ],
)
def test_only_who_says_so_is_answered_deflated(header: str, accepted: bool) -> None:
    assert is_accepted(header) is accepted


def numbers(stream: str) -> list[int]:
    """Of the events of a stream."""
    lines = stream.replace("\r\n", "\n").splitlines()
    return [json.loads(line.removeprefix("data: "))["seq"] for line in lines if line.startswith("data: {")]


@pytest.mark.sockets
async def test_foreign_clients_read_to_the_hubs_end_what_a_plain_reader_reads() -> None:
    """aiohttp and httpx ask for deflate by themselves; httpx without an end of the stream would be silent about it,
    aiohttp raises."""
    codings: list[str | None] = []
    opened = asyncio.Semaphore(0)

    async def by_aiohttp(url: str, headers: dict[str, str]) -> list[int]:
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            codings.append(answer.headers.get("content-encoding"))
            opened.release()
            return numbers(await answer.text())

    async def by_httpx(url: str, headers: dict[str, str]) -> list[int]:
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url, headers=headers) as answer:
            codings.append(answer.headers.get("content-encoding"))
            opened.release()
            return numbers((await answer.aread()).decode())

    async with running_runtime() as runtime, open_ledger(None, clock=runtime.clock) as ledger:
        async with running_hub(FleetConfig(agents=()), runtime, ledger) as hub:
            key: dict[str, Any] = {"x-api-key": hub.keys.api_key}
            url = f"{hub.url}/api/events?after=0"
            asked = [
                by_aiohttp(url, key),
                by_httpx(url, key),
                by_httpx(url, {**key, "accept-encoding": "identity"}),
                by_httpx(f"{url}&topic=%23", key),
            ]
            readers = [asyncio.ensure_future(one) for one in asked]
            async with asyncio.timeout(60):
                for _ in readers:
                    await opened.acquire()
            for number in range(500):
                hub.events.publish(ConfigRejected(path="a", error=f"error {number}"))
                if number % 50 == 0:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            first, *others = await asyncio.gather(*readers)
        assert first == list(range(1, hub.events.last_seq + 1))
        assert others == [first] * 3
    assert sorted(codings, key=str) == [None, None, "deflate", "deflate"], "who chooses shares no bytes with others"
