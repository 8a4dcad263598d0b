"""The figures of a recorded run, for expectations and the report: computed from the recording alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.caller.figures import EVENT_FIGURES, FigureCounters


class RunFigures:
    """Figures by scope: ``fleet``, each agent, each ``agent/skill``; ``replicas`` as ``FigureCounters`` has them."""

    def __init__(self, replicas: Mapping[str, str] | None = None, *, of_hub: bool = False) -> None:
        self._counters = FigureCounters(replicas)
        self._late_s: dict[str, float] = {}
        self._of_hub = of_hub

    def take(self, line: Mapping[str, Any]) -> None:
        """Count what the next line tells of."""
        match line["kind"]:
            case "asked":
                self._late_s[line["correlation_id"]] = line["late_s"]
            case "outcome":
                self._counters.ended(
                    line["agent"],
                    line["skill"],
                    kind=line["outcome"],
                    success=line["success"],
                    counts=line["counts"],
                    duration_ms=line["duration_ms"],
                    agent_ms=line["agent_ms"],
                    cost_usd=line["cost_usd"],
                    late_s=self._late_s.get(line["correlation_id"], 0.0),
                )
            case "event" if self._of_hub and line["type"] == "OutcomeDecided":  # its ledger is elsewhere
                event, told = line["event"], line["event"]["payload"]
                self._counters.ended(
                    event["agent"],
                    event["skill"],
                    kind=told["kind"],
                    success=told["success"],
                    counts=told["success"] or told["blame"] == "agent",
                    duration_ms=told["durationMs"],
                    agent_ms=told["agentMs"],
                    cost_usd=told["costUsd"],
                )
            case "event" if (what := EVENT_FIGURES.get(line["type"])) is not None:
                event = line["event"]
                self._counters.count(event["agent"], event["skill"], what, event["payload"].get("count", 1))

    def all(self) -> dict[str, dict[str, float | None]]:
        return self._counters.all()
