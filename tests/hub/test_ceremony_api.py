"""Ceremonies over HTTP: the seed's shapes, and none of the original's incidents (T-33 to T-36)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.api.answer import to_json
from fleetsim.ceremony.written import written
from fleetsim.channels.channel import Channel, Destination, SinkKind
from tests.hub.local_hub import FOLDER, KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_ownership import told

SWEEP: dict[str, Any] = {
    "id": "quinn.hourly-sweep",
    "name": "Hourly Sweep",
    "schedule": "0 * * * *",
    "skill": "echo",
    "targets": ["quinn"],
    "enabled": True,
}
PATH = f"/api/ceremonies/{SWEEP['id']}"


async def call(t: LocalHub, method: str, path: str, body: Any = None, *, key: str = KEY) -> tuple[int, dict[str, Any]]:
    sent = b"" if method == "GET" else json.dumps(body if body is not None else {}).encode()
    reply = await t.http(method, path, sent, key=key)
    return reply.status, json.loads(reply.body)


async def create(t: LocalHub, *, key: str = QUINN, **more: Any) -> tuple[int, dict[str, Any]]:
    return await call(t, "POST", "/api/ceremonies/create", {**SWEEP, **more}, key=key)


async def listed(t: LocalHub, *, key: str = KEY, query: str = "") -> dict[str, dict[str, Any]]:
    status, found = await call(t, "GET", "/api/ceremonies" + query, key=key)
    assert status == 200
    return {row["id"]: row for row in found["data"]}


async def test_an_agent_makes_lists_changes_fires_and_deletes_a_ceremony() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        status, made = await create(t)
        assert (status, made["success"], made["data"]["createdBy"]) == (200, True, "quinn")
        assert {key: made["data"][key] for key in SWEEP} == SWEEP
        assert "createdBy: quinn" in t.files.take(FOLDER / f"{SWEEP['id']}.yaml").decode()
        status, changed = await call(t, "POST", f"{PATH}/update", {"schedule": "30 * * * *"}, key=QUINN)
        assert (status, changed["data"]["schedule"], changed["data"]["name"]) == (200, "30 * * * *", "Hourly Sweep")
        status, fired = await call(t, "POST", f"{PATH}/run", key=QUINN)
        assert (status, fired["success"]) == (200, True)
        await asyncio.sleep(5)
        status, runs = await call(t, "GET", f"{PATH}/runs", key=QUINN)
        assert (status, [run["runId"] for run in runs["data"]]) == (200, [fired["data"]["runId"]])
        status, gone = await call(t, "POST", f"{PATH}/delete", key=QUINN)
        assert (status, gone["success"]) == (200, True)
        assert "deleted" in gone["message"]
        assert await listed(t, key=QUINN) == {}
        assert (await call(t, "POST", f"{PATH}/delete", key=QUINN))[0] == 404


async def test_a_dry_run_returns_the_request_and_sends_nothing() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t, prompt="look around", targets=["quinn", "rex"])
        seq = t.hub.events.last_seq
        status, told = await call(t, "POST", f"{PATH}/run", {"dryRun": True}, key=QUINN)
        assert (status, told["data"]) == (
            200,
            {
                "enabled": True,
                "requests": [{"agent": "quinn", "skill": "echo", "text": "look around", "timeoutS": 600.0}],
                "problems": ["unknown agent “rex” (known: quinn)"],
            },
        )
        assert (await call(t, "POST", f"{PATH}/run", {"dryRun": True}, key=AVA))[0] == 404
        await call(t, "POST", f"{PATH}/update", {"enabled": False}, key=QUINN)
        off = (await call(t, "POST", f"{PATH}/run", {"dryRun": True}, key=QUINN))[1]["data"]
        assert (off["enabled"], off["requests"]) == (False, [])
        await asyncio.sleep(5)
        assert t.events("agent.skill.request") == []
        assert (await call(t, "GET", f"{PATH}/runs", key=QUINN))[1]["data"] == []
        assert t.hub.events.last_seq > seq


async def test_the_list_is_an_array_and_broken_files_are_in_a_list_of_their_own() -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        t.files.put(FOLDER / "b.yaml", "id: x\n")
        await asyncio.sleep(6)
        assert (await call(t, "GET", "/api/ceremonies"))[1] == {"success": True, "data": []}
        (problem,) = (await call(t, "GET", "/api/ceremonies/errors"))[1]["data"]
        assert "b.yaml" in problem["path"]
        assert to_json(await t.remote.ceremony_errors()) == [problem]


async def test_every_owner_sees_its_own_ceremonies_and_the_hubs_owner_sees_all() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        for key, ceremony_id in ((QUINN, "q"), (AVA, "a"), (KEY, "s")):
            assert (await create(t, key=key, id=ceremony_id))[0] == 200
        assert set(await listed(t)) == set(await listed(t, query="?all=true")) == {"q", "a", "s"}
        assert set(await listed(t, key=QUINN)) == set(await listed(t, key=QUINN, query="?all=false")) == {"q"}
        assert set(await listed(t, key=AVA)) == {"a"}
        assert (await call(t, "GET", "/api/ceremonies?all=true", key=QUINN))[0] == 401


async def test_omitted_keys_are_filled_in() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        bare = {"id": "b", "name": "B", "schedule": "0 0 1 1 *", "skill": "echo"}
        row = (await call(t, "POST", "/api/ceremonies/create", bare, key=AVA))[1]["data"]
        assert (row["targets"], row["enabled"], row["notifyChannel"]) == (["all"], True, "")
        once = (await create(t, id="later", schedule=None, **{"in": "30m"}))[1]["data"]
        assert once["nextFireAt"] is not None
        (only,) = [row for row in t.hub.require_scheduler().rows() if row.ceremony.ceremony_id == "later"]
        assert only.next_at is not None
        assert 1_790 <= (only.next_at - t.runtime.clock.now()).total_seconds() <= 1_800


@pytest.mark.parametrize("key", [QUINN, AVA, KEY])
@pytest.mark.parametrize("enabled", [True, False])
async def test_incident_creating_a_ceremony_never_overwrites_one(key: str, enabled: bool) -> None:  # T-33
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t, enabled=enabled)
        before, rows = t.files.take(FOLDER / f"{SWEEP['id']}.yaml"), await listed(t)
        status, said = await create(t, key=key, name="Mine now")
        assert (status, said["code"]) == (409, "FLEETSIM_ERR_EXISTS")
        assert (t.files.take(FOLDER / f"{SWEEP['id']}.yaml"), await listed(t)) == (before, rows)


@pytest.mark.parametrize("more", [{}, {"enabled": None}], ids=["left out", "null"])
async def test_incident_12_a_paused_ceremony_stays_paused_over_any_other_change(more: dict[str, Any]) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t, enabled=False)
        status, row = await call(t, "POST", f"{PATH}/update", {"name": "Renamed", **more}, key=QUINN)
        assert (status, row["data"]["name"], row["data"]["enabled"]) == (200, "Renamed", False)
        assert (await listed(t))[SWEEP["id"]]["nextFireAt"] is None
        status, row = await call(t, "POST", f"{PATH}/update", {"enabled": True}, key=QUINN)
        assert (status, row["data"]["enabled"], row["data"]["name"]) == (200, True, "Renamed")


async def test_incident_14_agents_that_share_a_key_cannot_touch_a_ceremony_of_either() -> None:
    async with local_hub(worker(), agent_keys={**ENV, "WORKSTACEAN_API_KEY_AVA": QUINN}) as t:
        assert (await create(t, key=QUINN))[0] == 401
        assert await listed(t) == {}


@pytest.mark.parametrize("owner", [QUINN, KEY], ids=["another agent's", "the hub's owner's"])
@pytest.mark.parametrize(("method", "verb"), [("POST", "update"), ("POST", "delete"), ("POST", "run"), ("GET", "runs")])
async def test_a_ceremony_of_another_owner_is_not_found(owner: str, method: str, verb: str) -> None:  # T-33
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t, key=owner)
        before, seq = t.files.take(FOLDER / f"{SWEEP['id']}.yaml"), t.hub.events.last_seq
        status, foreign = await call(t, method, f"{PATH}/{verb}", {}, key=AVA)
        _, unknown = await call(t, method, f"/api/ceremonies/no.hourly-sweep/{verb}", {}, key=AVA)
        assert status == 404
        assert foreign == {**unknown, "error": unknown["error"].replace("no.", "quinn.")}
        assert await listed(t, key=AVA) == {}
        assert (t.files.take(FOLDER / f"{SWEEP['id']}.yaml"), t.hub.events.last_seq) == (before, seq)


async def test_the_creator_is_recorded_and_stays() -> None:  # T-33
    async with ready_hub(worker(), agent_keys=ENV) as t:
        assert (await create(t, createdBy="ava"))[0] == 400
        assert (await create(t, createdBy="quinn"))[1]["data"]["createdBy"] == "quinn"
        for key in (QUINN, KEY):
            assert (await call(t, "POST", f"{PATH}/update", {"createdBy": "ava", "name": "x"}, key=key))[0] == 400
            for same in ("quinn", None):
                status, row = await call(t, "POST", f"{PATH}/update", {"createdBy": same, "name": key}, key=key)
                assert (status, row["data"]["createdBy"], row["data"]["name"]) == (200, "quinn", key)
        assert (await call(t, "POST", f"{PATH}/update", {"id": "other"}, key=QUINN))[0] == 400
        assert (await create(t, key=KEY, id="for-ava", createdBy="ava"))[1]["data"]["createdBy"] == "ava"
        assert set(await listed(t, key=AVA)) == {"for-ava"}
        assert (await create(t, key=KEY, id="plain"))[1]["data"]["createdBy"] == "system"


@pytest.mark.parametrize("key", [AVA, KEY], ids=["its owner", "the hub's owner"])
async def test_a_channel_that_does_not_list_the_owner_is_refused(key: str) -> None:
    page = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",))
    channels = [Channel(channel_id="77", sinks=(page,), agents=("quinn",))]
    async with ready_hub(worker(), agent_keys=ENV, channels=channels) as t:
        said = "notifyChannel: channel “77” does not list “ava” under agents"
        for named in ("77", 77):
            status, refused = await create(t, key=key, createdBy="ava", notifyChannel=named)
            assert (status, refused) == (400, {"success": False, "error": said, "code": "FLEETSIM_ERR_BAD_REQUEST"})
        assert await listed(t) == {}
        assert (await create(t, key=AVA, notifyChannel="elsewhere"))[0] == 200, "nobody is told there"
        for channel, expected in (("77", 400), ("other", 200), (None, 200)):
            assert (await call(t, "POST", f"{PATH}/update", {"notifyChannel": channel}, key=key))[0] == expected
        assert (await call(t, "POST", f"{PATH}/update", {"notifyChannel": "77"}, key=QUINN))[0] == 404
        for owner, ceremony_id in ((QUINN, "q"), (KEY, "s")):
            status, row = await create(t, key=owner, id=ceremony_id, notifyChannel="77")
            assert (status, row["data"]["notifyChannel"], row["data"]["warnings"]) == (200, "77", [])


async def test_a_removed_channel_does_not_prevent_other_changes_by_an_owner() -> None:
    page = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",))
    async with local_hub(worker(), agent_keys=ENV, channels=[Channel(channel_id="77", sinks=(page,))]) as t:
        t.files.put(FOLDER / "c.yaml", written({**SWEEP, "createdBy": "ava", "notifyChannel": "77"}))
        await asyncio.sleep(6)
        status, row = await call(t, "POST", f"{PATH}/update", {"enabled": False}, key=AVA)
        assert (status, row["data"]["enabled"]) == (200, False)


async def test_an_id_that_changed_hands_is_deleted_only_by_its_current_owner() -> None:
    """Between the check of the owner and the deletion, another may have created one with the same id."""
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t)
        acts = [
            call(t, "POST", f"{PATH}/delete", key=QUINN),
            create(t, key=AVA),
            call(t, "POST", f"{PATH}/delete", key=QUINN),
            call(t, "POST", f"{PATH}/update", {"name": "taken"}, key=QUINN),
        ]
        said = [status for status, _ in await asyncio.gather(*acts)]
        assert said == [200, 200, 404, 404]
        row = (await listed(t))[SWEEP["id"]]
        assert (row["createdBy"], row["name"]) == ("ava", "Hourly Sweep")


async def test_runs_of_a_former_owner_are_hidden_from_the_next_one() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t)
        await call(t, "POST", f"{PATH}/run", key=QUINN)
        await asyncio.sleep(5)
        await call(t, "POST", f"{PATH}/delete", key=QUINN)
        await create(t, key=AVA)
        assert (await call(t, "GET", f"{PATH}/runs", key=AVA))[1]["data"] == []
        assert len((await call(t, "GET", f"{PATH}/runs"))[1]["data"]) == 1
        assert await told(t, AVA, 1_000) == []


async def test_an_owner_follows_the_runs_of_its_ceremonies() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t)
        await create(t, key=KEY, id="s")
        for ceremony_id in (SWEEP["id"], "s"):
            await call(t, "POST", f"/api/ceremonies/{ceremony_id}/run")
        await asyncio.sleep(5)
        topics = {event["topic"] for event in await told(t, QUINN, 1_000)}
        assert {f"ceremony.{SWEEP['id']}.execute", f"ceremony.{SWEEP['id']}.completed"} <= topics
        assert not any(topic.startswith("ceremony.s") or topic == "ceremony.loaded" for topic in topics)
        (run,) = (await call(t, "GET", f"{PATH}/runs", key=QUINN))[1]["data"]
        (child,) = run["correlationIds"]
        assert [(await call(t, "GET", f"/api/tasks/{child}", key=key))[0] for key in (QUINN, AVA)] == [200, 404]


@pytest.mark.parametrize(
    "ceremony_id",
    [
        "..",
        ".",
        "../x",
        "a/b",
        ".hidden",
        "-x",
        "x\n",
        "x\x00",
        "é",
        "１２３",
        "",
        "x" * 129,
        "a b",
        "a\\b",
        "%2e%2e",
        7,
    ],
)
async def test_an_id_that_is_a_path_creates_no_file(ceremony_id: Any) -> None:  # T-35
    async with ready_hub(worker(), agent_keys=ENV) as t:
        before = t.files.content()
        assert (await create(t, id=ceremony_id))[0] == 400
        assert t.files.content() == before


@pytest.mark.parametrize("ceremony_id", ["..", "%2e%2e", "..%2f..%2fagents", "tick%0a", "%00"])
@pytest.mark.parametrize("verb", ["update", "delete", "run"])
@pytest.mark.parametrize("key", [QUINN, KEY])
async def test_an_address_with_a_path_as_its_id_reaches_no_file(ceremony_id: str, verb: str, key: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:  # T-35
        before = t.files.content()
        assert (await t.http("POST", f"/api/ceremonies/{ceremony_id}/{verb}", b"{}", key=key)).status == 404
        assert t.files.content() == before


@pytest.mark.parametrize(
    "schedule",
    [
        "* * * * * *",
        "0 0 * * * * *",
        "R * * * *",
        "0 0 30 2 *",
        "61 * * * *",
        "* " * 60,
        "x" * 300_000,
        "",
        " ",
        "＊ * * * *",
    ],
)
async def test_a_schedule_that_is_costly_or_never_fires_is_refused(schedule: str) -> None:  # T-34
    async with ready_hub(worker(), agent_keys=ENV) as t:
        assert (await create(t, schedule=schedule))[0] == 400
        assert await listed(t) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"name": "x: [&a *a]\n- {"},
        {"name": "*alias", "description": "&anchor !!python/object:os.system"},
        {"description": "a\nid: other\ncreatedBy: ava\n"},
        {"prompt": "---\n%YAML 9.9\n...\n"},
        {"notifyChannel": "1469080556720623699"},
        {"name": "no", "description": "1.10", "prompt": "12:30:00"},
        {"name": "${HOME} <<: {a: b}"},
    ],
)
async def test_texts_of_a_body_are_only_texts_in_the_file(more: dict[str, Any]) -> None:  # T-36
    async with ready_hub(worker(), agent_keys=ENV) as t:
        status, row = await create(t, **more)
        assert status == 200
        assert {key: row["data"][key] for key in more if key in row["data"]} == {
            key: value for key, value in more.items() if key in row["data"]
        }
        await asyncio.sleep(6)
        assert set(await listed(t)) == {SWEEP["id"]}
        assert (await listed(t))[SWEEP["id"]]["createdBy"] == "quinn"
        assert (await call(t, "GET", "/api/ceremonies/errors"))[1]["data"] == []


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/api/ceremonies/create", {}, "id, name, schedule, and skill are required"),
        ("/api/ceremonies/create", {**SWEEP, "id": "a/b"}, "Invalid ceremony id (alphanumeric, dots, dashes only)"),
        ("/api/ceremonies/no/update", {"name": "x"}, 'Ceremony "no" not found'),
        ("/api/ceremonies/no/delete", {}, 'Ceremony "no" not found'),
        ("/api/ceremonies/no/run", {}, 'Ceremony "no" not found'),
        ("/api/a2a/chat", {"agent": "quinn"}, "agent and message are required"),
        ("/api/a2a/delegate", {"agent": "quinn", "message": "x"}, "agent, skill, and message are required"),
    ],
)
async def test_a_refusal_has_the_words_that_workstaceans_tools_expect(path: str, body: Any, says: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        assert (await call(t, "POST", path, body, key=QUINN))[1]["error"] == says


async def test_a_success_has_the_words_that_workstaceans_tools_expect() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        await create(t)
        broken = await t.http("POST", "/api/ceremonies/create", b"{", key=QUINN)
        assert (broken.status, json.loads(broken.body)["error"]) == (400, "Invalid JSON")
        said = [(await call(t, "POST", f"{PATH}/{verb}", key=QUINN))[1]["message"] for verb in ("run", "delete")]
        assert said == [f'Ceremony "{SWEEP["id"]}" triggered', f'Ceremony "{SWEEP["id"]}" deleted']


async def test_a_hub_without_a_folder_refuses_ceremonies() -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        t.hub.ceremonies = None
        assert (await create(t))[0] == 404
