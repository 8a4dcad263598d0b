"""Small values for the ledger's tests, each with its own name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from fleetsim.events.request import Event
from fleetsim.ledger import (
    CardSnapshot,
    EarlyWebhook,
    Ledger,
    LedgerBroken,
    LedgerLimits,
    NoticeRecord,
    NoticeState,
    RunRecord,
    RunStatus,
    SlotClaim,
)
from fleetsim.ledger.sqlite.file import open_file, open_memory
from fleetsim.ledger.sqlite.storage import Database
from fleetsim.model.errors import Blame
from fleetsim.model.event import Snapshot
from fleetsim.model.task import Artifact, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question, QuestionKind, SkillRequest
from fleetsim.request.limits import Booking, Unit
from fleetsim.request.records import RequestRecord
from tests.outcomes import made
from tests.recorded import recorded

START = datetime(2026, 1, 1, tzinfo=UTC)

SMALL = LedgerLimits(events_max=100, outcomes_min=4, outcomes_max=20, keep_s=3600)

OpenLedger: TypeAlias = Callable[[], Ledger]


def opener(
    path: Path | None, *pragmas: str, one_connection: bool = True, busy_s: float = 5.0
) -> Callable[[], Database]:
    """The callable that a storage opens: the ledger in the file, or in memory, with these SQLite settings."""

    def opening() -> Database:
        opened = open_file(path, START, one_connection=one_connection, busy_s=busy_s) if path else open_memory(START)
        for pragma in pragmas:
            opened.writer.execute(f"PRAGMA {pragma}")
        return opened

    return opening


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def record(name: str, *, agent: str = "a", text: str = "do it") -> RequestRecord:
    return RequestRecord(
        request=SkillRequest(correlation_id=name, text=text, skill="echo", targets=(agent,)),
        agent=agent,
        skill="echo",
        accepted_at=START,
        deadline_at=at(3600),
        message_id=f"m-{name}",
    )


def booking(most: int | None = None, *, limit: str = "daily", **amounts: int) -> Booking:
    unit = Unit.REQUESTS if amounts.get("used") == 1 else Unit.USD
    return Booking(limit=limit, unit=unit, period="2026-01-01", ends=at(86_400), most=most, **amounts)


def task(text: str = "done", state: TaskState = TaskState.WORKING) -> Task:
    artifact = Artifact(artifact_id="x", parts=(TextPart(text=text),))
    return Task(task_id="t", context_id="k", status=TaskStatus(state=state, timestamp=START), artifacts=(artifact,))


def outcome(
    name: str, *, ended: float = 1, kind: OutcomeKind = OutcomeKind.COMPLETED, text: str = "done", agent: str = "a"
) -> Outcome:
    facts = {"kind": kind, "blame": Blame.NOBODY, "ended_at": at(ended), "duration_ms": int(ended * 1000)}
    return made(name, START, success=kind is OutcomeKind.COMPLETED, text=text, agent=agent, **facts)


def question(name: str, request: str) -> Question:
    return Question(
        question_id=name,
        correlation_id=request,
        agent="a",
        skill="echo",
        task_id="t",
        context_id="k",
        kind=QuestionKind.INPUT,
        text="which one?",
        asked_at=START,
        expires_at=at(86_400),
    )


def answer(name: str, text: str = "that one") -> Answer:
    return Answer(question_id=name, text=text)


def run(
    ceremony: str = "daily", slot: float = 0, *, run_id: str = "r-1", status: RunStatus = RunStatus.RUNNING
) -> RunRecord:
    claim = SlotClaim(ceremony_id=ceremony, scheduled_at=at(slot), run_id=run_id)
    return RunRecord(claim=claim, status=status, started_at=at(slot))


def webhook(request: str, text: str = "done", *, agent: str = "a", received: float = 1) -> EarlyWebhook:
    events = (Snapshot(task=task(text, TaskState.COMPLETED)),)
    return EarlyWebhook(
        correlation_id=request, agent=agent, events=events, received_at=at(received), body_bytes=len(text)
    )


def card(agent: str = "a", name: str = "Agent", fetched: float = 0) -> CardSnapshot:
    return CardSnapshot(agent=agent, url="http://a.test", fetched_at=at(fetched), card={"name": name})


def event(seq: int, *, topic: str = "agent.skill.update", request: str | None = None) -> Event:
    return recorded(topic, {"state": f"s{seq}"}, seq=seq, at=at(seq), correlation_id=request)


def notice(subject: str, state: NoticeState = NoticeState.RAISED, *, place: str = "ops slack chat") -> NoticeRecord:
    return NoticeRecord(subject=subject, place=place, state=state, kind="question", until=at(60), content={"ä": 1})


class LostLeases:
    """Collects the reasons for which a hub lost its lease."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def ledger_failed(self, error: LedgerBroken) -> None: ...

    def ledger_refused(self, reason: str) -> None: ...

    def lease_lost(self, why: str) -> None:
        self.reasons.append(why)
