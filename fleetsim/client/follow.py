"""Following one request to its end: by a stream or by polls, with answers to its questions.

``FollowedRequest`` is the protocol, ``Following`` its form for an agent that is called directly; that for a hub is in
``client.hub_follow``. From the first reply on, ``request.machine`` decides, as it does in a hub (``client.driver``).
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.client.credential import WAITS_FOR
from fleetsim.client.results import FollowResult, SentTask
from fleetsim.model.asking import answer_to
from fleetsim.model.call import Call, GetTask, PushConfig, SendMessage
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import (
    AuthRefused,
    FleetsimError,
    HttpRefused,
    MethodNotFound,
    RpcError,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.model.event import DirectReply, TaskEvent, fold, plain
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.parts import require_parts
from fleetsim.model.task import INTERRUPTED, Message, Part, Role, Task, TaskState, with_text
from fleetsim.model.work import skill_hint
from fleetsim.runtime.retry import pause_s
from fleetsim.wire.choice import may_mean_the_webhook, refuses_stream
from fleetsim.wire.dialect import Reply, dialect

if TYPE_CHECKING:
    from fleetsim.client.driver import AgentCalls, Opened, TrackDriver

T = TypeVar("T")

Ask: TypeAlias = "Callable[[SentTask], Awaitable[str | tuple[Part, ...] | None]]"
"""Gets a task that waits (``text`` is its question). Returns words or parts to answer with, None to leave it open."""

FellBack: TypeAlias = Callable[[FleetsimError], object]
"""Gets the reason why polls replace a stream."""

Retrying: TypeAlias = Callable[[HttpRefused | Unreachable, float], object]
"""Takes the refusal of an overloaded agent or token endpoint, and the seconds until it is called again."""

WAIT_S = 300.0
"""Seconds until a call gives up waiting for a task, by default."""


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """A message to an agent. ``task_id`` and ``context_id`` continue a task or conversation."""

    text: str
    parts: tuple[Part, ...] = ()
    task_id: str | None = None
    context_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    push: PushConfig | None = None

    def call(self, message_id: str) -> SendMessage:
        """The call that sends it. Raises LimitReached if it is more than one message may carry."""
        if self.parts or self.metadata:
            require_parts(self.parts, self.metadata or {})
        message = Message(
            message_id=message_id,
            role=Role.USER,
            parts=with_text(self.text, self.parts),
            context_id=self.context_id or None,
            task_id=self.task_id,
        )
        return SendMessage(message=message, metadata=dict(self.metadata or {}), push=self.push, task_id=self.task_id)


class FollowedRequest(ABC, AsyncIterator[Task]):
    """One request, followed until its task ends or waits for somebody who does not answer.

    Iterating yields the task as folded so far, after each event of a stream and each poll. ``event`` is the last event,
    None after a poll; ``sent``: the message may have left. ``aclose`` ends it early; the task continues. Raises
    TimedOut at the deadline (the task is left as it is), and the errors of the client's calls.
    """

    task: Task | None = None
    event: TaskEvent | None = None
    sent = False
    _timeout_s: float | None = None
    _deadline: float | None = None
    _began: float | None = None
    _updates: AsyncGenerator[Task, None]
    """Nothing is sent before the first iteration."""

    def __aiter__(self) -> FollowedRequest:
        return self

    async def __anext__(self) -> Task:
        return await self._in_time(anext(self._updates))

    async def _in_time(self, update: Awaitable[T]) -> T:
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            self._deadline = None if self._timeout_s is None else self._began + self._timeout_s
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await update
        except TimeoutError:
            if not limit.expired():
                raise
        raise self._late(f"{self._timeout_s:g} s")

    async def aclose(self) -> None:
        await self._updates.aclose()

    async def begin(self) -> None:
        """Follow it as far as the first reply."""
        await anext(self)
        await self.aclose()

    async def finish(self) -> None:
        async def rest() -> None:
            async for _ in self._updates:
                pass

        await self._in_time(rest())  # one timer for all of it

    @property
    def duration_s(self) -> float:
        """Seconds since the first iteration."""
        return 0.0 if self._began is None else asyncio.get_running_loop().time() - self._began

    @property
    @abstractmethod
    def lookup_id(self) -> str:
        """The id for a later look at the request: the agent's task id, or the hub's correlation id; "" without one."""

    @abstractmethod
    def report(self, text_chars_max: int = TEXT_CHARS_MAX) -> FollowResult:
        """The request as far as it is known. There must be a ``task``."""

    @abstractmethod
    def _follow(self) -> AsyncGenerator[Task, None]: ...

    @abstractmethod
    def _late(self, after: str) -> FleetsimError:
        """The error at the deadline."""


class AskedAgent(Protocol):
    """An agent that can be asked: ``AgentClient``, or ``AgentAtHub`` for one of a hub's fleet."""

    def follow(self, *message: Any, **options: Any) -> FollowedRequest: ...
    def follow_task(self, *request: Any, **options: Any) -> FollowedRequest: ...


class Following(FollowedRequest):
    """A request to an agent. ``refused`` is the refusal of an overloaded agent while a pause before another call lasts.

    A stream that breaks off is followed by polls, and joined again if the dialect allows it (decision 8).
    """

    def __init__(
        self,
        client: AgentCalls,
        outgoing: OutgoingMessage | None = None,
        *,
        task: str | Task = "",
        headers: Mapping[str, str] | None = None,
        streamed: bool = False,
        hinted: bool = False,
        skill: str | None = None,
        answers: Task | None = None,
        ask: Ask | None = None,
        fell_back: FellBack = lambda _: None,
        retrying: Retrying = lambda *_: None,
        timeout_s: float | None = None,
    ) -> None:
        """Without ``outgoing`` it follows ``task``, which the agent has; ``streamed``, it joins the task's stream.

        ``hinted`` messages name the ``skill`` (else the card decides, ``model.work``), and the answer to a question
        goes out in the form that it asks for. The options are those of ``AgentClient.follow``.
        """
        self._timeout_s = timeout_s
        self._updates = self._follow()
        self.task = task if isinstance(task, Task) else None
        self.refused: HttpRefused | Unreachable | None = None
        self._client = client
        self._outgoing = outgoing
        self._asked = (outgoing.task_id, outgoing.context_id) if outgoing is not None else (None, None)
        self._task_id = task if isinstance(task, str) else task.task_id
        self._headers = headers
        self._streamed = streamed
        self._hinted = hinted
        self._skill = skill
        self._answers = answers
        self._ask = ask
        self._fell_back = fell_back
        self._retrying = retrying
        self._reply: tuple[Reply, Any] = (self.task, None)
        self._driver: TrackDriver | None = None
        self._left_out: tuple[str, ...] = ()

    def _late(self, after: str) -> FleetsimError:
        if self.refused is not None:
            return self.refused
        where, trouble = self._client.where, f"; the last look at it: {self._trouble}" if self._trouble else ""
        if self.task is None and trouble:
            return TimedOut(f"{where}: task {self._task_id} could not be read within {after}{trouble}")
        waits_for = WAITS_FOR.get()
        if self.task is None and (waits_for or not self.sent):
            return TimedOut(f"{where}: no {waits_for or 'card'} within {after}; nothing was sent", sent=False)
        if self.task is None:
            return TimedOut(f"{where}: no answer within {after}; it may have taken the work")
        return TimedOut(f"{where}: task {self.task.task_id} is still {self.task.state} after {after}{trouble}")

    @property
    def _reason(self) -> str:
        assert self.task is not None
        track = self._driver.track if self._driver is not None else None
        if track is None or not self.task.terminal:
            return self._trouble
        if track.outcome is not None and self.task.state is TaskState.COMPLETED:
            return track.outcome.reason
        return track.streaming.last_words

    @property
    def _trouble(self) -> str:
        return self._driver.track.polling.trouble if self._driver is not None else ""

    async def first(self) -> SentTask:
        """The first reply of the agent alone."""
        await anext(self)
        await self.aclose()
        return self.result

    async def end(self) -> SentTask:
        """The task as it ended, or as it waits for somebody."""
        await self.finish()
        return self.result

    @property
    def result(self) -> SentTask:
        """The agent's last reply, after the first one."""
        reply, raw = self._reply if self._driver is None else self._driver.reply
        reason = self._reason if self._driver is not None else ""
        known = self._driver.track.record.warnings if self._driver is not None else ()
        return SentTask.of(reply if isinstance(reply, Message) else self.task, raw, reason, (*self._left_out, *known))

    @property
    def lookup_id(self) -> str:
        return self.task.task_id if self.task is not None else ""

    def report(self, text_chars_max: int = TEXT_CHARS_MAX) -> FollowResult:
        assert self.task is not None
        task_id, context_id = self._asked
        return FollowResult.of_task(
            self.task,
            asked_task=task_id,
            asked_context=context_id,
            dialect=self._client.spoken,
            known=(*self._client.doubts, *(self._driver.track.record.warnings if self._driver is not None else ())),
            reason=self._reason,
            duration_s=self.duration_s,
            text_chars_max=text_chars_max,
        )

    async def _follow(self) -> AsyncGenerator[Task, None]:
        while True:
            outgoing, self._outgoing = self._outgoing, None
            if outgoing is not None and self._hinted:
                outgoing = await self._as_asked_for(outgoing)
            async with AsyncExitStack() as stack:
                opened = None
                if outgoing is not None:
                    call = outgoing.call(self._client.runtime.ids.new())
                    opened, refused = await self._opened(call, stack) if self._streamed else (None, None)
                    if opened is None:
                        try:
                            yield await self._send(call)
                        except MethodNotFound as unknown:
                            raise refused or unknown from unknown  # it has no other way, and said why not the first
                if opened is not None or self.task is None or (self.task.task_id and not self.task.terminal):
                    driver = await stack.enter_async_context(await self._drive(opened, joins=outgoing is None))
                    while (task := await driver.next()) is not None:
                        self.task, self.event = plain(task), driver.event
                        yield self.task
            if self.task is None or self.task.state not in INTERRUPTED or self._ask is None:
                return
            answer = await self._ask(self.result)
            if answer is None:
                return
            text, parts = (answer, ()) if isinstance(answer, str) else ("", answer)
            task_id, context_id = self.task.task_id, self.task.context_id or None
            self._outgoing = OutgoingMessage(text=text, parts=parts, task_id=task_id, context_id=context_id)
            self._answers = self.task

    async def _drive(self, opened: Opened | None, *, joins: bool) -> TrackDriver:
        """Hand over to the machine after the first reply; ``joins``: there was no message, the agent has the task."""
        from fleetsim.client.driver import TrackDriver, first_signal  # most requests end with their first reply

        card = await self._card() if joins and self._streamed else None
        joins_stream = card is not None and card.capabilities.streaming
        self._driver = TrackDriver(
            self._client,
            first_signal(self.task, self._task_id, opened, joins=joins),
            opened[1] if opened is not None else None,
            answers=self._answers,
            joins_stream=joins_stream,
            rejoin=(joins_stream or opened is not None) and dialect((await self._client.choice()).dialect_name).rejoins,
            headers=self._headers,
            timeout_s=self._timeout_s,
            fell_back=self._fell_back,
            retrying=self._retrying,
        )
        return self._driver

    async def _as_asked_for(self, outgoing: OutgoingMessage) -> OutgoingMessage:
        """With the skill for its agent, and an answer in the form that the task asks for.

        If the agent does not show the task, it may still accept the answer, which goes out unchanged.
        """
        card = await self._card()
        if outgoing.task_id is not None and self._answers is None:
            try:
                read = SentTask.of(*await self._call(GetTask(task_id=outgoing.task_id)))
                self._answers = read.task
            except AuthRefused:
                raise  # no answer can reach it either
            except (RpcError, HttpRefused, WireError):
                pass
        text, parts = answer_to(self._answers, outgoing.text, outgoing.parts)
        hint = skill_hint(card, self._skill, continues=outgoing.task_id is not None)
        metadata = {**(outgoing.metadata or {}), **({"skillHint": hint} if hint else {})}
        return replace(outgoing, text=text, parts=parts, metadata=metadata)

    async def _card(self) -> AgentCard | None:
        return await self._repeated(lambda: self._client.card_if_any(self._timeout_s))

    async def _call(self, call: Call) -> tuple[Reply, Any]:
        return await self._repeated(
            lambda: self._client.call_raw(call, headers=self._headers, timeout_s=self._timeout_s)
        )

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, and again while an overloaded agent refuses it, after pauses as a hub's and in time."""
        attempt = 0
        while True:
            try:
                return await call()
            except (HttpRefused, Unreachable) as error:
                again = error.retryable if isinstance(error, HttpRefused) else error.retry_after_s is not None
                draw = self._client.runtime.rng.stream("retry").random()
                wait_s = pause_s(attempt, draw, error.retry_after_s) if again else None
                left_s = math.inf if self._deadline is None else self._deadline - asyncio.get_running_loop().time()
                if wait_s is None or max(wait_s, error.retry_after_s or 0.0) >= left_s:
                    raise
                self._retrying(error, wait_s)
                self.refused = error
                await asyncio.sleep(wait_s)
                self.refused = None
                attempt += 1

    async def _opened(self, call: SendMessage, stack: AsyncExitStack) -> tuple[Opened | None, FleetsimError | None]:
        """The first event of the stream and the rest of it, or why there is none and a plain send must follow."""
        card = await self._card()
        if card is None or not card.capabilities.streaming:
            return None, None

        async def opened() -> Opened:
            events = await stack.enter_async_context(self._client.events(call, headers=self._headers))
            return await anext(events), events

        self.sent = True
        try:
            return await self._repeated(opened), None
        except RpcError as error:
            if not refuses_stream(error):
                raise
            self._fell_back(error)
            return None, error

    async def _send(self, call: SendMessage) -> Task:
        self.sent = True
        try:
            reply, raw = await self._call(call)
        except FleetsimError as refusal:
            if call.push is None or not may_mean_the_webhook(refusal):
                raise
            reply, raw = await self._call(replace(call, push=None))
            self._left_out = (f"the agent refused the webhook, and took the message without it: {refusal}",)
        if not isinstance(reply, Task | Message):
            raise WireError(f"{self._client.where}: the reply is neither a task nor a message")
        self.task = reply if isinstance(reply, Task) else fold(None, DirectReply(message=reply))
        self.event, self._reply, self._driver = None, (reply, raw), None
        return self.task
