"""What stands around every screen: header, tabs, status and keys, in the width there is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleetsim.dashboard.labels import Tone, plural, span
from fleetsim.dashboard.text import Line, fitted, line, muted, spread, strong, width_of
from fleetsim.dashboard.view import View

WIDTH_MIN, HEIGHT_MIN = 40, 12
COMPACT, FULL = 60, 100


class Size(StrEnum):
    """How much room there is: full from 100 columns, compact from 60, list only from 40."""

    TINY = "tiny"
    LIST = "list"
    COMPACT = "compact"
    FULL = "full"


def size_of(width: int, height: int) -> Size:
    """The size class of a terminal of so many cells."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return Size.TINY
    return Size.FULL if width >= FULL else Size.COMPACT if width >= COMPACT else Size.LIST


class Pane(StrEnum):
    """The screens."""

    FLEET = "fleet"
    TASKS = "tasks"
    INBOX = "inbox"
    CEREMONIES = "ceremonies"
    EVENTS = "events"


SHORT = {
    Pane.FLEET: "Fleet",
    Pane.TASKS: "Task",
    Pane.INBOX: "Inbox",
    Pane.CEREMONIES: "Cer",
    Pane.EVENTS: "Ev",
}


class LinkState(StrEnum):
    """How the screen stands to its source of events."""

    WAITING = "waiting"
    LIVE = "live"
    REPLAY = "replay"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the feed, since when, and why if it was lost."""

    state: LinkState
    since: datetime
    why: str = ""


_LINKS = {
    LinkState.WAITING: ("◐", "WAITING", Tone.WARN),
    LinkState.LIVE: ("●", "LIVE", Tone.GOOD),
    LinkState.REPLAY: ("▶", "REPLAY", Tone.PRIMARY),
    LinkState.ENDED: ("‖", "ENDED", Tone.MUTED),
    LinkState.LOST: ("○", "LOST", Tone.BAD),
}


def link_line(link: Link, view: View) -> Line:
    """``● LIVE``; anything that makes the screen old says since when."""
    if link.state is LinkState.LIVE and view.stopping:
        return line(("◐ STOPPING", Tone.WARN))
    glyph, word, role = _LINKS[link.state]
    age = (view.now - link.since).total_seconds()
    if link.state in {LinkState.LOST, LinkState.WAITING} and age >= 1:
        return line((f"{glyph} {word} {span(age)}", role))
    return line((f"{glyph} {word}", role))


def header(view: View, link: Link, title: str, width: int) -> Line:
    """Fleet name, link, clock and the counts that matter, the most important ones first when it is narrow."""
    c = view.counters
    wide = width >= FULL + 10
    clock = (
        f"{view.now:%Y-%m-%d %H:%M:%SZ}" if wide else f"{view.now:%H:%M:%SZ}" if width >= 80 else f"{view.now:%H:%MZ}"
    )
    errors = f"{c.errors_5m} err/5m" if not wide else f"{plural(c.errors_5m, 'error')}/5m"
    name = line((" fleetsim", Tone.PRIMARY), "  ", strong(title)) if width >= 80 else line(strong(" " + title))
    pieces = [
        name,
        link_line(link, view),
        line(muted(clock)),
        line((f"{c.waiting} waiting", Tone.ACCENT if c.waiting else Tone.MUTED)),
        line((errors, Tone.BAD if c.errors_5m else Tone.MUTED)),
        line(muted(f"{c.working} working")),
        line(muted(plural(c.agents, "agent"))),
    ]
    if wide:
        pieces = [*pieces[:3], pieces[6], pieces[5], pieces[3], pieces[4]]
    return fitted(pieces, width - 1, gap=3 if wide else 2)


def tabs(current: Pane, view: View, width: int, note: str = "") -> Line:
    """The screens with their keys; the current one in brackets, the inbox with what waits there."""
    left = (*line(" "), *fitted(_labels(current, view, width), width - 1, gap=_tab_gap(width)))
    return spread(left, line(muted(note), " "), width)


def tab_at(current: Pane, view: View, width: int, x: int) -> Pane | None:
    """The screen whose tab is in that column."""
    at = 1
    for pane, label in zip(Pane, _labels(current, view, width), strict=True):
        if at <= x < at + width_of(label):
            return pane
        at += width_of(label) + _tab_gap(width)
    return None


def _tab_gap(width: int) -> int:
    return 1 if width >= 80 else 0


def _labels(current: Pane, view: View, width: int) -> list[Line]:
    labels: list[Line] = []
    for at, pane in enumerate(Pane, start=1):
        waits = f" ({view.counters.waiting})" if pane is Pane.INBOX and view.counters.waiting else ""
        if pane is current:
            labels.append(line((f"[{at} {_word(pane, width, named=True)}{waits}]", Tone.PRIMARY)))
        else:
            label = f"{at} {_word(pane, width, named=False)}".rstrip() + waits
            labels.append(line((f" {label} ", Tone.ACCENT if waits else Tone.MUTED)))
    return labels


def _word(pane: Pane, width: int, *, named: bool) -> str:
    """The whole word where there is room, a short one where there is less, the key alone where there is none."""
    if width >= 80:
        return pane.value.capitalize()
    return SHORT[pane] if named or width >= COMPACT else ""


Keys = Sequence[tuple[str, str]]


def footer(keys: Keys, width: int) -> Line:
    """As many of the keys as fit; help and quit always do."""
    always = [("?", "help"), ("q", "quit")]
    shown = [_key(key, word) for key, word in keys]
    last = fitted([_key(key, word) for key, word in always], width)
    room = width - sum(len(text) for text, _ in last) - 4
    return (*line(" "), *fitted(shown, max(0, room)), *line("  "), *last) if room > 6 else last


def _key(key: str, word: str) -> Line:
    return line((key, Tone.PRIMARY), " ", muted(word))


def too_small(width: int, height: int) -> list[Line]:
    """What a terminal below the smallest size says."""
    return [
        line(strong(f"Terminal is {width} x {height},")),
        line(f"needs {WIDTH_MIN} x {HEIGHT_MIN}."),
        line(muted("Text view: fleetsim health")),
    ]
