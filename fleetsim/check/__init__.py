"""``fleetsim check``: the gold-standard checklist as data, and the probes that hold an agent to it.

::

    report = await run_check("http://127.0.0.1:9000", runtime)
    assert report.passed()

Names are imported when they are first used: pytest loads the plugin in here in every environment that has
fleetsim, and pays for nothing it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetsim.check.agent_under_test import Hint, Options, Target
    from fleetsim.check.evidence import Verdict
    from fleetsim.check.listener import Listener, Sink, socket_listener
    from fleetsim.check.report import Finding, Report
    from fleetsim.check.requirement import Requirement, Severity
    from fleetsim.check.runner import run_check, select
    from fleetsim.check.sections import REQUIREMENTS

_NAMES = {
    "agent_under_test": ("Hint", "Options", "Target"),
    "evidence": ("Verdict",),
    "listener": ("Listener", "Sink", "socket_listener"),
    "report": ("Finding", "Report"),
    "requirement": ("Requirement", "Severity"),
    "runner": ("run_check", "select"),
    "sections": ("REQUIREMENTS",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "REQUIREMENTS",
    "Finding",
    "Hint",
    "Listener",
    "Options",
    "Report",
    "Requirement",
    "Severity",
    "Sink",
    "Target",
    "Verdict",
    "run_check",
    "select",
    "socket_listener",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fleetsim.check' has no attribute {name!r}")
    value = getattr(import_module(f"fleetsim.check.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
