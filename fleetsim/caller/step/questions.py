"""Questions an agent asks: told apart, opened once, and withdrawn when the agent goes on by itself."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta

from fleetsim.caller.events import Excerpt, QuestionOverdue
from fleetsim.caller.signals import Ask, ResolveQuestion, Resume
from fleetsim.caller.step.common import StepContext
from fleetsim.caller.track import OpenQuestion, TaskUpdate
from fleetsim.model.asking import asking_of, key_of, left_without_words, unmoved
from fleetsim.model.event import Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import INTERRUPTED, Task, TaskState, TaskStatus
from fleetsim.model.work import Answer, Question, QuestionKind, UpdateSource

OVER_MAX = 32
"""Of how many questions of one task it is remembered that they are over."""


def _status(event: TaskEvent) -> TaskStatus | None:
    match event:
        case Snapshot(task=task):
            return task.status
        case StatusUpdate(status=status):
            return status
        case _:
            return None


def doubtful(s: StepContext, signal: TaskUpdate) -> bool:
    """Whether news about a question must be checked by a poll before it is believed.

    Webhooks may be late, doubled or out of order, and a stream may lag behind both: neither can reopen a
    question that was answered, replace the one that is open, or say that the agent has moved on from it.
    Only a poll asked for afterwards can.
    """
    status = _status(signal.event)
    if signal.via not in {UpdateSource.PUSH, UpdateSource.STREAM} or status is None or s.track.task is None:
        return False
    if status.state in INTERRUPTED:
        key = key_of(fold(s.track.task, signal.event))
        if s.track.asked is not None:
            return key != s.track.asked.key
        return key in s.track.record.over or s.track.resume is not None
    return status.state is TaskState.WORKING and (s.track.asked is not None or s.track.resume_doubt)


def wanted(s: StepContext, signal: TaskUpdate) -> None:
    """The agent waits for somebody: open the question once, whichever way it was seen."""
    task = s.track.task
    assert task is not None
    key = key_of(task)
    asked = s.track.asked
    if asked is not None and asked.key == key:
        _watch_slowly(s)
        return
    if s.track.resume_doubt:
        _resolve_doubt(s, signal, key)
    if s.track.resume is not None or (key in s.track.record.over and not _asked_again(s, signal)):
        later = s.now.mono + min(_since_answer(s) / 2, s.rules.poll_interval_s)
        s.poll_at(max(s.soon, later) if unmoved(task.status, s.track.record.over_at) else s.soon)
        return
    if left_without_words(task.status, s.track.record.over_at):
        s.poll_at(s.now.mono + s.rules.poll_interval_s)
        return
    withdraw(s)
    _open(s, task, key)


def take_up_answer(s: StepContext, question: Question, answer: Answer) -> None:
    """After a restart: the answer may have arrived. It is sent only if the agent says that it still waits."""
    task = s.track.task
    if (
        task is None
        or task.state not in INTERRUPTED
        or _id(s.track.record.agent, task, question.asked_at) != (question.question_id)
    ):
        s.emit(ResolveQuestion(question_id=question.question_id, state="delivered"))
        return
    s.set(resume=answer, resume_doubt=True)
    over(s, key_of(task))
    s.poll_at(s.now.mono)


def _resolve_doubt(s: StepContext, signal: TaskUpdate, key: str) -> None:
    """What a poll asked for since the restart says is true: the same question waits, or another one does."""
    answer = s.track.resume
    if answer is None or signal.via is not UpdateSource.POLL:
        return
    s.set(resume_doubt=False)
    if key == s.track.record.over[-1]:
        s.emit(Resume(answer=answer))
    else:
        _arrived(s)


def _arrived(s: StepContext) -> None:
    """The agent went on from a question: our answer had reached it."""
    answer = s.track.resume
    if answer is not None:
        s.set(resume=None, resume_doubt=False)
        s.agents_turn()
        s.record(answers=s.track.record.answers + 1)
        s.emit(ResolveQuestion(question_id=answer.question_id, state="delivered"))


def _asked_again(s: StepContext, signal: TaskUpdate) -> bool:
    """After our answer the same question is new only if a poll asked for afterwards reports it.

    While the agent has not set its status anew it has not asked anew: that is believed once the answer is no longer
    young, and at once of an answer that may never have arrived. While the task is being cancelled nothing is asked:
    somebody has had enough of it.
    """
    task = s.track.task
    assert task is not None
    if signal.via is not UpdateSource.POLL or signal.began <= s.track.answered_at or s.track.cancel_sent:
        return False
    patience_s = 0.0 if s.track.answer_lost else s.rules.young_s
    return _since_answer(s) >= patience_s or not unmoved(task.status, s.track.record.over_at)


def _since_answer(s: StepContext) -> float:
    """Seconds since the answer, as far as this process knows."""
    return s.now.mono - s.track.answered_at


def _id(agent: str, task: Task, asked_at: datetime) -> str:
    """A question's id: a digest of who asks what about which task, and when we saw it first (T-40)."""
    said = task.status.message.text if task.status.message else ""
    told = "\0".join((agent, task.task_id, key_of(task), asked_at.isoformat(), said))
    return f"q-{hashlib.sha256(told.encode()).hexdigest()[:24]}"


def _open(s: StepContext, task: Task, key: str) -> None:
    record = s.track.record
    checkpoint = record.answers + 1
    asking = asking_of(task)
    ttl = s.rules.question_ttl_s
    question = Question(
        question_id=_id(record.agent, task, s.now.wall),
        correlation_id=s.track.correlation_id,
        agent=record.agent,
        skill=record.skill,
        task_id=task.task_id,
        context_id=task.context_id,
        kind=QuestionKind(task.state.value),
        text=asking.text,
        asked_at=s.now.wall,
        expires_at=s.now.wall + timedelta(seconds=ttl),
        checkpoint=checkpoint,
        system_actor=record.request.system_actor,
        truncated=asking.chars > len(asking.text),
        text_chars=asking.chars,
        parts=asking.parts,
        parts_total=asking.parts_total,
    )
    left = s.track.paused_left if s.track.paused_left is not None else _left(s)
    s.set(
        asked=OpenQuestion(question=question, key=key, due=s.now.mono + ttl, remind=s.now.mono + ttl / 2),
        paused_left=left,
    )
    s.agents_turn_over()
    _watch_slowly(s)
    s.emit(Ask(question=question))


def _left(s: StepContext) -> float:
    """What is left of the request's time: it stands still meanwhile, and after that there is a minute at least.

    A limit that the caller set is not made longer.
    """
    return max(s.track.deadline - s.now.mono, 0.0 if s.track.record.request.timeout_s is not None else 60.0)


def reopen(s: StepContext, question: Question) -> None:
    """Take an open question up again after a restart; its remaining life is clamped to the rule's."""
    task = s.track.task
    left = min(max((question.expires_at - s.now.wall).total_seconds(), 0.0), s.rules.question_ttl_s)
    key = key_of(task) if task is not None and task.state in INTERRUPTED else ""
    half = left - (question.expires_at - question.asked_at).total_seconds() / 2
    s.set(
        asked=OpenQuestion(
            question=question, key=key, due=s.now.mono + left, remind=s.now.mono + half if half > 0 else None
        ),
        paused_left=_left(s),
    )


def remind(s: StepContext) -> None:
    """Half the question's life is over and nobody answered (F-23)."""
    asked = s.track.asked
    if asked is None:
        return
    s.set(asked=replace(asked, remind=None))
    s.publish(
        QuestionOverdue(
            question_id=asked.question.question_id,
            question=Excerpt.of(asked.question.text, asked.question.text_chars),
            expires_at=asked.question.expires_at,
        )
    )


def _watch_slowly(s: StepContext) -> None:
    """While a person thinks, look now and then: the agent may give up or go on by itself.

    A look that is due sooner stays: news of a question, however often it comes, never postpones it.
    """
    s.poll_at(s.now.mono + s.jitter(2 * s.rules.poll_interval_s))


def moved(s: StepContext, signal: TaskUpdate) -> None:
    """The agent works: an open question is over."""
    task = s.track.task
    assert task is not None
    if task.state is not TaskState.WORKING:
        return
    if s.track.resume_doubt:
        _arrived(s)
    withdraw(s)


def withdraw(s: StepContext) -> None:
    """The agent went on, or ended, without our answer: its question is over like one that was answered."""
    asked = s.track.asked
    if asked is not None:
        s.emit(ResolveQuestion(question_id=asked.question.question_id, state="withdrawn"))
        unpause(s)
        s.set(asked=None)
        s.agents_turn()
        over(s, asked.key)


def over(s: StepContext, key: str) -> None:
    """From now on only a later poll is believed about this question (decision 5)."""
    status = s.track.task.status if s.track.task is not None else None
    worded = status is not None and status.message is not None
    s.set(answered_at=s.now.mono, answer_lost=False)
    s.record(over_at=status.timestamp if status is not None and worded else None)
    _remember(s, key)


def look_first(s: StepContext, task: Task) -> None:
    """After a restart, about a task that waits with no question open: it was answered, or never put on record.

    A poll tells which.
    """
    if left_without_words(task.status, s.track.record.over_at):
        return  # answered; the agent is at work
    key = key_of(task)
    s.set(answered_at=s.now.mono)
    if key not in s.track.record.over[-1:]:
        s.record(over_at=None)
        _remember(s, key)


def _remember(s: StepContext, key: str) -> None:
    if key not in s.track.record.over[-1:]:
        s.record(over=(*s.track.record.over, key)[-OVER_MAX:])


def unpause(s: StepContext) -> None:
    """The deadline runs again; it stood still while the agent waited for somebody."""
    left = s.track.paused_left
    if left is not None:
        s.set(deadline=s.now.mono + left, paused_left=None)
