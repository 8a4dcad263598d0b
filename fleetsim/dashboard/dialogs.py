"""Two dialogs: the keys, and "are you sure"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from fleetsim.dashboard.labels import HEALTH, STATE, Tone
from fleetsim.dashboard.text import BLANK, Line, line, muted
from fleetsim.dashboard.view_fleet import RUNS_MIN
from fleetsim.dashboard.widgets import Lines, Page

EVERYWHERE = (
    ("1 2 3 4 5", "fleet, tasks, inbox, ceremonies, events"),
    ("tab shift+tab", "next, previous pane"),
    ("j k, arrows", "down, up"),
    ("g G", "first, last"),
    ("ctrl+d ctrl+u", "half a page down, up"),
    ("enter esc", "in, out"),
    ("/", "filter: words, key=value|value, level=warn, !word"),
    ("y", "copy the id under the cursor"),
    ("ctrl+t", "next theme"),
    ("q ctrl+c", "quit"),
)


def help_lines(here: Sequence[tuple[str, str]], where: str) -> list[Line]:
    """The keys of this screen, the keys of all, and what the words mean."""
    lines = [line((where.capitalize(), Tone.PRIMARY))]
    lines += [line((f"  {key:<15}", Tone.STRONG), word) for key, word in here]
    lines += [BLANK, line(("Everywhere", Tone.PRIMARY))]
    lines += [line((f"  {key:<15}", Tone.STRONG), word) for key, word in EVERYWHERE]
    lines += [BLANK, line(("States", Tone.PRIMARY))]
    lines.append(_row([(mark.label, mark.role) for mark in HEALTH.values()]))
    states = [(mark.label, mark.role) for mark in STATE.values()]
    lines += [_row(states[at : at + 4]) for at in range(0, len(states), 4)]
    lines += [
        BLANK,
        line(muted("  up        95 % and more of at least "), str(RUNS_MIN), muted(" outcomes are successes")),
        line(muted("  degraded  50 to 95 %, or its webhooks do not arrive")),
        line(muted("  down      under 50 %, unreachable, or left alone after failures")),
        line(muted("            (fleet.health in agents.yaml may say other shares)")),
        line(muted("  grey      too few outcomes to judge, or old data")),
    ]
    return lines


def _row(marks: Sequence[tuple[str, Tone]]) -> Line:
    return line("  ", *((f"{label:<14}", role) for label, role in marks))


class HelpScreen(ModalScreen[None]):
    """The keys. Any of esc, q and ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "dismiss", "close", show=False)]

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """One page in a frame."""
        with Vertical(id="help"):
            yield Page(id="help-page")

    def on_mount(self) -> None:
        """Fill it."""
        self.set_class(bool(getattr(self.app, "ascii_only", False)), "-ascii")
        page = self.query_one(Page)
        page.entitle(line("Keys"), line(muted("j k scroll, esc closes")))
        page.show(self._lines)
        page.focus()


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something that cannot be taken back; answers whether to do it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes", show=False),
        Binding("n,escape,q", "dismiss(False)", "no", show=False),
    ]

    def __init__(self, title: str, what: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._what = what

    def compose(self) -> ComposeResult:
        """The question in a frame."""
        with Vertical(id="confirm"):
            yield Lines(id="confirm-lines", classes="framed")

    def on_mount(self) -> None:
        """Fill it."""
        self.set_class(bool(getattr(self.app, "ascii_only", False)), "-ascii")
        lines = self.query_one(Lines)
        lines.entitle(line((self._title, Tone.WARN)))
        keys = line(("y", Tone.PRIMARY), muted(" yes    "), ("n", Tone.PRIMARY), muted(" no"))
        lines.show([*self._what, BLANK, keys])
