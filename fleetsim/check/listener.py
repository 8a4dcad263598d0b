"""A place for webhooks to go: one application, on a socket or in memory, with a path for every probe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fleetsim.check.evidence import SHOWN_CHARS, note_timeout
from fleetsim.check.raw_dialect import mapping, state_word
from fleetsim.model.errors import ConfigError
from fleetsim.model.masking import masked
from fleetsim.model.task import TERMINAL
from fleetsim.model.text import neutralise, one_line
from fleetsim.runtime.limits import ServerLimits

LISTEN = "127.0.0.1:9199"
"""A listener's address that can be written into an agent's allow-list, which one on a free port cannot."""

BODY_BYTES_MAX = 1024 * 1024
ARRIVALS_MAX = 200

Asgi: TypeAlias = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedWebhook:
    """One request that came to a hook."""

    at: float
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The JSON of the body, or None."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def shown(self) -> str:
        """The arrival as text for a report: trimmed, harmless to print, tokens masked."""
        secret = {"authorization", "x-a2a-notification-token"}
        heads = [f"{n}: {'***' if n in secret else v}" for n, v in self.headers.items() if n not in {"host", "accept"}]
        body = self.body[:SHOWN_CHARS].decode("utf-8", "replace")
        return masked(neutralise("\n".join([f"POST {self.path} (at the listener)", *heads, "", body]), limit=4_000))


@dataclass(slots=True, eq=False)
class WebhookAddress:
    """One webhook address: what came, and what it answers. ``answers`` first, then ``otherwise``.

    ``refused_once`` names states whose first notice is answered with 500, and stands before both.
    """

    url: str
    path: str
    answers: list[int] = field(default_factory=list)
    otherwise: int = 200
    refused_once: set[str] = field(default_factory=set)
    location: str | None = None
    arrivals: list[ReceivedWebhook] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, arrival: ReceivedWebhook) -> int:
        """Keep an arrival and say what to answer."""
        if len(self.arrivals) < ARRIVALS_MAX:
            self.arrivals.append(arrival)
        self._news.set()
        if (state := state_of(arrival)) in self.refused_once:
            self.refused_once.discard(state)
            return 500
        return self.answers.pop(0) if self.answers else self.otherwise

    async def until(self, fits: Callable[[ReceivedWebhook], bool], seconds: float) -> ReceivedWebhook | None:
        """The first arrival that fits, or None after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._news.clear()
                    if found := next((arrival for arrival in self.arrivals if fits(arrival)), None):
                        return found
                    await self._news.wait()
        except TimeoutError:
            note_timeout()
            return None

    async def anything(self, seconds: float) -> ReceivedWebhook | None:
        return await self.until(lambda _arrival: True, seconds)


class Sink:
    """The ASGI application behind a listener: hands what comes to a hook's path to that hook."""

    def __init__(self) -> None:
        self._hooks: dict[str, WebhookAddress] = {}
        self.strays: list[str] = []

    def add(self, hook: WebhookAddress) -> None:
        """Send requests for its path to the hook; all others get 404."""
        self._hooks[hook.path] = hook

    async def __call__(
        self, scope: Asgi, receive: Callable[[], Awaitable[Asgi]], send: Callable[[Asgi], Awaitable[None]]
    ) -> None:
        """Serve one connection of the server."""
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(
        self, scope: Asgi, receive: Callable[[], Awaitable[Asgi]], send: Callable[[Asgi], Awaitable[None]]
    ) -> None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")[:BODY_BYTES_MAX]
            if not message.get("more_body"):
                break
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        hook = self._hooks.get(scope["path"])
        status, more = 404, []
        if hook is not None:
            at = asyncio.get_running_loop().time()
            status = hook.take(ReceivedWebhook(at, scope["path"], headers, bytes(body[:BODY_BYTES_MAX])))
            if hook.location and 300 <= status < 400:
                more = [(b"location", hook.location.encode())]
        elif len(self.strays) < ARRIVALS_MAX:
            self.strays.append(scope["path"])
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *more]})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class Listener:
    """A sink and the origin under which the agent reaches it, without a closing slash."""

    origin: str
    sink: Sink = field(default_factory=Sink)

    def hook(self, name: str, *, answers: tuple[int, ...] = (), otherwise: int = 200) -> WebhookAddress:
        """A fresh webhook address; ``name`` must be new."""
        path = f"/hook/{name}"
        hook = WebhookAddress(url=f"{self.origin}{path}", path=path, answers=list(answers), otherwise=otherwise)
        self.sink.add(hook)
        return hook

    @property
    def place(self) -> str:
        """HOST:PORT, as an agent's allow-list has it."""
        return self.origin.partition("://")[2]


@asynccontextmanager
async def socket_listener(
    host: str = "127.0.0.1", port: int = 0, *, seen_as: str | None = None
) -> AsyncIterator[Listener]:
    """A listener on a socket; ``seen_as`` is its origin as the agent sees it, if that differs. Raises ConfigError if
    the address is not free.
    """
    from fleetsim.runtime.server import listen, serving  # a third of the time that ``check --help`` would take

    sink = Sink()
    async with serving(sink, ServerLimits(), listen(host, port)) as url:
        yield Listener((seen_as or url).rstrip("/"), sink)


def host_port(text: str) -> tuple[str, int]:
    """The two parts of an address to listen on. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"{one_line(text)!r} is not an address to listen on", hint=f"HOST:PORT, as {LISTEN}")
    return host.strip("[]"), int(port)


def usual_listener() -> AbstractAsyncContextManager[Listener]:
    """The address of the listener for an agent that the check runs: the usual port, or any free one if it is in use."""
    from fleetsim.runtime.server import listen

    host, port = host_port(LISTEN)
    with suppress(ConfigError):
        listen(host, port).close()
        return socket_listener(host, port)
    return socket_listener(host, 0)


def status_of(body: Any) -> Mapping[str, Any]:
    """The status in a webhook's body, whichever shape it has."""
    found = mapping(body)
    for key in ("task", "statusUpdate"):
        found = mapping(found.get(key)) or found
    return mapping(found.get("status"))


def state_of(arrival: ReceivedWebhook) -> str:
    """The state a webhook tells, in the words of 0.3; empty if it tells none."""
    return state_word({"status": status_of(arrival.value)})


def tells_the_end(arrival: ReceivedWebhook) -> bool:
    """Whether a webhook says that its task is in a terminal state."""
    return state_of(arrival) in TERMINAL
