"""agents.yaml as values: the field of each key, omitted keys, and the differences between two versions of the file."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from fleetsim.channels.alerts import AlertSettings
from fleetsim.client.credential import Credential, TokenRequest
from fleetsim.fleet.auth import AuthEntry
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import (
    AT_START,
    AgentEntry,
    FleetChange,
    FleetConfig,
    FleetSettings,
    RetentionSettings,
    SkillEntry,
    difference,
)
from fleetsim.health.fleet_health import Thresholds
from fleetsim.model.errors import ConfigError
from fleetsim.request.track import BUILT_IN, Rate, Rates

ONE = "agents:\n  - name: a\n    url: http://h/a2a\n"


def parse(text: str, *, strict: bool = False, **env: str) -> FleetConfig:
    return parse_fleet(text, env=env, strict=strict)


def problems(text: str, *, strict: bool = False, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, strict=strict, **env)
    return str(caught.value).splitlines()


def test_a_minimal_file_is_an_agent_and_a_fleet_with_every_default() -> None:
    assert parse(ONE) == FleetConfig(agents=(AgentEntry(name="a", url="http://h/a2a"),), settings=FleetSettings())


def test_every_key_of_an_agent_is_in_its_entry() -> None:
    written = ONE.replace("http://h/a2a", "' http://h/a2a '") + (
        "    rpcUrl: ' http://h/rpc '\n    cardUrl: ' http://h/card '\n    auth: {scheme: bearer, credentialsEnv: V}\n"
        "    headers: {X-A: b}\n    streaming: false\n    rejoin: false\n    push: inline\n    signed: true\n"
        "    external: true\n    skills: [s, {name: t, description: u}]\n    timeoutMs: 2500\n    dialect: 0.3\n"
        "    enabled: true\n    tags: [x, y]\n"
    )
    assert parse(written, V="secret").agents == (
        AgentEntry(
            name="a",
            url="http://h/a2a",
            rpc_url="http://h/rpc",
            card_url="http://h/card",
            auth=AuthEntry(scheme="bearer", credentials_env="V"),
            headers={"X-A": "b"},
            streaming=False,
            rejoin=False,
            push="inline",
            signed=True,
            external=True,
            skills=(SkillEntry(name="s"), SkillEntry(name="t", description="u")),
            timeout_ms=2500,
            dialect="0.3",
            tags=("x", "y"),
        ),
    )


def test_every_key_of_the_fleet_is_in_its_settings() -> None:
    written = (
        "fleet:\n  poll_interval_s: 2\n  card_refresh_s: 3\n  task_limit_s: 4\n  question_ttl_s: 5\n"
        "  question_expiry: leave\n  connect_s: 5\n  call_s: 6\n  retry_waits_s: [7, 8]\n  calls_max: 9\n"
        "  calls_per_agent_max: 10\n  breaker_failures: 11\n  breaker_pause_s: 12\n  cooldowns_s: {s: 13}\n"
        "  skill_limits_s: {t: 14}\n  base_url: http://hub\n  internal_base_url: http://inner\n"
        "  rates: {m: {input_usd: 1, output_usd: 2, cache_read_usd: 3, cache_write_usd: 4}}\n"
        "  health: {up_at: 0.9, down_below: 0.4, outcomes_min: 3, p95_limit_ms: 700}\n"
    )
    mine = Rate(input_usd=1, output_usd=2, cache_read_usd=3, cache_write_usd=4)
    assert parse(ONE + written).settings == FleetSettings(
        poll_interval_s=2,
        card_refresh_s=3,
        task_limit_s=4,
        question_ttl_s=5,
        question_expiry="leave",
        connect_s=5,
        call_s=6,
        retry_waits_s=(7, 8),
        calls_max=9,
        calls_per_agent_max=10,
        breaker_failures=11,
        breaker_pause_s=12,
        cooldowns_s={"s": 13},
        skill_limits_s={"t": 14},
        base_url="http://hub",
        internal_base_url="http://inner",
        rates=Rates(by_model={**BUILT_IN, "m": mine}),
        health=Thresholds(up_at=0.9, down_below=0.4, outcomes_min=3, p95_limit_ms=700),
    )


@pytest.mark.parametrize("key", ["headers", "skills", "tags"])
def test_a_key_with_every_item_commented_out_is_empty(key: str) -> None:
    assert parse(f"{ONE}    {key}:\n      # one\n").agents == parse(ONE).agents
    assert parse("agents:\n  # nobody\n").agents == ()


@pytest.mark.parametrize("key", ["dialect", "wire"])
@pytest.mark.parametrize(
    ("written", "dialect"), [("0.1", "0.1"), ("0.3", "0.3"), ("1.0", "1.0"), ("'1.0'", "1.0"), ("null", None)]
)
def test_a_dialect_may_be_written_as_a_number(key: str, written: str, dialect: str | None) -> None:
    assert parse(f"{ONE}    {key}: {written}\n").agents[0].dialect == dialect


# ---------------------------------------------------------------------- credentials

TOKEN_REQUEST = TokenRequest(
    client_id="me",
    token_url="https://l/t",
    scopes=("a", "b"),
    parameters=(("audience", "q"),),
    client_auth="post",
)


@pytest.mark.parametrize(
    ("keys", "credential"),
    [
        ("apiKeyEnv: V", Credential(scheme="apiKey", env="V")),
        ("auth: {credentialsEnv: V}", Credential(scheme="apiKey", env="V")),
        ("auth: {scheme: bearer, credentialsEnv: V}\n    apiKeyEnv: UNSET", Credential(scheme="bearer", env="V")),
        ("auth: {header: x-functions-key, credentialsEnv: V}", Credential("apiKey", "V", header="x-functions-key")),
        ("auth: {query: code, credentialsEnv: V}", Credential("apiKey", "V", query="code")),
        ("auth: {cookie: sid, credentialsFile: run/key}", Credential("apiKey", cookie="sid", file="run/key")),
        ("auth: {scheme: basic, username: me, credentialsEnv: V}", Credential("basic", "V", username="me")),
        (
            "auth: {scheme: oauth2, clientId: me, tokenUrl: 'https://l/t', scopes: [a, b], parameters: {audience: q}, "
            "clientAuth: post, credentialsEnv: V}",
            Credential("oauth2", "V", token_request=TOKEN_REQUEST),
        ),
        (
            "auth: {scheme: mutualTLS, certificateFile: c.pem, keyFile: /k.pem}",
            Credential("mutualTLS", certificate="c.pem", key="/k.pem"),
        ),
        ("auth: {scheme: hmac, credentialsEnv: UNSET}", None),
        ("auth: {scheme: hmac, credentialsEnv: UNSET}\n    apiKeyEnv: V", None),
        ("enabled: true", None),
    ],
)
def test_auth_wins_over_the_api_key_and_hmac_sends_no_credential(keys: str, credential: Credential | None) -> None:
    (entry,) = parse(f"{ONE}    {keys}\n", V="secret").agents
    assert (entry.credentials, entry.enabled, entry.disabled_why) == ((credential,) if credential else (), True, "")


def test_several_credentials_are_sent_at_once_and_paths_are_relative_to_the_files_folder() -> None:
    auth = "auth: [{credentialsEnv: V}, {scheme: bearer, credentialsFile: run/token}]"
    config = parse_fleet(f"{ONE}    {auth}\n", source="/etc/fleet/agents.yaml", env={"V": "secret"})
    assert config.agents[0].credentials == (
        Credential("apiKey", "V"),
        Credential("bearer", file="/etc/fleet/run/token"),
    )


def test_an_agent_without_one_of_its_credentials_is_disabled() -> None:
    (entry,) = parse(f"{ONE}    auth: [{{credentialsEnv: V}}, {{scheme: bearer, credentialsEnv: W}}]\n", V="s").agents
    assert (entry.enabled, "W" in entry.disabled_why) == (False, True)


def test_only_an_agent_that_relies_on_hmac_gets_a_warning_that_it_sends_nothing() -> None:
    config = parse(
        "agents:\n  - {name: a, url: 'http://h', auth: {scheme: bearer, credentialsEnv: V}}\n"
        "  - {name: b, url: 'http://h'}\n  - {name: c, url: 'http://h', auth: {scheme: hmac, credentialsEnv: W}}\n",
        V="secret",
    )
    (warning,) = config.warnings
    assert warning.startswith("agents.yaml:4:")


def test_strict_mode_refuses_only_enabled_agents_without_a_credential() -> None:
    entries = "".join(
        f"  - {{name: {name}, url: 'http://h', apiKeyEnv: {name.upper()}, enabled: {enabled}}}\n"
        for name, enabled in (("a", "false"), ("b", "true"), ("c", "true"), ("d", "true"))
    )
    found = problems("agents:\n" + entries, strict=True, B="secret")
    assert [line.split("variable ")[1][0] for line in found] == ["C", "D"]
    config = parse("agents:\n" + entries, B="secret")
    assert [entry.name for entry in config.enabled] == ["b"]
    assert [bool(entry.disabled_why) for entry in config.agents] == [False, False, True, True]
    off, *waiting = config.warnings
    assert "is disabled" not in off, "somebody disabled it, not we"
    assert ["c is disabled" in waiting[0], "d is disabled" in waiting[1], len(waiting)] == [True, True, 2]
    assert parse("agents:\n" + entries, strict=True, B="x", C="x", D="x").warnings == (off,)


# ---------------------------------------------------------------------- references


def test_every_unset_reference_of_a_disabled_agent_is_a_warning() -> None:
    text = (
        "agents:\n  - {name: a, url: 'http://h', headers: {X: '${X}'}}\n"
        "  - {name: b, url: 'http://${B}', rpcUrl: 'http://${C}', enabled: false}\n"
    )
    found = parse(text, X="x").warnings
    assert [line.split("variable ")[1][0] for line in found] == ["B", "C"]


@pytest.mark.parametrize("key", ["base_url", "internal_base_url"])
def test_both_addresses_of_the_hub_are_checked_and_named_by_their_keys(key: str) -> None:
    (found,) = problems(f"{ONE}fleet: {{{key}: 'ftp://x'}}\n")
    assert f"'{key}'" in found


def test_every_address_and_variable_name_is_filled_in() -> None:
    text = (
        "agents:\n  - name: a\n    url: http://${H}/a2a\n    rpcUrl: http://${H}/rpc\n    cardUrl: http://${H}/card\n"
        "    headers: {X-A: '${H}'}\n    auth: {credentialsEnv: '${N}'}\n    apiKeyEnv: ${N}\n"
        "fleet: {base_url: 'http://${H}:1', internal_base_url: 'http://${H}:2'}\n"
    )
    config = parse(text, H="host", N="V", V="secret")
    (entry,) = config.agents
    assert entry.address == ("http://host/a2a", "http://host/rpc", "http://host/card")
    assert (entry.headers, entry.credentials) == ({"X-A": "host"}, (Credential(scheme="apiKey", env="V"),))
    assert (config.settings.base_url, config.settings.internal_base_url) == ("http://host:1", "http://host:2")


# ---------------------------------------------------------------------- headers and names


@pytest.mark.parametrize(
    "name", ["host", "Content-Length", "content-type", "Transfer-Encoding", "CONNECTION", "accept-encoding", "a b"]
)
def test_a_reserved_or_malformed_header_is_refused_once(name: str) -> None:
    (found,) = problems(f"{ONE}    headers: {{'{name}': v}}\n")
    assert found.startswith("agents.yaml:4:15: "), "at the name, not at its value"


@pytest.mark.parametrize("value", ["", " ", " v", "v ", "x" * 1_025, "ü"])
def test_a_header_value_that_would_change_on_the_way_is_refused(value: str) -> None:
    (found,) = problems(f"{ONE}    headers: {{X-A: '{value}'}}\n")
    assert found.startswith("agents.yaml:4:20: ")
    assert parse(f"{ONE}    headers: {{X-A: '{'x' * 1_024}', X-B: 'a b'}}\n").agents[0].headers["X-B"] == "a b"


def test_the_first_of_several_agents_with_one_name_keeps_it() -> None:
    text = "agents:\n" + "".join(f"  - {{name: {name}, url: 'http://h'}}\n" for name in "abaa")
    found = problems(text)
    assert [problem.partition(": ")[0] for problem in found] == ["agents.yaml:4:12", "agents.yaml:5:12"]
    assert all(problem.endswith("agents.yaml:2:12") for problem in found)


# ---------------------------------------------------------------------- differences


def config(*entries: AgentEntry, **settings: Any) -> FleetConfig:
    return FleetConfig(agents=entries, settings=FleetSettings(**settings))


A, B, C = (AgentEntry(name=name, url=f"http://{name}") for name in "abc")


def test_an_agent_is_found_by_its_name_and_only_enabled_ones_accept_work() -> None:
    found = config(A, replace(B, enabled=False), C)
    assert (found.agent("a"), found.agent("c"), found.agent("d")) == (A, C, None)
    assert found.enabled == (A, C)
    assert AgentEntry(name="a", url="x", skills=(SkillEntry(name="s"), SkillEntry(name="t"))).skill_names == ("s", "t")


def test_added_removed_changed_stopped_and_resumed_agents_are_distinguished() -> None:
    off = {"enabled": False, "disabled_why": "its credential is not set"}
    before = config(A, B, replace(C, **off))
    now = config(replace(A, tags=("x",)), replace(B, **off), C, AgentEntry(name="d", url="http://d"))
    assert difference(before, now) == FleetChange(added=("d",), changed=("a",), paused=("b",), resumed=("c",))
    assert difference(config(A, B, C), config(B)) == FleetChange(removed=("a", "c"))
    both = difference(config(A), config(replace(A, url="http://elsewhere", enabled=False)))
    assert both == FleetChange(changed=("a",), paused=("a",))
    assert difference(now, now) == FleetChange()


OTHER: dict[str, Any] = {
    "deny_by_default": True,
    "poll_interval_s": 1.0,
    "card_refresh_s": 1.0,
    "task_limit_s": 1.0,
    "question_ttl_s": 1.0,
    "question_expiry": "leave",
    "connect_s": 1.0,
    "call_s": 1.0,
    "retry_waits_s": (),
    "calls_max": 1,
    "calls_per_agent_max": 1,
    "breaker_failures": 1,
    "breaker_pause_s": 1.0,
    "cooldowns_s": {"s": 1.0},
    "skill_limits_s": {"s": 1.0},
    "base_url": "http://hub",
    "internal_base_url": "http://hub",
    "question_channels": ("team",),
    "question_link": "http://hub",
    "rates": Rates(by_model={}),
    "proxy": "environment",
    "ca": "system",
    "health": Thresholds(up_at=0.5),
    "ledger": "postgresql://hub/fleet",
    "lease_s": 7.0,
    "keep": RetentionSettings(days=1.0),
    "alerts": AlertSettings(cooldown_s=1.0),
}


@pytest.mark.parametrize("key", [f.name for f in fields(FleetSettings)])
def test_a_changed_setting_is_named_and_whether_it_needs_a_restart(key: str) -> None:
    found = difference(config(A), config(A, **{key: OTHER[key]}))
    at_start = key in {"calls_max", "calls_per_agent_max", "rates", "health", "ledger", "lease_s"}
    assert found == (FleetChange(at_start=(key,)) if at_start else FleetChange(settings=(key,)))
    assert (key in AT_START) is at_start
