"""A ceremony as events and the API tell it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetsim.caller.ceremonies.ceremony import Ceremony
from fleetsim.caller.jsonable import iso
from fleetsim.caller.ledger import RunRecord


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
        "schedule": ceremony.schedule.shown,
        "timezone": ceremony.timezone,
        "skill": ceremony.skill,
        "targets": list(ceremony.targets),
        "enabled": ceremony.enabled,
        "description": ceremony.description,
        "createdBy": ceremony.created_by,
        "notifyChannel": ceremony.notify_channel,
        "timeoutMs": round(ceremony.timeout_s * 1000),
        "overlap": ceremony.overlap.value,
        "catchUp": ceremony.catch_up_s,
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
        "error": run.error,
    }
