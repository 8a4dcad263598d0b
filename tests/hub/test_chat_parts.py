"""Files, data and long texts through the chat API and HubClient, both ways, and questions in data."""

from __future__ import annotations

import json
from typing import Any

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.model.parts import content_of
from fleetsim.model.task import DataPart, FilePart, TextPart
from tests.hub.local_hub import ready_hub
from tests.hub.test_agent_keys import AVA, ENV
from tests.hub.test_hub_data_questions import FORM, clerk
from tests.hub.test_hub_parts import BYTES, DATA, DATA_ROW, FILE_ROW, content, filer
from tests.hub.test_workstacean import call, said

FILE = FilePart(raw=FILE_ROW["bytes"], filename=FILE_ROW["name"], media_type=FILE_ROW["mimeType"])
LONG = "".join(f"line {n:06}\n" for n in range(25_000))


def novelist() -> Agent:
    agent = Agent("novelist")

    @agent.skill("write")
    async def write(task: SkillContext) -> str:
        return LONG

    @agent.skill("count")
    async def count(task: SkillContext) -> str:
        return str(len(task.text))

    @agent.skill("give_up")
    async def give_up(task: SkillContext) -> str:
        await task.attach(DataPart(data={"tried": 3}))
        raise SkillFailed("no ink")

    return agent


async def test_a_chat_and_delegated_work_may_consist_of_parts_but_not_be_empty() -> None:
    async with ready_hub(filer(), agent_keys=ENV) as t:
        for path in ("chat", "delegate"):
            body: dict[str, Any] = {"agent": "filer", "skill": "copy", "parts": [DATA_ROW]}
            cid = (await said(t, f"/api/a2a/{path}", body, key=AVA))["correlationId"]
            row = await said(t, f"/api/a2a/task/{cid}?wait=60", key=AVA)
            assert [content(part) for part in row["parts"]] == [DATA]
            for empty in ({"message": " ", "parts": []}, {"parts": []}, {"message": ""}):
                status, told = await call(t, f"/api/a2a/{path}", {**body, "parts": [], **empty}, key=AVA)
                assert (status, "message" in told["error"]) == (400, True)
            status, told = await call(t, f"/api/a2a/{path}", {**body, "parts": [{"kind": "file"}]}, key=AVA)
            assert (status, told["code"]) == (400, "FLEETSIM_ERR_BAD_REQUEST")


async def test_the_client_sends_parts_and_gets_those_of_the_answer() -> None:
    async with ready_hub(filer(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        answer = await ava.chat_with_agent("filer", "here", skill="copy", parts=[FILE, DataPart(data=DATA)])
        file, data = answer.parts
        assert (content_of(file.raw or ""), file.name, data.data, answer.parts_total) == (BYTES, FILE.filename, DATA, 2)
        again = await ava.chat_with_agent("filer", skill="copy", parts=[part.part for part in answer.parts])
        assert [part.part for part in again.parts] == [part.part for part in answer.parts], "they can be sent on"
        work = await ava.delegate("filer", "copy", parts=[DATA_ROW, TextPart(text="as the API has it, too")])
        assert (await ava.wait_for_task(work)).parts[0].data == DATA
        pointed = await ava.chat_with_agent("filer", "x", skill="point")
        assert (pointed.parts[0].uri, pointed.parts[0].raw) == ("https://files.example/big.iso", None)


async def test_a_failed_request_has_the_agents_reason_and_its_parts() -> None:
    async with ready_hub(novelist(), agent_keys=ENV) as t:
        told = await t.agents_client(AVA).chat_with_agent("novelist", "x", skill="give_up")
        assert (told.success, told.error, told.parts[0].data) == (False, "no ink", {"tried": 3})


async def test_the_file_of_a_question_is_returned_with_its_content() -> None:
    agent = Agent("notary")

    @agent.skill("sign")
    async def sign(task: SkillContext) -> str:
        await task.attach(FILE, name="contract")
        answer = await task.ask_message("sign this")
        return f"{sum(isinstance(part, FilePart) for part in answer.parts)} signed"

    async with ready_hub(agent, agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        asked = await ava.chat_with_agent("notary", "x")
        assert (asked.text, content_of(asked.parts[0].raw or ""), asked.answer_schema) == ("sign this", BYTES, None)
        done = await ava.chat_with_agent("notary", parts=[FILE], context_id=asked.context_id, task_id=asked.task_id)
        assert done.text == "1 signed"


async def test_workstaceans_paths_for_operators_carry_the_data_of_a_question_and_of_its_answer() -> None:
    async with ready_hub(clerk()) as t:
        (cid,) = await t.remote.submit({"text": "a refund", "targets": ["clerk"], "skill": "form"})
        await t.remote.task(cid, wait_s=60)
        (pending,) = await said(t, "/api/hitl/pending")
        assert (pending["parts"][0]["data"], pending["answerSchema"]) == (FORM, FORM["schema"])
        amount = {"correlationId": cid, "decision": "modify", "parts": [{"kind": "data", "data": {"amount": 3}}]}
        assert (await call(t, "/api/hitl/respond", {**amount, "parts": []}))[0] == 400
        assert (await call(t, "/api/hitl/respond", amount))[0] == 202
        assert (await t.hub.tracker.wait(cid)).text == f"got {json.dumps([{'amount': 3}])}"


async def test_a_message_from_outside_may_carry_parts() -> None:
    async with ready_hub(filer()) as t:
        payload = {"content": "here", "skill": "copy", "targets": ["filer"], "parts": [DATA_ROW]}
        sent = await said(t, "/publish", {"topic": "message.inbound.app.room", "payload": payload})
        (cid,) = sent["correlationIds"]
        assert (await t.hub.tracker.wait(cid)).parts[0].data == DATA
