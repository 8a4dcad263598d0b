"""Drives ``request.machine`` for one message to an agent, as the hub's tracker does, without a ledger or health.

``client.follow`` imports it only if the first reply does not end the task. Polls and streams run as workers; each
signal that they bring is one step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

from fleetsim.model.asking import key_of
from fleetsim.model.call import Call, GetTask, SubscribeToTask
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import FleetsimError, HttpRefused, Unreachable, WireError
from fleetsim.model.event import DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import INTERRUPTED, Task, TaskState, TaskStatus
from fleetsim.model.work import SkillRequest, UpdateSource
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Due,
    Effect,
    Join,
    Poll,
    PollFailed,
    Replied,
    ResolveQuestion,
    StreamEnded,
    Subscribe,
    failed,
)
from fleetsim.request.track import Asking, Now, Rules, Sending, Signal, TaskUpdate, Timer
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.wire.choice import Choice
from fleetsim.wire.dialect import Reply

Opened: TypeAlias = tuple[TaskEvent, AsyncIterator[TaskEvent]]
"""The first event of a stream, and the rest of it."""

Stream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[TaskEvent]]

RULES = Rules(
    poll_interval_s=2.0,
    look_first_s=0.2,
    owed_s=3.0,
    key_repeats=0,
    polls_beside_stream=False,
    text_chars_max=None,
    events=False,
)
"""A caller who waits polls more often than a hub, leaves a stream alone, and does not repeat a refused key."""

QUESTION_S = 1.0
"""Seconds that a stream is read after a question in it: the rest of the question may follow."""

AHEAD_MAX = 64
"""Events of a stream that are read before the caller takes them."""


class AgentCalls(Protocol):
    """The part of ``AgentClient`` that following a task needs."""

    @property
    def where(self) -> str: ...
    @property
    def spoken(self) -> str: ...
    @property
    def doubts(self) -> tuple[str, ...]: ...
    @property
    def runtime(self) -> Runtime: ...
    async def choice(self) -> Choice: ...
    async def card_if_any(self, timeout_s: float | None = None) -> AgentCard | None: ...

    async def call_raw(
        self, call: Call, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> tuple[Reply, Any]: ...

    def events(
        self, call: Call, *, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[TaskEvent]]: ...


def first_signal(task: Task | None, task_id: str, opened: Opened | None, *, joins: bool) -> Signal:
    """The signal with which a track begins: the first reply to a message, or a task that is joined."""
    now = asyncio.get_running_loop().time()
    if opened is not None:
        return TaskUpdate(event=opened[0], via=UpdateSource.STREAM, began=now)
    if task is not None and not joins:
        return Replied(reply=task, began=now)
    unseen = Task(task_id=task_id, context_id="", status=TaskStatus(state=TaskState.SUBMITTED))
    return Join(task=task or unseen, seen=task is not None)


class TrackDriver:
    """The track of one message. Use as ``async with``, which ends its polls and streams.

    ``event`` is the last event of a stream that changed the task, None after a poll.
    """

    def __init__(
        self,
        client: AgentCalls,
        signal: Signal,
        events: AsyncIterator[TaskEvent] | None,
        *,
        answers: Task | None,
        joins_stream: bool,
        rejoin: bool,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
        fell_back: Callable[[FleetsimError], object],
        retrying: Callable[[HttpRefused | Unreachable, float], object],
    ) -> None:
        """``signal`` is the first reply, ``events`` the rest of its stream. The message answers ``answers``.

        ``rejoin``: a broken stream is joined again; ``fell_back`` gets the error after which only polls remain.
        """
        self.event: TaskEvent | None = None
        self._raw: Any = None
        self._client = client
        self._call = partial(client.call_raw, headers=headers, timeout_s=timeout_s)
        self._join = partial(client.events, headers=headers)
        self._events = events
        self._fell_back = fell_back
        self._retrying = retrying
        self._error: FleetsimError | None = None
        self._loop = asyncio.get_running_loop()
        self._signals: asyncio.Queue[Signal | Exception] = asyncio.Queue()
        self._signals.put_nowait(signal)
        self._workers = Workers("follow")
        self._timer: asyncio.TimerHandle | None = None
        self._question_until = math.inf
        self._wall = client.runtime.clock.now()
        self._chance = client.runtime.rng.stream("follow")
        asked = answers if answers is not None and answers.state in INTERRUPTED else None
        record = RequestRecord(
            agent=client.where,
            request=SkillRequest(correlation_id="", first_turn=True),
            accepted_at=self._wall,
            deadline_at=self._wall,
            message_id="",
            phase=Phase.INTENT if isinstance(signal, Join) else Phase.SENDING,
            streaming=joins_stream,
            rejoin=rejoin,
            over=(key_of(asked),) if asked is not None else (),
            over_at=asked.status.timestamp if asked is not None and asked.status.message is not None else None,
        )
        self.track = new_track(record, self._now())
        self.track.timers.clear()  # the caller has the only deadline
        self.track.sending = Sending(stream=events is not None, in_air=True)
        self.track.asking = Asking(answered_at=self._loop.time())

    async def __aenter__(self) -> TrackDriver:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._workers.close()

    @property
    def reply(self) -> tuple[Reply, Any]:
        """The last reply, a task or a message, and its undecoded form if it came from a poll."""
        if isinstance(self.event, DirectReply):
            return self.event.message, None
        return self.track.record.task, self._raw if self.event is None else None

    async def next(self) -> Task | None:
        """The task after its next update; None once it has ended or asks. Raises FleetsimError if it is lost."""
        while (track := self.track).outcome is None:
            if track.asking.question is not None:  # complete once its stream ends, or was read for a while since
                self._question_until = min(self._question_until, self._loop.time() + QUESTION_S)
                if not track.streaming.open or self._loop.time() >= self._question_until:
                    break
            if track.timers or self._timer is not None:
                due = min(*track.timers.values(), self._question_until, math.inf)
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = None if due == math.inf else self._loop.call_at(due, self._signals.put_nowait, Due())
            signal = await self._signal()
            self.track, effects = step(track, signal, self._now(), RULES)
            before, task = track.record.task, self.track.record.task
            for effect in effects:
                if isinstance(effect, Poll | Subscribe) and task is not None:
                    self._start(effect, task.task_id)
                elif isinstance(effect, ResolveQuestion):
                    self._question_until = math.inf
            if isinstance(signal, TaskUpdate):
                if signal.via is UpdateSource.POLL:
                    self._error = None
                if task is not before:
                    self.event = signal.event if signal.via is UpdateSource.STREAM else None
                    return task
            elif isinstance(signal, StreamEnded):
                self._events = None
                if signal.error is not None and self.track.outcome is None and Timer.REJOIN not in self.track.timers:
                    self._fell_back(signal.error)
            elif isinstance(signal, PollFailed):
                self._error = signal.error
                again_at = self.track.timers.get(Timer.POLL)
                if isinstance(signal.error, HttpRefused) and signal.error.retryable and again_at is not None:
                    self._retrying(signal.error, again_at - self._loop.time())
        task, outcome = track.record.task, track.outcome
        if outcome is None or task is None or task.terminal:
            return None
        error = self._error or WireError(f"{self._client.where}: {outcome.reason}")
        if task.task_id not in str(error):
            error.args = (f"{error}; the agent has task {task.task_id}, which may still be at work",)
        raise error

    async def _signal(self) -> Signal:
        """The next signal. While nothing else can happen, it comes from the stream itself, which costs no switch."""
        if self._events is not None and self._signals.empty():
            if not self.track.timers and not len(self._workers):
                try:
                    event = await anext(self._events, None)
                except FleetsimError as error:
                    return StreamEnded(error=error)
                if event is None:
                    return StreamEnded()
                return TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._loop.time())
            self._start(Subscribe(), "", nullcontext(self._events))
            self._events = None
        signal = await self._signals.get()
        self._signals.task_done()
        if isinstance(signal, Exception):
            raise signal
        return signal

    def _now(self) -> Now:
        return Now(self._loop.time(), self._wall, self._chance.random())

    def _start(self, effect: Poll | Subscribe, task_id: str, opened: Stream | None = None) -> None:
        stream = opened or self._join(SubscribeToTask(task_id=task_id)) if isinstance(effect, Subscribe) else None
        self._workers.start(self._reach_out(effect, task_id, stream), name=type(effect).__name__.lower())

    async def _reach_out(self, effect: Effect, task_id: str, stream: Stream | None) -> None:
        """Read the task or its stream. Each end is a signal; ``next`` raises an unforeseen error."""
        began = self._loop.time()
        try:
            if stream is None:
                reply, self._raw = await self._call(GetTask(task_id=task_id))
                if not isinstance(reply, Task):
                    raise WireError(f"{self._client.where}: the reply is not a task")
                update = TaskUpdate(event=Snapshot(task=reply), via=UpdateSource.POLL, began=began)
                self._signals.put_nowait(update)
                return
            async with stream as events:
                async for event in events:
                    update = TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._loop.time())
                    self._signals.put_nowait(update)
                    if self._signals.qsize() > AHEAD_MAX:
                        await self._signals.join()
            self._signals.put_nowait(StreamEnded())
        except FleetsimError as error:
            self._signals.put_nowait(failed(effect, error, silent=False))
        except Exception as error:  # noqa: BLE001
            self._signals.put_nowait(error)
