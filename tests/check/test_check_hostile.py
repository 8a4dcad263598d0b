"""Any response of an agent gets a verdict: no probe raises, and no run ends early."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.check.report import Report
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.body import Room
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Runtime, Transport, WayOut
from tests.broken.inprocess import ALLOW, check_app
from tests.scale import some

pytestmark = pytest.mark.slow

ODD: tuple[Any, ...] = ([["x"]], {"a": [1]}, 4711, -1.5, None, True, "", "http://[x", "\x00", [], {})

Spoil = Callable[[str, Any], Any]


def spoiled(value: Any, spoil: Spoil) -> Any:
    """``value`` after ``spoil`` has edited each member, the outermost first."""
    if isinstance(value, list):
        return [spoiled(inner, spoil) for inner in value]
    if not isinstance(value, dict):
        return value
    made = {name: (inner, spoil(name, inner)) for name, inner in value.items()}
    return {name: spoiled(old, spoil) if new is old else new for name, (old, new) in made.items()}


class SpoiledTransport:
    """Another transport with the body of each request edited."""

    def __init__(self, inner: Transport, edit: Callable[[bytes], bytes]) -> None:
        self._inner, self._edit = inner, edit

    def open(self, request: Request) -> AbstractAsyncContextManager[IncomingResponse]:
        return self._inner.open(replace(request, body=self._edit(request.body)))

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        return await self._inner.exchange(replace(request, body=self._edit(request.body)), room)

    def guarded(self, policy: AddressPolicy) -> SpoiledTransport:
        return SpoiledTransport(self._inner.guarded(policy), self._edit)

    def through(self, way: WayOut) -> SpoiledTransport:
        return SpoiledTransport(self._inner.through(way), self._edit)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Hostile:
    """The reference agent with every body it sends edited: responses, cards, stream events and webhooks."""

    def __init__(self, runtime: Runtime, spoil: Spoil) -> None:
        self._spoil = spoil
        runtime = replace(runtime, transport=SpoiledTransport(runtime.transport, self.edit))
        self._app = reference_agent(runtime=runtime, allow_webhook=(ALLOW,)).app()

    def edit(self, body: bytes) -> bytes:
        """JSON, or the lines of a stream."""
        try:
            return json.dumps(spoiled(json.loads(body), self._spoil)).encode()
        except ValueError:
            return b"\n".join(self._line(line) for line in body.split(b"\n"))

    def _line(self, line: bytes) -> bytes:
        return b"data: " + self.edit(line[5:]) if line.startswith(b"data: {") else line

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def say(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() != b"content-length"]
                message = {**message, "headers": kept}
            elif message.get("body"):
                message = {**message, "body": self.edit(message["body"])}
            await send(message)

        await self._app(scope, receive, say)


async def checked(spoil: Spoil) -> Report:
    return await check_app(lambda runtime: Hostile(runtime, spoil))


def broken_probes(report: Report) -> dict[str, str]:
    return {found.key: found.reason for found in report.findings if "the probe broke" in found.reason}


MEMBERS = ("code", "url", "id", "kind", "artifactId", "append", "path", "eventType")
KINDS: tuple[Any, ...] = (["x"], {"a": [1]}, "http://[x")


@pytest.mark.parametrize(("member", "odd"), some([(member, odd) for odd in KINDS for member in MEMBERS]))
async def test_a_member_of_any_type_gets_a_verdict(member: str, odd: Any) -> None:
    report = await checked(lambda name, value: odd if name == member else value)
    assert len(report.findings) > 100
    assert broken_probes(report) == {}


@pytest.mark.parametrize("seed", some(range(8)))
async def test_an_agent_with_any_values_anywhere_gets_verdicts(seed: int) -> None:
    rng = random.Random(seed)

    def sometimes(name: str, value: Any) -> Any:
        if name in {"jsonrpc", "result"} or rng.random() > 0.02 * (seed + 1):
            return value
        return rng.choice(ODD)

    report = await checked(sometimes)
    assert len(report.findings) > 100
    assert broken_probes(report) == {}
