"""The checklist as a page of documentation, made from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fleetsim.check.row import NEEDS, ONCE, Row
from fleetsim.check.rows import ROWS

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


def page(rows: Iterable[Row] = ROWS.values()) -> str:
    """The page, in Markdown."""
    return "\n".join(_lines(tuple(rows))) + "\n"


def _lines(rows: tuple[Row, ...]) -> Iterator[str]:
    yield INTRODUCTION
    yield from (f"- `{name}`: {text}" for name, text in NEEDS.items())
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            yield f"\n## {section}"
        dialects = "once" if row.dialects == ONCE else ", ".join(row.dialects)
        needs = f"; needs {', '.join(sorted(row.needs))}" if row.needs else ""
        yield f"\n### {row.id} {row.title}\n"
        yield f"**{row.severity}**, {dialects}{needs}. Source ({', '.join(row.covers)}): {row.source}.\n"
        yield f"- Probe: {row.how}"
        yield f"- Fix: {row.remedy}"
        if row.incident:
            yield f"- Seen: {row.incident}"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
