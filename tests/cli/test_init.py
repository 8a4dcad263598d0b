"""``fleetsim init``: its files load, agree with the cards, and replace no other files."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fleetsim.agent.builtin import reference_agent
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.client.credential import Credential
from fleetsim.fleet.auth import is_answered
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import FleetConfig
from fleetsim.fleet.written import (
    ReadableAgent,
    UnreadableAgent,
    agent_name,
    agents_yaml,
    ceremony,
    starter_ceremony,
    yaml_text,
)
from fleetsim.model.card import AgentCard, AgentSkill
from fleetsim.model.errors import HttpRefused, Unreachable
from fleetsim.model.security import requested_schemes
from fleetsim.model.text import one_line
from fleetsim.runtime.yaml import load
from tests.cli.world import Shell, answering

HOSTILE = "x\n  - name: evil\r\n#: \"'${HOME}\x1b[31m\x00\x85\u2028\u202e\t\ufeff`$(id)` ]}{[,&*!|>%@- \\"
ENV = {"HOME": "/canary"}


def read(name: str = "Scout", **card: Any) -> ReadableAgent:
    skills = card.pop("skills", (AgentSkill(skill_id="echo", name="Echo", description="Says it again"),))
    entry = {key: card.pop(key) for key in ("url", "api_key_env", "bearer_env", "warnings") if key in card}
    found = AgentCard(name=name, skills=skills, **card)
    return ReadableAgent(
        **{"url": "http://127.0.0.1:9000", **entry},
        name=agent_name(name, ()),
        card=found,
        dialect="1.0",
        rpc_url="http://127.0.0.1:9000/a2a",
    )


def fleet(*agents: ReadableAgent, unread: tuple[UnreadableAgent, ...] = (), **env: str) -> FleetConfig:
    return parse_fleet(agents_yaml(agents, unread), env={**ENV, **env})


def first(*agents: ReadableAgent) -> Ceremony:
    found = ceremony(agents)
    assert found is not None
    loaded = parse_ceremony(load(found[1], found[0]))
    assert found[0] == f"ceremonies/{loaded.ceremony_id}.yaml"
    return loaded


# ------------------------------------------------------------------ the texts


def test_a_card_becomes_an_entry_and_a_disabled_ceremony() -> None:
    config = fleet(read())
    assert [(entry.name, entry.url, entry.dialect, entry.credentials) for entry in config.agents] == [
        ("scout", "http://127.0.0.1:9000", None, ())
    ]
    made = first(read())
    assert (made.ceremony_id, made.skill, made.targets, made.enabled) == ("scout.echo", "echo", ("scout",), False)


def test_the_texts_of_a_hostile_card_are_one_line_with_the_same_meaning() -> None:
    skill = AgentSkill(skill_id=HOSTILE, name=HOSTILE, description=HOSTILE, examples=(HOSTILE,))
    agent = read(HOSTILE, description=HOSTILE, skills=(skill,), warnings=(HOSTILE,))
    text = agents_yaml([agent])
    config = parse_fleet(text, env=ENV)
    assert len(config.agents) == 1
    assert config.agents[0].skills == ()
    made = first(agent)
    assert (made.skill, made.text) == (HOSTILE, HOSTILE)
    assert made.targets == (config.agents[0].name,)
    found = ceremony([agent])
    assert found is not None
    for written in (text, found[1]):
        assert one_line(written.replace("\n", ""), 10**6) == written.replace("\n", "")
        assert "/canary" not in written
    assert yaml.safe_load(found[1])["skill"] == HOSTILE, "another reader of YAML sees the same"


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60))
def test_any_text_is_read_back_unchanged(text: str) -> None:
    assert load(f"- {yaml_text(text)} # more\n", "x.yaml").value == [text]
    assert yaml.safe_load(f"k: [{yaml_text(text)}]\n") == {"k": [text]}


@pytest.mark.slow
@given(st.text(max_size=80), st.text(max_size=200), st.text(min_size=1, max_size=80))
def test_the_files_load_for_any_card(name: str, said: str, skill: str) -> None:
    skills = (AgentSkill(skill_id=skill, name=name, description=said, examples=(said,)),)
    agent = read(name, description=said, skills=skills, warnings=(said,))
    assert [entry.name for entry in fleet(agent).agents] == [agent.name]
    if ceremony([agent]) is not None:
        assert first(agent).skill == skill


@pytest.mark.parametrize(
    "name", ["42", "1.5", "true", "null", "no", "all", "", "…", "-x-", "Ünï Cödé", "x" * 500, "_a"]
)
def test_any_name_becomes_a_valid_one(name: str) -> None:
    agent = read(name)
    assert [entry.name for entry in fleet(agent).agents] == [agent.name]
    assert first(agent).targets == (agent.name,)


def test_two_agents_of_one_name_get_different_names() -> None:
    assert agent_name("Scout", ["scout"]) == "scout-2"
    assert agent_name("Scout", ["scout", "scout-2"]) == "scout-3"
    assert len(agent_name("x" * 100, ["x" * 60])) <= 64


FLOW = {"clientCredentials": {"tokenUrl": "https://login.example/token", "scopes": {"read": ""}}}
DISCOVERY = "https://login.example/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("scheme", "line"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-API-Key"}, "{scheme: apiKey, credentialsEnv: SCOUT_API_KEY}"),
        (
            {"type": "apiKey", "in": "cookie", "name": "sid"},
            "{scheme: apiKey, cookie: sid, credentialsEnv: SCOUT_API_KEY}",
        ),
        ({"type": "http", "scheme": "Bearer"}, "{scheme: bearer, credentialsEnv: SCOUT_TOKEN}"),
        ({"type": "http", "scheme": "basic"}, "{scheme: basic, username: USER, credentialsEnv: SCOUT_PASSWORD}"),
        ({"type": "oauth2", "flows": FLOW}, "{scheme: oauth2, clientId: CLIENT, tokenUrl:"),
        ({"type": "openIdConnect", "openIdConnectUrl": DISCOVERY}, "{scheme: oauth2, clientId: CLIENT, discoveryUrl:"),
        ({"type": "mutualTLS"}, "{scheme: mutualTLS, certificateFile: client.pem, keyFile: client.key}"),
    ],
)
def test_a_credential_that_a_card_requires_is_an_entry_that_works_once_its_mark_is_removed(
    scheme: dict[str, Any], line: str
) -> None:
    agent = read(security_schemes={"k": scheme}, security=({"k": []},))
    text = agents_yaml([agent])
    assert f"# auth: {line}" in text
    assert fleet(agent).agents[0].credentials == ()
    env = {f"SCOUT_{name}": "s" for name in ("API_KEY", "TOKEN", "PASSWORD", "CLIENT_SECRET")}
    (entry,) = parse_fleet(text.replace("# auth:", "auth:"), env=env).agents
    assert is_answered(requested_schemes(agent.card), entry.credentials)
    assert not is_answered(requested_schemes(agent.card), [Credential("apiKey", "OTHER", header="x-other")])


@pytest.mark.parametrize(
    ("scheme", "line"),
    [
        ({"type": "oauth2"}, "# auth: {scheme: bearer, credentialsEnv: SCOUT_TOKEN}"),
        ({"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "http://x/\n-"}}}, "# auth: {scheme: bearer,"),
        ({"type": "apiKey", "in": "query", "name": "key\n- x"}, "which fleetsim cannot send"),
        ({"type": "http", "scheme": "digest"}, "which fleetsim cannot send"),
    ],
)
def test_another_requirement_of_a_card_is_a_comment(scheme: dict[str, Any], line: str) -> None:
    agent = read(security_schemes={"k\n- x": scheme}, security=({"k\n- x": []},))
    assert line in agents_yaml([agent])
    assert fleet(agent).agents[0].credentials == ()


def test_credentials_that_belong_together_are_one_entry() -> None:
    schemes = {"k": {"type": "apiKey", "in": "header", "name": "x-k"}, "b": {"type": "http", "scheme": "bearer"}}
    agent = read(security_schemes=schemes, security=({"k": [], "b": []},))
    text = agents_yaml([agent]).replace("# auth:", "auth:")
    (entry,) = parse_fleet(text, env={"SCOUT_API_KEY": "s", "SCOUT_TOKEN": "s"}).agents
    assert [credential.scheme for credential in entry.credentials] == ["apiKey", "bearer"]
    assert is_answered(requested_schemes(agent.card), entry.credentials)
    assert not is_answered(requested_schemes(agent.card), entry.credentials[:1])


def test_a_placeholder_works_once_its_mark_is_removed() -> None:
    agent = read("42 eyes", security_schemes={"k": {"type": "http", "scheme": "bearer"}}, security=({"k": []},))
    text = agents_yaml([agent]).replace("# auth:", "auth:")
    assert parse_fleet(text, env={"AGENT_42_EYES_TOKEN": "t"}).agents[0].credentials


def test_a_given_key_is_named_and_never_written() -> None:
    config = fleet(read(api_key_env="QUINN_KEY"), QUINN_KEY="canary")
    (credential,) = config.agents[0].credentials
    assert (credential.scheme, credential.env) == ("apiKey", "QUINN_KEY")


def test_an_address_is_never_filled_in() -> None:
    assert fleet(read(url="http://127.0.0.1:9000/${HOME}")).agents[0].url == "http://127.0.0.1:9000/${HOME}"


def test_an_unreadable_agent_is_commented_out_with_the_reason() -> None:
    gone = UnreadableAgent(url="http://10.0.0.1:7870/a2a", error=Unreachable("refused\n  - name: evil"))
    bare = UnreadableAgent(url="http://10.0.0.2:7870/a2a", error=HttpRefused("no agent card", status=404))
    text = agents_yaml([read()], [gone, bare])
    assert [entry.name for entry in parse_fleet(text, env=ENV).agents] == ["scout"]
    assert "# Not read: refused" in text
    assert 'dialect: "0.3"' in text
    opened = "\n".join(
        line.replace("  # - name", "  - name").replace("  #   ", "    ")
        for line in text.splitlines()
        if "fleet:" not in line
    )
    opened = "\n".join(line for line in opened.splitlines() if not line.startswith("#"))
    names = [entry.name for entry in parse_fleet(opened.split("\n# How")[0], env=ENV).agents]
    assert names == ["scout", "10.0.0.1", "10.0.0.2"]


def test_the_starter_loads_and_is_valid_by_its_schemas() -> None:
    config = parse_fleet(agents_yaml([]), env={})
    assert [entry.url for entry in config.agents] == ["http://127.0.0.1:9000"]
    path, text = starter_ceremony()
    assert parse_ceremony(load(text, path)).targets == (config.agents[0].name,)


def test_a_card_without_skills_makes_no_ceremony() -> None:
    assert ceremony([read(skills=())]) is None


# ------------------------------------------------------------------ the verb


def files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


WRITTEN = [
    ".fleetsim/agents.schema.json",
    ".fleetsim/ceremony.schema.json",
    "agents.yaml",
    "ceremonies/scout.echo.yaml",
]


@pytest.mark.sockets
async def test_the_first_hour_from_an_empty_folder(shell: Shell, agent: str) -> None:
    done = await shell.arun("init", agent)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == WRITTEN
    assert "next: fleetsim up" in done.stderr
    for name in ("agents.yaml", "ceremonies/scout.echo.yaml"):
        path = shell.home / name
        pointer = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
        schema = json.loads((path.parent / pointer).read_text())
        assert list(Draft202012Validator(schema).iter_errors(yaml.safe_load(path.read_text()))) == []
    made = shell.home / "ceremonies/scout.echo.yaml"
    with shell.up():
        said = await shell.arun("send", "scout", "hello", "--skill", "echo")
        assert (said.returncode, said.stdout) == (0, "hello\n"), said.stderr
        refused = await shell.arun("ceremony", "run", "scout.echo")
        assert refused.returncode == 2
        assert "set enabled: true" in refused.stderr
        made.write_text(made.read_text().replace("enabled: false", "enabled: true"))
        for _ in range(400):  # the hub reads the folder every few seconds, and an attempt takes a twentieth of one
            fired = await shell.arun("ceremony", "run", "scout.echo", "--wait")
            if fired.returncode == 0:
                break
        assert "success" in fired.stdout, fired.stderr


@pytest.mark.sockets
@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])
async def test_the_verbs_agree_on_the_dialect_of_a_card(shell: Shell, dialect: str) -> None:
    async with reference_agent("old", dialects=(dialect,)).serving() as url:
        for more in ((), ("--stream",)):
            said = await shell.arun("send", url, "hello", "--skill", "echo", *more)
            assert (said.returncode, said.stdout) == (0, "hello\n"), said.stderr
        assert (await asyncio.to_thread(shell.json, "card", url))["dialect"] == dialect
        checked = await asyncio.to_thread(shell.json, "check", url, "--only", "C-*")
        assert checked["dialects"] == [dialect]
        written = await asyncio.to_thread(shell.json, "init", url)
        assert [agent["dialect"] for agent in written["agents"]] == [dialect]
        (entry,) = parse_fleet((shell.home / "agents.yaml").read_text(), env={}).agents
        assert entry.dialect is None
        said = await shell.arun("send", "old", "hello", "--skill", "echo")
        assert (said.returncode, said.stdout) == (0, "hello\n"), said.stderr


@pytest.mark.sockets
async def test_a_named_key_works_and_an_unset_one_writes_no_file(shell: Shell) -> None:
    shell.env["SCOUT_KEY"] = "canary-key-123"
    async with reference_agent("scout", api_key="canary-key-123").serving() as url:
        unset = await shell.arun("init", url, "--api-key-env", "NOT_SET")
        assert unset.returncode != 0
        assert "NOT_SET" in unset.stderr
        assert files(shell.home) == []
        plain = await shell.arun("--config", "plain/agents.yaml", "init", url)
        assert "API key" in plain.stderr
        done = await shell.arun("init", url, "--api-key-env", "SCOUT_KEY")
        assert done.returncode == 0, done.stderr
        said = await shell.arun("send", "scout", "hello", "--skill", "echo")
        assert (said.returncode, said.stdout) == (0, "hello\n"), said.stderr
    assert "canary" not in (shell.home / "agents.yaml").read_text()


@pytest.mark.sockets
async def test_no_existing_file_is_overwritten(shell: Shell, agent: str) -> None:
    mine = "agents:\n  - name: scout\n    url: http://127.0.0.1:1/mine\n"
    shell.write("agents.yaml", mine)
    plain = await shell.arun("init")
    assert plain.returncode == 2
    done = await shell.arun("init", agent)
    assert done.returncode == 2
    assert files(shell.home) == ["agents.yaml"]
    assert (shell.home / "agents.yaml").read_text() == mine
    pasted = parse_fleet(mine + done.stdout, env={})
    assert [entry.name for entry in pasted.agents] == ["scout", "scout-2"], "what is printed is there to be pasted"


@pytest.mark.sockets
async def test_an_existing_ceremony_is_kept_and_a_dangling_link_is_not_followed(shell: Shell, agent: str) -> None:
    shell.write("ceremonies/scout.echo.yaml", "mine\n")
    done = await shell.arun("init", agent)
    assert done.returncode == 0, done.stderr
    assert "ceremonies/scout.echo.yaml" in done.stderr
    assert (shell.home / "ceremonies/scout.echo.yaml").read_text() == "mine\n"
    (shell.home / "sub").mkdir()
    os.symlink(shell.home / "elsewhere", shell.home / "sub" / "agents.yaml")
    linked = await shell.arun("--config", "sub/agents.yaml", "init")
    assert linked.returncode == 2
    assert not (shell.home / "elsewhere").exists()


@pytest.mark.sockets
async def test_all_files_are_written_or_none(shell: Shell, agent: str) -> None:
    shell.write("fleet/ceremonies", "a file where a folder is wanted")
    done = await shell.arun("--config", "fleet/agents.yaml", "init", agent)
    assert done.returncode == 2
    assert "nothing was written" in done.stderr
    assert files(shell.home) == ["fleet/ceremonies"]


@pytest.mark.sockets
async def test_an_unreadable_agent_is_reported_and_sets_the_exit_code(shell: Shell, agent: str) -> None:
    done = await shell.arun("init", agent, "http://127.0.0.1:9", f"{agent}/")
    assert done.returncode == 3
    assert "http://127.0.0.1:9" in done.stderr
    config = parse_fleet((shell.home / "agents.yaml").read_text(), env={})
    assert [entry.name for entry in config.agents] == ["scout"]
    assert "# Not read: " in (shell.home / "agents.yaml").read_text()
    alone = await shell.arun("--config", "other/agents.yaml", "init", "http://127.0.0.1:9")
    assert alone.returncode == 3
    assert not (shell.home / "other").exists()
    wrong = await shell.arun("--config", "other/agents.yaml", "init", "http://user:secret@127.0.0.1:9", agent)
    assert wrong.returncode == 2
    assert "secret" not in wrong.stderr
    assert not (shell.home / "other").exists()


@pytest.mark.sockets
async def test_an_agent_without_a_card_and_its_requirements_are_reported(shell: Shell, agent: str) -> None:
    def handle(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        return 404, "text/html", b"<title>\x1b[2Jno - name: evil</title>"

    async with answering(handle) as url:
        done = await shell.arun("-o", "json", "init", url, agent)
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert [agent["name"] for agent in told["agents"]] == ["scout"]
    assert [agent["url"] for agent in told["notRead"]] == [url]
    text = (shell.home / "agents.yaml").read_text()
    assert 'dialect: "0.3"' in text
    assert "\x1b" not in text + done.stderr + done.stdout


@pytest.mark.sockets
def test_without_an_address_a_starter_file_is_written(shell: Shell) -> None:
    done = shell.run("init")
    assert done.returncode == 0, done.stderr
    assert files(shell.home) == [
        ".fleetsim/agents.schema.json",
        ".fleetsim/ceremony.schema.json",
        "agents.yaml",
        "ceremonies/reference.echo.yaml",
    ]
    with shell.up():
        pass
