"""The blame for an end: an act of a person, the caller or the network is never blamed on the agent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    AuthRefused,
    BlockedAddress,
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
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, Cause, Decision, UpdateSource
from fleetsim.request.ending import cause_of
from fleetsim.request.signals import (
    Answered,
    CancelAsked,
    Found,
    LookUpTask,
    PollFailed,
    ResumeFailed,
    SendFailed,
)
from tests.request.steps import C, F, Hand, I, R, X, bound, task


def asking() -> Hand:
    return bound().hear(task(I, said="which branch?", said_id="q1"), UpdateSource.POLL)


def end(hand: Hand) -> tuple[str, str, str, bool]:
    """Kind, cause and blame of the one outcome, and whether it counts for the agent."""
    (outcome,) = hand.outcomes
    assert outcome.cause is not None
    return outcome.kind.value, outcome.cause.value, outcome.blame.value, outcome.counts


def hurried(hand: Hand) -> Hand:
    """The same track of a request whose caller allowed less time than is configured."""
    hand.track = replace(hand.track, record=replace(hand.track.record, shortened=True))
    return hand


def test_an_unrequested_cancel_is_blamed_on_the_agent() -> None:
    assert end(bound().hear(task(X), UpdateSource.POLL)) == ("canceled", "canceled_unasked", "agent", True)


@pytest.mark.parametrize("became", [X, F, R])
def test_any_end_after_an_operators_cancel_is_blamed_on_the_person(became: TaskState) -> None:
    hand = bound().tell(CancelAsked()).hear(task(became), UpdateSource.POLL)
    assert end(hand) == (became.value, "canceled_by_person", "human", False)


def test_work_that_finished_before_the_cancel_reached_it_is_the_agents_success() -> None:
    hand = bound().tell(CancelAsked()).hear(task(C, "done"), UpdateSource.POLL)
    assert end(hand) == ("completed", "agent_said", "nobody", True)


@pytest.mark.parametrize("became", [X, F])
def test_a_rejected_question_is_blamed_on_the_person_at_any_end(became: TaskState) -> None:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="", decision=Decision.REJECT)))
    assert end(hand.hear(task(became), UpdateSource.POLL)) == (became.value, "rejected_by_person", "human", False)


def test_an_unconfirmed_cancel_is_blamed_on_the_person() -> None:
    hand = bound().tell(CancelAsked())
    while not hand.outcomes:
        hand.wait(10)
    assert end(hand) == ("expired", "cancel_unconfirmed", "human", False)


def test_an_unanswered_question_is_blamed_on_a_person() -> None:
    hand = asking()
    while not hand.outcomes:
        hand.wait(600)
    assert end(hand) == ("expired", "unanswered", "human", False)


def test_the_configured_deadline_is_blamed_on_the_agent() -> None:
    hand = bound()
    while not hand.outcomes:
        hand.wait(600)
    assert end(hand) == ("expired", "task_deadline", "agent", True)


def test_the_deadline_of_canceled_work_is_blamed_on_the_person() -> None:
    hand = bound().wait(3_590).tell(CancelAsked()).wait(11)
    assert end(hand) == ("expired", "cancel_unconfirmed", "human", False)


def test_a_deadline_that_the_caller_shortened_is_blamed_on_the_caller() -> None:
    hand = hurried(bound())
    while not hand.outcomes:
        hand.wait(600)
    assert end(hand) == ("expired", "caller_deadline", "caller", False)


def test_a_shortened_deadline_during_the_send_is_blamed_on_the_caller_too() -> None:
    hand = hurried(Hand.begun())
    while not hand.outcomes:
        hand.wait(600)
    assert end(hand) == ("expired", "caller_deadline", "caller", False)


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (InternalError("boom"), ("failed", "internal_error", "agent", True)),
        (MethodNotFound(), ("undeliverable", "refused", "agent", True)),
        (RpcError("busy"), ("undeliverable", "refused", "agent", True)),
        (HttpRefused("404", status=404), ("undeliverable", "refused", "agent", True)),
        (InvalidParams("no such model"), ("undeliverable", "request_wrong", "caller", False)),
        (TaskNotFound(), ("undeliverable", "refused", "agent", True)),
        (HttpRefused("413", status=413), ("undeliverable", "request_wrong", "caller", False)),
        (AuthRefused("403", status=403), ("undeliverable", "credential_refused", "caller", False)),
        (BlockedAddress("private"), ("undeliverable", "misconfigured", "caller", False)),
        (Unreachable("refused"), ("undeliverable", "unreachable", "network", False)),
        (TimedOut("10 s"), ("unknown", "reply_lost", "network", False)),
        (WireError("not JSON"), ("protocol_error", "protocol", "agent", True)),
        (LimitReached("too large"), ("protocol_error", "limit_reached", "agent", True)),
    ],
)
def test_a_send_that_fails_for_good_has_its_blame(error: FleetsimError, ended: tuple[str, str, str, bool]) -> None:
    hand = Hand.begun()
    for _ in range(10):
        if hand.track.sending.in_air:
            hand.tell(SendFailed(error=error))
        if hand.asked_for(LookUpTask):
            hand.tell(Found(task=None, error=TimedOut("silent")))
        hand.wait(100)
    assert end(hand) == ended


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (TaskNotFound(), ("lost", "task_gone", "agent", True)),
        (RpcError("no"), ("failed", "refused", "agent", True)),
        (AuthRefused("401", status=401), ("failed", "credential_refused", "caller", False)),
    ],
)
def test_a_refused_answer_has_its_blame(error: FleetsimError, ended: tuple[str, str, str, bool]) -> None:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    assert end(hand.tell(ResumeFailed(error=error))) == ended


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (TaskNotFound(), ("lost", "task_gone", "agent", True)),
        (AuthRefused("401", status=401), ("lost", "credential_refused", "caller", False)),
        (MethodNotFound(), ("lost", "cannot_follow", "agent", True)),
    ],
)
def test_a_task_that_cannot_be_followed_has_its_blame(error: FleetsimError, ended: tuple[str, str, str, bool]) -> None:
    hand = bound()
    for _ in range(10):
        hand.wait(100)
        if hand.track.polling.began is not None:
            hand.tell(PollFailed(error=error))
    assert end(hand) == ended


@pytest.mark.parametrize("status", [400, 413, 414, 415, 422])
def test_a_refusal_of_the_request_itself_is_not_blamed_on_the_agent(status: int) -> None:
    assert cause_of(HttpRefused("no", status=status)) is Cause.REQUEST_WRONG
    assert cause_of(HttpRefused("no", status=status + 20)) is Cause.REFUSED
