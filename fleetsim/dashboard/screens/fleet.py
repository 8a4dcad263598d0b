"""Screen 1: the cards, the table of agents, what needs a person, recent outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.api.health import HealthWord, HubMember, LimitFacts
from fleetsim.dashboard.chrome import LinkState, ScreenName, Size
from fleetsim.dashboard.labels import (
    HEALTH,
    LABEL_MAX,
    MUTED,
    RUN,
    STATE,
    STRONG,
    Tone,
    age,
    bar,
    countdown,
    duration,
    moment,
    money,
    origin,
    percent,
    plural,
    since,
    spark,
)
from fleetsim.dashboard.screens.pane import Pane, counted
from fleetsim.dashboard.text import Column, Rows, TableRow, fitted, line
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_ceremonies import CeremonyView
from fleetsim.dashboard.view_fleet import AgentRow
from fleetsim.dashboard.view_tasks import TaskRow
from fleetsim.dashboard.widgets import Grid, Lines
from fleetsim.health.webhooks import PushState
from fleetsim.model.errors import Blame
from fleetsim.model.text import one_line
from fleetsim.request.limits import Unit


def columns(rows: Sequence[AgentRow], span: str) -> tuple[Column, ...]:
    """The columns of the agents' table; a narrow terminal drops cost, trend, wire, push and p50 first."""
    most = min(LABEL_MAX, max(10, max((cell_len(row.name) for row in rows), default=0)))
    wire = max((len(row.card.dialect) for row in rows), default=0)
    return (
        Column(title="HEALTH", width=10),
        Column(title="AGENT", width=min(16, most), flex=1, most=most, by="name"),
        Column(title="WIRE", width=max(4, wire), drop=5, by="card.dialect"),
        Column(title="SKILLS", width=6, align=">", drop=6),
        Column(title="OK%", width=5, align=">", by="figures.success_rate"),
        Column(title=f"TREND {span}", width=16, drop=7),
        Column(title="P50", width=5, align=">", drop=3, by="figures.p50_latency_ms"),
        Column(title="P95", width=5, align=">", drop=2, by="figures.p95_latency_ms"),
        Column(title="RUN", width=3, align=">", by="running"),
        Column(title="WAIT", width=4, align=">", by="waiting"),
        Column(title="$/OK", width=5, align=">", drop=8, by="figures.cost_per_successful_outcome"),
        Column(title="PUSH", width=6, drop=4, by="push"),
        Column(title="TROUBLE", width=12, flex=4, drop=1),
    )


PUSH = {
    PushState.UNKNOWN: line(("-", MUTED)),
    PushState.POLLED: line(("polled", MUTED)),
    PushState.REGISTERED: line(("· set", MUTED)),
    PushState.WORKING: line(("✓ ok", Tone.GOOD)),
    PushState.SILENT: line(("✗ mute", Tone.WARN)),
}
"""Whether webhooks arrive."""

OUTCOME_COLUMNS = (
    Column(title="TIME", width=8),
    Column(title="STATE", width=11, flex=4, most=16),
    Column(title="AGENT", width=10, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=12, flex=1, most=20),
    Column(title="TOOK", width=6, align=">"),
    Column(title="ORIGIN", width=14, flex=1, most=30, drop=3),
    Column(title="WHY", width=10, flex=6, drop=2),
    Column(title="TASK", width=8, drop=1),
)


HUB_COLUMNS = (
    Column(title="HUB", width=10, flex=1, most=60),
    Column(title="VERSION", width=8, drop=2),
    Column(title="UP", width=4, align=">", drop=3),
    Column(title="OWNS", width=5, align=">"),
    Column(title="LEASE AGE", width=11, align=">"),
    Column(title="TOOK OVER", width=18, drop=1),
)


LIMIT_COLUMNS = (
    Column(title="LIMIT", width=12, flex=1, most=40),
    Column(title="OF", width=8, flex=1, most=40, drop=2),
    Column(title="USED", width=10, align=">"),
    Column(title="RESERVED", width=10, align=">", drop=3),
    Column(title="MOST", width=16, flex=1, most=24, align=">"),
    Column(title="SHARE", width=5, align=">"),
    Column(title="RESETS", width=7, align=">", drop=1),
)


def limit_rows(limits: Sequence[LimitFacts], now: datetime) -> Rows[LimitFacts]:
    """The limits of agents.yaml; one that is nearly or entirely used stands out."""

    def cells(limit: LimitFacts) -> TableRow:
        tone = Tone.BAD if limit.left <= 0 else Tone.WARN if limit.share >= 0.8 else Tone.PLAIN
        used, reserved, most = map(Unit(limit.unit).shown, (limit.used, limit.reserved, limit.most))
        return TableRow(
            (
                line((one_line(limit.name, 200), STRONG)),
                line((one_line(limit.subject, 200), MUTED)),
                line((used, tone)),
                line((reserved, MUTED)),
                line((f"{most}/{limit.per}", MUTED)),
                line((f"{limit.share:.0%}", tone)),
                line((age(max(0.0, (limit.resets_at - now).total_seconds())), MUTED)),
            )
        )

    return Rows(limits, lambda limit: limit.name, cells, int(now.timestamp()))


def hub_rows(hubs: Sequence[HubMember], now: datetime) -> Rows[HubMember]:
    """The hubs that share the ledger; two versions, and a lease that is not renewed, stand out."""
    mixed = len({hub.version for hub in hubs}) > 1

    def cells(hub: HubMember) -> TableRow:
        took_at, renewed = hub.took_at, hub.lease_age_s / hub.lease_s
        lease = Tone.BAD if renewed > 1 else Tone.WARN if renewed > 0.5 else Tone.PLAIN
        return TableRow(
            (
                line((one_line(hub.name, 200), STRONG), (" (this one)" if hub.here else "", MUTED)),
                line((one_line(hub.version, 20), Tone.WARN if mixed else Tone.PLAIN)),
                line((since(hub.started_at, now), MUTED)),
                line((f"{hub.owned:,}", Tone.PRIMARY if hub.owned else MUTED)),
                line((age(hub.lease_age_s), lease), (f" of {hub.lease_s:g}s", MUTED)),
                line((f"{hub.took:,}", Tone.WARN), (f", last {since(took_at, now)} ago", MUTED))
                if took_at
                else line(("-", MUTED)),
            )
        )

    return Rows(hubs, lambda hub: hub.name, cells, int(now.timestamp()))


def row(agent: AgentRow, now: datetime) -> TableRow:
    """One agent as a row of ``columns``; stale data is grey and has its age."""
    f, offered = agent.figures, sum(skill.offered for skill in agent.skills)
    cells = (
        line(HEALTH[agent.health].piece),
        line((agent.name, STRONG)),
        line(agent.card.dialect or ("?", MUTED)),
        line((str(offered), Tone.PLAIN) if agent.card.fetched_at else ("-", MUTED)),
        ok_share(agent),
        trend(agent.trend),
        line(duration(f.p50_latency_ms) if f.answered_outcomes else ("-", MUTED)),
        line(duration(f.p95_latency_ms) if f.answered_outcomes else ("-", MUTED)),
        line((str(agent.running), Tone.PRIMARY if agent.running else MUTED)),
        line((str(agent.waiting), Tone.ACCENT if agent.waiting else MUTED)),
        line(money(f.cost_per_successful_outcome) if f.total_cost_usd and f.success_count else ("-", MUTED)),
        PUSH[agent.push],
        trouble(agent, now),
    )
    return TableRow(cells, faded=agent.stale_since is not None)


def ok_share(agent: AgentRow) -> Text:
    """The share of successes in percent; with too few runs, their counts in grey."""
    f = agent.figures
    if not f.answered_outcomes:
        return line(("-", MUTED))
    if not agent.settled:
        return line((f"{f.success_count}/{f.answered_outcomes}", MUTED))
    return line((percent(f.success_count, f.answered_outcomes), share_tone(f.success_count, f.answered_outcomes)))


def share_tone(ok: int, runs: int) -> Tone:
    rate = ok / runs if runs else 1.0
    return Tone.GOOD if rate >= 0.95 else Tone.WARN if rate >= 0.5 else Tone.BAD


def trend(cells: Sequence[tuple[int, int]]) -> Text:
    """A bar per cell for its share of successes; a dot for a cell without outcomes."""
    text = Text()
    for ok, runs in cells:
        tone = share_tone(ok, runs)
        text.append(bar(ok / runs) if runs else "·", (Tone.CALM if tone is Tone.GOOD else tone) if runs else MUTED)
    return text


def trouble(agent: AgentRow, now: datetime) -> Text:
    """The reason why the agent is not up, else its last failure."""
    if agent.breaker_until is not None:
        wait = max(0, int((agent.breaker_until - now).total_seconds()))
        return line((f"paused after failures, next call in {wait}s: {agent.why}", Tone.BAD))
    if agent.health in {HealthWord.DOWN, HealthWord.DEGRADED} and agent.card.failed_at is None:
        tone = Tone.BAD if agent.health is HealthWord.DOWN else Tone.WARN
        return line((f"{since(agent.since, now)} " if agent.since else "", MUTED), (agent.why, tone))
    if agent.card.failed_at is not None:
        stale = f"card is {since(agent.stale_since, now)} old: " if agent.stale_since else ""
        return line((since(agent.card.failed_at, now) + " ", MUTED), (stale + agent.card.error, Tone.WARN))
    last = next((failure for failure in agent.figures.recent_failures if failure.blame is Blame.AGENT), None)
    if last is not None:
        return line((since(last.timestamp, now) + " ", MUTED), last.failure_reason or last.kind.value)
    if agent.card.fetched_at is None:
        return line((f"fetching its card, {since(agent.listed_at, now)}", MUTED))
    return line(("-", MUTED))


def fields(agent: AgentRow) -> dict[str, str]:
    return {
        "agent": agent.name.lower(),
        "health": agent.health.value,
        "wire": agent.card.dialect.lower(),
        "skill": " ".join(skill.skill for skill in agent.skills).lower(),
        "problem": "no" if agent.health in {HealthWord.UP, HealthWord.PAUSED} else "yes",
    }


def outcome_row(task: TaskRow) -> TableRow:
    return TableRow(
        (
            line((f"{task.ended_at:%H:%M:%S}" if task.ended_at else "", MUTED)),
            line(STATE[task.state].piece),
            line(task.agent or "-"),
            line(task.skill or "-"),
            line(duration(task.duration_ms)),
            line((origin(task.origin), MUTED)),
            line((task.reason if not task.success else "", Tone.WARN)),
            line((task.correlation_id[:8], MUTED)),
        )
    )


def cards(view: View, width: int) -> dict[str, list[Text]]:
    """The four cards by title, each four lines of at most ``width`` cells."""
    return {
        f"Fleet, last {view.window}": fleet_card(view, width),
        f"Work, last {view.counters.span}": work_card(view, width),
        "Needs you": [fitted([one], width) for one in needs(view)[:4]]
        or [line(("✓ nothing waits for you", Tone.GOOD))],
        "Ceremonies": ceremony_card(view, width),
    }


def fleet_card(view: View, width: int) -> list[Text]:
    """The cards of reachability, health and cost."""
    c, f = view.counters, view.counters.figures
    numbers = [(mark, c.health.get(word, 0)) for word, mark in HEALTH.items()]
    words = [line((f"{mark.glyph} {n} {mark.word}", mark.tone if n else MUTED)) for mark, n in numbers]
    down, degraded, few, unknown, up, _ = words
    unsure = [one for one, word in ((few, HealthWord.TOO_FEW), (unknown, HealthWord.UNKNOWN)) if c.health.get(word)]
    share = percent(f.success_count, f.answered_outcomes) + ("%" if f.answered_outcomes else "")
    success, middle, slow = (
        line(("ok ", MUTED), (share, share_tone(f.success_count, f.answered_outcomes))),
        line(("p50 ", MUTED), duration(f.p50_latency_ms) if f.answered_outcomes else "-"),
        line(("p95 ", MUTED), duration(f.p95_latency_ms) if f.answered_outcomes else "-"),
    )
    fits = success.cell_len + middle.cell_len + slow.cell_len + 2 <= width
    cost = [
        line(("cost ", MUTED), f"${money(f.total_cost_usd)}"),
        line(f"${money(f.cost_per_successful_outcome)} per ok" if f.success_count else ""),
    ]
    return [
        fitted([up, degraded], width),
        fitted([down, *unsure], width),
        fitted([success, middle, slow] if fits else [success, slow], width, gap=1),
        fitted(cost, width) if f.total_cost_usd else line(("no costs reported", MUTED)),
    ]


def work_card(view: View, width: int) -> list[Text]:
    c = view.counters
    bars = max(4, width - 12)
    done = [ok for ok, _ in c.trend][-bars:]
    failed = [runs - ok for ok, runs in c.trend][-bars:]
    top = max((*done, *failed), default=0)
    working, submitted = STATE["working"], STATE["submitted"]
    states = [
        line((f"{working.glyph} {c.working} working", working.tone if c.working else MUTED)),
        line((f"{submitted.glyph} {c.submitted} submitted", MUTED)),
    ]
    others = counts((c.push_refused, "refused", Tone.WARN), (c.push_again, "twice", MUTED))
    pushes = [line(("push ", MUTED), f"{c.push_ok} ok"), *others]
    return [
        fitted(states, width),
        line(("done ", MUTED), (spark(done, top), Tone.CALM), f" {sum(done):,}"),
        line(("fail ", MUTED), (spark(failed, top), Tone.BAD if any(failed) else MUTED), f" {sum(failed):,}"),
        fitted(pushes, width),
    ]


def counts(*pieces: tuple[int, str, Tone]) -> list[Text]:
    """The counts with their words, those above zero first: a narrow card has room for some of them."""
    ordered = sorted(pieces, key=lambda piece: not piece[0])
    return [line((f"{count} {word}", tone if count else MUTED)) for count, word, tone in ordered]


def needs(view: View) -> list[Text]:
    """Everything that needs a person, the most urgent first: questions, then notices."""
    lines: list[Text] = []
    if view.questions:
        oldest = since(view.questions[0].asked_at, view.now)
        lines.append(line((f"? {len(view.questions)} waiting, oldest {oldest}", Tone.ACCENT)))
    if view.storage:
        lines.append(line(("! no request is accepted: " + view.storage, Tone.BAD)))
    if view.config_error:
        lines.append(line(("! " + view.config_error, Tone.BAD)))
    lines += [_ailing(row, view, Tone.BAD) for row in view.agents if row.health is HealthWord.DOWN]
    lines += [line(("! ", Tone.WARN), trouble) for trouble in view.troubles]
    for notice in view.notices:
        if not notice.error:
            what, age = f"{notice.about} {notice.text}".strip(), since(notice.at, view.now)
            lines.append(line(("! ", Tone.WARN), what, (f" {age}", MUTED)))
    return lines


def _ailing(row: AgentRow, view: View, tone: Tone) -> Text:
    """The reason why an agent needs attention, with its duration if known."""
    lasting = f" {since(row.since, view.now)}" if row.since else ""
    return line(("! ", tone), f"{row.name} is {row.health.value}{lasting}: {row.why}")


def upcoming(view: View) -> CeremonyView | None:
    due = [row for row in view.ceremonies if row.enabled and not row.error and row.next_at is not None]
    return min(due, key=lambda row: row.next_at or view.now, default=None)


def ceremony_card(view: View, width: int) -> list[Text]:
    """The next slots, and the results of the last runs."""
    c, soon = view.counters, upcoming(view)
    if not view.ceremonies:
        return [line(("no ceremonies", MUTED))]
    runs = sorted((run for row in view.ceremonies for run in row.runs), key=lambda run: run.at)[-12:]
    marks = [RUN[run.status] for run in runs]
    broken = sum(bool(row.error) for row in view.ceremonies)
    lines = [line(("next ", MUTED), (soon.ceremony_id, STRONG)) if soon else line(("nothing is due", MUTED))]
    if soon and soon.next_at:
        left = countdown((soon.next_at - view.now).total_seconds())
        lines.append(line(("  in ", MUTED), left, (f" ({moment(soon.next_at, view.now)})", MUTED)))
    lines.append(line(("last " if marks else "none yet", MUTED), *((mark.glyph, mark.tone) for mark in marks)))
    troubles = counts((broken, "broken", Tone.BAD), (c.missed, "missed", Tone.WARN), (c.skipped, "skipped", Tone.WARN))
    return [fitted([one], width) for one in (*lines, fitted(troubles, width))]


def notes(view: View, width: int, limit: int) -> list[Text]:
    """The cards as lines, for a narrow terminal."""
    degraded = [row for row in view.agents if row.health is HealthWord.DEGRADED]
    lines = [*needs(view), *(_ailing(row, view, Tone.WARN) for row in degraded)][: max(1, limit - 1)]
    if (soon := upcoming(view)) and soon.next_at:
        left = countdown((soon.next_at - view.now).total_seconds())
        lines.append(line(("next ", MUTED), soon.ceremony_id, " ", (left, STRONG)))
    return [fitted([line("  ", one)], width) for one in lines[:limit]]


NO_AGENTS = (
    line(("No agents yet.", STRONG)),
    line(("Add one:  ", MUTED), ("fleetsim init URL", Tone.PRIMARY)),
    line(("Or watch: ", MUTED), ("fleetsim demo", Tone.PRIMARY)),
)

RECENT_LINES_MIN = 5
"""Lines of the recent outcomes with one row: margin, frame and titles."""
CARD_ACTIONS = ("problems", "tasks", "inbox", "ceremonies")
"""The actions of a click on each card."""


class FleetPane(Pane):
    """Agents, worst first, and the newest outcomes."""

    NAME = ScreenName.FLEET

    def compose(self) -> ComposeResult:
        self._cards = [Lines(classes="card framed") for _ in CARD_ACTIONS]
        for card, action in zip(self._cards, CARD_ACTIONS, strict=True):
            card.runs = action
        self.main = Grid(columns((), "4m"), id="agents", hold=False)
        self._notes = Lines(id="notes")
        self._hubs = Grid(HUB_COLUMNS, id="hubs", classes="framed -bare", hold=False)
        self._limits = Grid(LIMIT_COLUMNS, id="limits", classes="framed -bare", hold=False)
        self._recent = Grid(OUTCOME_COLUMNS, id="recent", classes="framed -bare", hold=False)
        self._top = Horizontal(id="cards")
        with self._top:
            yield from self._cards
        yield self.main
        yield self._notes
        yield self._hubs
        yield self._limits
        yield self._recent

    def draw(self, view: View) -> None:
        known = self.host.link.state is not LinkState.WAITING
        self._top.set_class(not known, "-bare")
        if known and self.size_class is Size.FULL:
            width = max(10, self._cards[0].inner_width)
            for card, (title, lines) in zip(self._cards, cards(view, width).items(), strict=True):
                card.set_titles(title)
                card.show(lines)
        elif known:
            self._notes.show(notes(view, max(10, self.size.width), 3 if self.size_class is Size.COMPACT else 1))
        agents = [agent for agent in view.agents if self.query_now.matches(fields(agent))]
        rows = Rows(agents, lambda agent: agent.name, lambda agent: row(agent, view.now), int(view.now.timestamp()))
        awaited = "" if view.configured else "waiting for the hub to read agents.yaml"
        empty = self.instead(view, view.agents, *NO_AGENTS, awaited=awaited)
        self.main.show(rows, columns=columns(agents, view.counters.span), empty=empty)
        self._hubs.set_titles("Hubs", "share the ledger")
        self._hubs.show(hub_rows(view.hubs, view.now))
        self._hubs.set_class(not view.hubs, "-bare")
        self._limits.set_titles("Limits", "of agents.yaml")
        self._limits.show(limit_rows(view.limits, view.now))
        self._limits.set_class(not view.limits, "-bare")
        self._recent.set_titles("Recent outcomes", "newest first")
        outcomes = Rows(view.recent, lambda task: task.correlation_id, outcome_row)
        self._recent.show(outcomes)
        above = max(shown.region.bottom for shown in (self.main, self._notes, self._hubs, self._limits))
        fits = not above or self.region.bottom - above >= RECENT_LINES_MIN
        self._recent.set_class(not (view.recent and fits), "-bare")

    def status(self, view: View) -> str:
        shown = f"{len(self.main.rows.items)} of {plural(len(view.agents), 'agent')} shown"
        return f"{shown}   figures: last {view.window}   worst first"

    def copyable(self) -> str | None:
        """The agent, the hub, or the task of the outcome under the cursor."""
        return next((grid.key for grid in (self._recent, self._hubs) if grid.has_focus), self.main.key)

    def chosen_agent(self) -> str | None:
        """The agent for ``R`` and ``t``."""
        return self.main.key

    def opened(self, grid: Grid, key: str) -> None:
        if grid is self.main:
            self.host.show_agent(key)
        elif grid is self._recent:
            self.host.show_task(key)

    def action_request(self) -> None:
        if agent := self.host.view.agent(self.chosen_agent() or ""):
            self.host.request_form(agent, (self.main.key or "") if self.id == "agent" else "")

    def action_related(self) -> None:
        if agent := self.chosen_agent():
            self.host.show_tasks(f"agent={agent}")

    def action_refresh_card(self) -> None:
        names = self.main.chosen if self.id == "fleet" else [self.chosen_agent() or ""]
        jobs = {name: partial(self.host.controls.refresh, name) for name in names if name}
        if jobs:
            done = (
                f"asked {', '.join(jobs)} for its card"
                if len(jobs) == 1
                else f"asked {len(jobs)} agents for their cards"
            )
            what = counted("Fetch the cards of", "agent", list(jobs))
            self.act_on("Refresh", jobs, what, "the card was not fetched", done, ask=False)
