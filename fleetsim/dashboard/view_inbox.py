"""Questions that wait for a person, and what became of the ones before. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime

from fleetsim.caller.events import (
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    QuestionWithdrawn,
    VetoWindowMoved,
)
from fleetsim.dashboard import read
from fleetsim.model.text import neutralise, one_line

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

    def asked(self, event: QuestionAsked) -> QuestionRow | None:
        """Its row; None if the event names no question."""
        key = event.question_id
        if not key or len(self._open) >= OPEN_MAX:
            return None
        row = QuestionRow(
            question_id=key,
            correlation_id=event.correlation_id or "",
            agent=one_line(event.agent or "", 100),
            skill=one_line(event.skill or "", 100),
            task_id=one_line(event.task_id or "", 200),
            context_id=one_line(event.context_id or ""),
            kind=one_line(event.kind, 40) or "input-required",
            text=neutralise(event.question.text, limit=16_384),
            origin=one_line(event.system_actor, 100),
            asked_at=event.at,
            expires_at=event.expires_at,
            checkpoint=event.checkpoint or 1,
            chars=event.question.chars if event.question.truncated else 0,
            asks_for_data=event.asks_for_data,
            parts=read.parts(event.parts),
        )
        self._open[key] = row
        return row

    def settle(
        self, event: QuestionAnswered | QuestionExpired | QuestionWithdrawn, decision: str, by: str = ""
    ) -> None:
        """The question is over, if it was open."""
        if row := self._open.pop(event.question_id, None):
            self._close(row, event.at, decision, by)

    def veto(self, event: VetoWindowMoved) -> None:
        """A window opens, is used, or closes by itself."""
        cid = event.correlation_id or ""
        if event.decision == "open":
            if len(self._vetoes) < OPEN_MAX:
                skill = one_line(event.skill or "", 100)
                begun = f"{skill or 'The work'} has begun."
                self._vetoes[cid] = QuestionRow(
                    question_id=f"{VETO}:{cid}",
                    correlation_id=cid,
                    agent=one_line(event.agent or "", 100),
                    skill=skill,
                    task_id=one_line(event.task_id or "", 200),
                    context_id="",
                    kind=VETO,
                    text=f"{begun} Until the window closes you may stop it; then it goes on by itself.",
                    origin="",
                    asked_at=event.at,
                    expires_at=event.expires_at,
                    checkpoint=1,
                )
            return
        row = self._vetoes.pop(cid, None)
        if row is not None and event.decision in {"vetoed", "lapsed"}:
            self._close(row, event.at, event.decision, one_line(event.decided_by or "", 60))

    def vetoes(self, now: datetime) -> tuple[QuestionRow, ...]:
        """Work that may still be stopped, the oldest first. A window that nobody was there to close is closed."""
        return tuple(row for row in self._vetoes.values() if row.expires_at is None or row.expires_at > now)

    def withdraw(self, correlation_id: str | None, at: datetime) -> None:
        """The task ended: nobody waits for its questions any more, and there is nothing to stop."""
        self._vetoes.pop(correlation_id or "", None)
        for row in [row for row in self._open.values() if row.correlation_id == correlation_id]:
            del self._open[row.question_id]
            self._close(row, at, "withdrawn", "")

    def _close(self, row: QuestionRow, at: datetime, decision: str, by: str) -> None:
        self._settled.appendleft(replace(row, decision=decision, by=by, settled_at=at))

    def open(self) -> tuple[QuestionRow, ...]:
        """Open questions, the longest waiting first."""
        return tuple(self._open.values())

    def settled(self) -> tuple[QuestionRow, ...]:
        """Settled questions, newest first."""
        return tuple(self._settled)
