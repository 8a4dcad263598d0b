"""The checklist as a page of documentation, made from the requirements."""

from __future__ import annotations

from collections.abc import Iterable

from fleetsim.check.requirement import NEEDS, ONCE, Requirement
from fleetsim.check.sections import REQUIREMENTS

INTRODUCTION = """# The checklist

What `fleetsim check URL` holds an agent to, one row a promise. Written from the rows by
`python -m fleetsim.check.checklist`; a test compares.

A failed **MUST** fails the check, a failed **SHOULD** warns (with `--strict` it fails too), a failed **MAY**
informs. A row is probed in each dialect it names that the agent speaks, or once for the agent. `fleetsim
explain ID` shows a row on the terminal.

Verdicts: *pass*, *fail*, *not applicable* (the promise does not concern this agent) and *not tested* (with the
reason, and what to add so that it is). They never blur.

What a row may need:
"""


def page(requirements: Iterable[Requirement] = REQUIREMENTS.values()) -> str:
    """docs/reference/checklist.md, whole; for tests also of a few requirements alone."""
    lines = [INTRODUCTION, *(f"- `{name}`: {text}" for name, text in NEEDS.items())]
    section = ""
    for requirement in requirements:
        if requirement.section != section:
            section = requirement.section
            lines.append(f"\n## {section}")
        dialects = "once" if requirement.dialects == ONCE else ", ".join(requirement.dialects)
        needs = f"; needs {', '.join(sorted(requirement.needs))}" if requirement.needs else ""
        source = f"Source ({', '.join(requirement.covers)}): {requirement.source}."
        lines += [
            f"\n### {requirement.id} {requirement.title}\n",
            f"**{requirement.severity}**, {dialects}{needs}. {source}\n",
            f"- Probe: {requirement.how}",
            f"- Fix: {requirement.remedy}",
        ]
        lines += [f"- Seen: {requirement.incident}"] if requirement.incident else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
