"""``step`` under the faults of docs/reference/faults.md."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.events.fleet import CredentialRefused, WebhooksDegraded
from fleetsim.events.request import Event, QuestionOverdue
from fleetsim.model.errors import (
    AuthRefused,
    InvalidParams,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TimedOut,
    Unreachable,
)
from fleetsim.model.work import Answer, Cause, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import Phase
from fleetsim.request.signals import (
    Ask,
    Cancel,
    CancelAsked,
    Close,
    Due,
    Found,
    LookUpTask,
    Poll,
    PollFailed,
    Publish,
    PushRegistered,
    Recovered,
    ResolveQuestion,
    Resume,
    Save,
    Send,
    SendFailed,
)
from fleetsim.request.track import Now, Rules, Timer
from tests.request.steps import START, WHICH, C, Hand, I, W, bound, record, status, task

RULES = Rules()


def said(hand: Hand, kind: type[Event]) -> list[Event]:
    return [e.event for e in hand.asked_for(Publish) if isinstance(e.event, kind)]


@pytest.mark.parametrize("error", [InvalidParams("bad webhook"), PushNotSupported()])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_send_refused_for_its_webhook_is_repeated_once_without_it(error: RpcError, streaming: bool) -> None:
    hand = Hand.begun(None, push=True, streaming=streaming).tell(SendFailed(error=error))
    assert hand.asked_for(Send) == [Send(stream=streaming)]
    assert not hand.track.record.push
    hand.tell(SendFailed(error=error))
    assert not hand.asked_for(Send)
    assert not said(hand, WebhooksDegraded)
    assert hand.outcomes[0].kind is OutcomeKind.UNDELIVERABLE


def test_a_send_without_a_webhook_is_not_repeated_for_bad_params() -> None:
    hand = Hand.begun().tell(SendFailed(error=InvalidParams("no text")))
    assert not hand.asked_for(Send)
    assert hand.outcomes[0].kind is OutcomeKind.UNDELIVERABLE


def test_a_refused_registration_leaves_the_task_to_polling() -> None:
    hand = bound(push=True).tell(PushRegistered(error=MethodNotFound()))
    assert said(hand, WebhooksDegraded)
    assert not hand.outcomes
    assert hand.wait(31).asked_for(Poll)


def test_a_key_that_was_changed_meanwhile_is_read_again_once() -> None:
    hand = Hand.begun().tell(SendFailed(error=AuthRefused("no", status=401)))
    assert hand.wait(2).asked_for(Send)
    hand.tell(SendFailed(error=AuthRefused("no", status=401)))
    assert said(hand, CredentialRefused)
    assert not hand.wait(60).asked_for(Send)
    assert hand.outcomes[0].kind is OutcomeKind.UNDELIVERABLE


def test_a_poll_refused_for_its_key_is_repeated_once_and_then_the_task_is_lost() -> None:
    hand = bound().wait(16).tell(PollFailed(error=AuthRefused("no", status=401)))
    assert not hand.outcomes
    hand.wait(6).tell(PollFailed(error=AuthRefused("no", status=401)))
    assert hand.outcomes[0].kind is OutcomeKind.LOST
    assert said(hand, CredentialRefused)


@pytest.mark.parametrize("why", ["cancel", "webhook"])
def test_each_record_saved_during_a_send_states_that_bytes_may_have_left(why: str) -> None:
    hand = Hand.sent(push=True)
    hand.tell(CancelAsked()) if why == "cancel" else hand.tell(SendFailed(error=InvalidParams("no")))
    assert hand.track.record.phase is Phase.SENDING


def test_a_send_that_waits_for_its_turn_has_not_left() -> None:
    hand = Hand.begun().tell(CancelAsked())
    assert hand.asked_for(Save)
    assert hand.track.record.phase is Phase.INTENT
    hand.wait(3600)
    assert [(o.kind, o.cause) for o in hand.outcomes] == [(OutcomeKind.EXPIRED, Cause.NEVER_SENT)]


def test_between_retries_the_record_states_that_nothing_was_sent() -> None:
    hand = Hand.begun().tell(SendFailed(error=Unreachable("down")))
    assert hand.asked_for(Save)
    assert hand.track.record.phase is Phase.INTENT


def test_a_request_cancelled_before_a_restart_is_not_sent_after_it() -> None:
    hand = Hand(track=new_track(replace(record(), cancel_wanted=True), Now(0.0, START)))
    hand.tell(Recovered())
    assert not hand.asked_for(Send)
    assert hand.outcomes[0].kind is OutcomeKind.UNDELIVERABLE


def test_a_send_under_way_at_a_crash_is_searched_and_never_repeated() -> None:
    hand = Hand(track=new_track(replace(record(), phase=Phase.SENDING), Now(0.0, START)))
    hand.tell(Recovered())
    assert hand.asked_for(LookUpTask)
    hand.tell(Found(task=None)).wait(61)
    assert not hand.asked_for(Send)
    assert hand.outcomes[0].kind is OutcomeKind.UNKNOWN


@pytest.mark.slow
def test_an_open_question_is_remembered_at_half_its_life_once() -> None:
    hand = bound().hear(WHICH, UpdateSource.POLL)
    assert hand.asked_for(Ask)
    reminders, at = 0, 0.0
    while not hand.outcomes:
        hand.wait(60)
        if found := said(hand, QuestionOverdue):
            reminders, at = reminders + len(found), hand.mono
        if hand.track.polling.began is not None:
            hand.hear(WHICH, UpdateSource.POLL)
    assert reminders == 1
    assert RULES.question_ttl_s / 2 <= at <= RULES.question_ttl_s / 2 + 60
    assert hand.outcomes[0].kind is OutcomeKind.EXPIRED


def test_a_question_reopened_after_its_reminder_is_not_remembered_twice() -> None:
    before = bound().hear(WHICH, UpdateSource.POLL)
    kept = replace(before.track.record, phase=Phase.ACCEPTED)
    late = Now(0.0, START + timedelta(hours=20))
    hand = Hand(track=new_track(kept, late))
    hand.track, _ = step(hand.track, Recovered(question=before.question), late, RULES)
    assert hand.due(Timer.REMINDER) is None
    assert hand.track.timers[Timer.QUESTION] == pytest.approx(4 * 3600)


def test_a_deadline_that_passed_while_the_hub_was_down_gets_one_grace_and_a_poll_first() -> None:
    hand = bound()
    hand.tell(PollFailed(error=Unreachable("x")))
    hand.mono = hand.track.timers[Timer.DEADLINE] + 20.0
    hand.tell(Due())
    assert not hand.outcomes
    assert hand.asked_for(Poll)
    hand.hear(task(C, "done long ago"), UpdateSource.POLL)
    assert hand.outcomes[0].kind is OutcomeKind.COMPLETED


def test_a_deadline_that_passed_under_our_eyes_gets_no_grace() -> None:
    hand = bound()
    hand.mono = hand.track.timers[Timer.DEADLINE] - 1.0
    hand.tell(Due())
    hand.mono += 1.0
    hand.tell(Due())
    assert hand.outcomes[0].kind is OutcomeKind.EXPIRED
    assert hand.asked_for(Cancel)


def test_after_the_grace_a_silent_agent_still_expires() -> None:
    hand = bound()
    hand.mono = hand.track.timers[Timer.DEADLINE] + 20.0
    hand.tell(Due())
    hand.wait(6)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.EXPIRED]


def test_a_lost_reply_is_not_given_up_for_the_time_of_a_downtime() -> None:
    hand = Hand.begun(push=True).tell(SendFailed(error=TimedOut("silent")))
    hand.mono = 500.0
    hand.tell(Due())
    assert not hand.outcomes
    hand.hear(task(C, "it did run"), UpdateSource.PUSH)
    assert hand.outcomes[0].kind is OutcomeKind.COMPLETED


@pytest.mark.parametrize("hours", [-24 * 365 * 50, -24, -1, 1, 24])
def test_a_clock_that_jumped_over_a_restart_neither_ends_a_request_at_once_nor_makes_it_immortal(hours: int) -> None:
    wall = START + timedelta(hours=hours)
    kept = replace(record(limit_s=3600), phase=Phase.ACCEPTED, task=task(W))
    hand = Hand(track=new_track(kept, Now(0.0, wall)))
    hand.tell(Recovered())
    assert not [e for e in hand.effects if isinstance(e, Close)]
    assert 5.0 <= hand.track.timers[Timer.DEADLINE] <= 3600.0


def answered_at_the_crash() -> Hand:
    """A hub that starts again with an answer that may have reached the agent."""
    before = bound().hear(WHICH, UpdateSource.POLL)
    question = before.question
    hand = Hand(track=new_track(before.track.record, Now(0.0, START)))
    hand.tell(Recovered(question=question, answer=Answer(question_id=question.question_id, text="main")))
    assert not hand.asked_for(Resume)
    hand.wait(0.1)
    assert hand.asked_for(Poll)
    return hand


def test_an_answer_under_way_at_the_crash_is_sent_only_if_the_agent_still_waits() -> None:
    hand = answered_at_the_crash().hear(WHICH, UpdateSource.POLL)
    assert len(hand.asked_for(Resume)) == 1
    assert not hand.asked_for(Ask)


def test_an_answer_that_had_arrived_before_the_crash_is_not_sent_again() -> None:
    hand = answered_at_the_crash().hear(task(W), UpdateSource.POLL)
    assert [e.state for e in hand.asked_for(ResolveQuestion)] == ["delivered"]
    assert not hand.wait(100).asked_for(Resume)
    assert hand.track.asking.answer is None


def test_the_next_question_does_not_get_the_answer_of_the_one_before_the_crash() -> None:
    hand = answered_at_the_crash().hear(task(I, said="sure?", said_id="q2"), UpdateSource.POLL)
    assert not hand.asked_for(Resume)
    assert [e.question.text for e in hand.asked_for(Ask)] == ["sure?"]


def test_a_late_webhook_does_not_settle_whether_the_answer_arrived() -> None:
    hand = answered_at_the_crash().hear(status(W), UpdateSource.PUSH)
    assert hand.track.asking.doubt
    hand.hear(WHICH, UpdateSource.POLL, began=hand.mono + 1)
    assert hand.asked_for(Resume)
