"""Agents broken on purpose: the healthy one with exactly one thing wrong, for each row that can fail.

They prove that the check sees what it says it sees, and anybody may run one: ``fleetsim agent --broken ID``.
"""

from __future__ import annotations

import difflib

from fleetsim.check.broken import calls, cards, push, rest_and_legacy, streams, tasks
from fleetsim.check.broken.build import Mutant, breaks
from fleetsim.model.errors import ConfigError

__all__ = ["MUTANTS", "Mutant", "breaks", "mutant"]

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
    """The broken agent of that id. Raises ConfigError."""
    known = {found.mutant_id: found for found in MUTANTS}
    if mutant_id not in known:
        near = difflib.get_close_matches(mutant_id, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "'fleetsim agent --broken list' names them all"
        raise ConfigError(f"there is no broken agent {mutant_id!r}", hint=hint)
    return known[mutant_id]
