"""Files and data of an answer as a tree. A branch is built when a person opens it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from fleetsim.dashboard.actions import list_bindings
from fleetsim.dashboard.labels import plain_ascii
from fleetsim.dashboard.text import wrap
from fleetsim.dashboard.widgets import NeutralisedWidget
from fleetsim.model.parts import ListedPart
from fleetsim.model.text import neutralise, one_line

CHILDREN_MAX = 200
"""Children of a branch that are shown."""
LABEL_CHARS_MAX = 300
LINE_CELLS = 76
"""A longer text is a branch of lines with this width."""


class PartsTree(Tree[Any], NeutralisedWidget, inherit_bindings=False):
    """A file is a leaf, data a branch with its values."""

    BINDINGS: ClassVar[list[BindingType]] = [*list_bindings()]

    def __init__(self, *, id: str) -> None:
        super().__init__("", id=id, classes="framed")
        self.show_root, self.guide_depth, self.auto_expand = False, 3, False
        self._about: object = None

    def show(self, about: object, listed: Sequence[str], parts: Sequence[ListedPart], total: int) -> None:
        """Show the parts, or without their content the lines that list them, and disappear without any."""
        self.display = bool(listed or parts)
        if about == self._about:
            return
        self._about = about
        self.clear()
        for part in parts:
            if part.kind == "data" and not part.truncated:
                node = self.root.add(Text(one_line(str(part), LABEL_CHARS_MAX)), data=part)
                if len(parts) == 1:
                    node.expand()
            else:
                self.root.add_leaf(Text(one_line(str(part), LABEL_CHARS_MAX)), data=part)
        for one in listed if not parts else ():
            self.root.add_leaf(Text(one))
        if (left := total - len(parts or listed)) > 0:
            self.root.add_leaf(Text(f"and {left:,} more"))
        self._fit()

    @property
    def chosen(self) -> list[int]:
        """The index of the part under the cursor while the tree has the focus, else those of all parts."""
        node = self.cursor_node if self.has_focus else None
        while node is not None and node.parent is not None and node.parent is not self.root:
            node = node.parent
        nodes = [node] if node is not None and isinstance(node.data, ListedPart) else self.root.children
        return [one.data.index for one in nodes if isinstance(one.data, ListedPart)]

    def on_tree_node_expanded(self, message: Tree.NodeExpanded[Any]) -> None:
        self.build(message.node)
        self._fit()

    def build(self, node: TreeNode[Any]) -> None:
        """Add the children of a branch that was never open."""
        if not node.children:
            value = node.data.data if isinstance(node.data, ListedPart) else node.data
            if isinstance(value, Mapping):
                self._add(node, ((one_line(str(name), 80), value[name]) for name in value), len(value))
            elif isinstance(value, list | tuple):
                self._add(node, ((str(at), one) for at, one in enumerate(value)), len(value))
            elif isinstance(value, str):
                lines = wrap(neutralise(value, limit=LINE_CELLS * CHILDREN_MAX), LINE_CELLS)[:CHILDREN_MAX]
                for one in lines:
                    node.add_leaf(one)
                if (left := len(value) - LINE_CELLS * CHILDREN_MAX) > 0:
                    node.add_leaf(Text(f"… and {left:,} more characters: save it to read them"))
            elif value is not None:
                self._add(node, [("", value)], 1)

    def on_tree_node_collapsed(self, message: Tree.NodeCollapsed[Any]) -> None:
        self._fit()

    def _add(self, node: TreeNode[Any], values: Iterable[tuple[str, Any]], count: int) -> None:
        for name, value in islice(values, CHILDREN_MAX):
            begin = f"{name}: " if name else ""
            if isinstance(value, Mapping | list | tuple):
                size = f"{{{len(value):,}}}" if isinstance(value, Mapping) else f"[{len(value):,}]"
                node.add(Text(begin + size), data=value) if value else node.add_leaf(Text(begin + size))
            elif isinstance(value, str) and (len(value) > LINE_CELLS or "\n" in value):
                node.add(Text(f"{begin}{one_line(value, LINE_CELLS)}"), data=value)
            else:
                node.add_leaf(Text(begin + one_line(json.dumps(value, ensure_ascii=False), LABEL_CHARS_MAX)))
        if count > CHILDREN_MAX:
            node.add_leaf(Text(f"… and {count - CHILDREN_MAX:,} more: save it to read them"))

    def _fit(self) -> None:
        """As high as its open branches; the style sheet has the largest height."""
        self.styles.height = 2 + self._open_rows(self.root)

    def _open_rows(self, node: TreeNode[Any]) -> int:
        return sum(1 + (self._open_rows(one) if one.is_expanded else 0) for one in node.children)

    def render_label(self, node: TreeNode[Any], base_style: Style, style: Style) -> Text:
        icon = ("▼ " if node.is_expanded else "▶ ") if node.allow_expand else ""
        label = Text(icon + self.harmless(Text(str(node.label))).plain, style)
        if self.look.ascii_only:
            label.plain = plain_ascii(label.plain)
        return label

    def action_scroll_down(self) -> None:
        self.action_cursor_down()

    def action_scroll_up(self) -> None:
        self.action_cursor_up()

    def action_open(self) -> None:
        self.action_toggle_node()
