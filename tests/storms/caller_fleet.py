"""Real agents in a process of their own that record their work: the truth to compare a caller with.

One line for each action, appended in one system call, keyed by the correlation id that the caller sent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from fleetsim.agent import Agent, AgentLimits, SkillContext
from fleetsim.agent.agent import Engine
from fleetsim.agent.store import Store
from fleetsim.fleet.settings import AgentEntry
from fleetsim.runtime.webhook import Delivery, DeliveryResult, WebhookSender

WAYS: dict[str, dict[str, Any]] = {
    "quinn": {},
    "ava": {"wire": "0.3", "push": "inline"},
    "rex": {"wire": "0.3", "push": "off", "streaming": False},
    "olly": {"wire": "0.1", "push": "set", "streaming": False},
}
"""Agents by name with the settings for the caller: every dialect, every channel."""

HASTY: dict[str, dict[str, Any]] = {
    "hana": {},
    "hugo": {"wire": "0.3", "push": "inline"},
    "hope": {"wire": "0.1", "push": "inline"},
}
"""Agents whose reply to a send leaves only after a webhook of the task did, and may come much later still."""

HELD_S = (0.0, 0.1, 0.6, 2.5)
"""How long after that webhook, or after the send where none was taken."""


SENDS = (b'"message/send"', b'"message/stream"', b'"SendMessage"', b'"SendStreamingMessage"', b'"tasks/send')
"""The method of a request's first message and of its answers."""


class Arrival(NamedTuple):
    """A send that reached an agent: the value of ``X-Hub`` that names the hub, the message's id, and the time."""

    hub: str
    message: str
    at: float


class Promise(NamedTuple):
    """A webhook that our receiver answered with a 2xx, as the agent that sent it says."""

    state: str
    at: float
    early: bool


@dataclass
class Truth:
    """The agents' records by correlation id: the number of starts, the texts, and the answers that arrived. ``arrived``
    are the sends that arrived whole, answers among them. ``promised`` are the webhooks that got a 2xx: the state of
    each, the time of its response, and whether the reply to the send had left by then."""

    begun: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    arrived: dict[str, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    promised: dict[str, list[Promise]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, path: Path) -> Truth:
        """Read the agents' own file."""
        truth = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, cid, text = json.loads(line)
            if what == "arrived":
                truth.arrived[cid].append(Arrival(*text))
            elif what == "promised":
                truth.promised[cid].append(Promise(*text))
            elif what == "begin":
                truth.begun[cid] += 1
            elif what == "answer":
                truth.answers[cid].append(text)
            else:
                truth.said[cid] = text
        return truth


class Diary:
    """The record of one agent, and its sends that are under way."""

    def __init__(self, path: Path) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.request_of: dict[str, str] = {}
        self.taken: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.replied: set[str] = set()

    def tell(self, what: str, cid: str, text: object = "") -> None:
        """Append one line."""
        os.write(self._out, (json.dumps([what, cid, text]) + "\n").encode())


class Sender(WebhookSender):
    """Records every accepted webhook; by then its task has begun."""

    diary: Diary

    async def deliver(self, delivery: Delivery) -> DeliveryResult:
        """Deliver the webhook, and remember the response."""
        result = await super().deliver(delivery)
        cid = self.diary.request_of.get(delivery.task_id)
        if result.delivered and cid is not None:
            self.diary.tell("promised", cid, [delivery.state, time.time(), cid not in self.diary.replied])
            self.diary.taken[cid].set()
        return result


class Telling(Agent):
    """An agent that records its requests and its accepted webhooks. ``hasty``: one of ``HASTY``."""

    def __init__(self, name: str, diary: Diary, *, hasty: bool, **options: Any) -> None:
        sender = type("Sender", (Sender,), {"diary": diary})
        super().__init__(name, **{"webhook_sender": sender, **options})
        self._diary, self._hasty, self._rng = diary, hasty, random.Random(f"{name}/held")

    def mount(self, engine: Engine) -> Any:
        """The application behind a guard that records each send, and may delay its reply."""
        app = super().mount(engine)

        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            headers = dict(scope.get("headers", ()))
            cid = headers.get(b"x-correlation-id", b"").decode()
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            body = await _body(receive)
            sends = any(name in body for name in SENDS)
            if sends:
                message = json.loads(body)["params"]["message"]
                arrival = Arrival(headers.get(b"x-hub", b"").decode(), _message_id(message), time.time())
                self._diary.tell("arrived", cid, arrival)
            if cid in self._diary.taken or not sends:
                await app(scope, _again(body, receive), send)
                return
            taken = self._diary.taken[cid]

            async def held(part: Message) -> None:
                if part["type"] == "http.response.start":
                    if self._hasty:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(1.0):
                                await taken.wait()
                        await asyncio.sleep(self._rng.choice(HELD_S))
                    self._diary.replied.add(cid)
                await send(part)

            await app(scope, _again(body, receive), held)

        return door


def _message_id(message: dict[str, Any]) -> str:
    """A message of 0.1 has no id: its text replaces it."""
    return str(message.get("messageId") or message["parts"][0].get("text"))


async def _body(receive: Receive) -> bytes:
    """The whole body; none of it if its sender left before its end."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    given = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


def truthful(name: str, path: Path, hub_port: int, limits: AgentLimits | None = None) -> Agent:
    """An agent whose skills record their work in ``path``."""
    diary = Diary(path)
    allowed = [f"127.0.0.1:{hub_port}"]
    agent = Telling(name, diary, hasty=name in HASTY, allow_webhook=allowed, limits=limits)
    rng = random.Random(name)

    def tell(task: SkillContext, what: str, text: str = "") -> str:
        cid = str(task.metadata.get("correlationId"))
        diary.request_of[task.task_id] = cid
        diary.tell(what, cid, text)
        return text

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        tell(task, "begin")
        return tell(task, "end", f"you said {task.text}")

    @agent.skill("work")
    async def work(task: SkillContext) -> None:
        tell(task, "begin")
        said = ""
        for word in ("one ", "two ", "three"):
            await asyncio.sleep(rng.choice((0.01, 0.1, 0.8)))
            await task.say(word)
            said += word
        tell(task, "end", said)

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        tell(task, "begin")
        given = [tell(task, "answer", await task.ask(question)) for question in ("which?", "sure?")]
        return tell(task, "end", " and ".join(given))

    return agent


def own_threads() -> int:
    """Threads of this process without those of pools, which start when first needed, up to the pool's size."""
    pools = ("fleetsim-resolver", "asyncio_", "ThreadPoolExecutor")
    return sum(not thread.name.startswith(pools) for thread in threading.enumerate())


def _held() -> dict[str, int]:
    """Counts of this process: tasks of the agents, coroutines and threads."""
    gc.collect()
    return {
        "tasks": sum(len(thing) for thing in gc.get_objects() if type(thing) is Store),
        "coroutines": len(asyncio.all_tasks()),
        "threads": own_threads(),
    }


async def _serve(
    names: Iterable[str], path: Path, hub_port: int, limits: AgentLimits | None, report: int, ask: int
) -> None:
    def say(what: dict[str, Any]) -> None:
        os.write(report, (json.dumps(what) + "\n").encode())

    async with AsyncExitStack() as stack:
        urls = {}
        for name in names:
            agent = truthful(name, path, hub_port, limits)
            urls[name] = await stack.enter_async_context(agent.serving())
        say(urls)
        while await asyncio.get_running_loop().run_in_executor(None, os.read, ask, 1):
            say(_held())


@dataclass
class Agents:
    """The agents' process. Use as ``with``: it ends with the parent, whatever happens to it."""

    path: Path
    hub_port: int
    limits: AgentLimits | None = None
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: WAYS)
    entries: tuple[AgentEntry, ...] = ()
    pid: int = 0
    hold: int = -1
    said: IO[str] | None = None

    def __enter__(self) -> Agents:
        reading, writing = os.pipe()
        ask, self.hold = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.hold)
            os.close(reading)
            try:
                asyncio.run(_serve(self.ways, self.path, self.hub_port, self.limits, writing, ask))
            finally:
                os._exit(0)
        os.close(writing)
        os.close(ask)
        self.said = os.fdopen(reading)
        urls = json.loads(self.said.readline())
        self.entries = tuple(AgentEntry(**{"name": n, "url": f"{urls[n]}/a2a", **way}) for n, way in self.ways.items())
        return self

    def held(self) -> dict[str, int]:
        """The counts of the agents' process, as it reports them. Blocks until it replies."""
        assert self.said is not None
        os.write(self.hold, b"?")
        found: dict[str, int] = json.loads(self.said.readline())
        return found

    def __exit__(self, *_: object) -> None:
        os.close(self.hold)
        if self.said is not None:
            self.said.close()
        os.waitpid(self.pid, 0)
