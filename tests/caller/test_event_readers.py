"""Readers of the event log are woken by what they wait for."""

from __future__ import annotations

from fleetsim.caller.events import EventLog
from fleetsim.testbed.runtime import VirtualClock


async def test_who_waits_for_one_request_is_not_handed_the_events_of_all_others() -> None:
    log = EventLog(VirtualClock())
    log.publish("agent.skill.update", correlation_id="before")
    async with log.subscribe(after_seq=0, wanted=lambda event: event.correlation_id == "mine") as heard:
        for _ in range(1_000):
            log.publish("agent.chat.inbound", correlation_id="loud")
        log.publish("autonomous.outcome.x", correlation_id="mine")
        assert heard.behind == 1
        assert [event.correlation_id for event in await heard.next_batch()] == ["mine"]
