"""What one promise of the checklist looks like as data, and what can become of it.

Knows nothing of how a promise is probed: that is ``probe`` and the modules of probes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a promise binds. A failed MUST fails the check, a failed SHOULD warns, a failed MAY informs."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


ONCE = ("any",)
"""Rows about the agent as a whole: probed once, whichever dialects it speaks."""

V03, V10, V01 = ("0.3",), ("1.0",), ("0.1",)
BOTH = ("0.3", "1.0")
ALL = ("0.1", "0.3", "1.0")

PROFILES = {"workstacean": "the original caller's side: what its callers broke on is a MUST"}
"""Stricter readings of the checklist, in words."""

_GENERAL = re.compile(r"seed|reference|JSON-RPC|RFC", re.IGNORECASE)

NEEDS = {
    "streaming": "the card offers streams",
    "push": "the card offers webhooks",
    "listener": "a webhook listener the agent may reach (--webhook-listen, and the agent's allow-list)",
    "slow": "a skill that takes a few seconds (--skill-slow)",
    "ask": "a skill that asks a question (--skill-ask)",
    "fail": "a skill that fails (--skill-fail)",
    "stream": "a skill that answers in pieces (--skill-stream)",
    "side-effects": "leave to do what costs or leaves traces (--allow-side-effects)",
    "time": "hours, which pass only where fleetsim runs the agent on virtual time (--app)",
    "in-process": "the agent run by fleetsim, where its log and its memory can be seen (--app)",
    "auth": "an agent that demands credentials",
    "second-key": "a second caller's credentials (--other-key-env)",
}
"""What a row may need beyond an address, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise.

    ``dialects`` are those it is probed in (``any``: once for the agent). ``source`` says who demands it,
    ``how`` how it is probed, ``remedy`` what to do when it fails, ``incident`` where it hurt before.
    ``needs`` are keys of ``NEEDS``. ``binding_for`` names profiles (``--profile``) under which it is a MUST.
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
    needs: frozenset[str] = frozenset()
    binding_for: frozenset[str] = frozenset()

    @property
    def covers(self) -> tuple[str, ...]:
        """The dialects that the source speaks of, in the order of the versions.

        A section of one specification covers its version alone; the fleet's seeds, JSON-RPC and RFCs cover all.
        """
        specified = tuple(version for version in ("0.3", "1.0") if re.search(rf"\b{re.escape(version)} §", self.source))
        return specified if specified and not _GENERAL.search(self.source) else ALL


class Section:
    """Writes rows of one section: ``MUST("C-01", title, ...)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Row] = []

    def _add(
        self,
        severity: Severity,
        row_id: str,
        title: str,
        dialects: tuple[str, ...],
        source: str,
        how: str,
        remedy: str,
        incident: str = "",
        needs: Iterable[str] = (),
        binding_for: Iterable[str] = (),
    ) -> None:
        wanted = frozenset(needs)
        assert wanted <= NEEDS.keys(), row_id
        self.rows.append(
            Row(
                id=row_id,
                section=self.name,
                title=title,
                severity=severity,
                dialects=dialects,
                source=source,
                how=how,
                remedy=remedy,
                incident=incident,
                needs=wanted,
                binding_for=frozenset(binding_for),
            )
        )

    def must(self, *args: str | tuple[str, ...], **more: str | tuple[str, ...]) -> None:
        """Add a promise that binds."""
        self._add(Severity.MUST, *args, **more)  # type: ignore[arg-type]

    def should(self, *args: str | tuple[str, ...], **more: str | tuple[str, ...]) -> None:
        """Add a promise that a good agent keeps."""
        self._add(Severity.SHOULD, *args, **more)  # type: ignore[arg-type]

    def may(self, *args: str | tuple[str, ...], **more: str | tuple[str, ...]) -> None:
        """Add something worth knowing."""
        self._add(Severity.MAY, *args, **more)  # type: ignore[arg-type]
