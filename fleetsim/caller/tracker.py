"""The tracker drives every track: it feeds signals to ``step`` and carries the effects out.

All decisions are ``step``'s. Signals are applied one at a time and at once (no waiting inside), so there
are no races to lose; what waits (a send, a poll, a commit) runs as a named worker and comes back as a
signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fleetsim.caller import effects
from fleetsim.caller.closing import publish_outcome
from fleetsim.caller.early import EarlyLimits, EarlyWebhooks
from fleetsim.caller.event_log import EventLog
from fleetsim.caller.events import Event, Excerpt, QuestionAsked, QuestionExpired, QuestionWithdrawn
from fleetsim.caller.executor import Executor
from fleetsim.caller.ledger import EarlyWebhook, Ledger, LedgerBroken, QuestionState, RequestRecord
from fleetsim.caller.part_rows import noted
from fleetsim.caller.poll_pacer import PollPacer
from fleetsim.caller.push_watch import PushWatch
from fleetsim.caller.record_writer import RecordWriter
from fleetsim.caller.signals import (
    Answered,
    Ask,
    Begin,
    CancelAsked,
    Close,
    Due,
    Effect,
    Poll,
    Publish,
    Recovered,
    ResolveQuestion,
    Save,
    Send,
    Signal,
    TurnedAway,
)
from fleetsim.caller.skill_policy import undeclared_effects
from fleetsim.caller.step import new_track, step
from fleetsim.caller.track import Now, Rules, TaskUpdate, Timer, Track
from fleetsim.model.asking import answer_schema, check_answer
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.event import TaskEvent
from fleetsim.model.limits import check_text
from fleetsim.model.parts import require_parts
from fleetsim.model.work import Answer, Decision, Outcome, Question, UpdateSource
from fleetsim.runtime.failpoints import failpoint
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

LAST_WORDS_S = 3.0
"""How long closing waits for sends and answers that are in the air: their replies are not thrown away."""

RECORD_PATIENCE_S = 2.0
"""How long a webhook may wait for what it changed to be on record."""


class Tracker:
    """Every request between acceptance and outcome. Use as ``async with``; it starts nothing by itself.

    ``settled`` are called once per decided outcome, in order (health is one of them).
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: Executor,
        ledger: Ledger,
        events: EventLog,
        rules: Rules,
        *,
        settled: Iterable[Callable[[Outcome], None]] = (),
        early: EarlyLimits | None = None,
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._ledger = ledger
        self._events = events
        self.rules = rules
        self._settled = list(settled)
        self._rng = runtime.rng.stream("tracker")
        self._workers = Workers("tracker")
        self._tracks: dict[str, Track] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiters: dict[str, asyncio.Future[Outcome]] = {}
        self._closing: dict[str, asyncio.Task[Any]] = {}
        self._sends: dict[str, asyncio.Task[Any]] = {}
        self._broken: LedgerBroken | None = None
        self._scribe = RecordWriter(ledger, events, self._workers, self._record_now)
        self._pace = PollPacer(self._workers)
        self._push_watch = PushWatch(events)
        self._early = EarlyWebhooks(ledger, early)
        self._on_record: set[str] = set()
        self._by_task: dict[tuple[str, str], str] = {}
        self._ending = False

    # ------------------------------------------------------------------ outside

    def begin(self, record: RequestRecord) -> None:
        """Take on a request that the ledger accepted."""
        self._tracks[record.request.correlation_id] = new_track(record, self._now())
        self.signal(record.request.correlation_id, Begin())

    def recover(
        self,
        record: RequestRecord,
        question: Question | None = None,
        answer: Answer | None = None,
        *,
        early: Sequence[EarlyWebhook] = (),
        uncallable: str = "",
    ) -> None:
        """Take a request up again after a restart; ``uncallable`` says why it can only be ended.

        ``early`` are the webhooks that the ledger kept for it.
        """
        cid = record.request.correlation_id
        self._tracks[cid] = new_track(record, self._now())
        named = record.task.task_id if record.task is not None else record.request.task_id
        if named is not None:
            self._by_task[record.agent, named] = cid
        if question is not None and answer is None:
            self._on_record.add(question.question_id)
        self._early.take_over(early)
        told = tuple(event for webhook in early for event in webhook.events)
        self.signal(cid, Recovered(question=question, answer=answer, early=told, uncallable=uncallable))

    def tracks(self) -> tuple[Track, ...]:
        """All open tracks, oldest first."""
        return tuple(self._tracks.values())

    def track(self, correlation_id: str) -> Track | None:
        """One open track."""
        return self._tracks.get(correlation_id)

    def questions(self) -> tuple[Question, ...]:
        """What agents wait for, oldest first; a question is shown once it is on record."""
        questions = (track.asking.question for track in self._tracks.values())
        return tuple(q for q in questions if q is not None and q.question_id in self._on_record)

    async def wait(self, correlation_id: str) -> Outcome:
        """The outcome of an accepted request, waiting for it if need be.

        Raises:
            UnknownTarget: no request has that id.
            NotAccepting: the outcome could not be recorded.
        """
        if correlation_id in self._tracks:
            if self._broken is not None:
                raise self._broken
            waiter = self._waiters.setdefault(correlation_id, asyncio.get_running_loop().create_future())
            return await asyncio.shield(waiter)
        outcome = await self._ledger.outcome(correlation_id)
        if outcome is None:
            raise UnknownTarget(f"no request {correlation_id!r} is known")
        return outcome

    async def answer(self, answer: Answer) -> Question:
        """Give a question its answer; it lands at most once.

        Raises:
            UnknownTarget: the question is not open (answered, withdrawn or expired meanwhile).
            TooMuchText: the answer is longer than ``text_chars_max``.
            TooManyParts: its files, data and metadata are more than one message may carry.
            UnfitAnswer: its data is not what the question's schema asks for; the question stays open.
        """
        check_text(answer.text, "the answer", self.rules.text_chars_max)
        require_parts(answer.parts, answer.metadata)
        questions = (track.asking.question for track in self._tracks.values())
        question = next((q for q in questions if q is not None and q.question_id == answer.question_id), None)
        if question is not None:
            if answer.decision is Decision.ANSWER:
                check_answer(question.parts, answer.parts)
            question = await self._ledger.answer(answer, self._runtime.clock.now())
        if question is None:
            raise UnknownTarget(
                f"question {answer.question_id!r} is not open any more", hint="look at `fleetsim inbox list`"
            )
        self._on_record.discard(question.question_id)  # the request may end before the answer's fate is known
        failpoint("after_answer_before_resume")
        self.signal(question.correlation_id, Answered(answer=answer))
        return question

    def cancel(self, correlation_id: str, *, by: str = "operator") -> None:
        """Ask for a request to be stopped. Raises UnknownTarget if it is not in flight."""
        if correlation_id not in self._tracks:
            raise UnknownTarget(f"no request {correlation_id!r} is in flight")
        self.signal(correlation_id, CancelAsked(by=by))

    def fail(self, error: LedgerBroken) -> None:
        """Nothing can be recorded any more: whoever waits for an outcome gets the error."""
        self._broken = error
        for correlation_id in list(self._waiters):
            self._resolve(correlation_id, error)

    def find(self, agent: str, task_id: str) -> str | None:
        """The open request that has an agent's task, or is about to."""
        return self._by_task.get((agent, task_id))

    def claim(self, agent: str, task_id: str, correlation_id: str) -> bool:
        """Give an agent's task to the follow-up that is about to begin; False if an open request has it."""
        return self._by_task.setdefault((agent, task_id), correlation_id) == correlation_id

    def release(self, agent: str, task_id: str, correlation_id: str) -> None:
        """Take a claim back."""
        if self._by_task.get((agent, task_id)) == correlation_id:
            del self._by_task[agent, task_id]

    async def hear_push(
        self, correlation_id: str, agent: str, events: Sequence[TaskEvent], *, body_bytes: int = 0
    ) -> bool:
        """A verified webhook. Returns once it, or what it changed, is on record; true if it waits for the reply.

        Raises:
            NotAccepting: it is not on record, and must not be acknowledged.
        """
        self._push_watch.arrived(agent)
        now, track = self._runtime.clock, self._tracks.get(correlation_id)
        if track is not None and track.awaits_reply:
            early_updates = [update.event for update in track.sending.early]
            if all(event in early_updates for event in events):
                return True  # told twice, and kept the first time
            webhook = EarlyWebhook(
                correlation_id=correlation_id,
                agent=agent,
                events=tuple(events),
                received_at=now.now(),
                body_bytes=body_bytes,
            )
            await self._early.keep(webhook)
        for event in events:
            self.signal(correlation_id, TaskUpdate(event=event, via=UpdateSource.PUSH, began=now.monotonic()))
        track = self._tracks.get(correlation_id)
        if track is not None and track.awaits_reply:
            return True
        await self._recorded(correlation_id)
        return False

    def turned_away(self, correlation_id: str) -> None:
        """A webhook of this request was not taken: what it would have told is owed a look."""
        self.signal(correlation_id, TurnedAway())

    async def _recorded(self, correlation_id: str) -> None:
        """Return once all that is believed of a request now is on record.

        Raises:
            NotAccepting: the storage does not take it yet; it is kept in memory and tried again.
        """
        closing = self._closing.get(correlation_id)
        if closing is not None:
            done, _ = await asyncio.wait([closing], timeout=RECORD_PATIENCE_S)
            if not done:
                raise NotAccepting("the outcome could not be recorded yet")
            if closing.cancelled() or closing.exception() is not None:
                raise NotAccepting("the outcome could not be recorded")
        elif (record := self._record_now(correlation_id)) is not None:
            await self._ledger.update(record)

    # ------------------------------------------------------------------ signals and effects

    def signal(self, correlation_id: str, signal: Signal) -> None:
        """Apply one signal now. Signals for requests that are gone are dropped."""
        track = self._tracks.get(correlation_id)
        if track is None:
            return
        new, effects = step(track, signal, self._now(), self.rules)
        self._tracks[correlation_id] = new
        if track.task is None and new.task is not None and not self._bind(new):
            return
        for effect in effects:
            self._carry_out(new, effect)
        self._rearm(new)

    def _bind(self, track: Track) -> bool:
        """(agent, task id) belongs to one open request; a second claim on it is the agent's fault (F-20).

        A follow-up claimed its task before it began; if the agent started another, that is the one it has.
        """
        assert track.task is not None
        asked = track.record.request.task_id
        if asked is not None and asked != track.task.task_id:
            self.release(track.record.agent, asked, track.correlation_id)
        key = (track.record.agent, track.task.task_id)
        owner = self._by_task.setdefault(key, track.correlation_id)
        if owner == track.correlation_id or not track.task.task_id:
            return True
        outcome = effects.stolen_task(track, self._now(), self.rules)
        self._tracks[track.correlation_id] = replace(track, outcome=outcome)
        self._carry_out(track, Close(outcome=outcome))
        return False

    def _carry_out(self, track: Track, effect: Effect) -> None:
        cid = track.correlation_id
        match effect:
            case Publish(event=event):
                self._publish(track, event)
            case Save():
                self._scribe.save(cid)
            case Ask(question=question):
                self._scribe.aside(cid, lambda: self._ask(question))
            case ResolveQuestion(question_id=question_id, state=state):
                self._scribe.aside(cid, lambda: self._settle(track, question_id, QuestionState(state)))
            case Close(outcome=outcome):
                if track.sending.in_air and (send := self._sends.get(cid)) is not None:
                    send.cancel()  # its time is over: what still waits for a slot must not leave any more
                self._closing[cid] = self._workers.start(self._close(track, outcome), name=f"close:{cid}")
            case Poll():
                self._pace.put(lambda: self._poll(cid))
            case _:
                self._reach_out(track, effect)

    def _poll(self, correlation_id: str) -> None:
        """Its turn has come; the request may have ended while it waited."""
        track = self._tracks.get(correlation_id)
        if track is not None and track.outcome is None:
            self._reach_out(track, Poll())

    def _reach_out(self, track: Track, effect: Effect) -> None:
        work = effects.work_for(
            effect, track, self._executor, self._ledger, self._runtime, self.signal, self._record_now
        )
        charged = self._executor.charged(track.record.agent, work)
        worker = self._workers.start(charged, name=f"{type(effect).__name__.lower()}:{track.correlation_id}")
        if isinstance(effect, Send):
            self._sends[track.correlation_id] = worker

    def _publish(self, track: Track, event: Event) -> None:
        record = track.record
        self._events.publish(
            replace(
                event,
                correlation_id=track.correlation_id,
                parent_id=record.request.parent_id,
                agent=record.agent,
                skill=record.skill,
                task_id=track.task.task_id if track.task else None,
            )
        )

    def _now(self) -> Now:
        clock = self._runtime.clock
        return Now(clock.monotonic(), clock.now(), self._rng.random())

    def _rearm(self, track: Track) -> None:
        cid = track.correlation_id
        timer, wake = self._timers.get(cid), track.wake
        if timer is not None:
            if wake is not None and timer.when() == wake:
                return
            timer.cancel()
            del self._timers[cid]
        if wake is not None and not self._ending:
            self._timers[cid] = asyncio.get_running_loop().call_at(wake, self._due, cid)

    def _due(self, correlation_id: str) -> None:
        self._timers.pop(correlation_id, None)
        self.signal(correlation_id, Due())

    # ------------------------------------------------------------------ memory

    def _record_now(self, correlation_id: str) -> RequestRecord | None:
        track = self._tracks.get(correlation_id)
        return track.record if track is not None else None

    async def _ask(self, question: Question) -> None:
        if not await self._scribe.until_recorded(lambda: self._ledger.ask(question)):
            return
        self._on_record.add(question.question_id)
        self._events.publish(
            QuestionAsked(
                correlation_id=question.correlation_id,
                agent=question.agent,
                skill=question.skill,
                task_id=question.task_id,
                question_id=question.question_id,
                kind=question.kind.value,
                asks_for_data=answer_schema(question.parts) is not None,
                parts=noted(question.parts),
                question=Excerpt.of(question.text, question.text_chars),
                expires_at=question.expires_at,
                checkpoint=question.checkpoint,
                context_id=question.context_id,
                system_actor=question.system_actor,
            )
        )

    async def _settle(self, track: Track, question_id: str, state: QuestionState) -> None:
        self._on_record.discard(question_id)
        await self._scribe.until_recorded(lambda: self._ledger.settle(question_id, state))
        if state in {QuestionState.EXPIRED, QuestionState.WITHDRAWN}:
            over = QuestionExpired if state is QuestionState.EXPIRED else QuestionWithdrawn
            self._events.publish(
                over(
                    correlation_id=track.correlation_id,
                    agent=track.record.agent,
                    skill=track.record.skill,
                    question_id=question_id,
                )
            )

    async def _close(self, track: Track, outcome: Outcome) -> None:
        """Decide, durably, then tell. Only the call that decided tells anybody (I-01, I-04)."""
        cid = track.correlation_id
        failpoint("before_close")
        try:
            decided = await self._scribe.until_recorded(lambda: self._ledger.close(outcome))
        except Exception as error:
            self._unrecorded(track, error)
            raise
        failpoint("after_close_before_tell")
        self._forget(track)
        if not decided:
            kept = await self._ledger.outcome(cid)
            self._resolve(cid, kept or outcome)
            return
        self._push_watch.ended(track, outcome)
        publish_outcome(self._events, outcome, drift=undeclared_effects(track.record.declared, outcome))
        for listener in self._settled:
            listener(outcome)
        self._resolve(cid, outcome)

    def _unrecorded(self, track: Track, error: Exception) -> None:
        """The outcome cannot be recorded. The ledger has the request open: the next start takes it up again."""
        if not isinstance(error, LedgerBroken):
            self._scribe.lost(track.correlation_id, "the outcome", error)
        self._forget(track)
        told = error if isinstance(error, FleetsimError) else NotAccepting("the outcome could not be recorded")
        self._resolve(track.correlation_id, told)

    def _forget(self, track: Track) -> None:
        cid = track.correlation_id
        self._tracks.pop(cid, None)
        self._closing.pop(cid, None)
        self._sends.pop(cid, None)
        self._scribe.forget(cid)
        self._early.forget(cid)
        if (timer := self._timers.pop(cid, None)) is not None:
            timer.cancel()
        for task_id in (track.record.request.task_id, track.task.task_id if track.task is not None else None):
            if task_id is not None:
                self.release(track.record.agent, task_id, cid)

    def _resolve(self, correlation_id: str, outcome: Outcome | FleetsimError) -> None:
        waiter = self._waiters.pop(correlation_id, None)
        if waiter is None or waiter.done():
            return
        if isinstance(outcome, Outcome):
            waiter.set_result(outcome)
        else:
            waiter.set_exception(outcome)
            waiter.exception()  # whoever waited may have gone: it is no lost error then

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Tracker:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True  # what is heard from here on is recorded, and makes nothing fall due any more
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._last_words()
        await self._workers.close()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.cancel()
        self._waiters.clear()
        await self._scribe.flush()

    async def _last_words(self) -> None:
        """Let what is in the air land: a reply thrown away now would end as unknown after the restart (F-46)."""
        for _ in range(round(LAST_WORDS_S / 0.05)):
            flying = (
                t
                for t in self._tracks.values()
                if t.sending.in_air or (t.asking.answer and Timer.RESUME not in t.timers)
            )
            if not any(t.outcome is None for t in flying) and not self._closing:
                return
            await asyncio.sleep(0.05)
