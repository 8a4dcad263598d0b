"""The report as one HTML file: no script, no network, verdict first. Everything from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape

from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Severity
from fleetsim.check.verdict import Verdict
from fleetsim.model.text import neutralise

_STYLE = """
:root{color-scheme:light dark;--bad:#b3261e;--warn:#8a5a00;--good:#1b6e3c;--dim:#666}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--warn:#ffca66;--good:#7fd8a0;--dim:#aaa}}
body{font:16px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.verdict{font-size:1.25rem;font-weight:700}.pass{color:var(--good)}.fail{color:var(--bad)}.warn{color:var(--warn)}
.dim{color:var(--dim)}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dd{margin:0}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884;
vertical-align:top}td.n{text-align:right}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;
padding:.75rem;font-size:.82rem}details{margin:.4rem 0}article{border-left:4px solid var(--bad);padding-left:1rem;
margin:1.2rem 0}article.SHOULD{border-color:var(--warn)}article.MAY{border-color:var(--dim)}
@media print{details>*{display:block}}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def html(report: Report) -> str:
    """The report as one page that stands for itself: no script, no file beside it, nothing fetched."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    policy = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>fleetsim check: {_text(report.agent)}</title>"
    yield f"<style>{_STYLE}</style></head><body><main>"
    yield f"<h1>fleetsim check: {_text(report.agent)}</h1>"
    look = {"PASSED": "pass", "INCOMPLETE": "warn"}.get(report.word(), "fail")
    yield f'<p class="verdict {look}">{_text(report.verdict_line())}</p>'
    yield from _head(report)
    yield from _totals(report)
    yield from _missing(report)
    for severity in Severity:
        if failures := report.failures(severity):
            yield f"<h2>{severity} failed ({len(failures)})</h2>"
            for finding in failures:
                yield from _failure(finding)
    yield from _table("Accepted failures", [f for f in report.of(Verdict.FAIL) if f.accepted is not None])
    yield from _table("Not tested, row by row", report.of(Verdict.NOT_TESTED))
    yield from _table("Not applicable", report.of(Verdict.NOT_APPLICABLE))
    yield from _table("Passed", report.of(Verdict.PASS))
    yield "</main></body></html>"


def _head(report: Report) -> Iterator[str]:
    endpoints = ", ".join(f"{url} (A2A {name})" for name, url in report.endpoints.items())
    rows = [
        ("URL", report.url),
        ("Dialects", ", ".join(report.dialects)),
        ("Endpoints", endpoints),
        ("Webhook listener", report.listener or "none"),
        ("Began", report.began),
        ("Took", f"{report.seconds:.1f} s"),
        ("Seed", str(report.seed)),
        ("fleetsim", report.version),
    ]
    yield "<dl>"
    yield from (f"<dt>{_text(label)}</dt><dd>{_text(value)}</dd>" for label, value in rows)
    yield "</dl>"


def _totals(report: Report) -> Iterator[str]:
    sections: dict[str, list[Finding]] = {}
    for finding in report.findings:
        sections.setdefault(finding.requirement.section, []).append(finding)
    heads = "".join(f"<th>{verdict}</th>" for verdict in Verdict)
    yield f"<h2>Totals</h2><table><tr><th>Section</th>{heads}</tr>"
    for name, findings in sections.items():
        cells = "".join(f'<td class="n">{sum(f.verdict is verdict for f in findings)}</td>' for verdict in Verdict)
        yield f"<tr><td>{_text(name)}</td>{cells}</tr>"
    yield "</table>"


def _missing(report: Report) -> Iterator[str]:
    if not report.missing():
        return
    yield "<h2>Not tested</h2><table><tr><th>Rows</th><th>Would take</th><th>Why</th></tr>"
    for m in report.missing():
        option = f"<code>{_text(f'{m.option} {m.value}'.rstrip())}</code>" if m.option else ""
        yield f'<tr><td class="n">{m.count}</td><td>{option}</td><td>{_text(m.why)}</td></tr>'
    yield "</table>"


def _failure(finding: Finding) -> Iterator[str]:
    row = finding.requirement
    yield f'<article class="{row.severity}"><h3>{_text(finding.key)} {_text(row.title)}</h3>'
    yield f"<p>{_text(finding.reason)}</p><dl>"
    for label, text in (("Fix", row.remedy), ("Seen before", row.incident), ("Source", row.source)):
        if text:
            yield f"<dt>{label}</dt><dd>{_text(text)}</dd>"
    yield "</dl>"
    for number, text in enumerate(finding.evidence, 1):
        yield f"<details open><summary>Evidence {number}</summary><pre>{_text(text)}</pre></details>"
    yield "</article>"


def _table(title: str, findings: tuple[Finding, ...] | list[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield f"<details><summary>{_text(title)} ({len(findings)})</summary><table>"
    yield "<tr><th>Row</th><th>Promise</th><th>Reason</th></tr>"
    for finding in findings:
        reason = finding.accepted or finding.reason
        title = finding.requirement.title
        yield f"<tr><td>{_text(finding.key)}</td><td>{_text(title)}</td><td>{_text(reason)}</td></tr>"
    yield "</table></details>"


def _text(text: str) -> str:
    return escape(neutralise(str(text)))
