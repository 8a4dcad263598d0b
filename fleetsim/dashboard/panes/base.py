"""What every screen has: a main table, a filter, its keys and its status line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

from textual.containers import Vertical

from fleetsim.dashboard.chrome import Keys, Pane, Size
from fleetsim.dashboard.controls import WholeText
from fleetsim.dashboard.query import Query, parse
from fleetsim.dashboard.view import View
from fleetsim.dashboard.widgets import Grid

TextKey: TypeAlias = tuple[str, int]
"""Whose text, by correlation id, and how long it is."""


class PaneBase(Vertical):
    """A screen. ``draw`` is called a few times a second with the newest view.

    ``whole`` has texts that the events carry excerpts of; drawing says in ``lacks`` which one it misses.
    """

    PANE: ClassVar[Pane]
    KEYS: ClassVar[Keys] = ()

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.filter_text = ""
        self.query_now = Query()
        self.room = Size.FULL
        self.whole: Mapping[TextKey, WholeText] = {}
        self.lacks: TextKey | None = None

    @property
    def main(self) -> Grid:
        """The table that has the focus when the screen opens."""
        raise LookupError(self.id)

    def draw(self, view: View) -> None:
        """Show the view."""

    def status(self, view: View) -> str:
        """The status line."""
        return ""

    def wants(self) -> tuple[str, ...]:
        """Correlation ids of the tasks whose details the next view should have."""
        return ()

    def copyable(self) -> str | None:
        """The id that ``y`` copies."""
        return self.main.key

    def chosen_task(self) -> str | None:
        """The correlation id of the task under the cursor, for ``x`` and ``r``."""
        return None

    def opened(self, grid: Grid, key: str) -> None:
        """A row was opened."""

    def back(self) -> bool:
        """Leave whatever was opened; False if nothing was."""
        return False

    def filter_by(self, text: str) -> None:
        """Show only what passes."""
        self.filter_text = text.strip()
        self.query_now = parse(text)
