"""Deadlines for peers do not count the time in which our own loop was blocked."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from fleetsim.model.errors import TimedOut
from fleetsim.runtime.body import AGAIN_S, EXTENSION_MAX, Deadline
from fleetsim.runtime.exchange import BoundedChunks, deadline_of
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.loop import VirtualLoop

Made = Callable[[float], AbstractAsyncContextManager[Any]]


def block_loop(seconds: float) -> None:
    """Block the loop for ``seconds``."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def response_while_blocked(deadline: Made) -> bytes:
    """A peer responds at once, while our loop is blocked for longer than the peer's deadline."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:

        def answer_and_hold_up() -> None:
            theirs.sendall(b"here")
            block_loop(0.6)

        asyncio.get_running_loop().call_soon(answer_and_hold_up)
        try:
            async with deadline(asyncio.get_running_loop().time() + 0.2):
                return await reader.read(4)
        finally:
            writer.close()


@pytest.mark.sockets
async def test_a_response_that_arrived_while_the_loop_was_blocked_is_read() -> None:
    with pytest.raises(TimeoutError):
        await response_while_blocked(asyncio.timeout_at)  # the reason for this module
    assert await response_while_blocked(Deadline) == b"here"


@pytest.mark.sockets
async def test_an_agent_that_responded_while_the_hub_was_blocked_does_not_time_out() -> None:
    """The agent's own machine: a plain socket whose response the kernel has while our loop is blocked."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

        async def serve() -> None:
            taken, _ = await loop.sock_accept(listener)
            with taken:
                await loop.sock_recv(taken, 65_536)
                await loop.sock_sendall(taken, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                block_loop(2.5)
                await asyncio.sleep(0.5)

        async with running_runtime() as runtime, asyncio.TaskGroup() as group:
            group.create_task(serve())
            limits = Limits(connect_s=1.0, first_byte_s=1.0, total_s=2.0)
            reply = await runtime.transport.exchange(Request(method="GET", url=url, limits=limits))
            assert reply.body == b"ok"


async def test_a_silent_agent_times_out_even_if_the_loop_is_late_again_and_again() -> None:
    loop = cast(VirtualLoop, asyncio.get_running_loop())

    async def late_for_ever() -> None:
        while True:
            loop.hold_up(0.1)
            await asyncio.sleep(0)

    busy = asyncio.ensure_future(late_for_ever())
    began = loop.time()
    try:
        with pytest.raises(TimeoutError):
            async with Deadline(began + 0.1):
                await asyncio.sleep(60)
    finally:
        busy.cancel()
    assert loop.time() - began <= 0.1 * (EXTENSION_MAX + 1) + AGAIN_S + 0.1


async def test_a_deadline_on_an_idle_loop_is_exact() -> None:
    loop = asyncio.get_running_loop()
    deadline = Deadline(loop.time() + 10)

    async def wait() -> None:
        async with deadline:
            await asyncio.sleep(3)
            deadline.reschedule(loop.time() + 4)
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await wait()
    assert (loop.time(), deadline.expired(), deadline.extended_s) == (7.0, True, 0.0)
    async with Deadline(None):
        await asyncio.sleep(86_400)
    with pytest.raises(TimeoutError):
        async with Deadline(loop.time() - 5):
            await asyncio.sleep(60)
    assert loop.time() == 7.0 + 86_400, "one that has passed passes at once"


@pytest.mark.sockets
async def test_a_silent_agent_times_out_within_its_limits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with running_runtime() as runtime:
            limits = Limits(connect_s=0.3, first_byte_s=0.3, total_s=0.5)
            with pytest.raises(TimedOut):
                await runtime.transport.exchange(Request(method="GET", url=url, limits=limits))


async def put_off(total_s: float, *late_s: float) -> tuple[float, float | None]:
    """Seconds by which a deadline was extended while the loop was late at each eighth of it, and when the deadline
    passed, if it did within an hour."""
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    began = loop.time()

    lost_s = 0.0
    for number, seconds in enumerate(late_s, 1):
        due = began + number * total_s / 8 + lost_s
        loop.call_at(due - total_s / 64, loop.hold_up, seconds + total_s / 64)
        lost_s += seconds
    deadline = Deadline(began + total_s)
    try:
        async with deadline:
            await asyncio.sleep(3_600)
    except TimeoutError:
        return deadline.extended_s, loop.time() - began
    return deadline.extended_s, None


@pytest.mark.parametrize(
    ("late_s", "extended_s"),
    [((0.04,), 0.0), ((0.06,), 0.25), ((0.2,), 0.25), ((0.75,), 0.75), ((5.0,), 5.0), ((0.06, 0.5), 0.75)],
)
async def test_a_deadline_is_extended_by_the_seconds_that_the_loop_was_late(
    late_s: tuple[float, ...], extended_s: float
) -> None:
    found_s, passed_at = await put_off(8, *late_s)
    assert found_s == pytest.approx(extended_s, abs=0.001)
    assert passed_at == pytest.approx(8 + extended_s, abs=0.001)


async def test_a_deadline_that_was_left_does_not_fire() -> None:
    async with Deadline(asyncio.get_running_loop().time() + 1) as deadline:
        pass
    await asyncio.sleep(10)
    assert not deadline.expired()


async def test_lateness_at_one_piece_of_a_response_extends_the_deadline_of_the_next() -> None:
    loop = cast(VirtualLoop, asyncio.get_running_loop())

    async def pieces() -> AsyncIterator[bytes]:
        loop.hold_up(20)
        await asyncio.sleep(0.01)
        for _ in range(3):
            yield b"x"
            await asyncio.sleep(1)

    limits = Limits(total_s=2.5)
    chunks = BoundedChunks(pieces(), limits=limits, deadline=deadline_of(limits), where="h:1")
    assert [await anext(chunks) for _ in range(3)] == [b"x"] * 3
    with pytest.raises(TimedOut):
        await anext(chunks)
    assert loop.time() == pytest.approx(22.5, abs=0.4)
