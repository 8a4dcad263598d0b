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

_NAMES = {
    "fleetsim.agent": ("Agent", "Effect", "SkillContext", "SkillFailed", "SkillRejected", "skill"),
    "fleetsim.client": ("AgentClient", "Credential", "SentTask"),
    "fleetsim.client.conversation": ("Conversation",),
    "fleetsim.client.hub_client": ("HubClient",),
    "fleetsim.hub.hub": ("Hub",),
    "fleetsim.model.errors": ("FleetsimError",),
    "fleetsim.model.task": ("Artifact", "DataPart", "FilePart", "Message", "Part", "Task", "TaskState", "TextPart"),
    "fleetsim.model.work": ("Outcome",),
    "fleetsim.runtime.ports": ("Proxy", "TlsFiles", "WayOut"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

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
