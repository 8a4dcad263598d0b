"""The answers of the hub's API about agents, tasks and questions, made of the hub's own values. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from fleetsim.api.answers import (
    AgentFacts,
    EndedRequest,
    OpenRequest,
    QuestionFacts,
    SharedAgent,
)
from fleetsim.api.health import HealthSnapshot, HealthWord
from fleetsim.api.part_rows import part_notes, part_row
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import FleetConfig
from fleetsim.model.asking import answer_schema, text_of
from fleetsim.model.limits import TEXT_CHARS_MAX, shown_text
from fleetsim.model.parts import ListedPart, answer_parts, listed_parts
from fleetsim.model.work import Outcome, Question
from fleetsim.request.records import RequestRecord
from fleetsim.request.track import Track

R = TypeVar("R", OpenRequest, EndedRequest)


def agent_facts(config: FleetConfig) -> tuple[dict[str, Any], ...]:
    """The agents of agents.yaml, for the events about it."""
    return tuple(
        {"name": e.name, "url": e.url, "enabled": e.enabled, **({"why": e.disabled_why} if e.disabled_why else {})}
        for e in config.agents
    )


def agent_row(view: AgentView, snapshot: HealthSnapshot) -> AgentFacts:
    """One agent: address, dialect, health and skills."""
    entry, choice, card = view.entry, view.choice, view.card
    health = snapshot.agent(entry.name)
    return AgentFacts.of(
        entry,
        view,
        view.capabilities,
        rpc_url=(choice.url or None) if choice else None,
        dialect=choice.spoken if choice else entry.dialect,
        auth=entry.secrets or None,
        health=health.health if health else HealthWord.UNKNOWN,
        why=health.why if health else "",
        skills=view.skills,
        streaming=view.capabilities.streaming,
        warnings=choice.warnings if choice else (),
        description=card.description if card else "",
        version=card.version if card else "",
    )


def shared_agent_row(view: AgentView, snapshot: HealthSnapshot) -> SharedAgent:
    """One agent for other agents: without its address, its credential, and the problems of either."""
    return SharedAgent.of(agent_row(view, snapshot))


def record_row(record: RequestRecord, *, chars_max: int = TEXT_CHARS_MAX, **more: Any) -> OpenRequest:
    """The facts of a request in any state, with at most ``chars_max`` characters of either text."""
    request, task = record.request, record.task
    text, chars = text_of(task) if task else ("", 0)
    parts, parts_total = answer_parts(task) if task else ((), 0)
    own = {
        "source": request.source.interface,
        "prompt": request.text[:chars_max],
        "prompt_chars": len(request.text),
        "task_id": task.task_id if task else None,
        "context_id": (task.context_id if task else request.context_id) or None,
        "state": task.state.value if task else "held" if record.held else record.phase.value,
        **_shown(text, chars, chars_max),
        "sent": part_notes(listed_parts(request.parts)),
        "parts": part_notes(parts),
        "parts_total": parts_total,
    }
    return OpenRequest.of(record, request, **{**own, **more})


def _shown(text: str, chars: int, chars_max: int) -> dict[str, Any]:
    shown = shown_text(text, chars=chars, chars_max=chars_max)
    return {"text": shown["text"], "truncated": shown["truncated"], "text_chars": shown["textChars"]}


def with_content(row: R, parts: tuple[ListedPart, ...]) -> R:
    """A request with the content of the files and data it lists."""
    return replace(row, parts=tuple(map(part_row, parts)))


def track_row(track: Track, *, chars_max: int = TEXT_CHARS_MAX) -> OpenRequest:
    """One request in flight. While it has an open question, ``text`` is what it asks."""
    question, polling = track.question, track.polling
    return record_row(
        track.record,
        chars_max=chars_max,
        **(_shown(question.text, question.text_chars, chars_max) if question else {}),
        via=track.via,
        question_id=question.question_id if question else None,
        asks_for_data=answer_schema(question.parts) is not None if question else False,
        poll_stopped=polling.stopped.reason if polling.stopped else None,
        poll_trouble=polling.trouble or None,
    )


def outcome_row(outcome: Outcome, *, chars_max: int = TEXT_CHARS_MAX) -> EndedRequest:
    shown = outcome.excerpt(chars_max)
    return EndedRequest.of(
        shown,
        state=shown.kind,
        task_state=shown.kind,
        started_at=shown.started_at.isoformat(),
        ended_at=shown.ended_at.isoformat(),
        parts=part_notes(shown.parts),
    )


def question_row(question: Question, *, chars_max: int = TEXT_CHARS_MAX) -> QuestionFacts:
    """One thing an agent waits for."""
    shown = _shown(question.text, question.text_chars, chars_max)
    return QuestionFacts.of(
        question,
        context_id=question.context_id or None,
        question=shown.pop("text"),
        asks_for_data=answer_schema(question.parts) is not None,
        parts=part_notes(question.parts),
        **shown,
    )


def whole_question_row(question: Question) -> QuestionFacts:
    """One thing an agent waits for, with its data and the schema of the answer (null where it has none)."""
    parts = tuple(map(part_row, question.parts))
    return replace(question_row(question), parts=parts, answer_schema=answer_schema(question.parts))
