from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic.alias_generators import to_camel

from fleetsim.fleet.config import AGENTS_MAX, load_fleet, parse_fleet
from fleetsim.fleet.settings import AgentEntry, AgentFile, FleetConfig, SkillEntry
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Proxy
from fleetsim.testbed.runtime import MemoryFiles

SEED = """\
agents:
  - name: quinn
    url: "${QUINN_BASE_URL}/a2a"
    skills:
      - name: pr_review
        description: Review PRs and submit formal APPROVE/REQUEST_CHANGES
      - name: bug_triage
        description: Triage bugs and file on the board
  - name: protomaker
    url: "${AVA_BASE_URL}/a2a"
    apiKeyEnv: AVA_API_KEY
    skills:
      - name: sitrep
      - board_health
"""
ENV = {"QUINN_BASE_URL": "http://quinn:7870", "AVA_BASE_URL": "https://ava.example:3008", "AVA_API_KEY": "canary-1"}
ONE = "agents:\n  - name: a\n    url: http://h/a2a\n"


def parse(text: str, **env: str) -> FleetConfig:
    return parse_fleet(text, env=env)


def refusal(text: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, **env)
    return f"{caught.value} | {caught.value.hint}"


EVERY_KEY = """\
  - name: agent-{n}
    url: "http://agent-{n}.fleet.example:8000/agents/{n}"
    rpcUrl: "http://agent-{n}.fleet.example:8000/agents/{n}/a2a"
    cardUrl: "http://agent-{n}.fleet.example:8000/agents/{n}/.well-known/agent-card.json"
    apiKeyEnv: AGENT_KEY
    auth: {{scheme: bearer, credentialsEnv: AGENT_KEY}}
    headers: {{x-team: platform, x-tenant: "tenant {n}"}}
    proxy: {{url: "http://proxy.fleet.example:3128", credentialsEnv: PROXY_LOGIN}}
    ca: company-ca.pem
    streaming: true
    rejoin: false
    push: inline
    signed: true
    trust: signed
    signers: [keys/agent-{n}.pem, "https://keys.fleet.example/jwks.json"]
    external: true
    skills: [sitrep, {{name: review, description: Reviews a pull request}}, {{name: plan, description: Plans a week}}]
    timeoutMs: 30000
    dialect: "1.0"
    wire: "1.0"
    enabled: true
    tags: [blue, production]
    discordBotTokenEnvKey: DISCORD_TOKEN
    subscribesTo: [message.inbound.one, message.inbound.two]
"""


@pytest.mark.slow
def test_a_fleet_up_to_its_size_limit_is_read() -> None:
    assert {line.split(":")[0].strip(" -") for line in EVERY_KEY.splitlines()} == {
        to_camel(key.name) for key in fields(AgentFile)
    }
    text = "agents:\n" + "".join(EVERY_KEY.format(n=n) for n in range(AGENTS_MAX))
    assert len(parse(text, AGENT_KEY="canary").agents) == AGENTS_MAX
    assert f"at most {AGENTS_MAX} items" in refusal(text + EVERY_KEY.format(n=AGENTS_MAX), AGENT_KEY="canary")


def test_a_file_of_more_than_two_thousand_bytes_for_each_agent_is_refused_unread() -> None:
    room = 1_000 * 2 * 1024
    padding = "#" * (room - len(ONE))
    assert len(parse(ONE + padding).agents) == 1
    assert "large" in refusal(ONE + padding + "#")


def test_the_seeds_fleet_is_read_unchanged() -> None:
    config = parse_fleet(SEED, env=ENV)
    assert config.agents == (
        AgentEntry(
            name="quinn",
            url="http://quinn:7870/a2a",
            skills=(
                SkillEntry(name="pr_review", description="Review PRs and submit formal APPROVE/REQUEST_CHANGES"),
                SkillEntry(name="bug_triage", description="Triage bugs and file on the board"),
            ),
        ),
        AgentEntry(
            name="protomaker",
            url="https://ava.example:3008/a2a",
            api_key_env="AVA_API_KEY",
            skills=(SkillEntry(name="sitrep"), SkillEntry(name="board_health")),
        ),
    )
    assert config.settings.poll_interval_s == 30
    assert config.warnings == ()


def test_no_secret_is_in_the_values() -> None:
    assert "canary-1" not in repr(parse_fleet(SEED, env=ENV))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ONE.replace("url", "urll"), "agents.yaml:3:5: unknown key 'urll' (did you mean 'url'?)"),
        (ONE.replace("name: a\n    ", ""), "'name' is missing"),
        (ONE.replace("    url: http://h/a2a\n", ""), "'url' is missing"),
        (ONE.replace("http://h/a2a", "ftp://h/a2a"), "agents.yaml:3:10: the agent's url must be http:// or https://"),
        (ONE.replace("http://h/a2a", "http:///a2a"), "must be http:// or https:// with a host"),
        (ONE.replace("http://h/a2a", "http://u:p@h/a2a"), "without a password"),
        (ONE.replace("name: a", "name: all"), "not “all”"),
        (ONE.replace("name: a", 'name: "a b"'), "agents.yaml:2:11: 'name' must be 1 to 64"),
        (ONE.replace("name: a", 'name: "a\\n"'), "'name' must be 1 to 64"),
        (ONE.replace("name: a", "name: 7"), "put it in quotes"),
        (ONE + "  - name: a\n    url: http://i/a2a\n", "agents.yaml:4:11: the agent name 'a' is taken"),
        (ONE + "    streaming: yes\n", "'streaming' must be true or false"),
        (ONE + "    auth: {scheme: digest, credentialsEnv: X}\n", "'scheme'"),
        (ONE + "    auth: {scheme: basic, credentialsEnv: X}\n", "agents.yaml:4:20: basic needs a 'username'"),
        (ONE + "    auth: {scheme: basic, username: 'a:b', credentialsEnv: X}\n", "without a colon"),
        (ONE + "    auth: {scheme: bearer}\n", "one of 'credentialsEnv' and 'credentialsFile'"),
        (ONE + "    auth: {credentialsEnv: X, credentialsFile: x}\n", "one of 'credentialsEnv' and 'credentialsFile'"),
        (
            ONE + "    auth: {scheme: bearer, header: x-k, credentialsEnv: X}\n",
            "agents.yaml:4:36: 'header' does not belong",
        ),
        (ONE + "    auth: {header: x-k, query: k, credentialsEnv: X}\n", "one of header, query and cookie"),
        (ONE + "    auth: {header: Host, credentialsEnv: X}\n", "not a header that may be set here"),
        (ONE + "    auth: {cookie: 'a=b', credentialsEnv: X}\n", "not a cookie that may be set here"),
        (ONE + "    auth: {heder: x-k, credentialsEnv: X}\n", "did you mean 'header'?"),
        (ONE + "    auth: {scheme: oauth2, tokenUrl: 'https://l/t', credentialsEnv: X}\n", "oauth2 needs a 'clientId'"),
        (ONE + "    auth: {scheme: oauth2, clientId: me, credentialsEnv: X}\n", "one of 'tokenUrl' and 'discoveryUrl'"),
        (
            ONE + "    auth: {scheme: oauth2, clientId: me, tokenUrl: 'http://l/t', credentialsEnv: X}\n",
            "'tokenUrl' must be https://",
        ),
        (
            ONE + "    auth: [{credentialsEnv: V}, {scheme: basic, credentialsEnv: V}]\n",
            "agents.yaml:4:42: basic needs",
        ),
        (ONE + "    auth: []\n", "'auth'"),
        (ONE + "    auth: {scheme: mutualTLS, certificateFile: c.pem}\n", "mutualTLS needs"),
        (ONE + "    proxy: socks5://p:1\n", "agents.yaml:4:12: the proxy must be http://HOST:PORT"),
        (ONE + "    proxy: enviroment\n", "or environment"),
        (ONE + "    proxy: {url: 'http://p:1', login: me}\n", "unknown key 'login'"),
        (
            ONE + "    proxy: {url: 'http://p:1', credentialsEnv: 'a b'}\n",
            "must be the name of an environment variable",
        ),
        (ONE + "fleet: {proxy: 'http://me:word@p:1'}\n", "without a path or password"),
        (ONE + "    push: maybe\n", "'push'"),
        (ONE + "    dialect: '0.2'\n", "'dialect'"),
        (ONE + "    headers: {Host: evil}\n", "agents.yaml:4:15: not a header that may be set here"),
        (ONE + '    headers: {"X:Y": v}\n', "not a header that may be set here"),
        (ONE + '    headers: {X-A: "a\\r\\nX-B: c"}\n', "agents.yaml:4:20: a header value is 1 to 1024 printable"),
        (ONE + "    skills: [a, {name: a}]\n", "this skill stands here twice"),
        (ONE + "    skills: [{nam: a}]\n", "did you mean 'name'?"),
        (ONE + "    timeoutMs: 0\n", "timeoutMs"),
        (ONE + "fleet: {poll_intervall_s: 2}\n", "did you mean 'poll_interval_s'?"),
        (ONE + "fleet: {poll_interval_s: 0.1}\n", "poll_interval_s"),
        (ONE + "fleet: {base_url: hub}\n", "'base_url' must be http:// or https://"),
        (ONE + "agents: []\n", "twice"),
        ("agent: []\n", "did you mean 'agents'?"),
        ("- name: a\n", "one mapping"),
        ("", "one mapping"),
        ("agents: &x []\n", "an anchor"),
        ("agents: [\n", "agents.yaml:"),
    ],
)
def test_an_error_is_named_with_its_place(text: str, says: str) -> None:
    assert says in refusal(text)


def test_several_problems_are_reported_together() -> None:
    said = refusal(ONE.replace("http://h/a2a", "nowhere") + "  - name: a\n    url: http://h\n")
    assert "agents.yaml:3:10" in said
    assert "agents.yaml:4:11" in said


def test_a_missing_variable_is_an_error_that_names_it() -> None:
    assert "agents.yaml:3:10: the environment variable QUINN_BASE_URL " in refusal(
        SEED, **{k: v for k, v in ENV.items() if k != "QUINN_BASE_URL"}
    )


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_credential_disables_that_agent_with_a_warning_and_the_others_run(value: str | None) -> None:
    env = {k: v for k, v in ENV.items() if k != "AVA_API_KEY"} | ({} if value is None else {"AVA_API_KEY": value})
    config = parse_fleet(SEED, env=env)
    assert [agent.name for agent in config.enabled] == ["quinn"]
    quinn, ava = config.agents
    assert quinn.disabled_why == ""
    assert "AVA_API_KEY" in ava.disabled_why
    (warning,) = config.warnings
    assert warning.startswith("agents.yaml:11:16: ")
    assert "AVA_API_KEY" in warning
    assert "protomaker" in warning
    assert "export AVA_API_KEY=…" in warning


def test_a_default_replaces_an_unset_variable() -> None:
    assert parse(ONE.replace("http://h", "${H_URL:-http://d:1}")).agents[0].url == "http://d:1/a2a"


@pytest.mark.parametrize("name", ["SOME_API_KEY", "GH_TOKEN", "MY_SECRET", "DB_PASSWORD", "AUTH_HOST", "PASSPHRASE"])
@pytest.mark.parametrize("place", ["url: http://x/${%s}", "url: http://h\n    auth: {clientId: '${%s}'}"])
def test_a_secret_is_never_filled_into_a_value_that_is_shown(name: str, place: str) -> None:
    said = refusal("agents:\n  - name: a\n    " + place % name + "\n", **{name: "canary-2"})
    assert f"the variable {name} may not be used here" in said
    assert "auth.credentialsEnv" in said
    assert "canary-2" not in said


@pytest.mark.parametrize("name", ["FUNC_KEY", "FUNC", "AVA_API_KEY"])
def test_a_header_accepts_any_variable_and_shows_none(name: str) -> None:
    config = parse(
        ONE + f"    apiKeyEnv: AVA_API_KEY\n    headers: {{x-functions-key: '${{{name}}}'}}\n",
        **{name: "canary-7", "AVA_API_KEY": "canary-7"},
    )
    assert config.agents[0].headers == {"x-functions-key": "canary-7"}
    assert "canary-7" not in repr(config)


def test_a_variable_used_as_a_credential_is_not_filled_in_elsewhere() -> None:
    said = refusal(ONE.replace("http://h", "http://h/${A_THING}") + "    apiKeyEnv: A_THING\n", A_THING="canary-3")
    assert "A_THING" in said
    assert "canary-3" not in said


def test_only_addresses_headers_and_variable_names_are_filled_in() -> None:
    config = parse(ONE + "    tags: ['${HOME}']\n    skills: [{name: s, description: '${HOME}'}]\n", HOME="canary-4")
    assert "canary-4" not in repr(config)


def test_a_secret_in_place_of_a_variable_name_is_refused_without_repeating_it() -> None:
    said = refusal(ONE + "    apiKeyEnv: sk-canary-5\n")
    assert "'apiKeyEnv'" in said
    assert "canary-5" not in said


def test_values_from_the_environment_are_never_shown() -> None:
    said = refusal("agents:\n  - name: a\n    url: ${A_URL}\n", A_URL="ftp://canary-6")
    assert said.startswith("agents.yaml:3:10: ")
    assert "canary-6" not in said


async def test_a_file_is_read_through_the_port(tmp_path: Path) -> None:
    files = MemoryFiles()
    await files.write(tmp_path / "agents.yaml", ONE.encode())
    config = await load_fleet(tmp_path / "agents.yaml", files=files, env={})
    assert [a.name for a in config.agents] == ["a"]
    await files.write(tmp_path / "keyed.yaml", f"{ONE}    apiKeyEnv: K\n".encode())
    assert not (await load_fleet(tmp_path / "keyed.yaml", files=files, env={})).enabled
    with pytest.raises(ConfigError):
        await load_fleet(tmp_path / "keyed.yaml", files=files, env={}, strict=True)
    with pytest.raises(ConfigError):
        await load_fleet(tmp_path / "missing.yaml", files=files, env={})


def test_pinned_addresses_are_at_the_origin_of_the_agent_and_filled_in_like_it() -> None:
    entry = "agents:\n  - name: x\n    url: ${AT}/agents/x\n"
    found = parse(entry + "    rpcUrl: ${AT}/agents/x/rpc\n    cardUrl: ${AT}/cards/x.json\n", AT="http://a.example")
    assert found.agents[0].address == (
        "http://a.example/agents/x",
        "http://a.example/agents/x/rpc",
        "http://a.example/cards/x.json",
    )
    for key in ("rpcUrl", "cardUrl"):
        for value in ("http://b.example/x", "https://a.example/x", "http://me:secret@a.example/x", "/agents/x/rpc"):
            told = refusal(f"{entry}    {key}: {value}\n", AT="http://a.example")
            assert f"agents.yaml:4:{len(key) + 7}: {key} must be" in told
            assert "secret" not in told


def test_the_fleets_proxy_is_used_for_external_agents_without_one_of_their_own() -> None:
    entries = {
        "plain": "url: https://a.example",
        "here": "url: http://localhost:9000",
        "direct": "url: https://a.example, proxy: none",
        "own": "url: https://a.example, proxy: {url: 'http://own:1', credentialsEnv: LOGIN}",
        "private": "url: https://a.example, ca: ca.pem",
        "system": "url: https://a.example, ca: system",
    }
    rows = "".join(f"  - {{name: {name}, {keys}}}\n" for name, keys in entries.items())
    text = f"agents:\n{rows}fleet: {{proxy: '${{PROXY}}'}}\n"
    ways = {a.name: a.way for a in parse_fleet(text, source="/f/agents.yaml", env={"PROXY": "http://p:1"}).agents}
    assert {name: way.proxy and way.proxy.url for name, way in ways.items()} == {
        "plain": "http://p:1",
        "here": None,
        "direct": None,
        "own": "http://own:1",
        "private": "http://p:1",
        "system": "http://p:1",
    }
    assert ways["own"].proxy == Proxy(url="http://own:1", login_env="LOGIN")
    assert {way.tls.ca for way in ways.values()} == {"", "/f/ca.pem", "system"}
    (agent,) = parse(ONE.replace("http://h", "https://h") + "fleet: {proxy: environment}\n").agents
    assert agent.way.proxy == Proxy()


def test_the_fleets_authorities_apply_to_channels_and_to_agents_without_their_own() -> None:
    text = ONE + "  - {name: own, url: 'https://b.example', ca: own.pem}\nfleet: {ca: '${CA}'}\n"
    config = parse_fleet(text, source="fleet/agents.yaml", env={"CA": "company.pem"})
    ways = (config.way, *(agent.way for agent in config.agents))
    assert [Path(way.tls.ca) for way in ways] == [Path("fleet", f"{n}.pem") for n in ("company", "company", "own")]
    assert parse_fleet(ONE + "fleet: {ca: system}\n", env={}).way.tls.ca == "system"


@pytest.mark.slow
def test_a_file_of_more_than_a_hundred_values_for_each_agent_is_refused() -> None:
    assert "more than 100000 values" in refusal("agents: [" + "0," * 100_000 + "]\n")
