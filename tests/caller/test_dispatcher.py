"""The dispatcher: one record for each agent, from its current card and entry, or a refusal with an event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.dispatcher import Dispatcher, TaskBusy
from fleetsim.events.request import Event, Level
from fleetsim.events.wire import payload
from fleetsim.ledger import Ledger, RunRecord, SlotClaim
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.extensions import HitlMode, HitlRule, SkillPolicy
from fleetsim.model.limits import TooMuchText
from fleetsim.model.parts import PARTS_MAX, TooManyParts
from fleetsim.model.task import TextPart
from fleetsim.model.work import DEFAULT_SKILL, SkillRequest, Source
from fleetsim.request.records import AgentRoute, OtherWay, RequestRecord
from fleetsim.request.track import Rules
from fleetsim.testbed.loop import START
from tests.caller.fleet import CardsRead, FixedFleet, Fleet, fleet

PLAIN = AgentRoute(
    agent="scout", dialect="1.0", url="http://scout.example:8000", rpc_url="http://scout.example:8000/a2a"
)


def worker(name: str = "scout") -> Agent:
    agent = Agent(name)

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    @agent.skill("long")
    async def long(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "done"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return await task.ask("Which branch?")

    return agent


class Disk:
    """The ledger on a disk that may be full (``error``) or already have the slot."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.takes = True
        self.error: FleetsimError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None) -> bool:
        if self.takes:
            return await self._ledger.accept(records, run=run)
        if self.error is not None:
            raise self.error
        return False


@dataclass
class Door:
    """A dispatcher with the agents, routes and ledger that the test chooses."""

    f: Fleet
    ways: dict[str, AgentRoute] = field(default_factory=dict)
    agents: tuple[str, ...] | None = None
    cooldowns_s: Mapping[str, float] | None = None
    lists: None = None

    def __post_init__(self) -> None:
        f = self.f
        self.disk: Any = Disk(f.ledger)
        self.dispatcher = Dispatcher(
            f.runtime,
            self.disk,
            f.events,
            f.tracker,
            tokens=f.tokens,
            cards=CardsRead(),
            registry=self,
            routes=FixedFleet(find_route=lambda agent, _: self.ways.get(agent, replace(PLAIN, agent=agent))),
            cooldowns_s=self.cooldowns_s,
        )

    def resolve(self, skill: str | None, targets: tuple[str, ...], *_: object) -> tuple[str, ...]:
        if "nobody" in targets:
            raise UnknownTarget("unknown agent “nobody”")
        return targets if self.agents is None else self.agents

    def run(self, *children: str) -> RunRecord:
        """The one slot of a ceremony."""
        claim = SlotClaim(ceremony_id="digest", scheduled_at=START, run_id="r-1")
        return RunRecord(claim=claim, started_at=self.f.runtime.clock.now(), children=children)

    async def refused(self, error: type[FleetsimError], asked: SkillRequest) -> tuple[FleetsimError, Event]:
        """The error and its one event; the request is neither recorded nor started."""
        before = len(self.f.events.recent())
        with pytest.raises(error) as caught:
            await self.dispatcher.submit(asked)
        (told,) = self.f.events.recent()[before:]
        assert self.f.tracker.track(asked.correlation_id) is None
        return caught.value, told


@asynccontextmanager
async def door(rules: Rules | None = None, **options: Any) -> AsyncIterator[Door]:
    async with fleet(worker(), worker("ava"), rules=rules) as f:
        yield Door(f, **options)


def asked(cid: str = "c-1", **changes: Any) -> SkillRequest:
    return SkillRequest(**{"correlation_id": cid, "text": "x", "skill": "echo", "targets": ("scout",), **changes})


# ---------------------------------------------------------------------- the record


async def test_a_record_contains_the_current_route_of_its_agent() -> None:
    way = AgentRoute(
        agent="scout",
        dialect="0.3",
        url="http://u",
        rpc_url="http://u/rpc",
        tenant="t",
        other=OtherWay(dialect="1.0", rpc_url="http://u/other"),
        hint="h",
        declared=SkillPolicy(hitl=HitlRule(mode=HitlMode.VETO)),
        streaming=True,
        rejoin=False,
        push=True,
        register_push=True,
    )
    async with door(ways={"scout": way}) as d:
        await asyncio.sleep(60)
        request = asked(skill=None, targets=("scout", "scout"), system_actor="ada")
        d.agents = ("scout",)
        (record,) = d.dispatcher.plan(request)
        assert record.request == replace(request, skill=DEFAULT_SKILL, targets=("scout",))
        assert (record.agent, record.skill, record.accepted_at) == ("scout", DEFAULT_SKILL, d.f.runtime.clock.now())
        for name in ("dialect", "url", "rpc_url", "tenant", "other", "hint", "declared", "streaming", "rejoin"):
            assert getattr(record, name) == getattr(way, name), name
        assert (record.push, record.register_push, record.token_epoch) == (True, True, 1)
        (plain,) = d.dispatcher.plan(asked())
        assert plain.skill == "echo"
        d.ways["scout"] = AgentRoute(agent="scout", dialect="1.0")
        (bare,) = d.dispatcher.plan(asked())
        assert (bare.hint, bare.declared) == ("", SkillPolicy()), "no hint, which is not that none was noted"
        assert (bare.streaming, bare.rejoin, bare.push, bare.register_push) == (False, True, False, False)
        assert len({r.message_id for r in (record, plain, bare)}) == 3


@pytest.mark.parametrize(
    ("configured_s", "asked_s", "limit_s", "shortened"),
    [
        (None, None, 1_800, False),
        (60, None, 60, False),
        (None, 90, 90, True),
        (60, 59, 59, True),
        (60, 60, 60, False),
        (60, 61, 61, False),
    ],
)
async def test_a_request_ends_by_its_own_limit_or_that_of_its_skill_or_of_the_fleet(
    configured_s: float | None, asked_s: float | None, limit_s: float, shortened: bool
) -> None:
    own = {} if configured_s is None else {"echo": configured_s}
    async with door(Rules(task_limit_s=1_800, skill_limits_s=own)) as d:
        (record,) = d.dispatcher.plan(asked(timeout_s=asked_s))
        assert record.deadline_at - record.accepted_at == timedelta(seconds=limit_s)
        assert record.shortened is shortened


async def test_several_agents_get_a_child_each_and_a_single_agent_gets_the_request_itself() -> None:
    async with door() as d:
        (one,) = d.dispatcher.plan(asked(parent_id="p"))
        assert (one.request.correlation_id, one.request.parent_id) == ("c-1", "p")
        children = d.dispatcher.plan(asked(targets=("scout", "ava"), parent_id="p"))
        assert [(r.agent, r.request.targets, r.request.parent_id) for r in children] == [
            ("scout", ("scout",), "c-1"),
            ("ava", ("ava",), "c-1"),
        ]
        ids = {r.request.correlation_id for r in children}
        assert len(ids - {"c-1"}) == 2
        (child,) = d.dispatcher.plan(asked(parent_id="p"), child=True)
        assert (child.request.correlation_id, child.request.parent_id) == ("c-1", "p")
        cids = await d.dispatcher.submit(asked(targets=("scout", "ava")))
        ended = [await d.f.tracker.wait(cid) for cid in cids]
        assert [(outcome.agent, outcome.parent_id) for outcome in ended] == [("scout", "c-1"), ("ava", "c-1")]


async def test_the_first_event_of_a_request_is_its_acceptance() -> None:
    async with door() as d:
        source = Source(interface="chat")
        await d.dispatcher.submit(
            asked(parent_id="p", system_actor="ada", source=source, parts=(TextPart(text="y"),), text="hello")
        )
        first = next(event for event in d.f.events.recent() if event.correlation_id == "c-1")
        assert (first.topic, first.level, first.parent_id) == ("agent.skill.request", Level.INFO, "p")
        assert (first.agent, first.skill) == ("scout", "echo")
        assert {key: payload(first)[key] for key in ("text", "targets", "systemActor", "source")} == {
            "text": "hello",
            "targets": ["scout"],
            "systemActor": "ada",
            "source": "chat",
        }


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"text": "x" * 11}, TooMuchText, "too_long"),
        ({"parts": (TextPart(text="y"),) * (PARTS_MAX + 1)}, TooManyParts, "too_large"),
        ({"targets": ("nobody",)}, UnknownTarget, "target_unresolved"),
        ({"task_id": "t-1", "targets": ("scout", "ava")}, UnknownTarget, "target_unresolved"),
        ({"task_id": "t-1", "targets": ()}, UnknownTarget, "target_unresolved"),
    ],
    ids=["text", "parts", "nobody", "two agents' task", "nobody's task"],
)
async def test_a_refused_request_has_an_event_with_the_reason(
    changes: dict[str, Any], error: type[FleetsimError], why: str
) -> None:
    async with door(Rules(text_chars_max=10)) as d:
        refusal, told = await d.refused(error, asked(**changes))
        assert (told.topic, told.level) == (f"dispatch.dropped.{why}", Level.WARN)
        assert (told.correlation_id, told.skill) == ("c-1", "echo")
        aims = list(changes.get("targets", ("scout",)))
        assert payload(told) == {"message": str(refusal), "targets": aims, "reason": why}
        await d.dispatcher.submit(asked(text="x" * 10))


async def test_a_dispatcher_that_is_closing_refuses_everything() -> None:
    async with door() as d:
        d.dispatcher.accepting = False
        for request in (asked(), asked(task_id="t-1")):
            _, told = await d.refused(NotAccepting, request)
            assert told.topic == "dispatch.dropped.closing"


# ---------------------------------------------------------------------- cooldowns


async def test_a_skill_cools_down_at_each_agent_separately_and_to_the_second() -> None:
    async with door(cooldowns_s={"echo": 30.0}) as d:
        await d.dispatcher.submit(asked())
        await asyncio.sleep(12)
        refusal, told = await d.refused(UnknownTarget, asked("c-2"))
        assert "18.0 s" in str(refusal)
        assert told.topic == "dispatch.dropped.cooldown"
        await d.dispatcher.submit(asked("c-3", targets=("ava",)))
        await d.dispatcher.submit(asked("c-4", skill="long"))
        await asyncio.sleep(17.75)
        await d.refused(UnknownTarget, asked("c-5"))
        await asyncio.sleep(0.25)
        await d.dispatcher.submit(asked("c-6"))
        await d.refused(UnknownTarget, asked("c-7"))


async def test_of_two_requests_at_once_the_second_is_refused() -> None:
    async with door(cooldowns_s={"echo": 30.0}) as d:
        both = await asyncio.gather(*(d.dispatcher.submit(asked(f"c-{n}")) for n in range(2)), return_exceptions=True)
        assert [type(result) for result in both] == [tuple, UnknownTarget]


async def test_a_request_that_one_agent_refuses_starts_no_cooldown_at_others() -> None:
    async with door(cooldowns_s={"echo": 30.0}) as d:
        await d.dispatcher.submit(asked(targets=("ava",)))
        await d.refused(UnknownTarget, asked("c-2", targets=("scout", "ava")))
        await d.dispatcher.submit(asked("c-3"))


@pytest.mark.parametrize("error", [NotAccepting("the disk is full"), None], ids=repr)
async def test_a_request_that_the_ledger_refused_starts_no_cooldown(error: FleetsimError | None) -> None:
    async with door(cooldowns_s={"echo": 30.0}) as d:
        await d.dispatcher.submit(asked(targets=("ava",)))
        await asyncio.sleep(10)
        d.disk.takes, d.disk.error = False, error
        for cid in ("c-2", "c-3"):
            if error is not None:
                with pytest.raises(NotAccepting):
                    await d.dispatcher.submit(asked(cid))
            else:
                assert await d.dispatcher.submit_run([asked(cid)], d.run(cid)) is False
            assert d.f.tracker.track(cid) is None
        d.disk.takes = True
        await d.refused(UnknownTarget, asked("c-4", targets=("ava",)))
        await d.dispatcher.submit(asked("c-5"))


# ---------------------------------------------------------------------- runs and follow-ups


async def test_a_run_starts_its_requests_unless_its_slot_is_taken() -> None:
    async with door() as d:
        children = [asked("c-1", parent_id="p"), asked("c-2", parent_id="p", targets=("ava",))]
        assert await d.dispatcher.submit_run(children, d.run("c-1", "c-2")) is True
        again = [asked("c-3", parent_id="p")]
        assert await d.dispatcher.submit_run(again, d.run("c-3")) is False
        assert d.f.tracker.track("c-3") is None
        assert [(await d.f.tracker.wait(cid)).parent_id for cid in ("c-1", "c-2")] == ["p", "p"]


async def test_a_follow_up_on_a_working_task_is_refused_and_one_on_a_question_is_its_answer() -> None:
    async with door(Rules(poll_interval_s=5.0)) as d:
        task_of = {}
        for cid, skill in (("c-1", "long"), ("c-2", "ask")):
            d.ways["scout"] = replace(PLAIN, streaming=True, hint=skill)
            await d.dispatcher.submit(asked(cid, skill=skill))
            await asyncio.sleep(20)
            track = d.f.tracker.track(cid)
            assert track is not None
            assert track.task is not None
            task_of[cid] = track.task.task_id
        refusal, told = await d.refused(TaskBusy, asked("c-3", task_id=task_of["c-1"]))
        assert f"task {task_of['c-1']} belongs to request c-1" in str(refusal)
        assert told.topic == "dispatch.dropped.task_busy"
        assert await d.dispatcher.submit(asked("c-4", task_id=task_of["c-2"], text="main")) == ("c-2",)
        assert (await d.f.tracker.wait("c-2")).text == "main"


async def test_the_second_of_two_answers_at_once_is_refused_as_busy() -> None:
    way = replace(PLAIN, streaming=True, hint="ask")
    async with door(Rules(poll_interval_s=5.0), ways={"scout": way}) as d:
        await d.dispatcher.submit(asked(skill="ask"))
        await asyncio.sleep(20)
        (question,) = d.f.tracker.questions()
        both = await asyncio.gather(
            *(d.dispatcher.submit(asked(cid, text=cid, task_id=question.task_id)) for cid in ("c-2", "c-3")),
            return_exceptions=True,
        )
        assert both[0] == ("c-1",)
        assert isinstance(both[1], TaskBusy)
        assert [e.correlation_id for e in d.f.topics("dispatch.dropped.task_busy")] == ["c-3"]
        assert (await d.f.tracker.wait("c-1")).text == "c-2"


async def test_a_follow_up_that_is_not_recorded_does_not_block_its_task() -> None:
    async with door() as d:
        await d.dispatcher.submit(asked())
        task_id = (await d.f.tracker.wait("c-1")).task_id
        d.disk.takes, d.disk.error = False, NotAccepting("the disk is full")
        with pytest.raises(NotAccepting):
            await d.dispatcher.submit(asked("c-2", task_id=task_id))
        assert d.f.tracker.find("scout", str(task_id)) is None
        d.disk.takes = True
        assert await d.dispatcher.submit(asked("c-3", task_id=task_id)) == ("c-3",)
