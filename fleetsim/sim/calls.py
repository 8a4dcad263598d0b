"""Observes the simulated network: records each call and webhook, and sends webhooks that the hub must refuse."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec.structs import replace
from pydantic_core import from_json

from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.exchange import origin_of
from fleetsim.runtime.ports import Request
from fleetsim.sim.agents import FleetKeys
from fleetsim.testbed.faults import called
from fleetsim.testbed.network import MemoryNetwork, NetworkLink, SeenRequest

WEBHOOKS_KEPT = 100
"""The number of accepted webhooks that are kept, to be repeated."""


class LineWriter(Protocol):
    """Writes one line of a recording."""

    def __call__(self, kind: str, **members: object) -> None:
        """Writes a line of this kind."""


class CallRecorder:
    """Writes a line for each request when it is over, except for requests of cards.

    ``places`` names the agent at each origin, or the hub. Each message is searched for ``keys``. ``reached`` has each
    pair of a caller and an origin, ``webhooks`` the newest ones that the hub accepted.
    """

    def __init__(self, write: LineWriter, places: Mapping[str, str], keys: FleetKeys) -> None:
        self._record = write
        self._places = places
        self._keys = keys
        self.reached: set[tuple[str, str]] = set()
        self.webhooks: deque[SeenRequest] = deque(maxlen=WEBHOOKS_KEPT)

    def __call__(self, seen: SeenRequest) -> None:
        source, origin = seen.source.partition("#")[0], str(origin_of(seen.url))
        self.reached.add((source, origin))
        self._keys.look_at(seen.request, self._places.get(origin, origin))
        call = called(seen.request)
        webhook = not call.method
        if webhook and seen.method == "GET":
            return
        if webhook and seen.status == 200:
            self.webhooks.append(seen)
        self._record(
            "call",
            source=source,
            target=self._places.get(origin, origin),
            method=call.method or "webhook",
            request=seen.request.headers.get("x-correlation-id", ""),
            door=urlsplit(seen.url).path.rpartition("/")[2],
            began_s=round(seen.at_s, 6),
            status=seen.status,
            error=seen.error,
            **_said(seen.request.body, call.task_id),
        )


def _said(body: bytes, task_id: str) -> dict[str, str]:
    """The task, message and state in a call or webhook of any dialect; empty if it names none.

    ``task_id`` comes from its path. ``body`` is a digest of it.
    """
    try:
        whole = from_json(body)
    except ValueError:
        # JSON that pydantic refuses, such as halves of characters; None if it is not JSON.
        try:
            whole = json.loads(body)
        except (ValueError, RecursionError):
            whole = None
    part = _mapping(_mapping(whole).get("params", whole))
    update = next((_mapping(part[key]) for key in ("statusUpdate", "artifactUpdate", "task") if key in part), part)
    message, status = _mapping(part.get("message")), _mapping(update.get("status"))
    task = task_id or update.get("taskId") or message.get("taskId") or update.get("id") or ""
    state = str(status.get("state", "")).removeprefix("TASK_STATE_").lower().replace("_", "-")
    return {
        "task_id": str(task),
        "message_id": str(message.get("messageId", "")),
        "state": state,
        "body": hashlib.sha256(body).hexdigest()[:16],
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


TOKEN_HEADERS = ("x-a2a-notification-token", "authorization")
PAUSE_S = 0.1
_STATE = re.compile(rb'"state":"[A-Za-z_-]+"')


class SpoofedWebhookSender:
    """Sends the hub webhooks that no agent sent, and writes a line with the result of each."""

    def __init__(self, network: MemoryNetwork, write: LineWriter) -> None:
        self._link: NetworkLink = network.seen_from("stranger")
        self._record = write

    async def forge(self, seen: Sequence[SeenRequest], rng: Random) -> None:
        """Sends a webhook without its token, one with a changed token, and one with the token of another request."""
        if not seen:
            return
        one, other = rng.choice(seen).request, rng.choice(seen).request
        body = _STATE.sub(b'"state":"completed"', one.body)
        await self._send("no token", replace(one, body=body, headers=_without_token(one)))
        token = one.headers[TOKEN_HEADERS[0]]
        at = rng.randrange(len(token))
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        await self._send("another signature", _with_token(replace(one, body=body), changed))
        if one.url.rpartition("/")[2] != other.url.rpartition("/")[2]:
            foreign = _with_token(replace(one, body=body), other.headers[TOKEN_HEADERS[0]])
            if foreign.headers != one.headers:
                await self._send("another request's token", foreign)

    async def repeat(self, seen: Sequence[SeenRequest], rng: Random) -> int:
        """Sends each of them once more, in another order. Returns how many the hub accepted."""
        again = list(seen)
        rng.shuffle(again)
        arrived = 0
        for call in again:
            await asyncio.sleep(PAUSE_S)
            try:
                arrived += (await self._link.exchange(call.request)).status < 300
            except FleetsimError:
                continue
        return arrived

    async def _send(self, how: str, request: Request) -> None:
        try:
            status = (await self._link.exchange(request)).status
        except FleetsimError:
            status = 0
        self._record("forged", how=how, status=status)


def _without_token(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name not in TOKEN_HEADERS}


def _with_token(request: Request, token: str) -> Request:
    headers = {**_without_token(request), TOKEN_HEADERS[0]: token, TOKEN_HEADERS[1]: f"Bearer {token}"}
    return replace(request, headers=headers)
