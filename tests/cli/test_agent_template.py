"""The agent that ``agent new`` writes runs, and its test passes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsim.cli.agent import files_for
from fleetsim.model.errors import ConfigError

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]


def test_the_template_is_about_twenty_lines() -> None:
    source = files_for("greeter")["greeter.py"]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    assert ast.parse(source)


def test_the_written_agent_runs_and_its_test_passes(tmp_path: Path) -> None:
    for name, content in files_for("my-greeter").items():
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.parametrize("name", ["", "9lives", "Über", "../x", "a b", "x" * 60])
def test_a_name_that_cannot_be_a_module_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        files_for(name)


def test_the_tutorial_shows_the_template_itself() -> None:
    page = (TOP / "docs/tutorial/first-agent.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    files = files_for("greeter")
    assert blocks[0] == files["greeter.py"]
    assert any(block.strip() in files["test_greeter.py"] for block in blocks[1:])
