"""Whether the webhooks of each agent arrive, and how many came, from the events about them. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from fleetsim.events.fleet import (
    CardFetched,
    WebhookAccepted,
    WebhookRegistered,
    WebhookRejected,
    WebhooksDegraded,
)
from fleetsim.events.request import Event
from fleetsim.health.trend import Trend

WEBHOOK_EVENTS = (CardFetched, WebhookAccepted, WebhookRegistered, WebhookRejected, WebhooksDegraded)


class PushState(StrEnum):
    """The state of an agent's webhooks. ``polled``: its card has none, or it refuses ours, which is not a fault."""

    UNKNOWN = "unknown"
    POLLED = "polled"
    REGISTERED = "registered"
    WORKING = "working"
    SILENT = "silent"


class WebhookNotes:
    """The state of each agent's webhooks in ``states``, and their counts over time."""

    def __init__(self) -> None:
        self.states: dict[str, PushState] = {}
        self._counts = {kind: Trend() for kind in ("ok", "again", "refused")}

    def take(self, event: Event) -> None:
        """Note one event. The sender of a refused webhook may be unknown."""
        agent, state = event.agent or "", None
        match event:
            case WebhookAccepted():
                self._counts["again" if event.duplicate else "ok"].add(event.at, True)
                state = PushState.WORKING
            case WebhookRejected():
                self._counts["refused"].add(event.at, True)
            case WebhookRegistered() if self.states.get(agent) is not PushState.WORKING:
                state = PushState.REGISTERED
            case WebhooksDegraded():
                state = PushState.POLLED if event.refused else PushState.SILENT
            case CardFetched(push_notifications=False):
                state = PushState.POLLED
            case CardFetched() if event.changed and self.states.get(agent) is PushState.POLLED:
                state = PushState.UNKNOWN
        if state is not None and agent:
            self.states[agent] = state

    def counts(self, now: datetime, span_s: int) -> dict[str, int]:
        """The webhooks of the last ``span_s`` seconds by what became of them."""
        return {kind: sum(cell.outcomes for cell in trend.cells(now, span_s)) for kind, trend in self._counts.items()}
