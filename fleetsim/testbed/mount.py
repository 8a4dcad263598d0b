"""An application at an origin of the network in memory: its lifespan and the calls under way."""

from __future__ import annotations

import contextlib

from fleetsim.model.errors import Unreachable
from fleetsim.runtime.exchange import Origin
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import App, AsgiCall, Lifespan, Scope

DRAIN_S = 5.0


class Mount:
    """An application at an origin, its lifespan and the calls under way to it."""

    def __init__(self, origin: Origin, app: App, address: str) -> None:
        self.origin = origin
        self.app = app
        self.address = address
        self.up = True
        self.lifespan: Lifespan | None = None
        self.workers = Workers(f"network:{origin}")
        self.calls: dict[int, AsgiCall] = {}
        self._births = 0

    @property
    def started(self) -> bool:
        """Whether a request can be made now, without waiting for the start."""
        lifespan = self.lifespan
        return lifespan is not None and lifespan.started.is_set() and lifespan.failure is None

    async def start(self, spec_version: str) -> None:
        """Start the application, or wait until it has. Raises Unreachable if it fails."""
        if self.lifespan is None:
            self.lifespan = Lifespan(self.app, where=str(self.origin))
            self.workers.start(self.lifespan.run(spec_version), name="lifespan")
        await self.lifespan.started.wait()
        if self.lifespan.failure is not None:
            raise Unreachable(f"{self.origin}: startup failed")

    async def start_quietly(self, spec_version: str) -> None:
        """Start; a failure is logged by the lifespan, and meets every request."""
        with contextlib.suppress(Unreachable):
            await self.start(spec_version)

    def call(self, scope: Scope, body: bytes, *, where: str) -> AsgiCall:
        self._births += 1
        birth = self._births
        call = self.calls[birth] = AsgiCall(self.app, scope, body, where=where)
        worker = self.workers.start(call.run(), name=f"{birth} {where}")
        worker.add_done_callback(lambda _: self.calls.pop(birth, None))
        return call

    def drop(self, reason: str) -> None:
        for call in list(self.calls.values()):
            call.leave(reason)

    async def stop(self) -> None:
        """Close connections, end the lifespan, wait ``DRAIN_S`` seconds for calls, then cancel them."""
        self.up = False
        self.drop("the server shut down")
        if self.lifespan is not None:
            self.lifespan.stop()
        await self.workers.drain(DRAIN_S)
        await self.workers.close()
        self.lifespan = None

    async def crash(self) -> None:
        """Cancel everything at once; connections break where they are."""
        self.up = False
        if self.lifespan is not None:
            self.lifespan.killed = True
        self.drop("connection reset by peer")  # who is dead answers nothing, not even that it failed
        await self.workers.close()
        self.lifespan = None
