"""Imports what the verbs of the command line need, once for all commands that ``tests.command.run`` forks."""

from __future__ import annotations

import gc
import importlib
import pkgutil

import fleetsim.agent.builtin
import fleetsim.cli
import fleetsim.hub.server
import fleetsim.runtime.real

for module in pkgutil.iter_modules(fleetsim.cli.__path__):
    importlib.import_module(f"fleetsim.cli.{module.name}")
gc.freeze()  # a collection in a child would copy all of it
