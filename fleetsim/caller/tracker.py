"""The tracker drives every track: it passes signals to ``step`` and carries out the effects.

``step`` decides everything. Signals are applied one at a time, without waiting; whatever waits (a send, a poll, a
commit) runs as a named worker and ends in a signal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from msgspec.structs import replace

from fleetsim.caller.executor import Executor
from fleetsim.caller.poll_turns import POLLS_PER_S, LatenessListener, PollTurns
from fleetsim.caller.record_writer import RecordWriter
from fleetsim.caller.webhooks import EarlyLimits, EarlyWebhooks, PushWatch
from fleetsim.events.fleet import WebhooksDegraded
from fleetsim.events.log import EventLog, publish_outcome
from fleetsim.ledger import EarlyWebhook, Ledger, LedgerBroken
from fleetsim.model.asking import check_answer, in_form, question_parts
from fleetsim.model.errors import (
    FleetsimError,
    NotAccepting,
    QuestionNotOpenYet,
    TransportError,
    UnknownTarget,
)
from fleetsim.model.event import Snapshot
from fleetsim.model.limits import TEXT_CHARS_MAX, check_text
from fleetsim.model.parts import require_parts, weight_of
from fleetsim.model.task import TERMINAL, Task
from fleetsim.model.work import Answer, Cause, Decision, Outcome, OutcomeKind, Question, UpdateSource
from fleetsim.request.ending import outcome_of
from fleetsim.request.limits import raise_in, settlement
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    LOOK_WITHIN_S,
    Answered,
    Ask,
    Begin,
    Cancel,
    CancelAsked,
    CancelReplied,
    Close,
    Due,
    Effect,
    Found,
    Left,
    LookUpTask,
    Poll,
    Publish,
    PushRegistered,
    Recovered,
    RegisterPush,
    Replied,
    ResolveQuestion,
    Resume,
    Resumed,
    Save,
    Send,
    StreamEnded,
    Subscribe,
    TurnedAway,
    failed,
)
from fleetsim.request.track import Now, Rules, Signal, TaskUpdate, Timer, Track
from fleetsim.runtime import failpoints
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

LAST_WORDS_S = 3.0
"""The time that closing waits for replies, and that a stream may continue after the end of its request."""
_SENDS, _LOOKS = (Send, Subscribe, Resume), (Poll, LookUpTask, RegisterPush)
RECORD_PATIENCE_S = 2.0
"""The longest that a webhook's reply waits until the ledger has recorded its changes."""

log = logging.getLogger(__name__)


OutcomeListener: TypeAlias = Callable[[Outcome], object]
"""Receives every outcome when it is decided. The result is ignored."""


class Tracker:
    """Every request between acceptance and outcome. Use as ``async with``; it starts nothing by itself.

    ``settled`` get each decided outcome once, in order (health is one of them). ``open_tracks`` are the requests in
    flight by correlation id, oldest first; ``push_watch`` knows which agents refuse webhooks.
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: Executor,
        ledger: Ledger,
        events: EventLog,
        rules: Rules,
        *,
        settled: Iterable[OutcomeListener] = (),
        early: EarlyLimits | None = None,
        late: LatenessListener = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._ledger = ledger
        self._events = events
        self.rules = rules
        self._settled = list(settled)
        self._rng = runtime.rng.stream("tracker")
        self._workers = Workers("tracker")
        self.open_tracks: dict[str, Track] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiters: dict[str, asyncio.Future[Outcome]] = {}
        self._closing: dict[str, asyncio.Task[Any]] = {}
        self._calls: dict[tuple[str, type[Effect]], asyncio.Task[Any]] = {}
        self._broken: LedgerBroken | None = None
        self._writer = RecordWriter(ledger, events, self._workers, self.open_tracks, self.signal)
        self._poll_turns = PollTurns(runtime.clock, late)
        self.push_watch = PushWatch(events)
        self._early = EarlyWebhooks(ledger, early)
        self._by_task: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Requests by agent, then by task id."""
        self._ending = False

    # ------------------------------------------------------------------ outside

    def begin(self, record: RequestRecord) -> None:
        """Start a request that the ledger accepted."""
        cid = record.request.correlation_id
        self._open(cid, record)
        self.signal(cid, Begin())

    def recover(
        self,
        record: RequestRecord,
        question: Question | None = None,
        answer: Answer | None = None,
        *,
        early: Sequence[EarlyWebhook] = (),
        uncallable: str = "",
    ) -> None:
        """Resume a request after a restart, with its ``early`` webhooks. ``uncallable``: why it must end now."""
        cid = record.request.correlation_id
        self._open(cid, record)
        named = record.task.task_id if record.task is not None else record.request.task_id
        if named is not None:
            self._by_task[record.agent][named] = cid
        self._early.take_over(early)
        events = tuple(event for webhook in early for event in webhook.events)
        within_s = max(LOOK_WITHIN_S, len(self.open_tracks) / POLLS_PER_S)
        self.signal(cid, Recovered(question, answer, early=events, uncallable=uncallable, look_within_s=within_s))

    def _open(self, cid: str, record: RequestRecord) -> None:
        request = record.request
        self.open_tracks[cid] = new_track(record, self._moment())
        if (owner := request.source.user_id) is not None:
            size = len(request.text) + weight_of(request.parts, request.metadata)
            self._executor.accounts.open(owner, cid, size)

    def tracks(self) -> tuple[Track, ...]:
        """All open tracks, oldest first."""
        return tuple(self.open_tracks.values())

    def places(self) -> Counter[tuple[str, str]]:
        """The number of requests in flight by agent and the address that they were sent to."""
        return Counter((track.record.agent, track.record.sent_to) for track in self.open_tracks.values())

    def track(self, correlation_id: str) -> Track | None:
        return self.open_tracks.get(correlation_id)

    def questions(self) -> tuple[Question, ...]:
        """The open questions of this hub, oldest first."""
        return tuple(question for track in self.open_tracks.values() if (question := track.question) is not None)

    async def find_track(self, correlation_id: str) -> Track | None:
        """One open track, of any hub of the fleet."""
        return next(iter(await self.find_tracks((correlation_id,))), None)

    async def find_tracks(self, correlation_ids: Sequence[str]) -> list[Track]:
        """The open tracks of these requests, of any hub of the fleet."""
        return [track for cid in correlation_ids if (track := self.open_tracks.get(cid)) is not None]

    async def count_open(self) -> int:
        """The number of open requests of all hubs of the fleet."""
        return len(self.open_tracks)

    async def find_questions(self) -> tuple[Question, ...]:
        """The open questions of all hubs of the fleet, oldest first."""
        return self.questions()

    async def find_question(self, question_id: str) -> Question | None:
        """One open question, of any hub of the fleet. Raises QuestionNotOpenYet before it is on record."""
        asking = (track.asking for track in self.open_tracks.values())
        asked = next((a for a in asking if a.question and a.question.question_id == question_id), None)
        if asked is not None and not asked.recorded:
            raise QuestionNotOpenYet(f"question {question_id!r} is not open yet", hint="try again in a moment")
        return asked.question if asked is not None else None

    def kept(self) -> dict[str, int]:
        """The number of values kept for requests in flight, by name. All are 0 once every outcome is on record."""
        return {
            "tracks": len(self.open_tracks),
            "timers": len(self._timers),
            "waiters": len(self._waiters),
            "outcomes to record": len(self._closing),
            "calls": len(self._calls),
            "bound tasks": sum(map(len, self._by_task.values())),
            "writes": len(self._writer),
            "workers": len(self._workers),
        }

    async def wait(self, correlation_id: str) -> Outcome:
        """Wait for the outcome of an accepted request. Raises UnknownTarget for an unknown id, and NotAccepting if the
        outcome could not be recorded."""
        if correlation_id in self.open_tracks:
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            waiter = self._waiters.setdefault(correlation_id, asyncio.get_running_loop().create_future())
            return await asyncio.shield(waiter)
        outcome = await self._ledger.outcome(correlation_id)
        if outcome is None:
            raise UnknownTarget(f"no request {correlation_id!r} is known")
        return outcome

    async def answer(self, answer: Answer) -> Question:
        """Answer a question. Only the first answer is accepted.

        Raises:
            QuestionNotOpenYet: the question is not on record yet.
            UnknownTarget: the question is not open any more (answered, withdrawn or expired meanwhile).
            TooMuchText: the answer is longer than ``text_chars_max``.
            TooManyParts: its files, data and metadata are more than one message may carry.
            UnfitAnswer: its data does not fit the question's schema; the question stays open.
        """
        check_text(answer.text, "the answer", self.rules.text_chars_max or TEXT_CHARS_MAX)
        require_parts(answer.parts, answer.metadata)
        question = await self.find_question(answer.question_id)
        if question is not None:
            if answer.decision is Decision.ANSWER:
                check_answer(question.parts, answer.parts)
                if not question.task_id:
                    raise_in(answer.text)
            question = await self._ledger.answer(answer, self._runtime.clock.now())
        if question is None:
            raise UnknownTarget(
                f"question {answer.question_id!r} is not open any more", hint="look at `fleetsim inbox list`"
            )
        failpoints.reached("after_answer_before_resume")
        # For another hub's request this changes nothing: the ledger has passed the answer on to its owner.
        self.signal(question.correlation_id, Answered(answer=answer))
        return question

    async def cancel(self, correlation_id: str, *, by: str = "operator") -> None:
        """Request the cancel of a request. Raises UnknownTarget if it is not in flight."""
        if correlation_id not in self.open_tracks:
            raise UnknownTarget(f"no request {correlation_id!r} is in flight")
        self.signal(correlation_id, CancelAsked(by=by))

    def fail(self, error: LedgerBroken) -> None:
        """The ledger has failed for good: raise the error for every caller that waits for an outcome."""
        self._broken = error
        for correlation_id in list(self._waiters):
            self._resolve(correlation_id, error)

    def find(self, agent: str, task_id: str) -> str | None:
        """The open request that has an agent's task or claims it."""
        return self._by_task.get(agent, {}).get(task_id)

    async def find_holder(self, agent: str, task_id: str) -> str | None:
        """The same among the open requests of all hubs of the fleet."""
        return self.find(agent, task_id)

    def claim(self, agent: str, task_id: str, correlation_id: str) -> bool:
        """Claim an agent's task for a follow-up that is about to begin; False if an open request has it."""
        return self._by_task[agent].setdefault(task_id, correlation_id) == correlation_id

    def release(self, agent: str, task_id: str, correlation_id: str) -> None:
        """Withdraw a claim to a task."""
        if self.find(agent, task_id) == correlation_id:
            del self._by_task[agent][task_id]

    async def take_webhook(self, webhook: EarlyWebhook) -> bool:
        """Apply a verified webhook. Returns once it or its change is on record; True if it waits for the reply. Raises
        NotAccepting if it is not recorded, so that it must not be acknowledged."""
        self.push_watch.arrived(webhook.agent)
        cid, began = webhook.correlation_id, self._runtime.clock.monotonic()
        track = self.open_tracks.get(cid)
        overtook_reply = track is not None and track.awaits_reply
        if track is not None and overtook_reply:
            early_updates = [update.event for update in track.sending.early]
            if all(event in early_updates for event in webhook.events):
                return True  # a repeat of one that is recorded
            await self._early.keep(webhook)
        for event in webhook.events:
            self.signal(cid, TaskUpdate(event=event, via=UpdateSource.PUSH, began=began))
        if overtook_reply and (track := self.open_tracks.get(cid)) is not None and track.awaits_reply:
            return True  # and the reply has still not arrived
        await self._recorded(cid)
        return False

    def turned_away(self, correlation_id: str) -> None:
        """The hub refused a webhook of this request: poll the task, since the update may be lost."""
        self.signal(correlation_id, TurnedAway())

    async def _recorded(self, correlation_id: str) -> None:
        """Return once the ledger has recorded the current state of a request. Raises NotAccepting if the storage
        refuses it for now; the hub keeps it in memory and repeats the write."""
        closing = self._closing.get(correlation_id)
        if closing is not None:
            done, _ = await asyncio.wait([closing], timeout=RECORD_PATIENCE_S)
            if not done:
                raise NotAccepting("the outcome could not be recorded yet")
            if closing.cancelled() or closing.exception() is not None:
                raise NotAccepting("the outcome could not be recorded")
        else:
            await self._writer.save_now(correlation_id)

    def require_lease(self) -> None:
        """Raise NotAccepting if another hub may own the requests by now: then this one must not call their agents."""

    # ------------------------------------------------------------------ signals and effects

    def signal(self, correlation_id: str, signal: Signal) -> None:
        """Apply one signal now. Signals for requests that are gone are dropped."""
        now, track = self._moment(), self.open_tracks.get(correlation_id)
        if track is None:
            return
        new, effects = step(track, signal, now, self.rules)
        had, task = track.record.task, new.record.task
        if task is not None and (had is None or had.task_id != task.task_id) and not self._bind(new, had, task):
            outcome = outcome_of(
                new,
                now,
                kind=OutcomeKind.PROTOCOL_ERROR,
                reason="the agent answered with a task id that belongs to another request",
                cause=Cause.PROTOCOL,
                rates=self.rules.rates,
            )
            new, effects = replace(new, outcome=outcome, timers={}), (Close(outcome=outcome),)
        self.open_tracks[correlation_id] = new
        self._set_timer(correlation_id, new)
        self._carry_out(correlation_id, new, effects)

    def _set_timer(self, cid: str, track: Track) -> None:
        """One timer of the loop for each track: it signals ``Due`` when the first of the track's timers expires."""
        due, timer = min(track.timers.values(), default=None), self._timers.get(cid)
        if timer is not None:
            if timer.when() == due:
                return
            self._timers.pop(cid).cancel()
        if due is not None and not self._ending:
            self._timers[cid] = asyncio.get_running_loop().call_at(due, self._due, cid)

    def _due(self, cid: str) -> None:
        del self._timers[cid]
        self.signal(cid, Due())

    def _moment(self) -> Now:
        clock = self._runtime.clock
        return Now(clock.monotonic(), clock.now(), self._rng.random())

    def _bind(self, track: Track, had: Task | None, task: Task) -> bool:
        """Bind (agent, task id) to this open request. A second request on the same task is the agent's fault (F-20).

        A follow-up claimed its task before it began; if the agent started another task, it is bound to that one.
        """
        request, agent = track.record.request, track.record.agent
        claimed = request.task_id if had is None else had.task_id
        if claimed is not None and claimed != task.task_id:
            self.release(agent, claimed, request.correlation_id)
        return self.claim(agent, task.task_id, request.correlation_id) or not task.task_id

    def _carry_out(self, cid: str, track: Track, effects: Iterable[Effect]) -> None:
        record = track.record
        for effect in effects:
            match effect:
                case Publish(event=WebhooksDegraded()) if self.push_watch.refused(record.agent):
                    pass  # the first refusal is on record
                case Publish(event=event):
                    self._events.publish(
                        event,
                        correlation_id=cid,
                        parent_id=record.request.parent_id,
                        agent=record.agent,
                        skill=record.skill,
                        task_id=record.task.task_id if record.task else None,
                    )
                case Save():
                    self._writer.save(cid)
                case Ask() | ResolveQuestion():
                    self._writer.write_question(record, effect)
                case Close(outcome=outcome):
                    # A send that waits for a slot must not leave, and no reply is awaited.
                    ends = _LOOKS if track.streaming.open and track.asking.answer is None else (*_LOOKS, *_SENDS)
                    for call in self._under_way(cid, *ends):
                        call.cancel()
                    self._closing[cid] = self._workers.start(self._close(track, outcome), name=f"close:{cid}")
                case _:
                    self._reach_out(cid, record, effect)

    def _reach_out(self, cid: str, record: RequestRecord, effect: Effect) -> asyncio.Task[None]:
        """Start a worker that carries out an effect, charged to the agent, for the request ``record``."""
        work = self._executor.accounts.charged(record.agent, self._call(cid, record, effect))
        worker = self._workers.start(work, name=f"{type(effect).__name__.lower()}:{cid}")
        if not isinstance(effect, Cancel):  # it leaves when the request ends; any other call ends with it
            self._calls[key := (cid, type(effect))] = worker
            # The request may follow its task for days; a worker that is over is not kept for that long.
            worker.add_done_callback(lambda done: self._calls.pop(key) if self._calls.get(key) is done else None)
        return worker

    def _under_way(self, cid: str, *kinds: type[Effect]) -> list[asyncio.Task[Any]]:
        calls = [self._calls.get((cid, kind)) for kind in kinds]
        return [call for call in calls if call is not None and call is not asyncio.current_task()]

    async def _call(self, cid: str, record: RequestRecord, effect: Effect) -> None:
        """Carry out an effect that calls the agent. Every failure ends in a signal: no request waits forever."""
        executor, clock = self._executor, self._runtime.clock
        began, silent = clock.monotonic(), True
        try:
            if isinstance(effect, Cancel | RegisterPush):
                self.require_lease()
            match effect:
                case Send(stream=True):
                    async with AsyncExitStack() as stack:
                        async with executor.slot(record):  # held only until the first byte of the reply
                            message = await executor.as_asked_for(record)
                            await self._record_departure(cid, record)
                            events = await stack.enter_async_context(executor.stream(message))
                        async for event in events:
                            silent = False
                            self.signal(cid, TaskUpdate(event=event, via=UpdateSource.STREAM, began=clock.monotonic()))
                    self.signal(cid, StreamEnded())
                case Send():
                    async with executor.slot(record):
                        message = await executor.as_asked_for(record)
                        await self._record_departure(cid, record)
                        reply = await executor.send(message)
                    failpoints.reached("after_send_before_bind")
                    self.signal(cid, Replied(reply=reply, began=began))
                case Subscribe():
                    async with executor.subscribe(record) as events:
                        async for event in events:
                            self.signal(cid, TaskUpdate(event=event, via=UpdateSource.STREAM, began=clock.monotonic()))
                    self.signal(cid, StreamEnded())
                case Poll():
                    if record.task is None or record.task.state not in TERMINAL:  # else only its result is missing
                        await self._poll_turns.next(len(self.open_tracks) / self.rules.poll_interval_s)
                    track = self.open_tracks.get(cid)
                    if track is None or track.outcome is not None:  # the request ended while its poll waited
                        return
                    self._poll_turns.note(track.polling.began)
                    task = await executor.poll(track.record)
                    failpoints.reached("after_poll_before_hear")
                    self.signal(cid, TaskUpdate(event=Snapshot(task=task), via=UpdateSource.POLL, began=began))
                case LookUpTask() if executor.searchable(record):
                    self.signal(cid, Found(task=await executor.find(record)))
                case LookUpTask():
                    self.signal(cid, Found(task=None, possible=False))
                case RegisterPush():
                    await executor.register_push(record)
                    self.signal(cid, PushRegistered())
                case Resume(answer=answer):
                    text, parts = in_form(question_parts(record.task), answer.text, answer.parts)
                    async with executor.slot(record, breaks=False):
                        self.require_lease()  # it may have waited long for the slot
                        self.signal(cid, Left())
                        reply = await executor.resume(record, replace(answer, text=text, parts=parts))
                    failpoints.reached("after_resume_before_bind")
                    self.signal(cid, Resumed(reply=reply, began=began))
                case Cancel():
                    self.signal(cid, CancelReplied(task=await executor.cancel(record), began=began))
                case _:
                    raise TypeError(f"{effect} does not reach out to an agent")
        except FleetsimError as error:
            self.signal(cid, failed(effect, error, silent))
        except Exception as error:
            log.error("a call to an agent ended in an unforeseen way", exc_info=error)
            unforeseen = TransportError(f"an unforeseen {type(error).__name__}; the log has it", sent=True)
            self.signal(cid, failed(effect, unforeseen, silent))

    async def _record_departure(self, cid: str, record: RequestRecord) -> None:
        """Record that the request may have left, before its first byte does; first on the track, for later records."""
        self.signal(cid, Left())
        track = self.open_tracks.get(cid)
        await self._ledger.update(replace(track.record if track else record, phase=Phase.SENDING))
        self.require_lease()
        failpoints.reached("before_send")

    # ------------------------------------------------------------------ the end of a request

    async def _close(self, track: Track, outcome: Outcome) -> None:
        """Record the outcome, then notify. Only the call that decided notifies (I-01, I-04)."""
        failpoints.reached("before_close")
        try:
            bookings = track.record.bookings
            if bookings:
                bookings = settlement(bookings, outcome, sent=track.record.phase is not Phase.INTENT)
            decided = await self._writer.close(outcome, bookings)
        except Exception as error:
            # The request is open in the ledger: the next start resumes it.
            self._forget(track)
            refusal = error if isinstance(error, FleetsimError) else NotAccepting("the outcome could not be recorded")
            self._resolve(outcome.correlation_id, refusal)
            if isinstance(error, LedgerBroken):  # the hub reports that once, and stops
                return
            raise
        failpoints.reached("after_close_before_tell")
        self._forget(track)
        if not decided:
            try:
                self._resolve(outcome.correlation_id, await self._ledger.outcome(outcome.correlation_id) or outcome)
            except NotAccepting as error:  # a shared ledger can be cut off between the two
                self._resolve(outcome.correlation_id, error)
            return
        self.push_watch.ended(track, outcome)
        publish_outcome(self._events, outcome, track.record.declared)
        for listener in self._settled:
            listener(outcome)
        self._resolve(outcome.correlation_id, outcome)

    def _forget(self, track: Track) -> None:
        record = track.record
        cid = record.request.correlation_id
        self.open_tracks.pop(cid, None)
        self._executor.accounts.close(cid)
        if (timer := self._timers.pop(cid, None)) is not None:
            timer.cancel()
        self._closing.pop(cid, None)
        for call in self._under_way(cid, *_SENDS):
            asyncio.get_running_loop().call_later(LAST_WORDS_S, call.cancel)
        for task_id in (record.request.task_id, record.task.task_id if record.task is not None else None):
            if task_id is not None:
                self.release(record.agent, task_id, cid)
        self._writer.forget(cid)
        self._early.forget(cid)

    def _resolve(self, correlation_id: str, outcome: Outcome | FleetsimError) -> None:
        waiter = self._waiters.pop(correlation_id, None)
        if waiter is None or waiter.done():
            return
        if isinstance(outcome, Outcome):
            waiter.set_result(outcome)
        else:
            waiter.set_exception(outcome)
            waiter.exception()  # marks the error as retrieved: the caller that waited may be gone

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Tracker:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True  # later updates are recorded and set no timer
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._last_words()
        await self._workers.close()
        for waiter in self._waiters.values():
            waiter.cancel()
        await self._writer.flush()

    async def _last_words(self) -> None:
        """Wait for replies under way: without its reply a request would end as unknown after the restart (F-46)."""
        for _ in range(round(LAST_WORDS_S / 0.05)):
            flying = (
                t
                for t in self.open_tracks.values()
                if (t.sending.in_air and t.task is None) or (t.asking.answer and Timer.RESUME not in t.timers)
            )
            if not any(t.outcome is None for t in flying) and not self._closing:
                return
            await asyncio.sleep(0.05)
