"""A ceremony: a skill request that fires on a schedule; its file, and when it is due. Pure.

The YAML keys are Workstacean's, plus ours: the prompt and rules for the answer, rules for slots that overlap, are
missed or late, and ceremonies that fire once. A ceremony file never reads the environment, so its author need not be
trusted with it (T-37).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from fleetsim.ceremony.cron import Cron, first_instant, next_slot, parse_cron
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID, ID_RULE
from fleetsim.runtime.explain import Pattern, combine, explain
from fleetsim.runtime.yaml import YamlDocument

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_CATCH_UP_S = 600
CATCH_UP_S_MAX = 24 * 3600
CATCH_UP_WINDOW_S_MAX = 7 * 24 * 3600
CATCH_UP_SLOTS_MAX = 100
GRACE_S = 60.0
"""A slot no later than this simply fires: it was not missed, the hub was busy."""
TIMEOUT_MS_MAX = 7 * 24 * 3600 * 1000
TARGETS_MAX = 64
TEXT_MAX = 16_384

T = TypeVar("T")
_Target: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]


class Overlap(StrEnum):
    """The rule for a slot that comes while the run before is in flight."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """The missed slots that still fire."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceremony:
    """A checked ceremony: on a ``schedule``, or once ``at`` a moment (None: on a schedule).

    A missed slot may fire up to ``catch_up_s`` late, and a run that begins later than ``late_after_s`` counts as late.
    A successful answer has every text of ``wanted`` in it and none of ``unwanted``. ``project`` is whose override it
    is, "" for none.
    """

    ceremony_id: str
    name: str
    schedule: Cron | None
    at: datetime | None = None
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
    catch_up: CatchUp = CatchUp.ONE
    catch_up_s: int = DEFAULT_CATCH_UP_S
    late_after_s: int = int(GRACE_S)
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    project: str = ""

    @property
    def system_actor(self) -> str:
        """The system actor of the requests of this ceremony."""
        return f"ceremony.{self.ceremony_id}"

    def broken_expectation(self, text: str) -> str:
        """The reason why a successful answer is still a failure; empty if it is as expected."""
        for wanted in self.wanted:
            if wanted not in text:
                return f"completed, but the answer does not contain “{one_line(wanted, 80)}”"
        for unwanted in self.unwanted:
            if unwanted in text:
                return f"completed, but the answer contains “{one_line(unwanted, 80)}”"
        return ""


def next_due(ceremony: Ceremony, after: datetime) -> datetime | None:
    """The ceremony's first slot strictly after ``after``, in UTC. None: it fires once, and that has passed."""
    if ceremony.schedule is None:
        return ceremony.at if ceremony.at is not None and ceremony.at > after else None
    return next_slot(ceremony.schedule, after, zone_of(ceremony.timezone))


def divide(
    ceremony: Ceremony, slots: Sequence[datetime], now: datetime, *, room: int = CATCH_UP_SLOTS_MAX
) -> tuple[list[datetime], list[datetime]]:
    """Of the slots that have come, oldest first: those that fire, and those that were missed (F-35).

    ``room`` is how many may still be caught up where all are.
    """
    limit_s = GRACE_S if ceremony.catch_up is CatchUp.NONE else max(GRACE_S, ceremony.catch_up_s)
    in_time = sum((now - slot).total_seconds() <= limit_s for slot in slots)
    firing = min(in_time, room if ceremony.catch_up is CatchUp.ALL else 1)
    return list(slots[len(slots) - firing :]), list(slots[: len(slots) - firing])


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


_WRITTEN = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)
_Texts: TypeAlias = Annotated[list[Annotated[str, Field(min_length=1, max_length=1_000)]], Field(max_length=16)]


class AnswerRules(BaseModel):
    """Rules for the answer of a task that the agent completed."""

    model_config = _WRITTEN

    contains: _Texts = []
    """Texts that must all be in it, letter for letter."""
    excludes: _Texts = []
    """Texts of which none may be in it."""


class CeremonyFile(BaseModel):
    """The keys of a ceremony file; also the source of its JSON Schema. Spans are in seconds but for ``timeoutMs``."""

    model_config = ConfigDict(
        **_WRITTEN, json_schema_extra={"oneOf": [{"required": ["schedule"]}, {"required": ["once", "at"]}]}
    )

    id: Annotated[str, Pattern(ID.pattern, ID_RULE)]
    """Unique; the first file by name has it."""
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """For people."""
    schedule: str | None = None
    """Five fields (minute, hour, day of month, month, day of week), or @hourly, @daily and the like; required unless
    it fires once."""
    once: bool = False
    """Fires a single time, at the time of at; then it is spent."""
    at: str | None = None
    """The time of a ceremony that fires once: 2026-11-22T15:30 in the time zone of timezone, or with Z or an offset."""
    skill: Annotated[str, Field(min_length=1, max_length=200)]
    """The skill of the requests."""
    targets: Annotated[list[_Target], Field(min_length=1, max_length=TARGETS_MAX)]
    """One request per agent; [all] is every agent with the skill."""
    enabled: bool = True
    """A disabled ceremony fires neither by schedule nor by hand."""
    notify_channel: Annotated[str, Field(max_length=200)] | int | None = None
    """The channel of agents.yaml that gets a notice of each run."""
    notify_webhook_env: str | None = None
    """Accepted for old files; without effect."""
    created_by: Annotated[str, Field(min_length=1, max_length=128)] = "system"
    """Kept and shown."""
    description: Annotated[str, Field(max_length=2_000)] | None = None
    """Kept and shown."""
    timezone: str = "UTC"
    """The IANA time zone of the schedule."""
    timeout_ms: Annotated[int, Field(gt=0, le=TIMEOUT_MS_MAX)] | None = None
    """The limit of each request in milliseconds; ten minutes unless given."""
    prompt: Annotated[str, Field(max_length=TEXT_MAX)] | None = None
    """The text of the request; generated from the other keys unless given."""
    content: Annotated[str, Field(max_length=TEXT_MAX)] | None = None
    """An alias of prompt."""
    overlap: Literal["skip", "queue", "allow"] = "skip"
    """The rule for a slot while the run before is in flight: skip it, queue it (only the newest waits), or fire it."""
    catch_up: Literal["none", "one", "all"] | Annotated[int, Field(ge=0, le=CATCH_UP_S_MAX)] = "one"
    """Which missed slots still fire: none, the newest one, or all (the newest 100). A number of seconds is one with
    that window, 0 is none."""
    catch_up_window: Annotated[int, Field(ge=0, le=CATCH_UP_WINDOW_S_MAX)] = DEFAULT_CATCH_UP_S
    """How many seconds late a missed slot may still fire."""
    late_after: Annotated[int, Field(ge=0, le=CATCH_UP_WINDOW_S_MAX)] = int(GRACE_S)
    """A run that begins more than this many seconds after its slot is late; an event says so."""
    expect: AnswerRules | None = None
    """Rules for the answer; a run whose answer breaks them is a failure."""

    @field_validator("targets", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value == []:
            raise ValueError(f"must name at least one agent, or [{ALL}]")
        return value


def parse_ceremony(document: YamlDocument) -> Ceremony:
    """Check one ceremony file. Raises ConfigError: all that is wrong with it, one "file:line:col" line each."""
    if not isinstance(document.value, dict):
        raise document.error((), "a ceremony file holds one mapping: id, name, schedule, skill, targets …")
    try:
        file = CeremonyFile.model_validate(document.value)
    except ValidationError as error:
        raise combine(explain(document, error, CeremonyFile)) from None
    problems: list[ConfigError] = []
    zone = _checked(document, "timezone", lambda: zone_of(file.timezone), problems) or UTC
    schedule, at = _when(document, file, zone, problems)
    if file.prompt is not None and file.content is not None:
        problems.append(document.error(("content",), "prompt and content are the same thing; keep one", key=True))
    if ALL in file.targets and len(file.targets) > 1:
        problems.append(document.error(("targets",), f"“{ALL}” stands alone: it means every agent with the skill"))
    if isinstance(file.catch_up, int):
        catch_up, catch_up_s = CatchUp.ONE if file.catch_up else CatchUp.NONE, file.catch_up
    else:
        catch_up, catch_up_s = CatchUp(file.catch_up), file.catch_up_window
    if isinstance(file.catch_up, int) and "catch_up_window" in file.model_fields_set:
        message = "'catchUp' as a number is the window already; write one beside catchUpWindow"
        problems.append(document.error(("catchUp",), message))
    if problems:
        raise combine(tuple(problems))
    return Ceremony(
        ceremony_id=file.id,
        name=file.name,
        schedule=schedule,
        at=at,
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
        catch_up=catch_up,
        catch_up_s=catch_up_s,
        late_after_s=file.late_after,
        wanted=tuple(file.expect.contains) if file.expect else (),
        unwanted=tuple(file.expect.excludes) if file.expect else (),
    )


def _when(
    document: YamlDocument, file: CeremonyFile, zone: tzinfo, problems: list[ConfigError]
) -> tuple[Cron | None, datetime | None]:
    """Its schedule, or the one moment: a file has one of the two."""
    if file.once != (file.at is not None):
        message = "'once' and 'at' go together: once: true, at: 2026-11-22T15:30"
        problems.append(document.error(("once" if file.once else "at",), message, key=True))
        return None, None
    if file.once and file.schedule is not None:
        problems.append(document.error(("schedule",), "a ceremony that fires once has no schedule", key=True))
    elif file.schedule is not None:
        text = file.schedule
        return _checked(document, "schedule", lambda: parse_cron(text), problems), None
    elif not file.once:
        hint = "or for a single time once: true and at: 2026-11-22T15:30"
        problems.append(document.error(("schedule",), "'schedule' is missing", hint=hint))
    return None, _checked(document, "at", lambda: parse_moment(file.at or "", zone), problems) if file.once else None


def parse_moment(text: str, zone: tzinfo) -> datetime:
    """An ISO date and time to the second, in UTC; on the clock of ``zone`` unless it says Z or an offset. Raises
    ConfigError for any other text."""
    hint = "for example 2026-11-22T15:30, 2026-11-22T15:30:00Z or 2026-11-22T15:30+01:00"
    try:
        moment = datetime.fromisoformat(text.strip())
        if not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", text.strip(), re.ASCII):
            raise ValueError
        moment = moment.replace(microsecond=0)
        return first_instant(moment, zone) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"“{one_line(text, 40)}” is not a date and time", hint=hint) from None


def _checked(document: YamlDocument, key: str, check: Callable[[], T], problems: list[ConfigError]) -> T | None:
    """The checked value, or None with the problem noted at its place."""
    try:
        return check()
    except ConfigError as error:
        problems.append(document.error((key,), f"'{key}': {error}", hint=error.hint))
        return None
