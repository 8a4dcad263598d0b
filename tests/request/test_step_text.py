"""The text that the decision keeps, and the events at a limit."""

from __future__ import annotations

import gc
import sys
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.events.request import Event, StreamBroken, StreamReceived
from fleetsim.model.errors import ConnectionLost, FleetsimError, LimitReached
from fleetsim.model.event import ArtifactUpdate, Snapshot, TaskEvent, bounded, fold
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.task import Artifact, Message, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import UpdateSource
from fleetsim.request.signals import Ask, Poll, Publish, StreamEnded, Subscribe
from fleetsim.request.track import Rules
from tests.request.steps import Hand, chunk, status, task

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


def test_notes_beside_a_task_are_not_kept() -> None:
    notes = {"x": "y" * 10_000}
    said = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="wait"),), metadata=notes)
    seen = replace(task(TaskState.WORKING), metadata=notes, history=(said,))
    hand = Hand.begun().hear(Snapshot(task=replace(seen, status=replace(seen.status, message=said))), UpdateSource.POLL)
    kept = hand.track.record.task
    assert kept is not None
    assert kept.status.message is not None
    assert [kept.metadata, kept.status.message.metadata, kept.history[0].metadata] == [{}, {}, {}]
    assert (kept.status.message.parts, kept.history[0].parts) == (said.parts, said.parts)


def test_a_question_past_the_limit_is_marked_as_cut() -> None:
    hand = Hand.begun(SMALL).hear(task(TaskState.INPUT_REQUIRED, said="q" * 150), UpdateSource.REPLY)
    (asked,) = hand.asked_for(Ask)
    assert (asked.question.text, asked.question.truncated, asked.question.text_chars) == ("q" * 100, True, 150)


def test_events_carry_marked_excerpts() -> None:
    hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
    hand.hear(chunk("y" * 9_000, append=False), UpdateSource.STREAM)
    (told,) = said(hand, StreamReceived)
    assert (len(told.text.text), told.text.truncated, told.text.chars) == (EXCERPT_CHARS_MAX, True, 9_000)
    hand.hear(chunk("short"), UpdateSource.STREAM)
    (told,) = said(hand, StreamReceived)
    assert (told.text.text, told.text.truncated) == ("short", False)


@pytest.mark.parametrize("error", [LimitReached("the stream is larger than 7 bytes"), ConnectionLost("cut", sent=True)])
def test_a_stream_that_ends_at_a_limit_names_it_and_the_task_is_polled(error: FleetsimError) -> None:
    hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
    hand.tell(StreamEnded(error=error))
    assert [e.why for e in said(hand, StreamBroken)] == [str(error)]
    hand.wait(2.0)
    assert hand.asked_for(Poll)
    assert bool(hand.asked_for(Subscribe)) is isinstance(error, ConnectionLost), "what is too large stays too large"


def made(name: str, text: str) -> Artifact:
    return Artifact(artifact_id=name, parts=(TextPart(text=text),))


def artifact(name: str, text: str, *, append: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(task_id="t-1", context_id="ctx", artifact=made(name, text), append=append)


TOLD = st.one_of(
    st.builds(artifact, st.sampled_from("abc"), st.integers(0, 60).map("x".__mul__), append=st.booleans()),
    st.integers(0, 150).map(lambda chars: status(TaskState.WORKING, "s" * chars)),
    st.integers(0, 150).map(
        lambda chars: replace(status(TaskState.WORKING), artifacts=(artifact("b", "y" * chars).artifact,))
    ),
    st.integers(0, 150).map(lambda chars: task(TaskState.WORKING, "z" * chars)),
)


@given(st.lists(TOLD, min_size=1, max_size=12))
@example([artifact("a", "x" * 30, append=True)] * 5)
@example([artifact("a", "x" * 50), artifact("b", "x" * 50)])
@example([artifact("a", "x" * 60), artifact("b", "x" * 60), artifact("a", "x" * 10), artifact("c", "x")])
def test_a_followed_task_equals_one_that_is_bounded_at_each_event(events: list[TaskEvent]) -> None:
    hand, whole = Hand.begun(SMALL, streaming=True), None
    for event in events:
        event = Snapshot(task=event) if isinstance(event, Task) else event
        hand.hear(event, UpdateSource.STREAM)
        whole = bounded(fold(whole, event), 100)
        assert hand.track.record.task == whole


def test_a_repeated_whole_artifact_does_not_count_as_a_piece() -> None:
    hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
    for event in (artifact("a", "x"), artifact("b", "x"), artifact("a", "y"), artifact("a", "z", append=True)):
        hand.hear(event, UpdateSource.STREAM)
    assert hand.track.chunks == 3


@pytest.mark.parametrize("via", [UpdateSource.STREAM, UpdateSource.POLL])
def test_an_artifact_or_a_poll_costs_as_many_calls_among_thousands_as_among_a_hundred(via: UpdateSource) -> None:
    news = artifact("new", "x") if via is UpdateSource.STREAM else task(TaskState.WORKING)

    def calls(beside: int) -> int:
        hand = Hand.begun(streaming=True).hear(task(TaskState.WORKING), UpdateSource.STREAM)
        there = tuple(made(f"a{n}", "x") for n in range(beside))
        hand.hear(
            Task(task_id="t-1", context_id="ctx", status=TaskStatus(state=TaskState.WORKING), artifacts=there),
            UpdateSource.STREAM,
        )
        hand.hear(artifact("the first that comes alone", "x"), UpdateSource.STREAM)
        told: list[str] = []
        gc.disable()  # a collection in between calls whoever listens for collections
        sys.setprofile(lambda frame, event, _: told.append(frame.f_code.co_name) if event == "call" else None)
        try:
            hand.hear(news, via)
        finally:
            sys.setprofile(None)
            gc.enable()
        return len(told)

    assert calls(3_000) == calls(100)
