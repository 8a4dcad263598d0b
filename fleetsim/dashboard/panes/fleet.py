"""Screen 1, and the page of one agent."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.dashboard import draw_agent, draw_fleet
from fleetsim.dashboard.chrome import Keys, Pane, Size
from fleetsim.dashboard.labels import since
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.text import LazyRows, RowList, line, muted
from fleetsim.dashboard.view import View
from fleetsim.dashboard.widgets import Grid, Lines, Page


class FleetPane(PaneBase):
    """Agents, worst first, and the newest outcomes."""

    PANE = Pane.FLEET
    KEYS: ClassVar[Keys] = (("↵", "open"), ("/", "filter"), ("R", "refresh card"), ("t", "tasks"), ("y", "copy"))

    def compose(self) -> ComposeResult:
        """Cards, table, notes, outcomes."""
        self._cards = [Lines(classes="card framed") for _ in range(4)]
        self._agents = Grid(draw_fleet.columns((), "4m"), id="agents", hold=False)
        self._notes = Lines(id="notes")
        self._recent = Grid(draw_fleet.OUTCOME_COLUMNS, id="recent", classes="framed", hold=False)
        with Horizontal(id="cards"):
            yield from self._cards
        yield self._agents
        yield self._notes
        yield self._recent

    @property
    def main(self) -> Grid:
        """The agents."""
        return self._agents

    def draw(self, view: View) -> None:
        """Show the view."""
        rows = [row for row in view.agents if self.query_now.matches(draw_fleet.fields(row))]
        self._shown = len(rows)
        if self.room is Size.FULL:
            width = max(10, self._cards[0].inner_width)
            for card, (title, lines) in zip(self._cards, draw_fleet.cards(view, width), strict=True):
                card.entitle(line(title))
                card.show(lines)
        else:
            self._notes.show(draw_fleet.notes(view, max(10, self.size.width), 3 if self.room is Size.COMPACT else 1))
        self._agents.show(
            RowList([draw_fleet.row(row, view.now) for row in rows]),
            columns=draw_fleet.columns(rows, view.counters.span),
            empty=draw_fleet.empty(view),
        )
        self._recent.entitle(line("Recent outcomes"), line(muted("newest first")))
        outcomes = LazyRows(view.recent, lambda task: task.correlation_id, draw_fleet.outcome_row)
        self._recent.show(outcomes, empty=[line(muted("Nothing has ended yet."))])

    def status(self, view: View) -> str:
        """How many are shown."""
        return draw_fleet.summary(getattr(self, "_shown", 0), view)

    def copyable(self) -> str | None:
        """The agent, or the task of the outcome under the cursor."""
        return self._recent.key if self._recent.has_focus else self._agents.key

    def chosen_task(self) -> str | None:
        """The outcome's task."""
        return self._recent.key if self._recent.has_focus else None


class AgentPane(PaneBase):
    """One agent."""

    PANE = Pane.FLEET
    KEYS: ClassVar[Keys] = (("esc", "back"), ("R", "refresh card"), ("t", "tasks"), ("y", "copy"))

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.agent = ""

    def compose(self) -> ComposeResult:
        """Facts and figures above the skills."""
        self._facts = Page(id="agent-facts")
        self._figures = Page(id="agent-figures")
        self._skills = Grid(draw_agent.SKILL_COLUMNS, id="agent-skills", classes="framed")
        with Horizontal(id="agent-top"):
            yield self._facts
            yield self._figures
        yield self._skills

    @property
    def main(self) -> Grid:
        """The skills."""
        return self._skills

    def draw(self, view: View) -> None:
        """Show the view."""
        row = view.agent(self.agent)
        if row is None:
            self._facts.entitle(line(self.agent))
            self._facts.show([line(muted("This agent has left agents.yaml."))])
            self._figures.show([])
            self._skills.show(RowList())
            return
        self._facts.entitle(line(row.name))
        self._facts.show(draw_agent.facts(row, view.now, max(20, self._facts.inner_width)))
        age = since(view.began_at, view.now) if view.began_at else "0s"
        self._figures.entitle(line("24 h"), line(muted(f"hub seen for {age}")))
        self._figures.show(draw_agent.figures(row, view.now, max(20, self._figures.inner_width)))
        self._skills.entitle(line("Skills"))
        skills = RowList([draw_agent.skill_row(skill, view.now) for skill in row.skills])
        self._skills.show(skills, empty=[line(muted("Its card names no skill."))])

    def status(self, view: View) -> str:
        """Which agent."""
        row = view.agent(self.agent)
        return f"{self.agent}   {len(row.skills) if row else 0} skills"

    def copyable(self) -> str | None:
        """The agent's name."""
        return self.agent
