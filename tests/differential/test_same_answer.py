"""The same agent gives the same answer at every door: by URL, by ``--stream``, in Python and through the hub."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from fleetsim.client import AgentClient, SentTask
from fleetsim.client.follow import AskedAgent
from fleetsim.model.asking import text_of
from fleetsim.model.errors import FleetsimError
from fleetsim.model.event import ArtifactUpdate
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import TaskState
from tests.differential.scripted_agents import FOREIGN, GONE, SPELLINGS, WORDS, Script, ScriptedAgent, draw
from tests.hub.local_hub import local_hub

AGENTS, FIRST = int(os.environ.get("DIFFERENTIAL_AGENTS", "300")), int(os.environ.get("DIFFERENTIAL_SEED", "1"))
FLEET = 300
"""Agents of one round, a fifth of them in each spelling and at one hub."""
LIMIT_S = 120.0
DOORS = ("url", "stream", "python", "hub")


@dataclass
class Answer:
    """What a door gave: the state, text and parts of each turn, the agent's own words in the last reason, whether it
    showed a piece of another task, and the messages that the agent received."""

    states: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    parts: list[list[tuple[str, str | None, str]]] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)
    foreign: bool = False
    sends: list[str] = field(default_factory=list)

    def turn(self, state: str, text: str = "", reason: str | None = "", parts: Sequence[ListedPart] = ()) -> None:
        self.states.append(state)
        self.texts.append(text if state in {"asks", TaskState.COMPLETED} else "")
        self.parts.append([(part.kind, part.name, part.raw or repr(part.data)) for part in parts if state != "error"])
        self.reason = [word for word in WORDS if word in (reason or "") and state != "asks"]


async def follow(agent: AskedAgent, turns: Sequence[str], answer: Answer, *, stream: bool) -> None:
    """Hold a conversation as ``fleetsim send`` does, with a command for each turn."""
    options: dict[str, Any] = {}
    for turn in turns:
        following = agent.follow(turn, stream=stream, timeout_s=LIMIT_S + 1, **options)
        async for _ in following:
            answer.foreign |= isinstance(event := following.event, ArtifactUpdate) and FOREIGN in event.artifact.text
        result = following.report()
        asks = result.question is not None
        ended = result.state in {*TaskState} - {TaskState.UNKNOWN} and (result.task_id or result.success)
        state = "asks" if asks else result.state if ended else "error"
        answer.turn(state, result.text, result.reason, result.parts)
        if not asks:
            return
        options = {"task_id": result.task_id, "context_id": result.context_id, "answers": result.question}


async def in_python(client: AgentClient, turns: Sequence[str], answer: Answer, *, stream: bool) -> None:
    """Hold a conversation with one call of ``AgentClient.follow``."""
    left = deque(turns)

    async def ask(sent: SentTask) -> str | None:
        answer.turn("asks", sent.text, parts=sent.parts)
        return left.popleft() if left else None

    sent = await client.follow(left.popleft(), stream=stream, ask=ask, timeout_s=LIMIT_S + 1).end()
    if not sent.waiting:
        answer.turn(sent.state, sent.text, sent.error, sent.parts)


async def answers_of(scripts: Sequence[Script], spelling: str) -> list[dict[str, Answer]]:
    """The answers to each agent by door. At each door another application plays the script."""
    origins = {(script, door): f"http://a{script.seed}-{door}.example:8000" for script in scripts for door in DOORS}
    agents = {place: ScriptedAgent(place[0], origin) for place, origin in origins.items()}
    peers = {f"a{script.seed}-hub": agents[script, "hub"] for script in scripts}
    entries = {name: {"wire": spelling} for name in peers}
    async with local_hub(peers=peers, entries=entries, task_limit_s=LIMIT_S) as local:

        async def answer_at(script: Script, door: str) -> Answer:
            answer, origin = Answer(sends=agents[script, door].sent), origins[script, door]
            asks = sum(what in {"ask", "authorise"} for _, what in script.moves)
            turns = ["go", *(f"answer {number}" for number in range(1, asks + 1))]
            client = AgentClient(f"{origin}/a2a", runtime=local.runtime, dialect=spelling)
            if door != "hub":
                local.network.mount(origin, agents[script, door])
            try:
                if door == "hub":
                    hub = local.remote.agent(f"a{script.seed}-hub")
                    await follow(hub, turns, answer, stream=script.streaming)
                elif door == "python":
                    await in_python(client, turns, answer, stream=script.streaming)
                else:
                    await follow(client, turns, answer, stream=door == "stream")
            except FleetsimError as error:
                answer.turn("error", reason=str(error))
            return answer

        found = await asyncio.gather(*(answer_at(script, door) for script, door in agents))
    by_place = dict(zip(agents, found, strict=True))
    for script in scripts:
        by_place[script, "task"] = by_the_task(by_place[script, "hub"], agents[script, "hub"])
    return [{door: by_place[script, door] for door in (*DOORS, "task")} for script in scripts]


def by_the_task(hub: Answer, agent: ScriptedAgent) -> Answer:
    """The hub's answer, with the end of the agent's own task if the hub reports an end of it."""
    if agent.task is None or hub.states[-1] in {"asks", "error"}:
        return hub
    text = text_of(agent.task)[0] if agent.task.state is TaskState.COMPLETED else ""
    return replace(hub, states=[*hub.states[:-1], agent.task.state], texts=[*hub.texts[:-1], text])


def has(troubles: Sequence[Any], *names: str) -> bool:
    return any(name in trouble for trouble in troubles for name in names)


def gone(script: Script) -> bool:
    """Whether a look after the end of the stream may find no task."""
    return script.streaming and has(script.looks, *GONE)


def unnamed(script: Script) -> bool:
    """Whether the agent has begun a task of which the caller got no word."""
    return script.opening == "silent" or has(script.sends, "broken")


DIRECT, ALL = ("url", "stream", "python"), tuple(each.name for each in fields(Answer))
ALLOWED: tuple[tuple[str, Callable[[Script], bool], tuple[str, ...], tuple[str, ...]], ...] = (
    ("a refusal in the place of a stream meets only those who stream", lambda s: s.opening == "json", ("url",), ALL),
    ("an empty stream names no task, and a reply does", lambda s: s.opening == "silent", ("url",), ALL),
    ("the words that end a stream are no words of the task", lambda s: has(s.stream, "error"), ("url",), ("reason",)),
    (
        "only a look knows what a stream left out or brought twice",
        gone,
        (*DIRECT, "task"),
        ("texts", "parts", "reason"),
    ),
    ("the hub reads its keys again after a refusal", lambda s: has(s.sends, "401"), DIRECT, ALL),
    ("the hub looks by the id that it gave the task", lambda s: s.spelling == "0.1" and unnamed(s), DIRECT, ALL),
)
"""Why and with which scripts which fields may differ from the hub's at which doors."""


def differences(script: Script, answers: Mapping[str, Answer]) -> str:
    """The script and the different answers, beyond those allowed; also if all have words of another task."""
    seen, hub = {door: copy(answer) for door, answer in answers.items()}, answers["hub"]
    for _, when, doors, names in ALLOWED:
        for door, name in [(door, name) for door in doors for name in names if when(script)]:
            setattr(seen[door], name, getattr(hub, name))
    if all(answer == hub for answer in seen.values()) and FOREIGN not in str(hub) and not hub.foreign:
        return ""
    told = [f"{each.name}: {getattr(script, each.name)}" for each in fields(script)]
    for answer in [answer for at, answer in enumerate(answers.values()) if answer not in [*answers.values()][:at]]:
        told += ["at " + ", ".join(door for door in answers if answers[door] == answer)]
        told += [f"    {each.name}: {getattr(answer, each.name)}" for each in fields(answer)]
    return "\n".join(told)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("first", range(FIRST, FIRST + AGENTS, FLEET))
async def test_every_door_gives_the_same_answer(first: int, spelling: str, caplog: pytest.LogCaptureFixture) -> None:
    drawn = map(draw, range(first, min(first + FLEET, FIRST + AGENTS)))
    scripts = [script for script in drawn if script.spelling == spelling]
    found = await answers_of(scripts, spelling)
    raised = [told for record in caplog.records if "the application raised" in (told := record.getMessage())]
    assert [told for told in raised if "ConnectionAbortedError" not in told] == []
    wrong = [told for script, answers in zip(scripts, found, strict=True) if (told := differences(script, answers))]
    assert not wrong, f"{len(wrong)} of {len(scripts)} agents\n\n" + "\n\n".join(wrong)
