"""Lines of text with a meaning per piece, and tables made of them. Pure.

A ``Line`` is what a pane wants shown; ``paint`` is the one door through which lines reach the terminal.
Widths are terminal cells, so that wide characters stay in their column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeAlias, TypeVar

from rich.cells import cell_len, set_cell_size

from fleetsim.dashboard.labels import Mark, Tone

T = TypeVar("T")
Span: TypeAlias = tuple[str, Tone]
Line: TypeAlias = tuple[Span, ...]

BLANK: Line = ()
MARGIN = 2
"""Cells at the left of a table, where the cursor stands."""
LONG_CHARS = 20_000
"""A text longer than that is wrapped once, not at each drawing."""
AIR = 24
"""Columns stand two cells apart only if that leaves so many cells for those that can use more."""


def line(*pieces: str | Span | Mark) -> Line:
    """A line of plain texts, (text, role) pairs and marks."""
    return tuple(
        (piece, Tone.PLAIN)
        if isinstance(piece, str)
        else (piece.label, piece.role)
        if isinstance(piece, Mark)
        else piece
        for piece in pieces
    )


def muted(text: str) -> Span:
    """Text of lesser importance."""
    return text, Tone.MUTED


def strong(text: str) -> Span:
    """Text of greater importance."""
    return text, Tone.STRONG


def plain(lines: Iterable[Line]) -> str:
    """The lines without their roles."""
    return "\n".join("".join(text for text, _ in one) for one in lines)


def width_of(one: Line) -> int:
    """Cells a line takes."""
    return sum(cell_len(text) for text, _ in one)


def clip(text: str, width: int) -> str:
    """The text in at most ``width`` cells, with an ellipsis if it was longer."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def clip_line(one: Line, width: int) -> Line:
    """The line in at most ``width`` cells, with an ellipsis if it was longer."""
    if width_of(one) <= width:
        return one
    kept: list[Span] = []
    left = width
    for text, role in one:
        size = cell_len(text)
        if size < left:
            kept.append((text, role))
            left -= size
            continue
        short = text if size == left and text == one[-1][0] else clip(text + " ", left)
        kept.append((short, role))
        break
    return tuple(kept)


def fill(one: Line, width: int, align: str = "<") -> Line:
    """The line in exactly ``width`` cells, text at the left or (``>``) at the right."""
    short = clip_line(one, width)
    gap = width - width_of(short)
    if gap <= 0:
        return short
    room: Span = (" " * gap, Tone.PLAIN)
    return (room, *short) if align == ">" else (*short, room)


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` at the left edge and ``right`` at the right edge; the right is dropped if there is no room."""
    gap = width - width_of(left) - width_of(right)
    if gap < 1:
        return clip_line(left, width)
    return (*left, (" " * gap, Tone.PLAIN), *right)


def wrap(text: str, width: int, role: Tone = Tone.PLAIN, indent: str = "") -> list[Line]:
    """Text in lines of at most ``width`` cells, broken at spaces where it can be."""
    return list(_wrap_long(text, width, role, indent) if len(text) > LONG_CHARS else _wrap(text, width, role, indent))


@lru_cache(maxsize=4)
def _wrap_long(text: str, width: int, role: Tone, indent: str) -> tuple[Line, ...]:
    """A long text is drawn again every second, and seldom another one."""
    return tuple(_wrap(text, width, role, indent))


def _wrap(text: str, width: int, role: Tone, indent: str) -> list[Line]:
    lines: list[Line] = []
    for paragraph in text.split("\n"):
        lines += [((indent + piece, role),) if piece else BLANK for piece in _pieces(paragraph, width - len(indent))]
    return lines


def _pieces(paragraph: str, width: int) -> list[str]:
    width = max(2, width)
    paragraph = paragraph.expandtabs(4).rstrip()
    pieces: list[str] = []
    at = 0
    while True:  # through a window: a paragraph may be a million characters
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
    """How many characters of ``text`` fit into ``width`` cells; at least one."""
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
    """One column. ``drop`` 0 never goes, higher goes first; ``flex`` shares the room that is left.

    ``width`` is what it needs, ``most`` the cells beyond which more room is no use to it.
    """

    title: str
    width: int
    align: str = "<"
    drop: int = 0
    flex: int = 0
    most: int = 400


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: the identity a cursor holds on to, one line per column, and whether it is shown greyed."""

    key: str
    cells: tuple[Line, ...]
    faded: bool = False


class Rows(Protocol):
    """A table's rows, which may be put into words only when they are looked at."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> TableRow: ...

    def find(self, key: str, near: int) -> int | None:
        """Where the row of that key is; ``near`` is where it was."""
        ...


class RowList:
    """Rows that are there already."""

    def __init__(self, rows: Sequence[TableRow] = ()) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int, /) -> TableRow:
        return self._rows[at]

    def find(self, key: str, near: int) -> int | None:
        """Where the row of that key is."""
        if near < len(self._rows) and self._rows[near].key == key:
            return near
        return next((at for at, row in enumerate(self._rows) if row.key == key), None)


class LazyRows(Generic[T]):
    """Things that become rows when they are looked at: a list may be long, a screen shows thirty."""

    def __init__(self, items: Sequence[T], key: Callable[[T], str], draw: Callable[[T], TableRow]) -> None:
        self.items = items
        self._key = key
        self._draw = draw

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int, /) -> TableRow:
        return self._draw(self.items[at])

    def find(self, key: str, near: int) -> int | None:
        """Where the row of that key is."""
        if near < len(self.items) and self._key(self.items[near]) == key:
            return near
        return next((at for at, item in enumerate(self.items) if self._key(item) == key), None)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a table are shown, and how wide."""

    columns: tuple[tuple[int, Column, int], ...]
    gap: int

    def head(self) -> Line:
        """The titles."""
        return self._join([fill(line((c.title, Tone.HEAD)), width, c.align) for _, c, width in self.columns])

    def row(self, row: TableRow) -> Line:
        """One row's cells in their columns."""
        cells = [fill(untailed(row.cells[at], width), width, c.align) for at, c, width in self.columns]
        if row.faded:
            cells = [tuple((text, Tone.MUTED) for text, _ in cell) for cell in cells]
        return self._join(cells)

    def _join(self, cells: Sequence[Line]) -> Line:
        joined: list[Span] = [(" " * MARGIN, Tone.PLAIN)]
        for at, cell in enumerate(cells):
            if at:
                joined.append((" " * self.gap, Tone.PLAIN))
            joined.extend(cell)
        return tuple(joined)


def untailed(cell: Line, width: int) -> Line:
    """A grey tail set off by a blank goes whole when there is no room for all of it."""
    while len(cell) > 1 and width_of(cell) > width and cell[-1][1] is Tone.MUTED and cell[-1][0].startswith((" ", ",")):
        cell = cell[:-1]
    return cell


def layout(columns: Sequence[Column], width: int) -> Layout:
    """Fit the columns into ``width`` cells: drop by priority, then share what is left among the flexible."""
    kept = list(enumerate(columns))
    room = width - MARGIN - 1
    airy = sum(c.width for c in columns) + 2 * len(columns) + AIR
    gap = 2 if room >= airy else 1
    while sum(c.width for _, c in kept) + gap * (len(kept) - 1) > room and any(c.drop for _, c in kept):
        kept.remove(max(kept, key=lambda item: (item[1].drop, item[0])))
    widths = {at: c.width for at, c in kept}
    left = room - sum(widths.values()) - gap * (len(kept) - 1)
    if left < 0:
        _shrink(kept, widths, -left)
    while left > 0 and (growing := [(at, c) for at, c in kept if c.flex and widths[at] < c.most]):
        share = max(1, left // sum(c.flex for _, c in growing))
        for at, c in growing:
            more = min(share * c.flex, c.most - widths[at], left)
            widths[at] += more
            left -= more
    return Layout(columns=tuple((at, c, widths[at]) for at, c in kept), gap=gap)


def _shrink(kept: Sequence[tuple[int, Column]], widths: dict[int, int], excess: int) -> None:
    """Take cells from the widest column that can do with fewer, the others last, until the table fits."""
    while excess > 0:
        at, _ = max(kept, key=lambda item: (bool(item[1].flex) and widths[item[0]] > 6, widths[item[0]]))
        if widths[at] <= 3:
            return
        widths[at] -= 1
        excess -= 1


def fitted(pieces: Sequence[Line], width: int, gap: int = 2) -> Line:
    """The pieces side by side, as many of the first ones as fit whole; a single one is cut if it must be."""
    joined: list[Span] = []
    used = 0
    for piece in pieces:
        size = width_of(piece)
        if not size:
            continue
        if used and used + gap + size > width:
            continue
        if used:
            joined.append((" " * gap, Tone.PLAIN))
            used += gap
        joined.extend(piece)
        used += size
    return clip_line(untailed(tuple(joined), width), width)
