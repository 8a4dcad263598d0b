"""Lines and tables. A line is a ``rich.text.Text``; each of its pieces has a ``Tone``.

A line consists of texts and (text, tone) pairs, never of markup. Widths are terminal cells, so that wide characters
stay in their column. A line on the screen is immutable: copy it to change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from fleetsim.dashboard.labels import MUTED, Tone

T = TypeVar("T")

BLANK = Text()
MARGIN = 2
"""Cells at the left of a table, for the cursor."""
LONG_CHARS = 20_000
"""A longer text is wrapped once instead of at each drawing."""
SPARE_CELLS = 24
"""Columns are two cells apart only if the flexible columns then keep this number of cells."""

line = Text.assemble
"""A line of texts, (text, tone) pairs and other lines."""


def clickable(text: Text, action_id: str) -> Text:
    """The line as a button: a click runs the action of the table."""
    text.stylize(Style.from_meta({"@click": f"app.act('{action_id}')"}))
    return text


def clip(text: Text, width: int) -> Text:
    """The line in at most ``width`` cells; a longer line ends in an ellipsis in the tone before it."""
    if text.cell_len <= width:
        return text
    short = text.copy()
    short.truncate(max(0, width - 1))
    short.rstrip()
    if width > 0:
        short.append("…", next((span.style for span in reversed(short.spans) if span.end >= len(short)), None))
    return short


def fill(text: Text, width: int, align: str = "<") -> Text:
    """The line in exactly ``width`` cells, at the left or (``>``) at the right."""
    short = clip(text, width)
    gap = " " * (width - short.cell_len)
    return short if not gap else line(gap, short) if align == ">" else line(short, gap)


def spread(left: Text, right: Text, width: int) -> Text:
    """``left`` and ``right`` at their edges of the line; without room only ``left``."""
    gap = width - left.cell_len - right.cell_len
    return clip(left, width) if gap < 1 else line(left, " " * gap, right)


def fitted(pieces: Sequence[Text], width: int, gap: int = 2) -> Text:
    """The first lines that fit side by side; a single line that is too long is cut."""
    joined: list[str | Text] = []
    used = 0
    for piece in pieces:
        size = piece.cell_len
        if size and (not used or used + gap + size <= width):
            joined += [" " * gap, piece] if used else [piece]
            used += size + gap * bool(used)
    return clip(without_tail(line(*joined), width), width)


def without_tail(text: Text, width: int) -> Text:
    """A grey tail after a blank is dropped whole if it does not fit."""
    while text.cell_len > width and text.spans:
        start, end, style = text.spans[-1]
        if style != MUTED or start == 0 or end < len(text) or text.plain[start] not in " ,":
            break
        text = text[:start]
    return text


def folded(text: Text, width: int) -> list[Text]:
    """The line in lines of at most ``width`` cells, broken at spaces if possible; its tones stay."""
    rest, plain, at, breaks = text.cell_len, text.plain, 0, []
    while rest > width:
        window = plain[at : at + 4 * max(2, width)]
        cut = _cut(window, max(2, width))
        space = window.rfind(" ", cut // 2, cut + 1)
        at += space + 1 if space > 0 else cut
        breaks.append(at)
        rest = cell_len(plain[at:])
    lines = list(text.divide(breaks))
    for one in lines:
        one.rstrip()
    return lines


def named(pairs: Sequence[tuple[str, Text]], width: int, margin: int = 10) -> list[Text]:
    """A name and its value per line, the values ``margin`` cells from the left; a long value has several lines."""
    room = width - margin
    return [
        line((f"{name if not at else '':<{margin - 1}} ", MUTED), piece)
        for name, value in pairs
        for at, piece in enumerate(folded(without_tail(value, room), room))
    ]


def left_out(what: str) -> Text:
    """A note under an incomplete text: the number of characters shown."""
    return line((f"… {what}", Tone.WARN))


def wrap(text: str, width: int, tone: Tone = Tone.PLAIN) -> list[Text]:
    """Text in lines of at most ``width`` cells, broken at spaces if possible."""
    return _wrap_long(text, width, tone) if len(text) > LONG_CHARS else _wrap(text, width, tone)


def _wrap(text: str, width: int, tone: Tone) -> list[Text]:
    return [line((piece, tone)) for paragraph in text.split("\n") for piece in _pieces(paragraph, max(2, width))]


_wrap_long = lru_cache(maxsize=4)(_wrap)
"""A long text is drawn again every second and seldom changes."""


def _pieces(paragraph: str, width: int) -> list[str]:
    paragraph = paragraph.expandtabs(4).rstrip()
    pieces: list[str] = []
    at = 0
    while True:  # in slices: a paragraph may have a million characters
        window = paragraph[at : at + 6 * width]
        if at + len(window) >= len(paragraph) and cell_len(window) <= width:
            return [*pieces, window]
        cut = _cut(window, width)
        space = window.rfind(" ", 1, cut + 1)
        if space > cut // 3:
            pieces.append(window[:space].rstrip())
            at += space + 1
        else:
            pieces.append(window[:cut])
            at += cut


def _cut(text: str, width: int) -> int:
    """The number of characters of ``text`` that fit into ``width`` cells; at least one."""
    if text[:width].isascii():
        return width
    cells = 0
    for at, character in enumerate(text):
        cells += cell_len(character)
        if cells > width:
            return max(1, at)
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. A narrow table drops the columns with the highest ``drop`` first and those with 0 never.

    ``width`` is its smallest width in cells, ``most`` its largest; columns with ``flex`` share the free cells. ``by``
    is the attribute of an item that sorts the rows (``figures.p95_latency_ms``); ``-`` reverses it.
    """

    title: str
    width: int
    align: str = "<"
    drop: int = 0
    flex: int = 0
    most: int = 400
    by: str = ""

    @property
    def name(self) -> str:
        """The title without a figure that changes (``TREND 4h``)."""
        return self.title if not self.title.startswith("TREND") else "TREND"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: one line per column; a stale row is grey."""

    cells: Sequence[Text]
    faded: bool = False


class Rows(Generic[T]):
    """A table's rows, formatted only when they are visible: a list may be long, and a screen shows thirty rows.

    The cursor stays on a ``key``. The text of an unchanged item changes only with ``as_of``.
    """

    def __init__(
        self,
        items: Sequence[T] = (),
        key: Callable[[T], str] = str,
        words: Callable[[T], TableRow] = lambda item: TableRow(()),
        as_of: object = None,
    ) -> None:
        self.items = items
        self.key = key
        self.words = words
        self.as_of = as_of

    def ordered(self, by: str, reverse: bool) -> Rows[T]:
        """The rows by an attribute of their items; items without a value are last."""
        value = attrgetter(by)
        known = sorted((item for item in self.items if value(item) is not None), key=value, reverse=reverse)
        others = [item for item in self.items if value(item) is None]
        return Rows([*known, *others], self.key, self.words, self.as_of)

    def find(self, key: str, near: int) -> int | None:
        """The index of the row with that key; ``near`` is its last index."""
        if near < len(self.items) and self.key(self.items[near]) == key:
            return near
        return next((at for at, item in enumerate(self.items) if self.key(item) == key), None)


@dataclass(frozen=True, slots=True)
class Order:
    """The column that sorts a table, and whether its largest value is first."""

    name: str
    reverse: bool


def wide_width(columns: Sequence[Column]) -> int:
    """The cells of a table with all its columns, the flexible ones in three times their smallest width."""
    cells = sum(min(c.most, 3 * c.width) if c.flex else c.width for c in columns)
    return MARGIN + 1 + cells + 2 * len(columns)


@dataclass(frozen=True, slots=True)
class Layout:
    """The visible columns of a table with their widths."""

    columns: tuple[tuple[int, Column, int], ...]
    gap: int

    def head(self, order: Order | None = None) -> Text:
        """The titles; each has its index for a click, and the sorted one an arrow."""
        cells = []
        for at, column, width in self.columns:
            title = column.title
            if order is not None and order.name == column.name:
                title = title[: width - 1] + ("▼" if order.reverse else "▲")
            cells.append(fill(line((title, Tone.HEAD)), width, column.align))
            cells[-1].stylize(Style.from_meta({"column": at}))
        return self._join(cells)

    def row(self, row: TableRow) -> Text:
        cells = [fill(without_tail(row.cells[at], width), width, c.align) for at, c, width in self.columns]
        joined = self._join(cells)
        if row.faded:
            joined.stylize(MUTED)
        return joined

    def _join(self, cells: Sequence[Text]) -> Text:
        pieces: list[str | Text] = [piece for cell in cells for piece in (" " * self.gap, cell)]
        return line(" " * MARGIN, *pieces[1:])


@lru_cache(maxsize=64)
def layout(columns: tuple[Column, ...], width: int) -> Layout:
    """Fit the columns into ``width`` cells: drop some by priority, then share the free cells among the flexible."""
    shown = list(enumerate(columns))
    cells = width - MARGIN - 1
    gap = 2 if cells >= sum(c.width for c in columns) + 2 * len(columns) + SPARE_CELLS else 1
    while sum(c.width for _, c in shown) + gap * (len(shown) - 1) > cells and any(c.drop for _, c in shown):
        shown.remove(max(shown, key=lambda item: (item[1].drop, item[0])))
    widths = {at: c.width for at, c in shown}
    left = cells - sum(widths.values()) - gap * (len(shown) - 1)
    for _ in range(-left):  # first from the widest flexible columns, then from the others, until the table fits
        at = max(shown, key=lambda item: (bool(item[1].flex) and widths[item[0]] > 6, widths[item[0]]))[0]
        if widths[at] <= 3:
            break
        widths[at] -= 1
    while left > 0 and (growing := [(at, c) for at, c in shown if c.flex and widths[at] < c.most]):
        share = max(1, left // sum(c.flex for _, c in growing))
        for at, c in growing:
            more = min(share * c.flex, c.most - widths[at], left)
            widths[at] += more
            left -= more
    return Layout(columns=tuple((at, c, widths[at]) for at, c in shown), gap=gap)
