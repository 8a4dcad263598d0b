"""Screen 3: read a question, type an answer, send it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from fleetsim.dashboard import draw_inbox
from fleetsim.dashboard.chrome import Keys, Pane, Size
from fleetsim.dashboard.panes.base import PaneBase
from fleetsim.dashboard.text import RowList, line, muted
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_inbox import QuestionRow
from fleetsim.dashboard.widgets import AnswerBox, Grid, Lines, Page

DRAFTS_MAX = 200


class InboxPane(PaneBase):
    """Questions at the left, the one being read and its answer at the right.

    A draft belongs to its question: it stays when the cursor moves on, and what is typed can never reach
    another question.
    """

    PANE = Pane.INBOX
    KEYS: ClassVar[Keys] = (
        ("↵ r", "reply"),
        ("ctrl+s", "send"),
        ("ctrl+r", "reject, veto"),
        ("x", "cancel task"),
        ("y", "copy"),
        ("esc", "back"),
    )

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.drafts: dict[str, str] = {}
        self.current: QuestionRow | None = None
        self._bound: str | None = None
        self.overtaken: QuestionRow | None = None

    def compose(self) -> ComposeResult:
        """Lists, question, answer."""
        self._open = Grid(draw_inbox.OPEN_COLUMNS, id="questions", classes="framed")
        self._settled = Grid(draw_inbox.SETTLED_COLUMNS, id="settled", classes="framed", hold=False)
        self._reading = Page(id="reading")
        self.box = AnswerBox(id="answer")
        self.box.border_title = "Your answer"
        self._sending = Lines(id="sending")
        with Horizontal(id="inbox-all"):
            with Vertical(id="inbox-left"):
                yield self._open
                yield self._settled
            with Vertical(id="inbox-right"):
                yield self._reading
                yield self.box
                yield self._sending

    @property
    def main(self) -> Grid:
        """The open questions."""
        return self._open

    def draw(self, view: View) -> None:
        """Show the view."""
        self._open.entitle(draw_inbox.heading(view))
        rows = [draw_inbox.open_row(row, view.now) for row in (*view.questions, *view.vetoes)]
        self._open.show(RowList(rows), empty=draw_inbox.empty(view))
        self._settled.entitle(line(f"Settled ({len(view.settled)})"))
        settled = RowList([draw_inbox.settled_row(row, view.now) for row in view.settled])
        self._settled.show(settled, empty=[line(muted("Nothing answered yet."))])
        self._choose(view)
        row = self.current
        self.set_class(row is not None and not row.decision, "-question")
        self.set_class(row is not None and row.veto, "-veto")
        self.lacks = None
        if row is not None and row.cut and not row.decision:
            self.lacks = (row.correlation_id, row.chars)
            row = draw_inbox.with_whole(row, self.whole.get(self.lacks))
        if row is None:
            self._reading.entitle(line("Question"))
            self._reading.show([])
            return
        detail = view.details.get(row.correlation_id)
        self._reading.entitle(draw_inbox.title(row))
        self._reading.show(
            draw_inbox.reading(row, detail, view.now, max(20, self._reading.inner_width), self.room is Size.FULL)
        )
        wide = max(20, self._sending.inner_width)
        self._sending.show(draw_inbox.stopping(wide) if row.veto else draw_inbox.sending(row, self.box.text, wide))

    def _choose(self, view: View) -> None:
        """The question under the cursor, unless an answer is being typed: then that one, to its end."""
        typing = self.box.has_focus and self._bound is not None
        if typing and view.question(self._bound or "") is None:
            self.overtaken = next((row for row in view.settled if row.question_id == self._bound), self.current)
            typing = False
            self._keep()
            self.main.focus()
        if typing:
            self.current = view.question(self._bound or "")
        elif self._settled.has_focus:
            self.current = next((row for row in view.settled if row.question_id == self._settled.key), None)
        else:
            self.current = view.question(self._open.key or "")
        self._bind(self.current.question_id if self.current is not None and self.answerable else None)

    @property
    def answerable(self) -> bool:
        """Whether the question being read takes an answer."""
        return self.current is not None and not self.current.decision and not self.current.veto

    def _keep(self) -> None:
        if self._bound is None:
            return
        self.drafts.pop(self._bound, None)
        if self.box.text:
            self.drafts[self._bound] = self.box.text
        while len(self.drafts) > DRAFTS_MAX:
            del self.drafts[next(iter(self.drafts))]

    def _bind(self, question_id: str | None) -> None:
        """Put the draft of this question into the box."""
        if question_id == self._bound:
            return
        self._keep()
        self._bound = question_id
        self.box.load_text(self.drafts.get(question_id or "", ""))

    def taken(self, question_id: str) -> None:
        """The answer went out: forget its draft."""
        self.drafts.pop(question_id, None)
        if question_id == self._bound:
            self.box.load_text("")
            self.main.focus()

    def status(self, view: View) -> str:
        """How many wait, and how long."""
        return draw_inbox.summary(view)

    def wants(self) -> tuple[str, ...]:
        """The task of the question being read."""
        return (self.current.correlation_id,) if self.current else ()

    def chosen_task(self) -> str | None:
        """The question's task."""
        return self.current.correlation_id if self.current else None

    def copyable(self) -> str | None:
        """The question's task."""
        return self.chosen_task()

    def reply(self) -> None:
        """Begin to type."""
        if self.answerable:
            self.add_class("-opened")
            self.call_after_refresh(self.box.focus)

    def opened(self, grid: Grid, key: str) -> None:
        """Begin to type, or read on a small screen."""
        self.add_class("-opened")
        if grid is self._open:
            self.reply()

    def back(self) -> bool:
        """From the answer to the list; the draft stays."""
        moved = self.box.has_focus or (self.has_class("-opened") and self.room is Size.LIST)
        self.remove_class("-opened")
        self.main.focus()
        return moved
