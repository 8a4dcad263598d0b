"""The pages a newcomer follows: every piece of Python in them runs as it stands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fleetsim
import fleetsim.agent
from fleetsim.agent import Agent
from fleetsim.client import AgentClient
from fleetsim.testbed.network import in_process

TOP = Path(__file__).parents[2]
TUTORIAL = (TOP / "docs/tutorial/first-agent.md").read_text(encoding="utf-8")
PAGES = [TOP / "README.md", *(TOP / "docs/tutorial").glob("*.md"), *(TOP / "docs/howto").glob("*.md")]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def rows() -> list[tuple[str, str]]:
    """What a skill can do: what for, and the code, row by row."""
    table = TUTORIAL.partition("| To | Write |")[2].partition("\n\n")[0]
    found = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return [(what, re.findall(r"`([^`]+)`", code)[0].replace("{...}", '{"n": 1}')) for what, code in found]


def test_every_name_the_tutorial_uses_comes_from_where_it_says() -> None:
    prose = re.sub(r"```.*?```", "", TUTORIAL, flags=re.DOTALL)
    code = " ".join([*re.findall(r"`([^`]+)`", prose), *blocks(TOP / "docs/tutorial/first-agent.md")])
    used = {name for name in re.findall(r"\b([A-Z]\w+)\(", code) if name not in {"SentTask"}}
    assert {"DataPart", "Effect", "SkillRejected"} <= used
    assert {name for name in used if not hasattr(fleetsim.agent, name) and not hasattr(fleetsim, name)} == set()
    assert {name for name in used - {"AgentClient"} if not hasattr(fleetsim.agent, name)} == set()


@pytest.mark.parametrize(("what", "code"), rows())
async def test_what_the_tutorial_says_a_skill_can_do_it_can(what: str, code: str) -> None:
    """Each line of the table, as the body of a skill."""
    body = code if code.startswith(("return", "raise")) else f"{code}\n    return 'done'"
    known: dict[str, object] = {name: getattr(fleetsim.agent, name) for name in fleetsim.agent.__all__}
    exec(f"async def run(task):\n    {body}\n", known)
    agent = Agent("page", description="what the page says")
    agent.skill("run")(known["run"])
    async with in_process(agent.app()) as transport, AgentClient("http://page", transport=transport) as client:
        told = await client.send_task("hello")
        if told.waiting:
            told = await client.send_task("this one", task_id=told.id, context_id=told.context_id)
    wanted = {"raise SkillFailed": "failed", "raise SkillRejected": "rejected"}
    state = next((state for start, state in wanted.items() if code.startswith(start)), "completed")
    assert told.state.value == state, f"{what}: {told.error}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_import_the_pages_show_can_be_done(page: Path) -> None:
    own = {"greeter"}
    for block in blocks(page):
        tree = compile(block, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert isinstance(tree, ast.Module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module not in own:
                module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.sockets
async def test_the_readmes_agent_greets_the_readmes_client(capsys: pytest.CaptureFixture[str]) -> None:
    agent_code, client_code = blocks(TOP / "README.md")
    made: dict[str, object] = {}
    exec(agent_code.replace("agent.serve(port=9000)", ""), made)
    agent = made["agent"]
    assert isinstance(agent, Agent)
    async with agent.serving() as url:
        code = client_code.replace("http://127.0.0.1:9000", url)
        run: dict[str, object] = {}
        exec(f"async def main():\n{''.join(f'    {line}' for line in code.splitlines(keepends=True))}", run)
        await run["main"]()  # type: ignore[operator]
    assert capsys.readouterr().out == "completed Hello Ada\n"


def test_what_brings_pytest_is_named_where_pytest_is_needed() -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(wanted.startswith("pytest>") for wanted in extras["test"])
    needing = [page for page in PAGES if re.search(r"^pytest ", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert len(needing) >= 2
    assert [page.name for page in needing if "pip install 'fleetsim[test]'" not in page.read_text()] == []
    assert "fleetsim[test]" in TUTORIAL


def test_the_names_of_a_skill_cost_nothing_until_they_are_used() -> None:
    code = "import sys, fleetsim; fleetsim.DataPart; print('textual' in sys.modules, 'httptools' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP)
    assert done.stdout == "False False\n"
