"""An agent's tasks as plain lists and dictionaries: what the store must hold, list, refuse and let go.

Written from A2A 1.0 sections 3.1.4, 3.2.4 and 4.1, the agent's published limits and the promises of the store. It
shares no code with it: states are words, a task's conversation and results are texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ENDS = {"completed", "failed", "canceled", "rejected"}
WAITS = {"input-required", "auth-required"}
ANYONE = "anyone"
MAY_BECOME = {
    "submitted": {"working", *WAITS, *ENDS},
    "working": {*WAITS, *ENDS},
    "input-required": {"working", "auth-required", *ENDS},
    "auth-required": {"working", "input-required", *ENDS},
}


class Refused(Exception):
    """What was asked for is not done, and nothing is changed."""


class Missing(Refused):
    """There is no such task."""


class Over(Refused):
    """The task has ended."""


class Full(Refused):
    """There is no room for one more."""


class TooMuch(Refused):
    """The task may not hold or tell more."""


class Wrong(Refused):
    """Not allowed as things stand."""


@dataclass(frozen=True)
class Limits:
    """Those of the published table that the model knows."""

    tasks: int
    tasks_per_caller: int
    output_chars: int
    events: int
    messages: int
    message_chars: int
    pushes: int
    finished_s: float
    open_s: float


@dataclass(frozen=True)
class Said:
    """A message: who wrote it, its id and its words. A question's id is the agent's own choice."""

    role: str
    message_id: str
    text: str

    @property
    def weight(self) -> int:
        return len(self.text) + 2  # its words and its empty metadata


@dataclass
class Kept:
    """One task."""

    owner: str
    task_id: str
    context: str
    begun: float
    changed: float
    """When its status changed last: what lists are ordered and cut by."""
    number: int
    """Which change of all that was, for those of one moment."""
    touched: float
    state: str = "submitted"
    says: str | None = None
    history: list[Said] = field(default_factory=list)
    answers: list[Said] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    told_chars: int = 0
    events: int = 0
    pushes: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def chars(self) -> int:
        return self.told_chars + sum(said.weight for said in self.history)


Key = tuple[str, str]


class Model:
    """All tasks of one agent."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tasks: dict[Key, Kept] = {}
        self.ended: list[Key] = []
        """The ended ones, in the order in which they ended."""
        self.busy: set[Key] = set()
        self.gone: list[Key] = []
        self.changes = 0

    def get(self, key: Key) -> Kept:
        if key not in self.tasks:
            raise Missing
        return self.tasks[key]

    def open(self, key: Key) -> Kept:
        kept = self.get(key)
        if kept.ended:
            raise Over
        return kept

    # ------------------------------------------------------------------ changes

    def room(self, owner: str) -> None:
        """Raises Full. What was let go for it stays gone."""
        while len(self.tasks) >= self.limits.tasks:
            self._let_oldest_go(None)
        while owner != ANYONE and sum(o == owner for o, _ in self.tasks) >= self.limits.tasks_per_caller:
            self._let_oldest_go(owner)

    def _let_oldest_go(self, owner: str | None) -> None:
        for key in self.ended:
            if key not in self.busy and owner in {None, key[0]}:
                self.forget(key)
                return
        raise Full

    def create(self, key: Key, context: str, message: Said, now: float) -> None:
        kept = self.tasks[key] = Kept(key[0], key[1], context, now, now, self._next(), now)
        self._say(kept, message)

    def move(self, key: Key, state: str, text: str | None, now: float) -> None:
        kept = self.open(key)
        if state in ENDS or state not in MAY_BECOME[kept.state]:
            raise Wrong
        self._status(kept, state, text, now)
        kept.events += 1

    def note(self, key: Key, text: str, now: float) -> None:
        kept = self.get(key)
        if not kept.ended and kept.events >= self.limits.events:
            raise TooMuch
        self._status(self.open(key), kept.state, text, now)
        kept.events += 1

    def put(self, key: Key, name: str, text: str, append: bool, now: float) -> None:
        kept = self.open(key)
        if kept.events >= self.limits.events or kept.told_chars + len(text) > self.limits.output_chars:
            raise TooMuch
        kept.told_chars += len(text)
        kept.made[name] = (kept.made.get(name, "") if append else "") + text
        kept.events += 1
        kept.touched = now

    def finish(self, key: Key, state: str, text: str | None, reason: str | None, now: float) -> None:
        kept = self.open(key)
        main = kept.made.get(kept.task_id)
        if text is not None:
            chars = kept.told_chars - len(main or "") + len(text)
            if chars > self.limits.output_chars:
                raise TooMuch
            kept.told_chars = chars
            kept.made[kept.task_id] = text
        elif state == "completed" and not kept.made:
            kept.made[kept.task_id] = ""
        self._status(kept, state, reason, now)
        self.ended.append(key)

    def hear(self, key: Key, message: Said, now: float) -> bool:
        kept = self.open(key)
        waiting = kept.state in WAITS
        before = kept.answers if waiting else kept.history
        if (message.message_id or not waiting) and any(
            (said.message_id, said.text) == (message.message_id, message.text) for said in before
        ):
            return False
        if waiting and kept.says is not None:
            self._say(kept, Said("agent", "?", kept.says))
        self._say(kept, message)
        kept.touched = now
        if waiting:
            kept.answers.append(message)
            del kept.answers[: -self.limits.messages]
            self._status(kept, "working", None, now)
            kept.events += 1
        return True

    def set_push(self, key: Key, name: str) -> None:
        kept = self.get(key)
        if name not in kept.pushes:
            if len(kept.pushes) >= self.limits.pushes:
                raise Wrong
            kept.pushes.append(name)

    def delete_push(self, key: Key, name: str) -> None:
        kept = self.get(key)
        kept.pushes = [push for push in kept.pushes if push != name]

    def forget(self, key: Key) -> None:
        if key in self.tasks:
            del self.tasks[key]
            self.ended = [other for other in self.ended if other != key]
            self.gone.append(key)

    def sweep(self, now: float) -> list[Key]:
        for key in [*self.ended]:
            if now - self.tasks[key].touched >= self.limits.finished_s and key not in self.busy:
                self.forget(key)
        given_up = [k for k, kept in self.tasks.items() if not kept.ended and now - kept.begun >= self.limits.open_s]
        for key in given_up:
            self.finish(key, "failed", None, "the task was open for too long and was given up", now)
        return given_up

    def restart(self) -> None:
        """What a file keeps of them: the answers are known by the questions before them, and no reader is left."""
        for kept in self.tasks.values():
            pairs = zip(kept.history, kept.history[1:], strict=False)
            kept.answers = [said for question, said in pairs if question.role == "agent"]
            kept.told_chars = sum(map(len, kept.made.values()))
            kept.events = 0
        self.ended.sort(key=lambda key: (self.tasks[key].changed, self.tasks[key].number))

    def _next(self) -> int:
        self.changes += 1
        return self.changes

    def _status(self, kept: Kept, state: str, text: str | None, now: float) -> None:
        kept.state, kept.says, kept.changed, kept.number, kept.touched = state, text, now, self._next(), now

    def _say(self, kept: Kept, said: Said) -> None:
        kept.history.append(said)
        while len(kept.history) > 1 and (
            len(kept.history) > self.limits.messages
            or sum(one.weight for one in kept.history) > self.limits.message_chars
        ):
            kept.history.pop(0)

    # ------------------------------------------------------------------ lists

    def listed(self, owner: str, context: str | None, state: str | None, since: float | None) -> list[Key]:
        """The owner's tasks, what changed last first; ``since`` is the first moment that counts."""
        fitting = [
            (kept.changed, kept.number, key)
            for key, kept in self.tasks.items()
            if key[0] == owner
            and (context is None or kept.context == context)
            and (state is None or kept.state == state)
            and (since is None or kept.changed >= since)
        ]
        return [key for *_, key in sorted(fitting, reverse=True)]
