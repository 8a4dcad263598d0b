"""The hub as an A2A agent: one agent in front of the whole fleet, with the fleet's skills.

It uses the reference agent's engine with one skill function, which passes each task to the dispatcher and follows its
request: text is forwarded as it arrives, a question becomes the task's question, an outcome ends the task. A task
carries the correlation id of its request from its creation, so that they find each other after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.agent import Agent, Engine
from fleetsim.agent.endpoints import MAX_AGE_S, CardEndpoint, HttpJsonEndpoint, RpcEndpoint
from fleetsim.agent.guard import API_KEY_HEADER, Authenticator, Headers, RequestGuard, problem_of
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import CallerContext, Interceptor, Operations, Reply
from fleetsim.agent.skills import Skill, SkillContext, SkillFailed, SkillRejected
from fleetsim.agent.streams import Watch
from fleetsim.agent.tasks import TaskKey
from fleetsim.caller.account import Accounts
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.shared_tracker import LOOK_S
from fleetsim.caller.tracker import Tracker
from fleetsim.events.log import EventLog, Subscription
from fleetsim.fleet.cards import AgentView, CardBroker
from fleetsim.fleet.registry import CameThrough
from fleetsim.hub.endpoints import A2A_PATH
from fleetsim.hub.fleet import CurrentFleet
from fleetsim.hub.keys import ADMIN, Keyring, Principal
from fleetsim.hub.ownership import Ownership
from fleetsim.hub.shared_tasks import AnyHub, SharedTasks
from fleetsim.ledger import Ledger, SharedLedger
from fleetsim.model.call import Call, CancelTask, ListTasks, SendMessage, SubscribeToTask, TaskPage
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import FleetsimError, InvalidParams, NotAccepting, TaskNotFound, UnfitAnswer, UnknownTarget
from fleetsim.model.extensions import CAUSE_KEY, HUBS_HEADER, HUBS_KEY, HUBS_MAX, hub_extension, hubs_in, hubs_of
from fleetsim.model.task import INTERRUPTED, TERMINAL, Message, Role, TaskState, TextPart
from fleetsim.model.text import one_line
from fleetsim.model.work import Answer, Cause, Outcome, OutcomeKind, Question, QuestionKind, SkillRequest, Source
from fleetsim.request.track import Track
from fleetsim.runtime.inbound import Refusal
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

T = TypeVar("T")

OWNER = "admin"
"""The owner of tasks made with the hub's own key; no agent can have this name (``keys.RESERVED``)."""

CORRELATION_KEY = "correlationId"
TASK_LIFE_S = 30 * 24 * 3600.0
"""Requests have their own limits; this one ends tasks that lost their request."""

_OURS = frozenset({"skillHint", "skillId", CORRELATION_KEY, "parentId", "a2a.trace"})
"""Metadata of the caller for this hub; the agent behind the hub gets the hub's values."""

_WRONG = {CAUSE_KEY: Cause.REQUEST_WRONG.value}

_DESCRIPTION_CHARS = 500
_TURNS_LOOKED_AT = 10


class KeyringCallers(Authenticator):
    """Accepts the hub's own key and the keys of agents."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__(api_keys={}, bearers={})
        self._keyring = keyring

    @property
    def open(self) -> bool:
        return False

    def admit(self, headers: Headers) -> str | None:
        principal = self._keyring.principal(headers)
        return None if principal is None or principal.person else principal.agent or OWNER

    def schemes(self) -> dict[str, dict[str, Any]]:
        return {
            "apiKey": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER},
            "bearer": {"type": "http", "scheme": "bearer"},
        }

    def challenge(self) -> str:
        return "Bearer"


class HubAgent:
    """The hub's A2A endpoint. ``async with`` resumes its tasks from the ``state`` file, if there is one."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        dispatcher: Dispatcher,
        tracker: Tracker,
        ledger: Ledger,
        events: EventLog,
        broker: CardBroker,
        keyring: Keyring,
        accounts: Accounts,
        fleet: CurrentFleet,
        state: Path | None = None,
    ) -> None:
        self._broker, self._tracker, self._fleet, self._keyring = broker, tracker, fleet, keyring
        self._accounts, self._workers = accounts, Workers("a2a")
        self._proxy = proxy = FleetProxy(dispatcher, tracker, ledger, events, broker, fleet, accounts, self._workers)
        self._shared = shared = (
            SharedTasks(ledger, ledger.tasks, lambda: self._engine, self._workers, state)
            if isinstance(ledger, SharedLedger) and ledger.tasks is not None
            else None
        )
        skill = proxy.skill
        agent = Agent(
            "fleetsim",
            runtime=runtime,
            description="A fleet of agents behind one address: an agent that offers the skill does the work",
            skills=(skill,),
            offers=lambda: proxy.skills(broker.views()),
            choose=lambda *_: skill,  # the dispatcher selects the agent, because it knows the current offers
            callers=KeyringCallers(keyring),
            path=A2A_PATH,
            state=state if shared is None else lambda _read: shared,
            task_metadata=lambda: {CORRELATION_KEY: runtime.ids.new()},
            resumes=True,
            limits=AgentLimits(task_life_s=TASK_LIFE_S),
        )
        self._engine = proxy.engine = agent.engine()
        settings = agent.settings
        guard = RequestGuard(settings.authenticator(), settings.limits)
        self._rpc, self._http = RpcEndpoint(guard, settings), HttpJsonEndpoint(guard, settings, aliases=False)
        self._public = CardEndpoint(lambda url: self._as_hub(self._engine.card(url)), None, A2A_PATH)

    def _extended(self, principal: Principal) -> CardEndpoint:
        return CardEndpoint(lambda url: self._as_hub(self._engine.card(url, extended=True), principal), None, A2A_PATH)

    def _as_hub(self, card: AgentCard, principal: Principal = ADMIN) -> AgentCard:
        """The card, with the hub's id and address, and the skills that exist for the principal."""
        if self._fleet.access(principal.caller) is not None:
            skills = self._proxy.skills(self._fleet.views(principal.caller))
            card = structs.replace(card, skills=tuple(skill.card_entry() for skill in skills))
        extensions = (*card.capabilities.extensions, hub_extension(self._fleet.hub_id))
        base = self._fleet.public_url
        interfaces = card.interfaces
        if base is not None:
            interfaces = tuple(structs.replace(interface, url=base.rstrip("/") + A2A_PATH) for interface in interfaces)
        capabilities = structs.replace(card.capabilities, extensions=extensions)
        return structs.replace(card, interfaces=interfaces, capabilities=capabilities)

    # ------------------------------------------------------------------ endpoints

    async def a2a(self, request: Request) -> Response:
        """A call in any dialect."""
        return await self._answer(request, self._rpc)

    async def a2a_post(self, request: Request) -> Response:
        """A call over HTTP+JSON; at the address with a slash added, the same as without."""
        return await self._answer(request, self._http if request.path_params["path"] else self._rpc)

    async def a2a_get(self, request: Request) -> Response:
        """A call over HTTP+JSON that reads, or removes a webhook."""
        return await self._answer(request, self._http)

    a2a_delete = a2a_get

    async def _answer(self, request: Request, endpoint: RpcEndpoint | HttpJsonEndpoint) -> Response:
        await self._engine.start(self._public.url_for(request))
        operations = self._engine.operations if self._shared is None else AnyHub(self._engine, self._shared)
        guard = CallGuard(self._proxy, operations, self._accounts, request.headers.get(HUBS_HEADER), self._as_hub)
        return await endpoint.answer(request, guard)

    async def agent_card(self, request: Request) -> Response:
        """The public card; with a key the extended one, since many clients read no other address."""
        known = self._keyring.principal(request.headers.raw)
        response = await (self._extended(known) if known else self._public).answer(request)
        for name in [name for name in response.headers if name.startswith("access-control-")]:
            del response.headers[name]  # a web page must not learn that a hub runs here
        response.headers["cache-control"] = f"private, max-age={MAX_AGE_S}"
        response.headers["vary"] += f", Authorization, {API_KEY_HEADER}"
        return response

    agent_card_of_before = agent_card

    @property
    def ended_chars(self) -> int:
        """The characters that ended tasks keep in memory."""
        return self._engine.store.retention.ended_chars if self._engine.started else 0

    async def __aenter__(self) -> HubAgent:
        if self._engine.settings.state is not None:
            await self._engine.start()
            await self._cancel_again()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()
        await self._workers.close()

    def end_streams(self) -> None:
        """End streams and waiting calls before the hub stops; open tasks continue at its next start."""
        if self._engine.started:
            self._engine.store.end_streams()

    async def take_over(self) -> None:
        """Adopt the tasks of hubs that have ended, and execute what other hubs passed on. Raises NotAccepting."""
        if self._shared is not None and self._engine.started and (records := await self._shared.adopt()):
            self._engine.adopt(records)
            await self._cancel_again()

    async def take_calls(self) -> None:
        """Execute the calls about tasks of this hub that other hubs received. Raises NotAccepting."""
        if self._shared is not None and self._engine.started:
            guard = CallGuard(self._proxy, self._engine.operations, self._accounts, None, self._as_hub)
            await self._shared.take_calls(guard.call)

    def drop_all(self) -> None:
        """Forget every task of this hub, which lost its lease."""
        if self._shared is not None and self._engine.started:
            self._shared.release_all()

    async def _cancel_again(self) -> None:
        """Cancel a request whose task had ended when the hub died."""
        store = self._engine.store
        for entry in store.retention:
            cid = str(entry.metadata.get(CORRELATION_KEY))
            if entry.state in TERMINAL and self._tracker.track(cid) is not None:
                await self._tracker.cancel(cid, by=entry.key[0])


class CallGuard(Interceptor):
    """Check one incoming call: it must not have passed too many hubs, nor continue a task that does not wait, nor begin
    one more than its caller may have."""

    def __init__(
        self,
        proxy: FleetProxy,
        operations: Operations,
        accounts: Accounts,
        hubs: str | None,
        as_hub: Callable[[AgentCard, Principal], AgentCard],
    ) -> None:
        super().__init__(operations)
        self._proxy, self._engine, self._accounts = proxy, proxy.engine, accounts
        self._hubs, self._as_hub = hubs, as_hub

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(call, caller)
        if isinstance(reply, AgentCard):
            return self._as_hub(reply, _principal(caller.owner))
        if isinstance(reply, TaskPage) and isinstance(call, ListTasks):
            hidden = await self._proxy.hidden(caller.owner, call)
            tasks = tuple(task for task in reply.tasks if task.task_id not in hidden)
            reply = structs.replace(reply, tasks=tasks, total_size=reply.total_size - len(hidden))
        return reply

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, caller)
        watch.hidden = lambda: self._proxy.hides(watch.record.key)
        return watch

    async def before(self, call: Call, caller: CallerContext) -> Call:
        named = call.task_id or call.message.task_id if isinstance(call, SendMessage) else getattr(call, "task_id", "")
        if named and await self._proxy.hides((caller.owner, named)):
            raise TaskNotFound
        if isinstance(call, CancelTask):
            await self._proxy.cancel((caller.owner, call.task_id))
        if not isinstance(call, SendMessage):
            return call
        # The message keeps the metadata: only the message is on disk if the hub dies before the request is accepted.
        metadata = {**call.message.metadata, **call.metadata}
        try:
            hubs = max(hubs_in(self._hubs), hubs_of(metadata), key=len)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        if len(hubs) >= HUBS_MAX:
            raise InvalidParams(f"the request has passed {len(hubs)} hubs; the limit is {HUBS_MAX}")
        store, key = self._engine.store, (caller.owner, call.message.task_id or "")
        known = store.knows(key)
        if known and store.state(key) not in TERMINAL | INTERRUPTED:
            said = {earlier.message_id for earlier in store.read(key).task.history}
            if not call.message.message_id or call.message.message_id not in said:  # a repeated answer has no effect
                raise InvalidParams("the task is running and has no open question")
        if not key[1] or (caller.behaviour.client_names_task and not known):
            try:
                self._accounts.require_open("" if caller.owner == OWNER else caller.owner)
            except Refusal as refusal:
                raise problem_of(refusal) from None
        message = structs.replace(call.message, metadata={**metadata, **({HUBS_KEY: list(hubs)} if hubs else {})})
        return structs.replace(call, metadata={}, message=message)


class FleetProxy:
    """Does a task's work with the fleet, through the dispatcher. ``engine`` holds the tasks."""

    engine: Engine

    def __init__(
        self,
        dispatcher: Dispatcher,
        tracker: Tracker,
        ledger: Ledger,
        events: EventLog,
        broker: CardBroker,
        fleet: CurrentFleet,
        accounts: Accounts,
        workers: Workers,
    ) -> None:
        self._dispatcher, self._tracker, self._ledger, self._events = dispatcher, tracker, ledger, events
        self._broker, self._fleet, self._accounts = broker, fleet, accounts
        self._ownership = Ownership(tracker, ledger, fleet)
        self.skill = Skill(skill_id="fleet", name="Fleet", run=self, cost=True, sure=True, public=False)
        self._workers = workers

    async def __call__(self, task: SkillContext) -> str | None:
        return await self._charged(task.caller, self._work(task))

    def skills(self, views: Iterable[AgentView]) -> Iterator[Skill]:
        """Every available skill once, as on the card of the first agent that offers it."""
        offered: dict[str, list[AgentView]] = {}
        for view in views:
            for skill_id in view.skills if view.entry.enabled else ():
                offered.setdefault(skill_id, []).append(view)
        for skill_id, by in offered.items():
            on_card = next((found for view in by if view.card and (found := view.card.skill(skill_id))), None)
            yield replace(
                self.skill,
                skill_id=skill_id,
                name=one_line(on_card.name, 128) if on_card else skill_id,
                description=one_line(on_card.description, _DESCRIPTION_CHARS) if on_card else "",
                tags=("routed", *(view.entry.name for view in by)),
            )

    def _charged(self, caller: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return self._accounts.charged("" if caller == OWNER else caller, work)

    async def _work(self, task: SkillContext) -> str | None:
        key = (task.caller, task.task_id)
        cid = str(self.engine.store.read(key).task.metadata[CORRELATION_KEY])
        try:
            if await self._ledger.request(cid) is None:
                hint = task.metadata.get("skillHint", task.metadata.get("skillId"))
                asked = SkillRequest(
                    correlation_id=cid,
                    text=task.message.text,
                    parts=tuple(part for part in task.message.parts if not isinstance(part, TextPart)),
                    skill=hint if isinstance(hint, str) and hint else None,
                    source=Source(interface="a2a"),
                    metadata={name: value for name, value in task.metadata.items() if name not in _OURS},
                    traceparent=task.traceparent,
                )
                asked = await self._place_before(task, key, asked)
                access = self._fleet.access(_principal(key[0]).caller)
                await self._broker.until_read(asked.skill, asked.targets, access)
                # Shielded: a cancel finds a request that was accepted, or one that never will be.
                submit = self._charged(task.caller, self._submit(asked, key))
                refused = await asyncio.shield(self._workers.start(submit, name=f"submit:{cid}"))
                if refused is not None:
                    raise refused
            outcome = await self._followed(task, key, cid)
        except asyncio.CancelledError:
            await self._cancel_if_over(key, cid)
            raise
        return await self._ended(task, key, outcome)

    async def _submit(self, request: SkillRequest, key: TaskKey) -> Exception | None:
        """Submit the request; returns the end of the skill if it was refused, else None."""
        try:
            stamped = await self._ownership.stamped(request, _principal(key[0]), given_id=False)
            await self._dispatcher.submit(stamped)
        except CameThrough as error:
            return SkillRejected(_in_words(error), metadata=_WRONG)
        except NotAccepting as error:
            return SkillFailed(_in_words(error))
        except FleetsimError as error:
            return SkillRejected(_in_words(error))
        await self._cancel_if_over(key, request.correlation_id)
        return None

    async def _place_before(self, task: SkillContext, key: TaskKey, request: SkillRequest) -> SkillRequest:
        """The request with the agent and the context of the caller's previous task in this conversation. Unchanged for
        a new conversation, or if that agent does not offer the skill."""
        service = self.engine.service
        caller = _principal(key[0]).caller
        before = [other for _, other in await service.places(key[0], context_id=task.context_id) if other != key]
        for other in before[:_TURNS_LOOKED_AT]:
            turn = await service.find(other)
            record = await self._ledger.request(str(turn.task.metadata.get(CORRELATION_KEY))) if turn else None
            if record is None or record.task is None:
                continue
            await self._broker.until_read(request.skill, (record.agent,), self._fleet.access(caller))
            view = next((view for view in self._fleet.views(caller) if view.entry.name == record.agent), None)
            if view is None or not view.entry.enabled:
                continue
            if request.skill is not None and request.skill not in view.skills:
                break
            return structs.replace(request, targets=(record.agent,), context_id=record.task.context_id)
        return request

    async def hides(self, key: TaskKey) -> bool:
        """Whether the request of a task is with an agent or a skill that does not exist for the task's owner now."""
        principal = _principal(key[0])
        if self._fleet.access(principal.caller) is None:
            return False
        found = await self.engine.service.find(key)
        return found is not None and await self._ownership.hides(principal, str(found.task.metadata[CORRELATION_KEY]))

    async def hidden(self, owner: str, call: ListTasks) -> set[str]:
        """The tasks among those listed that ``hides`` hides."""
        if self._fleet.access(_principal(owner).caller) is None:
            return set()
        chosen = {"context_id": call.context_id, "state": call.state, "changed_since": call.updated_after}
        return {key[1] for _, key in await self.engine.service.places(owner, **chosen) if await self.hides(key)}

    async def cancel(self, key: TaskKey) -> None:
        """Cancel the request of a task that is about to be canceled. Raises TaskNotCancelable if its agent refuses."""
        store = self.engine.store
        if store.knows(key) and store.state(key) not in TERMINAL:
            with suppress(UnknownTarget):
                await self._dispatcher.cancel(str(store.read(key).task.metadata[CORRELATION_KEY]), by=key[0])

    async def _cancel_if_over(self, key: TaskKey, cid: str) -> None:
        """Cancel the request of a cancelled task. While the hub stops, both stay open."""
        store = self.engine.store
        over = not store.knows(key) or store.state(key) in TERMINAL
        # A task that is not here may be another hub's, and goes on there with its request.
        if over and (await self._track(cid) if store.knows(key) else self._tracker.track(cid)) is not None:
            with suppress(UnknownTarget):
                await self._tracker.cancel(cid, by=key[0])

    async def _track(self, cid: str) -> Track | None:
        """The open request, of whichever hub; waits while the ledger cannot be read."""
        while True:
            try:
                return await self._tracker.find_track(cid)
            except NotAccepting:
                await asyncio.sleep(LOOK_S)

    async def _followed(self, task: SkillContext, key: TaskKey, cid: str) -> Outcome:
        """Forward the request's events until its outcome."""
        told = TaskProgress(task, self.engine.store.read(key).task.text)
        answered: set[str] = set()
        unfit: set[str] = set()
        async with self._events.subscribe(about=cid, everywhere=True) as heard:
            while (track := await self._track(cid)) is not None:
                question = track.question
                if question is not None and question.task_id and question.question_id not in answered:
                    if await self._asked(task, key, question, heard, unfit):
                        answered.add(question.question_id)
                    continue
                if self.engine.store.state(key) in INTERRUPTED:
                    self.engine.store.move(key, TaskState.WORKING)
                await told.of(track)
                await self._next(cid, heard)
        while True:
            try:
                return await self._tracker.wait(cid)
            except NotAccepting:
                await asyncio.sleep(LOOK_S)
            except FleetsimError as error:
                raise SkillFailed(_in_words(error)) from None

    async def _next(self, cid: str, heard: Subscription) -> None:
        """Wait for an event of the request; another hub's are looked for, should one be missed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._tracker.track(cid) is not None else LOOK_S):
                await heard.next_batch()

    # ------------------------------------------------------------------ questions

    async def _asked(
        self, task: SkillContext, key: TaskKey, question: Question, heard: Subscription, unfit: set[str]
    ) -> bool:
        """Ask the task's sender and forward the answer. False if the question is still open, or closed without one. A
        person may answer it elsewhere, or the agent may withdraw it; then the task continues. ``unfit`` has the
        messages that did not answer it."""
        said = self._said_before(key, question)
        if said is None or said.message_id in unfit:
            for listed in question.parts:
                if not listed.truncated:
                    name = f"{task.task_id}/question-{question.checkpoint}.{listed.index}"
                    await task.attach(listed.part, name=listed.artifact_name or "question", artifact_id=name)
            asking = self._workers.start(
                task.ask_message(question.text, auth=question.kind is QuestionKind.AUTH), name="ask"
            )
            over = self._workers.start(self._until_over(question, heard), name="question over")
            try:
                await asyncio.wait({asking, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asking.cancel()
                over.cancel()
            await asyncio.wait({asking, over})
            if asking.cancelled():
                return False
            said = asking.result()
        parts = tuple(part for part in said.parts if not isinstance(part, TextPart))
        answer = Answer(question_id=question.question_id, text=said.text, by=task.caller, parts=parts)
        try:
            await self._tracker.answer(answer)
        except UnfitAnswer as error:
            unfit.add(said.message_id)
            await task.status(_in_words(error))  # the question stays open and is asked again
            return False
        except UnknownTarget:
            return True  # a person answered elsewhere at the same moment
        except FleetsimError as error:
            raise SkillFailed(_in_words(error)) from None
        return True

    async def _until_over(self, question: Question, heard: Subscription) -> None:
        while True:
            track = await self._track(question.correlation_id)
            if track is None or track.question != question:
                return
            await self._next(question.correlation_id, heard)

    def _said_before(self, key: TaskKey, question: Question) -> Message | None:
        """The caller's answer that had not reached the question when the hub died."""
        history = self.engine.store.read(key).task.history
        # Our earlier questions are in the history; this one is, too, if their number equals its number.
        questions = sum(message.role is Role.AGENT for message in history)
        if len(history) < 3 or questions != question.checkpoint or history[-1].role is not Role.USER:
            return None
        return history[-1] if history[-2].role is Role.AGENT and history[-2].text == question.text else None

    # ------------------------------------------------------------------ the end

    async def _ended(self, task: SkillContext, key: TaskKey, outcome: Outcome) -> str | None:
        """End the task with the request's outcome: its text, artifacts and cost."""
        if (used := outcome.usage) is not None or outcome.cost_usd is not None:
            task.use(
                used.input_tokens if used else 0,
                used.output_tokens if used else 0,
                outcome.cost_usd,
                outcome.model,
                cache_creation_input_tokens=used.cache_creation_input_tokens if used else 0,
                cache_read_input_tokens=used.cache_read_input_tokens if used else 0,
            )
        if outcome.confidence is not None:
            task.confidence(outcome.confidence, outcome.confidence_explanation)
        for effect in outcome.effects:
            task.usage.add(effect)
        for listed in outcome.parts:
            if not listed.truncated:
                name = f"{task.task_id}/{listed.index}"
                await task.attach(listed.part, name=listed.artifact_name, artifact_id=name)
        if outcome.success:
            return outcome.text or None
        reason = outcome.reason or outcome.text or outcome.kind.value
        why = _WRONG if outcome.cause is Cause.REQUEST_WRONG else {}
        if outcome.kind is OutcomeKind.REJECTED:
            raise SkillRejected(reason, metadata=why)
        if outcome.kind is OutcomeKind.CANCELED:
            try:
                self.engine.store.finish(key, TaskState.CANCELED, reason=reason)
            except TaskNotFound:
                log.debug("task %s was released before its request was canceled", one_line(key[1], 128))
            return None
        raise SkillFailed(reason, metadata=why)


class TaskProgress:
    """The text of the agent that a task's reader has received; ``text`` is the last one."""

    def __init__(self, task: SkillContext, text: str) -> None:
        self._task, self._text, self._note = task, text, ""

    async def of(self, track: Track) -> None:
        """Send the new part. A text that does not continue the last one is sent whole, when it is final."""
        seen = track.task
        if seen is None or seen.terminal:
            return
        text = seen.text
        if len(text) > len(self._text) and text.startswith(self._text):
            more, self._text = text[len(self._text) :], text
            await self._task.say(more)
        note = seen.status.message.text if seen.status.message is not None else ""
        if note and note != self._note and seen.status.state is TaskState.WORKING:
            self._note = note
            await self._task.status(note)


def _principal(owner: str) -> Principal:
    """The principal whose tasks have this owner."""
    return ADMIN if owner == OWNER else Principal(owner)


def _in_words(error: FleetsimError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)
