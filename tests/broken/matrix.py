"""The matrix of broken agents: ``make mutants`` (or ``python -m tests.broken.matrix [ID...] [--rows PATTERN]``).

Every broken agent against every row, in process and on virtual time. Prints one line for each: its id, the row
it breaks, whether that row failed, and what else did. Ends with 1 if one survived, if other rows failed than
those listed for it, or if the healthy agent failed one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleetsim.check.evidence import Verdict
from fleetsim.check.runner import select
from tests.broken.bench import checked, outcome
from tests.broken.catalogue import MUTANTS, mutant

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the matrix; it crosses from one process to another."""

    mutant_id: str
    row: str
    caught: bool
    strays: tuple[str, ...]
    also: tuple[str, ...]
    spared: tuple[str, ...]
    reasons: dict[str, str]
    untested: dict[str, str]
    seconds: float


def matrix_line(job: tuple[str, tuple[str, ...]]) -> Result:
    """Check one broken agent against the rows of these patterns, and its own row."""
    mutant_id, patterns = job
    broken = mutant(mutant_id)
    began = time.monotonic()
    rows = select((*patterns, broken.row)) if patterns else None
    report = checked(broken, rows)
    found = outcome(broken, report)
    return Result(
        mutant_id,
        broken.row,
        found.caught,
        found.strays,
        tuple(sorted(found.failed - {broken.row} - set(found.strays))),
        () if patterns else tuple(sorted({row for ids in broken.also for row in ids.split()} - found.failed)),
        found.reasons,
        {f.key: f.reason for f in report.of(Verdict.NOT_TESTED)},
        time.monotonic() - began,
    )


def matrix(mutant_ids: Sequence[str], patterns: tuple[str, ...] = (), processes: int = PROCESSES) -> Iterator[Result]:
    """The lines of several broken agents, in their order."""
    jobs = [(mutant_id, patterns) for mutant_id in mutant_ids]
    if processes <= 1 or len(jobs) < 2:
        yield from map(matrix_line, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(matrix_line, jobs)


def main(words: Sequence[str]) -> int:
    """Print the table; 0 when every broken agent is caught by its row and by no other unlisted one."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", help="broken agents (all)")
    parser.add_argument("--rows", action="append", default=[], help="only rows that fit, and the broken one")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("-v", "--verbose", action="store_true", help="say why each row failed")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    healthy = checked(None)
    fails = [f"{f.key}: {f.reason}" for f in healthy.of(Verdict.FAIL)]
    print(f"healthy: {healthy.verdict_line(strict=True)}")
    print(*(f"  {line}" for line in fails), sep="\n", end="\n" if fails else "")
    results = []
    for found in matrix(asked.ids or [m.mutant_id for m in MUTANTS], tuple(asked.rows), asked.processes):
        results.append(found)
        print(_line(found), flush=True)
        if asked.verbose or not found.caught or found.strays:
            for key, reason in found.reasons.items():
                print(f"      {key}: {reason[:150]}")
            if not found.caught:
                why = [f"{key}: {reason}" for key, reason in found.untested.items() if key.startswith(found.row)]
                print(*(f"      not tested {line[:150]}" for line in why), sep="\n", end="\n" if why else "")
    caught = sum(found.caught for found in results)
    strays = [found.mutant_id for found in results if found.strays or found.spared]
    rows = len({found.row for found in results if found.caught})
    print(
        f"{caught} of {len(results)} broken agents caught, over {rows} rows; "
        f"{len(strays)} failed other rows than those listed; {time.monotonic() - began:.0f} s"
    )
    return 0 if caught == len(results) and not strays and not fails else 1


def _line(found: Result) -> str:
    also = f"  also {' '.join(found.also)}" if found.also else ""
    strays = f"  NOT LISTED {' '.join(found.strays)}" if found.strays else ""
    verdict = "caught" if found.caught else "SURVIVED"
    spared = f"  listed, and passed: {' '.join(found.spared)}" if found.spared else ""
    return f"{found.mutant_id:26} {found.row}  {verdict:8} {found.seconds:5.1f} s{also}{strays}{spared}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
