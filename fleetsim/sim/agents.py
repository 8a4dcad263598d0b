"""The agents of a simulated fleet: the reference agent with scripted skills, and an API key for each.

A witness learns from each agent's store how its tasks ended. A key must never be seen outside its header.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in
from typing import Protocol

from msgspec import structs

from fleetsim.agent import Agent, AgentLimits, SkillContext, SkillFailed, SkillRejected
from fleetsim.agent.agent import Engine
from fleetsim.agent.guard import Authenticator
from fleetsim.agent.operations import BEHAVIOURS, CallerContext, Interceptor
from fleetsim.agent.skills import Skill, skill
from fleetsim.agent.tasks import TaskMove
from fleetsim.client.credential import API_KEY_HEADER
from fleetsim.fleet.auth import AuthEntry
from fleetsim.model.call import Call, SendMessage
from fleetsim.model.task import TERMINAL
from fleetsim.runtime.ports import Request
from fleetsim.sim.quantities import draw
from fleetsim.sim.scenario import SimulatedAgent, SkillBehaviour

__all__ = ["AgentTask", "Engine", "KeyAuthenticator", "Plan", "Witness", "simulated_agent", "tasks_in_memory"]

LIMITS = AgentLimits(drain_s=0.0, stop_s=1.0, tasks_per_caller_max=10_000)
_WORDS = ("looked", "at", "the", "open", "work", "and", "found", "nothing", "that", "cannot", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one task, drawn when it begins, so that tasks that overlap do not change each other's draws."""

    takes_s: float
    chunks: int
    questions: int
    rejects: bool
    fails: bool
    cost_usd: float | None
    confidence: float | None

    @classmethod
    def of(cls, behaviour: SkillBehaviour, rng: Random) -> Plan:
        """The plan of one task. The number of draws never varies."""
        chances = [rng.random() for _ in range(4)]
        asks = chances[2] < behaviour.asks
        return cls(
            takes_s=max(0.0, draw(behaviour.takes, rng)),
            chunks=round(draw(behaviour.chunks, rng)),
            rejects=chances[0] < behaviour.rejects,
            fails=chances[1] >= behaviour.succeeds,
            questions=asks + (asks and chances[3] < behaviour.asks_again),
            cost_usd=None if behaviour.cost is None else round(draw(behaviour.cost, rng), 6),
            confidence=None if behaviour.confidence is None else min(1.0, draw(behaviour.confidence, rng)),
        )


@dataclass(slots=True, kw_only=True)
class AgentTask:
    """One task as its agent has it. ``ended`` is its terminal state, "killed" with its agent, "open" at the end of the
    run, and empty until then. ``life`` counts how often the agent was killed before. ``answers`` are the texts that the
    skill got, in order; ``text`` is all that it sent.
    """

    agent: str
    skill: str
    task_id: str
    context_id: str
    correlation_id: str
    life: int
    begun_s: float
    ended_s: float | None = None
    ended: str = ""
    text: str = ""
    cost_usd: float | None = None
    answers: list[str] = field(default_factory=list)


class Witness(Protocol):
    """Records the tasks of agents, and slows agents down."""

    def ended(self, task: AgentTask) -> None:
        """The agent's store has ended the task."""

    @property
    def now(self) -> float:
        """Seconds of the run until now."""

    def slowness(self, agent: str) -> float:
        """By which factor it works slower now; 1 is normal."""


class KeyAuthenticator(Authenticator):
    """Accepts the one key that the agent asks for now."""

    def __init__(self, key: str) -> None:
        super().__init__(api_keys={"hub": key}, bearers={})

    def change(self, key: str) -> None:
        """Asks for another key from now on."""
        super().__init__(api_keys={"hub": key}, bearers={})


class WaitInterceptor(Interceptor):
    """Replies with the result of a request, up to ``wait_s_max``, even if the caller asked for an early reply."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        return structs.replace(call, wait=True) if isinstance(call, SendMessage) else call


def simulated_agent(name: str, scripted: SimulatedAgent, witness: Witness, *, url: str | None, life: int) -> Agent:
    """An agent of the scenario, not yet running."""
    room = asyncio.Semaphore(scripted.at_once) if scripted.at_once else None
    tasks: dict[str, AgentTask] = {}

    def moved(transition: TaskMove) -> None:
        if transition.state not in TERMINAL or (task := tasks.pop(transition.record.task.task_id, None)) is None:
            return  # still open, or it ended before its skill began
        task.ended, task.ended_s = transition.state.value, round(witness.now, 6)
        witness.ended(task)

    def script(skill_id: str, behaviour: SkillBehaviour) -> Skill:
        async def work(context: SkillContext, task: AgentTask, plan: Plan) -> None:
            if plan.rejects:
                raise SkillRejected("not now")
            if plan.questions:
                await context.status("looking at what was asked")
            # The pieces of the text come at even times; a question comes before the piece at its place.
            pieces = max(1, plan.chunks)
            asked_before = {pieces * (n + 1) // (plan.questions + 1) for n in range(plan.questions)}
            for piece in range(pieces):
                await asyncio.sleep(plan.takes_s * witness.slowness(name) / pieces)
                if piece + 1 in asked_before or (pieces == 1 and plan.questions):
                    for _ in range(plan.questions if pieces == 1 else 1):
                        task.answers.append(await context.ask(f"May I go on with step {len(task.answers) + 1}?"))
                if plan.chunks and piece + 1 < pieces:
                    await say(context, task, f"{_WORDS[piece % len(_WORDS)]} ")
            if plan.cost_usd is not None:
                context.use(input_tokens=200, output_tokens=50, cost_usd=plan.cost_usd, model="simulated")
                task.cost_usd = plan.cost_usd
            if plan.confidence is not None:
                context.confidence(plan.confidence)
            if plan.fails:
                raise SkillFailed(behaviour.fails_with)
            await say(context, task, f"done: {context.text[:60]}")

        async def say(context: SkillContext, task: AgentTask, text: str) -> None:
            task.text += text
            await context.say(text)

        @skill(skill_id, cost=behaviour.cost is not None, sure=behaviour.confidence is not None)
        async def run(context: SkillContext) -> None:
            plan = Plan.of(behaviour, context.rng)
            task = tasks[context.task_id] = AgentTask(
                agent=name,
                skill=skill_id,
                task_id=context.task_id,
                context_id=context.context_id,
                correlation_id=str(context.metadata.get("correlationId", "")),
                life=life,
                begun_s=round(witness.now, 6),
            )
            async with room or nullcontext():
                await work(context, task, plan)

        return run

    version = scripted.dialect.partition("+")[0]  # an agent of ours serves both bindings
    return Agent(
        name,
        description=f"A simulated agent with {len(scripted.skills)} skill(s)",
        skills=tuple(script(skill_id, behaviour) for skill_id, behaviour in scripted.skills.items()),
        listeners=(moved,),
        dialects=(version,),
        behaviours={**BEHAVIOURS, version: replace(BEHAVIOURS[version], wait_s=float("inf"))},
        interceptors=(WaitInterceptor,) if scripted.waits else (),
        streaming=scripted.streaming,
        push_notifications=scripted.push,
        url=None if url is None else f"{url}/a2a",
        limits=replace(LIMITS, wait_s_max=scripted.waits) if scripted.waits else LIMITS,
    )


def tasks_in_memory(engine: Engine, now_s: float) -> dict[str, float]:
    """Counts the tasks of a running agent and the open ones. ``oldest_s`` is the age of the oldest open task."""
    retention = engine.store.retention
    opened = [retention.get(key).opened_s for key in retention.open_keys]
    return {"tasks": len(retention), "open": len(opened), "oldest_s": round(now_s - min(opened, default=now_s), 3)}


MARK = "simulated-key-"
"""The prefix of every key, by which it is found in any text."""
MARK_BYTES = MARK.encode()


class FleetKeys:
    """A key for each agent. The hub reads it from the environment, as it reads all keys.

    ``carried`` counts the requests with a key. ``strayed`` lists the places in which a key must not be and was.
    """

    def __init__(self, agents: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._owners: dict[str, str] = {}
        self._variables = {agent: f"FLEETSIM_SIMULATED_KEY_{number}" for number, agent in enumerate(agents)}
        self._keys = {agent: self._new(agent) for agent in self._variables}
        self.doors = {agent: KeyAuthenticator(key) for agent, key in self._keys.items()}
        """The authenticators of the agents, which stay the same when an agent restarts."""
        self.carried = 0
        self.strayed: list[str] = []

    def entry(self, agent: str) -> AuthEntry:
        """The agent's credential in the hub's configuration."""
        return AuthEntry(scheme="apiKey", credentials_env=self._variables[agent])

    def change(self, agent: str) -> None:
        """Gives the agent another key, which the hub does not have yet."""
        self._keys[agent] = self._new(agent)
        self.doors[agent].change(self._keys[agent])

    def hand_over(self, *agents: str) -> None:
        """Gives the hub the present keys of these agents."""
        for agent in agents:
            os.environ[self._variables[agent]] = self._keys[agent]

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """Gives the hub all keys until the block ends."""
        try:
            self.hand_over(*self._keys)
            yield
        finally:
            for variable in self._variables.values():
                os.environ.pop(variable, None)

    def look_at(self, request: Request, target: str) -> None:
        """Checks a request to ``target`` (the name of an agent, or an origin) for keys."""
        key = request.headers.get(API_KEY_HEADER, "")
        self.carried += key in self._owners
        if key in self._owners and self._owners[key] != target:
            self.strayed.append(f"the key of {self._owners[key]} was sent to {target}")
        others = (value for name, value in request.headers.items() if name != API_KEY_HEADER)
        if MARK in request.url or MARK_BYTES in request.body or any(MARK in value for value in others):
            self.strayed.append(f"a key stood in a request to {target}, and not in the header for it")

    def look_for(self, payloads: Iterable[bytes], where: str) -> None:
        """Searches the pieces of stored bytes for a key."""
        before = b""
        for piece in payloads:
            if MARK_BYTES in before + piece:
                self.strayed.append(f"a key stood in {where}")
                return
            before = piece[-len(MARK_BYTES) :]

    def _new(self, agent: str) -> str:
        key = f"{MARK}{self._rng.getrandbits(64):016x}"
        self._owners[key] = agent
        return key
