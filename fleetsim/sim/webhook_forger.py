"""Webhooks that nobody sent: somebody has seen genuine ones and sends others like them, or the same ones once more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in

from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.ports import Request
from fleetsim.sim.calls import CallListener
from fleetsim.testbed.network import MemoryNetwork, NetworkLink
from fleetsim.testbed.simulated_exchange import SeenRequest

TOKEN_HEADERS = ("x-a2a-notification-token", "authorization")
PAUSE_S = 0.1
_STATE = re.compile(rb'"state":"[A-Za-z_-]+"')


class WebhookForger:
    """Sends to the hub what it was never sent. Each try is told to ``tell``, with what came of it."""

    def __init__(self, network: MemoryNetwork, tell: CallListener) -> None:
        self._link: NetworkLink = network.seen_from("stranger")
        self._tell = tell

    async def forge(self, seen: Sequence[SeenRequest], rng: Random) -> None:
        """One webhook without its token, one with a token that was changed, one with another request's."""
        if not seen:
            return
        one, other = rng.choice(seen).request, rng.choice(seen).request
        said = _STATE.sub(b'"state":"completed"', one.body)
        await self._send("no token", replace(one, body=said, headers=_without_token(one)))
        token = one.headers[TOKEN_HEADERS[0]]
        at = rng.randrange(len(token))
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        await self._send("another signature", _with_token(replace(one, body=said), changed))
        if one.url.rpartition("/")[2] != other.url.rpartition("/")[2]:
            foreign = _with_token(replace(one, body=said), other.headers[TOKEN_HEADERS[0]])
            if foreign.headers != one.headers:
                await self._send("another request's token", foreign)

    async def repeat(self, seen: Sequence[SeenRequest], rng: Random) -> int:
        """Send each of them once more, in another order. Returns how many arrived."""
        again = list(seen)
        rng.shuffle(again)
        arrived = 0
        for one in again:
            await asyncio.sleep(PAUSE_S)
            try:
                arrived += (await self._link.exchange(one.request)).status < 300
            except FleetsimError:
                continue
        return arrived

    async def _send(self, how: str, request: Request) -> None:
        try:
            status = (await self._link.exchange(request)).status
        except FleetsimError:
            status = 0
        self._tell("forged", how=how, status=status)


def _without_token(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name not in TOKEN_HEADERS}


def _with_token(request: Request, token: str) -> Request:
    headers = {**_without_token(request), TOKEN_HEADERS[0]: token, TOKEN_HEADERS[1]: f"Bearer {token}"}
    return replace(request, headers=headers)
