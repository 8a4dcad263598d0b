"""Random signals to one request in any order; the checker agrees with every step.

The agent (``step_agent``) has a task of its own; the hub's disk may be slow and the hub may be killed. At the end
run breaks off with is finished in peace: then there must be exactly one outcome, and soon.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from fleetsim.model.errors import (
    ConnectionLost,
    FleetsimError,
    MethodNotFound,
    TaskNotFound,
    Unreachable,
    UnsupportedOperation,
)
from fleetsim.model.event import Snapshot
from fleetsim.model.task import TaskState
from fleetsim.model.work import UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.signals import (
    Due,
    Found,
    LookUpTask,
    Poll,
    PollFailed,
    PushRegistered,
    Recovered,
    RegisterPush,
    Replied,
    Resume,
    Send,
    SendFailed,
    StreamEnded,
    Subscribe,
    TurnedAway,
)
from fleetsim.request.track import TaskUpdate
from tests.request.step_agent import ENDS, MOVES
from tests.request.step_hub import (
    NO_TASK,
    NOT_STARTED,
    SOON_S,
    Call,
    Peace,
)
from tests.request.step_people import (
    LOST_REPLIES,
    People,
    bound,
    channels,
    going,
    jitters,
    lateness,
    numbers,
    pushes,
    seconds,
    seldom,
)
from tests.request.steps import record, status, task, wake_of
from tests.scale import scaled

pytestmark = pytest.mark.slow

EXAMPLES = scaled(1_000, share=10)


class StepMachine(People, RuleBasedStateMachine):
    """One request, from acceptance to outcome."""

    @initialize(streaming=st.booleans(), push=pushes, at_once=st.booleans())
    def begin(self, streaming: bool, push: str, at_once: bool) -> None:
        self.reask_unclear = False
        self.start(replace(record(streaming=streaming, push=bool(push)), register_push=push == "after"))
        if at_once:
            self.send_is_answered(early=True, jitter=0.5)

    @precondition(lambda self: hasattr(self, "track") and self.track.outcome is not None)
    @rule(streaming=st.booleans(), push=pushes, at_once=st.booleans())
    def next_request_begins(self, streaming: bool, push: str, at_once: bool) -> None:
        self.teardown()
        self.begin(streaming, push, at_once)

    # ------------------------------------------------------------------ the agent goes on by itself

    @precondition(lambda self: self.truth is not None and not self.agent.ended)
    @rule(moves=st.lists(st.tuples(st.sampled_from(MOVES), channels), min_size=1, max_size=4), jitter=jitters)
    def agent_moves(self, moves: list[tuple[str, str]], jitter: float) -> None:
        """It moves on, and each move is sent over some channel at once, or later."""
        self.jitter = jitter
        for what, heard in moves:
            if not self.agent.ended:
                self.agent.move("work" if what == "ask again" and self.reask_unclear else what)
                self.hear_of_it(heard)

    @precondition(lambda self: bound(self) and not self.agent.ended)
    @rule(before=channels, last=st.sampled_from(list(ENDS)), heard=channels)
    def agent_ends(self, before: str, last: str, heard: str) -> None:
        self.agent_moves([("text", before), (last, heard)], self.jitter)

    def hear_of_it(self, channel: str) -> None:
        if channel == "stream" and self.streams(heard=True):
            while self.streams(heard=True) and self.streams(heard=True)[0].at < len(self.agent.told):
                self.stream_tells(double=False)
        elif channel in {"bare", "beside", "task"} and self.ledger.record.push:
            self.webhook_arrives(number=31, form=channel, times=1)
        elif channel == "poll" and self.checker.life.bound:
            self.polls_are_made(errors=[], same=True, read=True)

    @precondition(lambda self: self.on_the_wire and self.truth is None)
    @rule()
    def send_arrives(self) -> None:
        self.agent.accept()

    # ------------------------------------------------------------------ the first send

    @precondition(lambda self: self.on_the_wire and self.in_air(Send)[0].heard == 0)
    @rule(early=st.booleans(), jitter=jitters)
    def send_is_answered(self, early: bool, jitter: float) -> None:
        (call,), self.jitter = self.in_air(Send), jitter
        first = task(TaskState.SUBMITTED) if early else self.agent.accept()
        self.agent.accept()
        if call.effect == Send(stream=True):
            self.stream_tells(double=False)
        else:
            self.land(call, Replied(reply=first, began=call.began))

    @precondition(lambda self: self.on_the_wire and self.truth is None)
    @rule()
    def send_is_answered_with_a_message(self) -> None:
        (call,) = self.in_air(Send)
        if call.effect == Send(stream=False):
            self.agent.accept()
            self.agent.move("complete")
            self.land(call, Replied(reply=task(TaskState.COMPLETED, "end", cost=True), began=call.began))

    @precondition(lambda self: self.in_air(Send) and self.truth is None)
    @rule(error=st.sampled_from(NOT_STARTED), jitter=jitters)
    def send_fails_before_it_started(self, error: FleetsimError, jitter: float) -> None:
        self.jitter = jitter
        self.land(self.in_air(Send)[0], SendFailed(error=error))

    @precondition(lambda self: self.on_the_wire and self.in_air(Send)[0].heard == 0)
    @rule(error=st.sampled_from(LOST_REPLIES), arrived=st.booleans(), heard=channels)
    def send_loses_its_reply(self, error: FleetsimError, arrived: bool, heard: str) -> None:
        if arrived and not self.agent.ended:
            self.agent.accept()
            self.agent.move("work")
            self.hear_of_it(heard)
        self.land(self.in_air(Send)[0], SendFailed(error=error))

    @precondition(lambda self: self.in_air(LookUpTask))
    @rule(how=st.sampled_from(["found", "found", "not there", "impossible", "unreachable"]))
    def search_comes_back(self, how: str) -> None:
        found = Found(
            task=self.truth if how == "found" else None,
            possible=how != "impossible",
            error=Unreachable("down") if how == "unreachable" else None,
        )
        self.land(self.in_air(LookUpTask)[0], found)

    # ------------------------------------------------------------------ streams

    def streams(self, *, heard: bool = False) -> list[Call]:
        ours = [c for c in self.in_air(Send, Subscribe) if c.effect != Send(stream=False)]
        return [c for c in ours if c.heard or not heard]

    @precondition(lambda self: self.truth is not None and self.streams(heard=True))
    @rule(double=st.booleans())
    def stream_tells(self, double: bool) -> None:
        call = self.streams()[0]
        if not call.heard:
            assert self.truth is not None
            call.heard, call.at = 1, len(self.agent.told)
            self.tell(TaskUpdate(event=Snapshot(task=self.truth), via=UpdateSource.STREAM, began=self.now))
        elif call.at < len(self.agent.told):
            call.at += 1
            for _ in range(1 + double):
                self.tell(
                    TaskUpdate(event=self.agent.told[call.at - 1].update, via=UpdateSource.STREAM, began=self.now)
                )

    @precondition(lambda self: self.truth is not None and self.in_air(Subscribe) and not self.in_air(Send))
    @rule()
    def stream_is_rejoined(self) -> None:
        self.stream_tells(double=False)

    @precondition(lambda self: self.truth is not None and self.streams(heard=True))
    @rule()
    def stream_loses_an_event(self) -> None:
        call = self.streams(heard=True)[0]
        call.at = min(call.at + 1, len(self.agent.told))

    @precondition(lambda self: self.streams(heard=True) or self.in_air(Subscribe))
    @rule(error=st.sampled_from([None, ConnectionLost("cut"), UnsupportedOperation(), TaskNotFound()]), jitter=jitters)
    def stream_ends(self, error: FleetsimError | None, jitter: float) -> None:
        self.jitter = jitter
        call = (self.streams(heard=True) or self.in_air(Subscribe))[0]
        self.land(call, StreamEnded(error=error))

    # ------------------------------------------------------------------ webhooks

    @precondition(lambda self: going(self) and self.truth is not None and self.agent.told and self.ledger.record.push)
    @rule(number=numbers, form=st.sampled_from(["bare", "beside", "task"]), times=st.sampled_from([1, 1, 2]))
    def webhook_arrives(self, number: int, form: str, times: int) -> None:
        newest = len(self.agent.told) - 1
        event = self.agent.as_webhook(newest if number > 12 else number, form)
        for _ in range(times):
            self.take_webhook(event)

    @precondition(lambda self: going(self) and self.ledger.record.push)
    @rule(times=st.integers(1, 3))
    def webhook_is_turned_away(self, times: int) -> None:
        for _ in range(times):
            self.tell(TurnedAway())

    @precondition(lambda self: bound(self) and self.ledger.record.push)
    @rule(state=st.sampled_from([TaskState.COMPLETED, TaskState.WORKING, TaskState.INPUT_REQUIRED]))
    def webhook_about_another_task_arrives(self, state: TaskState) -> None:
        event = replace(status(state, "theirs", said_id="x"), task_id="t-2")
        self.tell(TaskUpdate(event=event, via=UpdateSource.PUSH, began=self.now))

    @precondition(lambda self: self.in_air(RegisterPush))
    @rule(error=st.sampled_from([None, MethodNotFound()]))
    def webhook_is_registered(self, error: FleetsimError | None) -> None:
        self.land(self.in_air(RegisterPush)[0], PushRegistered(error=error))

    # ------------------------------------------------------------------ polls

    @precondition(lambda self: self.in_air(Poll) and self.in_air(Poll)[0].seen is None)
    @rule()
    def poll_is_read(self) -> None:
        self.in_air(Poll)[0].seen = self.truth

    @precondition(lambda self: self.in_air(Poll))
    @rule(jitter=jitters)
    def poll_is_answered(self, jitter: float) -> None:
        self.jitter, call = jitter, self.in_air(Poll)[0]
        seen = call.seen or self.truth
        assert seen is not None
        self.land(call, TaskUpdate(event=Snapshot(task=seen), via=UpdateSource.POLL, began=call.began))

    @precondition(bound)
    @rule(errors=st.lists(st.sampled_from(NO_TASK), max_size=7), same=st.booleans(), read=st.booleans())
    def polls_are_made(self, errors: list[FleetsimError], same: bool, read: bool) -> None:
        """Some fail, often all in the same way, and then one may bring the task."""
        for error in errors:
            if self.poll_falls_due():
                self.poll_fails(errors[0] if same else error)
        if read and self.poll_falls_due():
            self.poll_is_answered(jitter=self.jitter)

    def poll_falls_due(self) -> bool:
        for _ in range(3):
            if not self.in_air(Poll) and wake_of(self.track) < self.now + 140:
                self.wake()
        return bool(self.in_air(Poll))

    @precondition(lambda self: bound(self) and not self.agent.ended)
    @rule(
        moves=st.lists(st.tuples(st.sampled_from(MOVES), channels), max_size=3), answered=st.booleans(), jitter=jitters
    )
    def news_overtakes_a_poll(self, moves: list[tuple[str, str]], answered: bool, jitter: float) -> None:
        """The agent reads its task for us, and while that is on its way the task goes on."""
        if not self.poll_falls_due():
            return
        self.poll_is_read()
        self.now += 0.25
        if answered and self.open_questions() and not self.ledger.slow:
            self.person_answers(reject=False, killed=False, how="message")
        self.agent_moves(moves, jitter)
        if self.in_air(Poll):
            self.poll_is_answered(jitter)

    @precondition(lambda self: self.in_air(Poll))
    @rule(error=st.sampled_from(NO_TASK))
    def poll_fails(self, error: FleetsimError) -> None:
        self.land(self.in_air(Poll)[0], PollFailed(error=error))

    # ------------------------------------------------------------------ time, the disk, the end of a process

    def wake(self) -> None:
        assert self.track.timers
        self.now = max(self.now, wake_of(self.track))
        self.tell(Due())

    @precondition(lambda self: going(self) and wake_of(self.track) < self.now + SOON_S)
    @rule(times=st.integers(1, 3), jitter=jitters)
    def next_thing_falls_due(self, times: int, jitter: float) -> None:
        self.jitter = jitter
        for _ in range(times):
            if self.track.timers:
                self.wake()

    @precondition(going)
    @rule(wait=seconds)
    def time_passes(self, wait: float) -> None:
        until = self.now + wait
        while wake_of(self.track) <= until:
            self.wake()
        self.now = until

    @precondition(lambda self: going(self) and wake_of(self.track) < self.now + SOON_S)
    @rule(late=lateness)
    def hub_stalls(self, late: float) -> None:
        assert self.track.timers
        self.now = max(self.now, wake_of(self.track)) + late
        self.tell(Due())

    @precondition(going)
    @rule(slow=seldom)
    def disk_slows_down_or_catches_up(self, slow: bool) -> None:
        if slow:
            self.ledger.slow = True
        else:
            self.ledger.catch_up()

    @precondition(going)
    @rule(busy=seldom)
    def other_requests_take_all_slots_or_free_one(self, busy: bool) -> None:
        self.busy = busy
        self.let_leave()

    @precondition(lambda self: hasattr(self, "ledger") and not self.ledger.outcomes)
    @rule(away=lateness)
    def hub_is_killed(self, away: float) -> None:
        self.reask_unclear = self.reask_unclear or bool(self.in_air(Resume))
        self.calls.clear()
        self.ledger.die()
        if self.ledger.outcomes:
            return
        self.now += away
        question, answer = self.ledger.unfinished()
        self.reask_unclear = self.reask_unclear or answer is not None
        self.checker.new_life(self.ledger.record, question, answer, self.now)
        self.track = new_track(self.ledger.record, self.moment())
        self.tell(Recovered(question=question, answer=answer, early=tuple(self.ledger.early)))

    # ------------------------------------------------------------------ the end

    def teardown(self) -> None:
        if not hasattr(self, "track") or self.broken:
            return
        self.ledger.catch_up()
        self.busy = False
        self.let_leave()
        peace = Peace(self)
        peace.finish()
        assert len(self.ledger.outcomes) == 1, f"{len(self.ledger.outcomes)} outcomes"


def test_after_any_signals_in_any_order_the_checker_agrees() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StepMachine,
        settings=settings(
            max_examples=EXAMPLES,
            report_multiple_bugs=False,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
