"""Ceremonies folded from events: their next slot and their runs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace as with_members

from fleetsim.api.answer import camel
from fleetsim.api.answers import RunFacts
from fleetsim.dashboard import read
from fleetsim.events.fleet import CeremoniesLoaded, CeremonyCompleted, CeremonyFired, CeremonyMissed, CeremonySkipped
from fleetsim.events.wire import from_iso
from fleetsim.model.text import one_line

RUNS_MAX = 60
CEREMONIES_MAX = 500
_FAILED = frozenset({"failure", "timeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run, or a slot that did not fire."""

    run_id: str
    at: datetime
    trigger: str
    status: str
    duration_ms: int | None = None
    lateness_ms: int | None = None
    error: str = ""
    children: tuple[str, ...] = ()


class CeremonyView(Struct, frozen=True, kw_only=True, rename=camel):
    """A ceremony by the members of ``CeremonyFacts``, and its runs, the newest first.

    ``error`` is the reason why its file is rejected, ``warnings`` names the targets that no agent serves.
    """

    ceremony_id: str = field(name="id")
    name: str = ""
    cron: str | None = field(default=None, name="schedule")
    at: str | None = None
    zone: str = field(default="UTC", name="timezone")
    skill: str = ""
    targets: tuple[str, ...] = ()
    enabled: bool = True
    next_at: datetime | None = field(default=None, name="nextFireAt")
    description: str = ""
    path: str = ""
    timeout_ms: int | None = None
    notify_channel: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
    last_run: Any = None
    runs: tuple[RunRow, ...] = ()
    ok: int = 0
    failed: int = 0

    @property
    def schedule(self) -> str:
        """Its cron expression, or the moment of a single run."""
        return self.cron or self.at or ""

    @property
    def running(self) -> RunRow | None:
        return next((run for run in self.runs if run.status == "running"), None)

    @property
    def last(self) -> RunRow | None:
        """The newest run that ended."""
        return next((run for run in self.runs if run.status != "running"), None)


class _Ceremony:
    __slots__ = ("facts", "failed", "ok", "runs")

    def __init__(self) -> None:
        self.facts = CeremonyView(ceremony_id="")
        self.runs: deque[RunRow] = deque(maxlen=RUNS_MAX)
        self.ok = self.failed = 0


class CeremonyFold:
    """All ceremonies, by id."""

    def __init__(self) -> None:
        self._all: dict[str, _Ceremony] = {}
        self._errors: tuple[tuple[str, str], ...] = ()
        self._rows: tuple[CeremonyView, ...] | None = ()
        self.loaded_at: datetime | None = None
        self.missed = self.skipped = 0

    def _of(self, ceremony_id: str) -> _Ceremony | None:
        self._rows = None
        ceremony = self._all.get(ceremony_id)
        if ceremony is None and len(self._all) < CEREMONIES_MAX:
            ceremony = self._all[ceremony_id] = _Ceremony()
        return ceremony

    def loaded(self, event: CeremoniesLoaded) -> None:
        """Replace the list of ceremonies; the runs of those that stay remain."""
        self.loaded_at, self._rows = event.at, None
        listed: dict[str, CeremonyView] = {}
        for members in event.ceremonies[: read.NAMES_MAX]:
            with suppress(ValidationError):  # of a recording
                listed[members["id"]] = read.harmless(convert(members, CeremonyView))
        for key in [key for key in self._all if key not in listed]:
            del self._all[key]
        for key, facts in listed.items():
            if ceremony := self._of(key):
                ceremony.facts = facts
                self._recall(ceremony)
        self._errors = tuple(
            (read.text(error, "path", 300), read.text(error, "error", 300)) for error in event.errors[: read.NAMES_MAX]
        )

    @staticmethod
    def _recall(ceremony: _Ceremony) -> None:
        """The last run before this screen opened, from the list."""
        if not ceremony.runs and ceremony.facts.last_run is not None:
            with suppress(ValidationError):  # a recording of an earlier version
                ceremony.runs.append(_run(convert(ceremony.facts.last_run, RunFacts)))

    def take_runs(self, runs: Sequence[RunFacts]) -> None:
        """Set the runs to those of the hub, newest first; the ceremonies are listed after it."""
        self.missed = self.skipped = 0
        self._all.clear()
        for facts in runs:
            ceremony = self._of(one_line(facts.ceremony_id, 200))
            if ceremony is not None and len(ceremony.runs) < RUNS_MAX:
                ceremony.runs.append(_run(facts))
                ceremony.ok += facts.status == "success"
                ceremony.failed += facts.status in _FAILED
                self.missed += facts.count if facts.status == "missed" else 0
                self.skipped += facts.count if facts.status == "skipped" else 0

    def broken_paths(self) -> frozenset[str]:
        """The rejected files."""
        return frozenset(path for path, _ in self._errors)

    def warnings(self) -> dict[str, tuple[str, ...]]:
        """Problems with targets by ceremony."""
        return {key: ceremony.facts.warnings for key, ceremony in self._all.items() if ceremony.facts.warnings}

    def fired(self, event: CeremonyFired) -> None:
        ceremony = self._of(event.ceremony_id)
        if ceremony is None or any(run.run_id == event.run_id for run in ceremony.runs):
            return
        run = RunRow(
            run_id=one_line(event.run_id) or f"seq-{event.seq}",
            at=event.scheduled_at or event.at,
            trigger=one_line(event.trigger, 20) or "cron",
            status="running",
            lateness_ms=event.lateness_ms,
        )
        ceremony.runs.appendleft(run)
        self._next(ceremony, event)

    def completed(self, event: CeremonyCompleted) -> None:
        ceremony = self._of(event.ceremony_id)
        if ceremony is None:
            return
        run_id = one_line(event.run_id)
        if any(run.run_id == run_id and run.status != "running" for run in ceremony.runs):
            return
        status = one_line(event.status, 20) or "failure"
        ceremony.ok += status == "success"
        ceremony.failed += status in _FAILED
        done: dict[str, Any] = {
            "status": status,
            "duration_ms": event.duration_ms,
            "error": one_line(event.error, 300),
            "children": read.lines(event.correlation_ids),
        }
        for at, run in enumerate(ceremony.runs):
            if run.run_id == run_id and run.status == "running":
                ceremony.runs[at] = replace(run, **done)
                break
        else:
            ceremony.runs.appendleft(RunRow(run_id=run_id, at=event.at, trigger="cron", **done))

    def skipped_slot(self, event: CeremonySkipped) -> None:
        """Slots were skipped. In journals of earlier versions this event also reports missed slots."""
        self._not_fired(event, "skipped" if event.why.startswith("overlap") else "missed")

    def missed_slot(self, event: CeremonyMissed) -> None:
        """Slots were missed because no hub ran."""
        self._not_fired(event, "missed")

    def _not_fired(self, event: CeremonySkipped | CeremonyMissed, status: str) -> None:
        ceremony = self._of(event.ceremony_id)
        if ceremony is None:
            return
        at, why = event.scheduled_at or event.at, one_line(event.why, 300)
        if any((run.at, run.status) == (at, status) for run in ceremony.runs):
            return
        slots = min(max(1, event.count), 1_000_000)
        self.missed += slots if status == "missed" else 0
        self.skipped += slots if status == "skipped" else 0
        ceremony.runs.appendleft(RunRow(run_id=f"seq-{event.seq}", at=at, trigger="cron", status=status, error=why))
        self._next(ceremony, event)

    @staticmethod
    def _next(ceremony: _Ceremony, event: CeremonyFired | CeremonySkipped | CeremonyMissed) -> None:
        if event.next_fire_at:
            ceremony.facts = with_members(ceremony.facts, next_at=event.next_fire_at)

    def rows(self) -> tuple[CeremonyView, ...]:
        """All ceremonies: by next slot, then the paused, then the rejected ones."""
        if self._rows is None:
            rows = []
            for key, one in self._all.items():
                about: dict[str, Any] = {"runs": tuple(one.runs), "ok": one.ok, "failed": one.failed}
                next_at = from_iso(one.facts.next_at)
                rows.append(with_members(one.facts, ceremony_id=key, next_at=next_at, **about))
            for at, (path, error) in enumerate(self._errors):
                name = path.rsplit("/", 1)[-1] or error.split(":", 1)[0]
                rows.append(CeremonyView(ceremony_id=f"error-{at}", name=name, path=path, error=error))
            self._rows = tuple(sorted(rows, key=_soonest_first))
        return self._rows


def _run(facts: RunFacts) -> RunRow:
    ended = facts.ended_at
    return RunRow(
        run_id=one_line(facts.run_id, 200),
        at=facts.scheduled_at,
        trigger=one_line(facts.trigger, 20) or "cron",
        status=one_line(facts.status, 20),
        duration_ms=int((ended - facts.started_at).total_seconds() * 1000) if ended else None,
        lateness_ms=facts.lateness_ms,
        error=one_line(facts.error, 300),
        children=read.lines(facts.correlation_ids),
    )


def _soonest_first(row: CeremonyView) -> tuple[int, float, str]:
    group = 2 if row.error else 0 if row.enabled else 1
    return group, row.next_at.timestamp() if row.next_at else 1e18, row.ceremony_id
