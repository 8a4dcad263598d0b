"""Notices: which notice an event becomes, and its text for each kind of sink. Pure.

Headline and text quote agents. Their content cannot mention anybody (``@everyone``, ``<!channel>``), format or
link anything, or steer a terminal: chats show it inside code marks, which it cannot close.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from fleetsim.api.answer import iso
from fleetsim.channels.alerts import AlertKey, AlertKind
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
)
from fleetsim.events.request import QuestionAsked, QuestionExpired, QuestionOverdue
from fleetsim.ledger import RunStatus
from fleetsim.model.text import neutralise, one_line
from fleetsim.model.work import Outcome, QuestionKind

HEADLINE_CHARS_MAX = 200
TEXT_CHARS_MAX = 1_000
"""The length of a result in Workstacean's notices."""

DISCORD_UNITS_MAX = 2_000
"""Characters of a message, counted as UTF-16 has them so that no reading of Discord's limit is passed."""

_LOG_CHARS, _TITLE_CHARS, _DESKTOP_CHARS = 500, 100, 240
_TICK = "\N{MODIFIER LETTER GRAVE ACCENT}"
_SUPPRESS_EMBEDS = 4


class NoticeKind(StrEnum):
    """The kind of news; its value is shown before the headline."""

    GOOD = "✓"
    BAD = "✗"
    ASKS = "?"
    PLAIN = "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """``kind`` is a word for programs. ``command`` is ours, to be copied; ``facts`` are JSON. ``link`` is the
    operator's own; a link that answers a question is added when the notice is sent.

    ``correlation_id`` is the id of the request or run it is about.
    """

    kind: str
    at: datetime
    tone: NoticeKind
    headline: str
    text: str = ""
    command: str = ""
    link: str = ""
    correlation_id: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def _headline(notice: Notice) -> str:
    return f"{notice.tone.value} {one_line(notice.headline, HEADLINE_CHARS_MAX)}"


def _text(notice: Notice) -> str:
    return neutralise(notice.text, limit=TEXT_CHARS_MAX).strip()


def plain(notice: Notice) -> str:
    """For a program's standard input: the headline on the first line, then the text, the command and the link."""
    blocks = [_headline(notice), _text(notice), "\n".join(filter(None, (notice.command, notice.link)))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def log_line(notice: Notice) -> str:
    """One line, without the link: a log has more readers than a channel."""
    texts = (_headline(notice), one_line(_text(notice), _LOG_CHARS), notice.command)
    return " | ".join(filter(None, texts))


def desktop_texts(notice: Notice) -> tuple[str, str]:
    """Title and text of a notification."""
    blocks = (one_line(_text(notice), _DESKTOP_CHARS), notice.command, notice.link)
    return one_line(_headline(notice), _TITLE_CHARS), "\n".join(filter(None, blocks))


def discord(notice: Notice) -> dict[str, Any]:
    """The JSON of a Discord webhook: mentions nobody, and shows no preview of an address somebody quotes."""
    text = _text(notice)
    while len((content := _chat(notice, text)).encode("utf-16-le", "surrogatepass")) > 2 * DISCORD_UNITS_MAX:
        text = text[: len(text) * 3 // 4].rstrip() + "…"
    # Mentions are switched off as well, in case a text leaves its code marks.
    return {"content": content, "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS}


def slack(notice: Notice) -> dict[str, Any]:
    """The JSON of a Slack webhook; Mattermost and others take it too."""
    content = _chat(notice, _text(notice)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": content, "link_names": False, "unfurl_links": False, "unfurl_media": False}


def webhook(notice: Notice, channel_id: str) -> dict[str, Any]:
    """The JSON of a signed webhook, in the form that Standard Webhooks suggests."""
    data = {"channel": channel_id, "headline": _headline(notice), "text": _text(notice), "command": notice.command}
    body = {"correlationId": notice.correlation_id, **notice.facts}
    return {
        "type": f"fleetsim.{notice.kind}",
        "timestamp": iso(notice.at),
        "data": {**data, "link": notice.link or None, **body},
    }


def _chat(notice: Notice, text: str) -> str:
    """Markdown with all quoted text inside code marks; the character that closes them is replaced."""
    blocks = [_code(_headline(notice))]
    if text:
        blocks.append(f"```\n{text.replace('`', _TICK)}\n```")
    if notice.command:
        blocks.append(_code(notice.command))
    return "\n".join([*blocks, *([notice.link] if notice.link else [])])


def _code(line: str) -> str:
    return f"`{line.replace('`', _TICK)}`"


# -- from events

_ANSWERS_MAX = 10


def of_run(event: CeremonyCompleted, outcomes: Sequence[Outcome]) -> Notice:
    """The end of a ceremony's run: name, status, skill, agents, duration and answers."""
    agents = ", ".join(dict.fromkeys(outcome.agent for outcome in outcomes)) or "nobody"
    lasted = "" if event.duration_ms is None else f" in {event.duration_ms / 1000:.1f} s"
    headline = f"{_name(event)}: {event.status}{lasted} ({one_line(event.skill or '', 60)}, {one_line(agents, 60)})"
    whole = f"task get {outcomes[0].correlation_id}" if len(outcomes) == 1 else f"ceremony history {event.ceremony_id}"
    return Notice(
        kind="run",
        at=event.at,
        tone=NoticeKind.GOOD if event.status == RunStatus.SUCCESS.value else NoticeKind.BAD,
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
            "outcomes": [
                {
                    "correlationId": outcome.correlation_id,
                    "agent": outcome.agent,
                    "state": outcome.kind.value,
                    "success": outcome.success,
                    "costUsd": outcome.cost_usd,
                }
                for outcome in outcomes
            ],
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
        tone=NoticeKind.BAD,
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
    """A question with the command that answers it, a reminder, or the note that it expired.

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
        tone=NoticeKind.BAD if isinstance(event, QuestionExpired) else NoticeKind.ASKS,
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


_COMMANDS = {AlertKind.CEREMONY_MISSED: "ceremony list", AlertKind.LIMIT: "limits"}


def of_alert(event: AlertRaised | AlertCleared) -> Notice:
    """The begin or the end of a problem of the fleet."""
    key, raised = AlertKey(AlertKind(event.kind), event.subject), isinstance(event, AlertRaised)
    lasted_s = (event.at - (event.since or event.at)).total_seconds()
    minutes = round(lasted_s / 60)
    words = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
    lasted = f" (it lasted {words})" if lasted_s >= 60 else ""
    return Notice(
        kind="alert" if raised else "recovery",
        at=event.at,
        tone=NoticeKind.BAD if raised else NoticeKind.GOOD,
        headline=f"alert: {key.what}" if raised else f"over: {key.what}{lasted}",
        text=event.detail if isinstance(event, AlertRaised) else "",
        command=f"fleetsim {_COMMANDS.get(key.kind, 'health')}",
        facts={
            "alert": event.kind,
            "subject": event.subject,
            "detail": event.detail if isinstance(event, AlertRaised) else None,
            "since": iso(event.since) if event.since else None,
        },
    )


def _name(event: CeremonyCompleted | CeremonyLate | CeremonyMissed | CeremonySkipped) -> str:
    return f"{one_line(event.name, 80)} [{event.ceremony_id[:60]}]" if event.name else event.ceremony_id


def _answers(outcomes: Sequence[Outcome]) -> str:
    """The answers, or the reasons of failures; with several agents an excerpt of each."""
    answers = [(outcome.agent, outcome.text.strip() or outcome.reason) for outcome in outcomes[:_ANSWERS_MAX]]
    if len(answers) <= 1:
        return answers[0][1] if answers else ""
    share = TEXT_CHARS_MAX // len(answers) - 80
    lines = [f"{one_line(agent, 64)}: {one_line(text, share)}" for agent, text in answers]
    more = len(outcomes) - len(answers)
    return "\n".join([*lines, *([f"and {more} more"] if more else [])])
