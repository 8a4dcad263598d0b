"""What changed over a recorded run, for charts: computed from the recording alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from fleetsim.sim.figures import percentile
from fleetsim.sim.scenario import START

BUCKETS_MAX = 48
WIDTHS_S = (10, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 86_400, 604_800, 2_592_000, 7_776_000)
"""How wide the parts may be into which a run is cut."""


class Period(NamedTuple):
    """From when to when something was so, in seconds of the run."""

    begins_s: float
    ends_s: float
    what: str


class Mark(NamedTuple):
    """A moment of a ceremony: ``what`` is ``success``, another end of its run, ``missed``, ``skipped`` or ``late``."""

    at_s: float
    what: str


class Percentiles(NamedTuple):
    """The agent's own time of what ended in one part, in seconds."""

    at_s: float
    p50: float
    p95: float


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What changed over a run. Seconds are those of the run, which began at ``start``.

    ``outcomes`` counts ends by kind in each part of ``width_s``; ``in_flight`` and ``cost`` are what they are from each
    moment on. ``calm_s`` is when traffic and trouble were over.
    """

    start: datetime = START
    ends_s: float = 0.0
    calm_s: float | None = None
    width_s: float = WIDTHS_S[0]
    outcomes: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    in_flight: list[tuple[float, float]] = field(default_factory=list)
    cost: list[tuple[float, float]] = field(default_factory=list)
    latency: dict[str, list[Percentiles]] = field(default_factory=dict)
    health: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    troubles: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    ceremonies: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))


_MARKED = {"CeremonyMissed": "missed", "CeremonySkipped": "skipped", "CeremonyLate": "late"}


def timeline_of(lines: Iterable[Mapping[str, Any]]) -> Timeline:
    """Follow a recording from its beginning to its end."""
    rows = list(lines)
    found = Timeline()
    last_s = max((row["t"] for row in rows if row.get("type") == "OutcomeDecided"), default=0.0)
    for row in rows:
        match row["kind"]:
            case "start":
                found.start, found.ends_s = datetime.fromisoformat(row["start"]), max(last_s, row["duration_s"])
            case "calm":
                found.calm_s = row["t"]
    found.width_s = next((w for w in WIDTHS_S if found.ends_s <= w * BUCKETS_MAX), WIDTHS_S[-1])
    took: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    open_troubles: dict[str, list[Period]] = defaultdict(list)
    fired: dict[str, tuple[str, float]] = {}
    begun: set[str] = set()
    ended: set[str] = set()
    spent = 0.0
    for row in rows:
        at = row["t"]
        match row["kind"]:
            case "trouble":
                name = f"{row['fault']} of {row['agent']}" if row["agent"] else row["fault"]
                if row["phase"] == "begins":
                    open_troubles[name].append(Period(at, found.ends_s, row["said"]))
                elif open_troubles[name]:
                    found.troubles[name].append(open_troubles[name].pop(0)._replace(ends_s=at))
            case "health":
                for agent, seen in row["agents"].items():
                    strip = found.health[agent]
                    if strip:
                        strip[-1] = strip[-1]._replace(ends_s=at)
                    strip.append(Period(at, found.ends_s, seen["health"]))
            case "event":
                event = row["event"]
                payload = event["payload"]
                match row["type"]:
                    case "RequestAccepted" if event["correlationId"] not in begun:
                        begun.add(event["correlationId"])  # a hub that was killed may tell of it once more
                        found.in_flight.append((at, len(begun) - len(ended)))
                    case "OutcomeDecided" if event["correlationId"] not in ended:
                        ended.add(event["correlationId"])
                        begun.add(event["correlationId"])  # a hub ends what it was asked before it was recorded, too
                        found.in_flight.append((at, len(begun) - len(ended)))
                        part = int(at / found.width_s)
                        found.outcomes[part][payload["kind"]] += 1
                        if payload["costUsd"]:
                            spent += payload["costUsd"]
                            found.cost.append((at, spent))
                        if payload["agentMs"] is not None and (payload["success"] or payload["blame"] == "agent"):
                            took[event["agent"]][part].append(payload["agentMs"] / 1000)
                    case "CeremonyFired":
                        fired[payload["runId"]] = (payload["ceremonyId"], at)
                    case "CeremonyCompleted":
                        ceremony, when = fired.pop(payload["runId"], ("", at))
                        if ceremony:
                            found.ceremonies[ceremony].append(Mark(when, payload["status"]))
                    case name if name in _MARKED:
                        found.ceremonies[payload["ceremonyId"]].append(Mark(at, _MARKED[name]))
    for name, periods in open_troubles.items():
        if periods:
            found.troubles[name] += periods
    for ceremony, when in fired.values():
        found.ceremonies[ceremony].append(Mark(when, "running"))
    for agent, parts in took.items():
        found.latency[agent] = [
            Percentiles((part + 0.5) * found.width_s, percentile(sorted(all_of), 0.5), percentile(sorted(all_of), 0.95))
            for part, all_of in sorted(parts.items())
        ]
    return found
