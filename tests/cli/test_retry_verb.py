"""``task retry`` for many requests: what it shows, what confirms it, and what it sends."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click
import pytest

from fleetsim.api.answers import RetryGroup, RetryReport
from fleetsim.cli.retry import confirmed
from tests.cli.world import Shell

AT = datetime(2026, 1, 1, tzinfo=UTC)


def group(agent: str, count: int, *, may_have_run: bool) -> RetryGroup:
    ids = tuple(f"{agent}-{may_have_run}-{number}" for number in range(count))
    kind = "failed" if may_have_run else "undeliverable"
    return RetryGroup(
        agent=agent, kind=kind, reason="", may_have_run=may_have_run, oldest=AT, newest=AT, correlation_ids=ids
    )


CERTAIN, AVAS = group("quinn", 3, may_have_run=False), group("ava", 2, may_have_run=True)
PREVIEW = RetryReport(count=5, groups=(CERTAIN, AVAS), left_out={})


@pytest.mark.parametrize(
    ("count", "may_repeat", "chosen"),
    [
        (3, False, [CERTAIN]),
        (5, True, [CERTAIN, AVAS]),
        (5, False, None),
        (3, True, None),
        (None, True, None),
    ],
)
def test_without_a_person_only_the_right_count_confirms(
    count: int | None, may_repeat: bool, chosen: list[RetryGroup] | None
) -> None:
    if chosen is not None:
        assert confirmed(PREVIEW, count, may_repeat=may_repeat) == chosen
        return
    with pytest.raises(click.UsageError, match=r"--count [35]"):
        confirmed(PREVIEW, count, may_repeat=may_repeat)


@pytest.mark.parametrize(
    ("typed", "chosen"), [("y\n5\n", [CERTAIN, AVAS]), ("n\n3\n", [CERTAIN]), ("n\n5\n", None), ("y\n3\n", None)]
)
def test_a_person_types_the_count_and_decides_for_each_agent_whose_work_may_repeat(
    monkeypatch: pytest.MonkeyPatch, typed: str, chosen: list[RetryGroup] | None
) -> None:
    @click.command()
    def verb() -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        assert confirmed(PREVIEW, None, may_repeat=False) == chosen

    from click.testing import CliRunner

    done = CliRunner().invoke(verb, input=typed)
    assert done.exit_code == (0 if chosen is not None else 2), done.output
    assert "ava" in done.output
    assert "quinn" not in done.output


@pytest.mark.sockets
async def test_many_requests_are_previewed_confirmed_and_sent(shell: Shell) -> None:
    shell.write("agents.yaml", "fleet: {retry_waits_s: []}\nagents: [{name: gone, url: http://127.0.0.1:9/a2a}]\n")
    many = ("task", "retry", "--kind", "undeliverable", "--rate", "100/s")
    with shell.up():
        for text in ("one", "two"):
            assert (await shell.arun("send", "gone", text)).returncode == 3
        dry = await shell.arun(*many, "--dry-run", "-o", "json")
        assert json.loads(dry.stdout)["count"] == 2
        refused = await shell.arun(*many, "--count", "3")
        assert (refused.returncode, "--count 2" in refused.stderr) == (2, True)
        sent = await shell.arun(*many, "--count", "2", "-o", "json")
        assert sent.returncode == 0, sent.stderr
        (old, *_), told = json.loads(dry.stdout)["groups"][0]["correlationIds"], json.loads(sent.stdout)
        assert (len(told["sent"]), told["refused"], old in told["sent"]) == (2, {}, True)
        shown = await shell.arun("task", "get", told["sent"][old])
        assert old in shown.stdout
    assert (await shell.arun("task", "retry")).returncode == 2
