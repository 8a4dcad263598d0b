"""The public names can be imported, and cost nothing until they are used."""

from __future__ import annotations

import subprocess
import sys
from inspect import iscoroutinefunction

import fleetsim
from fleetsim.client import HubClient


def test_every_public_name_can_be_imported() -> None:
    for name in fleetsim.__all__:
        assert getattr(fleetsim, name) is not None


def test_every_call_of_the_hub_client_has_a_blocking_form() -> None:
    names = {name for name, value in vars(HubClient).items() if not name.startswith("_")}
    calls = {name for name in names if iscoroutinefunction(getattr(HubClient, name))} - {"aclose"}
    assert calls == {name.removesuffix("_sync") for name in names if name.endswith("_sync")}


def test_importing_the_package_imports_no_heavy_module() -> None:
    heavy = "{'httpx', 'textual', 'starlette', 'pydantic'} & set(sys.modules)"
    script = f"import fleetsim, sys; sys.exit(len({heavy}))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
