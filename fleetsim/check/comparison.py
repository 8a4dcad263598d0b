"""Two deployments and one checklist: the rows whose verdicts differ. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fleetsim.check.evidence import Verdict
from fleetsim.check.report import SCHEMA, Finding, Report
from fleetsim.cli.comparison import ChangedRow, Comparison
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line

REPORT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OtherSide:
    """The deployment that an agent is compared with: its name, and verdict and reason by row and dialect."""

    name: str
    verdicts: Mapping[tuple[str, str], tuple[Verdict, str]]

    @classmethod
    def of(cls, report: Report) -> OtherSide:
        return cls(
            f"{report.agent} {report.url}",
            {(f.requirement.id, f.dialect): (f.verdict, f.reason) for f in report.findings},
        )

    @classmethod
    def read(cls, text: bytes, source: str) -> OtherSide:
        """The side of a file that ``--report json=FILE`` wrote. Raises ConfigError if it is another file."""
        try:
            whole = json.loads(text)
            if whole["schema"] != SCHEMA:
                raise ValueError
            verdicts = {
                (str(finding["id"]), str(finding["dialect"])): (Verdict(finding["verdict"]), str(finding["reason"]))
                for finding in whole["findings"]
            }
            return cls(
                f"{one_line(whole['agent'], 80)} {one_line(whole['url'])}, checked {one_line(whole['began'])}", verdicts
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                f"{source} is not a report of a check", hint="fleetsim check URL --report json=before.json writes one"
            ) from None


def compare(report: Report, other: OtherSide) -> tuple[Report, Comparison]:
    """Compare an agent with the other side. A failure of both becomes an accepted failure of the report."""
    here = {(finding.requirement.id, finding.dialect): finding for finding in report.findings}
    both = [(finding, *other.verdicts[key]) for key, finding in here.items() if key in other.verdicts]
    shared = {f.key: "it fails on the other side, too" for f, there, _ in both if there is Verdict.FAIL}
    return report.with_accepted(shared), Comparison(
        here=f"{report.agent} {report.url}",
        there=other.name,
        changed=tuple(_changed(*pair) for pair in both if pair[0].verdict is not pair[1]),
        same=sum(pair[0].verdict is pair[1] for pair in both),
        only_here=Counter(dialect for row, dialect in here if (row, dialect) not in other.verdicts),
        only_there=Counter(dialect for row, dialect in other.verdicts if (row, dialect) not in here),
    )


def _changed(finding: Finding, there: Verdict, reason_there: str) -> ChangedRow:
    """A row is worse if it fails here alone, and better if it passes here and fails on the other side."""
    return ChangedRow(
        key=finding.key,
        mark=finding.requirement.severity,
        title=finding.requirement.title,
        here=finding.verdict.value,
        there=there.value,
        reason=finding.reason,
        reason_there=reason_there,
        worse=finding.verdict is Verdict.FAIL,
        better=there is Verdict.FAIL and finding.verdict is Verdict.PASS,
    )
