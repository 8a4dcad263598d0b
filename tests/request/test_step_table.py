"""The table of stages and signals equals the behaviour of ``step``: every row occurs, and nothing else does."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    ConnectionLost,
    EmptyStream,
    FleetsimError,
    InvalidParams,
    MethodNotFound,
    TaskNotFound,
    Unreachable,
    WireError,
)
from fleetsim.model.event import DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, Decision, UpdateSource
from fleetsim.request.machine import TRANSITIONS, Stage, new_track, stage_of, step
from fleetsim.request.records import OtherWay, Phase, RequestRecord
from fleetsim.request.signals import (
    Answered,
    Begin,
    CancelAsked,
    CancelFailed,
    CancelReplied,
    Due,
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
    StreamEnded,
    TurnedAway,
)
from fleetsim.request.track import Now, Rules, Signal, TaskUpdate, Track
from tests.request.steps import START, Hand, chunk, message, record, status, task, wake_of
from tests.scale import scaled

W, ASKS, C = TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED
KINDS = sorted(
    {
        signal
        for row in TRANSITIONS.values()
        for signal in row
        if signal not in {Begin, Join, Recovered, QuestionRecorded, LimitDecided}
    },
    key=lambda kind: kind.__name__,
)
WALKS, STEPS = 4_000, 14
LATE = (
    *(936, 1022, 1028, 1086, 1119, 1270, 1452, 1525, 1552, 1950, 2837, 2950, 3009, 3074, 3634, 3649),
    *(5835, 11_350, 18_690),
)
"""The seeds past a fifth of the walks that come to what no seed before them does. A change of the step moves them."""
TASKS = (task(W), task(W), task(ASKS, "", "which?"), task(ASKS, "", "sure?", said_id="s-2"), task(C), task(C, "done"))
ERRORS: tuple[FleetsimError, ...] = (
    Unreachable("refused"),
    ConnectionLost("reset"),
    TaskNotFound(),
    InvalidParams("no"),
    WireError("HTML"),
    MethodNotFound(),
    EmptyStream(),
)


@dataclass
class Walk:
    """One request, and everything that can happen to it, drawn from ``chance``."""

    chance: random.Random

    def __post_init__(self) -> None:
        # A request sees only some events, and failures of mostly one kind, so that rare ends occur.
        self.trouble = self.chance.choice(ERRORS)
        self.kinds = set(self.chance.sample(KINDS, self.chance.choice((3, 5, 8, len(KINDS))))) | {Due}

    def record(self) -> RequestRecord:
        """A request just accepted, or as it was when the hub stopped."""
        pick = self.chance.choice
        fresh = replace(
            record(streaming=pick((True, False)), push=pick((True, False)), limit_s=pick((90, 3600))),
            rejoin=pick((True, False)),
            register_push=pick((True, False)),
            cancel_wanted=pick((False, False, True)),
            other=pick((None, OtherWay(dialect="1.0", rpc_url="http://a.example", tenant=None, rejoin=True))),
        )
        bound = pick((None, None, *TASKS))
        if bound is not None:
            return replace(fresh, phase=Phase.ACCEPTED, task=bound, bound_at=START)
        return replace(fresh, phase=pick((Phase.INTENT, Phase.SENDING)))

    def event(self) -> TaskEvent:
        states: tuple[Callable[[], TaskEvent], ...] = (
            lambda: Snapshot(task=self.chance.choice(TASKS)),
            lambda: status(self.chance.choice((W, ASKS, C)), self.chance.choice(("", "which?"))),
            lambda: chunk("x", append=self.chance.choice((True, False)), last=True),
            lambda: DirectReply(message=message("hello")),
        )
        return self.chance.choice(states)()

    def signals(self, track: Track, mono: float) -> Iterator[Signal]:
        """One of each kind, as it may be now."""
        pick = self.chance.choice
        error, seen, via = (
            pick((*ERRORS, *[self.trouble] * 9)),
            pick(TASKS),
            pick((UpdateSource.STREAM, UpdateSource.PUSH, UpdateSource.POLL)),
        )
        began = mono - pick((0.0, 0.0, 5.0))
        yield from (Left(), TurnedAway(), CancelAsked(), Due(), Due(), Due())
        if track.sending.in_air or track.record.task is not None:
            yield from (Replied(reply=pick((seen, message("hello"))), began=began), SendFailed(error=error))
        yield from (StreamEnded(error=pick((None, error))), PushRegistered(error=error))
        yield from (PollFailed(error=error) for _ in range(2))
        yield from (PushRegistered(), CancelFailed(error=error), CancelReplied(task=seen, began=began))
        yield Found(task=pick((None, seen)), possible=pick((True, True, False)), error=pick((None, None, error)))
        yield from (TaskUpdate(event=self.event(), via=via, began=began) for _ in range(3))
        yield Resumed(reply=pick((seen, message("hello"))), began=began)
        yield ResumeFailed(error=error)
        yield Answered(answer=Answer(question_id="q-of-before", text="that"))
        if track.asking.question is not None:
            for decision in Decision:
                yield Answered(
                    answer=Answer(question_id=track.asking.question.question_id, text="this", decision=decision)
                )

    def go(self) -> Iterator[tuple[Stage, type, Stage]]:
        """Every move of one request, until it has ended and a while longer."""
        mono, accepted = 0.0, self.record()
        kept, fresh = accepted, self.chance.choice((True, False)) and accepted.phase is Phase.INTENT
        track = new_track(kept, Now(0.0, START))
        signal: Signal = Begin() if fresh else self.recovery(kept)
        for _ in range(STEPS):
            now = Now(mono, START + timedelta(seconds=mono), self.chance.random())
            before = track
            track, _ = step(track, signal, now, Rules())
            yield stage_of(before), type(signal), stage_of(track)
            if track.asking.question is not None and not track.asking.recorded:
                before, recorded = track, QuestionRecorded(question_id=track.asking.question.question_id)
                track, _ = step(track, recorded, now, Rules())
                yield stage_of(before), QuestionRecorded, stage_of(track)
            mono += self.chance.choice((0.0, 0.5, 6.0))
            row = TRANSITIONS[stage_of(track)]
            signals = [signal for signal in self.signals(track, mono) if type(signal) in self.kinds & row.keys()]
            signal = self.chance.choice(signals or [Due()])
            if isinstance(signal, Due) and track.timers:
                late = self.chance.choice((0.0, 0.0, 40.0))
                mono = max(mono, self.chance.choice((wake_of(track), max(track.timers.values())))) + late

    def recovery(self, kept: RequestRecord) -> Recovered:
        """Events that a ledger may have kept beside the record."""
        pick = self.chance.choice
        early: tuple[TaskEvent, ...] = (self.event(),) if pick((True, False)) else ()
        uncallable = pick(("", "", "", "", "it left the fleet"))
        if kept.task is None or pick((True, False)):
            return Recovered(early=early, uncallable=uncallable)
        asked = replace(kept, task=pick((task(ASKS, "", "which?"), kept.task)))
        hand = new_track(replace(asked, task=task(W)), Now(0.0, START))
        waiting = TaskUpdate(event=Snapshot(task=task(ASKS, "", "which?")), via=UpdateSource.POLL, began=0.0)
        hand, _ = step(hand, waiting, Now(0.0, START), Rules())
        question = hand.asking.question
        assert question is not None
        given = Answer(question_id=question.question_id, text="this", decision=pick(tuple(Decision)))
        return Recovered(question=question, answer=pick((None, given)), early=early, uncallable=uncallable)


def told(event: TaskEvent, via: UpdateSource) -> TaskUpdate:
    return TaskUpdate(event=event, via=via, began=0.0)


STREAMED = told(Snapshot(task=task(W)), UpdateSource.STREAM)
ENDS, WORKS, WAITS = (told(status(state), UpdateSource.PUSH) for state in (C, W, ASKS))
NO_POLL = [PollFailed(error=InvalidParams("no"))] * 3
RARE: tuple[tuple[Signal, ...], ...] = (
    (ENDS, Replied(reply=task(W), began=0.0)),
    (ENDS, SendFailed(error=ConnectionLost("reset"))),
    (ENDS, StreamEnded()),
    (WORKS, StreamEnded()),
    (WAITS, Due()),
    (SendFailed(error=Unreachable("refused")), CancelAsked()),
    (STREAMED, *NO_POLL, StreamEnded()),
    (STREAMED, *NO_POLL, PushRegistered(), StreamEnded(error=MethodNotFound()), PushRegistered(error=MethodNotFound())),
)
"""Rare cases: signals after a send has left, the last one at the request's deadline."""


def in_doubt(*, push: bool) -> Hand:
    """A request after a restart, whose answer may not have arrived: only a poll can tell."""
    hand = Hand.sent(rejoin=False, push=push).tell(Replied(reply=task(ASKS, "", "which?"), began=0.0))
    asked, kept = hand.track.asking.question, hand.track.record
    assert asked is not None
    hand.track = new_track(kept, hand.now())
    return hand.tell(Recovered(question=asked, answer=Answer(question_id=asked.question_id, text="this")))


@pytest.fixture(scope="module")
def moves() -> dict[tuple[Stage, type], set[Stage]]:
    """The moves of eight hundred requests, the same ones each time; of four thousand in ``make test-whole``."""
    seen: dict[tuple[Stage, type], set[Stage]] = defaultdict(set)
    for seed in dict.fromkeys((*range(scaled(WALKS)), *LATE)):
        for before, kind, after in Walk(random.Random(seed)).go():
            seen[before, kind].add(after)
    for *signals, last in RARE:
        hand = Hand.sent(rejoin=False, push=isinstance(last, PushRegistered))
        for signal in signals:
            hand.tell(signal)
        stage = stage_of(hand.track)
        seen[stage, type(last)].add(stage_of(hand.at(3600.0).tell(last).track))
    ends: tuple[Signal, ...] = (PushRegistered(error=MethodNotFound()), StreamEnded())
    for last in ends:
        hand = in_doubt(push=isinstance(last, PushRegistered))
        told_before: tuple[Signal, ...] = (*([STREAMED] if isinstance(last, StreamEnded) else []), *NO_POLL)
        for signal in told_before:
            hand.tell(signal)
        seen[stage_of(hand.track), type(last)].add(stage_of(hand.tell(last).track))
    for known, shown in ((task(W), False), *((known, True) for known in TASKS)):
        track = new_track(record(streaming=True), Now(0.0, START))
        track, _ = step(track, Join(task=known, seen=shown), Now(0.0, START), Rules())
        seen[Stage.SENDING, Join].add(stage_of(track))
    for told_of_limit in (
        LimitDecided(),
        LimitDecided(refusal="it is reached"),
        QuestionRecorded(question_id="limit-0"),
    ):
        held = new_track(replace(record(), held=True), Now(0.0, START))
        seen[Stage.SENDING, type(told_of_limit)].add(stage_of(step(held, told_of_limit, Now(0.0, START), Rules())[0]))
    return seen


CELLS = [(stage, signal) for stage, row in TRANSITIONS.items() for signal in row]


@pytest.mark.parametrize(("stage", "signal"), CELLS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_signal_leads_to_the_stages_of_the_table_and_to_each_of_them(
    stage: Stage, signal: type, moves: dict[tuple[Stage, type], set[Stage]]
) -> None:
    assert moves[stage, signal] == TRANSITIONS[stage][signal].to


def test_a_signal_outside_the_table_changes_nothing() -> None:
    now, left_out = Now(5.0, START), 0
    for seed in range(400):
        walk = Walk(random.Random(seed))
        track = new_track(walk.record(), now)
        for signal in walk.signals(track, 5.0):
            if type(signal) not in TRANSITIONS[stage_of(track)]:
                left_out += 1
                assert step(track, signal, now, Rules()) == (track, ())
    assert left_out > 1_000
