"""The tools for a language model, and the results of its calls."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fleetsim.agent import Agent, SkillContext
from fleetsim.client.hub_tools import RESULT_CHARS_MAX, anthropic_tools, openai_tools
from fleetsim.model.errors import FleetsimError
from fleetsim.model.parts import content_of
from tests.hub.local_hub import LocalHub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_chat_parts import LONG, novelist
from tests.hub.test_hub_data_questions import FORM, clerk
from tests.hub.test_hub_parts import BYTES, DATA, DATA_ROW, FILE_ROW, filer

CREATE = {
    "action": "create",
    "id": "quinn.sweep",
    "name": "Sweep",
    "schedule": "0 * * * *",
    "skill": "echo",
    "targets": ["quinn"],
}


HUBS_KEY = re.compile(r"own key|admin|state director|hub's (API )?key|(?<!x-)api-key", re.IGNORECASE)
"""The hub's own key, however it is called."""


async def said(t: LocalHub, name: str, arguments: Any, *, key: str = QUINN) -> str:
    """The text that the model gets from a successful call."""
    result = await t.agents_client(key).call(name, arguments)
    assert not result.is_error, result.text
    return result.text


def test_both_forms_describe_the_same_tools_with_valid_schemas() -> None:
    forms = {tool["name"]: tool for tool in anthropic_tools()}
    talking = ["chat_with_agent", "delegate", "wait_for_task", "cancel_task", "retry_task"]
    assert list(forms) == ["manage_cron", "list_agents", "find_skills", *talking]
    for tool in openai_tools():
        assert set(tool) == {"type", "function"}
        function = tool["function"]
        assert function["parameters"] == forms[function["name"]]["input_schema"]
        assert function["description"] == forms[function["name"]]["description"]
        Draft202012Validator.check_schema(function["parameters"])
        assert function["parameters"]["additionalProperties"] is False
        text = json.dumps(tool)
        assert not any(word in text for word in ("anyOf", "oneOf"))
        assert "$ref" not in text
        assert all(part["description"] and part["type"] for part in function["parameters"]["properties"].values())


async def test_a_model_makes_lists_pauses_resumes_fires_and_deletes_a_ceremony() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        assert await said(t, "manage_cron", {"action": "list"}) == "No ceremonies registered."
        made = await said(t, "manage_cron", CREATE)
        assert made.startswith("Created. quinn.sweep: Sweep (0 * * * * UTC) asks quinn for echo; next ")
        listed = await t.agents_client(QUINN).call("manage_cron", {"action": "list"})
        assert [row["id"] for row in listed.data["ceremonies"]] == ["quinn.sweep"]
        assert (await said(t, "manage_cron", {"action": "pause", "id": "quinn.sweep"})).endswith("; paused")
        renamed = {"action": "update", "id": "quinn.sweep", "name": "Mine", "enabled": None, "targets": "quinn, ava"}
        assert "Mine (0 * * * * UTC) asks quinn, ava for echo; paused" in await said(t, "manage_cron", renamed)
        assert "; next " in await said(t, "manage_cron", {"action": "resume", "id": "quinn.sweep"})
        assert "triggered" in await said(t, "manage_cron", {"action": "run", "id": "quinn.sweep"})
        await asyncio.sleep(5)
        assert "deleted" in await said(t, "manage_cron", {"action": "delete", "id": "quinn.sweep"})
        assert await said(t, "manage_cron", {"action": "list"}) == "No ceremonies registered."


@pytest.mark.slow
async def test_a_model_talks_with_an_agent_and_has_it_work() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        asked = await ava.call("chat_with_agent", {"agent": "quinn", "message": "ship", "skill": "ask"})
        assert "which branch?" in asked.text
        assert "chat_with_agent" in asked.text
        going = {
            "agent": "quinn",
            "message": "main",
            "contextId": asked.data["contextId"],
            "taskId": asked.data["taskId"],
        }
        assert (await said(t, "chat_with_agent", going, key=AVA)).endswith("What it says:\ngoing with main")
        work = await ava.call("delegate", {"agent": "quinn", "skill": "ponder", "message": "think"})
        waiting = {"correlationId": work.data["correlationId"], "waitSeconds": 1}
        assert "at work still" in await said(t, "wait_for_task", waiting, key=AVA)
        await asyncio.sleep(700)
        assert "at last" in await said(t, "wait_for_task", waiting, key=AVA)
        failed = await ava.call("chat_with_agent", {"agent": "quinn", "message": "x", "skill": "fail"})
        assert (failed.is_error, "the disk is full" in failed.text) == (True, True)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("rm", {}, "there is no tool 'rm'"),
        ("manage_cron\x1b[2J", {}, "there is no tool"),
        ("manage_cron", {}, "action: is missing"),
        ("manage_cron", {"action": "drop"}, "action: must be 'list', 'create'"),
        ("manage_cron", {"action": "create"}, "id, name, schedule, and skill are required"),
        ("manage_cron", {**CREATE, "id": "../x"}, "Invalid ceremony id (alphanumeric, dots, dashes only)"),
        ("manage_cron", {**CREATE, "schedule": "61 * * * *"}, "schedule"),
        ("manage_cron", {**CREATE, "createdBy": "ava"}, "createdBy: is not known here"),
        ("manage_cron", {**CREATE, "enabled": "false"}, "enabled: must be true or false"),
        ("manage_cron", {"action": "delete"}, "delete requires id"),
        ("manage_cron", {"action": "update", "id": "x"}, "update changes nothing"),
        ("manage_cron", {"action": "run", "id": "nobodys"}, 'Ceremony "nobodys" not found'),
        ("manage_cron", "{", "JSON"),
        ("manage_cron", "[]", "mapping"),
        ("manage_cron", "null", "mapping"),
        ("manage_cron", "[" * 100_000, "JSON"),
        ("manage_cron", '{"action": "list", "action": "delete"}', "twice"),
        ("manage_cron", {"action": "list", "id": object()}, "JSON"),
        ("manage_cron", {"action": "list", "id": "x" * 30_000_000}, "bytes"),
        ("chat_with_agent", {"agent": "nobody", "message": "x"}, "nobody"),
        ("chat_with_agent", {"agent": "all", "message": "x"}, "agent"),
        ("chat_with_agent", {"agent": "quinn", "message": " "}, "message"),
        ("delegate", {"agent": "quinn", "message": "x"}, "skill: is missing"),
        ("wait_for_task", {"correlationId": "../../health"}, "no request"),
        ("wait_for_task", {"correlationId": "c", "waitSeconds": 10**9}, "waitSeconds"),
        ("wait_for_task", {"correlationId": "c", "part": 0}, "part"),
        ("wait_for_task", {"correlationId": "c", "offset": -1}, "offset"),
        ("chat_with_agent", {"agent": "quinn", "parts": []}, "message"),
        ("chat_with_agent", {"agent": "quinn", "parts": [{"kind": "stone"}]}, "parts"),
        ("chat_with_agent", {"agent": "quinn", "parts": [{"kind": "file", "bytes": "?"}]}, "base64"),
        ("delegate", {"agent": "quinn", "skill": "echo", "parts": [{"kind": "file"}]}, "parts"),
        ("cancel_task", {}, "correlationId"),
        ("list_agents", {"all": True}, "all"),
        ("find_skills", {"direction": "sideways"}, "direction"),
        ("find_skills", {"text": "x" * 201}, "text"),
        ("cancel_task", {"correlationId": "../../health"}, "no request"),
    ],
)
async def test_an_invalid_call_returns_an_error_to_the_model_and_has_no_effect(
    name: str, arguments: Any, says: str
) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        result = await t.agents_client(QUINN).call(name, arguments)
        assert result.is_error
        assert result.text.startswith("Error: ")
        assert says in result.text
        assert "\x1b" not in result.text
        assert len(result.text) < 2_000
        assert await t.remote.ceremonies() == []


@pytest.mark.parametrize("key", ["w" * 40, "short", "", QUINN])
async def test_no_message_to_a_model_names_the_hubs_own_key(key: str) -> None:
    calls: list[tuple[str, Any]] = [
        *(("manage_cron", {"action": action, "id": "c-1"}) for action in ("list", "run", "pause", "delete")),
        ("manage_cron", CREATE),
        ("chat_with_agent", {"agent": "quinn", "message": "x", "taskId": "t-1", "contextId": "c-1"}),
        ("delegate", {"agent": "quinn", "skill": "no", "message": "x"}),
        ("wait_for_task", {"correlationId": "c-1"}),
        ("cancel_task", {"correlationId": "c-1"}),
        ("list_agents", {}),
        ("find_skills", {"text": "echo"}),
    ]
    async with ready_hub(worker(), agent_keys=ENV) as t:
        hub = t.agents_client(key)
        for name, arguments in calls:
            result = await hub.call(name, arguments)
            assert result.is_error or key == QUINN
            assert HUBS_KEY.search(result.text) is None, result.text
        for refused in (hub.tasks(), hub.question("q"), hub.veto("c-1"), hub.get("/ceremonies", all="true")):
            with pytest.raises(FleetsimError) as caught:
                await refused
            assert HUBS_KEY.search(f"{caught.value} {caught.value.hint}") is None
    assert HUBS_KEY.search(json.dumps(anthropic_tools())) is None


async def whole(t: LocalHub, correlation_id: str, **which: int) -> str:
    """The whole text of an answer or of a part, read piece by piece as a model does."""
    found, offset = [], 0
    while True:
        asked = {"correlationId": correlation_id, "offset": offset, **which}
        result = await t.agents_client(AVA).call("wait_for_task", asked)
        assert not result.is_error, result.text
        piece = result.data["content" if which else "response"]
        assert piece in result.text
        assert len(piece) <= RESULT_CHARS_MAX
        found.append(piece)
        if "nextOffset" not in result.data:
            return "".join(found)
        offset = result.data["nextOffset"]


async def test_a_model_gets_the_rest_of_a_long_answer_by_its_offset() -> None:
    async with ready_hub(novelist(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        first = await ava.call("chat_with_agent", {"agent": "novelist", "message": "a novel", "skill": "write"})
        assert (first.data["nextOffset"], first.data["textChars"]) == (RESULT_CHARS_MAX, len(LONG))
        assert f"offset {RESULT_CHARS_MAX}" in first.text
        assert await whole(t, first.data["correlationId"]) == LONG
        beyond = {"correlationId": first.data["correlationId"], "offset": len(LONG)}
        assert (await ava.call("wait_for_task", beyond)).is_error
        long = {"agent": "novelist", "message": LONG, "skill": "count"}
        assert (await ava.call("chat_with_agent", long)).data["response"] == str(len(LONG))


async def test_a_model_sends_files_and_data_and_gets_those_of_the_answer() -> None:
    async with ready_hub(filer(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        table = {"kind": "file", "name": "a.csv", "mimeType": "text/csv", "text": "é,1\n" * 20_000}
        asked = {"agent": "filer", "skill": "copy", "parts": [FILE_ROW, DATA_ROW, table]}
        told = await ava.call("chat_with_agent", asked)
        assert not told.is_error, told.text
        file, data, text = told.data["parts"]
        assert (file["kind"], file["sizeBytes"], data["data"], text["name"]) == ("file", 5_120, DATA, "a.csv")
        assert "bytes" not in file
        assert json.loads(told.text.split("data 2: ")[1].splitlines()[0]) == DATA
        cid = told.data["correlationId"]
        for index in (1, 2, 3):
            assert f"part {index}" in told.text or f"data {index}" in told.text
        content = await ava.call("wait_for_task", {"correlationId": cid, "part": 1})
        assert [content_of(file.raw or "") for file in content.files] == [BYTES]
        assert json.loads(await whole(t, cid, part=2)) == DATA
        assert await whole(t, cid, part=3) == "é,1\n" * 20_000
        missing = await ava.call("wait_for_task", {"correlationId": cid, "part": 4})
        assert (missing.is_error, "a.csv" in missing.text) == (True, True)
        work = await ava.call("delegate", asked)
        later = await ava.call("wait_for_task", {"correlationId": work.data["correlationId"]})
        assert later.data["parts"] == told.data["parts"]


async def test_data_too_long_for_one_result_is_listed_and_read_in_pieces() -> None:
    async with ready_hub(filer(), agent_keys=ENV) as t:
        rows = [{"n": n} for n in range(10_000)]
        asked = {"agent": "filer", "skill": "copy", "parts": [{"kind": "data", "data": rows}]}
        told = await t.agents_client(AVA).call("chat_with_agent", asked)
        (listed,) = told.data["parts"]
        assert ("data" in listed, len(told.text) < 1_000) == (False, True)
        assert json.loads(await whole(t, told.data["correlationId"], part=1)) == rows


async def test_a_model_gets_the_address_of_a_file_that_was_not_fetched() -> None:
    async with ready_hub(filer(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        told = await ava.call("chat_with_agent", {"agent": "filer", "message": "x", "skill": "point"})
        assert told.data["parts"][0]["uri"] == "https://files.example/big.iso"
        content = await ava.call("wait_for_task", {"correlationId": told.data["correlationId"], "part": 1})
        assert (content.is_error, "https://files.example/big.iso" in content.text) == (True, True)


async def test_a_model_gets_a_question_with_its_schema_and_answers_in_data() -> None:
    async with ready_hub(clerk(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        asked = await ava.call("chat_with_agent", {"agent": "clerk", "message": "a refund", "skill": "form"})
        assert (asked.data["status"], asked.data["answerSchema"]) == ("input-required", FORM["schema"])
        assert asked.data["parts"][0]["data"] == FORM
        assert json.dumps(FORM["schema"], separators=(",", ":")) in asked.text
        going = {"agent": "clerk", **{key: asked.data[key] for key in ("contextId", "taskId")}}
        unfit = await ava.call("chat_with_agent", {**going, "parts": [{"kind": "data", "data": {"amount": 0}}]})
        assert (unfit.is_error, "amount" in unfit.text) == (True, True)
        told = await ava.call("chat_with_agent", {**going, "parts": [{"kind": "data", "data": {"amount": 3}}]})
        assert told.data["response"] == 'got [{"amount": 3}]'


async def test_a_model_cancels_its_own_work_and_no_other() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        work = await ava.call("delegate", {"agent": "quinn", "skill": "ponder", "message": "think"})
        which = {"correlationId": work.data["correlationId"]}
        await asyncio.sleep(5)
        assert (await t.agents_client(QUINN).call("cancel_task", which)).is_error
        assert not (await ava.call("cancel_task", which)).is_error
        ended = await ava.call("wait_for_task", which)
        assert (ended.is_error, ended.data["taskState"], "canceled" in ended.text) == (True, "canceled", True)


async def test_a_failure_contains_its_reason_once_and_the_earlier_text() -> None:
    async with ready_hub(novelist(), agent_keys=ENV) as t:
        told = await t.agents_client(AVA).call(
            "chat_with_agent", {"agent": "novelist", "message": "x", "skill": "give_up"}
        )
        assert (told.is_error, told.text.count("no ink"), told.data["parts"][0]["data"]) == (True, 1, {"tried": 3})
        assert (told.data["taskState"], told.data["error"], "failed" in told.text) == ("failed", "no ink", True)


async def test_the_text_of_another_agent_is_bounded_and_cannot_mislead_a_reader() -> None:
    loud = Agent("loud")

    @loud.skill("shout")
    async def shout(task: SkillContext) -> str:
        return "\x1b[2J\u202eevil\u200b" + "x" * 60_000

    async with ready_hub(loud, agent_keys=ENV) as t:
        result = await t.agents_client(AVA).call("chat_with_agent", {"agent": "loud", "message": "x"})
        assert (result.is_error, result.data["nextOffset"]) == (False, RESULT_CHARS_MAX)
        assert len(result.text) < RESULT_CHARS_MAX + 500
        assert len(result.data["response"]) <= RESULT_CHARS_MAX
        assert not {"\x1b", "\u202e", "\u200b"} & {*result.text, *result.data["response"]}
