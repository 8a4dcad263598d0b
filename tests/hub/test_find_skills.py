"""Finding agents and skills over the API, HubClient and a model's tools, as far as a key may see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsim.agent import Agent, Effect, SkillContext, SkillFailed
from fleetsim.api.answer import to_json
from fleetsim.client.hub_tools import RESULT_CHARS_MAX
from fleetsim.fleet.auth import AuthEntry
from fleetsim.hub import api
from tests.hub.local_hub import KEY, LocalHub, ready_hub
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_workstacean import call, said


def filer(name: str, *, confidence: float, works: bool = True) -> Agent:
    agent = Agent(name, description=f"{name} keeps the board\x1b[2J")

    @agent.skill(
        "file_bug",
        description="Files a bug on the board",
        tags=("tracker",),
        effects=(Effect(domain="board", path="bugs.open", delta=1, confidence=confidence),),
    )
    async def file_bug(task: SkillContext) -> str:
        if not works:
            raise SkillFailed("no board")
        task.effect("board", "bugs.open", "inc", 1)
        return "filed"

    @agent.skill("echo", description="Says it again")
    async def echo(task: SkillContext) -> str:
        return task.text

    return agent


async def asked(t: LocalHub, agent: str, times: int) -> None:
    for _ in range(times):
        (cid,) = await t.remote.submit({"text": "x", "targets": [agent], "skill": "file_bug"})
        await t.hub.tracker.wait(cid)


async def test_skills_are_ranked_by_declared_confidence_and_then_by_measured_success() -> None:
    fleet = (filer("boaster", confidence=1.0, works=False), filer("modest", confidence=0.8))
    async with ready_hub(*fleet, agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        first = await ava.find_skills(domain="board", path="bugs", direction="increase")
        assert [(row["agent"], row["confidence"]) for row in first] == [("boaster", 1.0), ("modest", 0.8)]
        for name in ("boaster", "modest"):
            await asked(t, name, 4)
        later = await ava.find_skills(domain="board")
        assert [(row["agent"], row["successRate"], row["answeredOutcomes"]) for row in later] == [
            ("modest", 1.0, 4),
            ("boaster", 0.0, 4),
        ]
        assert later[0]["expected"] > later[1]["expected"]
        assert await ava.find_skills(direction="decrease") == []
        assert [row["skill"] for row in await ava.find_skills("say it again", agent="modest")] == ["echo"]
        assert len(await ava.find_skills(limit=1)) == 1


async def test_an_agents_key_sees_the_agents_without_addresses_and_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUINN_SECRET", "s" * 20)
    entries = {"quinn": {"auth": AuthEntry(scheme="bearer", credentials_env="QUINN_SECRET"), "tags": ("board",)}}
    async with ready_hub(filer("quinn", confidence=1.0), entries=entries, agent_keys=ENV) as t:
        (row,) = await t.agents_client(AVA).list_agents()
        assert set(row) == {"name", "description", "tags", "enabled", "health", "skills", "streaming"}
        assert (row["name"], row["tags"], row["skills"]) == ("quinn", ["board"], ["file_bug", "echo"])
        (whole,) = await t.remote.list_agents()
        assert (whole["url"], whole["auth"]) == ("http://quinn.example:8000/a2a", "QUINN_SECRET")
        shown = json.dumps(to_json([row, await t.agents_client(QUINN).find_skills()]))
        assert "http://" not in shown
        assert "QUINN_SECRET" not in shown


@pytest.mark.parametrize("key", [AVA, KEY])
async def test_every_key_may_find_skills_and_an_invalid_query_is_refused(key: str) -> None:
    async with ready_hub(filer("quinn", confidence=0.5), agent_keys=ENV) as t:
        (row,) = await said(t, "/api/skills?domain=board&direction=increase&text=bug", key=key)
        assert row["effects"] == [{"domain": "board", "path": "bugs.open", "delta": 1.0, "confidence": 0.5}]
        assert (row["skill"], row["successRate"], row["answeredOutcomes"], row["health"]) == ("file_bug", None, 0, "up")
        for odd in ("direction=sideways", "text=" + "x" * 201, "limit=-1"):
            assert (await call(t, f"/api/skills?{odd}", key=key))[0] == 400
        assert (await call(t, "/api/skills", key="w" * 40))[0] == 401


async def test_a_model_finds_an_agent_with_a_skill_and_calls_it() -> None:
    fleet = (filer("boaster", confidence=0.2), filer("modest", confidence=0.8))
    async with ready_hub(*fleet, agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        agents = await ava.call("list_agents", {})
        assert [row["name"] for row in agents.data["agents"]] == ["boaster", "modest"]
        assert all(name in agents.text for name in ("boaster", "modest", "file_bug"))
        assert "\x1b" not in agents.text
        found = await ava.call("find_skills", {"text": "file a bug", "domain": "board", "direction": "increase"})
        best: dict[str, Any] = found.data["skills"][0]
        assert (best["agent"], best["skill"]) == ("modest", "file_bug")
        assert found.text.index("modest/file_bug") < found.text.index("boaster/file_bug")
        told = await ava.call("chat_with_agent", {"agent": best["agent"], "skill": best["skill"], "message": "x"})
        assert told.data["response"] == "filed"
        none = await ava.call("find_skills", {"domain": "moon"})
        assert (none.is_error, none.data["skills"]) == (False, [])


async def test_a_larger_limit_than_the_largest_counts_as_that_at_every_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "FOUND_MAX", 1)
    async with ready_hub(filer("quinn", confidence=1.0)) as t:
        assert len(await t.remote.get("/skills", limit=500)) == len(await t.remote.find_skills(limit=500)) == 1
        assert len((await t.remote.call("find_skills", {"limit": 500})).data["skills"]) == 1


async def test_the_largest_card_fits_into_one_result_of_a_model() -> None:
    many = Agent("many", description="\x1b[2J" + "d" * 10_000)
    promised = tuple(Effect(domain="d" * 200, path=f"{n}." + "p" * 190) for n in range(4))
    for n in range(90):

        @many.skill(f"skill_{n}", description="d" * 600, effects=promised)
        async def work(task: SkillContext) -> str:
            return "done"

    async with ready_hub(many, agent_keys=ENV) as t:
        for hub in (t.agents_client(AVA), t.remote):
            listed = await hub.call("list_agents", {})
            found = await hub.call("find_skills", {"limit": 100})
            for result in (listed, found):
                assert not result.is_error
                assert len(result.text) <= RESULT_CHARS_MAX + 200
                told = json.dumps(result.data, ensure_ascii=False, separators=(",", ":"))
                assert len(told) <= RESULT_CHARS_MAX + 200
                assert "http://" not in result.text + told
                assert "\x1b" not in result.text
            assert "\x1b" not in listed.data["agents"][0]["description"]
            assert listed.data["agents"][0]["skillsTotal"] == 90
            assert 10 < len(found.data["skills"]) < 90
            assert "more" in found.text
