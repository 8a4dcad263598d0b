"""How a ceremony asks, and how events and the API tell of it and its runs. Pure values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetsim.caller.jsonable import iso
from fleetsim.caller.ledger import RunRecord
from fleetsim.ceremony.file import Ceremony
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.work import SkillRequest, Source


def request_text(ceremony: Ceremony, run_id: str) -> str:
    """What the agent is told: the ceremony's own text, else the form Workstacean generated."""
    if ceremony.text:
        return ceremony.text
    targets = json.dumps(list(ceremony.targets), ensure_ascii=False)
    lines = (
        f"Execute skill: {ceremony.skill}",
        f"ceremonyId: {ceremony.ceremony_id}",
        f"ceremonyName: {ceremony.name}",
        f"targets: {targets}",
        f"runId: {run_id}",
        f"projectPaths: {targets}",
        f"meta: {json.dumps({'systemActor': ceremony.system_actor}, ensure_ascii=False)}",
    )
    return "\n".join(lines)


def child_request(ceremony: Ceremony, run_id: str, correlation_id: str, target: str) -> SkillRequest:
    return SkillRequest(
        correlation_id=correlation_id,
        parent_id=run_id,
        text=request_text(ceremony, run_id),
        skill=ceremony.skill,
        targets=(target,),
        system_actor=ceremony.system_actor,
        source=Source(interface="cron", channel_id=ceremony.notify_channel or None, user_id=ceremony.created_by),
        metadata={
            "ceremonyId": ceremony.ceremony_id,
            "ceremonyName": ceremony.name,
            "runId": run_id,
        },
        timeout_s=ceremony.timeout_s,
    )


def agents_of(
    ceremony: Ceremony, resolve: Callable[[str, tuple[str, ...]], tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The agents that a run's requests go to, each once, and why targets have none. ``resolve``: those of a target."""
    agents: dict[str, None] = {}
    problems: list[str] = []
    for target in ceremony.targets:
        try:
            agents.update(dict.fromkeys(resolve(ceremony.skill, (target,))))
        except UnknownTarget as error:
            problems.append(f"{error}{f' ({error.hint})' if error.hint else ''}")
    return tuple(agents), tuple(problems)


def dry_run(ceremony: Ceremony, resolve: Callable[[str, tuple[str, ...]], tuple[str, ...]]) -> dict[str, Any]:
    """What would be sent if it fired now, and to whom; nothing of a disabled one."""
    agents, problems = agents_of(ceremony, resolve)
    requests = [child_request(ceremony, "RUN", "REQUEST", agent) for agent in agents if ceremony.enabled]
    return {
        "enabled": ceremony.enabled,
        "requests": [
            {"agent": r.targets[0], "skill": r.skill, "text": r.text, "timeoutS": r.timeout_s} for r in requests
        ],
        "problems": list(problems),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyRow:
    """A ceremony as it stands: when it fires next, the runs going on, and the last one that ended.

    ``warnings`` say which targets could not be served by the fleet as it is.
    """

    ceremony: Ceremony
    path: str
    next_at: datetime | None
    running: tuple[str, ...] = ()
    last: RunRecord | None = None
    warnings: tuple[str, ...] = ()


def ceremony_facts(row: CeremonyRow) -> dict[str, Any]:
    """The row under the keys of the ceremony's file, with what time made of it."""
    ceremony = row.ceremony
    return {
        "id": ceremony.ceremony_id,
        "name": ceremony.name,
        "schedule": ceremony.schedule.shown if ceremony.schedule else None,
        "once": ceremony.schedule is None,
        "at": iso(ceremony.at) if ceremony.at else None,
        "timezone": ceremony.timezone,
        "skill": ceremony.skill,
        "targets": list(ceremony.targets),
        "enabled": ceremony.enabled,
        "description": ceremony.description,
        "createdBy": ceremony.created_by,
        "notifyChannel": ceremony.notify_channel,
        "timeoutMs": round(ceremony.timeout_s * 1000),
        "overlap": ceremony.overlap.value,
        "catchUp": ceremony.catch_up.value,
        "catchUpWindow": ceremony.catch_up_s,
        "lateAfter": ceremony.late_after_s,
        "project": ceremony.project or None,
        "path": row.path,
        "warnings": list(row.warnings),
        "nextFireAt": iso(row.next_at) if row.next_at else None,
        "running": list(row.running),
        "lastRun": run_facts(row.last) if row.last else None,
    }


def run_facts(run: RunRecord) -> dict[str, Any]:
    """One run of a ceremony."""
    return {
        "runId": run.claim.run_id,
        "ceremonyId": run.claim.ceremony_id,
        "trigger": run.claim.trigger,
        "status": run.status.value,
        "scheduledAt": iso(run.claim.scheduled_at),
        "startedAt": iso(run.started_at),
        "endedAt": iso(run.ended_at) if run.ended_at else None,
        "correlationIds": list(run.children),
        "latenessMs": lateness_ms(run),
        "late": run.late,
        "count": run.count,
        "error": run.error,
    }


def lateness_ms(run: RunRecord) -> int:
    """How long after its slot a run began."""
    return max(0, round((run.started_at - run.claim.scheduled_at).total_seconds() * 1000))
