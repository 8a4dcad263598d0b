"""What the decision keeps of a text, and what it tells when a limit is reached."""

from __future__ import annotations

from typing import TypeVar

import pytest

from fleetsim.caller.events import Event, StreamBroken, StreamReceived
from fleetsim.caller.signals import Ask, Poll, Publish, StreamEnded, Subscribe
from fleetsim.caller.track import Rules
from fleetsim.model.errors import ConnectionLost, FleetsimError, LimitReached
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.task import TaskState
from fleetsim.model.work import UpdateSource
from tests.caller.steps import Hand, chunk, status, task

SMALL = Rules(text_chars_max=100)

E = TypeVar("E", bound=Event)


def said(hand: Hand, kind: type[E]) -> list[E]:
    return [e.event for e in hand.effects if isinstance(e, Publish) and isinstance(e.event, kind)]


@pytest.mark.parametrize("via", [UpdateSource.REPLY, UpdateSource.POLL, UpdateSource.PUSH])
def test_a_snapshot_past_the_limit_ends_with_its_beginning_and_its_length(via: UpdateSource) -> None:
    hand = Hand.begun(SMALL).hear(task(TaskState.WORKING), UpdateSource.REPLY)
    hand.hear(task(TaskState.COMPLETED, "x" * 101), via)
    (outcome,) = hand.outcomes
    assert (outcome.text, outcome.truncated, outcome.text_chars) == ("x" * 100, True, 101)


def test_chunks_past_the_limit_are_counted_not_dropped() -> None:
    hand = Hand.begun(SMALL, streaming=True)
    hand.hear(task(TaskState.WORKING), UpdateSource.STREAM)
    for at in range(30):
        hand.hear(chunk("0123456789", append=at > 0), UpdateSource.STREAM)
    hand.hear(chunk("", last=True), UpdateSource.STREAM)
    hand.hear(status(TaskState.COMPLETED, final=True), UpdateSource.STREAM)
    hand.hear(task(TaskState.COMPLETED, "0123456789" * 30), UpdateSource.POLL)
    (outcome,) = hand.outcomes
    assert (outcome.text, outcome.text_chars) == ("0123456789" * 10, 300)


def test_a_question_past_the_limit_says_so() -> None:
    hand = Hand.begun(SMALL).hear(task(TaskState.INPUT_REQUIRED, said="q" * 150), UpdateSource.REPLY)
    (asked,) = hand.asked_for(Ask)
    assert isinstance(asked, Ask)
    assert (asked.question.text, asked.question.truncated, asked.question.text_chars) == ("q" * 100, True, 150)


def test_events_carry_excerpts_that_say_they_are() -> None:
    hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
    hand.hear(chunk("y" * 9_000, append=False), UpdateSource.STREAM)
    (told,) = said(hand, StreamReceived)
    assert (len(told.text.text), told.text.truncated, told.text.chars) == (EXCERPT_CHARS_MAX, True, 9_000)
    hand.hear(chunk("short"), UpdateSource.STREAM)
    (told,) = said(hand, StreamReceived)
    assert (told.text.text, told.text.truncated) == ("short", False)


@pytest.mark.parametrize("error", [LimitReached("the stream is larger than 7 bytes"), ConnectionLost("cut", sent=True)])
def test_a_stream_that_ends_at_a_limit_says_which_and_the_task_is_polled(error: FleetsimError) -> None:
    hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
    hand.tell(StreamEnded(error=error))
    assert [e.why for e in said(hand, StreamBroken)] == [str(error)]
    hand.wait(2.0)
    assert hand.asked_for(Poll)
    assert bool(hand.asked_for(Subscribe)) is isinstance(error, ConnectionLost), "what is too large stays too large"
