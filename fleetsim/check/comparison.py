"""Two deployments and one checklist: the rows whose verdicts differ. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleetsim.check.evidence import Verdict
from fleetsim.check.report import SCHEMA, Finding, Report
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``changed`` are the rows with another verdict than on the other side, each with that verdict and its reason.

    ``only_here`` and ``only_there`` count the rows of dialects that one side alone was probed in.
    """

    report: Report
    other: OtherSide
    changed: tuple[tuple[Finding, Verdict, str], ...]
    same: int
    only_here: Counter[str]
    only_there: Counter[str]

    @property
    def worse(self) -> tuple[tuple[Finding, Verdict, str], ...]:
        """Rows that fail here alone."""
        return tuple(pair for pair in self.changed if pair[0].verdict is Verdict.FAIL)

    @property
    def better(self) -> tuple[tuple[Finding, Verdict, str], ...]:
        """Rows that fail on the other side and pass here."""
        return tuple(pair for pair in self.changed if pair[1] is Verdict.FAIL and pair[0].verdict is Verdict.PASS)

    def as_json(self) -> dict[str, Any]:
        return {
            "against": self.other.name,
            "worse": [pair[0].key for pair in self.worse],
            "better": [pair[0].key for pair in self.better],
            "changed": [
                {"row": here.key, "here": here.verdict.value, "there": there.value, "reasonThere": reason}
                for here, there, reason in self.changed
            ],
            "same": self.same,
            "onlyHere": dict(self.only_here),
            "onlyThere": dict(self.only_there),
        }

    def lines(self) -> Iterator[str]:
        """The comparison for a person, the rows that are worse first."""
        others = tuple(pair for pair in self.changed if pair not in self.worse and pair not in self.better)
        yield (
            f"{'WORSE' if self.worse else 'NOT WORSE'}: {len(self.worse)} rows fail here alone, "
            f"{len(self.better)} pass here alone, {len(others)} differ in another way, {self.same} are the same"
        )
        yield f"  here   {self.report.agent} {self.report.url}"
        yield f"  there  {self.other.name}"
        for title, rows in (("Worse here", self.worse), ("Better here", self.better), ("Different", others)):
            if rows:
                yield ""
                yield f"{title}:"
            for here, there, reason in rows:
                yield f"  {here.key:<11} {here.requirement.severity:<6} {here.requirement.title}"
                yield f"              here:  {here.verdict}{_because(here.reason)}"
                yield f"              there: {there}{_because(reason)}"
        for title, counts in (("here", self.only_here), ("there", self.only_there)):
            if counts:
                yield ""
                yield f"Probed {title} alone: " + ", ".join(f"{n} rows of A2A {name}" for name, n in counts.items())
        yield ""


def _because(reason: str) -> str:
    return f", {one_line(reason, 160)}" if reason else ""


def compare(report: Report, other: OtherSide) -> Comparison:
    """Compare an agent with the other side. A failure of both becomes an accepted failure of the report."""
    here = {(finding.requirement.id, finding.dialect): finding for finding in report.findings}
    both = [(finding, *other.verdicts[key]) for key, finding in here.items() if key in other.verdicts]
    shared = {f.key: "it fails on the other side, too" for f, there, _ in both if there is Verdict.FAIL}
    return Comparison(
        report=report.with_accepted(shared),
        other=other,
        changed=tuple(pair for pair in both if pair[0].verdict is not pair[1]),
        same=sum(pair[0].verdict is pair[1] for pair in both),
        only_here=Counter(dialect for row, dialect in here if (row, dialect) not in other.verdicts),
        only_there=Counter(dialect for row, dialect in other.verdicts if (row, dialect) not in here),
    )
