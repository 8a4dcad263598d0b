"""What decodes streams is there before a stream is asked for: an agent's first words do not wait for an import."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SEND = """
    import asyncio, json, sys
    from fleetsim.client import AgentClient
    from fleetsim.testbed.network import MemoryNetwork
    from fleetsim.testbed.runtime import virtual_runtime

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        body = json.loads((await receive())["body"])
        print(body["method"], "httpx_sse" in sys.modules)
        said = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hi"}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": said}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})

    async def main():
        network = MemoryNetwork()
        network.mount("http://agent.example", app)
        runtime = virtual_runtime(0, network)
        client = AgentClient("http://agent.example", runtime=runtime, rpc_url="http://agent.example", dialect="0.3")
        await client.send_task("hi")
        async for _ in client.stream("hi"):
            pass

    asyncio.run(main())
"""

HUB = """
    import asyncio, sys
    from fleetsim.caller.fleet import FleetConfig
    from fleetsim.caller.ledger.sqlite import open_ledger
    from fleetsim.hub.server import running_hub
    from fleetsim.runtime.real import running_runtime

    async def main():
        async with running_runtime() as runtime, open_ledger(None, clock=runtime.clock) as ledger:
            async with running_hub(FleetConfig(agents=()), runtime, ledger):
                print("httpx_sse" in sys.modules)

    asyncio.run(main())
"""


def printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_stream_is_asked_for_with_its_decoder_and_a_plain_send_without() -> None:
    assert printed(SEND) == ["message/send False", "message/stream True"]


@pytest.mark.sockets
def test_a_hub_has_the_decoder_before_its_first_stream() -> None:
    assert printed(HUB) == ["True"]
