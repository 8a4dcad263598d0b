"""The state machine of a request: its stages, and the effect of each signal in each stage.

Between acceptance and outcome a request is a value, the ``Track``. Only *signals* change it: the agent sent an update,
a call failed, a person answered, time has passed. ``step`` takes one signal and returns the new track and the *effects*
to carry out: send, poll, save, ask, close. It does not wait, read a clock or draw random numbers (``Now`` has both), so
a test can replay every history. The tracker carries the effects out, and their results return as signals.

A track is in one of seven *stages*. No field stores it: ``stage_of`` computes it from the track, so the two cannot
disagree. At first no task is known: the send waits, is under way or is repeated (``SENDING``), or its reply is lost and
the hub searches for the task (``SEARCHING``). The first update that names a task *binds* the request to it, for good.
Then the agent works (``FOLLOWING``), waits for an answer (``ASKING``), or an answer is on its way (``ANSWERING``).
After the agent reported the end, only the completeness of the result may still need a poll (``CONFIRMING``). ``ENDED``
has the one outcome and never changes.

Stream, polls and webhooks are not stages: they run side by side, bring the same updates in any order, and each may stop
at any time. Their states are in the track (``streaming``, ``polling``, ``pushing``), and each of their updates is one
signal, ``TaskUpdate``. A cancel is not a stage either: the record holds it, through all stages, until the task ends.

``TRANSITIONS`` is the whole machine: for each stage the signals that count there, the function of each, and the stages
that may follow. ``step`` calls only what the table names; a signal without an entry came too late and changes nothing.
Time passes as the signal ``Due``: a track has named timers, and ``TIMERS`` has the function of each, in order of
weight. One more rule holds after every signal: when polling has stopped and neither a stream nor a webhook can report
the task's end, the request ends.

The functions are divided by subject (``sending``, ``following``, ``asking``, ``ending``). A function that takes a
signal has the signal's name. docs/reference/requests.md draws the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from fleetsim.model.task import TERMINAL
from fleetsim.request import asking, ending, following, sending
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Answered,
    Begin,
    CancelAsked,
    CancelFailed,
    CancelReplied,
    Due,
    Effect,
    Found,
    Join,
    Left,
    LimitDecided,
    PollFailed,
    PushRegistered,
    QuestionRecorded,
    Recovered,
    Replied,
    Resumed,
    ResumeFailed,
    SendFailed,
    StepContext,
    StreamEnded,
    TurnedAway,
)
from fleetsim.request.track import Now, Rules, Sending, Signal, TaskUpdate, Timer, Track


class Stage(StrEnum):
    """The stages of a request between acceptance and outcome."""

    SENDING = "sending"
    SEARCHING = "searching"
    FOLLOWING = "following"
    ASKING = "asking"
    ANSWERING = "answering"
    CONFIRMING = "confirming"
    ENDED = "ended"


def stage_of(track: Track) -> Stage:
    """The stage of a track, computed from its fields."""
    task = track.record.task
    if track.outcome is not None:
        return Stage.ENDED
    if task is None:
        return Stage.SEARCHING if Timer.GIVE_UP in track.timers else Stage.SENDING
    if task.status.state in TERMINAL:
        return Stage.CONFIRMING
    if track.asking.question is not None:
        return Stage.ASKING
    return Stage.FOLLOWING if track.asking.answer is None else Stage.ANSWERING


def new_track(record: RequestRecord, now: Now) -> Track:
    """A track for a record just accepted, or just read back after a restart.

    Durations are monotonic. Recorded wall times are clamped, so that a clock that jumped can neither keep a request
    open for ever nor end it at once (reliability F-26).
    """
    age_s = max(0.0, (now.wall - record.accepted_at).total_seconds())
    limit_s = (record.deadline_at - record.accepted_at).total_seconds()
    left_s = min((record.deadline_at - now.wall).total_seconds(), limit_s)
    grace_s = 0.0 if record.phase is Phase.INTENT else 5.0
    turn_s = max(0.0, (now.wall - record.agent_since).total_seconds()) if record.agent_since else None
    return Track(
        record=record,
        began=now.mono - min(age_s, limit_s),
        timers={Timer.DEADLINE: now.mono + max(left_s, grace_s)},
        sending=Sending(stream=record.streaming, attempt=record.attempt),
        turn_from=None if turn_s is None else now.mono - min(turn_s, limit_s),
        chunks=0 if record.task is None else None,
    )


def step(track: Track, signal: Signal, now: Now, rules: Rules) -> tuple[Track, tuple[Effect, ...]]:
    """Apply one signal. Returns the new track and the effects to carry out; ``track`` itself does not change."""
    transition = TRANSITIONS[stage_of(track)].get(type(signal))
    if transition is None:
        return track, ()
    context = StepContext(replace(track, timers=dict(track.timers)), now, rules)  # its other fields are frozen
    transition.take(context, signal)
    if context.track.polling.stopped is not None:
        following.end_if_nothing_can_tell(context)
    return context.track, tuple(context.effects)


def time_passed(context: StepContext, _: Due) -> None:
    """Run every timer that has expired, in order of weight; stop once the track is closed."""
    track, now = context.track, context.now.mono
    if track.timers and now - min(track.timers.values()) > context.rules.stall_s:
        _excuse(context)
    for timer, fall_due in TIMERS.items():
        if (due := track.timers.get(timer)) is not None and now >= due:
            del track.timers[timer]
            fall_due(context)


def _excuse(context: StepContext) -> None:
    """The hub did not run for a while (a blocked loop, a host that slept), so that time does not count as the agent's.

    A timer that would end the request waits for one grace, and the task is polled now (F-27, F-43).
    """
    track, now = context.track, context.now.mono
    for timer in (Timer.QUESTION, Timer.DEADLINE, Timer.CANCEL, Timer.GIVE_UP):
        if timer in track.timers and now >= track.timers[timer]:
            track.timers[timer] = now + context.rules.grace_s
            if timer is Timer.GIVE_UP:
                track.timers[Timer.LOOK_UP] = now
    if track.record.task is not None:
        context.poll_at(now)


TIMERS: Mapping[Timer, Callable[[StepContext], None]] = {
    Timer.QUESTION: asking.expire,
    Timer.REMINDER: asking.remind,
    Timer.DEADLINE: sending.out_of_time,
    Timer.CANCEL: ending.cancel_unconfirmed,
    Timer.GIVE_UP: sending.give_up_search,
    Timer.OVERDUE: sending.overdue,
    Timer.LOOK_UP: sending.look_up,
    Timer.RETRY: sending.retry,
    Timer.REJOIN: following.rejoin,
    Timer.RESUME: asking.resume_again,
    Timer.POLL: following.poll,
}
"""The function of each timer. Timers that expire together run in this order; the first to close clears the others."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The function for a signal in a stage, and the stages in which the track may be afterwards."""

    take: Callable[[StepContext, Any], None]
    to: frozenset[Stage]


def _to(take: Callable[[StepContext, Any], None], *stages: Stage) -> Transition:
    return Transition(take, frozenset(stages))


_SENDING, _SEARCHING, _FOLLOWING = Stage.SENDING, Stage.SEARCHING, Stage.FOLLOWING
_ASKING, _ANSWERING, _CONFIRMING, _ENDED = Stage.ASKING, Stage.ANSWERING, Stage.CONFIRMING, Stage.ENDED

TRANSITIONS: Mapping[Stage, Mapping[type[Signal], Transition]] = {
    _SENDING: {
        Begin: _to(sending.begin, _SENDING),
        LimitDecided: _to(sending.limit_decided, _SENDING, _ENDED),
        QuestionRecorded: _to(asking.recorded, _SENDING),
        Answered: _to(asking.answered, _SENDING),
        Join: _to(following.join, _FOLLOWING, _ASKING, _ENDED),
        Recovered: _to(sending.recovered, _SENDING, _SEARCHING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        Left: _to(sending.left, _SENDING),
        Replied: _to(sending.replied, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        SendFailed: _to(sending.send_failed, _SENDING, _SEARCHING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        StreamEnded: _to(sending.stream_ended, _SENDING, _SEARCHING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        TaskUpdate: _to(following.task_update, _SENDING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        Found: _to(sending.found, _SENDING, _FOLLOWING, _ASKING, _ENDED),
        TurnedAway: _to(following.turned_away, _SENDING),
        CancelAsked: _to(ending.cancel_asked, _SENDING, _ENDED),
        Due: _to(time_passed, _SENDING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
    },
    _SEARCHING: {
        Found: _to(sending.found, _SEARCHING, _FOLLOWING, _ASKING, _ENDED),
        TaskUpdate: _to(following.task_update, _SEARCHING, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        TurnedAway: _to(following.turned_away, _SEARCHING),
        CancelAsked: _to(ending.cancel_asked, _SEARCHING),
        Due: _to(time_passed, _SEARCHING, _ENDED),
    },
    _FOLLOWING: {
        Recovered: _to(sending.recovered, _FOLLOWING, _ASKING, _ANSWERING, _CONFIRMING, _ENDED),
        Replied: _to(sending.replied, _FOLLOWING, _ASKING, _ENDED),
        SendFailed: _to(sending.send_failed, _FOLLOWING),
        StreamEnded: _to(sending.stream_ended, _FOLLOWING, _ENDED),
        TaskUpdate: _to(following.task_update, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        PollFailed: _to(following.poll_failed, _FOLLOWING, _ENDED),
        PushRegistered: _to(following.push_registered, _FOLLOWING, _ENDED),
        TurnedAway: _to(following.turned_away, _FOLLOWING),
        CancelAsked: _to(ending.cancel_asked, _FOLLOWING),
        CancelReplied: _to(following.cancel_replied, _FOLLOWING, _ASKING, _ENDED),
        CancelFailed: _to(ending.cancel_failed, _FOLLOWING),
        Due: _to(time_passed, _FOLLOWING, _ENDED),
    },
    _ASKING: {
        Replied: _to(sending.replied, _FOLLOWING, _ASKING, _ENDED),
        SendFailed: _to(sending.send_failed, _ASKING),
        StreamEnded: _to(sending.stream_ended, _ASKING),
        TaskUpdate: _to(following.task_update, _FOLLOWING, _ASKING, _CONFIRMING, _ENDED),
        PollFailed: _to(following.poll_failed, _ASKING, _ENDED),
        PushRegistered: _to(following.push_registered, _ASKING),
        TurnedAway: _to(following.turned_away, _ASKING),
        QuestionRecorded: _to(asking.recorded, _ASKING),
        Answered: _to(asking.answered, _FOLLOWING, _ASKING, _ANSWERING),
        CancelAsked: _to(ending.cancel_asked, _ASKING),
        CancelReplied: _to(following.cancel_replied, _FOLLOWING, _ASKING, _ENDED),
        CancelFailed: _to(ending.cancel_failed, _ASKING),
        Due: _to(time_passed, _ASKING, _ENDED),
    },
    _ANSWERING: {
        Left: _to(sending.left, _ANSWERING),
        Replied: _to(sending.replied, _FOLLOWING, _ANSWERING, _ENDED),
        SendFailed: _to(sending.send_failed, _ANSWERING),
        StreamEnded: _to(sending.stream_ended, _ANSWERING, _ENDED),
        TaskUpdate: _to(following.task_update, _FOLLOWING, _ASKING, _ANSWERING, _CONFIRMING, _ENDED),
        PollFailed: _to(following.poll_failed, _ANSWERING, _ENDED),
        PushRegistered: _to(following.push_registered, _ANSWERING, _ENDED),
        TurnedAway: _to(following.turned_away, _ANSWERING),
        Resumed: _to(following.resumed, _FOLLOWING, _ASKING, _ENDED),
        ResumeFailed: _to(asking.resume_failed, _FOLLOWING, _ANSWERING, _ENDED),
        CancelAsked: _to(ending.cancel_asked, _ANSWERING),
        CancelReplied: _to(following.cancel_replied, _FOLLOWING, _ANSWERING, _ENDED),
        CancelFailed: _to(ending.cancel_failed, _ANSWERING),
        Due: _to(time_passed, _ANSWERING, _ENDED),
    },
    _CONFIRMING: {
        Recovered: _to(sending.recovered, _CONFIRMING, _ENDED),
        Replied: _to(sending.replied, _CONFIRMING, _ENDED),
        SendFailed: _to(sending.send_failed, _CONFIRMING),
        StreamEnded: _to(sending.stream_ended, _CONFIRMING),
        TaskUpdate: _to(following.task_update, _CONFIRMING, _ENDED),
        PollFailed: _to(following.poll_failed, _CONFIRMING, _ENDED),
        PushRegistered: _to(following.push_registered, _CONFIRMING),
        TurnedAway: _to(following.turned_away, _CONFIRMING),
        Answered: _to(asking.answered, _CONFIRMING),
        Resumed: _to(following.resumed, _CONFIRMING, _ENDED),
        ResumeFailed: _to(asking.resume_failed, _CONFIRMING),
        CancelAsked: _to(ending.cancel_asked, _CONFIRMING),
        CancelReplied: _to(following.cancel_replied, _CONFIRMING, _ENDED),
        CancelFailed: _to(ending.cancel_failed, _CONFIRMING),
        Due: _to(time_passed, _CONFIRMING, _ENDED),
    },
    _ENDED: {
        TaskUpdate: _to(following.late_update, _ENDED),
    },
}
"""The machine. A signal without an entry came too late and changes nothing."""
