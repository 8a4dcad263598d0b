"""Questions: the events that open, replace, repeat or withdraw one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetsim.model.asking import key_of
from fleetsim.model.errors import ConnectionLost
from fleetsim.model.task import DataPart, Task, TaskStatus
from fleetsim.model.work import Answer, QuestionKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.signals import (
    Answered,
    Ask,
    CancelReplied,
    Recovered,
    Replied,
    ResolveQuestion,
    Resume,
    Resumed,
    ResumeFailed,
    Save,
)
from fleetsim.request.track import Now, Timer
from tests.request.steps import START, WHICH, Hand, I, S, W, asking, message, record, status, task

SURE = task(I, said="sure?", said_id="q2")


def asks(said: str = "", said_id: str = "", *, at: bool = False, page: int = 0) -> Task:
    parts = (DataPart(data={"page": page}),) if page else message(said).parts
    told = replace(message(said, said_id), parts=parts) if said or page else None
    return replace(task(I), status=TaskStatus(state=I, message=told, timestamp=START if at else None))


def answer(hand: Hand) -> Hand:
    return hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))


def test_a_question_has_its_agent_its_text_and_its_deadline() -> None:
    (ask,) = asking(push=True).asked_for(Ask)
    question = ask.question
    assert (question.kind, question.text, question.truncated) == (QuestionKind(I.value), "which?", False)
    assert (question.agent, question.skill, question.task_id, question.context_id) == ("a", "echo", "t-1", "ctx")
    assert (question.expires_at - question.asked_at).total_seconds() == 24 * 3_600
    assert (len(question.question_id), question.question_id[:2], question.checkpoint) == (26, "q-", 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (asks("which?", "q1"), asks("which one?", "q1"), False),
        (asks("which?", "q1"), asks("which?", "q2"), True),
        (asks("which?", "q1", page=1), asks("which?", "q1", page=2), False),
        (asks("which?", at=True), asks("sure?", at=True), False),
        (asks("which?", at=True), asks("which?"), True),
        (asks("which?"), replace(asks("which?"), task_id="t-2"), False),
        (asks("which?"), asks("which?"), True),
        (asks("which?"), asks("sure?"), False),
        (asks(), asks(), True),
    ],
)
def test_questions_differ_by_their_task_their_words_and_their_data_alone(one: Task, other: Task, same: bool) -> None:
    assert (key_of(one) == key_of(other)) is same


@pytest.mark.parametrize("via", [UpdateSource.PUSH, UpdateSource.STREAM])
def test_another_question_from_a_webhook_or_stream_is_polled_first(via: UpdateSource) -> None:
    hand = asking(push=True).hear(SURE, via)
    assert hand.asked_for(Ask) + hand.asked_for(ResolveQuestion) == []
    assert hand.next_look is not None
    assert hand.next_look <= 0.0


def test_a_repeated_question_changes_nothing() -> None:
    hand = asking(push=True).wait(0.0)
    hand.hear(WHICH, UpdateSource.POLL)
    assert (hand.effects, hand.next_look) == ((Save(),), 60.0)
    assert hand.hear(status(I, "which?", said_id="q1"), UpdateSource.PUSH).next_look == 60.0


def test_a_question_is_not_asked_again_while_its_answer_is_being_sent() -> None:
    hand = answer(asking(push=True)).at(20.0).hear(WHICH, UpdateSource.POLL)
    assert (hand.asked_for(Ask), hand.next_look) == ([], 1.0)


def test_a_status_that_stays_for_a_minute_after_its_answer_asks_again() -> None:
    still = asks("which?", "q1", at=True)
    hand = answer(asking(seen=still, push=True)).tell(Resumed(reply=task(W), began=10.0)).at(70.0)
    assert len(hand.hear(still, UpdateSource.POLL).asked_for(Ask)) == 1


def test_a_question_with_a_lost_answer_is_asked_again_at_the_first_poll() -> None:
    seen = asks("which?", "q1", at=True)
    hand = answer(asking(seen=seen, push=True)).wait(1).tell(ResumeFailed(error=ConnectionLost("cut", sent=True)))
    hand.wait(1).hear(seen, UpdateSource.POLL)
    assert len(hand.asked_for(Ask)) == 1
    answer(hand).tell(Resumed(reply=seen, began=hand.mono)).wait(1).hear(seen, UpdateSource.POLL)
    assert hand.asked_for(Ask) == [], "the second one arrived"


def test_a_question_that_never_had_words_is_asked_again_by_the_same_status() -> None:
    hand = answer(asking(seen=asks(at=True), push=True)).tell(Resumed(reply=task(W), began=10.0)).at(20.0)
    assert len(hand.hear(asks(at=True), UpdateSource.POLL).asked_for(Ask)) == 1


def test_a_question_that_the_agent_dropped_extends_the_deadline_by_its_time() -> None:
    hand = asking(push=True).at(100.0).hear(task(W), UpdateSource.POLL)
    assert (hand.track.timers[Timer.DEADLINE], hand.track.asking.question, hand.track.turn_from) == (
        3_690.0,
        None,
        100.0,
    )


def test_a_submitted_state_does_not_withdraw_a_question() -> None:
    assert asking(push=True).at(100.0).hear(task(S), UpdateSource.POLL).question


def test_a_question_at_the_end_of_a_callers_limit_leaves_no_time() -> None:
    kept = record(limit_s=20)
    kept = replace(kept, request=replace(kept.request, timeout_s=20.0))
    hand = Hand(track=new_track(kept, Now(0.0, START))).tell(Recovered()).tell(Replied(reply=task(S), began=0.0))
    assert hand.at(21.0).hear(WHICH, UpdateSource.POLL).track.asking.left_s == 0.0


def test_the_reply_to_a_cancel_does_not_settle_a_doubtful_answer() -> None:
    before = asking(push=True)
    question = before.question
    hand = Hand(track=new_track(before.track.record, Now(20.0, START))).at(20.0)
    hand.tell(Recovered(question=question, answer=Answer(question_id=question.question_id, text="main")))
    hand.tell(CancelReplied(task=WHICH, began=20.0))
    assert (hand.asked_for(Resume), hand.track.asking.doubt) == ([], True)
