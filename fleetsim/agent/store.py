"""The agent's tasks: one write path, frozen snapshots out, limits on everything.

Every change goes through ``_commit``, which does not await: on one event loop that is the lock. The
check and the write of a cancel are therefore one step (seed "Atomic cancel"), a terminal state is
never left, and each move is told once: to the feed for readers, and to the listeners for webhooks and
the journal. Knows nothing of HTTP, dialects or how a skill is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from fleetsim.agent.draft import Draft, Tally
from fleetsim.agent.entry import Entry
from fleetsim.agent.feed import Feed
from fleetsim.agent.limits import AgentLimits, AtCapacity, OutputLimit
from fleetsim.agent.record import ANYONE, Push, Record, TaskEnded, TaskKey, Transition
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

Listener = Callable[[Transition], None]

_REACHED_ITS_LIFE = "the task was open for too long and was given up"


class Store:
    """All tasks of one agent, in memory.

    ``listeners`` are called inside each move with the frozen ``Transition``; they must only take note.
    ``busy`` says whether a finished task is still needed (webhooks under way), which keeps it in.
    """

    def __init__(self, *, clock: Clock, ids: Ids, limits: AgentLimits, keep_transitions: bool = False) -> None:
        self.listeners: list[Listener] = []
        self.forgotten: list[Callable[[TaskKey], None]] = []
        self.busy: Callable[[TaskKey], bool] = lambda _key: False
        self._clock, self._ids, self._limits = clock, ids, limits
        self._keep_transitions = keep_transitions
        self._entries: dict[TaskKey, Entry] = {}
        self._finished: dict[TaskKey, Entry] = {}
        self._owned: dict[str, int] = {}
        self._sequence = 0
        self._chars = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def chars(self) -> int:
        """About how many characters all tasks hold."""
        return self._chars

    @property
    def open_keys(self) -> tuple[TaskKey, ...]:
        """The tasks that are not finished, oldest first."""
        return tuple(key for key in self._entries if key not in self._finished)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, key: TaskKey) -> Record:
        """The task as it is now. Raises TaskNotFound, for somebody else's task too."""
        return self._entry(key).snapshot()

    def knows(self, key: TaskKey) -> bool:
        """Whether there is such a task."""
        return key in self._entries

    def state(self, key: TaskKey) -> TaskState:
        """The task's state, without building a snapshot. Raises TaskNotFound."""
        return self._entry(key).state

    def feed(self, key: TaskKey) -> Feed:
        """What the task tells from here on; a snapshot's ``cursor`` says where in it to go on. Raises TaskNotFound."""
        return self._entry(key).feed

    def tally(self, key: TaskKey) -> Tally:
        """Where the skill at work adds up what it uses; part of the terminal artifact however it ends."""
        return self._entry(key).draft.tally

    def push(self, key: TaskKey, config_id: str) -> Push | None:
        """The webhook as registered now, or None: deliveries ask each time (seed "Push config ...")."""
        entry = self._entries.get(key)
        return next((p for p in entry.pushes if p.config_id == config_id), None) if entry else None

    def select(
        self,
        owner: str,
        *,
        context_id: str | None = None,
        state: TaskState | None = None,
        changed_after: datetime | None = None,
    ) -> list[tuple[int, TaskKey]]:
        """The owner's tasks that fit, as (sequence, key), last changed first (A2A 1.0 section 3.1.4)."""
        fitting = [
            (entry.sequence, key)
            for key, entry in self._entries.items()
            if key[0] == owner
            and context_id in {None, entry.context_id}
            and state in {None, entry.state}
            and (changed_after is None or (entry.status.timestamp or entry.created_at) > changed_after)
        ]
        return sorted(fitting, reverse=True)

    async def until_pause(self, key: TaskKey) -> Record:
        """Wait until the task is terminal or interrupted. Raises TaskNotFound."""
        entry = self._entry(key)
        while entry.state not in TERMINAL | INTERRUPTED:
            await entry.feed.beyond(len(entry.feed))
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
        pushes: Iterable[Push] = (),
    ) -> Record:
        """Accept a task in ``submitted``.

        Raises:
            AtCapacity: no room, even after letting go of the oldest finished tasks.
        """
        self._make_room(owner)
        key = (owner, task_id or self._ids.new())
        context_id = message.context_id or self._ids.new()
        now, moment = self._clock.now(), self._clock.monotonic()
        entry = Entry(
            key=key,
            context_id=context_id,
            skill=skill,
            dialect=dialect,
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=now),
            draft=Draft(key[1], chars_max=self._limits.output_chars_max),
            feed=Feed(),
            opened_s=moment,
            touched_s=moment,
            created_at=now,
            updated_at=now,
            metadata=metadata or {},
            pushes=tuple(pushes),
            transitions=() if self._keep_transitions else None,
        )
        self._sequence += 1
        entry.sequence = self._sequence
        self._entries[key] = entry
        self._owned[owner] = self._owned.get(owner, 0) + 1
        self._remember(entry, message)
        self._touch(entry)
        entry.note_transition()
        self._announce(entry)
        return entry.snapshot()

    def move(self, key: TaskKey, state: TaskState, text: str | None = None) -> Record:
        """Move an open task to a state that is not terminal, with what the agent says about it.

        Raises:
            TaskNotFound, TaskEnded: there is nothing to move any more.
            InvalidMove: the table of moves does not have it, or it would end the task (``finish`` does).
        """
        entry = self._entry(key)
        self._refuse_ended(entry)
        if state in TERMINAL:
            raise InvalidMove(f"a task is not ended by moving it to {state}")
        advance(entry.state, state)
        status = self._status(entry, state, text)
        self._commit(entry, status, [entry.update(status)])
        return entry.snapshot()

    def note(self, key: TaskKey, text: str) -> None:
        """Keep what the skill says it is doing on the task (seed "Persist tool-progress"). Raises TaskEnded."""
        entry = self._entry(key)
        status = self._status(entry, entry.state, text)
        self._commit(entry, status, [entry.update(status)])

    def put(self, key: TaskKey, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        """Add to the task's artifacts. Raises TaskEnded or OutputLimit."""
        entry = self._entry(key)
        self._refuse_ended(entry)
        before = entry.draft.chars
        entry.draft.put(artifact, append=append)
        self._chars += entry.draft.chars - before
        self._commit(entry, entry.status, [entry.chunk(artifact, append=append, last_chunk=last_chunk)])

    def finish(self, key: TaskKey, state: TaskState, text: str | None = None, *, reason: str | None = None) -> Record:
        """End a task: ``text`` replaces what was said on the way, ``reason`` goes into the status.

        The feed gets the closing pair, the full artifact and then the final status.

        Raises:
            TaskNotFound, TaskEnded: it is over already.
            OutputLimit: the final text is too long; nothing changed.
        """
        entry = self._entry(key)
        self._refuse_ended(entry)
        advance(entry.state, state)
        taken_ms = round((self._clock.monotonic() - entry.opened_s) * 1000)
        before = entry.draft.chars
        main = entry.draft.close(state, text, taken_ms)
        self._chars += entry.draft.chars - before
        status = self._status(entry, state, reason)
        closing = [] if main is None else [entry.chunk(main, append=False, last_chunk=True)]
        self._commit(entry, status, [*closing, entry.update(status)])
        return entry.snapshot()

    def cancel(self, key: TaskKey) -> Record:
        """Cancel in one step, whatever runs meanwhile. Raises TaskNotFound or TaskNotCancelable."""
        try:
            return self.finish(key, TaskState.CANCELED)
        except TaskEnded:
            raise TaskNotCancelable(f"the task is already {self.state(key)}") from None

    def hear(self, key: TaskKey, message: Message) -> bool:
        """Add a message of the caller; a waiting task goes on. False if the message was known already.

        A repeated message id with the same parts is a retry and changes nothing.

        Raises:
            TaskNotFound, TaskEnded: nobody listens.
        """
        entry = self._entry(key)
        self._refuse_ended(entry)
        if entry.knows(message):
            return False
        question = entry.status.message if entry.state in INTERRUPTED else None
        for turn in (question, message):
            if turn is not None:
                self._remember(entry, turn)
        if entry.state in INTERRUPTED:
            status = self._status(entry, TaskState.WORKING, None)
            self._commit(entry, status, [entry.update(status)])
        else:
            self._commit(entry, entry.status, [])
        return True

    def set_push(self, key: TaskKey, push: Push) -> Record:
        """Register or replace a webhook by its id. Raises TaskNotFound, InvalidParams beyond the count."""
        entry = self._entry(key)
        others = tuple(p for p in entry.pushes if p.config_id != push.config_id)
        if len(others) >= self._limits.pushes_per_task_max:
            raise InvalidParams(f"a task may have at most {self._limits.pushes_per_task_max} webhooks")
        known = {p.config_id for p in entry.pushes}
        replaced = tuple(push if p.config_id == push.config_id else p for p in entry.pushes)
        entry.pushes = replaced if push.config_id in known else (*others, push)
        return entry.snapshot()

    def delete_push(self, key: TaskKey, config_id: str) -> None:
        """Forget a webhook if it is there; nothing more is sent to it. Raises TaskNotFound."""
        entry = self._entry(key)
        entry.pushes = tuple(p for p in entry.pushes if p.config_id != config_id)

    def restore(self, record: Record, opened_s: float) -> None:
        """Put back a finished task from an earlier run. Tells nobody."""
        task = record.task
        entry = Entry(
            key=record.key,
            context_id=task.context_id,
            skill=record.skill,
            dialect=record.dialect,
            status=task.status,
            draft=Draft(task.task_id, chars_max=self._limits.output_chars_max),
            feed=Feed(),
            opened_s=opened_s,
            touched_s=opened_s,
            created_at=record.created_at,
            updated_at=record.updated_at,
            metadata=task.metadata,
            history=task.history,
            pushes=record.pushes,
            version=record.version,
        )
        for artifact in task.artifacts:
            entry.draft.put(artifact, append=False)
        self._sequence += 1
        entry.sequence = self._sequence
        entry.feed.tell((), closes=True)
        self._chars += entry.draft.chars
        self._entries[entry.key] = self._finished[entry.key] = entry
        self._owned[entry.key[0]] = self._owned.get(entry.key[0], 0) + 1

    # -- limits ------------------------------------------------------------------------------------

    def sweep(self) -> tuple[TaskKey, ...]:
        """Let go of tasks finished long ago and give up tasks open too long; returns those given up.

        Tasks with webhooks under way stay until these are done.
        """
        now = self._clock.monotonic()
        for key, entry in list(self._finished.items()):
            if now - entry.touched_s >= self._limits.terminal_ttl_s and not self.busy(key):
                self._forget(key)
        overdue = [
            key
            for key, entry in self._entries.items()
            if entry.state not in TERMINAL and now - entry.opened_s >= self._limits.task_life_s
        ]
        for key in overdue:
            self.finish(key, TaskState.FAILED, reason=_REACHED_ITS_LIFE)
        return tuple(overdue)

    def _make_room(self, owner: str) -> None:
        limits = self._limits
        while len(self._entries) >= limits.tasks_max or self._chars >= limits.store_chars_max:
            self._forget_oldest(lambda _key: True, "the agent holds as many tasks as it may")
        while owner != ANYONE and self._owned.get(owner, 0) >= limits.tasks_per_caller_max:
            self._forget_oldest(lambda key: key[0] == owner, "you hold as many tasks as one caller may")

    def _forget_oldest(self, fits: Callable[[TaskKey], bool], otherwise: str) -> None:
        for key in self._finished:
            if fits(key) and not self.busy(key):
                self._forget(key)
                return
        raise AtCapacity(otherwise)

    def _forget(self, key: TaskKey) -> None:
        entry = self._entries.pop(key)
        self._finished.pop(key, None)
        self._chars -= entry.draft.chars + entry.history_chars
        owner = key[0]
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        for forgotten in self.forgotten:
            forgotten(key)

    # -- the one write path ------------------------------------------------------------------------

    def _commit(self, entry: Entry, status: TaskStatus, events: Sequence[TaskEvent]) -> None:
        """The only place a task changes. No await in here, ever: this is the critical section."""
        self._refuse_ended(entry)
        moved = status.state is not entry.state
        if moved:
            advance(entry.state, status.state)
        ends = status.state in TERMINAL
        if len(entry.feed) + len(events) > self._limits.events_per_task_max and not moved:
            raise OutputLimit(f"a task may have at most {self._limits.events_per_task_max} events")
        if status is not entry.status:
            self._sequence += 1
            entry.sequence = self._sequence
        entry.status = status
        self._touch(entry)
        if ends:
            self._finished[entry.key] = entry
        if moved:
            entry.note_transition()
        entry.feed.tell(events, closes=ends)
        if ends:
            entry.feed = entry.feed.ended()
        if moved:
            self._announce(entry)

    def _announce(self, entry: Entry) -> None:
        """Hand the move to every listener, frozen: artifacts beside the status once the task is over."""
        record = entry.snapshot()
        artifacts = record.task.artifacts if record.task.terminal else ()
        transition = Transition(record=record, update=entry.update(entry.status, artifacts))
        for listener in self.listeners:
            listener(transition)

    def _touch(self, entry: Entry) -> None:
        entry.version += 1
        entry.touched_s = self._clock.monotonic()
        entry.updated_at = self._clock.now()

    def _status(self, entry: Entry, state: TaskState, text: str | None) -> TaskStatus:
        """A status of now; without a text the last one is gone, so that a finished task shows no progress."""
        message = None
        if text is not None:
            message = Message(
                message_id=self._ids.new(),
                role=Role.AGENT,
                parts=(TextPart(text=text),),
                context_id=entry.context_id,
                task_id=entry.key[1],
            )
        return TaskStatus(state=state, message=message, timestamp=self._clock.now())

    def _remember(self, entry: Entry, message: Message) -> None:
        limits = self._limits
        placed = replace(message, context_id=entry.context_id, task_id=entry.key[1])
        self._chars += entry.remember(
            placed, messages_max=limits.history_messages_max, chars_max=limits.history_chars_max
        )

    def _entry(self, key: TaskKey) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise TaskNotFound
        return entry

    @staticmethod
    def _refuse_ended(entry: Entry) -> None:
        if entry.state in TERMINAL:
            raise TaskEnded(f"the task is already {entry.state}")
