from __future__ import annotations

import asyncio
import time

import pytest

from fleetsim.testbed.loop import VirtualLoop


async def test_async_tests_run_on_virtual_time_by_default() -> None:
    began = time.perf_counter()
    await asyncio.sleep(86_400)
    assert time.perf_counter() - began < 5
    assert asyncio.get_running_loop().time() == 86_400


@pytest.mark.sockets
async def test_a_sockets_test_runs_on_the_real_loop() -> None:
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, VirtualLoop)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    server.close()
    await server.wait_closed()
