"""The page for agents' authors: its Python runs as it stands, against a real hub and a real agent."""

from __future__ import annotations

import re
import subprocess
import sys
from asyncio import to_thread
from pathlib import Path

import pytest

from fleetsim.cli.main import VERBS
from tests.cli.test_mcp import ground
from tests.hub.test_agent_keys import QUINN

pytestmark = pytest.mark.sockets

PAGE = Path(__file__).parents[2] / "docs/howto/reach-the-fleet-from-an-agent.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PRINTED = [
    "I am quinn\nquinn.again on\nquinn.sweep paused\ndone you said hello\nyou said sweep the yard\n",
    "",  # a function, which no line of the page calls
    "",  # the reference agent draws nothing
    "False No ceremonies registered.\n",
]


@pytest.mark.parametrize(("block", "printed"), [*zip(BLOCKS, PRINTED, strict=True)])
async def test_the_pages_python_has_the_documented_result(block: str, printed: str, tmp_path: Path) -> None:
    async with ground(tmp_path) as at:
        env = {**at.shell.environment(), "WORKSTACEAN_URL": at.url, "WORKSTACEAN_API_KEY": QUINN, "PYTHONPATH": "."}
        command = [sys.executable, "-c", block]
        done = await to_thread(
            subprocess.run, command, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr


def test_the_verb_on_the_page_exists() -> None:
    assert "fleetsim mcp" in PAGE.read_text()
    assert "mcp" in VERBS
