"""Screen 2: tasks, with the timeline and the live text of the task under the cursor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from fleetsim.caller.retry import RETRIED_KINDS
from fleetsim.dashboard import outside
from fleetsim.dashboard.chrome import ScreenName, Size
from fleetsim.dashboard.labels import LABEL_MAX, MUTED, STATE, STRONG, Tone, duration, money, origin, since
from fleetsim.dashboard.markdown import spoken, without_marks
from fleetsim.dashboard.parts_tree import PartsTree
from fleetsim.dashboard.screens.pane import Pane, counted
from fleetsim.dashboard.text import BLANK, Column, Rows, TableRow, fitted, left_out, line, named, wrap
from fleetsim.dashboard.view import QuestionRow, View
from fleetsim.dashboard.view_tasks import Step, TaskDetail, TaskRow, Turn
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.model.text import one_line, placeholder
from fleetsim.model.work import OutcomeKind

SILENT_S = 30
"""A working task without news for this long is silent."""

WIDE = 1_000
FRAME = 5
"""Cells of a frame with its padding and scrollbar."""
STORY_CELLS = 50
TEXT_CELLS = 100
"""The least cells of the facts, which hold an id, and the cells beyond which a text needs no more."""

COLUMNS = (
    Column(title="STATE", width=11, flex=4, most=16, by="state"),
    Column(title="TASK", width=8, drop=3, by="correlation_id"),
    Column(title="AGENT", width=10, flex=1, most=LABEL_MAX, by="agent"),
    Column(title="SKILL", width=12, flex=1, most=20, by="skill"),
    Column(title="ORIGIN", width=16, flex=2, most=32, drop=5, by="origin"),
    Column(title="AGE", width=4, align=">", by="-since"),
    Column(title="VIA", width=6, drop=4, by="via"),
    Column(title="LAST UPDATE", width=12, flex=5, drop=2, by="-updated_at"),
    Column(title="TRY", width=3, align=">", drop=6, by="attempt"),
)


def row(task: TaskRow, now: datetime) -> TableRow:
    """One task as a row of ``COLUMNS``; a running task with its last update and the age of it."""
    open = task.ended_at is None
    tone = Tone.PLAIN if open else MUTED
    quiet = (now - task.updated_at).total_seconds()
    said = without_marks(task.last)
    if not open:
        last = line((said or "-", MUTED if task.success else Tone.WARN))
    elif task.waiting:
        last = line((said or "-", Tone.ACCENT))
    elif task.state == "working" and quiet >= SILENT_S:
        last = line((f"silent {since(task.updated_at, now)}", Tone.WARN), ("  " + said, MUTED))
    else:
        last = line((f"{since(task.updated_at, now)} ", MUTED), said or "-")
    return TableRow(
        (
            line(STATE[task.state].piece),
            line((task.correlation_id[:8], MUTED)),
            line((task.agent or "-", STRONG if open else MUTED)),
            line((task.skill or "-", tone)),
            line((origin(task.origin), MUTED)),
            line((since(task.ended_at or task.since, now), tone)),
            line((task.via or "-", MUTED)),
            last,
            line((str(task.attempt), Tone.WARN if task.attempt > 1 else MUTED)),
        )
    )


def fields(task: TaskRow) -> dict[str, str]:
    return {
        "state": f"{task.state} {STATE[task.state].word}",
        "agent": task.agent.lower(),
        "skill": task.skill.lower(),
        "origin": origin(task.origin).lower(),
        "via": task.via,
        "task": task.correlation_id.lower() + " " + task.task_id.lower(),
        "text": task.last.lower(),
        "problem": "yes" if task.waiting or not (task.open or task.success) else "no",
    }


def story(detail: TaskDetail, now: datetime, width: int) -> list[Text]:
    """The facts of a task, a name and a value per line, then its timeline, the newest last."""
    row = detail.row
    took = duration((row.ended_at - row.created_at).total_seconds() * 1000) if row.ended_at else since(row.since, now)
    via = [line(row.via or "-"), line(("wire ", MUTED), row.dialect or "?"), line(("try ", MUTED), str(row.attempt))]
    facts = [
        ("state", line(STATE[row.state].piece, (f"  {'after' if row.ended_at else 'for'} {took}", MUTED))),
        ("agent", line(row.agent or "-", (" / ", MUTED), row.skill or "-")),
        ("origin", line(origin(row.origin))),
        ("request", line(row.correlation_id)),
        *((name, line(cid)) for name, cid in (("retry of", row.retry_of), ("again as", row.retried_as)) if cid),
        ("task", line(row.task_id or "not bound yet")),
        ("context", line(row.context_id or "-")),
        ("via", fitted(via, WIDE)),
    ]
    used = [line(f"${money(row.cost_usd)}")] if row.cost_usd is not None else []
    if row.tokens:
        used.append(line(("tokens ", MUTED), f"{row.tokens[0]:,} in {row.tokens[1]:,} out"))
    if row.confidence is not None:
        used.append(line(("sure ", MUTED), f"{row.confidence:.0%}"))
    if used:
        facts.append(("used", fitted(used, WIDE)))
    return [*named(facts, width, 9), BLANK, *named([_step(step) for step in detail.steps], width, 9)]


def _step(step: Step) -> tuple[str, Text]:
    return f"{step.at:%H:%M:%S}", line(
        (step.arrow, Tone.PRIMARY if step.arrow == "→" else MUTED),
        " " if step.state else "",
        STATE[step.state].piece if step.state else "",
        (f" {step.via}" if step.via else "", MUTED),
        f" {step.what}" if step.what else "",
    )


def amount(detail: TaskDetail) -> str:
    """The number of characters shown."""
    if detail.gaps:
        return f"excerpts of {detail.chars:,} characters"
    if detail.shown < detail.chars:
        return f"the {'first' if detail.first else 'last'} {detail.shown:,} of {detail.chars:,} characters"
    return f"{detail.chars:,} characters"


def live_title(detail: TaskDetail, follow: bool, *, source: bool = False) -> Text:
    pieces = [line(("Live output" if detail.row.open else "Answer", STRONG))]
    if detail.cut or detail.chars:
        pieces.append(line((amount(detail), Tone.WARN if detail.cut else MUTED)))
    if detail.row.open:
        pieces.append(line(("FOLLOW", Tone.GOOD) if follow else ("f follow", MUTED)))
    elif detail.text:
        pieces.append(line(("m source" if not source else "source, m Markdown", MUTED)))
    return fitted(pieces, 100, gap=3)


def conversation(turns: Sequence[Turn], width: int, *, source: bool = False) -> list[Text]:
    """Each message with its author and time."""
    lines: list[Text] = []
    for turn in turns:
        text = "\n".join(filter(None, (turn.text, *turn.parts)))
        lines += spoken(turn.agent or "you", turn.at, text, width, source=source or not turn.agent)
        if turn.chars > len(turn.text):
            what = f"the first {len(turn.text):,} of" if turn.text else "not kept any longer:"
            lines.append(left_out(f"{what} {turn.chars:,} characters"))
        lines.append(BLANK)
    return lines


def live(
    detail: TaskDetail, question: QuestionRow | None, width: int, *, source: bool = False, reply: str = ""
) -> list[Text]:
    """The conversation, the agent's text (its source while it grows), and its question, with the key, or outcome."""
    row, turns = detail.row, detail.turns
    agent = row.agent or "agent"
    if row.waiting and turns and turns[-1].agent:
        turns = turns[:-1]
    lines = conversation(turns, width, source=source)
    if not row.open and not row.success:
        state = STATE[row.state]
        lines += [line(state.piece), *wrap(row.reason or "no reason given", width, state.tone), BLANK]
    if detail.cut and not detail.first:
        lines.append(left_out(amount(detail)))
    if detail.text:
        lines += spoken(agent, row.ended_at, detail.text, width, source=source or (row.open and not row.waiting))
    elif row.success:
        lines += wrap(placeholder(row.skill, row.agent or "the agent"), width, MUTED)
    if detail.cut and detail.first:
        lines.append(left_out(amount(detail)))
    if row.waiting:
        lines += [BLANK] if detail.text else []
        lines += spoken(agent, row.since, question.text if question else row.last, width, source=source)
        lines += [BLANK, line(("press ", MUTED), (reply, Tone.PRIMARY), (" to answer", MUTED))] if reply else []
    elif not detail.text and not row.parts and row.open:
        lines.append(line(("nothing said yet", MUTED)))
    return lines


FILES = (("save", "save"), ("open-file", "open"))
"""Actions on files, with a word for the hint."""

NO_TASKS = (line(("No tasks yet.", STRONG)), line(("Send one:  ", MUTED), ("fleetsim send AGENT TEXT", Tone.PRIMARY)))


class TasksPane(Pane):
    """The list, and below it one task's timeline and live text; enter opens them in full size."""

    NAME = ScreenName.TASKS

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._divided: object = None
        self._follow, self._read = True, ""
        self._saved: dict[tuple[str, int], str] = {}

    def compose(self) -> ComposeResult:
        self.main = Grid(COLUMNS, id="tasks-list")
        self._story = Page(id="story", follow=True)
        self._live = Page(id="live", follow=True)
        self._parts = PartsTree(id="parts")
        yield self.main
        self._detail = Horizontal(id="task", classes="-bare")
        with self._detail:
            yield self._story
            with Vertical(id="answer-side"):
                yield self._live
                yield self._parts

    def draw(self, view: View) -> None:
        second, tasks = int(view.now.timestamp()), view.tasks
        if self.query_now:
            tasks = tuple(task for task in tasks if self.query_now.matches(fields(task)))
        rows = Rows(tasks, lambda task: task.correlation_id, lambda task: row(task, view.now), second)
        self.main.show(rows, empty=self.instead(view, view.tasks, *NO_TASKS))
        detail = self.host.detail(self.main.key)
        self._detail.set_class(detail is None, "-bare")
        self.set_class(detail is not None, "-chosen")
        if detail is None:
            return
        task, question = detail.row, view.question(detail.row.question_id or "")
        ended = not task.open and (detail.cut or (task.parts and self.host.playback is None))
        whole = self.host.whole(task.correlation_id, detail.chars) if ended else None
        if whole is not None and detail.cut:
            shown = len(whole.text)
            detail = replace(detail, text=whole.text, shown=shown, chars=whole.chars, first=True, gaps=False)
        if question is not None and question.cut:
            question = self.with_whole(question)
        self._story.set_titles(f"{task.agent or '-'} / {task.skill or '-'}")
        self._story.follow = self._live.follow = task.open and self._follow
        self._story.show((detail, second), lambda width: story(detail, view.now, width))
        self._divide(detail, view.now)
        self._live.set_titles(live_title(detail, self._follow, source=self.source))
        about = detail, question, self.source
        key = self.host.key
        self._live.show(about, lambda width: live(detail, question, width, source=self.source, reply=key("reply")))
        if not task.open and self._read != task.correlation_id:  # an answer is read from its beginning
            before = conversation(detail.turns, max(20, self._live.inner_width))
            self._live.scroll_to(y=len(before), animate=False, force=True)
        self._read = "" if task.open else task.correlation_id
        parts = whole.parts if whole is not None else ()
        self._parts.show((task.correlation_id, task.parts, parts), task.parts, parts, task.parts_total)
        self._parts.set_titles("Files and data", self._file_hints)

    @cached_property
    def _file_hints(self) -> str:
        return "  ".join(f"{key} {word}" for one, word in FILES if (key := self.host.key(one)))

    def _divide(self, detail: TaskDetail, now: datetime) -> None:
        """Divide the width by the content: the facts get what they need if the answer has enough room then."""
        if self._divided == (detail, self.size):
            return
        self._divided = detail, self.size
        if self.size_class is not Size.FULL:
            self._story.styles.width = None
            return
        wanted = FRAME + max(one.cell_len for one in story(detail, now, WIDE))
        texts = (detail.text, *(turn.text for turn in detail.turns))
        longest = max((len(one) for text in texts for one in text.split("\n")), default=0)
        room = self.size.width - min(TEXT_CELLS, longest) - FRAME - 2
        self._story.styles.width = max(STORY_CELLS, min(wanted, max(room, self.size.width * 2 // 5)))

    def status(self, view: View) -> str:
        c = view.counters
        states = f"{c.waiting} waiting   {c.working} working   {c.submitted} submitted"
        if c.figures.total_outcomes:
            states += f"   {c.figures.total_outcomes:,} finished, last {view.window}"
        return f"{len(self.main.rows.items):,} of {len(view.tasks):,} shown   {states}"

    def chosen_task(self) -> str | None:
        return self.main.key

    def facts_of(self, item: TaskRow | None) -> object:
        detail = self.host.detail(item.correlation_id if item else None)
        return detail and {"task": detail, "answer": self.host.whole(detail.row.correlation_id, detail.chars)}

    def copyables(self) -> list[tuple[str, str]]:
        detail = self.host.detail(self.main.key)
        row = detail.row if detail is not None else None
        ids = (("request", row.correlation_id), ("task", row.task_id), ("context", row.context_id)) if row else ()
        return [(name, value) for name, value in ids if value]

    def chosen_tasks(self) -> list[str]:
        return self.main.chosen

    def opened(self, grid: Grid, key: str) -> None:
        self.add_class("-opened")
        self._live.focus()
        self.host.draw_soon()

    def action_save(self) -> None:
        """Save the file or data under the cursor, or all, in a folder that the person names."""
        task, chosen = self.main.key, self._parts.chosen
        if task is None or not self._parts.display or not chosen:
            self.host.say("no file or data with content here", Tone.WARN)
            return

        def save(folder: str) -> None:
            async def work() -> str:
                paths = await self.host.controls.save(task, chosen, folder)
                self._saved.update({(task, index): path for index, path in paths.items()})
                return f"saved {len(paths)} of {len(chosen)}: {', '.join(paths.values())}"

            self.host.do(f"save:{task}", "not saved", work)

        what = "this part" if len(chosen) == 1 else f"{len(chosen)} files and data"
        self.host.ask("Save", f"the folder for {what}:", save, task[:8])

    def action_open_file(self) -> None:
        paths = [path for index in self._parts.chosen if (path := self._saved.get((self.main.key or "", index)))]
        if not paths:
            self.host.say("save it first: s", Tone.WARN)
            return

        async def work() -> str:
            await outside.open_file(Path(paths[0]), os.environ)
            return f"opened {paths[0]}"

        what = [line("Open this file of the agent on the desktop?"), line((one_line(paths[0], 200), STRONG))]
        self.host.confirm("Open", what, f"open:{paths[0]}", "not opened", work)

    def action_again(self) -> None:
        chosen = set(self.chosen_tasks())
        rows = [r for r in self.host.view.tasks if r.state in RETRIED_KINDS and r.correlation_id in chosen]
        rows = [row for row in rows if not (row.open or row.retried_as)]
        if not rows:
            self.host.say("nothing here may be sent again: it works, ended otherwise, or was sent again", Tone.WARN)
            return
        doubtful = {row.correlation_id: row.agent for row in rows if row.state != OutcomeKind.UNDELIVERABLE}
        what = counted("Send again", "task", [f"{row.agent} / {row.skill}" for row in rows])
        for agent, times in Counter(doubtful.values()).items():
            what.append(line((f"{agent} may have done {times} already, and may do it twice", Tone.WARN)))
        send = self.host.controls.retry
        jobs = {
            r.correlation_id: partial(send, r.correlation_id, may_repeat=r.correlation_id in doubtful) for r in rows
        }
        self.act_on("Send again", jobs, what, "not sent", f"sent {len(rows)} again")

    def action_follow(self) -> None:
        self._follow = not self._follow
        self.host.say("following" if self._follow else "not following")
        self.host.draw()
