"""Writes recordings: the events of the hub, the tasks of its agents, and the troubles of the run, a JSON object a line.

An event has the name of its class as ``type``, and the form of the event stream. The report uses nothing else of a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from fleetsim.ceremonies.folder import contents_of
from fleetsim.events.fleet import HubStarted
from fleetsim.events.request import Event, OutcomeDecided
from fleetsim.events.wire import to_wire
from fleetsim.fleet.registry import judge
from fleetsim.fleet.settings import AgentEntry
from fleetsim.model.work import Outcome
from fleetsim.recording.reader import FORMAT
from fleetsim.recording.writer import RecordingWriter
from fleetsim.sim.agents import MARK_BYTES, AgentTask
from fleetsim.sim.ceremonies import due_in, problems_of
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.load import LiveLoadMetrics
from fleetsim.sim.report import SimulationReport
from fleetsim.sim.scenario import Scenario

LINES_PER_LOOK = 250
RULES = ("poll_interval_s", "calls_max", "calls_per_agent_max", "question_ttl_s")
"""The settings of the hub that invariants use."""
VIOLATIONS_MAX = 20


class Recorder(RecordingWriter):
    """Writes a recording during the run.

    ``progress`` is called now and then with the second of the run and this recorder. ``load`` follows the load of a run
    in real time. ``with_keys`` counts the lines that contain an agent's key.
    """

    def __init__(
        self, file: IO[str], progress: Callable[[float, Recorder], None] = lambda at_s, recorder: None
    ) -> None:
        super().__init__(file)
        self._progress = progress
        self.load = LiveLoadMetrics()
        self.with_keys = 0

    def write(self, at_s: float, kind: str, **members: Any) -> bytes:
        if kind == "asked":
            self.load.request(at_s, members["correlation_id"], members["late_s"])
        line = super().write(at_s, kind, **members)
        self.with_keys += MARK_BYTES in line
        if self.lines % LINES_PER_LOOK == 0:
            self._progress(at_s, self)
        return line

    def start(
        self,
        scenario: Scenario,
        rate: ClockRate,
        ceremonies: Mapping[str, bytes],
        entries: Sequence[AgentEntry] = (),
        *,
        began: datetime | None = None,
    ) -> None:
        """Writes the first lines: the scenario, and the due slots and the problems of each ceremony.

        Of the ``entries`` of agents.yaml, the disabled ones are not agents of the scenario. ``began`` is when a run in
        real time began, by the machine's clock.
        """
        self.write(
            0.0,
            "start",
            format=FORMAT,
            scenario=scenario.name,
            seed=scenario.seed,
            start=scenario.start.isoformat(),
            duration_s=scenario.duration,
            agents=[
                {
                    "agent": name,
                    "skills": list(agent.skills),
                    "dialect": agent.dialect,
                    "idempotent": [skill for skill, behaviour in agent.skills.items() if behaviour.idempotent],
                }
                for name, agent in scenario.agents
            ],
            replicas={run: name for name in scenario.fleet for run in scenario.replicas_of(name) if run != name},
            expect=[expectation.text for expectation in scenario.expect],
            rules={name: getattr(scenario.settings, name) for name in (*RULES, *(("lease_s",) * (scenario.hubs > 1)))},
            **({} if scenario.hubs == 1 else {"hubs": scenario.hubs}),
            **({"limits": limits} if (limits := {name: asdict(of) for name, of in scenario.limits.items()}) else {}),
            **({} if rate.virtual else {"clock": str(rate)}),
            **({} if began is None else {"began": began.isoformat()}),
        )
        if ceremonies:
            contents = contents_of(ceremonies, Path("ceremonies"))
            read = contents.ceremonies.values()
            ends = scenario.start + timedelta(seconds=scenario.duration)
            schedules = {c.ceremony_id: [c.schedule.written, c.timezone] for c in read if c.schedule is not None}
            offers = {name: agent.skills for name, agent in scenario.agents}
            disabled = {entry.name: entry.takes_no_work for entry in entries if not entry.enabled}
            problems = problems_of(contents, judge(offers=offers, disabled=disabled))
            self.write(
                0.0, "due", slots=due_in(read, scenario.start, ends), schedules=schedules, problems=list(problems)
            )

    def look(self, at_s: float) -> None:
        """Reports the progress, also without a new line."""
        self._progress(at_s, self)

    def event(self, at_s: float, event: Event) -> None:
        if isinstance(event, OutcomeDecided):
            self.load.outcome(at_s, event.outcome)
        written = to_wire(event, exact=True)
        if isinstance(event, HubStarted):  # the process id would change the digest
            written["payload"] = {**written["payload"], "pid": 0}
        self.write(at_s, "event", type=type(event).__name__, event=written)

    def task(self, at_s: float, task: AgentTask) -> None:
        """Writes a task that ended, as its agent has it."""
        self.write(at_s, "task", **{**asdict(task), "text": digest_of(task.text), "chars": len(task.text)})

    def verdict(self, report: SimulationReport) -> None:
        """Writes the verdict as the last line, for the dashboard."""
        wrong = [(v.invariant, violation) for v in report.verdicts for violation in v.violations]
        self.write(
            self._last_s,
            "verdict",
            result=report.result.value,
            expectations=[{"expect": e.text, "figure": f, "holds": holds} for e, f, holds in report.expectations],
            rules=sum(1 for v in report.verdicts if v.cases),
            cases=sum(v.cases for v in report.verdicts),
            violations=len(wrong),
            first=[
                {
                    "at_s": one.at_s,
                    "rule": f"{invariant.number} {invariant.rule}",
                    "who": " ".join(filter(None, (one.agent, one.correlation_id))),
                    "said": one.said,
                }
                for invariant, one in wrong[:VIOLATIONS_MAX]
            ],
        )

    def outcome(self, at_s: float, outcome: Outcome, *, accepted: bool) -> None:
        """Writes an outcome of the ledger; ``accepted``: the ledger has the request, too."""
        self.write(
            at_s,
            "outcome",
            correlation_id=outcome.correlation_id,
            agent=outcome.agent,
            skill=outcome.skill,
            task_id=outcome.task_id,
            outcome=outcome.kind.value,
            success=outcome.success,
            blame=outcome.blame.value,
            cause=outcome.cause.value if outcome.cause else None,
            reason=outcome.reason[:300],
            via=outcome.via.value,
            counts=outcome.counts,
            duration_ms=outcome.duration_ms,
            agent_ms=outcome.agent_ms,
            cost_usd=outcome.cost_usd,
            text=digest_of(outcome.text),
            chars=len(outcome.text),
            system_actor=outcome.system_actor,
            accepted=accepted,
        )


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
