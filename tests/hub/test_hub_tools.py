"""What a language model is given, and what becomes of its calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fleetsim.agent import Agent, SkillContext
from fleetsim.client.hub_tools import RESULT_CHARS_MAX, anthropic_tools, openai_tools
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.town import Town, town, worker

CREATE = {
    "action": "create",
    "id": "quinn.sweep",
    "name": "Sweep",
    "schedule": "0 * * * *",
    "skill": "echo",
    "targets": ["quinn"],
}


async def said(t: Town, name: str, arguments: Any, *, key: str = QUINN) -> str:
    """What the model is told of a call that did what it should."""
    result = await t.agents_client(key).call(name, arguments)
    assert not result.is_error, result.text
    return result.text


def test_both_forms_tell_the_same_tools_and_their_schemas_are_schemas() -> None:
    forms = {tool["name"]: tool for tool in anthropic_tools()}
    assert list(forms) == ["manage_cron", "chat_with_agent", "delegate", "wait_for_task"]
    for tool in openai_tools():
        assert set(tool) == {"type", "function"}
        function = tool["function"]
        assert function["parameters"] == forms[function["name"]]["input_schema"]
        assert function["description"] == forms[function["name"]]["description"]
        Draft202012Validator.check_schema(function["parameters"])
        assert function["parameters"]["additionalProperties"] is False
        text = json.dumps(tool)
        assert "anyOf" not in text
        assert "$ref" not in text
        assert all(part["description"] and part["type"] for part in function["parameters"]["properties"].values())


async def test_a_model_makes_lists_pauses_resumes_fires_and_deletes_a_ceremony() -> None:
    async with town(worker(), agent_keys=ENV) as t:
        await asyncio.sleep(1)
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
    async with town(worker(), agent_keys=ENV) as t:
        await asyncio.sleep(1)
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


async def test_null_is_taken_as_left_out() -> None:
    async with town(worker(), agent_keys=ENV) as t:
        await asyncio.sleep(1)
        hello = {"agent": "quinn", "message": "hi", "skill": "echo", "done": None, "taskId": None}
        assert "you said hi" in await said(t, "chat_with_agent", hello, key=AVA)


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
        ("manage_cron", {"action": "list", "id": "x" * 3_000_000}, "bytes"),
        ("chat_with_agent", {"agent": "nobody", "message": "x"}, "nobody"),
        ("chat_with_agent", {"agent": "all", "message": "x"}, "agent"),
        ("chat_with_agent", {"agent": "quinn", "message": " "}, "message"),
        ("delegate", {"agent": "quinn", "message": "x"}, "skill: is missing"),
        ("wait_for_task", {"correlationId": "../../health"}, "no request"),
        ("wait_for_task", {"correlationId": "c", "waitSeconds": 10**9}, "waitSeconds"),
    ],
)
async def test_a_call_that_cannot_be_is_told_to_the_model_and_does_nothing(
    name: str, arguments: Any, says: str
) -> None:
    async with town(worker(), agent_keys=ENV) as t:
        await asyncio.sleep(1)
        result = await t.agents_client(QUINN).call(name, arguments)
        assert result.is_error
        assert result.text.startswith("Error: ")
        assert says in result.text
        assert "\x1b" not in result.text
        assert len(result.text) < 2_000
        assert await t.remote.ceremonies() == []


async def test_what_another_agent_says_is_bounded_and_can_fool_no_reader() -> None:
    loud = Agent("loud")

    @loud.skill("shout")
    async def shout(task: SkillContext) -> str:
        return "\x1b[2J\u202eevil\u200b" + "x" * 60_000

    async with town(loud, agent_keys=ENV) as t:
        await asyncio.sleep(1)
        result = await t.agents_client(AVA).call("chat_with_agent", {"agent": "loud", "message": "x"})
        assert (result.is_error, "only the beginning" in result.text) == (False, True)
        assert len(result.text) < RESULT_CHARS_MAX + 500
        assert len(result.data["response"]) <= RESULT_CHARS_MAX
        assert not {"\x1b", "\u202e", "\u200b"} & {*result.text, *result.data["response"]}
