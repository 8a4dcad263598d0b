"""The report as files for machines and colleagues. Everything from outside is escaped."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from fleetsim.check.evidence import Verdict
from fleetsim.check.listener import LISTEN
from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Requirement, Severity
from fleetsim.model.problems import JunitCase, Problem, html_page, junit_suite, sarif, workflow_commands
from fleetsim.model.text import escape, html_text, neutralise, one_line

_STYLE = """
details{margin:.4rem 0}article{border-left:4px solid var(--bad);padding-left:1rem;margin:1.2rem 0}
article.SHOULD{border-color:var(--warn)}article.MAY{border-color:var(--dim)}
@media print{details>*{display:block}}
"""


def as_json(report: Report) -> str:
    """One JSON document of the schema ``fleetsim-check/1``, with nothing in it that a terminal would obey."""
    return escape(json.dumps(report.as_json(), ensure_ascii=False, indent=2)) + "\n"


def junit(report: Report) -> str:
    """One test case for each finding.

    A failed MUST is a failure; a failed SHOULD or MAY, which only warns, an accepted failure, and what was
    not tested or does not apply are skipped, with the verdict and the reason in words.
    """
    properties = {"url": report.url, "dialects": ", ".join(report.dialects), "seed": report.seed}
    properties |= {f"total {verdict}": count for verdict, count in report.totals().items()}
    cases = [_junit_case(finding) for finding in report.findings]
    return junit_suite("fleetsim check", report.agent, properties, cases, report.seconds)


def _junit_case(finding: Finding) -> JunitCase:
    row, failed, skipped = finding.requirement, None, ""
    if finding.failed and row.severity is Severity.MUST:
        failed = (row.severity.value, finding.reason, "\n\n".join([f"fix: {row.remedy}", *finding.evidence]))
    elif finding.verdict is not Verdict.PASS:
        word = f"warning, {row.severity} failed" if finding.failed else finding.verdict.value
        skipped = f"{word}: {finding.reason}" if finding.accepted is None else f"accepted failure: {finding.accepted}"
    name = f"{row.id} {row.title}"
    return JunitCase(group=finding.dialect, name=name, failed=failed, skipped=skipped, seconds=finding.seconds)


def markdown(report: Report) -> str:
    """A page for a pull request: verdict, totals, failures with evidence, what was not tested."""
    lines = [
        f"# fleetsim check: {_md(report.agent)}",
        "",
        f"**{report.verdict_line()}** in {report.seconds:.1f} s",
        "",
        *(f"- {label}: {_md(text)}" for label, text in report.facts),
        "",
    ]
    for finding in report.failures():
        lines += [
            f"## {finding.key} {finding.requirement.severity} {_md(finding.requirement.title)}",
            "",
            _md(finding.reason),
            "",
        ]
        for label, text in finding.advice:
            lines += [f"{label.capitalize()}: {_md(text)}", ""]
        for text in finding.evidence:
            fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=2) + 1)
            lines += [fence, neutralise(text, limit=len(text) + 1), fence, ""]
    for title, rows in (("Accepted", report.accepted), ("Not tested", report.of(Verdict.NOT_TESTED))):
        if rows:
            lines += [f"## {title}", "", "| Row | Title | Reason |", "| --- | --- | --- |"]
            lines += [f"| {f.key} | {_md(f.requirement.title)} | {_md(f.accepted or f.reason)} |" for f in rows]
            lines.append("")
    return "\n".join(lines)


def _md(text: str) -> str:
    plain = neutralise(text, lines=False)
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", plain)


def html(report: Report) -> str:
    return html_page(f"fleetsim check: {report.agent}", _STYLE, _html_body(report))


def _html_body(report: Report) -> Iterator[str]:
    look = {"PASSED": "pass", "INCOMPLETE": "warn"}.get(report.word(), "fail")
    yield f'<p class="verdict {look}">{html_text(report.verdict_line())}</p>'
    yield from _html_pairs([*report.facts, ("Took", f"{report.seconds:.1f} s")])
    heads = "".join(f'<th class="n">{verdict}</th>' for verdict in Verdict)
    yield f"<h2>Totals</h2><table><tr><th>Section</th>{heads}</tr>"
    for name, counts in report.section_totals().items():
        cells = "".join(f'<td class="n">{counts[verdict]}</td>' for verdict in Verdict)
        yield f"<tr><td>{html_text(name)}</td>{cells}</tr>"
    yield "</table>"
    for severity in Severity:
        if failures := report.failures(severity):
            yield f"<h2>{severity} failed ({len(failures)})</h2>"
            for finding in failures:
                row = finding.requirement
                yield f'<article class="{row.severity}"><h3>{html_text(finding.key)} {html_text(row.title)}</h3>'
                yield f"<p>{html_text(finding.reason)}</p>"
                yield from _html_pairs(finding.advice)
                for number, text in enumerate(finding.evidence, 1):
                    yield f"<details open><summary>Evidence {number}</summary><pre>{html_text(text)}</pre></details>"
                yield "</article>"
    if report.missing():
        yield "<h2>Not tested</h2><table><tr><th>Rows</th><th>Would take</th><th>Why</th></tr>"
        for m in report.missing():
            option = f"<code>{html_text(f'{m.option} {m.value}'.rstrip())}</code>" if m.option else ""
            yield f'<tr><td class="n">{m.count}</td><td>{option}</td><td>{html_text(m.why)}</td></tr>'
        yield "</table>"
    yield from _html_table("Accepted failures", report.accepted)
    yield from _html_table("Not tested, row by row", report.of(Verdict.NOT_TESTED))
    yield from _html_table("Not applicable", report.of(Verdict.NOT_APPLICABLE))
    yield from _html_table("Passed", report.of(Verdict.PASS))


def _html_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "<dl>"
    yield from (f"<dt>{label.capitalize()}</dt><dd>{html_text(text)}</dd>" for label, text in pairs)
    yield "</dl>"


def _html_table(title: str, findings: tuple[Finding, ...]) -> Iterator[str]:
    if not findings:
        return
    yield f"<details><summary>{html_text(title)} ({len(findings)})</summary><table>"
    yield "<tr><th>Row</th><th>Promise</th><th>Reason</th></tr>"
    for finding in findings:
        reason = finding.accepted or finding.reason
        title = finding.requirement.title
        yield f"<tr><td>{html_text(finding.key)}</td><td>{html_text(title)}</td><td>{html_text(reason)}</td></tr>"
    yield "</table></details>"


_LEVELS: Mapping[Severity, Literal["error", "warning", "note"]] = {
    Severity.MUST: "error",
    Severity.SHOULD: "warning",
    Severity.MAY: "note",
}


def problems(report: Report) -> list[Problem]:
    """Each failure as a code host shows it, at ``report.file``."""
    return [
        Problem(
            rule=finding.requirement.id,
            title=f"{finding.key} {finding.requirement.severity} {finding.requirement.title}",
            level=_LEVELS[finding.requirement.severity],
            text=f"{finding.reason}\nfix: {finding.requirement.remedy}",
            key=finding.key,
            subject=report.url,
            file=report.file,
            help=explain(finding.requirement),
            accepted=finding.accepted or "",
        )
        for finding in report.of(Verdict.FAIL)
    ]


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "json": as_json,
    "junit": junit,
    "html": html,
    "markdown": markdown,
    "sarif": lambda report: sarif("fleetsim check", report.version, f"fleetsim check {report.agent}", problems(report)),
    "github": lambda report: workflow_commands(problems(report)),
}
"""A writer for each format of ``--report``."""


# -- for a terminal: the agent, the failures with their fixes, and the totals ---------------------------

WIDTH, WIDTH_MIN = 110, 40
CHARS_MAX = 4_000_000
MARKS = {
    Verdict.PASS: ("✓", "ok"),
    Verdict.FAIL: ("✗", "FAIL"),
    Verdict.NOT_APPLICABLE: ("–", "n/a"),
    Verdict.NOT_TESTED: ("?", "??"),
}


def render(
    report: Report,
    *,
    verbose: bool = False,
    plain: bool = False,
    strict: bool = False,
    command: str = "",
    width: int = WIDTH,
) -> str:
    """The whole report as text, the verdict first; ``verbose`` lists every row, ``plain`` uses no glyphs.

    ``command`` is what was run, as a shell takes it: with what would have tested more, it is the last line.
    ``width`` in characters is that of sentences; evidence and commands are never wrapped.
    """
    return joined(_lines(report, verbose, plain, strict, command or f"fleetsim check {report.url}", width))


def joined(lines: Iterable[str]) -> str:
    """Lines as one text. A reason that quotes the agent cannot bring lines, and with them verdicts, of its own."""
    return neutralise("".join(f"{one_line(line, CHARS_MAX)}\n" for line in lines), limit=CHARS_MAX)


def _lines(report: Report, verbose: bool, plain: bool, strict: bool, command: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{report.verdict_line(strict=strict)} ({report.seconds:.1f} s)", max(width, WIDTH_MIN))
    yield ""
    for label, text in report.facts:
        yield from _wrapped(f"{label + ':':<11}", text, width)
    mark = MARKS[Verdict.FAIL][plain]
    for severity in Severity:
        for finding in report.failures(severity):
            yield ""
            row = finding.requirement
            where = "" if finding.dialect == "any" else f" (A2A {finding.dialect})"
            yield from _wrapped(f"{mark} ", f"{row.id} {row.severity} {row.title}{where}", width)
            for label, text in [("what", finding.reason), *finding.advice]:
                yield from _wrapped(f"    {label + ':':<6}", text, width)
            for text in finding.evidence:
                yield ""
                yield from (f"    | {line}" for line in text.splitlines())
    if report.accepted:
        yield ""
        yield "Accepted failures (baseline):"
        yield from (f"  {f.key:<11} {f.requirement.title}: {one_line(f.accepted or '', 100)}" for f in report.accepted)
    if verbose:
        yield ""
        yield "Every row:"
        longest = max((len(finding.key) for finding in report.findings), default=0)
        for finding in report.findings:
            reason = f": {finding.reason}" if finding.reason else ""
            yield f"  {MARKS[finding.verdict][plain]} {finding.key:<{longest}} {finding.requirement.title}{reason}"
    yield ""
    yield f"{'':<22}{'pass':>7}{'fail':>7}{'n/a':>7}{'untested':>10}"
    for name, counts in report.section_totals().items():
        passed, failed, not_applicable, not_tested = (counts[verdict] for verdict in Verdict)
        yield f"{name:<22}{passed:>7}{failed:>7}{not_applicable:>7}{not_tested:>10}"
    yield from _untested(report, command, verbose, width)


def _wrapped(label: str, text: str, width: int) -> list[str]:
    """Lines that can be copied: neither an option nor an address is broken."""
    whole = {"break_on_hyphens": False, "break_long_words": False}
    indents = {"initial_indent": label, "subsequent_indent": " " * len(label)}
    return textwrap.wrap(text, max(width, WIDTH_MIN), **indents, **whole) or [label.rstrip()]  # type: ignore[arg-type]


def _untested(report: Report, command: str, verbose: bool, width: int) -> Iterator[str]:
    """One line for each thing that was missing, and the one command that would test most."""
    missing = report.missing()
    if not missing:
        return
    values = {m: LISTEN if m.option == "--webhook-listen" else m.value.partition("[")[0] for m in missing}
    named = {m: f"{m.option} {values[m]}".rstrip() for m in missing}
    longest = max(map(len, named.values()))
    yield ""
    yield "Not tested" + (":" if verbose else " (--verbose names the rows):")
    for m in missing:
        option = f"{named[m]:<{longest}}  " if m.option else ""
        yield from _wrapped(f"{m.count:>6}  {option}", m.why, width)
    added = list(dict.fromkeys(named[m] for m in missing if m.option))
    if not added:
        return
    yield ""
    yield f"To test {sum(m.count for m in missing if m.option)} more:"
    yield f"  {' '.join([command, *added])}"
    if any(m.option == "--webhook-listen" for m in missing):
        ways = f"Agent(allow_webhook=[{LISTEN!r}]), or fleetsim agent --allow-webhook {LISTEN}"
        yield f"  and let your agent call {LISTEN}: {ways}"


def explain(requirement: Requirement) -> str:
    """One requirement in full, as ``fleetsim explain`` shows it; labels without a value are left out."""
    lines = [f"{requirement.id} {requirement.severity} {requirement.title}", ""]
    dialects = "once for the agent" if requirement.dialects == ("any",) else f"A2A {', '.join(requirement.dialects)}"
    source = f"{requirement.source} (covers {', '.join(requirement.covers)})"
    pairs = [("Section", requirement.section), ("Probed", dialects), ("Source", source), ("How", requirement.how)]
    pairs += [
        ("Fix", requirement.remedy),
        ("Seen", requirement.incident),
        ("But", requirement.against),
        ("Needs", ", ".join(sorted(requirement.needs))),
    ]
    for label, text in pairs:
        if text:
            lines += textwrap.wrap(f"{label + ':':<9}{text}", WIDTH, subsequent_indent=" " * 9)
    return "\n".join(lines)
