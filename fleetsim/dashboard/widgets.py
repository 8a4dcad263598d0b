"""Three widgets that draw lines: a few of them, a page to scroll, and a table whose cursor holds on to its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import TextArea

from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.text import Column, Layout, Line, RowList, Rows, layout
from fleetsim.dashboard.widget import NeutralisedWidget
from fleetsim.model.text import neutralise


class Lines(NeutralisedWidget):
    """A few lines that do not scroll."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: tuple[Line, ...] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines, if they differ from what is drawn."""
        shown = tuple(lines)
        if shown == self.lines:
            return
        grown = len(shown) != len(self.lines)
        self.lines = shown
        self.refresh(layout=grown and self.styles.height is not None and self.styles.height.is_auto)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as lines."""
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        return self.strip(self.lines[y] if y < len(self.lines) else (), self.inner_width)


class Page(ScrollView, NeutralisedWidget, can_focus=True):
    """Lines to scroll through; with ``follow`` the end stays in sight until somebody scrolls away."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
        Binding("g", "scroll_home", "top", show=False),
        Binding("G", "bottom", "end", show=False),
        Binding("ctrl+d", "page_down", "page down", show=False),
        Binding("ctrl+u", "page_up", "page up", show=False),
    ]

    def __init__(self, *, id: str | None = None, follow: bool = False) -> None:
        super().__init__(id=id, classes="framed")
        self.lines: tuple[Line, ...] = ()
        self.follow = follow

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines, if they differ from what is drawn."""
        shown = tuple(lines)
        if shown != self.lines:
            self.lines = shown
            self.virtual_size = Size(self.inner_width, len(shown))
            self.refresh()
        if self.follow:
            self.scroll_to(y=len(shown), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        """One visible line."""
        at = y + self.scroll_offset.y
        return self.strip(self.lines[at] if at < len(self.lines) else (), self.inner_width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as lines, where the height is free."""
        return len(self.lines)

    def action_bottom(self) -> None:
        """Go to the end."""
        self.scroll_to(y=len(self.lines), animate=False)


class Grid(ScrollView, NeutralisedWidget, can_focus=True):
    """A table. The cursor stays on its row's key when rows come, go and change places.

    Without ``hold`` it stays on the first row until somebody moves it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("g,home", "first", "first", show=False),
        Binding("G,end", "last", "last", show=False),
        Binding("ctrl+d,pagedown", "page(1)", "page down", show=False),
        Binding("ctrl+u,pageup", "page(-1)", "page up", show=False),
        Binding("enter", "open", "open", show=False),
    ]

    class Moved(Message):
        """Somebody put the cursor on another row; rows that move under it are no news."""

        def __init__(self, grid: Grid, key: str | None) -> None:
            super().__init__()
            self.grid = grid
            self.key = key

        @property
        def control(self) -> Grid:
            """The grid, for selectors."""
            return self.grid

    class Opened(Moved):
        """A row was opened with enter or a second click."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        id: str | None = None,
        classes: str | None = None,
        follow: bool = False,
        hold: bool = True,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = tuple(columns)
        self._layout: Layout | None = None
        self._laid_out = 0
        self.rows: Rows = RowList()
        self.hollow: tuple[Line, ...] = ()
        self.key: str | None = None
        self.follow = follow
        self._wanted: str | None = None
        self._touched = hold
        self._index = 0

    def show(self, rows: Rows, *, columns: Sequence[Column] | None = None, empty: Sequence[Line] = ()) -> None:
        """Draw these rows; ``empty`` is shown when there are none."""
        before, old_index = self.rows, self._index
        hollow = () if len(rows) else tuple(empty)
        again = self._layout is None or hollow != self.hollow
        if columns is not None and tuple(columns) != self._columns:
            self._columns, again = tuple(columns), True
        self.rows, self.hollow = rows, hollow
        self._find()
        if len(before) != len(rows):
            self.virtual_size = Size(self.inner_width, len(rows) + 1)
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
        elif again:
            self.refresh()
        else:
            self._refresh_changed(before, old_index)
        if again:
            self._layout = None
        if old_index != self._index or len(before) != len(rows):
            self._keep_in_sight()

    def _refresh_changed(self, before: Rows, old_index: int) -> None:
        top, height = self.scroll_offset.y, self.size.height - 1
        moved = {old_index, self._index} if old_index != self._index else set()
        for at in range(top, min(top + height, len(self.rows))):
            if at in moved or before[at] != self.rows[at]:
                self.refresh(Region(0, at - top + 1, self.inner_width, 1))

    def _find(self) -> None:
        """Put the index where the key is now; a row that is gone leaves the cursor in its place."""
        count = len(self.rows)
        if not count:
            self._index = 0
            return
        found = self.rows.find(self.key, self._index) if self.key is not None else None
        if self.follow:
            found = count - 1
        elif not self._touched:
            found = 0
        elif found is None and self.key is not None and self.key == self._wanted:
            return
        self._index = min(self._index, count - 1) if found is None else found
        self.key, self._wanted = self.rows[self._index].key, None

    def select(self, key: str) -> None:
        """Put the cursor on a row; one that is not there yet is taken when it comes."""
        found = self.rows.find(key, self._index)
        if found is None:
            self.key = self._wanted = key
        else:
            self.move_to(found)

    def move_to(self, index: int) -> None:
        """Put the cursor on the row at ``index``, or the nearest there is."""
        if not len(self.rows):
            return
        self._touched = True
        index = max(0, min(index, len(self.rows) - 1))
        before, self._index = self._index, index
        key = self.rows[index].key
        top = self.scroll_offset.y
        for at in (before, index):
            self.refresh(Region(0, at - top + 1, self.inner_width, 1))
        self._wanted = None
        if key != self.key:
            self.key = key
            self.post_message(self.Moved(self, key))
        self._keep_in_sight()

    def _keep_in_sight(self) -> None:
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self._index < top:
            self.scroll_to(y=self._index, animate=False, force=True)
        elif self._index >= top + height:
            self.scroll_to(y=self._index - height + 1, animate=False, force=True)

    def on_resize(self) -> None:
        """Other columns may fit now."""
        self._layout = None
        self.virtual_size = Size(self.inner_width, len(self.rows) + 1)
        self.call_after_refresh(self._keep_in_sight)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The rows and their head."""
        return max(len(self.rows), len(self.hollow)) + 1

    def render_line(self, y: int) -> Strip:
        """The head at the top, rows below it."""
        width = self.inner_width
        if self._layout is None or self._laid_out != width:
            self._layout, self._laid_out = layout(self._columns, width), width
        if y == 0:
            return self.strip(self._layout.head(), width)
        if self.hollow:
            one = self.hollow[y - 1] if y <= len(self.hollow) else ()
            return self.strip((("  ", Tone.PLAIN), *one), width)
        at = y - 1 + self.scroll_offset.y
        if at >= len(self.rows):
            return self.strip((), width)
        one = self._layout.row(self.rows[at])
        if at != self._index:
            return self.strip(one, width)
        glyph = ("▌ ", Tone.PRIMARY if self.has_focus else Tone.MUTED)
        return self.strip((glyph, *one[1:]), width, cursor=self.has_focus)

    def on_focus(self) -> None:
        """The cursor is drawn stronger."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor is drawn weaker."""
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Choose a row; a second click opens it."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y < 1 or at >= len(self.rows):
            return
        again = at == self._index and self.has_focus and event.chain > 1
        self.follow = False
        self.move_to(at)
        if again:
            self.action_open()

    def action_move(self, by: int) -> None:
        """One row up or down."""
        self.follow = False
        self.move_to(self._index + by)

    def action_page(self, by: int) -> None:
        """Half a page up or down."""
        self.follow = False
        self.move_to(self._index + by * max(1, (self.size.height - 1) // 2))

    def action_first(self) -> None:
        """The first row."""
        self.follow = False
        self.move_to(0)

    def action_last(self) -> None:
        """The last row."""
        self.move_to(len(self.rows) - 1)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if len(self.rows):
            self.post_message(self.Opened(self, self.key))


class AnswerBox(TextArea):
    """Where an answer is typed. What is pasted is made harmless before it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "app.send_answer", "send", show=False),
        Binding("ctrl+r", "app.reject", "reject", show=False),
        Binding("escape", "app.back", "back", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id, classes="framed", soft_wrap=True, show_line_numbers=False, tab_behavior="focus", compact=True
        )
        self.cursor_blink = False

    async def _on_paste(self, event: events.Paste) -> None:
        """Textual goes on to the text area's own handler with the same event."""
        event.text = neutralise(event.text)
