"""The base of every screen: a main table, a filter, keys and a status line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol, cast

from msgspec import to_builtins
from rich.text import Text
from textual.containers import Vertical

from fleetsim.api.answers import WireExchange
from fleetsim.dashboard import outside
from fleetsim.dashboard.chrome import Link, ScreenName, Size, no_rows
from fleetsim.dashboard.controls import Controls, WholeText
from fleetsim.dashboard.json_screen import JsonScreen
from fleetsim.dashboard.labels import MUTED, STRONG, Tone
from fleetsim.dashboard.playback import Playback
from fleetsim.dashboard.query import Query, parse
from fleetsim.dashboard.text import line
from fleetsim.dashboard.view import QuestionRow, RunFold, View
from fleetsim.dashboard.view_fleet import AgentRow
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.dashboard.wire_screen import WireScreen
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line

FAILED_S = 30.0
"""How long a failure stays in the status line."""
GROUPS_MAX = 6
"""Groups that a confirmation lists."""


class Host(Protocol):
    """The app, as the screens use it."""

    controls: Controls
    playback: Playback | None
    view: View
    link: Link

    def say(self, text: str, tone: Tone = Tone.PLAIN, seconds: float = 8.0) -> None: ...
    def key(self, action_id: str) -> str: ...
    def may(self, action_id: str) -> bool: ...
    def draw(self) -> None: ...
    def draw_soon(self) -> None: ...
    def detail(self, correlation_id: str | None) -> TaskDetail | None: ...
    def whole(self, correlation_id: str, chars: int) -> WholeText | None: ...
    def do(self, key: str, failed: str, work: Callable[[], Awaitable[str]]) -> None: ...
    def confirm(
        self, title: str, what: Sequence[Text], key: str, failed: str, work: Callable[[], Awaitable[str]]
    ) -> None: ...
    def ask(self, title: str, what: str, then: Callable[[str], None], value: str = "") -> None: ...
    def copy_to_clipboard(self, text: str) -> None: ...
    def show_screen(self, name: str) -> None: ...
    def show_agent(self, name: str) -> None: ...
    def request_form(self, agent: AgentRow, skill: str = "") -> None: ...
    def show_tasks(self, filter_text: str) -> None: ...
    def show_task(self, correlation_id: str) -> None: ...
    def show_question(self, correlation_id: str | None) -> None: ...


def counted(verb: str, noun: str, groups: Sequence[str]) -> list[Text]:
    """The question before an action on several rows: their number, and the number of each group."""
    counts = Counter(groups).most_common()
    lines = [line(f"{verb} ", (f"{len(groups)} {noun}s", STRONG), "?")]
    lines += [line((f"{count:>6}  ", MUTED), one_line(group, 50)) for group, count in counts[:GROUPS_MAX]]
    return (
        [*lines, line((f"        and {len(counts) - GROUPS_MAX} others", MUTED))] if len(counts) > GROUPS_MAX else lines
    )


class Pane(Vertical):
    """A screen. ``draw`` is called a few times a second with the newest view; ``main`` has the focus when it opens."""

    NAME: ClassVar[ScreenName]
    FOLD: ClassVar[Callable[[], RunFold] | None] = None
    """Makes the fold of a recorded run, for a screen that shows one."""

    main: Grid

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.filter_text = ""
        self.problems = False
        self.source = False
        self._copied: tuple[object, int] = (None, 0)
        self.query_now = Query()
        self.size_class = Size.FULL

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    def draw(self, view: View) -> None:
        """Show the view."""

    def instead(self, view: View, rows: Sequence[object], *empty: Text, awaited: str = "") -> list[Text]:
        """The text of a list that shows no row; see ``chrome.no_rows``."""
        return no_rows(self.host.link, view.now, rows, empty, awaited)

    def begin_anew(self) -> None:
        """The recording starts again: drop everything derived from its events."""

    def status(self, view: View) -> str:
        """The status line; its parts are three blanks apart."""
        return ""

    def copyable(self) -> str | None:
        """The id that ``y`` copies."""
        return self.main.key

    def copyables(self) -> list[tuple[str, str]]:
        """The names and values that ``y`` copies one after another."""
        return [("", copied)] if (copied := self.copyable()) else []

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
        self.query_now = parse(text + " problem=yes" * self.problems)

    def with_whole(self, question: QuestionRow) -> QuestionRow:
        """The question, with its whole text once that was fetched."""
        whole = self.host.whole(question.correlation_id, question.chars)
        return question if whole is None else replace(question, text=whole.text, chars=whole.chars)

    def action_reply(self) -> None:
        """Open the question of the task under the cursor."""
        self.host.show_question(self.chosen_task())

    def chosen_tasks(self) -> list[str]:
        """The correlation ids of the marked tasks, else of the task under the cursor, for ``x``."""
        task = self.chosen_task()
        return [task] if task else []

    def action_cancel(self) -> None:
        chosen = set(self.chosen_tasks())
        rows = [row for row in self.host.view.tasks if row.open and row.correlation_id in chosen]
        if not rows:
            self.host.say("no running task under the cursor", Tone.WARN)
            return
        one = rows[0]
        what = [line("Cancel task ", (one.correlation_id[:8], STRONG), f" of {one.agent} / {one.skill}?")]
        self.act_on(
            "Cancel",
            {row.correlation_id: partial(self.host.controls.cancel, row.correlation_id) for row in rows},
            what if len(rows) == 1 else counted("Cancel", "task", [f"{row.agent} / {row.skill}" for row in rows]),
            "not cancelled",
            f"asked {one.agent} to stop {one.correlation_id[:8]}"
            if len(rows) == 1
            else f"asked to stop {len(rows)} tasks",
        )

    def act_on(
        self,
        title: str,
        jobs: Mapping[str, Callable[[], Awaitable[str | None]]],
        what: Sequence[Text],
        failed: str,
        done: str,
        *,
        ask: bool = True,
    ) -> None:
        """Run the jobs of rows one after another. Several jobs, and ``ask``, need a confirmation first."""

        async def work() -> str:
            errors: list[FleetsimError] = []
            said: str | None = None
            for row, job in jobs.items():
                try:
                    said = await job()
                    self.main.marks.discard(row)  # only the rows that failed stay marked
                except FleetsimError as error:
                    errors.append(error)
            if errors and len(jobs) > 1:
                raise FleetsimError(f"{len(errors)} of {len(jobs)} failed, first: {errors[0]}", hint=errors[0].hint)
            if errors:
                raise errors[0]
            self.main.unmark()
            return (said if len(jobs) == 1 else None) or done

        key = f"{title}:{','.join(jobs)}"
        if ask or len(jobs) > 1:
            self.host.confirm(title, what, key, failed, work)
        else:
            self.host.do(key, failed, work)

    def action_mark(self) -> None:
        self.main.mark()

    def action_mark_all(self) -> None:
        self.main.mark_all()

    def action_unmark(self) -> None:
        self.main.unmark()

    def action_problems(self) -> None:
        """Show the rows with a problem only, or all again."""
        self.problems = not self.problems
        self.filter_by(self.filter_text)
        self.host.draw()

    def action_wide(self) -> None:
        """Give the list all room and show all its columns, or return to the usual layout."""
        self.main.widen()
        self.set_class(self.main.wide, "-wide")

    def long_text(self) -> str:
        """The text for the pager: all texts of the screen."""
        pages = (page for page in self.query(Page) if page.display and page.lines)
        return "\n\n".join("\n".join(one.plain for one in page.lines) for page in pages)

    def action_wire(self) -> None:
        """Open the wire log of the task or agent."""
        task = self.chosen_task() or ""
        agent = "" if task else self.copyable() or ""
        if not task and not agent:
            self.host.say("no task here", Tone.WARN)
            return

        def read(after: int) -> Awaitable[Sequence[WireExchange]]:
            return self.host.controls.wire(task=task, agent=agent, after=after)

        self.app.push_screen(WireScreen(read, task[:8] or agent, key=self.host.key))

    def facts_of(self, item: Any) -> Any:
        """What ``d`` shows about a row; None for no row."""
        return item

    def action_json(self) -> None:
        """Show the row under the cursor as a tree."""
        grid = self.app.focused if isinstance(self.app.focused, Grid) else self.main
        at = grid.rows.find(grid.key or "", 0)
        if facts := self.facts_of(None if at is None else grid.rows.items[at]):
            value = to_builtins(facts, str_keys=True, enc_hook=str)
            self.app.push_screen(JsonScreen(f"{self.NAME} {self.copyable()}", value))
        else:
            self.host.say("no row here", Tone.WARN)

    async def action_pager(self) -> None:
        try:
            if not (shown := self.long_text().strip()):
                raise FleetsimError("no text here")
            await outside.page(self.app, shown + "\n", os.environ)
        except FleetsimError as error:
            self.host.say(f"{error}: {error.hint}" if error.hint else str(error), Tone.WARN)

    def action_copy(self) -> None:
        """Copy the first id; pressed again, the next one."""
        if ids := self.copyables():
            before, at = self._copied
            at = (at + 1) % len(ids) if before == ids else 0
            self._copied = ids, at
            name, value = ids[at]
            following = f"; again: {ids[(at + 1) % len(ids)][0]}" if len(ids) > 1 else ""
            self.host.copy_to_clipboard(one_line(value, 300))
            self.host.say(f"copied {name} {one_line(value, 80)}{following}".replace("  ", " "))

    def action_source(self) -> None:
        """Show texts of agents as received, or as Markdown again."""
        self.source = not self.source
        self.host.draw()
