"""Screen 4: ceremonies, their next slots, the facts and runs of one, and a manual run."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache, partial

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import zone_of
from fleetsim.dashboard.chrome import ScreenName
from fleetsim.dashboard.labels import MUTED, RUN, STRONG, Tone, age, countdown, duration, moment, percent, plural, since
from fleetsim.dashboard.screens.pane import Pane, counted
from fleetsim.dashboard.text import BLANK, Column, Rows, TableRow, line, named, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_ceremonies import CeremonyView, RunRow
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.model.errors import ConfigError

HISTORY_MAX = 24

COLUMNS = (
    Column(title="STATE", width=9, by="enabled"),
    Column(title="CEREMONY", width=18, flex=3, most=26, by="ceremony_id"),
    Column(title="SCHEDULE", width=14, flex=2, most=28, drop=3, by="schedule"),
    Column(title="NEXT FIRE", width=17, flex=2, most=24, by="next_at"),
    Column(title="LAST", width=9, flex=1, most=12),
    Column(title="LATE", width=6, align=">", drop=6),
    Column(title="HISTORY", width=12, flex=3, most=HISTORY_MAX, drop=4),
    Column(title="OK%", width=5, align=">", drop=5, by="ok"),
)
RUN_COLUMNS = (
    Column(title="WHEN", width=15),
    Column(title="WHY", width=6),
    Column(title="TOOK", width=6, align=">"),
    Column(title="OUTCOME", width=9),
    Column(title="TASK", width=8, drop=1),
    Column(title="ERROR", width=8, flex=1, drop=2),
)


def row(ceremony: CeremonyView, now: datetime) -> TableRow:
    """One ceremony as a row of ``COLUMNS``; its history has a glyph per run, the newest at the right."""
    zone = "" if ceremony.zone == "UTC" else "  " + ceremony.zone.rsplit("/", 1)[-1]
    late = next((run.lateness_ms for run in ceremony.runs if run.lateness_ms is not None), None)
    history = line(
        *((mark.glyph, mark.tone) for mark in (RUN[run.status] for run in ceremony.runs[HISTORY_MAX - 1 :: -1]))
    )
    last = line(("-", MUTED))
    if (run := ceremony.last) is not None:
        mark = RUN[run.status]
        took = duration(run.duration_ms) if run.duration_ms is not None else mark.word
        last = line((f"{mark.glyph} {took}", mark.tone))
    runs = ceremony.ok + ceremony.failed
    ok = percent(ceremony.ok, runs) if runs >= 5 else (f"{ceremony.ok}/{runs}" if runs else "-", MUTED)
    state = ("● on", Tone.GOOD) if ceremony.enabled else ("‖ paused", MUTED)
    if ceremony.error:
        state = ("✗ broken", Tone.BAD)
    elif ceremony.running:
        state = RUN["running"].piece
    elif ceremony.enabled and ceremony.warnings:
        state = ("! on", Tone.WARN)
    cells = (
        line(state),
        line((ceremony.ceremony_id if not ceremony.error else ceremony.name or ceremony.ceremony_id, STRONG)),
        line(ceremony.schedule, (zone, MUTED)) if ceremony.schedule else line(("-", MUTED)),
        _next(ceremony, now),
        last,
        line((duration(late), MUTED)),
        history if ceremony.runs else line(("never ran", MUTED)),
        line(ok),
    )
    return TableRow(cells, faded=not ceremony.enabled)


def _next(ceremony: CeremonyView, now: datetime) -> Text:
    if ceremony.error:
        return line((ceremony.error.removeprefix(ceremony.ceremony_id).lstrip(": "), Tone.BAD))
    if not ceremony.enabled:
        return line(("paused in its file", MUTED))
    if ceremony.next_at is None:
        return line(("-", MUTED))
    left = (ceremony.next_at - now).total_seconds()
    at = ("  " + moment(ceremony.next_at, now), MUTED)
    return line(countdown(left) if left > 0 else ("due now", Tone.PRIMARY), at)


def fields(ceremony: CeremonyView) -> dict[str, str]:
    return {
        "ceremony": ceremony.ceremony_id.lower(),
        "name": ceremony.name.lower(),
        "skill": ceremony.skill.lower(),
        "agent": " ".join(ceremony.targets).lower(),
        "state": "broken" if ceremony.error else "on" if ceremony.enabled else "paused",
        "problem": "yes" if ceremony.error or ceremony.warnings or _missed(ceremony) else "no",
    }


def _missed(ceremony: CeremonyView) -> bool:
    """Whether the last run did not succeed."""
    return ceremony.last is not None and ceremony.last.status != "success"


@lru_cache(maxsize=256)
def following(schedule: str, zone: str, after: datetime, count: int = 3) -> tuple[datetime, ...]:
    """The slots after the next one; none for a schedule or zone that cannot be read."""
    try:
        cron, place = parse_cron(schedule), zone_of(zone)
    except ConfigError:
        return ()
    slots: list[datetime] = []
    for _ in range(count):
        slots.append(next_slot(cron, slots[-1] if slots else after, place))
    return tuple(slots)


def facts(ceremony: CeremonyView, now: datetime, width: int) -> list[Text]:
    """The content of the file, and the next slot."""
    if ceremony.error:
        hint = "The other files are in force. Correct this one; it is read again within seconds."
        error = wrap(ceremony.error, width, Tone.BAD)
        return [*error, BLANK, *wrap(ceremony.path, width, MUTED), *wrap(hint, width, MUTED)]
    pairs = [
        ("name", line(ceremony.name or "-")),
        ("skill", line(ceremony.skill or "-")),
        ("targets", line(", ".join(ceremony.targets) or "-")),
        ("schedule", line(ceremony.schedule or "-", ("  " + ceremony.zone, MUTED))),
        ("next", _next(ceremony, now)),
    ]
    if ceremony.enabled and ceremony.next_at is not None:
        later = following(ceremony.schedule, ceremony.zone, ceremony.next_at)
        pairs += [("then" if not at else "", line(moment(slot, now))) for at, slot in enumerate(later)]
    if ceremony.timeout_ms is not None:
        pairs.append(("timeout", line(age(ceremony.timeout_ms / 1000))))
    if ceremony.notify_channel:
        pairs.append(("notify", line(ceremony.notify_channel)))
    if ceremony.path:
        pairs.append(("file", line((ceremony.path, MUTED))))
    lines = named(pairs, width)
    for warning in ceremony.warnings:
        lines += wrap(f"! {warning}", width, Tone.WARN)
    return [*lines, BLANK, *wrap(ceremony.description, width, MUTED)] if ceremony.description else lines


def run_row(run: RunRow, now: datetime) -> TableRow:
    task = run.children[0][:8] + (" +" if len(run.children) > 1 else "") if run.children else "-"
    return TableRow(
        (
            line(f"{run.at:%m-%d %H:%M:%S}Z"),
            line((run.trigger, MUTED)),
            line(since(run.at, now) if run.status == "running" else duration(run.duration_ms)),
            line(RUN[run.status].piece),
            line((task, MUTED)),
            line((run.error, Tone.WARN)),
        )
    )


NO_CEREMONIES = (
    line(("No ceremonies yet.", STRONG)),
    line(("Write one:  ", MUTED), ("fleetsim ceremony new ID", Tone.PRIMARY)),
)


class CeremoniesPane(Pane):
    """The list, and below it the content of one file and its runs."""

    NAME = ScreenName.CEREMONIES

    def compose(self) -> ComposeResult:
        self.main = Grid(COLUMNS, id="ceremony-list")
        self._facts = Page(id="ceremony-facts")
        self._runs = Grid(RUN_COLUMNS, id="runs", classes="framed", hold=False)
        yield self.main
        self._detail = Horizontal(id="ceremony", classes="-bare")
        with self._detail:
            yield self._facts
            yield self._runs

    def draw(self, view: View) -> None:
        second, now = int(view.now.timestamp()), view.now
        ceremonies = [one for one in view.ceremonies if self.query_now.matches(fields(one))]
        rows = Rows(ceremonies, lambda one: one.ceremony_id, lambda one: row(one, now), second)
        awaited = "" if view.ceremonies_loaded else "waiting for the hub to read the folder of ceremonies"
        self.main.show(rows, empty=self.instead(view, view.ceremonies, *NO_CEREMONIES, awaited=awaited))
        self._runs.set_titles("Runs", "newest first")
        ceremony = view.ceremony(self.main.key or "")
        self._detail.set_class(ceremony is None, "-bare")
        if ceremony is None:
            return
        self._runs.set_class(not ceremony.runs, "-bare")
        self.set_class(not ceremony.runs, "-never-ran")
        self._facts.set_titles(ceremony.name or "broken" if ceremony.error else ceremony.ceremony_id)
        self._facts.show((ceremony, second), lambda width: facts(ceremony, now, width))
        runs = Rows(ceremony.runs, lambda run: run.run_id, lambda run: run_row(run, now), second)
        self._runs.show(runs)

    def status(self, view: View) -> str:
        rows = view.ceremonies
        broken = sum(bool(row.error) for row in rows)
        on = sum(row.enabled and not row.error for row in rows)
        doubtful = sum(bool(row.warnings) for row in rows)
        counts = f"{on} on   {len(rows) - on - broken} paused   {broken} broken"
        counts += f"   {plural(doubtful, 'warning')}" if doubtful else ""
        shown = f"{len(self.main.rows.items)} of {plural(len(rows), 'ceremony', 'ceremonies')} shown"
        return f"{shown}   {counts}   times in UTC"

    def opened(self, grid: Grid, key: str) -> None:
        """Open the runs, or a run's first task."""
        if grid is self.main:
            self.add_class("-opened")
            (self._facts if self.has_class("-never-ran") else self._runs).focus()
            self.host.draw_soon()
            return
        children = next((run.children for run in self._runs.rows.items if run.run_id == key), ())
        if children:
            self.host.show_task(children[0])

    def action_fire(self) -> None:
        chosen = set(self.main.chosen)
        rows = [row for row in self.host.view.ceremonies if row.ceremony_id in chosen]
        if any(row.error for row in rows):
            self.host.say("a rejected ceremony cannot be fired: correct its file first", Tone.WARN)
            return
        jobs = {row.ceremony_id: partial(self.host.controls.fire, row.ceremony_id) for row in rows}
        if jobs:
            done = f"fired {', '.join(jobs)}" if len(jobs) == 1 else f"fired {len(jobs)} ceremonies"
            what = (
                counted("Fire now:", "run", list(jobs))
                if len(jobs) > 1
                else [line("Fire ", (rows[0].ceremony_id, STRONG), " now?")]
            )
            self.act_on("Fire", jobs, what, "not fired", done)
