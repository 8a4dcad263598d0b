"""The ceremonies screen: what fires next, how it went, one ceremony's facts and runs. Pure."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from fleetsim.caller.ceremonies.ceremony import zone_of
from fleetsim.caller.ceremonies.cron import next_slot, parse_cron
from fleetsim.dashboard.labels import RUN, Tone, countdown, mark_of, near, percent, plural, since, span, took
from fleetsim.dashboard.text import BLANK, Column, Line, Span, TableRow, fitted, line, muted, strong, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_ceremonies import CeremonyRow, RunRow
from fleetsim.model.errors import ConfigError

HISTORY_MAX = 24

COLUMNS = (
    Column(title="STATE", width=9),
    Column(title="CEREMONY", width=18, flex=3, most=26),
    Column(title="SCHEDULE", width=14, flex=2, most=28, drop=3),
    Column(title="NEXT FIRE", width=17, flex=2, most=24),
    Column(title="LAST", width=9, flex=1, most=12),
    Column(title="LATE", width=6, align=">", drop=6),
    Column(title="HISTORY", width=12, flex=3, most=HISTORY_MAX, drop=4),
    Column(title="OK%", width=5, align=">", drop=5),
)


def row(ceremony: CeremonyRow, now: datetime) -> TableRow:
    """One ceremony as a row."""
    last = ceremony.last
    late = next((run.lateness_ms for run in ceremony.runs if run.lateness_ms is not None), None)
    runs = ceremony.ok + ceremony.failed
    cells = (
        _state(ceremony),
        line(strong(ceremony.ceremony_id if not ceremony.error else ceremony.name or ceremony.ceremony_id)),
        line(ceremony.schedule, muted(_zone(ceremony.zone))) if ceremony.schedule else line(muted("-")),
        _next(ceremony, now),
        _last(last),
        line(muted(took(late))),
        history(ceremony),
        line(percent(ceremony.ok, runs) if runs >= 5 else muted(f"{ceremony.ok}/{runs}" if runs else "-")),
    )
    return TableRow(key=ceremony.ceremony_id, cells=cells, faded=not ceremony.enabled)


def _zone(zone: str) -> str:
    return "" if zone == "UTC" else "  " + zone.rsplit("/", 1)[-1]


def _state(ceremony: CeremonyRow) -> Line:
    if ceremony.error:
        return line(("✗ broken", Tone.BAD))
    if ceremony.running:
        return line(mark_of(RUN, "running"))
    if ceremony.enabled and ceremony.warnings:
        return line(("! on", Tone.WARN))
    return line(("● on", Tone.GOOD)) if ceremony.enabled else line(muted("‖ paused"))


def _next(ceremony: CeremonyRow, now: datetime) -> Line:
    if ceremony.error:
        return line((ceremony.error, Tone.BAD))
    if not ceremony.enabled:
        return line(muted("paused in its file"))
    if ceremony.next_at is None:
        return line(muted("-"))
    left = (ceremony.next_at - now).total_seconds()
    if left <= 0:
        return line(("due now", Tone.PRIMARY), muted("  " + near(ceremony.next_at, now)))
    return line(countdown(left), muted("  " + near(ceremony.next_at, now)))


def _last(run: RunRow | None) -> Line:
    if run is None:
        return line(muted("-"))
    mark = mark_of(RUN, run.status)
    said = took(run.duration_ms) if run.duration_ms is not None else mark.word
    return line((f"{mark.glyph} {said}", mark.role))


def history(ceremony: CeremonyRow) -> Line:
    """A glyph per run, the newest at the right."""
    spans: list[Span] = []
    for run in reversed(ceremony.runs[:HISTORY_MAX]):
        mark = mark_of(RUN, run.status)
        spans.append((mark.glyph, mark.role))
    return tuple(spans) or line(muted("never ran"))


def fields(ceremony: CeremonyRow) -> dict[str, str]:
    """What a filter looks at."""
    return {
        "ceremony": ceremony.ceremony_id.lower(),
        "name": ceremony.name.lower(),
        "skill": ceremony.skill.lower(),
        "agent": " ".join(ceremony.targets).lower(),
        "state": "broken" if ceremony.error else "on" if ceremony.enabled else "paused",
    }


@lru_cache(maxsize=256)
def following(schedule: str, zone: str, after: datetime, count: int = 3) -> tuple[datetime, ...]:
    """The slots after the next one; none if the schedule or its zone is not understood."""
    try:
        cron, place = parse_cron(schedule), zone_of(zone)
    except ConfigError:
        return ()
    slots: list[datetime] = []
    for _ in range(count):
        slots.append(next_slot(cron, slots[-1] if slots else after, place))
    return tuple(slots)


def title(ceremony: CeremonyRow) -> Line:
    """The head of the facts."""
    return line(ceremony.ceremony_id if not ceremony.error else ceremony.name or "broken")


def facts(ceremony: CeremonyRow, now: datetime, width: int) -> list[Line]:
    """What the file says, and when it fires next."""
    if ceremony.error:
        hint = "The other files are in force. Correct this one; it is read again within seconds."
        return [
            *wrap(ceremony.error, width, Tone.BAD),
            BLANK,
            *wrap(ceremony.path, width, Tone.MUTED),
            *wrap(hint, width, Tone.MUTED),
        ]
    pairs: list[tuple[str, Line]] = [
        ("name", line(ceremony.name or "-")),
        ("skill", line(ceremony.skill or "-")),
        ("targets", line(", ".join(ceremony.targets) or "-")),
        ("schedule", line(ceremony.schedule or "-", muted("  " + ceremony.zone))),
        ("next", _next(ceremony, now)),
    ]
    if ceremony.enabled and ceremony.next_at is not None:
        later = following(ceremony.schedule, ceremony.zone, ceremony.next_at)
        pairs += [("then" if not at else "", line(near(slot, now))) for at, slot in enumerate(later)]
    if ceremony.timeout_ms is not None:
        pairs.append(("timeout", line(span(ceremony.timeout_ms / 1000))))
    if ceremony.notify_channel:
        pairs.append(("notify", line(ceremony.notify_channel)))
    if ceremony.path:
        pairs.append(("file", line(muted(ceremony.path))))
    lines = [(*line(muted(f"{name:<9} ")), *fitted([value], width - 10)) for name, value in pairs]
    for warning in ceremony.warnings:
        lines += wrap(f"! {warning}", width, Tone.WARN)
    if ceremony.description:
        lines += [BLANK, *wrap(ceremony.description, width, Tone.MUTED)]
    return lines


RUN_COLUMNS = (
    Column(title="WHEN", width=15),
    Column(title="WHY", width=6),
    Column(title="TOOK", width=6, align=">"),
    Column(title="OUTCOME", width=9),
    Column(title="TASK", width=8, drop=1),
    Column(title="ERROR", width=8, flex=1, drop=2),
)


def run_row(run: RunRow, now: datetime) -> TableRow:
    """One run."""
    running = run.status == "running"
    cells = (
        line(f"{run.at:%m-%d %H:%M:%S}Z"),
        line(muted(run.trigger)),
        line(since(run.at, now) if running else took(run.duration_ms)),
        line(mark_of(RUN, run.status)),
        line(muted(run.children[0][:8] + (" +" if len(run.children) > 1 else "") if run.children else "-")),
        line((run.error, Tone.WARN)),
    )
    return TableRow(key=run.run_id, cells=cells)


def empty(view: View) -> list[Line]:
    """No ceremonies."""
    if not view.ceremonies_loaded:
        return [line(muted("Waiting for the ceremonies folder to be read …"))]
    return [
        line(strong("No ceremonies yet.")),
        line(muted("Put a file like ceremonies/daily.yaml with id, name, schedule, skill and targets.")),
    ]


def summary(shown: int, view: View) -> str:
    """The status line."""
    rows = view.ceremonies
    broken = sum(bool(row.error) for row in rows)
    on = sum(row.enabled and not row.error for row in rows)
    doubtful = sum(bool(row.warnings) for row in rows)
    counts = f"{on} on   {len(rows) - on - broken} paused   {broken} broken"
    counts += f"   {plural(doubtful, 'warning')}" if doubtful else ""
    return f"{shown} of {plural(len(rows), 'ceremony', 'ceremonies')} shown   {counts}   times in UTC"
