"""Screen 2: tasks, with the live text of the one under the cursor."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.dashboard import draw_inbox, draw_tasks
from fleetsim.dashboard.chrome import Keys, Pane
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.text import LazyRows, line, muted
from fleetsim.dashboard.view import View
from fleetsim.dashboard.widgets import Grid, Page


class TasksPane(PaneBase):
    """The list above, one task's story and live text below; enter gives it all the room."""

    PANE = Pane.TASKS
    KEYS: ClassVar[Keys] = (
        ("↵", "open"),
        ("r", "reply"),
        ("x", "cancel"),
        ("/", "filter"),
        ("f", "follow"),
        ("y", "copy"),
        ("esc", "back"),
    )

    def compose(self) -> ComposeResult:
        """List, story, live text."""
        self._tasks = Grid(draw_tasks.COLUMNS, id="tasks-list")
        self._story = Page(id="story", follow=True)
        self._live = Page(id="live", follow=True)
        yield self._tasks
        with Horizontal(id="task"):
            yield self._story
            yield self._live

    @property
    def main(self) -> Grid:
        """The list."""
        return self._tasks

    def draw(self, view: View) -> None:
        """Show the view."""
        rows = (
            [row for row in view.tasks if self.query_now.matches(draw_tasks.fields(row))]
            if self.query_now
            else view.tasks
        )
        self._shown = len(rows)
        words = "No task passes the filter." if view.tasks else "No tasks yet.  Send one:  fleetsim send AGENT TEXT"
        shown = LazyRows(rows, lambda row: row.correlation_id, lambda row: draw_tasks.row(row, view.now))
        self._tasks.show(shown, empty=[line(muted(words))])
        detail = view.details.get(self._tasks.key or "")
        self.lacks = None
        if detail is not None and detail.cut and detail.final:
            self.lacks = (detail.row.correlation_id, detail.chars)
            if self.lacks in self.whole:
                detail = draw_tasks.with_whole(detail, self.whole[self.lacks])
        self._live.entitle(draw_tasks.live_title(detail, self._live.follow))
        if detail is None:
            self._story.show([])
            self._live.show([])
            return
        question = view.question(detail.row.question_id) if detail.row.question_id else None
        if question is not None and question.cut:
            self.lacks = (question.correlation_id, question.chars)
            question = draw_inbox.with_whole(question, self.whole.get(self.lacks))
        self._story.entitle(draw_tasks.title(detail))
        self._story.show(draw_tasks.story(detail, view.now, max(20, self._story.inner_width)))
        self._live.show(draw_tasks.live(detail, question, max(20, self._live.inner_width)))

    def status(self, view: View) -> str:
        """Counts by state."""
        return draw_tasks.summary(getattr(self, "_shown", 0), view)

    def wants(self) -> tuple[str, ...]:
        """The task under the cursor."""
        return (self._tasks.key,) if self._tasks.key else ()

    def chosen_task(self) -> str | None:
        """The task under the cursor."""
        return self._tasks.key

    def opened(self, grid: Grid, key: str) -> None:
        """Give the task all the room."""
        self.add_class("-opened")
        self._live.focus()

    def back(self) -> bool:
        """Back to the list."""
        opened = self.has_class("-opened")
        self.remove_class("-opened")
        self._tasks.focus()
        return opened

    def follow(self) -> bool:
        """Follow the live text, or stop; returns which."""
        self._live.follow = self._story.follow = not self._live.follow
        return self._live.follow
