"""Traces of a hub: one from a ceremony to the agent and back, over a restart too, without secrets."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.events.fleet import CeremonyCompleted, WebhookAccepted
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.server import running_hub
from fleetsim.hub.tracing import Tracing, tracing_of
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.inbound import read_traceparent
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import listen, serving
from fleetsim.testbed.asgi import App
from tests.hub.local_hub import KEY, LocalHub, local_hub, ready_hub, worker

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ASKED = f"00-{TRACE}-{SPAN}-01"
CEREMONY = """\
id: daily
name: Daily
schedule: "0 14 * * *"
skill: ponder
targets: [quinn]
prompt: the secret word is mellon
enabled: true
"""


class Collected:
    """The spans that a collector received."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def tracing(self, runtime: object) -> Tracing:
        return Tracing(runtime, SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def above(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def own(span: ReadableSpan) -> int:
    return span.context.span_id


def took_s(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 10**9


def traces(spans: Iterable[ReadableSpan]) -> set[str]:
    return {f"{span.context.trace_id:032x}" for span in spans}


async def fired(t: LocalHub) -> None:
    async with t.hub.events.subscribe(kinds=(CeremonyCompleted,)) as heard:
        await t.remote.run_ceremony("daily")
        await heard.next_batch()


async def asked(t: LocalHub, *headers: tuple[str, str], skill: str = "echo", path: str = "/api/requests") -> str:
    body = f'{{"text": "mellon", "skill": "{skill}", "targets": ["quinn"]}}'.encode()
    reply = await t.http("POST", path, body, dict(headers))
    assert reply.status == 202, reply.body
    (cid,) = json.loads(reply.body)["data"]["correlationIds"]
    await t.hub.tracker.wait(cid)
    await asyncio.sleep(1)
    return str(cid)


async def test_one_trace_goes_from_a_ceremony_to_the_agent_and_back() -> None:
    seen = Collected()
    async with local_hub(worker(streaming=False), ceremony=CEREMONY, traced=seen.tracing) as t:
        await fired(t)
        await asyncio.sleep(1)
        told = t.events(WebhookAccepted.TOPIC)
    run, request, send = seen.one("ceremony"), seen.one("invoke_agent quinn"), seen.one("send quinn")
    assert traces(seen.spans) == {f"{run.context.trace_id:032x}"}
    assert (above(run), above(request), above(send)) == (None, own(run), own(request))
    assert {above(poll) for poll in seen.all("get quinn")} <= {own(request)}
    webhooks = seen.all("webhook quinn")
    assert len(webhooks) == len(told) > 0
    assert {above(webhook) for webhook in webhooks} == {own(send)}, "the agent sent back what it was sent"
    assert (send.kind, webhooks[0].kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert took_s(request) >= 600
    moments = [run.start_time, request.start_time, send.start_time, send.end_time, request.end_time, run.end_time]
    assert moments == sorted(moments, key=lambda moment: moment or 0)


@pytest.mark.sockets
async def test_a_collector_on_loopback_gets_one_trace_of_the_hub_and_of_an_agent_that_traces_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[str, Span]] = []

    async def take(request: Request) -> Response:
        said = ExportTraceServiceRequest.FromString(await request.body())
        for resource in said.resource_spans:
            service = next(
                attribute.value.string_value
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            )
            got.extend((service, span) for scope in resource.scope_spans for span in scope.spans)
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type="application/x-protobuf")

    (tmp_path / "daily.yaml").write_text(CEREMONY.replace("ponder", "look"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agent = Agent("quinn", streaming=False, allow_webhook=[f"127.0.0.1:{port}"])
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        app = Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])
        collector = listen("127.0.0.1", 0)
        await stack.enter_async_context(serving(app, ServerLimits(), collector, what="the collector"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.getsockname()[1]}")
        theirs = TracerProvider(resource=Resource({"service.name": "quinn"}), shutdown_on_exit=False)
        theirs.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

        @agent.skill("look")
        async def look(task: SkillContext) -> str:
            given = TraceContextTextMapPropagator().extract({"traceparent": task.traceparent})
            with theirs.get_tracer("quinn").start_as_current_span("think", given):
                await asyncio.sleep(0.2)
            return "seen"

        url = await stack.enter_async_context(agent.serving())
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{url}/a2a"),))
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        tracing = tracing_of(runtime)
        at_work = running_hub(config, runtime, ledger, port=port, ceremonies=tmp_path, tracing=tracing)
        async with at_work as hub, asyncio.timeout(60), hub.events.subscribe(after_seq=0) as heard:
            while not hub.broker.view("quinn").reachable:
                await heard.next_batch()
            await hub.require_scheduler().run_now("daily")
            while not any(isinstance(event, CeremonyCompleted) for event in await heard.next_batch()):
                pass
        await tracing.aclose()
        await asyncio.to_thread(theirs.shutdown)

    named = {span.name: span for _, span in got}
    run, request, send, think = (named[name] for name in ("ceremony", "invoke_agent quinn", "send quinn", "think"))
    assert {span.trace_id for _, span in got} == {run.trace_id}
    assert (run.parent_span_id, request.parent_span_id) == (b"", run.span_id)
    assert (send.parent_span_id, think.parent_span_id) == (request.span_id, send.span_id)
    assert named["webhook quinn"].parent_span_id == send.span_id
    assert {service for service, _ in got} == {"fleetsim", "quinn"}


async def test_a_webhook_with_a_trace_of_its_own_stays_part_of_its_requests_trace() -> None:
    def lying(app: App) -> App:
        async def changed(scope: Any, receive: Any, send: Any) -> None:
            if "/callback/" in scope["path"]:
                kept = [(name, value) for name, value in scope["headers"] if name != b"traceparent"]
                scope = {**scope, "headers": [*kept, (b"traceparent", ASKED.encode())]}
            await app(scope, receive, send)

        return changed

    seen = Collected()
    async with ready_hub(worker(streaming=False), traced=seen.tracing, door=lying) as t:
        await asked(t)
    assert {above(webhook) for webhook in seen.all("webhook quinn")} == {own(seen.one("invoke_agent quinn"))}
    assert TRACE not in traces(seen.spans)


async def test_a_trace_continues_after_a_restart_during_a_task() -> None:
    seen = Collected()
    async with local_hub(worker(streaming=False), ceremony=CEREMONY, traced=seen.tracing) as t:
        await t.remote.run_ceremony("daily")
        await asyncio.sleep(60)
        before = len(seen.spans)
        await t.restart()
        async with t.hub.events.subscribe(kinds=(CeremonyCompleted,)) as heard:
            await heard.next_batch()
        await asyncio.sleep(1)
    run, request = seen.one("ceremony"), seen.one("invoke_agent quinn")
    assert before > 0
    assert seen.spans[before:]
    assert traces(seen.spans) == {f"{run.context.trace_id:032x}"}
    assert (above(run), above(request), above(seen.one("send quinn"))) == (None, own(run), own(request))
    assert took_s(request) >= 600


async def test_a_callers_trace_is_continued() -> None:
    seen = Collected()
    async with ready_hub(worker(), traced=seen.tracing) as t:
        await asked(t, ("traceparent", ASKED))
    request, sent = seen.one("invoke_agent quinn"), seen.one("stream quinn")
    assert traces(seen.spans) == {TRACE}
    assert (f"{above(request):016x}", above(sent)) == (SPAN, own(request))


@pytest.mark.parametrize("header", [f"00-{'0' * 32}-{SPAN}-01", "00-x", f"{ASKED}, {ASKED}", "\x7f" * 9, "a" * 5_000])
async def test_a_malformed_trace_is_ignored(header: str) -> None:
    seen = Collected()
    async with ready_hub(worker(), traced=seen.tracing) as t:
        await asked(t, ("traceparent", header))
    assert above(seen.one("invoke_agent quinn")) is None
    assert traces(seen.spans) != {TRACE}
    assert len(traces(seen.spans)) == 1


async def test_a_trace_that_a_caller_does_not_record_is_passed_on_unrecorded() -> None:
    seen, heard = Collected(), []
    agent = Agent("quinn")

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        heard.append(task.traceparent)
        return "done"

    async with ready_hub(agent, traced=seen.tracing) as t:
        await asked(t, ("traceparent", ASKED[:-1] + "0"))
    assert seen.spans == ()
    place = read_traceparent(heard[0])
    assert place is not None
    assert (place.trace_id, place.sampled) == (TRACE, False)


async def test_through_the_hubs_own_agent_the_trace_continues_too() -> None:
    seen = Collected()
    async with ready_hub(worker(), traced=seen.tracing) as t:
        body = (
            b'{"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {"kind": "message",'
            b'"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]},'
            b'"metadata": {"skillHint": "echo"}}}'
        )
        assert (await t.http("POST", "/a2a", body, {"traceparent": ASKED})).status == 200
        await asyncio.sleep(5)
    assert traces(seen.spans) == {TRACE}
    assert f"{above(seen.one('invoke_agent quinn')):016x}" == SPAN


async def test_spans_contain_no_text_no_key_and_no_error_of_an_agents() -> None:
    seen = Collected()
    async with ready_hub(worker(), traced=seen.tracing) as t:
        cid = await asked(t, skill="fail")
    request = seen.one("invoke_agent quinn")
    told = " ".join(span.to_json() for span in seen.spans)
    assert not [secret for secret in ("mellon", "the disk is full", KEY, "Bearer") if secret in told]
    assert request.status.status_code is StatusCode.ERROR
    assert request.status.description is None
    about = dict(request.attributes or {})
    assert (about["error.type"], about["fleetsim.correlation_id"]) == ("agent_said", cid)
    assert request.resource.attributes["service.name"] == "fleetsim"


@pytest.mark.slow
async def test_the_same_seed_makes_the_same_spans() -> None:
    async def day() -> list[tuple[str, int, int, float]]:
        seen = Collected()
        async with ready_hub(worker(), ceremony=CEREMONY, traced=seen.tracing) as t:
            await fired(t)
            await asyncio.sleep(1)
        return [(span.name, span.context.trace_id, own(span), took_s(span)) for span in seen.spans]

    assert await day() == await day() != []


async def test_without_tracing_no_header_is_added() -> None:
    heard: list[str] = []
    agent = Agent("quinn")

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        heard.append(task.traceparent)
        return "done"

    async with ready_hub(agent) as t:
        await asked(t, ("traceparent", ASKED))
        assert not [call for call in t.network.seen if "callback" in call.url and "traceparent" in call.request.headers]
    assert heard == [""]


@pytest.mark.slow
def test_without_tracing_opentelemetry_is_not_imported() -> None:
    script = "import fleetsim.hub.server, fleetsim.cli.up, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
