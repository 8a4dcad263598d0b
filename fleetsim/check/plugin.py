"""Where the pytest plugin was in 0.1.0: ``-p fleetsim.check.plugin`` loads the one of today."""

from __future__ import annotations

pytest_plugins = ("fleetsim.pytest_plugin.plugin",)
