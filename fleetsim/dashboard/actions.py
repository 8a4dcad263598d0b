"""The table of actions. It feeds the keys, the footer, the help, the ``:`` line, the palette, the mouse and the docs.

A new action is a row here and a method ``action_ID`` (``-`` becomes ``_``) of the list, of the screen or of the app.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from textual.binding import Binding
from textual.keys import key_to_character

from fleetsim.api.answers import AccessRole

LIST, RECORDING, WIRE, SEND = "list", "recording", "wire log", "send form"
"""Scopes beside the screens: lists and texts, all screens of a recording, and two dialogs."""
SCREENS: Mapping[str, str] = {
    "fleet": "fleetsim.dashboard.screens.fleet:FleetPane",
    "agent": "fleetsim.dashboard.screens.agent:AgentPane",
    "tasks": "fleetsim.dashboard.screens.tasks:TasksPane",
    "inbox": "fleetsim.dashboard.screens.inbox:InboxPane",
    "ceremonies": "fleetsim.dashboard.screens.ceremonies:CeremoniesPane",
    "events": "fleetsim.dashboard.screens.events:EventsPane",
    "scenario": "fleetsim.sim.screen:ScenarioPane",
}
"""The class of each screen. The last one is for a recording alone, and missing without its package."""
MARKED = ("fleet", "tasks", "inbox", "ceremonies")
FILTERED = ("fleet", "tasks", "inbox", "ceremonies", "events")
LISTS = ("fleet", "agent", "tasks", "inbox", "ceremonies", "events")


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``keys`` are Textual's names of keys; ``on`` has the screens or a scope, and is empty for everywhere.

    ``run`` names another method than ``action_ID``, with its arguments. ``role`` is the least role of a person, as at
    the hub's endpoint, for an action that changes the fleet or leads to a change; a read-only screen refuses it.
    ``footer`` puts it into the footer. ``takes`` names the words after it in the ``:`` line. ``outside`` marks one
    that starts a program or writes a file where the dashboard runs; a browser does not have it.
    """

    id: str
    keys: str
    label: str
    help: str
    on: tuple[str, ...] = ()
    run: str = ""
    role: AccessRole | None = None
    footer: bool = False
    takes: str = ""
    outside: bool = False

    @property
    def method(self) -> str:
        return "action_" + (self.run.split() or [self.id.replace("-", "_")])[0]

    @property
    def arguments(self) -> list[str]:
        return self.run.split()[1:]

    @property
    def key_list(self) -> list[str]:
        return [key for key in self.keys.split(",") if key]

    @property
    def shown_keys(self) -> str:
        return " ".join(key_name(key) for key in self.key_list) or f":{self.id}"

    @property
    def where(self) -> str:
        """The screens in words."""
        words = {(): "everywhere", (LIST,): "lists and texts", (RECORDING,): "over a recording", LISTS: "lists"}
        return words.get(self.on) or ", ".join(self.on)


WRITTEN = {
    "enter": "↵",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "slash": "/",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "question_mark": "?",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "colon": ":",
    "at": "@",
}


def character_of(key: str) -> str | None:
    """The character that a key types; None for a key such as Enter."""
    written = WRITTEN.get(key, "")
    return written if len(written) == 1 and written.isascii() else key_to_character(key)


def key_name(key: str) -> str:
    """A key as people write it: ``/`` for ``slash``."""
    character = key_to_character(key) or ""
    return WRITTEN.get(key) or (character if character.isprintable() and character != " " else "") or key


_OPERATOR, _ANSWERER, _VIEWER = AccessRole.OPERATOR, AccessRole.ANSWERER, AccessRole.VIEWER

ACTIONS = (
    Action("open", "enter", "open", "opens the row under the cursor; a double click does, too", (LIST,), footer=True),
    Action("filter", "slash", "filter", "filters the list while you type", FILTERED, footer=True, takes="words"),
    Action("request", "s", "send", "opens a form for a request to it", ("fleet", "agent"), role=_OPERATOR, footer=True),
    Action("send", "ctrl+s", "send", "sends it, once", ("inbox", SEND), "send_answer", role=_ANSWERER, footer=True),
    Action("earlier", "ctrl+r", "earlier", "fills the form with an earlier request", (SEND,), footer=True),
    Action("reply", "r", "reply", "goes to the question of the task", ("tasks", "inbox"), role=_ANSWERER, footer=True),
    Action(
        "edit", "ctrl+e", "editor", "opens the answer in $VISUAL or $EDITOR", ("inbox",), role=_ANSWERER, outside=True
    ),
    Action(
        "reject",
        "ctrl+r",
        "reject, veto",
        "rejects the question, or vetoes the work, after a confirmation; the task is cancelled",
        ("inbox",),
        role=_ANSWERER,
        footer=True,
    ),
    Action(
        "cancel",
        "x",
        "cancel",
        "cancels the task under the cursor, after a confirmation",
        ("tasks", "inbox", "events", "scenario"),
        role=_OPERATOR,
        footer=True,
    ),
    Action(
        "again", "a", "again", "sends what failed again, after a confirmation", ("tasks",), role=_OPERATOR, footer=True
    ),
    Action("fire", "F", "fire now", "fires it now, after a confirmation", ("ceremonies",), role=_OPERATOR, footer=True),
    Action(
        "refresh-card", "R", "refresh card", "reads its card again", ("fleet", "agent"), role=_OPERATOR, footer=True
    ),
    Action("related", "t", "tasks", "opens its tasks, or its task", ("fleet", "agent", "events"), footer=True),
    Action("follow", "f", "follow", "follows the newest row or text, or stops", ("tasks", "events"), footer=True),
    Action("source", "m", "source", "shows texts as received, or as Markdown", ("tasks", "inbox"), footer=True),
    Action(
        "save",
        "s",
        "save",
        "saves files and data: the one under the cursor, or all",
        ("tasks",),
        role=_VIEWER,
        outside=True,
    ),
    Action(
        "open-file",
        "o",
        "open file",
        "opens a saved file, after a confirmation",
        ("tasks",),
        role=_VIEWER,
        outside=True,
    ),
    Action(
        "wire", "w", "wire", "opens the wire log, which the hub records from then on", ("tasks", "agent"), footer=True
    ),
    Action("copy-curl", "c", "curl", "copies the exchange as a curl command", (WIRE,)),
    Action("copy-command", "f", "fleetsim", "copies the exchange as a fleetsim command", (WIRE,)),
    Action("levels", "l", "levels", "shows debug events, too, or hides them", ("events",), footer=True),
    Action("copy", "y", "copy", "copies the id under the cursor; again, the next id of the row", footer=True),
    Action("json", "d", "json", "shows the row or exchange as folded JSON", (*LISTS, WIRE), footer=True),
    Action("pause", "space", "pause", "pauses the recording, or plays on", (RECORDING,), footer=True),
    Action(
        "faster",
        "plus,equals_sign",
        "faster",
        "plays faster, up to as fast as possible",
        (RECORDING,),
        "speed 1",
        footer=True,
    ),
    Action("slower", "minus", "slower", "plays slower, down to x1", (RECORDING,), "speed -1", footer=True),
    Action(
        "step-back", "left_square_bracket", "back", "goes a 24th of the run back", (RECORDING,), "step -1", footer=True
    ),
    Action("step-on", "right_square_bracket", "on", "goes a 24th of the run on", (RECORDING,), "step 1", footer=True),
    Action(
        "jump", "J", "jump", "goes to a moment: 14:00, 2h30m, start or end", (RECORDING,), footer=True, takes="moment"
    ),
    Action("back", "escape", "back", "closes the detail, else removes the filter; it never quits", footer=True),
    Action(
        "mark",
        "space",
        "mark",
        "marks the row; cancel, again, reply, fire act on all marked rows",
        MARKED,
        footer=True,
    ),
    Action("mark-all", "ctrl+a", "mark all", "marks all shown rows", MARKED),
    Action("unmark", "u", "unmark", "removes the marks", MARKED),
    Action("problems", "Z", "problems", "shows the rows with a problem only, or all again", FILTERED),
    Action("wide", "W", "wide", "gives the list all room and all columns; ← and → then scroll it", LISTS),
    Action("sort", "", "sort", "sorts by the named column", LISTS, takes="column"),
    Action("sort-right", "greater_than_sign", "sort →", "sorts by the next column", LISTS, "sort 1"),
    Action("sort-left", "less_than_sign", "sort ←", "sorts by the column before", LISTS, "sort -1"),
    Action("reverse", "equals_sign", "reverse", "turns the order of the rows round", LISTS),
    Action(
        "time",
        "at",
        "time",
        "goes to a moment in the events: 13:55, 10m (ago), start or end",
        ("events",),
        takes="moment",
    ),
    Action("left", "left", "left", "scrolls a wide list to the left", (LIST,), "scroll_left"),
    Action("right", "right", "right", "scrolls a wide list to the right", (LIST,), "scroll_right"),
    Action("down", "j,down", "down", "moves down", (LIST,), "scroll_down"),
    Action("up", "k,up", "up", "moves up", (LIST,), "scroll_up"),
    Action("first", "g,home", "first", "goes to the first row", (LIST,), "scroll_home"),
    Action("last", "G,end", "last", "goes to the last row", (LIST,), "scroll_end"),
    Action("page-down", "ctrl+d,pagedown", "page down", "goes half a page down", (LIST,)),
    Action("page-up", "ctrl+u,pageup", "page up", "goes half a page up", (LIST,)),
    Action("previous", "minus,backspace", "previous", "goes to the view before, and again to return"),
    Action("history-back", "left_square_bracket", "view back", "goes back through the views", run="history -1"),
    Action("history-on", "right_square_bracket", "view on", "goes forward through the views", run="history 1"),
    Action("agent", "", "agent", "opens the page of the named agent", takes="name"),
    Action("hub", "", "hub", "changes to the hub at the address", takes="URL", outside=True),
    Action("next-pane", "tab", "next pane", "goes to the next pane of the screen", run="focus_next"),
    Action("last-pane", "shift+tab", "pane before", "goes to the pane before", run="focus_previous"),
    *(
        Action(
            name,
            str(at),
            name,
            f"opens the screen {name}",
            (RECORDING,) * (name == "scenario"),
            f"screen {name}",
            takes="filter",
        )
        for at, name in enumerate((one for one in SCREENS if one != "agent"), 1)
    ),
    Action("command", "colon", "command", "opens this line: an action by its id, with its words", footer=True),
    Action("pager", "v", "pager", "opens the text of the screen in $PAGER", outside=True),
    Action("columns", "C", "columns", "chooses the columns of the list; the choice is kept", LISTS),
    Action("palette", "ctrl+p", "palette", "searches all actions"),
    Action("theme", "ctrl+t", "theme", "takes the next theme, or the named one; the choice is kept", takes="name"),
    Action("help", "question_mark,f1", "help", "shows the keys of this screen", footer=True),
    Action("quit", "q,ctrl+c", "quit", "quits", footer=True),
)


def for_recording(actions: Sequence[Action]) -> list[Action]:
    """The actions over a recording: its own actions take their keys from the others."""
    taken = {key for one in actions if RECORDING in one.on for key in one.key_list}
    return [
        one if RECORDING in one.on else replace(one, keys=",".join(key for key in one.key_list if key not in taken))
        for one in actions
    ]


def list_bindings() -> Iterator[Binding]:
    """The bindings of every list and text. They act in a dialog, too, where the app's own bindings do not."""
    return (Binding(one.keys, f"app.act('{one.id}')", one.label, id=one.id) for one in ACTIONS if LIST in one.on)
