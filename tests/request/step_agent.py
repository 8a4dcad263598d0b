"""The other end of one request: an agent with a task of its own, which only ever moves forward.

It knows nothing of tracks. Its state at each move is kept, frozen, so that streams and webhooks can send it
late, twice or out of order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, Artifact, DataPart, FilePart, Task, TaskState, TaskStatus
from tests.request.steps import chunk, status, task

ENDS = {
    "complete": TaskState.COMPLETED,
    "complete bare": TaskState.COMPLETED,
    "fail": TaskState.FAILED,
    "reject": TaskState.REJECTED,
    "cancel": TaskState.CANCELED,
}
MOVES = (*["work"] * 3, *["text"] * 5, *["ask"] * 5, "note", "authorise", "ask again", "ask again", *ENDS)


@dataclass(frozen=True)
class Told:
    """One event, and the whole task at that moment."""

    update: TaskEvent
    whole: Task


class Agent:
    """One task at most, and its events in order."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.told: list[Told] = []
        self.times_asked: Counter[str] = Counter()
        self.answers: list[str] = []
        self._text = ""

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.terminal

    @property
    def asking(self) -> str | None:
        """The question it waits with, if it waits."""
        if self.task is None or self.task.state not in INTERRUPTED or self.task.status.message is None:
            return None
        return self.task.status.message.text

    def accept(self) -> Task:
        self.task = self.task or task(TaskState.SUBMITTED)
        return self.task

    def move(self, what: str) -> None:
        """Go one step further; a move that the task's state does not allow becomes plain work."""
        assert self.task is not None
        assert not self.ended
        if what in ENDS:
            self._end(what, ENDS[what])
        elif what == "text":
            self._say_more()
        elif what == "attach":
            self._attach()
        elif what in {"ask", "authorise"} and self.asking is None:
            self._ask(f"which {len(self.times_asked)}?", what)
        elif what == "ask again" and self.asking is None and self.times_asked:
            self._ask(list(self.times_asked)[-1], "ask")
        elif what == "note":
            self._status(status(TaskState.WORKING, "busy", said_id=f"n{len(self.told)}"))
        else:
            self._status(status(TaskState.WORKING))

    def take_answer(self, text: str) -> bool:
        """An answer arrived: it answers the open question."""
        if self.asking is None:
            return False
        self.answers.append(text)
        self._status(status(TaskState.WORKING))
        return True

    def _ask(self, words: str, what: str) -> None:
        self.times_asked[words] += 1
        state = TaskState.INPUT_REQUIRED if what == "ask" else TaskState.AUTH_REQUIRED
        self._status(status(state, words, said_id=f"q-{words}", final=True))

    def _say_more(self) -> None:
        assert self.task is not None
        more = f"w{len(self.told)} "
        self._text += more
        self._with_text(task(TaskState.WORKING, self._text))
        self.told.append(Told(chunk(more), self.task))

    def _attach(self) -> None:
        """Add an artifact of a file and data."""
        assert self.task is not None
        parts = (FilePart(raw="YSxiCg==", filename="a.csv", media_type="text/csv"), DataPart(data={"rows": [1, None]}))
        more = Artifact(artifact_id=f"a-{len(self.told)}", parts=parts)
        self.task = replace(self.task, artifacts=(*self.task.artifacts, more))
        self.told.append(Told(replace(chunk("", append=False, last=True), artifact=more), self.task))

    def _with_text(self, said: Task) -> None:
        """Replace the artifact of the text by that of ``said``."""
        assert self.task is not None
        others = tuple(artifact for artifact in self.task.artifacts if artifact.artifact_id != "t-1")
        self.task = replace(self.task, artifacts=(*said.artifacts, *others))

    def _end(self, what: str, state: TaskState) -> None:
        assert self.task is not None
        last = "it broke" if state is TaskState.FAILED else ""
        self._text += "" if what == "complete bare" else "end"
        self._with_text(task(state, self._text, cost=True))
        if what == "complete":
            closing = replace(chunk("", append=False, last=True), artifact=self.task.artifacts[0])
            self.told.append(Told(closing, self.task))
        self._status(status(state, last, said_id="last", final=True))

    def _status(self, update: StatusUpdate) -> None:
        """Move on; as SDKs do, a note moves into the history. A question does not, because it is not a result."""
        assert self.task is not None
        before = self.task.status
        noted = before.state is TaskState.WORKING and before.message is not None
        history = (*self.task.history, before.message) if noted else self.task.history
        self.task = replace(self.task, status=update.status, history=history)
        self.told.append(Told(update, self.task))

    def as_webhook(self, number: int, form: str) -> TaskEvent:
        """The event of that time, in one of the forms that agents post."""
        told = self.told[number % len(self.told)]
        if form == "task" or (isinstance(told.update, ArtifactUpdate) and form == "beside"):
            return Snapshot(task=told.whole)
        if form == "beside" and isinstance(told.update, StatusUpdate):
            return replace(told.update, artifacts=told.whole.artifacts)
        return told.update


def status_in(event: TaskEvent) -> TaskStatus | None:
    """The status in an event, if it has one."""
    if isinstance(event, Snapshot):
        return event.task.status
    return event.status if isinstance(event, StatusUpdate) else None


def names_ours(event: TaskEvent) -> bool:
    """Whether it is about this agent's one task."""
    return (event.task.task_id if isinstance(event, Snapshot) else getattr(event, "task_id", "")) == "t-1"
