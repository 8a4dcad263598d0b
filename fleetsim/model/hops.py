"""The hubs that a request came through: hubs may stand behind hubs, and must not send work round in a circle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetsim.model.card import AgentCard, AgentExtension
from fleetsim.model.task import Task

HUBS_MAX = 4
"""The most hubs that a request may come through; the next one refuses it."""

HUBS_HEADER = "X-Fleetsim-Hubs"
HUBS_KEY = "fleetsim.hubs"
"""In a message's metadata, for agents between hubs that pass metadata on and not headers."""

CAUSE_KEY = "fleetsim.cause"
"""In the metadata of a final status: why a hub ended the task so, if the request itself is wrong."""

HUB_EXTENSION = "urn:fleetsim:hub-v1"
"""On the card of a hub; its parameter ``hub`` is the hub's id."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def hubs_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of the hubs that the metadata names, in order. Raises ValueError for anything else than ids."""
    return _ids(metadata.get(HUBS_KEY, ()), HUBS_KEY)


def hubs_in(header: str | None) -> tuple[str, ...]:
    """The same by the header. Raises ValueError."""
    return _ids([] if not header else [one.strip() for one in header.split(",")], HUBS_HEADER)


def _ids(told: object, where: str) -> tuple[str, ...]:
    if not isinstance(told, list | tuple) or not all(isinstance(one, str) and _ID.fullmatch(one) for one in told):
        raise ValueError(f"{where} is a list of hubs' ids")
    return tuple(told)


def hub_extension(hub_id: str) -> AgentExtension:
    """What the card of a hub says about it."""
    return AgentExtension(uri=HUB_EXTENSION, params={"hub": hub_id})


def hub_of(card: AgentCard | None) -> str:
    """The id of the hub whose card this is; empty for any other agent."""
    extensions = card.capabilities.extensions if card is not None else ()
    found = next((one.params.get("hub") for one in extensions if one.uri == HUB_EXTENSION and one.params), "")
    return found if isinstance(found, str) else ""


def cause_told(task: Task | None) -> str:
    """The cause that a hub gave for the end of a task; empty if it gave none."""
    message = task.status.message if task is not None else None
    told = message.metadata.get(CAUSE_KEY, "") if message is not None else ""
    return told if isinstance(told, str) else ""
