"""The wire log of a task or an agent while it grows: a list of exchanges, and the one under the cursor in full."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar
from urllib.parse import urlsplit

from msgspec import to_builtins
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from fleetsim.api.answers import WireExchange
from fleetsim.api.wire_rows import as_command, as_curl, as_text
from fleetsim.dashboard import outside
from fleetsim.dashboard.actions import ACTIONS, WIRE
from fleetsim.dashboard.json_screen import JsonScreen, parsed
from fleetsim.dashboard.labels import MUTED, Tone, duration
from fleetsim.dashboard.text import Column, Rows, TableRow, line, wrap
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import neutralise, one_line

LOOK_EVERY_S = 1.0
ROWS_MAX = 200
"""The newest exchanges stay on the screen, as many as the hub keeps for an agent."""
HINTS = {
    "copy-curl": "curl",
    "copy-command": "fleetsim",
    "json": "json",
    "pager": "pager",
    "next-pane": "text",
    "back": "closes",
}
"""The actions of this screen."""
GUTTER = "  │ "
"""The beginning of a line with text of an agent, also where the line is continued."""

COLUMNS = (
    Column(title="TIME", width=12),
    Column(title="", width=1),
    Column(title="REQUEST", width=16, flex=1),
    Column(title="STATUS", width=6, align=">"),
    Column(title="TOOK", width=6, align=">"),
    Column(title="SENT", width=8, align=">", drop=2),
    Column(title="GOT", width=9, align=">", drop=1),
)
_METHOD = re.compile(r'"method"\s*:\s*"([^"\\]{1,60})"')

Read = Callable[[int], Awaitable[Sequence[WireExchange]]]


def exchange_row(row: WireExchange) -> TableRow:
    """One exchange as a row of ``COLUMNS``; an arrow to the left is a webhook, sizes are bytes."""
    webhook, status = row.kind == "webhook", row.status
    rpc = None if webhook else _METHOD.search(row.body)
    took = "open" if row.seconds is None and not webhook else duration(1000 * (row.seconds or 0))
    good = (status or 0) < 400 and not row.problem
    return TableRow(
        (
            line((str(row.at)[11:23], MUTED)),
            line("←" if webhook else "→"),
            line(one_line(rpc[1] if rpc else f"{row.method} {urlsplit(row.url).path}", 200)),
            line((str(status or "-"), Tone.PLAIN if good else Tone.WARN)),
            line((took, MUTED)),
            line((f"{row.body_bytes:,}", MUTED)),
            line((f"{row.reply_bytes:,}", MUTED)),
        )
    )


def exchange_lines(row: WireExchange, width: int) -> list[Text]:
    """One exchange in full, as the pager has it."""
    lines: list[Text] = []
    for text in as_text([row]).splitlines():
        margin = GUTTER if text.startswith(GUTTER) else ""
        lines += [line((margin, MUTED), one) for one in wrap(text[len(margin) :], width - len(margin))]
    return lines


class WireScreen(ModalScreen[None]):
    """``read`` brings the exchanges after a number; the hub records while this screen reads."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.act('back')", "close", show=False),
        *(
            Binding(one.keys, f"app.act('{one.id}')", one.label, id=one.id, show=False)
            for one in ACTIONS
            if one.id in {*HINTS, "wire"}
        ),
    ]

    def __init__(self, read: Read, about: str, *, key: Callable[[str], str]) -> None:
        """``key`` gives the key of an action, or nothing if the action is not available."""
        super().__init__(name=WIRE)
        self._keys = "  ".join(f"{shown} {word}" for name, word in HINTS.items() if (shown := key(name)))
        self._read, self._title = read, f"Wire log of {one_line(about, 60)}"
        self._rows: dict[int, WireExchange] = {}
        """The newest exchanges by number, oldest first."""

    def compose(self) -> ComposeResult:
        self._list = Grid(COLUMNS, id="wire-list", classes="framed", hold=False)
        self._text = Page(id="wire-text")
        with Vertical(id="wire"):
            yield self._list
            yield self._text

    def on_mount(self) -> None:
        self._say(self._keys)
        self._list.focus()
        self.set_interval(LOOK_EVERY_S, self._look)
        self.call_after_refresh(self._look)

    def _look(self) -> None:
        self.run_worker(self._fetch(), exclusive=True, group="wire", exit_on_error=False)

    async def _fetch(self) -> None:
        """Read new exchanges, and those that were under way."""
        empty = "Nothing went over the wire since the log was opened. Send a request again."
        open_ = (number for number, row in self._rows.items() if row.seconds is None and row.kind == "call")
        try:
            rows = await self._read(min(open_, default=max(self._rows, default=0) + 1) - 1)
        except FleetsimError as error:
            empty = str(error)
            self._say(empty)
        else:
            self._rows = dict(sorted((self._rows | {row.number: row for row in rows}).items())[-ROWS_MAX:])
        shown = Rows(list(reversed(self._rows.values())), lambda row: str(row.number), exchange_row)
        self._list.show(shown, empty=[line((one_line(empty, 300), MUTED))])
        self._show()

    def _say(self, below: str) -> None:
        self._list.set_titles(self._title, one_line(below, 100))

    @property
    def _chosen(self) -> WireExchange | None:
        return self._rows.get(int(self._list.key or 0))

    def _show(self) -> None:
        if (row := self._chosen) is None:
            self._text.show()
        else:
            self._text.show(row, lambda width: exchange_lines(row, width))

    def on_grid_moved(self, message: Grid.Moved) -> None:
        message.stop()
        self._list.show(self._list.rows)
        self._say(self._keys)
        self._show()

    def action_back(self) -> None:
        self.dismiss()

    action_wire = action_back

    def action_copy_curl(self) -> None:
        self._copy("curl", as_curl)

    def action_copy_command(self) -> None:
        self._copy("fleetsim", as_command)

    def _copy(self, form: str, command: Callable[[WireExchange], str]) -> None:
        """Copy the exchange under the cursor as a command."""
        text = command(row) if (row := self._chosen) is not None else ""
        if text:
            self.app.copy_to_clipboard(neutralise(text, limit=len(text)))
        self._say(f"copied as {form}" if text else f"no {form} command makes this exchange")

    def action_json(self) -> None:
        """Show the exchange as a tree; its bodies are branches if they are JSON."""
        if (row := self._chosen) is not None:
            bodies = {"body": parsed(row.body), "reply": parsed(row.reply)}
            value = to_builtins(row) | bodies | {"frames": [parsed(frame.text) for frame in row.frames]}
            self.app.push_screen(JsonScreen(f"{row.method} {urlsplit(row.url).path}", value))

    async def action_pager(self) -> None:
        try:
            await outside.page(self.app, as_text(list(self._rows.values())) + "\n", os.environ)
        except FleetsimError as error:
            self._say(str(error))
