"""The formats of a report: lines for a person, and files. Text of a run is escaped, and one line in each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import nlargest

from fleetsim import __version__
from fleetsim.health.figures import FLEET, METRICS, SHARES, Expectation, Unit, shown
from fleetsim.model.problems import JunitCase, Problem, html_page, junit_suite, sarif, workflow_commands
from fleetsim.model.spans import in_words
from fleetsim.model.text import escape, html_text, one_line
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.recording.events import RequestsTaken, SubmitRefused
from fleetsim.sim import charts
from fleetsim.sim.charts import Timeline, timeline_of
from fleetsim.sim.invariants import InvariantResult
from fleetsim.sim.load import LoadMetrics
from fleetsim.sim.report import Result, SimulationReport
from fleetsim.sim.run import Ending, RequestRun

AGENTS_MAX = 40
_STYLE = ".rules{margin:.6rem 0}.wide{overflow-x:auto}summary{cursor:pointer}" + charts.STYLE


def as_json(report: SimulationReport) -> str:
    """One JSON document of the schema ``fleetsim-sim/1``, with nothing in it that a terminal would obey."""
    return escape(json.dumps(report.as_json(), ensure_ascii=False, indent=2)) + "\n"


def junit(report: SimulationReport) -> str:
    """One test case for each expectation, and one for each rule that must always hold.

    A failure has the violations or ends, with moment, agent and request, and the command that plays the run again. A
    rule without a case in this run is skipped.
    """
    cases: list[JunitCase] = []
    for expectation, figure, holds in report.expectations:
        failed = None
        if not holds:
            message = f"{expectation.text}: it is {shown(expectation.unit, figure)}"
            details = "\n".join([message, *endings_about(report, expectation), _again(report)])
            failed = ("expectation", message, details)
        cases.append(JunitCase(group="expect", name=expectation.text, failed=failed))
    cases += [JunitCase(group="ceremonies", name=one, failed=("ceremony", one, "")) for one in report.problems]
    for verdict in report.verdicts:
        rule, failed = f"{verdict.invariant.number} {verdict.invariant.rule}", None
        if verdict.violations:
            message = f"{rule}: broken in {len(verdict.violations)} of {verdict.cases:,} cases"
            details = "\n".join([message, *violations(report.start, verdict), _again(report)])
            failed = ("violation", message, details)
        skipped = "" if verdict.cases or failed else "nothing in this run to hold it to"
        cases.append(JunitCase(group="rules", name=rule, failed=failed, skipped=skipped))
    properties = {"seed": report.seed, "digest": report.digest, "replay": report.again}
    return junit_suite("fleetsim sim", report.scenario, properties, cases, report.wall_s)


def _again(report: SimulationReport) -> str:
    return f"play it again: {report.again}" if report.again else ""


def html(report: SimulationReport) -> str:
    title = f"fleetsim sim: {report.scenario}, seed {report.seed}"
    return html_page(title, _STYLE, _body(report, timeline_of(report.run)))


def _body(report: SimulationReport, timeline: Timeline) -> Iterator[str]:
    look = "holds" if report.result is Result.OK else "broken"
    yield f'<p class="verdict {look}">{html_text(RESULTS[report.result].capitalize())}</p>'
    yield from (f'<p class="broken">{html_text(problem)}</p>' for problem in report.problems)
    yield from _expectations(report)
    yield from _rules(report)
    axis = charts.Axis(timeline)
    if timeline.troubles:
        yield "<h2>Trouble</h2>"
        yield from charts.strips(axis, timeline.troubles, "trouble over time", "trouble")
        yield from _left_out(len(timeline.troubles), charts.ROWS_MAX)
    yield f"<h2>Outcomes, each {in_words(timeline.width_s)}</h2>"
    yield from charts.key({kind: kind for kind in charts.kinds_seen(timeline)})
    yield from charts.outcomes(axis)
    yield "<h2>In flight</h2>"
    yield from charts.steps(axis, timeline.in_flight, "requests in flight over time")
    if timeline.health:
        yield "<h2>Health, as the hub saw it</h2>"
        yield from charts.key({period.what: period.what for periods in timeline.health.values() for period in periods})
        yield from charts.strips(axis, timeline.health, "health of each agent over time")
        yield from _left_out(len(timeline.health), charts.ROWS_MAX)
    if timeline.load:
        yield f"<h2>Response and service time, each {in_words(timeline.width_s)}</h2>"
        yield from charts.key({"low": "p50", "high": "p95"})
        highest = max(point.p95 for points in timeline.load.values() for point in points)
        for name, points in timeline.load.items():
            yield from charts.latencies(axis, name, points, highest)
    if timeline.latency:
        yield f"<h2>The agents' own time, of what ended in each {in_words(timeline.width_s)}</h2>"
        yield from charts.key({"low": "p50", "high": "p95"})
        for name, points in list(timeline.latency.items())[:AGENTS_MAX]:
            yield from charts.latencies(axis, name, points)
        yield from _left_out(len(timeline.latency), AGENTS_MAX)
    if timeline.ceremonies:
        yield "<h2>Ceremonies</h2>"
        yield from charts.key({h.what: h.what for all_of in timeline.ceremonies.values() for h in all_of})
        yield from charts.dots(axis, timeline.ceremonies, "runs of ceremonies over time")
        yield from _left_out(len(timeline.ceremonies), charts.ROWS_MAX)
    if timeline.cost:
        yield "<h2>Cost so far, in US dollars</h2>"
        yield from charts.steps(axis, timeline.cost, "cost over time", money=True)
    yield from _figures("Figures", figure_rows(report))
    if report.ceremonies:
        yield from _figures("Ceremonies, by slot", ceremony_rows(report))
    if report.load is not None:
        yield from _figures("Load", load_rows(report.load))
        yield from (f'<p class="dim">{html_text(line)}</p>' for line in load_lines(report.load))
    yield from _about(report, timeline)


def _expectations(report: SimulationReport) -> Iterator[str]:
    if not report.expectations:
        yield "" if report.of_hub else "<p>Nothing is expected of this run.</p>"
        return
    yield "<h2>Expected</h2>"
    yield "<table><tr><th></th><th>Expectation</th><th>It is</th></tr>"
    for expectation, figure, holds in report.expectations:
        word = "holds" if holds else "broken"
        text = "" if holds else _items(endings_about(report, expectation))
        yield (
            f'<tr><td class="{word}">{word}</td><td>{html_text(expectation.text)}{text}</td>'
            f"<td>{html_text(shown(expectation.unit, figure))}</td></tr>"
        )
    yield "</table>"


def _items(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"<pre>{html_text(text)}</pre>" if text else ""


def _rules(report: SimulationReport) -> Iterator[str]:
    broken = [verdict for verdict in report.verdicts if verdict.violations]
    for verdict in broken:
        times = f"{len(verdict.violations)} of {verdict.cases:,} cases"
        rule = f"{verdict.invariant.number} {verdict.invariant.rule}: {times}"
        yield f'<h2 class="broken">Broken: {html_text(rule)}</h2>{_items(violations(report.start, verdict))}'
    cases = sum(verdict.cases for verdict in report.verdicts)
    held = sum(1 for verdict in report.verdicts if verdict.cases and not verdict.violations)
    word = f"{held} of {len(report.verdicts)} held, {cases:,} cases"
    yield f'<details class="rules"><summary>Rules that always hold: {word}</summary><table><tr><th>Rule</th><th></th>'
    yield '<th class="n">Cases</th><th class="n">Broken</th></tr>'
    for v in report.verdicts:
        yield f"<tr><td>{html_text(v.invariant.number)}</td><td>{html_text(v.invariant.rule)}</td>"
        yield f'<td class="n">{v.cases:,}</td><td class="n">{len(v.violations)}</td></tr>'
    yield "</table></details>"
    if report.unchecked:
        text = f"Not checked, as a hub's events do not show enough: {', '.join(report.unchecked)}."
        yield f'<p class="dim">{html_text(text)}</p>'


def _left_out(count: int, shown_max: int) -> Iterator[str]:
    if count > shown_max:
        yield f'<p class="dim">and {count - shown_max} more</p>'


def _figures(title: str, table: list[list[str]]) -> Iterator[str]:
    heads, *rows = table
    yield f'<h2>{title}</h2><div class="wide"><table><tr><th></th>'
    yield "".join(f'<th class="n">{html_text(head)}</th>' for head in heads[1:])
    yield "</tr>"
    for name, *cells in rows:
        numbers = "".join(f'<td class="n">{html_text(cell)}</td>' for cell in cells)
        yield f"<tr><td>{html_text(name)}</td>{numbers}</tr>"
    yield "</table></div>"


def _about(report: SimulationReport, timeline: Timeline) -> Iterator[str]:
    facts = [
        ("Began", f"{report.began or timeline.start:%Y-%m-%d %H:%M %Z}, lasted {in_words(report.duration_s)}"),
        ("Played in", in_words(report.wall_s) if report.wall_s else ""),
        ("Digest", report.digest),
        ("Play it again", report.again),
    ]
    yield "<h2>This run</h2><dl>"
    yield from (f"<dt>{label}</dt><dd>{html_text(text)}</dd>" for label, text in facts if text)
    yield "</dl>"


def problems(report: SimulationReport) -> Iterator[Problem]:
    """Each broken expectation and rule, and each wrong ceremony, as a code host shows it."""
    subject, file = f"{report.scenario}, seed {report.seed}", report.file or report.source
    for place, (expectation, figure, holds) in enumerate(report.expectations):
        if not holds:
            message = f"{expectation.text}: it is {shown(expectation.unit, figure)}"
            yield Problem(
                rule="expectation",
                title=expectation.text,
                level="error",
                text="\n".join([message, *endings_about(report, expectation), _again(report)]),
                key=expectation.text,
                subject=subject,
                file=file,
                line=report.places[place] if place < len(report.places) else 1,
                help=expectation.text,
            )
    rows = [("ceremony", "a ceremony that is wrong", problem) for problem in report.problems]
    for verdict in report.verdicts:
        if verdict.violations:
            told = "\n".join([*violations(report.start, verdict), _again(report)])
            rows.append((verdict.invariant.number, verdict.invariant.rule, told))
    for rule, title, text in rows:
        yield Problem(
            rule=rule, title=title, level="error", text=text, key=rule, subject=subject, file=file, help=title
        )


FORMATS: Mapping[str, Callable[[SimulationReport], str]] = {
    "json": as_json,
    "junit": junit,
    "html": html,
    "sarif": lambda report: sarif(
        "fleetsim sim", __version__, f"fleetsim sim {report.scenario}", tuple(problems(report))
    ),
    "github": lambda report: workflow_commands(problems(report)),
}
"""A writer for each format of ``--report``."""


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


def render(report: SimulationReport, *, verbose: bool = False) -> Iterator[str]:
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
        f"{len(report.agents)} agent{'s' * (len(report.agents) != 1)}"
    )
    limits = Counter(refused.limit for refused in report.run.all(SubmitRefused) if refused.limit)
    yield from (f"  the limit {one_line(name, 60)} refused {count:,} requests" for name, count in limits.items())
    yield from (f"  BROKEN {one_line(problem, 300)}" for problem in report.problems)
    for worker in report.workers:
        if worker.lost_s is not None:
            after = in_words(worker.lost_s)
            yield f"  BROKEN worker {one_line(worker.name, 60)} was lost after {after}: its part is not in the figures"
    if not report.expectations and not report.of_hub:
        yield "  nothing is expected of it: `expect:` in the scenario names figures that must hold"
    for expectation, figure, holds in report.expectations:
        mark = "holds " if holds else "BROKEN"
        yield f"  {mark} {expectation.text}   (it is {shown(expectation.unit, figure)})"
        if not holds:
            yield from (f"         {line}" for line in endings_about(report, expectation))
    yield from _invariants(report, verbose)
    yield ""
    yield from _columns(figure_rows(report))
    if report.ceremonies:
        yield ""
        yield "ceremonies:"
        yield from (f"  {line}" for line in _columns(ceremony_rows(report)))
    yield from _load(report)
    yield from _workers(report)
    if report.troubles:
        yield ""
        yield "trouble:"
        for trouble in report.troubles:
            yield f"  {trouble.said}" + (f": {trouble.hits} messages" if trouble.hits else "")
        if taken := sum(len(event.requests) for event in report.run.all(RequestsTaken)):
            yield f"  {taken} requests went to another hub"
    if report.again:
        yield ""
        yield f"play it again: {report.again}"


def endings_about(report: SimulationReport, expectation: Expectation) -> Iterator[str]:
    """The ends that a broken expectation is about, with the trouble they met.

    Of a count or a share the failures, grouped by agent and kind; of a time the slowest; of a cost the dearest.
    """
    agent, skill, metric = expectation.agent, expectation.skill, expectation.metric
    mine = [
        (request, end, outcome)
        for request, end, outcome in report.run.endings()
        if (agent is None or agent in {outcome.agent, report.run.replica_of(outcome.agent)})
        and (skill is None or outcome.skill == skill)
    ]
    if expectation.unit is Unit.SECONDS:
        whole = metric.startswith(("duration", "response"))
        yield from _most(
            report, mine, lambda o: (o.duration_ms if whole else (o.agent_ms or 0) * o.counts) / 1000, in_words
        )
    elif expectation.unit is Unit.DOLLARS:
        yield from _most(report, mine, lambda o: o.cost_usd or 0.0, lambda usd: shown(Unit.DOLLARS, usd))
    elif metric in {*OutcomeKind} - {OutcomeKind.COMPLETED}:
        yield from _grouped(report, [row for row in mine if row[2].kind == metric])
    elif metric in {"success_rate", "successes", "failures", OutcomeKind.COMPLETED}:
        yield from _grouped(report, [row for row in mine if not row[2].success])


def _most(
    report: SimulationReport, endings: list[Ending], amount: Callable[[Outcome], float], words: Callable[[float], str]
) -> Iterator[str]:
    for request, end, outcome in nlargest(SLOWEST_MAX, endings, key=lambda row: amount(row[2])):
        if most := amount(outcome):
            at = moment(report.start, end.t)
            yield f"{words(most)} at {outcome.agent}, ended {at}{_amid(report, request)}"
            yield f"  {outcome.skill} {outcome.correlation_id}: {outcome.kind}"


def _grouped(report: SimulationReport, endings: list[Ending]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Ending]] = {}
    for ending in endings:
        groups.setdefault((ending[2].agent, ending[2].kind), []).append(ending)
    for (agent, kind), group in list(groups.items())[:SHOWN_MAX]:
        request, end, outcome = group[0]
        yield f"{len(group)} x {kind} at {agent}, first at {moment(report.start, end.t)}{_amid(report, request)}"
        yield f"  {outcome.skill} {outcome.correlation_id}: {one_line(outcome.reason, 90)}"


def _amid(report: SimulationReport, request: RequestRun) -> str:
    troubles = report.run.troubles_met(request)
    return f" amid {', '.join(troubles)}" if troubles else ""


def _invariants(report: SimulationReport, verbose: bool) -> Iterator[str]:
    good = [v for v in report.verdicts if not v.violations and v.cases]
    idle = [v for v in report.verdicts if not v.cases]
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
        yield f"    rules without a case in this run: {len(idle)} (--verbose names all rules)"
    if report.unchecked:
        yield f"    not checked, as a hub's events do not show enough: {', '.join(report.unchecked)}"
    for v in report.verdicts:
        if v.violations:
            yield f"  BROKEN {v.invariant.number} {v.invariant.rule}: {len(v.violations)} times"
            yield from (f"         {line}" for line in violations(report.start, v))


def violations(start: datetime, verdict: InvariantResult) -> Iterator[str]:
    """The first violations, each with moment, agent and request."""
    for wrong in verdict.violations[:SHOWN_MAX]:
        who = " ".join(part for part in (wrong.agent, wrong.correlation_id) if part)
        yield f"{moment(start, wrong.at_s)} {who}: {one_line(wrong.said, 120)}"


def figure_rows(report: SimulationReport) -> list[list[str]]:
    """The figures of the fleet and each agent as a table: a row of heads, then a row for each."""
    rows = [["", *_HEADS]]
    for name in (FLEET, *report.agents):
        figures = report.figures.get(name, {})
        rows.append([name, *(_cell(column, figures.get(column)) for column in _COLUMNS)])
    return rows


def ceremony_rows(report: SimulationReport) -> list[list[str]]:
    """The slots of each ceremony as a table: a row of heads, then a row for each."""
    rows = [["", "DUE", "FIRED", "LATE", "MISSED", "SKIPPED", "SUCCESS", "FAILURE", "TIMEOUT", "RUNNING"]]
    for totals in report.ceremonies:
        ended = [totals.ended.get(status, 0) for status in ("success", "failure", "timeout")]
        counts = [totals.due, totals.fired, totals.late, totals.missed, totals.skipped, *ended, totals.running]
        rows.append([totals.ceremony, *map(str, counts)])
    return rows


def load_rows(load: LoadMetrics) -> list[list[str]]:
    """The times of a load as a table: a row of heads, then a row for each."""
    rows = [["", *(name.upper() for name in SHARES)]]
    for what, times in load.rows():
        shares = [times.at(share) for share in SHARES.values()]
        rows.append([what, *("-" if seconds is None else in_words(seconds) for seconds in shares)])
    return rows


def load_lines(load: LoadMetrics) -> Iterator[str]:
    """Rates, the limiting side with its evidence, and the errors."""
    yield from load.lines()
    for kind, count in sorted(load.errors.items(), key=lambda pair: -pair[1])[:SHOWN_MAX]:
        yield f"{count} x {one_line(kind, 110)}"


def _load(report: SimulationReport) -> Iterator[str]:
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


def _workers(report: SimulationReport) -> Iterator[str]:
    if report.workers:
        rows = [["", "REQUESTS", "P50", "P99", "LATE P99", "PROCESSOR", "BEGAN LATE", "CLOCK AHEAD"]]
        for worker in report.workers:
            row = [one_line(worker.name, 40), f"{worker.requests:,}"]
            if worker.load is None:
                row += ["-"] * 4
            else:
                response, late = worker.load.response, worker.load.lateness
                times = (response.at(SHARES["p50"]), response.at(SHARES["p99"]), late.at(SHARES["p99"]))
                row += [in_words(seconds or 0.0) for seconds in times]
                row.append("-" if worker.load.busy is None else f"{worker.load.busy:.0%}")
            clock = f"{worker.clock_s * 1000:+.1f} ms (± {worker.clock_error_s * 1000:.1f})"
            rows.append([*row, f"{worker.late_start_s * 1000:.1f} ms", clock])
        yield ""
        yield "workers:"
        yield from (f"  {line}" for line in _columns(rows))


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
