"""The one decision: ``step(track, signal, now, rules)`` returns the new track and what to do about it.

Pure: no clock, no chance, no waiting. The tracker carries the effects out and comes back with signals.
The parts are told apart by subject: ``sending`` (the first send and what if it fails), ``hearing``
(what an agent says, from any channel), ``questions`` (its questions), ``answers`` (answers and
cancelling), ``due`` (what falls due).
"""

from __future__ import annotations

from fleetsim.caller.events import UpdateIgnored
from fleetsim.caller.ledger import Phase, RequestRecord
from fleetsim.caller.signals import (
    Answered,
    Begin,
    CancelAsked,
    CancelFailed,
    CancelReplied,
    Due,
    Effect,
    Found,
    Left,
    PollFailed,
    PushRegistered,
    Recovered,
    Replied,
    Resumed,
    ResumeFailed,
    SendFailed,
    Signal,
    StreamEnded,
    TurnedAway,
)
from fleetsim.caller.step import answers, due, hearing, sending
from fleetsim.caller.step.common import StepContext
from fleetsim.caller.track import Now, Rules, TaskUpdate, Track
from fleetsim.model.event import Snapshot
from fleetsim.model.work import UpdateSource


def new_track(record: RequestRecord, now: Now) -> Track:
    """A track for a record just accepted, or just read back after a restart.

    Durations are monotonic; the recorded wall times are clamped so that a jumped clock cannot make a
    request immortal or end it at once (reliability F-26).
    """
    age = max(0.0, (now.wall - record.accepted_at).total_seconds())
    limit = (record.deadline_at - record.accepted_at).total_seconds()
    left = min((record.deadline_at - now.wall).total_seconds(), limit)
    grace = 0.0 if record.phase is Phase.INTENT else 5.0
    turn = max(0.0, (now.wall - record.agent_since).total_seconds()) if record.agent_since else None
    return Track(
        record=record,
        began=now.mono - min(age, limit),
        turn_from=None if turn is None else now.mono - min(turn, limit),
        deadline=now.mono + max(left, grace),
        try_stream=record.streaming,
    )


def step(track: Track, signal: Signal, now: Now, rules: Rules) -> tuple[Track, tuple[Effect, ...]]:
    """Apply one signal. A closed track never changes again: late signals are recorded as stale."""
    s = StepContext(track, now, rules)
    if track.outcome is not None:
        _late(s, signal)
    else:
        _apply(s, signal)
        hearing.give_up_untold(s)
    return s.track, tuple(s.effects)


def _apply(s: StepContext, signal: Signal) -> None:  # one arm per signal: a table, not logic
    match signal:
        case Begin():
            sending.begin(s)
        case Recovered(question=question, answer=answer, early=early, uncallable=""):
            sending.recover(s, question, answer, early)
        case Recovered(question=question, answer=answer, early=early, uncallable=why):
            sending.abandon(s, question if answer is None else None, early, why)
        case Left():
            sending.left(s)
        case Replied(reply=reply, began=began):
            sending.replied(s, reply, began)
        case SendFailed(error=error):
            sending.failed(s, error)
        case Found():
            sending.found(s, signal)
        case TaskUpdate():
            hearing.heard(s, signal)
        case StreamEnded(error=error):
            sending.stream_ended(s, error)
        case PollFailed(error=error):
            hearing.poll_failed(s, error)
        case PushRegistered(error=error):
            hearing.push_registered(s, error)
        case TurnedAway():
            hearing.turned_away(s)
        case Answered(answer=answer):
            answers.answered(s, answer)
        case Resumed(reply=reply, began=began):
            answers.resumed(s, reply, began)
        case ResumeFailed(error=error):
            answers.resume_failed(s, error)
        case CancelAsked(by=by):
            answers.cancel_asked(s, by)
        case CancelReplied(task=task, began=began):
            hearing.heard(s, TaskUpdate(event=Snapshot(task=task), via=UpdateSource.REPLY, began=began))
            answers.cancel_replied(s)
        case CancelFailed(error=error):
            answers.cancel_failed(s, error)
        case Due():
            due.due(s)


def _late(s: StepContext, signal: Signal) -> None:
    if isinstance(signal, TaskUpdate):
        state = hearing.state_of(signal.event)
        s.publish(UpdateIgnored(state=state, via=signal.via.value, why="already ended"))
