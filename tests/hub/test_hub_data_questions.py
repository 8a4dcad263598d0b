"""Questions in data or files instead of words: shown and answered at every door of the hub."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.cli.controls import HubControls
from fleetsim.client import AgentClient
from fleetsim.client.conversation import Conversation
from fleetsim.model.errors import FleetsimError, UnfitAnswer
from fleetsim.model.task import DataPart, FilePart
from tests.broken.build import breaks
from tests.broken.editors import edit_everything
from tests.dashboard.driver import fold_view
from tests.hub.local_hub import LocalHub, local_hub

FORM = {
    "title": "Refund",
    "schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "minimum": 1}}},
}
ASKED = "the form, please"


def _in_data(obj: dict[str, Any]) -> None:
    """The question's text becomes a data part, in the dialect's own form."""
    parts = obj.get("parts")
    if isinstance(parts, list) and parts and parts[0].get("text") == ASKED:
        kind = {"kind": "data"} if "kind" in parts[0] else {"type": "data"} if "type" in parts[0] else {}
        parts[0] = {**kind, "data": FORM}


def clerk(**options: Any) -> Agent:
    """Asks with a form in its message, with one in an artifact, or with a file, and returns the answer."""
    agent = Agent("clerk", **options)

    def told(message: Any) -> str:
        given = [part.data for part in message.parts if isinstance(part, DataPart)]
        return f"got {json.dumps(given) if given else message.text}"

    @agent.skill("form")
    async def form(task: SkillContext) -> str:
        return told(await task.ask_message(ASKED))

    @agent.skill("attached")
    async def attached(task: SkillContext) -> str:
        await task.attach(DataPart(data=FORM), name="form")
        return told(await task.ask_message(""))

    @agent.skill("signed")
    async def signed(task: SkillContext) -> str:
        await task.attach(FilePart(uri="https://x.example/contract.pdf", filename="contract.pdf"), name="contract")
        return told(await task.ask_message(""))

    return breaks(edit_everything(_in_data))(agent)


async def asked(t: LocalHub, skill: str) -> tuple[str, dict[str, Any]]:
    """The request's id and its question, as the inbox lists it."""
    (cid,) = await t.remote.submit({"targets": ["clerk"], "skill": skill, "text": "go"})
    result = await t.remote.follow_task(cid, timeout_s=None).end()
    (listed,) = (await t.remote.get("/inbox"))["questions"]
    assert listed["questionId"] == result.question
    return cid, listed


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("skill", ["form", "attached"])
@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
async def test_a_question_in_data_is_shown_and_answered_with_data(wire: str, skill: str, streaming: bool) -> None:
    agent = clerk(streaming=streaming, push_notifications=False)
    async with local_hub(agent, entries={"clerk": {"wire": wire}}) as t:
        cid, listed = await asked(t, skill)
        assert '"title": "Refund"' in listed["question"]
        assert listed["asksForData"] is True
        assert (await t.remote.task(cid))["asksForData"] is True
        whole = await t.remote.question(listed["questionId"])
        assert whole["answerSchema"] == FORM["schema"]
        assert [part["data"] for part in whole["parts"]] == [FORM]

        with pytest.raises(FleetsimError):
            await t.remote.answer(listed["questionId"], "", parts=[{"kind": "data", "data": {"amount": 0}}])
        assert [q["questionId"] for q in (await t.remote.get("/inbox"))["questions"]] == [listed["questionId"]]

        await t.remote.answer(listed["questionId"], "", parts=[{"kind": "data", "data": {"amount": 3}}])
        assert (await t.hub.tracker.wait(cid)).text == 'got [{"amount": 3}]'


async def test_an_answer_in_words_is_passed_on_without_a_check() -> None:
    async with local_hub(clerk()) as t:
        cid, listed = await asked(t, "form")
        await t.remote.answer(listed["questionId"], "three")
        assert (await t.hub.tracker.wait(cid)).text == "got three"


async def test_a_file_in_a_question_is_named() -> None:
    async with local_hub(clerk()) as t:
        _, listed = await asked(t, "signed")
        assert "contract.pdf" in listed["question"]
        assert listed["parts"][0]["name"] == "contract.pdf"
        assert listed["asksForData"] is False


async def test_a_follow_up_on_the_task_is_checked_against_the_schema_too() -> None:
    async with local_hub(clerk()) as t:
        cid, listed = await asked(t, "form")
        body = {"targets": ["clerk"], "taskId": listed["taskId"], "parts": [{"kind": "data", "data": {"amount": "x"}}]}
        reply = await t.http("POST", "/api/requests", json.dumps(body).encode())
        assert (reply.status, json.loads(reply.body)["code"]) == (422, "FLEETSIM_ERR_UNFIT_ANSWER")
        body["parts"] = [{"kind": "data", "data": {"amount": 2}}]
        assert await t.remote.submit(body) == (cid,)
        assert (await t.hub.tracker.wait(cid)).text == 'got [{"amount": 2}]'


async def test_the_dashboard_shows_the_question_and_sends_typed_json_as_data() -> None:
    async with local_hub(clerk()) as t:
        cid, listed = await asked(t, "form")
        (row,) = fold_view(t.hub.events.recent(limit=1_000), t.runtime.clock.now()).questions
        assert "Refund" in row.text
        assert (row.asks_for_data, len(row.parts)) == (True, 1)
        screen = HubControls(t.hub)
        with pytest.raises(FleetsimError):
            await screen.answer(listed["questionId"], '{"amount": ')
        with pytest.raises(FleetsimError):
            await screen.answer(listed["questionId"], "{}")
        await screen.answer(listed["questionId"], '{"amount": 4}')
        assert (await t.hub.tracker.wait(cid)).text == 'got [{"amount": 4}]'


async def test_a_question_in_data_outlives_a_restart() -> None:
    async with local_hub(clerk()) as t:
        cid, listed = await asked(t, "form")
        await t.restart()
        whole = await t.remote.question(listed["questionId"])
        assert whole["answerSchema"] == FORM["schema"]
        with pytest.raises(UnfitAnswer):
            await t.remote.answer(listed["questionId"], "", parts=[{"kind": "data", "data": []}])
        await t.remote.answer(listed["questionId"], "", parts=[{"kind": "data", "data": {"amount": 5}}])
        assert (await t.hub.tracker.wait(cid)).text == 'got [{"amount": 5}]'


async def test_data_that_does_not_fit_leaves_a_conversation_by_url_unchanged() -> None:
    async with local_hub(clerk()) as t:
        chat = Conversation(AgentClient("http://clerk.example:8000", runtime=t.runtime), skill="form")
        asked = await chat.say("go")
        with pytest.raises(UnfitAnswer):
            await chat.say("", parts=(DataPart(data={"amount": 0}),))
        assert (chat.task_id, chat.context_id) == (asked.task_id, asked.context_id)
        assert (await chat.say("", parts=(DataPart(data={"amount": 3}),))).text == 'got [{"amount": 3}]'
