"""Keys of people: names that are proved, roles, and who did what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.api.answers import AccessRole
from fleetsim.events.fleet import ActionTaken, ConfigRejected
from fleetsim.events.request import QuestionAnswered, VetoWindowMoved
from fleetsim.hub.keys import Keyring, People, Principal
from fleetsim.runtime.ports import Limits
from fleetsim.runtime.ports import Request as Outgoing
from fleetsim.testbed.runtime import MemoryFiles
from tests.hub.local_hub import HUB, KEY, PEOPLE, LocalHub, local_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN, holder

VERA, ADAM, OLGA = "v" * 40, "d" * 40, "o" * 40
ROLES: Mapping[str, AccessRole] = {
    VERA: AccessRole.VIEWER,
    ADAM: AccessRole.ANSWERER,
    OLGA: AccessRole.OPERATOR,
}
PEOPLE_ENV = {"VERA_KEY": VERA, "ADAM_KEY": ADAM, "OLGA_KEY": OLGA}
PEOPLE_YAML = """keys:
  vera: {envKey: VERA_KEY, role: viewer}
  adam: {envKey: ADAM_KEY, role: answerer}
  olga: {envKey: OLGA_KEY, role: operator}
"""
CEREMONY = "id: sweep\nname: Sweep\nschedule: '0 0 1 1 *'\nskill: echo\ntargets: [quinn]\n"


async def found(yaml: str, *agents: str, **files: str) -> People:
    people = People(MemoryFiles({**files, str(PEOPLE): yaml}), PEOPLE_ENV, PEOPLE)
    await people.poll(agents)
    return people


async def done(t: LocalHub, key: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    reply = await t.http("POST", path, json.dumps(body).encode(), key=key)
    return reply.status, json.loads(reply.body)


def acts(t: LocalHub) -> list[tuple[str, str, str, str]]:
    return [(e.by, e.role, e.action, e.object) for e in t.events("audit.") if isinstance(e, ActionTaken)]


async def asked(t: LocalHub, key: str, skill: str) -> str:
    """A request of the skill, sent with this key; its id."""
    _, reply = await done(t, key, "/api/requests", text="x", skill=skill, targets=["quinn"])
    await asyncio.sleep(5)
    return str(reply["data"]["correlationIds"][0])


async def test_each_key_belongs_to_a_person_with_a_role() -> None:
    people = await found(PEOPLE_YAML)
    ring = Keyring(KEY)
    ring.replace({"quinn": QUINN}, people.keys)
    for key, name in ((VERA, "vera"), (ADAM, "adam"), (OLGA, "olga")):
        principal = holder(ring, key)
        assert principal == Principal(person=name, given=ROLES[key])
        assert (principal.role, principal.sees_all, principal.agent) == (ROLES[key], True, None)
    assert (people.problems, ring.problems) == ((), ())


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("keys:\n  vera: {envKey: VERA_KEY}\n", "role"),
        ("keys:\n  vera: {envKey: VERA_KEY, role: owner}\n", "role"),
        ("keys:\n  vera: {role: viewer}\n", "in envKey or in keyFile"),
        ("keys:\n  operator: {envKey: VERA_KEY, role: viewer}\n", "reserved"),
        ("keys:\n  quinn: {envKey: VERA_KEY, role: viewer}\n", "an agent has this name"),
        ("keys:\n  vera: {keyFile: gone, role: viewer}\n", "gone"),
        (f"keys:\n  vera: {{key: {VERA}, role: viewer}}\n", "people.yaml:2"),
        ("keys:\n" + "".join(f"  p{n}: {{envKey: A, role: viewer}}\n" for n in range(1_001)), "larger than"),
    ],
)
async def test_an_error_in_people_yaml_is_reported_and_gives_no_key(yaml: str, says: str) -> None:
    people = await found(yaml, "quinn")
    assert people.keys == {}
    assert says in people.problems[0]
    assert VERA not in people.problems[0]


async def test_a_person_and_an_agent_with_one_key_have_none() -> None:
    ring = Keyring(KEY)
    ring.replace({"quinn": VERA}, (await found(PEOPLE_YAML)).keys)
    assert holder(ring, VERA) is None
    assert holder(ring, OLGA) is not None
    assert {"vera", "quinn"} <= set(ring.problems[0].split())


async def test_a_key_is_rotated_and_a_role_changed_while_the_hub_runs() -> None:
    async with local_hub(worker()) as t:
        t.files.put("keys/vera", VERA)
        t.files.put(PEOPLE, "keys:\n  vera: {keyFile: keys/vera, role: viewer}\n")
        await asyncio.sleep(6)
        refused, _ = await done(t, VERA, "/api/requests", text="x", targets=["quinn"])
        t.files.put(PEOPLE, "keys:\n  vera: {keyFile: keys/vera, role: operator}\n")
        await asyncio.sleep(6)
        allowed, _ = await done(t, VERA, "/api/requests", text="x", targets=["quinn"])
        t.files.put("keys/vera", ADAM)
        await asyncio.sleep(6)
        old, _ = await done(t, VERA, "/api/requests", text="x", targets=["quinn"])
        new, _ = await done(t, ADAM, "/api/requests", text="x", targets=["quinn"])
        assert (refused, allowed, old, new) == (403, 202, 401, 202)
        t.files.put(PEOPLE, "keys: [")
        await asyncio.sleep(6)
        assert (await t.http("GET", "/api/whoami", key=ADAM)).status == 200
        told = [event.path for event in t.events("config.rejected") if isinstance(event, ConfigRejected)]
        assert told == [str(PEOPLE)]


async def test_a_stream_ends_when_its_key_is_taken_away() -> None:
    async with local_hub(worker()) as t:
        t.files.put("keys/vera", VERA)
        t.files.put("keys/olga", OLGA)
        entries = "  olga: {keyFile: keys/olga, role: operator}\n"
        t.files.put(PEOPLE, f"keys:\n  vera: {{keyFile: keys/vera, role: viewer}}\n{entries}")
        await asyncio.sleep(6)
        ended = []

        async def follow(key: str) -> None:
            head, limits = {"x-api-key": key}, Limits(total_s=None)
            sent = Outgoing(method="GET", url=HUB + "/api/events", headers=head, limits=limits, streaming=True)
            async with t.runtime.transport.open(sent) as incoming:
                async for _ in incoming.chunks:
                    pass
            ended.append(key)

        readers = [asyncio.create_task(follow(key)) for key in (VERA, OLGA)]
        await asyncio.sleep(40)
        t.files.put("keys/vera", ADAM)  # the same person, another key
        await asyncio.sleep(25)
        assert ended == [VERA]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def test_whoami_names_the_person_and_the_role() -> None:
    async with local_hub(worker(), agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        said = {}
        for key in (OLGA, QUINN, KEY):
            data = json.loads((await t.http("GET", "/api/whoami", key=key)).body)["data"]
            said[key] = (data["person"], data["role"], data["agent"])
        assert said == {OLGA: ("olga", "operator", None), QUINN: (None, None, "quinn"), KEY: (None, "owner", None)}


async def test_a_refusal_names_the_roles_that_may() -> None:
    async with local_hub(worker(), agent_keys=PEOPLE_ENV, people=PEOPLE_YAML) as t:
        for key, path, may in (
            (VERA, "/api/tasks/c-1/cancel", {"operator"}),
            (ADAM, "/api/tasks/c-1/cancel", {"operator"}),
            (VERA, "/api/inbox/q-1/answer", {"answerer", "operator"}),
            (OLGA, "/a2a", set()),
        ):
            status, reply = await done(t, key, path)
            needed = reply["error"].partition(";")[0]
            assert (status, reply["code"]) == (403, "FLEETSIM_ERR_ROLE_REFUSED")
            assert {role for role in AccessRole if role in needed.split()} == may
        assert acts(t) == []


async def test_a_persons_key_replaces_a_typed_name() -> None:
    async with local_hub(worker(), agent_keys=PEOPLE_ENV, people=PEOPLE_YAML) as t:
        by_key, typed = await asked(t, OLGA, "ask"), await asked(t, KEY, "ask")
        questions = {q.correlation_id: q.question_id for q in await t.hub.tracker.find_questions()}
        assert (await done(t, ADAM, f"/api/inbox/{questions[by_key]}/answer", text="a", by="boss"))[0] == 202
        body = {"correlationId": typed, "decision": "reject", "decidedBy": "boss"}
        assert (await done(t, KEY, "/api/hitl/respond", **body))[0] == 202
        told = [event for event in t.events("hitl.response.") if isinstance(event, QuestionAnswered)]
        assert {event.question_id: event.decided_by for event in told} == {
            questions[by_key]: "adam",
            questions[typed]: "boss",
        }
        assert acts(t) == [
            ("olga", "operator", "send", by_key),
            ("adam", "answerer", "answer", questions[by_key]),
            ("boss", "owner", "reject", questions[typed]),
        ]
        assert [e.correlation_id for e in t.events("audit.")] == [by_key, by_key, typed]


async def test_a_request_of_a_person_has_the_persons_name_and_belongs_to_no_agent() -> None:
    async with local_hub(worker(), agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        body = {"text": "x", "skill": "echo", "targets": ["quinn"], "systemActor": "quinn"}
        _, reply = await done(t, OLGA, "/api/requests", **body)
        (cid,) = reply["data"]["correlationIds"]
        await asyncio.sleep(5)
        row = json.loads((await t.http("GET", f"/api/tasks/{cid}", key=VERA)).body)["data"]
        assert (row["systemActor"], row["success"]) == ("olga", True)
        assert [(await t.http("GET", f"/api/tasks/{cid}", key=key)).status for key in (QUINN, AVA)] == [404, 404]


async def test_every_change_is_in_the_events_with_its_name_and_role() -> None:
    async with local_hub(worker(), ceremony=CEREMONY, agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        await asyncio.sleep(6)
        cid = await asked(t, OLGA, "ponder")
        await done(t, OLGA, f"/api/tasks/{cid}/cancel")
        await asyncio.sleep(5)
        failed = await asked(t, OLGA, "fail")
        await done(t, KEY, f"/api/tasks/{failed}/retry", mayRepeat=True)
        await done(t, OLGA, f"/api/tasks/{cid}/cancel")  # it has ended: nothing changed
        await done(t, OLGA, "/api/ceremonies/sweep/run", dryRun=True)
        await done(t, OLGA, "/api/ceremonies/sweep/run")
        await asyncio.sleep(5)
        await done(t, OLGA, "/publish", topic="ceremony.sweep.execute")
        await asyncio.sleep(5)
        await t.remote.run_ceremony("sweep")
        assert [run.trigger for run in await t.remote.ceremony_runs("sweep")] == ["manual", "by olga", "by olga"]
        await done(t, OLGA, "/api/ceremonies/sweep/update", enabled=False)
        new = {"id": "new", "name": "New", "schedule": "0 0 1 1 *", "skill": "echo"}
        await done(t, OLGA, "/api/ceremonies/create", **new)
        await done(t, OLGA, "/api/ceremonies/new/delete")
        await done(t, OLGA, "/api/agents/quinn/refresh")
        await done(t, QUINN, "/api/requests", text="x", skill="echo", targets=["quinn"])  # an agent's are no actions
        assert acts(t) == [
            ("olga", "operator", "send", cid),
            ("olga", "operator", "cancel", cid),
            ("olga", "operator", "send", failed),
            ("operator", "owner", "retry", failed),
            ("olga", "operator", "fire", "sweep"),
            ("olga", "operator", "fire", "sweep"),
            ("operator", "owner", "fire", "sweep"),
            ("olga", "operator", "update-ceremony", "sweep"),
            ("olga", "operator", "create-ceremony", "new"),
            ("olga", "operator", "delete-ceremony", "new"),
            ("olga", "operator", "refresh-card", "quinn"),
        ]


async def test_the_audit_lists_who_did_what_the_newest_first() -> None:
    async with local_hub(worker(), agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        first = await asked(t, OLGA, "ponder")
        await asyncio.sleep(3600)
        second = await asked(t, OLGA, "ponder")
        await done(t, OLGA, f"/api/tasks/{second}/cancel")
        await done(t, KEY, "/api/agents/quinn/refresh")

        async def audit(query: str = "", key: str = VERA) -> list[tuple[str, str, str, str]]:
            reply = await t.http("GET", f"/api/audit?{query}", key=key)
            return [
                tuple(row[name] for name in ("by", "role", "action", "object"))
                for row in json.loads(reply.body)["data"]
            ]

        rows = [
            ("operator", "owner", "refresh-card", "quinn"),
            ("olga", "operator", "cancel", second),
            ("olga", "operator", "send", second),
            ("olga", "operator", "send", first),
        ]
        assert await audit() == rows
        assert await audit("name=olga&limit=1") == rows[1:2]
        assert await audit("action=send&window=600") == rows[2:3]
        assert await audit(f"object={second}") == rows[1:3]
        assert await audit("name=quinn") == []
        await t.restart()
        assert await audit() == rows
        assert (await t.http("GET", "/api/audit", key=QUINN)).status == 403


async def test_an_agent_does_not_read_who_did_what() -> None:
    async with local_hub(worker(), agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        cid = await asked(t, QUINN, "ponder")
        await done(t, OLGA, f"/api/tasks/{cid}/cancel")
        await asyncio.sleep(2)
        seen = {}
        for key in (QUINN, VERA):
            state = json.loads((await t.http("GET", "/api/state", key=key)).body)["data"]
            seen[key] = [event["payload"]["by"] for event in state["events"] if event["topic"] == "audit.cancel"]
        assert seen == {QUINN: [], VERA: ["olga"]}


async def test_a_veto_has_the_name_of_the_key() -> None:
    agent = Agent("quinn")

    @agent.skill("deploy", hitl="veto")
    async def deploy(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "done"

    async with local_hub(agent, agent_keys=PEOPLE_ENV, people=PEOPLE_YAML) as t:
        cid = await asked(t, OLGA, "deploy")
        assert (await done(t, ADAM, f"/api/tasks/{cid}/veto", by="boss"))[0] == 202
        told = [event.decided_by for event in t.events("hitl.veto.") if isinstance(event, VetoWindowMoved)]
        assert (told[-1], acts(t)[-1]) == ("adam", ("adam", "answerer", "veto", cid))


async def test_a_person_has_an_account_of_its_own() -> None:
    async with local_hub(worker(), agent_keys=PEOPLE_ENV, people=PEOPLE_YAML) as t:
        statuses = [(await t.http("GET", "/api/skills", key=VERA)).status for _ in range(400)]
        assert statuses.count(429) > 50
        assert (await t.http("GET", "/api/skills", key=OLGA)).status == 200
