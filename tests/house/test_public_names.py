"""The public names can be imported, and cost nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import fleetsim


def test_every_public_name_can_be_imported() -> None:
    for name in fleetsim.__all__:
        assert getattr(fleetsim, name) is not None


def test_importing_the_package_imports_no_heavy_module() -> None:
    heavy = "{'httpx', 'textual', 'starlette', 'pydantic'} & set(sys.modules)"
    script = f"import fleetsim, sys; sys.exit(len({heavy}))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
