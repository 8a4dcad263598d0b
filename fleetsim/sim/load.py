"""The load of a run in real time: rates, response time and service time, and the side that limits it. Pure.

*Response time* counts from the moment when a request was due, *service time* from the moment when the hub had it. A
caller that waits for a slow fleet sends less, and then service time alone looks good (coordinated omission).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fleetsim.health.figures import SHARES, Percentiles, merged
from fleetsim.model.spans import in_words
from fleetsim.model.work import Outcome
from fleetsim.recording.events import RecordingEnded, RequestTimed, RunStopped, SubmitRefused
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.run import Run

LATE_S = 0.1
CALLER_MIN = 0.1
"""Below this share of the response time, the caller is not the limit."""
GROWN, GROWN_S = 1.5, 0.1
"""An agent whose median time grows by this factor and these seconds at an even rate cannot keep up."""
BUSY = 0.85
FIFTH_MIN = 10
"""With fewer requests in a fifth of the run, growth is not judged."""


class Evidence(NamedTuple):
    """A side of the load: its share of all response time, and the measurements that show it."""

    side: str
    share: float
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """The load of a run. Rates are per second of the machine; times are its seconds.

    ``response`` is from the moment when a request was due until its end, ``service`` from the moment when the hub had
    it, and ``lateness`` the difference. ``agent`` and ``hub`` are parts of the service time. ``network`` is one, too,
    if the run shows when the agents worked, as simulated agents do. Else it is in ``agent``, and ``reply_s`` is the
    fastest first reply: one round trip takes no longer. ``agent_first`` and ``agent_last`` are the agents' times of the
    first and the last fifth of the requests. ``busy`` is the use of a processor by fleetsim's own process, 1.0 for all
    of one. ``errors`` counts failures and refused requests.
    """

    meant: float
    sent: float
    ended: float
    response: Percentiles
    service: Percentiles
    agent: Percentiles
    hub: Percentiles
    network: Percentiles
    lateness: Percentiles
    agent_first: Percentiles
    agent_last: Percentiles
    reply_s: float | None
    busy: float | None
    errors: Mapping[str, int]

    @classmethod
    def merged(cls, parts: Sequence[LoadMetrics]) -> LoadMetrics:
        """The load that several processes made together, or of one in the form that is sent. Times are in buckets.

        ``busy`` is that of the busiest process.
        """
        return cls(
            meant=sum(part.meant for part in parts),
            sent=sum(part.sent for part in parts),
            ended=sum(part.ended for part in parts),
            **{name: merged(getattr(part, name) for part in parts) for name in TIMES},
            reply_s=min((part.reply_s for part in parts if part.reply_s is not None), default=None),
            busy=max((part.busy for part in parts if part.busy is not None), default=None),
            errors=sum((Counter(part.errors) for part in parts), Counter()),
        )

    @property
    def sides(self) -> tuple[Evidence, ...]:
        """All sides, that with the largest share first."""
        return tuple(sorted(self._sides(), key=lambda side: -side.share))

    def _sides(self) -> Iterator[Evidence]:
        whole_s = self.response.total_s

        def share(part_s: float) -> float:
            return part_s / whole_s if whole_s else 0.0

        late = self.lateness.at(SHARES["p99"]) or 0.0
        work = "" if self.busy is None else f"; fleetsim's process kept {self.busy:.0%} of a processor busy"
        yield Evidence(
            "caller",
            share(whole_s - self.service.total_s) if len(self.response) else 1.0,
            f"1 request in 100 was {in_words(late)} or more late, {self.sent:.3g} of {self.meant:.3g} a second were "
            f"sent{work}",
        )
        hub = self.hub.at(0.5) or 0.0
        cause = ": they waited for a call to the agent (settings.calls_per_agent_max), for a poll or for people"
        if self.busy is not None and self.busy >= BUSY:
            cause = f": its process kept {self.busy:.0%} of a processor busy, and a processor is all that it can use"
        yield Evidence(
            "hub",
            share(self.hub.total_s),
            f"half of the requests spent {in_words(hub)} or more in the hub{cause if hub > LATE_S else ''}",
        )
        if len(self.network):
            middle = in_words(self.network.at(0.5) or 0.0)
            share_of_it = share(self.network.total_s)
            yield Evidence("network", share_of_it, f"half of the requests spent {middle} or more on it")
        # The growth of the agents' time over the run, and what limits the network's part of it.
        if len(self.agent_first) < FIFTH_MIN:
            seen = "too few requests to judge growth"
        else:
            first, last = (times.at(0.5) or 0.0 for times in (self.agent_first, self.agent_last))
            verdict = "it cannot keep up" if last >= max(GROWN * first, first + GROWN_S) else "it keeps up"
            seen = f"{verdict}: the median was {in_words(first)} in the first fifth and {in_words(last)} in the last"
        if self.reply_s is not None and not len(self.network):
            reply = in_words(self.reply_s)
            seen += f"; the network is in it, at most {reply} for a round trip, as the fastest reply shows"
        yield Evidence("agent", share(self.agent.total_s), seen)

    @property
    def limit(self) -> Evidence:
        """The side that limits the load: the caller if it was late, else the side with most of the response time."""
        caller = next(side for side in self.sides if side.side == "caller")
        late = (self.lateness.at(SHARES["p99"]) or 0.0) > LATE_S and caller.share >= CALLER_MIN
        return caller if late else next(side for side in self.sides if side.side != "caller")

    def as_json(self) -> dict[str, Any]:
        limit = self.limit
        return {
            "meantPerSecond": round(self.meant, 4),
            "sentPerSecond": round(self.sent, 4),
            "endedPerSecond": round(self.ended, 4),
            "responseSeconds": self.response.as_json(),
            "serviceSeconds": self.service.as_json(),
            "agentSeconds": self.agent.as_json(),
            "hubSeconds": self.hub.as_json(),
            "networkSeconds": self.network.as_json() if len(self.network) else None,
            "latenessSeconds": self.lateness.as_json(),
            "latenessShare": next(round(side.share, 4) for side in self.sides if side.side == "caller"),
            "fastestReplySeconds": self.reply_s,
            "processorShare": None if self.busy is None else round(self.busy, 4),
            "limit": limit.side,
            "sides": [{"side": side.side, "share": round(side.share, 4), "evidence": side.seen} for side in self.sides],
            "errors": dict(self.errors),
            "senderBehind": limit.seen if limit.side == "caller" else "",
            "elsewhere": limit.seen if limit.side == "hub" else "",
        }

    def rows(self) -> Iterator[tuple[str, Percentiles]]:
        """The measured times, each with its description."""
        yield "response time, from when it was due", self.response
        yield "service time, from when the hub had it", self.service
        if len(self.network):
            yield "  at the agent", self.agent
            yield "  on the network", self.network
        else:
            yield "  at the agent and on the network", self.agent
        yield "  in the hub", self.hub
        yield "late: due, and not yet with the hub", self.lateness

    def lines(self) -> Iterator[str]:
        """Rates, the limiting side and the evidence of each side."""
        yield f"{self.meant:.3g} requests a second were due, {self.sent:.3g} sent, {self.ended:.3g} ended"
        limit = self.limit
        yield f"the limit: {limit.side}, {limit.share:.0%} of all response time"
        yield from (f"  {side.side}: {side.share:.0%}; {side.seen}" for side in self.sides)
        if limit.side == "caller":
            yield "WARNING: fleetsim itself was the limit, so this is not the load that you wanted: request less of it,"
            yield "or divide it over the workers of a cluster (--cluster)."


TIMES = ("response", "service", "agent", "hub", "network", "lateness", "agent_first", "agent_last")
"""The fields of LoadMetrics that are times."""


def load_of(run: Run) -> LoadMetrics | None:
    """The load of a recorded run; None on virtual time, which has no load, and of a run without requests."""
    rate = ClockRate.read(run.started.clock)
    timed, refused = run.all(RequestTimed), [event for event in run.all(SubmitRefused) if event.late_s is not None]
    asked: list[RequestTimed | SubmitRefused] = [*timed, *refused]
    if rate.virtual or not asked:
        return None
    stopped_s = min([run.started.duration_s, *(stopped.t for stopped in run.all(RunStopped))])
    span_s = max(stopped_s, 1e-9) / rate.times
    errors = Counter(f"refused: {event.why}" for event in refused)
    times = {name: Percentiles() for name in TIMES}
    for timed_request in asked:
        times["lateness"].add(timed_request.late_s or 0.0)
    worked = {
        task.correlation_id or "": (task.ended_s - task.begun_s) / rate.times
        for tasks in run.tasks.values()
        for task in tasks
        if task.ended_s is not None
    }
    with_agents: list[tuple[float, float]] = []  # when each request was due, and the agent's part of it
    for sent in timed:
        for row in run.outcomes.get(sent.correlation_id or "", ()):
            service_s, worked_s = row.duration_ms / 1000, worked.get(sent.correlation_id or "")
            agent_s = with_agent_s = min(service_s, (row.agent_ms or 0.0) / 1000)
            if worked_s is not None:
                network_s = max(0.0, with_agent_s - worked_s)
                times["network"].add(network_s)
                agent_s -= network_s
            times["response"].add(sent.late_s + service_s)
            times["service"].add(service_s)
            times["hub"].add(service_s - with_agent_s)
            times["agent"].add(agent_s)
            with_agents.append((sent.due_s, agent_s))
            if not row.success:
                errors[row.outcome] += 1
    replies = [
        (request.moved[0].t - request.begun.t) / rate.times
        for request in run.requests.values()
        if request.moved and request.begun and request.moved[0].t >= request.begun.t
    ]
    ends = (run.requests[sent.correlation_id or ""].end for sent in timed)
    played = next(iter(run.all(RecordingEnded)), None)
    with_agents.sort(key=lambda row: row[0])
    fifth = len(with_agents) // 5
    for name, part in (("agent_first", with_agents[:fifth]), ("agent_last", with_agents[len(with_agents) - fifth :])):
        for _, agent_s in part:
            times[name].add(agent_s)
    return LoadMetrics(
        meant=len(asked) / span_s,
        sent=len(asked) / max(span_s, max(request.t for request in asked) / rate.times),
        ended=sum(end is not None and end.t <= stopped_s for end in ends) / span_s,
        **times,
        reply_s=min(replies, default=None),
        busy=played.cpu_s / played.wall_s if played is not None and played.wall_s else None,
        errors=errors,
    )


RECENT_S = 10.0


class LiveLoadMetrics:
    """The load of a run while it is played: counts, and the times of requests that ended in the last seconds."""

    def __init__(self) -> None:
        self.sent = self.ended = self.failed = 0
        self._late: dict[str, float] = {}
        self._sent_at: deque[float] = deque()
        self._ended_at: deque[tuple[float, float]] = deque()

    def request(self, at_s: float, correlation_id: str, late_s: float) -> None:
        self.sent += 1
        self._late[correlation_id] = late_s
        self._sent_at.append(at_s)

    def outcome(self, at_s: float, outcome: Outcome) -> None:
        late_s = self._late.pop(outcome.correlation_id, None)
        if late_s is not None:
            self.ended += 1
            self.failed += not outcome.success
            self._ended_at.append((at_s, late_s + outcome.duration_ms / 1000))

    def line(self, at_s: float, rate: ClockRate) -> str:
        """The figures of the last seconds before ``at_s`` of the run."""
        since_s = at_s - RECENT_S * rate.times
        while self._sent_at and self._sent_at[0] < since_s:
            self._sent_at.popleft()
        while self._ended_at and self._ended_at[0][0] < since_s:
            self._ended_at.popleft()
        span_s = max(1.0, min(RECENT_S, at_s / rate.times))
        times = Percentiles()
        for _, response_s in self._ended_at:
            times.add(response_s)
        shown = ", ".join(f"{name} {in_words(times.at(SHARES[name]) or 0.0)}" for name in ("p50", "p90", "p99"))
        rates = f"{len(self._sent_at) / span_s:.1f}/s sent, {len(self._ended_at) / span_s:.1f}/s ended"
        return f"{rates}{f', {shown}' if self._ended_at else ''}, {len(self._late)} open, {self.failed} failed"
