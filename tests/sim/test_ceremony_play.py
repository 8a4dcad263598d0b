"""``fleetsim ceremony play``: a span of schedules fired, on virtual time and against real agents."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fleetsim.agent import Agent, SkillContext
from tests.cli.world import Shell

pytestmark = pytest.mark.slow

DIGEST = """
id: digest
name: Digest
schedule: "0 * * * *"
timezone: Europe/Berlin
skill: report
targets: [quinn]
"""
CHAIN = """
id: chain
name: Chain
schedule: "* * * * *"
skill: slow_report
targets: [ava]
"""
SLOW = """
name: slow
duration: 1h
fleet:
  quinn: {skills: {report: {takes: 5s, succeeds: 0.0}}}
  ava: {skills: {slow_report: {takes: 90s}}}
"""
AGENTS = """
agents:
  - {name: quinn, url: "http://127.0.0.1:9"}
  - {name: ava, url: "http://127.0.0.1:9", enabled: false}
"""
SEVEN_HOURS = ("--from", "2026-10-25T00:00", "--to", "2026-10-25T06:00", "--tz", "Europe/Berlin")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.write("ceremonies/digest.yaml", DIGEST)
    made.write("agents.yaml", AGENTS)
    return made


def test_every_slot_of_a_span_fires_also_at_a_change_of_the_clocks(shell: Shell) -> None:
    done = shell.run("ceremony", "play", *SEVEN_HOURS, "--expect", "fired == 7", "--expect", "missed == 0")
    assert done.returncode == 0, done.stderr
    heads, row = [line.split() for line in done.stdout.partition("ceremonies:\n")[2].splitlines()[:2]]
    assert dict(zip(heads, row[1:], strict=True)) == {
        **dict.fromkeys(("DUE", "FIRED", "SUCCESS"), "7"),
        **dict.fromkeys(("LATE", "MISSED", "SKIPPED", "FAILURE", "TIMEOUT", "RUNNING"), "0"),
    }
    again = done.stdout.splitlines()[-1].removeprefix("play it again: fleetsim ")
    assert again.startswith("ceremony play --from 2026-10-25T00:00 ")
    assert shell.run(*shlex.split(again)[:-4], "--expect", "fired == 8").returncode == 1


def test_a_scenarios_fleet_shows_skipped_and_failed_runs(shell: Shell) -> None:
    shell.write("ceremonies/chain.yaml", CHAIN)
    shell.write("slow.yaml", SLOW)
    span = ("--from", "2026-03-02T05:55", "--to", "2026-03-02T06:15", "--tz", "Europe/Berlin")
    told = shell.json("ceremony", "play", *span, "--scenario", "slow.yaml")
    chain, digest = told["ceremonies"]  # one run of 90 seconds lets the next slot pass
    assert chain == {
        "ceremony": "chain",
        "due": 20,
        "fired": 10,
        "late": 0,
        "missed": 0,
        "skipped": 10,
        "ended": {"success": 10},
        "running": 0,
    }
    assert digest["ended"] == {"failure": 1}
    only = shell.json("ceremony", "play", "digest", *span, "--scenario", "slow.yaml")
    assert [totals["ceremony"] for totals in only["ceremonies"]] == ["digest"]


def test_an_error_ends_with_2_and_its_description(shell: Shell) -> None:
    for words, said in (
        (("--from", "yesterday", "--to", "2026-10-26T00:00"), "yesterday"),
        (("--from", "2026-10-26T00:00", "--to", "2026-10-24T00:00"), "the span must be"),
        ((*SEVEN_HOURS, "--speed", "fast"), "must be virtual, real, or xN"),
        ((*SEVEN_HOURS, "--expect", "fierd == 1"), "did you mean 'fired'?"),
        ((*SEVEN_HOURS, "--tz", "Mars/Olympus"), "Mars/Olympus"),
        ((*SEVEN_HOURS, "digets"), "there is no ceremony “digets”"),
        ((*SEVEN_HOURS, "--config", "none.yaml", "--folder", "ceremonies"), "none.yaml"),
        ((*SEVEN_HOURS, "--speed", "x60", "--scenario", "storm"), "--scenario is for --speed virtual"),
    ):
        done = shell.run("ceremony", "play", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert said in done.stderr, (words, done.stderr)


def test_a_target_that_accepts_no_work_fails_its_runs_and_the_verdict(shell: Shell) -> None:
    shell.write("ceremonies/chain.yaml", CHAIN.replace("* * * * *", "*/30 * * * *").replace("[ava]", "[ava, quin]"))
    done = shell.run("ceremony", "play", *SEVEN_HOURS, "-o", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    chain, digest = told["ceremonies"]
    assert (chain["ended"], digest["ended"]) == ({"failure": 14}, {"success": 7})
    ava, quin = told["problems"]
    assert "ava" in ava
    assert "“quinn”" in quin


def test_an_agent_whose_credential_is_not_set_here_is_played_and_named(shell: Shell) -> None:
    shell.write("agents.yaml", AGENTS.replace('9"}', '9", apiKeyEnv: NOT_SET_HERE}'))
    done = shell.run("ceremony", "play", *SEVEN_HOURS, "--expect", "fired == 7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quinn" in done.stderr


def test_a_broken_file_stops_no_other_ceremony_and_is_in_the_verdict(shell: Shell) -> None:
    shell.write("ceremonies/broken.yaml", "id: broken\nschedule: often\n")
    done = shell.run("ceremony", "play", *SEVEN_HOURS, "-o", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["ceremonies"][0]["ended"] == {"success": 7}
    assert "broken.yaml:1:" in told["problems"][0]
    assert shell.run("ceremony", "play", "digest", *SEVEN_HOURS).returncode == 0
    asked = shell.run("ceremony", "play", "broken", *SEVEN_HOURS)
    assert asked.returncode == 2
    assert "broken.yaml:1:" in asked.stderr


def test_the_number_of_requests_is_printed_before_they_are_played(shell: Shell) -> None:
    assert "7 requests in 7 slots" in shell.run("ceremony", "play", *SEVEN_HOURS).stderr


@pytest.mark.sockets
async def test_a_skill_that_is_not_on_the_card_is_refused_like_at_the_hub(shell: Shell) -> None:
    agent = Agent("quinn")

    @agent.skill("reports")
    async def reports(task: SkillContext) -> str:
        return "all is well"

    async with agent.serving() as url:
        shell.write("agents.yaml", f'agents: [{{name: quinn, url: "{url.rstrip("/")}/a2a"}}]\n')
        done = await shell.arun("ceremony", "play", *SEVEN_HOURS, "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ceremonies"][0]["ended"]) == (1, {"failure": 7}), done.stderr
    assert "did you mean “reports”?" in told["problems"][0]


@pytest.mark.sockets
async def test_real_agents_are_called_faster_than_real_time(shell: Shell) -> None:
    shell.write("ceremonies/digest.yaml", DIGEST.replace("0 * * * *", "*/5 * * * *"))
    agent, asked = Agent("quinn"), []

    @agent.skill("report")
    async def report(task: SkillContext) -> str:
        asked.append(task.task_id)
        return "all is well"

    async with agent.serving() as url:
        shell.write("agents.yaml", f'agents: [{{name: quinn, url: "{url.rstrip("/")}/a2a"}}]\n')
        span = ("--from", "2026-03-02T14:00", "--to", "2026-03-02T14:10", "--speed", "x60")
        done = await shell.arun("ceremony", "play", *span, "--expect", "success_rate == 100%", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 agents" in done.stderr
    told = json.loads(done.stdout)
    assert told["clock"] == "x60"
    # An agent that is late for four seconds of the machine's is late for minutes of the run's, and is called again.
    assert told["ceremonies"][0]["due"] == told["ceremonies"][0]["fired"] == 2 <= len(asked)
    assert told["ceremonies"][0]["ended"] == {"success": 2}
