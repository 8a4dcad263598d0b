"""The event log numbers what happened, and each reader hears what it waits for, however slow the others are."""

from __future__ import annotations

import asyncio

from fleetsim.caller.events import KEEP_MAX, EventLog
from fleetsim.model.journal import Event, Level
from fleetsim.testbed.loop import START
from fleetsim.testbed.runtime import VirtualClock


def log(count: int = 0, *, keep_max: int = KEEP_MAX, first_seq: int = 0) -> EventLog:
    """One in which so many things happened."""
    found = EventLog(VirtualClock(), keep_max=keep_max, first_seq=first_seq)
    for n in range(count):
        found.publish(f"t.{n + 1}")
    return found


def numbers(events: tuple[Event, ...]) -> list[int]:
    return [event.seq for event in events]


def test_an_event_says_when_it_happened_and_all_it_was_told_of() -> None:
    ids = {"correlation_id": "c", "parent_id": "p", "agent": "a", "skill": "s", "task_id": "t"}
    told = log(1).publish("agent.chat.inbound", level=Level.WARN, **ids, text="x", seqs=[1])  # type: ignore[arg-type]
    assert told == Event(
        seq=2,
        at=START,
        topic="agent.chat.inbound",
        level=Level.WARN,
        correlation_id="c",
        parent_id="p",
        agent="a",
        skill="s",
        task_id="t",
        payload={"text": "x", "seqs": [1]},
    )
    assert log().publish("t") == Event(seq=1, at=START, topic="t")


def test_numbers_go_on_where_an_earlier_journal_ended_and_never_back() -> None:
    assert log().last_seq == 0
    events = log(2, first_seq=40)
    assert (events.last_seq, numbers(events.recent())) == (42, [41, 42])
    events.continue_after(7)
    assert events.publish("t").seq == 43
    events.continue_after(90)
    assert (events.last_seq, events.publish("t").seq) == (90, 91)


def test_the_newest_events_are_kept_and_the_newest_of_those_asked_for_are_told() -> None:
    assert numbers(log(2).recent()) == [1, 2]
    assert numbers(log(5, keep_max=3).recent()) == [3, 4, 5]
    events = log(5)
    assert numbers(events.recent(after_seq=2)) == [3, 4, 5]
    assert numbers(events.recent(after_seq=2, limit=2)) == [4, 5]
    assert numbers(log(1_001).recent()) == list(range(2, 1_002)), "a thousand, unless more are asked for"
    assert KEEP_MAX == 20_000


async def test_a_reader_hears_from_now_on_or_from_what_it_has_seen_on() -> None:
    events = log(4)
    fresh, again, all_of_it = events.subscribe(), events.subscribe(after_seq=2), events.subscribe(after_seq=0)
    events.publish("t.5")
    assert numbers(await fresh.next_batch()) == [5]
    assert numbers(await again.next_batch()) == [3, 4, 5]
    assert numbers(await all_of_it.next_batch()) == [1, 2, 3, 4, 5]


async def test_who_waits_for_one_request_is_not_handed_the_events_of_all_others() -> None:
    events = log()
    events.publish("agent.skill.update", correlation_id="before")
    events.publish("agent.skill.update", correlation_id="mine")
    async with events.subscribe(after_seq=0, wanted=lambda event: event.correlation_id == "mine") as heard:
        for _ in range(1_000):
            events.publish("agent.chat.inbound", correlation_id="loud")
        events.publish("autonomous.outcome.x", correlation_id="mine")
        assert heard.behind == 2
        assert [event.correlation_id for event in await heard.next_batch()] == ["mine", "mine"]


async def test_a_reader_takes_so_many_at_a_time_in_order_and_waits_for_the_next() -> None:
    events = log()
    heard = events.subscribe()
    for n in range(1_003):
        events.publish(f"t.{n}")
    assert numbers(await heard.next_batch(2)) == [1, 2]
    assert numbers(await heard.next_batch()) == list(range(3, 1_003)), "a thousand, unless it says how many"
    assert (numbers(await heard.next_batch()), heard.behind) == ([1_003], 0)
    for n in (1_004, 1_005):
        asyncio.get_running_loop().call_later(60, events.publish, "late")
        assert numbers(await heard.next_batch()) == [n]
    assert asyncio.get_running_loop().time() == 120


async def test_a_slow_reader_loses_its_oldest_events_is_told_how_many_and_slows_nobody() -> None:
    events = log()
    slow, quick = events.subscribe(keep_max=2), events.subscribe()
    for n in range(5):
        events.publish(f"t.{n}")
        assert slow.dropped == max(0, n - 1)
    assert numbers(await slow.next_batch()) == [4, 5]
    assert (numbers(await quick.next_batch()), quick.dropped) == ([1, 2, 3, 4, 5], 0)


async def test_a_reader_that_has_left_hears_nothing_more_and_may_leave_twice() -> None:
    events = log()
    stays = events.subscribe()
    async with events.subscribe() as leaves:
        events.publish("t")
    events.publish("t")
    assert (leaves.behind, stays.behind) == (1, 2)
    leaves.close()
    stays.close()
    events.publish("t")
    assert (leaves.behind, stays.behind) == (1, 2)


async def test_batches_come_for_as_long_as_somebody_reads() -> None:
    events, seen = log(3), list[int]()
    async with events.subscribe(after_seq=0) as heard:
        async for batch in heard:
            seen += numbers(batch)
            if len(seen) == 6:
                break
            asyncio.get_running_loop().call_later(60, events.publish, "late")
    assert seen == [1, 2, 3, 4, 5, 6]
