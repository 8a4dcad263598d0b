"""What is told of what happened: events become notices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetsim.caller.channels.alerts import AlertKey, AlertKind
from fleetsim.caller.channels.notice import TEXT_CHARS_MAX, Notice, Tone
from fleetsim.caller.events import QuestionAsked, QuestionExpired, QuestionOverdue
from fleetsim.caller.fleet_events import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
)
from fleetsim.caller.jsonable import iso
from fleetsim.caller.ledger import RunStatus
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, QuestionKind

_ANSWERS_MAX = 10


def of_run(event: CeremonyCompleted, outcomes: Sequence[Outcome]) -> Notice:
    """How a ceremony's run went: name, status, skill, who did it, how long it took, and what was answered."""
    agents = ", ".join(dict.fromkeys(outcome.agent for outcome in outcomes)) or "nobody"
    lasted = "" if event.duration_ms is None else f" in {event.duration_ms / 1000:.1f} s"
    headline = f"{_name(event)}: {event.status}{lasted} ({one_line(event.skill or '', 60)}, {one_line(agents, 60)})"
    whole = f"task get {outcomes[0].correlation_id}" if len(outcomes) == 1 else f"ceremony history {event.ceremony_id}"
    return Notice(
        kind="run",
        at=event.at,
        tone=Tone.GOOD if event.status == RunStatus.SUCCESS.value else Tone.BAD,
        headline=headline,
        text=_answers(outcomes) or event.error,
        command=f"fleetsim {whole}",
        correlation_id=event.run_id,
        facts={
            "ceremonyId": event.ceremony_id,
            "runId": event.run_id,
            "status": event.status,
            "skill": event.skill,
            "durationMs": event.duration_ms,
            "error": event.error,
            "outcomes": [_facts(outcome) for outcome in outcomes],
        },
    )


def of_slot(event: CeremonyLate | CeremonyMissed | CeremonySkipped) -> Notice:
    """A slot that fired late, or not at all."""
    match event:
        case CeremonyLate():
            what, why, count = "late", f"began {event.lateness_ms / 1000:.0f} s after its time", 1
        case CeremonyMissed():
            what, why, count = "missed", event.why, event.count
        case CeremonySkipped():
            what, why, count = "skipped", event.why, event.count
    slots = f", {count} slots" if count > 1 else ""
    return Notice(
        kind="run",
        at=event.at,
        tone=Tone.BAD,
        headline=f"{_name(event)}: {what}{slots} ({one_line(event.skill or '', 60)})",
        text=why,
        command=f"fleetsim ceremony history {event.ceremony_id}",
        correlation_id=event.correlation_id,
        facts={
            "ceremonyId": event.ceremony_id,
            "status": what,
            "skill": event.skill,
            "scheduledAt": iso(event.scheduled_at) if event.scheduled_at else None,
            "slots": count,
            "error": why,
        },
    )


def of_question(event: QuestionAsked | QuestionOverdue | QuestionExpired, link: str = "") -> Notice:
    """What an agent waits for, with the command that answers it; that it still waits; that nobody answered in time.

    In ``link`` the question's and the request's id are filled in; it leads to whatever the operator has there.
    """
    about = f"{event.agent or 'an agent'} ({one_line(event.skill or '', 60)})"
    text = command = ""
    match event:
        case QuestionAsked():
            what = f"{about} needs credentials" if event.kind == QuestionKind.AUTH.value else f"{about} asks"
            answer = "--data '{…}'" if event.asks_for_data else '"your answer"'
            text, command = event.question.text, f"fleetsim inbox reply {event.question_id} {answer}"
        case QuestionOverdue():
            what = f"{about} still waits for an answer"
            text, command = event.question.text, f'fleetsim inbox reply {event.question_id} "your answer"'
        case QuestionExpired():
            what = f"nobody answered {about} in time"
    expires_at = None if isinstance(event, QuestionExpired) or event.expires_at is None else iso(event.expires_at)
    return Notice(
        kind="question",
        at=event.at,
        tone=Tone.BAD if isinstance(event, QuestionExpired) else Tone.ASKS,
        headline=what + (f", until {expires_at[:16].replace('T', ' ')}Z" if expires_at else ""),
        text=text,
        command=command,
        link=link.format(questionId=event.question_id, correlationId=event.correlation_id or "") if command else "",
        correlation_id=event.correlation_id,
        facts={
            "questionId": event.question_id,
            "agent": event.agent,
            "skill": event.skill,
            "status": {QuestionAsked: "asked", QuestionOverdue: "overdue"}.get(type(event), "expired"),
            "expiresAt": expires_at,
        },
    )


def of_alert(event: AlertRaised | AlertCleared) -> Notice:
    """Something is wrong with the fleet, or not any more."""
    key, raised = AlertKey(AlertKind(event.kind), event.subject), isinstance(event, AlertRaised)
    lasted_s = (event.at - (event.since or event.at)).total_seconds()
    lasted = f" (it lasted {_minutes(lasted_s)})" if lasted_s >= 60 else ""
    return Notice(
        kind="alert" if raised else "recovery",
        at=event.at,
        tone=Tone.BAD if raised else Tone.GOOD,
        headline=f"alert: {key.what}" if raised else f"over: {key.what}{lasted}",
        text=event.detail if isinstance(event, AlertRaised) else "",
        command="fleetsim ceremony list" if key.kind is AlertKind.CEREMONY_MISSED else "fleetsim health",
        facts={
            "alert": event.kind,
            "subject": event.subject,
            "detail": event.detail if isinstance(event, AlertRaised) else None,
            "since": iso(event.since) if event.since else None,
        },
    )


def _minutes(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _name(event: CeremonyCompleted | CeremonyLate | CeremonyMissed | CeremonySkipped) -> str:
    return f"{one_line(event.name, 80)} [{event.ceremony_id[:60]}]" if event.name else event.ceremony_id


def _answers(outcomes: Sequence[Outcome]) -> str:
    """What was answered, or why it was not; of several agents a part of each."""
    said = [(outcome.agent, outcome.text.strip() or outcome.reason) for outcome in outcomes[:_ANSWERS_MAX]]
    if len(said) <= 1:
        return said[0][1] if said else ""
    share = TEXT_CHARS_MAX // len(said) - 80
    lines = [f"{one_line(agent, 64)}: {one_line(text, share)}" for agent, text in said]
    more = len(outcomes) - len(said)
    return "\n".join([*lines, *([f"and {more} more"] if more else [])])


def _facts(outcome: Outcome) -> dict[str, object]:
    return {
        "correlationId": outcome.correlation_id,
        "agent": outcome.agent,
        "state": outcome.kind.value,
        "success": outcome.success,
        "costUsd": outcome.cost_usd,
    }
