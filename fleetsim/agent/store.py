"""The agent's tasks: one write path, frozen snapshots out, limits on everything.

Every change goes through ``_commit``, which does not await: on one event loop that is the lock. The check and the write
of a cancel are therefore one step (seed "Atomic cancel"), a task never leaves a terminal state, and each move is
published once, to the feed for readers and to the listeners for webhooks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, pairwise

from fleetsim.agent.limits import AgentLimits, AtCapacity, OutputLimit
from fleetsim.agent.tasks import (
    ANYONE,
    ENDED_FEED,
    ArtifactBuilder,
    Entry,
    PushTarget,
    Record,
    TaskEnded,
    TaskFeed,
    TaskKey,
    TaskMove,
    UsageTotals,
)
from fleetsim.model.errors import InvalidMove, InvalidParams, TaskNotCancelable, TaskNotFound
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    JsonObject,
    Message,
    Role,
    TaskState,
    TaskStatus,
    TextPart,
    advance,
)
from fleetsim.runtime.ports import Clock, Ids

FORGOTTEN_AT_ONCE = 100
"""A hundred thousand tasks may have ended in one minute an hour ago; the loop serves no caller during a step."""

_REACHED_ITS_LIFE = "the task was open for too long"


class Store:
    """All tasks of one agent, in memory. ``listeners`` are called inside each move with the ``TaskMove``, ``keepers``
    inside each change worth keeping with the task's key, ``progress`` inside the others; they must only take note.
    ``retention`` decides which tasks stay."""

    def __init__(self, *, clock: Clock, ids: Ids, limits: AgentLimits, keep_transitions: bool = False) -> None:
        self.retention = Retention(limits)
        self.listeners: list[Callable[[TaskMove], None]] = []
        self.keepers: list[Callable[[TaskKey], None]] = []
        self.progress: list[Callable[[TaskKey], None]] = []
        self._clock, self._ids, self._limits = clock, ids, limits
        self._keep_transitions = keep_transitions
        self._changed = 0

    def __len__(self) -> int:
        return len(self.retention)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, key: TaskKey) -> Record:
        """The task as it is now. Raises TaskNotFound, for somebody else's task too."""
        return self.retention.get(key).snapshot()

    def knows(self, key: TaskKey) -> bool:
        return key in self.retention

    def state(self, key: TaskKey) -> TaskState:
        """The task's state, without building a snapshot. Raises TaskNotFound."""
        return self.retention.get(key).state

    def feed(self, key: TaskKey) -> TaskFeed:
        """The task's events; a snapshot's ``cursor`` is its place among them. Raises TaskNotFound."""
        return self.retention.get(key).feed

    def usage(self, key: TaskKey) -> UsageTotals:
        """Where the skill at work adds up what it uses; part of the terminal artifact however it ends."""
        return self.retention.get(key).results.usage

    def push(self, key: TaskKey, config_id: str) -> PushTarget | None:
        """The webhook as registered now, or None: deliveries ask each time (seed "Push config ...")."""
        entry = self.retention.find(key)
        return next((p for p in entry.pushes if p.config_id == config_id), None) if entry else None

    def select(
        self,
        owner: str,
        *,
        context_id: str | None = None,
        state: TaskState | None = None,
        changed_since: datetime | None = None,
    ) -> list[tuple[int, TaskKey]]:
        """The owner's tasks that fit, as (sequence, key), last changed first (A2A 1.0 section 3.1.4). ``changed_since``
        is inclusive, as in the released SDKs: a caller that asks from its last moment misses no task."""
        fitting = [
            (entry.sequence, entry.key)
            for entry in self.retention
            if entry.key[0] == owner
            and context_id in {None, entry.context_id}
            and state in {None, entry.state}
            and (changed_since is None or (entry.status.timestamp or entry.created_at) >= changed_since)
        ]
        return sorted(fitting, reverse=True)

    async def until_pause(self, key: TaskKey) -> Record:
        """Wait until the task is terminal or interrupted, or streams end. Raises TaskNotFound."""
        entry = self.retention.get(key)
        while entry.state not in TERMINAL | INTERRUPTED and not entry.feed.closed:
            await entry.feed.news(len(entry.feed))
        return entry.snapshot()

    # -- writing -----------------------------------------------------------------------------------

    def create(
        self,
        owner: str,
        message: Message,
        *,
        skill: str,
        dialect: str,
        task_id: str | None = None,
        metadata: JsonObject | None = None,
        pushes: Iterable[PushTarget] = (),
    ) -> Record:
        """Accept a task in ``submitted``. Raises AtCapacity if eviction of the oldest finished tasks makes no room."""
        self.retention.make_room(owner)
        key = (owner, task_id or self._ids.new())
        context_id = message.context_id or self._ids.new()
        now, moment = self._clock.now(), self._clock.monotonic()
        entry = Entry(
            key=key,
            context_id=context_id,
            skill=skill,
            dialect=dialect,
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=now),
            results=ArtifactBuilder(key[1], context_id, chars_max=self._limits.output_chars_max),
            feed=TaskFeed(),
            opened_s=moment,
            touched_s=moment,
            created_at=now,
            updated_at=now,
            metadata=metadata or {},
            pushes=tuple(pushes),
            transitions=() if self._keep_transitions else None,
        )
        entry.note_transition()
        self.retention.chars += entry.remember(message, self._limits)
        entry.sequence = self._change(now)
        self.retention.add(entry)
        self._announce(entry)
        return entry.snapshot()

    def move(self, key: TaskKey, state: TaskState, text: str | None = None) -> None:
        """Move an open task to a state that is not terminal, with the agent's message about it. Raises TaskNotFound or
        TaskEnded without an open task, and InvalidMove for a move that the table lacks or that would end the task
        (``finish`` does)."""
        entry = self.retention.get(key)
        self._refuse_ended(entry)
        if state in TERMINAL:
            raise InvalidMove(f"a task is not ended by moving it to {state}")
        advance(entry.state, state)
        status = self._status(entry, state, text)
        self._commit(entry, status, [entry.update(status)])

    def note(self, key: TaskKey, text: str) -> None:
        """Keep what the skill says it is doing on the task (seed "Persist tool-progress"). Raises TaskEnded."""
        entry = self.retention.get(key)
        self._refuse_flood(entry)
        status = self._status(entry, entry.state, text)
        self._commit(entry, status, [entry.update(status)])

    def put(self, key: TaskKey, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        """Add to the task's artifacts. Raises TaskEnded or OutputLimit."""
        entry = self.retention.get(key)
        self._refuse_ended(entry)
        self._refuse_flood(entry)
        before = entry.results.chars
        entry.results.put(artifact, append=append)
        self.retention.chars += entry.results.chars - before
        self._commit(entry, entry.status, [entry.chunk(artifact, append=append, last_chunk=last_chunk)])

    def finish(
        self,
        key: TaskKey,
        state: TaskState,
        text: str | None = None,
        *,
        reason: str | None = None,
        metadata: JsonObject | None = None,
    ) -> None:
        """End a task: ``text`` replaces the output so far, ``reason`` with ``metadata`` goes into the status. The feed
        gets the closing pair, the full artifact and then the final status. Raises TaskNotFound or TaskEnded without an
        open task, and OutputLimit, without any change, for a text that is too long."""
        entry = self.retention.get(key)
        self._refuse_ended(entry)
        advance(entry.state, state)
        taken_ms = round((self._clock.monotonic() - entry.opened_s) * 1000)
        before = entry.results.chars
        ending = entry.results.close(state, text, taken_ms)
        self.retention.chars += entry.results.chars - before
        status = self._status(entry, state, reason, metadata)
        self._commit(entry, status, [*([ending] if ending else []), entry.update(status)])

    def cancel(self, key: TaskKey) -> Record:
        """Cancel in one step, whatever runs meanwhile. Raises TaskNotFound or TaskNotCancelable."""
        try:
            self.finish(key, TaskState.CANCELED)
        except TaskEnded:
            raise TaskNotCancelable(f"the task is already {self.state(key)}") from None
        return self.read(key)

    def add_message(self, key: TaskKey, message: Message) -> bool:
        """Add a message of the caller; a waiting task goes on. Raises TaskNotFound or TaskEnded without an open task. A
        repeated message id with the same parts is a retry: it changes nothing and returns False."""
        entry = self.retention.get(key)
        self._refuse_ended(entry)
        if entry.knows(message):
            return False
        question = entry.status.message if entry.state in INTERRUPTED else None
        for turn in (question, message):
            if turn is not None:
                self.retention.chars += entry.remember(turn, self._limits)
        if entry.state in INTERRUPTED:
            entry.answers = (*entry.answers, message)[-self._limits.history_messages_max :]
            status = self._status(entry, TaskState.WORKING, None)
            self._commit(entry, status, [entry.update(status)])
        else:
            self._commit(entry, entry.status, [])
            self._keep(entry)
        return True

    def set_push(self, key: TaskKey, push: PushTarget) -> Record:
        """Register or replace a webhook by its id. Raises TaskNotFound, InvalidParams beyond the count."""
        entry = self.retention.get(key)
        others = tuple(p for p in entry.pushes if p.config_id != push.config_id)
        if len(others) >= self._limits.pushes_per_task_max:  # each move is sent to each of them
            raise InvalidParams(f"a task may have at most {self._limits.pushes_per_task_max} webhooks")
        known = {p.config_id for p in entry.pushes}
        replaced = tuple(push if p.config_id == push.config_id else p for p in entry.pushes)
        entry.pushes = replaced if push.config_id in known else (*others, push)
        self._keep(entry)
        return entry.snapshot()

    def note_told(self, key: TaskKey, push: PushTarget, at: str) -> None:
        """Keep that a webhook has received the status of this time, if both are still there."""
        entry = self.retention.find(key)
        if entry is not None:
            entry.pushes = tuple(replace(old, told=at) if old == push else old for old in entry.pushes)
            self._keep(entry)

    def delete_push(self, key: TaskKey, config_id: str) -> None:
        """Remove a webhook if it is there. Raises TaskNotFound."""
        entry = self.retention.get(key)
        entry.pushes = tuple(p for p in entry.pushes if p.config_id != config_id)
        self._keep(entry)

    def end_streams(self) -> None:
        """Close all feeds: the agent is about to stop, and open tasks continue at its next start."""
        for key in self.retention.open_keys:
            self.retention.get(key).feed.publish((), closes=True)

    def drop(self, key: TaskKey) -> None:
        """Remove a task that was never acknowledged; again is harmless."""
        if key in self.retention:
            self.retention.drop(key)

    def restore(self, records: Iterable[Record]) -> None:
        """Restore tasks of an earlier run with their present age. Notifies nobody."""
        for record in sorted(records, key=lambda record: record.task.status.timestamp or record.created_at):
            self._restore(record)

    def _restore(self, record: Record) -> None:
        task = record.task
        now_s, now = self._clock.monotonic(), self._clock.now()
        entry = Entry(
            key=record.key,
            context_id=task.context_id,
            skill=record.skill,
            dialect=record.dialect,
            status=task.status,
            results=ArtifactBuilder(task.task_id, task.context_id, chars_max=self._limits.output_chars_max),
            feed=TaskFeed(),
            opened_s=now_s - max(0.0, (now - record.created_at).total_seconds()),
            touched_s=now_s - max(0.0, (now - record.updated_at).total_seconds()),
            created_at=record.created_at,
            updated_at=record.updated_at,
            metadata=task.metadata,
            pushes=record.pushes,
        )
        for artifact in task.artifacts:
            entry.results.put(artifact, append=False)
        self.retention.chars += entry.results.chars
        for message in task.history:
            self.retention.chars += entry.remember(message, self._limits)
        # An answer is known by the question before it, so that sent again it does not answer the next one.
        entry.answers = tuple(answer for turn, answer in pairwise(entry.history) if turn.role is Role.AGENT)
        entry.sequence = record.sequence or self._change(task.status.timestamp or record.created_at)
        self.retention.add(entry)
        if task.terminal:
            entry.feed = ENDED_FEED
            self.retention.finished(entry)

    # -- limits ------------------------------------------------------------------------------------

    def sweep(self) -> tuple[TaskKey, ...]:
        """End the tasks that were open too long; returns their keys."""
        overdue = self.retention.overdue(self._clock.monotonic())
        for key in overdue:
            self.finish(key, TaskState.FAILED, reason=_REACHED_ITS_LIFE)
        return overdue

    def forget(self) -> bool:
        """Remove some tasks that finished long ago; True if none is left. Tasks with webhooks under way stay until
        these are done."""
        return self.retention.let_go(self._clock.monotonic(), FORGOTTEN_AT_ONCE)

    # -- the one write path ------------------------------------------------------------------------

    def _commit(self, entry: Entry, status: TaskStatus, events: Sequence[TaskEvent]) -> None:
        """The only place a task changes. No await in here, ever: this is the critical section. Whether the table has
        the move is asked by ``move`` and ``finish``, before anything is done about it."""
        self._refuse_ended(entry)
        moved = status.state is not entry.state
        ends = status.state in TERMINAL
        if status is not entry.status:
            entry.sequence = self._change(status.timestamp or entry.updated_at)
        entry.status = status
        entry.touched_s = self._clock.monotonic()
        entry.updated_at = self._clock.now()
        if ends:
            self.retention.finished(entry)
        if moved:
            entry.note_transition()
        entry.feed.publish(events, closes=ends)
        if ends:
            entry.feed = ENDED_FEED
        if moved:
            self._announce(entry)
        else:
            for note in self.progress:
                note(entry.key)

    def _change(self, at: datetime) -> int:
        """The next place in the order of changes, by the clock: several processes have one order."""
        self._changed = max(self._changed + 1, int(at.timestamp() * 1_000_000))
        return self._changed

    def _announce(self, entry: Entry) -> None:
        """Notify every listener of the move."""
        self._keep(entry)
        transition = TaskMove(entry)
        for listener in self.listeners:
            listener(transition)

    def _keep(self, entry: Entry) -> None:
        """Have the keepers store the entry as it is now."""
        for keep in self.keepers:
            keep(entry.key)

    def _status(
        self, entry: Entry, state: TaskState, text: str | None, metadata: JsonObject | None = None
    ) -> TaskStatus:
        """A status of now; without a text the last one is gone, so that a finished task shows no progress."""
        message = None
        if text is not None:
            message = Message(
                message_id=self._ids.new(),
                role=Role.AGENT,
                parts=(TextPart(text=text),),
                context_id=entry.context_id,
                task_id=entry.key[1],
                metadata=metadata or {},
            )
        return TaskStatus(state=state, message=message, timestamp=self._clock.now())

    def _refuse_flood(self, entry: Entry) -> None:
        if len(entry.feed) >= self._limits.events_per_task_max:
            raise OutputLimit(f"a task may have at most {self._limits.events_per_task_max} events")

    @staticmethod
    def _refuse_ended(entry: Entry) -> None:
        if entry.state in TERMINAL:
            raise TaskEnded(f"the task is already {entry.state}")


class Retention:
    """All entries of one store, open ones and finished ones. ``busy`` says whether a finished task is still needed."""

    def __init__(self, limits: AgentLimits) -> None:
        self.busy: Callable[[TaskKey], bool] = lambda _key: False
        self.forgotten: list[Callable[[TaskKey], None]] = []
        self.chars = 0
        self._limits = limits
        self._open: dict[TaskKey, Entry] = {}
        # In the order in which they ended; a dict whose first go looks at the place of each that went before.
        self._finished: OrderedDict[TaskKey, Entry] = OrderedDict()
        self._owned: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._finished)

    def __contains__(self, key: object) -> bool:
        return key in self._open or key in self._finished

    def __iter__(self) -> Iterator[Entry]:
        return chain(self._open.values(), self._finished.values())

    def get(self, key: TaskKey) -> Entry:
        """The entry. Raises TaskNotFound."""
        entry = self.find(key)
        if entry is None:
            raise TaskNotFound
        return entry

    def find(self, key: TaskKey) -> Entry | None:
        return self._open.get(key) or self._finished.get(key)

    @property
    def ended_chars(self) -> int:
        """The characters of the texts, files and data of finished tasks, which they keep in memory."""
        return sum(entry.results.chars + entry.history_chars for entry in self._finished.values())

    @property
    def open_keys(self) -> tuple[TaskKey, ...]:
        """The tasks that are not finished, oldest first."""
        return tuple(self._open)

    def add(self, entry: Entry) -> None:
        owner = entry.key[0]
        self._open[entry.key] = entry
        self._owned[owner] = self._owned.get(owner, 0) + 1

    def finished(self, entry: Entry) -> None:
        """Note that an entry may go in time."""
        self._finished[entry.key] = self._open.pop(entry.key)

    def make_room(self, owner: str) -> None:
        """Let go of finished tasks until the owner may have one more. Raises AtCapacity."""
        limits = self._limits
        while len(self) >= limits.tasks_max or self.chars >= limits.store_chars_max:
            self._forget_oldest(None, "the agent holds as many tasks as it may")
        while owner != ANYONE and self._owned.get(owner, 0) >= limits.tasks_per_caller_max:
            self._forget_oldest(owner, "you hold as many tasks as one caller may")

    def let_go(self, now_s: float, most: int) -> bool:
        """Remove at most ``most`` of the entries past their time to live; True if that was all."""
        due = []
        for key, entry in self._finished.items():
            if now_s - entry.touched_s < self._limits.terminal_ttl_s:
                break
            if not self.busy(key):
                due.append(key)
                if len(due) == most:
                    break
        for key in due:
            self.drop(key)
        return len(due) < most

    def overdue(self, now_s: float) -> tuple[TaskKey, ...]:
        """The tasks that have been open longer than a task may."""
        life_s = self._limits.task_life_s
        return tuple(key for key, entry in self._open.items() if now_s - entry.opened_s >= life_s)

    def _forget_oldest(self, owner: str | None, otherwise: str) -> None:
        for key in self._finished:
            if owner in {None, key[0]} and not self.busy(key):
                self.drop(key)
                return
        raise AtCapacity(otherwise)

    def drop(self, key: TaskKey) -> None:
        """Remove an entry and notify the listeners. Raises KeyError if it is missing."""
        self.release(key)
        for notify in self.forgotten:
            notify(key)

    def release(self, key: TaskKey) -> None:
        """Remove an entry that is kept elsewhere. Raises KeyError if it is missing."""
        entry = self._open.pop(key, None) or self._finished.pop(key)
        self.chars -= entry.results.chars + entry.history_chars
        owner = key[0]
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
