"""People at a hub from the command line: ``--hub`` with their own keys, refusals, and ``audit``."""

from __future__ import annotations

import json

import pytest

from tests.cli.world import Shell

OLGA, VERA = "o" * 40, "v" * 40


@pytest.mark.sockets
def test_people_act_with_their_own_keys_and_the_audit_names_them(shell: Shell) -> None:
    shell.write("agents.yaml", "fleet: {retry_waits_s: []}\nagents: [{name: gone, url: http://127.0.0.1:9/a2a}]\n")
    roles = "  olga: {keyFile: olga, role: operator}\n  vera: {keyFile: vera, role: viewer}\n"
    shell.write("people.yaml", f"keys:\n{roles}")
    for name, key in (("olga", OLGA), ("vera", VERA)):
        shell.write(name, key)
        (shell.home / name).chmod(0o600)
    with shell.up():
        (line,) = (line for line in shell.told if line.startswith("hub at "))
        shell.env = {"FLEETSIM_HUB": line.split()[2].rstrip(","), "FLEETSIM_STATE": str(shell.home / "elsewhere")}
        without = shell.run("audit")
        assert (without.returncode, "WORKSTACEAN_API_KEY" in without.stderr) == (2, True)
        shell.env["WORKSTACEAN_API_KEY"] = VERA
        assert shell.run("audit").returncode == 6
        refused = shell.run("send", "gone", "hello")
        assert (refused.returncode, "operator" in refused.stderr) == (4, True), refused.stderr
        shell.env["WORKSTACEAN_API_KEY"] = OLGA
        assert shell.run("send", "gone", "hello").returncode != 4
        assert shell.run("task", "cancel", "unknown").returncode == 2
        (row,) = json.loads(shell.run("audit", "--since", "1h", "-o", "json").stdout)
        assert (row["by"], row["role"], row["action"]) == ("olga", "operator", "send")
        shown = shell.run("audit", "--name", "olga").stdout
        assert {"olga", "operator", "send", row["object"]} <= set(shown.split())
