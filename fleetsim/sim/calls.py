"""Observes the simulated network: records each call and webhook, and sends webhooks that the hub must refuse."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic_core import from_json

from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.exchange import origin_of
from fleetsim.runtime.ports import Request
from fleetsim.sim.agents import FleetKeys
from fleetsim.testbed.network import MemoryNetwork, NetworkLink
from fleetsim.testbed.simulated_exchange import SeenRequest

WEBHOOKS_KEPT = 100
"""How many of the webhooks that the hub took are kept, to be sent to it again."""


class CallListener(Protocol):
    """Hears of each call, as one line of a recording."""

    def __call__(self, kind: str, **members: object) -> None:
        """Write it."""
        ...


class CallWitness:
    """Told of each request that is over, it tells ``tell`` of it; of a card being read it only keeps that it was.

    ``places`` names who is at an origin, ``keys`` are looked for in all that passes. ``reached`` is every pair of who
    called and the origin, ``webhooks`` the last ones that the hub took.
    """

    def __init__(self, tell: CallListener, places: Mapping[str, str], keys: FleetKeys) -> None:
        self._tell = tell
        self._places = places
        self._keys = keys
        self.reached: set[tuple[str, str]] = set()
        self.webhooks: deque[SeenRequest] = deque(maxlen=WEBHOOKS_KEPT)

    def __call__(self, seen: SeenRequest) -> None:
        source, origin = seen.source.partition("#")[0], str(origin_of(seen.url))
        self.reached.add((source, origin))
        self._keys.look_at(seen.request, self._places.get(origin, origin))
        if seen.method == "GET":
            return
        webhook = not seen.rpc_method
        if webhook and seen.status == 200:
            self.webhooks.append(seen)
        self._tell(
            "call",
            source=source,
            target=self._places.get(origin, origin),
            method="webhook" if webhook else seen.rpc_method,
            request=seen.request.headers.get("x-correlation-id", ""),
            door=urlsplit(seen.url).path.rpartition("/")[2],
            began_s=round(seen.at_s, 6),
            status=seen.status,
            error=seen.error,
            **_said(seen.request.body),
        )


def _said(body: bytes) -> dict[str, str]:
    """The task, message and state that a call or webhook speaks of, in any dialect; empty where it names none.

    ``body`` stands for all of it.
    """
    try:
        whole = from_json(body)
    except ValueError:
        whole = _odd(body)
    part = _mapping(_mapping(whole).get("params", whole))
    told = next((_mapping(part[key]) for key in ("statusUpdate", "artifactUpdate", "task") if key in part), part)
    message, status = _mapping(part.get("message")), _mapping(told.get("status"))
    task = told.get("taskId") or message.get("taskId") or told.get("id") or ""
    state = str(status.get("state", "")).removeprefix("TASK_STATE_").lower().replace("_", "-")
    return {
        "task_id": str(task),
        "message_id": str(message.get("messageId", "")),
        "state": state,
        "body": hashlib.sha256(body).hexdigest()[:16],
    }


def _odd(body: bytes) -> Any:
    """What json alone reads, such as halves of characters; None if it is no JSON at all."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
