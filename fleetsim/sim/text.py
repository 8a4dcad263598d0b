"""A report as lines for a person. Text that came out of a run is one harmless line wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from heapq import nlargest

from fleetsim.caller.expectation import FLEET, METRICS, Expectation, Unit, shown
from fleetsim.model.text import one_line
from fleetsim.model.work import OutcomeKind
from fleetsim.sim.invariants import Verdict
from fleetsim.sim.quantities import in_words
from fleetsim.sim.report import Ending, Report, Result

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


def moment(at_s: float) -> str:
    """A second of the run, as ``1d 02:03:04``."""
    days, rest = divmod(int(at_s), 86_400)
    clock = str(timedelta(seconds=rest)).rjust(8, "0")
    return f"{days}d {clock}" if days else clock


def render(report: Report, *, verbose: bool = False) -> Iterator[str]:
    """The lines: verdict, what broke, when and who, the figures, and how to play it again."""
    fleet = report.figures.get(FLEET, {})
    played = ""
    if report.wall_s:
        times = report.duration_s / report.wall_s
        played = f" played in {in_words(report.wall_s)}, {times:,.0f} times as fast as it would be"
    yield f"{report.scenario}, seed {report.seed}: {RESULTS[report.result]}"
    yield (
        f"{in_words(report.duration_s)}{played}: "
        f"{fleet.get('requests') or 0:.0f} requests, {fleet.get('outcomes') or 0:.0f} outcomes, "
        f"{len(report.agents)} agents"
    )
    yield from _expectations(report)
    yield from _invariants(report, verbose)
    yield ""
    yield from _table(report)
    if report.troubles:
        yield ""
        yield "trouble:"
        for trouble in report.troubles:
            yield f"  {trouble.said}" + (f": {trouble.hits} messages" if trouble.hits else "")
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
        if (agent is None or agent in {ending.agent, ending.agent.rpartition("-")[0]})
        and (skill is None or ending.skill == skill)
    ]
    if expectation.unit is Unit.SECONDS:
        whole = metric.startswith("duration")
        yield from _most(mine, lambda e: e.duration_s if whole else e.agent_s or 0.0, in_words)
    elif expectation.unit is Unit.DOLLARS:
        yield from _most(mine, lambda e: e.cost_usd, lambda usd: shown(Unit.DOLLARS, usd))
    elif metric in {*OutcomeKind} - {OutcomeKind.COMPLETED}:
        yield from _grouped([ending for ending in mine if ending.outcome == metric])
    elif metric in {"success_rate", "successes", "failures", OutcomeKind.COMPLETED}:
        yield from _grouped([ending for ending in mine if not ending.success])


def _most(endings: list[Ending], amount: Callable[[Ending], float], words: Callable[[float], str]) -> Iterator[str]:
    for ending in nlargest(SLOWEST_MAX, endings, key=amount):
        if amount(ending):
            yield f"{words(amount(ending))} at {ending.agent}, ended {moment(ending.at_s)}{_amid(ending)}"
            yield f"  {ending.skill} {ending.correlation_id}: {ending.outcome}"


def _grouped(endings: list[Ending]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Ending]] = {}
    for ending in endings:
        groups.setdefault((ending.agent, ending.outcome), []).append(ending)
    for (agent, outcome), group in list(groups.items())[:SHOWN_MAX]:
        first = group[0]
        yield f"{len(group)} x {outcome} at {agent}, first at {moment(first.at_s)}{_amid(first)}"
        yield f"  {first.skill} {first.correlation_id}: {one_line(first.reason, 90)}"


def _amid(ending: Ending) -> str:
    return f" amid {', '.join(ending.troubles)}" if ending.troubles else ""


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
    for v in report.verdicts:
        if v.violations:
            yield f"  BROKEN {v.invariant.number} {v.invariant.rule}: {len(v.violations)} times"
            yield from (f"         {line}" for line in violations(v))


def violations(verdict: Verdict) -> Iterator[str]:
    """When, who and what, of the first violations."""
    for wrong in verdict.violations[:SHOWN_MAX]:
        who = " ".join(part for part in (wrong.agent, wrong.correlation_id) if part)
        yield f"{moment(wrong.at_s)} {who}: {one_line(wrong.said, 120)}"


def figure_rows(report: Report) -> list[list[str]]:
    """The figures of the fleet and each agent as a table: a row of heads, then a row for each."""
    rows = [["", *_HEADS]]
    for name in (FLEET, *report.agents):
        figures = report.figures.get(name, {})
        rows.append([name, *(_cell(column, figures.get(column)) for column in _COLUMNS)])
    return rows


def _table(report: Report) -> Iterator[str]:
    rows = figure_rows(report)
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
