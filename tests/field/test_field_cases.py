"""The cases that people reported in public, through every door that they concern."""

from __future__ import annotations

import asyncio
import json
import re
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fleetsim.client import AgentClient
from tests.cli.world import Shell
from tests.field.doors import (
    DOORS,
    ApiDoor,
    DashboardDoor,
    DirectChatDoor,
    Door,
    HubClientDoor,
    HubDoor,
    HubStreamDoor,
    McpDoor,
    PythonDoor,
    StreamDoor,
    UrlDoor,
    running_fleet,
)
from tests.field.peer import CASES, Peer, case

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

AT_ONCE = 8
SOON_S = 20.0
"""Seconds for a question to appear: the agent of case 04 holds its stream open for 60."""


async def slow_pong(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert (reply.state, reply.text) == ("completed", "pong")


async def first_pong(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert (reply.state, reply.text) == ("completed", "first")


async def elsewhere(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    named = set(re.findall(r"http://127\.0\.0\.1:\d+", reply.text)) - {door.fleet.urls[agent]}
    assert (reply.state in {"failed", "undeliverable"}, len(named)) == (True, 1), reply.text


async def file_inside(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert (reply.text, reply.files) == ("pong", {"a.txt": b"hello"})


async def open_stream(door: Door, agent: str) -> None:
    async with asyncio.timeout(SOON_S):
        asked, done = await door.converse(agent, "chat", "hi", "Paris")
    assert (asked.state, asked.text) == ("input-required", "Which city?")
    assert (done.state, done.text) == ("completed", "booked")


async def asked_once(door: Door, agent: str) -> None:
    (asked,) = await door.converse(agent, "chat", "hi")
    assert (asked.state, asked.text) == ("input-required", "Which city?")


async def another_task(door: Door, agent: str) -> None:
    asked, done = await door.converse(agent, "chat", "hi", "Paris")
    assert (asked.text, done.state, done.text) == ("Which city?", "completed", "booked")
    assert isinstance(door, PythonDoor) or any("t-2" in warning for warning in done.warnings), done.warnings


async def last_words(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert "streaming is off for this tenant" in reply.text


async def in_history(door: Door, agent: str) -> None:
    asked, done = await door.converse(agent, "chat", "hi", "Paris")
    assert (asked.text, done.text) == ("Which city do you mean?", "booked")


async def other_question(door: Door, agent: str) -> None:
    async with asyncio.timeout(SOON_S):
        first, second = await door.converse(agent, "chat", "hi", "Paris")
    assert (first.text, second.state, second.text) == ("Which city?", "input-required", "Which day?")


async def two_artifacts(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert sorted(reply.text.split()) == ["one-A", "two-B"]


async def words_in_status(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert (reply.state, reply.text) == ("completed", "there")
    assert any("only the last one is kept" in warning for warning in reply.warnings), reply.warnings


async def quota(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert (reply.state in {"failed", "undeliverable"}, "model quota exceeded" in reply.text) == (True, True), reply


async def operation_named(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert "POST /message:send" in reply.text or "POST /message:stream" in reply.text


async def guess_named(door: Door, agent: str) -> None:
    (reply,) = await door.converse(agent, "chat", "hi")
    assert "/a2a is a guess" in reply.text


STREAMING = tuple(door for door in DOORS if door not in {UrlDoor, DirectChatDoor})
"""The doors that stream: some agents here know no other way to send."""
QUOTING = (StreamDoor, HubDoor, HubStreamDoor, ApiDoor, DashboardDoor, HubClientDoor, McpDoor)
"""The doors that show the error of a request that has no task. The first ends with another status if HTTP refuses."""

ROWS: dict[str, tuple[Callable[[Door, str], Awaitable[None]], tuple[type[Door], ...]]] = {
    "01": (slow_pong, DOORS),
    "02": (slow_pong, DOORS),
    "03": (slow_pong, DOORS),
    "04": (open_stream, STREAMING),
    "05": (asked_once, STREAMING),
    "06": (another_task, DOORS),
    "08": (elsewhere, QUOTING),
    "09": (slow_pong, DOORS),
    "10": (slow_pong, DOORS),
    "11": (slow_pong, DOORS),
    "12": (last_words, QUOTING),
    "13": (in_history, DOORS),
    "14": (file_inside, tuple(door for door in DOORS if door not in {DashboardDoor, McpDoor})),
    "15": (slow_pong, DOORS),
    "16": (slow_pong, DOORS),
    "17": (slow_pong, STREAMING),
    "18": (slow_pong, DOORS),
    "20": (other_question, DOORS),
    "21": (two_artifacts, STREAMING),
    "22": (words_in_status, STREAMING),
    "24": (first_pong, DOORS),
    "26": (words_in_status, STREAMING),
    "27": (slow_pong, DOORS),
    "28": (slow_pong, DOORS),
    "29": (quota, STREAMING),
    "30": (quota, QUOTING),
    "31": (slow_pong, STREAMING),
    "32": (slow_pong, STREAMING),
    "33": (slow_pong, DOORS),
    "34": (slow_pong, DOORS),
    "36": (slow_pong, DOORS),
    "37": (operation_named, QUOTING[1:]),
    "38": (guess_named, QUOTING),
}
"""The result of each case, and its doors."""


async def test_every_case_from_the_field_has_its_result_at_every_door(tmp_path: Path) -> None:
    """Each row and door has its own agent, because some of them count their requests."""
    async with AsyncExitStack() as stack:
        cells = [(number, door) for number, (_, doors) in ROWS.items() for door in doors]
        peers = [await stack.enter_async_context(Peer(case(number))) for number, _ in cells]
        names = [f"case-{number}-{door.name}" for number, door in cells]
        urls = {name: peer.base for name, peer in zip(names, peers, strict=True)}
        fleet = await stack.enter_async_context(running_fleet(tmp_path, urls))
        places = asyncio.Semaphore(AT_ONCE)

        async def wrong_in(number: str, door: type[Door], name: str) -> str:
            try:
                async with nullcontext() if number in {"01", "02"} else places, asyncio.timeout(90):
                    await ROWS[number][0](door(fleet), name)
            except Exception as error:  # noqa: BLE001 - a failure is a row of the result
                frame = traceback.extract_tb(error.__traceback__)[-1]
                return f"{type(error).__name__}: {str(error)[:400]} ({Path(frame.filename).name}:{frame.lineno})"
            return ""

        found = await asyncio.gather(*(wrong_in(*cell, name) for cell, name in zip(cells, names, strict=True)))
        wrong = {name: said for name, said in zip(names, found, strict=True) if said}
        assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())


async def test_an_agent_with_grpc_alone_gets_no_request_and_every_door_gives_the_reason(tmp_path: Path) -> None:
    """Case 03, with the binding that fleetsim does not speak."""
    script = json.loads(json.dumps(case("03")).replace("HTTP+JSON", "GRPC"))
    async with Peer(script) as peer, running_fleet(tmp_path, {"rest": peer.base}) as fleet:
        shell = fleet.shell
        for command in (["send", peer.base, "hi"], ["send", peer.base, "hi", "--stream"], ["send", "rest", "hi"]):
            done = await shell.arun(*command)
            assert (done.returncode != 0, done.stdout, "GRPC" in done.stderr) == (True, "", True), done.stderr
        card = await shell.arun("card", peer.base)
        assert "GRPC" in card.stdout + card.stderr
        checked = await shell.arun("check", peer.base, "-o", "json")
        findings = json.loads(checked.stdout)["findings"]
        assert "GRPC" in checked.stdout + checked.stderr
        assert checked.returncode == 6, "nothing was tested"
        assert {row["section"] for row in findings if row["verdict"] == "failed"} <= {"card"}
        (agent,) = (await fleet.admin.get("/health"))["agents"]
        assert (agent["agentName"], agent["health"], agent["failureRate1h"]) == ("rest", "paused", 0.0)
        (tmp_path / "new").mkdir()
        begun = await Shell(tmp_path / "new").arun("init", peer.base)
        assert (begun.returncode != 0, "GRPC" in begun.stderr) == (True, True)
        assert peer.log == []


async def test_an_invalid_signature_is_shown_or_refused_at_every_door(tmp_path: Path) -> None:
    """Case 19, without a key for it and with one."""
    shell, key = Shell(tmp_path), ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    shell.write("k1.pem", pem.decode())
    async with Peer(case("19")) as peer:
        for more, state in (([], "unverified"), (["--signer", "k1.pem"], "failed")):
            card = json.loads((await shell.arun("card", peer.base, *more, "-o", "json")).stdout)
            assert (card["signature"]["state"], card["signature"]["signer"]) == (state, None)
            assert any("signature" in warning for warning in card["warnings"]) is (state == "failed")
            checked = await shell.arun("check", peer.base, *more, "--only", "C-20", "-o", "json")
            (row,) = json.loads(checked.stdout)["findings"]
            assert row["verdict"] == ("fail" if more else "not tested")
        begun = await shell.arun("init", peer.base)
        assert (begun.returncode, "signature" in begun.stderr) == (0, True)
        asked = len(peer.log)
        for command in (["send", peer.base, "hi"], ["chat", peer.base], ["task", "get", "t-1", "--agent", peer.base]):
            refused = await shell.arun(*command, "--signer", "k1.pem", stdin="hi\n")
            assert (refused.returncode != 0, refused.stdout, "--signer" in refused.stderr) == (True, "", True)
        shell.write(
            "agents.yaml", f"agents:\n  - {{name: mill, url: '{peer.base}', trust: signed, signers: [k1.pem]}}\n"
        )
        refused = await shell.arun("send", "mill", "hi")
        assert (refused.returncode != 0, refused.stdout, "signed" in refused.stderr) == (True, "", True)
        assert len(peer.log) == asked


async def test_init_shows_the_other_origin_that_a_card_names(tmp_path: Path) -> None:
    """Case 08."""
    async with Peer(case("08")) as peer:
        begun = await Shell(tmp_path).arun("init", peer.base)
        assert peer.other is not None
        assert (begun.returncode, peer.other.base in begun.stderr) == (0, True)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_query_of_the_cards_url_is_shown_and_sent_at_every_door(tmp_path: Path, binding: str) -> None:
    """Case 34, in both bindings."""
    script = json.loads(json.dumps(case("34")).replace("JSONRPC", binding))
    if binding == "HTTP+JSON":
        (send,) = script["rules"]
        answer = {"type": "application/a2a+json", "json": send["reply"]["result"]}
        script["rules"] = [{"path": "/a2a/message:send", "query": send["query"], "reply": answer}]
    async with Peer(script) as peer:
        shell = Shell(tmp_path)
        card = json.loads((await shell.arun("card", peer.base, "-o", "json")).stdout)
        assert card["rpcUrl"].endswith("/a2a?api-version=2026-01-01")
        assert (await shell.arun("send", peer.base, "hi")).stdout == "pong\n"
        checked = json.loads((await shell.arun("check", peer.base, "--only", "M-01", "-o", "json")).stdout)
        assert [row["verdict"] for row in checked["findings"]] == ["pass"]


async def test_card_init_and_send_explain_an_unusual_address_of_the_card(tmp_path: Path) -> None:
    """Cases 36 and 38, and 37 by URL."""
    for number, words in (("36", "ends in an operation"), ("38", "/a2a is a guess")):
        async with Peer(case(number)) as peer:
            (tmp_path / number).mkdir()
            shell = Shell(tmp_path / number)
            card = json.loads((await shell.arun("card", peer.base, "-o", "json")).stdout)
            assert any(words in warning for warning in card["warnings"])
            assert words in (await shell.arun("init", peer.base)).stderr
    async with Peer(case("38")) as peer:
        assert "/a2a is a guess" in (await Shell(tmp_path).arun("send", peer.base, "hi")).stderr
    async with Peer(case("37")) as peer:
        assert "404 to POST /message:send" in (await Shell(tmp_path).arun("send", peer.base, "hi")).stderr


@pytest.mark.parametrize(
    "look",
    [
        {"status": 502, "text": "bad gateway"},
        {"text": ""},
        {"type": "text/html", "text": "<html><title>Sign in</title></html>"},
        {"error": {"code": -32603, "message": "no store"}},
        {"status": 404, "text": "not found"},
    ],
    ids=str,
)
async def test_a_look_that_fails_once_hides_no_task(tmp_path: Path, look: dict[str, object]) -> None:
    """Case 28, with each kind of failure, by ``send``, ``task get --wait`` and ``send_task``."""
    script = case("28")
    script["rules"][1]["reply"] = look
    commands = (["send"], ["task", "get", "t-1", "--wait", "--agent"])
    for command in commands:
        async with Peer(script) as peer:
            done = await Shell(tmp_path).arun(*command, peer.base, *(["hi"] if command == ["send"] else []))
            assert (done.returncode, "pong" in done.stdout) == (0, True), done.stderr
    async with Peer(script) as peer, AgentClient(peer.base) as client:
        assert (await client.send_task("hi")).text == "pong"


def test_an_unquoted_schedule_is_refused_with_the_advice_to_quote_it(tmp_path: Path) -> None:
    """Case 23."""
    shell = Shell(tmp_path)
    shell.write("ceremonies/heartbeat.yaml", (CASES / "23-unquoted-schedule.yaml").read_text(encoding="utf-8"))
    done = shell.run("ceremony", "validate", "ceremonies/heartbeat.yaml")
    assert done.returncode != 0
    assert "quotes" in done.stderr + done.stdout
