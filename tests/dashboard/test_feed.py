"""Feeds: recordings and a hub in this process."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.event_wire import payload, to_wire
from fleetsim.caller.events import Event, HubStarted
from fleetsim.dashboard.feed import LiveFeed, Replay, read_jsonl
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.ports import Runtime
from tests.dashboard.journal import an_hour


def as_json(event: Event) -> str:
    names = ("seq", "topic", "agent", "skill")
    found = {name: getattr(event, name) for name in names} | {"payload": payload(event)}
    found |= {"at": event.at.isoformat(), "level": event.level.value, "taskId": event.task_id}
    return json.dumps(found | {"correlationId": event.correlation_id, "parent_id": event.parent_id})


def test_a_recording_is_read_back_as_it_was(tmp_path: Path) -> None:
    events = tuple(an_hour()[:200])
    path = tmp_path / "run.jsonl"
    path.write_text("\n\n".join(as_json(event) for event in events))
    assert [to_wire(event) for event in read_jsonl(path)] == [to_wire(event) for event in events]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["{", "[]", '{"topic": "x"}', '{"at": "2026-11-21T00:00:00Z"}', '{"at":1,"topic":"x"}']
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(as_json(an_hour()[0]) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=r"run\.jsonl:2: not an event"):
        read_jsonl(path)


def test_a_recording_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")


async def test_a_replay_comes_at_once_or_at_its_pace() -> None:
    events = an_hour()[:50]
    assert [event async for batch in Replay(events) for event in batch] == events
    began = asyncio.get_running_loop().time()
    assert [event async for batch in Replay(events, speed=2.0) for event in batch] == events
    took = asyncio.get_running_loop().time() - began
    gaps = [(b.at - a.at).total_seconds() / 2 for a, b in pairwise(events)]
    assert took == pytest.approx(sum(min(1.0, gap) for gap in gaps if gap > 0.01), rel=0.1)
    assert not Replay(events).live


async def test_the_events_of_a_hub_arrive_in_order_and_what_was_lost_is_counted(runtime: Runtime) -> None:
    log = EventLog(runtime.clock)
    async with log.subscribe(after_seq=0, keep_max=10) as source:
        feed = LiveFeed(source)
        assert feed.live
        for n in range(15):
            log.publish(HubStarted(url="", pid=n))
        batch = await anext(aiter(feed))
        assert [payload(event)["pid"] for event in batch] == list(range(5, 15))
        assert feed.dropped == 5


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
