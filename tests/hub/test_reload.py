"""agents.yaml changes under a running hub: new work follows the file, open work keeps its route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent import Agent
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.hub.hub import Hub
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.faults import Match, Status
from tests.hub.local_hub import AGENTS, HUB, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_hub_card_changes import posts
from tests.ledger.ledgers import opener

SOON_S = 5.0
"""Seconds within which a changed file takes effect."""


def fleet(*entries: str, **settings: Any) -> str:
    lines = [f"fleet: {{base_url: '{HUB}'" + "".join(f", {key}: {value}" for key, value in settings.items()) + "}"]
    return "\n".join([*lines, "agents:", *(f"  - {{{entry}}}" for entry in entries)]) + "\n"


def polled(name: str = "quinn") -> Agent:
    return worker(name, streaming=False)


def entry(name: str, more: str = "", *, host: str = "") -> str:
    return f"name: {name}, url: 'http://{host or name}.example:8000/a2a', push: 'off'{', ' if more else ''}{more}"


QUINN, AVA = entry("quinn"), entry("ava")


async def edit(t: LocalHub, text: str) -> None:
    t.files.put(AGENTS, text)
    await asyncio.sleep(SOON_S)


async def start(t: LocalHub, cid: str, agent: str = "quinn", skill: str = "ponder") -> None:
    await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill=skill, targets=(agent,)))
    await asyncio.sleep(2)


def names(hub: Hub) -> list[str]:
    return list(hub.broker.offers())


def said(t: LocalHub, topic: str) -> list[dict[str, Any]]:
    return [dict(payload(event)) for event in t.events(topic)]


async def test_an_added_agent_accepts_work_within_five_seconds() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN)) as t:
        with pytest.raises(UnknownTarget):
            await start(t, "c-0", "ava", "echo")
        await edit(t, fleet(QUINN, AVA))
        assert names(t.hub) == ["quinn", "ava"]
        await start(t, "c-1", "ava", "echo")
        assert (await t.hub.tracker.wait("c-1")).success
        (told,) = said(t, "config.reloaded")
        assert (told["added"], told["changed"], told["removed"]) == (["ava"], [], [])
        assert [agent["name"] for agent in told["agents"]] == ["quinn", "ava"]


async def test_a_removed_agent_gets_no_new_work_and_its_open_work_is_followed_to_its_end() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        there = "http://quinn.example:8000/a2a"
        await start(t, "c-1")
        await edit(t, fleet(AVA))
        assert names(t.hub) == ["ava"]
        with pytest.raises(UnknownTarget):
            await start(t, "c-2")
        before, former = len(t.network.seen), t.hub.broker.client("quinn", there)
        assert (await t.hub.tracker.wait("c-1")).text == "at last"
        assert {url for url, *_ in posts(t, before)} == {there}
        await asyncio.sleep(90)
        assert t.hub.broker.client("quinn", there) is not former, "an agent without work is forgotten"
        cards = [r for r in list(t.network.seen)[before:] if r.url.startswith("http://quinn.") and r.method == "GET"]
        assert cards == []


async def test_a_question_of_a_removed_agent_can_still_be_answered() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        await start(t, "c-1", skill="ask")
        await asyncio.sleep(40)
        (question,) = t.hub.tracker.questions()
        await edit(t, fleet(AVA))
        await t.remote.answer(question.question_id, text="main")
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"


async def test_a_paused_agent_gets_no_new_work_and_continues_its_open_work() -> None:
    async with ready_hub(polled(), agents_yaml=fleet(QUINN)) as t:
        await start(t, "c-1")
        await edit(t, fleet(entry("quinn", "enabled: false")))
        with pytest.raises(UnknownTarget):
            await start(t, "c-2")
        (row,) = t.hub.snapshot().agents
        assert (row.health, bool(row.why)) == ("paused", True)
        assert (await t.hub.tracker.wait("c-1")).text == "at last"
        await edit(t, fleet(QUINN))
        assert [(told["paused"], told["resumed"]) for told in said(t, "config.reloaded")] == [
            (["quinn"], []),
            ([], ["quinn"]),
        ]
        await start(t, "c-3", skill="echo")
        assert (await t.hub.tracker.wait("c-3")).success


async def test_a_changed_agent_keeps_its_card_and_an_unchanged_one_is_not_touched() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        ava = t.hub.broker.client("ava")
        before = len(t.network.seen)
        t.files.put(AGENTS, fleet(entry("quinn", "skills: [dance]"), AVA))
        await t.hub.reload()
        view = t.hub.broker.view("quinn")
        assert view.card is not None
        assert view.reachable
        assert view.skills[0] == "dance"
        await asyncio.sleep(1)
        assert t.hub.broker.client("ava") is ava
        assert {request.url.split("/")[2] for request in list(t.network.seen)[before:]} == {"quinn.example:8000"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (fleet("name: quinn, urll: x"), "agents.yaml:3:19: unknown key 'urll'"),
        ("agents: [\n", "agents.yaml:2:1:"),
        ("", "agents.yaml:1:1:"),
        ("agents:\n", "names no agent"),
        ("agents: []\n", "names no agent"),
        (None, "agents.yaml: no such file"),
        (fleet(entry("quinn").replace("http://quinn", "${NOWHERE_URL}")), "NOWHERE_URL is not set"),
    ],
    ids=["broken", "torn", "empty", "no agents", "an empty list", "missing", "a variable that is not set"],
)
async def test_a_broken_empty_or_missing_file_keeps_the_last_good_version_and_is_reported_once(
    text: str | None, why: str
) -> None:
    async with ready_hub(polled(), agents_yaml=fleet(QUINN)) as t:
        if text is None:
            await t.files.remove(AGENTS)
        else:
            t.files.put(AGENTS, text)
        await asyncio.sleep(60)
        assert names(t.hub) == ["quinn"]
        await start(t, "c-1", skill="echo")
        assert (await t.hub.tracker.wait("c-1")).success
        (told,) = said(t, "config.rejected")
        assert told["path"] == "agents.yaml"
        assert why in told["error"]
        await edit(t, fleet(QUINN))
        assert len(said(t, "config.rejected")) == 1
        (whole,) = said(t, "config.reloaded")
        assert (whole["added"], whole["changed"]) == ([], []), "it is whole again, and as it was"


async def test_the_owner_of_a_hub_reads_the_reason_for_which_agents_yaml_is_not_in_effect() -> None:
    async with ready_hub(polled(), agents_yaml=fleet(QUINN), agent_keys={"WORKSTACEAN_API_KEY_QUINN": "q" * 32}) as t:
        assert (await t.remote.get("/whoami"))["rejected"] == []
        await edit(t, "agents: []\n")
        (problem,) = (await t.remote.get("/whoami"))["rejected"]
        assert "agents.yaml" in problem
        assert (await t.agents_client("q" * 32).get("/whoami"))["rejected"] == [], "no business of an agent's"
        await edit(t, fleet(QUINN))
        assert (await t.remote.get("/whoami"))["rejected"] == []


class DaysOnlyLedger(SqliteLedger):
    """A ledger that cannot limit its bytes."""

    @property
    def limits(self) -> LedgerLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: LedgerLimits) -> None:
        if limits.bytes_max is not None:
            raise ConfigError("no limit of bytes")
        self._limits = limits


async def test_retention_changes_with_agents_yaml_unless_the_ledger_cannot() -> None:
    async with (
        DaysOnlyLedger(InlineStorage(opener(None)), LedgerLimits()) as ledger,
        local_hub(polled(), agents_yaml=fleet(QUINN), ledger=ledger) as t,
    ):
        await edit(t, fleet(QUINN, keep="{days: 3}"))
        assert ledger.limits.keep_s == 3 * 86_400
        await edit(t, fleet(QUINN, keep="{bytes: 5000000}", task_limit_s=77))
        assert (ledger.limits.keep_s, t.hub.config.settings.task_limit_s == 77) == (3 * 86_400, False)
        (problem,) = (await t.remote.get("/whoami"))["rejected"]
        assert "no limit of bytes" in problem
        assert len(said(t, "config.rejected")) == 1
        await edit(t, fleet(QUINN))
        assert (ledger.limits, (await t.remote.get("/whoami"))["rejected"]) == (LedgerLimits(), [])


async def test_each_distinct_problem_is_reported() -> None:
    async with local_hub(polled(), agents_yaml=fleet(QUINN)) as t:
        await edit(t, "agents: [\n")
        await edit(t, "")
        await edit(t, "agents: [\n")
        assert len(said(t, "config.rejected")) == 3


async def test_an_address_changed_during_open_work_sends_no_key_of_one_place_to_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OLD_KEY", "canary-old")
    monkeypatch.setenv("NEW_KEY", "canary-new")
    async with ready_hub(polled(), polled("moved"), agents_yaml=fleet(entry("quinn", "apiKeyEnv: OLD_KEY"))) as t:
        await start(t, "c-1")
        assert {key for *_, key, _ in posts(t)} == {"canary-old"}
        before = len(t.network.seen)
        await edit(t, fleet(entry("quinn", "apiKeyEnv: NEW_KEY", host="moved")))
        await start(t, "c-2", skill="echo")
        assert (await t.hub.tracker.wait("c-2")).success
        assert (await t.hub.tracker.wait("c-1")).text == "at last"
        assert {(url.split("/")[2], key) for url, _, key, _ in posts(t, before)} == {
            ("quinn.example:8000", None),
            ("moved.example:8000", "canary-new"),
        }


async def test_work_at_a_former_place_that_asks_for_a_key_ends_with_that_reason_and_no_other_key_is_blamed() -> None:
    locked = Match(origin="http://quinn.example:8000", rpc_method="GetTask")
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        await start(t, "c-1")
        await edit(t, fleet(entry("quinn", host="ava"), AVA))
        t.network.fault(Status(status=401), locked)
        outcome = await t.hub.tracker.wait("c-1")
        assert outcome.kind is OutcomeKind.LOST
        assert outcome.reason == (
            "the task cannot be followed: quinn.example:8000 asks for a credential (HTTP 401), "
            "and agents.yaml has none for it any more"
        )
        assert outcome.blame == "caller"
        assert t.events("agent.auth.refused") == []
        assert [row.health for row in t.hub.snapshot().agents] == ["up", "up"]


async def test_a_dead_former_place_opens_no_breaker_at_the_new_one() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA, poll_interval_s=1)) as t:
        await start(t, "c-1")
        await edit(t, fleet(entry("quinn", host="ava"), AVA, poll_interval_s=1))
        t.network.down("http://quinn.example:8000")
        await asyncio.sleep(60)
        assert t.events("agent.breaker.opened") == []
        await start(t, "c-2", skill="echo")
        assert (await t.hub.tracker.wait("c-2")).success


async def test_a_missing_key_after_a_change_disables_its_agent_and_ends_the_work_that_needs_it() -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        await start(t, "c-1")
        await edit(t, fleet(entry("quinn", "apiKeyEnv: NO_SUCH_KEY"), AVA))
        assert names(t.hub) == ["ava"]
        row = t.hub.snapshot().agent("quinn")
        assert row is not None
        assert "NO_SUCH_KEY" in row.why
        (told,) = said(t, "config.reloaded")
        (warning,) = told["warnings"]
        assert "quinn is disabled" in warning
        outcome = await t.hub.tracker.wait("c-1")
        assert outcome.kind is OutcomeKind.LOST
        assert "NO_SUCH_KEY is not set" in outcome.reason
        await edit(t, fleet(QUINN, AVA))
        assert names(t.hub) == ["quinn", "ava"], "it needs no key any more"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (fleet(AVA), "agents.yaml has no agent “quinn” any more"),
        (
            fleet(entry("quinn", "apiKeyEnv: NO_SUCH_KEY"), AVA),
            "agent “quinn” has no credential any more: the environment variable NO_SUCH_KEY is not set",
        ),
    ],
    ids=["gone", "without its key"],
)
async def test_after_a_restart_work_that_no_agent_can_continue_ends_with_that_reason(after: str, why: str) -> None:
    async with ready_hub(polled(), polled("ava"), agents_yaml=fleet(QUINN, AVA)) as t:
        await start(t, "c-1")
        await start(t, "c-2", skill="ask")
        t.network.down("http://quinn.example:8000")
        await asyncio.sleep(40)
        await start(t, "c-3")
        t.files.put(AGENTS, after)
        await t.restart()
        before = t.runtime.clock.monotonic()
        ended = {cid: await t.hub.tracker.wait(cid) for cid in ("c-1", "c-2", "c-3")}
        assert t.runtime.clock.monotonic() == before, "at once"
        assert {cid: (o.kind.value, o.reason) for cid, o in ended.items()} == {
            "c-1": ("lost", why),
            "c-2": ("lost", why),
            "c-3": ("undeliverable", f"it was never sent: {why}"),
        }
        assert {o.blame.value for o in ended.values()} == {"caller"}
        assert t.hub.tracker.questions() == ()


async def test_changed_settings_take_effect_or_are_reported_as_waiting_for_a_restart() -> None:
    async with ready_hub(polled(), agents_yaml=fleet(QUINN)) as t:
        await edit(
            t,
            fleet(QUINN, poll_interval_s=7, cooldowns_s="{echo: 60}", skill_limits_s="{ponder: 20}", calls_max=3),
        )
        (event,) = t.events("config.reloaded")
        assert event.level is Level.WARN
        assert payload(event)["settings"] == ["poll_interval_s", "cooldowns_s", "skill_limits_s"]
        assert [warning.partition(":")[0] for warning in payload(event)["warnings"]] == ["calls_max"]
        assert t.hub.tracker.rules.poll_interval_s == 7
        await start(t, "c-1", skill="echo")
        with pytest.raises(UnknownTarget, match="cooldown"):
            await start(t, "c-2", skill="echo")
        await start(t, "c-3")
        assert (await t.hub.tracker.wait("c-3")).kind is OutcomeKind.EXPIRED


async def test_webhooks_arrive_under_a_new_base_url() -> None:
    async with ready_hub(polled(), agents_yaml=fleet(entry("quinn").replace("push: 'off', ", ""))) as t:
        other = "http://other.example:8080"
        t.network.addresses["other.example"] = ("93.184.216.34",)
        await edit(t, t.files.take(AGENTS).decode().replace(HUB, other))
        reply = await t.http("GET", "/health", headers={"host": "other.example:8080"})
        assert reply.status == 200


@pytest.mark.slow
async def test_a_thousand_agents_are_loaded_and_reported() -> None:
    many = [f"name: a{n}, url: 'http://a{n}.example:8000/a2a', enabled: false" for n in range(999)]
    async with ready_hub(polled(), agents_yaml=fleet(QUINN)) as t:
        await edit(t, fleet(QUINN, *many))
        (told,) = said(t, "config.reloaded")
        assert (len(told["agents"]), len(told["added"])) == (1000, 999)
        await asyncio.sleep(5)
        kept = [event for event in await t.ledger.events(limit=1_000) if event.topic == "config.reloaded"]
        assert len(kept) == 1
        await edit(t, fleet(QUINN))
        assert [len(change["removed"]) for change in said(t, "config.reloaded")] == [0, 999]
