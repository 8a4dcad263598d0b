"""What was noticed about agents between two cards: webhooks refused or missing, a credential refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from fleetsim.caller.events import (
    CardFetched,
    CredentialAccepted,
    CredentialRefused,
    Event,
    TaskBound,
    TaskMoved,
    WebhookAccepted,
    WebhooksDegraded,
)


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
        match event:
            case WebhooksDegraded(refused=True):
                self.push_refused.add(agent)
            case WebhooksDegraded():
                self.silent.setdefault(agent, event.at)
            case WebhookAccepted():
                self.silent.pop(agent, None)
            case CardFetched():
                self.push_refused.discard(agent)
            case CredentialRefused():
                self.auth_refused.setdefault(agent, event.at)
            case TaskBound() | TaskMoved() | CredentialAccepted():
                self.auth_refused.pop(agent, None)
