"""Answers and cancels under way, effect by effect: the calls, the events, and the next polls."""

from __future__ import annotations

import pytest

from fleetsim.model.errors import (
    ConfigError,
    FleetsimError,
    HttpRefused,
    RpcError,
    TaskNotFound,
    Unreachable,
    WireError,
)
from fleetsim.model.work import Answer, Cause, Decision, OutcomeKind
from fleetsim.request.signals import (
    Answered,
    Cancel,
    CancelAsked,
    Close,
    ResolveQuestion,
    Resume,
    Resumed,
    ResumeFailed,
    Save,
    SendFailed,
)
from fleetsim.request.track import Rules, Timer
from tests.request.steps import Hand, W, asking, published, task


def answer_to(hand: Hand, decision: Decision = Decision.ANSWER) -> Answer:
    return Answer(question_id=hand.question.question_id, text="main", by="ada", decision=decision)


def answered(hand: Hand | None = None) -> Hand:
    """The answer is given at 20 s, and under way."""
    hand = (hand or asking()).at(20.0)
    return hand.tell(Answered(answer=answer_to(hand)))


def delivered(hand: Hand) -> ResolveQuestion:
    assert hand.track.asking.answer is not None
    return ResolveQuestion(question_id=hand.track.asking.answer.question_id, state="delivered")


# ------------------------------------------------------------------ the answer


def test_an_answer_is_published_recorded_and_sent() -> None:
    hand = asking().at(20.0)
    given = answer_to(hand)
    told = {"questionId": given.question_id, "decision": "answer", "decidedBy": "ada", "answer": given.text}
    hand.tell(Answered(answer=given))
    assert hand.effects == (
        Save(),
        published(topic="hitl.response.", payload=told),
        Resume(answer=given),
    )
    assert (hand.track.asking.question, hand.track.asking.answer, hand.due(Timer.POLL)) == (
        None,
        given,
        None,
    )
    assert hand.track.timers[Timer.DEADLINE] == 3_600 + 10, "it stood still while somebody thought"


def test_an_answer_to_another_question_changes_nothing() -> None:
    hand = asking()
    before = hand.track
    assert hand.tell(Answered(answer=Answer(question_id="q-other", text="main"))).effects == ()
    assert hand.track == before


def test_a_rejection_is_sent_to_no_agent_and_cancels_the_task() -> None:
    hand = asking().at(20.0)
    no = answer_to(hand, Decision.REJECT)
    told = {"questionId": no.question_id, "decision": "reject", "decidedBy": "ada"}
    hand.tell(Answered(answer=no))
    assert hand.effects == (
        Save(),
        published(topic="hitl.response.", payload=told),
        ResolveQuestion(question_id=no.question_id, state="delivered"),
        Cancel(),
    )
    assert (hand.track.record.rejected, hand.track.record.cancel_wanted, hand.due(Timer.CANCEL)) == (
        True,
        True,
        50.0,
    )
    assert hand.track.turn_from == 20.0, "from here on it is the agent's time"


def test_a_broken_reply_to_an_answer_causes_a_poll() -> None:
    hand = answered().tell(ResumeFailed(error=WireError("not JSON")))
    assert hand.outcomes == []
    assert hand.due(Timer.POLL) == hand.mono
    assert hand.track.asking.answer is None


@pytest.mark.parametrize(
    ("error", "kind", "cause", "reason", "stops"),
    [
        (
            ConfigError("QUINN_KEY is not set"),
            *(OutcomeKind.LOST, Cause.MISCONFIGURED, "the answer could not be sent: QUINN_KEY is not set", False),
        ),
        (
            TaskNotFound("no such task"),
            *(OutcomeKind.LOST, Cause.TASK_GONE, "the agent no longer knows the task: no such task", False),
        ),
        (
            RpcError("no", code=-32050),
            *(OutcomeKind.FAILED, Cause.REFUSED, "the agent refused the answer (-32050): no", True),
        ),
        (
            HttpRefused("HTTP 404", status=404),
            *(OutcomeKind.FAILED, Cause.REFUSED, "the agent refused the answer: HTTP 404", True),
        ),
    ],
)
def test_an_answer_that_is_refused_for_good_ends_the_request(
    error: FleetsimError, kind: OutcomeKind, cause: Cause, reason: str, stops: bool
) -> None:
    hand = answered()
    settled = delivered(hand)
    hand.tell(ResumeFailed(error=error))
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause, outcome.reason) == (kind, cause, reason)
    assert hand.effects == (Save(), settled, *([Cancel()] if stops else []), Close(outcome=outcome))


def test_the_failure_of_an_answer_that_no_longer_counts_changes_nothing() -> None:
    hand = answered().tell(Resumed(reply=task(W), began=20.0))
    assert hand.tell(ResumeFailed(error=Unreachable("down"))).effects == ()


# ------------------------------------------------------------------ nobody answers


@pytest.mark.parametrize(
    ("cancels", "reason"),
    [
        (True, "nobody answered the agent's question in time"),
        (False, "nobody answered the agent's question in time; its task was left as it is"),
    ],
)
def test_an_unanswered_question_expires_and_its_task_is_canceled_by_default(cancels: bool, reason: str) -> None:
    hand = asking(Rules(question_ttl_s=100, question_expiry_cancels=cancels))
    asked = hand.question.question_id
    hand.wait(99.0)
    assert not hand.outcomes
    hand.wait(1.0)
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause, outcome.reason) == (OutcomeKind.EXPIRED, Cause.UNANSWERED, reason)
    settled = ResolveQuestion(question_id=asked, state="expired")
    assert hand.effects == (*([Cancel()] if cancels else []), settled, Close(outcome=outcome))
    assert hand.track.asking.question is None


# ------------------------------------------------------------------ cancels


def test_a_cancel_between_two_sends_ends_the_request_in_the_name_of_its_caller() -> None:
    hand = Hand.sent().tell(SendFailed(error=Unreachable("down"))).tell(CancelAsked(by="ada"))
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause) == (OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON)
    assert "ada" in outcome.reason
    assert hand.effects == (Save(), Close(outcome=outcome))
    assert hand.track.timers == {}
