"""The whole card of an agent with every setting, the address and headers of a request, and the fields of a job."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from fleetsim.agent import Agent, skill
from fleetsim.agent.endpoints import CardEndpoint, build_card
from fleetsim.agent.skills import Effect, Skill, SkillContext
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA
from fleetsim.wire.dialect import DIALECTS


async def _nothing(task: SkillContext) -> None:
    return None


def offered(skill_id: str, **options: Any) -> Skill:
    return skill(skill_id, **options)(_nothing)


# -- the card ------------------------------------------------------------------------------------------


def test_a_card_contains_every_setting_of_its_agent() -> None:
    effect = Effect(domain="d", path="p", delta=-2.0, confidence=0.5)
    shown = offered("a", cost=True, sure=True, effects=(effect,), radius="repo", hitl="veto")
    settings = Agent(
        "n",
        description="d",
        version="2",
        skills=(shown, offered("b", public=False)),
        dialects=("0.3", "1.0"),
        api_key="k",
        bearer="t",
        state_transition_history=True,
        push_notifications=False,
        organization="o",
        provider_url="http://o",
        documentation_url="http://doc",
        input_modes=("i/i",),
        output_modes=("o/o",),
    ).settings
    public = build_card(settings, "http://x/a2a")
    params: dict[str, Any] = {
        COST: {},
        CONFIDENCE: {},
        EFFECT_DOMAIN: {"skills": {"a": {"effects": [{"domain": "d", "path": "p", "delta": -2.0, "confidence": 0.5}]}}},
        WORLDSTATE_DELTA: {},
        BLAST: {"skills": {"a": {"radius": "repo"}}},
        HITL_MODE: {"skills": {"a": {"mode": "veto"}}},
    }
    assert {each.uri: dict(each.params or {}) for each in public.capabilities.extensions} == params
    assert all(isinstance(each, AgentExtension) and each.description for each in public.capabilities.extensions)
    assert public == AgentCard(
        name="n",
        description="d",
        version="2",
        interfaces=(
            AgentInterface(url="http://x/a2a", protocol_version="1.0"),
            AgentInterface(url="http://x/a2a", binding="HTTP+JSON", protocol_version="1.0"),
            AgentInterface(url="http://x/a2a", protocol_version="0.3.0"),
            AgentInterface(url="http://x/a2a", binding="HTTP+JSON", protocol_version="0.3.0"),
        ),
        capabilities=Capabilities(
            streaming=True,
            push_notifications=False,
            state_transition_history=True,
            extended_card=True,
            extensions=public.capabilities.extensions,
        ),
        skills=(shown.card_entry(),),
        default_input_modes=("i/i",),
        default_output_modes=("o/o",),
        provider_organization="o",
        provider_url="http://o",
        documentation_url="http://doc",
        security_schemes=settings.authenticator().schemes(),
        security=({"apiKey": []}, {"bearer": []}),
    )
    assert [each.skill_id for each in build_card(settings, "http://x", extended=True).skills] == ["a", "b"]


@pytest.mark.parametrize(
    ("dialects", "versions"),
    [
        (("0.1",), ["0.1.0"]),
        (("0.1", "0.3"), ["0.3.0"]),
        (("0.1", "1.0"), ["1.0", "0.1.0"]),
        (("0.1", "0.3", "1.0"), ["1.0", "0.3.0"]),
    ],
)
def test_a_card_lists_the_newest_dialect_first_and_0_1_only_without_0_3(dialects: Any, versions: list[str]) -> None:
    settings = Agent("n", skills=[offered("a")], dialects=dialects).settings
    card = build_card(settings, "http://x")
    assert [each.protocol_version for each in card.interfaces if each.binding == "JSONRPC"] == versions
    over_http = [version for version in versions if version != "0.1.0"]  # 0.1 has no other binding
    assert [each.protocol_version for each in card.interfaces if each.binding == "HTTP+JSON"] == over_http
    assert set(versions) <= {known.card_version for known in DIALECTS.values()}
    assert (card.description, card.default_input_modes) == ("n", ("text/plain",))
    assert card.capabilities == Capabilities(streaming=True, push_notifications=True, extended_card=False)


@pytest.mark.parametrize("url", ["http://x/a2a", "https://x/a2a", None])
def test_an_agent_may_have_either_kind_of_address(url: str | None) -> None:
    settings = Agent("n", skills=[offered("a"), offered("b")], url=url).settings
    settings.check()
    assert settings.first_skill() == "a"
    assert Agent("n", skills=settings.skills, default_skill="b").settings.first_skill() == "b"
    with pytest.raises(ConfigError):
        Agent("n", skills=settings.skills, default_skill="c").settings.first_skill()


# the request for a card


@pytest.mark.parametrize(
    ("server", "scheme", "url"),
    [
        (("agent", 9000), "http", "http://agent:9000/a2a"),
        (("::1", 9000), "https", "https://[::1]:9000/a2a"),
        (("agent", None), "http", "http://agent/a2a"),
        (None, "http", "http://127.0.0.1/a2a"),
    ],
)
def test_the_address_is_the_sockets_own(server: Any, scheme: str, url: str) -> None:
    headers = [(b"host", b"evil.example")]
    scope = {"type": "http", "server": server, "scheme": scheme, "path": "/", "query_string": b"", "headers": headers}
    plain = CardEndpoint(lambda url: build_card(Agent("n", skills=[offered("a")]).settings, url), None, "/a2a")
    assert plain.url_for(Request(scope)) == url


# -- a job ---------------------------------------------------------------------------------------------
