"""Forms of a report: JUnit, an HTML page and, for a code host, SARIF 2.1.0 and the workflow commands of GitHub."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from fleetsim.model.text import escape, html_text, neutralise, one_line, xml_text

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
TEXT_CHARS_MAX = 4_000
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A rule that is broken.

    ``key`` tells it from others and stays the same from run to run. ``subject`` has it, such as the URL of an agent. A
    code host shows it at ``file`` (relative to the repository) and ``line``. ``accepted``: the reason not to count it.
    """

    rule: str
    title: str
    level: Literal["error", "warning", "note"]
    text: str
    key: str
    subject: str
    file: str
    line: int = 1
    help: str
    accepted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JunitCase:
    """A test case that passed, ``failed`` (the kind, the message and its details) or was ``skipped`` for a reason."""

    group: str
    name: str
    failed: tuple[str, str, str] | None = None
    skipped: str = ""
    seconds: float = 0.0


def junit_suite(
    tool: str, subject: str, properties: Mapping[str, object], cases: Sequence[JunitCase], seconds: float
) -> str:
    """One suite of JUnit's XML; ``subject`` has the cases, such as an agent."""
    import xml.etree.ElementTree as ET  # ten modules, for this form alone

    root = ET.Element("testsuites", name=tool)
    counts = {"tests": len(cases), "failures": sum(c.failed is not None for c in cases)}
    counts["skipped"] = sum(bool(c.skipped) for c in cases)
    suite = ET.SubElement(root, "testsuite", name=xml_text(f"{tool} {subject}"), time=f"{seconds:.3f}")
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    listed = ET.SubElement(suite, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", name=name, value=xml_text(str(value)))
    for one in cases:
        case = ET.SubElement(suite, "testcase", name=xml_text(one.name), time=f"{one.seconds:.3f}")
        case.set("classname", xml_text(f"fleetsim.{subject}.{one.group}"))
        if one.failed is not None:
            kind, message, details = one.failed
            ET.SubElement(case, "failure", type=kind, message=xml_text(message)).text = xml_text(details)
        elif one.skipped:
            ET.SubElement(case, "skipped", message=xml_text(one.skipped))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def sarif(tool: str, version: str, run: str, problems: Sequence[Problem]) -> str:
    """One SARIF log. ``run`` names the kind of run: a code host closes the problems that its next log lacks.

    https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    rules = {
        problem.rule: {
            "id": one_line(problem.rule),
            "shortDescription": {"text": one_line(problem.title)},
            "fullDescription": {"text": one_line(problem.title, 1_000)},  # GitHub requires it
            "help": {"text": neutralise(problem.help, limit=TEXT_CHARS_MAX)},
            "defaultConfiguration": {"level": problem.level},
        }
        for problem in problems
    }
    places = {rule: place for place, rule in enumerate(rules)}
    whole = {
        "tool": {"driver": {"name": tool, "version": version, "rules": [*rules.values()]}},
        "automationDetails": {"id": f"{one_line(run)}/"},
        "results": [_result(problem, places[problem.rule]) for problem in problems],
    }
    return escape(json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [whole]}, indent=2)) + "\n"


def _result(problem: Problem, place: int) -> dict[str, Any]:
    file = {"uri": ("file://" if problem.file.startswith("/") else "") + quote(neutralise(problem.file, lines=False))}
    accepted = [{"kind": "external", "justification": one_line(problem.accepted, 1_000)}]
    return {
        "ruleId": one_line(problem.rule),
        "ruleIndex": place,
        "level": problem.level,
        "message": {"text": neutralise(problem.text, limit=TEXT_CHARS_MAX)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": file, "region": {"startLine": problem.line}},
                "logicalLocations": [{"fullyQualifiedName": one_line(problem.subject, 1_000)}],
            }
        ],
        "partialFingerprints": {"fleetsim/v1": one_line(f"{problem.subject} {problem.key}", 1_000)},
        "suppressions": accepted if problem.accepted else [],
    }


def workflow_commands(problems: Iterable[Problem]) -> str:
    """A workflow command of GitHub for each problem that counts, the gravest first: GitHub shows ten of a level.

    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
    """
    counted = sorted((p for p in problems if not p.accepted), key=lambda p: [*_COMMANDS].index(p.level))
    return "".join(
        f"::{_COMMANDS[p.level]} file={_property(p.file)},line={p.line},title={_property(p.title)}::{_data(p.text)}\n"
        for p in counted
    )


def _data(text: str) -> str:
    """The text of a workflow command. A line end in it would begin another command."""
    return neutralise(text, limit=TEXT_CHARS_MAX).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(one_line(text, 1_000)).replace(":", "%3A").replace(",", "%2C")


STYLE = """
:root{color-scheme:light dark;--bad:#b3261e;--warn:#8a5a00;--good:#1b6e3c;--dim:#666}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--warn:#ffca66;--good:#7fd8a0;--dim:#aaa}}
body{font:16px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}.verdict{font-size:1.25rem;font-weight:700}
.pass,.holds{color:var(--good)}.fail,.broken{color:var(--bad)}.warn{color:var(--warn)}.dim{color:var(--dim)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884;
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.75rem;font-size:.82rem;margin:.3rem 0}
"""


def page_policy(style: str, *, form_action: str = "'none'") -> str:
    """The Content-Security-Policy of ``html_page``; a form needs ``form_action``."""
    digest = base64.b64encode(hashlib.sha256((STYLE + style).encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action {form_action}"


def html_page(title: str, style: str, body: Iterable[str], *, form_action: str = "'none'") -> str:
    """A page that stands for itself: no script, no file beside it, nothing fetched. ``body`` is lines of HTML."""
    policy = page_policy(style, form_action=form_action)
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html_text(title)}</title><style>{STYLE}{style}</style></head><body><main>",
        f"<h1>{html_text(title)}</h1>",
    )
    return "\n".join((*head, *body, "</main></body></html>")) + "\n"
