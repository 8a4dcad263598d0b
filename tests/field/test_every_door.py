"""Every door gives the same result: each door, each capability, each dialect, streamed and polled."""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.agent.builtin import ForgetsTasks
from fleetsim.agent.operations import CallerContext, Interceptor
from fleetsim.model.call import Call, SendMessage
from fleetsim.model.errors import FleetsimError
from fleetsim.model.task import DataPart, FilePart, TextPart
from tests.field.doors import DOORS, Door, Fleet, running_fleet
from tests.hub.local_hub import Stubborn
from tests.hub.test_hub_data_questions import clerk
from tests.scale import WHOLE

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

LATE_S = 11.0
"""Seconds until the late agent replies: longer than any limit that is not the request's own."""
TIMES = 12
"""Runs of a cell with a race."""
LONG = "0123456789" * 30_000
CONTENT = bytes(range(256))
PARTS = (
    FilePart(raw=base64.b64encode(CONTENT).decode(), filename="all.bin", media_type="application/octet-stream"),
    DataPart(data={"rows": [1, 2, {"deep": None}]}),
)
AT_ONCE = 8
"""Cells at work at the same time: commands share the processors with other tests. Waiting cells are extra."""


class Late(Interceptor):
    """Replies to a message after ``LATE_S``, and at once to every other call."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if isinstance(call, SendMessage):
            await asyncio.sleep(LATE_S)
        return call


def workshop(**options: object) -> Agent:
    """An agent with a skill for each capability."""
    agent = Agent("workshop", **options)
    turns: dict[str, list[str]] = {}

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    @agent.skill("swap")
    async def swap(task: SkillContext) -> str:
        await task.attach(*(part for part in task.message.parts if not isinstance(part, TextPart)), name="swapped")
        return "swapped"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        answers = [await task.ask(f"Colour {number}?") for number in range(1, int(task.text) + 1)]
        return f"painted {' and '.join(answers)}"

    @agent.skill("recall")
    async def recall(task: SkillContext) -> str:
        said = turns.setdefault(task.context_id, [])
        said.append(task.text)
        return ", ".join(said)

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("the disk is full")

    @agent.skill("ponder")
    async def ponder(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "at last"

    return agent


@asynccontextmanager
async def fleet_of(home: Path, dialect: str, *, streamed: bool) -> AsyncIterator[Fleet]:
    """The workshop and agents that forget the task of an answer, reply late, refuse a cancel, and ask in data."""
    agents = {
        "workshop": workshop(streaming=streamed),
        "mover": workshop(streaming=streamed, interceptors=(ForgetsTasks,)),
        "late": workshop(streaming=streamed, interceptors=(Late,)),
        "stubborn": workshop(streaming=streamed, interceptors=(Stubborn,)),
        "clerk": clerk(streaming=streamed),
    }
    async with AsyncExitStack() as stack:
        urls = {name: f"{await stack.enter_async_context(agent.serving())}/a2a" for name, agent in agents.items()}
        yield await stack.enter_async_context(running_fleet(home, urls, dialect=dialect))


# ------------------------------------------------------------------ capabilities: each fails with an AssertionError


async def text(door: Door) -> None:
    (reply,) = await door.converse("workshop", "echo", "hello <b>there</b> 👋")
    assert (reply.state, reply.text) == ("completed", "hello <b>there</b> 👋")


async def long_text(door: Door) -> None:
    (reply,) = await door.converse("workshop", "echo", LONG)
    assert (reply.state, len(reply.text), reply.text == LONG) == ("completed", len(LONG), True)


async def files(door: Door) -> None:
    (reply,) = await door.converse("workshop", "swap", PARTS)
    assert (reply.state, reply.text) == ("completed", "swapped")
    assert (reply.files, reply.data) == ({"all.bin": CONTENT}, (PARTS[1].data,))


async def question(door: Door) -> None:
    first, second, third = await door.converse("workshop", "ask", "2", "blue", "green")
    assert [(first.state, first.text), (second.state, second.text)] == [
        ("input-required", "Colour 1?"),
        ("input-required", "Colour 2?"),
    ]
    assert (third.state, third.text) == ("completed", "painted blue and green")


async def two_questions(door: Door) -> None:
    colours = ("red", "white")
    both = await asyncio.gather(*(door.converse("workshop", "ask", "1", colour) for colour in colours))
    assert [(asked.text, done.text) for asked, done in both] == [("Colour 1?", f"painted {c}") for c in colours]


async def data_question(door: Door) -> None:
    asked, done = await door.converse("clerk", "form", "go", (DataPart(data={"amount": 3}),))
    assert (asked.state, json.loads(asked.text)["title"]) == ("input-required", "Refund")
    assert (done.state, done.text) == ("completed", 'got [{"amount": 3}]')


async def follow_up(door: Door) -> None:
    first, second = await door.converse("workshop", "recall", "one", "two")
    assert (first.text, second.text) == ("one", "one, two")
    assert first.context_id == second.context_id != ""


async def late_reply(door: Door) -> None:
    (reply,) = await door.converse("late", "echo", "pong")
    assert (reply.state, reply.text) == ("completed", "pong")


async def moved_task(door: Door) -> None:
    asked, done = await door.converse("mover", "ask", "1", "0")
    assert (asked.text, done.state) == ("Colour 1?", "completed")
    assert done.text in {"0", "painted "}, "the new task has the skill of the request, or the agent's choice"
    assert any("task" in warning for warning in done.warnings) or door.name in {"python"}


async def failure(door: Door) -> None:
    (reply,) = await door.converse("workshop", "fail", "go")
    assert reply.state == "failed"
    assert "the disk is full" in reply.text


async def cancel(door: Door) -> None:
    assert await door.cancel("workshop", "ponder") == "canceled"


async def refused_cancel(door: Door) -> None:
    with pytest.raises((AssertionError, FleetsimError), match="cancel is not supported yet"):
        await door.cancel("stubborn", "ponder")


CAPABILITIES: dict[str, Callable[[Door], Awaitable[None]]] = {
    "text": text,
    "long text": long_text,
    "files": files,
    "question": question,
    "two questions": two_questions,
    "data question": data_question,
    "follow-up": follow_up,
    "late reply": late_reply,
    "moved task": moved_task,
    "failure": failure,
    "cancel": cancel,
    "refused cancel": refused_cancel,
}


_FORM = "the clerk's question becomes data in the JSON-RPC replies alone"
NOT_IN: dict[str, dict[str, str]] = {
    "0.1": {"moved task": "in 0.1 the client names the task"},
    "1.0+http": {"data question": _FORM},
    "0.3+http": {"data question": _FORM},
}
"""By dialect: the capabilities that it does not have, each with its reason."""


async def outcome_of(door: Door, capability: str, places: asyncio.Semaphore) -> str:
    """The failure of a cell, with its place; "" if it passes."""
    times = TIMES if capability == "question" and (door.races or WHOLE) else 1
    try:
        for _ in range(times):
            async with nullcontext() if capability == "late reply" else places, asyncio.timeout(90):
                await CAPABILITIES[capability](door)
    except Exception as error:  # noqa: BLE001 - a cell's failure is a row of the result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({Path(frame.filename).name}:{frame.lineno})"
    return ""


COLUMNS = [
    (dialect, streamed) for streamed in (True, False) for dialect in ("1.0", "0.3", "0.1", "1.0+http", "0.3+http")
]


@pytest.mark.parametrize(("dialect", "streamed"), COLUMNS if WHOLE else COLUMNS[::2])
async def test_every_door_gives_the_result_of_every_capability(tmp_path: Path, dialect: str, streamed: bool) -> None:
    async with fleet_of(tmp_path, dialect, streamed=streamed) as fleet:
        cells = [
            (door(fleet), capability)
            for door in DOORS
            for capability in CAPABILITIES
            if capability.removeprefix("refused ") not in {*door.absent, *NOT_IN.get(dialect, ())}
        ]
        places = asyncio.Semaphore(AT_ONCE)
        found = await asyncio.gather(*(outcome_of(door, capability, places) for door, capability in cells))
    wrong = {f"{door.name} × {capability}": said for (door, capability), said in zip(cells, found, strict=True) if said}
    assert not wrong, "\n".join(f"{cell}: {said}" for cell, said in wrong.items())


def test_each_cell_that_does_not_exist_has_a_reason() -> None:
    absent = [*(door.absent for door in DOORS), *NOT_IN.values()]
    assert {capability for cells in absent for capability in cells} <= set(CAPABILITIES)
    assert all(reason for cells in absent for reason in cells.values())
