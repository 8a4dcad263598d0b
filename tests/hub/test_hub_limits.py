"""Limits of agents.yaml at a running hub: what is refused at which door, what counts, and what survives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.api.health import HealthSnapshot
from fleetsim.events.fleet import ActionTaken, AlertCleared, AlertRaised
from fleetsim.events.request import RequestRefused
from fleetsim.ledger import LedgerLimits, RunStatus
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import Database, InlineStorage
from fleetsim.model.errors import HttpRefused, UnknownTarget
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind
from fleetsim.testbed.faults import Match, Status
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.hub.test_a2a import begun, client, message
from tests.hub.test_agent_keys import AVA, ENV
from tests.hub.test_reload import AVA as AVA_ENTRY
from tests.hub.test_reload import QUINN, edit, fleet
from tests.ledger.ledgers import opener

DAILY = "id: daily\nname: Daily\nschedule: '0 0 1 1 *'\nskill: echo\ntargets: [quinn]\n"
OPS = "channels: {ops: {sinks: [{kind: log}]}}\n"


def limited(**limits: str) -> str:
    return fleet(QUINN) + "limits:\n" + "".join(f"  {name}: {{{keys}}}\n" for name, keys in limits.items())


async def ask(t: LocalHub, skill: str = "echo", **more: Any) -> str:
    (cid,) = await t.remote.submit({"text": "hello", "skill": skill, "targets": ["quinn"], **more})
    return cid


async def uses(t: LocalHub) -> dict[str, tuple[float, float, float]]:
    return {row.name: (row.used, row.reserved, row.left) for row in await t.remote.limits()}


async def test_the_api_refuses_a_request_over_a_limit_with_its_name_and_the_time_of_the_reset() -> None:
    async with local_hub(worker(), agents_yaml=limited(few="requests: 2, per: hour")) as t:
        await ask(t)
        await ask(t)
        body = json.dumps({"text": "hello", "skill": "echo", "targets": ["quinn"]}).encode()
        reply = await t.http("POST", "/api/requests", body)
        told = json.loads(reply.body)
        assert (reply.status, told["code"]) == (429, "FLEETSIM_ERR_LIMIT_REACHED")
        assert "few" in told["error"]
        assert "T01:00" in told["error"]
        assert 3500 < int(reply.headers["retry-after"]) <= 3600
        (refused,) = [e for e in t.hub.events.recent() if isinstance(e, RequestRefused)]
        assert refused.reason == "limit"
        assert await uses(t) == {"few": (2, 0, 0)}
        await asyncio.sleep(int(reply.headers["retry-after"]))
        await ask(t)
        assert await uses(t) == {"few": (1, 0, 1)}


async def test_nothing_is_sent_and_no_run_begins_over_a_limit() -> None:
    hourly = DAILY.replace("0 0 1 1 *", "0 * * * *")
    yaml = limited(none="requests: 0, ceremony: daily")
    async with local_hub(worker(), agents_yaml=yaml, ceremony=hourly) as t:
        await t.hub.tracker.wait(await ask(t))
        before = len(t.network.seen)
        with pytest.raises(HttpRefused):
            await t.remote.run_ceremony("daily")
        await asyncio.sleep(3700)
        (run,) = await t.hub.ledger.runs("daily")
        assert (run.status, run.children) == (RunStatus.FAILURE, ())
        assert "none" in run.error
        assert not [
            r for r in list(t.network.seen)[before:] if r.url.startswith("http://quinn.") and r.method == "POST"
        ]


async def test_a_model_reads_the_seconds_until_the_reset() -> None:
    async with local_hub(worker(), agents_yaml=limited(none="requests: 0, per: hour")) as t:
        for tool in ("delegate", "chat_with_agent"):
            result = await t.remote.call(tool, {"agent": "quinn", "skill": "echo", "message": "hello"})
            assert result.is_error
            assert "the limit none" in result.text
            assert "Try again in 3600 s" in result.text


async def test_the_hub_as_an_agent_rejects_a_task_over_a_limit() -> None:
    async with local_hub(worker(), agents_yaml=limited(none="requests: 0, skill: echo")) as t:
        begun_task = await begun(client(t), message("hello"))
        await asyncio.sleep(5)
        task = await client(t).get(begun_task.task_id)
        assert task.state is TaskState.REJECTED
        assert "none" in task.text


async def test_the_real_cost_replaces_the_reserved_one() -> None:
    async with local_hub(worker(), agents_yaml=limited(money="usd: 1, reserve: 0.5", words="tokens: 1000")) as t:
        slow = [await ask(t, "ponder") for _ in range(2)]
        assert await uses(t) == {"money": (0, 1, 0), "words": (0, 20, 980)}
        with pytest.raises(HttpRefused):
            await ask(t)
        await t.remote.cancel(slow[0])
        await t.hub.tracker.wait(slow[0])
        assert await uses(t) == {"money": (0.5, 0.5, 0), "words": (10, 10, 980)}, "its agent named no cost"
        await t.remote.raise_limit("money", 0.5)
        await t.hub.tracker.wait(await ask(t))
        assert await uses(t) == {"money": (0.75, 0.5, 0.25), "words": (25, 10, 965)}


async def test_a_request_that_no_agent_accepted_costs_nothing() -> None:
    async with local_hub(worker(), agents_yaml=limited(money="usd: 1, reserve: 0.5", few="requests: 9")) as t:
        t.network.down("http://quinn.example:8000")
        outcome = await t.hub.tracker.wait(await ask(t))
        assert outcome.kind is OutcomeKind.UNDELIVERABLE
        assert await uses(t) == {"money": (0, 0, 1), "few": (1, 0, 8)}


async def test_with_20_known_costs_a_request_reserves_their_95th_percentile() -> None:
    async with local_hub(worker(), agents_yaml=limited(money="usd: 100, reserve: 9", words="tokens: 1000")) as t:
        for _ in range(20):
            await t.hub.tracker.wait(await ask(t))
        await t.restart()
        before = await uses(t)
        assert before == {"money": (5, 0, 95), "words": (300, 0, 700)}
        cid = await ask(t)
        assert await uses(t) == {"money": (5, 0.25, 94.75), "words": (300, 15, 685)}
        await t.hub.tracker.wait(cid)
        await ask(t, "ponder")
        assert await uses(t) == {"money": (5.25, 9, 85.75), "words": (315, 10, 675)}, "each skill has its own"


async def test_a_restart_and_a_changed_limit_keep_what_was_used() -> None:
    async with local_hub(worker(), agents_yaml=limited(few="requests: 3", money="usd: 9, reserve: 2")) as t:
        await ask(t, "ponder")
        await ask(t)
        await asyncio.sleep(5)
        assert await uses(t) == {"few": (2, 0, 1), "money": (0.25, 2, 6.75)}
        await t.restart()
        assert await uses(t) == {"few": (2, 0, 1), "money": (0.25, 2, 6.75)}
        await edit(t, limited(few="requests: 2, zone: Europe/Berlin"))
        with pytest.raises(HttpRefused):
            await ask(t)
        await edit(t, limited(few="requests: 4", money="usd: 9"))
        assert await uses(t) == {"few": (2, 0, 2), "money": (0.25, 2, 6.75)}
        await asyncio.sleep(700)
        assert await uses(t) == {"few": (2, 0, 2), "money": (2.25, 0, 6.75)}


async def test_a_limit_counts_only_the_requests_that_it_names() -> None:
    limits = {
        "all": "requests: 99",
        "quinn": "requests: 99, agent: quinn",
        "slow": "requests: 99, skill: ponder, agent: quinn",
        "avas": "requests: 1, key: ava",
        "daily": "requests: 99, ceremony: daily",
    }
    yaml = limited(**limits).replace("agents:", f"agents:\n  - {{{AVA_ENTRY}}}")
    async with local_hub(worker(), worker("ava"), agents_yaml=yaml, agent_keys=ENV, ceremony=DAILY) as t:
        await t.remote.submit({"text": "hello", "skill": "echo", "targets": ["all"]})
        await ask(t, "ponder")
        await t.agents_client(AVA).submit({"text": "hello", "skill": "echo", "targets": ["ava"]})
        with pytest.raises(HttpRefused):
            await t.agents_client(AVA).submit({"text": "hello", "skill": "echo", "targets": ["ava"]})
        await t.remote.run_ceremony("daily")
        used = {name: used for name, (used, _, _) in (await uses(t)).items()}
        assert used == {"all": 5, "quinn": 3, "slow": 1, "avas": 1, "daily": 1}


async def test_an_answer_and_a_request_sent_again_by_itself_count_once_and_a_retry_counts_again() -> None:
    async with local_hub(worker(), agents_yaml=limited(few="requests: 3")) as t:
        cid = await ask(t, "ask")
        await asyncio.sleep(5)
        (question,) = t.hub.tracker.questions()
        await t.remote.answer(question.question_id, text="main")
        await t.hub.tracker.wait(cid)
        t.network.fault(Status(status=503), Match(origin="http://quinn.example:8000", method="POST"), times=1)
        await t.hub.tracker.wait(await ask(t))
        assert await uses(t) == {"few": (2, 0, 1)}
        t.network.down("http://quinn.example:8000")
        lost = await ask(t)
        await t.hub.tracker.wait(lost)
        with pytest.raises(HttpRefused) as refused:
            await t.remote.retry(lost)
        assert refused.value.status == 429
        await t.remote.raise_limit("few", 1, by="ada")
        await t.remote.retry(lost)
        assert await uses(t) == {"few": (4, 0, 0)}


async def test_a_person_raises_a_limit_by_name_until_it_resets() -> None:
    async with local_hub(worker(), agents_yaml=limited(none="requests: 0, per: hour, zone: Asia/Tokyo")) as t:
        row = await t.remote.raise_limit("none", 1, by="ada")
        assert (row.most, row.raised, row.left) == (1, 1, 1)
        (told,) = [event for event in t.hub.events.recent() if isinstance(event, ActionTaken)]
        assert (told.action, told.object, told.by, told.detail) == ("raise-limit", "none", "ada", "by 1 requests")
        await ask(t)
        await t.hub.runtime.clock.sleep_until(row.resets_at)
        assert await uses(t) == {"none": (0, 0, 0)}
        with pytest.raises(UnknownTarget):
            await t.remote.raise_limit("nine", 1)


async def test_the_channels_are_warned_once_at_80_percent_and_figures_show_the_use() -> None:
    yaml = limited(few="requests: 5, per: hour").replace("}\n", ", alerts: {channels: [ops]}}\n", 1)
    async with local_hub(worker(), agents_yaml=yaml + OPS) as t:
        for number in range(1, 5):
            await ask(t)
            await asyncio.sleep(60)
            raised = [event.subject for event in t.hub.events.recent() if isinstance(event, AlertRaised)]
            assert raised == (["few"] if number == 4 else [])
        metrics = (await t.http("GET", "/metrics")).body.decode()
        assert 'fleetsim_limit_used{limit="few"} 4.0' in metrics
        assert 'fleetsim_limit_most{limit="few"} 5.0' in metrics
        (row,) = (await t.remote.read(HealthSnapshot, "/health")).limits or ()
        assert (row.used, row.share) == (4, 0.8)
        await t.hub.runtime.clock.sleep_until(row.resets_at)
        await asyncio.sleep(60)
        assert [event.subject for event in t.hub.events.recent() if isinstance(event, AlertCleared)] == ["few"]


async def test_without_limits_no_request_makes_a_statement_about_them() -> None:
    statements: list[str] = []

    def opening() -> Database:
        database = opener(None)()
        database.writer.set_trace_callback(statements.append)
        return database

    async with SqliteLedger(InlineStorage(opening), LedgerLimits()) as ledger, local_hub(worker(), ledger=ledger) as t:
        statements.clear()
        await t.hub.tracker.wait(await ask(t))
        await asyncio.sleep(60)
        assert statements
        assert not [statement for statement in statements if "limits" in statement]
