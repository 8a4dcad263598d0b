"""The result of a check, as values: a finding for each requirement and dialect, the report, and the baseline."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fleetsim.check.evidence import Verdict
from fleetsim.check.requirement import ONCE, Requirement, Severity
from fleetsim.check.sections import REQUIREMENTS

SCHEMA = "fleetsim-check/1"

_OPTION = re.compile(r"(.*?):? add (--[a-z-]+)(?: (\S+))?", re.DOTALL)
"""How a reason names the option that would have made a requirement testable."""


@dataclass(frozen=True, slots=True)
class UntestedReason:
    """Why ``count`` requirements were not tested, and the option with its value that would help, if there is one."""

    option: str
    value: str
    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one requirement in one dialect. ``evidence`` are exchanges as text, without secrets.

    ``accepted`` is the reason of the baseline for a failure. ``sdk`` names the SDK all of whose agents fail the row.
    ``lost``: the row has no result because a connection or the probe itself broke.
    """

    requirement: Requirement
    dialect: str
    verdict: Verdict
    reason: str = ""
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0
    accepted: str | None = None
    sdk: str = ""
    lost: bool = False

    @property
    def key(self) -> str:
        """How a baseline names it: ``ID``, or ``ID@DIALECT`` for a requirement probed in several."""
        return self.requirement.id if self.dialect in ONCE else f"{self.requirement.id}@{self.dialect}"

    @property
    def failed(self) -> bool:
        """Whether it is a failure that is not accepted."""
        return self.verdict is Verdict.FAIL and self.accepted is None

    @property
    def advice(self) -> list[tuple[str, str]]:
        """The lines about a failure for a person: a label and a text each."""
        row, sdk = self.requirement, f"your SDK: every agent on {self.sdk} fails this row" if self.sdk else ""
        lines = [("fix", row.remedy), ("seen", row.incident), ("from", row.source), ("but", row.against), ("sdk", sdk)]
        return [(label, text) for label, text in lines if text]

    def as_json(self) -> dict[str, Any]:
        """The finding as a member of the report's JSON: the requirement in words, the verdict, the evidence."""
        requirement = self.requirement
        return {
            "id": requirement.id,
            "dialect": self.dialect,
            "verdict": self.verdict.value,
            "severity": requirement.severity.value,
            "section": requirement.section,
            "title": requirement.title,
            "reason": self.reason,
            "accepted": self.accepted,
            "sdk": self.sdk,
            "seconds": round(self.seconds, 3),
            "source": requirement.source,
            "covers": list(requirement.covers),
            "remedy": requirement.remedy,
            "incident": requirement.incident,
            "against": requirement.against,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole check. ``endpoints`` are the URLs used, by dialect; ``listener`` is empty without one.

    ``note`` is a remark about the run; mostly empty. ``file`` is the file of the repository at which a code host shows
    the failures.
    """

    url: str
    agent: str
    dialects: tuple[str, ...]
    endpoints: Mapping[str, str] = field(default_factory=dict)
    listener: str = ""
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    began: str = ""
    version: str = ""
    note: str = ""
    file: str = "agents.yaml"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The agent and the run for a person: a label and a text each."""
        return [
            ("Agent", f"{self.agent}  {self.url}"),
            ("Dialects", ", ".join(self.dialects) or "none"),
            *(("Endpoint", f"{url}  (A2A {name})") for name, url in self.endpoints.items()),
            ("Listener", self.listener or "none (--webhook-listen HOST:PORT)"),
            ("Began", f"{self.began}, seed {self.seed}, fleetsim {self.version}"),
            *([("Note", self.note)] if self.note else []),
        ]

    @property
    def accepted(self) -> tuple[Finding, ...]:
        """The failures that a baseline accepts."""
        return tuple(finding for finding in self.of(Verdict.FAIL) if finding.accepted is not None)

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def totals(self) -> dict[str, int]:
        """How many findings each verdict has, all four named; accepted failures are failures."""
        counted = Counter(finding.verdict for finding in self.findings)
        return {verdict.value: counted[verdict] for verdict in Verdict}

    def section_totals(self) -> dict[str, Counter[Verdict]]:
        """How many findings each verdict has in each section, in the order of the findings."""
        counted: dict[str, Counter[Verdict]] = {}
        for finding in self.findings:
            counted.setdefault(finding.requirement.section, Counter())[finding.verdict] += 1
        return counted

    def failures(self, *severities: Severity) -> tuple[Finding, ...]:
        """Failures that are not accepted, of these severities (default: all), the gravest first."""
        failures = [f for f in self.findings if f.failed and f.requirement.severity in (severities or Severity)]
        return tuple(sorted(failures, key=lambda finding: list(Severity).index(finding.requirement.severity)))

    def passed(self, *, strict: bool = False) -> bool:
        """Whether something was tested, and every MUST of it passed; with ``strict``, every SHOULD too."""
        binding = (Severity.MUST, Severity.SHOULD) if strict else (Severity.MUST,)
        return not self.nothing_tested and not self.failures(*binding)

    @property
    def tested(self) -> int:
        return len(self.of(Verdict.PASS)) + len(self.of(Verdict.FAIL))

    @property
    def nothing_tested(self) -> bool:
        """Whether no row was tested, or nothing but the card of an agent with which fleetsim speaks no dialect."""
        return not self.tested or not self.dialects

    @property
    def could_not_tell(self) -> bool:
        """Whether some requirement was lost to a broken connection or probe."""
        return any(finding.lost for finding in self.findings)

    def finding(self, requirement_id: str, dialect: str | None = None) -> Finding:
        """The finding of a requirement, in a dialect if it has several. Raises KeyError."""
        for finding in self.findings:
            if finding.requirement.id == requirement_id and dialect in {None, finding.dialect}:
                return finding
        raise KeyError(requirement_id)

    def with_accepted(self, accepted: Mapping[str, str]) -> Report:
        """The report with failures accepted by ``ID`` or ``ID@DIALECT``."""
        findings = []
        for finding in self.findings:
            reason = accepted.get(finding.key, accepted.get(finding.requirement.id))
            failed = finding.verdict is Verdict.FAIL and reason is not None
            findings.append(replace(finding, accepted=reason) if failed else finding)
        return replace(self, findings=tuple(findings))

    def word(self, *, strict: bool = False) -> str:
        """The verdict in a word: INCOMPLETE with a third of the rows untested, or one lost to a broken connection."""
        if self.nothing_tested:
            return "NOTHING TESTED"
        if not self.passed(strict=strict):
            return "FAILED"
        untested = len(self.of(Verdict.NOT_TESTED))
        return "INCOMPLETE" if 3 * untested >= self.tested + untested or self.could_not_tell else "PASSED"

    def coverage(self) -> int:
        """How many percent of what applies to the agent were tested."""
        applies = self.tested + len(self.of(Verdict.NOT_TESTED))
        return 100 * self.tested // applies if applies else 0

    def verdict_line(self, *, strict: bool = False) -> str:
        """The verdict, the totals and the coverage in one sentence, which every format of the report opens with."""
        totals = self.totals()
        accepted = totals["fail"] - len(self.failures())
        failed = f"{totals['fail']} failed" + (f" ({accepted} accepted)" if accepted else "")
        return (
            f"{self.word(strict=strict)}: {totals['pass']} passed, {failed}, {totals['not tested']} not tested, "
            f"{totals['not applicable']} not applicable; {self.coverage()} % of what applies was tested"
        )

    def missing(self) -> tuple[UntestedReason, ...]:
        """The reasons for untested rows: first those that an option removes, most rows first."""
        counted: Counter[tuple[str, str, str]] = Counter()
        for finding in self.of(Verdict.NOT_TESTED):
            advice = _OPTION.fullmatch(finding.reason)
            counted[(advice[2], advice[3] or "", advice[1]) if advice else ("", "", finding.reason)] += 1
        reasons = [UntestedReason(option, value, why, count) for (option, value, why), count in counted.items()]
        return tuple(sorted(reasons, key=lambda reason: (not reason.option, -reason.count, reason.option)))

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object of the schema ``fleetsim-check/1``."""
        return {
            "schema": SCHEMA,
            "url": self.url,
            "agent": self.agent,
            "dialects": list(self.dialects),
            "endpoints": dict(self.endpoints),
            "listener": self.listener,
            "began": self.began,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "version": self.version,
            "note": self.note,
            "passed": self.passed(),
            "verdict": self.word().lower(),
            "coverage": self.coverage(),
            "totals": self.totals(),
            "findings": [finding.as_json() for finding in self.findings],
        }


def in_order(findings: Iterable[Finding], requirements: Mapping[str, Requirement]) -> tuple[Finding, ...]:
    """Findings in the order of the checklist, then by dialect."""
    places = {requirement_id: place for place, requirement_id in enumerate(requirements)}
    return tuple(sorted(findings, key=lambda finding: (places.get(finding.requirement.id, 0), finding.dialect)))


# -- the baselines of SDKs: the rows that every agent on one of them fails ------------------------------

SDK_ROWS_MIN, SDK_SHARE_MIN = 10, 0.9
"""An agent fails like an SDK from this number and share of its baseline's rows on, if they are half of its failures."""


@cache
def sdks() -> Mapping[str, frozenset[str]]:
    """For each SDK with a baseline the keys of the rows that all its agents fail; ``make sdks`` measures them."""
    text = (files("fleetsim.check") / "sdks.json").read_text(encoding="utf-8")
    return {name: frozenset(keys) for name, keys in json.loads(text).items()}


def marked(findings: Iterable[Finding], sdk: str = "") -> tuple[tuple[Finding, ...], str]:
    """The findings with the failures of an SDK marked, and a sentence about them; "" if there are none.

    Without a name, the SDK is the one whose agents fail as this agent does.
    """
    found = tuple(findings)
    failed = {finding.key for finding in found if finding.verdict is Verdict.FAIL}
    tested = failed | {finding.key for finding in found if finding.verdict is Verdict.PASS}
    fits = {
        name: len(keys & failed)
        for name, keys in sdks().items()
        if len(keys & failed) >= max(SDK_ROWS_MIN, SDK_SHARE_MIN * len(keys & tested), len(failed) / 2)
    }
    name = sdk or max(fits, key=lambda sdk_name: fits[sdk_name], default="")
    shared = failed & sdks().get(name, frozenset())
    if not shared:
        return found, ""
    seems = "" if sdk else ", which seems to be your SDK"
    note = f"{len(shared)} of {len(failed)} failures are those of every agent on {name}{seems}"
    return tuple(replace(finding, sdk=name) if finding.key in shared else finding for finding in found), note


# -- the baseline: accepted failures, ``ID`` or ``ID@DIALECT`` to the reason, as YAML ------------------

BASELINE_BYTES_MAX = 256 * 1024
_BASELINE_KEY = re.compile(r"([A-Z]-[0-9]{2})(@[0-9]\.[0-9](?:\+http)?)?", re.ASCII)


def read_baseline(text: str | bytes, source: str) -> Mapping[str, str]:
    """The accepted failures of a file. Raises ConfigError, also for an unknown row or a missing reason."""
    from fleetsim.runtime.explain import did_you_mean  # with the parser, for those who have such a file
    from fleetsim.runtime.yaml import load

    document = load(text, source, bytes_max=BASELINE_BYTES_MAX)
    accepted = document.value.get("accepted") if isinstance(document.value, dict) else None
    if not isinstance(accepted, dict):
        raise document.error((), "a baseline is a mapping with the key accepted", hint="accepted: {P-17@0.3: reason}")
    for key, reason in accepted.items():
        fit = _BASELINE_KEY.fullmatch(str(key))
        if fit is None or fit[1] not in REQUIREMENTS:
            near = did_you_mean(str(key), REQUIREMENTS)
            raise document.error(("accepted", key), f"unknown row {key}{near}", key=True, hint="fleetsim check --list")
        if not isinstance(reason, str) or not reason.strip():
            raise document.error(("accepted", key), f"{key} needs a reason", hint="why is this failure accepted?")
    return accepted


def write_baseline(report: Report) -> str:
    """A baseline of the report's failures; existing reasons stay, new ones hold the finding."""
    lines = [
        "# Failures of this agent that are accepted, by row and dialect, each with the reason.",
        f"# Agent: {json.dumps(report.agent, ensure_ascii=False)}",
        "accepted:",
    ]
    failures = report.of(Verdict.FAIL)
    for finding in failures:
        reason = finding.accepted or f"as found: {finding.reason}"
        lines.append(f"  {finding.key}: {json.dumps(reason, ensure_ascii=False)}")
    if not failures:
        lines[-1] = "accepted: {}"
    return "\n".join(lines) + "\n"


def stale(report: Report, accepted: Mapping[str, str]) -> list[str]:
    """Accepted failures that do not happen any more (and were tested)."""
    passed = {f.key for f in report.of(Verdict.PASS)} | {f.requirement.id for f in report.of(Verdict.PASS)}
    failed = {f.key for f in report.of(Verdict.FAIL)} | {f.requirement.id for f in report.of(Verdict.FAIL)}
    return sorted(key for key in accepted if key in passed and key not in failed)
