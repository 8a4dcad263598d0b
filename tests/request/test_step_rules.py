"""The effects of each value of ``Rules``, and the pauses between polls."""

from __future__ import annotations

import pytest

from fleetsim.model.errors import AuthRefused, FleetsimError, HttpRefused, InternalError, TaskNotFound, WireError
from fleetsim.model.event import TaskEvent
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.task import DataPart, Message, Role, Task, TaskState, TaskStatus
from fleetsim.model.work import Answer, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.signals import (
    Answered,
    Join,
    Left,
    Poll,
    PollFailed,
    Publish,
    PushRegistered,
    Resumed,
    StreamEnded,
    Subscribe,
)
from fleetsim.request.track import Now, Rules, Timer
from tests.request.steps import START, Hand, bound, chunk, record, status, task

W, C, F, ASKS = TaskState.WORKING, TaskState.COMPLETED, TaskState.FAILED, TaskState.INPUT_REQUIRED
STREAM, POLL = UpdateSource.STREAM, UpdateSource.POLL
BAD_GATEWAY = HttpRefused("bad gateway", status=502)


def streamed(*events: TaskEvent, rules: Rules | None = None) -> Hand:
    hand = Hand.sent(rules, streaming=True, rejoin=False)
    for event in events:
        hand.hear(event, STREAM)
    return hand


def joined(seen: Task | None = None, *, streaming: bool = False) -> Hand:
    hand = Hand(new_track(record(streaming=streaming), Now(0.0, START)), Rules())
    return hand.tell(Join(task=seen or task(TaskState.SUBMITTED), seen=seen is not None))


def test_a_poll_for_a_missing_result_ends_the_request_after_its_limit() -> None:
    hand = streamed(status(W), status(C), rules=Rules(owed_s=3.0)).wait(2.9)
    assert (len(hand.asked_for(Poll)), hand.outcomes) == (1, [])
    (outcome,) = hand.wait(0.2).outcomes
    assert (outcome.kind, outcome.success) == (OutcomeKind.COMPLETED, True)


def test_without_pauses_of_retries_a_stream_that_ended_is_joined_again_after_a_poll_interval() -> None:
    hand = Hand.sent(Rules(retry_waits_s=()), streaming=True).hear(task(W), STREAM).tell(StreamEnded())
    assert hand.due(Timer.REJOIN) == hand.mono + Rules().poll_interval_s * hand.jitter
    assert not hand.outcomes


def test_three_polls_that_show_another_task_end_the_request() -> None:
    hand = bound(W)
    for _ in range(3):
        assert not hand.outcomes
        hand.wait(60).hear(Task(task_id="t-2", context_id="x", status=TaskStatus(state=C)), POLL)
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.task_id, "t-2" in outcome.reason) == (OutcomeKind.PROTOCOL_ERROR, "t-1", True)


def test_unreadable_polls_that_follow_each_other_soon_do_not_end_the_polling() -> None:
    hand = bound(W)
    for seconds in (1.0, 1.0, 9.0):
        hand.wait(seconds).tell(PollFailed(error=WireError("junk")))
    assert hand.track.polling.stopped is None
    hand.wait(hand.next_look or 0.0).tell(PollFailed(error=WireError("junk")))
    assert hand.track.polling.stopped is not None


@pytest.mark.parametrize(("error", "again_s"), [(BAD_GATEWAY, 1.0), (WireError("HTML"), 1.0), (TaskNotFound(), 5.0)])
def test_a_young_task_is_polled_again_soon_after_a_failed_poll(error: FleetsimError, again_s: float) -> None:
    hand = bound(W).wait(1.0).tell(PollFailed(error=error))
    assert hand.next_look == pytest.approx(again_s)


def test_failed_polls_of_a_young_task_are_repeated_after_1_2_and_4_seconds_or_at_retry_after() -> None:
    hand, pauses = bound(W), []
    for _ in range(3):
        hand.wait(hand.next_look or 0.0).tell(PollFailed(error=BAD_GATEWAY))
        pauses.append(hand.next_look)
    assert pauses == [1.0, 2.0, 4.0]
    overloaded = HttpRefused("later", status=503, retry_after_s=20.0)
    assert hand.wait(4.0).tell(PollFailed(error=overloaded)).next_look == 20.0


def test_an_old_task_is_polled_again_after_one_interval() -> None:
    hand = bound(W).wait(120.0).hear(task(W), POLL).wait(30.0).tell(PollFailed(error=BAD_GATEWAY))
    assert hand.next_look == 30.0


@pytest.mark.parametrize(("repeats", "ended"), [(0, True), (1, False)])
def test_a_refused_key_is_tried_again_as_often_as_the_rules_allow(repeats: int, ended: bool) -> None:
    hand = bound(W, Rules(key_repeats=repeats)).wait(1.0)
    assert bool(hand.tell(PollFailed(error=AuthRefused("no", status=401))).outcomes) is ended


def test_a_task_that_is_joined_is_polled_at_once_and_its_stream_is_joined_when_it_was_seen() -> None:
    hand = joined(streaming=True)
    assert hand.wait(0.0).asked_for(Poll)
    assert hand.hear(task(W, "Mon"), POLL).wait(0.0).asked_for(Subscribe)
    assert hand.hear(chunk("day"), STREAM).track.record.task == task(W, "Monday")
    assert not joined(task(W)).wait(0.5).asked_for(Poll)


def test_an_unknown_task_that_was_never_seen_is_polled_once() -> None:
    assert joined().wait(0.0).tell(PollFailed(error=TaskNotFound())).outcomes


def test_with_these_rules_a_task_is_not_polled_beside_its_stream_and_no_event_is_published() -> None:
    quiet = streamed(status(W), rules=Rules(polls_beside_stream=False, events=False))
    assert (quiet.due(Timer.POLL), quiet.asked_for(Publish)[1:]) == (None, [])
    loud = streamed(status(W))
    assert (loud.due(Timer.POLL) is not None, len(loud.asked_for(Publish))) == (True, 3)


def test_texts_stay_whole_without_a_limit() -> None:
    long = "x" * (TEXT_CHARS_MAX + 1)
    assert streamed(chunk(long), rules=Rules(text_chars_max=None)).track.record.task == task(TaskState.SUBMITTED, long)


@pytest.mark.parametrize(("events", "ended"), [((False,), True), ((False, True), False), ((True,), False)])
def test_an_artifact_in_one_event_is_whole_and_one_in_pieces_is_polled(events: tuple[bool, ...], ended: bool) -> None:
    hand = streamed(status(W), *(chunk("x", append=append) for append in events), status(C))
    assert (bool(hand.outcomes), hand.next_look) == (ended, None if ended else 0.0)


def test_a_task_that_completed_without_a_text_is_polled_although_its_file_is_whole() -> None:
    hand = streamed(status(W), chunk("", append=False), status(C))
    assert (hand.outcomes, hand.next_look) == ([], 0.0)


def test_a_poll_for_the_rest_of_a_result_obeys_retry_after() -> None:
    overloaded = HttpRefused("later", status=503, retry_after_s=20.0)
    assert streamed(status(W), status(C)).wait(0.0).tell(PollFailed(error=overloaded)).next_look == 20.0


def test_the_words_that_ended_a_stream_before_an_answer_are_no_reason_after_it() -> None:
    hand = streamed(status(W)).tell(StreamEnded(error=InternalError("model quota exceeded")))
    hand.hear(task(ASKS, said="which?"), POLL)
    question = hand.track.asking.question
    hand.tell(Answered(answer=Answer(question_id=question.question_id, text="main")))
    (outcome,) = hand.tell(Left()).tell(Resumed(reply=task(W), began=hand.mono)).wait(9).hear(task(F), POLL).outcomes
    assert "quota" not in outcome.reason


def test_the_words_that_ended_a_stream_are_the_reason_of_a_failure_without_one() -> None:
    hand = streamed(status(W)).tell(StreamEnded(error=InternalError("model quota exceeded")))
    (outcome,) = hand.hear(task(F), POLL).outcomes
    assert outcome.reason == "model quota exceeded"


NOTES = [
    Message(message_id="m", role=Role.AGENT, parts=(DataPart(data={"error": {"message": "over quota"}}),)),
    Message(message_id="m", role=Role.AGENT, parts=(), metadata={"reason": "over quota"}),
]


@pytest.mark.parametrize("said", NOTES)
def test_a_reason_may_stand_in_data_or_metadata(said: Message) -> None:
    failed = Task(task_id="t-1", context_id="c", status=TaskStatus(state=F, message=said))
    (outcome,) = bound(W).hear(failed, POLL).outcomes
    assert outcome.reason == "over quota"


def test_a_task_is_polled_at_once_after_its_webhook_was_registered() -> None:
    hand = bound(W).wait(0.5)
    assert hand.next_look != 0.0
    assert hand.tell(PushRegistered()).next_look == 0.0
