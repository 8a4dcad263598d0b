"""``fleetsim card diff`` and ``card lock``: exit codes for CI, and the file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets

CARD: dict[str, Any] = {
    "name": "quinn",
    "skills": [{"id": "review", "name": "Review"}, {"id": "triage", "name": "Triage"}],
    "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
}


@asynccontextmanager
async def agent(card: dict[str, Any]) -> AsyncIterator[str]:
    """An agent with this card; the caller may change the card."""
    async with answering(lambda method, path, body: (200, "application/json", json.dumps(card).encode())) as url:
        yield url


async def test_a_fleet_is_locked_and_a_change_of_a_card_fails_the_check(shell: Shell) -> None:
    card = dict(CARD)
    async with agent(card) as url:
        shell.write("agents.yaml", f"agents:\n  - name: quinn\n    url: {url}\n")
        unlocked = await shell.arun("card", "lock", "--check")
        written = await shell.arun("card", "lock")
        same = await shell.arun("card", "lock", "--check")
        card["skills"] = [*CARD["skills"], {"id": "more", "name": "More"}]
        more = await shell.arun("card", "lock", "--check")
        compatible = await shell.arun("card", "lock", "--check", "--breaking")
        card["skills"] = CARD["skills"][:1]
        less = await shell.arun("card", "lock", "--check", "--breaking", "-o", "json")
    gone = await shell.arun("card", "lock", "--check")
    assert (unlocked.returncode, written.stdout, same.returncode) == (2, "cards.lock.json\n", 0), written.stderr
    assert (more.returncode, compatible.returncode, less.returncode, gone.returncode) == (1, 0, 1, 3)
    (change,) = json.loads(less.stdout)["changes"]
    assert (change["agent"], change["breaking"]) == ("quinn", True)
    assert "triage" in change["text"]
    lock = json.loads((shell.home / "cards.lock.json").read_text())
    assert (lock["schema"], list(lock["agents"])) == ("fleetsim/card-lock/1", ["quinn"])


async def test_one_agent_is_locked_again_and_the_others_stay(shell: Shell) -> None:
    first, second = dict(CARD), {**CARD, "name": "ava"}
    async with agent(first) as one, agent(second) as two:
        shell.write("agents.yaml", f"agents:\n  - name: quinn\n    url: {one}\n  - name: ava\n    url: {two}\n")
        assert (await shell.arun("card", "lock")).returncode == 0
        first["version"] = second["version"] = "2"
        assert (await shell.arun("card", "lock", "ava")).returncode == 0
        checked = await shell.arun("card", "lock", "--check", "-o", "json")
        shell.write("agents.yaml", f"agents:\n  - name: ava\n    url: {two}\n")
        fewer = await shell.arun("card", "lock", "--check", "--breaking", "-o", "json")
    assert [row["agent"] for row in json.loads(checked.stdout)["changes"]] == ["quinn"]
    assert [(row["agent"], row["breaking"]) for row in json.loads(fewer.stdout)["changes"]] == [("quinn", True)]


async def test_an_unreadable_card_writes_no_lock(shell: Shell) -> None:
    shell.write("agents.yaml", "agents:\n  - name: quinn\n    url: http://127.0.0.1:1\n")
    assert (await shell.arun("card", "lock")).returncode == 3
    assert not (shell.home / "cards.lock.json").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other", "agents": {}}', '{"schema": "fleetsim/card-lock/1"}'])
def test_a_broken_lock_is_a_configuration_error(shell: Shell, text: str) -> None:
    shell.write("agents.yaml", "agents:\n  - name: quinn\n    url: http://127.0.0.1:1\n")
    shell.write("cards.lock.json", text)
    for words in (("--check",), ()):
        assert shell.run("card", "lock", *words).returncode == 2


async def test_two_cards_are_compared_by_url_name_and_file(shell: Shell) -> None:
    async with agent(CARD) as one, agent({**CARD, "skills": CARD["skills"][:1]}) as two:
        shell.write("agents.yaml", f"agents:\n  - name: quinn\n    url: {one}\n")
        shell.write("card.json", json.dumps(CARD))
        equal = [await shell.arun("card", "diff", *pair) for pair in (("quinn", one), ("card.json", "quinn"))]
        lost = await shell.arun("card", "diff", "card.json", two, "-o", "json")
        gained = await shell.arun("card", "diff", two, "quinn", "--breaking")
    assert [done.returncode for done in equal] == [0, 0], equal[1].stderr
    assert (lost.returncode, gained.returncode) == (1, 0)
    assert [row["breaking"] for row in json.loads(lost.stdout)["changes"]] == [True]
    assert shell.run("card", "diff", "none.json", "card.json").returncode == 2
    assert shell.run("card", "diff", "card.json", "http://127.0.0.1:1").returncode == 3


async def test_card_without_a_verb_reads_the_card(shell: Shell) -> None:
    async with agent(CARD) as url:
        rows = [
            json.loads((await shell.arun(*verb, url, "-o", "json")).stdout) for verb in (("card",), ("card", "get"))
        ]
    assert rows[0] == rows[1]
