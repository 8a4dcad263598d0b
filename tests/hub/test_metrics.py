"""``/metrics`` as a scraper reads it: exact counts, and no series that grows without end."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY, generate_latest, parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

import fleetsim
from fleetsim.events.fleet import CeremoniesLoaded, CeremonyCompleted, CeremonyMissed
from fleetsim.events.log import EventLog
from fleetsim.events.request import OutcomeDecided
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.api import MetricsEndpoint
from fleetsim.hub.metrics import CEREMONIES_MAX, SKILLS_PER_AGENT_MAX, Metrics
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.ports import Reply, Request, Runtime
from fleetsim.runtime.real import running_runtime
from tests.caller.fleet import FixedFleet
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.ledger import ledgers

Figures = dict[str, float]
CEREMONY = "id: daily\nname: Daily\nschedule: '0 14 * * *'\nskill: echo\ntargets: [quinn]\nenabled: true\n"
OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def read(metrics: Iterable[Metric]) -> Figures:
    """Every sample by name and labels, as a query would select it."""
    found: Figures = {}
    for metric in metrics:
        for sample in metric.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            assert found.setdefault(f"{sample.name}{{{labels}}}", sample.value) == sample.value, "a series told twice"
    return found


def figures(reply: Reply) -> Figures:
    assert reply.status == 200
    return read(parser.text_string_to_metric_families(reply.body.decode()))


async def scraped(t: LocalHub) -> Figures:
    return figures(await t.http("GET", "/metrics"))


async def ended(t: LocalHub, text: str, skill: str, agent: str = "quinn") -> str:
    (cid,) = await t.remote.submit({"text": text, "skill": skill, "targets": [agent]})
    return str((await t.remote.task(cid, wait_s=30))["state"])


@pytest.mark.sockets
async def test_a_scrape_of_a_real_hub_counts_its_work_with_real_agents(tmp_path: Path) -> None:
    folder = tmp_path / "ceremonies"
    folder.mkdir()
    (folder / "daily.yaml").write_text(CEREMONY)
    state = StateDir(tmp_path / "state").open()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = worker(allow_webhook=[f"127.0.0.1:{port}"])
        polled = worker("vera", streaming=False, push_notifications=False)
        entries = [
            AgentEntry(name=name, url=f"{await stack.enter_async_context(agent.serving())}/a2a", streaming=False)
            for name, agent in (("quinn", told), ("vera", polled))
        ]
        config = FleetConfig(agents=tuple(entries), settings=FleetSettings(poll_interval_s=0.2))
        hub = await stack.enter_async_context(
            running_hub(config, runtime, ledger, state=state, port=port, ceremonies=folder)
        )
        address = state.find()
        assert address is not None
        remote = address.client(runtime)
        async with asyncio.timeout(60), hub.events.subscribe(after_seq=0) as heard:
            while not all(view.reachable for view in hub.broker.views()):
                await heard.next_batch()
        for skill, agent in (("echo", "quinn"), ("echo", "quinn"), ("fail", "quinn"), ("echo", "vera")):
            (cid,) = await remote.submit({"text": "hi", "skill": skill, "targets": [agent]})
            await hub.tracker.wait(cid)
        (asking,) = await remote.submit({"text": "hi", "skill": "ask", "targets": ["quinn"]})
        row = await remote.task(asking, wait_s=30)
        before = await scrape(runtime, hub.url or "", address.api_key)
        await remote.answer(row["questionId"], "main")
        await hub.tracker.wait(asking)
        async with asyncio.timeout(60), hub.events.subscribe() as heard:
            await hub.require_scheduler().run_now("daily")
            while not any(isinstance(event, CeremonyCompleted) for event in await heard.next_batch()):
                pass
        hostile = Request(
            method="POST", url=f"{hub.url}/api/a2a/callback/{asking}", headers={"authorization": "Bearer x"}
        )
        assert (await runtime.transport.exchange(hostile)).status == 401
        now = await scrape(runtime, hub.url or "", address.api_key)

    assert before["fleetsim_inbox_waiting{agent=quinn}"] == before["fleetsim_tasks_in_flight{agent=quinn}"] == 1
    assert before["fleetsim_inbox_oldest_seconds{}"] > 0
    assert now["fleetsim_inbox_waiting{agent=quinn}"] == now["fleetsim_tasks_in_flight{agent=quinn}"] == 0
    assert {key: value for key, value in now.items() if key.startswith("fleetsim_tasks_total")} == {
        "fleetsim_tasks_total{agent=quinn,skill=echo,state=completed}": 3,
        "fleetsim_tasks_total{agent=quinn,skill=fail,state=failed}": 1,
        "fleetsim_tasks_total{agent=quinn,skill=ask,state=completed}": 1,
        "fleetsim_tasks_total{agent=vera,skill=echo,state=completed}": 1,
    }
    assert now["fleetsim_task_failures_total{agent=quinn,blame=agent}"] == 1
    assert now["fleetsim_task_duration_seconds_count{agent=quinn}"] == 5
    assert now["fleetsim_task_ack_seconds_count{agent=quinn}"] == 5
    assert now["fleetsim_cost_usd_total{agent=quinn}"] == pytest.approx(0.75)
    assert now["fleetsim_questions_total{agent=quinn}"] == 1
    assert now["fleetsim_question_ends_total{agent=quinn,end=answered}"] == 1
    assert now["fleetsim_ceremony_runs_total{ceremony=daily,outcome=success}"] == 1
    assert (
        now["fleetsim_ceremony_next_fire_timestamp_seconds{ceremony=daily}"]
        > datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    )
    assert now["fleetsim_webhook_rejected_total{reason=token}"] == 1
    assert now["fleetsim_agent_up{agent=quinn}"] == now["fleetsim_agent_up{agent=vera}"] == 1
    assert now["fleetsim_agent_card_age_seconds{agent=vera}"] >= 0
    assert now["fleetsim_breaker_open{agent=quinn}"] == 0
    assert now["fleetsim_events_dropped_total{}"] == 0
    assert now["fleetsim_events_unread{}"] == 0
    assert now["fleetsim_ceremony_lateness_seconds_count{}"] == 0, "a manual run is never late"
    assert not [key for key in now if "_created" in key or asking in key or cid in key]
    assert not [name for name in read(REGISTRY.collect()) if name.startswith("fleetsim")], "the registry of all"


async def scrape(runtime: Runtime, url: str, key: str) -> Figures:
    """As Prometheus scrapes, with the key as its configuration sends it."""
    asked = Request(
        method="GET", url=f"{url}/metrics", headers={"authorization": f"Bearer {key}", "accept": OPENMETRICS}
    )
    reply = await runtime.transport.exchange(asked)
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return read(openmetrics_parser.text_string_to_metric_families(reply.body.decode()))


async def test_polls_calls_and_webhooks_are_counted_like_on_the_network() -> None:
    slow = {"streaming": False, "push_notifications": False}
    async with local_hub(worker(streaming=False), worker("vera", **slow)) as t:
        assert [await ended(t, "hi", "echo", name) for name in ("quinn", "vera")] == ["completed"] * 2
        (cid,) = await t.remote.submit({"text": "hi", "skill": "ponder", "targets": ["vera"]})
        await t.hub.tracker.wait(cid)
        now = await scraped(t)
        polls = [call for call in t.network.seen if "vera" in call.url and call.rpc_method in {"tasks/get", "GetTask"}]
        told = [call for call in t.network.seen if "/api/a2a/callback/" in call.url]
    assert now["fleetsim_calls_total{agent=vera,operation=get,result=ok}"] == len(polls) > 10
    assert now["fleetsim_calls_total{agent=vera,operation=send,result=ok}"] == 2
    assert now["fleetsim_poll_lateness_seconds_count{}"] == len(polls)
    assert now["fleetsim_poll_lateness_seconds_sum{}"] < 0.1 * len(polls), (
        "each goes out when it is due, or a tick later"
    )
    counted = [value for key, value in now.items() if key.startswith("fleetsim_webhooks_total{agent=quinn")]
    assert sum(counted) == len(told) > 0


async def test_a_failed_call_is_counted_with_its_blame() -> None:
    async with ready_hub(worker(), retry_waits_s=()) as t:
        t.network.down("http://quinn.example:8000")
        assert await ended(t, "hi", "echo") == "undeliverable"
        now = await scraped(t)
    assert now["fleetsim_calls_total{agent=quinn,operation=stream,result=network}"] == 1
    assert now["fleetsim_task_failures_total{agent=quinn,blame=network}"] == 1


async def test_refused_requests_are_counted_by_reason() -> None:
    async with ready_hub(worker()) as t:
        for target, skill in (("nobody", "echo"), ("quinn", "sing")):
            with pytest.raises(FleetsimError):
                await t.remote.submit({"text": "hi", "skill": skill, "targets": [target]})
        await ended(t, "hi", "echo")
        refused = {key: n for key, n in (await scraped(t)).items() if key.startswith("fleetsim_requests_refused_total")}
    assert refused == {"fleetsim_requests_refused_total{reason=target_unresolved}": 2}


async def test_after_a_restart_counters_start_at_zero() -> None:
    async with local_hub(worker(), ceremony=CEREMONY) as t:
        await ended(t, "hi", "echo")
        assert (await scraped(t))["fleetsim_tasks_total{agent=quinn,skill=echo,state=completed}"] == 1
        await t.restart()
        now = await scraped(t)
        assert not [key for key in now if key.startswith("fleetsim_tasks_total")]
        assert now["fleetsim_tasks_in_flight{agent=quinn}"] == 0


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text-not", ";;;,,,=", "text/plain"]
)
async def test_a_scraper_that_does_not_accept_openmetrics_gets_the_text_format(accept: str) -> None:
    async with local_hub(worker()) as t:
        reply = await t.http("GET", "/metrics", headers={"accept": accept})
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert figures(reply)[f"fleetsim_build_info{{version={fleetsim.__version__}}}"] == 1


@pytest.mark.parametrize("version", ["1.0.0", "0.0.1", "abc", "9" * 400])
async def test_openmetrics_is_written_in_its_one_version(version: str) -> None:
    async with local_hub(worker()) as t:
        reply = await t.http("GET", "/metrics", headers={"accept": f"Application/OpenMetrics-Text; version={version}"})
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert reply.body.endswith(b"# EOF\n")
    assert read(openmetrics_parser.text_string_to_metric_families(reply.body.decode()))


def outcome(skill: str, agent: str = "quinn") -> OutcomeDecided:
    return OutcomeDecided.of(replace(ledgers.outcome(skill, agent=agent), skill=skill))


async def test_names_of_skills_are_limited_in_number_and_escaped(runtime: Runtime) -> None:
    names = ['"} 1\nfleetsim_tasks_total{agent="vera', "\ud800", "a" * 5_000, "\x1b[31m", *map(str, range(500))]
    events = EventLog(runtime.clock)
    metrics = Metrics(events, FixedFleet({"quinn": names}))
    async with metrics:
        for name in (*names, "nobody's skill"):
            events.publish(outcome(name))
        await metrics.catch_up()
    found = figures(Reply(status=200, headers={}, body=generate_latest(metrics.registry)))
    tasks = {key: value for key, value in found.items() if key.startswith("fleetsim_tasks_total")}
    assert len(tasks) == SKILLS_PER_AGENT_MAX + 1
    assert tasks["fleetsim_tasks_total{agent=quinn,skill=other,state=completed}"] == len(names) + 1 - len(tasks) + 1
    assert all(len(key) < 130 and "vera,skill" not in key and key.isprintable() for key in tasks)


@pytest.mark.slow
async def test_ceremonies_that_fire_once_or_are_gone_share_one_label(runtime: Runtime) -> None:
    events = EventLog(runtime.clock)
    facts: list[dict[str, object]] = [{"id": f"c-{n}", "schedule": "* * * * *"} for n in range(CEREMONIES_MAX + 5)]
    once: dict[str, object] = {"id": "later", "schedule": None}
    done = {"run_id": "r", "status": "success", "duration_ms": 1, "error": "", "correlation_ids": ()}
    metrics = Metrics(events, FixedFleet())
    async with metrics:
        events.publish(CeremoniesLoaded(ceremonies=(*facts, once), errors=()))
        for key in (*(str(fact["id"]) for fact in facts), "later", "gone"):
            events.publish(CeremonyCompleted(ceremony_id=key, **done))
        events.publish(CeremonyMissed(ceremony_id="c-0", why="down", count=7))
        await metrics.catch_up()
    found = read(metrics.registry.collect())
    assert found["fleetsim_ceremony_runs_total{ceremony=c-0,outcome=success}"] == 1
    assert found["fleetsim_ceremony_runs_total{ceremony=c-0,outcome=missed}"] == 7
    assert found["fleetsim_ceremony_runs_total{ceremony=other,outcome=success}"] == 5 + 2


async def test_events_that_slow_readers_lost_are_counted_after_they_left_too() -> None:
    async with local_hub(worker()) as t:
        slow = t.hub.events.subscribe(keep_max=1)
        await ended(t, "hi", "echo")
        lost = slow.dropped
        slow.close()
        assert (await scraped(t))["fleetsim_events_dropped_total{}"] == lost > 0


async def test_the_reference_names_exactly_the_scraped_metrics() -> None:
    page = (Path(fleetsim.__file__).parent.parent / "docs/reference/metrics.md").read_text()
    named = dict(re.findall(r"^\| `(fleetsim_\w+)` \| (\w+) \|", page, re.MULTILINE))
    async with local_hub(worker()) as t:
        await t.hub.metrics.catch_up()
        told = {metric.name: metric.type for metric in MetricsEndpoint(t.hub).collect()}
    suffixed = {f"{name}_total" if kind == "counter" else name: kind for name, kind in told.items()}
    assert suffixed == named


async def test_the_memory_of_ended_a2a_tasks_is_reported_until_they_are_forgotten() -> None:
    async with ready_hub(worker()) as t:
        message = {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [{"kind": "text", "text": "x" * 5_000}],
        }
        params = {"message": message, "metadata": {"skillHint": "echo"}, "configuration": {"blocking": False}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        await t.http("POST", "/a2a", json.dumps(call).encode())
        await asyncio.sleep(10)
        assert 10_000 <= (await scraped(t))["fleetsim_a2a_ended_bytes{}"] < 11_000, "the message and its echo"
        await asyncio.sleep(3_700)
        assert (await scraped(t))["fleetsim_a2a_ended_bytes{}"] == 0


async def test_the_lag_of_the_slowest_reader_is_reported() -> None:
    async with local_hub(worker()) as t:
        idle = t.hub.events.subscribe(journaled=True)
        await ended(t, "hi", "echo")
        await t.hub.events.settle()
        assert (await scraped(t))["fleetsim_events_unread{}"] == idle.behind > 0
        idle.close()
