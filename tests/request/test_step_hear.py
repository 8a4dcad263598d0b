"""Events of an agent, piece by piece: applied or stale, published, whole or not, and the next poll."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.events.request import Level
from fleetsim.model.errors import (
    TimedOut,
)
from fleetsim.model.event import ArtifactUpdate, DirectReply, TaskEvent
from fleetsim.model.task import Artifact, Task, TaskState, TextPart
from fleetsim.model.work import OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import RequestRecord
from fleetsim.request.signals import (
    Begin,
    Due,
    Left,
    Publish,
    RegisterPush,
    Replied,
    Save,
    SendFailed,
    StreamEnded,
    TurnedAway,
)
from fleetsim.request.track import Now, Rules, Timer, how_it_stands
from tests.request.steps import START, C, F, Hand, S, W, bound, chunk, message, published, record, status, task


def of(kept: RequestRecord, rules: Rules | None = None, *, jitter: float = 0.5, mono: float = 0.0) -> Hand:
    hand = Hand(track=new_track(kept, Now(mono, START)), rules=rules or Rules(), jitter=jitter).at(mono)
    return hand.tell(Begin()).tell(Left())


def polling(hand: Hand, at: float) -> Hand:
    """A poll is in the air from that moment on."""
    hand.at(at).tell(Due())
    assert hand.track.polling.began == at
    return hand


def follow_up(**changes: Any) -> RequestRecord:
    """One more message on the task ``t-1``, which was completed before it."""
    kept = record()
    request = replace(kept.request, **{"task_id": "t-1", "context_id": "ctx"} | changes)
    return replace(kept, request=request, earlier=how_it_stands(task(C, "of before")))


def named(artifact_id: str, *, append: bool = False, last: bool = True) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=artifact_id, parts=(TextPart(text=artifact_id),))
    return ArtifactUpdate(task_id="t-1", context_id="ctx", artifact=artifact, append=append, last_chunk=last)


def update(state: str, previous: str | None, via: str, text: str = "") -> Publish:
    payload = {"state": state, "previous": previous, "via": via, "text": text}
    return published(topic="agent.skill.update", payload=payload)


def stale(hand: Hand) -> str:
    """Why the latest news was not applied; "" if it was."""
    whys = [payload["why"] for topic, _, payload in hand.said if topic == "agent.skill.stale"]
    return str(whys[0]) if whys else ""


# ------------------------------------------------------------------ bound by the first news


def test_a_reply_in_another_context_is_published_as_a_warning() -> None:
    hand = of(replace(record(), request=replace(record().request, context_id="ours")))
    hand.tell(Replied(reply=task(W), began=0.0))
    (why,) = hand.track.record.warnings
    assert ("agent.skill.elsewhere", Level.WARN, {"why": why}) in hand.said


def test_a_webhook_is_registered_at_the_reply_if_the_record_wants_it() -> None:
    hand = of(replace(record(push=True), register_push=True)).tell(Replied(reply=task(W), began=0.0))
    assert hand.asked_for(RegisterPush) == [RegisterPush()]
    assert hand.track.pushing.registered
    assert bound(W, push=True).asked_for(RegisterPush) == []


def test_a_webhook_refused_before_the_reply_causes_a_poll_at_the_reply() -> None:
    hand = Hand.sent(push=True).tell(TurnedAway())
    assert hand.track.sending.look_due
    assert hand.tell(Replied(reply=task(W), began=0.0)).next_look == 0.0


@pytest.mark.parametrize(
    ("context", "told", "kept"),
    [
        ({}, "theirs", "theirs"),
        ({}, "", "c-1"),
        ({"context_id": "ours"}, "", "ours"),
        ({"first_turn": True}, "", ""),
        ({"task_id": "t-1"}, "", ""),
        ({"task_id": "t-1", "context_id": "ours"}, "", "ours"),
    ],
)
def test_a_task_without_a_context_gets_the_context_of_its_request(
    context: dict[str, Any], told: str, kept: str
) -> None:
    hand = of(replace(record(), request=replace(record().request, **context)))
    hand.tell(Replied(reply=replace(task(W), context_id=told), began=0.0))
    assert hand.track.task is not None
    assert hand.track.task.context_id == kept


# ------------------------------------------------------------------ applied, told, put on record


@pytest.mark.parametrize(
    ("before", "event", "via", "effects"),
    [
        (S, task(W), UpdateSource.POLL, (Save(), update("working", "submitted", "poll"))),
        (W, task(W), UpdateSource.POLL, ()),
        (W, task(W, "more"), UpdateSource.POLL, (update("working", "working", "poll", "more"),)),
        (W, status(W, "more"), UpdateSource.PUSH, ()),
    ],
)
def test_a_moved_task_is_published_and_its_new_state_recorded(
    before: TaskState, event: Task | TaskEvent, via: UpdateSource, effects: tuple[Publish, ...]
) -> None:
    hand = polling(bound(before), 20.0)
    assert hand.hear(event, via).effects == effects


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (chunk("piece", append=True), {"type": "artifact", "text": "piece", "append": True, "artifactId": "t-1"}),
        (status(W, "at it"), {"type": "status", "text": "at it", "state": "working"}),
        (status(W), {"type": "status", "text": "", "state": "working"}),
        (task(W, "so far"), {"type": "task", "text": "so far", "state": "working"}),
    ],
)
def test_each_piece_of_a_stream_is_published(event: Task | TaskEvent, told: dict[str, Any]) -> None:
    hand = Hand.sent(streaming=True).hear(task(W), UpdateSource.STREAM).hear(event, UpdateSource.STREAM)
    assert hand.said == [("agent.chat.inbound", Level.DEBUG, told)]


def test_an_outcome_has_the_number_of_pieces_of_a_streamed_answer() -> None:
    hand = Hand.sent(streaming=True).hear(task(W), UpdateSource.STREAM)
    for piece in ("a", "b", "c"):
        hand.hear(chunk(piece), UpdateSource.STREAM)
    hand.hear(chunk("abc", append=False, last=True), UpdateSource.STREAM)  # all of it once more
    assert hand.hear(task(C, "abc"), UpdateSource.STREAM).outcomes[0].chunks == 3


def test_a_message_on_a_stream_is_published_and_ends_the_request() -> None:
    hand = Hand.sent(streaming=True).hear(DirectReply(message=message("hello")), UpdateSource.STREAM)
    assert ("agent.chat.inbound", Level.DEBUG, {"type": "message", "text": "hello"}) in hand.said
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "hello")]


# ------------------------------------------------------------------ stale


@pytest.mark.parametrize(
    ("hand", "event", "via", "why"),
    [
        (lambda: bound(W), task(S), UpdateSource.POLL, "the task has moved on since"),
        (lambda: bound(S), task(S), UpdateSource.POLL, ""),
        (lambda: bound(W), status(S), UpdateSource.PUSH, "the task has moved on since"),
        (lambda: bound(W).hear(status(C), UpdateSource.PUSH), status(W), UpdateSource.PUSH, "the task has ended"),
        (lambda: bound(W).hear(status(C), UpdateSource.PUSH), status(C), UpdateSource.STREAM, "the task has ended"),
        (lambda: bound(W).hear(status(C), UpdateSource.PUSH), status(F), UpdateSource.PUSH, ""),
        (lambda: bound(W), chunk("b"), UpdateSource.PUSH, "a chunk whose predecessors may be missing"),
        (lambda: bound(W), chunk("b", append=False), UpdateSource.PUSH, ""),
        (lambda: bound(W), chunk("b"), UpdateSource.STREAM, ""),
    ],
)
def test_an_event_older_than_the_tasks_state_is_stale(
    hand: Callable[[], Hand], event: Task | TaskEvent, via: UpdateSource, why: str
) -> None:
    assert stale(hand().hear(event, via)) == why


def test_a_poll_begun_before_the_last_event_still_ends_the_request() -> None:
    hand = bound(W, push=True).at(20.0).hear(status(W, "at it"), UpdateSource.PUSH).at(21.0)
    hand.hear(task(C, "done"), UpdateSource.POLL, began=19.9)
    assert [o.text for o in hand.outcomes] == ["done"]


def test_a_piece_without_its_predecessor_leaves_its_artifact_incomplete() -> None:
    hand = bound(W, push=True).hear(named("a"), UpdateSource.PUSH).hear(named("b"), UpdateSource.PUSH)
    hand.hear(named("b", append=True), UpdateSource.PUSH)
    assert (bool(stale(hand)), hand.track.ending.whole) == (True, {"a"})


def test_a_webhook_without_a_task_binds_no_task() -> None:
    hand = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent")))
    assert stale(hand.hear(replace(status(W), task_id=""), UpdateSource.PUSH))
    assert hand.track.task is None


# ------------------------------------------------------------------ the past of a follow-up


def test_a_reply_with_the_earlier_state_confirms_the_message() -> None:
    hand = of(follow_up()).tell(Replied(reply=task(C, "of before"), began=0.0))
    assert hand.track.task is not None
    assert (hand.track.task.state, hand.outcomes, hand.next_look) == (S, [], 1.0)


def test_a_task_whose_stream_begins_with_the_earlier_state_is_polled_after_a_second() -> None:
    assert of(replace(follow_up(), streaming=True)).hear(task(C, "of before"), UpdateSource.STREAM).next_look == 1.0


def test_a_poll_with_the_earlier_state_is_applied() -> None:
    hand = polling(of(follow_up()).tell(Replied(reply=task(W), began=0.0)), 20.0).hear(
        task(C, "of before"), UpdateSource.POLL
    )
    assert [o.text for o in hand.outcomes] == ["of before"]


# ------------------------------------------------------------------ webhooks that are only messages


def test_a_message_in_a_webhook_causes_a_poll_while_the_task_is_open() -> None:
    remark = DirectReply(message=message("still at it"))
    assert polling(bound(W, push=True), 20.0).hear(remark, UpdateSource.PUSH).next_look == 0.0
    ended = bound(W, push=True).hear(status(C), UpdateSource.PUSH)
    polling(ended, 1.0).hear(remark, UpdateSource.PUSH)
    assert ended.next_look is None
    reply = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent"))).hear(remark, UpdateSource.PUSH)
    assert (bool(stale(reply)), reply.due(Timer.POLL)) == (True, None)


def test_a_message_in_a_webhook_binds_its_task_in_its_context() -> None:
    remark = DirectReply(message=replace(message("at it"), task_id="t-1", context_id="theirs"))
    hand = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent"))).hear(remark, UpdateSource.PUSH)
    assert hand.track.task is not None
    assert hand.track.task.context_id == "theirs"


# ------------------------------------------------------------------ the end, whole or not


def test_a_task_ends_when_each_of_its_artifacts_is_whole() -> None:
    half = (
        bound(W, push=True)
        .hear(named("a"), UpdateSource.PUSH)
        .hear(named("b", last=False), UpdateSource.PUSH)
        .hear(status(C), UpdateSource.PUSH)
    )
    assert not half.outcomes
    whole = (
        bound(W, push=True)
        .hear(named("a"), UpdateSource.PUSH)
        .hear(named("b"), UpdateSource.PUSH)
        .hear(status(C), UpdateSource.PUSH)
    )
    assert len(whole.outcomes) == 1


@pytest.mark.parametrize(
    ("via", "text", "whole"),
    [
        (UpdateSource.POLL, "", True),
        (UpdateSource.REPLY, "", True),
        (UpdateSource.PUSH, "all", True),
        (UpdateSource.PUSH, "", False),
        (UpdateSource.STREAM, "all", True),
        (UpdateSource.STREAM, "", False),
    ],
)
def test_an_end_is_whole_if_it_was_polled_or_has_artifacts(via: UpdateSource, text: str, whole: bool) -> None:
    assert bool(bound(W).hear(task(C, text), via).outcomes) is whole


def test_a_poll_of_a_working_task_fills_the_gap_and_makes_its_artifacts_incomplete() -> None:
    hand = (
        Hand.sent(streaming=True)
        .hear(task(W), UpdateSource.STREAM)
        .hear(named("a"), UpdateSource.STREAM)
        .tell(StreamEnded())
    )
    assert (hand.track.ending.whole, hand.track.streaming.gap) == ({"a"}, True)
    hand.hear(task(W), UpdateSource.POLL)
    assert (hand.track.ending.whole, hand.track.streaming.gap) == (frozenset(), False)
