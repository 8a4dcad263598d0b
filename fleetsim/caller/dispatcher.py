"""Accepts every request (Workstacean's SkillDispatcherPlugin): resolve, check the cooldown, record, start its track.
``failure_count`` counts failures of agents, ``beside_counts`` all other outcomes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from msgspec.structs import asdict, replace

from fleetsim.api.answers import RetryGroup, RetryReport
from fleetsim.caller.limits import CurrentLimits
from fleetsim.caller.retry import RetryRefused, require_first, retry_id, retry_request
from fleetsim.caller.tracker import Tracker
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.events.log import EventLog
from fleetsim.events.request import CancelRefused, OutcomeDecided, RequestAccepted, RequestRefused
from fleetsim.fleet.access import Access, AllowLists, Caller, access_of
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.registry import Registry
from fleetsim.fleet.settings import SkillEntry
from fleetsim.ledger import Ledger, RunRecord
from fleetsim.model.errors import (
    FleetsimError,
    MayHaveRun,
    NotAccepting,
    OverLimit,
    QuestionNotOpenYet,
    TaskNotCancelable,
    UnknownTarget,
)
from fleetsim.model.extensions import REASON_CHARS_MAX
from fleetsim.model.limits import TEXT_CHARS_MAX, TooMuchText, check_text
from fleetsim.model.parts import require_parts
from fleetsim.model.text import one_line
from fleetsim.model.work import Answer, Outcome, OutcomeKind, SkillRequest
from fleetsim.request.records import AgentRoute, RequestRecord
from fleetsim.request.track import follow_up
from fleetsim.runtime.ports import Runtime

CANCEL_ANSWER_S = 3.0
"""An agent that has not replied to a cancel by then has neither confirmed nor refused it."""

LATE_S = 3_600.0
"""How late a retry by a policy may be, for example because no hub ran."""


class TaskBusy(NotAccepting):
    """A follow-up on a task of an open request without an open question."""


class Routes(Protocol):
    """The routes to agents at this moment, those by which requests came, and the allow-lists, if there are any."""

    lists: AllowLists | None

    def route(self, agent: str, request: SkillRequest, *, webhooks: bool) -> AgentRoute:
        """The route for a request. ``webhooks``: whether the agent takes our webhooks. Raises UnknownTarget."""

    def idempotent(self, agent: str, skill: str) -> bool:
        """Whether agents.yaml declares that the skill may run twice."""

    def came_through(self, request: SkillRequest) -> Collection[str]:
        """The agents that are hubs that the request has visited."""


class Dispatcher:
    """Accepts requests."""

    def __init__(
        self,
        runtime: Runtime,
        ledger: Ledger,
        events: EventLog,
        tracker: Tracker,
        *,
        tokens: CallbackTokens,
        cards: CardBroker,
        registry: Registry,
        routes: Routes,
        limits: CurrentLimits | None = None,
        cooldowns_s: Mapping[str, float] | None = None,
        policies: Mapping[tuple[str, str], SkillEntry] | None = None,
    ) -> None:
        self._runtime = runtime
        self._ledger = ledger
        self._events = events
        self._tracker = tracker
        self._tokens = tokens
        self._cards = cards
        self._registry = registry
        self._routes = routes
        self._limits = limits
        self.cooldowns_s = cooldowns_s or {}
        self.policies = policies or {}
        self._last: dict[tuple[str, str], float] = {}
        self.accepting = True
        self._retried: set[str] = set()

    async def submit(self, request: SkillRequest) -> tuple[str, ...]:
        """Accept a request, durably, and return one correlation id per target.

        The request waits for cards that are being read for the first time, if they may change its route.
        A follow-up (``task_id``) on a task whose open request waits for an answer is that answer: the id
        returned is the open request's, which goes on. On any other task it is a request of its own.

        Raises:
            UnknownTarget: no such agent or skill, or the skill is cooling down.
            TaskBusy: an open request has the task, without an open question.
            QuestionNotOpenYet: an open request has the task, and its question is being recorded.
            TooMuchText: the text is longer than ``text_chars_max``.
            TooManyParts: its files, data and metadata are more than one message may carry.
            OverLimit: a limit has no room for it.
            NotAccepting: the ledger cannot record it, or the hub is closing; no agent was called.
        """
        # a new card may change the dialect or need a person
        access = self._access(request) if self._routes.lists else None
        await self._cards.until_read(request.skill, request.targets, access)
        if request.task_id is not None:
            return (await self._follow_up(request, request.task_id),)
        records = self.plan(request)
        await self._record(records, None)
        return tuple(r.request.correlation_id for r in records)

    async def retry(self, correlation_id: str, *, may_repeat: bool = False) -> str:
        """Send a request that ended again, as a new request that names it. Returns the id of the new one.

        ``may_repeat``: also if the agent may have done the work already.

        A request is sent again once; after that, the newest of the chain may be.

        Raises UnknownTarget if the request is unknown, RetryRefused, MayHaveRun, and the errors of ``submit``.
        """
        outcome = await self._ledger.outcome(correlation_id)
        request = await self._again(correlation_id, outcome, may_repeat=may_repeat)
        try:
            (new,) = await self.submit(request)
        except ValueError:  # another call, perhaps at another hub, was first
            require_first(await self._ledger.request(request.correlation_id))
            raise
        return new

    async def _again(self, correlation_id: str, outcome: Outcome | None, *, may_repeat: bool) -> SkillRequest:
        """The request that sends this one again. Raises as ``retry``."""
        record = await self._ledger.request(correlation_id)
        if record is None:
            raise UnknownTarget(f"no request “{one_line(correlation_id, 64)}” is known")
        require_first(await self._ledger.request(retry_id(correlation_id)))
        idempotent = self._routes.idempotent(record.agent, record.skill)
        return retry_request(record, outcome, idempotent=idempotent, may_repeat=may_repeat)

    async def retry_due(self) -> None:
        """Retry requests that ended as unknown or failed, by ``policies``.

        The ledger alone has the state, so this may run at every hub of a fleet, and again after a restart. It looks
        back ``LATE_S`` beyond the longest pause: what is older waits for a person.
        """
        now, after = self._runtime.clock.now(), {OutcomeKind.UNKNOWN, OutcomeKind.FAILED}
        policies = {key: own.retry for key, own in self.policies.items() if own.retry and after & {*own.retry.on}}
        if not policies:
            return
        longest_s = max(max(policy.waits_s) for policy in policies.values())
        since = now - timedelta(seconds=longest_s + LATE_S)
        outcomes = await self._ledger.outcomes(since=since, kinds=after)
        self._retried &= {outcome.correlation_id for outcome in outcomes}
        for outcome in outcomes:
            cid, policy = outcome.correlation_id, policies.get((outcome.agent, outcome.skill))
            if cid in self._retried or policy is None or outcome.kind not in policy.on:
                continue
            before: Outcome | None = outcome
            attempts = 0
            while before is not None and before.retry_of is not None and attempts < policy.attempts:
                before, attempts = await self._ledger.outcome(before.retry_of), attempts + 1
            if attempts >= policy.attempts:
                self._retried.add(cid)
            elif now >= outcome.ended_at + timedelta(seconds=policy.waits_s[attempts]):
                with suppress(FleetsimError):  # a cooldown, a limit, a full disk: tried again a minute later
                    with suppress(RetryRefused, MayHaveRun):
                        await self.retry(cid)
                    self._retried.add(cid)

    async def preview_retries(self, outcomes: Iterable[Outcome]) -> RetryReport:
        """The requests of these outcomes that ``retry`` would send again, in groups, and the number of the others."""
        groups: defaultdict[tuple[str, str, str, bool], list[Outcome]] = defaultdict(list)
        left_out = Counter[str]()
        for outcome in outcomes:
            may_have_run = False
            try:
                await self._again(outcome.correlation_id, outcome, may_repeat=False)
            except MayHaveRun:
                may_have_run = True
            except FleetsimError as error:
                left_out[str(error)] += 1
                continue
            alike = re.sub(r"[0-9]+", "#", outcome.reason)  # reasons differ by seconds left, ids and counts
            groups[outcome.agent, outcome.kind.value, alike, may_have_run].append(outcome)
        return RetryReport(
            count=sum(map(len, groups.values())),
            groups=tuple(
                RetryGroup(
                    agent=agent,
                    kind=kind,
                    reason=one_line(ended[-1].reason, REASON_CHARS_MAX),
                    may_have_run=may_have_run,
                    oldest=ended[0].ended_at,
                    newest=ended[-1].ended_at,
                    correlation_ids=tuple(outcome.correlation_id for outcome in ended),
                )
                for (agent, kind, _, may_have_run), ended in groups.items()
            ),
            left_out=dict(left_out),
        )

    async def cancel(self, correlation_id: str, *, by: str = "operator") -> None:
        """Request the cancel of a request, and wait ``CANCEL_ANSWER_S`` for the agent's refusal, if it has the task.

        Raises UnknownTarget if it is not in flight, and TaskNotCancelable with the agent's words if it refuses.
        """
        kinds = (CancelRefused, OutcomeDecided)
        async with self._events.subscribe(kinds=kinds, about=correlation_id, everywhere=True) as heard:
            await self._tracker.cancel(correlation_id, by=by)
            track = self._tracker.track(correlation_id)
            if track is not None and track.task is None:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_ANSWER_S):
                    for event in await heard.next_batch():
                        if isinstance(event, CancelRefused):
                            raise TaskNotCancelable(f"{event.agent or 'the agent'} refused the cancel: {event.why}")

    def _access(self, request: SkillRequest) -> Access | None:
        return access_of(self._routes.lists, Caller.of(request))

    async def _follow_up(self, request: SkillRequest, task_id: str) -> str:
        """Send a further message on a task that the agent has. Returns the id of the request with the task."""
        agents = self._targets(request)
        if len(agents) != 1:
            error = UnknownTarget("a task is one agent's", hint="name that agent as the one target")
            raise self._dropped(request, "target_unresolved", error)
        (agent,) = agents
        if (holder := await self._tracker.find_holder(agent, task_id)) is not None:
            return await self._answer(request, holder)
        last = await self._ledger.last_outcome(agent, task_id=task_id)
        last_record = await self._ledger.request(last.correlation_id) if last is not None else None
        if not self._tracker.claim(agent, task_id, request.correlation_id):  # before a byte leaves: one of two wins
            raise self._busy(
                request, self._tracker.find(agent, task_id) or ""
            )  # by another follow-up, while the ledger was read
        try:
            await self._record([follow_up(self._one(request, agent), last, last_record)], None)
        except BaseException:
            self._tracker.release(agent, task_id, request.correlation_id)
            raise
        return request.correlation_id

    async def _answer(self, request: SkillRequest, holder: str) -> str:
        """Answer the question of the open request that has the task."""
        track = await self._tracker.find_track(holder)
        if track is None or track.asking.question is None:
            raise self._busy(request, holder)
        answer = Answer(
            question_id=track.asking.question.question_id,
            text=request.text,
            by=request.system_actor,
            parts=request.parts,
            metadata=request.metadata,
        )
        try:
            await self._tracker.answer(answer)
        except UnknownTarget:
            raise self._busy(request, holder) from None
        except QuestionNotOpenYet as error:
            raise self._dropped(request, "task_busy", error) from None
        return holder

    def _busy(self, request: SkillRequest, holder: str) -> FleetsimError:
        why = f"task {request.task_id} belongs to request {holder}, which is under way and asks for nothing now"
        return self._dropped(request, "task_busy", TaskBusy(why, hint=f"wait for it: fleetsim task get {holder}"))

    async def submit_run(self, requests: Sequence[SkillRequest], run: RunRecord) -> bool:
        """Accept a ceremony's children and its slot in one transaction; False if the slot was taken."""
        records = [record for request in requests for record in self.plan(request, child=True)]
        return await self._record(records, run)

    def _targets(self, request: SkillRequest) -> tuple[str, ...]:
        """The agents that a request goes to. Raises the errors of ``submit``."""
        if not self.accepting:
            raise self._dropped(request, "closing", NotAccepting("the hub is closing and takes no new work"))
        try:
            check_text(request.text, "the text", self._tracker.rules.text_chars_max or TEXT_CHARS_MAX)
            require_parts(request.parts, request.metadata)
        except TooMuchText as error:
            raise self._dropped(request, "too_long", error) from None
        except FleetsimError as error:
            raise self._dropped(request, "too_large", error) from None
        try:
            avoid = self._routes.came_through(request)
            access = self._access(request) if self._routes.lists else None
            return self._registry.resolve(request.skill, request.targets, avoid, access)
        except UnknownTarget as error:
            raise self._dropped(request, "target_unresolved", error) from None

    def plan(self, request: SkillRequest, *, child: bool = False) -> list[RequestRecord]:
        """The records a request becomes: one per target, children of one parent if there are several."""
        agents = self._targets(request)
        if len(agents) == 1 or child:
            return [self._one(request, agent) for agent in agents]
        parent = request.correlation_id
        return [
            self._one(replace(request, correlation_id=self._runtime.ids.new(), parent_id=parent), agent)
            for agent in agents
        ]

    def _one(self, request: SkillRequest, agent: str) -> RequestRecord:
        try:
            route = self._routes.route(agent, request, webhooks=agent not in self._tracker.push_watch.refusing)
        except UnknownTarget as error:
            raise self._dropped(request, "target_unresolved", error) from None
        skill = request.skill or route.skill
        if (policy := self.policies.get((agent, skill))) is not None:
            route = self._by_policy(route, request, policy)
        self._cool_down(request, agent, skill)
        now = self._runtime.clock.now()
        rules = self._tracker.rules
        configured = rules.skill_limits_s.get(skill, rules.task_limit_s)
        limit, limits = request.timeout_s or configured, self._limits
        record = RequestRecord(
            **asdict(route) | {"skill": skill, "hint": route.hint or ""},
            request=replace(request, targets=(agent,), skill=skill),
            accepted_at=now,
            deadline_at=now + timedelta(seconds=limit),
            shortened=limit < configured,
            message_id=self._runtime.ids.new(),
            token_epoch=self._tokens.current,
        )
        return replace(record, bookings=limits.bookings(record)) if limits and limits.limits else record

    def _by_policy(self, route: AgentRoute, request: SkillRequest, policy: SkillEntry) -> AgentRoute:
        """The route with the pauses and the fallback of agents.yaml. A fallback's own policy has no effect."""
        others: list[AgentRoute] = []
        for name in policy.fallback if request.task_id is None and request.context_id is None else ():
            if name == request.dispatcher_agent:  # it gave the work away
                continue
            with suppress(UnknownTarget):  # it takes no work now
                access = self._access(request) if self._routes.lists else None
                self._registry.resolve(request.skill, (name,), self._routes.came_through(request), access)
                other = self._routes.route(name, request, webhooks=name not in self._tracker.push_watch.refusing)
                others.append(replace(other, skill=request.skill or other.skill, hint=other.hint or ""))
        repeats = policy.retry is not None and OutcomeKind.UNDELIVERABLE in policy.retry.on
        waits_s = policy.retry.waits_s if policy.retry is not None and repeats else None
        return replace(route, retry_waits_s=waits_s, fallback=tuple(others))

    def _cool_down(self, request: SkillRequest, agent: str, skill: str) -> None:
        """Refuse a skill that was asked of the agent too recently. Raises UnknownTarget."""
        last = self._last.get((agent, skill))
        if last is None:
            return
        left = last + self.cooldowns_s.get(skill, 0.0) - self._runtime.clock.monotonic()
        if left > 0:
            error = UnknownTarget(f"cooldown: {skill} at {agent} may be asked again in {left:.1f} s")
            raise self._dropped(request, "cooldown", error)

    def note_elsewhere(self, event: RequestAccepted) -> None:
        """Another hub accepted a request: its skill cools down here, too."""
        if event.agent is not None and event.skill is not None and event.skill in self.cooldowns_s:
            self._last[event.agent, event.skill] = self._runtime.clock.monotonic()

    async def _record(self, records: Sequence[RequestRecord], run: RunRecord | None) -> bool:
        try:
            accepted = await self._accepted(records, run)
        except OverLimit as error:
            if self._limits is None or not await self._limits.may_wait(error, self._tracker):
                error.retry_after_s = max(0.0, (error.resets_at - self._runtime.clock.now()).total_seconds())
                raise self._dropped(records[0].request, "limit", error) from None
            why = f"it waited for room: {error}"
            records = [replace(r, bookings=(), held=True, warnings=(*r.warnings, why)) for r in records]
            accepted = await self._accepted(records, run)
        if not accepted:
            return False
        for record in records:
            self._events.publish(RequestAccepted.of(record.request, agent=record.agent, skill=record.skill))
            self._tracker.begin(record)
        return True

    async def _accepted(self, records: Sequence[RequestRecord], run: RunRecord | None) -> bool:
        """Record in the ledger. The skills cool down from before the write, so that one of two concurrent requests is
        refused; a failed write ends that cooldown."""
        now = self._runtime.clock.monotonic()
        cooling = {(r.agent, r.skill): now for r in records if r.skill in self.cooldowns_s}
        before = {key: self._last[key] for key in cooling if key in self._last}
        self._last |= cooling
        accepted = False
        try:
            accepted = await self._ledger.accept(records, run=run)
        finally:
            if not accepted:
                for key in cooling:
                    del self._last[key]
                self._last |= before
        return accepted

    def _dropped(self, request: SkillRequest, why: str, error: FleetsimError) -> FleetsimError:
        self._events.publish(
            RequestRefused(
                correlation_id=request.correlation_id,
                skill=request.skill,
                reason=why,
                message=str(error),
                targets=request.targets,
            )
        )
        return error
