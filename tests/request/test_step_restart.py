"""The state after a restart, and the timers: limits, grace, questions and reminders, each to the second."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.model.event import TaskEvent
from fleetsim.model.task import Task, TaskState
from fleetsim.model.work import Answer, Cause, Decision, OutcomeKind, Question, UpdateSource
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Answered,
    Ask,
    Cancel,
    Close,
    Due,
    LookUpTask,
    Recovered,
    Replied,
    ResolveQuestion,
    Resume,
    Send,
)
from fleetsim.request.track import Now, Rules, Timer
from tests.request.steps import START, WHICH, C, Hand, I, S, W, asking, record, status, task

GONE = "quinn is not in the fleet"


def bound(state: TaskState | Task, **kind: bool) -> RequestRecord:
    held = state if isinstance(state, Task) else task(state)
    return replace(record(**kind), phase=Phase.ACCEPTED, task=held, bound_at=START)


def again(
    kept: RequestRecord,
    *early: TaskEvent,
    question: Question | None = None,
    answer: Answer | None = None,
    uncallable: str = "",
    after_s: float = 0.0,
) -> Hand:
    """The hub starts again, ``after_s`` after the request was accepted."""
    hand = Hand(track=new_track(kept, Now(after_s, START + timedelta(seconds=after_s)))).at(after_s)
    return hand.tell(Recovered(question=question, answer=answer, early=early, uncallable=uncallable))


def answer_to(question: Question, decision: Decision = Decision.ANSWER) -> Answer:
    return Answer(question_id=question.question_id, text="main", decision=decision)


# ------------------------------------------------------------------ clocks


@pytest.mark.parametrize(
    ("phase", "later_s", "began", "deadline"),
    [
        (Phase.INTENT, 0.0, 50.0, 150.0),
        (Phase.INTENT, 40.0, 10.0, 110.0),
        (Phase.INTENT, 98.0, -48.0, 52.0),
        (Phase.INTENT, 500.0, -50.0, 50.0),
        (Phase.INTENT, -500.0, 50.0, 150.0),
        (Phase.SENDING, 40.0, 10.0, 110.0),
        (Phase.SENDING, 98.0, -48.0, 55.0),
        (Phase.ACCEPTED, 500.0, -50.0, 55.0),
    ],
)
def test_a_limit_continues_over_a_restart_with_five_seconds_for_calls_under_way(
    phase: Phase, later_s: float, began: float, deadline: float
) -> None:
    track = new_track(replace(record(limit_s=100), phase=phase), Now(50.0, START + timedelta(seconds=later_s)))
    assert (track.began, track.timers[Timer.DEADLINE], track.turn_from) == (began, deadline, None)


# ------------------------------------------------------------------ a restart


def test_a_recorded_unsent_request_is_sent_after_a_restart() -> None:
    assert again(record()).effects == (Send(stream=False),)


def test_a_working_task_is_polled_after_a_restart_and_its_agents_time_runs() -> None:
    hand = again(bound(W), after_s=20.0)
    assert hand.effects == ()
    assert (hand.track.turn_from, hand.track.ending.polls_owed, hand.next_look) == (20.0, 0, 4.0)


def test_a_bound_task_with_an_older_recorded_phase_is_not_searched() -> None:
    hand = again(replace(bound(W), phase=Phase.SENDING))
    assert hand.asked_for(LookUpTask) == []
    assert hand.next_look == 4.0


def test_an_ended_task_is_polled_after_a_restart_and_not_cancelled() -> None:
    hand = again(replace(bound(C), cancel_wanted=True))
    assert hand.effects == ()
    assert (hand.track.ending.polls_owed, hand.track.turn_from, hand.next_look) == (6, None, 4.0)


def test_a_requested_cancel_is_sent_again_after_a_restart() -> None:
    hand = again(replace(bound(W), cancel_wanted=True))
    assert hand.effects == (Cancel(),)
    assert hand.due(Timer.CANCEL) == 30.0


def test_an_open_question_is_open_after_a_restart_and_its_agents_time_stands_still() -> None:
    before = asking()
    question = before.question
    hand = again(before.track.record, question=question, after_s=3_000.0)
    assert hand.effects == ()
    assert hand.track.asking.question == question
    assert (hand.track.turn_from, hand.track.asking.left_s) == (None, 600.0)
    assert (hand.due(Timer.QUESTION), hand.due(Timer.REMINDER)) == (86_410.0, 43_210.0)
    assert hand.hear(WHICH, UpdateSource.POLL).asked_for(Ask) == [], "it is the same one"


@pytest.mark.parametrize(
    ("after_s", "left", "half"),
    [(43_209.0, 43_201.0, 1.0), (43_210.0, 43_200.0, None), (90_000.0, 0.0, None), (-90_000.0, 86_400.0, 43_200.0)],
)
def test_a_question_keeps_the_rest_of_its_time_over_a_restart(after_s: float, left: float, half: float | None) -> None:
    before = asking()
    now = Now(7.0, START + timedelta(seconds=after_s))
    track, _ = step(new_track(before.track.record, now), Recovered(question=before.question), now, Rules())
    assert track.asking.question is not None
    assert track.timers[Timer.QUESTION] == 7.0 + left
    assert track.timers.get(Timer.REMINDER) == (None if half is None else 7.0 + half)


def test_a_question_of_a_task_that_moved_before_the_restart_is_withdrawn_by_the_next_question() -> None:
    before = asking()
    hand = again(replace(before.track.record, task=task(W)), question=before.question, after_s=20.0)
    assert hand.track.asking.key == ""
    hand.hear(WHICH, UpdateSource.POLL)
    assert hand.asked_for(ResolveQuestion) == [
        ResolveQuestion(question_id=before.question.question_id, state="withdrawn")
    ]
    assert len(hand.asked_for(Ask)) == 1


# ------------------------------------------------------------------ an answer in doubt


def in_doubt(kept: RequestRecord | None = None) -> Hand:
    before = asking()
    question = before.question
    return again(kept or before.track.record, question=question, answer=answer_to(question), after_s=20.0)


def test_a_doubtful_answer_causes_a_poll_and_is_not_sent() -> None:
    hand = in_doubt()
    assert (hand.asked_for(Resume), hand.next_look, hand.track.asking.doubt) == ([], 0.0, True)
    assert hand.track.asking.question is None


@pytest.mark.parametrize("held", [task(W), task(I, said="sure?", said_id="q2")])
def test_an_answer_to_a_question_that_the_task_left_is_settled(held: Task) -> None:
    hand = in_doubt(bound(held))
    assert hand.asked_for(ResolveQuestion) == [
        ResolveQuestion(question_id=asking().question.question_id, state="delivered")
    ]
    assert (hand.track.asking.answer, hand.track.asking.doubt) == (None, False)


@pytest.mark.parametrize("via", [UpdateSource.PUSH, UpdateSource.STREAM])
def test_only_a_poll_settles_a_doubtful_answer(via: UpdateSource) -> None:
    hand = in_doubt().tell(Due()).at(21.0).hear(WHICH, via)
    assert (hand.asked_for(Resume), hand.track.asking.doubt) == ([], True)
    hand.hear(status(W), via)
    assert hand.track.asking.doubt


# ------------------------------------------------------------------ nobody can be asked any more


@pytest.mark.parametrize(
    ("kept", "kind", "reason"),
    [
        (record(), OutcomeKind.UNDELIVERABLE, f"it was never sent: {GONE}"),
        (replace(record(), phase=Phase.SENDING), OutcomeKind.UNKNOWN, f"it may have run: {GONE}"),
        (bound(W), OutcomeKind.LOST, GONE),
    ],
)
def test_a_request_whose_agent_cannot_be_called_ends_by_its_recorded_phase(
    kept: RequestRecord, kind: OutcomeKind, reason: str
) -> None:
    hand = again(kept, uncallable=GONE)
    (outcome,) = hand.outcomes
    assert (outcome.kind, outcome.cause, outcome.reason) == (kind, Cause.MISCONFIGURED, reason)
    assert hand.effects == (Close(outcome=outcome),)


def test_an_open_question_of_an_agent_that_cannot_be_called_is_withdrawn() -> None:
    before = asking()
    question = before.question
    hand = again(before.track.record, question=question, uncallable=GONE, after_s=20.0)
    assert hand.asked_for(ResolveQuestion) == [ResolveQuestion(question_id=question.question_id, state="withdrawn")]
    told = again(before.track.record, question=question, answer=answer_to(question), uncallable=GONE, after_s=20.0)
    assert told.asked_for(ResolveQuestion) == [], "it was answered"


# ------------------------------------------------------------------ the limit


def at_limit(hand: Hand, *, shortened: bool = False) -> Hand:
    """Its limit passes under our eyes."""
    hand.track = replace(hand.track, record=replace(hand.track.record, shortened=shortened))
    return hand.wait(hand.track.timers[Timer.DEADLINE] - hand.mono - 0.5).wait(0.5)


def test_a_question_in_an_early_webhook_is_asked_once_the_reply_is_overdue() -> None:
    hand = Hand.sent(push=True).hear(WHICH, UpdateSource.PUSH)
    hand.wait(14.9)
    assert not hand.asked_for(Ask)
    hand.wait(0.1)
    assert len(hand.asked_for(Ask)) == 1
    assert hand.track.sending.in_air, "the reply is still awaited"


def test_a_task_of_an_early_webhook_expires_at_the_limit() -> None:
    hand = Hand.sent(push=True).hear(status(W), UpdateSource.PUSH)
    (outcome,) = at_limit(hand).outcomes
    assert (outcome.kind, outcome.cause) == (OutcomeKind.EXPIRED, Cause.TASK_DEADLINE)
    assert hand.asked_for(Cancel) == [Cancel()]


# ------------------------------------------------------------------ reminders


def test_after_an_answer_a_request_has_its_remaining_time_and_at_least_a_minute() -> None:
    hand = asking()
    hand.at(3_590.0)
    early = hand.tell(Answered(answer=answer_to(hand.question)))
    assert (early.track.timers[Timer.DEADLINE], early.track.asking.question) == (3_590.0 + 3_590.0, None)
    late = Hand.sent().tell(Replied(reply=task(S), began=0.0)).at(3_590.0).hear(WHICH, UpdateSource.POLL)
    late.at(5_000.0).tell(Answered(answer=answer_to(late.question)))
    assert late.track.timers[Timer.DEADLINE] == 5_060.0
