"""The person's own ids in ``send``, and its output for a task without an answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest
import pytest_asyncio

from fleetsim.agent import Agent
from fleetsim.agent.skills import SkillContext, SkillFailed
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.server import listen, serving
from tests.cli.world import Shell
from tests.client.scripted import ScriptedAgent, chunk, status

pytestmark = pytest.mark.sockets


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    agent = Agent("teller")

    @agent.skill("tell")
    async def tell(task: SkillContext) -> str:
        return str(task.metadata.get("parentId"))

    @agent.skill("quiet")
    async def quiet(task: SkillContext) -> None:
        return None

    async with agent.serving() as found:
        yield found


async def test_parent_id_reaches_the_agent_by_url_and_through_the_hub(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: teller\n    url: {url}/a2a\n")
    for more in ((), ("--stream",)):
        done = await shell.arun("send", url, "x", "--skill", "tell", "--parent-id", "span-7", *more)
        assert done.stdout == "span-7\n", done.stderr
    refused = await shell.arun("send", url, "x", "--parent-id", "no spaces")
    assert (refused.returncode, "1 to 128 ASCII letters" in refused.stderr) == (2, True)
    with shell.up():
        done = await shell.arun("send", "teller", "x", "--skill", "tell", "--parent-id", "span-7")
        assert done.stdout == "span-7\n", done.stderr


async def test_a_completed_task_without_text_is_reported_on_stderr_and_stdout_stays_empty(
    shell: Shell, url: str
) -> None:
    done = await shell.arun("send", url, "x", "--skill", "quiet")
    assert (done.returncode, done.stdout) == (0, "")
    assert url in done.stderr
    row = await asyncio.to_thread(shell.json, "send", url, "x", "--skill", "quiet")
    assert row["text"] == ""


async def test_json_lines_stand_alone_on_a_terminal_however_long_the_agent_takes(shell: Shell) -> None:
    agent = Agent("slow", description="Takes its time")

    @agent.skill("tell", description="Tells")
    async def tell(task: SkillContext) -> str:
        await asyncio.sleep(1.2)
        return "done"

    async with agent.serving() as url:
        ours, theirs = os.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                *shell.command("send", url, "x", "--stream", "-o", "json"),
                cwd=shell.home,
                env=shell.environment(),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
            async with asyncio.timeout(40):
                assert await process.wait() == 0
            said = os.read(ours, 65_536).decode()
        finally:
            os.close(ours)
            os.close(theirs)
    *lines, last = said.splitlines()
    assert (json.loads(lines[-1])["state"], last[:11]) == ("completed", "✓ completed")
    assert "at work" not in said


@pytest.mark.parametrize("door", ["url", "hub"])
async def test_progress_is_shown_as_it_comes_beside_the_answer(door: str, shell: Shell) -> None:
    agent, seen = Agent("teller", description="Tells"), asyncio.Event()

    @agent.skill("tell", description="Tells")
    async def tell(task: SkillContext) -> str:
        await task.status("[b]lo\x1b[31mok")
        await seen.wait()
        return "the answer"

    async with agent.serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: teller\n    url: {url}/a2a\n")
        with shell.up() if door == "hub" else nullcontext():
            process = await asyncio.create_subprocess_exec(
                *shell.command("send", url if door == "url" else "teller", "x", "--stream"),
                cwd=shell.home,
                env=shell.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            assert process.stderr is not None
            async with asyncio.timeout(40):
                remark = await process.stderr.readline()
                seen.set()
                said = await process.stdout.read()
                assert await process.wait() == 0
            assert (remark.removeprefix("│ ".encode())[:5], remark[-3:], b"\x1b" in remark, said) == (
                b"[b]lo",
                b"ok\n",
                False,
                b"the answer\n",
            )


@pytest.mark.parametrize("door", ["url", "hub"])
@pytest.mark.parametrize("more", [(), ("--stream",)])
async def test_stdout_has_a_question_once_and_no_reason_of_a_failure(
    door: str, more: tuple[str, ...], shell: Shell
) -> None:
    agent = Agent("teller", description="Tells")

    @agent.skill("ask", description="Asks")
    async def ask(task: SkillContext) -> str:
        await task.say("so far")
        return await task.ask("Which city?")

    @agent.skill("fail", description="Fails")
    async def fail(task: SkillContext) -> str:
        await task.say("so far")
        raise SkillFailed("no quota")

    async with agent.serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: teller\n    url: {url}/a2a\n")
        with shell.up() if door == "hub" else nullcontext():
            to = url if door == "url" else "teller"
            asked = await shell.arun("send", to, "x", "--skill", "ask", *more)
            failed = await shell.arun("send", to, "x", "--skill", "fail", *more)
    beside = {"", "so far\n"} if more else {""}  # through the hub the question may overtake the pieces
    assert asked.stdout.removesuffix("Which city?\n") in beside
    assert failed.stdout in beside
    assert "no quota" in failed.stderr


async def test_a_commands_stderr_has_no_log_lines(shell: Shell) -> None:
    agent = ScriptedAgent({"*": [status("working"), b"data: {]\n\n", chunk("done"), status("completed", final=True)]})
    async with serving(agent.app, ServerLimits(), listen("127.0.0.1", 0)) as url:
        done = await shell.arun("send", url, "x", "--stream")
        logged = await shell.arun("send", url, "x", "--stream", "--debug")
    assert (done.stdout, "WARNING" in done.stderr) == ("done\n", False)
    assert "WARNING" in logged.stderr
