"""What falls due: polls, retries, questions, and the deadline of the whole request."""

from __future__ import annotations

from dataclasses import replace

from fleetsim.caller.ledger import Phase
from fleetsim.caller.signals import LookUpTask
from fleetsim.caller.step import answers, hearing, questions, sending
from fleetsim.caller.step.common import StepContext
from fleetsim.model.work import Cause, OutcomeKind


def due(s: StepContext) -> None:
    """Do everything whose time has come, in order of weight; stop once the track is closed."""
    wake = s.track.wake
    if wake is not None and s.now.mono - wake > s.rules.stall_s:
        _excuse(s)
    for check in (_question, _reminder, _deadline, _cancel, _reconcile, _find, _retry, _resume, _poll):
        if s.track.outcome is not None:
            return
        check(s)


def _excuse(s: StepContext) -> None:
    """We were not looking (a stalled loop, a host that slept): nobody is to blame for what passed meanwhile.

    Whatever would end the request gets one grace to be heard first, and the agent is asked now (F-27, F-43).
    """
    until = s.now.mono + s.rules.grace_s
    asked, track = s.track.asked, s.track
    if asked is not None and _passed(s, asked.due):
        s.set(asked=replace(asked, due=until))
    if asked is None and _passed(s, track.deadline):
        s.set(deadline=until)
    if _passed(s, track.cancel_due):
        s.set(cancel_due=until)
    if _passed(s, track.reconcile_due):
        s.set(reconcile_due=until, find_due=s.now.mono)
    if track.task is not None:
        s.poll_at(s.now.mono)


def _passed(s: StepContext, when: float | None) -> bool:
    return when is not None and s.now.mono >= when


def _question(s: StepContext) -> None:
    if s.track.asked is not None and _passed(s, s.track.asked.due):
        answers.question_lapsed(s)


def _reminder(s: StepContext) -> None:
    if s.track.asked is not None and _passed(s, s.track.asked.remind):
        questions.remind(s)


def _deadline(s: StepContext) -> None:
    """The request's time is over, whatever it is at. What we know of why is said with it."""
    if s.track.asked is not None or not _passed(s, s.track.deadline):
        return
    if s.track.early_updates:  # the reply is not waited for any longer: what webhooks told before it counts
        s.set(in_air=False)
        hearing.unpark(s)
        if s.track.outcome is not None or s.track.asked is not None:
            return
    record, limit_s = s.track.record, s.track.limit_s
    reason = f"the time limit of {limit_s:g} s passed before the agent "
    if s.track.task is not None:
        trouble = s.track.stopped.reason if s.track.stopped else s.track.trouble
        reason += "ended the task" + (f"; the last look at it: {trouble}" if trouble else "")
        own = Cause.CANCEL_UNCONFIRMED if record.cancel_wanted else Cause.TASK_DEADLINE
        s.give_up(OutcomeKind.EXPIRED, Cause.CALLER_DEADLINE if record.shortened else own, reason)
    elif s.track.record.phase is Phase.SENDING:
        reason += "told of a task: it may have run" + (f"; what came instead: {s.track.lost}" if s.track.lost else "")
        s.close(OutcomeKind.EXPIRED, Cause.CALLER_DEADLINE if record.shortened else Cause.REPLY_LOST, reason)
    else:
        reason += "could be reached"
        s.close(OutcomeKind.EXPIRED, Cause.CALLER_DEADLINE if record.shortened else Cause.NEVER_SENT, reason)


def _cancel(s: StepContext) -> None:
    if _passed(s, s.track.cancel_due):
        answers.cancel_lapsed(s)


def _reconcile(s: StepContext) -> None:
    if _passed(s, s.track.reconcile_due):
        sending.give_up_reply(s)


def _find(s: StepContext) -> None:
    if _passed(s, s.track.find_due):
        s.set(find_due=None, looked_at=s.now.mono)
        s.emit(LookUpTask())


def _retry(s: StepContext) -> None:
    if not _passed(s, s.track.retry_due):
        return
    if s.track.task is None:
        sending.resend(s)
    else:
        hearing.rejoin(s)


def _resume(s: StepContext) -> None:
    if _passed(s, s.track.resume_due):
        answers.resume_again(s)


def _poll(s: StepContext) -> None:
    if s.track.poll_began is None and s.track.task is not None and _passed(s, s.track.poll_due):
        hearing.poll_now(s)
