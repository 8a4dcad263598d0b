"""What an agent shows right after an answer: news, or the question as it stood before.

An agent that takes an answer may not have moved yet, and shows the same question in its reply and for a while after
it. Nobody is to be asked twice for one answer. The rules are those of the hub (decision 0005).
"""

from __future__ import annotations

from fleetsim.model.asking import key_of, left_without_words, unmoved
from fleetsim.model.task import INTERRUPTED, Task
from fleetsim.runtime.ports import Clock

LOOK_S = 1.0
"""Seconds until an agent that shows the question which was answered is looked at again."""

YOUNG_S = 60.0
"""Seconds that an agent has to move: if it still shows the very status that was answered, it does not take the answer
and asks again."""


class AnsweredTask:
    """A waiting task, as it asked, that is being answered from now on. None: there is no such task."""

    def __init__(self, asked: Task | None, clock: Clock) -> None:
        self._asked = asked if asked is not None and asked.state in INTERRUPTED else None
        self._clock = clock
        self._began = clock.monotonic()

    def still_asks(self, task: Task, *, looked: bool) -> bool:
        """Whether the task shows the question that was answered, so that it is to be looked at once more.

        ``looked``: this came of a look that began after the agent had taken the answer.
        """
        if self._asked is None or task.state not in INTERRUPTED:
            return False
        before = self._asked.status
        asked_at = before.timestamp if before.message is not None else None
        if left_without_words(task.status, asked_at):
            return True
        if key_of(task) != key_of(self._asked):
            return False
        return not looked or (unmoved(task.status, asked_at) and self._clock.monotonic() - self._began < YOUNG_S)
