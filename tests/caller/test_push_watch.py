"""An agent with silent webhooks is marked at the third task in a row, and cleared by the first webhook."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.caller.webhooks import SILENT_AFTER, PushWatch
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.model.task import TaskState
from fleetsim.model.work import OutcomeKind, UpdateSource
from fleetsim.request.track import Pushing
from fleetsim.runtime.ports import Runtime
from tests.request.steps import Hand, task


class Watched:
    """Ends one task after the other."""

    def __init__(self, runtime: Runtime) -> None:
        self.events = EventLog(runtime.clock)
        self.watch = PushWatch(self.events)

    def end(
        self, *, pushes: int = 0, push: bool = True, via: UpdateSource = UpdateSource.POLL, lost: bool = False
    ) -> None:
        hand = Hand.sent(push=push).hear(task(TaskState.COMPLETED, "x"), UpdateSource.POLL)
        outcome = replace(hand.outcomes[0], via=via, kind=OutcomeKind.LOST if lost else OutcomeKind.COMPLETED)
        self.watch.ended(replace(hand.track, pushing=Pushing(received=pushes)), outcome)

    @property
    def told(self) -> int:
        return sum(event.topic == "agent.push.degraded" for event in self.events.recent(limit=100))


@pytest.fixture
def watched(runtime: Runtime) -> Watched:
    return Watched(runtime)


async def test_three_ends_in_a_row_by_polls_alone_are_reported_once(watched: Watched) -> None:
    for n in range(1, SILENT_AFTER + 3):
        watched.end()
        assert watched.told == (n >= SILENT_AFTER)
    (told,) = watched.events.recent()
    assert (told.agent, told.level) == ("a", Level.WARN)
    assert payload(told)["refused"] is False


async def test_one_arriving_webhook_clears_the_count(watched: Watched) -> None:
    watched.end()
    watched.end()
    watched.end(pushes=1)
    watched.end()
    watched.end()
    assert watched.told == 0
    watched.watch.arrived("a")
    watched.end()
    assert watched.told == 0


async def test_missing_webhooks_are_counted_for_each_agent_separately(watched: Watched) -> None:
    watched.end()
    watched.end()
    watched.watch.arrived("another")
    watched.end()
    assert watched.told == 1


@pytest.mark.parametrize("other", [{"push": False}, {"via": UpdateSource.STREAM}, {"lost": True}])
async def test_an_end_without_a_registered_webhook_does_not_count(watched: Watched, other: dict[str, object]) -> None:
    for _ in range(5):
        watched.end(**other)
    assert watched.told == 0
