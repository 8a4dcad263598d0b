"""``fleetsim check``: the gold-standard checklist as data, and the probes that hold an agent to it.

::

    report = await run_check("http://127.0.0.1:9000", runtime)
    assert report.passed()
"""

from __future__ import annotations

from fleetsim.check.listener import Listener, Sink, socket_listener
from fleetsim.check.report import Finding, Report
from fleetsim.check.row import Row, Severity, Verdict
from fleetsim.check.rows import ROWS
from fleetsim.check.runner import run_check, select
from fleetsim.check.subject import Hint, Knobs, Target

__all__ = [
    "ROWS",
    "Finding",
    "Hint",
    "Knobs",
    "Listener",
    "Report",
    "Row",
    "Severity",
    "Sink",
    "Target",
    "Verdict",
    "run_check",
    "select",
    "socket_listener",
]
