"""Effects that reach out to an agent, each as one coroutine that ends in a signal."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from fleetsim.caller.executor import Executor
from fleetsim.caller.ledger import Ledger, Phase, RequestRecord
from fleetsim.caller.signals import (
    Cancel,
    CancelFailed,
    CancelReplied,
    Effect,
    Found,
    Left,
    LookUpTask,
    Poll,
    PollFailed,
    PushRegistered,
    RegisterPush,
    Replied,
    Resume,
    Resumed,
    ResumeFailed,
    Send,
    SendFailed,
    Signal,
    StreamEnded,
    Subscribe,
)
from fleetsim.caller.step.ending import outcome_of
from fleetsim.caller.track import Now, Rules, TaskUpdate, Track
from fleetsim.model.errors import (
    EmptyStream,
    FleetsimError,
    MethodNotFound,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
)
from fleetsim.model.event import Snapshot, TaskEvent
from fleetsim.model.forms import asked_by, in_form
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource
from fleetsim.runtime.failpoints import failpoint
from fleetsim.runtime.ports import Runtime

log = logging.getLogger(__name__)

T = TypeVar("T")
Tell: TypeAlias = Callable[[str, Signal], None]


def work_for(
    effect: Effect,
    track: Track,
    executor: Executor,
    ledger: Ledger,
    runtime: Runtime,
    tell: Tell,
    newest: Callable[[str], RequestRecord | None],
) -> Coroutine[Any, Any, None]:
    """The coroutine that carries ``effect`` out and tells the tracker how it went.

    ``newest`` gives the record of a request as it is at that moment, None once it is gone.
    """
    carrier = _Carrier(track, executor, ledger, runtime, tell, newest)
    match effect:
        case Send(stream=True):
            return carrier.open_stream()
        case Send():
            return carrier.send()
        case Subscribe():
            return carrier.subscribe()
        case Poll():
            return carrier.poll()
        case LookUpTask():
            return carrier.find()
        case RegisterPush():
            return carrier.register_push()
        case Resume():
            return carrier.resume(effect)
        case Cancel():
            return carrier.cancel()
    raise TypeError(f"no work for {effect}")


def stolen_task(track: Track, now: Now, rules: Rules) -> Outcome:
    """The outcome of a request whose agent answered with a task id that another request already has (F-20)."""
    return outcome_of(
        track,
        now,
        kind=OutcomeKind.PROTOCOL_ERROR,
        reason="the agent answered with a task id that belongs to another request",
        cause=Cause.PROTOCOL,
        rates=rules.rates,
    )


class _Carrier:
    def __init__(
        self,
        track: Track,
        executor: Executor,
        ledger: Ledger,
        runtime: Runtime,
        tell: Tell,
        newest: Callable[[str], RequestRecord | None],
    ) -> None:
        self._record = track.record
        self._task = track.task
        self._cid = track.correlation_id
        self._executor = executor
        self._ledger = ledger
        self._clock = runtime.clock
        self._tell_tracker = tell
        self._newest = newest

    def _tell(self, signal: Signal) -> None:
        self._tell_tracker(self._cid, signal)

    async def _leaving(self) -> None:
        self._tell(Left())

    async def _sending(self) -> None:
        """Nothing leaves before it is on record that it may have left; what waits for its turn has not.

        The track knows first, so that nothing written about the request from here on says otherwise.
        """
        self._tell(Left())
        record = self._newest(self._cid) or self._record
        await self._ledger.update(replace(record, phase=Phase.SENDING))
        failpoint("before_send")

    async def send(self) -> None:
        began = self._clock.monotonic()
        try:
            reply = await _declared(self._executor.send(self._record, leaving=self._sending))
            failpoint("after_send_before_bind")
        except FleetsimError as error:
            self._tell(SendFailed(error=error))
        else:
            self._tell(Replied(reply=reply, began=began))

    async def open_stream(self) -> None:
        heard = 0
        try:
            async with aclosing(_events(self._executor.stream(self._record, leaving=self._sending))) as events:
                async for event in events:
                    heard += 1
                    self._tell(TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._clock.monotonic()))
        except FleetsimError as error:
            self._tell(StreamEnded(error=error) if heard else SendFailed(error=error))
        else:
            self._tell(StreamEnded() if heard else SendFailed(error=EmptyStream()))

    async def subscribe(self) -> None:
        try:
            async with aclosing(_events(self._executor.subscribe(self._record))) as events:
                async for event in events:
                    self._tell(TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._clock.monotonic()))
        except FleetsimError as error:
            self._tell(StreamEnded(error=error))
        else:
            self._tell(StreamEnded())

    async def poll(self) -> None:
        began = self._clock.monotonic()
        try:
            task = await _declared(self._executor.poll(self._record))
        except FleetsimError as error:
            self._tell(PollFailed(error=error))
        else:
            failpoint("after_poll_before_hear")
            self._tell(TaskUpdate(event=Snapshot(task=task), via=UpdateSource.POLL, began=began))

    async def find(self) -> None:
        if not self._executor.searchable(self._record):
            self._tell(Found(task=None, possible=False))
            return
        try:
            found = await _declared(self._executor.find(self._record))
        except (TaskNotFound, MethodNotFound, UnsupportedOperation) as error:
            self._tell(Found(task=None, possible=isinstance(error, TaskNotFound)))
        except FleetsimError as error:
            self._tell(Found(task=None, error=error))
        else:
            self._tell(Found(task=found))

    async def register_push(self) -> None:
        try:
            await _declared(self._executor.register_push(self._record))
        except FleetsimError as error:
            self._tell(PushRegistered(error=error))
        else:
            self._tell(PushRegistered())

    async def resume(self, effect: Resume) -> None:
        began = self._clock.monotonic()
        text, parts = in_form(asked_by(self._task), effect.answer.text, effect.answer.parts)
        answer = replace(effect.answer, text=text, parts=parts)
        try:
            reply = await _declared(self._executor.resume(self._record, answer, leaving=self._leaving))
            failpoint("after_resume_before_bind")
        except FleetsimError as error:
            self._tell(ResumeFailed(error=error))
        else:
            self._tell(Resumed(reply=reply, began=began))

    async def cancel(self) -> None:
        began = self._clock.monotonic()
        try:
            task = await _declared(self._executor.cancel(self._record))
        except FleetsimError as error:
            self._tell(CancelFailed(error=error))
        else:
            self._tell(CancelReplied(task=task, began=began))


async def _declared(call: Coroutine[Any, Any, T]) -> T:
    """The call, with every error it ends in one of ours: a request must never wait for a signal that nobody sends."""
    try:
        return await call
    except FleetsimError:
        raise
    except Exception as error:
        raise _unforeseen(error) from error


async def _events(opening: AbstractAsyncContextManager[AsyncIterator[TaskEvent]]) -> AsyncGenerator[TaskEvent, None]:
    """The events of a stream, with every error one of ours."""
    try:
        async with opening as events:
            async for event in events:
                yield event
    except FleetsimError:
        raise
    except Exception as error:
        raise _unforeseen(error) from error


def _unforeseen(error: Exception) -> TransportError:
    log.error("a call to an agent ended in an unforeseen way", exc_info=error)
    return TransportError(f"an unforeseen {type(error).__name__}; the log has it", sent=True)
