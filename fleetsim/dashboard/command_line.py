"""The ``:`` line: an action by its id and its words, with completion and history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Input

from fleetsim.dashboard.actions import Action

HISTORY_MAX = 200


def resolve(text: str, actions: Sequence[Action]) -> tuple[Action, str]:
    """The action of a line, by its id or the beginning of one, and the words after it.

    Raises ValueError for an unknown action, and for words after an action that takes none.
    """
    name, _, words = text.strip().partition(" ")
    matching = [one for one in actions if one.id == name] or [one for one in actions if one.id.startswith(name)]
    if len(matching) != 1:
        near = [one.id for one in matching] or get_close_matches(name, [one.id for one in actions], 3, 0.5)
        raise ValueError(f"no action “{name}” here" + (f"; did you mean {', '.join(near[:5])}?" if near else ""))
    action, words = matching[0], words.strip()
    if words and not action.takes:
        raise ValueError(f"“{action.id}” takes no words")
    return action, words


class _Completion(Suggester):
    def __init__(self, lines: Callable[[], Iterable[str]]) -> None:
        super().__init__(use_cache=False)
        self._lines = lines

    async def get_suggestion(self, value: str) -> str | None:
        return next((one for one in self._lines() if one.startswith(value)), None)


class CommandLine(Input):
    """``up`` and ``down`` go through earlier lines, ``tab`` takes the completion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier(1)", "earlier", show=False),
        Binding("down", "earlier(-1)", "later", show=False),
        Binding("tab", "cursor_right", "complete", show=False),
    ]

    def __init__(self, lines: Callable[[], Iterable[str]]) -> None:
        super().__init__(
            id="command",
            placeholder="an action and its words; tab completes",
            compact=True,
            suggester=_Completion(lines),
        )
        self.cursor_blink = False
        self.history: list[str] = []
        self._back = 0

    def open(self, text: str = "") -> None:
        self.value, self._back = text, 0
        self.cursor_position = len(text)
        self.add_class("-shown")
        self.focus()

    def taken(self) -> str:
        """Close the line and return its text, which joins the history."""
        self.remove_class("-shown")
        if self.value.strip():
            self.history = [*(one for one in self.history if one != self.value), self.value][-HISTORY_MAX:]
        return self.value

    def action_earlier(self, by: int) -> None:
        self._back = max(0, min(self._back + by, len(self.history)))
        self.value = self.history[-self._back] if self._back else ""
        self.cursor_position = len(self.value)
