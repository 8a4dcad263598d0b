"""Every wait ends with a reason: polls that cannot change, ends that cannot be confirmed, empty streams,
first polls, and limits of a caller."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TypeVar

import pytest
from msgspec.structs import replace

from fleetsim.events.request import Event, PollingStopped
from fleetsim.model.errors import (
    Blame,
    ConfigError,
    ConnectionLost,
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
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, Cause, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import Phase
from fleetsim.request.signals import (
    Answered,
    CancelAsked,
    Found,
    LookUpTask,
    Poll,
    PollFailed,
    Publish,
    PushRegistered,
    Recovered,
    RegisterPush,
    Replied,
    Resumed,
    SendFailed,
    StreamEnded,
    Subscribe,
)
from fleetsim.request.track import Now, Rules, Timer
from tests.request.steps import START, WHICH, C, F, Hand, W, bound, chunk, record, status, task, wake_of

TOO_LARGE = LimitReached("a.example: the body is larger than 1048576 bytes")
UNCHANGING: list[tuple[FleetsimError, OutcomeKind, Blame]] = [
    (TOO_LARGE, OutcomeKind.PROTOCOL_ERROR, Blame.AGENT),
    (WireError("HTML"), OutcomeKind.PROTOCOL_ERROR, Blame.AGENT),
    (MethodNotFound(), OutcomeKind.LOST, Blame.AGENT),
    (UnsupportedOperation(), OutcomeKind.LOST, Blame.AGENT),
    (InvalidParams("no such id form"), OutcomeKind.LOST, Blame.AGENT),
    (HttpRefused("bad request", status=400), OutcomeKind.LOST, Blame.AGENT),
    (ConfigError("QUINN_KEY is not set"), OutcomeKind.LOST, Blame.CALLER),
]
PASSING: list[FleetsimError] = [
    Unreachable("down"),
    TimedOut("silent"),
    ConnectionLost("cut"),
    HttpRefused("busy", status=503),
    HttpRefused("slow down", status=429),
    HttpRefused("proxy", status=502),
    InternalError("the store is down"),
    RpcError("overloaded", code=-32050),
]


E = TypeVar("E", bound=Event)


def said(hand: Hand, kind: type[E]) -> list[E]:
    return [e.event for e in hand.effects if isinstance(e, Publish) and isinstance(e.event, kind)]


def look(hand: Hand, error: FleetsimError) -> bool:
    """Wait for the next poll and fail it; False if none comes within ten minutes or the request has ended."""
    for _ in range(600):
        if hand.outcomes:
            return False
        if hand.track.polling.began is None:
            hand.wait(1.0)
        if hand.track.polling.began is not None:
            hand.tell(PollFailed(error=error))
            return True
    return False


# ------------------------------------------------------------------ polls that cannot change


@pytest.mark.parametrize(("error", "kind", "blame"), UNCHANGING, ids=lambda e: type(e).__name__)
def test_a_poll_with_a_final_error_ends_the_request(error: FleetsimError, kind: OutcomeKind, blame: Blame) -> None:
    hand, looks = bound(W), 0
    while look(hand, error):
        looks += 1
        if looks == 3:
            (told,) = said(hand, PollingStopped)
            assert str(error) in told.why
    assert looks == 3
    assert hand.mono < 100
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.blame) == (kind, blame)
    assert str(error) in outcome.reason


@pytest.mark.parametrize("error", PASSING, ids=lambda e: type(e).__name__)
def test_a_poll_with_a_temporary_error_is_repeated_until_the_deadline_which_quotes_it(error: FleetsimError) -> None:
    hand = bound(W)
    while hand.mono < 3590 and look(hand, error):
        assert not said(hand, PollingStopped)
    hand.wait(3601 - hand.mono)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.EXPIRED]
    assert str(error) in hand.outcomes[0].reason


@pytest.mark.parametrize("code", [404, 405, 410])
def test_a_404_for_a_task_is_polled_once_more(code: int) -> None:
    hand = bound(W)
    gone = HttpRefused("no", status=code)
    assert look(hand, gone)
    assert not hand.outcomes
    assert look(hand, gone)
    assert [(o.kind, o.cause) for o in hand.outcomes] == [(OutcomeKind.LOST, Cause.TASK_GONE)]


def test_with_an_open_stream_only_the_polling_ends() -> None:
    hand = Hand.begun(streaming=True).hear(task(W), UpdateSource.STREAM)
    while look(hand, TOO_LARGE):
        pass
    assert not hand.outcomes
    assert hand.track.polling.stopped is not None
    assert not hand.wait(600).asked_for(Poll)
    for event in (chunk("all", append=False, last=True), status(C, final=True)):
        hand.hear(event, UpdateSource.STREAM)
    assert [(o.kind, o.text) for o in hand.outcomes] == [(OutcomeKind.COMPLETED, "all")]


@pytest.mark.parametrize("rejoin", [False, True])
def test_when_the_stream_ends_too_the_request_ends(rejoin: bool) -> None:
    hand = Hand(track=new_track(record(streaming=True, rejoin=rejoin), Now(0.0, START)))
    hand.tell(Recovered())
    hand.hear(task(W), UpdateSource.STREAM)
    while look(hand, MethodNotFound()):
        pass
    for _ in range(4 if rejoin else 1):
        assert not hand.outcomes
        hand.tell(StreamEnded(error=ConnectionLost("cut"))).wait(10)
        assert len(hand.asked_for(Subscribe)) == (0 if hand.outcomes else 1)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.LOST]


def test_a_possible_webhook_is_registered_and_awaited_until_the_deadline() -> None:
    hand = bound(W, push=True)
    for _ in range(3):
        assert look(hand, TOO_LARGE)
    assert hand.asked_for(RegisterPush)
    hand.tell(PushRegistered())
    assert not hand.wait(3000).asked_for(Poll)
    assert not hand.outcomes
    hand.wait(600)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.EXPIRED]
    assert str(TOO_LARGE) in hand.outcomes[0].reason


def test_a_webhook_that_the_agent_refuses_is_not_awaited() -> None:
    hand = bound(W, push=True)
    while look(hand, TOO_LARGE):
        pass
    hand.tell(PushRegistered(error=MethodNotFound()))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.PROTOCOL_ERROR]


def test_an_open_question_keeps_the_request_and_its_answer_may_end_it() -> None:
    hand = bound(W).hear(WHICH, UpdateSource.POLL)
    while look(hand, MethodNotFound()):
        pass
    assert not hand.outcomes
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    assert not hand.outcomes
    hand.tell(Resumed(reply=task(W), began=hand.mono))
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.LOST]


def test_a_cancel_under_way_is_awaited() -> None:
    hand = bound(W).tell(CancelAsked())
    for _ in range(3):
        look(hand, MethodNotFound())
    assert not hand.outcomes
    hand.wait(31)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.EXPIRED]


# ------------------------------------------------------------------ ends that cannot be confirmed


@pytest.mark.parametrize("error", [TaskNotFound(), HttpRefused("gone", status=404), MethodNotFound(), TOO_LARGE])
@pytest.mark.parametrize("end", [C, F])
def test_a_known_end_closes_the_request_when_the_agent_has_dropped_the_task(
    error: FleetsimError, end: TaskState
) -> None:
    hand = bound(W, push=True).hear(status(end, "it broke", final=True), UpdateSource.PUSH)
    assert hand.wait(0.1).asked_for(Poll)
    hand.tell(PollFailed(error=error))
    (outcome,) = hand.outcomes
    assert outcome.kind.value == end.value
    assert hand.mono < 1.0
    assert ("could not be confirmed" in outcome.reason) is (end is C)


def test_an_end_without_a_confirming_poll_has_that_reason() -> None:
    hand = bound(W, push=True).hear(status(C, final=True), UpdateSource.PUSH)
    while look(hand, Unreachable("the agent is down")):
        pass
    assert hand.outcomes[0].kind is OutcomeKind.COMPLETED
    assert "could not be confirmed" in hand.outcomes[0].reason
    assert "the agent is down" in hand.outcomes[0].reason


def test_after_polling_has_stopped_a_webhook_with_the_end_ends_the_request() -> None:
    hand = bound(W, push=True)
    while look(hand, TOO_LARGE):
        pass
    hand.tell(PushRegistered()).hear(status(C, final=True), UpdateSource.PUSH)
    assert hand.outcomes[0].kind is OutcomeKind.COMPLETED
    assert str(TOO_LARGE) in hand.outcomes[0].reason


# ------------------------------------------------------------------ streams without a word


def empty(*, push: bool = False) -> Hand:
    return Hand.begun(streaming=True, push=push).tell(SendFailed(error=EmptyStream()))


def test_a_request_with_an_empty_stream_continues_if_its_task_is_found() -> None:
    hand = empty().tell(Found(task=task(W)))
    assert not hand.outcomes
    assert hand.wait(2).asked_for(Poll)


def test_a_lost_reply_that_cannot_be_searched_is_given_up_at_once() -> None:
    hand = Hand.begun().tell(SendFailed(error=TimedOut("silent"))).tell(Found(task=None, possible=False))
    assert [(o.kind, o.blame) for o in hand.outcomes] == [(OutcomeKind.UNKNOWN, Blame.NETWORK)]


def lost(**kind: bool) -> Hand:
    return Hand.sent(**kind).tell(SendFailed(error=TimedOut("silent")))


def test_a_webhook_of_a_long_task_is_awaited_if_its_task_cannot_be_searched() -> None:
    """The agent may be at work, and says so when it ends; ten intervals are more than two."""
    hand = lost(push=True).tell(Found(task=None, possible=False))
    hand.wait(250)
    assert not hand.outcomes
    hand.hear(status(W), UpdateSource.PUSH)
    assert hand.track.task is not None
    hand = lost(push=True).tell(Found(task=None, possible=False))
    for _ in range(12):
        hand.wait(30)
        if hand.asked_for(LookUpTask):
            hand.tell(Found(task=None, possible=False))
    assert [(o.kind, o.duration_ms) for o in hand.outcomes] == [(OutcomeKind.UNKNOWN, 300_000)]


# ------------------------------------------------------------------ first looks


def looks(hand: Hand, seconds: float) -> list[float]:
    made: list[float] = []
    while hand.mono < seconds and not hand.outcomes:
        hand.wait(0.25)
        if hand.track.polling.began is not None:
            made.append(hand.mono)
            hand.mono += 0.01
            hand.hear(task(W), UpdateSource.POLL, began=hand.mono)
    return made


def test_a_task_is_first_polled_after_a_second_and_then_at_growing_intervals() -> None:
    made = looks(bound(W), 200)
    assert 0.9 <= made[0] <= 1.5
    assert len([at for at in made if at <= 31]) <= 6
    late = [b - a for a, b in pairwise(made) if a > 60]
    assert all(26 <= gap <= 34 for gap in late)


def test_after_an_answer_the_next_polls_are_soon() -> None:
    hand = bound(W)
    looks(hand, 300)
    hand.wait(40).hear(WHICH, UpdateSource.POLL)
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    hand.tell(Resumed(reply=task(W), began=hand.mono))
    answered = hand.mono
    assert len(looks(hand, answered + 10)) >= 3


def test_after_a_restart_old_tasks_are_polled_at_once_and_then_at_their_interval() -> None:
    kept = replace(record(), phase=Phase.ACCEPTED, task=task(W))
    hand = Hand(track=new_track(kept, Now(0.0, START + timedelta(seconds=600)))).tell(Recovered())
    assert len(looks(hand, 60)) <= 3


# ------------------------------------------------------------------ limits a caller sets


def limited(*, seconds: float = 5.0, streaming: bool = False) -> Hand:
    kept = record(streaming=streaming, limit_s=seconds)
    kept = replace(kept, request=replace(kept.request, timeout_s=seconds), shortened=True)
    hand = Hand(track=new_track(kept, Now(0.0, START)))
    return hand.tell(Recovered())


def phases() -> dict[str, Hand]:
    return {
        "sending": limited(),
        "streaming": limited(streaming=True).hear(task(W), UpdateSource.STREAM),
        "pausing before the next try": limited(seconds=0.4).tell(SendFailed(error=Unreachable("down"))),
        "looking for a lost reply": limited().tell(SendFailed(error=TimedOut("silent"))),
        "bound": limited().tell(Replied(reply=task(W), began=0.0)),
        "cancelling": limited().tell(Replied(reply=task(W), began=0.0)).tell(CancelAsked()),
    }


@pytest.mark.parametrize("phase", list(phases()))
def test_a_callers_limit_ends_the_request_on_time_in_every_phase(phase: str) -> None:
    hand = phases()[phase]
    limit = hand.track.timers[Timer.DEADLINE]
    hand.wait(limit + 0.01)
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.blame) == (OutcomeKind.EXPIRED, Blame.CALLER)
    assert f"{limit:g} s" in outcome.reason


def test_a_callers_limit_stands_still_while_a_question_is_open_and_is_not_extended() -> None:
    hand = limited().tell(Replied(reply=task(W), began=0.0)).wait(4.0)
    hand.hear(WHICH, UpdateSource.REPLY)
    hand.wait(100)
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    hand.tell(Resumed(reply=task(W), began=hand.mono)).wait(0.9)
    assert not hand.outcomes
    hand.wait(0.2)
    assert [o.kind for o in hand.outcomes] == [OutcomeKind.EXPIRED]


def test_after_a_restart_tasks_are_polled_one_by_one_within_four_seconds() -> None:
    """All at once would be a flood: chance says when, from at once to four seconds on."""
    kept = replace(record(), task=task(W), phase=Phase.ACCEPTED, bound_at=START)
    wakes = []
    for jitter in (0.0, 0.05, 1.0):
        hand = Hand(track=new_track(kept, Now(0.0, START, jitter)))
        hand.track, _ = step(hand.track, Recovered(), Now(0.0, START, jitter), Rules())
        wakes.append(wake_of(hand.track))
    assert wakes == [0.0, 1.5, 4.0]


@pytest.mark.parametrize(("hours", "turn_s"), [(0.0, 0.0), (0.5, 1_800.0), (10.0, 3_600.0), (-1.0, 0.0)])
def test_the_agents_time_continues_over_a_restart_and_a_clock_that_jumped_adds_at_most_the_limit(
    hours: float, turn_s: float
) -> None:
    kept = replace(record(limit_s=3_600), phase=Phase.ACCEPTED, task=task(W), agent_since=START)
    assert new_track(kept, Now(50.0, START + timedelta(hours=hours))).turn_from == 50.0 - turn_s
