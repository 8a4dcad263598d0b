"""What falls due: polls, retries, questions, and the deadline of the whole request."""

from __future__ import annotations

from fleetsim.caller import step_answer, step_hear, step_send
from fleetsim.caller.signals import Cancel, Find
from fleetsim.caller.stepping import Stepping
from fleetsim.model.errors import Blame
from fleetsim.model.work import OutcomeKind


def due(s: Stepping) -> None:
    """Do everything whose time has come, in order of weight; stop once the track is closed."""
    for check in (_question, _deadline, _cancel, _reconcile, _find, _retry, _resume, _poll):
        if s.track.outcome is not None:
            return
        check(s)


def _passed(s: Stepping, when: float | None) -> bool:
    return when is not None and s.now.mono >= when


def _question(s: Stepping) -> None:
    if s.track.asked is not None and _passed(s, s.track.asked.due):
        step_answer.question_lapsed(s)


def _deadline(s: Stepping) -> None:
    if s.track.asked is None and _passed(s, s.track.deadline):
        if s.track.task is not None:
            s.emit(Cancel())
            reason = "the time limit passed before the agent ended the task"
            s.close(OutcomeKind.EXPIRED, reason, Blame.AGENT)
        elif s.track.in_air or s.track.reconcile_due is not None:
            step_send.give_up_reply(s)
        else:
            reason = "the time limit passed before the agent could be reached"
            s.close(OutcomeKind.UNDELIVERABLE, reason, Blame.NETWORK)


def _cancel(s: Stepping) -> None:
    if _passed(s, s.track.cancel_due):
        step_answer.cancel_lapsed(s)


def _reconcile(s: Stepping) -> None:
    if _passed(s, s.track.reconcile_due):
        step_send.give_up_reply(s)


def _find(s: Stepping) -> None:
    if _passed(s, s.track.find_due):
        s.set(find_due=None)
        s.emit(Find())


def _retry(s: Stepping) -> None:
    if not _passed(s, s.track.retry_due):
        return
    if s.track.task is None:
        step_send.resend(s)
    else:
        step_hear.rejoin(s)


def _resume(s: Stepping) -> None:
    if _passed(s, s.track.resume_due):
        step_answer.resume_again(s)


def _poll(s: Stepping) -> None:
    if s.track.poll_began is None and s.track.task is not None and _passed(s, s.track.poll_due):
        step_hear.poll_now(s)
