"""The check detects every broken agent by its row, and reports none of the rows that the others depend on.

The whole matrix, every broken agent against every row, is ``make mutants``; here each meets its own row and, in turn,
one in five of the rows that the others depend on: all of them in ``make test-whole``.
"""

from __future__ import annotations

import pytest

from fleetsim.check.evidence import Verdict
from fleetsim.check.runner import select
from fleetsim.check.sections import REQUIREMENTS
from tests.broken.bench import checked, outcome
from tests.broken.build import Mutant
from tests.broken.catalogue import MUTANTS
from tests.scale import SHARE, WHOLE

pytestmark = pytest.mark.slow

SMOKE: tuple[str, ...] = ("S-14", "C-01", "C-04", "A-02", "X-01", "E-06", "E-08", "E-10", "E-13", "V-02", "T-01")
SMOKE += ("T-06", "T-08", "S-02", "S-12", "P-26", "L-01")

LOOKS_AT_ALL = {"E-23", "T-07"}
"""Rows that judge what the agent said to all the others."""


def test_the_healthy_agent_passes_every_row() -> None:
    report = checked(None)
    assert {f.key: f"{f.verdict}: {f.reason}" for f in report.findings if f.verdict is not Verdict.PASS} == {}
    assert {f.requirement.id for f in report.findings} == set(REQUIREMENTS)


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda found: found.mutant_id)
def test_a_broken_agent_fails_its_row_and_no_other(broken: Mutant) -> None:
    whole = WHOLE or broken.row in LOOKS_AT_ALL
    smoke = SMOKE if whole else SMOKE[MUTANTS.index(broken) % SHARE :: SHARE]
    report = checked(broken, select((broken.row, *smoke)))
    found = outcome(broken, report)
    assert found.caught, report.finding(broken.row)
    assert found.strays == (), found.reasons


def test_the_same_seed_gives_the_same_report() -> None:
    broken = next(m for m in MUTANTS if m.mutant_id == "cancel-race")
    first, second = checked(broken, seed=3), checked(broken, seed=3)
    assert [(f.key, f.verdict, f.seconds) for f in first.findings] == [
        (f.key, f.verdict, f.seconds) for f in second.findings
    ]
