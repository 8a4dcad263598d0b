"""Waiting for news of a request: that it ended, or needs somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fleetsim.caller.events import OutcomeDecided, QuestionAsked
from fleetsim.caller.fleet_events import HubStopping
from fleetsim.hub.hub import Hub

WAIT_S_MAX = 60.0
NEWS = (OutcomeDecided, QuestionAsked, HubStopping)
"""That a request ended, that it needs somebody, or that nobody will tell."""


async def until_news(hub: Hub, correlation_id: str, wait_s: float) -> None:
    """Wait until the request ended or needs somebody, if it does not already; ``wait_s`` seconds at most."""
    async with hub.events.subscribe(kinds=NEWS, about=correlation_id) as heard:
        # Asked after listening began: what happened before is seen here, what happens from now on is heard.
        track = hub.tracker.track(correlation_id)
        if track is None or track.question is not None:
            return
        try:
            async with asyncio.timeout(wait_s):
                await heard.next_batch()
        except TimeoutError:
            return


async def submitted(hub: Hub, submit: Callable[[], Awaitable[str]], wait_s: float) -> tuple[str, bool]:
    """Do ``submit``, which returns a request's id, and wait for news since then: the id, and whether there was any.

    What the request asked before is none: the submission may be the answer to it.
    """
    async with hub.events.subscribe(kinds=NEWS) as heard:
        correlation_id = await submit()
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    for event in await heard.next_batch():
                        if isinstance(event, HubStopping) or event.correlation_id == correlation_id:
                            return correlation_id, True
        except TimeoutError:
            return correlation_id, False
