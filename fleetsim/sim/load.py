"""What a run in real time says of load: how often was asked against what was meant, and how long that took.

A request's time counts from the moment it was to be made, not from when it was: a sender that falls behind because the
fleet is slow would otherwise leave out the very requests that had to wait (coordinated omission).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleetsim.caller.figures import SHARES, Percentiles
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.quantities import in_words

LATE_S = 0.1
ELSEWHERE_S = 1.0
ELSEWHERE_TIMES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """The load of a run. Rates are per second of the machine; times are its seconds.

    ``response`` is from when a request was to be made until its end, ``agent`` what the agents themselves took of that,
    ``lateness`` from when it was to be made until the hub had accepted it. ``errors`` counts ends that are no success,
    and requests the hub refused.
    """

    meant: float
    sent: float
    ended: float
    response: Percentiles
    agent: Percentiles
    lateness: Percentiles
    errors: Mapping[str, int]

    @property
    def behind(self) -> str:
        """Why the sender itself was the limit; empty if it was not."""
        late = self.lateness.at(SHARES["p99"]) or 0.0
        if late <= LATE_S:
            return ""
        said = f"1 request in 100 was with the hub {in_words(late)} or more after its time"
        return f"{said}, {self.sent:.3g} of {self.meant:.3g} a second"

    @property
    def elsewhere(self) -> str:
        """Where the time passed, if most of it did not at the agents; empty if it did."""
        whole, agent = self.response.at(0.5), self.agent.at(0.5)
        if whole is None or agent is None or whole < ELSEWHERE_S or whole < ELSEWHERE_TIMES * agent:
            return ""
        return (
            f"half of the requests spent {in_words(whole - agent)} or more outside of their agent: waiting for one of "
            "the hub's calls to it (settings.calls_per_agent_max), to be polled, or for people"
        )

    def as_json(self) -> dict[str, Any]:
        """As a part of the report's document."""
        return {
            "meantPerSecond": round(self.meant, 4),
            "sentPerSecond": round(self.sent, 4),
            "endedPerSecond": round(self.ended, 4),
            "responseSeconds": self.response.as_json(),
            "agentSeconds": self.agent.as_json(),
            "latenessSeconds": self.lateness.as_json(),
            "errors": dict(self.errors),
            "senderBehind": self.behind,
            "elsewhere": self.elsewhere,
        }

    def rows(self) -> Iterator[tuple[str, Percentiles]]:
        """What was measured, in words."""
        yield "from when it was due to its end", self.response
        yield "of that the agent's own time", self.agent
        yield "before that, until the hub had it", self.lateness


def load_of(rows: Iterable[Mapping[str, Any]], rate: ClockRate, duration_s: float) -> LoadMetrics | None:
    """The load of a recorded run; None on virtual time, which has no load, and of nothing asked."""
    late: dict[str, float] = {}
    response, agent, lateness = Percentiles(), Percentiles(), Percentiles()
    errors: Counter[str] = Counter()
    asked, last_s, ended, stopped_s = 0, 0.0, 0, duration_s
    for row in rows:
        match row["kind"]:
            case "asked" | "refused" if "late_s" in row:
                asked += 1
                lateness.add(row["late_s"])
                last_s = max(last_s, row["t"])
                if row["kind"] == "asked":
                    late[row["correlation_id"]] = row["late_s"]
                else:
                    errors[f"refused: {row['why']}"] += 1
            case "stopped":
                stopped_s = min(stopped_s, row["t"])
            case "event" if row["type"] == "OutcomeDecided" and row["t"] <= stopped_s:
                ended += row["event"]["correlationId"] in late
            case "outcome" if row["correlation_id"] in late:
                response.add(late[row["correlation_id"]] + row["duration_ms"] / 1000)
                if row["agent_ms"] is not None:
                    agent.add(row["agent_ms"] / 1000)
                if not row["success"]:
                    errors[row["outcome"]] += 1
    if rate.virtual or not asked:
        return None
    span_s = max(stopped_s, 1e-9) / rate.times
    return LoadMetrics(
        meant=asked / span_s,
        sent=asked / max(span_s, last_s / rate.times),
        ended=ended / span_s,
        response=response,
        agent=agent,
        lateness=lateness,
        errors=errors,
    )
