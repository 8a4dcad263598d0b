"""Spans of what a hub does, for OpenTelemetry (extra ``otel``; decision 0021). Imported only where traces are wanted.

The span of a request or run is made at its end, from its event and the ledger, with ids derived from its own id, so a
restart loses none. Attributes never hold a text, an address or a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from fleetsim.events.fleet import CeremonyCompleted
from fleetsim.events.log import EventLog, Subscription
from fleetsim.events.request import OutcomeDecided
from fleetsim.ledger import Ledger, RunStatus
from fleetsim.model.call import Operation
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line
from fleetsim.model.work import SkillRequest
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.inbound import TRACEPARENT, TracePlace, read_traceparent, span_id_of, trace_id_of
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

ID_CHARS_MAX = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# GenAI's conventions, of which all are in development, and those of our own.
OPERATION, AGENT, CONVERSATION = "gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.conversation.id"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
ERROR_TYPE = "error.type"
CORRELATION, TASK, SKILL, STATE = "fleetsim.correlation_id", "fleetsim.task_id", "fleetsim.skill", "fleetsim.state"
CALL, COST, CEREMONY, RUN = "fleetsim.operation", "fleetsim.cost_usd", "fleetsim.ceremony", "fleetsim.run_id"


class _GivenIds(IdGenerator):
    """The ids of the span that is begun next."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def tracing_of(runtime: Runtime) -> Tracing:
    """Tracing as OpenTelemetry's own variables have it: to an OTLP/HTTP collector, from a thread of the exporter's."""
    return Tracing(runtime, BatchSpanProcessor(OTLPSpanExporter()))


class Tracing:
    """Makes the spans, and says what ``traceparent`` goes out. ``processor`` is who takes those that have ended."""

    def __init__(self, runtime: Runtime, processor: SpanProcessor) -> None:
        ours = Resource({"service.name": "fleetsim", "service.version": version("fleetsim")})
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fleetsim", version("fleetsim"))
        self._clock = runtime.clock
        self._random = runtime.rng.stream("tracing")

    async def aclose(self) -> None:
        """Hand over what is left, for as long as the exporter tries."""
        await asyncio.to_thread(self._provider.shutdown)

    # ------------------------------------------------------------------ as it happens

    @contextmanager
    def calling(self, record: RequestRecord, operation: Operation) -> Iterator[Mapping[str, str]]:
        """A span around one call to an agent, which the agent may go on with (``executor.CallObserver``)."""
        about = {OPERATION: "invoke_agent", CALL: operation.value, **_about(record)}
        name = f"{operation.value} {record.agent}"
        with self._during(name, SpanKind.CLIENT, self._place(record.request), about) as span:
            made = span.get_span_context()
            place = TracePlace(f"{made.trace_id:032x}", f"{made.span_id:016x}", made.trace_flags.sampled)
            yield {TRACEPARENT: str(place)}

    @contextmanager
    def webhook(self, record: RequestRecord, traceparent: str) -> Iterator[None]:
        """A span around taking one genuine webhook, below the agent's own if it names one of the same trace."""
        parent, context = self._place(record.request), read_traceparent(traceparent)
        if context is not None and context.trace_id == parent.trace_id:
            parent = TracePlace(context.trace_id, context.span_id, parent.sampled)
        with self._during(f"webhook {record.agent}", SpanKind.SERVER, parent, _about(record)):
            yield

    @contextmanager
    def _during(self, name: str, kind: SpanKind, parent: TracePlace, about: Mapping[str, str]) -> Iterator[Span]:
        span_id = f"{self._random.getrandbits(64) or 1:016x}"
        span = self._begin(name, kind, parent.trace_id, span_id, parent, self._clock.now(), about)
        try:
            yield span
        except BaseException as error:
            span.set_attribute(ERROR_TYPE, type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            span.end(_nanos(self._clock.now()))

    # ------------------------------------------------------------------ when it is over

    @asynccontextmanager
    async def following(self, events: EventLog, ledger: Ledger) -> AsyncIterator[None]:
        """Report requests and runs that end within this context."""
        async with events.subscribe(after_seq=0, kinds=(OutcomeDecided, CeremonyCompleted)) as heard:
            async with Workers("tracing") as workers:
                workers.start(self._follow(heard, ledger), name="follow")
                yield
            while heard.behind:
                await self._tell(await heard.next_batch(), ledger)

    async def _follow(self, heard: Subscription, ledger: Ledger) -> None:
        async for batch in heard:
            await self._tell(batch, ledger)

    async def _tell(self, batch: tuple[object, ...], ledger: Ledger) -> None:
        for event in batch:
            if isinstance(event, CeremonyCompleted):
                self._tell_run(event)
            elif isinstance(event, OutcomeDecided):
                with suppress(FleetsimError):  # a ledger that failed ends the hub, and says so itself
                    record = await ledger.request(event.correlation_id or "")
                    if record is not None:
                        self._tell_request(event, record)

    def _tell_run(self, event: CeremonyCompleted) -> None:
        began = event.at - timedelta(milliseconds=event.duration_ms or 0)
        about = {CEREMONY: event.ceremony_id, RUN: event.run_id, STATE: event.status}
        trace_id, span_id = trace_id_of(event.run_id), span_id_of(event.run_id)
        span = self._begin("ceremony", SpanKind.INTERNAL, trace_id, span_id, None, began, about)
        if event.status != RunStatus.SUCCESS:
            span.set_attribute(ERROR_TYPE, event.status)
            span.set_status(StatusCode.ERROR)
        span.end(_nanos(event.at))

    def _tell_request(self, event: OutcomeDecided, record: RequestRecord) -> None:
        own, outcome = self._place(record.request), event.outcome
        about: dict[str, str | int | float] = {OPERATION: "invoke_agent", **_about(record), STATE: outcome.kind.value}
        if outcome.context_id:
            about[CONVERSATION] = one_line(outcome.context_id, ID_CHARS_MAX)
        if outcome.usage is not None:
            about |= {INPUT_TOKENS: outcome.usage.input_tokens, OUTPUT_TOKENS: outcome.usage.output_tokens}
        if outcome.cost_usd is not None:
            about[COST] = outcome.cost_usd
        parent, name = self._parent(record.request), f"invoke_agent {record.agent}"
        span = self._begin(name, SpanKind.INTERNAL, own.trace_id, own.span_id, parent, outcome.started_at, about)
        if not outcome.success:
            span.set_attribute(ERROR_TYPE, outcome.cause.value if outcome.cause else outcome.kind.value)
            span.set_status(StatusCode.ERROR)
        span.end(_nanos(outcome.ended_at))

    # ------------------------------------------------------------------ where in which trace

    def _parent(self, request: SkillRequest) -> TracePlace | None:
        """The parent span of a request: the caller's, or the ceremony run's."""
        if (given := read_traceparent(request.traceparent)) is not None:
            return given
        if request.source.interface == "cron" and request.parent_id is not None:
            trace_id = trace_id_of(request.parent_id)
            return TracePlace(trace_id, span_id_of(request.parent_id), self._samples(trace_id))
        return None

    def _place(self, request: SkillRequest) -> TracePlace:
        """The request's own span."""
        parent = self._parent(request)
        trace_id = parent.trace_id if parent else trace_id_of(request.correlation_id)
        sampled = parent.sampled if parent else self._samples(trace_id)
        # a digest, so that a child can derive it after a restart
        return TracePlace(trace_id, span_id_of(request.correlation_id), sampled)

    def _samples(self, trace_id: str) -> bool:
        """Whether a trace that begins here is recorded (``OTEL_TRACES_SAMPLER``); the same each time it is asked."""
        result = self._provider.sampler.should_sample(Context(), int(trace_id, 16), "fleetsim")
        return result.decision is Decision.RECORD_AND_SAMPLE

    def _begin(
        self,
        name: str,
        kind: SpanKind,
        trace_id: str,
        span_id: str,
        parent: TracePlace | None,
        at: datetime,
        about: Mapping[str, str | int | float],
    ) -> Span:
        self._ids.trace_id, self._ids.span_id = int(trace_id, 16), int(span_id, 16)
        context = Context()
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
            above = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(above), context)
        return self._tracer.start_span(name, context, kind, dict(about), start_time=_nanos(at))


def _about(record: RequestRecord) -> dict[str, str]:
    about = {AGENT: record.agent, CORRELATION: record.request.correlation_id}
    about[SKILL] = one_line(record.skill, ID_CHARS_MAX)
    if record.task is not None:
        about[TASK] = one_line(record.task.task_id, ID_CHARS_MAX)
    return about


def _nanos(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1) * 1_000
