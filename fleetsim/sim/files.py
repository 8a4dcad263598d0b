"""The report of a run as files for machines and colleagues: JSON, JUnit, HTML. Everything from a run is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping

from fleetsim.model.text import escape, html_text, xml_text
from fleetsim.sim import charts
from fleetsim.sim.charts import Timeline, timeline_of
from fleetsim.sim.expectation import shown
from fleetsim.sim.quantities import in_words
from fleetsim.sim.report import Report, Result
from fleetsim.sim.text import RESULTS, ceremony_rows, endings_about, figure_rows, load_lines, load_rows, violations

AGENTS_MAX = 40
_STYLE = (
    """
:root{color-scheme:light dark;--bad:#b3261e;--good:#1b6e3c;--dim:#666}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--good:#7fd8a0;--dim:#aaa}}
body{font:16px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}
.verdict{font-size:1.25rem;font-weight:700}.holds{color:var(--good)}.broken{color:var(--bad)}.dim{color:var(--dim)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884;
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.75rem;font-size:.82rem;margin:.3rem 0}
.rules{margin:.6rem 0}.wide{overflow-x:auto}summary{cursor:pointer}
"""
    + charts.STYLE
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def as_json(report: Report) -> str:
    """One JSON document of the schema ``fleetsim-sim/1``, with nothing in it that a terminal would obey."""
    return escape(json.dumps(report.as_json(), ensure_ascii=False, indent=2)) + "\n"


def junit(report: Report) -> str:
    """One test case for each expectation, and one for each rule that must always hold.

    A failure has the violations or ends, with moment, agent and request, and the command that plays the run again. A
    rule without a case in this run is skipped.
    """
    root = ET.Element("testsuites", name="fleetsim sim")
    suite = ET.SubElement(root, "testsuite", name=xml_text(f"fleetsim sim {report.scenario}"))
    properties = ET.SubElement(suite, "properties")
    for name, value in (("seed", report.seed), ("digest", report.digest), ("replay", report.again)):
        ET.SubElement(properties, "property", name=name, value=xml_text(str(value)))
    failures = skipped = 0
    for expectation, figure, holds in report.expectations:
        case = ET.SubElement(
            suite, "testcase", classname=xml_text(f"fleetsim.{report.scenario}.expect"), name=xml_text(expectation.text)
        )
        if not holds:
            failures += 1
            message = f"{expectation.text}: it is {shown(expectation.unit, figure)}"
            body = ET.SubElement(case, "failure", type="expectation", message=xml_text(message))
            body.text = xml_text("\n".join([message, *endings_about(report, expectation), _again(report)]))
    for problem in report.problems:
        failures += 1
        case = ET.SubElement(suite, "testcase", classname=xml_text(f"fleetsim.{report.scenario}.ceremonies"))
        case.set("name", xml_text(problem))
        ET.SubElement(case, "failure", type="ceremony", message=xml_text(problem))
    for verdict in report.verdicts:
        rule = f"{verdict.invariant.number} {verdict.invariant.rule}"
        case = ET.SubElement(
            suite, "testcase", classname=xml_text(f"fleetsim.{report.scenario}.rules"), name=xml_text(rule)
        )
        if verdict.violations:
            failures += 1
            message = f"{rule}: broken in {len(verdict.violations)} of {verdict.cases:,} cases"
            body = ET.SubElement(case, "failure", type="violation", message=xml_text(message))
            body.text = xml_text("\n".join([message, *violations(report.start, verdict), _again(report)]))
        elif not verdict.cases:
            skipped += 1
            ET.SubElement(case, "skipped", message="nothing in this run to hold it to")
    suite.set("tests", str(len(report.expectations) + len(report.problems) + len(report.verdicts)))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    suite.set("time", f"{report.wall_s:.3f}")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _again(report: Report) -> str:
    return f"play it again: {report.again}" if report.again else ""


def html(report: Report) -> str:
    """The report as one page that stands for itself: no script, no file beside it, nothing fetched."""
    return "\n".join(_page(report, timeline_of(report.run))) + "\n"


def _page(report: Report, timeline: Timeline) -> Iterator[str]:
    title = html_text(f"fleetsim sim: {report.scenario}, seed {report.seed}")
    policy = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>"
    look = "holds" if report.result is Result.OK else "broken"
    yield f'<p class="verdict {look}">{html_text(RESULTS[report.result].capitalize())}</p>'
    yield from (f'<p class="broken">{html_text(problem)}</p>' for problem in report.problems)
    yield from _expectations(report)
    yield from _rules(report)
    yield from _charts(timeline)
    yield from _figures("Figures", figure_rows(report))
    if report.ceremonies:
        yield from _figures("Ceremonies, by slot", ceremony_rows(report))
    if report.load is not None:
        yield from _figures("Load", load_rows(report.load))
        yield from (f'<p class="dim">{html_text(line)}</p>' for line in load_lines(report.load))
    yield from _about(report, timeline)
    yield "</main></body></html>"


def _expectations(report: Report) -> Iterator[str]:
    if not report.expectations:
        return
    yield "<h2>Expected</h2>"
    yield "<table><tr><th></th><th>Expectation</th><th>It is</th></tr>"
    for expectation, figure, holds in report.expectations:
        word = "holds" if holds else "broken"
        told = "" if holds else _told(endings_about(report, expectation))
        yield (
            f'<tr><td class="{word}">{word}</td><td>{html_text(expectation.text)}{told}</td>'
            f"<td>{html_text(shown(expectation.unit, figure))}</td></tr>"
        )
    yield "</table>"


def _told(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"<pre>{html_text(text)}</pre>" if text else ""


def _rules(report: Report) -> Iterator[str]:
    broken = [verdict for verdict in report.verdicts if verdict.violations]
    for verdict in broken:
        times = f"{len(verdict.violations)} of {verdict.cases:,} cases"
        rule = f"{verdict.invariant.number} {verdict.invariant.rule}: {times}"
        yield f'<h2 class="broken">Broken: {html_text(rule)}</h2>{_told(violations(report.start, verdict))}'
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
        told = f"Not checked, as a hub's events do not show enough: {', '.join(report.unchecked)}."
        yield f'<p class="dim">{html_text(told)}</p>'


def _charts(timeline: Timeline) -> Iterator[str]:
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


def _about(report: Report, timeline: Timeline) -> Iterator[str]:
    facts = [
        ("Began", f"{report.began or timeline.start:%Y-%m-%d %H:%M %Z}, lasted {in_words(report.duration_s)}"),
        ("Played in", in_words(report.wall_s) if report.wall_s else ""),
        ("Digest", report.digest),
        ("Play it again", report.again),
    ]
    yield "<h2>This run</h2><dl>"
    yield from (f"<dt>{label}</dt><dd>{html_text(text)}</dd>" for label, text in facts if text)
    yield "</dl>"


FORMATS: Mapping[str, Callable[[Report], str]] = {"json": as_json, "junit": junit, "html": html}
"""A writer for each format of ``--report``."""
