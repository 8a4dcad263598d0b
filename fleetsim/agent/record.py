"""What the store hands out: frozen snapshots of a task with a version, and the moves between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from fleetsim.model.call import PushConfig
from fleetsim.model.errors import InvalidMove
from fleetsim.model.event import StatusUpdate
from fleetsim.model.task import Task

ANYONE = "anyone"
"""The owner of every task of an agent without keys: one shared tenant."""

TaskKey: TypeAlias = tuple[str, str]
"""(owner, task id). A task of somebody else is missing by construction (threat T-24)."""


class TaskEnded(InvalidMove):
    """The task is terminal: what was to be written came too late and changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTarget:
    """A registered webhook and the dialect of its registration, in which its notices are written."""

    config: PushConfig
    dialect: str

    @property
    def config_id(self) -> str:
        """Its id within the task; the store gives every config one."""
        return self.config.config_id or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A task at one version. ``cursor`` is where in the feed a reader of this snapshot goes on."""

    key: TaskKey
    version: int
    sequence: int
    task: Task
    skill: str
    dialect: str
    created_at: datetime
    updated_at: datetime
    pushes: tuple[PushTarget, ...] = ()
    cursor: int = 0

    @property
    def task_id(self) -> str:
        """Short for ``task.task_id``."""
        return self.task.task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One move of a task, with everything as it was right after it. Never rebuilt later (U23)."""

    record: Record
    update: StatusUpdate


def with_history(task: Task, length: int | None) -> Task:
    """The task with at most ``length`` recent messages; None keeps all (A2A 1.0 section 3.2.4)."""
    if length is None or len(task.history) <= length:
        return task
    return replace(task, history=task.history[len(task.history) - length :] if length > 0 else ())
