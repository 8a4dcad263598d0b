"""Answers on their way to the agent, and cancelling."""

from __future__ import annotations

from fleetsim.caller.events import QuestionAnswered
from fleetsim.caller.outcome import cause_of
from fleetsim.caller.signals import Cancel, ResolveQuestion, Resume
from fleetsim.caller.step import hearing, questions
from fleetsim.caller.step.common import StepContext
from fleetsim.caller.track import TaskUpdate
from fleetsim.model.errors import (
    ConfigError,
    FleetsimError,
    HttpRefused,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
)
from fleetsim.model.event import Snapshot
from fleetsim.model.task import Message, Task
from fleetsim.model.work import Answer, Cause, Decision, OutcomeKind, UpdateSource


def answered(s: StepContext, answer: Answer) -> None:
    """The ledger gave this answer the question: send it, or cancel the task if it was rejected."""
    asked = s.track.asked
    if asked is None or asked.question.question_id != answer.question_id:
        return
    s.set(asked=None)
    questions.unpause(s)
    s.publish(QuestionAnswered(question_id=answer.question_id, decision=answer.decision.value, decided_by=answer.by))
    questions.over(s, asked.key)
    if answer.decision is Decision.REJECT:
        rejected(s, answer)
        return
    s.set(resume=answer, resume_attempt=0, poll_due=None)
    s.emit(Resume(answer=answer))


def rejected(s: StepContext, answer: Answer) -> None:
    """Somebody will not answer: nothing is said to the agent but that it should stop."""
    s.emit(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    s.record(rejected=True)
    s.agents_turn()
    cancel_asked(s, answer.by)


def resumed(s: StepContext, reply: Task | Message, began: float) -> None:
    """The agent took the answer; what it says now is news like any other."""
    answer = s.track.resume
    if answer is not None:
        s.emit(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    s.set(resume=None, resume_due=None, answered_at=s.now.mono, taken_at=s.now.mono, resubscribes=0)
    s.agents_turn()
    s.record(answers=s.track.record.answers + 1)
    if isinstance(reply, Message):
        s.poll_at(s.now.mono)
    else:
        hearing.heard(s, TaskUpdate(event=Snapshot(task=reply), via=UpdateSource.REPLY, began=began))
    if s.track.outcome is None and s.track.asked is None:
        s.poll_at(s.soon)
        if s.track.record.streaming and not (s.track.stream_open or s.track.joining):
            s.set(retry_due=s.now.mono, gap=True)


def resume_failed(s: StepContext, error: FleetsimError) -> None:
    """Keep trying with the same message id while nothing arrived (F-22); otherwise ask the agent what it thinks."""
    answer = s.track.resume
    if answer is None:
        return
    lost = isinstance(error, TransportError | HttpRefused) and error.sent
    if not lost and error.retryable and not s.ended:
        waits = (*s.rules.retry_waits_s, s.rules.poll_interval_s)
        wait = waits[min(s.track.resume_attempt, len(waits) - 1)] * max(s.now.jitter, 0.05)
        s.set(resume_attempt=s.track.resume_attempt + 1, resume_due=s.now.mono + wait)
        s.not_taken()
        attempt = s.track.resume_attempt + 1
        s.retried(str(error), attempt=attempt, wait_s=wait)
        return
    s.set(resume=None, resume_due=None, answered_at=s.now.mono, answer_lost=lost)
    s.agents_turn()
    s.record(answers=s.track.record.answers + 1)
    s.emit(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    if isinstance(error, ConfigError):
        s.close(OutcomeKind.LOST, Cause.MISCONFIGURED, f"the answer could not be sent: {error}")
        return
    if lost or s.ended or isinstance(error, UnsupportedOperation | TaskNotCancelable):
        s.retried(f"whether the answer arrived is not known: {error}")
        s.poll_at(s.now.mono)
        return
    if isinstance(error, TaskNotFound):
        s.close(OutcomeKind.LOST, Cause.TASK_GONE, f"the agent no longer knows the task: {error}")
        return
    code = f" ({error.wire_code})" if isinstance(error, RpcError) else ""
    s.give_up(OutcomeKind.FAILED, cause_of(error), f"the agent refused the answer{code}: {error}")


def resume_again(s: StepContext) -> None:
    """The pause before sending the answer again is over."""
    answer = s.track.resume
    s.set(resume_due=None)
    if answer is not None:
        s.emit(Resume(answer=answer))


def cancel_asked(s: StepContext, by: str) -> None:
    """Cancel what is bound, remember it for what is not, and end at once what was never sent (F-25)."""
    s.record(cancel_wanted=True)
    if s.track.task is not None:
        if not s.ended:
            hearing.cancel_once(s)
    elif s.track.retry_due is not None:
        s.close(OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, f"cancelled by {by} before it was sent")


def cancel_replied(s: StepContext) -> None:
    """The agent took the cancel but has not ended the task yet: look again soon."""
    if s.track.outcome is None:
        s.poll_at(s.soon)


def cancel_failed(s: StepContext, error: FleetsimError) -> None:
    """Whatever the agent says wins: read the true state (F-24). An unreachable agent is asked again once."""
    s.retried(f"cancel: {error}")
    s.poll_at(s.now.mono)


def cancel_lapsed(s: StepContext) -> None:
    """Nobody confirmed the cancel in time."""
    reason = "cancel was asked for and the agent did not confirm it in time"
    s.close(OutcomeKind.EXPIRED, Cause.CANCEL_UNCONFIRMED, reason)


def question_lapsed(s: StepContext) -> None:
    """Nobody answered: end with that reason, and cancel the remote task unless told to leave it (F-23)."""
    reason = "nobody answered the agent's question in time"
    if s.rules.question_expiry_cancels:
        s.emit(Cancel())
    else:
        reason += "; its task was left as it is"
    s.close(OutcomeKind.EXPIRED, Cause.UNANSWERED, reason)
