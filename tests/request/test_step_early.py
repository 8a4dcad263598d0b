"""Webhooks that overtake the reply to their send count, whatever the reply is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    AuthRefused,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    MethodNotFound,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.model.event import ArtifactUpdate, StatusUpdate, TaskEvent
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Answered,
    LookUpTask,
    Poll,
    PollFailed,
    Recovered,
    Save,
    Send,
    SendFailed,
    TurnedAway,
)
from fleetsim.request.track import Now
from tests.request.steps import START, C, Hand, I, W, chunk, record, status, task

DONE = replace(status(C), artifacts=task(C, "all of it").artifacts)
REPLIES: list[FleetsimError] = [
    InternalError("boom"),
    WireError("HTML"),
    AuthRefused("no", status=401),
    HttpRefused("busy", status=503),
    HttpRefused("proxy", status=502),
    InvalidParams("no"),
    MethodNotFound(),
    Unreachable("refused"),
    TimedOut("silent"),
]


def recovered(kept: RequestRecord, *early: TaskEvent, uncallable: str = "") -> Hand:
    hand = Hand(track=new_track(kept, Now(0.0, START)))
    return hand.tell(Recovered(early=early, uncallable=uncallable))


def sending() -> RequestRecord:
    return replace(record(push=True), phase=Phase.SENDING)


def bound(state: TaskState, text: str = "") -> RequestRecord:
    return replace(record(push=True), phase=Phase.ACCEPTED, task=task(state, text), bound_at=START)


@pytest.mark.parametrize("error", REPLIES, ids=lambda e: type(e).__name__)
def test_an_early_webhook_outranks_a_reply_without_a_task(error: FleetsimError) -> None:
    hand = Hand.begun(push=True)
    hand.hear(DONE, UpdateSource.PUSH)
    assert hand.track.awaits_reply
    hand.tell(SendFailed(error=error))
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all of it")]
    assert not hand.asked_for(Send) + hand.asked_for(LookUpTask), "neither sent again nor looked for"


def test_an_early_webhook_counts_if_the_request_expires_before_the_reply() -> None:
    hand = Hand.begun(push=True)
    hand.hear(DONE, UpdateSource.PUSH)
    hand.wait(3600)
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all of it")]


def test_a_kept_webhook_binds_a_request_whose_send_was_under_way() -> None:
    hand = recovered(sending(), status(W))
    assert hand.track.task is not None
    assert hand.track.record.phase is Phase.ACCEPTED
    assert hand.asked_for(Save)
    assert not hand.asked_for(LookUpTask)
    hand.wait(2)
    assert hand.asked_for(Poll)


def test_a_kept_webhook_prevents_a_second_send() -> None:
    hand = recovered(replace(sending(), phase=Phase.INTENT), status(W))
    assert hand.track.task is not None
    assert not hand.asked_for(Send)


def test_a_kept_webhook_ends_a_bound_task_whole_without_a_poll() -> None:
    hand = recovered(bound(C, "all of it"), DONE)
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.text, outcome.reason) == (OutcomeKind.COMPLETED, "all of it", "")
    assert hand.track.ending.polls_owed == 0


def test_kept_pieces_of_an_artifact_make_a_bound_task_whole() -> None:
    whole: ArtifactUpdate = chunk("all of it", append=False, last=True)
    hand = recovered(bound(C, "all of it"), whole, status(C))
    assert [(o.text, o.reason) for o in hand.outcomes] == [("all of it", "")]


@pytest.mark.parametrize("old", [status(W), status(I, "which?"), chunk("older", append=False)])
def test_events_that_a_bound_task_has_passed_are_not_applied_again(old: StatusUpdate | ArtifactUpdate) -> None:
    later = replace(bound(W, "newer"), answers=1)
    hand = recovered(later, old)
    assert hand.track.record == replace(later, agent_since=hand.track.record.agent_since)
    assert hand.track.asking.question is None


def test_a_kept_webhook_decides_if_the_agent_can_no_longer_be_polled() -> None:
    (outcome,) = recovered(sending(), DONE, uncallable="quinn is not in the fleet").outcomes
    assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "all of it")
    (outcome,) = recovered(sending(), status(C), uncallable="quinn is not in the fleet").outcomes
    assert outcome.kind is OutcomeKind.COMPLETED
    assert "quinn is not in the fleet" in outcome.reason
    (outcome,) = recovered(sending(), status(W), uncallable="quinn is not in the fleet").outcomes
    assert (outcome.kind, outcome.reason) == (OutcomeKind.LOST, "quinn is not in the fleet")


def test_a_refused_webhook_while_the_reply_is_lost_causes_a_search_for_the_task() -> None:
    hand = Hand.begun(push=True)
    hand.tell(SendFailed(error=TimedOut("silent")))
    hand.tell(TurnedAway())
    hand.wait(5.1)
    assert hand.asked_for(LookUpTask)


def test_an_answer_in_doubt_that_no_poll_can_clear_up_does_not_hold_the_request() -> None:
    asked = replace(record(), phase=Phase.ACCEPTED, task=task(I, "", "which?"), bound_at=START)
    asking = Hand(track=new_track(replace(asked, task=task(W)), Now(0.0, START)))
    asking.tell(Recovered())
    asking.hear(task(I, "", "which?"), UpdateSource.POLL)
    question = asking.track.asking.question
    assert question is not None
    answer = Answer(question_id=question.question_id, text="that one")
    asking.tell(Answered(answer=answer))
    hand = Hand(track=new_track(asking.track.record, Now(0.0, START)))
    hand.tell(Recovered(question=question, answer=answer))
    for _ in range(3):
        hand.wait(31)
        hand.tell(PollFailed(error=MethodNotFound()))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.LOST]
