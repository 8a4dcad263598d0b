"""What passed over the simulated network, told by the network itself: a third witness beside the hub and its agents."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic_core import from_json

from fleetsim.runtime.exchange import origin_of
from fleetsim.sim.keys import FleetKeys
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
