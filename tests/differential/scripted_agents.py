"""Agents with a script, drawn from a seed: a task that only moves forward, and troubles on its way to the caller."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from fleetsim.model.call import STREAMING, Call, GetTask, SendMessage, SubscribeToTask
from fleetsim.model.card import AgentCard, AgentInterface, AgentSkill, Capabilities
from fleetsim.model.errors import ContentTypeNotSupported, InternalError, MethodNotFound, RpcError, TaskNotFound
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import Task, TaskState
from fleetsim.testbed.asgi import Receive, Scope, Send
from fleetsim.wire import jsonrpc, rest, sse
from fleetsim.wire.dialect import DIALECTS, write_card
from fleetsim.wire.json import dump, parse_untrusted
from tests.request import step_agent
from tests.request.steps import chunk, message, status, task

SPELLINGS = ("1.0", "0.3", "0.1", "1.0+http", "0.3+http")
FOREIGN = "the budget of another customer"
ERRORS = {
    "-32603": InternalError("model quota exceeded"),
    "-32005": ContentTypeNotSupported("no such skill here"),
    "-32001": TaskNotFound("not known here"),
}
WORDS = (FOREIGN, "it broke", *map(str, ERRORS.values()))
"""Words of the agents in a reason. The doors put sentences of their own around them."""

STATUSES = {"401": 401, "404": 404, "429": 429, "502": 502, "503": 503, "page": 200, "empty": 200}
LOOKS = ("502", "503", "page", "empty", "broken", "-32603", "another task")
GONE = ("404", "-32001")
SENDS = ("401", "404", "429", "502", "503", "page", "broken", "-32603", "-32005")
FOREIGN_EVENTS: dict[str, TaskEvent] = {
    "end of another task": replace(status(TaskState.FAILED, FOREIGN), task_id="t-9"),
    "text of another task": replace(chunk(FOREIGN), task_id="t-9"),
    "question of another task": replace(status(TaskState.INPUT_REQUIRED, FOREIGN), task_id="t-9"),
    "another task": Snapshot(task=replace(task(TaskState.COMPLETED, FOREIGN), task_id="t-9")),
}


@dataclass(frozen=True, kw_only=True)
class Script:
    """``reply`` is the task at once, the task after a while ("late"), or a message. ``moves`` has seconds and what the
    task does after them. ``sends``, ``answers`` and ``looks`` are the troubles of the first, second, ... call of that
    kind; ``lasting``: the last of the looks is that of all later ones. The hub looks beside an open stream, and others
    do not, so such looks have no trouble. ``opening`` and ``stream`` are troubles of the first stream, the latter after
    so many events."""

    seed: int
    spelling: str
    streaming: bool
    reply: str
    moves: tuple[tuple[float, str], ...]
    sends: tuple[str, ...]
    answers: tuple[str, ...]
    looks: tuple[str, ...]
    lasting: bool
    opening: str
    stream: tuple[tuple[int, str], ...]


def draw(seed: int) -> Script:
    """The script of a seed."""
    rng, spelling = random.Random(seed), SPELLINGS[seed % len(SPELLINGS)]
    moves = rng.choices(("work", "text", "note", "ask", "authorise", "attach"), (2, 5, 1, 2, 1, 1), k=rng.randrange(6))
    moves += rng.choices(tuple(step_agent.ENDS), (4, 4, 3, spelling != "0.1", 1))  # 0.1 knows no "rejected"
    streaming = rng.random() < 0.6
    reply = rng.choices(("task", "late", "message"), (8, 2, spelling != "0.1"))[0]
    places = sorted(rng.sample(range(1, 6), k=rng.choice((0, 1, 1, 2)))) if streaming and reply != "message" else ()
    return Script(
        seed=seed,
        spelling=spelling,
        streaming=streaming,
        reply=reply,
        moves=tuple((rng.choice((0.0, 0.1, 0.4, 1.5, 4.0)), what) for what in moves),
        sends=(rng.choice(SENDS),) if rng.random() < 0.15 else (),
        answers=(rng.choice(("same question", "another task", "503")),) if rng.random() < 0.3 else (),
        # Two troubles end no request, and one needs no more than the 3 s that a caller waits for the rest of a result.
        looks=tuple(rng.sample((*LOOKS, rng.choice(GONE)), rng.choice((0, 1) if streaming else (0, 1, 2)))),
        lasting=not streaming and rng.random() < 0.2,
        opening=rng.choices(("", "end first", "refused", "silent", "json"), (10, 2, 1, 1, 1))[0] if streaming else "",
        stream=tuple((at, rng.choice(("end", "broken", "error", "ping", "again", *FOREIGN_EVENTS))) for at in places),
    )


class _Broken(Response):
    """A response whose connection breaks before its body."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})


class ScriptedAgent:
    """An application that plays one script. ``sent`` has the messages that arrived, but no stream that it refused."""

    def __init__(self, script: Script, origin: str) -> None:
        self.script, self.sent = script, list[str]()
        self._origin, self._dialect = origin, DIALECTS[script.spelling]
        self._truth, self._task_id = step_agent.Agent(), "t-1"
        self._moves, self._moved_at = deque(script.moves), 0.0
        self._calls, self._answered, self._streams = Counter[str](), asyncio.Event(), 0

    @property
    def task(self) -> Task | None:
        """The task as it is; None if the agent sends a message instead."""
        return None if self.script.reply == "message" else self._truth.task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            response = await self._respond(Request(scope, receive))
            self._streams += (streams := isinstance(response, StreamingResponse))
            try:
                await response(scope, receive, send)
            finally:
                self._streams -= streams

    async def _respond(self, request: Request) -> Response:
        spoken = self._dialect
        if ".well-known" in request.url.path:
            url, skills = f"{self._origin}/a2a", (AgentSkill(skill_id="chat", name="Chat", description="Talks."),)
            at = AgentInterface(url=url, binding=spoken.binding, protocol_version=spoken.card_version)
            streams = Capabilities(streaming=self.script.streaming)
            return JSONResponse(write_card(AgentCard(name="a", interfaces=(at,), capabilities=streams, skills=skills)))
        body, request_id = await request.body(), None
        if spoken.paths:
            matched = rest.match(spoken, request.method, request.url.path.removeprefix("/a2a"))
            given = parse_untrusted(body) if body else None
            call = rest.read_call(spoken, matched, request.query_params.multi_items(), given)
            operation = matched.operation
        else:
            asked = jsonrpc.read_request(body)
            call, operation = spoken.decode_call(asked.method, asked.params), spoken.operation(asked.method)
            request_id = asked.id

        def written(said: Any) -> Any:
            if isinstance(said, RpcError):
                return rest.error(said, spoken) if spoken.paths else jsonrpc.error(request_id, said, spoken.name)
            return said if spoken.paths else jsonrpc.result(request_id, said)

        try:
            if operation in STREAMING:
                return self._stream(call, written)
            return JSONResponse(written(spoken.encode_reply(call, await self._reply(call))))
        except RpcError as problem:
            return JSONResponse(written(problem), rest.status_of(problem, spoken) if spoken.paths else 200)
        except HTTPException as page:
            kind = Response if page.status_code else _Broken
            return kind(page.detail, page.status_code, page.headers, "text/html")

    # ------------------------------------------------------------------ the task in time

    def _catch_up(self) -> float:
        """Make the moves that are due, and return the time of the next one."""
        while self._moves and self._truth.asking is None:
            after_s, what = self._moves[0]
            if self._moved_at + after_s > asyncio.get_running_loop().time():
                return self._moved_at + after_s
            self._moves.popleft()
            self._truth.move(what)
            self._moved_at += after_s
        return inf

    def _seen(self) -> Task:
        self._catch_up()
        assert self._truth.task is not None
        return replace(self._truth.task, task_id=self._task_id)

    def _trouble(self, kind: str, troubles: tuple[str, ...]) -> str:
        """Raise the trouble of this call, or return its name if it has another form."""
        number, self._calls[kind] = self._calls[kind], self._calls[kind] + 1
        lasts = self.script.lasting and kind == "looks" and number >= len(troubles)
        name = (troubles or ("",))[-1] if lasts else dict(enumerate(troubles)).get(number, "")
        if name in ERRORS:
            raise ERRORS[name]
        if name in STATUSES:
            headers = {"retry-after": "2"} if name in {"429", "503"} else {}
            raise HTTPException(STATUSES[name], "" if name == "empty" else "<html>a page</html>", headers)
        return name

    def _accept(self, call: SendMessage) -> Task | None:
        """Take a message. Returns the task as it was before if the agent still shows that."""
        self.sent.append(call.message.text)
        truth, before = self._truth, None
        if truth.task is None:
            name = self._trouble("sends", self.script.sends)
            truth.accept()
            self._task_id = (call.task_id if self._dialect.caller_names_task else None) or self._task_id
        else:
            name, before = self._trouble("answers", self.script.answers), self._seen()
            truth.take_answer(call.message.text)
            self._answered.set()
            if name == "another task" and not self._dialect.caller_names_task:
                self._task_id = "t-2"
        self._moved_at = asyncio.get_running_loop().time()
        if name == "broken":
            raise HTTPException(0)
        return before if name == "same question" else None

    # ------------------------------------------------------------------ calls

    async def _reply(self, call: Call) -> Any:
        if isinstance(call, SendMessage):
            first, before = self._truth.task is None, self._accept(call)
            if first and self.script.reply == "message":
                return message("pong")
            if first and self.script.reply == "late":
                await asyncio.sleep(14.0)  # a second before the hub would look for the task
            return before or self._seen()
        if not isinstance(call, GetTask):
            raise MethodNotFound
        name = "" if self._streams else self._trouble("looks", self.script.looks)
        if name == "broken":
            raise HTTPException(0)
        if call.task_id != self._task_id:
            raise ERRORS["-32001"]
        return FOREIGN_EVENTS[name].task if name else self._seen()

    def _stream(self, call: Call, written: Callable[[Any], Any]) -> Response:
        first, opening = self._truth.task is None, self.script.opening
        if opening == "refused" or (isinstance(call, SubscribeToTask) and self._seen().terminal):
            raise MethodNotFound
        if opening == "json" and first:
            return Response(dump(written(ERRORS["-32005"])), media_type=sse.MEDIA_TYPE)
        told = len(self._truth.told)
        before = self._accept(call) if isinstance(call, SendMessage) else None
        opens = before or self._seen()
        events = self._events(first, told if before else len(self._truth.told), opens)
        return StreamingResponse(self._frames(first, events, written), media_type=sse.MEDIA_TYPE)

    async def _frames(
        self, first: bool, events: AsyncIterator[TaskEvent], written: Callable[[Any], Any]
    ) -> AsyncIterator[bytes]:
        """The events of a stream, with the troubles of the script in the first one."""
        if first and self.script.opening == "silent":
            return
        places, number = dict(self.script.stream) if first else {}, 0
        async for event in events:
            number += 1
            what = places.get(number, "")
            for each in (event, *([event] if what == "again" else []), *filter(None, [FOREIGN_EVENTS.get(what)])):
                yield sse.frame(dump(written(self._dialect.encode_event(each))).decode())
            if what == "ping":
                yield sse.frame("{}", event="ping")
            if what == "error":
                yield sse.frame(dump(written(ERRORS["-32603"])).decode())
            if what == "broken":
                raise ConnectionAbortedError
            if what in {"end", "error"}:
                return

    async def _events(self, first: bool, told: int, opens: Task) -> AsyncIterator[TaskEvent]:
        """The task, and its events until it ends or, in a dialect whose streams end then, asks."""
        if first and self.script.reply == "message":
            yield DirectReply(message=message("pong"))
            return
        yield Snapshot(task=opens)
        while True:
            due = self._catch_up()
            news = [replace(known.update, task_id=self._task_id) for known in self._truth.told[told:]]
            if self.script.opening == "end first" and self._truth.ended:
                news.sort(key=lambda event: isinstance(event, ArtifactUpdate))
            for event in news:
                yield event
            told += len(news)
            if told < len(self._truth.told):
                continue
            if self._truth.ended or (self._truth.asking is not None and self._dialect.question_ends_stream):
                return
            self._answered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due if due < inf else None):
                    await self._answered.wait()
