"""Faulty task stores: each does one thing as agents once did it, before they were hardened."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fleetsim.agent.record import PushTarget, Record, TaskEnded, TaskKey
from fleetsim.agent.store import Store
from fleetsim.model.task import TERMINAL, Artifact, TaskState, TaskStatus


class LeakyStore(Store):
    """Never lets go of a finished task."""

    def sweep(self) -> tuple[TaskKey, ...]:
        """Find nothing that is old enough."""
        return ()


class AgeingStore(Store):
    """Lets go of tasks by age alone, at work or not."""

    def sweep(self) -> tuple[TaskKey, ...]:
        """Whatever was begun long enough ago."""
        now_s = self._clock.monotonic()
        for entry in list(self.shelf):
            if now_s - entry.opened_s >= self._limits.terminal_ttl_s:
                self.shelf.drop(entry.key)
        return ()


class GenerousStore(Store):
    """Finished tasks can be canceled once; a canceled one again and again."""

    def cancel(self, key: TaskKey) -> Record:
        """Answer a second cancel like the first."""
        record = self.read(key)
        return record if record.task.state is TaskState.CANCELED else super().cancel(key)


class StickyStore(Store):
    """A webhook that is registered again keeps its first token."""

    def set_push(self, key: TaskKey, push: PushTarget) -> Record:
        """Keep the config that is there under this id, token and all."""
        return self.read(key) if self.push(key, push.config_id) is not None else super().set_push(key, push)


class OneSlotStore(Store):
    """A second webhook takes the first one's place."""

    def set_push(self, key: TaskKey, push: PushTarget) -> Record:
        """Forget the other configs before this one is kept."""
        self.shelf.get(key).pushes = ()
        return super().set_push(key, push)


class ClobberingStore(Store):
    """Cancels what is finished: the check and the write of a cancel are two steps."""

    def cancel(self, key: TaskKey) -> Record:
        """Write canceled over a state that is terminal."""
        entry = self.shelf.get(key)
        if entry.state in TERMINAL:
            entry.status = TaskStatus(state=TaskState.CANCELED, timestamp=self._clock.now())
            return entry.snapshot()
        return super().cancel(key)


class UnguardedStore(Store):
    """A task that was canceled becomes completed when its skill returns."""

    def finish(self, key: TaskKey, state: TaskState, text: str | None = None, *, reason: str | None = None) -> Record:
        """Write completed over canceled, where the store would refuse."""
        try:
            return super().finish(key, state, text, reason=reason)
        except TaskEnded:
            entry = self.shelf.get(key)
            if entry.state is not TaskState.CANCELED or state is not TaskState.COMPLETED:
                raise
            entry.status = TaskStatus(state=state, timestamp=self._clock.now())
            return entry.snapshot()

    def note(self, key: TaskKey, text: str) -> None:
        """Let the skill of a canceled task go on to its end."""
        with suppress(TaskEnded):
            super().note(key, text)

    def put(self, key: TaskKey, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        """Let the skill of a canceled task go on to its end."""
        with suppress(TaskEnded):
            super().put(key, artifact, append=append, last_chunk=last_chunk)


class RacyStore(Store):
    """A cancel looks at what was last read, so a task that ended since is told to be canceled and is not."""

    def read(self, key: TaskKey) -> Record:
        """Remember that the end was seen."""
        record = super().read(key)
        if record.task.terminal:
            self._seen = {*getattr(self, "_seen", ()), key}
        return record

    def cancel(self, key: TaskKey) -> Record:
        """Say canceled if the end was not seen yet."""
        entry = self.shelf.get(key)
        if entry.state in TERMINAL and key not in getattr(self, "_seen", ()):
            record = entry.snapshot()
            return replace(record, task=replace(record.task, status=replace(entry.status, state=TaskState.CANCELED)))
        return super().cancel(key)


class ForgetfulStore(Store):
    """What a skill says it is doing is told to streams, and not kept on the task."""

    def read(self, key: TaskKey) -> Record:
        """The task without its progress."""
        record = super().read(key)
        if record.task.state is not TaskState.WORKING:
            return record
        return replace(record, task=replace(record.task, status=replace(record.task.status, message=None)))


class StuckStore(Store):
    """A failed task stays working: the reason is written into the status and the state is not."""

    def finish(self, key: TaskKey, state: TaskState, text: str | None = None, *, reason: str | None = None) -> Record:
        """End a task in every state but failed."""
        if state is TaskState.FAILED:
            return self.read(key)
        return super().finish(key, state, text, reason=reason)
