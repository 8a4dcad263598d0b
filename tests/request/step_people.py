"""Actions of people on a request, as rules: answering, rejecting, cancelling; and how they reach the agent.

Here too: the random values that all rules draw.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fleetsim.model.errors import (
    FleetsimError,
    TaskNotCancelable,
    TimedOut,
    UnsupportedOperation,
)
from fleetsim.model.work import Answer, Decision
from fleetsim.request.signals import (
    Answered,
    Cancel,
    CancelAsked,
    CancelFailed,
    CancelReplied,
    Resume,
    Resumed,
    ResumeFailed,
)
from tests.request.step_hub import (
    GARBLED,
    MAY_HAVE_STARTED,
    UNCANCELLED,
    UNTAKEN,
    Hub,
)
from tests.request.steps import message

LOST_REPLIES = (*MAY_HAVE_STARTED, *MAY_HAVE_STARTED, *GARBLED)
ANSWERED = ("as it was", "as it is", "message", "message", "lost")
seconds = st.sampled_from([0.0, 0.01, *[1.0, 4.9, 5.0, 12.0, 31.0, 70.0] * 3, 700.0, 50_000.0])
lateness = st.sampled_from([*[0.5, 3.0, 100.0] * 5, 4000.0])
channels = st.sampled_from(["", "", "stream", "stream", "bare", "beside", "task", "poll"])
pushes = st.sampled_from(["", "inside", "inside", "after"])
seldom = st.sampled_from([False, False, False, True])
jitters = st.sampled_from([0.0, 0.3, 0.5, 0.99])
numbers = st.integers(0, 31)


def going(machine: Hub) -> bool:
    """Whether the request has begun and not ended."""
    return hasattr(machine, "track") and machine.track.outcome is None


def bound(machine: Hub) -> bool:
    return going(machine) and machine.truth is not None and machine.checker.life.bound


class People(Hub):
    """Rules about people, for the machine to inherit; the methods that it must have are declared here."""

    hear_of_it: Any
    hub_is_killed: Any

    def open_questions(self) -> list[str]:
        return [q for q, (_, was, _a) in self.ledger.questions.items() if was == "open"]

    @precondition(lambda self: hasattr(self, "ledger") and self.open_questions() and not self.ledger.slow)
    @rule(reject=seldom, killed=seldom, how=st.sampled_from(["", *ANSWERED]))
    def person_answers(self, reject: bool, killed: bool, how: str) -> None:
        question_id = self.open_questions()[-1]
        decision = Decision.REJECT if reject else Decision.ANSWER
        answer = Answer(question_id=question_id, text=f"to {question_id}", decision=decision)
        assert self.ledger.claim(answer)
        self.checker.given.add(question_id)
        if killed:
            self.hub_is_killed(1.0)
        else:
            self.tell(Answered(answer=answer))
        if how and self.in_air(Resume):
            self.answer_arrives()
        if how and self.in_air(Resume):
            self.answer_is_answered(how)

    @precondition(lambda self: bound(self) and not self.agent.ended and not self.ledger.slow)
    @rule(heard=channels, reject=seldom, killed=seldom, how=st.sampled_from(["", *ANSWERED]))
    def person_answers_at_once(self, heard: str, reject: bool, killed: bool, how: str) -> None:
        self.agent.move("work")
        self.agent.move("ask")
        self.hear_of_it(heard)
        if self.open_questions():
            self.person_answers(reject, killed, how)

    @precondition(lambda self: hasattr(self, "ledger") and self.ledger.questions)
    @rule(number=numbers)
    def person_answers_an_old_question(self, number: int) -> None:
        settled = [q for q, (_, was, _a) in self.ledger.questions.items() if was != "open"]
        if settled:
            question_id = settled[number % len(settled)]
            self.tell(Answered(answer=Answer(question_id=question_id, text=f"to {question_id}")))

    @precondition(lambda self: self.in_air(Resume) and not self.in_air(Resume)[0].reached)
    @rule()
    def answer_arrives(self) -> None:
        (call,) = self.in_air(Resume)
        call.seen, call.asked = self.truth, self.agent.asking
        assert isinstance(call.effect, Resume)
        call.reached = self.agent.take_answer(call.effect.answer.text)
        if not call.reached:
            self.land(call, ResumeFailed(error=TaskNotCancelable() if self.agent.ended else UnsupportedOperation()))

    @precondition(lambda self: self.in_air(Resume) and self.in_air(Resume)[0].reached)
    @rule(how=st.sampled_from(ANSWERED))
    def answer_is_answered(self, how: str) -> None:
        (call,) = self.in_air(Resume)
        if how == "lost":
            self.land(call, ResumeFailed(error=TimedOut("silent")))
            return
        assert isinstance(call.effect, Resume)
        if call.asked == self.checker.words.get(call.effect.answer.question_id):
            self.checker.took(call.asked)
        reply = {"as it was": call.seen, "as it is": self.truth, "message": message("thanks", "m-9")}[how]
        self.land(call, Resumed(reply=reply, began=call.began))

    @precondition(lambda self: self.in_air(Resume) and not self.in_air(Resume)[0].reached)
    @rule(error=st.sampled_from(UNTAKEN), jitter=jitters)
    def answer_fails(self, error: FleetsimError, jitter: float) -> None:
        self.jitter = jitter
        self.land(self.in_air(Resume)[0], ResumeFailed(error=error))

    @precondition(going)
    @rule(really=seldom)
    def person_cancels(self, really: bool) -> None:
        if really:
            self.tell(CancelAsked(by="somebody"))

    @precondition(lambda self: self.in_air(Cancel))
    @rule(obeys=st.booleans())
    def cancel_is_answered(self, obeys: bool) -> None:
        call = self.in_air(Cancel)[0]
        if self.agent.ended:
            self.land(call, CancelFailed(error=TaskNotCancelable()))
            return
        if obeys:
            self.agent.move("cancel")
        assert self.truth is not None
        self.land(call, CancelReplied(task=self.truth, began=call.began))

    @precondition(lambda self: self.in_air(Cancel))
    @rule(error=st.sampled_from(UNCANCELLED))
    def cancel_fails(self, error: FleetsimError) -> None:
        self.land(self.in_air(Cancel)[0], CancelFailed(error=error))
