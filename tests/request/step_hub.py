"""The hub around one decision, as plain as can be: calls under way, a ledger, a clock that is moved by hand.

Every signal and every effect passes the checker. Here too: the failures of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    ConnectionLost,
    EmptyStream,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    NotAccepting,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import Task
from fleetsim.model.work import Answer, Outcome, Question, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Ask,
    Begin,
    Cancel,
    Close,
    Due,
    Effect,
    Left,
    LookUpTask,
    Poll,
    QuestionRecorded,
    RegisterPush,
    ResolveQuestion,
    Resume,
    Save,
    Send,
    StreamEnded,
    Subscribe,
    TurnedAway,
)
from fleetsim.request.track import Now, Rules, Signal, TaskUpdate, Timer
from tests.request.step_agent import Agent
from tests.request.step_checker import Checker
from tests.request.steps import START, in_table, wake_of

LIMIT_S = 3700.0
SOON_S = 300.0
"""How long a request may take to end once the agent has ended and every call is answered."""

BUSY = HttpRefused("busy", status=503, retry_after_s=40.0)
NOT_STARTED = (
    Unreachable("refused"),
    Unreachable("refused"),
    TimedOut("no slot", sent=False),
    BUSY,
    MethodNotFound(),
    InvalidParams("bad webhook"),
    PushNotSupported(),
    AuthRefused("no", status=401),
    NotAccepting("the disk is full"),
)
MAY_HAVE_STARTED = (TimedOut("silent"), ConnectionLost("reset"), HttpRefused("proxy", status=502), EmptyStream())
GARBLED = (WireError("HTML"), InternalError("boom"))
NO_TASK = (
    TaskNotFound(),
    TaskNotFound(),
    AuthRefused("no", status=401),
    HttpRefused("gone", status=404),
    HttpRefused("proxy", status=502),
    BUSY,
    Unreachable("down"),
    TimedOut("silent"),
    MethodNotFound(),
    WireError("HTML"),
    LimitReached("the body is larger than 1048576 bytes"),
    InvalidParams("no such id"),
    ConfigError("QUINN_KEY is not set"),
    InternalError("the store is down"),
)
UNTAKEN = (Unreachable("refused"), BUSY, UnsupportedOperation(), TaskNotCancelable(), InvalidParams("no"))
UNCANCELLED = (TaskNotCancelable(), Unreachable("down"), TimedOut("silent"), MethodNotFound())


@dataclass
class Call:
    """A call to the agent that has no reply yet."""

    effect: Effect
    began: float
    reached: bool = False
    seen: Task | None = None
    asked: str | None = None
    heard: int = 0
    at: int = 0
    left: bool = False


class Ledger:
    """The parts that survive the hub: the newest record, the questions, the outcome. A slow disk delays writes."""

    def __init__(self, accepted: RequestRecord) -> None:
        self.record = accepted
        self.questions: dict[str, tuple[Question, str, Answer | None]] = {}
        self.outcomes: list[Outcome] = []
        self.early: list[TaskEvent] = []
        self.slow = False
        self.asked: list[str] = []
        self._waiting: list[Callable[[], None]] = []

    def write(self, what: Callable[[], None]) -> None:
        if self.slow:
            self._waiting.append(what)
        else:
            what()

    def catch_up(self) -> None:
        self.slow, waiting, self._waiting = False, self._waiting, []
        for what in waiting:
            what()

    def die(self) -> None:
        self.slow, self.asked, self._waiting = False, [], []

    def keep(self, newest: RequestRecord) -> None:
        self.record = newest

    def ask(self, question: Question) -> None:
        self.questions.setdefault(question.question_id, (question, "open", None))
        self.asked.append(question.question_id)

    def settle(self, question_id: str, state: str) -> None:
        question, was, answer = self.questions[question_id]
        if was in {"open", "answered"}:
            self.questions[question_id] = (question, state, answer)

    def close(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.early.clear()

    def claim(self, answer: Answer) -> bool:
        question, was, _ = self.questions.get(answer.question_id, (None, "", None))
        if question is None or was != "open":
            return False
        self.questions[answer.question_id] = (question, "answered", answer)
        return True

    def unfinished(self) -> tuple[Question | None, Answer | None]:
        waiting = [(q, a) for q, was, a in self.questions.values() if was in {"open", "answered"}]
        return waiting[-1] if waiting else (None, None)


class Hub:
    """Feeds ``step``, carries its effects out as far as a list of calls, and never decides."""

    def start(self, accepted: RequestRecord) -> None:
        self.rules = Rules()
        self.now, self.jitter, self.broken, self.busy = 0.0, 0.5, False, False
        self.calls: list[Call] = []
        self.ledger = Ledger(accepted)
        self.agent = Agent()
        self.checker = Checker(self.agent)
        self.track = new_track(accepted, self.moment())
        self.tell(Begin())

    def moment(self) -> Now:
        return Now(self.now, START + timedelta(seconds=self.now), self.jitter)

    def tell(self, signal: Signal) -> None:
        was_bound, self.broken = self.checker.life.bound, True
        self.checker.hear(signal, self.now)
        self.track, effects = in_table(self.track, signal, self.moment(), self.rules)
        self.checker.see(effects, signal, was_bound)
        for effect in effects:
            self.carry(effect)
        for _ in range(6):
            if wake_of(self.track) > self.now:
                break
            self.due()
        assert wake_of(self.track) > self.now, "time stands still"
        self.checker.rest(wake_of(self.track), self.may_be_told())
        self.broken = False
        self.let_leave()
        while self.ledger.asked:
            self.tell(QuestionRecorded(question_id=self.ledger.asked.pop()))

    def let_leave(self) -> None:
        """A send waits for its turn; then it is put on record, and leaves once it is."""
        for call in self.in_air(Send):
            if not call.left and not self.busy:
                call.left = True
                self.tell(Left())
                sending = replace(self.track.record, phase=Phase.SENDING)
                self.ledger.write(lambda sending=sending: self.ledger.keep(sending))

    def may_be_told(self) -> bool:
        """Whether the agent can still send news by itself, or owes us a reply."""
        listening = [c for c in self.in_air(Send, Subscribe) if c.effect != Send(stream=False)]
        owed = self.in_air(Resume, RegisterPush) or self.track.timers.get(Timer.RESUME) is not None
        return bool(listening or owed) or self.track.record.push

    def due(self) -> None:
        self.checker.hear(Due(), self.now)
        self.track, effects = in_table(self.track, Due(), self.moment(), self.rules)
        self.checker.see(effects, Due(), self.checker.life.bound)
        for effect in effects:
            self.carry(effect)

    def carry(self, effect: Effect) -> None:
        match effect:
            case Send() | Subscribe() | Poll() | LookUpTask() | RegisterPush() | Resume() | Cancel():
                self.calls.append(Call(effect, self.now))
            case Save():
                self.ledger.write(lambda: self.ledger.keep(self.track.record))
            case Ask(question=question):
                self.ledger.write(lambda: self.ledger.ask(question))
            case ResolveQuestion(question_id=question_id, state=state):
                self.ledger.write(lambda: self.ledger.settle(question_id, state))
            case Close(outcome=outcome):
                self.ledger.write(lambda: self.ledger.close(outcome))
            case _:
                pass

    def take_webhook(self, event: TaskEvent) -> None:
        """Before the reply it is applied once it is on record, or refused."""
        if self.track.awaits_reply and self.ledger.slow:
            self.tell(TurnedAway())
            return
        if self.track.awaits_reply:
            self.ledger.early.append(event)
            self.checker.promised.append(event)
        self.tell(TaskUpdate(event=event, via=UpdateSource.PUSH, began=self.now))

    def in_air(self, *kinds: type) -> list[Call]:
        return [call for call in self.calls if isinstance(call.effect, kinds)] if hasattr(self, "calls") else []

    def land(self, call: Call, signal: Signal) -> None:
        self.calls.remove(call)
        self.tell(signal)

    @property
    def truth(self) -> Task | None:
        return self.agent.task if hasattr(self, "agent") else None

    @property
    def on_the_wire(self) -> bool:
        """Whether a send has left: nothing does before it is on record."""
        left = any(call.left for call in self.in_air(Send))
        return left and not self.ledger.slow and self.ledger.record.phase is not Phase.INTENT


class Peace:
    """From here on every call gets its reply at once, and nothing fails."""

    def __init__(self, machine: Any) -> None:
        self.m = machine

    def finish(self) -> None:
        began = self.m.now
        for _ in range(200):
            if self.m.track.outcome is not None:
                return
            if self.m.calls:
                self.answer(self.m.calls[0])
            elif self.m.open_questions():
                self.m.person_answers(reject=False, killed=False, how="")
            else:
                self.let_time_pass()
            soon = SOON_S if not self.m.checker.life.stopped else LIMIT_S  # it can only send news, or expire
            assert self.m.now - began <= soon, "it does not end"
        raise AssertionError("it goes on and on")

    def let_time_pass(self) -> None:
        """The agent ends tasks without a question; a question must reach a person."""
        agent = self.m.agent
        if agent.task is not None and not agent.ended and agent.asking is None:
            agent.move("complete")
        self.m.wake()

    def answer(self, call: Call) -> None:
        m = self.m
        match call.effect:
            case Send() if call.heard:
                m.land(call, StreamEnded())
            case Send():
                m.send_is_answered(early=False, jitter=0.5)
            case Subscribe():
                m.land(call, StreamEnded(error=UnsupportedOperation()))
            case Poll():
                m.poll_is_answered(jitter=0.5)
            case LookUpTask():
                m.search_comes_back(how="found")
            case RegisterPush():
                m.webhook_is_registered(error=None)
            case Resume() if not call.reached:
                m.answer_arrives()
            case Resume():
                m.answer_is_answered("as it is")
            case Cancel():
                m.cancel_is_answered(obeys=True)
