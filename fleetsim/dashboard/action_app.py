"""The app's side of the table of actions: keys, palette, ``:`` line, and the settings of the person."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from inspect import isawaitable

from textual import events
from textual.app import App, SystemCommand
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.screen import Screen

from fleetsim.api.answers import AccessRole
from fleetsim.dashboard.actions import LIST, RECORDING, SEND, WIRE, Action, for_recording, key_name
from fleetsim.dashboard.chrome import ColumnsScreen, JumpScreen
from fleetsim.dashboard.command_line import CommandLine, resolve
from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.screens.pane import Pane
from fleetsim.dashboard.settings import Settings
from fleetsim.dashboard.theme import AsciiFormatter
from fleetsim.dashboard.view import View
from fleetsim.dashboard.widgets import NeutralisedWidget

STEPS = 24
"""``[`` and ``]`` move by this fraction of a recording."""
HELD_S = 2.0
"""A key does not hold the later ones for longer than this."""


class ActionApp(App[None], inherit_bindings=False):
    """An app whose actions are the rows of a table; the open screen decides which of them there are."""

    ENABLE_COMMAND_PALETTE = False  # the table has the key of the palette
    view: View
    role: AccessRole
    """The role of the key with which the dashboard acts; an agent's key has all actions, for its own requests."""

    def __init__(self, settings: Settings, *, playback: Playback | None, ascii: bool, read_only: bool) -> None:
        super().__init__()
        self.settings = settings
        self.playback = playback
        self.ascii_only = ascii
        self.set_class(ascii, "-ascii")
        self.read_only = read_only
        self.command_line = CommandLine(self.completions)
        self._typed: deque[events.Key | events.Paste] = deque()
        actions = settings.actions if playback is None else for_recording(settings.actions)
        self._actions = {action.id: action for action in actions}
        for action in self._actions.values():
            if LIST not in action.on and action.keys:
                self.bind(action.keys, f"act('{action.id}')", description=action.label, show=False)
        self.set_keymap({action.id: action.keys for action in self._actions.values() if action.keys})
        for theme in settings.themes:
            self.register_theme(theme)
        self.theme = settings.theme

    @property
    @abstractmethod
    def pane(self) -> Pane:
        """The open screen."""

    @abstractmethod
    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Show a message in the status line."""

    @abstractmethod
    def draw(self) -> None:
        """Draw the open screen."""

    @abstractmethod
    def draw_soon(self) -> None:
        """Draw after the refresh in progress."""

    async def on_event(self, event: events.Event) -> None:
        """Hold a key until the key before it has acted: it may have opened an input that takes the next keys."""
        if not isinstance(event, (events.Key, events.Paste)) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        first = self._typed[0]
        if first is event:
            await self._pass_on(event)
        elif event.time - first.time > HELD_S:
            await self._next_key(first)

    async def _pass_on(self, event: events.Key | events.Paste) -> None:
        """Forward a key; then pass on the next one.

        A key bubbles from the focused widget to the app, which runs its action. Messages of that action take the same
        way again, and a new screen has its focus when its queue is empty. A callback follows all of them.
        """
        target: DOMNode = self.focused or self.screen
        await super().on_event(event)

        def follow(nodes: Iterator[DOMNode]) -> None:
            if not any(node.call_later(follow, nodes) for node in nodes):
                self.screen.call_later(self.call_later, self._next_key, event)

        follow(iter(2 * list(target.ancestors_with_self)))

    async def _next_key(self, event: events.Key | events.Paste) -> None:
        if self._typed and self._typed[0] is event:
            self._typed.popleft()
            if self._typed:
                await self._pass_on(self._typed[0])

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *([AsciiFormatter()] if self.ascii_only else [])]

    def fits(self, action: Action) -> bool:
        """Whether the open screen has the action."""
        if RECORDING in action.on:
            return self.playback is not None
        return not action.on or LIST in action.on or not {self.pane.id, self.screen.name}.isdisjoint(action.on)

    def refuses(self, action: Action) -> str:
        """Why this screen does not run an action; empty if it does."""
        if action.outside and self.is_web:
            return "open the dashboard in a terminal for it"
        if action.role and self.read_only:
            return "this screen is read only"
        least = action.role or AccessRole.VIEWER
        return (
            "" if self.role.includes(least) else f"it needs the key of {least.or_above}, and yours is {self.role.one}'s"
        )

    def key(self, action_id: str) -> str:
        """The first key of an action, for a hint; empty if this screen refuses the action or the action has no key."""
        action = self._actions[action_id]
        return key_name(action.key_list[0]) if action.key_list and not self.refuses(action) else ""

    def may(self, action_id: str) -> bool:
        """Whether this screen runs an action."""
        return not self.refuses(self._actions[action_id])

    def actions_here(self) -> list[Action]:
        """The actions of the open screen, without those that it refuses."""
        return [one for one in self._actions.values() if self.fits(one) and not self.refuses(one)]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key belongs to the action of the open screen."""
        return action != "act" or self.fits(self._actions[str(parameters[0])])

    async def action_act(self, action_id: str, *words: str) -> None:
        """Run an action of the table; a key, a click, the ``:`` line and the palette come here."""
        action = self._actions[action_id]
        if why := self.refuses(action):
            self.say(f"“{action.label}” is not available: {why}", Tone.WARN)
            return
        if action.takes and not action.keys and not words:
            self.command_line.open(f"{action.id} ")
            return
        focused = self.focused if isinstance(self.focused, NeutralisedWidget) else None
        dialog = self.screen if self.screen.name in {WIRE, SEND} else None
        method = next(
            (
                found
                for node in (focused, dialog, self.pane, self.pane.main, self)
                if (found := getattr(node, action.method, None))
            ),
            None,
        )
        if method is not None and isawaitable(done := method(*action.arguments, *words)):
            await done

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The actions of the open screen, for the palette."""
        for one in self.actions_here():
            if LIST not in one.on:
                yield SystemCommand(one.label, f"{one.shown_keys}  {one.help}", partial(self.action_act, one.id))

    def action_palette(self) -> None:
        self.push_screen(CommandPalette())

    def ask(self, title: str, what: str, then: Callable[[str], None], value: str = "") -> None:
        """Ask for a moment, and go on with the text unless the person closes the dialog."""
        self.push_screen(JumpScreen(title, what, value), lambda text: then(text) if text else None)

    def action_theme(self, name: str = "") -> None:
        """Take the named theme, or the next one."""
        names = self._theme_names()
        at = names.index(self.theme) if self.theme in names else -1
        named = [one for one in names if one.endswith(name)] if name else [names[(at + 1) % len(names)]]
        if named:
            self.theme = self.settings.theme = named[0]
            self._save()
        else:
            self.say(f"no theme “{name}”: {', '.join(names)}", Tone.WARN)

    def _theme_names(self) -> list[str]:
        return [theme.name for theme in self.settings.themes]

    def _save(self) -> None:
        if self.is_web:  # a viewer's choices are not those of the person who started the dashboard
            return
        try:
            self.settings.save()
        except OSError as error:
            self.say(f"the choice is not kept: {error.strerror}", Tone.WARN)

    def action_columns(self) -> None:
        grid = self.pane.main

        def choose(hidden: list[str] | None) -> None:
            grid.hidden = self.settings.hidden[grid.id or ""] = hidden or []
            self._save()
            self.draw()

        self.push_screen(ColumnsScreen([one.name for one in grid.columns], grid.hidden), choose)

    # The actions of a recording

    def action_pause(self) -> None:
        if playback := self.playback:
            playback.pause()
            self.draw_soon()

    def action_speed(self, by: str) -> None:
        if playback := self.playback:
            playback.change_speed(int(by))
            self.draw_soon()

    def action_step(self, by: str) -> None:
        """Move one step back or forward in the run."""
        if playback := self.playback:
            length_s = playback.duration_s or max(60.0, playback.at_s)
            playback.jump(playback.at_s + int(by) * length_s / STEPS)

    def action_jump(self, text: str = "") -> None:
        if not text:
            what = "the first such time of day in UTC, or a duration since the start"
            self.ask("Jump to a moment of the run", what, self.action_jump)
        elif (playback := self.playback) and (to_s := playback.second_of(text)) is not None:
            playback.jump(to_s)
        else:
            self.say(f"“{text}” is not a moment of the run: 14:00, 2h30m, start or end", Tone.WARN)

    # The command line

    def action_command(self) -> None:
        self.command_line.open()

    def completions(self) -> list[str]:
        """The lines that may be typed: the actions of the screen with the words that are known."""
        words = {
            "agent": [agent.name for agent in self.view.agents],
            "theme": self._theme_names(),
            "sort": [column.name for column in self.pane.main.columns if column.by],
        }
        here = self.actions_here()
        return [*(one.id for one in here), *(f"{one.id} {word}" for one in here for word in words.get(one.id, ()))]

    async def run_command(self, text: str) -> None:
        self.screen.set_focus(self.pane.main)
        if not text.strip():
            return
        try:
            action, words = resolve(text, [one for one in self._actions.values() if self.fits(one)])
        except ValueError as error:
            self.say(str(error), Tone.WARN)
            return
        await self.action_act(action.id, *([words] if words else []))
