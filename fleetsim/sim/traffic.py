"""The traffic of a run: requests and conversations at their times, people who answer, and people who cancel.

They use whichever hub runs at the moment; without one, a request is refused and an answer is tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from random import Random  # noqa: TID251 - the type of a stream of chance, which the caller hands in
from typing import Any

from fleetsim.events.fleet import HubTookOver
from fleetsim.events.request import QuestionAsked
from fleetsim.hub.hub import Hub
from fleetsim.model.errors import FleetsimError, NotAccepting, OverLimit, UnknownTarget
from fleetsim.model.work import Answer, Decision, Outcome, SkillRequest, Source
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.sim.clocks import RunClock
from fleetsim.sim.quantities import draw
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.scenario import Scenario, Traffic

DAY_S = 86_400.0


def arrivals(traffic: Traffic, rng: Random, *, start: datetime, duration: float) -> Iterator[float]:
    """Seconds after the start at which requests (or conversations) begin, in order; bursts as single requests.

    With a curve the rate is that of the mean weight: candidates come at the rate of the highest weight, and each is
    taken with the share that its time has of that (thinning; Lewis and Shedler, 1979).
    """
    begins, ends = traffic.window(start, duration)
    curve = traffic.curve or [1.0]
    highest = max(curve)
    mean = sum(curve) / len(curve)
    if mean <= 0:
        return
    peak = traffic.rate * highest / mean
    midnight = start.hour * 3_600 + start.minute * 60 + start.second
    at, waiting = begins, []
    while True:
        at += 1 / peak if traffic.arrivals == "steady" else rng.expovariate(peak)
        if at >= ends:
            break
        weight = curve[int((midnight + at) % DAY_S / DAY_S * len(curve))]
        if rng.random() * highest >= weight:
            continue
        if traffic.burst == 1:
            yield at
            continue
        waiting += [at + rng.uniform(0.0, traffic.within) for _ in range(traffic.burst)]
        waiting.sort()
        while waiting and waiting[0] <= at:
            yield waiting.pop(0)
    yield from (moment for moment in waiting if moment < ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPart:
    """A part of a scenario's traffic: every ``of``-th request or conversation.

    ``ready`` is awaited when all agents are known, and returns when the traffic is to begin. It gets the function that
    ends the traffic, and on a second call the waiting for open requests.
    """

    number: int = 0
    of: int = 1
    ready: Callable[[Callable[[], None]], Awaitable[None]] | None = None


WHOLE = TrafficPart()


RETRY_ANSWER_S = 5.0
STARTED_S = 0.5


class TrafficSource:
    """A scenario's traffic and people. ``hub`` returns the hub that runs now, or None.

    ``workers`` run answers and cancels, ``asking`` the requests; the caller closes both. ``within`` runs work as a part
    of a hub's process. ``asked_s`` is the second of the run in which the newest request was accepted.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder,
        runtime: Runtime,
        clock: RunClock,
        workers: Workers,
        *,
        asking: Workers,
        hub: Callable[[], Hub | None],
        within: Callable[[Hub, Coroutine[Any, Any, Any]], Awaitable[Any]] = lambda _, work: work,
        part: TrafficPart = WHOLE,
    ) -> None:
        self.scenario = scenario
        self._part = part
        self._recorder = recorder
        self._runtime = runtime
        self._clock = clock
        self._workers, self._asking = workers, asking
        self._hub, self._within = hub, within
        self._decided: set[str] = set()
        self.asked_s = 0.0

    def come(self) -> None:
        """Starts the traffic."""
        for number, traffic in enumerate(self.scenario.traffic):
            rng = self._runtime.rng.stream(f"sim/traffic/{number}")
            self._asking.start(self._come(number, traffic, rng), name=f"traffic {number}")

    async def end_ceremonies(self) -> None:
        """Disables all ceremonies, as an operator would: runs in flight continue, and no more fire."""
        hub = self._hub()
        if hub is None or hub.scheduler is None or hub.ceremonies is None:
            return
        rows = [row.ceremony for row in hub.scheduler.rows() if row.ceremony.enabled]
        if rows:
            await self._clock.sleep(STARTED_S)  # a hub that has just started has yet to publish its missed slots
        for ceremony in rows:
            await self._within(hub, hub.ceremonies.update(ceremony.ceremony_id, {"enabled": False}))

    async def _come(self, place: int, traffic: Traffic, rng: Random) -> None:
        targets = self.scenario.replicas_of(traffic.agent) if traffic.agent else ()
        began = self._clock.now
        moments = arrivals(traffic, rng, start=self.scenario.start, duration=self.scenario.duration)
        for number, moment in enumerate(moments):
            target = (targets[number % len(targets)],) if targets else ()
            people = self.scenario.people
            # Drawn for every part's requests, so that all parts draw the same traffic.
            pauses = [draw(traffic.pause, rng) for _ in range(traffic.turns - 1)]
            gives_up = draw(people.cancel_after, rng) if rng.random() < people.cancel else None
            if (place + number) % self._part.of != self._part.number:
                continue
            await self._clock.sleep(max(0.0, began + moment - self._clock.now))
            # Not awaited, so that a late or long request does not delay the next one.
            self._asking.start(self._ask(traffic, target, began + moment, pauses, gives_up), name="request")

    async def _ask(
        self, traffic: Traffic, targets: tuple[str, ...], due_s: float, pauses: list[float], gives_up: float | None
    ) -> None:
        """Sends one request, or the turns of a conversation, each after the answer to the one before."""
        context: str | None = None
        for turn, pause in enumerate([0.0, *pauses]):
            await self._clock.sleep(pause)
            if turn:
                due_s = self._clock.now
            cid = self._runtime.ids.new()
            request = SkillRequest(
                correlation_id=cid,
                text=f"{traffic.text} ({cid[-6:]})",
                skill=traffic.skill,
                targets=targets,
                context_id=context,
                first_turn=turn == 0 and traffic.turns > 1,
                system_actor="sim",
                source=Source(interface="sim"),
            )
            try:
                if (hub := self._hub()) is None:
                    raise NotAccepting("the hub is down")
                (cid,) = await self._within(hub, hub.submit(request))
            except FleetsimError as error:
                limit = {"limit": error.limit} if isinstance(error, OverLimit) else {}
                self._record("refused", skill=traffic.skill, why=str(error)[:200], **limit, **self._late(due_s))
                return
            self._record("submitted", correlation_id=cid)
            self.asked_s = self._clock.now
            if late := self._late(due_s):
                self._record("asked", correlation_id=cid, **late)
            if gives_up is not None and turn == 0:
                self._workers.start(self._give_up(cid, gives_up), name="cancel")
            if turn == len(pauses):
                return
            outcome: Outcome | None = None
            while outcome is None:  # also over restarts of the hub
                with suppress(FleetsimError):
                    outcome = await hub.ledger.outcome(cid) if (hub := self._hub()) is not None else None
                if outcome is None:
                    await self._clock.sleep(1.0)
            if not outcome.success:
                return
            context, targets = outcome.context_id, (outcome.agent,)

    async def _give_up(self, cid: str, after_s: float) -> None:
        await self._clock.sleep(after_s)
        with suppress(UnknownTarget, NotAccepting):
            if (hub := self._hub()) is not None:
                await self._within(hub, hub.tracker.cancel(cid, by="simulated person"))
                self._record("canceled", correlation_id=cid)

    async def answer(self, hub: Hub) -> None:
        """Draws for each question, once, whether and when a person answers it."""
        kinds = (QuestionAsked, HubTookOver)
        async with hub.events.subscribe(after_seq=0, keep_max=10_000_000, kinds=kinds) as asked:
            for earlier in hub.tracker.questions():  # asked before a restart
                self._think_about(earlier.question_id, earlier.correlation_id)
            async for batch in asked:
                for event in batch:
                    for question in [event] if isinstance(event, QuestionAsked) else hub.tracker.questions():
                        self._think_about(question.question_id, question.correlation_id or "")

    def _think_about(self, question_id: str, correlation_id: str) -> None:
        if question_id in self._decided:
            return
        self._decided.add(question_id)
        people = self.scenario.people
        rng = Random(f"{self.scenario.seed}/question/{question_id}")
        after_s = draw(people.answer_after, rng)
        if rng.random() < people.never:
            return
        decision = Decision.REJECT if rng.random() < people.reject else Decision.ANSWER
        says = "approve" if question_id.startswith("limit-") else people.says
        answer = Answer(question_id=question_id, text=says, by="simulated person", decision=decision)
        self._workers.start(self._say(answer, correlation_id, after_s), name="answer")

    async def _say(self, answer: Answer, correlation_id: str, after_s: float) -> None:
        await self._clock.sleep(after_s)
        # Recorded first: a hub that is killed after it wrote the answer cannot acknowledge it.
        self._record("answer", question_id=answer.question_id, correlation_id=correlation_id)
        while True:
            try:
                if (hub := self._hub()) is None:
                    raise NotAccepting("the hub is down")
                await self._within(hub, hub.tracker.answer(answer))
            except UnknownTarget:
                return  # it was answered, withdrawn or is over
            except NotAccepting:
                await self._clock.sleep(RETRY_ANSWER_S)
                continue
            return

    def _late(self, due_s: float) -> dict[str, float]:
        """When a request was due, and how many seconds of the machine late it was; empty on virtual time."""
        rate = self._clock.rate
        if rate.virtual:
            return {}
        return {"due_s": round(due_s, 6), "late_s": round(max(0.0, self._clock.now - due_s) / rate.times, 6)}

    def _record(self, kind: str, **members: object) -> None:
        self._recorder.write(self._clock.now, kind, **members)
