"""What a check found, as values: one finding per row and dialect, and the report that holds them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetsim.check.row import ONCE, Row, Severity, Verdict

SCHEMA = "fleetsim-check/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one row in one dialect. ``evidence`` are exchanges as text, without secrets.

    ``accepted`` is the reason a baseline gives for living with a failure. ``lost`` marks what could not be
    told because a connection or the probe itself broke.
    """

    row: Row
    dialect: str
    verdict: Verdict
    reason: str = ""
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0
    accepted: str | None = None
    lost: bool = False

    @property
    def key(self) -> str:
        """``ID`` or ``ID@DIALECT``."""
        return self.row.id if self.dialect in ONCE else f"{self.row.id}@{self.dialect}"

    @property
    def failed(self) -> bool:
        """Whether it is a failure nobody has accepted."""
        return self.verdict is Verdict.FAIL and self.accepted is None

    def as_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        row = self.row
        return {
            "id": row.id,
            "dialect": self.dialect,
            "verdict": self.verdict.value,
            "severity": row.severity.value,
            "section": row.section,
            "title": row.title,
            "reason": self.reason,
            "accepted": self.accepted,
            "seconds": round(self.seconds, 3),
            "source": row.source,
            "covers": list(row.covers),
            "remedy": row.remedy,
            "incident": row.incident,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole check. ``endpoints`` are the URLs used, by dialect; ``listener`` is empty without one."""

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

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """The findings with a verdict, in order."""
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def totals(self) -> dict[str, int]:
        """How many findings each verdict has, all four named; accepted failures are failures."""
        counted = Counter(finding.verdict for finding in self.findings)
        return {verdict.value: counted[verdict] for verdict in Verdict}

    def failures(self, *severities: Severity) -> tuple[Finding, ...]:
        """Failures nobody accepted, of these severities (of all if none is named), the gravest first."""
        wanted = severities or tuple(Severity)
        found = [finding for finding in self.findings if finding.failed and finding.row.severity in wanted]
        return tuple(sorted(found, key=lambda finding: list(Severity).index(finding.row.severity)))

    def passed(self, *, strict: bool = False) -> bool:
        """Whether every MUST that was tested passed; with ``strict``, every SHOULD too."""
        binding = (Severity.MUST, Severity.SHOULD) if strict else (Severity.MUST,)
        return not self.failures(*binding)

    @property
    def tested(self) -> int:
        """How many findings are passes or failures."""
        return len(self.of(Verdict.PASS)) + len(self.of(Verdict.FAIL))

    @property
    def could_not_tell(self) -> bool:
        """Whether some row was lost to a broken connection or probe."""
        return any(finding.lost for finding in self.findings)

    def finding(self, row_id: str, dialect: str | None = None) -> Finding:
        """The finding of a row, in a dialect if it has several. Raises KeyError."""
        for finding in self.findings:
            if finding.row.id == row_id and dialect in {None, finding.dialect}:
                return finding
        raise KeyError(row_id)

    def with_accepted(self, accepted: Mapping[str, str]) -> Report:
        """The report with failures accepted by ``ID`` or ``ID@DIALECT``."""
        return replace(self, findings=tuple(_accept(finding, accepted) for finding in self.findings))

    def verdict_line(self, *, strict: bool = False) -> str:
        """The whole report in one sentence."""
        told = ", ".join(f"{count} {name}" for name, count in self.totals().items())
        if not self.tested:
            return f"NOTHING TESTED: {told}"
        words = "PASSED" if self.passed(strict=strict) else "FAILED"
        return f"{words}: {told}"

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
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
            "passed": self.passed(),
            "totals": self.totals(),
            "findings": [finding.as_json() for finding in self.findings],
        }


def _accept(finding: Finding, accepted: Mapping[str, str]) -> Finding:
    reason = accepted.get(finding.key, accepted.get(finding.row.id))
    if finding.verdict is not Verdict.FAIL or reason is None:
        return finding
    return replace(finding, accepted=reason)


def in_order(findings: Iterable[Finding], rows: Mapping[str, Row]) -> tuple[Finding, ...]:
    """Findings in the order of the checklist, then by dialect."""
    places = {row_id: place for place, row_id in enumerate(rows)}
    return tuple(sorted(findings, key=lambda finding: (places.get(finding.row.id, 0), finding.dialect)))
