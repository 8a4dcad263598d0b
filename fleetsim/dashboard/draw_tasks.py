"""The tasks screen: the list, one task's story and its live text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from fleetsim.dashboard.controls import WholeText
from fleetsim.dashboard.draw_fleet import LABEL_MAX, origin
from fleetsim.dashboard.labels import STATE, Tone, mark_of, money, since, took
from fleetsim.dashboard.text import BLANK, Column, Line, TableRow, fitted, line, muted, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_inbox import QuestionRow
from fleetsim.dashboard.view_tasks import Step, TaskDetail, TaskRow
from fleetsim.model.text import one_line, placeholder

SILENT_S = 30
"""A working task that has not been heard of for so long is shown as silent."""

COLUMNS = (
    Column(title="STATE", width=11),
    Column(title="TASK", width=8, drop=3),
    Column(title="AGENT", width=10, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=12, flex=1, most=20),
    Column(title="ORIGIN", width=16, flex=2, most=32, drop=5),
    Column(title="AGE", width=4, align=">"),
    Column(title="VIA", width=6, drop=4),
    Column(title="LAST UPDATE", width=12, flex=5, drop=2),
    Column(title="TRY", width=3, align=">", drop=6),
)


def row(task: TaskRow, now: datetime) -> TableRow:
    """One task as a row."""
    role = Tone.PLAIN if task.open else Tone.MUTED
    cells = (
        line(mark_of(STATE, task.state)),
        line(muted(task.correlation_id[:8])),
        line((task.agent or "-", Tone.STRONG if task.open else Tone.MUTED)),
        line((task.skill or "-", role)),
        line(muted(origin(task.origin))),
        line((since(task.ended_at or task.since, now), role)),
        line(muted(task.via or "-")),
        last_update(task, now),
        line((str(task.attempt), Tone.WARN if task.attempt > 1 else Tone.MUTED)),
    )
    return TableRow(key=task.correlation_id, cells=cells)


def last_update(task: TaskRow, now: datetime) -> Line:
    """What was heard last, and how long ago if the task is at work."""
    if not task.open:
        return line(muted(task.last or "-")) if task.success else line((task.last or "-", Tone.WARN))
    quiet = (now - task.updated_at).total_seconds()
    if task.waiting:
        return line((task.last or "-", Tone.ACCENT))
    if task.state == "working" and quiet >= SILENT_S:
        return line((f"silent for {since(task.updated_at, now)}", Tone.WARN), muted("  " + task.last))
    return line(muted(f"{since(task.updated_at, now)} "), task.last or "-")


def fields(task: TaskRow) -> dict[str, str]:
    """What a filter looks at."""
    return {
        "state": f"{task.state} {mark_of(STATE, task.state).word}",
        "agent": task.agent.lower(),
        "skill": task.skill.lower(),
        "origin": origin(task.origin).lower(),
        "via": task.via,
        "task": task.correlation_id.lower() + " " + task.task_id.lower(),
        "text": task.last.lower(),
    }


def summary(shown: int, view: View) -> str:
    """The status line."""
    c = view.counters
    states = f"{c.waiting} waiting   {c.working} working   {c.submitted} submitted   {c.finished:,} finished"
    return f"{shown:,} of {len(view.tasks):,} shown   {states}"


def title(detail: TaskDetail) -> Line:
    """The head of a task's panel."""
    row = detail.row
    return line(f"{row.correlation_id}  {row.agent or '-'} / {row.skill or '-'}")


def facts(detail: TaskDetail, now: datetime, width: int) -> list[Line]:
    """What is known of a task, a name and a value per line."""
    row = detail.row
    mark = mark_of(STATE, row.state)
    age = took((row.ended_at - row.created_at).total_seconds() * 1000) if row.ended_at else since(row.since, now)
    pairs: list[tuple[str, Line]] = [
        ("state", line(mark, muted(f"  {'after' if row.ended_at else 'for'} {age}"))),
        ("agent", line(row.agent or "-", muted(" / "), row.skill or "-")),
        ("origin", line(origin(row.origin))),
        ("task", line(row.task_id or "not bound yet")),
        ("context", line(detail.context_id or "-")),
        (
            "via",
            fitted(
                [
                    line(row.via or "-"),
                    line(muted("wire "), detail.dialect or "?"),
                    line(muted("try "), str(row.attempt)),
                ],
                40,
            ),
        ),
    ]
    used = [line(f"${money(row.cost_usd)}")] if row.cost_usd is not None else []
    if detail.tokens:
        used.append(line(muted("tokens "), f"{detail.tokens[0]:,} in {detail.tokens[1]:,} out"))
    if detail.confidence is not None:
        used.append(line(muted("sure "), f"{detail.confidence:.0%}"))
    if used:
        pairs.append(("used", fitted(used, width - 9)))
    return [(*line(muted(f"{name:<8} ")), *fitted([value], width - 9)) for name, value in pairs]


def story(detail: TaskDetail, now: datetime, width: int) -> list[Line]:
    """Facts, then what happened, the newest last."""
    lines = facts(detail, now, width)
    lines.append(BLANK)
    lines += [_step(step, width) for step in detail.steps]
    return lines


def _step(step: Step, width: int) -> Line:
    mark = mark_of(STATE, step.state) if step.state else None
    role = Tone.PRIMARY if step.arrow == "→" else Tone.MUTED
    pieces = [
        line(muted(f"{step.at:%H:%M:%S}"), " ", (step.arrow, role)),
        line(mark) if mark else BLANK,
        line(muted(step.via)),
        line(step.what),
    ]
    return _clipped(pieces, width)


def _clipped(pieces: Sequence[Line], width: int) -> Line:
    joined: list[tuple[str, Tone]] = []
    for piece in pieces:
        if any(text for text, _ in piece):
            joined += [*([(" ", Tone.PLAIN)] if joined else []), *piece]
    return fitted([tuple(joined)], width)


def live_title(detail: TaskDetail | None, follow: bool) -> Line:
    """The head of the live text."""
    if detail is None:
        return line("Live output")
    word = "Answer" if detail.final else "Live output"
    pieces = [line(word)]
    if detail.cut:
        pieces.append(line((amount(detail), Tone.WARN)))
    elif detail.chars:
        pieces.append(line(muted(amount(detail))))
    if not detail.final:
        pieces.append(line(("FOLLOW", Tone.GOOD) if follow else muted("f follow")))
    return fitted(pieces, 100, gap=3)


def amount(detail: TaskDetail) -> str:
    """How much of the text is shown."""
    if detail.gaps:
        return f"excerpts of {detail.chars:,} characters"
    if detail.shown < detail.chars:
        return f"the {'first' if detail.first else 'last'} {detail.shown:,} of {detail.chars:,} characters"
    return f"{detail.chars:,} characters"


def with_whole(detail: TaskDetail, whole: WholeText) -> TaskDetail:
    """The task with all of its text, instead of what the events had."""
    return replace(detail, text=whole.text, shown=len(whole.text), chars=whole.chars, first=True, gaps=False)


def live(detail: TaskDetail, question: QuestionRow | None, width: int) -> list[Line]:
    """What was asked, what the agent has said, and what it waits for or how it ended."""
    row = detail.row
    lines: list[Line] = []
    if detail.request or detail.sent:
        lines += spoken("you", "\n".join(filter(None, (detail.request, *detail.sent))), width, Tone.MUTED)
        if detail.request_chars > len(detail.request):
            lines.append(mark(f"the first {len(detail.request):,} of {detail.request_chars:,} characters"))
        lines.append(BLANK)
    if detail.final and not row.success:
        state = mark_of(STATE, row.state)
        lines += [line(state), *wrap(row.reason or "no reason given", width, state.role), BLANK]
    if detail.cut and not detail.first:
        lines.append(mark(amount(detail)))
    if detail.text:
        lines += wrap(detail.text, width)
    elif detail.final and row.success:
        lines += wrap(placeholder(row.skill, row.agent or "the agent"), width, Tone.MUTED)
    if detail.cut and detail.first:
        lines.append(mark(amount(detail)))
    if detail.parts:
        lines += [BLANK] if detail.text else []
        for part in detail.parts:
            lines += wrap(part, width)
        if left := detail.parts_total - len(detail.parts):
            lines.append(line(muted(f"and {left:,} more")))
        lines += wrap(f"to save them: fleetsim task download {one_line(row.correlation_id)}", width, Tone.MUTED)
    if row.waiting:
        lines += [BLANK] if detail.text else []
        asked = question.text if question else row.last
        lines += spoken(row.agent or "agent", asked, width, Tone.ACCENT)
        lines += [BLANK, line(muted("press "), ("r", Tone.PRIMARY), muted(" to answer"))]
    elif not detail.text and not detail.parts and not detail.final:
        lines.append(line(muted("nothing said yet")))
    return lines


def mark(words: str) -> Line:
    """Where a text is not whole."""
    return line((f"… {words}", Tone.WARN))


def spoken(who: str, text: str, width: int, role: Tone) -> list[Line]:
    """Who said it in the margin, the text beside it."""
    margin = min(12, max(5, len(who) + 2))
    lines = wrap(text, width - margin, role)
    name = who[: margin - 1].ljust(margin)
    first = (*line(muted(name)), *lines[0]) if lines else line(muted(name))
    return [first, *((*line(" " * margin), *one) for one in lines[1:])]
