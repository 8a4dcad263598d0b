"""A ceremony: a skill request that fires on a schedule; its file, its requests, and how events and the API tell it.

Pure values; the folder and the clock are the scheduler's.

The YAML keys are Workstacean's, plus ``prompt`` (or ``content``), ``overlap`` and ``catchUp``. Nothing in a
ceremony file is read from the environment: whoever writes ceremonies need not be trusted with it (T-37).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from fleetsim.caller.ceremonies.cron import Cron, next_slot, parse_cron
from fleetsim.caller.jsonable import iso
from fleetsim.caller.ledger import RunRecord
from fleetsim.caller.registry import ALL
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.model.work import ID, ID_RULE, SkillRequest, Source
from fleetsim.runtime.explain import Pattern, combine, explain
from fleetsim.runtime.yaml import YamlDocument

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_CATCH_UP_S = 600
CATCH_UP_S_MAX = 24 * 3600
TIMEOUT_MS_MAX = 7 * 24 * 3600 * 1000
TARGETS_MAX = 64
TEXT_MAX = 16_384

T = TypeVar("T")
_Target: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]


class Overlap(StrEnum):
    """What happens to a slot that comes while the run before is still going."""

    SKIP = "skip"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceremony:
    """A checked ceremony. ``catch_up_s`` is how late a missed slot may still fire; 0 means never."""

    ceremony_id: str
    name: str
    schedule: Cron
    skill: str
    targets: tuple[str, ...]
    enabled: bool = True
    timezone: str = "UTC"
    text: str = ""
    description: str = ""
    notify_channel: str = ""
    created_by: str = "system"
    timeout_s: float = DEFAULT_TIMEOUT_S
    overlap: Overlap = Overlap.SKIP
    catch_up_s: int = DEFAULT_CATCH_UP_S

    @property
    def system_actor(self) -> str:
        """Who asks for this ceremony's work."""
        return f"ceremony.{self.ceremony_id}"


def next_due(ceremony: Ceremony, after: datetime) -> datetime:
    """The ceremony's first slot strictly after ``after``, in UTC."""
    return next_slot(ceremony.schedule, after, zone_of(ceremony.timezone))


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The IANA zone of that name. Raises ConfigError if there is none."""
    if name.upper() in {"UTC", "ETC/UTC"}:
        return UTC
    try:
        if re.fullmatch(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}", name):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    hint = "an IANA name such as Europe/Berlin; leave it out for UTC"
    raise ConfigError(f"unknown time zone “{one_line(name, 64)}”", hint=hint)


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
        source=Source(interface="cron", channel_id=ceremony.notify_channel or None),
        metadata={
            "ceremonyId": ceremony.ceremony_id,
            "ceremonyName": ceremony.name,
            "runId": run_id,
        },
        timeout_s=ceremony.timeout_s,
    )


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


class CeremonyFile(BaseModel):
    """The keys of a ceremony file; also the source of its JSON Schema. ``catchUp`` is in seconds."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

    id: Annotated[str, Pattern(ID.pattern, ID_RULE)]
    """Unique; the first file by name has it."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """For people."""
    schedule: str
    """Five fields (minute, hour, day of month, month, day of week), or @hourly, @daily and the like."""
    skill: Annotated[str, Field(min_length=1, max_length=200)]
    """What to ask for."""
    targets: Annotated[list[_Target], Field(min_length=1, max_length=TARGETS_MAX)]
    """One request per agent; [all] is every agent with the skill."""
    enabled: bool = True
    """A disabled ceremony fires neither by schedule nor by hand."""
    notify_channel: Annotated[str, Field(max_length=200)] | int | None = None
    """Kept and shown."""
    notify_webhook_env: str | None = None
    """Accepted for old files; without effect."""
    created_by: Annotated[str, Field(min_length=1, max_length=128)] = "system"
    """Kept and shown."""
    description: Annotated[str, Field(max_length=2_000)] | None = None
    """Kept and shown."""
    timezone: str = "UTC"
    """The IANA name of the clock the schedule is read on."""
    timeout_ms: Annotated[int, Field(gt=0, le=TIMEOUT_MS_MAX)] | None = None
    """How long each request may take, in milliseconds; ten minutes unless said."""
    prompt: Annotated[str, Field(max_length=TEXT_MAX)] | None = None
    """What the agent is told; generated from the other keys unless given."""
    content: Annotated[str, Field(max_length=TEXT_MAX)] | None = None
    """Another word for prompt."""
    overlap: Literal["skip", "allow"] = "skip"
    """What happens to a slot while the run before is still going."""
    catch_up: Annotated[int, Field(ge=0, le=CATCH_UP_S_MAX)] = DEFAULT_CATCH_UP_S
    """How many seconds late a missed slot may still fire; 0 means never."""

    @field_validator("targets", mode="before")
    @classmethod
    def _somebody(cls, value: Any) -> Any:
        if value == []:
            raise ValueError(f"must name at least one agent, or [{ALL}]")
        return value


def parse_ceremony(document: YamlDocument) -> Ceremony:
    """Check one ceremony file.

    Raises:
        ConfigError: all that is wrong with it, one "file:line:col" line each.
    """
    if not isinstance(document.value, dict):
        raise document.error((), "a ceremony file holds one mapping: id, name, schedule, skill, targets …")
    try:
        file = CeremonyFile.model_validate(document.value)
    except ValidationError as error:
        raise combine(explain(document, error, CeremonyFile)) from None
    problems: list[ConfigError] = []
    schedule = _checked(document, "schedule", lambda: parse_cron(file.schedule), problems)
    _checked(document, "timezone", lambda: zone_of(file.timezone), problems)
    if file.prompt is not None and file.content is not None:
        problems.append(document.error(("content",), "prompt and content are the same thing; keep one", key=True))
    if ALL in file.targets and len(file.targets) > 1:
        problems.append(document.error(("targets",), f"“{ALL}” stands alone: it means every agent with the skill"))
    if problems or schedule is None:
        raise combine(tuple(problems))
    return Ceremony(
        ceremony_id=file.id,
        name=file.name,
        schedule=schedule,
        skill=file.skill,
        targets=tuple(dict.fromkeys(file.targets)),
        enabled=file.enabled,
        timezone=file.timezone,
        text=file.prompt or file.content or "",
        description=file.description or "",
        notify_channel=str(file.notify_channel or ""),
        created_by=file.created_by,
        timeout_s=file.timeout_ms / 1000 if file.timeout_ms else DEFAULT_TIMEOUT_S,
        overlap=Overlap(file.overlap),
        catch_up_s=file.catch_up,
    )


def _checked(document: YamlDocument, key: str, check: Callable[[], T], problems: list[ConfigError]) -> T | None:
    """The checked value, or None with the problem noted at its place."""
    try:
        return check()
    except ConfigError as error:
        problems.append(document.error((key,), f"'{key}': {error}", hint=error.hint))
        return None
