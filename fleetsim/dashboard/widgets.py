"""Three widgets that draw lines: a few lines, a page that scrolls, and a table whose cursor stays on its row.

They alone write to the terminal, and they neutralise every line again. A screen never passes a string to Textual:
Textual could read it as markup, and its escapes would reach the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.content import Content, Span
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from fleetsim.dashboard.actions import list_bindings
from fleetsim.dashboard.labels import MUTED, STRONG, Tone, plain_ascii
from fleetsim.dashboard.text import BLANK, MARGIN, Column, Rows, clip, layout, line
from fleetsim.dashboard.theme import Palette
from fleetsim.model.text import neutralise

LINE_CHARS_MAX = 2_000
DRAWN_MAX = 300
"""Drawn rows that a table caches; a screen shows about thirty."""


class Look(Protocol):
    """The app's look, which every widget draws with."""

    ascii_only: bool

    @property
    def palette(self) -> Palette: ...


class NeutralisedWidget(Widget):
    """A widget that draws lines, neutralised, in the look of the app."""

    @property
    def look(self) -> Look:
        return cast("Look", self.app)

    @property
    def inner_width(self) -> int:
        """Cells a line has: inside the frame, the padding and the scrollbar."""
        return self.scrollable_content_region.width

    def harmless(self, text: Text) -> Text:
        """The line for the terminal, in ASCII if requested. A line with escapes loses its tones."""
        plain = neutralise(text.plain, limit=LINE_CHARS_MAX, lines=False)
        shown = text if plain == text.plain else line(plain)
        if not self.look.ascii_only:
            return shown
        shown = shown.copy()
        shown.plain = plain_ascii(shown.plain)
        return shown

    def strip(self, text: Text, width: int, *, cursor: bool = False) -> Strip:
        """The line as a strip of exactly ``width`` cells."""
        shown = clip(self.harmless(text), width)  # a glyph may need more than one letter in ASCII
        if self.look.ascii_only:
            shown.plain = plain_ascii(shown.plain)  # the ellipsis
        shown = line(shown, " " * (width - shown.cell_len))
        shown.stylize_before(Tone.PLAIN)
        shown.end = ""
        palette = self.look.palette
        return Strip(shown.render(palette.cursor if cursor else palette.ground), width)

    def set_titles(self, title: str | Text, below: str = "") -> None:
        """Set the title and the subtitle of the frame."""
        upper = line((title, STRONG)) if isinstance(title, str) else title
        if (upper, below) != self._titles:
            self._titles = upper, below
            self.border_title = self._content(upper)
            self.border_subtitle = self._content(line((below, MUTED))) if below else None

    _titles: tuple[Text | None, str] = (None, "")

    def _content(self, text: Text) -> Content:
        shown = self.harmless(text)
        return Content(shown.plain, [Span(start, end, str(style)) for start, end, style in shown.spans])


class Lines(NeutralisedWidget):
    """A few lines that do not scroll."""

    lines: Sequence[Text] = ()

    def show(self, lines: Sequence[Text]) -> None:
        """Draw these lines if they changed."""
        if list(lines) != list(self.lines):
            longer = len(lines) != len(self.lines)
            self.lines = lines
            self.refresh(layout=longer and self.styles.height is not None and self.styles.height.is_auto)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        return self.strip(self.lines[y] if y < len(self.lines) else BLANK, self.inner_width)


class Page(ScrollView, NeutralisedWidget, can_focus=True):
    """Lines that scroll; with ``follow`` the end stays visible until a person scrolls away."""

    BINDINGS: ClassVar[list[BindingType]] = [*list_bindings()]

    def __init__(self, *, id: str | None = None, follow: bool = False) -> None:
        super().__init__(id=id, classes="framed")
        self.lines: Sequence[Text] = ()
        self.follow = follow
        self._about: object = None

    def show(self, about: object = None, lines: Callable[[int], Sequence[Text]] = lambda width: ()) -> None:
        """Draw the lines for the current width if the width or ``about`` changed; without arguments, clear the page."""
        width = max(20, self.inner_width)
        if (width, about) != self._about:
            self._about = width, about
            self.lines = lines(width)
            self.virtual_size = Size(self.inner_width, len(self.lines))
            self.refresh()
        if self.follow:
            self.scroll_to(y=len(self.lines), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        return self.strip(self.lines[at] if at < len(self.lines) else BLANK, self.inner_width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def action_scroll_end(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False)


class Grid(ScrollView, NeutralisedWidget, can_focus=True):
    """A table. The cursor stays on the key of its row when rows arrive, leave or move.

    Without ``hold`` it stays on the first row until a person moves it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*list_bindings()]

    class Moved(Message):
        """A person moved the cursor to another row."""

        def __init__(self, grid: Grid, key: str | None) -> None:
            super().__init__()
            self.grid = grid
            self.key = key

    class Opened(Moved):
        """A person opened a row with enter or a second click."""

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        id: str | None = None,
        classes: str | None = None,
        follow: bool = False,
        hold: bool = True,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = tuple(columns)
        self.rows: Rows[Any] = Rows()
        self.instead: Sequence[Text] = ()
        self.key: str | None = None
        self.follow = follow
        self._wanted: str | None = None
        self._touched = hold
        self._index = 0
        self._drawn: dict[str, tuple[object, Strip]] = {}
        self._in_sight: dict[int, Strip] = {}

    def show(self, rows: Rows[Any], *, columns: Sequence[Column] = (), empty: Sequence[Text] = ()) -> None:
        """Draw these rows, or ``empty`` without rows."""
        count, index = len(self.rows.items), self._index
        instead = () if rows.items else empty
        again = count != len(rows.items) or list(instead) != list(self.instead)
        if columns and tuple(columns) != self._columns:
            self._columns, again = tuple(columns), True
        self.rows, self.instead = rows, instead
        self._find()
        self.virtual_size = Size(self.inner_width, len(rows.items) + 1)
        before, top = self._in_sight, self.scroll_offset.y
        self._in_sight = {at: self._row(at) for at in range(top, min(top + self.size.height - 1, len(rows.items)))}
        if again:
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
        for at, strip in self._in_sight.items():
            if not again and strip != before.get(at):
                self.refresh(Region(0, at - top + 1, self.inner_width, 1))
        if index != self._index or count != len(rows.items):
            self._keep_in_sight()

    def _row(self, at: int) -> Strip:
        """A drawn row, formatted again only after a change of the row or of a value that it depends on."""
        item, width, chosen = self.rows.items[at], self.inner_width, at == self._index
        under_cursor = chosen and self.has_focus
        about = (item, self.rows.as_of, width, chosen, under_cursor, self._columns, self.look.palette)
        key = self.rows.key(item)
        before = self._drawn.get(key)
        if before is not None and before[0] == about:
            return before[1]
        if len(self._drawn) > DRAWN_MAX:
            self._drawn.clear()
        text = layout(self._columns, width).row(self.rows.words(item))
        if chosen:
            text = line(("▌ ", Tone.PRIMARY if under_cursor else MUTED), text[MARGIN:])
        strip = self.strip(text, width, cursor=under_cursor)
        self._drawn[key] = about, strip
        return strip

    def _find(self) -> None:
        """Move the index to the key's row; if the row is gone, the index stays."""
        count = len(self.rows.items)
        if not count:
            self._index = 0
            return
        at = self.rows.find(self.key, self._index) if self.key is not None else None
        if self.follow:
            at = count - 1
        elif not self._touched:
            at = 0
        elif at is None and self.key is not None and self.key == self._wanted:
            return
        self._index = min(self._index, count - 1) if at is None else at
        self.key, self._wanted = self.rows.key(self.rows.items[self._index]), None

    def select(self, key: str) -> None:
        """Put the cursor on a row, now or when the row arrives."""
        at = self.rows.find(key, self._index)
        if at is None:
            self.key = self._wanted = key
        else:
            self.move_to(at)

    def move_to(self, index: int) -> None:
        """Put the cursor on the row at ``index``, or on the nearest one."""
        if not len(self.rows.items):
            return
        self._touched = True
        index = max(0, min(index, len(self.rows.items) - 1))
        before, self._index = self._index, index
        key = self.rows.key(self.rows.items[index])
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
        self.virtual_size = Size(self.inner_width, len(self.rows.items) + 1)
        self.call_after_refresh(self._keep_in_sight)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(len(self.rows.items), len(self.instead)) + 1

    def render_line(self, y: int) -> Strip:
        width = self.inner_width
        at = y - 1 + self.scroll_offset.y
        if y == 0:
            return self.strip(layout(self._columns, width).head(), width)
        if self.instead:
            return self.strip(line("  ", self.instead[y - 1] if y <= len(self.instead) else ""), width)
        return self._row(at) if at < len(self.rows.items) else self.strip(BLANK, width)

    def on_click(self, event: events.Click) -> None:
        """Choose a row; a second click opens it."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y < 1 or at >= len(self.rows.items):
            return
        again = at == self._index and self.has_focus and event.chain > 1
        self.follow = False
        self.move_to(at)
        if again:
            self.action_open()

    def _step(self, by: int) -> None:
        self.follow = False
        self.move_to(self._index + by)

    def action_scroll_down(self) -> None:
        self._step(1)

    def action_scroll_up(self) -> None:
        self._step(-1)

    def action_page_down(self) -> None:
        self._step(max(1, (self.size.height - 1) // 2))

    def action_page_up(self) -> None:
        self._step(-max(1, (self.size.height - 1) // 2))

    def action_scroll_home(self) -> None:
        self._step(-self._index)

    def action_scroll_end(self) -> None:
        self.move_to(len(self.rows.items) - 1)

    def action_open(self) -> None:
        if len(self.rows.items):
            self.post_message(self.Opened(self, self.key))
