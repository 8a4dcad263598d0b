"""Tasks folded from events: state, live text and timeline. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime

from fleetsim.api.answers import EndedRequest, OpenRequest
from fleetsim.dashboard import read
from fleetsim.dashboard.labels import STATE
from fleetsim.events import request as events
from fleetsim.events.fleet import ActionTaken
from fleetsim.events.request import Event, Excerpt
from fleetsim.events.wire import of_row
from fleetsim.model.task import INTERRUPTED, TaskState
from fleetsim.model.text import neutralise, one_line
from fleetsim.model.work import UpdateSource

TASKS_MAX = 12_000
"""Tasks in memory; the oldest finished ones are dropped first."""
STEPS_MAX = 200
LIVE_CHARS_MAX = 32_768
"""Characters of a task's live text in memory, the newest."""
PIECES_MAX = 4_096
PARTS_MAX = 64
TURNS_MAX = 24
"""Turns of one task, and of a conversation of several tasks, the newest."""
MISSING = " […] "
"""Marks the place of missing characters."""
_WHOLE = ""
"""The artifact of a text that arrived whole; a later chunk continues it."""

_OPEN_ORDER = {TaskState.INPUT_REQUIRED.value: 0, TaskState.AUTH_REQUIRED.value: 0, TaskState.SUBMITTED.value: 2}


class LiveText:
    """Text that arrives in chunks, per artifact; only its newest part stays in memory.

    ``chars`` is the whole length. ``gaps`` says that some of it is missing: a chunk was an excerpt, or events were
    lost.
    """

    __slots__ = ("_lengths", "chunks", "gaps", "parts", "size")

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        self.size = 0
        self.chunks = 0
        self.gaps = False

    def add(self, artifact: str, text: str, append: bool, chars: int = 0) -> None:
        """Add or, without ``append``, replace text of an artifact. ``chars`` is the whole length of an excerpt."""
        if append and artifact not in self.parts and _WHOLE in self.parts:
            self.parts[artifact] = self.parts.pop(_WHOLE)
            self._lengths[artifact] = self._lengths.pop(_WHOLE)
        pieces = self.parts.setdefault(artifact, [])
        if not append:
            self.size -= sum(map(len, pieces))
            pieces.clear()
            self._lengths[artifact] = 0
        if chars > len(text):
            self.gaps = True
            text += MISSING
        pieces.append(text[-LIVE_CHARS_MAX:])
        self.size += len(pieces[-1])
        self._lengths[artifact] = self._lengths.get(artifact, 0) + max(chars, len(text))
        self.chunks += 1
        if self.size > 2 * LIVE_CHARS_MAX or len(pieces) > PIECES_MAX or len(self.parts) > PARTS_MAX:
            kept = self.text()
            self.parts = {artifact: [kept]}
            self.size = len(kept)

    def replace_all(self, text: str, chars: int = 0) -> None:
        """Replace the text by a poll's or snapshot's; ``chars`` is the whole length if ``text`` is an excerpt."""
        self.gaps = chars > len(text)
        text += MISSING if self.gaps else ""
        self.parts = {_WHOLE: [text[-LIVE_CHARS_MAX:]]}
        self.size = len(self.parts[_WHOLE][0])
        self._lengths = {_WHOLE: max(chars, len(text))}
        self.chunks += 1

    @property
    def chars(self) -> int:
        """The whole length, with the line breaks between artifacts."""
        return sum(self._lengths.values()) + max(0, sum(map(bool, self._lengths.values())) - 1)

    @property
    def whole(self) -> bool:
        return not self.gaps and len(self.text()) == self.chars

    def text(self) -> str:
        """The newest part, unchanged and not neutralised."""
        joined = map("".join, self.parts.values())
        return "\n".join(text for text in joined if text)[-LIVE_CHARS_MAX:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a task's timeline. ``arrow`` is ``→`` for the hub, ``←`` for the agent, ``·`` for a note."""

    at: datetime
    arrow: str
    via: str
    what: str
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message of a conversation: of the agent, or (without ``agent``) to it. ``chars`` is its whole length."""

    at: datetime
    agent: str
    text: str
    chars: int
    parts: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class TaskRow:
    """A task. ``state`` is a task state or, once ``ended_at`` is set, the kind of the outcome.

    ``parts`` has a line for each file and each piece of data in the answer, of ``parts_total``.
    """

    correlation_id: str
    created_at: datetime
    updated_at: datetime
    since: datetime
    ended_at: datetime | None = None
    state: str = TaskState.SUBMITTED.value
    task_id: str = ""
    context_id: str = ""
    parent_id: str = ""
    agent: str = ""
    skill: str = ""
    origin: str = ""
    via: str = ""
    dialect: str = ""
    last: str = ""
    attempt: int = 1
    question_id: str | None = None
    success: bool = False
    reason: str = ""
    duration_ms: int | None = None
    cost_usd: float | None = None
    tokens: tuple[int, int] | None = None
    confidence: float | None = None
    parts: tuple[str, ...] = ()
    parts_total: int = 0
    retry_of: str = ""
    retried_as: str = ""

    @property
    def open(self) -> bool:
        return self.ended_at is None

    @property
    def waiting(self) -> bool:
        return self.ended_at is None and self.state in INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """All facts of one task. ``text`` is the live text, and later the final text.

    ``turns`` are the messages before it, among them those of earlier tasks in its context.
    ``text`` holds ``shown`` of ``chars`` characters: the newest, or with ``first`` the first ones. ``gaps`` says that
    some are missing in between.
    """

    row: TaskRow
    steps: tuple[Step, ...]
    turns: tuple[Turn, ...]
    text: str
    shown: int
    chars: int
    first: bool = False
    gaps: bool = False

    @property
    def cut(self) -> bool:
        """Whether ``text`` is incomplete."""
        return self.gaps or self.shown < self.chars


class _Task:
    """One task while its events arrive. ``copied`` and ``detail`` cache its last row and detail until it changes."""

    __slots__ = ("copied", "detail", "early", "final", "final_chars", "live", "row", "seq", "steps", "turns")

    def __init__(self, correlation_id: str, at: datetime) -> None:
        self.row = TaskRow(correlation_id=correlation_id, created_at=at, updated_at=at, since=at)
        self.final: str | None = None
        self.final_chars = 0
        self.steps: deque[Step] = deque(maxlen=STEPS_MAX)
        self.turns: deque[Turn] = deque(maxlen=TURNS_MAX)
        self.live = LiveText()
        self.early = False
        """The hub's state had the end, and the event of the end has not arrived."""
        self.seq = 0
        """The live text has the pieces up to this event."""
        self.copied: TaskRow | None = None
        self.detail: TaskDetail | None = None

    def move(self, state: str, at: datetime) -> None:
        row = self.row
        if state and state != row.state and row.ended_at is None:
            row.state, row.since = state, at

    def step(self, event: Event, arrow: str, what: str, via: str = "", state: str = "") -> None:
        """Add a step. Leave out a state that arrives once more without news; with news, it completes the first."""
        end = self.steps.pop() if self.early and self.steps else None
        for new in filter(None, (Step(at=event.at, arrow=arrow, via=via, what=what, state=state), end)):
            stated = (at for at in range(len(self.steps) - 1, -1, -1) if self.steps[at].state)
            at = next(stated, None) if new.state else None
            before = self.steps[at] if at is not None else None
            if (
                at is None
                or before is None
                or before.state != new.state
                or (new.what and before.what not in {"", new.what})
            ):
                self.steps.append(new)
            elif before.arrow == "·":
                self.steps[at] = replace(new, what=new.what or before.what)
            elif new.what:
                self.steps[at] = replace(before, what=new.what)
        self.early = end is not None and self.steps[-1] is end

    def turn(self, event: Event, agent: str, said: Excerpt | None, parts: tuple[str, ...] = ()) -> None:
        if said is not None and (said.text or parts):
            text = neutralise(said.text, limit=LIVE_CHARS_MAX)
            self.turns.append(Turn(at=event.at, agent=agent, text=text, chars=said.chars, parts=parts))

    def take(self, told: OpenRequest) -> None:
        """Set the facts to those of the hub."""
        row = self.row
        row.agent, row.skill = one_line(told.agent, 100), one_line(told.skill, 100)
        row.task_id, row.context_id = one_line(told.task_id or "", 200), one_line(told.context_id or "", 200)
        row.dialect, row.parent_id = one_line(told.dialect, 20), told.parent_id or ""
        row.origin, row.via = one_line(told.system_actor, 100), one_line(told.via or "", 20) or row.via
        row.question_id, self.seq = told.question_id, told.seq or 0
        if told.state in STATE:
            self.move(told.state, row.updated_at)
        row.last = one_line(told.text) or row.last
        if row.question_id is None and told.text_chars > self.live.chars:
            self.live.replace_all(told.text, told.text_chars)
        if not self.turns:
            text = neutralise(told.prompt, limit=LIVE_CHARS_MAX)
            self.turns.append(Turn(at=told.accepted_at, agent="", text=text, chars=told.prompt_chars))
        self.copied = self.detail = None

    def order(self) -> tuple[int, float]:
        """Tasks that need a person first, then the oldest running ones; then finished tasks, newest first."""
        row = self.row
        if row.ended_at is not None:
            return 3, -row.ended_at.timestamp()
        return _OPEN_ORDER.get(row.state, 1), row.since.timestamp()

    def copy(self) -> TaskRow:
        if self.copied is None:
            self.copied = copy(self.row)
        return self.copied


class TaskFold:
    """All tasks by correlation id. ``rows`` updates ``at_work``, the numbers of running and waiting tasks per agent.

    Text is neutralised once, on arrival; the live text, which arrives in chunks, when a screen reads it.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._parents: set[str] = set()
        self._rows: tuple[TaskRow, ...] | None = ()
        self.submitted = 0
        self.at_work: dict[str, tuple[int, int]] = {}

    def _of(self, event: Event) -> _Task | None:
        """The event's task, created at its first event; None if the event does not belong to one task."""
        key = event.correlation_id
        if not key or key in self._parents:
            return None
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = _Task(key, event.at)
            if len(self._tasks) > TASKS_MAX:
                ended = (key for key, task in self._tasks.items() if task.row.ended_at is not None)
                del self._tasks[next(ended, next(iter(self._tasks)))]
        if event.parent_id and event.parent_id != key and event.parent_id not in self._parents:
            parent = self._tasks.get(event.parent_id)
            if parent is not None and not parent.row.task_id and parent.row.ended_at is None:
                del self._tasks[event.parent_id]  # a request that was split into several requests is not a task
                self._parents.add(event.parent_id)
                if len(self._parents) > TASKS_MAX:
                    self._parents.pop()
        row = task.row
        row.updated_at = event.at
        if event.agent and event.agent != row.agent:  # another agent after a fallback
            row.agent = one_line(event.agent, 100)
        if event.skill and not row.skill:
            row.skill = one_line(event.skill, 100)
        if event.task_id:
            row.task_id = one_line(event.task_id, 200)
        if event.parent_id:
            row.parent_id = event.parent_id
        task.copied = task.detail = self._rows = None
        return task

    def take(self, flying: Sequence[OpenRequest], ended: Sequence[EndedRequest]) -> list[TaskRow]:
        """Set the tasks to those of the hub, and return those that ended, oldest first. Known timelines stay."""
        known, self._tasks = self._tasks, {}
        self._tasks.update((key, task) for key, task in known.items() if task.row.ended_at is not None)
        done = []
        for told in reversed(ended):
            if outcome := of_row(events.OutcomeDecided, told, told.ended_at):
                self._tasks.setdefault(outcome.correlation_id or "", _Task(outcome.correlation_id or "", outcome.at))
                if self.outcome(outcome):
                    self._tasks[outcome.correlation_id or ""].early = True
                done.append(self._tasks[outcome.correlation_id or ""].copy())
        for row in flying:
            key = row.correlation_id
            if key not in self._tasks:
                self._tasks[key] = known.get(key) or _Task(key, row.accepted_at)
                self._tasks[key].take(row)
                self._chain(self._tasks[key], row.retry_of)
        self._rows = None
        return done

    def request(self, event: events.RequestAccepted) -> None:
        if task := self._of(event):
            row, targets = task.row, read.lines(event.targets)
            if not row.agent and len(targets) == 1:
                row.agent = targets[0]
            row.origin = one_line(event.system_actor, 100)
            self._chain(task, event.retry_of)
            if not task.turns:  # the state of the hub may have it already
                task.turn(event, "", event.text, read.parts(event.parts))
            task.step(event, "→", "request accepted")

    def _chain(self, task: _Task, retry_of: str | None) -> None:
        """Connect a task with the one that it sends again."""
        if retry_of:
            task.row.retry_of = one_line(retry_of, 200)
            if (old := self._tasks.get(retry_of)) is not None:
                old.row.retried_as = task.row.correlation_id
                old.copied = old.detail = None

    def bound(self, event: events.TaskBound) -> None:
        if task := self._of(event):
            row, state, via = task.row, one_line(event.state, 40), one_line(event.via, 20)
            row.context_id = one_line(event.context_id or "")
            row.dialect = one_line(event.dialect or "", 20)
            row.via = via or row.via
            task.move(state, event.at)
            task.step(event, "←", f"task {row.task_id or '?'}", via, state)

    def moved(self, event: events.TaskMoved) -> None:
        """Its state or text changed. Without a stream, the text of a running task is all of its text so far."""
        task = self._of(event)
        if task is None:
            return
        row, state, via, text = task.row, one_line(event.state, 40), one_line(event.via, 20), one_line(event.text.text)
        row.via = via or row.via
        row.last = text or row.last
        if text and via != UpdateSource.STREAM and state == TaskState.WORKING:
            task.live.replace_all(event.text.text, event.text.chars)
        moved = state != row.state
        task.move(state, event.at)
        if moved or text:
            what = (
                ""
                if state == TaskState.COMPLETED
                else text
                if moved or not task.live.chunks
                else f"{event.text.chars} characters"
            )
            task.step(event, "←", what, via, state)

    def stale(self, event: events.UpdateIgnored) -> None:
        if task := self._of(event):
            what = f"arrived too late, ignored: {one_line(event.why)}"
            task.step(event, "←", what, one_line(event.via, 20), one_line(event.state or "", 40))

    def retry(self, event: events.CallRetried) -> None:
        """The hub repeats a call; attempt 0 is the same attempt in another dialect."""
        if task := self._of(event):
            task.row.attempt = max(task.row.attempt, event.attempt)
            task.row.last = f"retry in {event.in_seconds:.0f}s: {one_line(event.reason)}"
            task.step(event, "→", task.row.last)

    def unwatched(self, event: events.PollingStopped) -> None:
        """The hub no longer polls it; only a stream, a webhook or an answer can bring news."""
        if task := self._of(event):
            task.row.last = f"polling stopped: {one_line(event.why)}"
            task.step(event, "·", task.row.last)

    def inbound(self, event: events.StreamReceived) -> None:
        """Add text to the live text, or replace the last update by a status line."""
        task = self._of(event)
        if task is None:
            return
        row, state, text = task.row, one_line(event.state or "", 40), event.text
        row.via = "stream"
        task.move(state, event.at)
        if not text.text:
            if state:
                task.step(event, "←", "", "stream", state)
        elif event.type == "status":
            row.last = one_line(text.text)
            task.step(event, "←", row.last, "stream", state)
        elif event.seq <= task.seq:
            return
        elif event.type == "task":
            task.live.replace_all(text.text, text.chars)
        else:
            task.live.add(event.artifact_id or "", text.text, event.append is True, text.chars)
            row.last = "writing"

    def response(self, event: events.RequestAnswered) -> None:
        if (task := self._of(event)) and task.final is None:
            answer = event.content or Excerpt.of(event.error or "")
            task.final = neutralise(answer.text, limit=LIVE_CHARS_MAX) or None
            task.final_chars = answer.chars

    def outcome(self, event: events.OutcomeDecided) -> TaskRow | None:
        """End the task. Returns the row, or None if the task has ended before."""
        task = self._of(event)
        if task is None or task.row.ended_at is not None:
            if task is not None:
                task.early = False
            return None
        row, outcome = task.row, event.outcome
        usage, text = outcome.usage, neutralise(outcome.text, limit=LIVE_CHARS_MAX)
        row.ended_at = row.since = event.at
        row.state, row.via, row.question_id = outcome.kind.value, outcome.via.value, None
        row.origin = one_line(outcome.system_actor, 100) or row.origin
        row.success, row.reason = outcome.success, one_line(outcome.reason, 500)
        self._chain(task, outcome.retry_of)
        row.duration_ms, row.cost_usd, row.confidence = outcome.duration_ms, outcome.cost_usd, outcome.confidence
        if usage is not None and (usage.input_tokens or usage.output_tokens):
            row.tokens = usage.input_tokens, usage.output_tokens
        if text:
            task.final, task.final_chars = text, outcome.text_chars
        row.parts = read.parts(outcome.parts)
        row.parts_total = outcome.parts_total or len(row.parts)
        if not row.success and row.state != "completed":
            row.last = row.reason or row.last
        else:
            row.last = one_line(text) or (row.parts[0] if row.parts else row.last)
        task.step(event, "·", row.reason if not row.success else "", row.via, row.state)
        return task.copy()

    def asked(self, event: events.QuestionAsked, question_id: str, question: str, kind: str) -> None:
        if task := self._of(event):
            task.turn(event, task.row.agent or "agent", event.question, read.parts(event.parts))
            task.row.question_id = question_id
            task.move(kind or TaskState.INPUT_REQUIRED.value, event.at)
            task.row.last = question
            if not task.steps or task.steps[-1].state != kind:
                task.step(event, "←", question, "", kind)

    def settled(self, event: Event, what: str, answer: Excerpt | None = None) -> None:
        if task := self._of(event):
            task.turn(event, "", answer)
            task.row.question_id = None
            task.step(event, "→", what)

    def acted(self, event: ActionTaken) -> None:
        """A person acted on it; answers and new requests show the name by themselves."""
        if (task := self._tasks.get(event.correlation_id or "")) and event.action in {"cancel", "retry"}:
            detail = f", {one_line(event.detail)}" if event.detail else ""
            task.step(event, "→", f"{event.action} by {one_line(event.by, 60)}{detail}")

    def rows(self) -> tuple[TaskRow, ...]:
        """All tasks: waiting for a person, working, submitted, then finished, newest first."""
        if self._rows is None:
            self._rows = tuple(task.copy() for task in sorted(self._tasks.values(), key=_Task.order))
            self.submitted, self.at_work = 0, {}
            for row in self._rows:
                if row.ended_at is not None:
                    break
                running, waiting = self.at_work.get(row.agent, (0, 0))
                self.at_work[row.agent] = (running, waiting + 1) if row.waiting else (running + 1, waiting)
                self.submitted += row.state == "submitted"
        return self._rows

    def detail(self, correlation_id: str) -> TaskDetail | None:
        task = self._tasks.get(correlation_id)
        if task is None or task.detail is not None:
            return task.detail if task else None
        live, final, so_far = task.live, task.final, task.live.text()
        row, steps, turns = task.copy(), tuple(task.steps), self._turns(task)
        if row.ended_at and final and not (live.whole and live.chars == task.final_chars):
            shown, chars = min(len(final), task.final_chars), task.final_chars
            task.detail = TaskDetail(
                row=row, steps=steps, turns=turns, text=final, shown=shown, chars=chars, first=True
            )
        else:
            shown, chars, text = len(so_far), live.chars, neutralise(so_far)
            task.detail = TaskDetail(
                row=row, steps=steps, turns=turns, text=text, shown=shown, chars=chars, gaps=live.gaps
            )
        return task.detail

    def _turns(self, task: _Task) -> tuple[Turn, ...]:
        """The turns before a task's text: those of earlier tasks in its context with their answers, then its own."""
        row, turns = task.row, list[Turn]()
        for other in self._tasks.values():
            of = other.row
            same = of.context_id and (of.context_id, of.agent) == (row.context_id, row.agent)
            if same and other is not task and of.ended_at is not None and of.ended_at <= row.created_at:
                turns += other.turns
                text = other.final or "\n".join(of.parts)
                turns.append(Turn(at=of.ended_at, agent=of.agent, text=text, chars=other.final_chars))
        return (*sorted(turns, key=lambda turn: turn.at), *task.turns)[-TURNS_MAX:]
