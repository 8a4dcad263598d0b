"""Feeds: recordings and a hub in this process."""

from __future__ import annotations

import pytest

from fleetsim.dashboard.feed import LiveFeed
from fleetsim.events.fleet import HubStarted
from fleetsim.events.log import EventLog
from fleetsim.events.request import Event
from fleetsim.events.wire import payload
from fleetsim.runtime.ports import Runtime
from tests.dashboard.journal import an_hour


async def test_the_events_of_a_hub_arrive_in_order_and_what_was_lost_is_counted(runtime: Runtime) -> None:
    log = EventLog(runtime.clock)
    async with log.subscribe(after_seq=0, keep_max=10) as source:
        feed = LiveFeed(source)
        for n in range(15):
            log.publish(HubStarted(url="", pid=n))
        batch = await anext(aiter(feed))
        assert [payload(event)["pid"] for event in batch] == list(range(5, 15))
        assert feed.dropped == 5


@pytest.mark.slow
async def test_a_restarted_hub_is_told_from_its_ledger_and_no_event_twice(runtime: Runtime) -> None:
    past = an_hour()[:1_500]
    log = EventLog(runtime.clock, first_seq=1_498)
    async with log.subscribe(after_seq=0) as source:
        for n in range(5):
            log.publish(HubStarted(url="", pid=n))
        told: list[Event] = []
        async for batch in LiveFeed(source, past=past):
            told += batch
            if told[-1].seq == 1_503:
                break
    assert [event.seq for event in told] == list(range(1, 1_504))
