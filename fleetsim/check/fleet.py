"""Where the pytest plugin's fleet was in 0.1.0; its names are ``fleetsim.pytest_plugin.fleet``'s now, and warn."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_MOVED = ("Fleet", "Member", "VirtualTime", "WebhookSink")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is in fleetsim.pytest_plugin.fleet now", DeprecationWarning, stacklevel=2)
    return getattr(import_module("fleetsim.pytest_plugin.fleet"), name)
