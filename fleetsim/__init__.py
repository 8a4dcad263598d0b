"""fleetsim: the caller's side of A2A, with a dashboard, a conformance check, a simulator and a reference agent.

The public names, each imported when it is first used: the client that calls agents, the agent that is
called, and what passes between them. Everything else is found in its own package (docs/ARCHITECTURE.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetsim.agent import Agent, Effect, SkillContext, SkillFailed, SkillRejected, skill
    from fleetsim.client import AgentClient, Credential, HubClient, SentTask
    from fleetsim.client.conversation import Conversation
    from fleetsim.hub.hub import Hub
    from fleetsim.model.errors import FleetsimError
    from fleetsim.model.task import Artifact, DataPart, FilePart, Message, Part, Task, TaskState, TextPart
    from fleetsim.model.work import Outcome
    from fleetsim.runtime.ports import Proxy, TlsFiles, WayOut

__version__ = "0.1.0"

_HOMES = {
    "Agent": "fleetsim.agent",
    "AgentClient": "fleetsim.client",
    "Artifact": "fleetsim.model.task",
    "Conversation": "fleetsim.client.conversation",
    "Credential": "fleetsim.client",
    "DataPart": "fleetsim.model.task",
    "Effect": "fleetsim.agent",
    "FilePart": "fleetsim.model.task",
    "FleetsimError": "fleetsim.model.errors",
    "Hub": "fleetsim.hub.hub",
    "HubClient": "fleetsim.client.hub_client",
    "Message": "fleetsim.model.task",
    "Outcome": "fleetsim.model.work",
    "Part": "fleetsim.model.task",
    "Proxy": "fleetsim.runtime.ports",
    "SentTask": "fleetsim.client",
    "SkillContext": "fleetsim.agent",
    "SkillFailed": "fleetsim.agent",
    "SkillRejected": "fleetsim.agent",
    "Task": "fleetsim.model.task",
    "TaskState": "fleetsim.model.task",
    "TextPart": "fleetsim.model.task",
    "TlsFiles": "fleetsim.runtime.ports",
    "WayOut": "fleetsim.runtime.ports",
    "skill": "fleetsim.agent",
}

__all__ = [
    "Agent",
    "AgentClient",
    "Artifact",
    "Conversation",
    "Credential",
    "DataPart",
    "Effect",
    "FilePart",
    "FleetsimError",
    "Hub",
    "HubClient",
    "Message",
    "Outcome",
    "Part",
    "Proxy",
    "SentTask",
    "SkillContext",
    "SkillFailed",
    "SkillRejected",
    "Task",
    "TaskState",
    "TextPart",
    "TlsFiles",
    "WayOut",
    "__version__",
    "skill",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleetsim' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
