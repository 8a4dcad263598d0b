"""What an agent says, piece by piece: applied or stale, told to the world, whole or not, and when it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleetsim.caller.events import Level
from fleetsim.caller.follow_up import how_it_stands
from fleetsim.caller.ledger import Phase, RequestRecord
from fleetsim.caller.signals import (
    Begin,
    Cancel,
    CancelAsked,
    Close,
    Due,
    Found,
    Left,
    Poll,
    PollFailed,
    Publish,
    PushRegistered,
    RegisterPush,
    Replied,
    Save,
    SendFailed,
    StreamEnded,
    TurnedAway,
)
from fleetsim.caller.step import new_track
from fleetsim.caller.track import Now, Rules, Timer
from fleetsim.model.errors import (
    AuthRefused,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    RpcError,
    TaskNotFound,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.model.event import ArtifactUpdate, DirectReply, TaskEvent
from fleetsim.model.task import Artifact, Task, TaskState, TextPart
from fleetsim.model.work import Cause, OutcomeKind, UpdateSource
from tests.caller.steps import START, Hand, chunk, message, published, record, status, task

W, C, F, S, I = (  # noqa: E741
    TaskState.WORKING,
    TaskState.COMPLETED,
    TaskState.FAILED,
    TaskState.SUBMITTED,
    TaskState.INPUT_REQUIRED,
)
WHICH = task(I, said="which?", said_id="q1")


def of(kept: RequestRecord, rules: Rules | None = None, *, jitter: float = 0.5, mono: float = 0.0) -> Hand:
    hand = Hand(track=new_track(kept, Now(mono, START)), rules=rules or Rules(), jitter=jitter).at(mono)
    return hand.tell(Begin()).tell(Left())


def bound(state: TaskState = W, **kind: bool) -> Hand:
    return Hand.sent(**kind).tell(Replied(reply=task(state), began=0.0))


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


def test_the_first_news_binds_the_task_is_told_and_put_on_record() -> None:
    hand = Hand.sent().at(5.0).tell(Replied(reply=task(S), began=0.0))
    told = {"state": "submitted", "contextId": "ctx", "dialect": "0.3", "via": "reply"}
    dispatched = published(topic="agent.skill.dispatched", payload=told)
    assert hand.effects == (Save(), dispatched, update("submitted", None, "reply"))
    kept = hand.track
    assert (kept.record.phase, kept.record.bound_at) == (Phase.ACCEPTED, START + timedelta(seconds=5))
    assert (kept.taken_at, kept.applied_at, kept.via, hand.next_look) == (5.0, 5.0, UpdateSource.REPLY, 1.0)


def test_a_webhook_that_binds_what_had_not_left_makes_it_the_agents_turn() -> None:
    hand = Hand.begun(push=True).tell(SendFailed(error=TimedOut("silent"))).at(5.0).hear(status(W), UpdateSource.PUSH)
    assert hand.track.turn_from == 5.0


def test_a_task_that_is_found_after_a_stream_without_a_word_is_followed_like_any_other() -> None:
    hand = Hand.sent(streaming=True).tell(SendFailed(error=EmptyStream())).tell(Found(task=task(W)))
    assert (hand.track.sending.silent, hand.due(Timer.GIVE_UP), hand.due(Timer.LOOK_UP)) == (
        False,
        None,
        None,
    )


def test_an_agent_that_went_on_elsewhere_is_told_of() -> None:
    hand = of(replace(record(), request=replace(record().request, context_id="ours")))
    hand.tell(Replied(reply=task(W), began=0.0))
    (why,) = hand.track.record.warnings
    assert ("agent.skill.elsewhere", Level.WARN, {"why": why}) in hand.said


def test_a_webhook_is_registered_with_the_reply_where_the_record_says_so() -> None:
    hand = of(replace(record(push=True), register_push=True)).tell(Replied(reply=task(W), began=0.0))
    assert hand.asked_for(RegisterPush) == [RegisterPush()]
    assert hand.track.pushing.registered
    assert bound(push=True).asked_for(RegisterPush) == []


def test_a_task_that_ends_with_the_reply_is_neither_registered_nor_canceled_nor_looked_at() -> None:
    kept = replace(record(push=True), register_push=True, cancel_wanted=True)
    hand = of(kept).tell(Replied(reply=task(C, "done"), began=0.0))
    assert [o.text for o in hand.outcomes] == ["done"]
    assert hand.asked_for(RegisterPush) + hand.asked_for(Cancel) == []
    assert hand.due(Timer.POLL) is None


def test_a_webhook_turned_away_before_the_reply_owes_a_look_at_once() -> None:
    hand = Hand.sent(push=True).tell(TurnedAway())
    assert hand.track.sending.look_due
    assert hand.tell(Replied(reply=task(W), began=0.0)).next_look == 0.0


@pytest.mark.parametrize(
    ("jitter", "interval", "first"),
    [(0.5, 30.0, 15.0), (1.0, 30.0, 30.0), (0.0, 30.0, 0.5), (0.0, 0.2, 0.2), (0.5, 4.0, 2.0)],
)
def test_looks_at_streams_for_safetys_sake_are_spread_over_the_interval(
    jitter: float, interval: float, first: float
) -> None:
    hand = of(record(streaming=True), Rules(poll_interval_s=interval), jitter=jitter).at(3.0)
    assert hand.hear(task(W), UpdateSource.STREAM).next_look == pytest.approx(first)


@pytest.mark.parametrize(("jitter", "first"), [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)])
def test_first_looks_come_after_about_a_second(jitter: float, first: float) -> None:
    hand = of(record(), jitter=jitter).tell(Replied(reply=task(W), began=0.0))
    assert hand.next_look == pytest.approx(first)


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
def test_a_task_without_a_context_is_in_the_one_that_was_made_for_it(
    context: dict[str, Any], told: str, kept: str
) -> None:
    hand = of(replace(record(), request=replace(record().request, **context)))
    hand.tell(Replied(reply=replace(task(W), context_id=told), began=0.0))
    assert hand.track.task is not None
    assert hand.track.task.context_id == kept


# ------------------------------------------------------------------ applied, told, put on record


def test_a_good_poll_wipes_out_what_the_failed_ones_left() -> None:
    hand = bound()
    for error in (Unreachable("down"), InvalidParams("no"), TaskNotFound()):
        polling(hand, hand.mono + 70.0).tell(PollFailed(error=error))
    worn = hand.track.polling
    assert (worn.count, worn.failed, worn.refusals, worn.misses) == (3, 1, ("InvalidParams ",), 1)
    assert worn.trouble == str(TaskNotFound())
    fresh = polling(hand, hand.mono + 70.0).hear(task(W), UpdateSource.POLL).track.polling
    assert (fresh.count, fresh.failed, fresh.refusals, fresh.misses, fresh.trouble) == (4, 0, (), 0, "")
    assert fresh.began is None


def test_webhooks_are_counted() -> None:
    assert (
        bound(push=True).hear(status(W), UpdateSource.PUSH).hear(status(W), UpdateSource.PUSH).track.pushing.received
        == 2
    )


@pytest.mark.parametrize(
    ("before", "event", "via", "effects"),
    [
        (S, task(W), UpdateSource.POLL, (Save(), update("working", "submitted", "poll"))),
        (W, task(W), UpdateSource.POLL, ()),
        (W, task(W, "more"), UpdateSource.POLL, (update("working", "working", "poll", "more"),)),
        (W, status(W, "more"), UpdateSource.PUSH, ()),
    ],
)
def test_what_moved_is_told_and_a_new_state_put_on_record(
    before: TaskState, event: Task | TaskEvent, via: UpdateSource, effects: tuple[Publish, ...]
) -> None:
    hand = polling(bound(before), 20.0)
    assert hand.hear(event, via).effects == effects


def test_a_question_that_is_shown_again_is_put_on_record_again() -> None:
    hand = bound().hear(WHICH, UpdateSource.POLL).at(60.0).hear(WHICH, UpdateSource.POLL)
    assert hand.effects == (Save(),)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (chunk("piece", append=True), {"type": "artifact", "text": "piece", "append": True, "artifactId": "t-1"}),
        (status(W, "at it"), {"type": "status", "text": "at it", "state": "working"}),
        (status(W), {"type": "status", "text": "", "state": "working"}),
        (task(W, "so far"), {"type": "task", "text": "so far", "state": "working"}),
    ],
)
def test_what_a_stream_brings_is_told_piece_by_piece(event: Task | TaskEvent, told: dict[str, Any]) -> None:
    hand = Hand.sent(streaming=True).hear(task(W), UpdateSource.STREAM).hear(event, UpdateSource.STREAM)
    assert hand.said == [("agent.chat.inbound", Level.DEBUG, told)]


def test_an_outcome_says_in_how_many_pieces_a_stream_brought_the_answer() -> None:
    hand = Hand.sent(streaming=True).hear(task(W), UpdateSource.STREAM)
    for piece in ("a", "b", "c"):
        hand.hear(chunk(piece), UpdateSource.STREAM)
    hand.hear(chunk("abc", append=False, last=True), UpdateSource.STREAM)  # all of it once more
    assert hand.hear(task(C, "abc"), UpdateSource.STREAM).outcomes[0].chunks == 3


def test_pieces_are_not_counted_of_a_stream_that_broke_nor_of_what_was_not_streamed() -> None:
    broken = Hand.sent(streaming=True).hear(task(W), UpdateSource.STREAM).hear(chunk("a"), UpdateSource.STREAM)
    broken.tell(StreamEnded(error=Unreachable("gone")))
    assert polling(broken, 10.0).hear(task(C, "abc"), UpdateSource.POLL).outcomes[0].chunks is None
    assert bound().hear(task(C, "abc"), UpdateSource.PUSH).outcomes[0].chunks is None


def test_a_message_on_a_stream_is_told_and_the_end() -> None:
    hand = Hand.sent(streaming=True).hear(DirectReply(message=message("hello")), UpdateSource.STREAM)
    assert ("agent.chat.inbound", Level.DEBUG, {"type": "message", "text": "hello"}) in hand.said
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "hello")]


def test_of_webhooks_only_pieces_of_the_answer_are_told_like_a_streams() -> None:
    hand = bound(push=True)
    assert [topic for topic, _, _ in hand.hear(named("a"), UpdateSource.PUSH).said] == [
        "agent.chat.inbound",
        "agent.skill.update",
    ]
    assert hand.hear(status(W, "at it"), UpdateSource.PUSH).said == []
    assert [topic for topic, _, _ in hand.hear(task(W, "more"), UpdateSource.PUSH).said] == ["agent.skill.update"]
    polled = bound().hear(named("a"), UpdateSource.POLL)
    assert [topic for topic, _, _ in polled.said] == ["agent.skill.update"]


# ------------------------------------------------------------------ stale


def test_a_webhook_of_another_task_is_told_as_stale() -> None:
    hand = bound(push=True).hear(replace(task(C, "theirs"), task_id="t-2"), UpdateSource.PUSH)
    told = {"state": "completed", "via": "push", "why": "it names another task"}
    assert hand.said == [("agent.skill.stale", Level.DEBUG, told)]


def test_a_message_of_another_task_is_stale_and_one_that_names_none_is_of_this() -> None:
    theirs = DirectReply(message=replace(message("theirs"), task_id="t-2"))
    assert stale(bound(push=True).hear(theirs, UpdateSource.PUSH)) == "it names another task"
    assert stale(bound().hear(theirs, UpdateSource.STREAM)) == "it names another task"
    assert stale(bound(push=True).hear(DirectReply(message=message("ours")), UpdateSource.PUSH)) == ""


@pytest.mark.parametrize(
    ("hand", "event", "via", "why"),
    [
        (lambda: bound(W), task(S), UpdateSource.POLL, "the task has moved on since"),
        (lambda: bound(S), task(S), UpdateSource.POLL, ""),
        (lambda: bound(W), status(S), UpdateSource.PUSH, "the task has moved on since"),
        (lambda: bound().hear(status(C), UpdateSource.PUSH), status(W), UpdateSource.PUSH, "the task has ended"),
        (lambda: bound().hear(status(C), UpdateSource.PUSH), status(C), UpdateSource.STREAM, "the task has ended"),
        (lambda: bound().hear(status(C), UpdateSource.PUSH), status(F), UpdateSource.PUSH, ""),
        (lambda: bound(W), chunk("b"), UpdateSource.PUSH, "a chunk whose predecessors may be missing"),
        (lambda: bound(W), chunk("b", append=False), UpdateSource.PUSH, ""),
        (lambda: bound(W), chunk("b"), UpdateSource.STREAM, ""),
    ],
)
def test_what_cannot_be_news_any_more_is_stale(
    hand: Callable[[], Hand], event: Task | TaskEvent, via: UpdateSource, why: str
) -> None:
    assert stale(hand().hear(event, via)) == why


def test_a_stale_end_of_no_state_is_told_without_one() -> None:
    hand = bound(W).hear(chunk("b"), UpdateSource.PUSH)
    assert [(p["state"], p["via"]) for _, _, p in hand.said] == [(None, "push")]


@pytest.mark.parametrize(
    ("via", "began", "why"),
    [
        (UpdateSource.POLL, 19.9, "it was asked for before the last news arrived"),
        (UpdateSource.POLL, 20.0, ""),
        (UpdateSource.REPLY, 19.9, "it was asked for before the last news arrived"),
        (UpdateSource.PUSH, 19.9, ""),
        (UpdateSource.STREAM, 19.9, ""),
    ],
)
def test_what_was_asked_for_before_the_last_news_is_stale(via: UpdateSource, began: float, why: str) -> None:
    hand = bound(push=True).at(20.0).hear(status(W, "at it"), UpdateSource.PUSH).at(21.0)
    assert stale(hand.hear(task(W), via, began=began)) == why


def test_a_poll_asked_for_before_the_last_news_still_tells_the_end() -> None:
    hand = bound(push=True).at(20.0).hear(status(W, "at it"), UpdateSource.PUSH).at(21.0)
    hand.hear(task(C, "done"), UpdateSource.POLL, began=19.9)
    assert [o.text for o in hand.outcomes] == ["done"]


def test_a_stale_poll_is_made_again_in_a_second() -> None:
    hand = polling(bound(), 20.0).hear(task(S), UpdateSource.POLL)
    assert (stale(hand), hand.next_look) == ("the task has moved on since", 1.0)
    pushed = polling(bound(push=True), 20.0).hear(status(S), UpdateSource.PUSH)
    assert (stale(pushed), pushed.next_look) == ("the task has moved on since", None)


def test_a_look_that_lags_behind_the_end_is_one_of_those_that_are_owed() -> None:
    hand = bound(push=True).hear(status(C), UpdateSource.PUSH)
    for left, wait in ((5, 1.0), (4, 3.0), (3, 9.0), (2, 27.0), (1, 30.0)):
        polling(hand, hand.mono + (hand.next_look or 0.0)).hear(task(W), UpdateSource.POLL)
        assert stale(hand) == "the task has ended"
        assert (hand.track.ending.polls_owed, hand.next_look) == (left, wait)
    polling(hand, hand.mono + 30.0).hear(task(W), UpdateSource.POLL)
    said = "the agent said completed, and its result could not be confirmed: its record of the task lags behind"
    assert [(o.kind, o.reason) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, said)]


def test_a_piece_that_could_not_be_placed_leaves_its_artifact_incomplete() -> None:
    hand = bound(push=True).hear(named("a"), UpdateSource.PUSH).hear(named("b"), UpdateSource.PUSH)
    hand.hear(named("b", append=True), UpdateSource.PUSH)
    assert (stale(hand), hand.track.ending.whole) == ("a chunk whose predecessors may be missing", {"a"})


def test_a_webhook_that_names_no_task_binds_none() -> None:
    hand = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent")))
    assert stale(hand.hear(replace(status(W), task_id=""), UpdateSource.PUSH)) == "a webhook without a task id"
    assert hand.track.task is None


@pytest.mark.parametrize("via", [UpdateSource.PUSH, UpdateSource.STREAM])
def test_a_wordless_status_that_may_be_older_takes_back_nothing_that_was_said_at_work(via: UpdateSource) -> None:
    hand = of(record(streaming=True)).hear(task(W), UpdateSource.STREAM).hear(status(W, "step 1"), UpdateSource.STREAM)

    def said() -> str | None:
        words = hand.track.task.status.message if hand.track.task is not None else None
        return None if words is None else words.text

    hand.hear(status(W), via)
    assert said() == "step 1"
    hand.hear(status(W, "step 2"), via)
    assert said() == "step 2"
    hand.hear(task(W), UpdateSource.POLL)
    assert said() is None, "a poll tells how it stands now"
    hand.hear(status(I), UpdateSource.STREAM)
    assert said() is None


# ------------------------------------------------------------------ the past of a follow-up


def test_a_reply_that_shows_the_past_says_that_the_message_was_taken() -> None:
    hand = of(follow_up()).tell(Replied(reply=task(C, "of before"), began=0.0))
    assert hand.track.task is not None
    assert (hand.track.task.state, hand.outcomes, hand.next_look) == (S, [], 1.0)


def test_a_stream_that_begins_with_the_past_is_looked_at_in_a_second() -> None:
    assert of(replace(follow_up(), streaming=True)).hear(task(C, "of before"), UpdateSource.STREAM).next_look == 1.0


def test_a_stream_that_shows_the_past_later_is_stale_and_looked_at_in_a_second() -> None:
    hand = polling(of(follow_up()).tell(Replied(reply=task(W), began=0.0)), 20.0)
    hand.hear(task(C, "of before"), UpdateSource.STREAM)
    assert stale(hand) == "it shows the task as it was before this message"
    assert hand.next_look == 1.0


def test_a_poll_that_shows_the_past_is_believed() -> None:
    hand = polling(of(follow_up()).tell(Replied(reply=task(W), began=0.0)), 20.0).hear(
        task(C, "of before"), UpdateSource.POLL
    )
    assert [o.text for o in hand.outcomes] == ["of before"]


# ------------------------------------------------------------------ webhooks that are only messages


def test_a_message_in_a_webhook_is_a_remark_that_owes_a_look_while_the_task_is_open() -> None:
    remark = DirectReply(message=message("still at it"))
    assert polling(bound(push=True), 20.0).hear(remark, UpdateSource.PUSH).next_look == 0.0
    ended = bound(push=True).hear(status(C), UpdateSource.PUSH)
    polling(ended, 1.0).hear(remark, UpdateSource.PUSH)
    assert ended.next_look is None
    reply = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent"))).hear(remark, UpdateSource.PUSH)
    assert (stale(reply), reply.due(Timer.POLL)) == ("a webhook without a task id", None)


def test_a_message_in_a_webhook_binds_the_task_in_the_context_it_names() -> None:
    remark = DirectReply(message=replace(message("at it"), task_id="t-1", context_id="theirs"))
    hand = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent"))).hear(remark, UpdateSource.PUSH)
    assert hand.track.task is not None
    assert hand.track.task.context_id == "theirs"


def test_webhooks_that_waited_for_the_reply_are_heard_once() -> None:
    hand = Hand.sent(push=True).hear(status(W, "at it"), UpdateSource.PUSH).tell(Replied(reply=task(S), began=0.0))
    assert hand.track.task is not None
    assert (hand.track.task.state, hand.track.sending.early) == (W, ())
    ended = Hand.sent(push=True).hear(status(W), UpdateSource.PUSH).tell(Replied(reply=task(C, "done"), began=0.0))
    assert [o.text for o in ended.outcomes] == ["done"]


# ------------------------------------------------------------------ the end, whole or not


def test_an_end_in_words_alone_stops_the_clocks_and_owes_six_looks_the_first_now() -> None:
    hand = polling(bound(push=True).tell(CancelAsked()), 10.0).hear(status(C), UpdateSource.PUSH)
    assert (hand.track.ending.polls_owed, hand.track.turn_from) == (6, None)
    assert not hand.track.timers.keys() & {Timer.CANCEL, Timer.RESUME}
    assert hand.next_look == 0.0
    assert not hand.outcomes


def test_an_end_that_is_told_twice_owes_no_more() -> None:
    hand = polling(bound(push=True).hear(status(C), UpdateSource.PUSH), 1.0).tell(PollFailed(error=Unreachable("down")))
    assert hand.track.ending.polls_owed == 5
    assert hand.hear(status(C), UpdateSource.PUSH).track.ending.polls_owed == 5


def test_all_pieces_must_be_whole() -> None:
    half = (
        bound(push=True)
        .hear(named("a"), UpdateSource.PUSH)
        .hear(named("b", last=False), UpdateSource.PUSH)
        .hear(status(C), UpdateSource.PUSH)
    )
    assert not half.outcomes
    whole = (
        bound(push=True)
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
def test_an_end_is_whole_where_it_was_asked_for_or_shows_what_was_made(
    via: UpdateSource, text: str, whole: bool
) -> None:
    assert bool(bound().hear(task(C, text), via).outcomes) is whole


def test_a_task_seen_at_work_is_not_known_whole_and_fills_the_gap() -> None:
    hand = (
        Hand.sent(streaming=True)
        .hear(task(W), UpdateSource.STREAM)
        .hear(named("a"), UpdateSource.STREAM)
        .tell(StreamEnded())
    )
    assert (hand.track.ending.whole, hand.track.streaming.gap) == ({"a"}, True)
    hand.hear(task(W), UpdateSource.POLL)
    assert (hand.track.ending.whole, hand.track.streaming.gap) == (frozenset(), False)


# ------------------------------------------------------------------ watched


def test_news_that_comes_during_a_look_has_the_next_one_due_and_later_news_leaves_it() -> None:
    hand = polling(bound(push=True), 20.0).at(21.0).hear(status(W), UpdateSource.PUSH)
    assert hand.next_look == 60.0
    hand.jitter = 0.0
    assert hand.at(22.0).hear(status(W), UpdateSource.PUSH).next_look == 59.0


@pytest.mark.parametrize(("jitter", "slowly"), [(0.0, 54.0), (0.5, 60.0), (1.0, 66.0)])
def test_while_a_person_thinks_the_task_is_looked_at_every_two_intervals(jitter: float, slowly: float) -> None:
    hand = polling(bound(), 20.0)
    hand.jitter = jitter
    assert hand.hear(WHICH, UpdateSource.POLL).next_look == pytest.approx(slowly)


@pytest.mark.parametrize(("at", "registers"), [(24.9, False), (25.0, True)])
def test_a_webhook_that_may_have_been_overlooked_is_registered_after_half_an_interval(
    at: float, registers: bool
) -> None:
    hand = Hand.sent(push=True).at(10.0).tell(Replied(reply=task(W), began=0.0))
    polling(hand, at).hear(task(W), UpdateSource.POLL)
    assert hand.asked_for(RegisterPush) == ([RegisterPush()] if registers else [])
    assert hand.track.pushing.registered is registers


def test_a_webhook_that_came_needs_no_registration_nor_does_one_nobody_wants() -> None:
    came = polling(bound(push=True).hear(status(W), UpdateSource.PUSH), 25.0).hear(task(W), UpdateSource.POLL)
    unwanted = polling(bound(), 25.0).hear(task(W), UpdateSource.POLL)
    assert came.asked_for(RegisterPush) + unwanted.asked_for(RegisterPush) == []


def test_a_registered_webhook_is_told_and_the_task_looked_at_now() -> None:
    hand = bound(push=True).tell(PushRegistered())
    assert hand.effects == (published(topic="agent.push.registered"),)
    assert hand.next_look == 0.0


def test_a_webhook_that_is_not_taken_is_told_and_put_on_record() -> None:
    hand = bound(push=True).tell(PushRegistered(error=MethodNotFound("no")))
    told = {"why": "no", "refused": True}
    assert hand.effects == (Save(), published(topic="agent.push.degraded", level=Level.WARN, payload=told))
    assert not hand.track.record.push


def test_a_look_says_when_it_began() -> None:
    hand = bound().at(1.0).tell(Due())
    assert hand.effects == (Poll(),)
    assert (hand.due(Timer.POLL), hand.track.polling.began, hand.track.polling.looked_at) == (
        None,
        1.0,
        1.0,
    )


def test_a_webhook_turned_away_while_the_reply_is_lost_hastens_the_search_and_never_delays_it() -> None:
    hand = Hand.sent(push=True).tell(SendFailed(error=TimedOut("silent")))
    assert hand.at(10.0).tell(TurnedAway()).due(Timer.LOOK_UP) == 11.0
    assert hand.at(10.5).tell(TurnedAway()).due(Timer.LOOK_UP) == 11.0
    hand.at(11.0).tell(Due()).at(12.0).tell(TurnedAway())
    assert hand.due(Timer.LOOK_UP) == 16.0, "five seconds after the last"


# ------------------------------------------------------------------ looks that fail


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (Unreachable("down"), [30.0, 60.0, 60.0]),
        (HttpRefused("busy", status=503), [30.0, 60.0, 60.0]),
        (HttpRefused("broken", status=500), [30.0, 60.0, 60.0]),
        (HttpRefused("busy", status=503, retry_after_s=45.0), [45.0, 60.0, 60.0]),
        (HttpRefused("busy", status=503, retry_after_s=5.0), [30.0, 60.0, 60.0]),
        (HttpRefused("busy", status=503, retry_after_s=500.0), [60.0, 60.0, 60.0]),
        (RpcError("overloaded", code=-32050), [30.0, 60.0, 60.0]),
        (InternalError("boom"), [30.0, 60.0, 60.0]),
        (WireError("HTML"), [30.0, 30.0]),
        (InvalidParams("no"), [5.0, 5.0]),
        (HttpRefused("bad request", status=400), [5.0, 5.0]),
        (HttpRefused("no", status=404), [5.0]),
        (HttpRefused("no", status=405), [5.0]),
        (HttpRefused("no", status=410), [5.0]),
        (AuthRefused("no", status=403), [5.0]),
        (TaskNotFound(), [5.0, 5.0, 5.0]),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'status', '')}" if isinstance(value, Exception) else "",
)
def test_how_soon_a_look_that_failed_is_made_again(error: FleetsimError, waits: list[float]) -> None:
    hand = bound()
    for count, wait in enumerate(waits, 1):
        polling(hand, hand.mono + (hand.next_look or 0.0)).tell(PollFailed(error=error))
        assert (hand.next_look, hand.track.polling.trouble, hand.track.polling.count) == (wait, str(error), count)
        assert not hand.outcomes
        assert hand.track.polling.stopped is None


def test_how_long_an_agent_may_ask_for_is_two_minutes_where_the_interval_is_long() -> None:
    hand = of(record(), Rules(poll_interval_s=100.0)).tell(Replied(reply=task(W), began=0.0))
    polling(hand, 1.0).tell(PollFailed(error=HttpRefused("busy", status=503, retry_after_s=500.0)))
    assert hand.next_look == 120.0


@pytest.mark.parametrize(
    ("error", "kind", "cause", "reason"),
    [
        (WireError("HTML"), OutcomeKind.PROTOCOL_ERROR, Cause.PROTOCOL, "the task cannot be read: HTML"),
        (LimitReached("big"), OutcomeKind.PROTOCOL_ERROR, Cause.LIMIT_REACHED, "the task cannot be read: big"),
        (MethodNotFound("no"), OutcomeKind.LOST, Cause.CANNOT_FOLLOW, "the agent offers no way to follow a task: no"),
        (InvalidParams("no"), OutcomeKind.LOST, Cause.CANNOT_FOLLOW, "the task cannot be followed: no"),
        (HttpRefused("no", status=400), OutcomeKind.LOST, Cause.CANNOT_FOLLOW, "the task cannot be followed: no"),
    ],
)
def test_the_third_refusal_that_is_alike_ends_it_with_what_was_said(
    error: FleetsimError, kind: OutcomeKind, cause: Cause, reason: str
) -> None:
    hand = bound()
    for _ in range(3):
        polling(hand, hand.mono + (hand.next_look or 0.0)).tell(PollFailed(error=error))
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause, outcome.reason) == (kind, cause, reason)
    told = published(topic="agent.poll.stopped", level=Level.WARN, payload={"why": reason, "answers": 3})
    assert hand.effects == (told, Close(outcome=outcome))


@pytest.mark.parametrize("first_s", [1.0, 3.0])
def test_of_two_looks_wished_for_while_one_is_under_way_the_sooner_is_made(first_s: float) -> None:
    hand = polling(bound(), 20.0)
    for wish_s in (first_s, 4.0 - first_s):
        polls = hand.track.polling
        hand.track.polling = replace(polls, looked_at=hand.mono + wish_s - hand.rules.lost_confirm_s)
        hand.tell(TurnedAway())
    assert hand.next_look == 1.0


def test_after_the_last_refusal_a_look_that_was_wished_for_meanwhile_is_not_made() -> None:
    hand = bound(push=True)
    for _ in range(3):
        polling(hand, hand.mono + (hand.next_look or 0.0)).tell(TurnedAway())
        hand.tell(PollFailed(error=InvalidParams("no")))
    assert hand.track.polling.stopped is not None
    assert hand.due(Timer.POLL) is None


def test_what_the_last_look_brought_is_kept_up_to_500_characters() -> None:
    hand = polling(bound(), 1.0).tell(PollFailed(error=Unreachable("x" * 900)))
    assert len(hand.track.polling.trouble) == 500


@pytest.mark.parametrize(("at", "young"), [(59.9, True), (60.0, False)])
def test_a_task_is_young_for_a_minute_from_when_it_was_accepted(at: float, young: bool) -> None:
    hand = of(record(), mono=50.0).tell(Replied(reply=task(W), began=50.0))
    polling(hand, 50.0 + at - 5.0).tell(PollFailed(error=TaskNotFound("gone")))
    polling(hand, 50.0 + at).tell(PollFailed(error=TaskNotFound("gone")))
    assert bool(hand.outcomes) is not young
    if not young:
        assert hand.outcomes[0].reason == "the agent no longer knows the task: gone"


def test_a_key_that_is_refused_at_a_look_is_told_and_the_task_lost() -> None:
    hand = bound()
    for _ in range(2):
        polling(hand, hand.mono + (hand.next_look or 0.0)).tell(PollFailed(error=AuthRefused("no", status=403)))
    (outcome,) = hand.outcomes
    said = published(topic="agent.auth.refused", level=Level.WARN, payload={"why": "no"})
    assert outcome.reason == "the agent no"
    assert hand.effects == (said, Close(outcome=outcome))
