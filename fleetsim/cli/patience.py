"""``--timeout``: how long a verb waits, to within a second, whatever hangs meanwhile. The work is left as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from fleetsim.model.errors import FleetsimError

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def timeout_option(what: str, *, default: float | None = 300.0) -> Option:
    """The option, in seconds; ``what`` says what is waited for and what becomes of it afterwards."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=what,
    )


@asynccontextmanager
async def within(timeout_s: float | None, late: Callable[[], FleetsimError]) -> AsyncIterator[None]:
    """What is done inside is dropped after ``timeout_s``. Raises what ``late`` says then."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise late() from None
