"""The timeline of a run, and its charts: SVG by hand, of classes that the page's style colours. All text is escaped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from fleetsim.events.fleet import CeremonyLate, CeremonyMissed, CeremonySkipped
from fleetsim.events.request import Event
from fleetsim.health.figures import percentile
from fleetsim.model.spans import in_words
from fleetsim.model.text import html_text, one_line
from fleetsim.model.work import OutcomeKind
from fleetsim.sim.run import RequestRun, Run
from fleetsim.sim.scenario import START

WIDTH = 960
LEFT = 184
RIGHT = 14
AXIS = 22
ROW = 20
ROWS_MAX = 40
LABEL_MAX = 27
TICKS_MAX = 10
TICKS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * 60 for minutes in (1, 5, 10, 15, 30)),
    *(hours * 3_600 for hours in (1, 2, 3, 6, 12)),
    *(days * 86_400 for days in (1, 2, 7, 30, 366)),
)
STYLE = """
svg{width:100%;height:auto;display:block;margin:.2rem 0 .6rem;font:11px system-ui,sans-serif}
svg text{fill:var(--dim)}svg text.name{fill:currentColor;font-size:12px}.grid{stroke:#8883}.axis{stroke:#8888}
.calm{stroke:#888a;stroke-dasharray:4 3}.when{fill:var(--bad);opacity:.13}.trouble{fill:var(--bad);opacity:.75}
.area{fill:#3b82c4;opacity:.25}.line{fill:none;stroke:#3b82c4;stroke-width:1.5}
.high{fill:none;stroke:#d9822b;stroke-width:1.5}.low{fill:none;stroke:#3b82c4;stroke-width:1.5}
.wide>svg{min-width:60rem} /* labels of 4 pixels on a phone could not be read */
circle.high{fill:#d9822b}circle.low{fill:#3b82c4}
.completed,.up,.success{fill:#3f9c63}.failed,.down,.failure,.missed{fill:#cf4a3f}.rejected{fill:#b0589e}
.canceled,.paused,.skipped{fill:#8c8c8c}.undeliverable{fill:#e0913a}.unknown{fill:#7d6bc9}.few{fill:#9aa0a6}.lost{fill:#8a3324}
.expired,.degraded,.late,.timeout{fill:#d8b13c}.protocol_error{fill:#3aa5a5}.running{fill:#3b82c4}
.key{display:inline-flex;align-items:center;gap:.35em;margin-right:1em;font-size:.85rem}.key svg{width:.8em;margin:0}
"""


class Axis:
    """The time of a run from left to right."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.whole_s = max(timeline.ends_s, 1.0)
        self.ticks = tuple(self._ticks())

    def x(self, at_s: float) -> float:
        return round(LEFT + min(max(at_s, 0.0), self.whole_s) / self.whole_s * (WIDTH - LEFT - RIGHT), 1)

    def _ticks(self) -> Iterator[tuple[float, str]]:
        """Round times of day, with the day where it begins."""
        step = next(step for step in TICKS_S if step * TICKS_MAX >= self.whole_s or step == TICKS_S[-1])
        start = self.timeline.start
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        at = -((start - midnight).total_seconds() % step)
        days = self.whole_s > 86_400
        while at <= self.whole_s:
            if at >= 0:
                when = start + timedelta(seconds=at)
                new_day = days and (when.hour, when.minute) == (0, 0)
                yield at, when.strftime("%a %d %b" if new_day else "%H:%M" if step >= 60 else "%H:%M:%S")
            at += step

    def moment(self, at_s: float) -> str:
        """A moment in full, for the tooltip of a mark."""
        return (self.timeline.start + timedelta(seconds=at_s)).strftime("%a %d %b %H:%M:%S")


def chart(axis: Axis, height: float, label: str, inside: Iterable[str], *, marked: bool = True) -> Iterator[str]:
    """A frame on the time axis: ticks below, a band for trouble that came and went, a line where traffic ends."""
    yield '<div class="wide">'
    yield f'<svg viewBox="0 0 {WIDTH} {height + AXIS:g}" role="img" aria-label="{html_text(label)}">'
    for periods in axis.timeline.troubles.values() if marked else ():
        for period in periods:
            if period.ends_s - period.begins_s > axis.whole_s / 2:
                continue  # what was there most of the time marks nothing
            wide = max(1.0, axis.x(period.ends_s) - axis.x(period.begins_s))
            yield f'<rect class="when" x="{axis.x(period.begins_s)}" y="0" width="{wide:.1f}" height="{height:g}"/>'
    for at, text in axis.ticks:
        x = axis.x(at)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{height:g}"/>'
        anchor = "end" if x > WIDTH - 30 else "middle"
        yield f'<text x="{x}" y="{height + 15:g}" text-anchor="{anchor}">{text}</text>'
    if axis.timeline.calm_s is not None and axis.timeline.calm_s < axis.whole_s:
        x = axis.x(axis.timeline.calm_s)
        yield f'<line class="calm" x1="{x}" x2="{x}" y1="0" y2="{height:g}"><title>traffic ends</title></line>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:g}" y2="{height:g}"/>'
    yield from inside
    yield "</svg></div>"


def _scale(height: float, highest: float, unit: str) -> Iterator[str]:
    """The highest value and none, beside the chart."""
    yield f'<text x="{LEFT - 6}" y="12" text-anchor="end">{unit}</text>'
    yield f'<text x="{LEFT - 6}" y="{height:g}" text-anchor="end">0</text>'


def _named(name: str, y: float) -> str:
    shown = html_text(one_line(name, LABEL_MAX))
    return f'<text class="name" x="0" y="{y:g}">{shown}<title>{html_text(name)}</title></text>'


def outcomes(axis: Axis) -> Iterator[str]:
    """The number of requests of each kind of end, in each part of the run."""
    timeline, height = axis.timeline, 140.0
    highest = max((counts.total() for counts in timeline.outcomes.values()), default=0) or 1

    def bars() -> Iterator[str]:
        yield from _scale(height, highest, str(highest))
        for part, counts in sorted(timeline.outcomes.items()):
            begins, ends = part * timeline.width_s, (part + 1) * timeline.width_s
            x, y = axis.x(begins), height
            wide = max(1.0, axis.x(ends) - x - 1)
            for kind in OutcomeKind:
                if count := counts[kind]:
                    tall = count / highest * (height - 6)
                    y -= tall
                    yield (
                        f'<rect class="{kind}" x="{x}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
                        f"<title>{count} {kind}, {axis.moment(begins)}</title></rect>"
                    )

    yield from chart(axis, height, "outcomes by kind over time", bars())


def kinds_seen(timeline: Timeline) -> list[str]:
    """The kinds of end in the run, in the order of the bars."""
    seen: Counter[str] = sum(timeline.outcomes.values(), Counter())
    return [kind for kind in OutcomeKind if seen[kind]]


def steps(axis: Axis, points: Sequence[tuple[float, float]], label: str, money: bool = False) -> Iterator[str]:
    """An amount that changes in steps. Of several changes at one point the highest is drawn."""
    height = 100.0
    highest = max((amount for _, amount in points), default=0.0) or 1.0

    def drawn() -> Iterator[str]:
        yield from _scale(height, highest, f"${highest:.2f}" if money else f"{highest:g}")
        peaks: dict[float, tuple[float, float]] = {}
        for at, amount in points:
            x = axis.x(at)
            peaks[x] = (max(amount, peaks[x][0]) if x in peaks else amount, amount)
        path, y = [f"M{axis.x(0)} {height:g}"], height
        for x, (peak, last) in sorted(peaks.items()):
            high, y = (height - amount / highest * (height - 6) for amount in (peak, last))
            path.append(f"H{x}V{high:.1f}V{y:.1f}")
        path.append(f"H{axis.x(axis.whole_s)}")
        yield f'<path class="area" d="{"".join(path)}V{height:g}Z"/><path class="line" d="{"".join(path)}"/>'

    yield from chart(axis, height, label, drawn())


def latencies(axis: Axis, name: str, points: Sequence[LatencyPoint], highest: float = 0.0) -> Iterator[str]:
    """A p50 and p95 in each part of the run. ``highest`` is the top of the scale in seconds, if charts share one."""
    height = 64.0
    highest = highest or max((point.p95 for point in points), default=0.0) or 1.0

    def drawn() -> Iterator[str]:
        yield _named(name, height / 2 + 4)
        yield from _scale(height, highest, in_words(highest))
        for line in ("p95", "p50"):
            look = "high" if line == "p95" else "low"
            at = [(axis.x(p.at_s), round(height - getattr(p, line) / highest * (height - 6), 1)) for p in points]
            path, last_s = "", 0.0
            for (x, y), p in zip(at, points, strict=True):
                path += f"{'L' if path and p.at_s - last_s < 1.5 * axis.timeline.width_s else 'M'}{x} {y}"
                last_s = p.at_s
            yield f'<path class="{look}" d="{path}"/>'
            for (x, y), p in zip(at, points, strict=True):
                label = f"{line} {in_words(getattr(p, line))}, {axis.moment(p.at_s)}"
                yield f'<circle class="{look}" cx="{x}" cy="{y}" r="2"><title>{label}</title></circle>'

    yield from chart(axis, height, f"latency of {name} over time", drawn())


def strips(axis: Axis, rows: Mapping[str, Sequence[Period]], label: str, look: str = "") -> Iterator[str]:
    """A row for each name, filled where something was so; ``look`` colours all alike, else ``what`` says the colour."""
    shown = dict(list(rows.items())[:ROWS_MAX])
    height = ROW * len(shown) + 4.0

    def drawn() -> Iterator[str]:
        for number, (name, periods) in enumerate(shown.items()):
            y = ROW * number + 3
            yield _named(name, y + 12)
            for period in periods:
                x = axis.x(period.begins_s)
                wide = max(2.0, axis.x(period.ends_s) - x)
                said = html_text(f"{period.what}: {axis.moment(period.begins_s)} to {axis.moment(period.ends_s)}")
                place = f'x="{x}" y="{y}" width="{wide:.1f}" height="{ROW - 6}"'
                yield f'<rect class="{look or html_text(period.what)}" {place}><title>{said}</title></rect>'

    yield from chart(axis, height, label, drawn(), marked=not look)


def dots(axis: Axis, rows: Mapping[str, Sequence[FireMark]], label: str) -> Iterator[str]:
    """A row for each name with a dot for each happening."""
    shown = dict(list(rows.items())[:ROWS_MAX])
    height = ROW * len(shown) + 4.0

    def drawn() -> Iterator[str]:
        for number, (name, marks) in enumerate(shown.items()):
            y = ROW * number + 12
            yield _named(name, y + 3)
            for h in marks:
                said = html_text(f"{h.what}, {axis.moment(h.at_s)}")
                place = f'cx="{axis.x(h.at_s)}" cy="{y}" r="4"'
                yield f'<circle class="{html_text(h.what)}" {place}><title>{said}</title></circle>'

    yield from chart(axis, height, label, drawn())


def key(names: Mapping[str, str]) -> Iterator[str]:
    """The legend of the colours, by class."""
    yield "<p>"
    for look, name in names.items():
        box = (
            f'<svg viewBox="0 0 10 10" aria-hidden="true"><circle class="{html_text(look)}" cx="5" cy="5" r="5"/></svg>'
        )
        yield f'<span class="key">{box}{html_text(name)}</span>'
    yield "</p>"


BUCKETS_MAX = 48
WIDTHS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20),
    *(minutes * 60 for minutes in (1, 5, 15, 30)),
    *(hours * 3_600 for hours in (1, 3, 6)),
    *(days * 86_400 for days in (1, 7, 30, 90)),
)
"""The widths of the parts of a run, in seconds."""


class Period(NamedTuple):
    """A state of something from one second of the run to another."""

    begins_s: float
    ends_s: float
    what: str


class FireMark(NamedTuple):
    """A moment of a ceremony: ``what`` is ``success``, another end of its run, ``missed``, ``skipped`` or ``late``."""

    at_s: float
    what: str


class LatencyPoint(NamedTuple):
    """A time, in seconds, of the requests that ended in one part of the run: the agent's own, or that of the load."""

    at_s: float
    p50: float
    p95: float


@dataclass(slots=True, kw_only=True)
class Timeline:
    """The changes over a run. Seconds are those of the run, which began at ``start``.

    ``outcomes`` counts ends by kind in each part of ``width_s``; ``in_flight`` and ``cost`` are what they are from each
    moment on. ``calm_s`` is when traffic and trouble were over. ``load`` has response and service time in real time.
    """

    start: datetime = START
    ends_s: float = 0.0
    calm_s: float | None = None
    width_s: float = WIDTHS_S[0]
    outcomes: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    in_flight: list[tuple[float, float]] = field(default_factory=list)
    cost: list[tuple[float, float]] = field(default_factory=list)
    latency: dict[str, list[LatencyPoint]] = field(default_factory=dict)
    load: dict[str, list[LatencyPoint]] = field(default_factory=dict)
    health: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    troubles: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    ceremonies: dict[str, list[FireMark]] = field(default_factory=lambda: defaultdict(list))


_MARKED: Mapping[type[Event], str] = {CeremonyMissed: "missed", CeremonySkipped: "skipped", CeremonyLate: "late"}


def timeline_of(run: Run) -> Timeline:
    requests = sorted((r for r in run.requests.values() if r.end), key=lambda request: _end_s(request))
    last_s = _end_s(requests[-1]) if requests else 0.0
    line = Timeline(start=run.started.start, ends_s=max(last_s, run.started.duration_s), calm_s=run.calm_s)
    line.width_s = next((w for w in WIDTHS_S if line.ends_s <= w * BUCKETS_MAX), WIDTHS_S[-1])
    took: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    loads: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    spent = 0.0
    for request, end, outcome in run.endings():
        at, part = end.t, int(end.t / line.width_s)
        line.outcomes[part][outcome.kind.value] += 1
        if outcome.cost_usd:
            spent += outcome.cost_usd
            line.cost.append((at, spent))
        if outcome.agent_ms is not None and outcome.counts:
            took[outcome.agent][part].append(outcome.agent_ms / 1000)
        if request.late_s is not None:
            loads["response time"][part].append(request.late_s + outcome.duration_ms / 1000)
            loads["service time"][part].append(outcome.duration_ms / 1000)
    moves = [(r.begun.t, 1) for r in run.requests.values() if r.begun and (r.end is None or r.begun.t <= r.end.t)]
    moves += [(_end_s(r), -1) for r in requests if r.begun and r.begun.t <= _end_s(r)]
    in_flight = 0
    for at, change in sorted(moves, key=lambda move: move[0]):
        in_flight += change
        line.in_flight.append((max(0.0, at), in_flight))
    for trouble in run.troubles:
        ends_s = line.ends_s if trouble.ends_s is None else trouble.ends_s
        line.troubles[trouble.name].append(Period(trouble.begins_s, ends_s, trouble.said))
    for agent, looks in run.health.items():
        until = [at for at, _ in looks[1:]] + [line.ends_s]
        line.health[agent] = [Period(at, ends_s, word) for (at, word), ends_s in zip(looks, until, strict=True)]
    for slot in run.ceremonies.values():
        line.ceremonies[slot.event.ceremony_id].append(FireMark(slot.at_s, slot.status))
    for at, event in run.unfired:
        line.ceremonies[event.ceremony_id].append(FireMark(at, _MARKED[type(event)]))
    for series, rows in ((line.latency, took), (line.load, loads)):
        for name, parts in rows.items():
            series[name] = [
                LatencyPoint(
                    (part + 0.5) * line.width_s, percentile(sorted(times), 0.5), percentile(sorted(times), 0.95)
                )
                for part, times in sorted(parts.items())
            ]
    return line


def _end_s(request: RequestRun) -> float:
    return request.end.t if request.end else 0.0
