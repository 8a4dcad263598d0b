"""Questions that wait for a person, and what became of the ones before. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime

from fleetsim.dashboard import read
from fleetsim.model.journal import Event
from fleetsim.model.text import one_line

SETTLED_MAX = 100
OPEN_MAX = 1_000
VETO = "veto"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """A question, or work that may still be stopped (kind ``veto``).

    ``decision`` is empty while it is open, else answer, reject, expired, withdrawn, vetoed or lapsed. ``parts`` say
    which data and files it came with.
    """

    question_id: str
    correlation_id: str
    agent: str
    skill: str
    task_id: str
    context_id: str
    kind: str
    text: str
    origin: str
    asked_at: datetime
    expires_at: datetime | None
    checkpoint: int
    decision: str = ""
    by: str = ""
    settled_at: datetime | None = None
    chars: int = 0
    asks_for_data: bool = False
    parts: tuple[str, ...] = ()

    @property
    def cut(self) -> bool:
        """Whether ``text`` is only the first of its ``chars`` characters."""
        return self.chars > len(self.text)

    @property
    def veto(self) -> bool:
        """Whether nobody waits for an answer here: it is work that a person may stop."""
        return self.kind == VETO


class InboxFold:
    """Open questions by id, open veto windows by correlation id, and the newest settled of both."""

    def __init__(self) -> None:
        self._vetoes: dict[str, QuestionRow] = {}
        self._open: dict[str, QuestionRow] = {}
        self._settled: deque[QuestionRow] = deque(maxlen=SETTLED_MAX)

    def request(self, event: Event) -> QuestionRow | None:
        """``hitl.request.*``; None if the event names no question."""
        payload = event.payload
        key = payload.get("questionId")
        if not isinstance(key, str) or not key or len(self._open) >= OPEN_MAX:
            return None
        row = QuestionRow(
            question_id=key,
            correlation_id=event.correlation_id or "",
            agent=one_line(event.agent or "", 100),
            skill=one_line(event.skill or "", 100),
            task_id=one_line(event.task_id or "", 200),
            context_id=read.text(payload, "contextId"),
            kind=read.text(payload, "kind", 40) or "input-required",
            text=read.prose(payload, "question", 16_384),
            origin=read.text(payload, "systemActor", 100),
            asked_at=event.at,
            expires_at=read.moment(payload, "expiresAt"),
            checkpoint=read.count(payload, "checkpoint") or 1,
            chars=read.count(payload, "textChars") or 0,
            asks_for_data=read.flag(payload, "asksForData") or False,
            parts=read.parts(payload),
        )
        self._open[key] = row
        return row

    def settle(self, event: Event, decision: str, by: str = "") -> QuestionRow | None:
        """``hitl.response.*`` and ``hitl.expired.*``; None if the question was not open."""
        key = event.payload.get("questionId")
        row = self._open.pop(key, None) if isinstance(key, str) else None
        return self._close(row, event.at, decision, by) if row else None

    def veto(self, event: Event) -> None:
        """``hitl.veto.*``: a window opens, is used, or closes by itself."""
        cid, decision = event.correlation_id or "", event.payload.get("decision")
        if decision == "open":
            if len(self._vetoes) < OPEN_MAX:
                self._vetoes[cid] = _window(event, cid)
            return
        row = self._vetoes.pop(cid, None)
        if row is not None and decision in {"vetoed", "lapsed"}:
            self._close(row, event.at, str(decision), read.text(event.payload, "decidedBy", 60))

    def vetoes(self, now: datetime) -> tuple[QuestionRow, ...]:
        """Work that may still be stopped, the oldest first. A window that nobody was there to close is closed."""
        return tuple(row for row in self._vetoes.values() if row.expires_at is None or row.expires_at > now)

    def withdraw(self, correlation_id: str | None, at: datetime) -> None:
        """The task ended: nobody waits for its questions any more, and there is nothing to stop."""
        self._vetoes.pop(correlation_id or "", None)
        for row in [row for row in self._open.values() if row.correlation_id == correlation_id]:
            del self._open[row.question_id]
            self._close(row, at, "withdrawn", "")

    def _close(self, row: QuestionRow, at: datetime, decision: str, by: str) -> QuestionRow:
        settled = replace(row, decision=decision, by=by, settled_at=at)
        self._settled.appendleft(settled)
        return settled

    def open(self) -> tuple[QuestionRow, ...]:
        """Open questions, the longest waiting first."""
        return tuple(self._open.values())

    def settled(self) -> tuple[QuestionRow, ...]:
        """Settled questions, newest first."""
        return tuple(self._settled)


def _window(event: Event, cid: str) -> QuestionRow:
    skill = one_line(event.skill or "", 100)
    return QuestionRow(
        question_id=f"{VETO}:{cid}",
        correlation_id=cid,
        agent=one_line(event.agent or "", 100),
        skill=skill,
        task_id=one_line(event.task_id or "", 200),
        context_id="",
        kind=VETO,
        text=f"{skill or 'The work'} has begun. Until the window closes you may stop it; then it goes on by itself.",
        origin="",
        asked_at=event.at,
        expires_at=read.moment(event.payload, "expiresAt"),
        checkpoint=1,
    )
