"""What many seeds came to, as lines for a person and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetsim.model.text import one_line
from fleetsim.sim.invariants import INVARIANTS
from fleetsim.sim.quantities import in_words
from fleetsim.sim.seeds import Coverage
from fleetsim.sim.text import SHOWN_MAX

SCHEMA = "fleetsim-sim-seeds/1"


def render(coverage: Coverage, name: str, *, wanted: int, wall_s: float) -> Iterator[str]:
    """Verdict, what broke and on which seeds, then what was met: every kind of trouble and every rule."""
    seeds = "no seed" if not coverage.runs else f"seeds {coverage.first} to {coverage.last}"
    said = f"{len(coverage.violated)} broke a rule that must always hold" if coverage.violated else "no rule broken"
    yield f"{name}, {seeds}: {said}" + (f" ({coverage.runs:,} of {wanted:,} played)" if coverage.runs < wanted else "")
    yield (
        f"{in_words(coverage.virtual_s)} of {coverage.requests:,} requests played in {in_words(wall_s)}, "
        f"{in_words(coverage.cpu_s)} of processor time"
    )
    for run in coverage.violated[:SHOWN_MAX]:
        first = run.violations[0]
        who = " ".join(part for part in (first.agent, first.correlation_id) if part)
        yield f"  BROKEN {first.invariant} on seed {run.seed}, {len(run.violations)} times"
        yield f"         after {in_words(first.at_s)}, {who}: {one_line(first.said, 120)}"
    if coverage.unexpected:
        yield f"  {len(coverage.unexpected):,} seeds were not as expected:"
        broken = sorted({text for run in coverage.unexpected for text in run.broken})
        for text in broken:
            those = [run.seed for run in coverage.unexpected if text in run.broken]
            yield f"    {text}: {len(those):,} seeds, first {those[0]}"
    yield ""
    yield f"{'trouble':<26}{'SEEDS':>8}{'TIMES':>9}{'MESSAGES':>10}"
    for fault, seeds_with in coverage.seeds_with.items():
        yield f"  {fault:<24}{seeds_with:>8,}{coverage.times[fault]:>9,}{coverage.hits[fault]:>10,}"
    if missed := coverage.never_met():
        yield f"never met or looked at: {', '.join(missed)}"
    yield ""
    yield "rules that always hold, and in how many cases:"
    for invariant in INVARIANTS:
        yield f"  {invariant.number} {invariant.rule}: {coverage.cases[invariant.number]:,}"


def as_json(coverage: Coverage, name: str, *, wall_s: float, shrunk: str | None) -> dict[str, Any]:
    """The same as one document."""
    return {
        "schema": SCHEMA,
        "scenario": name,
        "seeds": {"first": coverage.first, "last": coverage.last, "played": coverage.runs},
        "virtualSeconds": coverage.virtual_s,
        "wallSeconds": round(wall_s, 3),
        "cpuSeconds": round(coverage.cpu_s, 3),
        "requests": coverage.requests,
        "violated": [
            {
                "seed": run.seed,
                "violations": [
                    {
                        "id": v.invariant,
                        "at": v.at_s,
                        "said": v.said,
                        "correlationId": v.correlation_id,
                        "agent": v.agent,
                    }
                    for v in run.violations
                ],
            }
            for run in coverage.violated
        ],
        "unexpected": [{"seed": run.seed, "broken": list(run.broken)} for run in coverage.unexpected],
        "troubles": {
            fault: {"seeds": seeds, "times": coverage.times[fault], "messages": coverage.hits[fault]}
            for fault, seeds in coverage.seeds_with.items()
        },
        "cases": dict(coverage.cases),
        "neverMet": list(coverage.never_met()),
        "shrunk": shrunk,
    }
