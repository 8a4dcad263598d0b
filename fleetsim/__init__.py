"""fleetsim: the caller's side of A2A, with a dashboard, a conformance check, a simulator and a reference agent."""

from __future__ import annotations

__version__ = "0.1.0"
