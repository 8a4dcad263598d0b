"""What every server of ours does with a request before anybody reads it. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from fleetsim.model.errors import FleetsimError
from fleetsim.model.trace import TRACEPARENT, read_traceparent
from fleetsim.runtime.body import Deadline

T = TypeVar("T")

_TRACEPARENT = TRACEPARENT.encode()

WHOLE = "fleetsim.whole"
"""ASGI extension of our servers: called, it says whether all of the body is there, so that nobody waits for it."""


class Refusal(FleetsimError):
    """A request that is answered with an HTTP status and a reason, named by ``code``, and nothing else."""

    def __init__(
        self, status: int, code: str, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.code, self.headers = status, code, headers or {}


def too_large(bytes_max: int) -> Refusal:
    """The refusal of a body beyond ``bytes_max``; the rest of it is not waited for."""
    return Refusal(413, "TOO_LARGE", f"the body is larger than {bytes_max} bytes", headers={"connection": "close"})


def traceparent_of(request: Request) -> str:
    """The place in a trace that a caller names (W3C Trace Context section 3.2.2); empty if it names none, or two."""
    told = [value for name, value in request.scope["headers"] if name == _TRACEPARENT]
    place = read_traceparent(told[0].decode("latin-1")) if len(told) == 1 else None
    return "" if place is None else str(place)


class BodyReader:
    """Reads bodies, each of at most ``bytes_max`` within ``seconds``; those being read at once of ``all_bytes_max``."""

    def __init__(self, *, bytes_max: int, seconds: float, all_bytes_max: float = math.inf) -> None:
        self._bytes_max, self._seconds, self._all_bytes_max = bytes_max, seconds, all_bytes_max
        self._held = 0

    async def read(
        self, request: Request, *, deadline: Deadline | None = None, fits: Callable[[int], bool] | None = None
    ) -> bytes:
        """The whole body, before the ``deadline`` if one is given.

        ``fits`` is told the size so far after each piece; false is a refusal.

        Raises:
            Refusal: 413 too large, 429 no room for it now, 408 too slow, 400 the client left before the end.
        """
        body = bytearray()
        try:
            async with nullcontext() if _is_whole(request) else deadline or self._deadline():
                async for chunk in request.stream():
                    body += chunk
                    self._held += len(chunk)
                    if fits is not None and not fits(len(body)):
                        raise Refusal(429, "NO_ROOM", "there is no room for the body now")
                    if len(body) > self._bytes_max:
                        raise too_large(self._bytes_max)
                    if self._held > self._all_bytes_max:
                        full, later = (
                            f"the agent reads at most {self._all_bytes_max} bytes at once",
                            {"retry-after": "1"},
                        )
                        raise Refusal(429, "NO_ROOM", full, headers={"connection": "close", **later})
        except TimeoutError:
            slow = f"the body did not arrive within {self._seconds:g} s"
            raise Refusal(408, "TOO_SLOW", slow, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise Refusal(400, "CUT_OFF", "the body was cut off") from None
        finally:
            self._held -= len(body)
        return bytes(body)

    def _deadline(self) -> Deadline:
        return Deadline(asyncio.get_running_loop().time() + self._seconds)


def _is_whole(request: Request) -> bool:
    """Whether the body is there already, as most are: a deadline would be half of what reading it costs."""
    whole = request.scope.get("extensions", {}).get(WHOLE)
    return whole is not None and bool(whole())


async def while_connected(request: Request, answer: Callable[[], Awaitable[T]]) -> tuple[T] | None:
    """Work out an answer as long as the client waits for it; None if it left. What ``answer`` raises comes out."""
    answers: list[T] = []

    async def work() -> None:
        answers.append(await answer())

    async def until_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work())
            watching = group.create_task(until_left())
            working.add_done_callback(lambda _done: watching.cancel())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return (answers[0],) if answers else None
