"""Failures somebody has accepted, each with a reason: ``ID`` or ``ID@DIALECT`` to text, as YAML."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

from fleetsim.check.report import Report
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.check.verdict import Verdict

BYTES_MAX = 256 * 1024
_KEY = re.compile(r"([A-Z]-[0-9]{2})(@[0-9]\.[0-9])?", re.ASCII)


def read(text: str | bytes, source: str) -> Mapping[str, str]:
    """The accepted failures of a file.

    Raises:
        ConfigError: it is no such file, names no row, or gives no reason.
    """
    from fleetsim.runtime.yaml import load  # its parser is for those who have such a file

    document = load(text, source, bytes_max=BYTES_MAX)
    accepted = document.value.get("accepted") if isinstance(document.value, dict) else None
    if not isinstance(accepted, dict):
        raise document.error((), "a baseline is a mapping with the key accepted", hint="accepted: {P-17@0.3: reason}")
    for key, reason in accepted.items():
        fit = _KEY.fullmatch(str(key))
        if fit is None or fit[1] not in REQUIREMENTS:
            near = difflib.get_close_matches(str(key), REQUIREMENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else "fleetsim check --list"
            raise document.error(("accepted", key), f"there is no row {key}", key=True, hint=hint)
        if not isinstance(reason, str) or not reason.strip():
            raise document.error(("accepted", key), f"{key} needs a reason", hint="why is this failure accepted?")
    return accepted


def write(report: Report) -> str:
    """A baseline of the report's failures; reasons that were there stay, new ones say what was found."""
    lines = [
        "# Failures of this agent that are accepted, by row and dialect, each with the reason.",
        f"# Agent: {json.dumps(report.agent, ensure_ascii=False)}",
        "accepted:",
    ]
    found = [f for f in report.findings if f.verdict is Verdict.FAIL]
    for finding in found:
        reason = finding.accepted or f"as found: {finding.reason}"
        lines.append(f"  {finding.key}: {json.dumps(reason, ensure_ascii=False)}")
    if not found:
        lines[-1] = "accepted: {}"
    return "\n".join(lines) + "\n"


def stale(report: Report, accepted: Mapping[str, str]) -> list[str]:
    """Accepted failures that do not happen any more (and were tested)."""
    passed = {f.key for f in report.of(Verdict.PASS)} | {f.requirement.id for f in report.of(Verdict.PASS)}
    failed = {f.key for f in report.of(Verdict.FAIL)} | {f.requirement.id for f in report.of(Verdict.FAIL)}
    return sorted(key for key in accepted if key in passed and key not in failed)
