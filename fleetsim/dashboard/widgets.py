"""Three widgets that draw lines: a few lines, a page that scrolls, and a table whose cursor stays on its row.

They alone write to the terminal, and they neutralise every line again. A screen never passes a string to Textual:
Textual could read it as markup, and its escapes would reach the terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, cast

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.content import Content, Span
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from fleetsim.dashboard.actions import list_bindings
from fleetsim.dashboard.labels import MUTED, STRONG, Tone, plain_ascii
from fleetsim.dashboard.text import BLANK, MARGIN, Column, Layout, Order, Rows, clip, layout, line, wide_width
from fleetsim.dashboard.theme import Palette
from fleetsim.model.text import neutralise

log = logging.getLogger(__name__)

LINE_CHARS_MAX = 2_000
DRAWN_MAX = 300
"""Drawn rows that a table caches; a screen shows about thirty."""


class Look(Protocol):
    """The app's look, which every widget draws with."""

    ascii_only: bool

    @property
    def palette(self) -> Palette: ...
    def draw_soon(self) -> None: ...


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
        upper = line((title, STRONG)) if isinstance(title, str) else title
        if (upper, below) != self._titles:
            self._titles = upper, below
            self.border_title = self._content(upper)
            self.border_subtitle = self._content(line((below, MUTED))) if below else None

    _titles: tuple[Text | None, str] = (None, "")

    def _content(self, text: Text) -> Content:
        shown = self.harmless(text)
        return Content(shown.plain, [Span(start, end, str(style)) for start, end, style in shown.spans])


class TextWidget(NeutralisedWidget):
    """A widget whose lines can be selected with the mouse."""

    lines: Sequence[Text] = ()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(self.harmless(one).plain for one in self.lines)), "\n"

    def render_line(self, y: int) -> Strip:
        """The line as a strip; selected text is reversed."""
        at, width = y + self.scroll_offset.y, self.inner_width
        text = self.lines[at] if at < len(self.lines) else BLANK
        span = self.text_selection.get_span(at) if self.text_selection is not None else None
        if span is not None:
            text = text.copy()
            text.stylize("reverse", span[0], len(text) if span[1] == -1 else span[1])
        return self.strip(text, width).apply_offsets(0, at)


class Lines(TextWidget):
    """A few lines that do not scroll. A click on them runs the action ``runs`` of the table, if it is set."""

    runs = ""

    async def on_click(self) -> None:
        if self.runs:
            await self.app.run_action(f"act('{self.runs}')")

    def show(self, lines: Sequence[Text]) -> None:
        """Draw these lines if they changed."""
        if list(lines) != list(self.lines):
            longer = len(lines) != len(self.lines)
            self.lines = lines
            self.refresh(layout=longer and self.styles.height is not None and self.styles.height.is_auto)

    def on_resize(self) -> None:
        self.look.draw_soon()  # its lines were made for another width


class Page(ScrollView, TextWidget, can_focus=True):
    """Lines that scroll; with ``follow`` the end stays visible until a person scrolls away."""

    BINDINGS: ClassVar[list[BindingType]] = [*list_bindings()]
    get_content_height = TextWidget.get_content_height

    def __init__(self, *, id: str | None = None, follow: bool = False) -> None:
        super().__init__(id=id, classes="framed")
        self.follow = follow
        self._about: tuple[int, object] = 0, None
        self._make: Callable[[int], Sequence[Text]] = lambda width: ()

    def show(self, about: object = None, lines: Callable[[int], Sequence[Text]] = lambda width: ()) -> None:
        """Draw the lines for the current width if the width or ``about`` changed; without arguments, clear the page."""
        width, self._make = max(20, self.inner_width), lines
        if (width, about) != self._about:
            self.lines = lines(width)
            self._about = width, about
            self.virtual_size = Size(self.inner_width, len(self.lines))
            self.refresh()
        if self.follow:
            self.scroll_to(y=len(self.lines), animate=False, force=True)

    @property
    def allow_select(self) -> bool:  # Textual 6 takes what scrolls for a container, of which it selects nothing
        return self.ALLOW_SELECT

    def on_resize(self) -> None:
        self.show(self._about[1], self._make)

    def action_scroll_end(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False)


class Grid(ScrollView, NeutralisedWidget, can_focus=True):
    """A table. The cursor stays on the key of its row when rows arrive, leave or move.

    Without ``hold`` it stays on the first row until a person moves it. An action takes the shown rows of ``marks``.
    ``order`` sorts the rows; without it they stay in the order of the screen. ``wide`` shows all columns; the table
    then scrolls sideways. ``hidden`` are names of columns that the person does not want.
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
        self.columns = tuple(columns)
        self.rows: Rows[Any] = Rows()
        self.instead: Sequence[Text] = ()
        self.key: str | None = None
        self.follow = follow
        self.marks: set[str] = set()
        self.order: Order | None = None
        self.wide = False
        self.hidden: Collection[str] = ()
        self.table_width = self._inner = 0
        """The cells of a row, and of the widget."""
        self._layout = Layout((), 1)
        self._wanted: str | None = None
        self._touched = hold
        self._index = 0
        self.drawn: dict[str, tuple[object, Strip]] = {}
        self._in_sight: dict[int, Strip] = {}

    @property
    def marked(self) -> list[str]:
        """The keys of the marked rows that are shown, in their order."""
        return [key for item in self.rows.items if (key := self.rows.key(item)) in self.marks] if self.marks else []

    @property
    def chosen(self) -> list[str]:
        """The keys of the marked rows, else the key under the cursor."""
        return self.marked or ([] if self.key is None else [self.key])

    def _fit_columns(self) -> None:
        """Fit the shown columns into the width; the layout keeps their indexes among all columns."""
        self._inner = self.table_width = self.inner_width
        if not self.wide and not self.hidden:
            self._layout = layout(self.columns, self._inner)
        else:
            every = list(enumerate(self.columns))  # a narrow form of the list may have hidden columns only
            shown = [(at, c) for at, c in every if c.name not in self.hidden] or every
            columns = tuple(replace(c, drop=0) if self.wide else c for _, c in shown)
            self.table_width = max(self._inner, wide_width(columns) if self.wide else 0)
            fitted = layout(columns, self.table_width)
            at = [index for index, _ in shown]
            self._layout = Layout(tuple((at[index], c, cells) for index, c, cells in fitted.columns), fitted.gap)
        self.virtual_size = Size(self.table_width, len(self.rows.items) + 1)

    def show(self, rows: Rows[Any], *, columns: Sequence[Column] = (), empty: Sequence[Text] = ()) -> None:
        """Draw these rows, or ``empty`` without rows."""
        count, index = len(self.rows.items), self._index
        instead = () if rows.items else empty
        again = count != len(rows.items) or list(instead) != list(self.instead)
        if columns and tuple(columns) != self.columns:
            self.columns, again = tuple(columns), True
        if self.order is not None:
            by = next((c.by for c in self.columns if c.name == self.order.name), "")
            rows = rows.ordered(by.lstrip("-"), self.order.reverse is not by.startswith("-")) if by else rows
        self.rows, self.instead = rows, instead
        self._find()
        before_layout = self._layout
        self._fit_columns()
        again = again or self._layout != before_layout
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
        item, width, chosen = self.rows.items[at], self.table_width, at == self._index
        under_cursor, key = chosen and self.has_focus, self.rows.key(item)
        marked = key in self.marks
        about = (item, self.rows.as_of, width, chosen, under_cursor, marked, self._layout, self.look.palette)
        before = self.drawn.get(key)
        if before is not None and before[0] == about:
            return before[1]
        if len(self.drawn) > DRAWN_MAX:
            self.drawn.clear()
        try:
            text = self._layout.row(self.rows.words(item))
        except Exception as error:
            log.exception("a row of %s cannot be drawn", self.id)
            text = line((f"  ✗ this row cannot be drawn ({type(error).__name__})", Tone.BAD))
        if chosen or marked:
            cursor, tone = "▌" if chosen else " ", Tone.PRIMARY if under_cursor else MUTED
            margin = line((cursor, tone), ("*", Tone.ACCENT)) if marked else line((cursor + " ", tone))
            text = line(margin, text[MARGIN:])
        strip = self.strip(text, width, cursor=under_cursor)
        self.drawn[key] = about, strip
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
        self._fit_columns()
        self.call_after_refresh(self._keep_in_sight)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(len(self.rows.items), len(self.instead)) + 1

    def render_line(self, y: int) -> Strip:
        if self._inner != self.inner_width:
            self._fit_columns()
        width, left = self.table_width, self.scroll_offset.x
        at = y - 1 + self.scroll_offset.y
        if y == 0:
            strip = self.strip(self._layout.head(self.order), width)
        elif self.instead:
            strip = self.strip(line("  ", self.instead[y - 1] if y <= len(self.instead) else ""), width)
        else:
            strip = self._row(at) if at < len(self.rows.items) else self.strip(BLANK, width)
        if width == self._inner:
            return strip
        return Strip.join((strip.crop(0, MARGIN), strip.crop(left + MARGIN, left + self._inner)))

    def on_click(self, event: events.Click) -> None:
        """Choose a row; a second click opens it. A click on a title sorts by its column."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y < 1:
            column = event.style.meta.get("column")
            self.sort_by(self.columns[column].name if column is not None and column < len(self.columns) else "")
        if event.y < 1 or at >= len(self.rows.items):
            return
        again = at == self._index and self.has_focus and event.chain > 1
        self.follow = False
        self.move_to(at)
        if again:
            self.action_open()

    def sort_by(self, name: str) -> None:
        """Sort by a column; once more turns the order round, a third time restores the order of the screen."""
        column = next((one for one in self.columns if one.name == name and one.by), None)
        first = column is not None and column.align == ">"  # the largest number first
        if column is None or self.order == Order(name, not first):
            self._sort(None)
        else:
            self._sort(Order(name, not first if self.order == Order(name, first) else first))

    def _sort(self, order: Order | None) -> None:
        self.order = order
        self.drawn.clear()
        self.refresh()
        self.post_message(self.Moved(self, self.key))

    def action_reverse(self) -> None:
        if self.order is not None:
            self._sort(Order(self.order.name, not self.order.reverse))

    def action_sort(self, by: str) -> None:
        """Sort by the next column to the right or left (``1``, ``-1``), or by the named one."""
        names = ["", *(one.name for _, one, _ in self._layout.columns if one.by)]
        if by.lstrip("-").isdigit():
            at = names.index(self.order.name) if self.order and self.order.name in names else 0
            by = names[(at + int(by)) % len(names)]
        else:
            by = next((name for name in names if name.lower() == by.lower()), "")
        self.order = None
        self.sort_by(by)

    def mark(self) -> None:
        """Mark the row or remove its mark, and go on to the next row."""
        if self.key is not None and len(self.rows.items):
            self.marks ^= {self.key}
            self._step(1)
            self._sort(self.order)

    def mark_all(self) -> None:
        self.marks = {self.rows.key(item) for item in self.rows.items}
        self._sort(self.order)

    def unmark(self) -> None:
        self.marks = set()
        self._sort(self.order)

    def widen(self) -> None:
        """Show all columns, or those that fit."""
        self.wide = not self.wide
        self.scroll_to(x=0, animate=False, force=True)
        self._sort(self.order)

    def action_scroll_left(self) -> None:
        self.scroll_to(x=self.scroll_offset.x - 8, animate=False, force=True)

    def action_scroll_right(self) -> None:
        self.scroll_to(x=self.scroll_offset.x + 8, animate=False, force=True)

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
