"""The report for a person at a terminal: who was checked, what failed and how to fix it, and the totals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from fleetsim.check.listener import LISTEN
from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Requirement, Severity
from fleetsim.check.verdict import Verdict
from fleetsim.model.text import neutralise, one_line

WIDTH = 110
CHARS_MAX = 4_000_000
MARKS = {
    Verdict.PASS: ("✓", "ok"),
    Verdict.FAIL: ("✗", "FAIL"),
    Verdict.NOT_APPLICABLE: ("–", "n/a"),
    Verdict.NOT_TESTED: ("?", "??"),
}


def render(
    report: Report, *, verbose: bool = False, plain: bool = False, strict: bool = False, command: str = ""
) -> str:
    """The whole report as text, the verdict first; ``verbose`` lists every row, ``plain`` uses no glyphs.

    ``command`` is what was run, as a shell takes it: with what would have tested more, it is the last line.
    """
    lines = _lines(report, verbose, plain, strict, command or f"fleetsim check {report.url}")
    # each by itself: a reason that quotes the agent must not bring lines, and with them verdicts, of its own
    return neutralise("".join(f"{one_line(line, CHARS_MAX)}\n" for line in lines), limit=CHARS_MAX)


def _lines(report: Report, verbose: bool, plain: bool, strict: bool, command: str) -> Iterator[str]:
    yield f"{report.verdict_line(strict=strict)}  ({report.seconds:.1f} s)"
    yield ""
    yield from _head(report)
    mark = MARKS[Verdict.FAIL][plain]
    for severity in Severity:
        for finding in report.failures(severity):
            yield ""
            yield from _failure(finding, mark)
    if accepted := [f for f in report.of(Verdict.FAIL) if f.accepted is not None]:
        yield ""
        yield "Accepted failures (baseline):"
        yield from (f"  {f.key:<11} {f.requirement.title}: {one_line(f.accepted or '', 100)}" for f in accepted)
    if verbose:
        yield ""
        yield "Every row:"
        for finding in report.findings:
            reason = f": {finding.reason}" if finding.reason else ""
            yield f"  {MARKS[finding.verdict][plain]} {finding.key:<9} {finding.requirement.title}{reason}"
    yield ""
    yield f"{'':<22}{'pass':>7}{'fail':>7}{'n/a':>7}{'untested':>10}"
    for name, counts in report.section_totals().items():
        passed, failed, not_applicable, not_tested = (counts[verdict] for verdict in Verdict)
        yield f"{name:<22}{passed:>7}{failed:>7}{not_applicable:>7}{not_tested:>10}"
    yield from _untested(report, command, verbose)


def _head(report: Report) -> Iterator[str]:
    yield f"Agent:     {neutralise(report.agent, lines=False)}  {report.url}"
    yield f"Dialects:  {', '.join(report.dialects)}"
    for name, url in report.endpoints.items():
        yield f"Endpoint:  {neutralise(url, lines=False)}  (A2A {name})"
    yield f"Listener:  {report.listener or 'none (--webhook-listen HOST:PORT)'}"
    yield f"Began:     {report.began}, seed {report.seed}, fleetsim {report.version}"
    if report.note:
        yield f"Note:      {report.note}"


def _failure(finding: Finding, mark: str) -> Iterator[str]:
    requirement = finding.requirement
    where = "" if finding.dialect == "any" else f" (A2A {finding.dialect})"
    yield f"{mark} {requirement.id} {requirement.severity} {requirement.title}{where}"
    yield from _wrapped("what", finding.reason)
    yield from _wrapped("fix", requirement.remedy)
    if requirement.incident:
        yield from _wrapped("seen", requirement.incident)
    yield from _wrapped("from", requirement.source)
    for text in finding.evidence:
        yield ""
        yield from (f"    | {line}" for line in text.splitlines())


def _wrapped(label: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH - 11) or [""]
    yield f"    {label + ':':<6}{lines[0]}"
    yield from (f"          {line}" for line in lines[1:])


def _untested(report: Report, command: str, verbose: bool) -> Iterator[str]:
    """One line for each thing that was missing, and the one command that would test most."""
    missing = report.missing()
    if not missing:
        return
    values = {m: LISTEN if m.option == "--webhook-listen" else m.value.partition("[")[0] for m in missing}
    named = {m: f"{m.option} {values[m]}".rstrip() for m in missing}
    width = max(map(len, named.values()))
    yield ""
    yield "Not tested" + (":" if verbose else " (--verbose names the rows):")
    for m in missing:
        yield f"{m.count:>6}  {named[m]:<{width}}  {one_line(m.why, WIDTH)}".rstrip()
    added = list(dict.fromkeys(named[m] for m in missing if m.option))
    if not added:
        return
    yield ""
    yield f"To test {sum(m.count for m in missing if m.option)} more:"
    yield f"  {' '.join([command, *added])}"
    if any(m.option == "--webhook-listen" for m in missing):
        yield f"  and let your agent call {LISTEN} (fleetsim agent --allow-webhook {LISTEN})"


def explain(requirement: Requirement) -> str:
    """One requirement in full, as ``fleetsim explain`` shows it; labels without a value are left out."""
    lines = [f"{requirement.id} {requirement.severity} {requirement.title}", ""]
    dialects = "once for the agent" if requirement.dialects == ("any",) else f"A2A {', '.join(requirement.dialects)}"
    source = f"{requirement.source} (covers {', '.join(requirement.covers)})"
    pairs = [("Section", requirement.section), ("Probed", dialects), ("Source", source), ("How", requirement.how)]
    pairs += [
        ("Fix", requirement.remedy),
        ("Seen", requirement.incident),
        ("Needs", ", ".join(sorted(requirement.needs))),
    ]
    for label, text in pairs:
        if text:
            lines += textwrap.wrap(f"{label + ':':<9}{text}", WIDTH, subsequent_indent=" " * 9)
    return "\n".join(lines)
