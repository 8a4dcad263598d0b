from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from datetime import UTC, datetime, timedelta

import pytest

from fleetsim.testbed import loop as virtual
from fleetsim.testbed.loop import Deadlock, LeftOver, NoOutside, Spinning, VirtualLoop


async def test_async_tests_run_on_virtual_time_by_default() -> None:
    began = time.process_time()
    await asyncio.sleep(86_400)
    assert time.process_time() - began < 5
    assert asyncio.get_running_loop().time() == 86_400


@pytest.mark.sockets
async def test_a_test_marked_sockets_runs_on_the_real_loop() -> None:
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, VirtualLoop)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    server.close()
    await server.wait_closed()


@pytest.mark.slow
def test_a_day_of_ten_thousand_sleeps_passes_in_moments() -> None:
    async def main() -> float:
        for _ in range(10_000):
            await asyncio.sleep(8.64)
        return asyncio.get_running_loop().time()

    began = time.process_time()
    assert virtual.run(main) == pytest.approx(86_400)
    assert time.process_time() - began < 5


def test_time_starts_at_zero_and_the_wall_clock_at_start() -> None:
    start = datetime(2030, 5, 6, 7, 8, tzinfo=UTC)

    async def main() -> tuple[float, datetime]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = loop.time()
        await asyncio.sleep(90)
        return before, loop.now()

    assert virtual.run(main, start=start) == (0.0, start + timedelta(seconds=90))


async def test_a_timeout_fires_at_its_exact_virtual_second() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.Event().wait()
    assert loop.time() == 30
    async with asyncio.timeout(30):
        await asyncio.sleep(29.999)
    assert loop.time() == pytest.approx(59.999)


async def test_timers_still_fire_when_a_float_second_is_coarse() -> None:
    # At 400 years a float cannot hold a nanosecond: the loop's resolution has to grow with the time.
    await asyncio.sleep(400 * 365 * 86_400)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(0.001)
    await asyncio.sleep(1e-9)
    assert 0 < loop.time() - before < 0.01


async def test_sleepers_wake_in_the_order_of_their_instants() -> None:
    woken: list[tuple[int, float]] = []

    async def sleeper(seconds: int) -> None:
        await asyncio.sleep(seconds)
        woken.append((seconds, asyncio.get_running_loop().time()))

    async with asyncio.TaskGroup() as group:
        for seconds in (40, 3, 17, 1):
            group.create_task(sleeper(seconds))
    assert woken == [(1, 1.0), (3, 3.0), (17, 17.0), (40, 40.0)]


async def test_canceled_timers_are_freed_long_before_they_are_due() -> None:
    loop = asyncio.get_running_loop()
    timers = [loop.call_later(86_400, print) for _ in range(1_000)]
    refs = [weakref.ref(timer) for timer in timers]
    for timer in timers:
        timer.cancel()
    del timers, timer
    await asyncio.sleep(0)
    assert not any(ref() for ref in refs)


def test_a_deadlock_names_the_waiting_workers_and_their_lines() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(waits_for_nothing(), name="tracker:poll quinn")

    with pytest.raises(Deadlock) as caught:
        virtual.run(main)
    assert "tracker:poll quinn (test_loop.py:" in str(caught.value)
    assert "waits_for_nothing" in str(caught.value)


def test_spinning_without_sleeping_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "SPINS_MAX", 1_000)

    async def main() -> None:
        for _ in range(2_000):
            await asyncio.sleep(0)

    with pytest.raises(Spinning, match="1000 rounds"):
        virtual.run(main)


def test_spins_are_counted_per_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "SPINS_MAX", 50)

    async def main() -> None:
        for _ in range(100):
            for _ in range(10):
                await asyncio.sleep(0)
            await asyncio.sleep(1)

    virtual.run(main)


async def test_an_executor_runs_inline_at_the_same_instant() -> None:
    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(lambda: loop.time()) == loop.time() == 0
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 // 0)


async def test_sockets_names_and_subprocesses_are_refused() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(NoOutside):
        await asyncio.open_connection("127.0.0.1", 9)
    with pytest.raises(NoOutside):
        await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    with pytest.raises(NoOutside):
        await loop.getaddrinfo("localhost", 80)
    with pytest.raises(NoOutside):
        await asyncio.create_subprocess_exec("true")
    with socket.socket() as sock, pytest.raises(NoOutside):
        loop.add_reader(sock, print)


def test_an_unread_error_fails_the_run() -> None:
    async def fails() -> None:
        raise ValueError("lost")

    async def main() -> None:
        asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(1)

    with pytest.raises(LeftOver, match="never retrieved") as caught:
        virtual.run(main)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.slow
def test_a_worker_left_running_fails_the_run_and_is_cancelled() -> None:
    ended: list[str] = []

    async def lingers() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    kept = []

    async def main() -> int:
        kept.append(asyncio.create_task(lingers(), name="hub:lingers"))
        await asyncio.sleep(1)
        return 5

    with pytest.raises(LeftOver, match="hub:lingers"):
        virtual.run(main)
    assert ended == ["cancelled"]
    assert virtual.run(main, strict=False) == 5


def test_the_programs_own_error_wins_over_errors_at_close() -> None:
    async def main() -> None:
        kept = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(1)
        raise KeyError(kept.get_name())

    with pytest.raises(KeyError):
        virtual.run(main)


def _race(seed: int, *, shuffle: bool) -> str:
    order: list[str] = []

    async def runner(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            order.append(name)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abcdefgh":
                group.create_task(runner(name))

    virtual.run(main, seed=seed, shuffle=shuffle)
    return "".join(order)


def test_timers_of_one_instant_fire_in_the_order_they_were_set() -> None:
    fired: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_at(7.0, fired.append, number)
        await asyncio.sleep(8)

    virtual.run(main)
    assert fired == list(range(50))


@pytest.mark.slow
def test_runs_without_shuffling_are_all_alike() -> None:
    assert {_race(seed, shuffle=False) for seed in range(5)} == {"abcdefgh" * 3}


@pytest.mark.slow
def test_shuffled_runs_differ_by_seed_and_only_by_seed() -> None:
    orders = [_race(seed, shuffle=True) for seed in range(10)]
    assert orders == [_race(seed, shuffle=True) for seed in range(10)]
    assert len(set(orders)) == 10
    assert all(sorted(order) == sorted("abcdefgh" * 3) for order in orders)


def test_a_task_group_cancels_its_workers_in_the_same_order_every_time() -> None:
    # asyncio iterates over a set here; workers with a hash by birth give the set one order in every process.
    def cancelled_order() -> list[int]:
        order: list[int] = []

        async def sleeper(number: int) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                order.append(number)

        async def fails() -> None:
            await asyncio.sleep(1)
            raise ValueError

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(sleeper(number))
                group.create_task(fails())

        with pytest.raises(ExceptionGroup):
            virtual.run(main)
        return order

    ballast = [object() for _ in range(1_000)]
    first = cancelled_order()
    del ballast[::3]
    assert first == cancelled_order() == list(range(50))


@pytest.mark.slow
def test_default_worker_names_count_per_run() -> None:
    async def main() -> str:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        return task.get_name()

    assert virtual.run(main) == virtual.run(main)


@pytest.mark.slow
def test_a_frozen_heap_stays_frozen_after_a_run() -> None:
    """The heap of this suite is frozen once collected; without it every later run would search all of it."""

    async def story() -> None:
        await asyncio.sleep(1)

    virtual.run(story)
    assert gc.get_freeze_count() > 1_000
