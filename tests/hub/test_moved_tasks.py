"""An agent that continues an answer in another task: the request follows that task, with a warning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.events.wire import payload
from fleetsim.model.call import GetTask
from fleetsim.model.task import Artifact, Message, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Answer, OutcomeKind, SkillRequest
from fleetsim.wire.dialect import dialect
from tests.client.scripted import CARD, ScriptedAgent
from tests.hub.local_hub import LocalHub, local_hub

URL = "http://quinn.example:8000/a2a"
SENDS = {"message/send", "SendMessage", "tasks/send"}
DIALECTS = ("0.1", "0.3", "1.0")


def a_task(task_id: str, state: TaskState, words: str) -> Task:
    said = Message(message_id="m-9", role=Role.AGENT, parts=(TextPart(text=words),))
    ended = state is TaskState.COMPLETED
    return Task(
        task_id=task_id,
        context_id="c-1",
        status=TaskStatus(state=state, message=None if ended else said),
        artifacts=(Artifact(artifact_id="a", parts=said.parts),) if ended else (),
    )


class Mover:
    """Asks in t-1; the answer starts t-2, which stays in ``after`` until ``moves_on`` polls."""

    def __init__(self, name: str, after: TaskState, words: str = "booked", moves_on: int = 0) -> None:
        self.agent = ScriptedAgent({"*": lambda body: self.reply(body)}, card=self._card(name))
        self.answers, self.looks = 0, 0
        self._dialect, self._after, self._words, self._moves_on = dialect(name), after, words, moves_on

    @staticmethod
    def _card(name: str) -> dict[str, Any]:
        capabilities = {"streaming": False}
        if name == "1.0":
            interface = {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            return {"name": "quinn", "skills": CARD["skills"], "supportedInterfaces": [interface]}
        return {**CARD, "url": URL, "capabilities": capabilities}

    def reply(self, body: dict[str, Any]) -> Any:
        method, params = body["method"], body["params"]
        sends = method in SENDS
        named = params.get("message", {}).get("taskId") or (params.get("id") if self.sent else None)
        self.answers += sends and bool(named)
        self.looks += not sends
        if not self.answers or (not sends and params.get("id") == "t-1"):
            task = a_task("t-1", TaskState.INPUT_REQUIRED, "Which city?")
        elif self._moves_on and self.looks > self._moves_on:
            task = a_task("t-2", TaskState.COMPLETED, "booked")
        else:
            task = a_task("t-2", self._after, self._words)
        encoded = self._dialect.encode_reply(GetTask(task_id=task.task_id), task)
        return {"task": encoded} if sends and self._dialect.name == "1.0" else encoded

    @property
    def sent(self) -> bool:
        return sum(seen.body["method"] in SENDS for seen in self.agent.seen) > 1


async def answered(t: LocalHub) -> None:
    await asyncio.sleep(1)
    await t.hub.submit(SkillRequest(correlation_id="c-9", text="go", targets=("quinn",)))
    await asyncio.sleep(5)
    (question,) = t.hub.tracker.questions()
    await t.hub.tracker.answer(Answer(question_id=question.question_id, text="Paris"))


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(("after", "moves_on"), [(TaskState.COMPLETED, 0), (TaskState.WORKING, 2)])
async def test_the_request_follows_the_task_that_the_answer_started(name: str, after: TaskState, moves_on: int) -> None:
    mover = Mover(name, after, moves_on=moves_on)
    async with local_hub(peers={"quinn": mover.agent.app}, entries={"quinn": {"wire": name}}) as t:
        await answered(t)
        outcome = await t.hub.tracker.wait("c-9")
        assert (outcome.kind, outcome.text, outcome.task_id) == (OutcomeKind.COMPLETED, "booked", "t-2")
        (warning,) = outcome.warnings
        (told,) = t.events("agent.skill.elsewhere")
        assert payload(told)["why"] == warning
        await asyncio.sleep(600)
        assert mover.answers == 1
        assert len(t.events("hitl.request.")) == 1
        assert t.hub.tracker.kept()["bound tasks"] == 0
        assert (await t.remote.task("c-9"))["warnings"] == [warning]


async def test_the_same_words_in_the_other_task_are_another_question() -> None:
    mover = Mover("0.3", TaskState.INPUT_REQUIRED, "Which city?")
    async with local_hub(peers={"quinn": mover.agent.app}) as t:
        await answered(t)
        await asyncio.sleep(1)
        (question,) = t.hub.tracker.questions()
        assert (question.task_id, question.checkpoint) == ("t-2", 2)


async def test_an_abandoned_task_belongs_to_no_open_request_even_after_a_restart() -> None:
    mover = Mover("0.3", TaskState.WORKING)
    async with local_hub(peers={"quinn": mover.agent.app}) as t:
        await answered(t)
        await asyncio.sleep(5)
        for _ in range(2):
            assert t.hub.tracker.find("quinn", "t-2") == "c-9"
            assert t.hub.tracker.find("quinn", "t-1") is None
            await t.restart()
            await asyncio.sleep(5)
