"""The pages for a new user: every piece of Python in them runs as it stands."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from asyncio import to_thread
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import fleetsim
import fleetsim.agent
from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.model.task import FilePart
from fleetsim.runtime.ports import Limits, Request
from fleetsim.testbed.network import in_process
from fleetsim.wire.json import dump

TOP = Path(__file__).parents[2]
TUTORIAL = (TOP / "docs/tutorial/first-agent.md").read_text(encoding="utf-8")
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def rows() -> list[tuple[str, str]]:
    """The table of a skill's abilities: for each row its purpose and its code."""
    table = TUTORIAL.partition("| To | Write |")[2].partition("\n\n")[0]
    found = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return [(what, re.findall(r"`([^`]+)`", code)[0].replace("{...}", '{"n": 1}')) for what, code in found]


def test_every_import_of_the_tutorial_names_the_right_module() -> None:
    prose = re.sub(r"```.*?```", "", TUTORIAL, flags=re.DOTALL)
    code = " ".join([*re.findall(r"`([^`]+)`", prose), *blocks(TOP / "docs/tutorial/first-agent.md")])
    used = {name for name in re.findall(r"(?<![.\w])([A-Z]\w+)\(", code) if name not in {"SentTask"}}
    assert {"DataPart", "Effect", "SkillRejected"} <= used
    assert {name for name in used if not hasattr(fleetsim.agent, name) and not hasattr(fleetsim, name)} == set()
    assert {name for name in used - {"AgentClient"} if not hasattr(fleetsim.agent, name)} == set()


@pytest.mark.parametrize(("what", "code"), rows())
async def test_each_ability_in_the_tutorials_table_works(what: str, code: str) -> None:
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
def test_every_python_block_of_a_page_compiles_and_its_imports_are_there(page: Path) -> None:
    elsewhere = {"greeter", "my_agent", "a2a"}  # the page's own files, and an SDK that we do not install
    for block in blocks(page):
        tree = compile(block, page.name, "exec", ast.PyCF_ONLY_AST)
        compile(block, page.name, "exec")
        assert isinstance(tree, ast.Module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in elsewhere:
                module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def reader() -> Agent:
    """An agent for the pages: it greets, plans, books and draws."""
    agent = Agent("reader", description="what the pages ask for")

    @agent.skill("chat")
    async def chat(task: SkillContext) -> str:
        if task.text == "Book a room.":
            return f"booked in {await task.ask('Which city?')}"
        if task.text == "draw it":
            drawn = FilePart(raw=b64encode(dump(task.data)).decode(), filename="plot.json", media_type="image/png")
            await task.attach(drawn, name="plot")
        return {"Ada": "Hello Ada", "Plan the week.": "Mon: rest"}.get(task.text, "done")

    return agent


PROGRAMS = {
    ("README.md", 1): ["completed Hello Ada"],
    ("call-an-agent.md", 0): ["completed Mon: rest", "in the end: Mon: rest"],
    ("call-an-agent.md", 1): ["asked: Which city?", "booked in Lisbon"],
    ("files-and-data.md", 0): ["file 1: plot.json, image/png, 15 bytes 15"],
}
"""The last lines that each program prints that calls an agent on port 9000: page, number of the block."""


def calling() -> list[tuple[str, int, str]]:
    return [
        (page.name, number, block)
        for page in PAGES
        for number, block in enumerate(blocks(page))
        if 'AgentClient("http://127.0.0.1:9000")' in block
    ]


@pytest.mark.sockets
@pytest.mark.parametrize(("page", "number", "block"), calling(), ids=lambda value: str(value)[:20])
async def test_a_program_on_a_page_prints_the_documented_output(page: str, number: int, block: str) -> None:
    async with reader().serving() as url:
        command = [sys.executable, "-c", block.replace("http://127.0.0.1:9000", url)]
        done = await to_thread(subprocess.run, command, capture_output=True, text=True, check=False, cwd=TOP)
    printed = PROGRAMS[page, number]
    assert (done.stdout.splitlines()[-len(printed) :], done.returncode) == (printed, 0), done.stderr


@pytest.mark.sockets
async def test_the_readmes_agent_greets_by_name_and_asks_for_one() -> None:
    made: dict[str, object] = {}
    exec(blocks(TOP / "README.md")[0].replace("agent.serve(port=9000)", ""), made)
    agent = made["agent"]
    assert isinstance(agent, Agent)
    async with agent.serving() as url, AgentClient(url) as client:
        assert (await client.send_task("Ada")).text == "Hello Ada"
        assert (await client.send_task("/greet")).waiting


KIT_SENDS = [
    ("tck-complete-task", {}, "task", "TASK_STATE_COMPLETED", "Hello from TCK"),
    ("tck-input-required", {}, "task", "TASK_STATE_INPUT_REQUIRED", None),
    ("tck-auth-required", {}, "task", "TASK_STATE_AUTH_REQUIRED", None),
    ("tck-delayed-complete", {"returnImmediately": True}, "task", "TASK_STATE_SUBMITTED TASK_STATE_WORKING", None),
    ("tck-reject-task", {}, "task", "TASK_STATE_REJECTED", None),
    ("tck-artifact-text", {}, "task", "TASK_STATE_COMPLETED", "Generated text content"),
    ("tck-artifact-file", {}, "task", "TASK_STATE_COMPLETED", "dGNr"),
    ("tck-artifact-file-url", {}, "task", "TASK_STATE_COMPLETED", "https://example.com/output.txt"),
    ("tck-artifact-data", {}, "task", "TASK_STATE_COMPLETED", {"key": "value", "count": 42}),
    ("tck-message-response", {}, "message", None, "Direct message response"),
]
"""The official kit's message id and configuration, and the kind of reply, state and content that it expects."""


def kit_agent(version: str) -> Agent:
    """The agent that the page gives for the official kit of a version."""
    made: dict[str, object] = {}
    page = blocks(TOP / "docs/howto/test-your-agent.md")
    exec(next(block for block in page if f"the official kit of A2A {version}" in block), made)
    agent = made["agent"]
    assert isinstance(agent, Agent)
    return agent


@pytest.mark.parametrize(("message_id", "configuration", "kind", "states", "content"), KIT_SENDS)
async def test_the_agent_for_the_official_kit_follows_the_id_of_a_message(
    message_id: str, configuration: dict[str, bool], kind: str, states: str | None, content: object
) -> None:
    message = {"messageId": f"{message_id}-1f", "role": "ROLE_USER", "parts": [{"text": "anything"}]}
    request = posted("/a2a/message:send", {"message": message, "configuration": configuration})
    async with in_process(kit_agent("1.0").app()) as transport:
        reply = json.loads((await transport.exchange(request)).body)[kind]
    assert states is None or reply["status"]["state"] in states.split()
    if content is not None:
        (part,) = reply["parts"] if kind == "message" else reply["artifacts"][0]["parts"]
        assert content in part.values()


async def test_the_agent_for_the_official_kit_asks_again_as_often_as_the_kit_wants() -> None:
    """CORE-HIST-005 and CORE-HIST-006."""
    message: dict[str, Any] = {"role": "ROLE_USER", "parts": [{"text": "anything"}]}
    states = []
    async with in_process(kit_agent("1.0").app()) as transport:
        for kind in ("input-required", "input-required", "input-required", "complete-task"):
            message["messageId"] = f"tck-{kind}-{len(states)}"
            reply = json.loads((await transport.exchange(rpc("/a2a", "SendMessage", message))).body)["result"]["task"]
            message["taskId"] = reply["id"]
            states.append(reply["status"]["state"])
    assert states == [*["TASK_STATE_INPUT_REQUIRED"] * 3, "TASK_STATE_COMPLETED"]


@pytest.mark.parametrize(("message_id", "expected"), [({"messageId": "test-1"}, "submitted working"), ({}, "-32602")])
async def test_the_agent_for_the_kit_of_0_3_keeps_its_task_open_and_demands_an_id(
    message_id: dict[str, str], expected: str
) -> None:
    message = {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": "anything"}], **message_id}
    async with in_process(kit_agent("0.3").app()) as transport:
        reply = json.loads((await transport.exchange(rpc("/", "message/send", message))).body)
    told = reply["error"]["code"] if "error" in reply else reply["result"]["status"]["state"]
    assert str(told) in expected.split()


def rpc(path: str, method: str, message: dict[str, Any]) -> Request:
    return posted(path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}})


def posted(path: str, body: dict[str, Any]) -> Request:
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    limits = Limits(first_byte_s=60.0, total_s=60.0)
    return Request(method="POST", url=f"http://page{path}", headers=headers, body=dump(body), limits=limits)


def test_the_extra_that_installs_pytest_is_named_where_pytest_is_needed() -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(wanted.startswith("pytest>") for wanted in extras["test"])
    needing = [page for page in PAGES if re.search(r"^pytest ", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert len(needing) >= 2
    assert [page.name for page in needing if "pip install 'fleetsim[test]'" not in page.read_text()] == []
    assert "fleetsim[test]" in TUTORIAL


def test_importing_fleetsim_does_not_import_the_skill_modules() -> None:
    code = "import sys, fleetsim; fleetsim.DataPart; print('textual' in sys.modules, 'httptools' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP)
    assert done.stdout == "False False\n"
