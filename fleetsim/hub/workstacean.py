"""Workstacean's paths of the API in its shapes: chats, delegated work, questions, and ceremonies (``manage_cron``).

``/api/agent-health``, ``/api/outcomes`` and ``/api/hitl-queue`` answer without the envelope, as the original did. An
agent's key reaches its own ceremonies only; any other is "not found" for every verb.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, structs
from msgspec.structs import replace
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fleetsim.api.answers import (
    Accepted,
    AgentReport,
    AgentsReport,
    ChatAnswer,
    DeletedCeremony,
    HitlRequest,
    NamedRequest,
    OutcomeCounts,
    Outcomes,
    QueueReport,
    StartedRun,
)
from fleetsim.api.bodies import (
    ChatBody,
    CreateCeremonyBody,
    DecisionBody,
    DelegateBody,
    EmptyBody,
    InboundPayload,
    PublishBody,
    RunCeremonyBody,
    read,
)
from fleetsim.api.part_rows import part_row
from fleetsim.ceremonies.folder import CeremonyNotFound, CeremonyStore, StoredCeremony
from fleetsim.ceremonies.runs import dry_run, run_facts
from fleetsim.ceremony.written import CeremonyInvalid
from fleetsim.events.request import QuestionAnswered
from fleetsim.fleet.access import Caller
from fleetsim.health.fleet_health import window_start
from fleetsim.hub.http import (
    PAGE_MAX,
    WAIT_S_MAX,
    acted,
    answer,
    bare,
    number,
    principal_of,
    submitted,
    until_news,
)
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import Principal
from fleetsim.hub.ownership import Ownership
from fleetsim.hub.rows import outcome_row, whole_question_row
from fleetsim.model.asking import answer_schema
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.limits import EXCERPT_CHARS_MAX, TEXT_CHARS_MAX, shown_text
from fleetsim.model.parts import ListedPart, answer_parts
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, OutcomeKind, Question, SkillRequest, Source
from fleetsim.runtime.inbound import Refusal, traceparent_of

RECENT_MAX = 50
COUNTED_MAX = 10_000
POLL_PATH = "/api/a2a/task/"

_INBOUND = re.compile(r"message\.inbound\.([^.]+)(?:\.(.+))?", re.DOTALL)
_EXECUTE = re.compile(r"ceremony\.(.+)\.execute", re.DOTALL)
_INTERFACE = re.compile(r"[a-z][a-z0-9\-]{0,31}")


class WorkstaceanApi:
    """The endpoints for Workstacean's clients."""

    def __init__(self, hub: Hub, ownership: Ownership) -> None:
        self._hub = hub
        self._ownership = ownership

    # ------------------------------------------------------------------ the fleet

    async def agent_health(self, _: Request) -> Response:
        """Each agent's reachability and card."""
        views = self._hub.broker.views()
        return bare(
            AgentsReport(
                agent_count=len(views),
                reachable_count=sum(view.reachable is True for view in views),
                agents={
                    view.entry.name: AgentReport.of(
                        view,
                        view.capabilities,
                        reachable=view.reachable is True,
                        last_probed_at=view.tried_at,
                        card_available=view.card is not None,
                        error=view.stale_reason or None,
                    )
                    for view in views
                },
                registration_count=sum(len(view.skills) for view in views),
            )
        )

    async def outcomes(self, request: Request) -> Response:
        """The newest outcomes, and the counts of the last day's, of at most 10,000."""
        limit = number(request, "limit", RECENT_MAX, RECENT_MAX)
        since = window_start(self._hub.runtime.clock.now())
        outcomes = await self._hub.ledger.outcomes(since=since, limit=COUNTED_MAX, chars_max=EXCERPT_CHARS_MAX)
        success = sum(outcome.success for outcome in outcomes)
        timeout = sum(outcome.kind is OutcomeKind.EXPIRED for outcome in outcomes)
        failure, total = len(outcomes) - success - timeout, len(outcomes)
        recent = reversed(outcomes[-limit:] if limit else ())
        rows = tuple(outcome_row(outcome, chars_max=EXCERPT_CHARS_MAX) for outcome in recent)
        counts = OutcomeCounts(success=success, failure=failure, timeout=timeout, total=total)
        return bare(Outcomes(summary=counts, recent=rows))

    # ------------------------------------------------------------------ agents

    async def chat(self, request: Request, body: ChatBody) -> Response:
        """Send a message to one agent, and wait for its answer or question within the time limit."""
        wait_s = 0.0 if body.return_immediately else body.wait_ms / 1000
        correlation_id, _ = await submitted(self._hub, request, lambda: self._submit(body.request, request), wait_s)
        row = await self._chat_row(correlation_id, agent=body.agent)
        return answer(structs.replace(row, context_id=UNSET, task_id=UNSET) if body.done else row)

    async def delegate(self, request: Request, body: DelegateBody) -> Response:
        """Give one agent work."""
        correlation_id = await self._submit(body.request, request)
        message = f"Task delegated to {body.agent} (skill: {body.skill})"
        poll_url = POLL_PATH + correlation_id
        return answer(NamedRequest(correlation_id=correlation_id, message=message, poll_url=poll_url))

    async def chat_task(self, request: Request) -> Response:
        """The state of a request."""
        correlation_id = request.path_params["correlationId"]
        await self._ownership.require(principal_of(request), correlation_id)
        if wait_s := number(request, "wait", 0, int(WAIT_S_MAX)):
            await until_news(self._hub, request, correlation_id, wait_s)
        return answer(await self._chat_row(correlation_id))

    async def _submit(self, made: Callable[[str], SkillRequest], request: Request) -> str:
        asked = replace(made(self._hub.runtime.ids.new()), traceparent=traceparent_of(request))
        stamped = await self._ownership.stamped(asked, principal_of(request), given_id=False)
        (correlation_id,) = await self._hub.submit(stamped)
        acted(request, object=correlation_id, correlation_id=correlation_id)
        return correlation_id

    async def _chat_row(self, correlation_id: str, *, agent: str = "") -> ChatAnswer:
        """An agent's last text, with the ids for the next message."""
        outcome = await self._hub.ledger.outcome(correlation_id)
        if outcome is not None:
            return _ended_row(outcome)
        record = await self._hub.ledger.request(correlation_id)
        if record is None:
            raise UnknownTarget(f"no request “{one_line(correlation_id, 64)}” is known")
        track = await self._hub.tracker.find_track(correlation_id)
        task = track.task if track is not None else record.task
        question = track.question if track is not None else None
        row = ChatAnswer(
            status="working",
            response="",
            pending=True,
            poll_url=POLL_PATH + correlation_id,
            correlation_id=correlation_id,
            agent=agent or record.agent,
            task_state=task.state if task is not None else "submitted",
            context_id=(task.context_id if task is not None else record.request.context_id) or None,
            task_id=task.task_id if task is not None else record.request.task_id,
            warnings=record.warnings,
        )
        if question is None or task is None:
            return row
        return structs.replace(
            row,
            status="input-required",
            **_said(question.text, question.text_chars, *answer_parts(task)),
            question_id=question.question_id,
            answer_schema=answer_schema(question.parts),
            pending=UNSET,
            poll_url=UNSET,
        )

    # ------------------------------------------------------------------ people

    async def pending(self, _: Request) -> Response:
        """Open questions, in the form that Workstacean published on its bus."""
        return answer([_hitl_request(question) for question in await self._hub.tracker.find_questions()])

    async def hitl_queue(self, _: Request) -> Response:
        """The number of open questions; each can be answered here."""
        return bare(QueueReport(pending_count=len(await self._hub.tracker.find_questions())))

    async def respond(self, request: Request, body: DecisionBody) -> Response:
        """Answer or reject a request's open question, at most once."""
        track = await self._hub.tracker.find_track(body.correlation_id)
        if track is None or track.asking.question is None:
            raise UnknownTarget(f"no request “{one_line(body.correlation_id, 64)}” has an open question")
        question_id = track.asking.question.question_id
        try:
            by = principal_of(request).named(body.decided_by)
            await self._hub.tracker.answer(replace(body.answer(question_id), by=by))
        except UnknownTarget as error:
            raise Refusal(409, "NOT_OPEN", str(error), hint=error.hint) from None
        action = "reject" if body.decision == "reject" else "answer"
        acted(request, action=action, object=question_id, correlation_id=body.correlation_id, by=by)
        return answer(NamedRequest(correlation_id=body.correlation_id, question_id=question_id), 202)

    # ------------------------------------------------------------------ the bus

    async def publish(self, request: Request, body: PublishBody) -> Response:
        """Accept a message of the two kinds that clients may publish; outcomes and answers are refused."""
        if inbound := _INBOUND.fullmatch(body.topic):
            payload = read(InboundPayload, body.payload, "payload")
            made = SkillRequest(
                correlation_id=body.correlation_id or self._hub.runtime.ids.new(),
                text=payload.content,
                parts=tuple(part.part() for part in payload.parts),
                skill=payload.skill or payload.skill_hint,
                targets=tuple(payload.targets) or ((payload.agent_id,) if payload.agent_id else ()),
                source=Source(
                    interface=inbound[1] if _INTERFACE.fullmatch(inbound[1]) else "api", channel_id=inbound[2]
                ),
                traceparent=traceparent_of(request),
            )
            stamped = await self._ownership.stamped(made, principal_of(request), given_id=True)
            try:
                ids = await self._hub.submit(stamped)
            except ValueError:
                raise Refusal(409, "ID_TAKEN", "a request with this correlationId was accepted before") from None
            acted(request, action="send", object=ids[0], correlation_id=ids[0])
            return answer(Accepted(correlation_ids=ids))
        if execute := _EXECUTE.fullmatch(body.topic):
            acted(request, action="fire", object=execute[1])
            run_id = await self._hub.require_scheduler().run_now(execute[1], principal_of(request).account)
            return answer(StartedRun(run_id=run_id))
        hint = "message.inbound.* makes a request, ceremony.{id}.execute fires a ceremony"
        raise Refusal(403, "TOPIC_REFUSED", "clients cannot publish on this topic", hint=hint)


def _said(text: str, chars: int, parts: tuple[ListedPart, ...], parts_total: int) -> dict[str, Any]:
    """The text of an answer or a question, with the content of its files and data."""
    shown = shown_text(text, chars=chars, chars_max=TEXT_CHARS_MAX)
    about = {"truncated": shown["truncated"], "text_chars": shown["textChars"], "parts_total": parts_total}
    return {"response": shown["text"], "parts": tuple(map(part_row, parts)), **about}


def _ended_row(outcome: Outcome) -> ChatAnswer:
    """An outcome as in Workstacean's chat: an error is in the place of the answer."""
    text = outcome.text or ("" if outcome.success else outcome.reason)
    row = ChatAnswer.of(
        outcome,
        status="done",
        **_said(text, outcome.text_chars, outcome.parts, outcome.parts_total),
        error=None if outcome.success else outcome.reason or outcome.kind.value,
        task_state=outcome.kind,
    )
    return structs.replace(row, **{name: UNSET for name, value in structs.asdict(row).items() if value is None})


def _hitl_request(question: Question) -> HitlRequest:
    more = f" (checkpoint {question.checkpoint})" if question.checkpoint > 1 else ""
    return HitlRequest.of(
        whole_question_row(question),
        title=f"Input needed from {question.agent}{more}",
        summary=question.text,
        checkpoint={"index": question.checkpoint},
        reply_topic=QuestionAnswered.TOPIC.format(correlation_id=question.correlation_id),
    )


class CeremonyApi:
    """The endpoints of ceremonies."""

    def __init__(self, hub: Hub, ownership: Ownership) -> None:
        self._hub = hub
        self._ownership = ownership

    async def ceremonies(self, request: Request) -> Response:
        """Valid ceremonies, including disabled ones: an agent's own, or all."""
        principal = principal_of(request)
        if request.query_params.get("all") == "true" and not principal.sees_all:
            raise Refusal(401, "UNAUTHORIZED", "Unauthorized", hint="leave all out to see your own ceremonies")
        scheduler = self._hub.scheduler
        return answer(await self._ownership.ceremonies(principal, scheduler.rows() if scheduler else ()))

    async def ceremony_errors(self, _: Request) -> Response:
        """The problems of rejected ceremony files."""
        scheduler = self._hub.scheduler
        return answer(scheduler.problems() if scheduler else ())

    async def create_ceremony(self, request: Request, body: CreateCeremonyBody) -> Response:
        """Write a new ceremony; never over another."""
        principal = principal_of(request)
        values: dict[str, Any] = body.model_dump(by_alias=True, exclude_unset=True)
        values.setdefault("targets", body.targets)
        by = principal.agent or body.created_by
        if values.get("createdBy", by) != by:
            raise CeremonyInvalid("createdBy", "only the hub's own key may name another owner")
        self._require_channel(values, by)
        acted(request, object=body.id)
        return await self._answer(await self._store().create(values, created_by=by), principal)

    async def update_ceremony(self, request: Request, body: BaseModel) -> Response:
        """Change only the given keys; null removes a key."""
        changes: dict[str, Any] = body.model_dump(by_alias=True, exclude_unset=True)
        for key in ("createdBy", "enabled"):
            if changes.get(key, True) is None:  # tools send null for a value that they were not given
                del changes[key]
        ceremony_id, principal = request.path_params["id"], principal_of(request)
        owner = principal.agent
        self._require_channel(changes, self._store().get(ceremony_id, owner=owner).ceremony.created_by)
        return await self._answer(await self._store().update(ceremony_id, changes, owner=owner), principal)

    async def delete_ceremony(self, request: Request, _: EmptyBody) -> Response:
        """Remove a ceremony's file."""
        ceremony_id = request.path_params["id"]
        await self._store().delete(ceremony_id, owner=principal_of(request).agent)
        return answer(DeletedCeremony(id=ceremony_id), message=f'Ceremony "{one_line(ceremony_id, 128)}" deleted')

    async def run_ceremony(self, request: Request, body: RunCeremonyBody) -> Response:
        """Fire a ceremony now, or show the requests that it would send."""
        ceremony_id = request.path_params["id"]
        self._require(principal_of(request), ceremony_id)
        if body.dry_run:
            ceremony = self._store().get(ceremony_id).ceremony
            access, resolve = self._hub.fleet.access(Caller.firing(ceremony)), self._hub.registry.resolve
            await self._hub.broker.until_read(ceremony.skill, ceremony.targets, access)
            acted(request, action="")
            return answer(dry_run(ceremony, lambda skill, targets: resolve(skill, targets, access=access)))
        run_id = await self._hub.require_scheduler().run_now(ceremony_id, principal_of(request).account)
        return answer(StartedRun(run_id=run_id), message=f'Ceremony "{one_line(ceremony_id, 128)}" triggered')

    async def ceremony_runs(self, request: Request) -> Response:
        """A ceremony's runs, newest first. An agent sees only runs with its own requests, because another owner may
        have used the id before.
        """
        principal = principal_of(request)
        self._require(principal, request.path_params["id"])
        runs = await self._hub.ledger.runs(request.path_params["id"], limit=number(request, "limit", 100, PAGE_MAX))
        return answer([run_facts(run) for run in runs if await self._ownership.owns_run(principal, run)])

    def _require(self, principal: Principal, ceremony_id: str) -> None:
        """Raises CeremonyNotFound unless the principal owns it."""
        if not principal.sees_all:
            self._store().get(ceremony_id, owner=principal.agent)

    def _require_channel(self, values: Mapping[str, Any], owner: str) -> None:
        """Raises CeremonyInvalid if ceremonies of ``owner`` may not use the channel."""
        channel = self._hub.config.channels.get(str(values.get("notifyChannel") or ""))
        if channel is not None and (refusal := channel.refusal(owner)):
            raise CeremonyInvalid("notifyChannel", refusal)

    def _store(self) -> CeremonyStore:
        if self._hub.ceremonies is None:
            raise UnknownTarget("this hub has no ceremonies folder", hint="start it with --ceremonies FOLDER")
        return self._hub.ceremonies

    async def _answer(self, stored: StoredCeremony, principal: Principal) -> Response:
        rows = self._hub.require_scheduler().rows()
        row = next((row for row in rows if row.ceremony.ceremony_id == stored.ceremony.ceremony_id), None)
        if row is None:  # the file was removed meanwhile
            raise CeremonyNotFound(f'Ceremony "{stored.ceremony.ceremony_id}" not found')
        return answer((await self._ownership.ceremonies(principal, [row]))[0])
