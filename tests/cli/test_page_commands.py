"""Every shell block of the pages: each command exists with its options, and runs in the setting of its page.

The blocks of the README's first hour, the first fleet and the CI pages have tests that also compare the output.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetsim.cli.main import cli

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
ELSEWHERE = {"test-an-sdk-agent.md", "run-in-ci.md", "index.md"}
"""Pages whose blocks tests/check/test_ci_pages.py runs, and the front page, whose blocks are the README's."""

APART = {
    r"^(pip install|make) ": "it installs",
    r"^fleetsim up|^OTEL_": "a hub runs already; test_first_hour.py starts others",
    r"--watch|^fleetsim dashboard": "it draws screens, which tests/dashboard compares",
    r"--clock real\b|^fleetsim mcp|^fleetsim sim storm": "it takes a minute, or does not end",
    r"partner|functions\.example|channel test": "it needs a certificate, a key or a chat of the reader",
    r"fleetsim_app|--fleetsim-app|--app ": "tests/check/test_plugin.py and test_check_app.py run an agent of their own",
    r"^python (my_agent|greeter)\.py": "the agent of this test is in its place",
    r"^kill ": "it ends that agent",
    r"^fleetsim limits raise": "the fleet of this test has no limits",
    r"^fleetsim task save": "tests/tape saves requests",
    r"^fleetsim tape (record|play|replay)": "tests/tape records, plays and replays",
    r"^dask |--cluster ": "tests/sim plays on a cluster of real processes",
}
"""Commands that are only read, and why."""

CHANGED = (
    (r"--seeds \d+", "--seeds 1"),
    (r"--clock x10\b", "--clock x60"),
    (r"--for 8h", "--for 1s"),
    (r"http://127\.0\.0\.1:900[01]", "QUINN"),
    (r"https?://(quinn|scout|protomaker)\.(example|internal:7870/a2a)", "QUINN"),
    (r"http://127\.0\.0\.1:3000", "HUB"),
    (r"task download ID", "task download DRAWN"),
    (r"send quinn (.*)(--file|--data|--out)", r"send drawer \1\2"),
    (r"at: 5m, lasts: 10m", "at: 5s, lasts: 10s"),
)
"""Replacements in a test: shorter runs, and the addresses of its own agent and hub."""

DRAWER = """
from base64 import b64encode

from fleetsim import Agent, FilePart

agent = Agent("drawer", description="Draws")


@agent.skill("draw")
async def draw(task):
    raw = b64encode(b"a picture").decode()
    await task.attach(FilePart(raw=raw, filename="plot.png", media_type="image/png"), name="plot")
    return "drawn"


if __name__ == "__main__":
    agent.serve(port=0)
"""
"""The agent of the page about files: the profile quinn reads text alone."""

EXITS = {
    r"--fail-if|^fleetsim sim diff|--clock x10\b|--strict|^fleetsim health": {0, 1},
    r"^fleetsim (audit|limits)": {0, 6},
}
"""Exit codes besides 0 that depend on figures."""


def shell_blocks(page: Path) -> list[list[str]]:
    """The commands of each block, without comments and prompts."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        joined = block.replace("\\\n", " ")
        found.append(
            [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]
        )
    return found


def console_commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [
        line.removeprefix("$ ").removesuffix(" &")
        for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def fleetsim_commands() -> list[tuple[str, list[str]]]:
    """The words of each command of fleetsim on the pages, with its page."""
    found = []
    for page in PAGES:
        for line in [*(line for block in shell_blocks(page) for line in block), *console_commands(page)]:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|&;<>()"):
                    if "fleetsim" in words:
                        found.append((page.name, words[words.index("fleetsim") + 1 :]))
                    words = []
                else:
                    words.append(word)
    return found


def test_there_are_commands_on_the_pages() -> None:
    assert len(fleetsim_commands()) > 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_on_a_page_has_its_verb_and_options(page: Path) -> None:
    wrong = []
    for name, words in fleetsim_commands():
        if name == page.name:
            # The help is shown only after all words before it were parsed.
            shown = CliRunner().invoke(cli, [*words, "--help"])
            if shown.exit_code or "Usage:" not in shown.output:
                wrong.append(f"{' '.join(words)}: {shown.output}{shown.exception}")
    assert wrong == []


def test_the_messages_of_the_page_about_trouble_are_the_programs() -> None:
    page = (TOP / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `([^`]*)`[^|]*\|", page, re.MULTILINE)
    program = "".join(path.read_text(encoding="utf-8") for path in sorted((TOP / "fleetsim").rglob("*.py")))
    parts = [
        part.strip()
        for cell in cells
        if " " in cell
        for part in re.split(r"…|127\.0\.0\.1:3000|agents\.yaml[:\d]*", cell)
        if part.strip()
    ]
    assert len(parts) >= 4
    assert [part for part in parts if part not in program] == []


@dataclass(frozen=True)
class World:
    """A folder with a fleet, its hub, and the agent quinn."""

    folder: Path
    env: dict[str, str]
    quinn: str
    hub: str
    drawn: str

    def run(self, script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script], cwd=cwd, env=self.env, capture_output=True, text=True, timeout=240, check=False
        )


@contextmanager
def background(words: list[str], folder: Path, env: dict[str, str], says: str) -> Iterator[str]:
    """A process that continues, and the match of ``says`` in its output."""
    with subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := re.search(says, line))), None)
            assert found is not None, words
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the process
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("reader")
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "FUNC_KEY": "a-key-of-the-reader",
    }
    for name in ("report.pdf", "a.csv", "b.csv"):
        (folder / name).write_text("id,total\n1,2\n")
    (folder / "order.json").write_text('{"total": 3}')
    with ExitStack() as stack:
        words = ["fleetsim", "agent", "--profile", "quinn", "--name", "quinn", "--port", "0"]
        quinn = stack.enter_context(background(words, folder, env, r"serves A2A at (http://[^/]+)"))
        (folder / "drawer.py").write_text(DRAWER)
        words = [sys.executable, "drawer.py"]
        drawer = stack.enter_context(background(words, folder, env, r"serves A2A at (http://[^/]+)"))
        made = subprocess.run(
            ["fleetsim", "init", quinn, drawer], cwd=folder, env=env, capture_output=True, text=True, check=True
        )
        assert "agents.yaml" in made.stdout
        words = ["fleetsim", "up", "--headless", "--port", "0"]
        hub = stack.enter_context(background(words, folder, env, r"hub at (http://[^,\s]+)"))
        send = "printf 'review %s\\n' 1 2 3 4 5 6 | fleetsim chat quinn >chat.txt && fleetsim send drawer draw -o json"
        sent = subprocess.run(["bash", "-c", send], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert sent.returncode == 0, sent.stderr
        yield World(folder, env, quinn, hub, json.loads(sent.stdout)["correlationId"])


def script_of(block: list[str], world: World) -> str:
    """The block as a script that ends at the first command with an exit code of its own."""
    lines = []
    for line in block:
        if any(re.search(pattern, line) for pattern in APART):
            continue
        codes = {0}.union(*(extra for pattern, extra in EXITS.items() if re.search(pattern, line)))
        for pattern, instead in CHANGED:
            line = re.sub(pattern, instead, line)
        line = line.replace("QUINN", world.quinn).replace("HUB", world.hub).replace("DRAWN", world.drawn)
        allowed = "|".join(str(code) for code in sorted(codes))
        lines += [line, f"case $? in {allowed}) ;; *) exit 99 ;; esac"]
    return "\n".join(lines)


RUN = [page for page in PAGES if page.name not in ELSEWHERE and shell_blocks(page)]


@pytest.mark.slow
@pytest.mark.sockets
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_shell_blocks_of_a_page_run_in_their_order(page: Path, world: World, tmp_path: Path) -> None:
    whole = "\n".join(line for block in shell_blocks(page) for line in block)
    cwd = tmp_path if "fleetsim init" in whole or "agent new" in whole else world.folder
    for block in shell_blocks(page):
        if script := script_of(block, world):
            ended = world.run(script, cwd)
            assert ended.returncode == 0, (
                f"{script}\n--- stdout\n{ended.stdout[-3000:]}\n--- stderr\n{ended.stderr[-3000:]}"
            )
