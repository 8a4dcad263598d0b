"""One A2A client for every dialect: the public one, what the caller's executor is made of; and one of the hub's API.

Imports ``wire`` and ``runtime``; no fleet, hub or agent. The client of a hub is imported when it is first used, because
it needs pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fleetsim.client.agent_client import AgentClient
from fleetsim.client.credential import Credential
from fleetsim.client.follow import Following
from fleetsim.client.http import ClientLimits
from fleetsim.client.results import ChatResponse, SentTask
from fleetsim.client.stream import EventStream

if TYPE_CHECKING:
    from fleetsim.client.hub_client import HubClient
    from fleetsim.client.hub_tools import ToolResult, anthropic_tools, openai_tools

__all__ = [
    "AgentClient",
    "ChatResponse",
    "ClientLimits",
    "Credential",
    "EventStream",
    "Following",
    "HubClient",
    "SentTask",
    "ToolResult",
    "anthropic_tools",
    "openai_tools",
]

_HOMES = {
    "HubClient": "fleetsim.client.hub_client",
    "ToolResult": "fleetsim.client.hub_tools",
    "anthropic_tools": "fleetsim.client.hub_tools",
    "openai_tools": "fleetsim.client.hub_tools",
}


def __getattr__(name: str) -> Any:
    """Import a name of the hub's client on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleetsim.client' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
