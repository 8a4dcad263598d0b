"""The whole notice for each kind of event: its words, the next command, and the facts for programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetsim.channels.notice import TEXT_CHARS_MAX, Notice, NoticeKind, of_alert, of_question, of_run, of_slot
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
)
from fleetsim.events.request import Excerpt, QuestionAsked, QuestionExpired, QuestionOverdue
from fleetsim.model.work import Outcome
from tests.outcomes import made

AT = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)
TOLD_AT = "2026-03-01T14:00:00.000Z"
LINK = "https://hub.example/{questionId}?of={correlationId}"


def outcome(*, text: str = "all well", reason: str = "", agent: str = "quinn") -> Outcome:
    return made("c-1", AT, success=not reason, skill="report", text=text, reason=reason, agent=agent, cost_usd=0.25)


def ran(status: str = "success", *, error: str = "", **more: Any) -> CeremonyCompleted:
    told = {"name": "Daily digest", "skill": "report", "duration_ms": 1_540, "correlation_ids": ("c-1",), **more}
    return CeremonyCompleted(at=AT, ceremony_id="digest", run_id="r-1", status=status, error=error, **told)


def test_the_notice_of_a_run_has_every_fact() -> None:
    facts = {"ceremonyId": "digest", "runId": "r-1", "skill": "report", "durationMs": 1_540}
    done = {"correlationId": "c-1", "agent": "quinn", "state": "completed", "success": True, "costUsd": 0.25}
    assert of_run(ran(), [outcome()]) == Notice(
        kind="run",
        at=AT,
        tone=NoticeKind.GOOD,
        headline="Daily digest [digest]: success in 1.5 s (report, quinn)",
        text="all well",
        command="fleetsim task get c-1",
        correlation_id="r-1",
        facts={**facts, "status": "success", "error": "", "outcomes": [done]},
    )
    assert of_run(ran("failure", error="nobody can"), []) == Notice(
        kind="run",
        at=AT,
        tone=NoticeKind.BAD,
        headline="Daily digest [digest]: failure in 1.5 s (report, nobody)",
        text="nobody can",
        command="fleetsim ceremony history digest",
        correlation_id="r-1",
        facts={**facts, "status": "failure", "error": "nobody can", "outcomes": []},
    )


def test_a_run_of_a_removed_ceremony_is_named_by_its_id() -> None:
    assert of_run(ran(name="", skill=None, duration_ms=None), []).headline == "digest: success (, nobody)"


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ([], "why not"),
        ([outcome(text=" one\ntwo ")], "one\ntwo"),
        ([outcome(text=" \n", reason="the disk is full")], "the disk is full"),
        ([outcome(text="a\nb"), outcome(agent="ava", text="", reason="refused")], "quinn: a b\nava: refused"),
        ([outcome(agent=f"a{n}", text="x") for n in range(10)], "\n".join(f"a{n}: x" for n in range(10))),
        (
            [outcome(agent=f"a{n}", text="x") for n in range(12)],
            "\n".join([*(f"a{n}: x" for n in range(10)), "and 2 more"]),
        ),
    ],
    ids=["nobody", "one", "a reason", "two", "ten", "twelve"],
)
def test_the_text_is_the_answer_or_the_reason_for_its_absence(outcomes: list[Outcome], text: str) -> None:
    assert of_run(ran(error="why not"), outcomes).text == text


@pytest.mark.parametrize("count", [2, 3, 10])
def test_several_long_answers_share_the_limit(count: int) -> None:
    text = of_run(ran(), [outcome(agent=f"{n}" * 64, text="x" * 2_000) for n in range(count)]).text
    assert TEXT_CHARS_MAX - 40 * count < len(text) <= TEXT_CHARS_MAX
    assert [line[:64] for line in text.splitlines()] == [f"{n}" * 64 for n in range(count)]
    assert all(line.endswith("x…") for line in text.splitlines())


@pytest.mark.parametrize(
    ("kind", "members", "status", "headline", "why", "slots"),
    [
        (CeremonyLate, {"run_id": "r-1", "lateness_ms": 90_400}, "late", "late", "began 90 s after its time", 1),
        (CeremonyMissed, {"why": "down"}, "missed", "missed", "down", 1),
        (CeremonyMissed, {"why": "down", "count": 2}, "missed", "missed, 2 slots", "down", 2),
        (CeremonySkipped, {"why": "busy", "count": 3}, "skipped", "skipped, 3 slots", "busy", 3),
    ],
)
def test_the_notice_of_a_late_or_missed_slot_has_every_fact(
    kind: Any, members: dict[str, Any], status: str, headline: str, why: str, slots: int
) -> None:
    known = {"ceremony_id": "digest", "name": "Daily digest", "skill": "report", "correlation_id": "r-1", **members}
    facts = {"ceremonyId": "digest", "status": status, "skill": "report", "slots": slots, "error": why}
    told = Notice(
        kind="run",
        at=AT,
        tone=NoticeKind.BAD,
        headline=f"Daily digest [digest]: {headline} (report)",
        text=why,
        command="fleetsim ceremony history digest",
        correlation_id="r-1",
        facts={**facts, "scheduledAt": TOLD_AT},
    )
    assert of_slot(kind(at=AT, scheduled_at=AT, **known)) == told
    assert of_slot(kind(at=AT, scheduled_at=None, **known)).facts == {**facts, "scheduledAt": None}


def asked(**more: Any) -> QuestionAsked:
    known = {"kind": "input-required", "expires_at": AT, "context_id": None, "system_actor": "user", **more}
    return QuestionAsked(**{**about(), "question": Excerpt.of("which branch?"), **known})


def about() -> dict[str, Any]:
    return {"at": AT, "agent": "quinn", "skill": "ask", "question_id": "q-1", "correlation_id": "c-1"}


def test_the_notice_of_a_question_has_every_fact_from_asking_to_its_end() -> None:
    facts = {"questionId": "q-1", "agent": "quinn", "skill": "ask"}
    until, link = "until 2026-03-01 14:00Z", "https://hub.example/q-1?of=c-1"
    command = 'fleetsim inbox reply q-1 "your answer"'
    assert of_question(asked(), LINK) == Notice(
        kind="question",
        at=AT,
        tone=NoticeKind.ASKS,
        headline=f"quinn (ask) asks, {until}",
        text="which branch?",
        command=command,
        link=link,
        correlation_id="c-1",
        facts={**facts, "status": "asked", "expiresAt": TOLD_AT},
    )
    overdue = QuestionOverdue(**about(), question=Excerpt.of("which branch?"), expires_at=AT)
    assert of_question(overdue, LINK) == Notice(
        kind="question",
        at=AT,
        tone=NoticeKind.ASKS,
        headline=f"quinn (ask) still waits for an answer, {until}",
        text="which branch?",
        command=command,
        link=link,
        correlation_id="c-1",
        facts={**facts, "status": "overdue", "expiresAt": TOLD_AT},
    )
    assert of_question(QuestionExpired(**about()), LINK) == Notice(
        kind="question",
        at=AT,
        tone=NoticeKind.BAD,
        headline="nobody answered quinn (ask) in time",
        correlation_id="c-1",
        facts={**facts, "status": "expired", "expiresAt": None},
    )


def test_a_question_contains_the_expected_form_and_the_command_to_answer() -> None:
    notice = of_question(asked(kind="auth-required", asks_for_data=True, expires_at=None, correlation_id=None), LINK)
    assert (notice.headline, notice.facts["expiresAt"]) == ("quinn (ask) needs credentials", None)
    assert notice.command == "fleetsim inbox reply q-1 --data '{…}'"
    assert notice.link == "https://hub.example/q-1?of="
    assert of_question(asked(agent=None, skill=None)).headline.startswith("an agent () asks, until")


def test_the_notice_of_an_alert_and_its_end_has_every_fact() -> None:
    known = {"at": AT, "kind": "agent_down", "subject": "quinn", "since": AT}
    facts = {"alert": "agent_down", "subject": "quinn", "since": TOLD_AT}
    assert of_alert(AlertRaised(**known, detail="unreachable")) == Notice(
        kind="alert",
        at=AT,
        tone=NoticeKind.BAD,
        headline="alert: quinn is down",
        text="unreachable",
        command="fleetsim health",
        facts={**facts, "detail": "unreachable"},
    )
    assert of_alert(AlertCleared(**known)) == Notice(
        kind="recovery",
        at=AT,
        tone=NoticeKind.GOOD,
        headline="over: quinn is down",
        command="fleetsim health",
        facts={**facts, "detail": None},
    )
    known["since"] = None
    assert of_alert(AlertCleared(**known)).facts == {**facts, "detail": None, "since": None}


@pytest.mark.parametrize(
    ("kind", "subject", "headline", "command"),
    [
        ("agent_down", "quinn", "alert: quinn is down", "fleetsim health"),
        ("failure_rate", "quinn", "alert: quinn fails too often", "fleetsim health"),
        ("cost", "", "alert: the fleet costs too much", "fleetsim health"),
        ("orphaned_skill", "plan\n@all", "alert: nobody succeeds at plan @all", "fleetsim health"),
        ("orphaned_skill", "x" * 100, f"alert: nobody succeeds at {'x' * 79}…", "fleetsim health"),
        ("ceremony_missed", "digest", "alert: ceremony digest missed its time", "fleetsim ceremony list"),
    ],
)
def test_an_alert_names_the_fault_and_the_next_command(kind: str, subject: str, headline: str, command: str) -> None:
    notice = of_alert(AlertRaised(at=AT, kind=kind, subject=subject, detail="the figures", since=AT))
    assert (notice.kind, notice.headline, notice.text, notice.command) == ("alert", headline, "the figures", command)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (59, ""),
        (60, " (it lasted 1 min)"),
        (12 * 60, " (it lasted 12 min)"),
        (119 * 60, " (it lasted 119 min)"),
        (120 * 60, " (it lasted 2 h 0 min)"),
        (150 * 60, " (it lasted 2 h 30 min)"),
    ],
)
def test_a_recovery_gives_the_length_of_the_alert(seconds: float | None, said: str) -> None:
    since = None if seconds is None else AT - timedelta(seconds=seconds)
    notice = of_alert(AlertCleared(at=AT, kind="agent_down", subject="quinn", since=since))
    assert (notice.kind, notice.headline) == ("recovery", f"over: quinn is down{said}")
