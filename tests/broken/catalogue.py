"""Agents with exactly one fault each: one or more for each row of the checklist that can fail.

They prove that the check detects what it claims to detect. Run one with ``python -m tests.broken ID``.
"""

from __future__ import annotations

from tests.broken import calls, cards, push, rest_and_legacy, streams, tasks
from tests.broken.build import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *cards.MUTANTS,
    *calls.MUTANTS,
    *tasks.MUTANTS,
    *streams.MUTANTS,
    *push.MUTANTS,
    *rest_and_legacy.MUTANTS,
)
"""All of them, in the order of the checklist's sections."""


def mutant(mutant_id: str) -> Mutant:
    """The broken agent with that id. Raises SystemExit for an unknown id."""
    for mutant in MUTANTS:
        if mutant.mutant_id == mutant_id:
            return mutant
    raise SystemExit(f"unknown broken agent {mutant_id!r}; 'python -m tests.broken list' names them all")
