"""The page on calling an agent: its Python runs as it stands, and prints what it says."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.testbed.network import in_process

PAGE = Path(__file__).parents[2] / "docs/howto/call-an-agent.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PRINTED = [
    ["completed Mon: rest", "in the end: Mon: rest"],
    ["asked: Which city?", "booked in Lisbon"],
]


def agent() -> Agent:
    planner = Agent("planner", description="Plans and books")

    @planner.skill("chat")
    async def chat(task: SkillContext) -> str:
        if task.text == "Plan the week.":
            return "Mon: rest"
        return f"booked in {await task.ask('Which city?')}"

    return planner


@pytest.mark.parametrize(("block", "printed"), [*zip(BLOCKS, PRINTED, strict=True)])
async def test_the_pages_python_does_what_the_page_says(
    block: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with in_process(agent().app()) as transport:
        code = block.replace('AgentClient("http://127.0.0.1:9000")', 'AgentClient("http://page", transport=transport)')
        assert code != block
        run = eval(compile(code, PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"transport": transport})
        assert inspect.isawaitable(run)
        await run
    assert capsys.readouterr().out.splitlines()[-len(printed) :] == printed
