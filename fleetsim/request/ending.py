"""The end of a request: cancel, time limit, failure, and its one outcome."""

from __future__ import annotations

from msgspec.structs import replace

from fleetsim.events.request import CancelRefused, QuestionExpired, QuestionWithdrawn
from fleetsim.model.asking import text_of
from fleetsim.model.errors import (
    AuthRefused,
    ContentTypeNotSupported,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    InvalidRequest,
    LimitReached,
    RpcError,
    TaskNotFound,
    TransportError,
    WireError,
)
from fleetsim.model.extensions import REASON_CHARS_MAX, Extras, cause_from_hub, read_extras, reason_of
from fleetsim.model.parts import answer_parts
from fleetsim.model.task import TaskState
from fleetsim.model.text import one_line
from fleetsim.model.work import BLAME, KIND_OF_STATE, Cause, Outcome, OutcomeKind
from fleetsim.request.records import QuestionState, RequestRecord
from fleetsim.request.signals import (
    Cancel,
    CancelAsked,
    CancelFailed,
    Close,
    Publish,
    ResolveQuestion,
    StepContext,
    agent_seconds,
)
from fleetsim.request.track import Now, Rates, Timer, Track

_BAD_REQUEST = frozenset({400, 413, 414, 415, 422})
"""HTTP statuses that blame the request and not its address."""

LAST_MESSAGE = "the agent answered in status messages alone; only the last one is kept"


def cancel_asked(context: StepContext, signal: CancelAsked) -> None:
    """A person or a caller cancels the task."""
    cancel(context, signal.by)


def cancel(context: StepContext, by: str) -> None:
    """Cancel a bound task, record the cancel for an unbound one, and end a request that was never sent (F-25)."""
    context.save(cancel_wanted=True)
    if context.track.record.task is not None:
        if not context.ended:
            cancel_once(context)
    elif Timer.RETRY in context.track.timers or context.track.record.held:
        close(context, OutcomeKind.UNDELIVERABLE, Cause.CANCELED_BY_PERSON, f"cancelled by {by} before it was sent")


def cancel_once(context: StepContext) -> None:
    """Send a cancel for the bound task; the agent has some time to confirm."""
    track = context.track
    if not track.ending.cancel_sent:
        track.ending = replace(track.ending, cancel_sent=True)
        track.timers[Timer.CANCEL] = context.now.mono + context.rules.cancel_patience_s
        context.effects.append(Cancel())


def cancel_failed(context: StepContext, signal: CancelFailed) -> None:
    """Poll the task: the state that the agent reports decides (F-24).

    After a refusal the request continues, and may be canceled again; only a rejected question is not asked again.
    """
    track, error = context.track, signal.error
    if isinstance(error, TaskNotFound) or not (
        isinstance(error, RpcError) or (isinstance(error, HttpRefused) and not error.sent)
    ):
        context.retried(f"cancel: {error}")
    else:
        why = one_line(str(error), REASON_CHARS_MAX)
        warning = f"the agent refused a cancel: {why}"
        context.effects.append(Publish(event=CancelRefused(why=why)))
        track.ending = replace(track.ending, cancel_sent=track.record.rejected, cancel_refused=why)
        if not track.record.rejected:
            track.timers.pop(Timer.CANCEL, None)
        known = track.record.warnings
        context.save(cancel_wanted=track.record.rejected, warnings=known if warning in known else (*known, warning))
    context.poll_at(context.now.mono)


def cancel_unconfirmed(context: StepContext) -> None:
    """The agent did not confirm the cancel in time."""
    refused = context.track.ending.cancel_refused
    reason = f"the agent refused the cancel: {refused}" if refused else "the agent did not confirm the cancel in time"
    close(context, OutcomeKind.EXPIRED, Cause.CANCEL_UNCONFIRMED, reason)


def give_up(context: StepContext, kind: OutcomeKind, cause: Cause, reason: str) -> None:
    """End the track from our side, and cancel the task unless it has ended."""
    if not context.ended:
        context.effects.append(Cancel())
    close(context, kind, cause, reason)


def close(context: StepContext, kind: OutcomeKind | None = None, cause: Cause | None = None, reason: str = "") -> None:
    """End the track: decide its outcome, and close an open question.

    ``kind`` and ``cause`` None mean the agent's own terminal state. Once that is known, no other end replaces it:
    terminal states do not change (decision 7). ``reason`` then says why the result may be incomplete.
    """
    track, task = context.track, context.track.record.task
    if task is not None and context.ended:
        unsure = f"the agent said completed, and its result could not be confirmed: {reason}"
        kind, cause, reason = None, None, unsure if reason and task.state is TaskState.COMPLETED else ""
        status, known = task.status, track.record.warnings
        if status.state is TaskState.COMPLETED and track.streaming.replaced and not (status.message or task.text):
            track.record = replace(track.record, warnings=(*known, LAST_MESSAGE))
    settle_question(context, QuestionState.EXPIRED if kind is OutcomeKind.EXPIRED else QuestionState.WITHDRAWN)
    track.outcome = outcome_of(track, context.now, kind=kind, cause=cause, reason=reason, rates=context.rules.rates)
    track.asking = replace(track.asking, question=None)
    track.sending = replace(track.sending, early=())
    track.timers.clear()
    context.effects.append(Close(outcome=track.outcome))


def settle_question(context: StepContext, state: QuestionState) -> None:
    """Close the open question, if there is one. Only a visible question is published."""
    asking = context.track.asking
    if asking.question is None:
        return
    question_id = asking.question.question_id
    context.effects.append(ResolveQuestion(question_id=question_id, state=state))
    if asking.recorded:
        over = QuestionExpired if state is QuestionState.EXPIRED else QuestionWithdrawn
        context.effects.append(Publish(event=over(question_id=question_id)))


def cause_of(error: FleetsimError) -> Cause:
    """The end of a request whose call failed for good."""
    match error:
        case AuthRefused():
            return Cause.CREDENTIAL_REFUSED
        case HttpRefused(status=status):
            return Cause.REQUEST_WRONG if status in _BAD_REQUEST else Cause.REFUSED
        case WireError():
            return Cause.PROTOCOL
        case LimitReached():
            return Cause.LIMIT_REACHED
        case InternalError():
            return Cause.INTERNAL_ERROR
        case InvalidParams() | InvalidRequest() | ContentTypeNotSupported():
            return Cause.REQUEST_WRONG
        case RpcError():
            return Cause.REFUSED
        case TransportError():
            return Cause.UNREACHABLE
        case _:
            return Cause.MISCONFIGURED


def outcome_of(
    track: Track,
    now: Now,
    *,
    kind: OutcomeKind | None = None,
    cause: Cause | None = None,
    reason: str = "",
    rates: Rates | None = None,
) -> Outcome:
    """The outcome of a track that ends now; ``kind`` and ``cause`` None mean the agent's own terminal state.

    ``success``: the agent completed the task and no payload of its own denies it, because health counts work that was
    done, not calls that were answered. Text, cost and effects come from the folded task, so they are the same for
    stream, poll and webhook, and count once. Tokens without a cost are priced here, once, by ``rates``.
    """
    record = track.record
    task = record.task
    extras = read_extras(task) if task else Extras()
    end = kind or KIND_OF_STATE[task.state] if task else kind or OutcomeKind.UNKNOWN
    success = end is OutcomeKind.COMPLETED and not extras.denies_success
    text, chars = text_of(task) if task else ("", 0)
    parts, parts_total = answer_parts(task) if task else ((), 0)
    if end is OutcomeKind.COMPLETED and not success:
        reason = reason or "the agent reported completed, but its payload has success: false"
    elif not success and not reason:
        as_asked = end is OutcomeKind.CANCELED and record.cancel_wanted
        default = "canceled as asked" if as_asked else f"the agent said {end.value} without a reason"
        noted = reason_of(task) if task else ""
        reason = one_line(text, REASON_CHARS_MAX) or noted or track.streaming.last_words or default
    why = cause or _own_cause(end, success, record)
    cost, confidence = extras.cost, extras.confidence
    reported = cost.cost_usd if cost else None
    left_out = extras.deltas_left_out
    not_kept = (f"{left_out} of {left_out + len(extras.deltas)} reported effects are not kept",) if left_out else ()
    estimated = (rates or Rates()).estimate(cost.usage, cost.model) if cost and reported is None else None
    return Outcome(
        correlation_id=record.request.correlation_id,
        parent_id=record.request.parent_id,
        agent=record.agent,
        skill=record.skill,
        system_actor=record.request.system_actor,
        kind=end,
        success=success,
        cause=why,
        blame=BLAME[end, why],
        started_at=record.accepted_at,
        ended_at=now.wall,
        duration_ms=max(0, round((now.mono - track.began) * 1000)),
        agent_ms=round(agent_seconds(track, now) * 1000),
        text=text,
        reason=reason,
        task_id=task.task_id if task else None,
        context_id=(task.context_id if task else record.request.context_id) or None,
        via=track.via,
        usage=cost.usage if cost else None,
        cost_usd=estimated if reported is None else reported,
        cost_estimated=estimated is not None,
        model=cost.model if cost else None,
        confidence=confidence.confidence if confidence else None,
        confidence_explanation=confidence.explanation if confidence else None,
        effects=extras.deltas,
        warnings=(*record.warnings, *not_kept),
        truncated=chars > len(text),
        text_chars=chars,
        parts=parts,
        parts_total=parts_total,
        chunks=track.chunks if record.streaming else None,
        retry_of=record.request.retry_of,
    )


def _own_cause(kind: OutcomeKind, success: bool, record: RequestRecord) -> Cause:
    """The cause of an end that the agent reported. After a cancel it is the requester of the cancel."""
    if success:
        return Cause.AGENT_SAID
    if record.cancel_wanted:
        return Cause.REJECTED_BY_PERSON if record.rejected else Cause.CANCELED_BY_PERSON
    if kind is OutcomeKind.COMPLETED:
        return Cause.SUCCESS_DENIED
    if (kind, Cause.REQUEST_WRONG) in BLAME and cause_from_hub(record.task) == Cause.REQUEST_WRONG:
        return Cause.REQUEST_WRONG  # the agent is a hub, and an agent behind it reported the cause
    return Cause.CANCELED_UNASKED if kind is OutcomeKind.CANCELED else Cause.AGENT_SAID
