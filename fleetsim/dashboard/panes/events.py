"""Screen 5: every event, following."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from fleetsim.dashboard import draw_events
from fleetsim.dashboard.chrome import Keys, Pane, Size
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.text import line
from fleetsim.dashboard.view import View
from fleetsim.dashboard.widgets import Grid, Page


class EventsPane(PaneBase):
    """The list, and one event in full below it."""

    PANE = Pane.EVENTS
    KEYS: ClassVar[Keys] = (
        ("f", "follow"),
        ("/", "filter"),
        ("l", "levels"),
        ("↵", "expand"),
        ("t", "its task"),
        ("y", "copy"),
        ("esc", "back"),
    )

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.debug = False
        self._window = draw_events.Window(self.query_now)

    def compose(self) -> ComposeResult:
        """List and detail."""
        self._list = Grid(draw_events.COLUMNS, id="event-list", follow=True)
        self._full = Page(id="event-full")
        yield self._list
        yield self._full

    @property
    def main(self) -> Grid:
        """The events."""
        return self._list

    def draw(self, view: View) -> None:
        """Show the view."""
        self._window.update(view.events)
        narrow = self.room is not Size.FULL
        rows = draw_events.EventRows(self._window.rows(), narrow=narrow)
        columns = draw_events.NARROW if narrow else draw_events.COLUMNS
        self._list.show(rows, columns=columns, empty=draw_events.empty(view))
        at = rows.find(self._list.key or "", 0)
        self._event = rows.events[at] if at is not None else None
        if self._event is None:
            self._full.show([])
            return
        self._full.entitle(line(f"Event {self._event.seq:,}"))
        self._full.show(draw_events.full(self._event, max(20, self._full.inner_width)))

    def filter_by(self, text: str) -> None:
        """Start over with another filter."""
        super().filter_by(text)
        self._window = draw_events.Window(self.query_now, debug=self.debug)

    def levels(self) -> bool:
        """Show debug events as well, or not; returns which."""
        self.debug = not self.debug
        self._window = draw_events.Window(self.query_now, debug=self.debug)
        return self.debug

    def follow(self) -> bool:
        """Follow the newest event, or stop; returns which."""
        self._list.follow = not self._list.follow
        return self._list.follow

    def status(self, view: View) -> str:
        """Whether it follows, and how many are kept."""
        return draw_events.summary(len(self._window), view, self._list.follow, self.debug)

    def chosen_task(self) -> str | None:
        """The task of the event under the cursor."""
        event = getattr(self, "_event", None)
        return event.correlation_id if event else None

    def copyable(self) -> str | None:
        """The event's task, else its number."""
        return self.chosen_task() or self._list.key

    def opened(self, grid: Grid, key: str) -> None:
        """Give the event room."""
        self.add_class("-opened")
        self._list.follow = False
        self._full.focus()

    def back(self) -> bool:
        """Back to the list."""
        opened = self.has_class("-opened")
        self.remove_class("-opened")
        self._list.focus()
        return opened
