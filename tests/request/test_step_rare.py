"""Rare orders of events that ``test_step_machine`` found handled wrongly, each as a plain example."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    FleetsimError,
    InternalError,
    InvalidParams,
    MethodNotFound,
    Unreachable,
    WireError,
)
from fleetsim.model.work import Answer, Decision, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase
from fleetsim.request.signals import (
    Answered,
    Ask,
    Cancel,
    CancelAsked,
    PollFailed,
    Recovered,
    Replied,
    ResolveQuestion,
    Resume,
    Resumed,
    ResumeFailed,
    SendFailed,
)
from fleetsim.request.track import Now, Timer
from tests.request.steps import START, WHICH, C, Hand, I, W, bound, record, status, task


def asking() -> Hand:
    return bound(push=True).hear(WHICH, UpdateSource.POLL)


def test_a_known_end_is_the_outcome_although_the_limit_passes_before_its_result_is_whole() -> None:
    hand = bound(push=True)
    hand.mono = hand.track.timers[Timer.DEADLINE] - 0.5
    hand.hear(status(C, final=True), UpdateSource.PUSH).wait(0.6)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.COMPLETED]
    assert not hand.asked_for(Cancel)


@pytest.mark.parametrize("cancelled", ["before", "after"])
def test_an_unconfirmed_cancel_does_not_replace_a_known_end(cancelled: str) -> None:
    hand = bound(push=True)
    if cancelled == "before":
        hand.tell(CancelAsked())
    hand.hear(status(C, final=True), UpdateSource.PUSH)
    if cancelled == "after":
        hand.tell(CancelAsked())
        assert not hand.asked_for(Cancel)
    hand.wait(0).tell(PollFailed(error=Unreachable("down"))).wait(40)
    hand.hear(task(C, "all of it"), UpdateSource.POLL)
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all of it")]


def test_a_question_is_withdrawn_when_its_task_has_ended() -> None:
    hand = asking().hear(status(C, final=True), UpdateSource.PUSH)
    assert [e.state for e in hand.asked_for(ResolveQuestion)] == ["withdrawn"]
    assert hand.track.asking.question is None


@pytest.mark.parametrize("error", [InvalidParams("it is over"), Unreachable("down")])
def test_an_answer_that_fails_after_the_tasks_end_leaves_that_end(error: FleetsimError) -> None:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    assert hand.asked_for(Resume)
    hand.hear(status(C, final=True), UpdateSource.PUSH).tell(ResumeFailed(error=error))
    assert not hand.wait(10).asked_for(Resume)
    hand.hear(task(C, "all of it"), UpdateSource.POLL)
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all of it")]
    assert not hand.asked_for(Cancel)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(WireError("HTML"), OutcomeKind.PROTOCOL_ERROR), (InternalError("boom"), OutcomeKind.FAILED)],
)
def test_a_cancelled_send_with_a_bad_reply_is_not_called_unsent(error: FleetsimError, kind: OutcomeKind) -> None:
    hand = Hand.begun().tell(CancelAsked()).tell(SendFailed(error=error))
    assert [o.kind for o in hand.outcomes] == [kind]


def test_a_late_webhook_does_not_reopen_a_question_that_the_agent_left() -> None:
    hand = asking().wait(0).hear(task(W), UpdateSource.POLL)
    hand.hear(status(I, "which?", said_id="q1"), UpdateSource.PUSH)
    assert not hand.asked_for(Ask)
    hand.mono += 1.0
    hand.hear(WHICH, UpdateSource.POLL)
    assert len(hand.asked_for(Ask)) == 1


def test_a_late_webhook_does_not_reopen_a_question_that_another_one_replaced() -> None:
    hand = asking().hear(task(I, said="sure?", said_id="q2"), UpdateSource.POLL)
    answer = Answer(question_id=hand.question.question_id, text="yes")
    hand.tell(Answered(answer=answer)).tell(Resumed(reply=task(W), began=hand.mono))
    hand.hear(status(I, "which?", said_id="q1"), UpdateSource.PUSH)
    assert not hand.asked_for(Ask)


def test_a_webhook_of_a_running_task_does_not_make_its_result_whole() -> None:
    beside = replace(status(W), artifacts=task(W, "half").artifacts)
    hand = bound(push=True).hear(beside, UpdateSource.PUSH).hear(status(C, final=True), UpdateSource.PUSH)
    assert not hand.outcomes
    hand.wait(0).hear(task(C, "half and half"), UpdateSource.POLL)
    assert [o.text for o in hand.outcomes] == ["half and half"]


def test_after_a_restart_a_late_webhook_does_not_reopen_the_recorded_question() -> None:
    kept = replace(record(push=True), phase=Phase.ACCEPTED, task=WHICH, answers=1)
    hand = Hand(track=new_track(kept, Now(0.0, START))).tell(Recovered())
    hand.mono = 1.0
    hand.hear(status(I, "which?", said_id="q1"), UpdateSource.PUSH)
    assert not hand.asked_for(Ask)
    hand.wait(1).hear(WHICH, UpdateSource.POLL)
    assert len(hand.asked_for(Ask)) == 1


def test_a_rejected_question_is_not_asked_again_while_its_task_is_being_cancelled() -> None:
    hand = asking()
    no = Answer(question_id=hand.question.question_id, text="", decision=Decision.REJECT)
    hand.tell(Answered(answer=no)).hear(status(I, "which?", said_id="q1"), UpdateSource.PUSH)
    assert not hand.asked_for(Ask)
    hand.mono += 1.0
    hand.hear(WHICH, UpdateSource.POLL)
    assert not hand.asked_for(Ask)


def test_a_rejection_under_way_at_the_crash_cancels_and_is_never_sent_as_an_answer() -> None:
    before = asking()
    question = before.question
    hand = Hand(track=new_track(before.track.record, Now(0.0, START)))
    no = Answer(question_id=question.question_id, text="", decision=Decision.REJECT)
    hand.tell(Recovered(question=question, answer=no))
    assert len(hand.asked_for(Cancel)) == 1
    hand.wait(5).hear(WHICH, UpdateSource.POLL)
    assert not hand.asked_for(Resume)


@pytest.mark.parametrize(("push", "ends"), [(False, [OutcomeKind.LOST]), (True, [])])
def test_a_task_without_polls_streams_and_webhooks_ends_at_once(push: bool, ends: list[OutcomeKind]) -> None:
    hand = Hand.begun(push=push).tell(Replied(reply=task(W), began=0.0)).wait(2)
    for _ in range(3):
        hand.tell(PollFailed(error=MethodNotFound())).wait(6)
    assert hand.mono == 20
    assert [o.kind for o in hand.outcomes] == ends
    assert all("no way to follow" in o.reason for o in hand.outcomes)
