"""Rules for one request, whatever happens: checked against its signals and effects alone.

It shares no code with ``step`` and never looks at a track but for when it wakes: it holds its own account of
signals and effects, and the agent's truth beside it. Sources: reliability invariants I-01, I-03, I-10, I-11,
I-12, I-13, faults F-01, F-03, F-12, F-21 to F-25, decisions 5 and 7.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fleetsim.model.asking import text_of
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    RpcError,
    TaskNotFound,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.event import DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import Task
from fleetsim.model.work import Answer, Decision, Outcome, Question, UpdateSource
from fleetsim.request.records import Phase, RequestRecord
from fleetsim.request.signals import (
    Answered,
    Ask,
    Cancel,
    CancelAsked,
    CancelFailed,
    CancelReplied,
    Close,
    Due,
    Effect,
    Found,
    Left,
    LookUpTask,
    Poll,
    PollFailed,
    Publish,
    Recovered,
    RegisterPush,
    Replied,
    ResolveQuestion,
    Resume,
    Resumed,
    ResumeFailed,
    Save,
    Send,
    SendFailed,
    StreamEnded,
    Subscribe,
    TurnedAway,
)
from fleetsim.request.track import Signal, TaskUpdate
from tests.request.step_agent import Agent, names_ours, status_in
from tests.request.steps import NEVER

INTERVAL, LIMIT, QUESTION_LIFE, CANCEL_PATIENCE, CONFIRM, YOUNG = 30.0, 3600.0, 24 * 3600.0, 30.0, 5.0, 60.0
OWED, REFUSALS, REJOIN, GRACE, SOON, CALL = 6, 3, 9.0, 5.0, 1.0, 15.0
NEVER_MENDED = (WireError, LimitReached, MethodNotFound, UnsupportedOperation, InvalidParams, ConfigError)
OF_THE_AGENT = {"completed", "failed", "canceled", "rejected"}


@dataclass
class Life:
    """The knowledge that one run of the hub has of the request; a crash forgets it."""

    bound: bool = False
    sending: bool = False
    left_at: float | None = None
    overdue: bool = False
    closed: bool = False
    polls: int = 0
    cancels: int = 0
    resumes: dict[str, str] = field(default_factory=dict)
    open: str | None = None
    asked: dict[str, float] = field(default_factory=dict)
    shown_before: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)
    in_doubt: str | None = None
    seen_waiting: str | None = None
    ended_as: str | None = None
    paid: int = 0
    gone: list[tuple[float, bool]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    refused_at: float = float("inf")
    last_look: float = 0.0
    patience: float = 0.0
    stopped: str = ""
    unconfirmable: bool = False
    stream_ended: float = float("-inf")
    silent: bool = False
    searched: int = 0
    unsearchable: bool = False
    only_polls_since: float | None = None
    gap_until: float = float("inf")
    parked: list[TaskEvent] = field(default_factory=list)
    refused: str = ""
    lost_at: float | None = None
    cancel_at: float | None = None


class Checker:
    """Fed with every signal before, and every effect after, the decision under test."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.life = Life()
        self.words: dict[str, str] = {}
        self.given: set[str] = set()
        self.taken: dict[str, int] = {}
        self.maybe_started = False
        self.cancel_wanted = self.rejected = False
        self.now = 0.0
        self.ended_before: str | None = None
        self.promised: list[TaskEvent] = []

    def new_life(self, kept: RequestRecord, question: Question | None, answer: Answer | None, now: float) -> None:
        """The hub was killed and starts again with its records; no call leaves before they say that it may."""
        self.maybe_started, self.cancel_wanted = kept.phase is not Phase.INTENT, kept.cancel_wanted
        self.rejected = kept.rejected
        self.life = Life(bound=kept.task is not None, last_look=now, lost_at=now if self.maybe_started else None)
        if kept.task is not None and kept.task.state.value in OF_THE_AGENT:
            self.life.ended_as = kept.task.state.value
        if question is not None:
            self.life.asked[question.question_id] = now - QUESTION_LIFE  # how much of its life is left is clamped
            self.life.open = question.question_id if answer is None else None
            if answer is not None:
                self._take_up(question, answer)

    def _take_up(self, question: Question, answer: Answer) -> None:
        self.life.in_doubt = question.question_id
        if answer.decision is Decision.REJECT:
            self.cancel_wanted = self.rejected = True
            self.life.rejected.add(question.text)

    # ------------------------------------------------------------------ what goes in

    def hear(self, signal: Signal, now: float) -> None:
        self.now, self.ended_before = now, self.life.ended_as
        if self.life.closed:
            return
        brought_by_poll = isinstance(signal, PollFailed) or (
            isinstance(signal, TaskUpdate) and signal.via is UpdateSource.POLL
        )
        if not isinstance(signal, Due) and not brought_by_poll:
            self.life.only_polls_since = None
        match signal:
            case Left() if self.life.sending:
                self.life.left_at = now
            case Due() if self.life.sending and self.life.left_at is not None and now >= self.life.left_at + CALL:
                self.life.overdue = True  # the reply is still awaited, but nothing waits for it any more
                self._unpark()
            case Replied(reply=reply):
                self.life.sending = False
                self._news(
                    Snapshot(task=reply) if isinstance(reply, Task) else DirectReply(message=reply), UpdateSource.REPLY
                )
            case SendFailed(error=error):
                self._send_failed(error)
            case TaskUpdate(event=event, via=via):
                self._news(event, via)
            case Recovered(early=early):
                self._recall(early)
            case TurnedAway() if self.life.bound:
                self.life.gap_until = min(self.life.gap_until, now + CONFIRM + SOON)
            case Found(task=Task() as found) if not self.life.bound:
                self._news(Snapshot(task=found), UpdateSource.REPLY)
            case Found(task=None, possible=possible, error=None) if self.life.lost_at is not None:
                self.life.searched += 1
                self.life.unsearchable = not possible
            case PollFailed(error=error):
                self._poll_failed(error)
            case Answered(answer=answer):
                self._answered(answer)
            case StreamEnded() if self.life.bound and self.life.open is None:
                self.life.stream_ended = now
                if not self.life.stopped:
                    self.life.gap_until = self.now + INTERVAL + 5.0
            case Resumed(reply=reply):
                self.life.last_look = now
                self.life.resumes = dict.fromkeys(self.life.resumes, "done")
                if isinstance(reply, Task):
                    self._news(Snapshot(task=reply), UpdateSource.REPLY)
            case ResumeFailed(error=error):
                self._resume_failed(error)
            case CancelAsked():
                self.cancel_wanted = True
            case CancelFailed(error=RpcError()) if not self.rejected:  # refused: the request goes on as before
                self.cancel_wanted, self.life.cancels, self.life.cancel_at = False, 0, None
            case CancelReplied(task=task):
                self._news(Snapshot(task=task), UpdateSource.REPLY)
            case _:
                pass

    def _send_failed(self, error: FleetsimError) -> None:
        self.life.sending = self.life.overdue = False
        if self.life.bound:
            return
        self.life.silent = isinstance(error, EmptyStream)
        told = any(map(names_ours, self.life.parked))
        self.maybe_started = self.life.silent or told or bool(getattr(error, "sent", False))
        if self.maybe_started:
            self.life.lost_at = self.now
        self.life.refused = "failed" if isinstance(error, InternalError) else ""
        if isinstance(error, WireError) and not self.life.silent:
            self.life.refused = "protocol_error"
        self._unpark()

    def _news(self, event: TaskEvent, via: UpdateSource) -> None:
        life = self.life
        if via is UpdateSource.POLL:
            life.polls -= 1
            life.patience = 0.0
            life.refusals.clear()
            life.refused_at = float("inf")
            life.gone.clear()
            life.last_look = self.now
        if via is UpdateSource.STREAM:
            life.sending = False
        if via is UpdateSource.PUSH and not life.bound and life.sending and not life.overdue:
            life.parked.append(event)
            return
        if via is UpdateSource.PUSH and not names_ours(event):
            return
        if not life.bound:
            life.bound, life.last_look = True, self.now
        status = status_in(event)
        if status is not None and status.state.value in OF_THE_AGENT and names_ours(event):
            life.ended_as = life.ended_as or status.state.value
        elif via is UpdateSource.POLL and life.ended_as:
            life.paid += 1
        if via is UpdateSource.POLL and status is not None:
            life.seen_waiting = status.message.text if status.message else None
        if isinstance(event, DirectReply) and via is not UpdateSource.PUSH:
            life.ended_as = "completed"
        self._unpark()

    def _recall(self, early: tuple[TaskEvent, ...]) -> None:
        """Webhooks kept from an earlier life: they bind the task, or give the end of the known one."""
        if not self.life.bound:
            for event in early:
                self._news(event, UpdateSource.PUSH)
            return
        for status in filter(None, map(status_in, filter(names_ours, early))):
            if status.state.value in OF_THE_AGENT:
                self.life.ended_as = self.life.ended_as or status.state.value

    def _unpark(self) -> None:
        """Webhooks that overtook the reply count once it is there, or known to be lost."""
        early, self.life.parked = self.life.parked, []
        for event in early:
            self._news(event, UpdateSource.PUSH)

    def _poll_failed(self, error: FleetsimError) -> None:
        life = self.life
        life.polls -= 1
        life.last_look = self.now
        life.gap_until = max(life.gap_until, self.now + INTERVAL + 5.0)  # a poll owed after a stream: owed from now
        life.paid += 1 if life.ended_as else 0
        if isinstance(error, TaskNotFound | AuthRefused) or (isinstance(error, HttpRefused) and error.status == 404):
            confirms = not life.gone or self.now - life.gone[-1][0] >= CONFIRM - 0.001
            life.gone += [(self.now, isinstance(error, TaskNotFound))] if confirms else []
            life.unconfirmable = bool(life.ended_as)
        elif isinstance(error, NEVER_MENDED):
            answer = f"{type(error).__name__} {getattr(error, 'status', '')}"
            wire = isinstance(error, WireError)
            if not life.ended_as:  # a task that is known to have ended is owed its polls
                life.refusals[answer] += 1
                life.refused_at = min(life.refused_at, self.now)
            life.unconfirmable = bool(life.ended_as) and not wire
            late = not wire or self.now - life.refused_at >= INTERVAL / 2
            if life.refusals[answer] >= REFUSALS and late and not life.ended_as:
                life.stopped = "protocol_error" if wire or isinstance(error, LimitReached) else "lost"
                life.gap_until = float("inf")
        life.patience = getattr(error, "retry_after_s", None) or 0.0

    def _answered(self, answer: Answer) -> None:
        if answer.question_id != self.life.open:
            return
        self.life.open, self.life.gap_until = None, float("inf")
        self.given.add(answer.question_id)
        if answer.decision is Decision.REJECT:
            self.cancel_wanted = self.rejected = True
            self.life.rejected.add(self.words[answer.question_id])

    def _resume_failed(self, error: FleetsimError) -> None:
        lost = bool(getattr(error, "sent", False))
        self.life.last_look = self.now
        fate = "again" if not lost and error.retryable else "done"
        self.life.resumes = {q: fate if was == "air" else was for q, was in self.life.resumes.items()}
        refused = not lost and not error.retryable
        self.life.refused = "failed" if refused else ""

    def took(self, words: str) -> None:
        """The agent accepted our answer to its question, and its reply arrived."""
        self.taken[words] = self.taken.get(words, 0) + 1

    # ------------------------------------------------------------------ what comes out

    def see(self, effects: tuple[Effect, ...], signal: Signal, was_bound: bool) -> None:
        if isinstance(signal, Due) and self.now >= LIMIT and any(isinstance(e, Save) for e in effects):
            self.life.sending = False  # past the deadline the reply is not waited for any longer
            self._unpark()
        ends = [e for e in effects if isinstance(e, Close)]
        assert len(ends) <= 1, "two outcomes in one step"
        for effect in effects:
            assert not self.life.closed or isinstance(effect, Publish), f"{effect} after the outcome"
            self._one(effect, signal, ends, was_bound)
        if self.life.bound and not was_bound:
            assert any(isinstance(e, Save) for e in effects), "which task it is was not put on record"
        if isinstance(signal, CancelAsked) and not ends and not self.life.closed:
            assert any(isinstance(e, Save) for e in effects), "the wish to cancel was not put on record"

    def _one(self, effect: Effect, signal: Signal, ends: list[Close], was_bound: bool) -> None:
        match effect:
            case Send():
                assert not self.life.sending, "two sends in the air"
                assert not self.maybe_started, "sent again although the first may have arrived"
                self.life.sending = self.maybe_started = True
            case Poll():
                self._poll()
            case Subscribe() | RegisterPush():
                assert self.life.bound
            case LookUpTask():
                assert not was_bound, "looked for a task that is known"
                assert self.maybe_started
            case Ask(question=question):
                self._ask(question, signal)
            case ResolveQuestion(question_id=question_id) if question_id == self.life.open:
                self._withdraw(question_id, signal)
            case Resume(answer=answer):
                self._resume(answer)
            case Cancel():
                self._cancel(ends)
            case Close(outcome=outcome):
                self._close(outcome)
            case _:
                pass

    def _poll(self) -> None:
        assert self.life.bound
        assert not self.life.stopped, "asked again what will not change"
        assert self.life.polls == 0, "two polls in the air"
        since = self.life.only_polls_since
        assert since is None or self.now - since >= 0.89, "polled again without a pause"
        self.life.polls, self.life.only_polls_since, self.life.gap_until = 1, self.now, float("inf")
        self.life.last_look = self.now

    def _ask(self, question: Question, signal: Signal) -> None:
        life, words = self.life, question.text
        assert self.agent.times_asked[words], "the agent never asked this"
        assert life.open is None, "two questions open at once"
        assert question.question_id not in self.words, "a question's id was used before"
        assert "air" not in life.resumes.values(), "asked while an answer is on its way"
        assert not self.ended_before, "asked on behalf of a task that has ended"
        assert words not in life.rejected, "asked again what was rejected"
        loose = isinstance(signal, TaskUpdate) and signal.via in {UpdateSource.PUSH, UpdateSource.STREAM}
        if words in life.shown_before:
            assert not loose, "a webhook or stream reopened a question"
        assert self.taken.get(words, 0) < self.agent.times_asked[words], "asked again what was answered"
        life.shown_before.add(words)
        self.words[question.question_id] = words
        life.open = question.question_id
        life.asked[question.question_id] = self.now

    def _withdraw(self, question_id: str, signal: Signal) -> None:
        self.life.open = None
        if isinstance(signal, TaskUpdate) and not self.life.ended_as:
            assert signal.via is UpdateSource.POLL, "a webhook or stream withdrew a question"
            assert signal.began >= self.life.asked[question_id], "withdrawn for news older than the question"

    def _resume(self, answer: Answer) -> None:
        life = self.life
        assert answer.question_id in self.given, "an answer nobody gave"
        assert answer.decision is Decision.ANSWER, "a rejection sent as an answer"
        assert life.resumes.get(answer.question_id, "again") == "again", "an answer sent twice"
        assert life.open is None, "an answer sent past an open question"
        assert not life.ended_as, "an answer to a task that has ended"
        assert answer.text == f"to {answer.question_id}"
        if life.in_doubt == answer.question_id and answer.question_id not in life.resumes:
            assert life.seen_waiting == self.words[answer.question_id], "an answer sent on without asking the agent"
        life.resumes[answer.question_id] = "air"
        life.last_look = self.now

    def _cancel(self, ends: list[Close]) -> None:
        assert self.life.bound
        given_up = bool(ends) and ends[0].outcome.kind.value in {"expired", "failed"}
        assert given_up or self.cancel_wanted, "cancelled although nobody wanted it"
        if not given_up:
            self.life.cancels += 1
            self.life.cancel_at = self.now
            assert self.life.cancels == 1, "cancelled twice"

    # ------------------------------------------------------------------ how it ends

    def _close(self, outcome: Outcome) -> None:
        life, kind = self.life, outcome.kind.value
        assert life.open is None, "ended with a question left open"
        life.closed = True
        self._keep_promises(kind)
        if life.ended_as:
            assert kind == life.ended_as, f"the agent said {life.ended_as}, the outcome says {kind}"
        if kind in OF_THE_AGENT:
            self._close_as_the_agent(outcome)
        else:
            allowed: dict[str, Any] = {
                "expired": self._may_expire,
                "lost": self._may_be_lost,
                "unknown": self._may_be_unknown,
                "undeliverable": lambda: self.agent.task is None,
                "protocol_error": self._may_be_against_the_protocol,
            }
            assert allowed[kind](), f"no ground for {kind}: {outcome.reason}"

    def _keep_promises(self, kind: str) -> None:
        """The content of a webhook before the reply was acknowledged: it is not forgotten, in this life or the next."""
        told = [status_in(event) for event in self.promised if names_ours(event)]
        assert not told or kind not in {"unknown", "undeliverable"}, "a webhook was acknowledged and forgotten"
        ends = {status.state.value for status in told if status is not None} & OF_THE_AGENT
        assert not ends or kind in ends, f"an acknowledged webhook said {ends}, the outcome says {kind}"

    def _close_as_the_agent(self, outcome: Outcome) -> None:
        kind, truth = outcome.kind.value, self.agent.task
        if self.life.refused == kind and not self.life.ended_as:
            return
        assert truth is not None, "an end without a task"
        assert truth.state.value == kind, f"the agent is {truth.state.value}, the outcome says {kind}"
        if kind == "failed":
            assert outcome.reason == "it broke"
        if kind == "completed" and (outcome.text, outcome.cost_usd) != (text_of(truth)[0], 0.5):
            assert self.life.paid >= OWED or self.now >= LIMIT or self.life.unconfirmable or self.life.stopped, (
                "not the whole of it"
            )
            assert "could not be confirmed" in outcome.reason, "not the whole of it, and not a word about that"

    def _may_be_against_the_protocol(self) -> bool:
        """An invalid reply, three invalid polls, or an empty stream without a task that is found."""
        life = self.life
        unfound = life.searched >= 2 or life.unsearchable or self._waited_for_a_lost_reply()
        silent = life.silent and not life.bound and unfound
        return silent or "protocol_error" in {life.stopped, life.refused}

    def _may_expire(self) -> bool:
        life = self.life
        cancel = life.cancel_at is not None and self.now - life.cancel_at >= CANCEL_PATIENCE - 0.001
        unanswered = any(self.now - at >= QUESTION_LIFE for at in life.asked.values())
        return cancel or unanswered or self.now >= LIMIT

    def _may_be_lost(self) -> bool:
        """Confirmed at least 5 s later; a young task that is not found has three confirmations (F-12)."""
        at, not_found = self.life.gone[-1] if self.life.gone else (0.0, False)
        young = not_found and at < YOUNG - CONFIRM
        return self.life.stopped == "lost" or len(self.life.gone) >= (4 if young else 2)

    def _may_be_unknown(self) -> bool:
        life = self.life
        return not life.bound and self.maybe_started and (life.unsearchable or self._waited_for_a_lost_reply())

    def _waited_for_a_lost_reply(self) -> bool:
        return self.life.lost_at is not None and self.now - self.life.lost_at >= 2 * INTERVAL - 0.001

    # ------------------------------------------------------------------ at any moment

    def rest(self, wake: float, told: bool) -> None:
        """No further signal comes: the next poll must be scheduled, or ``told`` says that the agent may send news.
        ``told``: a stream is open or being opened, the agent took a webhook, or it owes us an answer."""
        life = self.life
        if life.closed:
            assert wake == NEVER, "woken after the end"
            return
        assert wake < NEVER, "asleep for ever"
        if self.cancel_wanted and life.bound and not life.ended_as:
            assert life.cancels, "the wish to cancel was forgotten"
        if life.stopped and not told and life.open is None:
            joins = life.stream_ended + REJOIN
            confirms = -1.0 if life.cancel_at is None else life.cancel_at + CANCEL_PATIENCE
            late = self.now + GRACE if self.now > min(joins, confirms) else 0.0
            assert wake <= max(joins, confirms, late) + 0.001, "open with nothing that can still tell it anything"
        if life.bound and not life.polls and not life.stopped and "air" not in life.resumes.values():
            asked = life.last_look + life.patience * 1.1  # the agent's Retry-After counts after a stream, too
            assert wake <= max(life.gap_until, asked), "a stream ended and nobody looks what was missed"
            late = life.last_look + max(2.2 * INTERVAL, life.patience * 1.1) + 1.0
            assert wake <= late, "nobody looks at the task any more"
