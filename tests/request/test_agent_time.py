"""The agent's share of a request's time: without the queue, the pauses and the person."""

from __future__ import annotations

from datetime import timedelta

from fleetsim.ledger.bodies import decoder, encode
from fleetsim.model.errors import Unreachable
from fleetsim.model.work import Answer, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import RequestRecord
from fleetsim.request.signals import Answered, Left, Recovered, Replied, Resumed, ResumeFailed, SendFailed
from fleetsim.request.track import Now
from tests.request.steps import START, WHICH, C, Hand, W, task


def at(hand: Hand, mono: float) -> Hand:
    """The same hand at a later moment, nothing having been due."""
    hand.mono = mono
    return hand


def took(hand: Hand) -> tuple[int, int | None]:
    """Seconds from dispatch to end, and those the agent had."""
    (outcome,) = hand.outcomes
    return round(outcome.duration_ms / 1000), None if outcome.agent_ms is None else round(outcome.agent_ms / 1000)


def asking() -> Hand:
    """Sent at once, taken at 1 s; at 10 s the agent asks."""
    hand = at(Hand.begun().tell(Left()), 1).tell(Replied(reply=task(W), began=0.0))
    return at(hand, 10).hear(WHICH, UpdateSource.POLL)


def answer(hand: Hand) -> Hand:
    return hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))


def test_time_in_the_queue_does_not_count_as_the_agents() -> None:
    hand = at(at(Hand.begun(), 100).tell(Left()), 101).tell(Replied(reply=task(C, "done"), began=0.0))
    assert took(hand) == (101, 1)


def test_pauses_before_an_accepted_send_do_not_count_as_the_agents() -> None:
    hand = at(Hand.begun().tell(Left()), 8).tell(SendFailed(error=Unreachable("down")))
    hand.wait(5)
    at(hand.tell(Left()), 15).tell(Replied(reply=task(C, "done"), began=0.0))
    assert took(hand) == (15, 2)


def test_an_hour_until_a_person_answers_does_not_count_as_the_agents() -> None:
    hand = at(answer(at(asking(), 3_610)), 3_620).tell(Left())
    at(hand, 3_621).tell(Resumed(reply=task(W), began=3_610.0))
    at(hand, 3_626).hear(task(C, "done"), UpdateSource.POLL)
    assert took(hand) == (3_626, 16)


def test_an_answer_that_does_not_get_through_keeps_the_agent_waiting() -> None:
    hand = answer(at(asking(), 100)).tell(Left())
    at(hand, 108).tell(ResumeFailed(error=Unreachable("down")))
    hand.wait(2)
    at(hand.tell(Left()), 111).tell(Resumed(reply=task(C, "done"), began=110.0))
    assert took(hand) == (111, 11)


def test_the_agents_time_continues_after_it_dropped_its_own_question() -> None:
    hand = at(asking(), 20).hear(task(W), UpdateSource.POLL)
    at(hand, 50).hear(task(C, "done"), UpdateSource.POLL)
    assert took(hand) == (50, 40)


def test_an_unanswered_question_leaves_only_the_time_before_it() -> None:
    hand = asking()
    while not hand.outcomes:
        hand.wait(600)
    assert took(hand)[1] == 10


def test_the_agents_time_survives_a_restart() -> None:
    """With a question, as recorded when it was asked; at work by the wall clock, at most the limit."""
    kept = decoder(RequestRecord)(encode(asking().track.record))
    again = Hand(track=new_track(kept, Now(5_000.0, START + timedelta(seconds=1_000))), mono=5_000.0)
    question = asking().track.asking.question
    assert question is not None
    again.tell(Recovered(question=question))
    answer(at(again, 5_100)).tell(Left())
    at(again, 5_101).tell(Resumed(reply=task(C, "done"), began=5_100.0))
    assert again.outcomes[0].agent_ms == 11_000

    working = at(Hand.begun().tell(Left()), 1).tell(Replied(reply=task(W), began=0.0)).track.record
    later = Hand(track=new_track(working, Now(5_000.0, START + timedelta(seconds=40))), mono=5_000.0)
    later.tell(Recovered())
    at(later, 5_010).hear(task(C, "done"), UpdateSource.POLL)
    assert later.outcomes[0].agent_ms == 50_000
