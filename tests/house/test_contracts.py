"""The import contracts of pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.tree import TOP


@pytest.mark.slow
def test_every_contract_is_kept() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", program], cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
