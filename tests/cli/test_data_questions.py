"""A question in data on the command line: shown, described and answered, by URL and through the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cli.world import Shell
from tests.hub.test_hub_data_questions import clerk
from tests.hub.test_hub_framework_questions import FRAMEWORKS, asks_as

pytestmark = pytest.mark.sockets


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with clerk().serving() as found:
        yield found


def command(stderr: str) -> list[str]:
    """The last next step, without the words to be replaced."""
    told = [line for line in stderr.splitlines() if line.startswith("  next: fleetsim ")][-1]
    words = told.removeprefix("  next: fleetsim ").split()
    assert words[-2:] == ["--data", "'{…}'"]
    return words[:-1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_by_url_a_question_in_data_is_shown_and_answered(shell: Shell, url: str, streamed: bool) -> None:
    asked = await shell.arun("send", url, "go", "--skill", "form", *(["--stream"] if streamed else []))
    assert asked.returncode == 0, asked.stderr
    assert '"title": "Refund"' in asked.stdout
    answer = command(asked.stderr)
    wrong = await shell.arun(*answer, '{"amount": "three"}')
    assert (wrong.returncode, "amount must be" in wrong.stderr) == (2, True), wrong.stderr
    assert '"amount": {"type": "integer", "minimum": 1}' in wrong.stderr  # the fields of the answer
    right = await shell.arun(*answer, '{"amount": 3}')
    assert right.stdout == 'got [{"amount": 3}]\n', right.stderr


@pytest.mark.parametrize("answer", [["blue"], ["--data", '"blue"'], ["blue", "--stream"]])
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_by_url_an_answer_reaches_a_framework_in_its_form(
    shell: Shell, framework: str, answer: list[str]
) -> None:
    async with asks_as(framework, streaming="--stream" in answer).serving() as url:
        asked = await shell.arun("send", url, "go", "--skill", "ask")
        told = [line for line in asked.stderr.splitlines() if line.startswith("  next: fleetsim ")][-1]
        again = told.removeprefix("  next: fleetsim ").removesuffix('"your answer"').split()
        done = await shell.arun(*again, *answer)
        assert json.loads(done.stdout) == [FRAMEWORKS[framework][1]], done.stderr


async def test_through_the_hub_a_question_in_data_is_shown_and_answered(shell: Shell, url: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: clerk\n    url: {url}/a2a\n")
    with shell.up():
        asked = await shell.arun("send", "clerk", "go", "--skill", "form")
        assert '"title": "Refund"' in asked.stdout, asked.stderr
        answer = command(asked.stderr)
        assert answer[:2] == ["inbox", "reply"]
        shown = await shell.arun("inbox", "show", answer[2])
        assert '"title": "Refund"' in shown.stdout
        assert '"minimum": 1' in shown.stderr
        whole = await asyncio.to_thread(shell.json, "inbox", "show", answer[2])
        assert whole["answerSchema"]["required"] == ["amount"]
        wrong = await shell.arun(*answer, json.dumps({"amount": 0}))
        assert (wrong.returncode, "amount must be" in wrong.stderr) == (2, True), wrong.stderr
        right = await shell.arun(*answer, json.dumps({"amount": 3}))
        assert right.returncode == 0, right.stderr
        done = await shell.arun("task", "get", whole["correlationId"], "--wait")
        assert 'got [{"amount": 3}]' in done.stdout
