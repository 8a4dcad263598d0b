"""Screen 4: ceremonies, one's facts and runs, and fire now."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.dashboard import draw_ceremonies
from fleetsim.dashboard.chrome import Keys, Pane
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.text import RowList, line, muted
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_ceremonies import CeremonyRow
from fleetsim.dashboard.widgets import Grid, Page


class CeremoniesPane(PaneBase):
    """The list above, what the file says and how its runs went below."""

    PANE = Pane.CEREMONIES
    KEYS: ClassVar[Keys] = (("F", "fire now"), ("↵", "runs"), ("/", "filter"), ("y", "copy"), ("esc", "back"))

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.current: CeremonyRow | None = None

    def compose(self) -> ComposeResult:
        """List, facts, runs."""
        self._list = Grid(draw_ceremonies.COLUMNS, id="ceremony-list")
        self._facts = Page(id="ceremony-facts")
        self._runs = Grid(draw_ceremonies.RUN_COLUMNS, id="runs", classes="framed", hold=False)
        yield self._list
        with Horizontal(id="ceremony"):
            yield self._facts
            yield self._runs

    @property
    def main(self) -> Grid:
        """The ceremonies."""
        return self._list

    def draw(self, view: View) -> None:
        """Show the view."""
        rows = [row for row in view.ceremonies if self.query_now.matches(draw_ceremonies.fields(row))]
        self._shown = len(rows)
        shown = RowList([draw_ceremonies.row(row, view.now) for row in rows])
        self._list.show(shown, empty=draw_ceremonies.empty(view))
        self.current = row = view.ceremony(self._list.key or "")
        self._runs.entitle(line("Runs"), line(muted("newest first")))
        if row is None:
            self._facts.entitle(line("Ceremony"))
            self._facts.show([])
            self._runs.show(RowList())
            return
        self._facts.entitle(draw_ceremonies.title(row))
        self._facts.show(draw_ceremonies.facts(row, view.now, max(20, self._facts.inner_width)))
        runs = RowList([draw_ceremonies.run_row(run, view.now) for run in row.runs])
        self._runs.show(runs, empty=[line(muted("It has not run while this screen watched."))])

    def run_task(self, run_id: str) -> str | None:
        """The first task of a run."""
        runs = self.current.runs if self.current else ()
        return next((run.children[0] for run in runs if run.run_id == run_id and run.children), None)

    def status(self, view: View) -> str:
        """How many are on."""
        return draw_ceremonies.summary(getattr(self, "_shown", 0), view)

    def opened(self, grid: Grid, key: str) -> None:
        """To the runs."""
        if grid is self._list:
            self.add_class("-opened")
            self._runs.focus()

    def back(self) -> bool:
        """Back to the list."""
        opened = self.has_class("-opened")
        self.remove_class("-opened")
        self._list.focus()
        return opened
