"""What was noticed about agents between two cards: webhooks refused or missing, a credential refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetsim.model.journal import Event

_TAKEN_IN = frozenset({"agent.skill.dispatched", "agent.skill.update"})


@dataclass(slots=True)
class AgentNotes:
    """Names of agents: whose webhooks do not come, who refuse ours (until their next card), who refuse our key."""

    silent: set[str] = field(default_factory=set)
    push_refused: set[str] = field(default_factory=set)
    auth_refused: set[str] = field(default_factory=set)

    def take(self, agent: str, event: Event) -> None:
        """Heed one event about an agent."""
        if event.topic == "agent.push.degraded":
            (self.push_refused if event.payload.get("refused") else self.silent).add(agent)
        elif event.topic == "agent.push.accepted":
            self.silent.discard(agent)
        elif event.topic == "agent.card.updated":
            self.push_refused.discard(agent)
        elif event.topic == "agent.auth.refused":
            self.auth_refused.add(agent)
        elif event.topic in _TAKEN_IN:
            self.auth_refused.discard(agent)
