"""The whole card of an agent of which everything is said, how it is asked for, and what a job takes and gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from fleetsim.agent import Agent, skill
from fleetsim.agent.endpoints import CardEndpoint, build_card
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import BEHAVIOURS
from fleetsim.agent.runner import Job
from fleetsim.agent.skills import Effect, Skill, SkillContext, undeclared
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA
from fleetsim.model.task import TaskState
from fleetsim.runtime.ports import Runtime
from fleetsim.wire.dialect import DIALECTS
from tests.agent.rigs import Rig, Rigging, said


async def _nothing(task: SkillContext) -> None:
    return None


def offered(skill_id: str, **options: Any) -> Skill:
    return skill(skill_id, **options)(_nothing)


# -- the card ------------------------------------------------------------------------------------------


def test_a_card_says_everything_an_agent_was_given() -> None:
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
            AgentInterface(url="http://x/a2a", protocol_version="0.3.0"),
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
def test_a_card_names_the_newest_first_and_01_only_without_03(dialects: Any, versions: list[str]) -> None:
    settings = Agent("n", skills=[offered("a")], dialects=dialects).settings
    card = build_card(settings, "http://x")
    assert [each.protocol_version for each in card.interfaces] == versions
    assert set(versions) <= {known.card_version for known in DIALECTS.values()}
    assert (card.description, card.default_input_modes) == ("n", ("text/plain",))
    assert card.capabilities == Capabilities(streaming=True, push_notifications=True, extended_card=False)


def test_the_former_name_of_undeclared_works_and_warns() -> None:
    undone = offered("a")
    undone.note_undeclared("cost", declared=False)
    assert undeclared([undone]) == {"a": ("cost",)}


def test_only_what_some_skill_uses_is_declared() -> None:
    assert undeclared([offered("a")]) == {}
    for options, uris in (
        ({"cost": True}, {COST}),
        ({"sure": True}, {CONFIDENCE}),
        ({"effects": (Effect(domain="d", path="p"),)}, {EFFECT_DOMAIN, WORLDSTATE_DELTA}),
        ({"radius": "self"}, {BLAST}),
        ({"hitl": "veto"}, {HITL_MODE}),
    ):
        settings = Agent("n", skills=[offered("a"), offered("b", **options)]).settings
        extensions = build_card(settings, "http://x").capabilities.extensions
        assert {each.uri for each in extensions} == uris
        for each in extensions:
            assert list((each.params or {"skills": {"b": 1}})["skills"]) == ["b"]


@pytest.mark.parametrize("url", ["http://x/a2a", "https://x/a2a", None])
def test_an_agent_may_have_either_kind_of_address(url: str | None) -> None:
    settings = Agent("n", skills=[offered("a"), offered("b")], url=url).settings
    settings.check()
    assert settings.first_skill() == "a"
    assert Agent("n", skills=settings.skills, default_skill="b").settings.first_skill() == "b"
    with pytest.raises(ConfigError, match="among the skills"):
        Agent("n", skills=settings.skills, default_skill="c").settings.first_skill()


# -- how it is asked for -------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ("{}", 304),
        ("W/{}", 304),
        ('"other", {}', 304),
        ('"other",W/{}', 304),
        ("*", 304),
        ('"other"', 200),
        ("", 200),
        ('"other", *', 200),
    ],
)
async def test_who_has_the_card_is_not_sent_it_again(rig: Rig, known: str, status: int) -> None:
    path = "/.well-known/agent-card.json"
    first = await rig.raw("GET", path)
    assert len(first.headers["etag"]) == 34
    assert first.headers["cache-control"] == "public, max-age=60"
    assert first.headers["content-type"] == "application/json"
    again = await rig.raw("GET", path, headers={"if-none-match": known.format(first.headers["etag"])})
    assert (again.status, bool(again.body)) == (status, status == 200)
    for name in ("etag", "cache-control", "vary", "access-control-allow-origin"):
        assert again.headers[name] == first.headers[name]


async def test_a_browser_may_ask_whether_it_may_read_the_card(rig: Rig) -> None:
    reply = await rig.raw("OPTIONS", "/.well-known/agent-card.json")
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
    assert reply.headers["access-control-allow-headers"] == "*"
    assert reply.headers["access-control-max-age"] == "600"


async def test_who_knocks_at_the_wrong_door_is_shown_the_way(rigged: Rigging) -> None:
    rig = await rigged()
    for method, path, status in (("POST", "/nowhere", 404), ("GET", "/a2a", 405), ("PUT", "/message:send", 405)):
        reply = await rig.raw(method, path)
        assert reply.status == status
        assert b"-32601" in reply.body
        assert b"POST /a2a" in reply.body


# -- a job ---------------------------------------------------------------------------------------------


async def test_a_job_hands_its_skill_the_answer_and_keeps_so_many_other_messages(runtime: Runtime) -> None:
    store = Store(clock=runtime.clock, ids=runtime.ids, limits=AgentLimits())
    key = store.create(ANYONE, said("x"), skill="s", dialect="0.3").key
    job = Job(store, key, 2)
    for text in "abc":
        job.pass_on(said(text))
    assert [message.text for message in job.unread()] == ["a", "b"]
    assert job.unread() == ()
    for auth, state in ((False, TaskState.INPUT_REQUIRED), (True, TaskState.AUTH_REQUIRED)):
        asking = asyncio.ensure_future(job.ask("well?", auth=auth))
        await asyncio.sleep(0)
        assert store.state(key) is state
        with pytest.raises(RuntimeError, match="one question"):
            await job.ask("and?", auth=False)
        job.pass_on(said("answer"))
        job.pass_on(said("more"))
        assert (await asking).text == "answer"
        assert [message.text for message in job.unread()] == ["more"]


@pytest.mark.parametrize(("chars", "shown"), [(4_000, 4_000), (4_001, 4_000)])
async def test_a_note_is_cut_to_four_thousand_characters(runtime: Runtime, chars: int, shown: int) -> None:
    store = Store(clock=runtime.clock, ids=runtime.ids, limits=AgentLimits())
    key = store.create(ANYONE, said("x"), skill="s", dialect="0.3").key
    Job(store, key, 1).note("x" * chars)
    message = store.read(key).task.status.message
    assert message is not None
    assert len(message.text) == shown
    assert message.text.endswith("…") is (chars > shown)


def test_each_dialect_has_its_published_behaviour() -> None:
    for name, waits, context, events, closes, names, repeats, notices, task_id in (
        ("1.0", True, True, False, False, False, False, False, False),
        ("0.3", False, False, True, True, False, True, False, True),
        ("0.1", False, False, True, True, True, True, True, True),
    ):
        behaviour = BEHAVIOURS[name]
        assert (behaviour.dialect, behaviour.waits) == (name, waits)
        assert (behaviour.other_context_refused, behaviour.stream_errors_as_events) == (context, events)
        assert (behaviour.question_closes_subscription, behaviour.client_names_task) == (closes, names)
        assert (behaviour.repeats_artifact, behaviour.artifact_notice) == (repeats, notices)
        assert behaviour.push_id_is_task_id is task_id
