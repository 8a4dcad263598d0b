"""The frame around every screen, for any width: header, tabs, status line and keys; and the dialogs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, SelectionList
from textual.widgets.selection_list import Selection

from fleetsim.dashboard.actions import LIST, Action, key_name
from fleetsim.dashboard.labels import HEALTH, MUTED, STATE, STRONG, Tone, age, plural
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.text import BLANK, clickable, fitted, line, spread, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_fleet import RUNS_MIN
from fleetsim.dashboard.widgets import Lines, Page

T = TypeVar("T")

WIDTH_MIN, HEIGHT_MIN = 40, 12
COMPACT, FULL = 60, 100


class Size(StrEnum):
    """The layout by columns of the terminal: full from 100, compact from 60, list only from 40."""

    TINY = "tiny"
    LIST = "list"
    COMPACT = "compact"
    FULL = "full"


def size_of(width: int, height: int) -> Size:
    """The size class of a terminal, from its columns and rows."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return Size.TINY
    return Size.FULL if width >= FULL else Size.COMPACT if width >= COMPACT else Size.LIST


class ScreenName(StrEnum):
    FLEET = "fleet"
    TASKS = "tasks"
    INBOX = "inbox"
    CEREMONIES = "ceremonies"
    EVENTS = "events"
    SCENARIO = "scenario"
    """Only with a recording."""


class LinkState(StrEnum):
    """The state of the connection to the source of events."""

    WAITING = "waiting"
    """No event has arrived yet."""
    LIVE = "live"
    STALE = "stale"
    """The connection broke and is opened again; the screen shows old data."""
    LOST = "lost"
    """No event will arrive any more."""


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the feed, the moment when it began, and the reason if no event arrives."""

    state: LinkState
    since: datetime
    why: str = ""

    @property
    def old(self) -> bool:
        """Whether the screen shows old data."""
        return self.state in {LinkState.STALE, LinkState.LOST}


_LINKS = {
    LinkState.WAITING: ("◐", "LOADING", Tone.WARN),
    LinkState.LIVE: ("●", "LIVE", Tone.GOOD),
    LinkState.STALE: ("◐", "STALE", Tone.WARN),
    LinkState.LOST: ("○", "LOST", Tone.BAD),
}


def link_line(link: Link, now: datetime, *, stopping: bool = False) -> Text:
    """``● LIVE``, or the state that makes the screen old, with its duration."""
    if link.state is LinkState.LIVE and stopping:
        return line(("◐ STOPPING", Tone.WARN))
    glyph, word, tone = _LINKS[link.state]
    old_s = (now - link.since).total_seconds()
    if link.state is not LinkState.LIVE and old_s >= 1:
        word += f" {age(old_s)}"
    return line((f"{glyph} {word}", tone))


def no_rows(link: Link, now: datetime, rows: Sequence[object], empty: Sequence[Text], awaited: str) -> list[Text]:
    """The text of a list that shows no row, by its reason: a filter, no connection, ``awaited`` data, or no data.

    ``rows`` are those before the filter, ``empty`` is the text for no data.
    """
    if rows:
        return [line(("No row passes the filter.", STRONG)), line(("esc", Tone.PRIMARY), (" clears it", MUTED))]
    if link.state is LinkState.WAITING:
        reason = [line((f"{link.why}; it is tried again", Tone.WARN))] if link.why else []
        return [line(link_line(link, now), (" the state of the hub", MUTED)), *reason]
    if link.old:
        reason = [line((link.why, MUTED))] if link.why else []
        return [line(link_line(link, now), " ", ("there was no row when the connection broke", MUTED)), *reason]
    return [line(("◐ ", Tone.WARN), (awaited, MUTED))] if awaited else list(empty)


def status_of(link: Link) -> Text | None:
    """The line below a screen with old data; None while events arrive."""
    if link.state is LinkState.STALE:
        return line((f" ! no connection, connecting again: {link.why}", Tone.WARN))
    if link.state is LinkState.LOST:
        return line((f" ! no more events, open it again: {link.why}", Tone.BAD))
    return None


def playback_line(playback: Playback) -> Text:
    """The state of a recording: ``▶ x60``, paused, at its end, or waiting for more lines."""
    speed = "max" if math.isinf(playback.speed) else f"x{playback.speed:g}"
    if playback.waiting and playback.written:
        return line(("● LIVE", Tone.GOOD))
    if playback.waiting:
        return line(("■ ENDED", MUTED) if playback.ended else ("◐ WAITING FOR MORE", Tone.WARN))
    return line(("‖ PAUSED", Tone.WARN), (f" {speed}", MUTED)) if playback.paused else line((f"▶ {speed}", Tone.GOOD))


def header(view: View, state: Text, title: str, width: int) -> Text:
    """The fleet's name, the state of the feed, the clock and the counts; the most important ones if narrow."""
    c = view.counters
    wide = width >= FULL + 10
    clock = "%Y-%m-%d %H:%M:%SZ" if wide else "%H:%M:%SZ" if width >= 80 else "%H:%MZ"
    name = line((" fleetsim", Tone.PRIMARY), "  ", (title, STRONG)) if width >= 80 else line((" " + title, STRONG))
    errors = f"{plural(c.errors_5m, 'error')}/5m" if wide else f"{c.errors_5m} err/5m"
    pieces = [name, state, line((f"{view.now:{clock}}", MUTED))]
    counts = [
        line((f"{c.waiting} waiting", Tone.ACCENT if c.waiting else MUTED)),
        line((errors, Tone.BAD if c.errors_5m else MUTED)),
        line((f"{c.working} working", MUTED)),
        line((plural(c.agents, "agent"), MUTED)),
    ]
    if view.began_at is None:
        counts = []  # nothing is known yet
    elif wide:
        waiting, failed, working, agents = counts
        counts = [agents, working, waiting, failed]
    return fitted([*pieces, *counts], width - 1, gap=3 if wide else 2)


def tabs(current: ScreenName, view: View, width: int, note: str = "") -> Text:
    """The screens with their keys: the current one in brackets, the inbox with its number of open questions."""
    whole = _tabs(current, view, whole=True)
    short = sum(tab.cell_len for tab in whole) + len(whole) > width
    left = line(" ", fitted(_tabs(current, view) if short else whole, width - 1, gap=int(width >= 80)))
    return spread(left, line((note, MUTED), " "), width)


def _screens(view: View) -> list[ScreenName]:
    return [name for name in ScreenName if name is not ScreenName.SCENARIO or view.scenario is not None]


def _tabs(current: ScreenName, view: View, *, whole: bool = False) -> list[Text]:
    """The tabs with their words, or only the current one with its word and the others as keys."""
    texts: list[Text] = []
    waiting = view.counters.waiting
    for key, name in enumerate(_screens(view), start=1):
        word = name.capitalize() if whole or name is current else ""
        waits = f" ({waiting})" if name is ScreenName.INBOX and waiting else ""
        tab = f"{key} {word}".rstrip() + waits
        if name is current:
            texts.append(line((f"[{tab}]", Tone.PRIMARY)))
        else:
            texts.append(clickable(line((f" {tab} ", Tone.ACCENT if waits else MUTED)), name))
    return texts


def failures(failed: Sequence[str], log_file: str, width: int) -> list[Text]:
    """The failures, and the file with their details; no lines if all is well."""
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    where = f"  The rest keeps working. Details: {log_file}" if log_file else "  The rest keeps working."
    return [line((" ✗ ", Tone.BAD), one) for one in wrap(failed[0] + more + where, width - 4)] if failed else []


def footer(actions: Sequence[Action], width: int) -> Text:
    """The keys of as many actions as fit, each for a click; help and quit always stay."""
    shown = [
        clickable(line((key_name(one.key_list[0]), Tone.PRIMARY), (f" {one.label}", MUTED)), one.id)
        for one in actions
        if one.footer and one.keys
    ]
    last = fitted(shown[-2:], width)
    left = width - last.cell_len - 4
    return line(" ", fitted(shown[:-2], max(0, left)), "  ", last) if left > 6 else last


def too_small(width: int, height: int) -> list[Text]:
    return [
        line((f"Terminal is {width} x {height},", STRONG)),
        line((f"needs {WIDTH_MIN} x {HEIGHT_MIN}.", STRONG)),
        line(("Text view: fleetsim health", MUTED)),
    ]


def help_lines(actions: Sequence[Action], where: str, width: int) -> list[Text]:
    """The keys of this screen, the keys of all screens, and the meaning of the health words."""
    column = 19
    lines: list[Text] = []
    for title, group in (
        (where.capitalize(), [one for one in actions if one.on and LIST not in one.on]),
        ("Everywhere", [one for one in actions if not one.on or LIST in one.on]),
    ):
        lines.append(line((title, Tone.PRIMARY)))
        for one in group:
            first, *rest = wrap(one.help, width - column)
            lines.append(line((f"  {one.shown_keys:<{column - 3}} ", STRONG), first))
            lines += [line(" " * column, more) for more in rest]
        lines.append(BLANK)
    lines.append(line(("States", Tone.PRIMARY)))
    states = list(STATE.values())
    for marks in (list(HEALTH.values()), *(states[at : at + 4] for at in range(0, len(states), 4))):
        lines.append(line("  ", *((f"{mark.label:<14}", mark.tone) for mark in marks)))
    least = f"  up        at least 95 % successes among {RUNS_MIN} or more outcomes, or 100 % of fewer"
    words = (
        least,
        "  degraded  50 to 95 % successes, or its webhooks do not arrive",
        "  down      under 50 % successes, unreachable, or paused after failures",
        "            (fleet.health in agents.yaml can change these limits)",
        f"  too few   fewer than {RUNS_MIN} outcomes, and not all are successes",
        "  grey      too few outcomes to judge, or old data",
    )
    return [*lines, BLANK, *(line((word, MUTED)) for word in words)]


HELP_WIDTH = 78
"""Of the dialog, in styles.tcss too: its height comes from its lines, before it knows its width."""


class HelpScreen(ModalScreen[None]):
    """The keys. Any of esc, q and ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "dismiss", "close", show=False)]

    def __init__(self, lines: Callable[[int], Sequence[Text]]) -> None:
        super().__init__()
        self._lines = lines
        """The lines for a width."""

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield Page(id="help-page")

    def on_mount(self) -> None:
        page = self.query_one(Page)
        page.set_titles("Keys", "j k scroll, esc closes")
        lines = self._lines(min(HELP_WIDTH, self.app.size.width * 96 // 100) - 7)
        page.show(None, lambda _: lines)
        page.focus()


class Dialog(ModalScreen[T]):
    """A title, some lines, and the box that a person types or chooses in, if there is one."""

    def __init__(self, title: str | Text, lines: Sequence[Text], *box: Widget) -> None:
        super().__init__()
        self._title, self._lines, self._box = title, lines, box

    def compose(self) -> ComposeResult:
        with Vertical(id="confirm"):
            yield Lines(id="confirm-lines", classes="framed")
            yield from self._box

    def on_mount(self) -> None:
        lines = self.query_one(Lines)
        lines.set_titles(self._title)
        lines.show(self._lines)
        for box in self._box:
            box.focus()


class JumpScreen(Dialog[str | None]):
    """A dialog for one line, such as a moment. ``value`` stands in it at first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, what: str, value: str = "") -> None:
        keys = line(("enter", Tone.PRIMARY), (" goes on    ", MUTED), ("esc", Tone.PRIMARY))
        box = Input(value, id="moment", placeholder="14:00  2h30m  start  end", compact=True)
        super().__init__(title, [line((what, MUTED)), keys], box)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        self.dismiss(message.value)


class ColumnsScreen(Dialog[list[str] | None]):
    """A dialog for the columns of a list; its result are the names that are not chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,C", "close", "close", show=False)]

    def __init__(self, names: Sequence[str], hidden: Collection[str]) -> None:
        keys = line(("space", Tone.PRIMARY), (" chooses    ", MUTED), ("esc", Tone.PRIMARY), (" closes", MUTED))
        chosen = (Selection(name, name, name not in hidden) for name in names)
        self._names, self._columns = names, SelectionList[str](*chosen, id="columns", compact=True)
        super().__init__("Columns", [keys], self._columns)

    def action_close(self) -> None:
        chosen = self._columns.selected
        self.dismiss([name for name in self._names if name not in chosen] if chosen else [])


class ConfirmScreen(Dialog[bool]):
    """A dialog before an action that cannot be undone; its result is the person's decision."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes", show=False),
        Binding("n,escape,q", "dismiss(False)", "no", show=False),
    ]

    def __init__(self, title: str, what: Sequence[Text]) -> None:
        keys = line(("y", Tone.PRIMARY), (" yes    ", MUTED), ("n", Tone.PRIMARY), (" no", MUTED))
        super().__init__(line((title, Tone.WARN)), [*what, BLANK, keys])
