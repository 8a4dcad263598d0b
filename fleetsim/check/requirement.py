"""A requirement of the checklist, and ``@must``, ``@should`` and ``@may``, which declare it on the probe that tests it.

Knows nothing of what a probe does. The requirements themselves stand in ``sections``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC

if TYPE_CHECKING:
    from fleetsim.check.session import Probe


class Severity(StrEnum):
    """How much a requirement binds. A failed MUST fails the check, a failed SHOULD warns, a failed MAY informs."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class ProbeBatch(IntEnum):
    """When a probe runs: by itself because it takes times, among others, or at the end of everything."""

    ALONE = 0
    TOGETHER = 1
    LAST = 2


ONCE = ("any",)
"""Requirements of the agent as a whole: probed once, whichever dialects it speaks."""

V03, V10, V01 = ("0.3",), ("1.0",), ("0.1",)
ALL = tuple(sorted(OVER_JSON_RPC))
BOTH = tuple(name for name in ALL if DIALECTS[name].guessed)
"""The dialects with a specification."""

SECTIONS = {
    "C": "Agent card",
    "A": "Credentials",
    "X": "Extensions",
    "E": "Envelope and errors",
    "M": "Methods",
    "V": "Versions",
    "T": "Tasks",
    "H": "Task store",
    "S": "Streams",
    "P": "Webhooks",
    "R": "REST aliases",
    "L": "Legacy 0.1",
}
"""The section of each id's letter, in the order of the report."""

BUILD_GUIDE = "seed: Build an A2A Agent"
SERVER_GUIDE = "seed: implement-a2a-server"
"""The two guides that most requirements are taken from, as ``source`` names them."""

PROFILES = {"workstacean": "the original caller's side: what its callers broke on is a MUST"}
"""Stricter readings of the checklist, in words."""

NEEDS = {
    "streaming": "the card offers streams",
    "json-rpc": "an agent that speaks JSON-RPC here",
    "aliases": "an agent whose card does not offer HTTP+JSON of 1.0 alone",
    "push": "the card offers webhooks, and one can be registered",
    "listener": "a webhook listener the agent may reach (--webhook-listen, and the agent's allow-list)",
    "slow": "a skill that takes a few seconds (--skill-slow)",
    "end": "a task of that skill which ends in time",
    "ask": "a skill that asks a question (--skill-ask)",
    "fail": "a skill that fails (--skill-fail)",
    "stream": "a skill that answers in pieces (--skill-stream)",
    "side-effects": "leave to do what costs or leaves traces (--allow-side-effects)",
    "time": "hours, which pass only where fleetsim runs the agent on virtual time (--app)",
    "in-process": "the agent run by fleetsim, where its log and its memory can be seen (--app)",
    "auth": "an agent that demands credentials",
    "second-key": "a second caller's credentials (--other-key-env)",
}
"""The needs of requirements beyond an address, in words."""

SLOW_S = 4.0
"""The default time of a probe with the slow skill."""

_GENERAL = re.compile(r"seed|reference|JSON-RPC|RFC", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement.

    ``dialects`` are those it is probed in (``any``: once for the agent). ``source`` says who demands it,
    ``how`` how it is probed, ``remedy`` what to do when it fails, ``incident`` where it hurt before, ``against`` which
    text of a specification lets an agent do otherwise.
    ``needs`` are keys of ``NEEDS``. ``binding_for`` names profiles (``--profile``) under which it is a MUST.
    ``probe`` tests it, in its ``batch``; ``lasts_s`` says about how many seconds it waits: the longest begin first.
    ``after`` is the id before it in the report, if that is not the one before it by number.
    """

    id: str
    section: str
    title: str
    severity: Severity
    dialects: tuple[str, ...]
    source: str
    how: str
    remedy: str
    incident: str = ""
    against: str = ""
    needs: frozenset[str] = frozenset()
    binding_for: frozenset[str] = frozenset()
    probe: Probe | None = field(default=None, repr=False, compare=False)
    batch: ProbeBatch = ProbeBatch.TOGETHER
    lasts_s: float = 0.0
    after: str = ""

    @property
    def covers(self) -> tuple[str, ...]:
        """The dialects that the source speaks of, in the order of the versions.

        A section of one specification covers its version alone; the fleet's seeds, JSON-RPC and RFCs cover all.
        """
        specified = tuple(version for version in BOTH if re.search(rf"\b{re.escape(version)} §", self.source))
        return specified if specified and not _GENERAL.search(self.source) else ALL

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "section": self.section,
            "title": self.title,
            "severity": self.severity.value,
            "dialects": list(self.dialects),
            "source": self.source,
            "how": self.how,
            "remedy": self.remedy,
            "incident": self.incident,
            "against": self.against,
            "needs": sorted(self.needs),
            "binding_for": sorted(self.binding_for),
        }


_declared: list[Requirement] = []


def requirement(
    severity: Severity,
    heading: str,
    dialects: tuple[str, ...] = BOTH,
    *,
    source: str,
    remedy: str,
    incident: str = "",
    against: str = "",
    needs: Iterable[str] = (),
    binding_for: Iterable[str] = (),
    batch: ProbeBatch = ProbeBatch.TOGETHER,
    lasts_s: float = 0.0,
    after: str = "",
) -> Callable[[Probe], Probe]:
    """Declare a requirement on its probe, an async function of a ``Session`` whose docstring is the ``how``.

    ``heading`` is the id, whose letter names the section, and the title: ``E-06: An unknown method is -32601``.
    The rest are fields of ``Requirement``.
    """
    requirement_id, _, title = heading.partition(": ")
    wanted = frozenset(needs)
    assert wanted <= NEEDS.keys(), requirement_id

    def declare(probe: Probe) -> Probe:
        _declared.append(
            Requirement(
                id=requirement_id,
                section=SECTIONS[requirement_id[0]],
                title=title,
                severity=severity,
                dialects=dialects,
                source=source,
                how=" ".join((probe.__doc__ or "").split()),
                remedy=remedy,
                incident=incident,
                against=against,
                needs=wanted,
                binding_for=frozenset(binding_for),
                probe=probe,
                batch=batch,
                lasts_s=lasts_s or (SLOW_S if "slow" in wanted else 0.0),
                after=after,
            )
        )
        return probe

    return declare


must, should, may = (partial(requirement, severity) for severity in Severity)


def declared() -> tuple[Requirement, ...]:
    """The requirements of the imported modules, in the order of the report: by section, number and ``after``."""
    places = {found.id: (list(SECTIONS).index(found.id[0]), found.id, "") for found in _declared}
    places |= {found.id: (*places[found.after][:2], found.id) for found in _declared if found.after}
    return tuple(sorted(_declared, key=lambda found: places[found.id]))
