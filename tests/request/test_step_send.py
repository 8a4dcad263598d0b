"""The first send, effect by effect: its retries, other forms, searches and reasons."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.events.request import Level
from fleetsim.model.errors import (
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
from fleetsim.model.work import Cause, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Begin,
    CancelAsked,
    Close,
    Due,
    Found,
    Left,
    LookUpTask,
    Publish,
    Save,
    Send,
    SendFailed,
    StreamEnded,
)
from fleetsim.request.track import Now, Timer, how_it_stands
from tests.request.steps import START, C, Hand, I, W, message, published, record, status, task


def of(kept: RequestRecord, *, left: bool = True) -> Hand:
    hand = Hand(track=new_track(kept, Now(0.0, START))).tell(Begin())
    return hand.tell(Left()) if left else hand


def follow_up(stood: TaskState = C, **kind: bool) -> RequestRecord:
    """One more message on the task ``t-1``, which stood so before it."""
    kept = record(**kind)
    request = replace(kept.request, task_id="t-1", context_id="ctx")
    return replace(kept, request=request, earlier=how_it_stands(task(stood, "of before")))


def retry(reason: str, attempt: int = 0, seconds: float = 0, level: Level = Level.WARN) -> Publish:
    payload = {"attempt": attempt, "inSeconds": seconds, "reason": reason}
    return published(topic="agent.skill.retry", level=level, payload=payload)


# ------------------------------------------------------------------ tried again, or sent otherwise


@pytest.mark.parametrize("streaming", [False, True])
def test_a_request_is_sent_in_the_form_of_its_record(streaming: bool) -> None:
    hand = Hand.begun(streaming=streaming)
    assert hand.effects == (Send(stream=streaming),)
    assert hand.track.awaits_reply
    assert hand.tell(Left()).track.turn_from == 0.0


def test_each_retry_is_published_and_recorded_with_its_pause() -> None:
    hand = Hand.sent()
    for attempt, wait in enumerate((0.5, 1.5, 4.5), 1):
        hand.tell(SendFailed(error=Unreachable("refused")))
        assert hand.effects == (Save(), retry("refused", attempt + 1, wait))
        assert (hand.track.sending.attempt, hand.due(Timer.RETRY)) == (attempt, hand.mono + wait)
        assert (hand.track.record.phase, hand.track.turn_from) == (Phase.INTENT, None)
        hand.at(hand.mono + wait).tell(Due())
        assert hand.effects == (Send(stream=False),)
        assert (hand.track.sending.in_air, hand.due(Timer.RETRY)) == (True, None)
        hand.tell(Left())
    hand.tell(SendFailed(error=Unreachable("refused")))
    assert [(o.kind, o.reason) for o in hand.outcomes] == [(OutcomeKind.UNDELIVERABLE, "refused")]


@pytest.mark.parametrize(
    ("retry_after_s", "jitter", "waits"),
    [(None, 0.5, 0.5), (None, 0.0, 0.05), (None, 1.0, 1.0), (-5.0, 0.5, 0.5), (0.0, 0.5, 0.5), (20.0, 0.5, 20.0)],
)
def test_a_pause_is_random_above_zero_and_at_least_retry_after(
    retry_after_s: float | None, jitter: float, waits: float
) -> None:
    hand = Hand.sent()
    hand.jitter = jitter
    hand.tell(SendFailed(error=HttpRefused("busy", status=503, retry_after_s=retry_after_s)))
    assert hand.due(Timer.RETRY) == waits


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (RpcError("a webhook must use https", code=-32004), True),
        (RpcError("no TLS", code=-32004), True),
        (RpcError("out of resources", code=-32003), False),
        (RpcError("webhook refused", code=-32050), True),
        (InternalError("push-notification callback url is not allowed"), True),
        (InternalError("callback handler: no such model"), False),
        (HttpRefused("HTTP 500", status=500, said="the webhook's host is private"), True),
        (HttpRefused("HTTP 500", status=500, said="out of tokens"), False),
        (HttpRefused("HTTP 502", status=502, said="webhook"), False),
        (HttpRefused("HTTP 503", status=503, said="webhook"), False),
        (HttpRefused("HTTP 404", status=404, said="no such page"), False),
        (WireError("webhook"), False),
        (TimedOut("webhook"), False),
    ],
)
def test_only_a_clear_refusal_that_may_mean_the_webhook_is_sent_again_without_it(
    error: FleetsimError, again: bool
) -> None:
    hand = Hand.sent(push=True).tell(SendFailed(error=error))
    assert (hand.asked_for(Send) == [Send(stream=False)]) is again
    assert hand.tell(SendFailed(error=error)).asked_for(Send) == []


def test_a_stream_and_a_webhook_that_one_code_may_mean_are_left_out_one_after_the_other() -> None:
    hand = Hand.sent(push=True, streaming=True).tell(SendFailed(error=UnsupportedOperation("no")))
    assert (hand.asked_for(Send), hand.track.record.push) == ([Send(stream=False)], True)
    hand.tell(SendFailed(error=UnsupportedOperation("no")))
    assert (hand.asked_for(Send), hand.track.record.push) == ([Send(stream=False)], False)
    named = Hand.sent(push=True, streaming=True).tell(SendFailed(error=UnsupportedOperation("no webhooks")))
    assert (named.asked_for(Send), named.track.record.push) == ([Send(stream=True)], False)


def test_a_send_with_an_early_webhook_has_arrived() -> None:
    hand = Hand.sent(push=True).hear(task(W), UpdateSource.PUSH).tell(SendFailed(error=TimedOut("silent")))
    assert hand.effects[-1] == retry("the task is known already: silent", level=Level.INFO)
    assert hand.track.task is not None


# ------------------------------------------------------------------ refused for good


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (TaskNotFound("gone"), True),
        (UnsupportedOperation("it is over"), True),
        (InvalidParams("no"), True),
        (MethodNotFound("what?"), False),
    ],
)
def test_a_refused_follow_up_is_blamed_on_the_caller(error: FleetsimError, ours: bool) -> None:
    hand = of(follow_up()).tell(SendFailed(error=error))
    assert [o.cause for o in hand.outcomes] == [Cause.REQUEST_WRONG if ours else Cause.REFUSED]


def test_a_cancel_during_a_send_that_is_refused_ends_the_request() -> None:
    hand = Hand.sent().tell(CancelAsked()).tell(SendFailed(error=Unreachable("refused")))
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause) == (OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON)
    assert hand.effects == (Close(outcome=outcome),)


@pytest.mark.parametrize("error", [TimedOut("silent"), HttpRefused("proxy", status=502)])
def test_a_cancel_during_a_send_that_may_have_arrived_does_not_end_the_request(error: FleetsimError) -> None:
    hand = Hand.sent().tell(CancelAsked()).tell(SendFailed(error=error))
    assert not hand.outcomes
    assert hand.asked_for(LookUpTask)


# ------------------------------------------------------------------ the reply is lost


def lost(error: FleetsimError | None = None, **kind: bool) -> Hand:
    return Hand.sent(**kind).at(5.0).tell(SendFailed(error=error or TimedOut("silent")))


def test_the_task_of_a_lost_follow_up_is_found_only_if_it_has_the_message() -> None:
    stands = task(C, "of before")
    hand = of(follow_up()).tell(SendFailed(error=TimedOut("silent"))).tell(Found(task=stands))
    assert hand.track.task is None
    took = replace(stands, history=(replace(message("more"), message_id="m-1"),))
    hand.tell(Found(task=took))
    assert hand.track.task is not None


# ------------------------------------------------------------------ streams that end


def streamed(*, rejoin: bool = True) -> Hand:
    hand = Hand.sent(streaming=True, rejoin=rejoin).hear(task(W), UpdateSource.STREAM).at(100.0)
    hand.tell(Due())
    return hand.hear(task(W), UpdateSource.POLL)


def test_a_stream_that_ended_is_joined_again_at_most_three_times_after_growing_pauses() -> None:
    hand = streamed()
    for count, wait in enumerate((0.5, 1.5, 4.5), 1):
        hand.tell(StreamEnded())
        assert hand.effects == ()
        assert (hand.track.streaming.rejoins, hand.track.streaming.gap, hand.track.streaming.open) == (
            count,
            True,
            False,
        )
        assert hand.due(Timer.REJOIN) == hand.mono + wait
        assert hand.next_look == 1.0
        hand.at(hand.mono + 1.0).tell(Due()).hear(task(W), UpdateSource.POLL, began=hand.mono)
        hand.at(hand.mono + wait - 1.0).tell(Due()) if wait > 1 else None
        assert (hand.track.streaming.joining, hand.due(Timer.REJOIN)) == (True, None)
    hand.tell(StreamEnded())
    assert (hand.due(Timer.REJOIN), hand.track.streaming.joining) == (None, False)


@pytest.mark.parametrize(
    "error", [MethodNotFound("no"), UnsupportedOperation("no"), TaskNotFound("no"), LimitReached("no")]
)
def test_a_stream_that_was_refused_for_good_is_not_joined_again(error: FleetsimError) -> None:
    hand = streamed().tell(StreamEnded(error=error))
    assert hand.said == [("agent.stream.broken", Level.DEBUG, {"why": "no"})]
    assert (hand.due(Timer.REJOIN), hand.track.streaming.gap) == (None, True)


def test_an_ended_task_whose_stream_cannot_be_joined_is_polled_at_once() -> None:
    hand = streamed().tell(StreamEnded())
    hand.track.timers.pop(Timer.POLL)
    hand.at(hand.mono + 0.5).tell(Due())
    assert hand.track.streaming.joining
    hand.tell(StreamEnded(error=UnsupportedOperation("the task is already completed")))
    assert (hand.due(Timer.REJOIN), hand.next_look) == (None, 0.0)


def test_a_stream_that_ends_at_a_question_or_the_tasks_end_is_not_joined_again() -> None:
    asking = streamed().hear(task(I, said="which?"), UpdateSource.STREAM).tell(StreamEnded())
    ended = streamed().hear(status(C), UpdateSource.STREAM).tell(StreamEnded())
    for hand in (asking, ended):
        assert (hand.due(Timer.REJOIN), hand.track.streaming.gap, hand.track.streaming.open) == (
            None,
            False,
            False,
        )
