"""What a run in real time says of load: how often was asked against what was meant, and how long that took.

A request's time counts from the moment it was to be made, not from when it was: a sender that falls behind because the
fleet is slow would otherwise leave out the very requests that had to wait (coordinated omission).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.figures import SHARES, Percentiles
from fleetsim.sim.quantities import in_words
from fleetsim.sim.run import Run
from fleetsim.sim.scenario_events import RequestTimed, RunStopped, SubmitRefused

LATE_S = 0.1
OURS_MIN = 0.1
"""Of less than this share of the time that requests took, the agents are the limit, not fleetsim."""
ELSEWHERE_S = 1.0
ELSEWHERE_TIMES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """The load of a run. Rates are per second of the machine; times are its seconds.

    ``response`` is from when a request was to be made until its end, ``agent`` what the agents themselves took of that,
    ``lateness`` from when it was to be made until the hub had accepted it, and ``ours`` its share of all response time.
    ``errors`` counts ends that are no success,
    and requests the hub refused.
    """

    meant: float
    sent: float
    ended: float
    response: Percentiles
    agent: Percentiles
    lateness: Percentiles
    ours: float
    errors: Mapping[str, int]

    @property
    def behind(self) -> str:
        """Why the sender itself was the limit; empty if it was not: the requests were on time, or hardly later than
        they took anyway.
        """
        late = self.lateness.at(SHARES["p99"]) or 0.0
        if late <= LATE_S or self.ours < OURS_MIN:
            return ""
        said = f"1 request in 100 was with the hub {in_words(late)} or more after its time"
        return f"{said}, {self.ours:.0%} of all response time; {self.sent:.3g} of {self.meant:.3g} a second were sent"

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
            "latenessShare": round(self.ours, 4),
            "errors": dict(self.errors),
            "senderBehind": self.behind,
            "elsewhere": self.elsewhere,
        }

    def rows(self) -> Iterator[tuple[str, Percentiles]]:
        """What was measured, in words."""
        yield "from when it was due to its end", self.response
        yield "of that the agent's own time", self.agent
        yield "before that, until the hub had it", self.lateness


def load_of(run: Run) -> LoadMetrics | None:
    """The load of a recorded run; None on virtual time, which has no load, and of a run without requests."""
    rate = ClockRate.read(run.started.clock)
    timed, refused = run.all(RequestTimed), [one for one in run.all(SubmitRefused) if one.late_s is not None]
    asked: list[RequestTimed | SubmitRefused] = [*timed, *refused]
    if rate.virtual or not asked:
        return None
    stopped_s = min([run.started.duration_s, *(stopped.t for stopped in run.all(RunStopped))])
    response, agent, lateness = Percentiles(), Percentiles(), Percentiles()
    late_s = response_s = 0.0
    errors: Counter[str] = Counter(f"refused: {one.why}" for one in refused)
    for one in asked:
        lateness.add(one.late_s or 0.0)
    for sent in timed:
        for row in run.outcomes.get(sent.correlation_id or "", ()):
            took_s = sent.late_s + row.duration_ms / 1000
            late_s += sent.late_s
            response_s += took_s
            response.add(took_s)
            if row.agent_ms is not None:
                agent.add(row.agent_ms / 1000)
            if not row.success:
                errors[row.outcome] += 1
    ends = (run.requests[sent.correlation_id or ""].end for sent in timed)
    span_s = max(stopped_s, 1e-9) / rate.times
    return LoadMetrics(
        meant=len(asked) / span_s,
        sent=len(asked) / max(span_s, max(one.t for one in asked) / rate.times),
        ended=sum(end is not None and end.t <= stopped_s for end in ends) / span_s,
        response=response,
        agent=agent,
        lateness=lateness,
        ours=late_s / response_s if response_s else 1.0,
        errors=errors,
    )
