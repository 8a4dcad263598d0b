"""The profiles: each behaves as its source says, over the one service."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import urljoin

import pytest

from fleetsim.agent import Agent
from fleetsim.agent.builtin import PROFILES, profile_agent
from fleetsim.agent.skills import undeclared
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import BLAST, COST, EFFECT_DOMAIN
from tests.agent.environment import Env, Hook, StartAgent, sent


async def as_profile(start_agent: StartAgent, name: str, **options: Any) -> Env:
    made = profile_agent(name, **options).settings
    fields = made.__dataclass_fields__.keys() - {"name", "signer"}
    return await start_agent(**{field: getattr(made, field) for field in fields})


async def card_of(env: Env, path: str = "/.well-known/agent.json") -> dict[str, Any]:
    return dict(json.loads((await env.raw("GET", path)).body))


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        profile_agent("quin")
    assert "quinn" in str(raised.value.hint)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_makes_an_agent_that_starts(name: str) -> None:
    agent = profile_agent(name)
    assert isinstance(agent, Agent)
    assert agent.settings.name == name
    assert callable(agent.app())


async def test_the_reference_card_has_a_provider_and_offers_markdown(start_agent: StartAgent) -> None:
    card = await card_of(await as_profile(start_agent, "reference"))
    assert card["provider"]["organization"]
    assert card["provider"]["url"] == urljoin(card["url"], "/")
    assert "text/markdown" in card["defaultOutputModes"]


# -- quinn ---------------------------------------------------------------------------------------------


async def test_quinn_has_the_seeds_card(start_agent: StartAgent) -> None:
    card = await card_of(await as_profile(start_agent, "quinn", api_key="k"))
    assert [s["id"] for s in card["skills"]] == ["qa_report", "board_audit", "bug_triage", "pr_review"]
    assert card["provider"]["organization"] == "protoLabsAI"
    assert card["defaultOutputModes"] == ["text/markdown"]
    assert card["capabilities"]["streaming"] is card["capabilities"]["pushNotifications"] is True
    assert card["capabilities"]["stateTransitionHistory"] is False
    assert {e["uri"] for e in card["capabilities"]["extensions"]} >= {COST, EFFECT_DOMAIN, BLAST}
    assert card["security"] == [{"apiKey": []}]


async def test_quinn_does_what_its_card_declares(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "quinn")
    for skill_id in ("qa_report", "board_audit", "bug_triage", "pr_review"):
        frames = await env.frames("message/stream", sent("42", skill=skill_id))
        assert frames[-1]["status"]["state"] == "completed"
        kinds = {part.get("metadata", {}).get("mimeType") for part in frames[-2]["artifact"]["parts"]}
        assert "application/vnd.protolabs.cost-v1+json" in kinds
        if skill_id == "bug_triage":
            assert "application/vnd.protolabs.worldstate-delta+json" in kinds
    assert undeclared(env.engine.settings.skills) == {}


async def test_quinn_fails_rather_than_completing_with_an_error_text(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "quinn")
    frames = await env.frames("message/stream", sent("", skill="pr_review"))
    assert frames[-1]["status"]["state"] == "failed"
    data = {"message": {"messageId": "1", "role": "user", "parts": [{"kind": "data", "data": {}}]}}
    assert await env.refused("message/send", data) == -32602


# -- selectools ----------------------------------------------------------------------------------------


async def test_selectools_answers_within_the_request(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    for method in ("message/send", "tasks/send"):
        params = {**sent("Research quantum computing"), "configuration": {"blocking": False}}
        task = await env.call(method, params)
        assert task["kind"] == "task"
        assert task["status"]["state"] == "completed"
        assert task["artifacts"][0]["name"] == "response"
        assert task["artifacts"][0]["parts"][0]["text"] == "Summary: Research quantum computing"
        assert await env.call("tasks/get", {"id": task["id"]}) == task
        assert await env.refused("tasks/cancel", {"id": task["id"]}) == -32002


async def test_selectools_has_only_its_own_methods(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    assert await env.refused("message/stream", sent("x")) == -32601
    assert await env.refused("tasks/resubscribe", {"id": "x"}) == -32601
    assert await env.refused("tasks/pushNotificationConfig/get", {"id": "x"}) == -32601
    assert await env.refused("GetTask", {"id": "x"}) == -32601
    assert (await env.raw("POST", "/message:send", b"{}")).status == 404


async def test_selectools_card_is_the_seeds(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    card = await card_of(env)
    assert card["protocolVersion"] == "0.2.6"
    assert card["url"] == ""
    assert card["capabilities"]["streaming"] is False
    assert card["skills"][0]["tags"] == ["tool"]
    assert (await env.raw("GET", "/.well-known/agent-card.json")).status == 404


async def test_selectools_takes_every_message_for_a_new_task(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    one = await env.call("message/send", sent("x"))
    two = await env.call("message/send", sent("y", taskId=one["id"], contextId=one["contextId"]))
    assert one["id"] != two["id"]


async def test_selectools_refusals_look_as_the_seed_says(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools", bearer="sk")
    reply = await env.raw("POST", "/a2a", b"{")
    assert (reply.status, json.loads(reply.body)) == (401, {"error": {"message": "Unauthorized"}})
    env.headers = {"authorization": "Bearer sk"}
    reply = await env.raw("POST", "/a2a", b"x" * (1024 * 1024 + 1))
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (200, -32600)
    only_data = {"message": {"messageId": "1", "role": "user", "parts": [{"kind": "data", "data": {}}]}}
    assert await env.refused("message/send", only_data) == -32602


async def test_selectools_errors_show_their_type_alone(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    task = await env.call("message/send", sent("secret", skill="explode"))
    assert task["status"]["state"] == "failed"
    assert task["status"]["message"]["parts"][0]["text"] == "Agent execution failed (ValueError)"
    assert "secret" not in json.dumps(task["status"])


async def test_selectools_reads_data_and_names_files(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "selectools")
    params = sent("Look:")
    params["message"]["parts"] += [
        {"kind": "data", "data": {"a": 1}},
        {
            "kind": "file",
            "file": {"name": "x.png", "mimeType": "image/png", "bytes": base64.b64encode(b"pixels").decode()},
        },
    ]
    text = (await env.call("message/send", params))["artifacts"][0]["parts"][0]["text"]
    assert '{"a":1}' in text
    assert "x.png" in text
    assert "pixels" not in text


async def test_selectools_lets_the_oldest_go_when_full(start_agent: StartAgent) -> None:
    env = await as_profile(
        start_agent, "selectools", limits=PROFILES["selectools"].options["limits"].__class__(tasks_max=3)
    )
    ids = [(await env.call("message/send", sent("x", messageId=str(at))))["id"] for at in range(5)]
    assert await env.refused("tasks/get", {"id": ids[0]}) == -32001
    assert (await env.call("tasks/get", {"id": ids[4]}))["id"] == ids[4]


# -- almanac -------------------------------------------------------------------------------------------


def legacy(task_id: str, text: str) -> dict[str, Any]:
    return {"id": task_id, "sessionId": "s", "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}


async def test_almanac_speaks_01_at_the_root(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac")
    task = await env.call("tasks/send", legacy("t-1", "analyze sales"), path="/")
    assert (task["id"], task["sessionId"], task["status"]["state"]) == ("t-1", "s", "submitted")
    await asyncio.sleep(5)
    done = await env.call("tasks/get", {"id": "t-1"}, path="/")
    assert done["artifacts"][0]["parts"][0] == {"type": "text", "text": "Analysed: analyze sales"}
    assert await env.refused("tasks/cancel", {"id": "t-1"}, path="/") == -32002
    assert await env.refused("tasks/send", legacy("t-1", "again"), path="/") == -32002
    assert await env.refused("message/send", sent("x"), path="/") == -32601


async def test_almanac_streams_named_events_at_subscribe(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac")
    body = env.envelope("tasks/sendSubscribe", legacy("t-1", "analyze sales"))
    text = (await env.raw("POST", "/subscribe", body)).body.decode()
    events = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    assert [event["event"] for event in events][-2:] == ["artifact", "status"]
    last = json.loads(events[-1]["data"])
    assert (last["id"], last["result"]["final"], last["result"]["status"]["state"]) == (1, True, "completed")
    reply = await env.raw("POST", "/subscribe", env.envelope("tasks/get", {"id": "t-1"}))
    assert (reply.status, "error" in json.loads(reply.body)) == (400, True)


async def test_almanac_webhooks_are_https_only(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac")
    await env.call("tasks/send", legacy("t-1", ""), path="/")
    params = {"id": "t-1", "pushNotificationConfig": {"url": "http://hook:8080/x"}}
    assert await env.refused("tasks/pushNotification/set", params, path="/") == -32004


async def test_almanac_drops_a_webhook_that_was_never_taken(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac", allow_webhook=("10.0.0.9/32:8443",))
    hook = Hook(answers=[503] * 4)
    env.network.mount("https://hook:8443", hook)
    await env.call("tasks/send", legacy("t-1", ""), path="/")
    params = {"id": "t-1", "pushNotificationConfig": {"url": "https://hook:8443/x", "token": "t"}}
    await env.call("tasks/pushNotification/set", params, path="/")
    await asyncio.sleep(100)
    assert len(hook.bodies) == 4
    assert hook.headers[0]["authorization"] == "Bearer t"
    await env.call("tasks/send", legacy("t-1", "analyze sales"), path="/")
    await asyncio.sleep(10)
    assert len(hook.bodies) == 4


async def test_almanac_is_full_with_its_own_code_and_401_is_its_own(start_agent: StartAgent) -> None:
    limits = profile_agent("almanac").settings.limits.__class__(tasks_max=1)
    env = await as_profile(start_agent, "almanac", limits=limits, bearer="b")
    reply = await env.raw("POST", "/", env.envelope("tasks/get", {"id": "x"}))
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (401, -32000)
    env.headers = {"authorization": "Bearer b"}
    await env.call("tasks/send", legacy("t-1", ""), path="/")
    assert await env.refused("tasks/send", legacy("t-2", ""), path="/") == -32003
    refused = await env.raw("POST", "/subscribe", env.envelope("tasks/sendSubscribe", legacy("t-2", "")))
    assert b'"code":-32003' in refused.body


async def test_almanac_keeps_the_statuses_in_its_history(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac")
    first = await env.call("tasks/send", legacy("t-1", ""), path="/")
    assert [entry["state"] for entry in first["history"]] == ["submitted"]
    await asyncio.sleep(5)
    await env.call("tasks/send", legacy("t-1", "sales"), path="/")
    await asyncio.sleep(5)
    done = await env.call("tasks/get", {"id": "t-1"}, path="/")
    assert [entry["state"] for entry in done["history"]] == [
        "submitted",
        "working",
        "input-required",
        "working",
        "completed",
    ]
    assert all(entry["timestamp"].endswith("Z") for entry in done["history"])
    assert "stateTransitionHistory" not in done.get("metadata", {})
    last = await env.call("tasks/get", {"id": "t-1", "historyLength": 2}, path="/")
    assert [entry["state"] for entry in last["history"]] == ["working", "completed"]
    assert "history" not in await env.call("tasks/get", {"id": "t-1", "historyLength": 0}, path="/")


async def test_almanac_fails_what_no_skill_is_for_with_a_message(start_agent: StartAgent) -> None:
    env = await as_profile(start_agent, "almanac")
    task = await env.call("tasks/send", legacy("t-1", "Write me a poem"), path="/")
    assert task["status"]["state"] == "failed"
    assert task["status"]["message"]["role"] == "agent"
    assert task["status"]["message"]["parts"][0]["text"].startswith("No matching skill for this request.")
    seeds = await env.call("tasks/send", legacy("t-2", "Analyze my dataset"), path="/")
    assert seeds["status"]["state"] == "submitted"
    hinted = {**legacy("t-3", "x"), "metadata": {"skillHint": "paint"}}
    assert (await env.call("tasks/send", hinted, path="/"))["status"]["state"] == "failed"


async def test_rejected_appears_nowhere_in_0_1(start_agent: StartAgent) -> None:
    env = await start_agent(state_transition_history=True)
    hinted = {**legacy("t-1", "x"), "metadata": {"skillHint": "reject"}}
    seen = [await env.call("tasks/send", hinted)]
    await asyncio.sleep(1)
    seen.append(await env.call("tasks/get", {"id": "t-1"}))
    seen.append(await env.ask("tasks/cancel", {"id": "t-1"}))
    seen.append(await env.ask("tasks/send", legacy("t-1", "again")))
    missing = {**legacy("t-2", "x"), "metadata": {"skillHint": "nothing"}}
    seen.append(await env.call("tasks/send", missing))
    assert seen[1]["status"]["state"] == seen[1]["history"][-1]["state"] == "failed"
    assert "rejected" not in json.dumps(seen)
    task = await env.call("message/send", sent("x", skill="reject"))
    await asyncio.sleep(1)
    assert (await env.call("tasks/get", {"id": task["id"]}))["status"]["state"] == "rejected"


# -- what a file part may be ---------------------------------------------------------------------------


async def test_files_of_a_type_that_is_not_taken_are_refused_where_types_are_named(start_agent: StartAgent) -> None:
    file = {"kind": "file", "file": {"mimeType": "image/png", "uri": "https://x.example/y.png"}}
    params = sent("x", skill="echo")
    params["message"]["parts"].append(file)
    assert (await (await start_agent()).call("message/send", params))["kind"] == "task"
    assert await (await start_agent(input_modes=("text/plain",))).refused("message/send", params) == -32005
    assert (await (await start_agent(input_modes=("image/*",))).call("message/send", params))["kind"] == "task"
