"""The real clock, ids, chance and resolver."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from datetime import UTC, timedelta

import pytest

from fleetsim.model.errors import Unreachable
from fleetsim.runtime import real
from fleetsim.runtime.ports import Request
from fleetsim.runtime.real import SystemClock, SystemResolver, SystemRng, ThreadWork, UuidIds, running_runtime
from tests.runtime.rawserver import Peer, raw_server

pytestmark = pytest.mark.sockets


async def test_the_clock_tells_utc_and_the_loops_own_seconds() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    before = clock.monotonic()
    await asyncio.sleep(0.01)
    assert before < clock.monotonic() == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
    assert timedelta(0) <= clock.now() - clock.now() + timedelta(seconds=1)


async def test_the_clock_wakes_a_sleeper_at_its_date_and_not_before() -> None:
    clock = SystemClock()
    when = clock.now() + timedelta(milliseconds=30)
    await clock.sleep_until(when)
    assert clock.now() >= when
    await clock.sleep_until(when)


def test_ids_and_secrets_do_not_repeat_and_secrets_hold_256_bits() -> None:
    ids = UuidIds()
    for given in [ids.new() for _ in range(200)]:
        assert str(uuid.UUID(given)) == given
        assert (uuid.UUID(given).version, uuid.UUID(given).variant) == (4, uuid.RFC_4122)
    assert len({ids.new() for _ in range(1_000)}) == 1_000
    assert len({ids.secret() for _ in range(1_000)}) == 1_000
    assert len(ids.secret()) == 43


def test_the_work_clock_counts_the_processor_time_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_s, had_s, asked = 10.0, 3.0, 0

    def thread_time() -> float:
        nonlocal asked
        asked += 1
        return had_s

    monkeypatch.setattr(real, "perf_counter", lambda: wall_s)
    monkeypatch.setattr(real, "thread_time", thread_time)
    work, told = ThreadWork(), list[float]()
    for passed, had in ((0.0002, 0.0002), (0.0003, 0.0), (0.5, 0.1), (0.01, 0.01)):
        mark = work.mark()
        wall_s, had_s = wall_s + passed, had_s + had
        told.append(work.since_s(mark))
    assert told == pytest.approx([0.0002, 0.0003, 0.1002, 0.01]), "a long stretch is not charged with others' time"
    assert asked == 4, "twice for each long one, and for short ones but the first not at all"


def test_each_owner_draws_from_its_own_random_stream() -> None:
    one, two = SystemRng(7), SystemRng(7)
    one.stream("other").random()  # a draw from one stream does not shift another
    assert one.stream("a").random() == two.stream("a").random()
    assert one.stream("a") is one.stream("a")
    assert SystemRng(7).stream("a").random() != SystemRng(8).stream("a").random()
    assert SystemRng().stream("a").random() != SystemRng().stream("a").random()


async def test_names_resolve_to_addresses() -> None:
    resolver = SystemResolver()
    assert "127.0.0.1" in await resolver.resolve("localhost", 80)
    assert await resolver.resolve("127.0.0.1", 80) == ("127.0.0.1",)
    assert await resolver.resolve("::1", 80) == ("::1",)
    resolver.close()


@pytest.mark.parametrize(
    "host", ["nosuch.invalid", "", "a" * 300, "a..b", "ex ample", "127.0.0.1\x00.example.com", "a\nb", "\ud800"]
)
async def test_a_name_that_cannot_be_resolved_is_unreachable(host: str) -> None:
    resolver = SystemResolver()
    with pytest.raises(Unreachable) as caught:
        await resolver.resolve(host, 80)
    assert not caught.value.sent
    resolver.close()


async def test_a_slow_name_server_costs_at_most_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        release.wait(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolver = SystemResolver(threads=2, limit_s=0.05)
    results = await asyncio.gather(*(resolver.resolve(f"h{n}.example", 80) for n in range(6)), return_exceptions=True)
    assert all(isinstance(result, Unreachable) and "0.05 s" in str(result) for result in results)
    assert sum("fleetsim-resolver" in thread.name for thread in threading.enumerate()) <= 2
    release.set()
    resolver.close()


async def test_a_running_runtime_serves_requests_and_closes_everything() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        async with running_runtime(seed=1) as runtime:
            assert (await runtime.transport.exchange(Request(method="GET", url=server.url))).status == 200
        async with asyncio.timeout(60):
            await server.gone.wait()
