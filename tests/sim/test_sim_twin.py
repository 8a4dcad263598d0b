"""``fleetsim sim init`` and ``fleetsim sim diff`` as a person and a script use them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.sim.scenario import parse_scenario
from tests.cli.world import Shell
from tests.command import run

pytestmark = pytest.mark.slow

MINE = """
name: mine
duration: 12m
fleet:
  quinn:
    skills:
      review: {takes: {p50: 5s, p95: 9s}, succeeds: 0.8, chunks: 4, cost: {low: 0.01, high: 0.02}}
  herald:
    streaming: false
    skills:
      sitrep: {takes: 3s}
traffic:
  - {skill: review, rate: 5/m}
  - {skill: sitrep, rate: 5/m}
"""


def invoke(folder: Path, *args: str) -> tuple[int, str, str]:
    done = run(("sim", *args), folder, os.environ)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and the recording of its run."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "mine.yaml").write_text(MINE)
    code, _, _ = invoke(folder, "mine.yaml", "--record", "run.jsonl")
    assert code == 0
    return folder


def test_a_twin_is_written_played_and_reported_to_fit(kept: Path, tmp_path: Path) -> None:
    code, out, err = invoke(tmp_path, "init", "--from-recording", str(kept / "run.jsonl"))
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "twin.yaml"
    assert lines[1].startswith("the twin fits: ")
    assert lines[2].split()[:4] == ["AGENT/SKILL", "FIGURE", "TASKS", "RECORDED"]
    assert {line.split()[1] for line in lines[3:]} == {"p50", "p95", "success_rate", "cost", "volume", "gap_p50"}
    assert "next: fleetsim sim twin.yaml" in err
    assert invoke(tmp_path, "twin.yaml")[0] == 0
    again = invoke(tmp_path, "init", "--from-recording", str(kept / "run.jsonl"), "--no-check")
    assert again[0] == 2
    assert "twin.yaml" in again[2]
    forced = invoke(tmp_path, "init", "--from-recording", str(kept / "run.jsonl"), "--no-check", "--force")
    assert (forced[0], forced[1]) == (0, "twin.yaml\n")


def test_ceremonies_and_settings_are_read_from_beside_agents_yaml(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: []\nfleet: {poll_interval_s: 7}\n")
    (tmp_path / "ceremonies").mkdir()
    ceremony = "id: daily\nname: Daily\nschedule: '@daily'\nskill: sitrep\ntargets: [all]\n"
    (tmp_path / "ceremonies" / "daily.yaml").write_text(ceremony)
    (tmp_path / "deep").mkdir()
    made = invoke(tmp_path, "init", "--from-recording", str(kept / "run.jsonl"), "--no-check", "--out", "deep/t.yaml")
    assert made[0] == 0
    text = (tmp_path / "deep" / "t.yaml").read_text()
    assert 'ceremonies: "../ceremonies"' in text
    assert "  poll_interval_s: 7" in text


def test_a_broken_ceremony_file_is_named_and_stops_neither_the_twin_nor_its_play(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    (tmp_path / "ceremonies").mkdir()
    (tmp_path / "ceremonies" / "broken.yaml").write_text("id: broken\nschedule: often\n")
    code, out, err = invoke(tmp_path, "init", "--from-recording", str(kept / "run.jsonl"))
    assert code == 0, err
    assert "the twin fits" in out
    assert "broken.yaml:1:" in err
    code, out, err = invoke(tmp_path, "twin.yaml")
    assert code == 1
    assert "broken.yaml:1:" in out


def test_exactly_one_source_must_be_named(tmp_path: Path) -> None:
    code, _, err = invoke(tmp_path, "init")
    assert code == 2
    assert "Say where to look" in err
    assert invoke(tmp_path, "init", "--from-ledger", "a", "--from-recording", "b")[0] == 2
    code, _, err = invoke(tmp_path, "init", "--from-ledger", "none.db")
    assert code == 2
    assert "none.db cannot be read" in err


def test_a_scenario_does_not_differ_from_its_recording(kept: Path) -> None:
    code, out, _ = invoke(kept, "diff", "mine.yaml", "run.jsonl")
    assert code == 0
    assert out.splitlines()[-1].startswith("0 of 11 figures ")


def test_a_slower_skill_differs_by_its_factor(kept: Path) -> None:
    (kept / "slower.yaml").write_text(MINE.replace("p50: 5s, p95: 9s", "p50: 10s, p95: 18s"))
    code, out, _ = invoke(kept, "diff", "run.jsonl", "slower.yaml", "-o", "json")
    assert code == 1
    told = json.loads(out)
    apart = {(f["agent"], f["figure"]) for f in told["figures"] if f["significant"]}
    assert ("quinn", "p50") in apart
    assert {agent for agent, _ in apart} == {"quinn"}
    assert invoke(kept, "diff", "run.jsonl", "slower.yaml", "--fail-over", "300")[0] == 0


def test_an_agent_on_one_side_only_is_named(kept: Path) -> None:
    fewer = MINE.replace("  - {skill: sitrep, rate: 5/m}\n", "")
    (kept / "fewer.yaml").write_text(fewer)
    code, out, _ = invoke(kept, "diff", "run.jsonl", "fewer.yaml")
    assert code == 1
    assert "herald/sitrep" in out


@pytest.mark.sockets
async def test_a_running_hub_and_its_ledger_yield_the_same_fleet(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"fleet: {{poll_interval_s: 1}}\nagents:\n  - name: scout\n    url: {url}/a2a\n")
        with shell.up():
            for text in ("one", "two"):
                assert (await shell.arun("send", "scout", text, "--skill", "echo")).returncode == 0
            asked = await shell.arun("sim", "init", "--from-hub", "--no-check")
            assert (asked.returncode, asked.stdout) == (0, "twin.yaml\n"), asked.stderr
            assert "scout/echo (2)" in asked.stderr
            read = await shell.arun("sim", "init", "--from-ledger", "state/ledger.db", "--out", "b.yaml", "--no-check")
            assert read.returncode == 0, read.stderr
            none = await shell.arun("sim", "init", "--from-hub", "--since", "1ms", "--out", "c.yaml")
            assert none.returncode == 2
            assert "nothing was seen" in none.stderr
    told, kept = (parse_scenario((tmp_path / name).read_text(), name)[0] for name in ("twin.yaml", "b.yaml"))
    assert told.fleet == kept.fleet
    assert told.fleet["scout"].streaming
    assert told.settings.poll_interval_s == 1
    assert [source.model_dump() for source in told.traffic] == [source.model_dump() for source in kept.traffic]
