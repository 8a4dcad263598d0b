"""``fleetsim check``: the gold-standard checklist as data, and the probes that hold an agent to it."""

from __future__ import annotations

from fleetsim.check.row import Row, Severity, Verdict
from fleetsim.check.rows import ROWS

__all__ = ["ROWS", "Row", "Severity", "Verdict"]
