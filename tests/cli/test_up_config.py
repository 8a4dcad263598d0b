"""``fleetsim up`` and its files: their places, the missing ones, and changes while it runs."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.cli.world import Shell

pytestmark = pytest.mark.sockets


LOCKED = "  - {name: locked, url: http://127.0.0.1:9/a2a, apiKeyEnv: LOCKED_KEY}\n"


def test_a_hub_that_does_not_start_is_reported_with_its_output(shell: Shell) -> None:
    shell.write("agents.yaml", "agents: 7\n")
    with pytest.raises(AssertionError, match=r"agents\.yaml:1"), shell.up():
        raise RuntimeError("a hub is up")
    assert "agents.yaml:1" in shell.said


async def test_a_missing_credential_disables_its_agent_and_the_fleet_starts(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - {{name: scout, url: {agent}/a2a}}\n{LOCKED}")
    with shell.up():
        (warning,) = [line for line in shell.told if line.startswith("warning: agents.yaml:3:60: ")]
        assert "export LOCKED_KEY=…" in warning
        assert (await shell.arun("send", "scout", "hello", "--skill", "echo")).stdout == "hello\n"
        refused = await shell.arun("send", "locked", "hello", "--skill", "echo")
        assert refused.returncode == 2
        assert "LOCKED_KEY" in refused.stderr
        rows = {row["agentName"]: row for row in (await asyncio.to_thread(shell.json, "health"))["agents"]}
        assert (rows["locked"]["health"], "LOCKED_KEY" in rows["locked"]["why"]) == ("paused", True)
        assert rows["scout"]["health"] == "up"


def test_up_strict_stops_at_a_missing_credential(shell: Shell) -> None:
    shell.write("agents.yaml", f"agents:\n{LOCKED}")
    done = shell.run("up", "--headless", "--strict")
    assert done.returncode == 2
    assert "agents.yaml:2:60: " in done.stderr


async def test_the_ceremonies_beside_the_configured_file_are_found_from_anywhere(shell: Shell, agent: str) -> None:
    shell.write("fleet/agents.yaml", f"agents:\n  - {{name: scout, url: {agent}/a2a}}\n")
    shell.write(
        "fleet/ceremonies/scout.hello.yaml",
        'id: scout.hello\nname: Hello\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [scout]\n',
    )
    with shell.up("--config", "fleet/agents.yaml"):
        assert "scout.hello" in (await shell.arun("ceremony", "list")).stdout


async def until(shell: Shell, seconds: float, *words: str) -> None:
    """Wait until the running hub has written a line with all these words."""
    async with asyncio.timeout(seconds):
        while True:
            if any(all(word in line for word in words) for line in shell.told):
                return
            await asyncio.sleep(0.05)


async def test_an_edited_file_takes_effect_within_seconds_and_a_broken_one_changes_nothing(
    shell: Shell, agent: str
) -> None:
    one = f"agents:\n  - {{name: scout, url: {agent}/a2a}}\n"
    shell.write("agents.yaml", one)
    with shell.up():
        assert (await shell.arun("send", "guide", "hello", "--skill", "echo")).returncode == 2
        shell.write("agents.yaml", one + f"  - {{name: guide, url: {agent}/a2a}}\n")
        await until(shell, 8, "agents.yaml was read again", "added: guide")
        assert (await shell.arun("send", "guide", "hello", "--skill", "echo")).stdout == "hello\n"
        asked = await shell.arun("send", "guide", "hi", "--skill", "ask")
        assert "Who shall I greet?" in asked.stdout
        shell.write("agents.yaml", "agents: [\n")
        await until(shell, 8, "agents.yaml was rejected", "agents.yaml:2:1")
        assert (await shell.arun("send", "guide", "still", "--skill", "echo")).stdout == "still\n"
        shell.write("agents.yaml", one)
        await until(shell, 8, "agents.yaml was read again", "removed: guide")
        refused = await shell.arun("send", "guide", "hello", "--skill", "echo")
        assert refused.returncode == 2
        assert "“guide”" in refused.stderr
        (question,) = (await asyncio.to_thread(shell.json, "inbox", "list"))["questions"]
        assert (await shell.arun("inbox", "reply", question["questionId"], "Ada")).returncode == 0
        ended = await shell.arun("task", "get", question["correlationId"], "--wait")
        assert "Hello Ada" in ended.stdout


READERS = (
    ("channel", "list"),
    ("health",),
    ("task", "list"),
    ("inbox", "list"),
    ("ceremony", "list"),
    ("send", "scout", "hello", "--skill", "echo"),
)


async def test_each_verb_that_reads_the_fleet_reports_a_rejected_agents_yaml(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - {{name: scout, url: {agent}/a2a}}\n")
    with shell.up():
        assert "agents.yaml" not in (await shell.arun("task", "list")).stderr
        shell.write("agents.yaml", f"agents:\n  - {{name: scout, url: {agent}/a2a, colour: red}}\n")
        async with asyncio.timeout(60):
            while "agents.yaml:2" not in (await shell.arun("-q", "task", "list")).stderr:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        for verb in READERS:
            done = await shell.arun(*verb)
            assert (done.returncode, "agents.yaml:2" in done.stderr) == (0, True), (verb, done.stderr)
            assert "agents.yaml" not in done.stdout, verb


def test_a_copy_of_the_state_folder_starts_no_second_hub_until_it_is_taken_over(shell: Shell) -> None:
    shell.write("agents.yaml", "agents: []\n")
    copy = shell.home / "copy"
    with shell.up():
        shutil.copytree(shell.home / "state", copy, ignore=shutil.ignore_patterns("*.lock", "hub.json"))
        refused = shell.run("up", "--headless", "--port", "0", "--state", str(copy))
        assert refused.returncode == 2
        assert "--take-over" in refused.stderr
        assert shell.run("task", "list").returncode == 0, "the original is not disturbed"
    with shell.up("--state", str(copy), "--take-over"):
        pass
    with shell.up("--state", str(copy)):
        pass
