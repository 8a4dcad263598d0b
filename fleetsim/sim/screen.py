"""Screen 6: a recorded run: charts over time, troubles and expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.api.health import HealthWord
from fleetsim.dashboard.chrome import ScreenName, Size
from fleetsim.dashboard.labels import (
    HEALTH,
    HEALTH_ORDER,
    MUTED,
    STATE,
    STRONG,
    StateLabel,
    Tone,
    duration,
    plural,
    spark,
)
from fleetsim.dashboard.screens import events
from fleetsim.dashboard.screens.fleet import ok_share
from fleetsim.dashboard.screens.pane import Pane
from fleetsim.dashboard.text import Column, Rows, TableRow, clip, fitted, left_out, line, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_fleet import AgentRow
from fleetsim.dashboard.widgets import Grid, Lines, Page
from fleetsim.health.figures import shown
from fleetsim.sim.run import TroubleSpan
from fleetsim.sim.view import CELLS_MAX, RunState, ScenarioFold, ScenarioView

NEWEST_MAX, LOOKED_MAX = 50, 2_000
BAR_CELLS = 20
SHORT_LINES = 16
"""On a terminal with fewer lines, the agents use the room of the other tables."""
RESULT: Mapping[str, StateLabel] = {
    "ok": StateLabel("✓", "as expected", Tone.GOOD),
    "unexpected": StateLabel("✗", "not as expected", Tone.BAD),
    "violated": StateLabel("✗", "a rule was broken", Tone.BAD),
}
COLUMNS = (
    Column(title="HEALTH", width=10),
    Column(title="AGENT", width=10, flex=1, most=24),
    Column(title="OK%", width=5, align=">"),
    Column(title="P95", width=5, align=">", drop=3),
    Column(title="RUN", width=3, align=">", drop=4),
    Column(title="WAIT", width=4, align=">", drop=2),
    Column(title="HEALTH OVER TIME", width=CELLS_MAX // 2, flex=4, most=CELLS_MAX + 2),
)
_WORDS = {word.value: word for word in HealthWord}


def span(seconds: float) -> str:
    """A moment of the run, or a duration: ``1d 02:03:04``."""
    days, rest = divmod(int(seconds), 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def standing(run: ScenarioView) -> Text:
    """The verdict, or the state so far."""
    if run.started.of_hub:
        return line(("a recording of a hub", STRONG))
    if run.verdict is not None:
        return line(RESULT[run.verdict.result].piece)
    if run.log_lines:
        return line(("✗ fleetsim logged an error", Tone.BAD))
    if run.expectations and all(row.figure is None for row in run.expectations):
        return line((f"· no figure yet for {plural(len(run.expectations), 'expectation')}", MUTED))
    broken = sum(not row.holds for row in run.expectations)
    if broken:
        return line((f"! {broken} of {plural(len(run.expectations), 'expectation')} not met so far", Tone.WARN))
    if run.expectations:
        return line(("✓ as expected so far", Tone.GOOD))
    return line(("it has no expectations", MUTED))


def progress(run: ScenarioView, width: int) -> Text:
    if not (whole_s := run.started.duration_s):
        return line((span(run.at_s), STRONG), (" since the recording began", MUTED))
    share, later_s = min(1.0, run.at_s / whole_s), int(run.at_s - whole_s)
    moment = f"{span(whole_s)} +{span(later_s)}" if later_s > 0 else f"{span(run.at_s)} of {span(whole_s)}"
    rest = {RunState.RUNNING: "", RunState.SETTLING: " settling", RunState.ENDED: " over"}[run.state]
    text = line((f" {share:.0%} ", STRONG), moment, (rest, MUTED))
    cells = max(3, min(BAR_CELLS, width - text.cell_len))
    done = round(share * cells)
    return line(("━" * done, Tone.PRIMARY), ("─" * (cells - done), MUTED), text)


def rules(run: ScenarioView, *, written: bool = False) -> Text:
    """The result of the rules for every run; ``written``: a process still writes the recording."""
    if run.started.of_hub:
        return line(("no rules: a hub's recording lacks the agents' side", MUTED))
    if run.verdict is None:
        ended = run.state is RunState.ENDED and not written
        return line(("no verdict in it: fleetsim sim --replay FILE" if ended else "rules: checked at the end", MUTED))
    if run.verdict.violations:
        return line((f"✗ rules broken {plural(run.verdict.violations, 'time')}", Tone.BAD))
    return line((f"✓ {run.verdict.rules} rules held in {run.verdict.cases:,} cases", Tone.GOOD))


def run_card(run: ScenarioView, width: int, *, written: bool = False) -> list[Text]:
    """Verdict, time and source."""
    begun = line((f"from {run.started.start:%Y-%m-%d %H:%M:%SZ}", MUTED))
    came = [begun] if run.started.of_hub else [line(("seed ", MUTED), str(run.started.seed)), begun]
    return [
        clip(piece, width)
        for piece in (standing(run), progress(run, width), rules(run, written=written), fitted(came, width))
    ]


def work_card(run: ScenarioView, width: int) -> list[Text]:
    """Traffic over time and now."""
    by = -(-CELLS_MAX // max(4, width - 26))  # cells a bar: it shows the highest of them
    hourly = f"{run.requests_hour:,.0f}"
    rows = (
        ("requests", run.requests_cells, f"{run.requests:,}" + (f", {hourly}/h" if hourly != "0" else ""), Tone.CALM),
        ("in flight", run.in_flight_cells, f"{run.in_flight:,}", Tone.PRIMARY),
        ("failures", run.failures_cells, f"{run.failures:,}", Tone.BAD if run.failures else MUTED),
    )
    lines = [
        line(
            (f"{name:<10}", MUTED),
            (spark([max(cells[at : at + by]) for at in range(0, len(cells), by)]), tone),
            f" {now}",
        )
        for name, cells, now, tone in rows
    ]
    stops = [line((f"hub killed {plural(run.kills, 'time')}", Tone.WARN))] if run.kills else []
    each = line((f"a bar is {duration(run.width_s * by * 1000)}", MUTED))
    return [clip(row, width) for row in (*lines, fitted([*stops, each], width))]


def ends_card(run: ScenarioView, width: int) -> list[Text]:
    """Outcomes by kind."""
    ends = sorted(run.ends.items(), key=lambda row: (row[0] != "completed", -row[1]))
    pieces = [line(STATE[kind].piece, f" {count:,}") for kind, count in ends]
    if not pieces:
        return [line(("nothing has ended", MUTED))]
    lines, row = [], list[Text]()
    for piece in pieces:
        if row and sum(cell.cell_len + 2 for cell in row) + piece.cell_len > width:
            lines.append(fitted(row, width))
            row = []
        row.append(piece)
    return [*lines, fitted(row, width)]


def strip(looks: Sequence[tuple[float, str]], run: ScenarioView, cells: int) -> Text:
    """A glyph per cell for the agent's worst health word; a dot before the first one."""
    text, word, at = Text(), "", 0
    for cell in range(cells):
        begins_s, ends_s = run.span_s * cell / cells, run.span_s * (cell + 1) / cells
        if begins_s > run.at_s:
            break
        worst = word
        while at < len(looks) and looks[at][0] < ends_s:
            word = looks[at][1]
            worst = word if not worst or _badness(word) < _badness(worst) else worst
            at += 1
        mark = HEALTH[_WORDS[worst]] if worst in _WORDS else None
        text.append(mark.glyph if mark else "·", mark.tone if mark else MUTED)
    return text


def _badness(word: str) -> int:
    known = _WORDS.get(word)
    return len(HEALTH_ORDER) if known is None else HEALTH_ORDER[known]


def agent_row(agent: AgentRow, run: ScenarioView, cells: int) -> TableRow:
    f = agent.figures
    return TableRow(
        (
            line(HEALTH[agent.health].piece),
            line((agent.name, STRONG)),
            ok_share(agent),
            line(duration(f.p95_latency_ms) if f.answered_outcomes else ("-", MUTED)),
            line((str(agent.running), Tone.PRIMARY if agent.running else MUTED)),
            line((str(agent.waiting), Tone.ACCENT if agent.waiting else MUTED)),
            strip(run.looks.get(agent.name, ()), run, cells),
        )
    )


def expected(run: ScenarioView, width: int) -> list[Text]:
    """Each expectation with its figure now, then each broken rule with its moment."""
    if run.started.of_hub:
        what = (
            "A hub's recording has no expectations, and it lacks the agents' side of "
            "it. `fleetsim sim --replay FILE` reports the figures of the hub's events."
        )
        return wrap(what, width, MUTED)
    lines: list[Text] = []
    final = run.verdict is not None
    for row in run.expectations:
        tone = Tone.GOOD if row.holds else Tone.BAD if final else Tone.WARN if row.figure is not None else MUTED
        mark = "✓" if row.holds else "✗" if final else "!" if row.figure is not None else "·"
        figure = f"it is {shown(row.expectation.unit, row.figure)}" if row.figure is not None else "no figure yet"
        lines.append(clip(line((f"{mark} ", tone), row.expectation.text, (f"  {figure}", MUTED)), width))
    for failure in run.log_lines:
        lines += wrap(f"fleetsim logged an error: {failure}", width, Tone.BAD)
    for wrong in run.verdict.first if run.verdict else ():
        lines += [*wrap(wrong.rule, width, Tone.BAD), *wrap(f"{span(wrong.at_s)} {wrong.who}: {wrong.said}", width)]
    if run.verdict and run.verdict.violations > len(run.verdict.first):
        lines.append(left_out(f"and {run.verdict.violations - len(run.verdict.first)} more"))
    return lines or [line(("nothing is expected", MUTED))]


def troubles(run: ScenarioView, width: int) -> list[Text]:
    """The troubles that go on, then the ended ones."""
    none = line(("nothing, so far" if run.state is RunState.RUNNING else "nothing", MUTED))
    return [clip(_trouble(row), width) for row in run.troubles] or [none]


def _trouble(row: TroubleSpan) -> Text:
    what = row.said or row.name
    if row.ends_s is None:
        return line(("! ", Tone.WARN), (f"since {span(row.begins_s)}  ", MUTED), (what, STRONG))
    return line((f"  {span(row.begins_s)} to {span(row.ends_s)}  ", MUTED), what)


class ScenarioPane(Pane):
    """The run, its agents over time, then expectations beside troubles, and the newest events."""

    NAME = ScreenName.SCENARIO
    FOLD = ScenarioFold

    def compose(self) -> ComposeResult:
        self._cards = [Lines(classes="card framed") for _ in range(3)]
        self._notes = Lines(id="scenario-notes")
        self.main = Grid(COLUMNS, id="scenario-agents", hold=False)
        self._expected = Page(id="expected")
        self._troubles = Page(id="troubles")
        self._newest = Grid(events.NARROW, id="newest", classes="framed", hold=False)
        self._top, self._told = Horizontal(id="scenario-cards"), Horizontal(id="scenario-told")
        with self._top:
            yield from self._cards
        yield self._notes
        yield self.main
        with self._told:
            yield self._expected
            yield self._troubles
        yield self._newest

    def draw(self, view: View) -> None:
        run = cast("ScenarioView | None", view.scenario)
        for panel in (self._top, self._told, self._newest):
            panel.set_class(run is None, "-bare")
        if run is None:
            self.main.show(Rows(), empty=self.instead(view, (), awaited="waiting for the recording to begin"))
            return
        written = self.host.playback is not None and self.host.playback.written
        if self.size_class is Size.FULL:
            width = max(10, self._cards[0].inner_width)
            drawn = (
                ("Run", run_card(run, width, written=written)),
                ("Work, whole run", work_card(run, width)),
                ("Ends, whole run", ends_card(run, width)),
            )
            for card, (title, lines) in zip(self._cards, drawn, strict=True):
                card.set_titles(title)
                card.show(lines)
        else:
            width = max(20, self.size.width - 2)
            verdict, far, ruled, _ = run_card(run, width, written=written)
            notes = (verdict, far, *work_card(run, width)[:3], ruled, fitted(ends_card(run, width), width))
            self._notes.show([line(" ", note) for note in (notes if self.size.height >= SHORT_LINES else notes[:3])])
        cells = CELLS_MAX if self.size_class is Size.FULL else CELLS_MAX // 2
        about = (int(run.at_s), run.looks)
        rows = Rows(view.agents, lambda agent: agent.name, lambda agent: agent_row(agent, run, cells), about)
        self.main.show(rows, empty=self.instead(view, (), line(("No agent is known yet.", STRONG))))
        self._expected.set_titles("Expected", "figures so far" if run.verdict is None and run.expectations else "")
        inputs = (run.started.of_hub, run.expectations, run.verdict, run.log_lines)
        self._expected.show(inputs, lambda width: expected(run, width))
        now = sum(row.ends_s is None for row in run.troubles)
        self._troubles.set_titles("Trouble", f"{now} active" if run.troubles else "")
        self._troubles.show((run.troubles, run.state), lambda width: troubles(run, width))
        told = (event for event in view.events[: -LOOKED_MAX - 1 : -1] if event.level != "debug")
        newest = list(islice(told, NEWEST_MAX))
        self._newest.set_titles("Newest events", "5 shows all")
        wide = self.size_class is Size.FULL
        columns = events.COLUMNS if wide else events.NARROW
        listed = Rows(newest, lambda event: str(event.seq), lambda event: events.row(event, not wide), wide)
        self._newest.show(listed, columns=columns)
        self._newest.set_class(not newest, "-bare")
        self._troubles.set_class(not run.troubles, "-bare")

    def status(self, view: View) -> str:
        run = cast("ScenarioView | None", view.scenario)
        if run is None:
            return ""
        past = "   of a hub: no expectations, no rules" if run.started.of_hub else ""
        counts = f"{plural(view.counters.agents, 'agent')}   {view.counters.events:,} events"
        return f"{counts}   OK% and P95: last {view.window}{past}   read only"

    def chosen_task(self) -> str | None:
        key = self._newest.key if self._newest.has_focus else None
        return next((event.correlation_id for event in self.host.view.events if str(event.seq) == key), None)

    def opened(self, grid: Grid, key: str) -> None:
        if grid is self.main:
            self.host.show_agent(key)
        elif task := self.chosen_task():
            self.host.show_task(task)
