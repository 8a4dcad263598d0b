"""Objects named as ``module:name``, and the packages that a hub can do without."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fleetsim.model.errors import ConfigError

OPTIONAL = ("fleetsim.check", "fleetsim.pytest_plugin", "fleetsim.sim", "fleetsim.tape", "fleetsim.testbed")


def load(place: str) -> Any:
    """Import ``module:name``. Raises ConfigError if an optional package is not installed."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        hint = "install fleetsim again; its distribution contains all packages"
        raise ConfigError(f"the package {error.name} is not installed", hint=hint) from None
