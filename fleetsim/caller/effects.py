"""Carries out the effects that reach out to an agent: each is a stream of signals that tell how it goes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from fleetsim.caller.executor import Executor
from fleetsim.caller.ledger import Phase, RequestRecord
from fleetsim.caller.ledger.sqlite import Ledger
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
from fleetsim.caller.track import TaskUpdate, Track
from fleetsim.model.errors import (
    EmptyStream,
    FleetsimError,
    MethodNotFound,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
)
from fleetsim.model.event import Snapshot
from fleetsim.model.forms import asked_by, in_form
from fleetsim.model.work import UpdateSource
from fleetsim.runtime.failpoints import failpoint
from fleetsim.runtime.ports import Runtime

POLLS_PER_S = 400
TICK_S = 0.05

log = logging.getLogger(__name__)


class EffectRunner:
    """Carries effects out. ``tracks`` are the requests in flight as they are at any moment."""

    def __init__(self, executor: Executor, ledger: Ledger, runtime: Runtime, tracks: Mapping[str, Track]) -> None:
        self._executor = executor
        self._ledger = ledger
        self._clock = runtime.clock
        self._tracks = tracks

    async def signals(self, effect: Effect, record: RequestRecord) -> AsyncGenerator[Signal, None]:
        """Carry ``effect`` out for the request that ``record`` was when it was asked for.

        Whatever goes wrong ends in a signal: a request must never wait for one that nobody sends.
        """
        executor, began, first = self._executor, self._clock.monotonic(), True
        try:
            match effect:
                case Send(stream=True):
                    async with AsyncExitStack() as stack:
                        async with executor.slot(record):  # held until the first byte of the answer only
                            message = await executor.as_asked_for(record)
                            yield Left()
                            await self._on_record(record)
                            events = await stack.enter_async_context(executor.stream(message))
                        async for event in events:
                            first = False
                            yield TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._clock.monotonic())
                    yield SendFailed(error=EmptyStream()) if first else StreamEnded()
                case Send():
                    async with executor.slot(record):
                        message = await executor.as_asked_for(record)
                        yield Left()
                        await self._on_record(record)
                        reply = await executor.send(message)
                    failpoint("after_send_before_bind")
                    yield Replied(reply=reply, began=began)
                case Subscribe():
                    async with executor.subscribe(record) as events:
                        async for event in events:
                            yield TaskUpdate(event=event, via=UpdateSource.STREAM, began=self._clock.monotonic())
                    yield StreamEnded()
                case Poll():
                    task = await executor.poll(record)
                    failpoint("after_poll_before_hear")
                    yield TaskUpdate(event=Snapshot(task=task), via=UpdateSource.POLL, began=began)
                case LookUpTask() if executor.searchable(record):
                    yield Found(task=await executor.find(record))
                case LookUpTask():
                    yield Found(task=None, possible=False)
                case RegisterPush():
                    await executor.register_push(record)
                    yield PushRegistered()
                case Resume(answer=answer):
                    text, parts = in_form(asked_by(record.task), answer.text, answer.parts)
                    async with executor.slot(record, breaks=False):
                        yield Left()
                        reply = await executor.resume(record, replace(answer, text=text, parts=parts))
                    failpoint("after_resume_before_bind")
                    yield Resumed(reply=reply, began=began)
                case Cancel():
                    yield CancelReplied(task=await executor.cancel(record), began=began)
                case _:
                    raise TypeError(f"{effect} does not reach out to an agent")
        except FleetsimError as error:
            yield _failure(effect, error, first)
        except Exception as error:
            log.error("a call to an agent ended in an unforeseen way", exc_info=error)
            unforeseen = TransportError(f"an unforeseen {type(error).__name__}; the log has it", sent=True)
            yield _failure(effect, unforeseen, first)

    async def _on_record(self, record: RequestRecord) -> None:
        """Nothing leaves before it is on record that it may have left; what waits for its turn has not.

        The track knows first, so that nothing written about the request from here on says otherwise.
        """
        track = self._tracks.get(record.request.correlation_id)
        await self._ledger.update(replace(track.record if track else record, phase=Phase.SENDING))
        failpoint("before_send")


def _failure(effect: Effect, error: FleetsimError, first: bool) -> Signal:
    """What says that an effect came to nothing; ``first``: before a stream brought anything."""
    match effect:
        case Send():
            return SendFailed(error=error) if first else StreamEnded(error=error)
        case Subscribe():
            return StreamEnded(error=error)
        case Poll():
            return PollFailed(error=error)
        case LookUpTask() if isinstance(error, TaskNotFound | MethodNotFound | UnsupportedOperation):
            return Found(task=None, possible=isinstance(error, TaskNotFound))
        case LookUpTask():
            return Found(task=None, error=error)
        case RegisterPush():
            return PushRegistered(error=error)
        case Resume():
            return ResumeFailed(error=error)
        case Cancel():
            return CancelFailed(error=error)
    raise error


class PollPacer:
    """A pace for polls: whatever falls due at once (a restart, a host that slept) goes out spread over time.

    At most ``per_s`` in any second, oldest first (reliability F-42); an idle pacer lets one go at once. Sends, answers
    and webhooks do not pass through here: work keeps priority over watching.
    """

    def __init__(self, *, per_s: int = POLLS_PER_S) -> None:
        self._per_tick = max(1, round(per_s * TICK_S))
        self._queue: deque[str] = deque()
        self.running = False

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, correlation_id: str) -> None:
        """Queue a request's poll; where it is not ``running``, somebody is to iterate it."""
        self._queue.append(correlation_id)

    async def __aiter__(self) -> AsyncIterator[str]:
        """The requests whose turn has come, until none is left."""
        self.running = True
        try:
            while self._queue:
                for _ in range(min(self._per_tick, len(self._queue))):
                    yield self._queue.popleft()
                await asyncio.sleep(TICK_S)
        finally:
            self.running = False
