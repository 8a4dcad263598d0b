"""A row or an exchange as folded JSON with search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from rich.highlighter import JSONHighlighter
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input
from textual.widgets.tree import TreeNode

from fleetsim.dashboard.parts_tree import PartsTree
from fleetsim.model.errors import WireError
from fleetsim.model.text import one_line
from fleetsim.wire.json import parse_untrusted

NODES_MAX, OPEN_MAX = 20_000, 200
"""The nodes that a search looks at, and those that are open at first."""


def parsed(text: str) -> Any:
    """The JSON value of a text or of an event of a stream; the text itself if it is no JSON."""
    raw = text.removeprefix("data:").encode()
    try:
        return parse_untrusted(raw, bytes_max=len(raw) + 1)
    except WireError:
        return text


class JsonTree(PartsTree):
    """A tree with colours, as high as its dialog."""

    def _fit(self) -> None:
        pass

    def nodes(self) -> Iterator[TreeNode[Any]]:
        """The nodes in their order, also of branches that were never open."""
        waiting = [self.root]
        while waiting:
            self.build(node := waiting.pop())
            yield node
            waiting += reversed(node.children)

    def render_label(self, node: TreeNode[Any], base_style: Style, style: Style) -> Text:
        return JSONHighlighter()(super().render_label(node, base_style, style))


class JsonScreen(ModalScreen[None]):
    """``/`` searches names and values; ``n`` and ``N`` go to the next place and to the one before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "close", "close", show=False),
        Binding("slash", "search", "search", show=False),
        Binding("n", "next(1)", "next", show=False),
        Binding("N", "next(-1)", "before", show=False),
    ]

    def __init__(self, title: str, value: Any) -> None:
        super().__init__()
        self._title, self._value = one_line(title, 60), value

    def compose(self) -> ComposeResult:
        self._tree = JsonTree(id="json-tree")
        self._search = Input(id="json-search", placeholder="words of a name or a value", compact=True)
        self._search.display = False
        with Vertical(id="json"):
            yield self._tree
            yield self._search

    def on_mount(self) -> None:
        self._tree.root.data = self._value
        for node in islice(self._tree.nodes(), OPEN_MAX):
            node.expand()
        self._tree.set_titles(self._title, "/ search  n N next, before  enter folds  esc closes")
        self._tree.focus()

    def action_search(self) -> None:
        self._search.display = True
        self.set_focus(self._search)  # at once: the next key may already be in the queue

    def _searched(self) -> bool:
        typing, self._search.display = self._search.has_focus, False
        self.set_focus(self._tree)
        return typing

    def action_close(self) -> None:
        if not self._searched():
            self.dismiss()

    def on_input_submitted(self) -> None:
        self._searched()
        self.action_next(1)

    def action_next(self, by: int) -> None:
        nodes, wanted = list(islice(self._tree.nodes(), NODES_MAX)), self._search.value.casefold()
        start = nodes.index(self._tree.cursor_node) if self._tree.cursor_node else 0
        for step in range(1, len(nodes) + 1) if wanted else ():
            node = found = nodes[(start + by * step) % len(nodes)]
            if wanted in str(node.label).casefold():
                while node.parent is not None:
                    node = node.parent
                    node.expand()
                self.call_after_refresh(self._tree.move_cursor, found)
                return
        self._tree.set_titles(self._title, "not found  / search  esc closes")
