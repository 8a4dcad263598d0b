"""Faults as small frozen values. Each only decides what happens to a connection in one of four phases: connecting, the
body of the request, the start of the response, each chunk of its body. ``network`` and ``proxy`` carry it out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from fleetsim.model.errors import RpcError
from fleetsim.runtime.exchange import origin_of
from fleetsim.runtime.ports import Request
from fleetsim.wire import rest
from fleetsim.wire.dialect import VERSION_HEADER, for_path

FOREVER = float("inf")


# The decisions of a fault.


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait. If it is ``overlapping``, chunks on their way are delayed together (distance), else one after another."""

    seconds: float
    overlapping: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """The connection breaks at this point."""

    reason: str = "connection reset"


@dataclass(frozen=True, slots=True)
class Data:
    """These bytes go on."""

    content: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The body ends here, as if it were whole."""


@dataclass(frozen=True, slots=True)
class Start:
    """Status and headers of a response, names in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """A response in place of the application's: the request does not reach it."""

    start: Start
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Again:
    """The request arrives a second time, ``after_s`` seconds after the first; its response is discarded."""

    after_s: float = 0.0


OnConnect: TypeAlias = Iterable[Wait | Break]
OnRequest: TypeAlias = Iterable[Wait | Break | Data | Response | Again]
OnStart: TypeAlias = Iterable[Wait | Break | Start]
OnChunk: TypeAlias = Iterable[Wait | Break | Data | End]


@dataclass(slots=True)
class FaultInput:
    """The input of a fault: the request, a stream of chance, and the body bytes that it has let pass."""

    request: Request
    rng: random.Random
    passed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that does nothing. Each kind below overrides the method of its phase."""

    def on_connect(self, moment: FaultInput) -> OnConnect:
        """Before anything is sent. ``Break`` means refused."""
        return ()

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        """The request's body on its way to the application."""
        return (Data(body),)

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        """Status and headers on their way back."""
        return (start,)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        """A chunk of the response's body."""
        return (Data(chunk),)


# Connecting.


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Fault):
    """No server listens: the connection is refused."""

    def on_connect(self, moment: FaultInput) -> OnConnect:
        return (Break("connection refused"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Fault):
    """No bytes and no close: at ``connect``, before the ``response``, or in the ``body`` after some bytes."""

    at: str = "response"
    after_bytes: int = 0
    seconds: float = FOREVER

    def on_connect(self, moment: FaultInput) -> OnConnect:
        return (Wait(self.seconds),) if self.at == "connect" else ()

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (Wait(self.seconds), start) if self.at == "response" else (start,)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        here = self.after_bytes - moment.passed_bytes
        if self.at != "body" or not 0 <= here < len(chunk):
            return (Data(chunk),)
        return (Data(chunk[:here]), Wait(self.seconds), Data(chunk[here:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Fault):
    """Distance: each part of the response arrives ``low_s`` to ``high_s`` seconds late, in order."""

    low_s: float
    high_s: float

    def on_connect(self, moment: FaultInput) -> OnConnect:
        return (Wait(moment.rng.uniform(self.low_s, self.high_s)),)

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (Wait(moment.rng.uniform(self.low_s, self.high_s), overlapping=True), start)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        return (Wait(moment.rng.uniform(self.low_s, self.high_s), overlapping=True), Data(chunk))


# The request on its way.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseRequest(Fault):
    """The request leaves and never arrives; the connection breaks."""

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        return (Break("connection reset before the request arrived"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Fault):
    """The request arrives ``low_s`` to ``high_s`` seconds late; with a wide range, out of order."""

    low_s: float
    high_s: float

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        return (Wait(moment.rng.uniform(self.low_s, self.high_s)), Data(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Fault):
    """The request arrives ``copies`` more times, ``after_s`` seconds apart."""

    copies: int = 1
    after_s: float = 0.0

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        return (Data(body), *(Again(self.after_s * (number + 1)) for number in range(self.copies)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRequest(Fault):
    """``edit`` changes the body before it arrives."""

    edit: Callable[[bytes], bytes]

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        return (Data(self.edit(body)),)


# Answers that are not the application's.


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Fault):
    """A proxy in between answers with ``status``; the application does not get the request."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/plain"})

    def on_request(self, moment: FaultInput, body: bytes) -> OnRequest:
        return (Response(Start(self.status, dict(self.headers)), self.body),)


HTML_ERROR = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"


def html_error(status: int = 502) -> Status:
    """A proxy's error page."""
    return Status(status=status, body=HTML_ERROR, headers={"content-type": "text/html"})


# The response on its way back.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseReply(Fault):
    """The application handles the request, and its reply is lost."""

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (Break("connection reset before the reply"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart(Fault):
    """The response starts ``seconds`` late."""

    seconds: float

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (Wait(self.seconds), start)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditStart(Fault):
    """The response carries another status or other headers; a header set to None is dropped."""

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        headers = {**start.headers, **self.headers}
        headers_left = {name: value for name, value in headers.items() if value is not None}
        return (Start(start.status if self.status is None else self.status, headers_left),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAfter(Fault):
    """The connection breaks once ``bytes_passed`` bytes of the body have gone by."""

    bytes_passed: int = 0

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        left = self.bytes_passed - moment.passed_bytes
        return (Data(chunk),) if len(chunk) < left else (Data(chunk[:left]), Break("connection reset by peer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAfter(Fault):
    """The body ends cleanly after ``bytes_passed`` bytes: half a JSON, half an event."""

    bytes_passed: int

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (_without_length(start),)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        left = self.bytes_passed - moment.passed_bytes
        return (Data(chunk),) if len(chunk) < left else (Data(chunk[:left]), End())


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip(Fault):
    """The body comes ``size`` bytes at a time, ``every_s`` seconds apart."""

    size: int = 1
    every_s: float = 0.2

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        for begin in range(0, len(chunk), self.size):
            yield Wait(self.every_s)
            yield Data(chunk[begin : begin + self.size])


@dataclass(frozen=True, slots=True, kw_only=True)
class EditChunk(Fault):
    """``edit`` changes each chunk of the body; the response has no ``Content-Length`` then."""

    edit: Callable[[bytes], bytes]

    def on_start(self, moment: FaultInput, start: Start) -> OnStart:
        return (_without_length(start),)

    def on_chunk(self, moment: FaultInput, chunk: bytes) -> OnChunk:
        return (Data(self.edit(chunk)),)


def _without_length(start: Start) -> Start:
    return Start(start.status, {name: value for name, value in start.headers.items() if name != "content-length"})


# The requests that a fault applies to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The requests that a fault applies to. An omitted field matches every request; texts may contain shell wildcards.

    ``rpc_method`` is the JSON-RPC name of the operation (``called``), ``source`` the sender's name (``seen_from``).
    """

    origin: str | None = None
    path: str | None = None
    method: str | None = None
    rpc_method: str | None = None
    source: str | None = None
    where: Callable[[Request], bool] | None = None

    def __call__(self, request: Request, source: str) -> bool:
        """Whether the fault applies to ``request``, sent by ``source``."""
        return (
            _fits(self.method, request.method)
            and _fits(self.source, source)
            and (self.origin is None or _fits(_bare(self.origin), _place(request.url)[0]))
            and (self.path is None or _fits(self.path, _place(request.url)[1]))
            and (self.rpc_method is None or _fits(self.rpc_method, called(request).method))
            and (self.where is None or self.where(request))
        )


@lru_cache(1024)
def _place(url: str) -> tuple[str, str]:
    """Origin and path, to compare with patterns."""
    return _bare(str(origin_of(url))), urlsplit(url).path or "/"


class CalledOperation(NamedTuple):
    """The operation of a request: its name in JSON-RPC, and the task in a path of HTTP+JSON. Empty if there is none."""

    method: str = ""
    task_id: str = ""


def called(request: Request) -> CalledOperation:
    """The A2A operation that ``request`` calls, over JSON-RPC or HTTP+JSON."""
    version = request.headers.get(VERSION_HEADER.lower())
    return _over_json_rpc(request.body) or _over_http_json(request.method, urlsplit(request.url).path, version)


@lru_cache(8)  # cached, because each active fault needs it for the same request
def _over_json_rpc(body: bytes) -> CalledOperation | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    method = parsed.get("method") if isinstance(parsed, dict) else None
    return CalledOperation(method) if isinstance(method, str) else None


@lru_cache(1024)
def _over_http_json(method: str, path: str, version: str | None) -> CalledOperation:
    """``path`` may begin with the path of the agent's address."""
    for at in (at for at, character in enumerate(path) if character == "/"):
        with suppress(RpcError):
            spoken = for_path(path[at:], version)
            found = rest.match(spoken, method, path[at:])
            task_id = found.params.get("taskId", found.params.get("id", ""))
            return CalledOperation(spoken.methods[found.operation][0], task_id)
    return CalledOperation()


def _fits(pattern: str | None, text: str) -> bool:
    return pattern is None or pattern == text or fnmatchcase(text, pattern)


@lru_cache(1024)
def _bare(origin: str) -> str:
    return origin.removesuffix("/").removesuffix(":80").removesuffix(":443").lower()


# -- faults in force -------------------------------------------------------------------------------------------------
# The active faults, and their requests.


@dataclass(slots=True, kw_only=True)
class Weather:
    """An active fault. ``hits`` counts its requests; ``lift`` ends it."""

    fault: Fault
    match: Match
    times: int | None
    probability: float
    hits: int = 0
    lifted: bool = False

    def lift(self) -> None:
        """End the fault. Requests on their way keep it."""
        self.lifted = True

    def __enter__(self) -> Weather:
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()


class ActiveFaults:
    """The active faults, in the order in which they were added."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._weather: list[Weather] = []

    def put_up(self, weather: Weather) -> Weather:
        # Remove ended faults here: a storm of a day adds hundreds, and each request is compared with all of them.
        self._weather = [*(other for other in self._weather if not other.lifted), weather]
        return weather

    def clear(self) -> None:
        for weather in self._weather:
            weather.lift()
        self._weather.clear()

    def over(self, request: Request, source: str) -> list[tuple[Fault, FaultInput]]:
        """The faults that apply to this request, each with its input. Counts their hits."""
        chosen = []
        for weather in self._weather:
            if weather.lifted or weather.times == weather.hits or not weather.match(request, source):
                continue
            if weather.probability >= 1 or self._rng.random() < weather.probability:
                weather.hits += 1
                chosen.append((weather.fault, FaultInput(request, self._rng)))
        return chosen
