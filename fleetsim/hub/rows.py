"""Rows of the hub's API for agents, tasks and questions, as JSON-ready mappings. Pure."""

from __future__ import annotations

from typing import Any

from fleetsim.api.part_rows import part_notes, part_row
from fleetsim.events.request import OutcomeDecided
from fleetsim.events.wire import iso, payload
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import FleetConfig
from fleetsim.health.fleet_health import HealthSnapshot
from fleetsim.ledger import HubMember, KnownId
from fleetsim.model.asking import answer_schema, text_of
from fleetsim.model.limits import TEXT_CHARS_MAX, shown_text
from fleetsim.model.parts import ListedPart, answer_parts, listed_parts
from fleetsim.model.work import Outcome, Question
from fleetsim.request.records import RequestRecord
from fleetsim.request.track import Track
from fleetsim.runtime.wire_log import WireEntry


def agent_facts(config: FleetConfig) -> tuple[dict[str, Any], ...]:
    """The agents of agents.yaml, for the events about it."""
    return tuple(
        {"name": e.name, "url": e.url, "enabled": e.enabled, **({"why": e.disabled_why} if e.disabled_why else {})}
        for e in config.agents
    )


def agent_row(view: AgentView, snapshot: HealthSnapshot) -> dict[str, Any]:
    """One agent: address, dialect, health and skills."""
    entry, choice = view.entry, view.choice
    health = snapshot.agent(entry.name)
    return {
        "name": entry.name,
        "url": entry.url,
        "rpcUrl": (choice.url or None) if choice else None,
        "dialect": choice.spoken if choice else entry.dialect,
        "enabled": entry.enabled,
        "tags": list(entry.tags),
        "auth": entry.secrets or None,
        "health": health.health.value if health else "unknown",
        "why": health.why if health else "",
        "reachable": view.reachable,
        "stale": view.stale,
        "staleReason": view.stale_reason,
        "skills": list(view.skills),
        "streaming": view.capabilities.streaming,
        "pushNotifications": view.capabilities.push_notifications,
        "warnings": list(choice.warnings) if choice else [],
        "latencyMs": view.latency_ms,
        "fetchedAt": iso(view.fetched_at) if view.fetched_at else None,
        "description": view.card.description if view.card else "",
        "version": view.card.version if view.card else "",
    }


def shared_agent_row(view: AgentView, snapshot: HealthSnapshot) -> dict[str, Any]:
    """One agent for other agents: without its address, its credential, and the problems of either."""
    row = agent_row(view, snapshot)
    return {key: row[key] for key in ("name", "description", "tags", "enabled", "health", "skills", "streaming")}


def record_row(record: RequestRecord, *, chars_max: int = TEXT_CHARS_MAX) -> dict[str, Any]:
    """The facts of a request in any state, with at most ``chars_max`` characters of either text."""
    request, task = record.request, record.task
    text, chars = text_of(task) if task else ("", 0)
    parts, parts_total = answer_parts(task) if task else ((), 0)
    return {
        "correlationId": request.correlation_id,
        "parentId": request.parent_id,
        "agent": record.agent,
        "skill": record.skill,
        "systemActor": request.system_actor,
        "source": request.source.interface,
        "prompt": request.text[:chars_max],
        "promptChars": len(request.text),
        "phase": record.phase.value,
        "acceptedAt": iso(record.accepted_at),
        "deadlineAt": iso(record.deadline_at),
        "dialect": record.dialect,
        "taskId": task.task_id if task else None,
        "contextId": (task.context_id if task else request.context_id) or None,
        "state": task.state.value if task else record.phase.value,
        **shown_text(text, chars=chars, chars_max=chars_max),
        "warnings": list(record.warnings),
        "sent": part_notes(listed_parts(request.parts)),
        "parts": part_notes(parts),
        "partsTotal": parts_total,
    }


def with_content(row: dict[str, Any], parts: tuple[ListedPart, ...]) -> dict[str, Any]:
    """A request's row with the content of the files and data it lists."""
    return {**row, "parts": [part_row(part) for part in parts]}


def track_row(track: Track, *, chars_max: int = TEXT_CHARS_MAX) -> dict[str, Any]:
    """One request in flight. While it has an open question, ``text`` is what it asks."""
    question = track.question
    question_text = shown_text(question.text, chars=question.text_chars, chars_max=chars_max) if question else {}
    return {
        **record_row(track.record, chars_max=chars_max),
        **question_text,
        "via": track.via.value,
        "questionId": question.question_id if question else None,
        "asksForData": answer_schema(question.parts) is not None if question else False,
        "pollStopped": track.polling.stopped.reason if track.polling.stopped else None,
        "pollTrouble": track.polling.trouble or None,
        "open": True,
    }


def outcome_row(outcome: Outcome, *, chars_max: int = TEXT_CHARS_MAX) -> dict[str, Any]:
    """One request that ended."""
    return {
        "correlationId": outcome.correlation_id,
        "parentId": outcome.parent_id,
        "agent": outcome.agent,
        "skill": outcome.skill,
        "taskId": outcome.task_id,
        "state": outcome.kind.value,
        "open": False,
        **payload(OutcomeDecided.of(outcome, chars_max=chars_max)),
    }


def question_row(question: Question, *, chars_max: int = TEXT_CHARS_MAX) -> dict[str, Any]:
    """One thing an agent waits for. ``asksForData``: with it comes a JSON Schema that an answer's data must fit."""
    return {
        "questionId": question.question_id,
        "correlationId": question.correlation_id,
        "agent": question.agent,
        "skill": question.skill,
        "taskId": question.task_id,
        "contextId": question.context_id or None,
        "kind": question.kind.value,
        **shown_text(question.text, name="question", chars=question.text_chars, chars_max=chars_max),
        "askedAt": iso(question.asked_at),
        "expiresAt": iso(question.expires_at),
        "checkpoint": question.checkpoint,
        "systemActor": question.system_actor,
        "asksForData": answer_schema(question.parts) is not None,
        "parts": part_notes(question.parts),
        "partsTotal": question.parts_total,
    }


def whole_question_row(question: Question) -> dict[str, Any]:
    """One thing an agent waits for, with its data and the schema of the answer (null where it has none)."""
    parts = [part_row(part) for part in question.parts]
    return {**question_row(question), "parts": parts, "answerSchema": answer_schema(question.parts)}


def known_row(known: KnownId) -> dict[str, Any]:
    """One thing that an id, or the beginning of one, may mean."""
    return {
        "id": known.id,
        "kind": known.kind,
        "correlationId": known.correlation_id,
        "agent": known.agent,
        "at": iso(known.at),
    }


def member_row(member: HubMember) -> dict[str, Any]:
    """A hub of a fleet that several hubs follow."""
    return {
        "hub": member.hub,
        "name": member.name,
        "version": member.version,
        "startedAt": iso(member.started_at),
        "leaseAgeS": round(max(0.0, member.lease_age_s), 3),
        "leaseS": member.lease_s,
        "owned": member.owned,
        "took": member.took,
        "tookAt": iso(member.took_at) if member.took_at else None,
        "here": member.here,
    }


def wire_row(entry: WireEntry) -> dict[str, Any]:
    """An exchange of the wire log."""
    return {
        "number": entry.number,
        "at": entry.at,
        "agent": entry.agent,
        "kind": "webhook" if entry.webhook else "call",
        "method": entry.method,
        "url": entry.url,
        "headers": entry.headers,
        "body": entry.body,
        "bodyBytes": entry.body_size,
        "status": entry.status,
        "replyHeaders": entry.reply_headers,
        "reply": entry.reply,
        "replyBytes": entry.reply_size,
        "frames": [{"afterS": round(one.after_s, 4), "bytes": one.size, "text": one.text} for one in entry.frames],
        "framesTotal": entry.frames_total,
        "seconds": None if entry.seconds is None else round(entry.seconds, 4),
        "problem": entry.problem,
    }
