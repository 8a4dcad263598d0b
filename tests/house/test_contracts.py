"""The import contracts hold, and each of them goes red when it is broken."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.tree import TOP

CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]

PLANTED = {
    "layers import only layers below them": ("fleetsim/wire/sse.py", "import fleetsim.caller.registry"),
    "no module imports itself over others, types included": (
        "fleetsim/runtime/ports.py",
        "if TYPE_CHECKING:\n    import fleetsim.runtime.sse",
    ),
    "production packages never import the testbed": ("fleetsim/hub/__init__.py", "import fleetsim.testbed.loop"),
    "the reference agent is an example: nobody takes parts from it, generic ones are the runtime's": (
        "fleetsim/hub/keys.py",
        "import fleetsim.agent.limits",
    ),
    "there is one guarded server": ("fleetsim/agent/guard.py", "import uvicorn"),
    "model and wire reach nothing outside": ("fleetsim/model/text.py", "import random"),
    "the deciding modules are pure: no loop, clock, chance, socket or screen, near or far": (
        "fleetsim/caller/track.py",
        "import fleetsim.runtime.workers",
    ),
    "a dialect is imported only by wire.dialect": ("fleetsim/client/__init__.py", "import fleetsim.wire.v0_3"),
}


def lint(folder: Path) -> dict[str, bool]:
    """Contract name: whether it was kept."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = re.findall(r"^(.+?) (KEPT|BROKEN)(?: \(.*\))?$", done.stdout, re.MULTILINE)
    assert len(verdicts) == len(CONTRACTS), done.stdout + done.stderr
    return {name: verdict == "KEPT" for name, verdict in verdicts}


def copy(folder: Path) -> Path:
    shutil.copytree(TOP / "fleetsim", folder / "fleetsim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "pyproject.toml", folder)
    return folder


@pytest.mark.slow
def test_every_contract_is_kept(tmp_path: Path) -> None:
    assert lint(copy(tmp_path)) == dict.fromkeys(CONTRACTS, True)


@pytest.mark.slow
def test_every_contract_goes_red_when_it_is_broken(tmp_path: Path) -> None:
    assert set(PLANTED) == set(CONTRACTS), "each contract needs a violation that proves it"
    copy(tmp_path)
    for module, statement in PLANTED.values():
        path = tmp_path / module
        path.write_text(path.read_text() + f"\n{statement}\n")
    assert lint(tmp_path) == dict.fromkeys(CONTRACTS, False)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("import time\ntime.sleep(1)", "TID251"),
        ("import time\nprint(time.time())", "TID251"),
        ("from datetime import UTC, datetime\nx = datetime.now(UTC)", "TID251"),
        ("import random\nx = random.random()", "TID251"),
        ("import secrets\nx = secrets.token_hex()", "TID251"),
        ("import uuid\nx = uuid.uuid4()", "TID251"),
        ("import asyncio\nx = asyncio.wait_for", "TID251"),
        ("import asyncio\nx = asyncio.create_task", "TID251"),
        ("try:\n    pass\nexcept Exception:\n    pass", "BLE001"),
    ],
)
def test_the_linter_refuses(line: str, rule: str) -> None:
    options = ["--output-format=concise", "--no-cache", "--stdin-filename", "fleetsim/caller/planted.py"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, "-"],
        input=f'"""A module."""\n\n{line}\n',
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert rule in done.stdout, done.stdout + done.stderr
