"""The text of an agent cannot imitate a line of the command line or control a terminal (T-38)."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, run
from fleetsim.model.errors import ConfigError, FleetsimError, InternalError
from fleetsim.model.text import indented, neutralise
from tests.cli.world import Shell, answering
from tests.house.tree import TOP, parsed, shown, sources
from tests.terminal import on_a_terminal

EVIL = (
    "evil\nFORGED\r\nFORGED\rFORGED\x0bFORGED\x85FORGED\u2028FORGED"
    "\x1b[2K\x1b]0;x\x07\x9b31m\u202egro\u2069\u200b\U000e0041"
)


def _card(url: str) -> dict[str, Any]:
    return {
        "name": EVIL,
        "description": EVIL,
        "version": EVIL,
        "protocolVersion": "0.3.0",
        "url": f"{url}/a2a",
        "preferredTransport": "JSONRPC",
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "securitySchemes": {EVIL: {"type": EVIL, "scheme": EVIL}},
        "skills": [{"id": EVIL, "name": EVIL, "description": EVIL, "tags": [EVIL]}],
    }


class Liar:
    """An agent whose every field contains the line of ours that its prompt names."""

    def __init__(self) -> None:
        self.url = ""
        self.says = "first\nsecond"
        self.tasks: dict[str, Any] = {}

    def handle(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """One call."""
        if method == "GET":
            return 200, "application/json", json.dumps(_card(self.url)).encode()
        asked = json.loads(body)
        params = asked["params"]
        if asked["method"] == "message/send":
            task = self._made(params["message"]["parts"][0]["text"])
        else:
            task = self.tasks.get(params.get("id", ""))
        if task is None or task == "refuse":
            error = {"code": -32600, "message": EVIL, "data": {EVIL: EVIL}}
            return 200, "application/json", json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()
        return 200, "application/json", json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": task}).encode()

    def _made(self, text: str) -> Any:
        if text == "refuse":
            return text
        said = {"kind": "message", "messageId": EVIL, "role": "agent", "parts": [{"kind": "text", "text": EVIL}]}
        state = {"ask": "input-required", "fail": "failed"}.get(text, "completed")
        found = {"kind": "file", "file": {"name": EVIL, "mimeType": EVIL, "bytes": "aGk="}}
        task_id = f"{EVIL}-{len(self.tasks)}"
        self.tasks[task_id] = {
            "kind": "task",
            "id": task_id,
            "contextId": EVIL,
            "status": {"state": state, **({} if state == "completed" else {"message": said})},
            "artifacts": [{"artifactId": EVIL, "name": EVIL, "parts": [{"kind": "text", "text": self.says}, found]}],
        }
        return self.tasks[task_id]


@asynccontextmanager
async def liar() -> AsyncIterator[Liar]:
    made = Liar()
    async with answering(made.handle) as made.url:
        yield made


def forged(text: str) -> list[str]:
    """Lines that imitate ours, and control sequences of a terminal."""
    lines = [line for line in text.splitlines() if re.match(" {0,4}FORGED", line)]
    return [*lines, *(line for line in text.split("\n") if neutralise(line, limit=len(line) + 1) != line)]


async def told(shell: Shell, *args: str) -> str:
    """The whole output of a verb, without an answer that ``send`` passes on unchanged."""
    done = await shell.arun(*args)
    assert (done.stdout + done.stderr).strip(), args
    assert "fault in fleetsim" not in done.stderr, args
    return done.stderr if args[0] == "send" and "json" not in args else f"{done.stdout}\n{done.stderr}"


def followed(shell: Shell, *args: str) -> str:
    """The output of the first seconds of a verb that runs until Ctrl-C."""
    try:
        shell.run(*args, timeout=5)
    except subprocess.TimeoutExpired as ended:
        return b"".join(filter(None, (ended.stdout, ended.stderr))).decode()  # bytes, whatever was requested
    raise AssertionError("it did not go on")


@pytest.mark.sockets
async def test_an_agent_asked_directly_forges_no_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with liar() as agent:
        seen = {"card": await told(shell, "card", agent.url)}
        seen["card as JSON"] = await told(shell, "card", agent.url, "-o", "json")
        for word in ("done", "ask", "fail", "refuse"):
            seen[f"send {word}"] = await told(shell, "send", agent.url, word)
        seen["send as JSON"] = await told(shell, "send", agent.url, "ask", "-o", "json")
        done, asked, *_ = agent.tasks
        seen["task get done"] = await told(shell, "task", "get", done, "--agent", agent.url)
        seen["task get ask"] = await told(shell, "task", "get", asked, "--agent", agent.url)
        seen["task get none"] = await told(shell, "task", "get", "none", "--agent", agent.url)
        out = ("--out", str(tmp_path / "out"))
        seen["download"] = await told(shell, "task", "download", done, "--agent", agent.url, *out)
        seen["init"] = await told(shell, "init", agent.url)
        seen["check"] = await told(shell, "check", agent.url, "--only", "C-0*", "--only", "M-0*", "--verbose")
    assert {verb: found for verb, text in seen.items() if (found := forged(text))} == {}


@pytest.mark.sockets
async def test_an_agent_behind_the_hub_forges_no_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with liar() as agent:
        shell.write("agents.yaml", f"agents:\n  - {{ name: liar, url: {agent.url}/a2a, push: off }}\n")
        with shell.up():
            seen = {}
            for word in ("done", "ask", "fail", "refuse"):
                seen[f"send {word}"] = await told(shell, "send", "liar", word)
            seen["task list"] = await told(shell, "task", "list")
            listed = await asyncio.to_thread(shell.json, "task", "list")
            for row in [*listed["open"], *listed["recent"]]:
                if row["state"] != "completed":
                    seen[f"task get {row['state']}"] = await told(shell, "task", "get", row["correlationId"])
            seen["inbox"] = await told(shell, "inbox", "list")
            inbox = await asyncio.to_thread(shell.json, "inbox", "list")
            seen["inbox show"] = await told(shell, "inbox", "show", inbox["questions"][0]["questionId"], "-o", "json")
            seen["health"] = await told(shell, "health")
            seen["events"] = await asyncio.to_thread(followed, shell, "events", "--after", "0")
            assert "agent.skill.request" in seen["events"]
        seen["log"] = shell.said
    assert {verb: found for verb, text in seen.items() if (found := forged(text))} == {}


def on_terminal(shell: Shell, *args: str) -> str:
    """The whole output of a verb on a terminal of 60 columns, as the rows that a person sees."""
    with on_a_terminal(shell.command(*args), shell.home, shell.environment(), columns=60) as terminal:
        terminal.ended()
    lines = re.sub(r"\r\x1b\[K|\r(?=\n)", "", terminal.text).split("\n")
    return "\n".join(line[at : at + 60] for line in lines for at in range(0, max(1, len(line)), 60))


@pytest.mark.sockets
async def test_an_agents_text_on_a_terminal_begins_no_row(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with liar() as agent:
        agent.says = "first " + " " * 49 + "FORGED\nFORGED" + " " * 60 + "FORGED\n\n" + "x" * 56 + "FORGED"
        for word in ("done", "ask", "fail"):
            seen = await asyncio.to_thread(on_terminal, shell, "send", agent.url, word)
            assert seen.count("FORGED") >= 2, seen
            assert forged(seen) == [], seen
        for task in list(agent.tasks):
            seen = await asyncio.to_thread(on_terminal, shell, "task", "get", task, "--agent", agent.url)
            assert "FORGED" in seen
            assert forged(seen) == [], seen


def test_a_text_of_several_lines_hangs_below_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    render.labels([("state", "completed"), ("text", "one\ntwo"), ("task", EVIL)])
    CommonOptions().note(f"it said {EVIL}", "  next: see")
    CommonOptions().warn(EVIL)
    out, err = capsys.readouterr()
    assert out.startswith("state: completed\ntext: one\n  | two\ntask: evil\n  | FORGED\n")
    assert forged(out + err) == []
    assert "\n  next: see\n" in err


@pytest.mark.parametrize("argv", [[], ["-o", "json"]])
@pytest.mark.parametrize(
    "error", [FleetsimError(EVIL, hint=EVIL), ConfigError(EVIL), ValueError(EVIL), InternalError(EVIL)]
)
def test_an_error_that_quotes_an_agent_forges_no_line(
    error: Exception, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def verb() -> None:
        raise error

    run(verb, argv)
    assert forged(capsys.readouterr().err) == []


def test_the_words_of_an_agent_that_refuses_have_its_code_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    def verb() -> None:
        raise InternalError("unknown exception")

    run(verb, [])
    assert capsys.readouterr().err == "error: the agent refused it with -32603: unknown exception\n"


def test_only_the_first_line_of_a_hanging_text_begins_at_the_margin() -> None:
    text = indented(EVIL)
    assert [line.startswith("  | ") for line in text.split("\n")] == [False, *[True] * (len(text.split("\n")) - 1)]
    assert indented(text.replace("\n  | ", "\n")) == text


PRINTERS = {
    "fleetsim/cli/main.py": "notes, errors",
    "fleetsim/cli/render.py": "results",
    "fleetsim/cli/help.py": "the help of our verbs and the shell's completion, which are ours",
    "fleetsim/cli/terminal.py": "progress, one line of one_line; the prompt, which is ours",
}


@pytest.mark.slow
def test_every_verb_prints_through_the_escaping_functions() -> None:
    found = []
    for path in sources("fleetsim/cli"):
        if shown(path) in PRINTERS:
            continue
        for node in ast.walk(parsed(path)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}:
                found.append(f"{shown(path)}:{getattr(node, 'lineno', 0)} {called}")
    assert (TOP / "fleetsim/cli/main.py").exists()
    assert found == []
