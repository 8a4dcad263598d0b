"""The hub's HTTP interface as one ASGI application: its API behind a key, and its webhook endpoint.

``GET /health`` needs no key. It says that the process lives, and proves with a ``challenge`` that the hub is genuine.
Everything under ``/api`` answers ``{"success": true, "data": …}`` or ``{"success": false, "error", "code", "hint"}``.
``GET /metrics`` shows the hub's counters and gauges to Prometheus.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.metadata import version

from msgspec import UNSET
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fleetsim.api.answers import Accepted, ActionRow, InboxPage, KeyIdentity, LivenessReport, NamedRequest, TaskPage
from fleetsim.api.bodies import AnswerBody, EmptyBody, RaiseBody, RequestBody, RetryBody, VetoBody
from fleetsim.api.part_rows import part_row
from fleetsim.caller.retry import RETRIED_KINDS, retry_id
from fleetsim.client.hub_proof import CHALLENGE, prove
from fleetsim.events.wire import to_wire
from fleetsim.fleet.skill_search import DIRECTIONS, FOUND_MAX, SkillQuery, find_skills
from fleetsim.health.fleet_health import WINDOW_MAX, WINDOW_MIN, window_start
from fleetsim.health.outcome_stats import WINDOW
from fleetsim.hub.answer_page import AnswerPages
from fleetsim.hub.current import CurrentState, open_page
from fleetsim.hub.endpoints import ENDPOINTS, Who
from fleetsim.hub.http import (
    PAGE_CHARS_MAX,
    PAGE_MAX,
    WAIT_S_MAX,
    ApiGuard,
    acted,
    answer,
    bare,
    handler,
    number,
    principal_of,
    until_news,
)
from fleetsim.hub.hub import Hub
from fleetsim.hub.openapi import document
from fleetsim.hub.ownership import Ownership
from fleetsim.hub.rows import (
    agent_row,
    outcome_row,
    question_row,
    record_row,
    shared_agent_row,
    track_row,
    whole_question_row,
    with_content,
)
from fleetsim.hub.streams import SEQ_MAX, EventStreams
from fleetsim.hub.workstacean import CeremonyApi, WorkstaceanApi
from fleetsim.model.errors import NotAccepting, UnknownTarget
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.parts import answer_parts, listed_parts
from fleetsim.model.text import one_line
from fleetsim.model.work import OutcomeKind
from fleetsim.runtime.inbound import Refusal, traceparent_of

QUERY_CHARS_MAX = 200
FOUND_DEFAULT = 20
RETRIES_MAX = 10_000
"""The most outcomes that one preview of retries reads."""
LOOK_BACK_S_MAX = 3_650 * 86_400
READY_S = 2.0
"""How long a ledger may take for a write until the hub is not ready."""


def build_app(hub: Hub) -> ASGIApp:
    return ApiGuard([*Api(hub).routes(), *hub.receiver.routes()], hub)


class Api:
    """The operations of a hub over HTTP."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ownership = Ownership(hub.tracker, hub.ledger, hub.fleet)
        self._parts = (
            self,
            CurrentState(hub, self._ownership),
            EventStreams(hub, self._ownership),
            CeremonyApi(hub, self._ownership),
            WorkstaceanApi(hub, self._ownership),
            MetricsEndpoint(hub),
            AnswerPages(hub),
            hub.a2a,
        )

    def routes(self) -> list[Route]:
        """Every route except the webhook's."""
        found = []
        for endpoint in ENDPOINTS:
            if endpoint.who is not Who.TOKEN:
                part = next(part for part in self._parts if hasattr(part, endpoint.name))
                handle = handler(endpoint, getattr(part, endpoint.name))
                found.append(Route(endpoint.path, handle, methods=[endpoint.method]))
        return found

    # ------------------------------------------------------------------ reading

    async def alive(self, request: Request) -> Response:
        """Answer that the process lives; with a ``challenge`` also the proof that the hub is genuine."""
        challenge = request.query_params.get("challenge")
        if challenge is not None and not CHALLENGE.fullmatch(challenge):
            raise Refusal(400, "BAD_REQUEST", "a challenge has 16 to 128 characters of A-Za-z0-9_-")
        proof = UNSET if challenge is None else prove(self._hub.keys.proof, self._hub.url or "", challenge)
        return bare(LivenessReport(status="ok", proof=proof))

    liveness = alive

    async def ready(self, _: Request) -> Response:
        """Whether the hub accepts work now. This writes to the ledger and reads from it, as each request does."""
        reason = ""
        if not self._hub.running:
            reason = "the hub starts or stops"
        elif not self._hub.dispatcher.accepting:
            reason = "the hub takes no work now"
        else:
            try:
                async with asyncio.timeout(READY_S):
                    await self._hub.ledger.require_writable()
            except NotAccepting as error:
                reason = str(error)
            except TimeoutError:
                reason = f"the ledger did not answer within {READY_S:g} s"
        if reason:
            return bare(LivenessReport(status="unready", reason=reason), 503)
        return bare(LivenessReport(status="ready"))

    async def whoami(self, request: Request) -> Response:
        """The holder of the key, the version of the hub, and the number of its newest event; for people and the hub's
        own key also the problems of the fleet's files.
        """
        holder = principal_of(request)
        identity = KeyIdentity(
            agent=holder.agent,
            person=holder.person,
            role=holder.role,
            rejected=self._hub.rejected() if holder.sees_all else (),
            version=version("fleetsim"),
            last_seq=self._hub.events.last_seq,
        )
        return answer(identity)

    async def openapi(self, _: Request) -> Response:
        """This API as an OpenAPI document."""
        return JSONResponse(document(), headers={"Cache-Control": "no-store"})

    async def health(self, request: Request) -> Response:
        """Fleet health (docs/reference/health.md), over ``?window=SECONDS`` if that is not the whole day; ``hubs`` are
        the hubs of a fleet that has several, and ``database`` is their PostgreSQL."""
        window = timedelta(seconds=number(request, "window", int(WINDOW.total_seconds()), 10**9))
        if not WINDOW_MIN <= window <= WINDOW_MAX:
            raise Refusal(400, "BAD_REQUEST", "window: from 60 to 604800 seconds (7 days)")
        snapshot = self._hub.snapshot() if window == WINDOW else await self._hub.fleet.snapshot_over(window)
        if rows := await self._hub.hub_rows():
            snapshot = replace(snapshot, hubs=rows, database=await self._hub.database_state())
        return answer(snapshot)

    fleet_health = health

    async def wire(self, request: Request) -> Response:
        """The wire log of an agent or of a request; it records for a while after each call."""
        agent, task = (request.query_params.get(name, "") for name in ("agent", "task"))
        if bool(agent) is bool(task) or len(agent + task) > QUERY_CHARS_MAX:
            raise Refusal(400, "BAD_REQUEST", "give either agent or task")
        rows = await self._hub.wire_rows(agent=agent, task=task, after=number(request, "after", 0, 10**15))
        return answer(rows)

    async def agents(self, request: Request) -> Response:
        snapshot = self._hub.snapshot()
        principal = principal_of(request)
        row = agent_row if principal.sees_all else shared_agent_row
        return answer([row(view, snapshot) for view in self._hub.fleet.views(principal.caller)])

    async def skills(self, request: Request) -> Response:
        """The skills that match the query, the most promising first (docs/reference/api.md, "Finding a skill")."""
        given = {name: request.query_params.get(name, "") for name in ("text", "domain", "path", "direction", "agent")}
        for name, text in given.items():
            if len(text) > QUERY_CHARS_MAX:
                raise Refusal(400, "BAD_REQUEST", f"{name}: at most {QUERY_CHARS_MAX} characters")
        if given["direction"] not in {"", *DIRECTIONS}:
            raise Refusal(400, "BAD_REQUEST", f"direction: {' or '.join(DIRECTIONS)}")
        views = self._hub.fleet.views(principal_of(request).caller)
        found = find_skills(SkillQuery(**given), views, self._hub.snapshot())
        return answer(found[: number(request, "limit", FOUND_DEFAULT, FOUND_MAX)])

    async def tasks(self, request: Request) -> Response:
        """A page of the open requests, and the newest outcomes of the last day; texts are excerpts."""
        hub, limit, after = self._hub, number(request, "limit", 50, PAGE_MAX), request.query_params.get("after")
        since = window_start(hub.runtime.clock.now())
        ended = await hub.ledger.outcomes(since=since, limit=limit, chars_max=EXCERPT_CHARS_MAX)
        recent = tuple(outcome_row(outcome, chars_max=EXCERPT_CHARS_MAX) for outcome in reversed(ended))
        rows, following = await open_page(hub, after)
        flying = tuple(row for _, row in rows)
        total = await hub.tracker.count_open()
        return answer(TaskPage(open=flying, open_total=total, next=following, recent=recent))

    async def task(self, request: Request) -> Response:
        """One request; with ``?wait=SECONDS`` after its outcome or question, or after that time."""
        correlation_id = request.path_params["id"]
        await self._ownership.require(principal_of(request), correlation_id)
        wait_s = number(request, "wait", 0, int(WAIT_S_MAX))
        if wait_s:
            await until_news(self._hub, request, correlation_id, wait_s)
        track = await self._hub.tracker.find_track(correlation_id)
        if track is not None:
            return answer(with_content(track_row(track), answer_parts(track.task)[0] if track.task else ()))
        outcome = await self._hub.ledger.outcome(correlation_id)
        if outcome is not None:
            again = retry_id(correlation_id) if outcome.kind in RETRIED_KINDS else ""
            row = outcome_row(outcome)
            if (record := await self._hub.ledger.request(correlation_id)) is not None:
                sent = tuple(map(part_row, listed_parts(record.request.parts)))
                row = replace(row, prompt=record.request.text, sent=sent)
            if again and await self._hub.ledger.request(again) is not None:
                row = replace(row, retried_as=again)
            return answer(with_content(row, outcome.parts))
        record = await self._hub.ledger.request(correlation_id)
        if record is None:
            raise UnknownTarget(f"no request “{one_line(correlation_id, 64)}” is known")
        return answer(record_row(record))

    async def retries(self, request: Request) -> Response:
        """The ended requests that ``retry`` would send again."""
        query, hub = request.query_params, self._hub
        kinds = query.get("kind", OutcomeKind.UNDELIVERABLE).split(",")
        if wrong := [kind for kind in kinds if kind not in RETRIED_KINDS]:
            raise Refusal(400, "BAD_REQUEST", f"kind: {one_line(wrong[0], 64)} is none of {', '.join(RETRIED_KINDS)}")
        since = _since(request, hub.runtime.clock.now())
        ended = await hub.ledger.outcomes(since=since, limit=RETRIES_MAX, kinds=kinds, chars_max=EXCERPT_CHARS_MAX)
        wanted = {name: query[name] for name in ("agent", "skill") if name in query}
        chosen = (one for one in ended if all(getattr(one, name) == value for name, value in wanted.items()))
        preview = await hub.dispatcher.preview_retries(chosen)
        return answer(replace(preview, complete=len(ended) < RETRIES_MAX))

    async def inbox(self, _: Request) -> Response:
        """Open questions (long ones as excerpts), and requests with an open veto window."""
        hub = self._hub
        found = await hub.tracker.find_questions()
        questions = tuple(question_row(question, chars_max=EXCERPT_CHARS_MAX) for question in found)
        return answer(InboxPage(questions=questions, vetoes=hub.hitl.vetoes()))

    async def question(self, request: Request) -> Response:
        question_id = request.path_params["id"]
        for question in await self._hub.tracker.find_questions():
            if question.question_id == question_id:
                return answer(whole_question_row(question))
        raise UnknownTarget(f"no question “{one_line(question_id, 64)}” is open")

    async def ids(self, request: Request) -> Response:
        """Ids that begin with ``?prefix=``: requests, questions and runs; agents' tasks by their whole id."""
        text = request.query_params.get("prefix", "")
        return answer(await self._hub.ledger.ids(text) if text else ())

    async def channels(self, _: Request) -> Response:
        """The channels, with the results of each sink."""
        return answer(self._hub.channels.rows())

    async def journal(self, request: Request) -> Response:
        """Recorded events after ``?after=SEQ``, oldest first, up to the moment of the call."""
        after = number(request, "after", 0, 2**53)
        limit = number(request, "limit", 200, PAGE_MAX)
        await self._hub.events.settle()
        page = await self._hub.ledger.events(after_seq=after, limit=limit, chars_max=PAGE_CHARS_MAX)
        return answer([to_wire(event) for event in page])

    async def audit(self, request: Request) -> Response:
        """Who did what, the newest first, up to the moment of the call."""
        limit, query = number(request, "limit", 200, PAGE_MAX), request.query_params
        since = _since(request, self._hub.runtime.clock.now())
        wanted = {key: query[name] for key, name in (("by", "name"), ("action",) * 2, ("object",) * 2) if name in query}
        await self._hub.events.settle()
        found: list[ActionRow] = []
        before = SEQ_MAX
        while len(found) < limit and (page := await self._hub.ledger.actions(since=since, before_seq=before)):
            rows = [ActionRow.of(event) for event in page]
            found += [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]
            before = page[-1].seq
        return answer(found[:limit])

    # ------------------------------------------------------------------ doing

    async def request(self, request: Request, body: RequestBody) -> Response:
        """Accept a request; 202 with one correlation id per agent. Its events come after ``seq``."""
        seq = self._hub.events.recorded_seq  # after a kill, the hub may use later numbers again
        try:
            asked = replace(body.request(self._hub.runtime.ids.new()), traceparent=traceparent_of(request))
            given = body.correlation_id is not None
            ids = await self._hub.submit(await self._ownership.stamped(asked, principal_of(request), given_id=given))
        except ValueError:
            raise Refusal(409, "ID_TAKEN", "a request with this correlationId was accepted before") from None
        more = f"and {len(ids) - 1} more" if len(ids) > 1 else ""
        acted(request, object=ids[0], correlation_id=ids[0], detail=more)
        return answer(Accepted(correlation_ids=ids, seq=seq), 202)

    async def refresh(self, request: Request, _: EmptyBody) -> Response:
        view = await self._hub.broker.refresh(request.path_params["name"])
        return answer(agent_row(view, self._hub.snapshot()))

    async def cancel(self, request: Request, _: EmptyBody) -> Response:
        principal = principal_of(request)
        await self._ownership.require(principal, request.path_params["id"])
        try:
            await self._hub.dispatcher.cancel(request.path_params["id"], by=principal.named("api"))
        except UnknownTarget:
            if await self._hub.ledger.request(request.path_params["id"]) is None:
                raise
            raise Refusal(409, "NOT_OPEN", "the request has ended", hint="its outcome is final") from None
        return answer(NamedRequest(correlation_id=request.path_params["id"]), 202)

    async def retry(self, request: Request, body: RetryBody) -> Response:
        await self._ownership.require(principal_of(request), request.path_params["id"])
        new = await self._hub.dispatcher.retry(request.path_params["id"], may_repeat=body.may_repeat)
        acted(request, detail=f"as {new}")
        return answer(NamedRequest(correlation_id=new), 202)

    async def veto(self, request: Request, body: VetoBody) -> Response:
        by = principal_of(request).named(body.by)
        acted(request, by=by)
        if not await self._hub.hitl.veto(request.path_params["id"], by=by):
            raise Refusal(409, "NO_VETO", "there is no open veto window for this request")
        return answer(NamedRequest(correlation_id=request.path_params["id"]), 202)

    async def reply(self, request: Request, body: AnswerBody) -> Response:
        """Answer a question, at most once."""
        if body.decision == "answer" and not body.text.strip() and not body.parts:
            raise Refusal(400, "BAD_REQUEST", "text: an answer says something", hint="or reject the question")
        try:
            by = principal_of(request).named(body.by)
            question = await self._hub.tracker.answer(replace(body.answer(request.path_params["id"]), by=by))
        except UnknownTarget as error:
            raise Refusal(409, "NOT_OPEN", str(error), hint=error.hint) from None
        acted(request, action=body.decision, correlation_id=question.correlation_id, by=by)
        return answer(question_row(question), 202)

    async def limits(self, _: Request) -> Response:
        return answer(await self._hub.fleet.limits.read())

    async def raise_limit(self, request: Request, body: RaiseBody) -> Response:
        name = request.path_params["name"]
        raised = await self._hub.fleet.limits.raise_by(name, body.amount)
        acted(request, object=name, detail=f"by {body.amount:g} {raised.unit}", by=principal_of(request).named(body.by))
        return answer(raised)

    async def test_channel(self, request: Request, body: EmptyBody) -> Response:
        """Send a test notice to each sink of a channel, and wait for the results."""
        return answer(await self._hub.channels.test(request.path_params["id"]))


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


def _since(request: Request, now: datetime) -> datetime:
    """The beginning of ``?window=SECONDS`` that end now; a day without it. Raises Refusal."""
    return now - timedelta(seconds=number(request, "window", int(WINDOW.total_seconds()), LOOK_BACK_S_MAX))


class MetricsEndpoint:
    """The endpoint with one hub's figures."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def metrics(self, request: Request) -> Response:
        """The figures now, as OpenMetrics if the client accepts it, else as Prometheus text."""
        await self._hub.metrics.catch_up()
        with suppress(NotAccepting):
            await self._hub.fleet.limits.read()
        kinds = {kind.partition(";")[0].strip() for kind in request.headers.get("accept", "").lower().split(",")}
        headers = {"Cache-Control": "no-store"}
        if OPENMETRICS in kinds:
            text = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return Response(text, media_type=openmetrics.CONTENT_TYPE_LATEST, headers=headers)
        return Response(generate_latest(self._registry), media_type=TEXT, headers=headers)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry needs no names before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every figure, without the ``_created`` samples, which would double the series."""
        for metric in self._hub.metrics.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        yield from self._agents()
        yield from self._inbox()
        meaning = "1 if the agent, or a program with its key, reached the limit in the last minute."
        limited = GaugeMetricFamily("fleetsim_account_limited", meaning, labels=["agent", "limit"])
        for owner, limit in self._hub.limiter.accounts.at_limit():
            limited.add_metric([one_line(owner, 64), limit], 1)
        yield limited
        rows = self._hub.scheduler.rows() if self._hub.scheduler else ()
        due = {r.ceremony.ceremony_id: r.next_at.timestamp() for r in rows if r.next_at and r.ceremony.schedule}
        yield _gauge("ceremony_next_fire_timestamp_seconds", "When it fires next.", "ceremony", due)
        meaning = "Notices of questions and runs that a sink has not taken yet."
        waiting = {row.id: sum(sink.undelivered for sink in row.sinks) for row in self._hub.channels.rows()}
        yield _gauge("notices_undelivered", meaning, "channel", waiting)
        for amount in ("most", "used", "reserved"):
            values = {row.name: getattr(row, amount) for row in self._hub.fleet.limits.newest}
            yield _gauge(f"limit_{amount}", f"{amount.capitalize()} of a limit, in its unit.", "limit", values)
        # The members of a fleet of several hubs, at the last renewal of this one's lease.
        members = self._hub.members.hubs if self._hub.members is not None else ()
        yield _gauge("hub_owned", "Open requests that the hub owns.", "hub", {m.name: m.owned for m in members})
        yield _gauge("hub_lease_age_seconds", "Age of its lease.", "hub", {m.name: m.lease_age_s for m in members})
        yield _gauge("hub_took_over", "Requests that it took over.", "hub", {m.name: m.took for m in members})
        takes = "1 if the last write to the ledger succeeded, else 0."
        yield GaugeMetricFamily("fleetsim_ledger_writable", takes, not self._hub.ledger.refusal)
        yield CounterMetricFamily(
            "fleetsim_events_dropped", "Events that a slow reader did not get.", self._hub.events.dropped
        )
        ended = "Memory of ended tasks of /a2a, as the characters of their texts, files and data."
        yield GaugeMetricFamily("fleetsim_a2a_ended_bytes", ended, self._hub.a2a.ended_chars)
        unread = "Recorded events that the slowest reader has not read yet."
        yield GaugeMetricFamily("fleetsim_events_unread", unread, self._hub.events.unread)
        build = GaugeMetricFamily("fleetsim_build_info", "The version that runs.", labels=["version"])
        build.add_metric([version("fleetsim")], 1)
        yield build

    def _agents(self) -> Iterator[Metric]:
        hub = self._hub
        now, views = hub.runtime.clock.now(), [view for view in hub.broker.views() if view.entry.enabled]
        flying = Counter[str]()
        for (agent, _), count in hub.tracker.places().items():
            flying[agent] += count
        flying.update(dict.fromkeys((view.entry.name for view in views), 0))
        yield _gauge("tasks_in_flight", "Requests without an outcome.", "agent", flying)
        up = {view.entry.name: view.reachable for view in views if view.reachable is not None}
        words = GaugeMetricFamily("fleetsim_agent_health", "1 for the agent's health word.", labels=["agent", "health"])
        for name, word in hub.fleet.health_words().items():
            words.add_metric([one_line(name, 64), word.value], 1)
        yield words
        yield _gauge("agent_up", "1 if the last read of the agent's card succeeded, else 0.", "agent", up)
        ages = {view.entry.name: (now - view.fetched_at).total_seconds() for view in views if view.fetched_at}
        yield _gauge("agent_card_age_seconds", "Seconds since the agent's card was read.", "agent", ages)
        shut = {view.entry.name: hub.limiter.refuses(view.entry.name) for view in views}
        yield _gauge("breaker_open", "1 while the agent gets no calls after failures.", "agent", shut)

    def _inbox(self) -> Iterator[Metric]:
        questions = self._hub.tracker.questions()
        waiting = Counter(dict.fromkeys((entry.name for entry in self._hub.config.enabled), 0))
        waiting.update(question.agent for question in questions)
        yield _gauge("inbox_waiting", "Open questions.", "agent", waiting)
        now = self._hub.runtime.clock.now()
        oldest = max(((now - question.asked_at).total_seconds() for question in questions), default=0.0)
        yield GaugeMetricFamily("fleetsim_inbox_oldest_seconds", "The age of the oldest open question.", oldest)


def _gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"fleetsim_{name}", meaning, labels=[label])
    for of, value in values.items():
        gauge.add_metric([one_line(of, 64)], value)
    return gauge
