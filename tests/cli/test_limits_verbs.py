"""``fleetsim limits`` beside a hub in a process of its own, and the config's places of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.fleet.config import parse_fleet
from fleetsim.model.errors import ConfigError
from tests.cli.world import Shell

AGENTS = "agents: [{name: quinn, url: 'http://127.0.0.1:9/a2a', skills: [echo]}]\nlimits:\n"


@pytest.mark.sockets
def test_limits_are_shown_and_raised_in_a_terminal(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.write(
        "agents.yaml", AGENTS + "  few: {requests: 1, agent: quinn}\n  daily: {usd: 5.5, zone: Europe/Berlin}\n"
    )
    with shell.up():
        assert shell.run("send", "quinn", "hi", "--skill", "echo", "--async").returncode == 0
        refused = shell.run("send", "quinn", "hi", "--skill", "echo", "--async")
        assert (refused.returncode != 0, "the limit few of 1 requests" in refused.stderr) == (True, True)
        head, few, daily = shell.run("limits").stdout.splitlines()
        assert head.split() == ["LIMIT", "OF", "PER", "MOST", "USED", "RESERVED", "LEFT", "SHARE", "RESETS"]
        assert (few.split()[0], "agent quinn" in few, "100%" in few, "$5.50" in daily) == ("few", True, True, True)
        raised = shell.run("limits", "raise", "few", "2", "--by", "ada")
        assert (raised.returncode, raised.stdout.partition(" until")[0]) == (0, "few: 3 requests")
        rows = shell.json("limits")
        assert [rows[0][key] for key in ("name", "used", "left", "raised")] == ["few", 1.0, 2.0, 2.0]
        assert "ada" in shell.run("audit").stdout
        assert shell.run("limits", "raise", "fewer", "2").returncode != 0


def test_a_wrong_limit_is_refused_with_its_place() -> None:
    wrong = {
        "a: {requests: 1, usd: 2}": "3:3: a limit has exactly one",
        "a: {per: day}": "3:3: a limit has exactly one",
        "a: {usd: 1, zone: Europe/Berln}": "3:21: unknown time zone",
        "a: {usd: 1, agent: quin}": "3:22: unknown agent “quin”",
        "a: {usd: 1, reserve: 2}": "3:24: is more than the limit",
        "a: {requests: -1}": "3:",
    }
    for text, said in wrong.items():
        with pytest.raises(ConfigError) as refused:
            parse_fleet(f"{AGENTS}  {text}\n", env={})
        assert said in str(refused.value), text
    assert parse_fleet(AGENTS, env={}).limits == {}
