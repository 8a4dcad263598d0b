"""The blocking twin of an asynchronous call, for code that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class HasTwin(Protocol):
    def twin(self, *, alone: bool) -> AbstractAsyncContextManager[Any]:
        """The same client with connections of its own, for one call; ``alone``: no other loop uses its transport."""


C = TypeVar("C", bound=HasTwin)
P = ParamSpec("P")
T = TypeVar("T")


def blocking(call: Callable[Concatenate[C, P], Awaitable[T]]) -> Callable[Concatenate[C, P], T]:
    """A method that makes ``call`` in a loop of its own, in another thread if a loop runs in this one."""

    def wait(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def once(alone: bool) -> T:
            async with self.twin(alone=alone) as client:
                result: T = await getattr(client, call.__name__)(*args, **kwargs)
                return result

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(once(True))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-sync") as thread:
            return thread.submit(lambda: asyncio.run(once(False))).result()

    wait.__name__ = f"{call.__name__}_sync"
    wait.__doc__ = f"``{call.__name__}``, blocking until it is done."
    return wait
