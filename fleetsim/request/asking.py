"""Questions of an agent: opened once, withdrawn when it continues by itself, and the sending of answers."""

from __future__ import annotations

import hashlib
import math
from datetime import datetime, timedelta

from msgspec.structs import replace

from fleetsim.events.request import Excerpt, QuestionAnswered, QuestionAsked, QuestionOverdue, TaskElsewhere
from fleetsim.model.asking import answer_schema, asking_of, key_of, message_removed, unchanged
from fleetsim.model.errors import (
    ConfigError,
    HttpRefused,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.parts import parts_for_list
from fleetsim.model.task import INTERRUPTED, Task, TaskState, TaskStatus, id_changes
from fleetsim.model.work import Answer, Cause, Decision, OutcomeKind, Question, QuestionKind, UpdateSource
from fleetsim.request.ending import cancel, cause_of, close, give_up, settle_question
from fleetsim.request.records import QuestionState
from fleetsim.request.signals import (
    Answered,
    Ask,
    Cancel,
    Publish,
    QuestionRecorded,
    ResolveQuestion,
    Resume,
    ResumeFailed,
    StepContext,
)
from fleetsim.request.track import Asking, Pushing, TaskUpdate, Timer

OVER_MAX = 32
"""The number of closed questions that a task remembers."""


# ------------------------------------------------------------------ the agent asks


def waits_for_somebody(context: StepContext, update: TaskUpdate) -> None:
    """The agent waits for an answer: open the question once, whether a stream, poll or webhook brought it."""
    track, task = context.track, context.track.record.task
    assert task is not None
    key = key_of(task)
    if track.asking.question is not None and track.asking.key == key:
        _watch_slowly(context)
        return
    if track.asking.doubt:
        _resolve_doubt(context, update, key)
    if track.asking.answer is not None or (key in track.record.over and not _asked_again(context, update)):
        later = context.now.mono + min(_since_answer(context) / 2, context.rules.poll_interval_s)
        same = unchanged(task.status, track.record.over_at)
        context.poll_at(max(context.soon, later) if same else context.soon)
        return
    if message_removed(task.status, track.record.over_at):
        context.poll_at(context.now.mono + context.rules.poll_interval_s)
        return
    withdraw(context)
    _open(context, task, key)


def _asked_again(context: StepContext, update: TaskUpdate) -> bool:
    """After our answer the same question is new only if a later poll reports it.

    A status with an old time is not a new question. It counts after the answer has had some time to arrive, or at once
    if the answer may never have arrived. A task that is being canceled opens no question.
    """
    track, asking = context.track, context.track.asking
    assert track.record.task is not None
    if update.via is not UpdateSource.POLL or update.began <= asking.answered_at or track.ending.cancel_sent:
        return False
    patience_s = 0.0 if asking.answer_lost else context.rules.young_s
    return _since_answer(context) >= patience_s or not unchanged(track.record.task.status, track.record.over_at)


def _since_answer(context: StepContext) -> float:
    """Seconds since the answer, as far as this process knows."""
    return context.now.mono - context.track.asking.answered_at


def _id(agent: str, task: Task, asked_at: datetime) -> str:
    """A question's id: a digest of agent, task, question and the time of its first sight (T-40)."""
    source = "\0".join((agent, key_of(task), asked_at.isoformat()))
    return f"q-{hashlib.sha256(source.encode()).hexdigest()[:24]}"


def _open(context: StepContext, task: Task, key: str) -> None:
    track, record, now = context.track, context.track.record, context.now
    prompt = asking_of(task)
    ttl_s = context.rules.question_ttl_s
    question = Question(
        question_id=_id(record.agent, task, now.wall),
        correlation_id=record.request.correlation_id,
        agent=record.agent,
        skill=record.skill,
        task_id=task.task_id,
        context_id=task.context_id,
        kind=QuestionKind(task.state.value),
        text=prompt.text,
        asked_at=now.wall,
        expires_at=now.wall + timedelta(seconds=ttl_s),
        checkpoint=record.answers + 1,
        system_actor=record.request.system_actor,
        truncated=prompt.chars > len(prompt.text),
        text_chars=prompt.chars,
        parts=prompt.parts,
        parts_total=prompt.parts_total,
    )
    _pause(context, question, key)
    track.timers[Timer.QUESTION] = now.mono + ttl_s
    track.timers[Timer.REMINDER] = now.mono + ttl_s / 2
    context.agents_turn_over()
    _watch_slowly(context)
    context.effects.append(Ask(question=question))


def recorded(context: StepContext, signal: QuestionRecorded) -> None:
    """The ledger has the question: people see it from now on, because an answer would be accepted."""
    track, question = context.track, context.track.asking.question
    if question is None or question.question_id != signal.question_id:
        return
    track.asking = replace(track.asking, recorded=True)
    context.effects.append(Publish(event=asked(question)))


def asked(question: Question) -> QuestionAsked:
    """The event of a question, as of the moment when it was asked."""
    return QuestionAsked(
        at=question.asked_at,
        correlation_id=question.correlation_id,
        agent=question.agent,
        skill=question.skill,
        question_id=question.question_id,
        kind=question.kind.value,
        asks_for_data=answer_schema(question.parts) is not None,
        parts=parts_for_list(question.parts),
        question=Excerpt.of(question.text, question.text_chars),
        expires_at=question.expires_at,
        checkpoint=question.checkpoint,
        context_id=question.context_id or None,
        system_actor=question.system_actor,
    )


def _pause(context: StepContext, question: Question, key: str) -> None:
    """The request's time, not a caller's limit, stands still while a person thinks; at least a minute is left then."""
    track = context.track
    least_s = 0.0 if track.record.request.timeout_s is not None else 60.0
    left_s = max(track.timers.pop(Timer.DEADLINE, math.inf) - context.now.mono, least_s)
    track.asking = replace(track.asking, question=question, key=key, left_s=left_s)


def reopen(context: StepContext, question: Question) -> None:
    """Resume an open question after a restart. Its remaining time is at most the configured one."""
    track, now = context.track, context.now
    task = track.record.task
    left_s = min(max((question.expires_at - now.wall).total_seconds(), 0.0), context.rules.question_ttl_s)
    _pause(context, question, key_of(task) if task is not None and task.state in INTERRUPTED else "")
    track.asking = replace(track.asking, recorded=True)
    track.timers[Timer.QUESTION] = now.mono + left_s
    half_s = left_s - (question.expires_at - question.asked_at).total_seconds() / 2
    if half_s > 0:
        track.timers[Timer.REMINDER] = now.mono + half_s


def remind(context: StepContext) -> None:
    """Half of the question's time has passed without an answer (F-23)."""
    question = context.track.asking.question
    assert question is not None
    event = QuestionOverdue(
        question_id=question.question_id,
        question=Excerpt.of(question.text, question.text_chars),
        expires_at=question.expires_at,
    )
    context.effects.append(Publish(event=event))


def expire(context: StepContext) -> None:
    """The question expired: end with that reason, and cancel the remote task unless the settings leave it (F-23)."""
    reason = "nobody answered the agent's question in time"
    if context.rules.question_expiry_cancels:
        context.effects.append(Cancel())
    else:
        reason += "; its task was left as it is"
    close(context, OutcomeKind.EXPIRED, Cause.UNANSWERED, reason)


def _watch_slowly(context: StepContext) -> None:
    """Poll while a person thinks: the agent may go on by itself. Repeated updates do not postpone a poll."""
    context.poll_at(context.now.mono + context.jitter(2 * context.rules.poll_interval_s))


def at_work(context: StepContext) -> None:
    """The agent works: an uncertain answer has reached it, and an open question is over."""
    if context.track.asking.doubt:
        _arrived(context)
    withdraw(context)


def withdraw(context: StepContext) -> None:
    """The agent continued or ended without our answer: its question is over, as if it had been answered."""
    if context.track.asking.question is not None:
        settle_question(context, QuestionState.WITHDRAWN)
        context.agents_turn()
        _over(context)


def _over(context: StepContext) -> None:
    """The open question is over: the request's time runs again, and only a later poll can reopen it (decision 5)."""
    track, now = context.track, context.now
    key, left_s = track.asking.key, track.asking.left_s
    for timer in (Timer.QUESTION, Timer.REMINDER):
        track.timers.pop(timer, None)
    track.timers[Timer.DEADLINE] = now.mono + left_s
    track.asking = replace(track.asking, question=None, key="", recorded=False, left_s=0.0)
    _remember_over(context, key)


def _remember_over(context: StepContext, key: str) -> None:
    track = context.track
    status = track.record.task.status if track.record.task is not None else None
    worded = status is not None and status.message is not None
    track.asking = replace(track.asking, answered_at=context.now.mono, answer_lost=False)
    context.save(over_at=status.timestamp if status is not None and worded else None)
    _remember(context, key)


def _remember(context: StepContext, key: str) -> None:
    over = context.track.record.over
    if key not in over[-1:]:
        context.save(over=(*over, key)[-OVER_MAX:])


def look_first(context: StepContext, task: Task) -> None:
    """Poll a task that waits without an open question after a restart: it was answered, or never recorded."""
    track = context.track
    if message_removed(task.status, track.record.over_at):
        return  # it was answered, and the agent works
    key = key_of(task)
    track.asking = replace(track.asking, answered_at=context.now.mono)
    if key not in track.record.over[-1:]:
        context.save(over_at=None)
        _remember(context, key)


# ------------------------------------------------------------------ the answer


def answered(context: StepContext, signal: Answered) -> None:
    """The ledger accepted this answer: send it, or cancel the task if a person rejected the question."""
    track, answer = context.track, signal.answer
    question = track.asking.question
    if question is None or question.question_id != answer.question_id:
        return
    may_be_secret = question.kind is QuestionKind.AUTH
    shown = answer.text and answer.decision is Decision.ANSWER and not may_be_secret
    said = Excerpt.of(answer.text) if shown else None
    event = QuestionAnswered(
        question_id=answer.question_id, decision=answer.decision.value, decided_by=answer.by, answer=said
    )
    context.effects.append(Publish(event=event))
    if track.record.held:  # its limit reads the answer in the ledger
        track.asking = Asking()
        return
    _over(context)
    if answer.decision is Decision.REJECT:
        reject(context, answer)
        return
    track.asking = replace(track.asking, answer=answer, attempt=0)
    track.timers.pop(Timer.POLL, None)
    track.polling = replace(track.polling, next_at=None)
    context.effects.append(Resume(answer=answer))


def reject(context: StepContext, answer: Answer) -> None:
    """A person rejected the question: the agent receives a cancel and no text."""
    context.effects.append(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    context.save(rejected=True)
    context.agents_turn()
    cancel(context, answer.by)


def follow_task(context: StepContext, task: Task) -> None:
    """Follow the agent, with a warning, if it goes on in another task than that which asked (1.0 section 3.4.3)."""
    track, before = context.track, context.track.record.task
    if before is None or before.task_id == task.task_id or context.ended:
        return
    context_id = before.context_id or None
    warnings = id_changes(task.task_id, task.context_id, asked_task=before.task_id, asked_context=context_id)
    context.effects += (Publish(event=TaskElsewhere(why=why)) for why in warnings)
    blank = Task(task_id=task.task_id, context_id=task.context_id, status=TaskStatus(state=TaskState.SUBMITTED))
    context.save(task=blank, over_at=None, warnings=(*track.record.warnings, *warnings))
    track.applied_at, track.chunks, track.text_chars = float("-inf"), None, None
    track.pushing = Pushing()
    track.ending = replace(track.ending, whole=frozenset())


def resume_failed(context: StepContext, signal: ResumeFailed) -> None:
    """Repeat with the same message id while the answer cannot have arrived (F-22); otherwise poll the task."""
    track, error = context.track, signal.error
    answer = track.asking.answer
    if answer is None:
        return
    track.timers.pop(Timer.OVERDUE, None)
    # An unreadable reply is not a refusal: the agent may have continued with the answer.
    lost = isinstance(error, WireError) or (isinstance(error, TransportError | HttpRefused) and error.sent)
    if not lost and error.retryable and not context.ended:
        waits = (*context.rules.retry_waits_s, context.rules.poll_interval_s)
        attempt = track.asking.attempt
        wait_s = waits[min(attempt, len(waits) - 1)] * max(context.now.jitter, 0.05)
        track.asking = replace(track.asking, attempt=attempt + 1)
        track.timers[Timer.RESUME] = context.now.mono + wait_s
        context.not_taken()
        context.retried(str(error), attempt=attempt + 2, wait_s=wait_s)
        return
    track.asking = replace(track.asking, answer=None, answered_at=context.now.mono, answer_lost=lost)
    track.timers.pop(Timer.RESUME, None)
    context.agents_turn()
    context.save(answers=track.record.answers + 1)
    context.effects.append(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    if isinstance(error, ConfigError):
        close(context, OutcomeKind.LOST, Cause.MISCONFIGURED, f"the answer could not be sent: {error}")
    elif lost or context.ended or isinstance(error, UnsupportedOperation | TaskNotCancelable):
        context.retried(f"whether the answer arrived is not known: {error}")
        context.poll_at(context.now.mono)
    elif isinstance(error, TaskNotFound):
        close(context, OutcomeKind.LOST, Cause.TASK_GONE, f"the agent no longer knows the task: {error}")
    else:
        code = f" ({error.wire_code})" if isinstance(error, RpcError) else ""
        give_up(context, OutcomeKind.FAILED, cause_of(error), f"the agent refused the answer{code}: {error}")


def resume_again(context: StepContext) -> None:
    """Send the answer again after its pause."""
    if context.track.asking.answer is not None:
        context.effects.append(Resume(answer=context.track.asking.answer))


def recover_answer(context: StepContext, question: Question, answer: Answer) -> None:
    """After a restart the answer may have arrived. Send it only if the agent still waits."""
    track, task = context.track, context.track.record.task
    if (
        task is None
        or task.state not in INTERRUPTED
        or _id(track.record.agent, task, question.asked_at) != question.question_id
    ):
        context.effects.append(ResolveQuestion(question_id=question.question_id, state="delivered"))
        return
    track.asking = replace(track.asking, answer=answer, doubt=True)
    _remember_over(context, key_of(task))
    context.poll_at(context.now.mono)


def _resolve_doubt(context: StepContext, update: TaskUpdate, key: str) -> None:
    """Decide by a poll that began after the restart: the same question waits, or another one."""
    track = context.track
    answer = track.asking.answer
    if answer is None or update.via is not UpdateSource.POLL:
        return
    track.asking = replace(track.asking, doubt=False)
    if key == track.record.over[-1]:
        context.effects.append(Resume(answer=answer))
    else:
        _arrived(context)


def _arrived(context: StepContext) -> None:
    """The agent continued after a question: our answer has reached it."""
    track, answer = context.track, context.track.asking.answer
    if answer is not None:
        track.asking = replace(track.asking, answer=None, doubt=False)
        context.agents_turn()
        context.save(answers=track.record.answers + 1)
        context.effects.append(ResolveQuestion(question_id=answer.question_id, state="delivered"))
