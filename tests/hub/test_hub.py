from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.operations import CallerContext, Interceptor
from fleetsim.agent.skills import Effect
from fleetsim.client import AgentClient
from fleetsim.events.request import Event, UpdateIgnored
from fleetsim.events.wire import payload
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import AgentEntry, FleetSettings
from fleetsim.hub.agents import callback_base, route_of
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.call import Call, PushConfig, SendMessage
from fleetsim.model.errors import Blame, InternalError, NotAccepting
from fleetsim.model.task import TextPart
from fleetsim.model.work import Answer, Outcome, OutcomeKind, SkillRequest
from fleetsim.runtime.ports import Runtime
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.outcomes import made

CEREMONY = 'id: tick\nname: Tick\nschedule: "* * * * *"\nskill: echo\ntargets: [all]\nprompt: good morning\n'


async def ask(t: LocalHub, skill: str, text: str = "hi", *, agent: str = "quinn") -> Outcome:
    request = SkillRequest(correlation_id=t.runtime.ids.new(), text=text, skill=skill, targets=(agent,))
    (cid,) = await t.hub.submit(request)
    return await t.hub.tracker.wait(cid)


async def test_the_outcome_of_a_request_is_in_health_ledger_and_events() -> None:
    async with ready_hub(worker()) as t:
        outcome = await ask(t, "echo")
        assert (outcome.kind, outcome.text, outcome.cost_usd) == (OutcomeKind.COMPLETED, "you said hi", 0.25)
        health = t.hub.snapshot().agent("quinn")
        assert health is not None
        assert (health.health, health.success_rate, health.total_cost_usd) == ("up", 1.0, 0.25)
        assert await t.ledger.outcome(outcome.correlation_id) == outcome
        (told,) = t.events("autonomous.outcome.")
        assert told.topic == "autonomous.outcome.user.echo"


@pytest.mark.parametrize("push", ["auto", "inline", "set", "off"])
async def test_webhooks_reach_the_hub_at_its_own_address(push: str) -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": push}}) as t:
        assert (await ask(t, "ponder")).success
        await asyncio.sleep(5)
        assert bool(t.events("agent.push.accepted")) is (push != "off")
        assert t.events("agent.push.rejected") == []


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1", "1.0+http", "0.3+http"])
async def test_a_refused_webhook_is_left_out_whatever_the_code(wire: str, streaming: bool) -> None:
    """The guard has the words and the code of protolabs-agent 0.218.1. A 0.1 agent gets a webhook only over HTTPS."""
    calls: list[tuple[str, bool]] = []

    class Guard(Interceptor):
        async def before(self, call: Call, caller: CallerContext) -> Call:
            if isinstance(call, SendMessage):
                (part,) = call.message.parts
                assert isinstance(part, TextPart)
                calls.append((part.text, call.push is not None))
                if call.push is not None:
                    raise InternalError("push-notification callback url is not allowed")
                if part.text == "fail":
                    raise InternalError("the model has no tokens left")
            return call

    agent = worker(streaming=streaming, interceptors=(Guard,))
    entries = {"quinn": {"wire": wire, "push": "inline"}}
    async with ready_hub(agent, entries=entries, base_url="https://hub.example") as t:
        for text in ("hi", "ho"):
            assert (await ask(t, "echo", text)).text == f"you said {text}"
        assert (await ask(t, "echo", "fail")).cause == "internal_error"
        assert calls == [("hi", True), ("hi", False), ("ho", False), ("fail", False)]
        async with AgentClient("http://quinn.example:8000/a2a", runtime=t.runtime, dialect=wire) as client:
            sent = await client.send_task("he", push=PushConfig(url="https://hook.example/in"))
        assert (sent.text, len(sent.warnings)) == ("you said he", 1)


async def test_a_dead_agent_ends_undeliverable_and_is_shown_down_while_the_rest_works() -> None:
    async with ready_hub(worker("quinn"), worker("ava")) as t:
        t.network.down("http://ava.example:8000")
        outcome = await ask(t, "echo", agent="ava")
        assert (outcome.kind, outcome.blame) == (OutcomeKind.UNDELIVERABLE, Blame.NETWORK)
        await ask(t, "echo", agent="ava")
        await asyncio.sleep(5)
        rows = {a.agent_name: a for a in t.hub.snapshot().agents}
        assert rows["ava"].health == "down"
        assert (await ask(t, "echo", agent="quinn")).success
        assert rows["ava"].undeliverable_count == 2


async def test_an_opened_breaker_causes_a_read_of_the_card() -> None:
    async with ready_hub(worker(), breaker_failures=2) as t:
        t.network.down("http://quinn.example:8000")
        await ask(t, "echo")
        await asyncio.sleep(1)
        assert t.events("agent.breaker.opened")
        assert t.hub.broker.view("quinn").reachable is False


async def test_a_restart_loads_requests_health_cards_and_event_numbers(runtime: Runtime) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        async with ready_hub(worker(), ledger=ledger) as t:
            await ask(t, "echo")
            await t.hub.submit(SkillRequest(correlation_id="c-9", text="x", skill="ponder", targets=("quinn",)))
            await asyncio.sleep(5)
            last = t.hub.events.last_seq
        assert await ledger.last_seq() == last + 1
        async with local_hub(worker(), ledger=ledger) as t:
            assert t.hub.events.recent()[0].seq == last + 2
            row = t.hub.snapshot().agent("quinn")
            assert row is not None
            assert row.total_outcomes == 1
            assert [track.correlation_id for track in t.hub.tracker.tracks()] == ["c-9"]
            outcome = await t.hub.tracker.wait("c-9")
            assert outcome.kind is OutcomeKind.LOST


@pytest.mark.parametrize("push", ["off", "auto"])
async def test_work_and_questions_survive_a_restart_of_the_hub(push: str) -> None:
    async with ready_hub(worker(), entries={"quinn": {"push": push}}) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="ponder", targets=("quinn",)))
        await t.hub.submit(SkillRequest(correlation_id="c-2", text="go", skill="ask", targets=("quinn",)))
        await asyncio.sleep(40)
        await t.restart()
        (question,) = t.hub.tracker.questions()
        await t.hub.tracker.answer(Answer(question_id=question.question_id, text="main"))
        assert (await t.hub.tracker.wait("c-2")).text == "going with main"
        assert (await t.hub.tracker.wait("c-1")).text == "at last"
        health = t.hub.snapshot().agent("quinn")
        assert health is not None
        assert health.success_count == 2


async def test_a_decided_outcome_without_an_event_is_published_at_the_next_start(runtime: Runtime) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        async with ready_hub(worker(), ledger=ledger) as t:
            await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="ponder", targets=("quinn",)))
            await asyncio.sleep(5)
            now = t.runtime.clock.now()
        await ledger.close(made("c-1", now, skill="ponder"))
        async with local_hub(worker(), ledger=ledger) as t:
            assert [event.correlation_id for event in t.events("autonomous.outcome.")] == ["c-1"]
        async with local_hub(worker(), ledger=ledger) as t:
            assert t.events("autonomous.outcome.") == []


async def test_every_event_is_in_the_journal_once_and_in_order() -> None:
    async with local_hub(worker(), ceremony=CEREMONY) as t:
        await asyncio.sleep(200)
        heard = t.hub.events.recent(limit=20_000)
        await asyncio.sleep(1)
        kept = await t.ledger.events(limit=20_000)
        assert [e.seq for e in kept][: len(heard)] == [e.seq for e in heard]
        assert [e.topic for e in kept][: len(heard)] == [e.topic for e in heard]


async def test_closing_while_the_journal_is_being_written_writes_no_event_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ready_hub(worker()) as t:
        append = t.ledger.append

        async def slow(events: Sequence[Event]) -> None:
            work = asyncio.ensure_future(append(events))  # as on a thread: continues when its caller is cancelled
            await asyncio.sleep(3)
            await work

        monkeypatch.setattr(t.ledger, "append", slow)
        t.hub.events.publish(UpdateIgnored(state="one", via="poll", why="late"))
        await asyncio.sleep(1)
        t.hub.events.publish(UpdateIgnored(state="two", via="poll", why="late"))
        hub, ledger = t.hub, t.ledger
        await hub.__aexit__(None, None, None)
        assert [event.seq for event in await ledger.events(limit=20_000)] == list(range(1, hub.events.last_seq + 1))


async def test_a_closing_hub_accepts_no_new_work_and_leaves_no_worker() -> None:
    async with ready_hub(worker(), ceremony=CEREMONY) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="x", skill="ponder", targets=("quinn",)))
        hub = t.hub
    with pytest.raises(NotAccepting):
        await hub.submit(SkillRequest(correlation_id="c-2", text="x", skill="echo", targets=("quinn",)))
    owners = ("hub", "cards", "tracker", "hitl", "scheduler", "runs", "journal")
    assert [w.get_name() for w in asyncio.all_tasks() if w.get_name().startswith(owners)] == []


async def test_a_declared_effect_that_is_not_seen_is_reported_as_drift() -> None:
    agent = Agent("quinn")

    @agent.skill("change", effects=(Effect(domain="board", path="bugs"),))
    async def change(task: SkillContext) -> str:
        task.effect("board", "features", "inc", 1)
        return "changed"

    async with ready_hub(agent) as t:
        assert (await ask(t, "change")).success
        (told,) = t.events("world.state.delta")
        assert payload(told)["drift"] == ["declared but not seen: board/bugs", "seen but not declared: board/features"]


@pytest.mark.parametrize(
    ("url", "external", "expected"),
    [
        ("http://localhost:9000/a2a", False, "http://127.0.0.1:3000"),
        ("http://127.0.0.1:9000/a2a", False, "http://127.0.0.1:3000"),
        ("http://[::1]:9000/a2a", False, "http://127.0.0.1:3000"),
        ("http://quinn:7870/a2a", False, "http://inside:3000"),
        ("http://quinn:7870/a2a", True, "http://outside:3000"),
        ("http://quinn.example/a2a", False, "http://outside:3000"),
        ("http://[2001:db8::1]/a2a", False, "http://outside:3000"),
    ],
)
def test_the_callback_address_is_one_the_agent_can_reach(url: str, external: bool, expected: str) -> None:
    settings = FleetSettings(base_url="http://outside:3000", internal_base_url="http://inside:3000")
    entry = AgentEntry(name="a", url=url, external=external)
    assert callback_base(entry, settings, "http://127.0.0.1:3000") == expected


def test_without_a_base_url_only_agents_on_this_machine_get_webhooks() -> None:
    own = "http://127.0.0.1:3000"
    assert callback_base(AgentEntry(name="a", url="http://localhost:1"), FleetSettings(), own) == own
    assert callback_base(AgentEntry(name="a", url="http://quinn:1"), FleetSettings(), own) is None
    assert callback_base(AgentEntry(name="a", url="http://quinn.example:1"), FleetSettings(), own) is None


@pytest.mark.parametrize(
    ("dialect", "said", "joined"),
    [("1.0", None, True), ("0.3", None, False), ("0.1", None, True), ("0.3", True, True), ("1.0", False, False)],
)
def test_a_broken_stream_is_rejoined_if_the_dialect_or_the_entry_allows_it(
    dialect: str, said: bool | None, joined: bool
) -> None:
    entry = AgentEntry(name="quinn", url="http://quinn.example/a2a", dialect=dialect, rejoin=said)
    request = SkillRequest(correlation_id="c-1", skill="echo")
    assert route_of(AgentView(entry=entry), request, webhooks_at="http://hub.example").rejoin is joined


@pytest.mark.parametrize(
    ("dialect", "webhooks_at", "offered"),
    [
        ("1.0", "http://hub.example", True),
        ("0.3", "http://hub.example", True),
        ("0.1", "http://hub.example", False),
        ("0.1", "https://hub.example", True),
        ("0.3", None, False),
    ],
)
def test_a_webhook_is_offered_if_it_can_reach_us_and_the_dialect_has_it(
    dialect: str, webhooks_at: str | None, offered: bool
) -> None:
    entry = AgentEntry(name="quinn", url="http://quinn.example/a2a", dialect=dialect, push="inline")
    request = SkillRequest(correlation_id="c-1", skill="echo")
    assert route_of(AgentView(entry=entry), request, webhooks_at=webhooks_at).push is offered
