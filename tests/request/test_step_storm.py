"""Thousands of random interleavings of stream, poll and webhook against ``step`` alone.

The agent here is a script of truth; the weather cuts streams, loses, doubles, delays and reorders
webhooks and fails polls. In every order there is one outcome, with the agent's state, its whole text and its cost once.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import ConnectionLost, TimedOut, Unreachable
from fleetsim.model.event import Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import Task
from fleetsim.model.work import Answer, Outcome, UpdateSource
from fleetsim.request.machine import new_track, step
from fleetsim.request.records import RequestRecord
from fleetsim.request.signals import (
    Answered,
    Ask,
    Begin,
    Cancel,
    Close,
    Due,
    Effect,
    Poll,
    PollFailed,
    RegisterPush,
    Replied,
    Resume,
    Resumed,
    ResumeFailed,
    Send,
    SendFailed,
    StreamEnded,
    Subscribe,
)
from fleetsim.request.track import Now, Rules, Signal, TaskUpdate
from tests.request.steps import NEVER, START, C, F, I, S, W, chunk, record, status, task, wake_of
from tests.scale import scaled

pytestmark = pytest.mark.slow


class Storm:
    """One request, one agent, one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.rules = Rules(poll_interval_s=self.rng.choice([2.0, 30.0]))
        kind: RequestRecord = record(streaming=self.rng.random() < 0.6, push=self.rng.random() < 0.7)
        self.track = new_track(kind, self.moment())
        self.outcomes: list[Outcome] = []
        self.asked = 0
        self.resumes = 0
        self.polls_in_air = 0
        self.truth: Task | None = None
        self.text = ""
        self.watchers: list[Callable[[TaskEvent], None]] = []
        self.plan = self.draw_plan()
        self.end = self.rng.choice([C, C, C, F])
        self.answered_questions = 0

    def draw_plan(self) -> list[str]:
        plan = ["work", *self.rng.choices(["text", "status"], k=self.rng.randint(0, 6))]
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            plan += ["ask", "work", *self.rng.choices(["text", "status"], k=self.rng.randint(0, 3))]
        return [*plan, "end"]

    def moment(self) -> Now:
        return Now(self.now, START + timedelta(seconds=self.now), self.rng.random())

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + seconds, next(self.count), what))

    # ---- the agent's truth

    def accept(self) -> None:
        if self.truth is None:
            self.truth = task(S)
            self.later(self.rng.choice([0.0, 0.2, 5.0]), self.advance)

    def advance(self) -> None:
        assert self.truth is not None
        if self.truth.terminal or not self.plan:
            return
        what = self.plan.pop(0)
        if what == "work":
            self.move(status(W))
        elif what == "text":
            self.text += self.rng.choice(["alpha ", "beta ", "gamma "])
            self.truth = replace(self.truth, artifacts=task(W, self.text).artifacts)
            self.tell_streams(chunk(self.text.split()[-1] + " "))
        elif what == "status":
            self.move(status(W, "busy", said_id=f"s{next(self.count)}"))
        elif what == "ask":
            self.move(status(I, "which?", said_id=f"q{next(self.count)}", final=True))
            return
        else:
            whole = task(self.end, self.text + "end", "it broke" if self.end is F else "", cost=True)
            self.truth = replace(self.truth, artifacts=whole.artifacts)
            (artifact,) = whole.artifacts
            self.tell_streams(replace(chunk("", append=False, last=True), artifact=artifact))
            self.move(status(self.end, "it broke" if self.end is F else "", final=True))
            return
        self.later(self.rng.choice([0.01, 0.5, 3.0, 40.0]), self.advance)

    def move(self, update: StatusUpdate) -> None:
        assert self.truth is not None
        self.truth = replace(self.truth, status=update.status)
        self.tell_streams(update)
        if self.track.record.push:
            self.push(update)

    def tell_streams(self, event: TaskEvent) -> None:
        for watcher in tuple(self.watchers):
            watcher(event)

    def push(self, update: StatusUpdate) -> None:
        assert self.truth is not None
        terminal = update.status.state in {C, F}
        form = self.rng.choice(["bare", "artifact", "task"])
        event: TaskEvent = update
        if form == "task":
            event = Snapshot(task=self.truth)
        elif form == "artifact" and terminal:
            event = replace(update, artifacts=self.truth.artifacts)
        for _ in range(self.rng.choice([0, 1, 1, 1, 2, 3])):
            delay = self.rng.choice([0.0, 0.05, 1.0, 20.0, 90.0])
            self.later(delay, lambda: self.tell(TaskUpdate(event=event, via=UpdateSource.PUSH, began=self.now)))

    # ---- the caller's effects

    def tell(self, signal: Signal) -> None:
        self.track, effects = step(self.track, signal, self.moment(), self.rules)
        for effect in effects:
            self.carry(effect)

    def carry(self, effect: Effect) -> None:
        match effect:
            case Send(stream=True):
                self.later(0.05, lambda: self.open_stream(first=True))
            case Send():
                self.send()
            case Subscribe():
                self.later(0.05, lambda: self.open_stream(first=False))
            case Poll():
                self.poll()
            case Ask(question=question):
                self.asked += 1
                answer = Answer(question_id=question.question_id, text="this")
                self.later(self.rng.choice([0.1, 10.0, 100.0]), lambda: self.tell(Answered(answer=answer)))
            case Resume(answer=answer):
                self.resume()
            case Close(outcome=outcome):
                self.outcomes.append(outcome)
            case RegisterPush() | Cancel():
                pass
            case _:
                pass

    def send(self) -> None:
        if self.rng.random() < 0.1:
            self.later(0.1, lambda: self.tell(SendFailed(error=Unreachable("refused"))))
            return
        began = self.now
        self.accept()

        def reply(seen: Task) -> None:
            self.tell(Replied(reply=seen, began=began))

        truth = self.truth
        assert truth is not None
        self.later(self.rng.choice([0.01, 0.5, 4.0]), lambda: reply(truth))

    def open_stream(self, *, first: bool) -> None:
        if self.rng.random() < 0.1:
            error = Unreachable("refused")
            self.tell(SendFailed(error=error) if first else StreamEnded(error=error))
            return
        self.accept()
        assert self.truth is not None
        cut_after = self.rng.choice([1, 3, 5, 10**6, 10**6])
        line: list[float] = [self.now]

        def deliver(event: TaskEvent, last: bool) -> None:
            line[0] = max(line[0], self.now) + self.rng.choice([0.0, 0.01, 0.3])
            self.later(
                line[0] - self.now, lambda: self.tell(TaskUpdate(event=event, via=UpdateSource.STREAM, began=self.now))
            )
            if last:
                broken = ConnectionLost("cut") if cut[0] <= 0 else None
                self.later(line[0] - self.now, lambda: self.tell(StreamEnded(error=broken)))

        cut = [cut_after]

        def watch(event: TaskEvent) -> None:
            cut[0] -= 1
            final = isinstance(event, StatusUpdate) and event.final
            if final or cut[0] <= 0:
                self.watchers.remove(watch)
            deliver(event, final or cut[0] <= 0)

        deliver(Snapshot(task=self.truth), False)
        if self.truth.terminal:
            self.later(0.5, lambda: self.tell(StreamEnded()))
        else:
            self.watchers.append(watch)

    def poll(self) -> None:
        assert self.polls_in_air == 0, "two polls in the air"
        self.polls_in_air += 1
        began = self.now

        def read() -> None:
            seen = self.truth
            fails = self.rng.random() < 0.15
            self.later(self.rng.choice([0.01, 0.2, 8.0]), lambda: answer(None if fails else seen))

        def answer(seen: Task | None) -> None:
            self.polls_in_air -= 1
            if seen is None:
                self.tell(PollFailed(error=Unreachable("down")))
            else:
                self.tell(TaskUpdate(event=Snapshot(task=seen), via=UpdateSource.POLL, began=began))

        self.later(self.rng.choice([0.01, 0.2, 3.0]), read)

    def resume(self) -> None:
        if self.rng.random() < 0.15:
            self.later(0.1, lambda: self.tell(ResumeFailed(error=Unreachable("refused"))))
            return
        assert self.truth is not None
        assert self.truth.state is I, "an answer reached a task that was not asking"
        self.resumes += 1
        began, seen = self.now, self.truth
        self.advance()
        if self.rng.random() < 0.1:
            self.later(1.0, lambda: self.tell(ResumeFailed(error=TimedOut("silent"))))
        else:
            shown = self.rng.choice([seen, self.truth])
            self.later(self.rng.choice([0.01, 2.0]), lambda: self.tell(Resumed(reply=shown, began=began)))

    def run(self) -> None:
        self.tell(Begin())
        for _ in range(20_000):
            wake = wake_of(self.track)
            due = self.heap[0][0] if self.heap else None
            if wake < NEVER and (due is None or wake <= due):
                self.now = max(self.now, wake)
                self.tell(Due())
            elif due is not None:
                self.now, _, what = heapq.heappop(self.heap)
                what()
            else:
                return
        raise AssertionError("the storm does not end")


@pytest.mark.parametrize("block", range(8))
def test_any_order_of_stream_poll_and_webhook_ends_in_one_outcome_with_all_of_it(block: int) -> None:
    for seed in range(block, scaled(4_000, share=10), 8):
        storm = Storm(seed)
        storm.run()
        assert len(storm.outcomes) == 1, f"seed {seed}: {len(storm.outcomes)} outcomes"
        (outcome,) = storm.outcomes
        if outcome.kind.value == "undeliverable":
            assert storm.truth is None, f"seed {seed}: it was accepted"
            continue
        assert storm.truth is not None
        assert outcome.kind.value == storm.truth.state.value, f"seed {seed}"
        expected = "it broke" if storm.end is F else storm.text + "end"
        assert outcome.text == expected, f"seed {seed}: {outcome.text!r} instead of {expected!r}"
        assert outcome.cost_usd == 0.5, f"seed {seed}: cost {outcome.cost_usd}"
