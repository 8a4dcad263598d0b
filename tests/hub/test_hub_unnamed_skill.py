"""A request without a skill: the skill it is recorded under, the hint for its agent, and its gate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.skills import Effect
from fleetsim.events.wire import payload
from fleetsim.fleet.settings import SkillEntry
from fleetsim.ledger.bodies import decoder, encode
from fleetsim.model.card import AgentCard, AgentExtension, Capabilities
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.extensions import HITL_MODE, HitlMode, HitlRule, read_declared
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest, skill_hint
from fleetsim.request.records import RequestRecord
from fleetsim.testbed.faults import Status
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.hub.test_hub_card_changes import CARD, POLLED, QUINN, change_card
from tests.ledger.ledgers import record

DIALECTS = ("0.1", "0.3", "1.0")


def greeter(name: str = "greeter") -> Agent:
    """The README's first agent."""
    agent = Agent(name, description="Says hello")

    @agent.skill("greet", description="Greets whoever is named")
    async def greet(task: SkillContext) -> str:
        who = task.text or await task.ask("Whom shall I greet?")
        return f"Hello {who}"

    return agent


def talker() -> Agent:
    agent = Agent("quinn")

    @agent.skill("deploy")
    async def deploy(task: SkillContext) -> str:
        return "deployed"

    @agent.skill("chat")
    async def chat(task: SkillContext) -> str:
        return f"you say {task.text}"

    return agent


def deployer(**options: Any) -> Agent:
    agent = Agent("quinn")

    @agent.skill("deploy", **options)
    async def deploy(task: SkillContext) -> str:
        return "deployed"

    return agent


async def say(t: LocalHub, text: str = "hello", *, cid: str = "c-1", **more: Any) -> Outcome:
    (name,) = [entry.name for entry in t.hub.config.agents]
    await t.hub.submit(SkillRequest(correlation_id=cid, text=text, targets=(name,), **more))
    return await t.hub.tracker.wait(cid)


def sent(t: LocalHub) -> list[Mapping[str, Any]]:
    """The metadata of every message that was sent."""
    bodies = [json.loads(seen.request.body) for seen in t.network.seen if seen.method == "POST" and seen.rpc_method]
    return [body["params"].get("metadata", {}) for body in bodies if "message" in body.get("params", {})]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("agent", "hint", "text"),
    [
        (worker, None, "you said hello"),
        (talker, "chat", "you say hello"),
        (greeter, "greet", "Hello hello"),
    ],
)
async def test_an_agent_gets_no_hint_for_a_skill_that_it_lacks(
    agent: Any,
    hint: str | None,
    text: str,
    dialect: str,
) -> None:
    made = agent()
    name = made.settings.name
    async with ready_hub(made, entries={name: {"wire": dialect}}) as t:
        outcome = await say(t)
        assert (outcome.success, outcome.text, outcome.reason) == (True, text, "")
        (told,) = sent(t)
        assert told.get("skillHint") == hint
        assert told["a2a.trace"].get("skill") == hint
        assert ("skillHint" in told) is ("skill" in told["a2a.trace"]) is (hint is not None)
        assert set(told) == {"correlationId", "a2a.trace"} | ({"skillHint"} if hint else set())


async def test_a_request_without_a_skill_is_recorded_under_the_agents_only_skill() -> None:
    async with ready_hub(greeter(), cooldowns_s={"greet": 60.0}) as t:
        outcome = await say(t, "Ada")
        assert (outcome.skill, outcome.text) == ("greet", "Hello Ada")
        assert t.events("autonomous.outcome.user.greet")
        with pytest.raises(UnknownTarget):
            await say(t, cid="c-2")


async def test_a_command_in_the_text_reaches_the_only_skill() -> None:
    async with ready_hub(greeter()) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="/greet", targets=("greeter",)))
        await asyncio.sleep(5)
        (question,) = t.hub.tracker.questions()
        assert question.text == "Whom shall I greet?"


async def test_an_only_skill_with_effects_is_hinted_only_if_it_is_named() -> None:
    async with ready_hub(deployer(effects=(Effect(domain="board", path="bugs"),))) as t:
        await say(t)
        await say(t, cid="c-2", skill="deploy")
        assert [told.get("skillHint") for told in sent(t)] == [None, "deploy"]


async def test_an_agent_with_an_unread_card_gets_no_hint() -> None:
    entry = {"wire": "0.3", **POLLED, "skills": (SkillEntry(name="chat"),)}
    async with local_hub(worker(), entries={"quinn": entry}) as t:
        t.network.fault(Status(status=404), CARD)
        await say(t)
        assert [told.get("skillHint") for told in sent(t)] == [None]


async def test_an_answer_and_a_follow_up_have_the_hint_of_their_task() -> None:
    async with ready_hub(talker_that_asks(), entries={"quinn": POLLED}) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="ask", targets=("quinn",)))
        await asyncio.sleep(40)
        (question,) = t.hub.tracker.questions()
        follow = SkillRequest(correlation_id="c-2", text="main", targets=("quinn",), task_id=question.task_id)
        await t.hub.submit(follow)
        await asyncio.sleep(40)
        assert [told.get("skillHint") for told in sent(t)] == ["ask", "ask"]
        (card,) = [view.card for view in t.hub.broker.views()]
        assert (skill_hint(card), skill_hint(card, continues=True)) == ("chat", None), "on a task nobody follows"


def talker_that_asks() -> Agent:
    agent = talker()

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"going with {await task.ask('which branch?')}"

    return agent


@pytest.mark.parametrize("skill", [None, "deploy"])
async def test_after_a_restart_the_same_hint_is_sent_whatever_the_card_says_by_then(skill: str | None) -> None:
    """Recorded and not yet sent when the hub ended; meanwhile ``chat`` was added to the card."""
    async with ready_hub(deployer(), entries={"quinn": POLLED}) as t:
        t.network.down(QUINN)
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill=skill, targets=("quinn",)))
        await asyncio.sleep(0.1)
        t.network.up(QUINN)
        await change_card(t, lambda card: card["skills"].append({**card["skills"][0], "id": "chat"}))
        await t.restart()
        assert (await t.hub.tracker.wait("c-1")).text == "deployed"
        assert {told.get("skillHint") for told in sent(t)} == {"deploy"}


def test_a_request_recorded_before_hints_existed_is_sent_with_its_recorded_skill() -> None:
    before = json.loads(encode(record("c-1")))
    del before["hint"]
    assert decoder(RequestRecord)(json.dumps(before)).hint is None


# its gate


def gates(**skills: Mapping[str, Any]) -> AgentCard:
    modes = AgentExtension(uri=HITL_MODE, params={"skills": skills})
    return AgentCard(name="quinn", capabilities=Capabilities(extensions=(modes,)))


@pytest.mark.parametrize(
    ("modes", "strictest"),
    [
        (("autonomous",), "autonomous"),
        (("notification", "autonomous"), "notification"),
        (("notification", "veto", "autonomous"), "veto"),
        (("gated", "veto"), "gated"),
        (("compound", "gated"), "compound"),
        (("nonsense", "notification"), "notification"),
        ((), None),
    ],
)
def test_a_request_without_a_skill_has_the_strictest_mode_of_its_agent(
    modes: tuple[str, ...], strictest: str | None
) -> None:
    card = gates(**{f"s{n}": {"mode": mode} for n, mode in enumerate(modes)})
    rule = read_declared(card, None).hitl
    assert (rule.mode.value if rule else None) == strictest


def test_the_strictest_rule_has_the_longest_veto_window_and_the_reviewer_of_any_skill() -> None:
    card = gates(
        a={"mode": "veto", "vetoTtlMs": 5_000},
        b={"mode": "veto", "vetoTtlMs": 90_000},
        c={"mode": "notification", "vetoTtlMs": 500_000, "reviewer": "operator"},
    )
    assert read_declared(card, None).hitl == HitlRule(mode=HitlMode.VETO, veto_window_s=90.0, operator_only=True)
    assert read_declared(card, "a").hitl == HitlRule(mode=HitlMode.VETO, veto_window_s=5.0)


async def test_unnamed_work_of_an_agent_with_a_veto_can_be_vetoed() -> None:
    agent = worker(default_skill="slow")

    @agent.skill("slow", hitl="veto")
    async def slow(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "too late"

    async with ready_hub(agent, entries={"quinn": POLLED}) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", targets=("quinn",)))
        await asyncio.sleep(5)
        assert [veto.correlation_id for veto in t.hub.hitl.vetoes()] == ["c-1"]
        await t.remote.veto("c-1")
        assert (await t.hub.tracker.wait("c-1")).kind is OutcomeKind.CANCELED


async def test_effects_of_unnamed_work_are_drift_only_if_no_skill_declares_them() -> None:
    agent = Agent("quinn")

    @agent.skill("change", effects=(Effect(domain="board", path="bugs"),))
    async def change(task: SkillContext) -> str:
        task.effect("board", "features", "inc", 1)
        task.effect("mail", "sent", "inc", 1)
        return "changed"

    @agent.skill("plan", effects=(Effect(domain="board", path="features"), Effect(domain="board", path="epics")))
    async def plan(task: SkillContext) -> str:
        return "planned"

    async with ready_hub(agent) as t:
        assert (await say(t)).success
        (told,) = t.events("world.state.delta")
        assert payload(told)["drift"] == ["seen but not declared: mail/sent"]
