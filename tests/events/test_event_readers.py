"""The event log numbers events, and each reader receives the events that it waits for, whatever the others' pace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from msgspec.structs import replace

from fleetsim.events.fleet import HubStarted, HubStopping
from fleetsim.events.log import KEEP_MAX, SPARE, EventLog
from fleetsim.events.request import Event, Level, OtherEvent, StreamBroken
from fleetsim.events.shared import SharedEventLog
from fleetsim.testbed.loop import START
from fleetsim.testbed.runtime import VirtualClock

KEEP = 3


def log(count: int = 0, *, keep_max: int = KEEP_MAX, first_seq: int = 0) -> EventLog:
    """A log with this number of events."""
    found = EventLog(VirtualClock(), keep_max=keep_max, first_seq=first_seq)
    for n in range(count):
        found.publish(OtherEvent(name=f"t.{n + 1}"))
    return found


def numbers(events: tuple[Event, ...]) -> list[int]:
    return [event.seq for event in events]


def test_an_event_gets_its_number_and_its_time() -> None:
    event = StreamBroken(correlation_id="c", agent="a", why="cut")
    assert log(1).publish(event) == replace(event, seq=2, at=START)
    assert (event.seq, event.at, event.level) == (0, datetime(1970, 1, 1, tzinfo=UTC), Level.DEBUG), "none of its own"


def test_numbers_continue_after_an_earlier_journal_and_never_go_back() -> None:
    assert log().last_seq == 0
    events = log(2, first_seq=40)
    assert (events.last_seq, numbers(events.recent())) == (42, [41, 42])
    events.continue_after(7)
    assert events.publish(OtherEvent(name="t")).seq == 43
    events.continue_after(90)
    assert (events.last_seq, events.publish(OtherEvent(name="t")).seq) == (90, 91)


def test_the_newest_events_are_kept_and_the_newest_after_a_number_are_returned() -> None:
    assert numbers(log(2).recent()) == [1, 2]
    assert numbers(log(5, keep_max=3).recent()) == [3, 4, 5]
    events = log(5)
    assert numbers(events.recent(after_seq=2)) == [3, 4, 5]
    assert numbers(events.recent(after_seq=2, limit=2)) == [4, 5]
    assert numbers(log(1_001).recent()) == list(range(2, 1_002)), "a thousand, unless more are asked for"
    assert KEEP_MAX == 20_000


async def test_a_reader_starts_now_or_after_the_last_event_it_has_seen() -> None:
    events = log(4)
    fresh, again, all_of_it = events.subscribe(), events.subscribe(after_seq=2), events.subscribe(after_seq=0)
    events.publish(OtherEvent(name="t.5"))
    assert numbers(await fresh.next_batch()) == [5]
    assert numbers(await again.next_batch()) == [3, 4, 5]
    assert numbers(await all_of_it.next_batch()) == [1, 2, 3, 4, 5]


async def test_a_reader_that_another_hub_of_the_journal_served_receives_no_event_twice() -> None:
    events = SharedEventLog(VirtualClock())
    events.deliver([(OtherEvent(name="t", seq=1), True)])
    async with events.subscribe(after_seq=3, journaled=True) as reader:
        events.deliver([(OtherEvent(name="t", seq=seq), False) for seq in (2, 3, 4)])
        assert numbers(await reader.next_batch()) == [4]


async def test_a_late_reader_of_a_shared_journal_first_receives_the_kept_events() -> None:
    events = SharedEventLog(VirtualClock())
    events.deliver([(OtherEvent(name="t", seq=seq), False) for seq in (1, 2, 3)])
    async with events.subscribe(after_seq=1, journaled=True) as reader:
        assert numbers(await reader.next_batch()) == [2, 3]


async def test_a_reader_of_one_request_does_not_receive_the_events_of_others() -> None:
    events = log()
    events.publish(OtherEvent(name="agent.skill.update", correlation_id="before"))
    events.publish(OtherEvent(name="agent.skill.update", correlation_id="mine"))
    async with events.subscribe(after_seq=0, wanted=lambda event: event.correlation_id == "mine") as heard:
        for _ in range(1_000):
            events.publish(OtherEvent(name="agent.chat.inbound", correlation_id="loud"))
        events.publish(OtherEvent(name="autonomous.outcome.x", correlation_id="mine"))
        assert heard.behind == 2
        assert [event.correlation_id for event in await heard.next_batch()] == ["mine", "mine"]


async def test_a_reader_of_one_request_receives_events_of_no_request_too() -> None:
    events = log(1)
    events.publish(OtherEvent(name="agent.skill.update", correlation_id="other"))
    mine = events.subscribe(about="mine", after_seq=0)
    again = events.subscribe(about="mine", kinds=(HubStopping,))
    for cid in ("other", "mine", None):
        events.publish(OtherEvent(name="agent.chat.inbound", correlation_id=cid))
    events.publish(HubStopping())
    assert numbers(await mine.next_batch()) == [1, 4, 5, 6]
    assert numbers(await again.next_batch()) == [6]
    mine.close()
    mine.close()
    again.close()
    events.publish(OtherEvent(name="agent.chat.inbound", correlation_id="mine"))
    assert (mine.behind, again.behind, events.dropped) == (0, 0, 0)


async def test_a_reader_of_some_kinds_of_events_receives_no_others() -> None:
    events = log()
    events.publish(HubStopping())
    events.publish(HubStarted(url="", pid=1))
    async with events.subscribe(after_seq=0, kinds=(HubStopping, OtherEvent)) as heard:
        events.publish(HubStarted(url="", pid=2))
        events.publish(OtherEvent(name="agent.chat.inbound"))
        assert [type(event) for event in await heard.next_batch()] == [HubStopping, OtherEvent]


async def test_a_reader_takes_a_limited_number_in_order_and_waits_for_the_next() -> None:
    events = log()
    heard = events.subscribe()
    for n in range(1_003):
        events.publish(OtherEvent(name=f"t.{n}"))
    assert numbers(await heard.next_batch(2)) == [1, 2]
    assert numbers(await heard.next_batch()) == list(range(3, 1_003)), "a thousand, unless it says how many"
    assert (numbers(await heard.next_batch()), heard.behind) == ([1_003], 0)
    for n in (1_004, 1_005):
        asyncio.get_running_loop().call_later(60, events.publish, OtherEvent(name="late"))
        assert numbers(await heard.next_batch()) == [n]
    assert asyncio.get_running_loop().time() == 120


async def test_a_slow_reader_loses_its_oldest_events_gets_their_number_and_slows_no_other() -> None:
    events = log()
    slow, quick = events.subscribe(keep_max=2), events.subscribe()
    for n in range(5):
        events.publish(OtherEvent(name=f"t.{n}"))
        assert slow.dropped == max(0, n - 1)
    assert numbers(await slow.next_batch()) == [4, 5]
    assert (numbers(await quick.next_batch()), quick.dropped) == ([1, 2, 3, 4, 5], 0)


async def test_a_reader_that_left_receives_nothing_more_and_may_leave_twice() -> None:
    events = log()
    stays = events.subscribe()
    async with events.subscribe() as leaves:
        events.publish(OtherEvent(name="t"))
    events.publish(OtherEvent(name="t"))
    assert (leaves.behind, stays.behind) == (1, 2)
    leaves.close()
    stays.close()
    events.publish(OtherEvent(name="t"))
    assert (leaves.behind, stays.behind) == (1, 2)


async def test_batches_arrive_until_the_reader_leaves() -> None:
    events, seen = log(3), list[int]()
    async with events.subscribe(after_seq=0) as heard:
        async for batch in heard:
            seen += numbers(batch)
            if len(seen) == 6:
                break
            asyncio.get_running_loop().call_later(60, events.publish, OtherEvent(name="late"))
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_reader_of_the_journal_receives_each_event_once_it_is_written_or_while_writing_fails() -> None:
    events = log(2)
    early, late = (events.subscribe(after_seq=seq, journaled=True) for seq in (0, 99))
    assert (numbers(await early.next_batch()), late.behind) == ([1, 2], 0)
    events.record(2)
    for n in range(3, 8):
        events.publish(OtherEvent(name=f"t.{n}"))
    assert (early.behind, events.unread) == (0, 0)
    asyncio.get_running_loop().call_later(60, events.record, 4)
    assert (numbers(await late.next_batch()), asyncio.get_running_loop().time()) == ([3, 4], 60)
    assert (early.behind, events.unread) == (2, 2)
    joined = events.subscribe(after_seq=3, journaled=True)
    events.release()
    assert numbers(await early.next_batch(3)) == [3, 4, 5]
    assert numbers(await early.next_batch()) == [6, 7]
    events.record(6)
    assert (early.behind, late.behind) == (0, 3), "no event comes twice"
    assert numbers(await joined.next_batch()) == [4, 5, 6, 7]


async def test_a_slow_reader_of_the_journal_learns_how_many_events_it_lost() -> None:
    events = log(KEEP + SPARE + 1, keep_max=KEEP)
    slow = events.subscribe(after_seq=0, keep_max=KEEP, journaled=True)
    assert slow.behind == KEEP
    for _ in range(4):
        events.publish(OtherEvent(name="t"))
    last = events.last_seq
    assert numbers(await slow.next_batch()) == [last - 2, last - 1, last]
    assert (slow.dropped, events.dropped) == (4, 4)
    slow.close()
    slow.close()
    assert (events.dropped, events.unread) == (4, 0), "it counts when the reader has left, and once"


async def test_settle_returns_once_every_event_is_in_the_journal() -> None:
    events = log(1)
    events.record(1)
    await events.settle()
    for _ in range(2):
        events.publish(OtherEvent(name="t"))
    for seq in (2, 3):
        asyncio.get_running_loop().call_later(60 * seq, events.record, seq)
    await events.settle()
    assert asyncio.get_running_loop().time() == 180
