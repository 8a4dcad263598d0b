"""The figures of a recorded run, for expectations and the report: computed from the recording alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleetsim.caller.figures import EVENT_FIGURES, FigureCounters


def figures_of(
    lines: Iterable[Mapping[str, Any]], replicas: Mapping[str, str] | None = None
) -> dict[str, dict[str, float | None]]:
    """Figures by scope: ``fleet``, each agent, each ``agent/skill``; ``replicas`` as ``FigureCounters`` has them."""
    counter = FigureCounters(replicas)
    late_s: dict[str, float] = {}
    of_hub = False
    for line in lines:
        match line["kind"]:
            case "start":
                of_hub = line.get("of") == "hub"
            case "asked":
                late_s[line["correlation_id"]] = line["late_s"]
            case "outcome":
                counter.ended(
                    line["agent"],
                    line["skill"],
                    kind=line["outcome"],
                    success=line["success"],
                    counts=line["counts"],
                    duration_ms=line["duration_ms"],
                    agent_ms=line["agent_ms"],
                    cost_usd=line["cost_usd"],
                    late_s=late_s.get(line["correlation_id"], 0.0),
                )
            case "event" if of_hub and line["type"] == "OutcomeDecided":  # its ledger is elsewhere
                event, told = line["event"], line["event"]["payload"]
                counter.ended(
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
                counter.count(event["agent"], event["skill"], what, event["payload"].get("count", 1))
    return counter.all()
