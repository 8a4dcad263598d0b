"""One seed: a real caller and real agents under faults, and the rules that must hold when the faults end."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.caller.webhooks import CALLBACK_PATH
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.channels.delivery import Channels, Notifier
from fleetsim.fleet.settings import FleetConfig, FleetSettings
from fleetsim.ledger import NoticeState
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.work import Answer, OutcomeKind
from fleetsim.request.records import QuestionState
from fleetsim.request.track import Rules
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from fleetsim.testbed.network import MemoryNetwork
from tests.caller.fleet import HUB, Fleet, fleet

WORDS = ["alpha ", "beta ", "gamma ", "delta "]
COST = 0.5
TASKS = 3


CHAT = "https://chat.example"
OPS = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.SLACK, url=f"{CHAT}/in"),))
CONFIG = FleetConfig(agents=(), settings=FleetSettings(question_channels=("ops",)))


class Script:
    """The planned conduct of the agent for each request, and its end: the truth to compare with."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}/script")
        self.truth: dict[str, tuple[str, str]] = {}

    def agent(self) -> Agent:
        agent = Agent("scout")

        @agent.skill("work")
        async def work(task: SkillContext) -> None:
            said: list[str] = []
            for _ in range(self.rng.randint(0, 5)):
                await asyncio.sleep(self.rng.choice([0.0, 0.05, 1.0, 7.0]))
                if self.rng.random() < 0.7:
                    said.append(self.rng.choice(WORDS))
                    await task.say(said[-1])
                else:
                    await task.status("thinking")
            for _ in range(self.rng.choice([0, 0, 0, 0, 0, 300])):
                await asyncio.sleep(1.0)
                await task.status("still thinking")
            if self.rng.random() < 0.35:
                said.append(f"[{await task.ask('which?')}]")
                await task.say(said[-1])
            task.use(10, 5, cost_usd=COST)
            if self.rng.random() < 0.2:
                self.truth[task.text] = ("failed", "it broke")
                raise SkillFailed("it broke")
            said.append("end")
            self.truth[task.text] = ("completed", "".join(said))
            await task.say("end")

        return agent


def weather(network: MemoryNetwork, rng: random.Random) -> None:
    """Streams are cut; webhooks lost, doubled, delayed and reordered; polls refused and slow; replies delayed."""
    hub, scout = Match(origin="http://hub.example:8080"), "http://scout.example:8000"
    network.fault(faults.Late(low_s=0.0, high_s=40.0), hub, probability=rng.choice([0.0, 0.3, 0.6]))
    network.fault(faults.Duplicate(copies=2, after_s=3.0), hub, probability=rng.choice([0.0, 0.3]))
    network.fault(faults.LoseRequest(), hub, probability=rng.choice([0.0, 0.2, 0.9]))
    network.fault(faults.LoseReply(), hub, probability=rng.choice([0.0, 0.2]))
    held = faults.SlowStart(seconds=rng.choice([0.5, 4.0, 12.0, 40.0]))  # webhooks overtake the reply
    for send in ("message/send", "message/stream", "SendMessage", "SendStreamingMessage", "tasks/send"):
        network.fault(held, Match(origin=scout, rpc_method=send), probability=rng.choice([0.0, 0.5]))
    for stream in ("message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"):
        cut = faults.DropAfter(bytes_passed=rng.randint(700, 3_000))
        network.fault(cut, Match(origin=scout, rpc_method=stream), probability=rng.choice([0.0, 0.5]))
    network.fault(faults.Refuse(), Match(origin=CHAT), probability=rng.choice([0.0, 0.4]))
    for poll in ("tasks/get", "GetTask"):
        network.fault(faults.Refuse(), Match(origin=scout, rpc_method=poll), probability=rng.choice([0.0, 0.2]))
        slow = faults.Latency(low_s=0.0, high_s=rng.choice([0.1, 6.0]))
        network.fault(slow, Match(origin=scout, rpc_method=poll), probability=0.5)


class Person:
    """An operator with a chat. ``taken``: the number of notices in it, by question."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.taken: Counter[str] = Counter()
        network.addresses["chat.example"] = ("93.184.216.34",)
        network.mount(CHAT, Starlette(routes=[Route("/in", self._read, methods=["POST"])]))

    async def _read(self, request: Request) -> Response:
        (question_id,) = re.findall(r"inbox reply (\S+)", json.loads(await request.body())["text"])
        self.taken[question_id] += 1
        return Response()

    async def on_record(self, f: Fleet) -> set[str]:
        """The questions whose notice is on record as delivered."""
        asked = [record.question.question_id for record in await f.ledger.questions(open_only=False)]
        rows = [row for name in asked for row in await f.ledger.notices(name)]
        return {row.subject for row in rows if row.state is NoticeState.DELIVERED}

    async def check(self, f: Fleet, seed: int, before: set[str] | None) -> None:
        """Each question has one notice; one that is withdrawn may end before its turn. A caller that stops between a
        notice and its record lets another repeat it, or record that its question has ended; ``before`` are those on
        record at that stop, if there was one."""
        records, told = await f.ledger.questions(open_only=False), await self.on_record(f)
        due = {row.question.question_id for row in records if row.state is not QuestionState.WITHDRAWN}
        assert due | told <= self.taken.keys(), f"seed {seed}: notices of {self.taken}"
        assert before is not None or told == self.taken.keys(), f"seed {seed}: notices on record: {told}"
        again = {name for name in told if self.taken[name] > 1 and (before is None or name in before)}
        assert not again, f"seed {seed}: notices on record were repeated: {again}"


@asynccontextmanager
async def notifying(f: Fleet) -> AsyncIterator[None]:
    """Send the notices of questions; first those that an earlier caller left."""
    channels = Channels(f.runtime, f.events, {"ops": OPS}, ledger=f.ledger)
    async with channels, Notifier(f.events, channels, f.ledger, CONFIG) as notifier:
        notifier.take_up([record.question for record in await f.ledger.questions(open_only=True)])
        await notifier.take_up_left()
        yield


async def answer_everything(f: Fleet, person: Person, rng: random.Random) -> None:
    """Answer each question once, a while after its notice."""
    seen: set[str] = set()
    while True:
        for question in f.tracker.questions():
            if question.question_id in person.taken and question.question_id not in seen:
                try:
                    await f.tracker.answer(Answer(question_id=question.question_id, text="this"))
                except UnknownTarget:  # it has ended, or the caller restarts just now
                    continue
                seen.add(question.question_id)
        await asyncio.sleep(rng.choice([0.2, 3.0, 20.0]))


async def watch_polls(f: Fleet, seed: int) -> None:
    """A task in flight is polled every two intervals or so, however many webhooks arrive (I-13)."""
    interval = f.tracker.rules.poll_interval_s
    since: dict[str, float] = {}
    while True:
        now = f.runtime.clock.monotonic()
        for track in f.tracker.tracks():
            cid, quiet = track.correlation_id, track.task is None or track.asking.answer is not None
            polled = 0 if quiet else track.polling.count + (track.polling.began is not None)
            if quiet or polled != since.get(f"{cid}/polls"):
                since[cid], since[f"{cid}/polls"] = now, polled
            assert now - since[cid] <= 2.3 * interval + 20, (
                f"seed {seed}: {cid} was not polled for {now - since[cid]:.0f} s"
            )
        await asyncio.sleep(1.0)


def acknowledged(f: Fleet, cid: str) -> int:
    """The number of webhooks of a request that we answered with a 2xx."""
    ours = [s for s in f.network.seen if s.url == f"{HUB}{CALLBACK_PATH}{cid}"]
    return sum(s.status is not None and s.status < 300 for s in ours)


async def storm(seed: int) -> None:
    """Run one seed and check it. Raises AssertionError naming the seed."""
    rng = random.Random(f"{seed}/storm")
    script = Script(seed)
    async with fleet(
        script.agent(),
        seed=seed,
        rules=Rules(poll_interval_s=rng.choice([2.0, 30.0])),
        streaming=rng.random() < 0.7,
        push=rng.random() < 0.8,
        dialect=rng.choice(["0.3", "0.3", "1.0", "0.1"]),
        before=lambda network: weather(network, rng),
        disk_s=rng.choice([0.0, 3.0]),
    ) as f:
        person, notices = Person(f.network), AsyncExitStack()
        await notices.enter_async_context(notifying(f))
        operator = asyncio.create_task(answer_everything(f, person, rng))
        watcher = asyncio.create_task(watch_polls(f, seed))
        ids = {}
        for number in range(TASKS):
            ids[f"task {number}"] = await f.ask("scout", f"task {number}", skill="work")
            await asyncio.sleep(rng.choice([0.0, 0.5]))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice([0.2, 1.0, 9.0]))
            promised = {cid for cid in ids.values() if acknowledged(f, cid)}
            if rng.random() < 0.5:  # no webhook repeats it
                f.network.fault(faults.LoseRequest(), Match(origin=HUB))
            await notices.aclose()
            before: set[str] | None = await person.on_record(f)
            await f.restart()
            await notices.enter_async_context(notifying(f))
        else:
            promised, before = set(), None
        for text, cid in ids.items():
            async with asyncio.timeout(7200):
                outcome = await f.tracker.wait(cid)
            where = f"seed {seed}, {text}"
            if outcome.kind in {OutcomeKind.UNKNOWN, OutcomeKind.UNDELIVERABLE}:
                assert cid not in promised, f"{where}: {outcome.kind} although we acknowledged a webhook"
                continue
            kind, whole = script.truth[text]
            assert outcome.kind.value == kind, f"{where}: {outcome.kind} ({outcome.reason}), truth {kind}"
            assert outcome.text == whole, f"{where}: {outcome.text!r}, truth {whole!r}"
            assert outcome.cost_usd == COST, f"{where}: cost {outcome.cost_usd}"
        await asyncio.sleep(200)
        f.network.heal()  # a stopping agent still sends its last webhooks
        if watcher.done():
            await watcher
        operator.cancel()
        watcher.cancel()
        await person.check(f, seed, before)
        await notices.aclose()
        assert sorted(o.correlation_id for o in f.outcomes) == sorted(ids.values()), (
            f"seed {seed}: not one outcome each"
        )
        assert len(f.topics("autonomous.outcome.")) == TASKS, f"seed {seed}: outcome events"
        assert f.executor.overlaps == 0, f"seed {seed}: {f.executor.overlaps} polls of one task overlapped"
        assert not f.tracker.tracks(), f"seed {seed}: tracks left"
