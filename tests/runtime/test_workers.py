"""Workers are counted, kept alive and awaited, and their errors are logged."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

import pytest

from fleetsim.runtime.workers import Workers

pytestmark = pytest.mark.slow


async def test_a_worker_that_only_it_refers_to_survives_a_collection() -> None:
    done = []
    waiting: list[weakref.ref[asyncio.Future[None]]] = []

    async def wait_on_its_own() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        await future
        done.append(True)

    async with Workers("room") as workers:
        for n in range(20):
            workers.start(wait_on_its_own(), name=str(n))
        await asyncio.sleep(0)
        gc.collect()
        assert len(workers) == 20
        for reference in waiting:
            future = reference()
            assert future is not None
            future.set_result(None)
        await workers.drain(1)
        assert len(workers) == 0
    assert len(done) == 20


async def test_leaving_cancels_and_awaits_the_remaining_workers() -> None:
    ended = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    async with Workers("room") as workers:
        workers.start(linger(), name="a")
        await asyncio.sleep(0)
    assert ended == [True]
    assert len(workers) == 0


async def test_work_started_while_closing_is_closed_too() -> None:
    workers = Workers("room")

    async def restarts() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            workers.start(asyncio.sleep(1_000), name="late")

    workers.start(restarts(), name="a")
    await asyncio.sleep(0)
    await workers.close()
    assert len(workers) == 0


async def test_an_error_in_a_worker_is_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR):
        async with Workers("room") as workers:
            workers.start(fail(), name="a")
            await workers.drain(1)
    assert "room:a" in caplog.text
    assert "boom" in caplog.text


async def test_more_workers_than_allowed_are_refused_and_their_work_closed() -> None:
    async with Workers("room", workers_max=1) as workers:
        workers.start(asyncio.sleep(1_000), name="a")
        with pytest.raises(RuntimeError, match="more than 1"):
            workers.start(asyncio.sleep(1_000), name="b")
        assert len(workers) == 1
