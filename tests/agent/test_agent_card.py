"""The card: built from the mounted skills, served on both paths, cacheable. A false card prevents the start."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from fleetsim.agent import Agent, Effect, SkillContext, skill
from fleetsim.agent.builtin import builtin_skills
from fleetsim.agent.skills import undeclared
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA
from tests.agent.environment import Env, StartAgent, sent

PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")


async def card_of(env: Env, path: str = PATHS[0]) -> dict[str, Any]:
    return dict(json.loads((await env.raw("GET", path)).body))


@pytest.mark.parametrize("path", PATHS)
async def test_both_paths_serve_the_card_to_everybody(start_agent: StartAgent, path: str) -> None:
    env = await start_agent(api_key="k")
    reply = await env.raw("GET", path)
    assert reply.status == 200
    card = json.loads(reply.body)
    assert card["url"] == "http://agent:9000/a2a"
    assert card["preferredTransport"] == "JSONRPC"
    assert card["protocolVersion"] == "0.3.0"
    assert card["securitySchemes"]["apiKey"].items() >= {"type": "apiKey", "in": "header", "name": "X-API-Key"}.items()
    assert card["security"] == [{"apiKey": []}]
    faces = [(face["protocolBinding"], face["protocolVersion"]) for face in card["supportedInterfaces"]]
    assert faces == [(binding, version) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")]
    assert [face["transport"] for face in card["additionalInterfaces"]] == ["JSONRPC", "HTTP+JSON"]
    assert {s["id"] for s in card["skills"]} >= {"echo", "slow", "stream", "ask", "fail", "flaky"}


async def test_the_flags_of_a_card_match_the_mounted_features(start_agent: StartAgent) -> None:
    env = await start_agent(streaming=False, push_notifications=False)
    flags = (await card_of(env))["capabilities"]
    assert flags["streaming"] is False
    assert flags["pushNotifications"] is False
    assert (await start_agent()).engine.card("http://x/a2a").capabilities.streaming


async def test_a_card_for_one_dialect_has_only_its_members(start_agent: StartAgent) -> None:
    card = await card_of(await start_agent(dialects=("1.0",)))
    assert "url" not in card
    assert [i["protocolVersion"] for i in card["supportedInterfaces"]] == ["1.0", "1.0"]
    card = await card_of(await start_agent(dialects=("0.3",)))
    assert "supportedInterfaces" not in card


async def test_a_forged_host_does_not_change_the_card(env: Env) -> None:
    reply = await env.raw("GET", PATHS[0], headers={"host": "evil.example"})
    assert json.loads(reply.body)["url"] == "http://agent:9000/a2a"


async def test_the_configured_url_is_on_the_card(start_agent: StartAgent) -> None:
    env = await start_agent(url="https://public.example/a2a")
    assert (await card_of(env))["url"] == "https://public.example/a2a"


async def test_the_card_can_be_cached_and_requested_conditionally(env: Env) -> None:
    reply = await env.raw("GET", PATHS[0])
    assert "max-age=" in reply.headers["cache-control"]
    again = await env.raw("GET", PATHS[0], headers={"if-none-match": reply.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await env.raw("GET", PATHS[0], headers={"if-none-match": '"other"'})).status == 200


async def test_a_caller_with_the_1_0_header_gets_1_0_members_and_others_the_hybrid(start_agent: StartAgent) -> None:
    env = await start_agent(api_key="k")
    hybrid = await env.raw("GET", PATHS[0])
    current = await env.raw("GET", PATHS[0], headers={"a2a-version": "1.0"})
    older = {"url", "protocolVersion", "preferredTransport", "additionalInterfaces", "security"}
    assert older <= json.loads(hybrid.body).keys()
    card = json.loads(current.body)
    assert not (older | {"supportsAuthenticatedExtendedCard"}) & card.keys()
    assert set(card["securitySchemes"]["apiKey"]) == {"apiKeySecurityScheme"}
    assert "stateTransitionHistory" not in card["capabilities"]
    assert (await env.raw("GET", PATHS[0], headers={"a2a-version": "0.3"})).body == hybrid.body
    assert hybrid.headers["vary"] == current.headers["vary"] == "A2A-Version"
    assert hybrid.headers["etag"] != current.headers["etag"]
    for version, form in (("1.0", current), ("", hybrid)):
        asked = {"a2a-version": version, "if-none-match": form.headers["etag"]}
        assert (await env.raw("GET", PATHS[0], headers=asked)).status == 304
    crossed = {"a2a-version": "1.0", "if-none-match": hybrid.headers["etag"]}
    assert (await env.raw("GET", PATHS[0], headers=crossed)).status == 200


async def test_an_agent_without_1_0_refuses_a_caller_of_1_0(start_agent: StartAgent) -> None:
    env = await start_agent(dialects=("0.3",))
    reply = await env.raw("GET", PATHS[0], headers={"a2a-version": "1.0"})
    assert json.loads(reply.body)["protocolVersion"] == "0.3.0"


async def test_web_pages_may_read_only_the_card(env: Env) -> None:
    reply = await env.raw("GET", PATHS[0], headers={"origin": "https://page.example"})
    assert reply.headers["access-control-allow-origin"] == "*"
    assert (await env.raw("OPTIONS", PATHS[0])).status == 204
    answer = await env.raw("POST", "/a2a", b"{}", {"origin": "https://page.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_the_extensions_of_the_skills_are_declared(start_agent: StartAgent) -> None:
    env = await start_agent()
    declared = {e["uri"]: e for e in (await card_of(env))["capabilities"]["extensions"]}
    assert set(declared) == {COST, CONFIDENCE, EFFECT_DOMAIN, WORLDSTATE_DELTA, BLAST, HITL_MODE}
    effects = declared[EFFECT_DOMAIN]["params"]["skills"]["file_bug"]["effects"]
    assert effects == [{"domain": "board", "path": "bugs.open", "delta": 1.0, "confidence": 0.95}]
    plain = await start_agent(skills=[builtin_skills()[0]])
    assert "extensions" not in (await card_of(plain))["capabilities"]


async def test_declared_effects_are_the_observed_ones(env: Env) -> None:
    """The drift check of the seed, over every built-in skill that declares an effect or a report."""
    for made in env.engine.settings.skills:
        if made.effects or made.cost or made.sure:
            await env.frames("message/stream", sent("x", skill=made.skill_id))
    assert undeclared(env.engine.settings.skills) == {}


async def test_an_undeclared_effect_is_detected(start_agent: StartAgent) -> None:
    @skill(effects=(Effect(domain="board", path="a"),))
    async def drifts(task: SkillContext) -> None:
        task.effect("board", "a")
        task.effect("board", "b")
        task.use(1, 1)

    env = await start_agent(skills=[drifts])
    await env.frames("message/stream", sent("x"))
    assert undeclared(env.engine.settings.skills) == {"drifts": ("cost", "effect board:b")}


async def test_the_extended_card_shows_the_hidden_skills(start_agent: StartAgent) -> None:
    @skill(public=False)
    async def inner(task: SkillContext) -> str:
        return "x"

    env = await start_agent(skills=[*builtin_skills(), inner], api_key="k")
    public = await card_of(env)
    assert "inner" not in {s["id"] for s in public["skills"]}
    assert public["supportsAuthenticatedExtendedCard"] is True
    key = {"x-api-key": "k"}
    for method in ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"):
        assert "inner" in {s["id"] for s in (await env.call(method, headers=key))["skills"]}


async def test_without_an_extended_card_each_dialect_gives_its_own_error(env: Env) -> None:
    assert await env.refused("agent/getAuthenticatedExtendedCard") == -32007
    assert await env.refused("GetExtendedAgentCard") == -32004


async def _nothing(task: SkillContext) -> None:
    return None


@pytest.mark.parametrize(
    "options",
    [
        {"skills": []},
        {"skills": [skill("a")(_nothing), skill("a")(_nothing)]},
        {"skills": [skill("a", public=False)(_nothing)]},
        {"default_skill": "missing"},
        {"dialects": ("2.0",)},
        {"dialects": ()},
        {"url": "ftp://x"},
        {"api_key": ""},
        {"api_key": " padded "},
        {"allow_webhook": ("nonsense",)},
        {"name": " "},
    ],
)
def test_an_agent_with_a_misleading_card_does_not_start(options: dict[str, Any]) -> None:
    made: dict[str, Any] = {"name": "x", "skills": builtin_skills(), **options}
    with pytest.raises(ConfigError):
        Agent(made.pop("name"), **made).app()


def test_an_unknown_field_of_a_skill_is_refused() -> None:
    with pytest.raises(ConfigError):
        skill("x", colour="red")(_nothing)
    with pytest.raises(ConfigError):
        skill("x", radius="galaxy")(_nothing)


def test_a_copy_of_an_agent_differs_in_the_named_settings_only() -> None:
    agent = Agent("x", skills=builtin_skills(), api_key="k", bearers={"ada": "t"})
    copy = agent.replace(name="y", url="http://y")
    assert (copy.settings.name, copy.settings.url) == ("y", "http://y")
    assert dataclasses.replace(copy.settings, name="x", url=None) == agent.settings
    assert (agent.settings.name, agent.settings.api_keys) == ("x", {"caller": "k"})
    with pytest.raises(ConfigError):
        agent.replace(colour="red")


def test_the_defaults_of_an_agent_are_those_on_its_page() -> None:
    settings = Agent("x").settings
    assert (settings.version, settings.dialects) == ("1.0.0", ("1.0", "0.3", "0.1"))
    assert (settings.streaming, settings.push_notifications, settings.state_transition_history) == (True, True, False)
    assert (settings.api_keys, settings.bearers, settings.input_modes, settings.state) == ({}, {}, None, None)
    assert settings.output_modes == ("text/plain",)
    assert Agent("x", input_modes=["a/b"], state="s.db").settings.input_modes == ("a/b",)
