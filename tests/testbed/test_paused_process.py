"""A simulated process that stands still on virtual time, and a network that passes requests on."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from fleetsim.model.errors import Unreachable
from fleetsim.runtime.ports import Request
from fleetsim.testbed.asgi import Receive, Scope, Send
from fleetsim.testbed.loop import PROCESS, VirtualLoop
from fleetsim.testbed.network import MemoryNetwork


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await asyncio.sleep(1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": PROCESS.get().encode()})


async def test_a_paused_process_stands_still_with_its_timers_and_its_server_and_others_go_on() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network, context = MemoryNetwork(), contextvars.copy_context()
    context.run(PROCESS.set, "one")
    context.run(network.mount, "http://one:80", answering)
    async with network:
        ticked = loop.create_task(asyncio.sleep(1, loop.time), context=context.copy())
        loop.pause("one")
        asked = asyncio.ensure_future(network.exchange(Request(method="GET", url="http://one/", headers={}, body=b"")))
        await asyncio.sleep(10)
        assert not ticked.done()
        assert not asked.done()
        loop.resume("one")
        assert (await asked).body == b"one"
        assert loop.time() == 11
        assert ticked.done()


async def test_a_balanced_origin_is_that_of_the_application_that_was_chosen() -> None:
    network, up = MemoryNetwork(), ["http://one:80", "http://two:80"]
    network.addresses["front"] = ("20.9.9.9",)
    for name in ("one", "two"):
        context = contextvars.copy_context()
        context.run(PROCESS.set, name)
        context.run(network.mount, f"http://{name}:80", answering)

    def choose() -> str:
        if not up:
            raise Unreachable("none is up")
        return up.pop(0)

    network.balance("http://front:80", choose)
    wanted = Request(method="GET", url="http://front/", headers={}, body=b"")
    async with network:
        assert [(await network.exchange(wanted)).body for _ in range(2)] == [b"one", b"two"]
        with pytest.raises(Unreachable):
            await network.exchange(wanted)
