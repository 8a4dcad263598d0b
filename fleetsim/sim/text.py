"""A report as lines for a person. Text of a run is always one harmless line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from heapq import nlargest

from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.sim.expectation import FLEET, METRICS, Expectation, Unit, shown
from fleetsim.sim.figures import SHARES
from fleetsim.sim.invariants import Verdict
from fleetsim.sim.quantities import in_words
from fleetsim.sim.report import LoadMetrics, Report, RequestEnding, Result

SHOWN_MAX = 5
SLOWEST_MAX = 3
_COLUMNS = ("requests", "success_rate", "p50", "p95", "cost", "unknown", "lost", "undeliverable", "questions")
_HEADS = ("REQUESTS", "OK%", "P50", "P95", "COST", "UNKNOWN", "LOST", "UNDELIV", "ASKED")
RESULTS = {
    Result.OK: "as expected",
    Result.UNEXPECTED: "not as expected",
    Result.VIOLATED: "a rule that must always hold was broken",
}
"""A result in words."""


def moment(start: datetime, at_s: float) -> str:
    """A second of a run that began then, as the time that its scenario's trouble goes by; later with its day."""
    at = start + timedelta(seconds=at_s)
    return f"{at:%H:%M:%S}" if at.date() == start.date() else f"{at:%a %d %b %H:%M:%S}"


def render(report: Report, *, verbose: bool = False) -> Iterator[str]:
    """The lines: verdict, violations, figures, and the command that plays the run again."""
    fleet = report.figures.get(FLEET, {})
    played = ""
    if not report.clock.virtual:
        played = f" on the clock {report.clock}"
        if report.began is not None:
            played += f" from {report.began:%Y-%m-%d %H:%M:%S %Z}"
        if report.stopped_s is not None:
            played += f", stopped after {in_words(report.stopped_s)}"
    elif report.wall_s:
        times = report.duration_s / report.wall_s
        played = f" played in {in_words(report.wall_s)}, {times:,.0f} times as fast as it would be"
    if report.of_hub:
        broken = f": {RESULTS[report.result]}" if report.result is not Result.OK else ""
        yield f"recorded: the hub at {report.scenario}{broken}"
    else:
        yield f"{report.scenario}, seed {report.seed}: {RESULTS[report.result]}"
    yield (
        f"{in_words(report.duration_s)}{played}: "
        f"{fleet.get('requests') or 0:.0f} requests, {fleet.get('outcomes') or 0:.0f} outcomes, "
        f"{len(report.agents)} agents"
    )
    yield from (f"  BROKEN {one_line(problem, 300)}" for problem in report.problems)
    yield from _expectations(report)
    yield from _invariants(report, verbose)
    yield ""
    yield from _columns(figure_rows(report))
    yield from _ceremonies(report)
    yield from _load(report)
    if report.troubles:
        yield ""
        yield "trouble:"
        for trouble in report.troubles:
            yield f"  {trouble.said}" + (f": {trouble.hits} messages" if trouble.hits else "")
    if report.again:
        yield ""
        yield f"play it again: {report.again}"


def _expectations(report: Report) -> Iterator[str]:
    for expectation, figure, holds in report.expectations:
        mark = "holds " if holds else "BROKEN"
        yield f"  {mark} {expectation.text}   (it is {shown(expectation.unit, figure)})"
        if not holds:
            yield from (f"         {line}" for line in endings_about(report, expectation))


def endings_about(report: Report, expectation: Expectation) -> Iterator[str]:
    """The ends that a broken expectation is about, with the trouble they met.

    Of a count or a share the failures, grouped by agent and kind; of a time the slowest; of a cost the dearest.
    """
    agent, skill, metric = expectation.agent, expectation.skill, expectation.metric
    mine = [
        ending
        for ending in report.endings
        if (agent is None or agent in {ending.outcome.agent, ending.replica_of})
        and (skill is None or ending.outcome.skill == skill)
    ]
    if expectation.unit is Unit.SECONDS:
        whole = metric.startswith(("duration", "response"))
        yield from _most(report, mine, lambda o: (o.duration_ms if whole else _agent_ms(o)) / 1000, in_words)
    elif expectation.unit is Unit.DOLLARS:
        yield from _most(report, mine, lambda o: o.cost_usd or 0.0, lambda usd: shown(Unit.DOLLARS, usd))
    elif metric in {*OutcomeKind} - {OutcomeKind.COMPLETED}:
        yield from _grouped(report, [ending for ending in mine if ending.outcome.kind == metric])
    elif metric in {"success_rate", "successes", "failures", OutcomeKind.COMPLETED}:
        yield from _grouped(report, [ending for ending in mine if not ending.outcome.success])


def _agent_ms(outcome: Outcome) -> int:
    return outcome.agent_ms or 0 if outcome.counts else 0


def _most(
    report: Report, endings: list[RequestEnding], amount: Callable[[Outcome], float], words: Callable[[float], str]
) -> Iterator[str]:
    for ending in nlargest(SLOWEST_MAX, endings, key=lambda ending: amount(ending.outcome)):
        if most := amount(ending.outcome):
            outcome, at = ending.outcome, moment(report.start, ending.at_s)
            yield f"{words(most)} at {outcome.agent}, ended {at}{_amid(report, ending)}"
            yield f"  {outcome.skill} {outcome.correlation_id}: {outcome.kind}"


def _grouped(report: Report, endings: list[RequestEnding]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[RequestEnding]] = {}
    for ending in endings:
        groups.setdefault((ending.outcome.agent, ending.outcome.kind), []).append(ending)
    for (agent, kind), group in list(groups.items())[:SHOWN_MAX]:
        first = group[0]
        at, outcome = moment(report.start, first.at_s), first.outcome
        yield f"{len(group)} x {kind} at {agent}, first at {at}{_amid(report, first)}"
        yield f"  {outcome.skill} {outcome.correlation_id}: {one_line(outcome.reason, 90)}"


def _amid(report: Report, ending: RequestEnding) -> str:
    troubles = report.run.troubles_met(ending.request)
    return f" amid {', '.join(troubles)}" if troubles else ""


def _invariants(report: Report, verbose: bool) -> Iterator[str]:
    good = [v for v in report.verdicts if not v.violations and v.cases]
    idle = [v.invariant.number for v in report.verdicts if not v.cases]
    cases = sum(v.cases for v in good)
    yield (
        f"  rules that always hold: {len(good)} looked at in {cases:,} cases, none broken"
        if not any(v.violations for v in report.verdicts)
        else f"  rules that always hold: {len(good)} of {len(report.verdicts)} held"
    )
    if verbose:
        for v in report.verdicts:
            yield f"    {v.invariant.number} {v.invariant.rule}: {v.cases:,} cases"
    elif idle:
        yield f"    nothing in this run to hold them to: {', '.join(idle)}"
    if report.unchecked:
        yield f"    not checked, as a hub's events do not show enough: {', '.join(report.unchecked)}"
    for v in report.verdicts:
        if v.violations:
            yield f"  BROKEN {v.invariant.number} {v.invariant.rule}: {len(v.violations)} times"
            yield from (f"         {line}" for line in violations(report.start, v))


def violations(start: datetime, verdict: Verdict) -> Iterator[str]:
    """The first violations, each with moment, agent and request."""
    for wrong in verdict.violations[:SHOWN_MAX]:
        who = " ".join(part for part in (wrong.agent, wrong.correlation_id) if part)
        yield f"{moment(start, wrong.at_s)} {who}: {one_line(wrong.said, 120)}"


def figure_rows(report: Report) -> list[list[str]]:
    """The figures of the fleet and each agent as a table: a row of heads, then a row for each."""
    rows = [["", *_HEADS]]
    for name in (FLEET, *report.agents):
        figures = report.figures.get(name, {})
        rows.append([name, *(_cell(column, figures.get(column)) for column in _COLUMNS)])
    return rows


def ceremony_rows(report: Report) -> list[list[str]]:
    """The slots of each ceremony as a table: a row of heads, then a row for each."""
    rows = [["", "DUE", "FIRED", "LATE", "MISSED", "SKIPPED", "SUCCESS", "FAILURE", "TIMEOUT", "RUNNING"]]
    for totals in report.ceremonies:
        ended = [totals.ended.get(status, 0) for status in ("success", "failure", "timeout")]
        counts = [totals.due, totals.fired, totals.late, totals.missed, totals.skipped, *ended, totals.running]
        rows.append([totals.ceremony, *map(str, counts)])
    return rows


def _ceremonies(report: Report) -> Iterator[str]:
    if report.ceremonies:
        yield ""
        yield "ceremonies:"
        yield from (f"  {line}" for line in _columns(ceremony_rows(report)))


def load_rows(load: LoadMetrics) -> list[list[str]]:
    """The times of a load as a table: a row of heads, then a row for each."""
    rows = [["", *(name.upper() for name in SHARES)]]
    for what, times in load.rows():
        found = [times.at(share) for share in SHARES.values()]
        rows.append([what, *("-" if seconds is None else in_words(seconds) for seconds in found)])
    return rows


def load_lines(load: LoadMetrics) -> Iterator[str]:
    """Rates, errors, and whether fleetsim itself was the limit."""
    yield f"{load.meant:.3g} requests a second were due, {load.sent:.3g} sent, {load.ended:.3g} ended"
    for kind, count in sorted(load.errors.items(), key=lambda pair: -pair[1])[:SHOWN_MAX]:
        yield f"{count} x {one_line(kind, 110)}"
    if load.elsewhere:
        yield load.elsewhere
    if load.behind:
        yield f"WARNING: fleetsim itself was the limit: {load.behind}."
        yield "The load was not what was asked for: ask for less, or play parts of the scenario on several machines."


def _load(report: Report) -> Iterator[str]:
    if report.unsettled:
        yield ""
        yield f"{report.unsettled} requests were still under way at the end, and were canceled (--settle)"
    load = report.load
    if load is None:
        return
    yield ""
    yield "load:"
    yield from (f"  {line}" for line in _columns(load_rows(load)))
    yield from (f"  {line}" for line in load_lines(load))


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(w) if at == 0 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *rest)).rstrip()


def _cell(column: str, figure: float | None) -> str:
    if figure is None:
        return "-"
    if column == "success_rate":
        return f"{figure * 100:.1f}"
    if column in {"p50", "p95"}:
        return in_words(figure)
    return shown(METRICS[column][0], figure)
