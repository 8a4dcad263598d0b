"""Rare orders of events that ``test_step_machine`` found handled wrongly, each as a plain example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetsim.caller.ledger import Phase
from fleetsim.caller.signals import (
    Answered,
    Cancel,
    CancelAsked,
    CancelFailed,
    Poll,
    PollFailed,
    Recovered,
    Replied,
    Resume,
    ResumeFailed,
    SendFailed,
    Settle,
)
from fleetsim.caller.step import new_track
from fleetsim.caller.track import Now
from fleetsim.model.errors import (
    FleetsimError,
    InternalError,
    InvalidParams,
    TaskNotCancelable,
    TaskNotFound,
    Unreachable,
    WireError,
)
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, OutcomeKind, Via
from tests.caller.steps import START, Hand, record, status, task

W, C, S, I = TaskState.WORKING, TaskState.COMPLETED, TaskState.SUBMITTED, TaskState.INPUT_REQUIRED  # noqa: E741


def bound() -> Hand:
    return Hand.begun(push=True).tell(Replied(reply=task(S), began=0.0))


def asking() -> Hand:
    return bound().hear(task(I, said="which?", said_id="q1"), Via.POLL)


def test_an_end_that_is_known_is_the_outcome_even_if_the_time_limit_passes_before_all_of_it_is() -> None:
    hand = bound()
    hand.mono = hand.track.deadline - 0.5
    hand.hear(status(C, final=True), Via.PUSH).wait(0.6)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.COMPLETED]
    assert not hand.asked_for(Cancel)


@pytest.mark.parametrize("cancelled", ["before", "after"])
def test_a_cancel_nobody_confirms_does_not_outweigh_an_end_that_is_known(cancelled: str) -> None:
    hand = bound()
    if cancelled == "before":
        hand.tell(CancelAsked())
    hand.hear(status(C, final=True), Via.PUSH)
    if cancelled == "after":
        hand.tell(CancelAsked())
        assert not hand.asked_for(Cancel)
    hand.wait(0).tell(PollFailed(error=Unreachable("down"))).wait(40)
    hand.hear(task(C, "all of it"), Via.POLL)
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all of it")]


def test_a_question_is_withdrawn_as_soon_as_its_task_is_known_to_have_ended() -> None:
    hand = asking().hear(status(C, final=True), Via.PUSH)
    assert [e.state for e in hand.asked_for(Settle) if isinstance(e, Settle)] == ["withdrawn"]
    assert hand.track.asked is None


def test_an_answer_refused_because_the_task_ended_meanwhile_does_not_make_it_a_failure() -> None:
    hand = asking()
    assert hand.track.asked is not None
    hand.tell(Answered(answer=Answer(question_id=hand.track.asked.question.question_id, text="main")))
    assert hand.asked_for(Resume)
    hand.hear(status(C, final=True), Via.PUSH).tell(ResumeFailed(error=InvalidParams("it is over")))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.COMPLETED]
    assert not hand.asked_for(Cancel)


def test_a_wish_to_cancel_that_is_on_record_is_told_to_the_agent_after_a_restart() -> None:
    kept = replace(record(), phase=Phase.ACCEPTED, task=task(W), cancel_wanted=True)
    hand = Hand(track=new_track(kept, Now(0.0, START))).tell(Recovered())
    assert len(hand.asked_for(Cancel)) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(WireError("HTML"), OutcomeKind.PROTOCOL_ERROR), (InternalError("boom"), OutcomeKind.FAILED)],
)
def test_a_cancelled_send_that_an_agent_answered_badly_is_not_called_unsent(
    error: FleetsimError, kind: OutcomeKind
) -> None:
    hand = Hand.begun().tell(CancelAsked()).tell(SendFailed(error=error))
    assert [o.kind for o in hand.outcomes] == [kind]


def test_a_poll_hurried_by_other_news_does_not_confirm_that_the_task_is_lost() -> None:
    hand = bound()
    hand.mono = 100.0
    hand.wait(1).tell(CancelAsked()).tell(CancelFailed(error=TaskNotCancelable()))
    hand.tell(PollFailed(error=TaskNotFound())).wait(0)
    assert hand.asked_for(Poll)
    hand.tell(PollFailed(error=TaskNotFound()))
    assert not hand.outcomes
    hand.wait(5).tell(PollFailed(error=TaskNotFound()))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.LOST]


def test_polls_that_never_arrived_do_not_count_as_answers_that_cannot_be_read() -> None:
    hand = bound()
    for error in (Unreachable("down"), Unreachable("down"), WireError("HTML"), WireError("HTML")):
        hand.wait(70).tell(PollFailed(error=error))
    assert not hand.outcomes
    hand.wait(70).tell(PollFailed(error=WireError("HTML")))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.PROTOCOL_ERROR]


def test_webhooks_that_repeat_an_open_question_never_postpone_the_next_look() -> None:
    hand, polls = asking(), 0
    for _ in range(13):
        hand.hear(status(I, "which?", said_id="q1"), Via.PUSH)
        polls += len(hand.wait(10).asked_for(Poll))
    assert polls
