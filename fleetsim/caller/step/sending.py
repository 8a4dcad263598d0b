"""The first send: retried only while nothing can have been accepted, searched for when its reply is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleetsim.caller.events import CredentialRefused, Level, StreamBroken, WebhooksDegraded
from fleetsim.caller.follow_up import shows_the_message
from fleetsim.caller.ledger import OtherWay, Phase
from fleetsim.caller.outcome import cause_of
from fleetsim.caller.signals import Found, LookUpTask, Send
from fleetsim.caller.step import answers, hearing, questions
from fleetsim.caller.step.common import StepContext
from fleetsim.caller.track import TaskUpdate, Track
from fleetsim.model.errors import (
    AuthRefused,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TaskNotFound,
    TransportError,
    UnsupportedOperation,
    VersionNotSupported,
    WireError,
)
from fleetsim.model.event import DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import INTERRUPTED, Message, Task
from fleetsim.model.text import one_line
from fleetsim.model.work import Answer, Cause, Decision, OutcomeKind, Question, UpdateSource

_UNKNOWN = (MethodNotFound, VersionNotSupported)
"""-32601 and -32009: the agent does not know what was asked, so it has done nothing."""

LOST_MAX = 400
"""Characters of what came instead of a reply that are told with the outcome."""

SEARCHES_MAX = 2
"""Looks for the task of an agent that ended its stream without a word."""

WEBHOOK_WAITS = 10
"""Poll intervals that a webhook is waited for where it alone can tell which task is ours: it may be a long one."""


def begin(s: StepContext) -> None:
    """Send for the first time."""
    _send(s)


def _send(s: StepContext) -> None:
    """Ask for it to be sent. It may wait for its turn, and nothing has left until then."""
    s.set(in_air=True, retry_due=None)
    s.emit(Send(stream=s.track.try_stream))


def left(s: StepContext) -> None:
    """Its turn has come, and bytes may leave: whatever is saved of it from here on must say so (F-29).

    It is the carrier that records it, before the first byte; here it is only not taken back.
    """
    s.agents_turn()
    if s.track.task is None:
        s.set(record=replace(s.track.record, phase=Phase.SENDING))


def recover(s: StepContext, question: Question | None, answer: Answer | None, early: Iterable[TaskEvent]) -> None:
    """Go on where the ledger says we were: never resend what may have been accepted (F-29)."""
    unbound = s.track.task is None
    hearing.recall(s, early)
    if s.track.outcome is not None or (unbound and s.track.task is not None):
        return  # the agent has it: its webhook came before the restart
    record = s.track.record
    if record.phase is Phase.INTENT and record.cancel_wanted:
        s.close(OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, "cancelled before it was sent")
        return
    if record.phase is Phase.INTENT:
        begin(s)
        return
    if record.phase is Phase.SENDING and record.task is None:
        _reply_lost(s, "the hub restarted before the reply arrived")
        return
    s.poll_at(s.now.mono + min(s.now.jitter * s.rules.poll_interval_s, 4.0))
    if s.ended:
        s.set(confirming_polls_left=s.rules.owed_polls_max)
    elif record.cancel_wanted:
        hearing.cancel_once(s)  # whether it was said before the restart is not known
    if question is not None:
        _reopen(s, question, answer)
    elif not s.ended:
        s.agents_turn()
    if s.track.asked is None and s.track.resume is None and record.task and record.task.state in INTERRUPTED:
        questions.look_first(s, record.task)


def abandon(s: StepContext, question: Question | None, early: Iterable[TaskEvent], why: str) -> None:
    """Nobody can be asked about it any more: end it with that reason, and as what it was."""
    if question is not None:
        questions.reopen(s, question)
    hearing.recall(s, early)
    record = s.track.record
    if s.track.outcome is not None:
        return
    if record.phase is Phase.INTENT:
        s.close(OutcomeKind.UNDELIVERABLE, Cause.MISCONFIGURED, f"it was never sent: {why}")
    elif record.task is None:
        s.close(OutcomeKind.UNKNOWN, Cause.MISCONFIGURED, f"it may have run: {why}")
    else:
        s.close(OutcomeKind.LOST, Cause.MISCONFIGURED, why)


def _reopen(s: StepContext, question: Question, answer: Answer | None) -> None:
    if answer is None:
        questions.reopen(s, question)
    elif answer.decision is Decision.REJECT:
        answers.rejected(s, answer)
    else:
        questions.take_up_answer(s, question, answer)


def replied(s: StepContext, reply: Task | Message, began: float) -> None:
    """The agent took it: bind the task, then treat the answer like any other news of it."""
    s.set(in_air=False)
    event = Snapshot(task=reply) if isinstance(reply, Task) else DirectReply(message=reply)
    hearing.heard(s, TaskUpdate(event=event, via=UpdateSource.REPLY, began=began))


def failed(s: StepContext, error: FleetsimError) -> None:
    """The first send failed. Only what cannot have been accepted is tried again.

    What a webhook told before is true whatever the reply was: the agent has it.
    """
    s.set(in_air=False)
    hearing.unpark(s)
    if s.track.task is not None:
        s.retried(f"a webhook told of the task already: {error}", Level.INFO)
        return
    if isinstance(error, EmptyStream):
        s.set(silent=True)
        _reply_lost(s, str(error))
        return
    if s.track.record.cancel_wanted and _certainly_refused(error):
        s.close(OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, "cancelled before it was sent")
        return
    if s.track.try_stream and isinstance(error, MethodNotFound | UnsupportedOperation):
        s.set(try_stream=False)
        _send_otherwise(s, "no streaming after all: sending plainly")
        return
    if isinstance(error, _UNKNOWN) and s.track.record.other is not None:
        _turn(s, s.track.record.other, error)
        return
    if isinstance(error, InvalidParams | PushNotSupported) and _webhook_inside(s):
        s.set(record=replace(s.track.record, push=False))
        s.publish(WebhooksDegraded(why=f"refused with the send: {error}", refused=True))
        _send_otherwise(s, "the webhook was refused: sending without it")
        return
    if isinstance(error, AuthRefused) and error.status == 401 and s.track.attempt == 0:
        _retry(s, error)  # keys are read afresh for every call: the one that was changed meanwhile is used now
        return
    if isinstance(error, WireError | LimitReached):
        cause = Cause.PROTOCOL if isinstance(error, WireError) else Cause.LIMIT_REACHED
        s.close(OutcomeKind.PROTOCOL_ERROR, cause, str(error))
    elif isinstance(error, InternalError):
        s.close(OutcomeKind.FAILED, Cause.INTERNAL_ERROR, f"the agent answered {error.wire_code}: {error}")
    elif _maybe_accepted(error):
        _reply_lost(s, str(error))
    elif error.retryable and s.track.attempt < len(s.rules.retry_waits_s):
        _retry(s, error)
    else:
        if isinstance(error, AuthRefused):
            s.publish(CredentialRefused(why=str(error)))
        asked = s.track.record.request.task_id
        ours = asked is not None and isinstance(error, TaskNotFound | UnsupportedOperation | InvalidParams)
        s.close(OutcomeKind.UNDELIVERABLE, Cause.REQUEST_WRONG if ours else cause_of(error), _why(s, error))


def _send_otherwise(s: StepContext, reason: str) -> None:
    """The same message in another form, at once: it was refused, so nothing was accepted."""
    s.retried(reason, Level.INFO, attempt=s.track.attempt)
    s.not_taken()
    _send(s)


def _turn(s: StepContext, other: OtherWay, error: RpcError) -> None:
    """The agent does not know the dialect its card reads as: the other one, once (decision 0013)."""
    turned = replace(
        s.track.record,
        dialect=other.dialect,
        rpc_url=other.rpc_url,
        tenant=other.tenant,
        rejoin=other.rejoin,
        other=None,
        turned=True,
    )
    s.set(try_stream=False, record=turned)
    _send_otherwise(s, f"refused with {error.wire_code}: trying A2A {other.dialect}")


def _webhook_inside(s: StepContext) -> bool:
    return s.track.record.push and not s.track.record.register_push


def _maybe_accepted(error: FleetsimError) -> bool:
    return isinstance(error, TransportError | HttpRefused) and error.sent


def _certainly_refused(error: FleetsimError) -> bool:
    """An answer that cannot be read, or that speaks of trouble inside, may come from an agent at work."""
    return not _maybe_accepted(error) and not isinstance(error, WireError | LimitReached | InternalError)


def _why(s: StepContext, error: FleetsimError) -> str:
    if isinstance(error, AuthRefused):
        return f"the agent refused our credential (HTTP {error.status})"
    also = " in either dialect" if s.track.record.turned and isinstance(error, _UNKNOWN) else ""
    if isinstance(error, RpcError):
        return f"the agent refused it with {error.wire_code}{also}: {error}"
    return str(error)


def _retry(s: StepContext, error: FleetsimError) -> None:
    """Wait with full jitter, but never less than the agent asked for (Retry-After)."""
    wait = max(s.rules.retry_waits_s[s.track.attempt] * s.now.jitter, 0.05)
    if isinstance(error, HttpRefused) and error.retry_after_s is not None:
        wait = max(wait, min(max(error.retry_after_s, 0.0), s.rules.retry_after_max_s))
    attempt = s.track.attempt + 1
    s.set(attempt=attempt, retry_due=s.now.mono + wait)
    s.not_taken()
    s.record(phase=Phase.INTENT)
    s.retried(str(error), attempt=attempt + 1, wait_s=wait)


def resend(s: StepContext) -> None:
    """The retry fell due."""
    _send(s)


def _reply_lost(s: StepContext, why: str) -> None:
    """The agent may have it. Look for it; never send it again (F-03)."""
    s.set(lost=one_line(why, LOST_MAX))
    wait = 2 * s.rules.poll_interval_s
    again = s.rules.lost_confirm_s if s.track.silent else wait / 2
    s.set(reconcile_due=s.now.mono + wait, find_due=s.now.mono + again, poll_due=None)
    s.retried(f"no task in the answer, looking for it: {why}", attempt=s.track.attempt + 1, wait_s=wait)
    s.emit(LookUpTask())


def found(s: StepContext, signal: Found) -> None:
    """The search for a lost task came back. A follow-up's task was there before: it must tell of the message.

    A reply that was lost on the way may belong to a task that is still to appear. An agent that ended its own
    stream has had its say: what is not there at a second look is not waited for. And where no search is possible,
    only a webhook is worth waiting for; it comes when the task moves, which may take a while.
    """
    if s.track.task is not None or s.track.reconcile_due is None:
        return
    record, task = s.track.record, signal.task
    if task is not None and record.request.task_id is not None and not shows_the_message(record, task):
        task = None
    if task is not None:
        s.retried("found the task whose reply was lost", Level.INFO)
        hearing.heard(s, TaskUpdate(event=Snapshot(task=task), via=UpdateSource.POLL, began=s.now.mono))
        return
    if signal.error is not None:
        s.set(trouble=one_line(str(signal.error), hearing.TROUBLE_MAX))
        if s.track.silent:
            s.set(find_due=s.now.mono + s.rules.lost_confirm_s)
        return
    first, silent = not s.track.unsearchable, s.track.silent
    s.set(searches=s.track.searches + 1, unsearchable=not signal.possible)
    hopeless = not signal.possible or (silent and s.track.searches >= SEARCHES_MAX)
    if hopeless and not s.track.record.push:
        give_up_reply(s)
    elif not signal.possible and first and not silent:
        s.set(reconcile_due=s.now.mono + WEBHOOK_WAITS * s.rules.poll_interval_s)


def give_up_reply(s: StepContext) -> None:
    """Nothing turned up: it may have run, and nobody knows."""
    if s.track.silent:
        reason = "the agent ended the stream without a word and its task was not found: it may have run"
        s.close(OutcomeKind.PROTOCOL_ERROR, Cause.PROTOCOL, reason)
    else:
        came = s.track.lost or "the reply was lost"
        reason = f"{came}, and the agent {_why_not_found(s.track)}: it may have run"
        s.close(OutcomeKind.UNKNOWN, Cause.REPLY_LOST, reason)


def _why_not_found(track: Track) -> str:
    """What stands between us and a task that may exist (docs/explanation/ledger.md)."""
    if track.unsearchable and track.record.push:
        return "offers no way to look for its task, and no webhook told of it"
    if track.unsearchable:
        return "offers no way to look for its task, and sends us no webhooks"
    if track.searches:
        return f"asked for its task {track.searches} times, shows none that is surely it"
    return f"could not be asked for its task: {track.trouble or 'no answer came in time'}"


def stream_ended(s: StepContext, error: FleetsimError | None) -> None:
    """A stream is never an outcome: rejoin it a few times where that is safe, and poll (F-10, decision 0008)."""
    s.set(stream_open=False, joining=False)
    if s.track.task is None:
        failed(s, error or EmptyStream())
        return
    if s.track.task.terminal or s.track.asked is not None:
        return
    if error is not None:
        s.publish(StreamBroken(why=one_line(str(error), 500)))
    refused = isinstance(error, MethodNotFound | UnsupportedOperation | TaskNotFound | LimitReached)
    if s.track.record.rejoin and not refused and s.track.resubscribes < s.rules.resubscribes_max:
        wait = s.rules.retry_waits_s[min(s.track.resubscribes, len(s.rules.retry_waits_s) - 1)] * s.now.jitter
        s.set(retry_due=s.now.mono + wait, resubscribes=s.track.resubscribes + 1)
    s.set(gap=True)
    s.poll_at(s.soon)
