"""One dialect's conversation with the agent under test: raw calls and streams, and fixtures that are made once.

A fixture is something several probes look at, such as a finished task or a whole stream; it is made for the
first that asks. All exchanges are kept for the probes that judge them at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeAlias, TypeVar, cast

from fleetsim.check.agent_under_test import AgentUnderTest, Hint
from fleetsim.check.evidence import (
    BODY_BYTES_MAX,
    TIMEOUTS,
    Exchange,
    Frame,
    NotPassed,
    Timeouts,
    Verdict,
    not_tested_unless,
    note_timeout,
    written,
)
from fleetsim.check.listener import Listener, WebhookAddress, tells_the_end
from fleetsim.check.raw_dialect import below, mapping
from fleetsim.model.call import Operation
from fleetsim.model.errors import ConnectionLost, FleetsimError, Unreachable
from fleetsim.model.task import TERMINAL, TaskState
from fleetsim.runtime.ports import IncomingResponse, Limits, Request, SseEvent
from fleetsim.runtime.sse import StreamLimits, read_events

T = TypeVar("T")

Probe: TypeAlias = "Callable[[Session], Awaitable[None]]"
"""Tests one requirement: returns if the agent meets it, and raises ``evidence.NotPassed`` if not."""

POLL_S = 0.2
_STREAM = StreamLimits(idle_s=None, line_bytes_max=BODY_BYTES_MAX, event_bytes_max=BODY_BYTES_MAX)
_UNSAID: Any = object()

OLD_STREAM = "message/sendStream"
"""The name of message/stream in 0.3 agents of the protoPen era."""


class Session:
    """The tools of a probe: calls and streams in one dialect, fixtures, and facts about the agent."""

    def __init__(self, agent: AgentUnderTest, dialect: str) -> None:
        self.agent = agent
        self.options = agent.options
        self.endpoint = agent.endpoint(dialect)
        self.dialect = agent.raw_dialect(dialect, self.endpoint)
        self.tasks: list[tuple[Mapping[str, Any], Exchange]] = []
        self._fixtures: dict[Callable[[Session], Awaitable[Any]], Any] = {}
        self._late_fixtures: set[Callable[[Session], Awaitable[Any]]] = set()
        self._fixture_locks: dict[Callable[[Session], Awaitable[Any]], asyncio.Lock] = {}
        self._asked = 0
        self._stream_asked = False

    def new(self) -> str:
        """A fresh id for a message, context, hook or token; the runtime makes it, so a seed repeats it."""
        return self.agent.runtime.ids.new()

    def now(self) -> float:
        return self.agent.runtime.clock.monotonic()

    def task_ids(self) -> set[str]:
        """The ids of the tasks that the agent has shown."""
        return {str(task.get("id")) for task, _ in self.tasks}

    def number(self) -> int:
        self._asked += 1
        return self._asked

    async def fixture(self, make: Callable[[Session], Awaitable[T]]) -> T:
        """What ``make`` makes, made at most once. Raises NotPassed (not tested) if it could not be made."""
        async with self._fixture_locks.setdefault(make, asyncio.Lock()):
            if make not in self._fixtures:
                timeouts = Timeouts()
                before = TIMEOUTS.set(timeouts)
                try:
                    self._fixtures[make] = await make(self)
                except NotPassed as why:
                    self._fixtures[make] = NotPassed(Verdict.NOT_TESTED, why.reason, why.evidence)
                finally:
                    TIMEOUTS.reset(before)
                    if timeouts.noted:
                        self._late_fixtures.add(make)
        if make in self._late_fixtures:
            note_timeout()
        made = self._fixtures[make]
        if isinstance(made, NotPassed):
            raise made
        return cast(T, made)

    def has(self, make: Callable[[Session], Awaitable[Any]]) -> bool:
        """Whether the fixture has been made, or could not be made."""
        return make in self._fixtures

    def forget_late_fixtures(self) -> None:
        """Drop the fixtures that timed out, so that they are made again."""
        for make in self._late_fixtures:
            del self._fixtures[make]
        self._late_fixtures.clear()

    # Hints and hooks.

    def hint(self, kind: str) -> Hint:
        """How to get a kind of behaviour. Raises NotPassed (not tested) if nobody knows."""
        return not_tested_unless(
            self.agent.hints.get(kind), f"no skill is known for this: add --skill-{kind} SKILL[=TEXT]"
        )

    def quick(self) -> Hint:
        """The quickest thing there is; any text will do."""
        return self.agent.hints.get("quick", Hint(None, "fleetsim check"))

    @property
    def listener(self) -> Listener:
        """Where webhooks go. Raises NotPassed (not tested) if there is none."""
        return not_tested_unless(self.agent.listener, "no webhook listener: add --webhook-listen 127.0.0.1:0")

    def hook(self, *, answers: tuple[int, ...] = (), otherwise: int = 200) -> WebhookAddress:
        """A fresh address at the listener: it answers with each of ``answers`` once, then with ``otherwise``."""
        return self.listener.hook(self.new(), answers=answers, otherwise=otherwise)

    # Calls.

    async def raw(self, body: bytes) -> Exchange:
        """POST bytes as they are, with the dialect's headers."""
        return await self.agent.exchange("POST", self.endpoint, body=body, headers=self.dialect.headers(body))

    async def rpc(
        self,
        method: str | Operation,
        params: Any = _UNSAID,
        *,
        request_id: Any = _UNSAID,
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Call an operation, or a method by its name on the wire; params and id are left out or odd if wanted so."""
        verb, place, body = self._request(method, params, request_id, url)
        sent = {**self.dialect.headers(body), **(headers or {})}
        exchange = await self.agent.exchange(verb, place, body=body, headers=sent, credentials=credentials)
        return self._noted(exchange, method, params)

    def _noted(self, exchange: Exchange, method: str | Operation, params: Any) -> Exchange:
        exchange.operation = Operation.STREAM if method == OLD_STREAM else self.dialect.operation(method)
        exchange.params, exchange.bare = params, self.dialect.bare if self.dialect.over_http else None
        return exchange

    def _request(
        self, method: str | Operation, params: Any, request_id: Any = _UNSAID, url: str | None = None
    ) -> tuple[str, str, bytes]:
        """HTTP method, address and body of a call; over HTTP+JSON the name of an unknown operation is a path."""
        place = url or self.endpoint
        if not self.dialect.over_http:
            return "POST", place, written(self.envelope(method, params, request_id))
        operation = self.dialect.operation(method)
        verb, path, body = ("POST", f"/{method}", b"{}") if not operation else self.dialect.http_call(operation, params)
        return verb, below(place, path), body

    def envelope(self, method: str | Operation, params: Any = _UNSAID, request_id: Any = _UNSAID) -> dict[str, Any]:
        """A JSON-RPC request as an object, for probes that break it before it is sent."""
        name = self.dialect.method(method) if isinstance(method, Operation) else method
        number = self.number() if request_id is _UNSAID else request_id
        envelope = {"jsonrpc": "2.0", "id": number, "method": name}
        return envelope if params is _UNSAID else {**envelope, "params": self.dialect.with_tenant(params)}

    async def call(self, operation: Operation, params: Any = _UNSAID, **more: Any) -> Exchange:
        """Call an operation, and remember the task it shows."""
        exchange = await self.rpc(operation, params, **more)
        if task := self.dialect.task(exchange.result):
            self.tasks.append((task, exchange))
        return exchange

    def params(
        self,
        hint: Hint | None = None,
        *,
        wait: bool | None = False,
        push: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **message: Any,
    ) -> dict[str, Any]:
        """Params of a send; ``message`` are members of the message as written."""
        hint = hint or self.quick()
        sent_metadata = {**({"skillHint": hint.skill} if hint.skill else {}), **(metadata or {})}
        sent = self.dialect.send(
            self.dialect.message(hint.text, self.new(), **message), wait=wait, push=push, metadata=sent_metadata
        )
        return {"id": self.new(), "sessionId": self.new(), **sent} if self.dialect.legacy else sent

    async def send(self, hint: Hint | None = None, **more: Any) -> Exchange:
        """Send a message, asking for the answer at once unless ``wait`` says otherwise."""
        return await self.call(Operation.SEND, self.params(hint, **more))

    async def begin(self, hint: Hint | None = None, **more: Any) -> tuple[str, Exchange]:
        """Send, and return the task's id. Raises NotPassed (not tested) if no task came of it."""
        exchange = await self.send(hint, **more)
        task = self.dialect.task(exchange.result)
        not_tested_unless(
            isinstance(task.get("id"), str), f"the send this leans on was answered with {exchange}", exchange
        )
        return str(task["id"]), exchange

    async def get(self, task_id: Any, **more: Any) -> Exchange:
        """Read a task by tasks/get or GetTask; ``more`` are members of the params, such as historyLength."""
        return await self.call(Operation.GET, self.dialect.by_id(task_id, **more))

    async def cancel(self, task_id: Any) -> Exchange:
        """Cancel a task by tasks/cancel or CancelTask, and remember the task of the answer."""
        return await self.call(Operation.CANCEL, self.dialect.by_id(task_id))

    def state(self, exchange: Exchange) -> str:
        """The state of the task an answer shows; empty if it shows none."""
        return self.dialect.state(self.dialect.task(exchange.result))

    async def until(self, task_id: str, states: frozenset[str] = TERMINAL, seconds: float | None = None) -> Exchange:
        """Read a task until it is in one of ``states`` or time is up; returns the last reading."""
        end = self.now() + (self.options.patience_s if seconds is None else seconds)
        while True:
            exchange = await self.get(task_id)
            if self.state(exchange) in states or exchange.error is not None:
                return exchange
            if self.now() >= end:
                note_timeout()
                return exchange
            await asyncio.sleep(POLL_S)

    async def finished(self, hint: Hint | None = None, **more: Any) -> tuple[str, Exchange]:
        """Send and wait for the end: the task's id and its last reading. Raises NotPassed if it does not end."""
        task_id, exchange = await self.begin(hint, **more)
        if self.state(exchange) not in TERMINAL or "artifacts" not in self.dialect.task(exchange.result):
            exchange = await self.until(task_id)
        state = self.state(exchange)
        not_tested_unless(state in TERMINAL, f"the task this leans on did not end: {state or exchange}", exchange)
        return task_id, exchange

    # Streams.

    @asynccontextmanager
    async def stream(
        self, operation: Operation | str, params: Any, *, request_id: Any = _UNSAID
    ) -> AsyncIterator[Stream]:
        """Open a stream; leaving it drops the connection. An agent with the old name alone is asked by it (M-02)."""
        first_s = self.options.reply_s if operation is Operation.STREAM else 0.0
        request = self._request(operation, params, request_id)
        async with self.reading(*request, call=(operation, params), first_s=first_s) as stream:
            if not await self._unknown_stream(operation, stream):
                yield stream
                return
        request = self._request(OLD_STREAM, params, request_id)
        async with self.reading(*request, call=(operation, params), first_s=first_s) as stream:
            await stream.peek()
            if stream.exchange.code != -32601:
                self.dialect.use_name(Operation.STREAM, OLD_STREAM)
            yield stream

    @asynccontextmanager
    async def streaming(self, hint: Hint) -> AsyncIterator[Stream]:
        """Open a stream of a send. Raises NotPassed (not tested) if the answer is not a stream."""
        async with self.stream(Operation.STREAM, self.params(hint)) as stream:
            not_tested_unless(stream.is_stream, f"a stream gave {stream.exchange}", stream.exchange)
            yield stream

    async def _unknown_stream(self, operation: Operation | str, stream: Stream) -> bool:
        """Whether an agent of 0.3 has no method of that name; found out with the first stream that is asked for."""
        dialect = self.dialect
        if operation is not Operation.STREAM or dialect.proto or dialect.legacy or self._stream_asked:
            return False
        await stream.peek()
        if stream.exchange.code == -32601:
            return True
        self._stream_asked = True
        return False

    @asynccontextmanager
    async def reading(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        call: tuple[str | Operation, Any] | None = None,
        first_s: float = 0.0,
    ) -> AsyncIterator[Stream]:
        """Any request whose answer may be a stream; ``call`` is the method with its params, in this dialect.

        Its first event is waited for at least ``first_s`` seconds.
        """
        ours = {} if call is None else self.dialect.headers(body)
        exchange = self.agent.opened(method, url, body, {**ours, "accept": "text/event-stream, application/json"}, None)
        if call is not None:
            self._noted(exchange, *call)
        limits = Limits(first_byte_s=self.options.reply_s, total_s=None, body_bytes_max=BODY_BYTES_MAX)
        request = Request(
            method=method, url=exchange.url, headers=exchange.sent_headers, body=body, limits=limits, streaming=True
        )
        try:
            async with AsyncExitStack() as stack:
                # Open a request, once more if the connection broke: an earlier answer may have closed it.
                transport = self.agent.runtime.transport
                try:
                    incoming = await stack.enter_async_context(transport.open(request))
                except ConnectionLost:
                    incoming = await stack.enter_async_context(transport.open(request))
                exchange.status, exchange.headers = incoming.status, incoming.headers
                stream = Stream(self, exchange, incoming, ours=call is not None, first_s=first_s)
                async with stream.opened():
                    yield stream
        except FleetsimError as error:
            if exchange.status is not None:
                raise
            exchange.problem, exchange.unreached = str(error), isinstance(error, Unreachable)
            yield Stream(self, exchange, None, ours=call is not None)
        finally:
            exchange.seconds = self.now() - exchange.began


class Stream:
    """An answer that may be a stream: its events one by one, with a limit on every wait."""

    def __init__(
        self,
        session: Session,
        exchange: Exchange,
        incoming: IncomingResponse | None,
        *,
        ours: bool,
        first_s: float = 0.0,
    ) -> None:
        self.exchange = exchange
        self._first_s = first_s
        self._ours = ours
        self._session = session
        self._incoming = incoming
        self._events: AsyncGenerator[SseEvent, None] | None = None
        self._peeked: Frame | None = None

    @property
    def is_stream(self) -> bool:
        """Whether HTTP 200 and text/event-stream came, whatever the events hold."""
        return self._events is not None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Read the head, and the whole body of an answer that is not a stream."""
        exchange = self.exchange
        if exchange.status != 200 or exchange.media_type != "text/event-stream":
            body = bytearray()
            try:
                async with asyncio.timeout(self._session.options.reply_s):
                    async for chunk in self._chunks([]):
                        body += chunk
                        if len(body) > BODY_BYTES_MAX:
                            break
            except (FleetsimError, TimeoutError) as error:
                note_timeout()
                exchange.problem = str(error) or "the answer did not end"
            exchange.body, exchange.ended = bytes(body), True
            yield
            return
        counted = IncomingResponse(status=200, headers=exchange.headers, chunks=self._chunks(exchange.arrivals))
        async with aclosing(read_events(counted, limits=_STREAM)) as events:
            self._events = events
            yield

    async def _chunks(self, arrivals: list[float]) -> AsyncIterator[bytes]:
        if self._incoming is not None:
            async for chunk in self._incoming.chunks:
                arrivals.append(self._session.now())
                yield chunk

    async def peek(self) -> None:
        """Read the first event ahead; the next ``next`` gives it."""
        if self._peeked is None and not self.exchange.frames:
            self._peeked = await self.next(self._first_s)

    async def next(self, seconds: float) -> Frame | None:
        """The next event; None if none came in time or the stream has ended (``exchange.ended``)."""
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        exchange = self.exchange
        if self._events is None or exchange.ended:
            return None
        if not exchange.frames:
            seconds = max(seconds, self._first_s)
        try:
            async with asyncio.timeout(seconds):
                event = await anext(self._events, None)
        except TimeoutError:
            note_timeout()
            exchange.problem = f"nothing came for {seconds:g} s"
            self._events = None
            return None
        except FleetsimError as error:
            exchange.problem, exchange.ended = str(error), True
            return None
        if event is None:
            exchange.ended = True
            return None
        frame = Frame(self._session.now(), event.data, event.event, exchange.bare)
        exchange.frames.append(frame)
        kind, content = self._session.dialect.event(frame.result)
        if kind == "task" and self._ours:
            self._session.tasks.append((content, self.exchange))
        return frame

    async def drain(self, seconds: float) -> Exchange:
        """Read to the end, for at most ``seconds``."""
        end = self._session.now() + seconds
        while not self.exchange.ended and self._events is not None:
            if await self.next(max(end - self._session.now(), 0.001)) is None:
                break
        return self.exchange

    async def until(self, fits: Callable[[str, Mapping[str, Any]], bool], seconds: float) -> Frame | None:
        """Read until an event (kind, content) fits; None if none does."""
        end = self._session.now() + seconds
        while (frame := await self.next(max(end - self._session.now(), 0.001))) is not None:
            kind, content = self._session.dialect.event(frame.result)
            if fits(kind, content):
                return frame
        return None

    def task_id(self) -> str:
        """The task the stream is about. Raises NotPassed (not tested) if the first event does not say."""
        frames = self.exchange.frames
        kind, content = self._session.dialect.event(frames[0].result) if frames else ("", {})
        found = self._session.dialect.task_id(kind, mapping(content))
        not_tested_unless(isinstance(found, str), f"the stream this leans on gave {self.exchange}", self.exchange)
        return str(found)


# -- fixtures: ask for one by ``await session.fixture(finished_task)`` ---------------------------------

STREAM_S = 30.0


async def finished_task(session: Session) -> tuple[str, Exchange]:
    """A quick task that has ended: its id and last reading."""
    return await session.finished()


async def quick_stream(session: Session) -> Exchange:
    """A whole stream of a quick task."""
    return await _whole_stream(session, session.quick())


async def slow_stream(session: Session) -> tuple[Exchange, list[Exchange]]:
    """A whole stream of the slow skill, and two streams that joined its task while it ran."""

    async def follow(task_id: str) -> Exchange:
        async with session.stream(Operation.SUBSCRIBE, session.dialect.by_id(task_id)) as stream:
            return await stream.drain(STREAM_S)

    async with session.streaming(session.hint("slow")) as first:
        frame = await first.next(5)
        named = session.dialect.task_id(*session.dialect.event(frame.result)) if frame else None
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(follow(named)) for _ in range(2)] if isinstance(named, str) else []
            own = await first.drain(STREAM_S)
    return own, [other.result() for other in others]


async def slow_task_is_too_long(session: Session) -> bool:
    """Whether a task of the slow skill still works after ``limit_s``."""
    task_id, _ = await session.begin(session.hint("slow"))
    state = session.state(await session.until(task_id, seconds=session.options.limit_s))
    return state in {TaskState.SUBMITTED, TaskState.WORKING}


async def stream_in_pieces(session: Session) -> Exchange:
    """A whole stream of the skill that answers in pieces."""
    return await _whole_stream(session, session.hint("stream"))


async def _whole_stream(session: Session, hint: Hint) -> Exchange:
    async with session.stream(Operation.STREAM, session.params(hint)) as stream:
        exchange = await stream.drain(STREAM_S)
    told = exchange.frames and exchange.error is None
    not_tested_unless(told, f"needs a stream with events: that gave {exchange} (C-06)", exchange)
    return exchange


async def longest_stream(session: Session) -> Exchange:
    """A whole stream with as many events as are to be had."""
    return await session.fixture(stream_in_pieces if "stream" in session.agent.hints else quick_stream)


async def all_streams(session: Session) -> list[Exchange]:
    """Every whole stream a probe of shapes should look at."""
    streams = [await session.fixture(quick_stream)]
    if "stream" in session.agent.hints:
        streams.append(await session.fixture(stream_in_pieces))
    return streams


async def register(session: Session, task_id: str, hook: WebhookAddress, **config: Any) -> Exchange:
    """Register a webhook by the dialect's own method; ``config`` are members such as ``id`` and ``token``."""
    params = session.dialect.set_hook(task_id, session.dialect.hook(hook.url, **config))
    return await session.rpc(Operation.PUSH_SET, params)


async def registered(session: Session, task_id: str, hook: WebhookAddress, **config: Any) -> Exchange:
    """``register``, and the answer. Raises NotPassed (not tested) if it is refused."""
    exchange = await register(session, task_id, hook, **config)
    not_tested_unless(exchange.error is None, f"registering a webhook gave {exchange}", exchange)
    return exchange


async def webhook_on_finished_task(
    session: Session, *, otherwise: int = 200, **config: Any
) -> tuple[str, WebhookAddress, Exchange]:
    """A task that has ended, with a webhook registered after that. Raises NotPassed (not tested) if it is refused."""
    hook = session.hook(otherwise=otherwise)
    task_id, _ = await session.finished()
    return task_id, hook, await registered(session, task_id, hook, **config)


async def webhook_on_running_task(session: Session, **config: Any) -> tuple[str, WebhookAddress, Exchange]:
    """A task of the slow skill with a webhook registered while it runs. Raises NotPassed if it is refused."""
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    return task_id, hook, await registered(session, task_id, hook, **config)


async def registration(session: Session) -> Exchange:
    """The answer to a webhook that is registered: to the listener if there is one, else to a public address."""
    url = session.hook().url if session.agent.listener else "https://example.com/fleetsim-check"
    task_id, _ = await (session.begin() if session.dialect.legacy else session.fixture(finished_task))
    params = session.dialect.set_hook(task_id, session.dialect.hook(url, token=session.new()))
    return await session.rpc(Operation.PUSH_SET, params)


async def delivered_webhook(session: Session) -> tuple[str, WebhookAddress, Exchange]:
    """A quick task with an inline webhook and a token, until its end was delivered."""
    token, hook = "fleetsim-" + session.new(), session.hook()
    task_id, exchange = await session.begin(push=session.dialect.hook(hook.url, token=token))
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    not_tested_unless(arrival is not None, "no terminal webhook of a task sent with a webhook came", exchange)
    return task_id, hook, exchange
