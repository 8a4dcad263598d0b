"""The first send: repeated only while the agent cannot have accepted it, and searched for when its reply is lost.

Also its streams, and the resuming after a restart.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import asdict, replace

from fleetsim.events.fleet import CredentialRefused
from fleetsim.events.request import Level, StreamBroken
from fleetsim.model.errors import (
    AuthRefused,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    NotAccepting,
    RpcError,
    TaskNotFound,
    TransportError,
    Unreachable,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.event import DirectReply, Snapshot
from fleetsim.model.extensions import REASON_CHARS_MAX
from fleetsim.model.task import INTERRUPTED, Task
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, Decision, OutcomeKind, UpdateSource
from fleetsim.request import asking
from fleetsim.request.ending import cancel_once, cause_of, close, give_up, settle_question
from fleetsim.request.following import TROUBLE_MAX, hear_early, recall, task_update
from fleetsim.request.records import OtherWay, Phase, QuestionState
from fleetsim.request.signals import (
    Ask,
    Begin,
    Found,
    Left,
    LimitDecided,
    LookUpTask,
    Publish,
    Recovered,
    Replied,
    Send,
    SendFailed,
    StepContext,
    StreamEnded,
)
from fleetsim.request.track import Asking, Sending, TaskUpdate, Timer, Track, shows_the_message
from fleetsim.runtime.retry import JITTER, pause_s
from fleetsim.wire.choice import may_mean_the_webhook, refuses_dialect, refuses_stream, refuses_way

LOST_MAX = 400
"""Characters of a malformed reply that the reason of the outcome quotes."""

SEARCHES_MAX = 2
"""Searches for the task of an agent that ended its stream without an event."""

LEDGER_WAIT_S = 1.0
"""How long a send waits at least for a ledger that takes no writes."""

WEBHOOK_WAITS = 10
"""Poll intervals to wait for a webhook if only a webhook can name the task, which may be a long one."""


def begin(context: StepContext, _: Begin) -> None:
    """Send for the first time. While a limit holds the request, its time stands still."""
    if context.track.record.held:
        context.track.timers.clear()
    else:
        send(context)


def limit_decided(context: StepContext, signal: LimitDecided) -> None:
    """End the held request, or ask for more room, or send it."""
    track, record = context.track, context.track.record
    if signal.refusal:
        close(context, OutcomeKind.UNDELIVERABLE, Cause.OVER_LIMIT, signal.refusal)
        return
    settle_question(context, QuestionState.WITHDRAWN)
    track.asking = Asking(question=signal.question)
    if signal.question is not None:
        context.effects.append(Ask(question=signal.question))
        return
    limit = record.deadline_at - record.accepted_at
    context.save(bookings=signal.bookings, held=False, deadline_at=context.now.wall + limit)
    track.timers[Timer.DEADLINE] = context.now.mono + limit.total_seconds()
    send(context)


def send(context: StepContext) -> None:
    """Request the send. It may wait for a slot, and no byte leaves until then."""
    sending = context.track.sending
    context.track.sending = replace(sending, in_air=True)
    context.effects.append(Send(stream=sending.stream))


def retry(context: StepContext) -> None:
    """Send again after the pause, or to the next agent of the fallback: nobody accepted the request so far."""
    track, record = context.track, context.track.record
    if why := track.sending.not_accepted:
        route, *others = record.fallback
        warning = f"{one_line(record.agent, 64)} did not accept it: {one_line(why, REASON_CHARS_MAX)}"
        changes = asdict(route) | {"fallback": tuple(others), "warnings": (*record.warnings, *route.warnings, warning)}
        request = replace(record.request, targets=(route.agent,), skill=route.skill)
        context.save(**changes, request=request, other_taken=False, attempt=0, retry_at=None)
        track.sending = Sending(stream=route.streaming)
        context.retried(f"sending it to {one_line(route.agent, 64)}: {warning}")
    send(context)


def left(context: StepContext, _: Left) -> None:
    """The send has its slot, and bytes may leave: every later record must say so (F-29).

    The tracker records it before the first byte.
    """
    track = context.track
    context.agents_turn()
    track.timers[Timer.OVERDUE] = context.now.mono + context.rules.call_s
    if track.record.task is None:
        track.record = replace(track.record, phase=Phase.SENDING)


def overdue(context: StepContext) -> None:
    """The agent holds our connection for longer than other calls may take: it works, and the hub waits for its reply.

    From now on webhooks, searches and polls count before the reply arrives.
    """
    track = context.track
    if track.sending.in_air and track.record.task is None:
        track.sending = replace(track.sending, overdue=True)
        hear_early(context)
        if track.record.task is None and track.outcome is None:
            look_up(context)
    elif track.asking.answer is not None:
        context.poll_at(context.now.mono)


def replied(context: StepContext, signal: Replied) -> None:
    """The agent accepted the send: bind the task, then apply the reply like any other update."""
    context.taken()
    reply = signal.reply
    event = Snapshot(task=reply) if isinstance(reply, Task) else DirectReply(message=reply)
    task_update(context, TaskUpdate(event=event, via=UpdateSource.REPLY, began=signal.began))


# ------------------------------------------------------------------ it failed


def send_failed(context: StepContext, signal: SendFailed) -> None:
    """The first send failed. Repeat it only if the agent cannot have accepted it.

    An earlier webhook proves that the agent has the request, whatever the reply was.
    """
    track, error = context.track, signal.error
    track.sending = replace(track.sending, in_air=False, overdue=False)
    for timer in (Timer.OVERDUE, Timer.LOOK_UP):
        track.timers.pop(timer, None)
    hear_early(context)
    record, sending = track.record, track.sending
    webhook = record.push and not record.register_push and may_mean_the_webhook(error, stream=sending.stream)
    # A reply that is unreadable or reports an internal error may come from an agent that works on the request.
    maybe_taken = isinstance(error, TransportError | HttpRefused) and error.sent
    may_run = maybe_taken or isinstance(error, WireError | LimitReached | InternalError)
    if record.task is not None:
        context.retried(f"the task is known already: {error}", Level.INFO)
    elif isinstance(error, EmptyStream):
        track.sending = replace(sending, silent=True)
        _reply_lost(context, str(error))
    elif record.cancel_wanted and (webhook or not may_run):
        close(context, OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, "cancelled before it was sent")
    elif webhook:
        track.record = replace(record, push=False)
        track.sending = replace(sending, push_refused=str(error))
        _send_otherwise(context, f"the webhook may be what was refused, sending without it: {error}")
    elif sending.stream and refuses_stream(error):
        track.sending = replace(sending, stream=False, stream_refused=str(error))
        _send_otherwise(context, f"no streaming after all, sending plainly: {error}")
    elif record.other is not None and refuses_way(error, elsewhere=record.other.rpc_url != record.rpc_url):
        _try_other_way(context, record.other, error)
    elif isinstance(error, AuthRefused) and error.status == 401 and sending.attempt < context.rules.key_repeats:
        _retry_or_end(context, error)  # each call reads the keys again, so a key that changed meanwhile is used now
    elif isinstance(error, WireError | LimitReached):
        cause = Cause.PROTOCOL if isinstance(error, WireError) else Cause.LIMIT_REACHED
        close(context, OutcomeKind.PROTOCOL_ERROR, cause, str(error))
    elif isinstance(error, InternalError):
        reason = f"the agent answered {error.wire_code}: {error}"
        close(context, OutcomeKind.FAILED, Cause.INTERNAL_ERROR, reason)
    elif maybe_taken:
        _reply_lost(context, str(error))
    elif isinstance(error, NotAccepting):  # the ledger did not record that the send leaves, so it has not left
        track.timers[Timer.RETRY] = context.now.mono + LEDGER_WAIT_S * (1 + context.now.jitter)
        context.not_taken()
        context.save(phase=Phase.INTENT)
    elif error.retryable:
        _retry_or_end(context, error)
    else:
        _undeliverable(context, error)


def _send_otherwise(context: StepContext, reason: str) -> None:
    """Send the same message in another form at once: the agent refused it, so it accepted nothing."""
    context.retried(reason, Level.INFO, attempt=context.track.sending.attempt)
    context.not_taken()
    send(context)


def _try_other_way(context: StepContext, other: OtherWay, error: FleetsimError) -> None:
    """The agent does not serve this dialect or address: try the next one, once each (decision 0013)."""
    track = context.track
    track.sending = replace(track.sending, stream=False)
    track.record = replace(
        track.record,
        dialect=other.dialect,
        rpc_url=other.rpc_url,
        tenant=other.tenant,
        rejoin=other.rejoin,
        other=other.other,
        other_taken=True,
    )
    _send_otherwise(context, f"trying A2A {other.dialect} at {one_line(other.rpc_url, 160)}: {error}")


def _retry_or_end(context: StepContext, error: FleetsimError) -> None:
    """Send again after a pause, up to the number of attempts."""
    track, rules = context.track, context.rules
    asked_s = error.retry_after_s if isinstance(error, HttpRefused | Unreachable) else None
    policy_s = track.record.retry_waits_s
    wait_s = pause_s(
        track.sending.attempt,
        context.now.jitter if policy_s is None else 1 - JITTER * context.now.jitter,
        asked_s,
        waits_s=rules.retry_waits_s if policy_s is None else policy_s,
        asked_max_s=rules.retry_after_max_s,
    )
    if wait_s is None:
        _undeliverable(context, error)
        return
    track.sending = replace(track.sending, attempt=track.sending.attempt + 1)
    track.timers[Timer.RETRY] = context.now.mono + wait_s
    context.not_taken()
    context.save(phase=Phase.INTENT)
    if policy_s is not None:
        pause, record = timedelta(seconds=wait_s), track.record
        context.save(attempt=track.sending.attempt, retry_at=context.now.wall + pause)
        if record.request.timeout_s is None:  # a policy of hours fits into no limit for the work
            context.save(deadline_at=record.deadline_at + pause)
            track.timers[Timer.DEADLINE] += wait_s
    context.retried(str(error), attempt=track.sending.attempt + 1, wait_s=wait_s)


def _undeliverable(context: StepContext, error: FleetsimError) -> None:
    track, record, cause, reason = context.track, context.track.record, cause_of(error), str(error)
    if isinstance(error, AuthRefused):
        context.effects.append(Publish(event=CredentialRefused(why=error.why)))
        reason = f"the agent {error.why}"
    elif isinstance(error, RpcError):
        also = " in each way that it offers" if record.other_taken and refuses_dialect(error) else ""
        reason = f"the agent refused it with {error.wire_code}{also}: {error}"
        if isinstance(error, MethodNotFound) and (why := track.sending.stream_refused):
            reason = f"the agent refused a stream ({why}), and a plain send with {error.wire_code}{also}: {error}"
    if record.request.task_id is not None and isinstance(error, TaskNotFound | UnsupportedOperation | InvalidParams):
        cause = Cause.REQUEST_WRONG
    if record.fallback and cause is not Cause.REQUEST_WRONG:
        context.not_taken()
        track.sending = replace(track.sending, not_accepted=reason)
        track.timers[Timer.RETRY] = context.now.mono  # its events are about this agent, later ones about the next
        context.save(phase=Phase.INTENT)
        return
    close(context, OutcomeKind.UNDELIVERABLE, cause, reason)


# ------------------------------------------------------------------ its reply is lost


def _reply_lost(context: StepContext, why: str) -> None:
    """The agent may have the request. Search for its task, and never send again (F-03)."""
    track, now, rules = context.track, context.now.mono, context.rules
    wait_s = 2 * rules.poll_interval_s
    again_s = rules.lost_confirm_s if track.sending.silent else wait_s / 2
    track.sending = replace(track.sending, lost=one_line(why, LOST_MAX))
    track.timers |= {Timer.GIVE_UP: now + wait_s, Timer.LOOK_UP: now + again_s}
    attempt = track.sending.attempt + 1
    context.retried(f"no task in the answer, looking for it: {why}", attempt=attempt, wait_s=wait_s)
    context.effects.append(LookUpTask())


def look_up(context: StepContext) -> None:
    """Search for the task again after the pause."""
    context.track.polling = replace(context.track.polling, looked_at=context.now.mono)
    context.effects.append(LookUpTask())


def found(context: StepContext, signal: Found) -> None:
    """The search for a lost task ended. A follow-up's task existed before, so it must show the message.

    After a lost reply the task may still appear. After a stream that the agent ended itself, a second search is the
    last. If the agent offers no search, only a webhook can name the task; it arrives when the task changes, which may
    take a while.
    """
    track, now, rules = context.track, context.now.mono, context.rules
    record, sending, task = track.record, track.sending, signal.task
    searching = Timer.GIVE_UP in track.timers
    if task is not None and record.request.task_id is not None and not shows_the_message(record, task):
        task = None
    if task is not None:
        context.retried(f"found the task whose reply {'was lost' if searching else 'is still awaited'}", Level.INFO)
        task_update(context, TaskUpdate(event=Snapshot(task=task), via=UpdateSource.POLL, began=now))
        return
    if not searching:  # the reply may still arrive: a search without a result ends nothing
        if sending.in_air and signal.possible:
            track.timers[Timer.LOOK_UP] = now + 2 * rules.poll_interval_s
        return
    if signal.error is not None:
        track.polling = replace(track.polling, trouble=one_line(str(signal.error), TROUBLE_MAX))
        if sending.silent:
            track.timers[Timer.LOOK_UP] = now + rules.lost_confirm_s
        return
    searches = sending.searches + 1
    track.sending = replace(sending, searches=searches, unsearchable=not signal.possible)
    hopeless = not signal.possible or (sending.silent and searches >= SEARCHES_MAX)
    if hopeless and not record.push:
        give_up_search(context)
    elif not signal.possible and not sending.unsearchable and not sending.silent:
        track.timers[Timer.GIVE_UP] = now + WEBHOOK_WAITS * rules.poll_interval_s


def give_up_search(context: StepContext) -> None:
    """No task was found: whether the work ran stays unknown.

    A search that is still under way, or waits for its turn at a busy agent, counts: the request waits for its end.
    """
    sending, trouble = context.track.sending, context.track.polling.trouble
    if not sending.searches and not trouble:
        context.track.timers[Timer.GIVE_UP] = context.now.mono + context.rules.poll_interval_s
        return
    if sending.silent:
        reason = f"{sending.lost}; its task was not found: it may have run"
        close(context, OutcomeKind.PROTOCOL_ERROR, Cause.PROTOCOL, reason)
    else:
        came = sending.lost or "the reply was lost"
        reason = f"{came}, and the agent {_why_not_found(context.track)}: it may have run"
        close(context, OutcomeKind.UNKNOWN, Cause.REPLY_LOST, reason)


def _why_not_found(track: Track) -> str:
    """Why a task that may exist cannot be found (docs/explanation/ledger.md)."""
    if track.sending.unsearchable and track.record.push:
        return "offers no way to look for its task, and no webhook told of it"
    if track.sending.unsearchable:
        return "offers no way to look for its task, and sends us no webhooks"
    if track.sending.searches:
        return f"asked for its task {track.sending.searches} times, shows none that is surely it"
    return f"could not be asked for its task: {track.polling.trouble}"


# ------------------------------------------------------------------ its stream ends, its time is over


def stream_ended(context: StepContext, signal: StreamEnded) -> None:
    """A stream is never an outcome: rejoin it a few times where that is safe, and poll (F-10, decision 0008)."""
    track, error, rules = context.track, signal.error, context.rules
    joining = track.streaming.joining
    streaming = track.streaming = replace(track.streaming, open=False, joining=False)
    if track.record.task is None:
        send_failed(context, SendFailed(error=error or EmptyStream()))
        return
    if context.ended or track.asking.question is not None:
        return
    if isinstance(error, RpcError) and not joining:
        streaming = replace(streaming, last_words=one_line(str(error), TROUBLE_MAX))
    if error is not None:
        context.effects.append(Publish(event=StreamBroken(why=one_line(str(error), 500))))
    refused = isinstance(error, MethodNotFound | UnsupportedOperation | TaskNotFound | LimitReached)
    if track.record.rejoin and not refused and streaming.rejoins < rules.resubscribes_max:
        waits_s = rules.retry_waits_s or (rules.poll_interval_s,)
        wait_s = waits_s[min(streaming.rejoins, len(waits_s) - 1)] * context.now.jitter
        track.timers[Timer.REJOIN] = context.now.mono + wait_s
        streaming = replace(streaming, rejoins=streaming.rejoins + 1)
    track.streaming, track.chunks = replace(streaming, gap=True), None
    # A task that has ended cannot be joined (A2A 1.0 section 3.1.6): a poll shows its end at once.
    ended = joining and isinstance(error, UnsupportedOperation)
    context.poll_at(context.now.mono if ended else context.soon)


def out_of_time(context: StepContext) -> None:
    """The request's time is over, in any stage. The reason says what is known."""
    track = context.track
    if track.sending.early:  # the wait for the reply ends: webhooks that arrived before it count
        track.timers[Timer.DEADLINE] = context.now.mono
        track.sending = replace(track.sending, in_air=False)
        hear_early(context)
        if track.outcome is not None or track.asking.question is not None:
            return
    record = track.record
    if context.ended:
        close(context, reason=track.polling.trouble or "the rest of it did not come in time")
        return
    limit_s = (record.deadline_at - record.accepted_at).total_seconds()
    reason = f"the time limit of {limit_s:g} s passed before the agent "
    if record.task is not None:
        trouble = track.polling.stopped.reason if track.polling.stopped else track.polling.trouble
        reason += "ended the task" + (f"; the last look at it: {trouble}" if trouble else "")
        own = Cause.CANCEL_UNCONFIRMED if record.cancel_wanted else Cause.TASK_DEADLINE
        give_up(context, OutcomeKind.EXPIRED, Cause.CALLER_DEADLINE if record.shortened else own, reason)
    elif record.phase is Phase.SENDING:
        lost = track.sending.lost
        reason += "told of a task: it may have run" + (f"; what came instead: {lost}" if lost else "")
        cause = Cause.CALLER_DEADLINE if record.shortened else Cause.REPLY_LOST
        close(context, OutcomeKind.EXPIRED, cause, reason)
    else:
        reason += "could be reached"
        cause = Cause.CALLER_DEADLINE if record.shortened else Cause.NEVER_SENT
        close(context, OutcomeKind.EXPIRED, cause, reason)


# ------------------------------------------------------------------ after a restart


def recovered(context: StepContext, signal: Recovered) -> None:
    """Continue from the state in the ledger. Never send again what the agent may have accepted (F-29)."""
    if signal.uncallable:
        _abandon(context, signal)
        return
    track = context.track
    unbound = track.record.task is None
    recall(context, signal.early)
    record = track.record
    if track.outcome is not None or (unbound and record.task is not None):
        return  # the agent has it: its webhook arrived before the restart
    if record.phase is Phase.INTENT and record.cancel_wanted:
        close(context, OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, "cancelled before it was sent")
        return
    if record.held:
        question = signal.question if signal.answer is None else None
        track.asking = Asking(question=question, recorded=question is not None)
        begin(context, Begin())
        return
    if record.phase is Phase.INTENT:
        left_s = (record.retry_at - context.now.wall).total_seconds() if record.retry_at is not None else 0.0
        if left_s > 0:  # a clock that was set back does not lengthen the pause
            waits_s = record.retry_waits_s or (0.0,)
            track.timers[Timer.RETRY] = context.now.mono + min(left_s, *waits_s[record.attempt - 1 : record.attempt])
        else:
            send(context)
        return
    if record.phase is Phase.SENDING and record.task is None:
        _reply_lost(context, "the hub restarted before the reply arrived")
        return
    context.poll_at(context.now.mono + min(context.now.jitter * context.rules.poll_interval_s, signal.look_within_s))
    if context.ended:
        track.ending = replace(track.ending, polls_owed=context.rules.owed_polls_max)
    elif record.cancel_wanted:
        cancel_once(context)  # the cancel may not have been sent before the restart
    question, answer = signal.question, signal.answer
    if question is None:
        if not context.ended:
            context.agents_turn()
    elif answer is None:
        asking.reopen(context, question)
    elif answer.decision is Decision.REJECT:
        asking.reject(context, answer)
    else:
        asking.recover_answer(context, question, answer)
    question_state = track.asking
    if (
        question_state.question is None
        and question_state.answer is None
        and record.task
        and record.task.state in INTERRUPTED
    ):
        asking.look_first(context, record.task)


def _abandon(context: StepContext, signal: Recovered) -> None:
    """The agent cannot be called any more: end the request with that reason."""
    if signal.question is not None and signal.answer is None:
        asking.reopen(context, signal.question)
    recall(context, signal.early)
    record, why = context.track.record, signal.uncallable
    if context.track.outcome is not None:
        return
    if record.phase is Phase.INTENT:
        close(context, OutcomeKind.UNDELIVERABLE, Cause.MISCONFIGURED, f"it was never sent: {why}")
    elif record.task is None:
        close(context, OutcomeKind.UNKNOWN, Cause.MISCONFIGURED, f"it may have run: {why}")
    else:
        close(context, OutcomeKind.LOST, Cause.MISCONFIGURED, why)
