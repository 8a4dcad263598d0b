"""What an agent says about a task, whichever way it came: one fold, one rule of staleness, one ending."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleetsim.caller.events import (
    CredentialRefused,
    Excerpt,
    PollingStopped,
    StreamReceived,
    TaskBound,
    TaskElsewhere,
    TaskMoved,
    UpdateIgnored,
    WebhookRegistered,
    WebhooksDegraded,
)
from fleetsim.caller.follow_up import just_taken, shows_the_past
from fleetsim.caller.ledger import Phase
from fleetsim.caller.signals import Cancel, Poll, RegisterPush, Subscribe
from fleetsim.caller.step import questions
from fleetsim.caller.step.common import StepContext
from fleetsim.caller.track import Stopped, TaskUpdate
from fleetsim.model.errors import (
    AuthRefused,
    FleetsimError,
    HttpRefused,
    InternalError,
    LimitReached,
    MethodNotFound,
    RpcError,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, bounded, fold
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Message,
    Task,
    TaskState,
    TaskStatus,
    answer_chars,
    answer_text,
    elsewhere,
)
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, OutcomeKind, UpdateSource
from fleetsim.wire.choice import disagreement

TROUBLE_MAX = 500


def state_of(event: TaskEvent) -> str | None:
    """The state an event names, if it names one."""
    match event:
        case Snapshot(task=task):
            return task.state.value
        case StatusUpdate(status=status):
            return status.state.value
        case DirectReply():
            return TaskState.COMPLETED.value
        case ArtifactUpdate():
            return None


def heard(s: StepContext, signal: TaskUpdate) -> None:
    """Take one piece of news, or record why not."""
    if signal.via is UpdateSource.POLL:
        s.set(poll_began=None, polls=s.track.polls + 1, failed_polls=0, refusals=(), trouble="", misses=0)
    if signal.via is UpdateSource.STREAM:
        s.set(in_air=False, stream_open=True, joining=False)
    if signal.via is UpdateSource.PUSH:
        s.set(pushes=s.track.pushes + 1)
    if _must_wait(s, signal):
        return
    if signal.via is UpdateSource.PUSH and isinstance(signal.event, DirectReply):
        signal = replace(signal, event=_remark(signal.event.message))
        if s.track.task is not None and not s.ended:
            s.poll_at(s.now.mono)
    if s.track.task is None and signal.via is not UpdateSource.POLL and shows_the_past(s.track.record, signal.event):
        signal = replace(signal, event=just_taken(signal.event))
        s.poll_at(s.soon)
    why = _stale(s, signal)
    if why is not None:
        s.publish(UpdateIgnored(state=state_of(signal.event), via=signal.via.value, why=why))
        _after_stale(s, signal)
        return
    _fold(s, signal)


def _must_wait(s: StepContext, signal: TaskUpdate) -> bool:
    """A webhook that overtakes the reply is kept until the reply has bound the task (F-15)."""
    if signal.via is not UpdateSource.PUSH or not s.track.awaits_reply:
        return False
    s.set(early_updates=(*s.track.early_updates, signal))
    return True


def _remark(message: Message) -> StatusUpdate:
    """A message in a webhook: something the agent says about its task at work, never the end of it."""
    status = TaskStatus(state=TaskState.WORKING, message=message)
    return StatusUpdate(task_id=message.task_id or "", context_id=message.context_id or "", status=status)


def _task_id(event: TaskEvent) -> str:
    match event:
        case Snapshot(task=task):
            return task.task_id
        case DirectReply(message=message):
            return message.task_id or ""
        case StatusUpdate(task_id=task_id) | ArtifactUpdate(task_id=task_id):
            return task_id


def _stale(s: StepContext, signal: TaskUpdate) -> str | None:
    """Why a signal must not be applied, or None. Agents' own time stamps are hints and are not read."""
    task, event = s.track.task, signal.event
    if task is None:
        return "a webhook without a task id" if signal.via is UpdateSource.PUSH and not _task_id(event) else None
    if _task_id(event) not in {"", task.task_id}:
        return "it names another task"
    if signal.via is not UpdateSource.POLL and shows_the_past(s.track.record, event):
        return "it shows the task as it was before this message"
    state = state_of(event)
    if task.terminal:
        ends = state in {t.value for t in TERMINAL}
        return None if ends and signal.via is not UpdateSource.STREAM else "the task has ended"
    if state in {t.value for t in TERMINAL}:
        return None
    if signal.via in {UpdateSource.POLL, UpdateSource.REPLY} and signal.began < s.track.applied_at:
        return "it was asked for before the last news arrived"
    if state == TaskState.SUBMITTED and task.state is not TaskState.SUBMITTED:
        return "the task has moved on since"
    if isinstance(event, ArtifactUpdate) and event.append and (s.track.gap or signal.via is UpdateSource.PUSH):
        return "a chunk whose predecessors may be missing"
    return None


def _after_stale(s: StepContext, signal: TaskUpdate) -> None:
    """A stale poll is owed again soon; a chunk that could not be placed leaves the artifact incomplete."""
    if signal.via is UpdateSource.POLL and not (s.track.task and s.track.task.terminal):
        s.poll_at(s.soon)
    elif signal.via is UpdateSource.POLL:
        _pay_owed(s, "its record of the task lags behind")
    elif s.track.task is not None and shows_the_past(s.track.record, signal.event):
        s.poll_at(s.soon)
    if isinstance(signal.event, ArtifactUpdate):
        s.set(whole=s.track.whole - {signal.event.artifact.artifact_id})


def _fold(s: StepContext, signal: TaskUpdate) -> None:
    before = s.track.task
    if questions.doubtful(s, signal):
        s.poll_at(s.now.mono)
        return
    task = bounded(fold(before, signal.event), s.rules.text_chars_max)
    request = s.track.record.request
    if not task.context_id:
        made_by_agent = request.task_id is not None or request.first_turn
        task = replace(task, context_id=request.context_id or ("" if made_by_agent else s.track.correlation_id))
    first = before is None
    s.set(applied_at=s.now.mono, via=signal.via, record=replace(s.track.record, task=task))
    _note_parts(s, signal)
    if first:
        _bind(s, signal)
    _publish(s, signal, before, task)
    if first or before is None or before.state is not task.state or task.state in INTERRUPTED:
        s.record(task=task)
    if task.terminal:
        _end(s, signal)
    elif task.state in INTERRUPTED:
        questions.wanted(s, signal)
    else:
        questions.moved(s, signal)
        _keep_watch(s, signal)
    if first:
        unpark(s)


def unpark(s: StepContext) -> None:
    """Webhooks that came before the reply speak now: their token already proved which request they mean."""
    early_updates = s.track.early_updates
    s.set(early_updates=())
    for early in early_updates:
        if s.track.outcome is None:
            heard(s, early)


def recall(s: StepContext, early: Iterable[TaskEvent]) -> None:
    """Webhooks kept from before a restart. Of a task that was bound since, the record has all but how whole it is:
    there, only what told its end is heard again.
    """
    told = [TaskUpdate(event=event, via=UpdateSource.PUSH, began=s.now.mono) for event in early]
    if s.track.task is None:
        s.set(early_updates=tuple(told))
        unpark(s)
        return
    for signal in told:
        if s.ended:
            _note_parts(s, signal)
    for signal in told:
        if state_of(signal.event) in {state.value for state in TERMINAL} and s.track.outcome is None:
            heard(s, signal)


def _note_parts(s: StepContext, signal: TaskUpdate) -> None:
    """Keep account of which artifacts are known whole; a snapshot of a running task shows none of them whole."""
    whole = s.track.whole
    match signal.event:
        case Snapshot():
            whole = frozenset()
            s.set(gap=False)
        case ArtifactUpdate(artifact=artifact, append=append, last_chunk=last):
            closed = last and not append
            whole = whole | {artifact.artifact_id} if closed else whole - {artifact.artifact_id}
        case StatusUpdate(status=status, artifacts=artifacts, lone=lone):
            beside = {a.artifact_id for a in artifacts}  # of a running task: what there was of them so far
            # Of several artifacts 0.1 sends a webhook each, and the state the task has by then with each.
            whole = whole | beside if status.state in TERMINAL and not lone else whole - beside
        case DirectReply():
            pass
    if whole != s.track.whole:
        s.set(whole=whole)


def _bind(s: StepContext, signal: TaskUpdate) -> None:
    """The first news fixes which task this is (T-07), and how it will be watched."""
    s.set(reconcile_due=None, find_due=None, retry_due=None, silent=False, taken_at=s.now.mono)
    s.agents_turn()
    task, record = s.track.task, s.track.record
    assert task is not None
    request = record.request
    warnings = elsewhere(task.task_id, task.context_id, asked_task=request.task_id, asked_context=request.context_id)
    told = (disagreement(record.dialect),) if record.turned and record.dialect is not None else ()
    s.record(phase=Phase.ACCEPTED, bound_at=s.now.wall, warnings=(*told, *warnings))
    s.publish(
        TaskBound(
            state=task.state.value,
            context_id=task.context_id,
            dialect=s.track.record.dialect,
            via=signal.via.value,
        )
    )
    for why in warnings:
        s.publish(TaskElsewhere(why=why))
    if task.terminal:
        return
    if s.track.record.push and s.track.record.register_push:
        s.set(registered=True)
        s.emit(RegisterPush())
    if s.track.look_due:
        s.poll_at(s.now.mono)
    if s.track.stream_open:  # it tells by itself: looks for safety's sake alone are spread over the interval
        s.poll_at(s.now.mono + max(s.now.jitter * s.rules.poll_interval_s, min(0.5, s.rules.poll_interval_s)))
    else:
        s.poll_at(s.now.mono + _pause(s))
    if s.track.record.cancel_wanted:
        cancel_once(s)


def _pause(s: StepContext) -> float:
    """How long to the next look: as long as the task has been at work, at least a second, at most the interval.

    So a quick task is seen to end in about a second, and a long one, or one from before a restart, costs no more
    polls than its interval allows.
    """
    age = s.now.mono - s.track.taken_at
    return s.jitter(min(max(age, s.rules.look_first_s), s.rules.poll_interval_s))


def cancel_once(s: StepContext) -> None:
    """Ask the agent to stop what is bound; it has a while to confirm."""
    if not s.track.cancel_sent:
        s.set(cancel_sent=True, cancel_due=s.now.mono + s.rules.cancel_patience_s)
        s.emit(Cancel())


def _publish(s: StepContext, signal: TaskUpdate, before: Task | None, task: Task) -> None:
    event = signal.event
    if signal.via is UpdateSource.STREAM or (signal.via is UpdateSource.PUSH and isinstance(event, ArtifactUpdate)):
        _publish_stream(s, event)
    if (
        before is None
        or before.state is not task.state
        or (signal.via is not UpdateSource.STREAM and before.text != task.text)
    ):
        s.publish(
            TaskMoved(
                state=task.state.value,
                previous=before.state.value if before else None,
                via=signal.via.value,
                text=Excerpt.of(answer_text(task), answer_chars(task)),
            )
        )


def _publish_stream(s: StepContext, event: TaskEvent) -> None:
    match event:
        case ArtifactUpdate(artifact=artifact, append=append):
            s.publish(
                StreamReceived(
                    type="artifact",
                    text=Excerpt.of(artifact.text),
                    append=append,
                    artifact_id=artifact.artifact_id,
                )
            )
        case StatusUpdate(status=status):
            said = Excerpt.of(status.message.text if status.message else "")
            s.publish(StreamReceived(type="status", state=status.state.value, text=said))
        case Snapshot(task=task):
            s.publish(StreamReceived(type="task", state=task.state.value, text=Excerpt.of(task.text)))
        case DirectReply(message=message):
            s.publish(StreamReceived(type="message", text=Excerpt.of(message.text)))


def _end(s: StepContext, signal: TaskUpdate) -> None:
    """The task is terminal. Close if all of it is known, else owe a poll first."""
    if _complete(s, signal):
        s.close()
        return
    if s.track.stopped is not None:
        s.close(reason=s.track.stopped.reason)
        return
    if s.track.confirming_polls_left == 0:
        questions.withdraw(s)
        s.agents_turn_over()
        s.set(confirming_polls_left=s.rules.owed_polls_max, cancel_due=None, resume_due=None)
        s.poll_at(s.now.mono)


def _complete(s: StepContext, signal: TaskUpdate) -> bool:
    task = s.track.task
    assert task is not None
    match signal.event:
        case DirectReply():
            return True
        case Snapshot(task=seen):
            return signal.via in {UpdateSource.POLL, UpdateSource.REPLY} or bool(seen.artifacts)
        case _:
            return bool(task.artifacts) and all(a.artifact_id in s.track.whole for a in task.artifacts)


def _pay_owed(s: StepContext, why: str) -> None:
    """A poll that was owed brought nothing better; after the last, close with what is known."""
    confirming_polls_left = s.track.confirming_polls_left - 1
    s.set(confirming_polls_left=confirming_polls_left)
    if confirming_polls_left <= 0:
        s.close(reason=why)
    else:
        s.poll_at(
            s.now.mono + min(3.0 ** (s.rules.owed_polls_max - confirming_polls_left - 1), s.rules.poll_interval_s)
        )


def _keep_watch(s: StepContext, signal: TaskUpdate) -> None:
    """See to it that the task is looked at again, at most two intervals away, whatever else arrives."""
    if signal.via is UpdateSource.POLL or s.track.poll_due is None:
        quiet = s.track.stream_open or s.track.pushes > 0
        s.poll_at(s.now.mono + (s.jitter(2 * s.rules.poll_interval_s) if quiet else _pause(s)))
    if signal.via is UpdateSource.POLL and s.now.mono - s.track.taken_at >= s.rules.poll_interval_s / 2:
        _register_once(s)


def _register_once(s: StepContext) -> None:
    """No webhook has come so far: perhaps the one inside the send was overlooked (decision 6)."""
    if s.track.record.push and not s.track.pushes and not s.track.registered:
        s.set(registered=True)
        s.emit(RegisterPush())


def poll_now(s: StepContext) -> None:
    """The poll fell due."""
    s.set(poll_due=None, poll_began=s.now.mono, looked_at=s.now.mono)
    s.emit(Poll())


def push_registered(s: StepContext, error: FleetsimError | None) -> None:
    """The task may have moved between the reply and the registration: look once (DESIGN section 3)."""
    if error is None:
        s.publish(WebhookRegistered())
        s.poll_at(s.now.mono)
    else:
        s.record(push=False)
        s.publish(WebhooksDegraded(why=str(error), refused=True))


def turned_away(s: StepContext) -> None:
    """A webhook was not taken, and may not come again: what it would have told is looked at soon.

    Some seconds after the last look, so that an agent's flood of webhooks makes no flood of polls.
    """
    when = max(s.soon, s.track.looked_at + s.rules.lost_confirm_s)
    if s.track.task is not None:
        s.poll_at(when)
    elif s.track.reconcile_due is not None:
        s.set(find_due=when if s.track.find_due is None else min(s.track.find_due, when))
    else:
        s.set(look_due=True)


def rejoin(s: StepContext) -> None:
    """The pause before rejoining a stream is over."""
    s.set(retry_due=None, joining=True)
    s.emit(Subscribe())


def poll_failed(s: StepContext, error: FleetsimError) -> None:
    """A poll brought nothing. What will not change ends the polling, if not the task; the rest is tried again."""
    s.set(poll_began=None, polls=s.track.polls + 1, trouble=one_line(str(error), TROUBLE_MAX))
    gone = isinstance(error, TaskNotFound | AuthRefused) or (
        isinstance(error, HttpRefused) and error.status in {404, 405, 410}
    )
    if s.ended and (gone or not (_may_pass(error) or isinstance(error, WireError))):
        s.close(reason=str(error))
    elif s.ended:
        _pay_owed(s, str(error))
    elif gone:
        _gone(s, error)
    elif _may_pass(error):
        longest = 2 * s.rules.poll_interval_s
        wait = longest if s.track.failed_polls else s.rules.poll_interval_s
        if isinstance(error, HttpRefused) and error.retry_after_s is not None:
            wait = max(wait, min(error.retry_after_s, s.rules.retry_after_max_s))
        s.set(failed_polls=s.track.failed_polls + 1)
        s.poll_at(s.now.mono + s.jitter(min(wait, longest)))
    else:
        _refused(s, error)


def _may_pass(error: FleetsimError) -> bool:
    """Whether asking again may bring the task: the way was blocked, or the agent speaks of trouble of its own.

    A code that the specification does not know may mean anything, an overload too.
    """
    if isinstance(error, HttpRefused):
        return error.retryable or error.status >= 500
    return error.retryable or isinstance(error, TransportError | InternalError) or type(error) is RpcError


def _refused(s: StepContext, error: FleetsimError) -> None:
    """An answer that polling cannot mend: after a few that are alike, nobody polls any more."""
    kind = f"{type(error).__name__} {getattr(error, 'status', '')}"
    s.set(refusals=(*s.track.refusals, kind))
    if s.track.refusals.count(kind) < s.rules.refused_polls_max:
        # Bytes that are no protocol may be another's, in between and passing: they are given more time.
        pause = s.rules.poll_interval_s if isinstance(error, WireError) else s.rules.lost_confirm_s
        s.poll_at(s.now.mono + s.jitter(min(pause, s.rules.poll_interval_s)))
        return
    if isinstance(error, WireError | LimitReached):
        cause = Cause.PROTOCOL if isinstance(error, WireError) else Cause.LIMIT_REACHED
        stopped = Stopped(kind=OutcomeKind.PROTOCOL_ERROR, cause=cause, reason=f"the task cannot be read: {error}")
    elif isinstance(error, MethodNotFound | UnsupportedOperation):
        reason = f"the agent offers no way to follow a task: {error}"
        stopped = Stopped(kind=OutcomeKind.LOST, cause=Cause.CANNOT_FOLLOW, reason=reason)
    else:
        ours = not isinstance(error, RpcError | HttpRefused)
        whose = Cause.MISCONFIGURED if ours else Cause.CANNOT_FOLLOW
        stopped = Stopped(kind=OutcomeKind.LOST, cause=whose, reason=f"the task cannot be followed: {error}")
    s.set(stopped=stopped, poll_due=None)
    s.publish(PollingStopped(why=stopped.reason, answers=s.rules.refused_polls_max))


def give_up_untold(s: StepContext) -> None:
    """Nobody polls any more: the request ends as soon as nothing else can tell of it. It never waits in silence."""
    t = s.track
    if t.stopped is None or t.outcome is not None:
        return
    streamed = t.stream_open or t.joining or t.retry_due is not None
    answering = t.resume is not None and not t.resume_doubt  # in doubt only a poll says whether it is sent
    if streamed or t.asked is not None or answering or t.cancel_due is not None:
        return
    _register_once(s)
    if not t.record.push:
        s.close(t.stopped.kind, t.stopped.cause, t.stopped.reason)


def _gone(s: StepContext, error: FleetsimError) -> None:
    """An answer that will not change: confirmed once, three times while the task is young (F-12)."""
    confirmable = s.track.missed_at + s.rules.lost_confirm_s
    if s.now.mono < confirmable:  # other news had it asked again sooner: that confirms nothing
        s.poll_at(max(confirmable, s.soon))
        return
    misses = s.track.misses + 1
    s.set(misses=misses, missed_at=s.now.mono)
    young = isinstance(error, TaskNotFound) and s.now.mono - s.track.began < s.rules.young_s
    if misses <= (3 if young else 1):
        s.poll_at(s.now.mono + s.rules.lost_confirm_s)
        return
    if isinstance(error, AuthRefused):
        s.publish(CredentialRefused(why=str(error)))
        s.close(OutcomeKind.LOST, Cause.CREDENTIAL_REFUSED, f"the agent refuses our credential (HTTP {error.status})")
    else:
        s.close(OutcomeKind.LOST, Cause.TASK_GONE, f"the agent no longer knows the task: {error}")
