"""Screen 3: open questions and veto windows; read one, type an answer, send it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import TextArea

from fleetsim.dashboard import outside
from fleetsim.dashboard.chrome import ScreenName, Size
from fleetsim.dashboard.labels import DECISION, LABEL_MAX, MUTED, STRONG, WANTS, Tone, age, moment, origin, since
from fleetsim.dashboard.markdown import spoken
from fleetsim.dashboard.screens.pane import FAILED_S, Pane, counted
from fleetsim.dashboard.screens.tasks import conversation
from fleetsim.dashboard.text import BLANK, Column, Rows, TableRow, fitted, left_out, line
from fleetsim.dashboard.view import SETTLED_MAX, QuestionRow, View
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.dashboard.widgets import Grid, Lines, Page
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import neutralise

SOON_S = 600
"""A question that expires sooner than this is marked."""
DRAFTS_MAX = 200
ANSWER_LINES_MAX = 6
"""Lines of an answer that its confirmation shows."""

OPEN_COLUMNS = (
    Column(title="AGE", width=4, align=">", by="-asked_at"),
    Column(title="AGENT", width=8, flex=1, most=LABEL_MAX, by="agent"),
    Column(title="SKILL", width=8, flex=1, most=20, by="skill"),
    Column(title="WANTS", width=11, flex=4, most=16, by="kind"),
    Column(title="EXPIRES", width=8, drop=1, by="expires_at"),
)
SETTLED_COLUMNS = (
    Column(title="WHAT", width=11),
    Column(title="AGE", width=4, align=">"),
    Column(title="AGENT", width=8, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=8, flex=1, most=20),
    Column(title="BY", width=8, drop=1),
)


def open_row(question: QuestionRow, now: datetime) -> TableRow:
    expiry = line(("never", MUTED))
    if question.expires_at is not None:
        left = (question.expires_at - now).total_seconds()
        soon = left < SOON_S
        expiry = line((("now" if left <= 0 else f"in {age(left)}") + " !" * soon, Tone.WARN if soon else Tone.PLAIN))
    return TableRow(
        (
            line(since(question.asked_at, now)),
            line((question.agent or "-", STRONG)),
            line(question.skill or "-"),
            line(WANTS[question.kind].piece),
            expiry,
        )
    )


def fields(question: QuestionRow, now: datetime) -> dict[str, str]:
    """The fields for filters. A question that expires soon is a problem."""
    soon = question.expires_at is not None and (question.expires_at - now).total_seconds() < SOON_S
    return {
        "agent": question.agent.lower(),
        "skill": question.skill.lower(),
        "state": question.kind,
        "task": f"{question.correlation_id} {question.task_id}".lower(),
        "text": question.text.lower(),
        "origin": origin(question.origin).lower(),
        "problem": "yes" if soon else "no",
    }


def settled_row(question: QuestionRow, now: datetime) -> TableRow:
    return TableRow(
        (
            line(DECISION[question.decision].piece),
            line(since(question.settled_at, now)),
            line(question.agent or "-"),
            line(question.skill or "-"),
            line((question.by or "-", MUTED)),
        )
    )


def title(question: QuestionRow) -> str:
    return f"{question.agent or '-'} / {question.skill or '-'}   task {question.correlation_id}"


def reading(
    question: QuestionRow, detail: TaskDetail | None, now: datetime, width: int, wide: bool, *, source: bool = False
) -> list[Text]:
    """The moments of asking and expiry, the conversation before, the question; if small, the question first."""
    began, ago = "began " if question.veto else "asked ", f", {since(question.asked_at, now)} ago"
    pieces = [line((began, MUTED), f"{question.asked_at:%H:%M:%S}Z", (ago, MUTED))]
    if question.checkpoint > 1:
        pieces.append(line(("question ", MUTED), str(question.checkpoint)))
    if question.origin:
        pieces.append(line(("from ", MUTED), origin(question.origin)))
    facts = [fitted(pieces, width)]
    if question.decision:
        facts.append(line(DECISION[question.decision].piece, (f" {since(question.settled_at, now)} ago", MUTED)))
    elif question.expires_at is not None:
        ends = "may be stopped until" if question.veto else "expires"
        alone = question.veto or question.question_id.startswith("limit-")
        then = "after that it goes on by itself" if alone else "the task is then cancelled"
        left = age((question.expires_at - now).total_seconds())
        facts.append(fitted([line((f"{ends} {moment(question.expires_at, now)}, in {left}; {then}", MUTED))], width))
    before: list[Text] = []
    agent = question.agent or "agent"
    if detail is not None:
        turns = detail.turns[:-1] if detail.turns and detail.turns[-1].agent else detail.turns
        before += conversation(turns, width, source=source)
        if detail.text and detail.row.open:
            before += [*spoken(agent, None, detail.text[-600:], width, source=source), BLANK]
    text = spoken(agent, question.asked_at, question.text or "(no text)", width, source=source)
    if question.cut:
        text.append(left_out(f"the first {len(question.text):,} of {question.chars:,} characters"))
    text += [line((part, MUTED)) for part in question.parts]
    return [*facts, BLANK, *before, *text] if wide else [*text, BLANK, *facts, BLANK, *before]


def sending(question: QuestionRow, draft: str, width: int, to: int, key: Callable[[str], str]) -> list[Text]:
    """The keys with their effects (``key`` brings that of an action), and the destination: ``to`` questions."""
    back = line((key("back"), Tone.PRIMARY), (" back", MUTED))
    if question.veto:
        return [fitted([line((key("reject"), Tone.PRIMARY), (" veto, cancels the task", MUTED)), back], width)]
    send = line((key("send"), Tone.PRIMARY), (" send", MUTED))
    reject = line((key("reject"), Tone.PRIMARY), (" reject, cancels the task", MUTED))
    same = line(("goes to the same task ", MUTED), question.task_id or question.correlation_id[:8])
    goes = [
        line(("goes to ", MUTED), (f"{to} marked questions", Tone.WARN)) if to > 1 else same,
        line((f"{len(draft):,} characters", MUTED)),
    ]
    if question.asks_for_data:
        schema = (" it must match a schema, see fleetsim inbox show", MUTED)
        goes.insert(0, line(("type JSON:", Tone.PRIMARY), schema))
    if question.context_id:
        goes.append(line(("context ", MUTED), question.context_id))
    return [fitted([send, reject, back], width), fitted(goes, width)]


EMPTY = (
    line(("✓ ", Tone.GOOD), ("Nothing waits for you.", STRONG)),
    line(("An agent that asks shows up here at once.", MUTED)),
)
"""An inbox without questions."""


class AnswerBox(TextArea):
    """The field for an answer. Pasted text is neutralised before it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+e", "app.act('edit')", "editor", show=False, id="edit")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id, classes="framed", soft_wrap=True, show_line_numbers=False, tab_behavior="focus", compact=True
        )
        self.cursor_blink = False
        self.border_title = "Your answer"

    async def _on_paste(self, event: events.Paste) -> None:
        """Textual goes on to the text area's own handler with the same event."""
        event.text = neutralise(event.text)


class InboxPane(Pane):
    """Questions at the left, the open one at the right. Each keeps its own draft while the cursor moves on."""

    NAME = ScreenName.INBOX

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.drafts: dict[str, str] = {}
        self.current: QuestionRow | None = None
        self._typed_for: str | None = None

    def compose(self) -> ComposeResult:
        self.main = Grid(OPEN_COLUMNS, id="questions", classes="framed")
        self._settled = Grid(SETTLED_COLUMNS, id="settled", classes="framed -bare", hold=False)
        self._reading = Page(id="reading")
        self.box = AnswerBox(id="answer")
        self._sending = Lines(id="sending")
        with Horizontal(id="inbox-all"):
            with Vertical(id="inbox-left"):
                yield self.main
                yield self._settled
            with Vertical(id="inbox-right"):
                yield self._reading
                yield self.box
                yield self._sending

    def draw(self, view: View) -> None:
        second, now = int(view.now.timestamp()), view.now
        more = f", {len(view.vetoes)} may be stopped" if view.vetoes else ""
        self.main.set_titles(f"Waiting for you ({len(view.questions)}){more}")
        waiting = [q for q in (*view.questions, *view.vetoes) if self.query_now.matches(fields(q, now))]
        empty = self.instead(view, (*view.questions, *view.vetoes), *EMPTY)
        self.main.show(Rows(waiting, lambda q: q.question_id, lambda q: open_row(q, now), second), empty=empty)
        count = len(view.settled)
        cut = count == SETTLED_MAX
        self._settled.set_titles(f"The newest {count} settled" if cut else f"Settled since {view.beginning} ({count})")
        self._settled.set_class(not view.settled, "-bare")
        settled = Rows(view.settled, lambda q: q.question_id, lambda q: settled_row(q, now), second)
        self._settled.show(settled)
        self._choose(view)
        question = self.current
        self.set_class(question is not None and not question.decision and self.host.may("reply"), "-question")
        self.set_class(question is not None and question.veto, "-veto")
        self._reading.set_class(question is None, "-bare")
        self.set_class(question is None, "-idle")
        if question is None:
            return
        if question.cut and not question.decision:
            question = self.with_whole(question)
        detail, wide = self.host.detail(question.correlation_id), self.size_class is Size.FULL
        self._reading.set_titles(title(question))
        about = (question, detail, wide, second, self.source)
        self._reading.show(about, lambda width: reading(question, detail, now, width, wide, source=self.source))
        to = sum(not row.veto for row in self.chosen_questions())
        room = max(20, self._sending.inner_width)
        self._sending.show(sending(question, self.box.text, room, to, self.host.key))

    def _choose(self, view: View) -> None:
        """The question under the cursor, or the question whose answer a person is typing."""
        typed_for = view.question(self._typed_for or "") if self.box.has_focus else None
        if self.box.has_focus and self._typed_for and typed_for is None:
            over = next((row for row in view.settled if row.question_id == self._typed_for), None)
            what, by = (over.decision, over.by) if over else ("settled", "")
            by = f" by {by}" if by else ""
            self.host.say(f"{what}{by} meanwhile; your text was not sent", Tone.WARN, FAILED_S)
            self._keep_draft()
            self.main.focus()
        if typed_for is not None:
            self.current = typed_for
        elif self._settled.has_focus:
            self.current = next((row for row in view.settled if row.question_id == self._settled.key), None)
        else:
            self.current = view.question(self.main.key or "")
        question_id = self.current.question_id if self.current is not None and self.answerable else None
        if question_id != self._typed_for:
            self._keep_draft()
            self._typed_for = question_id
            self.box.load_text(self.drafts.get(question_id or "", ""))

    @property
    def answerable(self) -> bool:
        return self.current is not None and not self.current.decision and not self.current.veto

    def _keep_draft(self) -> None:
        if self._typed_for is None:
            return
        self.drafts.pop(self._typed_for, None)
        if self.box.text:
            self.drafts[self._typed_for] = self.box.text
        while len(self.drafts) > DRAFTS_MAX:
            del self.drafts[next(iter(self.drafts))]

    def _taken(self, question_id: str) -> None:
        """The answer was sent: drop its draft."""
        self.drafts.pop(question_id, None)
        if question_id == self._typed_for:
            self.box.load_text("")
            self.main.focus()

    def status(self, view: View) -> str:
        oldest = f", oldest {since(view.questions[0].asked_at, view.now)}" if view.questions else ""
        return f"{len(view.questions)} waiting{oldest}   {len(view.settled)} settled"

    def chosen_task(self) -> str | None:
        return self.current.correlation_id if self.current else None

    def copyable(self) -> str | None:
        return self.chosen_task()

    def opened(self, grid: Grid, key: str) -> None:
        """Start an answer, or open the question on a small screen."""
        self.add_class("-opened")
        if grid is self.main and self.host.may("reply"):
            self.action_reply()
        self.host.draw_soon()

    def back(self) -> bool:
        """Go back to the list and keep the draft."""
        moved = self.box.has_focus or (self.has_class("-opened") and self.size_class is Size.LIST)
        super().back()
        return moved

    def action_reply(self) -> None:
        if self.answerable:
            self.add_class("-opened")
            self.screen.set_focus(self.box)  # at once: the next key may already be in the queue

    async def action_edit(self) -> None:
        """Write the answer in an editor; it is not sent yet."""
        if not self.answerable:
            return
        question = self._typed_for
        try:
            text = await outside.edit(self.app, self.box.text, os.environ)
        except FleetsimError as error:
            self.host.say(f"{error}: {error.hint}" if error.hint else str(error), Tone.WARN)
            return
        if question != self._typed_for:
            self.drafts[question or ""] = text
        else:
            self.box.load_text(text)
            self.action_reply()

    def chosen_questions(self) -> list[QuestionRow]:
        """The marked questions, else the open one; without those that are settled."""
        view = self.host.view
        marked = [row for key in self.main.marked if (row := view.question(key))]
        return marked or [row for row in (self.current,) if row is not None and not row.decision]

    def chosen_tasks(self) -> list[str]:
        return [row.correlation_id for row in self.chosen_questions()]

    def action_send_answer(self) -> None:
        text, rows = self.box.text, [row for row in self.chosen_questions() if not row.veto]
        if not rows:
            return
        if not text.strip():
            self.host.say("type an answer first", Tone.WARN)
            return

        async def send(question_id: str) -> str:
            said = await self.host.controls.answer(question_id, text)
            self._taken(question_id)
            return said

        what = counted("Send this answer to", "question", [f"{row.agent} / {row.skill}" for row in rows])
        what += [BLANK, *spoken("you", None, text, 56, source=True)[:ANSWER_LINES_MAX]]
        jobs = {row.question_id: partial(send, row.question_id) for row in rows}
        done = "answer sent" if len(rows) == 1 else f"sent to {len(rows)} questions"
        self.act_on("Answer", jobs, what, "the answer was not sent", done, ask=False)

    def action_reject(self) -> None:
        """Reject questions and veto requests, after a confirmation."""
        rows = self.chosen_questions()
        if not rows:
            return

        async def reject(row: QuestionRow) -> str:
            if row.veto:
                await self.host.controls.veto(row.correlation_id)
                return f"vetoed; {row.agent} is asked to stop"
            await self.host.controls.reject(row.question_id)
            self._taken(row.question_id)
            return "rejected; the task is being cancelled"

        one, cancelled = rows[0], line(("Its task is cancelled.", MUTED))
        title, agent, failed = ("Veto" if one.veto else "Reject"), (one.agent, STRONG), "not rejected"
        if len(rows) > 1:
            what = counted("Reject", "question", [f"{row.agent} / {row.skill}" for row in rows])
            what.append(line(("Their tasks are cancelled.", MUTED)))
        elif one.veto:
            what, failed = [line("Stop ", agent, f" at work on {one.skill}?"), cancelled], "not vetoed"
        else:
            what = [line("Reject the question of ", agent, f" about {one.skill}?"), cancelled]
        jobs = {row.question_id: partial(reject, row) for row in rows}
        self.act_on(title, jobs, what, failed, f"rejected {len(rows)} questions")
