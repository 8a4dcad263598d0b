"""Text on the command line: whole in a pipe, marked when cut, refused when too long; by URL and through the hub."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.model.limits import TEXT_CHARS_MAX
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets

HEAD, TAIL = "A\u200d\u200c\U0001f600\x01", "\x1b[2J\u200d\U0001f3f3\ufe0f\u200d\U0001f308Z"


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[str]:
    agent = Agent("scout")

    @agent.skill("say")
    async def say(task: SkillContext) -> str:
        return HEAD + "x" * (int(task.text.split()[0]) - len(HEAD) - len(TAIL)) + TAIL

    @agent.skill("chunks")
    async def chunks(task: SkillContext) -> None:
        for number in range(int(task.text.split()[0])):
            await task.say(f"{number:04d}\u200d" * (2_000 if number == 7 else 1))

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("r" * int(task.text.split()[0]))

    async with agent.serving() as url:
        yield url


def whole(chars: int) -> str:
    return HEAD + "x" * (chars - len(HEAD) - len(TAIL)) + TAIL


async def test_text_at_the_command_line_is_the_same_by_url_and_through_the_hub(tmp_path: Path, agent: str) -> None:
    shell = Shell(tmp_path)
    shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {agent}/a2a\n")
    url = f"{agent}/a2a"
    streamed = "".join(f"{number:04d}\u200d" * (2_000 if number == 7 else 1) for number in range(300))
    with shell.up():
        for door in (url, "scout"):
            done = await shell.arun("send", door, "200000", "--skill", "say")
            assert (done.returncode, done.stdout == whole(200_000) + "\n") == (0, True), done.stderr
            assert "cut" not in done.stderr

            done = await shell.arun("send", door, "300", "--skill", "chunks", "--stream")
            assert (done.returncode, done.stdout == streamed + "\n") == (0, True), done.stderr

            done = await shell.arun("send", door, "1100000", "--skill", "say", "-o", "json")
            told = json.loads(done.stdout)
            assert (len(told["text"]), told["truncated"], told["textChars"]) == (TEXT_CHARS_MAX, True, 1_100_000)
            assert told["text"] == whole(1_100_000)[:TEXT_CHARS_MAX]

            done = await shell.arun("send", door, "1100000", "--skill", "say", "--quiet")
            assert len(done.stdout) == TEXT_CHARS_MAX + 1
            assert "1,048,576 of 1,100,000 " in done.stderr
            command = done.stderr.rpartition("next: fleetsim ")[2].split()
            rest = await shell.arun(*command, "-o", "json")
            assert json.loads(rest.stdout)["text"] == whole(1_100_000), rest.stderr
            assert json.loads(rest.stdout)["truncated"] is False

            done = await shell.arun("send", door, "-", stdin="y" * (TEXT_CHARS_MAX + 1))
            assert (done.returncode, done.stdout) == (2, "")
            assert "1,048,577 characters" in done.stderr

            done = await shell.arun("send", door, "3000", "--skill", "fail", "-o", "json")
            told = json.loads(done.stdout)
            assert (told["text"], len(told["reason"])) == ("r" * 3_000, 500)
        listed = await asyncio.to_thread(shell.json, "task", "list")
        cut = next(row for row in listed["recent"] if row["textChars"] == 1_100_000)
        assert (len(cut["text"]), cut["truncated"]) == (4_000, True)
        got = await asyncio.to_thread(shell.json, "task", "get", cut["correlationId"])
        assert (len(got["text"]), got["truncated"], got["textChars"]) == (TEXT_CHARS_MAX, True, 1_100_000)


def printed(said: str, columns: int = 80) -> str:
    """The output of the statement on a terminal of this width in columns."""
    terminal, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    command = [sys.executable, "-c", f"from fleetsim.cli import render; {said}"]
    with subprocess.Popen(command, stdout=screen):
        os.close(screen)
        seen = b""
        with contextlib.suppress(OSError):  # the end of a terminal on Linux
            while chunk := os.read(terminal, 65_536):
                seen += chunk
    os.close(terminal)
    return seen.decode()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_table_fits_the_terminal_and_keeps_a_unique_beginning_of_each_id(columns: int) -> None:
    ids = ["abcdefgh-1" + "x" * 26, "abcdefgh-2" + "y" * 26]
    heads = ["STATE", "ID", "AGENT", "SKILL", "BY", "TOOK", "TEXT"]
    rows = [["✓ completed", cid, "quinn", "summarize-the-thread", "operator", "12s", "says " * 9] for cid in ids]
    lines = printed(f"render.table({heads}, {rows})", columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert [cid[:10] for cid in ids if any(cid[:10] in line for line in lines)] == [cid[:10] for cid in ids]
    if columns == 200:
        assert ids[0] in lines[1]
    health = ["HEALTH", "AGENT", "RUNS", "OK%", "BESIDE", "P50", "P95", "COST", "$/OK", "FAIL%1H"]
    row = ["degraded", "quinn-the-reviewer", 1_234, "98.1", 12, "120ms", "2.3s", "$1.2345", "$0.0012", "1.5"]
    lines = printed(f"render.table({health}, [{row}], right=frozenset(range(2, 10)))", columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert [cell for cell in ("1234", "98.1", "120ms") if cell not in lines[1]] == [], "figures are never cut"


@pytest.mark.parametrize(
    "words", [("--version",), ("--help",), ("check", "--list"), ("check", "--list", "-o", "json"), ("chek",)]
)
def test_a_reader_that_leaves_ends_a_verb_quietly_with_the_status_of_sigpipe(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    usage = words == ("chek",)  # written to stderr
    out, err = (subprocess.DEVNULL, writer) if usage else (writer, subprocess.PIPE)
    done = subprocess.run([sys.executable, "-m", "fleetsim", *words], stdout=out, stderr=err, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr or b"") == (141, b"")


@pytest.mark.parametrize("words", [("send", "htp://x", "hi"), ("card", "htp://x"), ("check", "htp://x")])
def test_a_misspelt_scheme_is_a_wrong_address_and_no_name_of_an_agent(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "htp://" in done.stderr
    assert "agents.yaml" not in done.stderr


def test_a_terminal_gets_the_whole_text_without_control_characters() -> None:
    text = printed("render.AgentText().end('\\x1b[2Jred\\u202e' + 'x' * 70_000 + 'END')")
    assert [bad for bad in ("\x1b", "\u202e") if bad in text] == []
    assert text.strip()[-3:] == "END"
    assert text.count("x") == 70_000
