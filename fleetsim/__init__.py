"""fleetsim: the caller's side of A2A, with a dashboard, a conformance check, a simulator and a reference agent.

The public names, each imported when it is first used: the client that calls agents, and the agent that is
called. Everything else is found in its own package (docs/ARCHITECTURE.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetsim.agent import Agent, SkillContext, SkillFailed, SkillRejected, skill
    from fleetsim.client import AgentClient, Credential, SentTask
    from fleetsim.client.conversation import Conversation
    from fleetsim.hub.hub import Hub
    from fleetsim.model.errors import FleetsimError
    from fleetsim.model.task import Task, TaskState
    from fleetsim.model.work import Outcome

__version__ = "0.1.0"

_HOMES = {
    "Agent": "fleetsim.agent",
    "AgentClient": "fleetsim.client",
    "Conversation": "fleetsim.client.conversation",
    "Credential": "fleetsim.client",
    "FleetsimError": "fleetsim.model.errors",
    "Hub": "fleetsim.hub.hub",
    "Outcome": "fleetsim.model.work",
    "SentTask": "fleetsim.client",
    "SkillContext": "fleetsim.agent",
    "SkillFailed": "fleetsim.agent",
    "SkillRejected": "fleetsim.agent",
    "Task": "fleetsim.model.task",
    "TaskState": "fleetsim.model.task",
    "skill": "fleetsim.agent",
}

__all__ = [
    "Agent",
    "AgentClient",
    "Conversation",
    "Credential",
    "FleetsimError",
    "Hub",
    "Outcome",
    "SentTask",
    "SkillContext",
    "SkillFailed",
    "SkillRejected",
    "Task",
    "TaskState",
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
