"""The base of every screen: a main table, a filter, keys and a status line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, cast

from rich.text import Text
from textual.containers import Vertical

from fleetsim.dashboard.chrome import ScreenName, Size
from fleetsim.dashboard.controls import Controls, WholeText
from fleetsim.dashboard.labels import STRONG, Tone
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.query import Query, parse
from fleetsim.dashboard.text import line
from fleetsim.dashboard.view import QuestionRow, View
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.dashboard.widgets import Grid
from fleetsim.model.text import one_line

FAILED_S = 30.0
"""How long a failure stays in the status line."""


class Host(Protocol):
    """The app, as the screens use it."""

    controls: Controls
    read_only: bool
    playback: Playback | None
    view: View

    def say(self, text: str, tone: Tone = Tone.PLAIN, seconds: float = 8.0) -> None: ...
    def draw(self) -> None: ...
    def draw_soon(self) -> None: ...
    def detail(self, correlation_id: str | None) -> TaskDetail | None: ...
    def whole(self, correlation_id: str, chars: int) -> WholeText | None: ...
    def do(self, key: str, failed: str, work: Callable[[], Awaitable[str]]) -> None: ...
    def confirm(
        self, title: str, what: Sequence[Text], key: str, failed: str, work: Callable[[], Awaitable[str]]
    ) -> None: ...
    def copy_to_clipboard(self, text: str) -> None: ...
    def show_screen(self, name: str) -> None: ...
    def show_agent(self, name: str) -> None: ...
    def show_tasks(self, filter_text: str) -> None: ...
    def show_task(self, correlation_id: str) -> None: ...
    def show_question(self, correlation_id: str | None) -> None: ...


class Pane(Vertical):
    """A screen. ``draw`` is called a few times a second with the newest view; ``main`` has the focus when it opens."""

    NAME: ClassVar[ScreenName]

    main: Grid

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.filter_text = ""
        self.query_now = Query()
        self.size_class = Size.FULL

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    def draw(self, view: View) -> None:
        """Show the view."""

    def begin_anew(self) -> None:
        """The recording starts again: drop everything derived from its events."""

    def status(self, view: View) -> str:
        """The status line; its parts are three blanks apart."""
        return ""

    def copyable(self) -> str | None:
        """The id that ``y`` copies."""
        return self.main.key

    def chosen_task(self) -> str | None:
        """The correlation id of the task under the cursor, for ``x`` and ``r``."""
        return None

    def on_grid_opened(self, message: Grid.Opened) -> None:
        self.opened(message.grid, message.key or "")

    def opened(self, grid: Grid, key: str) -> None: ...

    def back(self) -> bool:
        """Close the opened detail; False if none was open."""
        opened = self.has_class("-opened")
        self.remove_class("-opened")
        self.main.focus()
        return opened

    def filter_by(self, text: str) -> None:
        self.filter_text = text.strip()
        self.query_now = parse(text)

    def with_whole(self, question: QuestionRow) -> QuestionRow:
        """The question, with its whole text once that was fetched."""
        whole = self.host.whole(question.correlation_id, question.chars)
        return question if whole is None else replace(question, text=whole.text, chars=whole.chars)

    def action_reply(self) -> None:
        """Open the question of the task under the cursor."""
        self.host.show_question(self.chosen_task())

    def action_cancel(self) -> None:
        key = self.chosen_task()
        row = next((row for row in self.host.view.tasks if row.correlation_id == key), None)
        if row is None or not row.open:
            self.host.say("no running task under the cursor", Tone.WARN)
            return

        async def cancel() -> str:
            await self.host.controls.cancel(row.correlation_id)
            return f"asked {row.agent} to stop {row.correlation_id[:8]}"

        what = [line("Cancel task ", (row.correlation_id[:8], STRONG), f" of {row.agent} / {row.skill}?")]
        self.host.confirm("Cancel", what, "cancel:" + row.correlation_id, "not cancelled", cancel)

    def action_copy(self) -> None:
        if copied := self.copyable():
            self.host.copy_to_clipboard(one_line(copied, 300))
            self.host.say(f"copied {one_line(copied, 80)}")
