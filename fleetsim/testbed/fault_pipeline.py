"""The faults of one request, carried out on one ``AsgiCall``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from fleetsim.model.errors import ConnectionLost, Unreachable
from fleetsim.testbed.asgi import AsgiCall
from fleetsim.testbed.faults import FOREVER, Again, Break, Data, End, Fault, FaultInput, Response, Start, Wait


@dataclass(frozen=True, slots=True)
class FaultResult:
    """The decision of the faults for a request: a response of their own, or a body to deliver, and its copies."""

    body: bytes
    answer: Response | None
    again: tuple[Again, ...]


async def pause(seconds: float) -> None:
    """Sleep. For ever means until cancelled: no timer is set, because virtual time would jump to it."""
    if seconds == FOREVER:
        await asyncio.Event().wait()
    elif seconds > 0:
        await asyncio.sleep(seconds)


class FaultPipeline:
    """The faults of one request, each with its input, in the order in which they were added."""

    def __init__(self, faults: Iterable[tuple[Fault, FaultInput]], *, where: str) -> None:
        self._faults = tuple(faults)
        self._where = where

    @property
    def faultless(self) -> bool:
        """Whether no fault applies."""
        return not self._faults

    async def connect(self) -> None:
        """Raises Unreachable if a fault refuses."""
        for fault, moment in self._faults:
            for step in fault.on_connect(moment):
                if isinstance(step, Break):
                    raise Unreachable(f"{self._where}: {step.reason}")
                await pause(step.seconds)

    async def request(self, body: bytes) -> FaultResult:
        """Carry the body to the application. Raises ConnectionLost if a fault loses it."""
        again: list[Again] = []
        for fault, moment in self._faults:
            for step in fault.on_request(moment, body):
                match step:
                    case Wait():
                        await pause(step.seconds)
                    case Break():
                        raise ConnectionLost(f"{self._where}: {step.reason}")
                    case Data():
                        body = step.content
                    case Again():
                        again.append(step)
                    case Response():
                        return FaultResult(body, step, tuple(again))
        return FaultResult(body, None, tuple(again))

    async def start(self, sent_at: float, start: Start) -> Start:
        """Carry status and headers back. Raises ConnectionLost."""
        for fault, moment in self._faults:
            for step in fault.on_start(moment, start):
                match step:
                    case Wait():
                        await self.deliver(sent_at, step)
                    case Break():
                        raise ConnectionLost(f"{self._where}: {step.reason}")
                    case Start():
                        start = step
        return start

    def pieces(self, chunk: bytes) -> list[Data | Wait | Break | End]:
        """The pieces that reach the reader for one chunk."""
        pieces: list[Data | Wait | Break | End] = [Data(chunk)]
        for fault, moment in self._faults:
            passed: list[Data | Wait | Break | End] = []
            for piece in pieces:
                if not isinstance(piece, Data):
                    passed.append(piece)
                    continue
                for step in fault.on_chunk(moment, piece.content):
                    passed.append(step)
                    if isinstance(step, Data):
                        moment.passed_bytes += len(step.content)
            pieces = passed
        return pieces

    async def deliver(self, sent_at: float, wait: Wait) -> None:
        """Let the time of one piece pass; ``sent_at`` is the loop's time when it left the application."""
        now = asyncio.get_running_loop().time()
        if wait.seconds == FOREVER:
            await pause(FOREVER)
        begin = sent_at if wait.overlapping else now
        await pause(begin + wait.seconds - now)


class FaultedChunks(AsyncIterator[bytes]):
    """The body as the reader receives it. A break reaches both sides."""

    def __init__(self, call: AsgiCall, pipeline: FaultPipeline, *, where: str) -> None:
        self._call = call
        self._pipeline = pipeline
        self._where = where
        self._pieces: deque[Data | Wait | Break | End] = deque()
        self._sent_at = 0.0
        self._ended = False

    async def __anext__(self) -> bytes:
        while not self._ended:
            if not self._pieces:
                self._sent_at, chunk = await self._call.chunk()
                self._ended = not chunk
                self._pieces.extend(self._pipeline.pieces(chunk) if chunk else ())
                continue
            piece = self._pieces[0]
            if isinstance(piece, Wait):
                await self._pipeline.deliver(self._sent_at, piece)
            self._pieces.popleft()
            match piece:
                case Data() if piece.content:
                    return piece.content
                case Break():
                    self._call.leave(piece.reason)
                    raise ConnectionLost(f"{self._where}: {piece.reason}")
                case End():
                    self._call.leave("the reader has enough")
                    self._ended = True
        raise StopAsyncIteration
