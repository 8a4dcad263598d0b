"""The report as files for machines and colleagues: JSON, JUnit, Markdown. HTML has a module of its own."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping

from fleetsim.check.html import html
from fleetsim.check.report import Finding, Report
from fleetsim.check.requirement import Severity
from fleetsim.check.verdict import Verdict
from fleetsim.model.text import escape, neutralise

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(report: Report) -> str:
    """One JSON document of the schema ``fleetsim-check/1``, with nothing in it that a terminal would obey."""
    return escape(json.dumps(report.as_json(), ensure_ascii=False, indent=2)) + "\n"


def junit(report: Report) -> str:
    """One test case for each finding.

    A failed MUST is a failure; a failed SHOULD or MAY, which only warns, an accepted failure, and what was
    not tested or does not apply are skipped, with the verdict and the reason in words.
    """
    root = ET.Element("testsuites", name="fleetsim check")
    suite = ET.SubElement(root, "testsuite", name=_xml(f"fleetsim check {report.agent}"))
    failures = skipped = 0
    properties = ET.SubElement(suite, "properties")
    told = {"url": report.url, "dialects": ", ".join(report.dialects), "seed": str(report.seed)}
    for name, value in {**told, **{f"total {k}": str(v) for k, v in report.totals().items()}}.items():
        ET.SubElement(properties, "property", name=name, value=_xml(value))
    for finding in report.findings:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_xml(f"fleetsim.{report.agent}.{finding.dialect}"),
            name=_xml(f"{finding.requirement.id} {finding.requirement.title}"),
            time=f"{finding.seconds:.3f}",
        )
        failed = finding.failed and finding.requirement.severity is Severity.MUST
        if failed:
            failures += 1
            body = ET.SubElement(case, "failure", type=finding.requirement.severity.value, message=_xml(finding.reason))
            body.text = _xml("\n\n".join([f"fix: {finding.requirement.remedy}", *finding.evidence]))
        elif finding.verdict is not Verdict.PASS:
            skipped += 1
            ET.SubElement(case, "skipped", message=_xml(_skip(finding)))
    suite.set("tests", str(len(report.findings)))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    suite.set("time", f"{report.seconds:.3f}")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _skip(finding: Finding) -> str:
    if finding.accepted is not None:
        return f"accepted failure: {finding.accepted}"
    word = f"warning, {finding.requirement.severity} failed" if finding.failed else finding.verdict.value
    return f"{word}: {finding.reason}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", neutralise(text, limit=len(text) + 1))


def markdown(report: Report) -> str:
    """A page for a pull request: verdict, totals, failures with evidence, what was not tested."""
    lines = [
        f"# fleetsim check: {_md(report.agent)}",
        "",
        f"**{report.verdict_line()}** in {report.seconds:.1f} s",
        "",
        f"- URL: {_md(report.url)}",
        f"- Dialects: {', '.join(report.dialects)}",
        *(f"- Endpoint (A2A {name}): {_md(url)}" for name, url in report.endpoints.items()),
        f"- Listener: {_md(report.listener or 'none')}",
        f"- Began {report.began}, seed {report.seed}, fleetsim {report.version}",
        "",
    ]
    for finding in report.failures():
        lines += [
            f"## {finding.key} {finding.requirement.severity} {_md(finding.requirement.title)}",
            "",
            _md(finding.reason),
            "",
        ]
        lines += [f"Fix: {_md(finding.requirement.remedy)}", ""]
        for text in finding.evidence:
            fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=2) + 1)
            lines += [fence, neutralise(text, limit=len(text) + 1), fence, ""]
    for verdict, title in ((Verdict.FAIL, "Accepted"), (Verdict.NOT_TESTED, "Not tested")):
        rows = [f for f in report.of(verdict) if verdict is not Verdict.FAIL or f.accepted is not None]
        if rows:
            lines += [f"## {title}", "", "| Row | Title | Reason |", "| --- | --- | --- |"]
            lines += [f"| {f.key} | {_md(f.requirement.title)} | {_md(f.accepted or f.reason)} |" for f in rows]
            lines.append("")
    return "\n".join(lines)


def _md(text: str) -> str:
    plain = neutralise(text, lines=False)
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", plain)


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "json": as_json,
    "junit": junit,
    "html": html,
    "markdown": markdown,
}
"""A writer for each format of ``--report``."""
