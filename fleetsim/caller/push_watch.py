"""Notices agents whose webhooks do not arrive (reliability F-38): silence alone proves nothing, three times does."""

from __future__ import annotations

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.events import WebhooksDegraded
from fleetsim.caller.track import Track
from fleetsim.model.work import KIND_OF_STATE, Outcome, UpdateSource

SILENT_AFTER = 3
"""So many tasks in a row that polling had to end although a webhook was registered."""


class PushWatch:
    """Counts, per agent, ends that only a poll brought. One webhook that does arrive clears the count."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._missed: dict[str, int] = {}

    def arrived(self, agent: str) -> None:
        """A verified webhook of this agent is here, early, late or in time."""
        self._missed.pop(agent, None)

    def ended(self, track: Track, outcome: Outcome) -> None:
        """A request ended. Says ``agent.push.degraded`` once the agent's webhooks are missed often enough."""
        agent = track.record.agent
        if track.pushing.received:
            self.arrived(agent)
        elif track.record.push and outcome.via is UpdateSource.POLL and outcome.kind in KIND_OF_STATE.values():
            missed = self._missed[agent] = self._missed.get(agent, 0) + 1
            if missed == SILENT_AFTER:
                why = f"the last {missed} tasks ended by polling; no webhook of theirs arrived"
                self._events.publish(WebhooksDegraded(agent=agent, why=why, refused=False))
