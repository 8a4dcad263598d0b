"""The pages for a team's CI: their files, written as on the pages, and every command run in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsim.runtime.yaml import load
from tests.check.sarif import run_in

pytestmark = [pytest.mark.slow, pytest.mark.sockets]

DOCS = Path(__file__).parents[2] / "docs"
SDK_PAGE = (DOCS / "howto" / "test-an-sdk-agent.md").read_text(encoding="utf-8")
CI_PAGE = (DOCS / "howto" / "run-in-ci.md").read_text(encoding="utf-8")
# The development environment has no SDK: this agent stands in for the page's.
AGENT = """
from fleetsim import Agent

app = Agent("greeter", description="Says hello")


@app.skill("greet", description="Greets a person by name")
async def greet(task):
    return f"Hello {task.text}"
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {
        **os.environ,
        "PATH": path,
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_WORKSPACE": str(folder),
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of an agent after the first page."""
    made = tmp_path_factory.mktemp("team")
    (made / "my_agent.py").write_text(AGENT)
    install, check, baseline, suite = blocks(SDK_PAGE, "sh")
    (made / "pytest.ini").write_text(blocks(SDK_PAGE, "ini")[0])
    (made / "test_my_agent.py").write_text(blocks(SDK_PAGE, "python")[1])
    (made / "day.yaml").write_text(blocks(CI_PAGE, "yaml")[0])
    assert install.startswith("pip install ")
    for commands in (check, baseline, suite):
        ended = in_shell(commands, made)
        assert ended.returncode == 0, f"{commands}{ended.stdout}{ended.stderr}"
    return made


def test_the_pages_agent_compiles() -> None:
    assert "app" in compile(blocks(SDK_PAGE, "python")[0], "my_agent.py", "exec").co_names


def test_each_step_of_the_workflow_runs_and_writes_its_reports(folder: Path) -> None:
    workflow = load((DOCS / "examples" / "fleetsim.yml").read_bytes(), "fleetsim.yml").value
    steps = [step["run"] for step in workflow["jobs"]["agent"]["steps"] if "run" in step]
    assert len(steps) >= 4
    for command in steps:
        if not command.startswith("pip install"):
            ended = in_shell(command, folder)
            assert ended.returncode == 0, f"{command}{ended.stdout}{ended.stderr}"
    for name in ("check.sarif", "sim.sarif"):
        run_in((folder / name).read_text())
    assert (folder / "summary.md").read_text().startswith("# fleetsim check")


def test_the_commands_for_another_ci_run(folder: Path) -> None:
    ended = in_shell(blocks(CI_PAGE, "sh")[-1], folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_worse_agent_gets_annotations_in_its_own_file(folder: Path) -> None:
    assert in_shell("fleetsim check --app my_agent:app --only C-03 --report json=before.json", folder).returncode == 0
    (folder / "worse.py").write_text(f"{AGENT}\napp = app.replace(url='http://127.0.0.1:1/nowhere')\n")
    ended = in_shell("fleetsim check --app worse:app --only C-03 --against before.json --report github=-", folder)
    assert ended.returncode == 1
    assert re.search(r"^::error file=worse\.py,line=1,title=C-03 MUST", ended.stdout, re.MULTILINE)
