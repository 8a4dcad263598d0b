"""The checklist, section by section: each module holds requirements, and each requirement stands on its probe.

A new requirement is one function in the module of its noun, with ``@must``, ``@should`` or ``@may`` above it and
what it asks as its docstring. Then run ``make docs``, and add an agent that breaks it to ``tests/broken``. A new module
is named below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fleetsim.check.requirement import Requirement, declared
from fleetsim.check.sections import (  # noqa: F401 - what they hold is declared by importing them
    card,
    envelope,
    extensions,
    hygiene,
    legacy,
    push,
    push_delivery,
    rest,
    resubscribe,
    sending,
    streams,
    tasks,
)

REQUIREMENTS: Mapping[str, Requirement] = MappingProxyType({found.id: found for found in declared()})
"""Every requirement by its id, in the order of the report."""

assert len(REQUIREMENTS) == len(declared()), "two requirements share an id"
