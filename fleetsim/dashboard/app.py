"""The dashboard: it takes events from a feed, draws the view a few times a second, and hands intents to Controls.

It calls no room and keeps no facts of its own: what is on the screen is a function of the events.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import ClassVar, cast

from textual import events, geometry
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Input
from textual.worker import Worker, WorkerState

from fleetsim.dashboard import chrome
from fleetsim.dashboard.actions import FAILED_S, SAID_S, WRITING, Actions
from fleetsim.dashboard.chrome import Link, LinkState, Pane, Size
from fleetsim.dashboard.controls import Controls
from fleetsim.dashboard.dialogs import HelpScreen, help_lines
from fleetsim.dashboard.feed import EventFeed
from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.panes.ceremonies import CeremoniesPane
from fleetsim.dashboard.panes.events import EventsPane
from fleetsim.dashboard.panes.fleet import AgentPane, FleetPane
from fleetsim.dashboard.panes.inbox import InboxPane
from fleetsim.dashboard.panes.tasks import TasksPane
from fleetsim.dashboard.text import Line, fitted, line, muted, strong
from fleetsim.dashboard.theme import CSS, THEMES
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.dashboard.widgets import Grid, Lines
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Clock

log = logging.getLogger(__name__)

DRAWS_PER_S = 8
NOTE_S = 20.0


class FleetApp(Actions):
    """The screens over one feed.

    ``controls`` carries out what a person asks for; with ``read_only`` nothing of it is offered. ``note`` is
    said at the start, and stands beside the tabs while there is room and nothing more urgent to say there.
    """

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "pane('fleet')", "fleet", id="pane.fleet"),
        Binding("2", "pane('tasks')", "tasks", id="pane.tasks"),
        Binding("3", "pane('inbox')", "inbox", id="pane.inbox"),
        Binding("4", "pane('ceremonies')", "ceremonies", id="pane.ceremonies"),
        Binding("5", "pane('events')", "events", id="pane.events"),
        Binding("escape", "back", "back", id="back"),
        Binding("slash", "filter", "filter", id="filter"),
        Binding("question_mark,f1", "help", "help", id="help"),
        Binding("r", "reply", "reply", id="reply"),
        Binding("x", "cancel", "cancel", id="cancel"),
        Binding("F", "fire", "fire now", id="fire"),
        Binding("R", "refresh_card", "refresh card", id="refresh"),
        Binding("ctrl+s", "send_answer", "send", id="send", show=False),
        Binding("ctrl+r", "reject", "reject", id="reject", show=False),
        Binding("f", "follow", "follow", id="follow"),
        Binding("l", "levels", "levels", id="levels"),
        Binding("t", "tasks", "its tasks", id="tasks"),
        Binding("y", "copy", "copy id", id="copy"),
        Binding("ctrl+t", "theme", "theme", id="theme"),
        Binding("q,ctrl+c", "quit", "quit", id="quit"),
    ]

    def __init__(
        self,
        feed: EventFeed,
        controls: Controls,
        *,
        clock: Clock,
        title: str,
        note: str = "",
        ascii: bool = False,
        read_only: bool = False,
    ) -> None:
        super().__init__(controls)
        self._feed = feed
        self._clock = clock
        self._fleet_name = one_line(title, 60)
        self._standing_note = one_line(note, 200)
        self.ascii_only = ascii
        self._read_only = read_only
        self._builder = ViewBuilder()
        self._link = Link(LinkState.WAITING, clock.now())
        self._view = View(now=clock.now())
        self._drawn: object = None
        self.draws = 0
        self._said: tuple[Line, datetime | None] = ((), None)
        self._waiting: set[str] = set()
        self._waiting_known = False
        self._fitted = False
        self._lost = 0
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    def compose(self) -> ComposeResult:
        """Header, tabs, the screens, filter, status and keys."""
        self._header, self._tabs = Lines(id="header"), Lines(id="tabs")
        self._status, self._keys, self._tiny = Lines(id="status"), Lines(id="keys"), Lines(id="tiny")
        self._panes = {
            "fleet": FleetPane(id="fleet"),
            "tasks": TasksPane(id="tasks"),
            "inbox": InboxPane(id="inbox"),
            "ceremonies": CeremoniesPane(id="ceremonies"),
            "events": EventsPane(id="events"),
            "agent": AgentPane(id="agent"),
        }
        self._filter = Input(id="filter", placeholder="words  key=value|value  level=warn  !word", compact=True)
        self._filter.cursor_blink = False
        self._body = ContentSwitcher(*self._panes.values(), initial="fleet", id="body")
        for pane in self._panes.values():
            pane.whole = self._whole
        yield self._header
        yield self._tabs
        yield self._body
        yield self._filter
        yield self._status
        yield self._keys
        yield self._tiny

    def on_mount(self) -> None:
        """Start to listen and to draw."""
        self._fitted = True
        self.screen.set_class(self.ascii_only, "-ascii")
        self._fit(self.size)
        self.pane.main.focus()
        self.run_worker(self._listen(), name="feed", exit_on_error=False)
        self.set_interval(1 / DRAWS_PER_S, self._tick, name="draw")
        if self._standing_note:
            self.say(self._standing_note, seconds=NOTE_S)
        self.call_after_refresh(self.draw)

    async def _listen(self) -> None:
        """Fold what the feed brings, until it ends or breaks."""
        try:
            async for batch in self._feed:
                state = LinkState.LIVE if self._feed.live else LinkState.REPLAY
                if self._link.state is not state:
                    self._link = Link(state, self._clock.now())
                if self._feed.dropped > self._lost:
                    self._lost = self._feed.dropped
                    self._builder.lost_events()
                self._builder.fold_all(batch)
        except (FleetsimError, OSError) as error:
            self._link = Link(LinkState.LOST, self._clock.now(), one_line(str(error)))
            return
        self._link = Link(LinkState.LOST if self._feed.live else LinkState.ENDED, self._clock.now(), "the feed ended")

    # Drawing

    @property
    def pane(self) -> PaneBase:
        """The screen that is open."""
        return self._panes[self._body.current or "fleet"]

    @property
    def view(self) -> View:
        """What was drawn last."""
        return self._view

    def _now(self) -> datetime:
        """The clock's time; a recording brings its own."""
        if self._feed.live:
            return self._clock.now()
        return self._builder.last_at or self._clock.now()

    def _tick(self) -> None:
        """Draw, if an event came or a second passed."""
        state = (self._builder.version, int(self._now().timestamp()), self._link)
        if state != self._drawn:
            self.draw()

    def draw(self) -> None:
        """Draw the screen that is open from the newest view."""
        now, pane = self._now(), self.pane
        self._drawn = (self._builder.version, int(now.timestamp()), self._link)
        self._view = view = self._builder.snapshot(now, pane.wants())
        self.draws += 1
        self._announce(view)
        width = self.size.width
        self._header.show([chrome.header(view, self._link, self._fleet_name, width)])
        self._tabs.show([chrome.tabs(pane.PANE, view, width, self._note(view))])
        self._draw_pane(pane, view)
        self._status.show([self._status_line(view)])
        keys = [(key, word) for key, word in pane.KEYS if not (self._read_only and key in {"r", "x", "F", "R"})]
        self._keys.show([chrome.footer(keys, width)])

    def _draw_pane(self, pane: PaneBase, view: View) -> None:
        try:
            pane.draw(view)
            if set(pane.wants()) - set(view.details):
                self._view = self._builder.snapshot(view.now, pane.wants())
                pane.draw(self._view)
            if pane.lacks is not None:
                self.fetch(pane.lacks)
        except Exception as error:
            log.exception("the %s screen failed", pane.id)
            what = f"this screen failed ({type(error).__name__}); the others go on, the log has the rest"
            self.say(what, Tone.BAD, FAILED_S)
        if isinstance(pane, InboxPane) and pane.overtaken is not None:
            settled, pane.overtaken = pane.overtaken, None
            by = f" by {settled.by}" if settled.by else ""
            self.say(f"{settled.decision or 'settled'}{by} meanwhile; what you typed was not sent", Tone.WARN, FAILED_S)

    def _announce(self, view: View) -> None:
        """Say it when an agent begins to wait for a person, wherever one is looking."""
        waiting = {row.question_id: row.agent for row in view.questions}
        fresh = [agent for key, agent in waiting.items() if key not in self._waiting]
        if fresh and self._waiting_known and self.pane.PANE is not Pane.INBOX:
            more = f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""
            self.say(f"{fresh[0]} asks you something{more}: 3 opens the inbox", Tone.ACCENT)
        self._waiting, self._waiting_known = set(waiting), self._link.state is LinkState.LIVE

    def _note(self, view: View) -> str:
        if self._link.state is LinkState.LOST:
            return "as of " + f"{view.last_at or view.now:%H:%M:%SZ}"
        return "read only" if self._read_only else self._standing_note

    def _status_line(self, view: View) -> Line:
        said, until = self._said
        if until is not None and self._clock.now() < until:
            return said
        if self._link.state is LinkState.LOST:
            return line((f" ! no more events: {self._link.why}. What you see is old.", Tone.BAD))
        if view.config_error:
            return line((f" ! {view.config_error}", Tone.BAD), muted("  Using the version loaded before."))
        pane = self.pane
        pieces = [line(strong(pane.PANE.value.capitalize()))]
        if pane.filter_text:
            pieces.append(line(muted("filter "), (pane.filter_text, Tone.ACCENT), muted("  esc clears")))
        if self._feed.dropped:
            pieces.append(line((f"{self._feed.dropped:,} events dropped", Tone.WARN)))
        pieces += [line(muted(piece)) for piece in pane.status(view).split("   ")]
        return (*line(" "), *fitted(pieces, self.size.width - 2, gap=3))

    def say(self, words: str, role: Tone = Tone.PLAIN, seconds: float = SAID_S) -> None:
        """Show a message in the status line for a while."""
        glyph = {Tone.BAD: "✗ ", Tone.GOOD: "✓ ", Tone.WARN: "! ", Tone.ACCENT: "? "}.get(role, "")
        self._said = line((f" {glyph}{one_line(words, 300)}", role)), self._clock.now() + timedelta(seconds=seconds)
        self._status.show([self._said[0]])

    def _fit(self, size: geometry.Size) -> None:
        """Tell the screens how much room there is."""
        width, height = size
        room = chrome.size_of(width, height)
        for one in Size:
            self.screen.set_class(room is one, f"-{one.value}")
        self.screen.set_class(height < 20, "-short")
        for pane in self._panes.values():
            pane.room = room
        self._tiny.show(chrome.too_small(width, height))

    def on_resize(self, event: events.Resize) -> None:
        """Fit into the new size."""
        if self._fitted:
            self._fit(event.size)
            self.call_after_refresh(self.draw)

    # Moving about

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing that changes the fleet is offered to a reader."""
        return not (self._read_only and action in WRITING)

    def show_pane(self, name: str) -> None:
        """Open a screen; its table has the focus, never a text field."""
        self._close_filter()
        self._body.current = name
        self.pane.main.focus()
        self.call_after_refresh(self.draw)

    def action_pane(self, name: str) -> None:
        """Open one of the five."""
        self.show_pane(name)

    def on_click(self, event: events.Click) -> None:
        """A tab was clicked."""
        if event.widget is self._tabs and event.y == 0:
            pane = chrome.tab_at(self.pane.PANE, self._view, self.size.width, event.x)
            if pane is not None:
                self.show_pane(pane.value)

    def on_grid_moved(self, message: Grid.Moved) -> None:
        """What hangs on the cursor follows it at once."""
        self.draw()

    def on_grid_opened(self, message: Grid.Opened) -> None:
        """A row was opened: go in."""
        key, pane = message.key or "", self.pane
        if message.grid.id == "agents":
            cast(AgentPane, self._panes["agent"]).agent = key
            self.show_pane("agent")
        elif message.grid.id == "recent":
            self._open_task(key)
        elif message.grid.id == "runs" and isinstance(pane, CeremoniesPane):
            if task := pane.run_task(key):
                self._open_task(task)
        else:
            pane.opened(message.grid, key)
            self.call_after_refresh(self.draw)

    def _open_task(self, correlation_id: str) -> None:
        pane = self._panes["tasks"]
        pane.filter_by("")
        pane.main.select(correlation_id)
        self.show_pane("tasks")

    def action_tasks(self) -> None:
        """The tasks of the agent, or the task of the event, under the cursor."""
        pane = self.pane
        if isinstance(pane, FleetPane | AgentPane) and (agent := pane.copyable()):
            self._panes["tasks"].filter_by(f"agent={agent}")
            self.show_pane("tasks")
        elif isinstance(pane, EventsPane) and (task := pane.chosen_task()):
            self._open_task(task)

    async def action_back(self) -> None:
        """Out of what was opened, else drop the filter. Never quits."""
        if self._filter.has_class("-shown"):
            self.pane.filter_by(self._filter_before)
            self._close_filter()
            self.pane.main.focus()
        elif self.pane.id == "agent":
            self.show_pane("fleet")
        elif not self.pane.back() and self.pane.filter_text:
            self.pane.filter_by("")
        self.call_after_refresh(self.draw)

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen(help_lines(self.pane.KEYS, self.pane.PANE.value)))

    def action_theme(self) -> None:
        """The next theme."""
        names = [theme.name for theme in THEMES]
        at = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(at + 1) % len(names)]

    def action_copy(self) -> None:
        """Put the id under the cursor on the clipboard."""
        if found := self.pane.copyable():
            self.copy_to_clipboard(one_line(found, 300))
            self.say(f"copied {one_line(found, 80)}")

    def action_follow(self) -> None:
        """Follow, or stop."""
        if isinstance(pane := self.pane, TasksPane | EventsPane):
            self.say("following" if pane.follow() else "not following")
            self.draw()

    def action_levels(self) -> None:
        """All levels, or info and above."""
        if isinstance(pane := self.pane, EventsPane):
            pane.levels()
            self.draw()

    # The filter

    _filter_before = ""

    def action_filter(self) -> None:
        """Type a filter for this screen."""
        self._filter_before = self.pane.filter_text
        self._filter.value = self._filter_before
        self._filter.add_class("-shown")
        self._filter.focus()

    def _close_filter(self) -> None:
        self._filter.remove_class("-shown")

    def on_input_changed(self, message: Input.Changed) -> None:
        """The list follows while a filter is typed."""
        if self._filter.has_class("-shown"):
            self.pane.filter_by(message.value)
            self.draw()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """The filter stays; the table has the focus again."""
        self._close_filter()
        self.pane.main.focus()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Whatever goes wrong in the background is said, not lost."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            log.error("worker %s failed", event.worker.name, exc_info=event.worker.error)
            self.say(f"{event.worker.name}: {type(event.worker.error).__name__}", Tone.BAD, FAILED_S)
            if event.worker.name == "feed":
                self._link = Link(LinkState.LOST, self._clock.now(), type(event.worker.error).__name__)
