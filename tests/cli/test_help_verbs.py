"""``fleetsim help`` and ``fleetsim completion``: the list of verbs for programs and shells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsim.cli.main import VERBS
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets


def test_help_json_names_every_verb_and_a_verb_has_its_options(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    document = json.loads(shell.run("help", "--json").stdout)
    assert document["schema"] == "fleetsim/help/1"
    assert {verb["name"] for verb in document["verbs"]} == {f"fleetsim {name}" for name in VERBS}
    get = json.loads(shell.run("-o", "json", "help", "task", "get").stdout)
    assert get["name"] == "fleetsim task get"
    assert ["task_id"] in [option["names"] for option in get["options"]]


def test_help_of_a_verb_is_its_help_and_of_an_unknown_one_a_usage_error(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell.run("help", "task", "get").stdout == shell.run("task", "get", "--help").stdout
    assert shell.run("help", "nix").returncode == 2


SHELLS = {
    "bash": 'eval "$({0} completion bash)"; COMP_WORDS=({0} ca); COMP_CWORD=1; '
    '_fleetsim_completion {0}; echo "${{COMPREPLY[@]}}"',
    "zsh": 'autoload -U compinit; compinit -D; eval "$({0} completion zsh)"; '
    "_describe() {{ print -r -- ${{(P)3}} }}; "
    "words=({0} ca); CURRENT=2; _fleetsim_completion",
    "fish": '{0} completion fish | source; complete -C "fleetsim ca"',
}


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_a_verb(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    path = str(Path(sys.executable).parent)
    done = subprocess.run(
        [name, "-c", SHELLS[name].format("fleetsim")],
        env={"PATH": f"{path}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "card" in done.stdout, done.stderr
