"""The dashboard reads events from a feed, draws the view a few times a second, and passes a person's actions to
Controls.

The screen is a function of the events: the dashboard calls no other part of fleetsim and stores no facts of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from rich.text import Text
from textual import events, geometry
from textual.app import ComposeResult
from textual.widgets import ContentSwitcher, Input, TextArea
from textual.worker import Worker, WorkerState

from fleetsim.api.answers import AccessRole
from fleetsim.dashboard import chrome
from fleetsim.dashboard.action_app import ActionApp
from fleetsim.dashboard.actions import LIST, SCREENS, SEND, character_of
from fleetsim.dashboard.chrome import ConfirmScreen, HelpScreen, Link, LinkState, ScreenName, Size
from fleetsim.dashboard.controls import Controls, TypedRequest, WholeText
from fleetsim.dashboard.feed import EventFeed
from fleetsim.dashboard.labels import MUTED, STRONG, Tone, plural
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.screens.agent import AgentPane
from fleetsim.dashboard.screens.inbox import DRAFTS_MAX
from fleetsim.dashboard.screens.pane import FAILED_S, Pane
from fleetsim.dashboard.send_screen import SendScreen
from fleetsim.dashboard.settings import Settings
from fleetsim.dashboard.text import BLANK, fitted, line
from fleetsim.dashboard.theme import Palette
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.dashboard.view_fleet import AgentRow
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.dashboard.visits import Visit, Visits
from fleetsim.dashboard.widgets import Grid, Lines
from fleetsim.events.fleet import StateRead
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.masking import masked
from fleetsim.model.optional import load
from fleetsim.model.text import neutralise, one_line
from fleetsim.runtime.ports import Clock

log = logging.getLogger(__name__)

DRAWS_PER_S = 4
SAID_S = 8.0
NOTE_S = 20.0
"""Seconds that a message, and the note at the start, stay in the status line."""
SENT_MAX = 20
WHOLE_MAX = 4
"""The newest whole texts stay in memory."""


def _log_file() -> str:
    """The file that holds the log while the screen is drawn; empty if there is none."""
    handlers = logging.getLogger().handlers
    return next((one.baseFilename for one in handlers if isinstance(one, logging.FileHandler)), "")


class FleetApp(ActionApp):
    """The screens over one feed. With a recording (a ``Playback``) the scenario's screen opens first.

    ``controls`` carries out a person's actions; ``read_only`` hides them all, ``role`` those that the person's key does
    not allow. ``note`` appears in the status line at
    the start, and beside the tabs while there is room for it. ``stops`` describes what quitting means for open
    requests; with it, quitting needs a confirmation while there are any.
    """

    CSS_PATH = "styles.tcss"

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
        role: AccessRole = AccessRole.OWNER,
        settings: Settings | None = None,
        stops: str = "",
    ) -> None:
        playback = feed if isinstance(feed, Playback) else None
        super().__init__(settings or Settings(), playback=playback, ascii=ascii, read_only=read_only)
        self.role = role
        self._feed = feed
        self._restarts = 0
        self.controls = controls
        self._clock = clock
        self.stops = stops
        self._fleet_name = one_line(title, 60)
        self._standing_note = one_line(note, 200)
        self._missing: dict[str, ConfigError] = {}
        self._screens = self._load_screens()
        self._builder = self._new_builder()
        self.link = Link(LinkState.WAITING, clock.now())
        self._listening = True
        self.view = View(now=self._now())
        self._drawn: object = None
        self.draws = 0
        self._message: tuple[Text, datetime | None] = (BLANK, None)
        self._waiting: set[str] = set()
        self._waiting_known = False
        self._failed: dict[str, str] = {}
        self._draws_soon = False
        self._filter_before = ""
        self._under_way: set[str] = set()
        self._drafts: dict[str, TypedRequest] = {}
        """Requests that were typed and not sent, by agent."""
        self._sent: list[TypedRequest] = []
        """The newest requests that were sent, oldest first, without secrets. They leave no file."""
        self._visits = Visits()
        self._whole: dict[tuple[str, int], WholeText | None] = {}
        self._palettes: dict[str, Palette] = {}

    def _load_screens(self) -> dict[str, type[Pane]]:
        """The class of each screen. A recording has one more screen, if the simulator is installed."""
        screens: dict[str, type[Pane]] = {}
        for name, place in SCREENS.items():
            if name == ScreenName.SCENARIO and self.playback is None:
                continue
            try:
                screens[name] = load(place)
            except ConfigError as error:
                self._missing[name] = error
        return screens

    def _new_builder(self) -> ViewBuilder:
        return ViewBuilder(next((screen.FOLD() for screen in self._screens.values() if screen.FOLD), None))

    def _now(self) -> datetime:
        """The moment on the screens: the present, or the moment of the recording that plays."""
        return self._clock.now() if self.playback is None else self.playback.now

    @property
    def palette(self) -> Palette:
        if self.theme not in self._palettes:
            self._palettes[self.theme] = Palette(self.theme_variables)
        return self._palettes[self.theme]

    def compose(self) -> ComposeResult:
        self._header, self._tabs = Lines(id="header"), Lines(id="tabs")
        self._broken = Lines(id="broken", classes="-bare")
        self._status, self._keys, self._tiny = Lines(id="status"), Lines(id="keys"), Lines(id="tiny")
        self.panes = {name: screen(id=name) for name, screen in self._screens.items()}
        self._filter = Input(
            id="filter", placeholder="words  key=value|value  level=warn  ~fuzzy  /regex/  !word", compact=True
        )
        self._filter.cursor_blink = False
        self.body = ContentSwitcher(
            *self.panes.values(), initial="scenario" if "scenario" in self.panes else "fleet", id="body"
        )
        yield from (self._header, self._tabs, self._broken, self.body, self._filter, self.command_line)
        yield from (self._status, self._keys, self._tiny)

    def on_mount(self) -> None:
        if not all(pane.children for pane in self.panes.values()):
            return  # a signal ended the app before its screens were made
        self._fit(self.size)
        for pane in self.panes.values():
            pane.main.hidden = self.settings.hidden.get(pane.main.id or "", ())
        self.pane.main.focus()
        self.run_worker(self._listen(), name="feed", exit_on_error=False)
        self.set_interval(1 / DRAWS_PER_S, self.tick, name="draw")
        if self._standing_note:
            self.say(self._standing_note, seconds=NOTE_S)
        self.draw_soon()

    async def _listen(self) -> None:
        """Fold events from the feed until it ends or fails."""
        try:
            async for batch in self._feed:
                if self.link.state is not LinkState.LIVE:
                    self.link = Link(LinkState.LIVE, self._clock.now())
                if self._feed.restarts != self._restarts:
                    self._restarts, self._builder = self._feed.restarts, self._new_builder()
                    self._begin_anew()
                self._builder.fold_all(batch)
                if any(isinstance(event, StateRead) and event.whole for event in batch):
                    self._begin_anew()
        except (FleetsimError, OSError) as error:
            self.link = Link(LinkState.LOST, self._clock.now(), one_line(str(error)))
        else:
            self.link = Link(LinkState.LOST, self._clock.now(), "the feed ended")
        finally:
            self._listening = False

    def _begin_anew(self) -> None:
        """The recording plays from its start again, or the hub's state was read again."""
        for pane in self.panes.values():
            pane.begin_anew()

    # Drawing

    @property
    def pane(self) -> Pane:
        return self.panes[self.body.current or "fleet"]

    def tick(self) -> None:
        """Draw if an event arrived, the connection changed, or a second passed."""
        state, why = LinkState.STALE if self._feed.lost else LinkState.LIVE, one_line(self._feed.lost)
        if self._listening and self.link.state is LinkState.WAITING:
            self.link = replace(self.link, why=why)
        elif self._listening and self.link.state is not state:
            self.link = Link(state, self._clock.now(), why)
        if self._about() != self._drawn:
            self.draw()

    def _about(self) -> object:
        """Everything that a drawing depends on, to the second."""
        p = self.playback
        played = (p.still, p.written, p.paused, p.speed, self._restarts) if p is not None else ()
        return self._builder.version, int(self._now().timestamp()), self.link, played

    def draw_soon(self) -> None:
        """Draw after the refresh in progress."""
        if not self._draws_soon:
            self._draws_soon = self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw the open screen from the newest view. A part that fails has a mark until it can be drawn again."""
        now, pane, width, self._draws_soon = self._now(), self.pane, self.size.width, False
        if not pane.is_attached:
            return  # while the dashboard closes, its screens end before its timers
        self._drawn = self._about()
        self.view = view = self._builder.snapshot(now, exact=self.playback is not None and self.playback.still)
        self.draws += 1
        if self.playback is None:
            self._announce(view)
        note = "read only" if self.read_only else self._standing_note
        if self.link.old:
            note = f"as of {view.last_at or view.now:%H:%M:%SZ}"
        self.body.set_class(self.link.old, "-old")
        state = self._state_line(view)
        parts: dict[str, Callable[[], object]] = {
            "header": lambda: self._header.show([chrome.header(view, state, self._fleet_name, width)]),
            "tabs": lambda: self._tabs.show([chrome.tabs(pane.NAME, view, width, note)]),
            pane.id or "": lambda: pane.draw(view),
            "status": lambda: self._status.show([self._status_line(view)]),
        }
        for part, show in parts.items():
            try:
                show()
            except Exception as error:
                why = f"{part} cannot be drawn ({type(error).__name__})"
                if self._failed.get(part) != why:
                    log.exception("the %s cannot be drawn", part)
                self._failed[part] = why
            else:
                self._failed.pop(part, None)
        failed = [*(why for part, why in self._failed.items() if part in parts), *view.faults]
        if failed or self._broken.lines:
            self._broken.show(chrome.failures(failed, _log_file(), width))
            self._broken.set_class(not failed, "-bare")
        if pane.screen.focused is None:  # the terminal was too small to focus a list
            pane.screen.set_focus(pane.main)

    def _state_line(self, view: View) -> Text:
        if self.playback is None or self.link.old:
            stopping = view.stopping and not view.hubs  # the event may be that of another hub
            return chrome.link_line(self.link, self._clock.now(), stopping=stopping)
        return chrome.playback_line(self.playback)

    def _announce(self, view: View) -> None:
        """Show a message on every screen when an agent begins to wait for a person."""
        fresh = [row.agent for row in view.questions if row.question_id not in self._waiting]
        if fresh and self._waiting_known and self.pane.NAME is not ScreenName.INBOX:
            more = f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""
            self.say(f"{fresh[0]} asks you something{more}: 3 opens the inbox", Tone.ACCENT)
        self._waiting = {row.question_id for row in view.questions}
        self._waiting_known = self.link.state is LinkState.LIVE

    def _status_line(self, view: View) -> Text:
        if self.command_line.has_class("-shown"):
            typed = [one for one in self.completions() if one.startswith(self.command_line.value)]
            return line(" ", fitted([line((one, MUTED)) for one in typed], self.size.width - 2))
        message, until = self._message
        if until is not None and self._clock.now() < until:
            return message
        if old := chrome.status_of(self.link):
            return old
        if view.storage:
            return line((f" ! No request is accepted: {view.storage}", Tone.BAD))
        if view.config_error:
            return line((f" ! {view.config_error}", Tone.BAD), ("  The version before it stays in force.", MUTED))
        pane = self.pane
        pieces = [line((pane.NAME.capitalize(), STRONG))]
        if pane.filter_text:
            pieces.append(line(("filter ", MUTED), (pane.filter_text, Tone.ACCENT), ("  esc clears", MUTED)))
        if pane.query_now.error:
            pieces.append(line((pane.query_now.error, Tone.WARN)))
        if pane.problems:
            pieces.append(line(("problems only", Tone.WARN), ("  Z shows all", MUTED)))
        if marked := pane.main.marked:
            pieces.append(line((f"{len(marked)} marked", Tone.ACCENT), ("  u clears", MUTED)))
        if pane.main.order is not None:
            pieces.append(line(("sort ", MUTED), f"{pane.main.order.name} {'▼' if pane.main.order.reverse else '▲'}"))
        if view.began_at is not None:  # else its figures are not known yet
            pieces += [line((piece, MUTED)) for piece in pane.status(view).split("   ")]
        return line(" ", fitted(pieces, self.size.width - 2, gap=3))

    def say(self, text: str, tone: Tone = Tone.PLAIN, seconds: float = SAID_S) -> None:
        """Show a message in the status line for a while."""
        glyph = {Tone.BAD: "✗ ", Tone.GOOD: "✓ ", Tone.WARN: "! ", Tone.ACCENT: "? "}.get(tone, "")
        self._message = line((f" {glyph}{one_line(text, 300)}", tone)), self._clock.now() + timedelta(seconds=seconds)
        self._status.show([self._message[0]])

    def _fit(self, size: geometry.Size) -> None:
        size_class = chrome.size_of(*size)
        for one in Size:
            self.screen.set_class(size_class is one, f"-{one.value}")
        self.screen.set_class(size.height < 20, "-short")
        for pane in self.panes.values():
            pane.size_class = size_class
        self._tiny.show(chrome.too_small(*size))
        self._name_keys()

    def _name_keys(self) -> None:
        """Show the keys that act now: a box that is typed into takes the printable ones, and lists take none then."""
        here, box = self.actions_here(), self.focused
        if self.screen.name == SEND:
            here = [one for one in here if SEND in one.on]
        if isinstance(box, (Input, TextArea)):
            typed = {key for one in here for key in one.key_list if box.check_consume_key(key, character_of(key))}
            here = [
                replace(one, keys=",".join(key for key in one.key_list if key not in typed))
                for one in here
                if LIST not in one.on
            ]
        self._keys.show([chrome.footer(here, self.size.width)])

    def on_descendant_focus(self) -> None:
        if self.body.is_attached:
            self._name_keys()

    def on_resize(self, event: events.Resize) -> None:
        if self.body.is_attached:
            self._fit(event.size)
            self.draw_soon()

    # For the screens

    def detail(self, correlation_id: str | None) -> TaskDetail | None:
        return self._builder.detail(correlation_id) if correlation_id else None

    def whole(self, correlation_id: str, chars: int) -> WholeText | None:
        """The whole text of ``chars`` characters; None until it was fetched. Then the screen is drawn again."""
        key = correlation_id, chars
        if key not in self._whole:
            self._whole[key] = None
            self.run_worker(self._fetch(key), name="text", exit_on_error=False)
        return self._whole[key]

    async def _fetch(self, key: tuple[str, int]) -> None:
        try:
            whole = await self.controls.text(key[0])
        except FleetsimError as error:
            self.say(f"only an excerpt of the text is available: {error}", Tone.WARN)
            return
        self._whole[key] = replace(whole, text=neutralise(whole.text, limit=len(whole.text) + 1))
        there = [key for key, text in self._whole.items() if text is not None]
        for old in there[:-WHOLE_MAX]:
            del self._whole[old]
        self.draw()

    def confirm(
        self, title: str, what: Sequence[Text], key: str, failed: str, work: Callable[[], Awaitable[str]]
    ) -> None:
        """As ``do``, after a person confirmed."""
        self.push_screen(ConfirmScreen(title, what), lambda yes: self.do(key, failed, work) if yes else None)

    def do(self, key: str, failed: str, work: Callable[[], Awaitable[str]]) -> None:
        """Run an action in the background and show its result. An action that still runs is not started twice."""
        if key in self._under_way:
            self.say("this action still runs")
            return
        self._under_way.add(key)

        async def carry_out() -> None:
            try:
                self.say(await work(), Tone.GOOD)
            except FleetsimError as error:
                self.say(f"{failed}: {error}" + (f" ({error.hint})" if error.hint else ""), Tone.BAD, FAILED_S)
            finally:
                self._under_way.discard(key)

        self.run_worker(carry_out(), name=failed, exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show an error of a background worker in the status line."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            log.error("worker %s failed", event.worker.name, exc_info=event.worker.error)
            self.say(f"{event.worker.name}: {type(event.worker.error).__name__}", Tone.BAD, FAILED_S)
            if event.worker.name == "feed":
                self.link = Link(LinkState.LOST, self._clock.now(), type(event.worker.error).__name__)

    # Moving about

    def show_screen(self, name: str) -> None:
        """Open a screen with the focus on its table, never on a text field."""
        self._filter.remove_class("-shown")
        self.command_line.remove_class("-shown")
        self.body.current = name
        self.pane.screen.set_focus(self.pane.main)  # at once: the next key may already be in the queue
        self._remember()
        self._name_keys()
        self.draw_soon()

    def _remember(self) -> None:
        agent = cast(AgentPane, self.panes["agent"]).agent
        self._visits.add(Visit(self.pane.id or "", agent, self.pane.filter_text))

    def _return_to(self, visit: Visit | None) -> None:
        if visit is not None:
            cast(AgentPane, self.panes["agent"]).agent = visit.agent
            self.panes[visit.screen].filter_by(visit.filter_text)
            self.show_screen(visit.screen)

    def action_history(self, by: str) -> None:
        """Go through the views in the order in which they were opened."""
        self._return_to(self._visits.go(int(by)))

    def action_previous(self) -> None:
        self._return_to(self._visits.before)

    def show_agent(self, name: str) -> None:
        cast(AgentPane, self.panes["agent"]).agent = name
        self.show_screen("agent")

    def show_tasks(self, filter_text: str) -> None:
        self.panes["tasks"].filter_by(filter_text)
        self.show_screen("tasks")

    def request_form(self, agent: AgentRow, skill: str = "") -> None:
        """Open the form for a request to the agent, with the draft that was left; then show the request's task."""
        draft = self._drafts.pop(agent.name, None) or TypedRequest(agent=agent.name, skill=skill)
        form = SendScreen(draft, agent.card.skills, self._sent, self.controls.send, key=self.key, files=not self.is_web)

        def closed(sent: str | None) -> None:
            self.call_after_refresh(self._name_keys)
            if sent:
                bare = replace(form.draft, text=masked(form.draft.text), data=masked(form.draft.data))
                self._sent = [*(one for one in self._sent if one != bare), bare][-SENT_MAX:]
                self.show_task(sent)
                self.panes["tasks"].opened(self.panes["tasks"].main, sent)
                self.say(f"sent to {agent.name}", Tone.GOOD)
            elif not form.draft.blank:
                self._drafts = dict([*self._drafts.items(), (agent.name, form.draft)][-DRAFTS_MAX:])
                self.say(f"not sent; {self.key('request')} opens your text again", Tone.WARN)

        self.push_screen(form, closed)

    def show_task(self, correlation_id: str) -> None:
        self.panes["tasks"].main.select(correlation_id)
        self.show_tasks("")

    def show_question(self, correlation_id: str | None) -> None:
        inbox = self.panes["inbox"]
        row = next((row for row in self.view.questions if row.correlation_id == correlation_id), None)
        if row is None:
            self.say("this task does not wait for an answer", Tone.WARN)
            return
        inbox.main.select(row.question_id)
        self.show_screen("inbox")
        self.draw()
        inbox.action_reply()

    def on_grid_moved(self, message: Grid.Moved) -> None:
        """Update the details of the row under the cursor at once."""
        self.draw()

    def action_screen(self, name: str, filter_text: str = "") -> None:
        if name in self._missing:
            self.say(f"{self._missing[name]}", Tone.WARN)
            return
        if filter_text:
            self.panes[name].filter_by(filter_text)
        self.show_screen(name)

    def action_hub(self, url: str) -> None:
        async def attach() -> str:
            title, note, self.role = await self.controls.attach(url)
            self._fleet_name, self._standing_note = one_line(title, 60), one_line(note, 200)
            for _ in self.screen_stack[1:]:  # a dialog is about the hub before
                self.screen.dismiss()
            self.link, self._builder = Link(LinkState.WAITING, self._clock.now()), self._new_builder()
            if not self._listening:
                self._listening = True
                self.run_worker(self._listen(), name="feed", exit_on_error=False)
            return f"the hub is now {title}" + f": {note}" * bool(note)

        self.do("hub", "the hub stays the same", attach)

    def action_agent(self, name: str = "") -> None:
        if self.view.agent(name) is None:
            self.say(f"no agent “{name}”", Tone.WARN)
        else:
            self.show_agent(name)

    async def action_back(self) -> None:
        """Close the opened detail, else remove the filter. Never quits."""
        if self._filter.has_class("-shown"):
            self.pane.filter_by(self._filter_before)
            self._close_filter()
        elif self.command_line.has_class("-shown"):
            self.command_line.taken()
            self.pane.main.focus()
        elif not self.pane.back() and self.pane.filter_text:
            self.pane.filter_by("")
        self.draw_soon()

    async def action_quit(self) -> None:
        if not self.stops or not (count := sum(row.open for row in self.view.tasks)):
            self.exit()
            return

        async def leave() -> str:
            self.exit()
            return "the hub stops"

        what = [line("This stops the hub. Open: ", (plural(count, "request"), STRONG)), line((self.stops, MUTED))]
        self.confirm("Quit", what, "quit", "not stopped", leave)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(partial(chrome.help_lines, self.actions_here(), self.pane.NAME)))

    # The filter

    def action_filter(self, text: str = "") -> None:
        if text:
            self.pane.filter_by(text)
            self.draw()
            return
        self._filter.value = self._filter_before = self.pane.filter_text
        self._filter.add_class("-shown")
        self._filter.focus()

    def _close_filter(self) -> None:
        self._filter.remove_class("-shown")
        self.pane.main.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        if message.input is self._filter and self._filter.has_class("-shown"):
            self.pane.filter_by(message.value)
        self.draw()

    async def on_input_submitted(self, message: Input.Submitted) -> None:
        """Run the command, or keep the filter and focus the table."""
        if message.input is self.command_line:
            await self.run_command(self.command_line.taken())
        elif message.input is self._filter:
            self._close_filter()
            self._remember()
