"""Updates of a task from stream, poll or webhook, with one fold and one rule for stale ones; and the polls."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from msgspec.structs import replace

from fleetsim.events.fleet import CredentialRefused, WebhookRegistered
from fleetsim.events.request import (
    Excerpt,
    PollingStopped,
    StreamReceived,
    TaskBound,
    TaskElsewhere,
    TaskMoved,
    UpdateIgnored,
)
from fleetsim.model.asking import key_of, text_of
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
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold, fold_bounded
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Message,
    Task,
    TaskState,
    TaskStatus,
    id_changes,
)
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, OutcomeKind, UpdateSource
from fleetsim.request import asking
from fleetsim.request.ending import cancel_once, close
from fleetsim.request.records import Phase
from fleetsim.request.signals import (
    CancelReplied,
    Join,
    Poll,
    PollFailed,
    Publish,
    PushRegistered,
    RegisterPush,
    ResolveQuestion,
    Resumed,
    StepContext,
    Subscribe,
    TurnedAway,
)
from fleetsim.request.track import StopReason, TaskUpdate, Timer, just_taken, shows_the_past
from fleetsim.runtime.retry import misses_max
from fleetsim.wire.choice import disagreement, may_mean_the_webhook

TROUBLE_MAX = 500
ANOTHER_TASK = "it names another task"
OTHERS_IGNORED = "the agent's stream has events of other tasks, which are ignored"


# ------------------------------------------------------------------ what the agent says


def task_update(context: StepContext, update: TaskUpdate) -> None:
    """Apply one update, or publish why it was ignored."""
    track, via = context.track, update.via
    match via:
        case UpdateSource.POLL:
            named, task = update.event.task_id, track.record.task
            if task is not None and named not in {"", task.task_id}:
                told = f"the reply to a look at task {task.task_id} is task {one_line(named, 200)}"
                poll_failed(context, PollFailed(error=WireError(told)))
                return
            _poll_over(context, failed=0, refusals=(), refused_at=math.inf, trouble="", misses=0)
        case UpdateSource.STREAM:
            if track.sending.in_air:
                context.taken()
            if track.streaming.joining or not track.streaming.open:
                track.streaming = replace(track.streaming, open=True, joining=False)
        case UpdateSource.PUSH:
            track.pushing = replace(track.pushing, received=track.pushing.received + 1)
            if track.awaits_reply:
                # It arrived before the reply: keep it until the reply has bound the task (F-15).
                track.sending = replace(track.sending, early=(*track.sending.early, update))
                return
            if isinstance(update.event, DirectReply):
                message = update.event.message  # a message about its task at work, never its end
                remark = StatusUpdate(
                    task_id=message.task_id or "",
                    context_id=message.context_id or "",
                    status=TaskStatus(state=TaskState.WORKING, message=message),
                )
                update = replace(update, event=remark)
                if track.record.task is not None and not context.ended:
                    context.poll_at(context.now.mono)
    if track.record.task is None and _shows_the_past(context, update):
        update = replace(update, event=just_taken(update.event))
        context.poll_at(context.soon)
    state = update.event.state
    if (why := _stale(context, update, state)) is not None:
        if why == ANOTHER_TASK and via is UpdateSource.STREAM and OTHERS_IGNORED not in track.record.warnings:
            context.save(warnings=(*track.record.warnings, OTHERS_IGNORED))
        if context.rules.events:
            context.effects.append(Publish(event=UpdateIgnored(state=state, via=via.value, why=why)))
        _after_stale(context, update)
    elif state is not None and _doubtful(context, update, state):
        context.poll_at(context.now.mono)
    else:
        _apply(context, update)


def join(context: StepContext, signal: Join) -> None:
    """Follow a task that the agent has already: from its last state, or with a poll at once."""
    now, event = context.now.mono, Snapshot(task=signal.task)
    if signal.seen:
        return task_update(context, TaskUpdate(event=event, via=UpdateSource.REPLY, began=now))
    context.track.record = replace(context.track.record, task=signal.task)
    return context.poll_at(now)


def late_update(context: StepContext, update: TaskUpdate) -> None:
    """The request has its outcome: an update changes nothing."""
    event = UpdateIgnored(state=update.event.state, via=update.via.value, why="already ended")
    context.effects.append(Publish(event=event))


def _shows_the_past(context: StepContext, update: TaskUpdate) -> bool:
    """Whether an update shows a follow-up's task in its earlier state. A poll is never taken as that."""
    record = context.track.record
    return record.earlier != "" and update.via is not UpdateSource.POLL and shows_the_past(record, update.event)


def _stale(context: StepContext, update: TaskUpdate, state: TaskState | None) -> str | None:
    """Why an update must not be applied, or None. The agent's own time stamps are not used: they are hints only."""
    track, event, via = context.track, update.event, update.via
    task, named = track.record.task, event.task_id
    if task is None:
        return "a webhook without a task id" if via is UpdateSource.PUSH and not named else None
    if named not in {"", task.task_id}:
        return ANOTHER_TASK
    if _shows_the_past(context, update):
        return "it shows the task as it was before this message"
    if task.status.state in TERMINAL:
        return None if state in TERMINAL and via is not UpdateSource.STREAM else "the task has ended"
    if state in TERMINAL:
        return None
    if via in {UpdateSource.POLL, UpdateSource.REPLY} and update.began < track.applied_at:
        return "it was asked for before the last news arrived"
    if state is TaskState.SUBMITTED and task.status.state is not TaskState.SUBMITTED:
        return "the task has moved on since"
    if isinstance(event, ArtifactUpdate) and event.append and (track.streaming.gap or via is UpdateSource.PUSH):
        return "a chunk whose predecessors may be missing"
    return None


def _after_stale(context: StepContext, update: TaskUpdate) -> None:
    """Repeat a stale poll soon. A chunk without its predecessors leaves the artifact incomplete."""
    track = context.track
    if update.via is UpdateSource.POLL and not context.ended:
        context.poll_at(context.soon)
    elif update.via is UpdateSource.POLL:
        _pay_owed(context, "its record of the task lags behind")
    elif track.record.task is not None and _shows_the_past(context, update):
        context.poll_at(context.soon)
    if isinstance(update.event, ArtifactUpdate):
        track.ending = replace(track.ending, whole=track.ending.whole - {update.event.artifact.artifact_id})


def _doubtful(context: StepContext, update: TaskUpdate, state: TaskState) -> bool:
    """Whether a poll must confirm an update about a question.

    Webhooks may be late, repeated or out of order, and a stream may lag behind both. Neither can reopen an answered
    question, replace the open one, or close it. Only a later poll can.
    """
    track, task = context.track, context.track.record.task
    if update.via not in {UpdateSource.PUSH, UpdateSource.STREAM} or task is None:
        return False
    if state in INTERRUPTED:
        chars_max = context.rules.text_chars_max
        key = key_of(fold_bounded(task, update.event, sys.maxsize if chars_max is None else chars_max)[0])
        if track.asking.question is not None:
            return key != track.asking.key
        return key in track.record.over or track.asking.answer is not None
    return state is TaskState.WORKING and (track.asking.question is not None or track.asking.doubt)


def _apply(context: StepContext, update: TaskUpdate) -> None:
    track, before = context.track, context.track.record.task
    if (chars_max := context.rules.text_chars_max) is None:
        task = fold(before, update.event)
    else:
        task, track.text_chars = fold_bounded(before, update.event, chars_max, track.text_chars)
    request, state = track.record.request, task.status.state
    if not task.context_id:
        made_by_agent = request.task_id is not None or request.first_turn
        task = replace(task, context_id=request.context_id or ("" if made_by_agent else request.correlation_id))
    track.applied_at, track.via = context.now.mono, update.via if task != before else track.via  # a look: no news
    if update.via is UpdateSource.STREAM and track.chunks is not None and isinstance(update.event, ArtifactUpdate):
        # A complete artifact that arrives again brings no more of the answer.
        track.chunks += update.event.append or before is None or len(task.artifacts) > len(before.artifacts)
    track.record = replace(track.record, task=task)
    if before is not None and isinstance(update.event, StatusUpdate) and state is TaskState.WORKING:
        old, new = before.status.message, task.status.message
        if old is not None and new is not None and not new.text.startswith(old.text):
            track.streaming = replace(track.streaming, replaced=True)
    _note_parts(context, update.event, update.via)
    if before is None or track.record.phase is Phase.INTENT:
        _bind(context, update, task)
    if context.rules.events:
        _publish(context, update, before, task)
    if state in TERMINAL:
        _end(context, update, task)
    elif state in INTERRUPTED:
        asking.waits_for_somebody(context, update)
    else:
        if state is TaskState.WORKING and (track.asking.question is not None or track.asking.doubt):
            asking.at_work(context)
        _keep_watch(context, update)
    if before is None or before.status.state is not state or state in INTERRUPTED:
        context.save()
    if before is None and track.sending.early:
        hear_early(context)


def hear_early(context: StepContext) -> None:
    """Apply webhooks that arrived before the reply. Their token proved which request they belong to."""
    track = context.track
    early, track.sending = track.sending.early, replace(track.sending, early=())
    for update in early:
        if track.outcome is None:
            task_update(context, update)


def recall(context: StepContext, events: Iterable[TaskEvent]) -> None:
    """Apply webhooks from before a restart. If the task was bound since, its record has their state and parts, so only
    the webhook of its end is applied again.
    """
    track = context.track
    early = tuple(TaskUpdate(event=event, via=UpdateSource.PUSH, began=context.now.mono) for event in events)
    if track.record.task is None:
        track.sending = replace(track.sending, early=early)
        hear_early(context)
        return
    for update in early:
        if context.ended:
            _note_parts(context, update.event)
    for update in early:
        if update.event.state in TERMINAL and track.outcome is None:
            task_update(context, update)


def _note_parts(context: StepContext, event: TaskEvent, via: UpdateSource = UpdateSource.PUSH) -> None:
    """Record which artifacts are complete. A snapshot of a running task completes none of them."""
    track, whole = context.track, context.track.ending.whole
    match event:
        case Snapshot():
            whole = frozenset()
            if track.streaming.gap:
                track.streaming = replace(track.streaming, gap=False)
        case ArtifactUpdate(artifact=artifact, append=append, last_chunk=last):
            # a2a-sdk leaves ``lastChunk`` out: what a stream brings in one event is whole, unless more of it follows.
            closed = not append and (last or via is UpdateSource.STREAM)
            if closed is not (artifact.artifact_id in whole):
                whole = whole | {artifact.artifact_id} if closed else whole - {artifact.artifact_id}
        case StatusUpdate(status=status, artifacts=artifacts, lone=lone):
            beside = {a.artifact_id for a in artifacts}  # of a running task: the artifacts so far
            # 0.1 sends one webhook per artifact, each with the state of the task at that time.
            whole = whole | beside if status.state in TERMINAL and not lone else whole - beside
        case DirectReply():
            pass
    if whole is not track.ending.whole and whole != track.ending.whole:
        track.ending = replace(track.ending, whole=whole)


def _bind(context: StepContext, update: TaskUpdate, task: Task) -> None:
    """The first update binds the task (T-07) and decides how it is watched."""
    track, record, now, rules = context.track, context.track.record, context.now, context.rules
    for timer in (Timer.GIVE_UP, Timer.OVERDUE, Timer.LOOK_UP, Timer.RETRY):
        track.timers.pop(timer, None)
    track.sending = replace(track.sending, silent=False)
    track.taken_at = now.mono
    request, state = record.request, task.status.state
    warnings = id_changes(task.task_id, task.context_id, asked_task=request.task_id, asked_context=request.context_id)
    other_dialect = (disagreement(record.dialect),) if record.other_taken and record.dialect is not None else ()
    bound = TaskBound(
        state=state.value, context_id=task.context_id or None, dialect=record.dialect, via=update.via.value
    )
    context.effects += (Publish(event=bound), *(Publish(event=TaskElsewhere(why=why)) for why in warnings))
    context.agents_turn()
    context.save(phase=Phase.ACCEPTED, bound_at=now.wall, warnings=(*record.warnings, *other_dialect, *warnings))
    if state in TERMINAL:
        return
    if record.register_push:
        _register_once(context)
    if track.sending.look_due:
        context.poll_at(now.mono)
    if record.phase is Phase.INTENT and record.streaming and not track.streaming.open and state not in INTERRUPTED:
        track.timers[Timer.REJOIN] = now.mono
    if not _streams(context):
        context.poll_at(now.mono + _pause(context))
    elif rules.polls_beside_stream:  # it sends updates itself: spread the polls that only confirm over the interval
        context.poll_at(now.mono + max(now.jitter * rules.poll_interval_s, min(0.5, rules.poll_interval_s)))
    if record.cancel_wanted:
        cancel_once(context)


def _publish(context: StepContext, update: TaskUpdate, before: Task | None, task: Task) -> None:
    event, via, state = update.event, update.via, task.status.state
    if via is UpdateSource.STREAM or (via is UpdateSource.PUSH and isinstance(event, ArtifactUpdate)):
        context.effects.append(Publish(event=StreamReceived.of(event)))
    if (
        before is None
        or before.status.state is not state
        or (via is not UpdateSource.STREAM and before.artifacts is not task.artifacts and before.text != task.text)
    ):
        moved = TaskMoved(
            state=state.value,
            previous=before.status.state.value if before else None,
            via=via.value,
            text=Excerpt.of(*text_of(task)),
        )
        context.effects.append(Publish(event=moved))


def _end(context: StepContext, update: TaskUpdate, task: Task) -> None:
    """The task is terminal. Close if the result is complete, else poll first."""
    track = context.track
    match update.event:
        case DirectReply():
            complete = True
        case Snapshot(task=seen):
            complete = update.via in {UpdateSource.POLL, UpdateSource.REPLY} or bool(seen.artifacts)
        case _:
            # Without a text, an artifact may still follow, although a file came whole.
            complete = task.text != "" and all(a.artifact_id in track.ending.whole for a in task.artifacts)
    if complete:
        close(context)
    elif track.polling.stopped is not None:
        close(context, reason=track.polling.stopped.reason)
    elif track.ending.polls_owed == 0:
        if track.asking.question is not None:
            asking.withdraw(context)
        context.agents_turn_over()
        track.ending = replace(track.ending, polls_owed=context.rules.owed_polls_max)
        track.timers.setdefault(Timer.DEADLINE, math.inf)
        track.timers[Timer.DEADLINE] = min(track.timers[Timer.DEADLINE], context.now.mono + context.rules.owed_s)
        for timer in (Timer.CANCEL, Timer.RESUME):
            track.timers.pop(timer, None)
        context.poll_at(context.now.mono)


def _pay_owed(context: StepContext, why: str, asked_s: float = 0.0) -> None:
    """A required poll brought no better end: poll again, after ``asked_s`` at least, or close with the known end."""
    track, rules = context.track, context.rules
    track.ending = replace(track.ending, polls_owed=track.ending.polls_owed - 1)
    if track.ending.polls_owed <= 0:
        close(context, reason=why)
    else:
        pause_s = 3.0 ** (rules.owed_polls_max - track.ending.polls_owed - 1)
        context.poll_at(context.now.mono + max(min(pause_s, rules.poll_interval_s), asked_s))


def resumed(context: StepContext, signal: Resumed) -> None:
    """The agent accepted the answer; its reply is an update like any other."""
    track, now = context.track, context.now
    answer = track.asking.answer
    if answer is not None:
        context.effects.append(ResolveQuestion(question_id=answer.question_id, state="delivered"))
    track.asking = replace(track.asking, answer=None, answered_at=now.mono)
    track.streaming = replace(track.streaming, rejoins=0, last_words="")
    track.timers.pop(Timer.RESUME, None)
    track.timers.pop(Timer.OVERDUE, None)
    track.taken_at = now.mono
    context.agents_turn()
    context.save(answers=track.record.answers + 1)
    if isinstance(signal.reply, Message):
        context.poll_at(now.mono)
    else:
        asking.follow_task(context, signal.reply)
        task_update(context, TaskUpdate(event=Snapshot(task=signal.reply), via=UpdateSource.REPLY, began=signal.began))
    if track.outcome is None and track.asking.question is None:
        context.poll_at(context.soon)
        if track.record.streaming and not (track.streaming.open or track.streaming.joining):
            track.timers[Timer.REJOIN] = now.mono
            track.streaming = replace(track.streaming, gap=True)


def cancel_replied(context: StepContext, signal: CancelReplied) -> None:
    """The agent accepted the cancel. If the task has not ended, poll soon."""
    task_update(context, TaskUpdate(event=Snapshot(task=signal.task), via=UpdateSource.REPLY, began=signal.began))
    if context.track.outcome is None:
        context.poll_at(context.soon)


# ------------------------------------------------------------------ looking at the task


def _pause(context: StepContext) -> float:
    """Seconds until the next poll: the age of the task, at least 1 and at most the interval.

    So the end of a quick task is seen after about a second, and a long one, or one from before a restart, costs no
    more polls than its interval allows.
    """
    age_s, rules = context.now.mono - context.track.taken_at, context.rules
    return context.jitter(min(max(age_s, rules.look_first_s), rules.poll_interval_s))


def _keep_watch(context: StepContext, update: TaskUpdate) -> None:
    """Schedule a poll at most two intervals away, whatever else arrives."""
    track, now, interval_s = context.track, context.now, context.rules.poll_interval_s
    polled = update.via is UpdateSource.POLL
    if _streams(context) and not track.streaming.rejoins and not context.rules.polls_beside_stream:
        return
    if polled or (Timer.POLL not in track.timers and track.polling.next_at is None):
        quiet = track.streaming.open or track.pushing.received > 0
        context.poll_at(now.mono + (context.jitter(2 * interval_s) if quiet else _pause(context)))
    if polled and now.mono - track.taken_at >= interval_s / 2:
        _register_once(context)


def _streams(context: StepContext) -> bool:
    track = context.track
    return track.streaming.open or track.streaming.joining or Timer.REJOIN in track.timers


def _again_s(context: StepContext) -> float:
    """Seconds until the poll after a failed one: 1, 2, 4 and so on for a young task, else one interval, then two."""
    failed, now, rules = context.track.polling.failed, context.now.mono, context.rules
    if now - context.track.taken_at < rules.young_s:
        return min(2.0**failed, rules.poll_interval_s)
    return rules.poll_interval_s * (2 if failed else 1)


def _register_once(context: StepContext) -> None:
    """No webhook has arrived: the agent may have ignored the one inside the send (decision 6)."""
    track = context.track
    if track.record.push and not track.pushing.received and not track.pushing.registered:
        track.pushing = replace(track.pushing, registered=True)
        context.effects.append(RegisterPush())


def push_registered(context: StepContext, signal: PushRegistered) -> None:
    """The task may have changed between the reply and the registration: poll once."""
    if signal.error is None:
        context.effects.append(Publish(event=WebhookRegistered()))
        context.poll_at(context.now.mono)
        return
    context.save(push=False)
    told = isinstance(signal.error, RpcError) and not isinstance(signal.error, InternalError)
    if told or may_mean_the_webhook(signal.error) or (isinstance(signal.error, HttpRefused) and not signal.error.sent):
        context.push_refused(str(signal.error))
    else:
        context.retried(f"the webhook could not be registered: {signal.error}")


def turned_away(context: StepContext, _: TurnedAway) -> None:
    """The hub refused a webhook that the agent may not repeat: poll soon.

    The poll comes some seconds after the last one, so that a flood of webhooks causes no flood of polls.
    """
    track = context.track
    when = max(context.soon, track.polling.looked_at + context.rules.lost_confirm_s)
    if track.record.task is not None:
        context.poll_at(when)
    elif Timer.GIVE_UP in track.timers:
        track.timers[Timer.LOOK_UP] = min(when, track.timers.get(Timer.LOOK_UP, when))
    else:
        track.sending = replace(track.sending, look_due=True)


def poll(context: StepContext) -> None:
    """Send the poll that is due."""
    now = context.now.mono
    context.track.polling = replace(context.track.polling, began=now, looked_at=now)
    context.effects.append(Poll())


def rejoin(context: StepContext) -> None:
    """Rejoin a stream after its pause."""
    context.track.streaming = replace(context.track.streaming, joining=True)
    context.effects.append(Subscribe())


def poll_failed(context: StepContext, signal: PollFailed) -> None:
    """A poll failed. A permanent failure ends the polling; after any other, poll again."""
    error, rules = signal.error, context.rules
    _poll_over(context, trouble=one_line(str(error), TROUBLE_MAX))
    asked_s = (error.retry_after_s if isinstance(error, HttpRefused) else None) or 0.0
    asked_s = min(asked_s, rules.retry_after_max_s)
    gone = isinstance(error, TaskNotFound | AuthRefused) or (
        isinstance(error, HttpRefused) and error.status in {404, 405, 410}
    )
    if context.ended and (gone or not (_may_pass(error) or isinstance(error, WireError))):
        close(context, reason=str(error))
    elif context.ended:
        _pay_owed(context, str(error), asked_s)
    elif gone:
        _gone(context, error)
    elif _may_pass(error):
        polling = context.track.polling
        wait_s = max(context.jitter(_again_s(context)), asked_s)
        context.track.polling = replace(polling, failed=polling.failed + 1)
        context.poll_at(context.now.mono + wait_s)
    else:
        _refused(context, error)


def _poll_over(context: StepContext, **result: object) -> None:
    """A poll has ended: a poll that was requested meanwhile is scheduled now."""
    track, polling = context.track, context.track.polling
    if polling.next_at is not None:
        track.timers[Timer.POLL] = polling.next_at
    track.polling = replace(polling, began=None, next_at=None, count=polling.count + 1, **result)


def _may_pass(error: FleetsimError) -> bool:
    """Whether a repeated poll may succeed: the network failed, or the agent reported a fault of its own.

    A code that is not in the specification may mean anything, an overload too.
    """
    if isinstance(error, HttpRefused):
        return error.retryable or error.status >= 500
    return error.retryable or isinstance(error, TransportError | InternalError) or type(error) is RpcError


def _refused(context: StepContext, error: FleetsimError) -> None:
    """A reply that a repeat cannot change: after a few equal ones, polling stops."""
    track, rules = context.track, context.rules
    kind = f"{type(error).__name__} {getattr(error, 'status', '')}"
    wire, now = isinstance(error, WireError), context.now.mono
    refusals, since = (*track.polling.refusals, kind), min(track.polling.refused_at, now)
    track.polling = replace(track.polling, refusals=refusals, refused_at=since)
    # Bytes outside the protocol may come from a proxy for a while: polls that follow each other soon do not count.
    if refusals.count(kind) < rules.refused_polls_max or (wire and now - since < rules.poll_interval_s / 2):
        pause_s = rules.lost_confirm_s if not wire else rules.poll_interval_s if refusals[1:] else _again_s(context)
        context.poll_at(context.now.mono + context.jitter(min(pause_s, rules.poll_interval_s)))
        return
    if isinstance(error, WireError | LimitReached):
        cause = Cause.PROTOCOL if isinstance(error, WireError) else Cause.LIMIT_REACHED
        stopped = StopReason(kind=OutcomeKind.PROTOCOL_ERROR, cause=cause, reason=f"the task cannot be read: {error}")
    elif isinstance(error, MethodNotFound | UnsupportedOperation):
        reason = f"the agent offers no way to follow a task: {error}"
        stopped = StopReason(kind=OutcomeKind.LOST, cause=Cause.CANNOT_FOLLOW, reason=reason)
    else:
        ours = not isinstance(error, RpcError | HttpRefused)
        whose = Cause.MISCONFIGURED if ours else Cause.CANNOT_FOLLOW
        stopped = StopReason(kind=OutcomeKind.LOST, cause=whose, reason=f"the task cannot be followed: {error}")
    track.polling = replace(track.polling, stopped=stopped)
    track.timers.pop(Timer.POLL, None)
    context.effects.append(Publish(event=PollingStopped(why=stopped.reason, answers=rules.refused_polls_max)))


def end_if_nothing_can_tell(context: StepContext) -> None:
    """Polling has stopped: end the request once neither a stream nor a webhook can report the task's end."""
    track, stopped = context.track, context.track.polling.stopped
    if stopped is None or track.outcome is not None:
        return
    # While an answer is uncertain, only a poll decides whether to send it.
    answering = track.asking.answer is not None and not track.asking.doubt
    if _streams(context) or answering or track.asking.question is not None or Timer.CANCEL in track.timers:
        return
    _register_once(context)
    if not track.record.push:
        close(context, stopped.kind, stopped.cause, stopped.reason)


def _gone(context: StepContext, error: FleetsimError) -> None:
    """The agent does not know the task: confirm once, three times while the task is young (F-12)."""
    track, now, rules = context.track, context.now.mono, context.rules
    confirmable = track.polling.missed_at + rules.lost_confirm_s
    if now < confirmable:  # another update caused an earlier poll, which confirms nothing
        context.poll_at(max(confirmable, context.soon))
        return
    misses = track.polling.misses + 1
    track.polling = replace(track.polling, misses=misses, missed_at=now)
    age_s = now - track.began if isinstance(error, TaskNotFound) else math.inf
    repeats = rules.key_repeats if isinstance(error, AuthRefused) else misses_max(age_s, rules.young_s)
    # A joined task may not exist. A plain 404 does not say so: it may come from a proxy.
    unknown = track.record.phase is Phase.INTENT and isinstance(error, TaskNotFound | AuthRefused)
    if misses <= repeats and not unknown:
        context.poll_at(now + rules.lost_confirm_s)
        return
    if isinstance(error, AuthRefused):
        context.effects.append(Publish(event=CredentialRefused(why=error.why)))
        close(context, OutcomeKind.LOST, Cause.CREDENTIAL_REFUSED, f"the agent {error.why}")
    else:
        close(context, OutcomeKind.LOST, Cause.TASK_GONE, f"the agent no longer knows the task: {error}")
