"""Imports, checked in the graph and in real processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.house.tree import TOP, parsed, shown, sources

pytestmark = pytest.mark.slow

HEAVY = ("textual", "rich", "starlette", "uvicorn", "httptools", "httpx", "pydantic", "sqlite3", "hypothesis", "pytest")
ONLY_WITH_A_HUB = ("textual", "pydantic", "httpx", "fleetsim.events.request", "fleetsim.client.hub_client")
"""What `fleetsim send URL` can do without: each adds to the time before the first byte goes out."""


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh process has after ``statement``."""
    code = f"import sys\n{textwrap.dedent(statement)}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP, env={**os.environ}
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("fleetsim", HEAVY),
        ("fleetsim.model.task", (*HEAVY, "asyncio", "random", "socket")),
        (
            "fleetsim.wire.dialect",
            ("textual", "rich", "starlette", "uvicorn", "httptools", "httpx", "asyncio", "socket"),
        ),
        ("fleetsim.request", ("textual", "starlette", "uvicorn", "httptools", "httpx")),
        ("fleetsim.dashboard.view", ("textual", "rich", "starlette", "uvicorn", "httptools", "httpx")),
        ("fleetsim.cli.main", ("textual", "hypothesis", "pytest")),
        ("fleetsim.cli.send", ONLY_WITH_A_HUB),
        ("fleetsim.cli.ask", ONLY_WITH_A_HUB),
    ],
)
def test_a_fresh_process_does_not_load(module: str, forbidden: tuple[str, ...]) -> None:
    assert find_spec(module) is not None
    assert loaded_by(f"import {module}") & set(forbidden) == set()


def module_of(path: Path) -> str:
    return shown(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def loaded_first(path: Path, modules: set[str]) -> set[str]:
    """The modules of ours that importing this one imports, without those inside functions or for types alone."""
    found: set[str] = set()
    queue: list[ast.stmt] = list(parsed(path).body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= inner or {node.module}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            queue += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            queue += [*node.body, *node.orelse, *node.finalbody]
    return found & modules


def test_no_module_imports_itself_in_a_circle() -> None:
    paths = {module_of(path): path for path in sources("fleetsim")}
    imports = {module: loaded_first(path, set(paths)) for module, path in paths.items()}
    # Remove modules without remaining imports, again and again; the rest is in a circle or leads to one.
    while done := {module for module, wanted in imports.items() if not wanted & set(imports)}:
        imports = {module: wanted for module, wanted in imports.items() if module not in done}
    assert imports == {}


def test_every_module_can_be_imported() -> None:
    modules = [
        shown(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in sources("fleetsim")
    ]
    quiet = [module for module in modules if not module.endswith("__main__")]
    assert "fleetsim" in loaded_by("\n".join(f"import {module}" for module in quiet))
