"""Tasks as the events tell of them: state, live text and what happened when. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from fleetsim.caller.events import (
    CallRetried,
    Event,
    Excerpt,
    OutcomeDecided,
    PollingStopped,
    RequestAccepted,
    RequestAnswered,
    StreamReceived,
    TaskBound,
    TaskMoved,
    UpdateIgnored,
)
from fleetsim.dashboard import read
from fleetsim.dashboard.live_text import LIVE_CHARS_MAX, LiveText, tokens
from fleetsim.model.task import INTERRUPTED, TaskState
from fleetsim.model.text import neutralise, one_line
from fleetsim.model.work import UpdateSource

TASKS_MAX = 2_000
"""Tasks kept; the oldest finished ones go first."""
STEPS_MAX = 200

_WAITING = frozenset(state.value for state in INTERRUPTED)
_OPEN_ORDER = {TaskState.INPUT_REQUIRED.value: 0, TaskState.AUTH_REQUIRED.value: 0, TaskState.SUBMITTED.value: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a task's story. ``arrow`` is ``→`` for ours, ``←`` for the agent's, ``·`` for a finding."""

    at: datetime
    arrow: str
    via: str
    what: str
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in a list. ``state`` is a task state or, once ``ended_at`` is set, the outcome's kind."""

    correlation_id: str
    task_id: str
    agent: str
    skill: str
    origin: str
    state: str
    since: datetime
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    via: str
    last: str
    attempt: int
    question_id: str | None
    duration_ms: int | None = None
    cost_usd: float | None = None
    reason: str = ""
    success: bool = False

    @property
    def open(self) -> bool:
        """Whether its outcome is still to come."""
        return self.ended_at is None

    @property
    def waiting(self) -> bool:
        """Whether it waits for a person."""
        return self.ended_at is None and self.state in _WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """Everything known of one task. ``text`` is its live text, or its final text once it has one.

    ``shown`` of its ``chars`` characters are in ``text``: the newest, or with ``first`` the first of them. ``gaps``
    says that some are missing in the middle, ``request_chars`` how long the request is in all. ``sent`` and
    ``parts`` are a line for each file and piece of data that went out and came back, the latter of ``parts_total``.
    """

    row: TaskRow
    context_id: str
    parent_id: str
    dialect: str
    request: str
    sent: tuple[str, ...]
    text: str
    parts: tuple[str, ...]
    parts_total: int
    final: bool
    steps: tuple[Step, ...]
    chars: int
    chunks: int
    confidence: float | None
    tokens: tuple[int, int] | None
    shown: int = 0
    first: bool = False
    gaps: bool = False
    request_chars: int = 0

    @property
    def cut(self) -> bool:
        """Whether ``text`` is not all there is."""
        return self.gaps or self.shown < self.chars


class _Task:
    """One task while its events come in."""

    __slots__ = (
        "agent",
        "attempt",
        "confidence",
        "context_id",
        "correlation_id",
        "cost_usd",
        "created_at",
        "dialect",
        "duration_ms",
        "ended_at",
        "final",
        "final_chars",
        "last",
        "live",
        "origin",
        "parent_id",
        "parts",
        "parts_total",
        "question_id",
        "reason",
        "request",
        "request_chars",
        "row",
        "sent",
        "since",
        "skill",
        "state",
        "steps",
        "success",
        "task_id",
        "tokens",
        "updated_at",
        "via",
    )

    def __init__(self, correlation_id: str, at: datetime) -> None:
        self.correlation_id = correlation_id
        self.created_at = self.updated_at = self.since = at
        self.ended_at: datetime | None = None
        self.state = TaskState.SUBMITTED.value
        self.agent = self.skill = self.origin = self.task_id = self.context_id = self.parent_id = ""
        self.via = self.last = self.dialect = self.request = self.reason = ""
        self.final: str | None = None
        self.final_chars = self.request_chars = 0
        self.attempt = 1
        self.question_id: str | None = None
        self.duration_ms: int | None = None
        self.cost_usd: float | None = None
        self.success = False
        self.confidence: float | None = None
        self.tokens: tuple[int, int] | None = None
        self.sent: tuple[str, ...] = ()
        self.parts: tuple[str, ...] = ()
        self.parts_total = 0
        self.steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self.live = LiveText()
        self.row: TaskRow | None = None

    def name(self, event: Event) -> None:
        """Take over whatever the event's envelope says that was not known yet."""
        self.updated_at = event.at
        if event.agent and not self.agent:
            self.agent = one_line(event.agent, 100)
        if event.skill and not self.skill:
            self.skill = one_line(event.skill, 100)
        if event.task_id:
            self.task_id = one_line(event.task_id, 200)
        if event.parent_id:
            self.parent_id = event.parent_id
        self.row = None

    def move(self, state: str, at: datetime) -> None:
        if state and state != self.state and self.ended_at is None:
            self.state, self.since = state, at

    def step(self, event: Event, arrow: str, what: str, via: str = "", state: str = "") -> None:
        self.steps.append(Step(at=event.at, arrow=arrow, via=via, what=what, state=state))

    def order(self) -> tuple[int, float]:
        """Who needs a person first, then the longest at it; the finished newest first."""
        if self.ended_at is not None:
            return 3, -self.ended_at.timestamp()
        return _OPEN_ORDER.get(self.state, 1), self.since.timestamp()

    def frozen(self) -> TaskRow:
        if self.row is None:
            self.row = TaskRow(
                correlation_id=self.correlation_id,
                task_id=self.task_id,
                agent=self.agent,
                skill=self.skill,
                origin=self.origin,
                state=self.state,
                since=self.since,
                created_at=self.created_at,
                updated_at=self.updated_at,
                ended_at=self.ended_at,
                via=self.via,
                last=self.last,
                attempt=self.attempt,
                question_id=self.question_id,
                duration_ms=self.duration_ms,
                cost_usd=self.cost_usd,
                reason=self.reason,
                success=self.success,
            )
        return self.row


class TaskFold:
    """All tasks, by correlation id."""

    def __init__(self, tasks_max: int = TASKS_MAX) -> None:
        self._tasks: dict[str, _Task] = {}
        self._tasks_max = tasks_max
        self._parents: set[str] = set()
        self.finished = 0

    def _of(self, event: Event) -> _Task | None:
        """The event's task, made if it is new; None if the event belongs to no single task."""
        key = event.correlation_id
        if not key or key in self._parents:
            return None
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = _Task(key, event.at)
            self._evict()
        if event.parent_id and event.parent_id != key and event.parent_id not in self._parents:
            self._adopt(event.parent_id)
        task.name(event)
        return task

    def _adopt(self, parent_id: str) -> None:
        """A request that was expanded into children is not a task of its own."""
        parent = self._tasks.get(parent_id)
        if parent is not None and not parent.task_id and parent.ended_at is None:
            del self._tasks[parent_id]
            self._parents.add(parent_id)
            if len(self._parents) > self._tasks_max:
                self._parents.pop()

    def _evict(self) -> None:
        if len(self._tasks) <= self._tasks_max:
            return
        ended = (key for key, task in self._tasks.items() if task.ended_at is not None)
        del self._tasks[next(ended, next(iter(self._tasks)))]

    def request(self, event: RequestAccepted) -> None:
        """A request is under way."""
        task = self._of(event)
        if task is None:
            return
        targets = read.lines(event.targets)
        if not task.agent and len(targets) == 1:
            task.agent = targets[0]
        task.origin = one_line(event.system_actor, 100)
        task.request, task.request_chars = neutralise(event.text.text, limit=LIVE_CHARS_MAX), event.text.chars
        task.sent = read.parts(event.parts)
        task.step(event, "→", "request accepted")

    def bound(self, event: TaskBound) -> None:
        """Its agent took it."""
        task = self._of(event)
        if task is None:
            return
        state, via = one_line(event.state, 40), one_line(event.via, 20)
        task.context_id = one_line(event.context_id or "")
        task.dialect = one_line(event.dialect or "", 20)
        task.via = via or task.via
        task.move(state, event.at)
        task.step(event, "←", f"task {task.task_id or '?'}", via, state)

    def moved(self, event: TaskMoved) -> None:
        """Its state or text is another. Off a stream, the text of a task at work is all it has written so far."""
        task = self._of(event)
        if task is None:
            return
        state, via, said = one_line(event.state, 40), one_line(event.via, 20), one_line(event.text.text)
        task.via = via or task.via
        task.last = said or task.last
        if said and via != UpdateSource.STREAM and state == TaskState.WORKING:
            task.live.replace_all(event.text.text, event.text.chars)
        moved = state != task.state
        task.move(state, event.at)
        if moved or said:
            what = said if moved or not task.live.chunks else f"{event.text.chars} characters"
            task.step(event, "←", what, via, state)

    def stale(self, event: UpdateIgnored) -> None:
        """A signal came too late."""
        if task := self._of(event):
            what = f"came too late, not applied: {one_line(event.why)}"
            task.step(event, "←", what, one_line(event.via, 20), one_line(event.state or "", 40))

    def retry(self, event: CallRetried) -> None:
        """A call is made again; the same attempt in another form says 0."""
        if task := self._of(event):
            task.attempt = max(task.attempt, event.attempt)
            task.last = f"retry in {event.in_seconds:.0f}s: {one_line(event.reason)}"
            task.step(event, "→", task.last)

    def unwatched(self, event: PollingStopped) -> None:
        """Nobody polls it: only a stream, a webhook or an answer can tell of it now."""
        if task := self._of(event):
            task.last = f"polling stopped: {one_line(event.why)}"
            task.step(event, "·", task.last)

    def inbound(self, event: StreamReceived) -> None:
        """Text grows the live text, a status line becomes the last update."""
        task = self._of(event)
        if task is None:
            return
        state, text = one_line(event.state or "", 40), event.text
        task.via = "stream"
        task.move(state, event.at)
        if not text.text:
            if state:
                task.step(event, "←", "", "stream", state)
        elif event.type == "status":
            task.last = one_line(text.text)
            task.step(event, "←", task.last, "stream", state)
        elif event.type == "task":
            task.live.replace_all(text.text, text.chars)
        else:
            task.live.add(event.artifact_id or "", text.text, event.append is True, text.chars)
            task.last = "writing"

    def response(self, event: RequestAnswered) -> None:
        """The text whoever asked was given."""
        if (task := self._of(event)) and task.final is None:
            said = event.content or Excerpt.of(event.error or "")
            task.final = neutralise(said.text, limit=LIVE_CHARS_MAX) or None
            task.final_chars = said.chars

    def outcome(self, event: OutcomeDecided) -> TaskRow | None:
        """The end. Returns the row, or None if this task had ended before."""
        task = self._of(event)
        if task is None or task.ended_at is not None:
            return None
        task.ended_at = task.since = event.at
        task.state = event.kind.value
        task.via = event.via.value
        task.origin = one_line(event.system_actor, 100) or task.origin
        task.success = event.success
        task.reason = one_line(event.reason, 500)
        task.duration_ms = event.duration_ms
        task.cost_usd = event.cost_usd
        task.confidence = event.confidence
        task.tokens = tokens(event.usage)
        task.question_id = None
        text = neutralise(event.text.text, limit=LIVE_CHARS_MAX)
        if text:
            task.final, task.final_chars = text, event.text.chars
        task.parts = read.parts(event.parts)
        task.parts_total = event.parts_total or len(task.parts)
        if not task.success and task.state != "completed":
            task.last = task.reason or task.last
        else:
            task.last = one_line(text) or (task.parts[0] if task.parts else task.last)
        task.step(event, "·", task.reason if not task.success else "", task.via, task.state)
        self.finished += 1
        return task.frozen()

    def asked(self, event: Event, question_id: str, question: str, kind: str) -> None:
        """The task waits for a person."""
        if task := self._of(event):
            task.question_id = question_id
            task.move(kind or TaskState.INPUT_REQUIRED.value, event.at)
            task.last = question
            if not task.steps or task.steps[-1].state != kind:
                task.step(event, "←", question, "", kind)

    def settled(self, event: Event, what: str) -> None:
        """The question is over."""
        if task := self._of(event):
            task.question_id = None
            task.step(event, "→", what)

    def lost_events(self) -> None:
        """Events are missing: the live text of what is under way may have gaps."""
        for task in self._tasks.values():
            if task.ended_at is None and task.live.chunks:
                task.live.gaps = True

    def get(self, correlation_id: str) -> TaskRow | None:
        """One task's row."""
        task = self._tasks.get(correlation_id)
        return task.frozen() if task else None

    def rows(self) -> tuple[TaskRow, ...]:
        """All tasks: those that wait for a person, working, submitted, then finished, newest first."""
        return tuple(task.frozen() for task in sorted(self._tasks.values(), key=_Task.order))

    def detail(self, correlation_id: str) -> TaskDetail | None:
        """Everything about one task."""
        task = self._tasks.get(correlation_id)
        if task is None:
            return None
        text, shown, first = neutralise(task.live.text()), len(task.live.text()), False
        chars, gaps = task.live.chars, task.live.gaps
        final = task.final if task.ended_at is not None else None
        if final and not (task.live.whole and chars == task.final_chars):
            text, shown, first, chars, gaps = final, min(len(final), task.final_chars), True, task.final_chars, False
        return TaskDetail(
            row=task.frozen(),
            context_id=task.context_id,
            parent_id=task.parent_id,
            dialect=task.dialect,
            request=task.request,
            sent=task.sent,
            text=text,
            parts=task.parts,
            parts_total=task.parts_total,
            final=task.ended_at is not None,
            steps=tuple(task.steps),
            chars=chars,
            chunks=task.live.chunks,
            shown=shown,
            first=first,
            gaps=gaps,
            request_chars=task.request_chars,
            confidence=task.confidence,
            tokens=task.tokens,
        )
