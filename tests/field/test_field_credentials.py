"""The cases from the field about credentials, through every door that they concern."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fleetsim.client import AgentClient
from fleetsim.fleet.auth import read_auth
from fleetsim.fleet.config import parse_fleet
from tests.cli.world import Shell
from tests.field.doors import (
    ApiDoor,
    ChatDoor,
    DashboardDoor,
    Door,
    HubClientDoor,
    HubDoor,
    HubStreamDoor,
    McpDoor,
    running_fleet,
)
from tests.field.peer import Peer, case

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

HUB_DOORS: tuple[type[Door], ...] = (HubDoor, HubStreamDoor, ChatDoor, ApiDoor, DashboardDoor, HubClientDoor, McpDoor)
FUNCTIONS_KEY = "{header: x-functions-key, credentialsEnv: FUNC_KEY}"


@pytest.fixture
def func_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUNC_KEY", "sesame")


@pytest.mark.usefixtures("func_key")
async def test_a_key_goes_into_the_header_that_the_card_names_at_every_door(tmp_path: Path) -> None:
    """Case 07, through ``auth`` and through ``headers``."""
    keys = {"keyed": f"auth: {FUNCTIONS_KEY}", "headed": "headers: {x-functions-key: '${FUNC_KEY}'}"}
    async with Peer(case("07")) as peer, running_fleet(tmp_path, dict.fromkeys(keys, peer.base), keys=keys) as fleet:
        fleet.shell.env["FUNC_KEY"] = "sesame"
        for door in HUB_DOORS:
            (reply,) = await door(fleet).converse("keyed", "chat", "hi")
            assert (reply.state, reply.text) == ("completed", "pong"), door.name
        (reply,) = await HubDoor(fleet).converse("headed", "chat", "hi")
        assert (reply.state, reply.text) == ("completed", "pong")
        for command in (["send", peer.base, "-"], ["send", peer.base, "-", "--stream"], ["chat", peer.base]):
            done = await fleet.shell.arun(*command, "--auth", FUNCTIONS_KEY, stdin="hi")
            assert (done.returncode, done.stdout.strip()) == (0, "pong"), done.stderr
        checked = await fleet.shell.arun("check", peer.base, "--auth", FUNCTIONS_KEY, "--only", "A-0*", "-o", "json")
        assert "sesame" not in checked.stdout + checked.stderr
        async with AgentClient(peer.base, credential=read_auth(FUNCTIONS_KEY)) as client:
            assert (await client.send_task("hi")).text == "pong"
        listed = await fleet.shell.arun("card", "keyed", "-o", "json")
        assert "sesame" not in listed.stdout


@pytest.mark.usefixtures("func_key")
async def test_the_card_verb_shows_required_credentials_and_whether_they_are_configured(tmp_path: Path) -> None:
    """Case 07."""
    async with Peer(case("07")) as peer:
        shell = Shell(tmp_path, env={"FUNC_KEY": "sesame"})
        bare = (await asyncio.to_thread(shell.json, "card", peer.base))["credentials"]
        assert ([[scheme["place"], scheme["key"]] for scheme in bare["requested"][0]], bare["answered"]) == (
            [["header", "x-functions-key"]],
            False,
        )
        entry = bare["entry"].removeprefix("auth: ").replace("FIELD_AGENT_API_KEY", "FUNC_KEY")
        keyed = await asyncio.to_thread(shell.json, "card", peer.base, "--auth", entry)
        assert (keyed["credentials"]["answered"], "FUNC_KEY" in keyed["credentials"]["source"]) == (True, True)
        other = await asyncio.to_thread(shell.json, "card", peer.base, "--bearer-env", "FUNC_KEY")
        assert other["credentials"]["answered"] is False
        begun = await shell.arun("init", peer.base)
        assert "x-functions-key" in begun.stderr
        written = (tmp_path / "agents.yaml").read_text().replace("# auth:", "auth:")
        (agent,) = parse_fleet(written, env={"FIELD_AGENT_API_KEY": "s"}).agents
        assert [credential.header for credential in agent.credentials] == ["x-functions-key"]


async def test_the_card_verb_reports_a_scheme_that_fleetsim_cannot_send(tmp_path: Path) -> None:
    script = case("07")
    script["card"]["securitySchemes"] = {"k": {"type": "http", "scheme": "digest"}}
    async with Peer(script) as peer:
        shown = await Shell(tmp_path).arun("card", peer.base)
    assert (shown.returncode, "digest" in shown.stdout, "cannot send" in shown.stdout) == (0, True, True)


async def test_a_401_without_a_credential_names_the_scheme_at_every_door(tmp_path: Path) -> None:
    async with Peer(case("07")) as peer, running_fleet(tmp_path, {"closed": peer.base}) as fleet:
        reasons = []
        for target in (peer.base, "closed"):
            for command in (["send", target, "hi"], ["send", target, "hi", "--stream"]):
                done = await fleet.shell.arun(*command)
                assert (done.returncode, done.stdout) == (4, "")
                reasons.append(done.stderr)
        (correlation_id,) = await fleet.admin.submit({"targets": ["closed"], "text": "hi"})
        end = await fleet.admin.follow_task(correlation_id).end()
        assert end.row is not None
        reasons.append(end.row["reason"])
        (agent,) = (await fleet.admin.get("/health"))["agents"]
        assert agent["health"] == "down"
        reasons.append(agent["why"])
        for reason in reasons:
            assert "wants a credential and none is configured" in reason
            assert "in the header “x-functions-key”" in reason
            assert 'WWW-Authenticate: ApiKey realm="functions"' in reason


async def test_a_token_refused_with_403_is_renewed_at_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 35."""
    monkeypatch.setenv("CLIENT_SECRET", "sesame")
    async with AsyncExitStack() as stack:
        doors = [*HUB_DOORS, None]
        peers = [await stack.enter_async_context(Peer(case("35"))) for _ in doors]
        auth = "{{scheme: oauth2, tokenUrl: '{}/token', clientId: me, credentialsEnv: CLIENT_SECRET}}"
        urls = {f"agent-{number}": peer.base for number, peer in enumerate(peers)}
        keys = {name: f"auth: {auth.format(url)}" for name, url in urls.items()}
        fleet = await stack.enter_async_context(running_fleet(tmp_path, urls, keys=keys))
        fleet.shell.env["CLIENT_SECRET"] = "sesame"
        for door, name in zip(doors, urls, strict=True):
            if door is None:
                done = await fleet.shell.arun("send", urls[name], "hi", "--auth", auth.format(urls[name]))
                assert (done.returncode, done.stdout) == (0, "pong\n"), done.stderr
            else:
                (reply,) = await door(fleet).converse(name, "chat", "hi")
                assert (reply.state, reply.text) == ("completed", "pong"), door.name


async def test_the_extended_card_counts_in_hub_init_and_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 25."""
    monkeypatch.setenv("TOKEN", "sesame")
    monkeypatch.setenv("WRONG", "open")
    auth = "auth: {{scheme: bearer, credentialsEnv: {}}}"
    keys = {"known": auth.format("TOKEN"), "wrong": auth.format("WRONG")}
    async with (
        Peer(case("25")) as peer,
        running_fleet(tmp_path, {"known": peer.base, "wrong": peer.base, "public": peer.base}, keys=keys) as fleet,
    ):
        fleet.shell.env |= {"TOKEN": "sesame", "WRONG": "open"}
        skills = {name: fleet.hub.broker.view(name).skills for name in ("known", "wrong", "public")}
        assert skills == {"known": ("chat", "audit"), "wrong": ("chat",), "public": ("chat",)}
        done = await fleet.shell.arun("send", "known", "hi", "--skill", "audit")
        assert (done.returncode, done.stdout) == (0, "pong\n")
        (correlation_id,) = await fleet.admin.submit({"skill": "audit", "text": "hi"})
        row = (await fleet.admin.follow_task(correlation_id).end()).row or {}
        assert (row["agent"], row["state"]) == ("known", "completed"), "the skill is routed to the agent that offers it"
        for variable, listed in (("TOKEN", ["chat", "audit"]), ("WRONG", ["chat"]), (None, ["chat"])):
            options = ["--bearer-env", variable] if variable else []
            card = await asyncio.to_thread(fleet.shell.json, "card", peer.base, *options)
            assert [skill["id"] for skill in card["skills"]] == listed
            assert any("extended card" in line for line in card["warnings"]) is (variable == "WRONG")
        (tmp_path / "new").mkdir()
        begun = await Shell(tmp_path / "new", env=fleet.shell.env).arun("init", peer.base, "--bearer-env", "TOKEN")
        assert begun.returncode == 0
        assert "audit" in (tmp_path / "new" / "agents.yaml").read_text()
