"""The inbox: questions that wait, the one being read, and what was settled. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from fleetsim.dashboard.controls import WholeText
from fleetsim.dashboard.draw_fleet import LABEL_MAX, origin
from fleetsim.dashboard.draw_tasks import mark, spoken
from fleetsim.dashboard.labels import DECISION, WANTS, Tone, mark_of, near, since, span
from fleetsim.dashboard.text import BLANK, Column, Line, TableRow, fitted, line, muted, strong
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_inbox import QuestionRow
from fleetsim.dashboard.view_tasks import TaskDetail

SOON_S = 600
"""A question that expires this soon is marked."""

OPEN_COLUMNS = (
    Column(title="AGE", width=4, align=">"),
    Column(title="AGENT", width=8, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=8, flex=1, most=20),
    Column(title="WANTS", width=11),
    Column(title="EXPIRES", width=8, drop=1),
)
SETTLED_COLUMNS = (
    Column(title="WHAT", width=11),
    Column(title="AGE", width=4, align=">"),
    Column(title="AGENT", width=8, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=8, flex=1, most=20),
    Column(title="BY", width=8, drop=1),
)


def open_row(question: QuestionRow, now: datetime) -> TableRow:
    """One question that waits."""
    cells = (
        line(since(question.asked_at, now)),
        line(strong(question.agent or "-")),
        line(question.skill or "-"),
        line(mark_of(WANTS, question.kind)),
        _expiry(question, now),
    )
    return TableRow(key=question.question_id, cells=cells)


def _expiry(question: QuestionRow, now: datetime) -> Line:
    if question.expires_at is None:
        return line(muted("never"))
    left = (question.expires_at - now).total_seconds()
    if left <= 0:
        return line(("now !", Tone.WARN))
    return line((f"in {span(left)} !", Tone.WARN)) if left < SOON_S else line(f"in {span(left)}")


def settled_row(question: QuestionRow, now: datetime) -> TableRow:
    """One question that is over."""
    cells = (
        line(mark_of(DECISION, question.decision)),
        line(since(question.settled_at, now)),
        line(question.agent or "-"),
        line(question.skill or "-"),
        line(muted(question.by or "-")),
    )
    return TableRow(key=question.question_id, cells=cells)


def title(question: QuestionRow) -> Line:
    """The head of the question's panel."""
    return line(f"{question.agent or '-'} / {question.skill or '-'}   task {question.correlation_id}")


def with_whole(question: QuestionRow, whole: WholeText | None) -> QuestionRow:
    """The question with all of its text, if that has come."""
    return question if whole is None else replace(question, text=whole.text, chars=whole.chars)


def reading(question: QuestionRow, detail: TaskDetail | None, now: datetime, width: int, roomy: bool) -> list[Line]:
    """When it was asked and until when, what was said before, and the question; without room, that first."""
    said: list[Line] = []
    if detail is not None and detail.request:
        said += [*spoken("you", detail.request, width, Tone.MUTED), BLANK]
    if detail is not None and detail.text and not detail.final:
        said += [*spoken(question.agent or "agent", detail.text[-600:], width, Tone.MUTED), BLANK]
    asked = spoken(question.agent or "agent", question.text or "(no text)", width, Tone.STRONG)
    if question.cut:
        asked.append(mark(f"the first {len(question.text):,} of {question.chars:,} characters"))
    asked += [line(muted(part)) for part in question.parts]
    facts = _facts(question, now, width)
    return [*facts, BLANK, *said, *asked] if roomy else [*asked, BLANK, *facts, BLANK, *said]


def _facts(question: QuestionRow, now: datetime, width: int) -> list[Line]:
    pieces = [
        line(
            muted("began " if question.veto else "asked "),
            f"{question.asked_at:%H:%M:%S}Z",
            muted(f", {since(question.asked_at, now)} ago"),
        ),
        line(muted("from "), origin(question.origin)) if question.origin else (),
    ]
    if question.checkpoint > 1:
        pieces.insert(1, line(muted("question "), str(question.checkpoint)))
    lines = [fitted(pieces, width)]
    if question.decision:
        lines.append(line(mark_of(DECISION, question.decision), muted(f" {since(question.settled_at, now)} ago")))
    elif question.expires_at is not None:
        left = span((question.expires_at - now).total_seconds())
        when = f"{_ends(question)} {near(question.expires_at, now)}, in {left}; {_then(question)}"
        lines.append(fitted([line(muted(when))], width))
    return lines


def _ends(question: QuestionRow) -> str:
    return "may be stopped until" if question.veto else "expires"


def _then(question: QuestionRow) -> str:
    return "after that it goes on by itself" if question.veto else "the task is then cancelled"


def stopping(width: int) -> list[Line]:
    """What the keys do about work that may be stopped."""
    keys = [
        line(("ctrl+r", Tone.PRIMARY), muted(" veto, cancels the task")),
        line(("esc", Tone.PRIMARY), muted(" back")),
    ]
    return [fitted(keys, width)]


def heading(view: View) -> Line:
    """How many wait, and how many may be stopped."""
    more = f", {len(view.vetoes)} may be stopped" if view.vetoes else ""
    return line(f"Waiting for you ({len(view.questions)}){more}")


def sending(question: QuestionRow, draft: str, width: int) -> list[Line]:
    """What the keys do, and what will go where."""
    keys = fitted(
        [
            line(("ctrl+s", Tone.PRIMARY), muted(" send")),
            line(("ctrl+r", Tone.PRIMARY), muted(" reject, cancels the task")),
            line(("esc", Tone.PRIMARY), muted(" back")),
        ],
        width,
    )
    goes = [
        line(("type JSON: ", Tone.PRIMARY), muted("it must fit a schema, see fleetsim inbox show"))
        if question.asks_for_data
        else (),
        line(muted("goes to the same task "), question.task_id or question.correlation_id[:8]),
        line(muted(f"{len(draft):,} characters")),
        line(muted("context "), question.context_id) if question.context_id else (),
    ]
    return [keys, fitted(goes, width)]


def empty(view: View) -> list[Line]:
    """An inbox without questions."""
    return [
        line(("✓ ", Tone.GOOD), strong("Nothing waits for you.")),
        line(muted("An agent that asks shows up here at once.")),
    ]


def summary(view: View) -> str:
    """The status line."""
    oldest = f", oldest {since(view.questions[0].asked_at, view.now)}" if view.questions else ""
    return f"{len(view.questions)} waiting{oldest}   {len(view.settled)} settled"
