"""``fleetsim config show``: each value has its origin, and no secret is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.world import Shell

pytestmark = pytest.mark.sockets

FLEET = """agents:
  - name: quinn
    url: https://quinn.example/a2a?code=hush-hush-1
    rpcUrl: ${QUINN_RPC:-https://me:hush-hush-4@quinn.example/rpc}
    headers: {x-team: hush-hush-2}
    auth: {scheme: bearer, credentialsEnv: QUINN_TOKEN}
fleet:
  task_limit_s: 90
"""


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (shell.home / "agents.yaml").write_text(FLEET)
    shell.env |= {
        "QUINN_TOKEN": "hush-hush-3",
        "QUINN_RPC": "https://quinn.example/rpc",
        "FLEETSIM_STATE": str(tmp_path / "s"),
        "FLEETSIM_LEDGER": "postgresql://fleet:hush-hush-5@db.example/fleet?password=hush-hush-6",
        "FLEETSIM_LEDGER_KEY": "hush-hush-7",
    }
    done = shell.run("-o", "json", "config", "show")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "fleetsim/config/1"
    rows = {row["name"]: (row["value"], row["origin"]) for row in document["values"]}
    assert rows["--output"] == ("json", "flag")
    assert rows["--state"] == (str(tmp_path / "s"), "environment")
    assert rows["--quiet"] == (False, "default")
    assert rows["FLEETSIM_LEDGER"][1] == rows["FLEETSIM_LEDGER_KEY"][1] == "environment"
    assert "db.example" in rows["FLEETSIM_LEDGER"][0]
    assert "FLEETSIM_LEDGER_KEY_FILE" not in rows
    assert rows["fleet.task_limit_s"] == (90, "agents.yaml:8:17")
    assert rows["fleet.card_refresh_s"][1] == "default"
    assert rows["agents.0.auth.credentialsEnv"][0] == "QUINN_TOKEN"
    assert "hush" not in done.stdout + done.stderr + shell.run("config", "show").stdout


def test_a_broken_file_is_a_usage_error(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (shell.home / "agents.yaml").write_text("agents:\n  - {name: a b}\n")
    assert shell.run("config", "show").returncode == 2


def test_a_file_in_a_parent_folder_counts_unless_others_can_write_there(tmp_path: Path) -> None:
    above, below = tmp_path / "fleet", tmp_path / "fleet" / "a" / "b"
    below.mkdir(parents=True)
    (above / "agents.yaml").write_text(FLEET)
    (above / "agents.yaml").chmod(0o644)
    above.chmod(0o755)
    shell = Shell(below, {"QUINN_TOKEN": "x", "QUINN_RPC": "https://quinn.example/rpc"})

    def origins() -> set[str]:
        return {row["origin"] for row in shell.json("config", "show")["values"]}

    assert f"{above}/agents.yaml:8:17" in origins()
    above.chmod(0o777)
    assert not any("agents.yaml:" in origin for origin in origins())
