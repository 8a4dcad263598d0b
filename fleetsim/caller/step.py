"""The one decision: ``step(track, signal, now, rules)`` returns the new track and what to do about it.

Pure: no clock, no chance, no waiting. The tracker carries the effects out and comes back with signals.
The parts are told apart by subject: ``step_send`` (the first send and what if it fails), ``step_hear``
(what an agent says, from any channel), ``step_ask`` (its questions), ``step_answer`` (answers and
cancelling), ``step_time`` (what falls due).
"""

from __future__ import annotations

from fleetsim.caller import step_answer, step_hear, step_send, step_time
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
    PollFailed,
    PushRegistered,
    Recovered,
    Replied,
    Resumed,
    ResumeFailed,
    SendFailed,
    Signal,
    StreamEnded,
)
from fleetsim.caller.stepping import Stepping
from fleetsim.caller.track import Heard, Now, Rules, Track
from fleetsim.model.event import Snapshot
from fleetsim.model.journal import Level
from fleetsim.model.work import Via


def new_track(record: RequestRecord, now: Now) -> Track:
    """A track for a record just accepted, or just read back after a restart.

    Durations are monotonic; the recorded wall times are clamped so that a jumped clock cannot make a
    request immortal or end it at once (reliability F-26).
    """
    age = max(0.0, (now.wall - record.accepted_at).total_seconds())
    limit = max(0.0, (record.deadline_at - record.accepted_at).total_seconds())
    left = min(max((record.deadline_at - now.wall).total_seconds(), 0.0), limit)
    grace = 0.0 if record.phase is Phase.INTENT else 5.0
    return Track(
        record=record,
        began=now.mono - min(age, limit),
        deadline=now.mono + max(left, grace),
        try_stream=record.streaming,
    )


def step(track: Track, signal: Signal, now: Now, rules: Rules) -> tuple[Track, tuple[Effect, ...]]:
    """Apply one signal. A closed track never changes again: late signals are recorded as stale."""
    s = Stepping(track, now, rules)
    if track.outcome is not None:
        _late(s, signal)
    else:
        _apply(s, signal)
    return s.track, tuple(s.effects)


def _apply(s: Stepping, signal: Signal) -> None:  # one arm per signal: a table, not logic
    match signal:
        case Begin():
            step_send.begin(s)
        case Recovered(question=question, answer=answer):
            step_send.recover(s, question, answer)
        case Replied(reply=reply, began=began):
            step_send.replied(s, reply, began)
        case SendFailed(error=error):
            step_send.failed(s, error)
        case Found(task=task):
            step_send.found(s, task)
        case Heard():
            step_hear.heard(s, signal)
        case StreamEnded(error=error):
            step_send.stream_ended(s, error)
        case PollFailed(error=error):
            step_hear.poll_failed(s, error)
        case PushRegistered(error=error):
            step_hear.push_registered(s, error)
        case Answered(answer=answer):
            step_answer.answered(s, answer)
        case Resumed(reply=reply, began=began):
            step_answer.resumed(s, reply, began)
        case ResumeFailed(error=error):
            step_answer.resume_failed(s, error)
        case CancelAsked(by=by):
            step_answer.cancel_asked(s, by)
        case CancelReplied(task=task, began=began):
            step_hear.heard(s, Heard(event=Snapshot(task=task), via=Via.REPLY, began=began))
            step_answer.cancel_replied(s)
        case CancelFailed(error=error):
            step_answer.cancel_failed(s, error)
        case Due():
            step_time.due(s)


def _late(s: Stepping, signal: Signal) -> None:
    if isinstance(signal, Heard):
        state = step_hear.state_of(signal.event)
        s.say("agent.skill.stale", Level.DEBUG, state=state, via=signal.via.value, why="already ended")
