"""``fleetsim doctor``: each fault of a machine, its files, its hub and its agents is a line with the next step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from fleetsim.agent.builtin import reference_agent
from tests.cli.world import Shell
from tests.ports import held_port

pytestmark = pytest.mark.sockets


def examined(shell: Shell, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the findings by check."""
    done = shell.run("-o", "json", "doctor", *options)
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    checks: dict[str, list[dict[str, Any]]] = {}
    for found in document["checks"]:
        assert (found["state"] == "ok") or found["next"], found
        checks.setdefault(found["check"], []).append(found)
    return done.returncode, checks


def state_of(checks: dict[str, list[dict[str, Any]]], check: str) -> list[str]:
    return [found["state"] for found in checks[check]]


async def test_a_healthy_fleet_has_no_failure_and_an_unreachable_agent_is_one(shell: Shell) -> None:
    async with reference_agent("scout").serving() as url:
        (shell.home / "agents.yaml").write_text(f"agents:\n  - {{name: scout, url: '{url}'}}\n")
        code, checks = await asyncio.to_thread(examined, shell)
        assert (code, state_of(checks, "agent scout")) == (0, ["ok"])
        with held_port() as port:
            with (shell.home / "agents.yaml").open("a") as file:
                file.write(f"  - {{name: gone, url: 'http://127.0.0.1:{port}'}}\n")
            code, checks = await asyncio.to_thread(examined, shell)
    assert (code, state_of(checks, "agent gone"), state_of(checks, "agent scout")) == (1, ["failure"], ["ok"])
    code, checks = await asyncio.to_thread(examined, shell, "--offline")
    assert code == 0
    assert checks.keys().isdisjoint({"agent gone", "links"})


@pytest.mark.parametrize(
    ("settings", "state"), [("base_url: 'http://10.0.0.7:3000'", "warning"), ("base_url: 'https://hub.example'", "ok")]
)
def test_notices_without_a_link_that_answers_are_a_warning(shell: Shell, settings: str, state: str) -> None:
    fleet = f"fleet: {{question_channels: [ops], {settings}}}\nchannels: {{ops: {{sinks: [{{kind: log}}]}}}}\n"
    (shell.home / "agents.yaml").write_text(f"agents: []\n{fleet}")
    assert state_of(examined(shell, "--offline")[1], "links") == [state]


async def test_a_skill_of_several_agents_is_one_warning(shell: Shell) -> None:
    async with reference_agent("scout").serving() as one, reference_agent("scout").serving() as two:
        agents = f"agents:\n  - {{name: a, url: '{one}'}}\n  - {{name: b, url: '{two}'}}\n"
        (shell.home / "agents.yaml").write_text(agents)
        code, checks = await asyncio.to_thread(examined, shell)
    assert code == 0
    assert set(state_of(checks, "skills")) == {"warning"}
    assert all("a, b" in found["text"] for found in checks["skills"])


async def test_a_list_that_names_nothing_known_is_a_warning(shell: Shell) -> None:
    async with reference_agent("scout").serving() as url:
        lists = "keys: {nobody: {may: [{agent: a, skills: [echo, ecko]}, {agent: all, skills: [ecko]}]}}\n"
        agents = f"agents:\n  - {{name: a, url: '{url}'}}\n{lists}ceremonies: {{none: {{may: []}}}}\n"
        (shell.home / "agents.yaml").write_text(agents)
        code, checks = await asyncio.to_thread(examined, shell)
    assert code == 0
    assert [found["text"].split(" ")[1] for found in checks["allow-lists"]] == [
        "nobody:",
        "none:",
        "nobody:",
        "nobody:",
    ]
    assert sum("'ecko'" in found["text"] for found in checks["allow-lists"]) == 2


async def test_a_limit_that_counts_nothing_is_a_warning(shell: Shell) -> None:
    async with reference_agent("scout").serving() as url:
        unused = {"a": "key: nobody", "b": "ceremony: none", "c": "skill: ecko", "d": "skill: echo", "e": "skill: chat"}
        limits = "".join(f"  {name}: {{requests: 1, {what}}}\n" for name, what in unused.items())
        (shell.home / "agents.yaml").write_text(f"agents:\n  - {{name: scout, url: '{url}'}}\nlimits:\n{limits}")
        code, checks = await asyncio.to_thread(examined, shell)
    assert code == 0
    assert [found["text"].split(":")[1].strip() for found in checks["limits"]] == ["a", "b", "c"]


def _nothing(shell: Shell) -> None:
    """A folder without a fleet."""


def _broken_fleet(shell: Shell) -> None:
    (shell.home / "agents.yaml").write_text("agents:\n  - {name: a b, url: nowhere}\n")


def _broken_ceremony(shell: Shell) -> None:
    (shell.home / "agents.yaml").write_text("agents: []\n")
    (shell.home / "ceremonies").mkdir()
    (shell.home / "ceremonies" / "x.yaml").write_text("id: x\nschedule: never\n")


def _open_folder(shell: Shell) -> None:
    state = shell.home / "open-state"
    state.mkdir(mode=0o755)
    shell.env["FLEETSIM_STATE"] = str(state)


@pytest.mark.parametrize(
    ("fault", "check", "state", "code"),
    [
        (_nothing, "agents.yaml", "warning", 0),
        (_broken_fleet, "agents.yaml", "failure", 1),
        (_broken_ceremony, "ceremonies", "failure", 1),
        (_open_folder, "state folder", "failure", 1),
    ],
)
def test_a_fault_is_found_and_sets_the_exit_code(
    shell: Shell, fault: Callable[[Shell], None], check: str, state: str, code: int
) -> None:
    fault(shell)
    returned, checks = examined(shell)
    assert (returned, state_of(checks, check)) == (code, [state])


def test_a_restored_ledger_that_waits_for_a_person_is_a_warning(shell: Shell) -> None:
    shell.write("agents.yaml", "agents:\n  - {name: scout, url: 'http://127.0.0.1:9/a2a'}\n")
    with shell.up():
        assert shell.run("backup", "b").returncode == 0
    assert state_of(examined(shell, "--offline")[1], "hub") == ["ok"]
    assert shell.run("restore", "b").returncode == 0
    assert state_of(examined(shell, "--offline")[1], "hub") == ["warning"]


async def test_a_hub_whose_ledger_lost_its_file_is_a_failure(shell: Shell) -> None:
    async with reference_agent().serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: reference\n    url: {url}/a2a\n")
        with shell.up():
            assert state_of((await asyncio.to_thread(examined, shell, "--offline"))[1], "hub") == ["ok"]
            for path in shell.home.rglob("ledger.db-wal"):
                path.unlink()
            code, checks = await asyncio.to_thread(examined, shell, "--offline")
            assert (code, state_of(checks, "hub")) == (1, ["failure"])


async def test_an_agent_whose_key_only_the_running_hub_has_is_not_called_disabled(shell: Shell) -> None:
    async with reference_agent().serving() as url:
        shell.write("agents.yaml", f"agents:\n  - {{name: scout, url: '{url}/a2a', apiKeyEnv: SCOUT_KEY}}\n")
        shell.env["SCOUT_KEY"] = "secret"
        with shell.up():
            del shell.env["SCOUT_KEY"]
            checks = (await asyncio.to_thread(examined, shell))[1]
            assert state_of(checks, "agents.yaml") == ["ok"]
            assert "1 of 1 agents enabled" in checks["agents.yaml"][0]["text"]
            assert state_of(checks, "agent scout") == ["ok"]
        checks = (await asyncio.to_thread(examined, shell))[1]
        assert state_of(checks, "agents.yaml") == ["ok", "warning"]
