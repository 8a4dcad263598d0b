"""``fleetsim backup`` of a working hub, ``kill -9``, ``fleetsim restore``, and the hub that continues."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext
from fleetsim.client.hub_client import HubClient
from fleetsim.hub.state import StateDir
from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.real import running_runtime
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets


FILES = {"ledger.db", "a2a-tasks.db", "api-key", "callback-keys.json"}


class Scout:
    """An agent that records each text that it worked on. ``url``: where it listens."""

    def __init__(self) -> None:
        self.worked: Counter[str] = Counter()
        self.url = ""
        self.agent = Agent("scout")

        @self.agent.skill("work")
        async def work(task: SkillContext) -> str:
            self.worked[task.text] += 1
            await asyncio.sleep(0.05)
            return f"done {task.text}"

        @self.agent.skill("ask")
        async def ask(task: SkillContext) -> str:
            return f"Hello {await task.ask('Who shall I greet?')}"


@pytest_asyncio.fixture
async def scout() -> AsyncIterator[Scout]:
    scout = Scout()
    async with scout.agent.serving() as scout.url:
        yield scout


@pytest.fixture
def shell(tmp_path: Path, scout: Scout) -> Shell:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", f"agents:\n  - {{name: scout, url: {scout.url}/a2a}}\n")
    return shell


async def traffic(hub: HubClient, accepted: list[str], stopped: asyncio.Event) -> None:
    """Send requests, eight at a time, until stopped; record those that the hub accepted."""

    async def one() -> None:
        while not stopped.is_set():
            name = f"w-{time.monotonic_ns()}"
            try:
                await hub.submit({"skill": "work", "text": name, "targets": ["scout"], "correlationId": name})
                accepted.append(name)
            except FleetsimError as error:
                print(error)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(8)))


async def until(what: str, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}")


async def test_a_hub_under_load_is_backed_up_killed_restored_and_repeats_no_request(shell: Shell, scout: Scout) -> None:
    state, before = StateDir(shell.home / "state"), list[str]()
    with shell.up() as process:
        asked = await shell.arun("send", "scout", "go", "--skill", "ask")
        assert asked.returncode == 0, asked.stderr
        async with running_runtime() as runtime:
            address = state.find()
            assert address is not None
            async with address.client(runtime) as hub:
                stopped = asyncio.Event()
                running = asyncio.create_task(traffic(hub, before, stopped))
                await until("traffic", lambda: len(before) > 50)
                sure = len(before)
                done = await shell.arun("backup", "b", "-o", "json")
                assert done.returncode == 0, done.stderr
                facts = json.loads(done.stdout)
                assert (facts["path"][:11], facts["questions"]) == ("b/fleetsim-", 1)
                assert facts["requests"] > sure
                assert {path.name for path in (shell.home / facts["path"]).iterdir()} == FILES
                seen = len(before)
                await until("traffic after the backup", lambda: len(before) > seen + 50)
                stopped.set()
                await running
                due = datetime.now(UTC) + timedelta(seconds=7)  # the hub reads the folder every 5 s
                shell.write(
                    "ceremonies/once.yaml",
                    f"id: once\nname: Once\nonce: true\nat: {due:%Y-%m-%dT%H:%M:%SZ}\nskill: work\ntargets: [scout]\n"
                    "prompt: the ceremony\n",
                )
                await until("the ceremony", lambda: any("the ceremony" in text for text in scout.worked))
                process.send_signal(signal.SIGKILL)
                process.wait()
    restored = await shell.arun("restore", "b", "-o", "json")
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout)["replaced"] is not None
    refused = await shell.arun("up", "--headless", "--port", "0", "-o", "json")
    assert (refused.returncode, json.loads(refused.stderr.splitlines()[-1])["error"]["code"]) == (
        2,
        "FLEETSIM_ERR_LEDGER_COPIED",
    )
    with shell.up("--take-over"):
        (question,) = (await asyncio.to_thread(shell.json, "inbox", "list"))["questions"]
        answered = await shell.arun("inbox", "reply", question["questionId"], "Ada")
        assert answered.returncode == 0, answered.stderr
        ended = await shell.arun("task", "get", question["correlationId"], "--wait")
        assert "Hello Ada" in ended.stdout
        async with running_runtime() as runtime:
            address = state.find()
            assert address is not None
            async with address.client(runtime) as hub:
                for name in before[:sure]:
                    task = await hub.task(name, wait_s=20)
                    assert task["kind"] in {"completed", "unknown"}, task
                await hub.submit({"skill": "work", "text": "later", "targets": ["scout"], "correlationId": "later"})
                assert (await hub.task("later", wait_s=20))["kind"] == "completed"
                (run,) = await hub.ceremony_runs("once")
                assert run["status"] == "missed"
    assert [text for text, times in scout.worked.items() if times > 1] == []
    assert set(before) <= set(scout.worked)


def test_each_error_is_one_sentence_with_the_next_step(shell: Shell) -> None:
    def wrong(*words: str) -> str:
        done = shell.run(*words)
        error, *rest = done.stderr.splitlines()
        assert (done.returncode, done.stdout, error[:7]) == (2, "", "error: "), done
        assert [line[:8] for line in rest] == ["  next: "], done.stderr
        return done.stderr

    assert "state" in wrong("backup", "b")
    wrong("restore", "b")
    with shell.up():
        wrong("backup", "missing/b")
        wrong("backup", "agents.yaml")
        assert shell.run("backup", "b").stdout.startswith("b/fleetsim-")
        wrong("restore", "b")
        wrong("restore", "agents.yaml")
    shell.env["FLEETSIM_LEDGER"] = "postgresql://fleet:hidden@db.example/fleet?schema=north"
    for verb in ("backup", "restore"):
        told = wrong(verb, "b")
        assert "--schema=north" in told
        assert "hidden" not in told
    del shell.env["FLEETSIM_LEDGER"]
    assert shell.run("restore", "b", "--take-over").returncode == 0
    with shell.up():
        assert shell.run("health").returncode == 0
    with shell.up("--memory"):
        wrong("backup", "c")


def test_a_full_disk_is_named_and_leaves_no_folder(shell: Shell) -> None:
    with shell.up():
        pass
    shell.env["PYTHONDONTWRITEBYTECODE"] = "1"  # a truncated compiled module would break the next test
    limited = f"ulimit -f 16; exec {' '.join(shell.command('backup', 'b'))}"
    done = subprocess.run(
        ["bash", "-c", limited], cwd=shell.home, env=shell.environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "  next: " in done.stderr
    assert sorted(path.name for path in shell.home.iterdir()) == ["agents.yaml", "state"]
