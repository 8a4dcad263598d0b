"""What was noticed about agents between two cards: webhooks refused or missing, a credential refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from fleetsim.model.journal import Event

_LET_IN = frozenset({"agent.skill.dispatched", "agent.skill.update", "agent.auth.accepted"})


@dataclass(slots=True)
class AgentNotes:
    """Names of agents: whose webhooks do not come and who refuse our key, since when; who refuses our webhooks."""

    silent: dict[str, datetime] = field(default_factory=dict)
    push_refused: set[str] = field(default_factory=set)
    auth_refused: dict[str, datetime] = field(default_factory=dict)

    def forget(self, agent: str) -> None:
        """It is another agent by now, or none, or has another key."""
        self.silent.pop(agent, None)
        self.push_refused.discard(agent)
        self.auth_refused.pop(agent, None)

    def take(self, agent: str, event: Event) -> None:
        """Heed one event about an agent."""
        if event.topic == "agent.push.degraded":
            if event.payload.get("refused"):
                self.push_refused.add(agent)
            else:
                self.silent.setdefault(agent, event.at)
        elif event.topic == "agent.push.accepted":
            self.silent.pop(agent, None)
        elif event.topic == "agent.card.updated":
            self.push_refused.discard(agent)
        elif event.topic == "agent.auth.refused":
            self.auth_refused.setdefault(agent, event.at)
        elif event.topic in _LET_IN:
            self.auth_refused.pop(agent, None)
