"""The fleet screen: cards, the table of agents, what needs a person, recent outcomes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fleetsim.caller.health import HealthWord
from fleetsim.dashboard.labels import (
    HEALTH,
    RUN,
    STATE,
    Tone,
    bar,
    countdown,
    mark_of,
    money,
    near,
    percent,
    plural,
    since,
    spark,
    took,
)
from fleetsim.dashboard.text import Column, Line, Span, TableRow, fitted, line, muted, strong
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_ceremonies import CeremonyRow
from fleetsim.dashboard.view_fleet import AgentRow, PushState
from fleetsim.dashboard.view_tasks import TaskRow
from fleetsim.model.errors import Blame

LABEL_MAX = 24


def columns(rows: Sequence[AgentRow], span: str) -> tuple[Column, ...]:
    """The columns of the agents' table; cost, trend, wire, push and p50 go first when it is narrow."""
    longest = max((len(row.name) for row in rows), default=0)
    return (
        Column(title="HEALTH", width=10),
        Column(title="AGENT", width=10, flex=1, most=min(LABEL_MAX, max(10, longest))),
        Column(title="WIRE", width=4, drop=5),
        Column(title="SKILLS", width=6, align=">", drop=6),
        Column(title="OK%", width=5, align=">"),
        Column(title=f"TREND {span}", width=16, drop=7),
        Column(title="P50", width=5, align=">", drop=3),
        Column(title="P95", width=5, align=">", drop=1),
        Column(title="RUN", width=3, align=">"),
        Column(title="WAIT", width=4, align=">"),
        Column(title="$/OK", width=5, align=">", drop=8),
        Column(title="PUSH", width=6, drop=4),
        Column(title="TROUBLE", width=12, flex=4, drop=2),
    )


def row(agent: AgentRow, now: datetime) -> TableRow:
    """One agent as a row; stale data is grey and tells its age."""
    f = agent.figures
    cells: tuple[Line, ...] = (
        line(HEALTH[agent.health]),
        line(strong(agent.name)),
        line(agent.card.dialect or muted("?")),
        _count(len(agent.skills)),
        ok_share(agent),
        trend(agent.trend),
        line(took(f.p50_latency_ms) if f.answered_outcomes else muted("-")),
        line(took(f.p95_latency_ms) if f.answered_outcomes else muted("-")),
        _count(agent.running, Tone.PRIMARY),
        _count(agent.waiting, Tone.ACCENT),
        line(money(f.cost_per_successful_outcome) if f.total_cost_usd else muted("-")),
        push(agent),
        trouble(agent, now),
    )
    return TableRow(key=agent.name, cells=cells, faded=agent.stale_since is not None)


def _count(number: int, role: Tone = Tone.PLAIN) -> Line:
    return line((str(number), role if number else Tone.MUTED))


def ok_share(agent: AgentRow) -> Line:
    """The share of successes in percent; over too few runs it is grey and shows them instead."""
    f = agent.figures
    if not f.answered_outcomes:
        return line(muted("-"))
    if not agent.settled:
        return line(muted(f"{f.success_count}/{f.answered_outcomes}"))
    return line((percent(f.success_count, f.answered_outcomes), share_role(f.success_count, f.answered_outcomes)))


def share_role(ok: int, runs: int) -> Tone:
    """The colour of a share of successes."""
    rate = ok / runs if runs else 1.0
    return Tone.GOOD if rate >= 0.95 else Tone.WARN if rate >= 0.5 else Tone.BAD


def trend(cells: Sequence[tuple[int, int]]) -> Line:
    """A bar per cell for its share of successes; a dot where nothing ended."""
    spans: list[Span] = []
    for ok, runs in cells:
        role = share_role(ok, runs)
        piece = (bar(ok / runs), Tone.CALM if role is Tone.GOOD else role) if runs else ("·", Tone.MUTED)
        if spans and spans[-1][1] is piece[1]:
            spans[-1] = (spans[-1][0] + piece[0], piece[1])
        else:
            spans.append(piece)
    return tuple(spans)


def push(agent: AgentRow) -> Line:
    """Whether webhooks arrive."""
    return {
        PushState.UNKNOWN: line(muted("-")),
        PushState.OFF: line(muted("poll")),
        PushState.REGISTERED: line(muted("· set")),
        PushState.WORKING: line(("✓ ok", Tone.GOOD)),
        PushState.SILENT: line(("✗ mute", Tone.WARN)),
    }[agent.push]


def trouble(agent: AgentRow, now: datetime) -> Line:
    """Why the agent is not up, else its last failure."""
    if agent.breaker_until is not None:
        wait = max(0, int((agent.breaker_until - now).total_seconds()))
        return line((f"left alone, again in {wait}s: {agent.why}", Tone.BAD))
    if agent.health in {HealthWord.DOWN, HealthWord.DEGRADED} and agent.card.failed_at is None:
        role = Tone.BAD if agent.health is HealthWord.DOWN else Tone.WARN
        return line(muted(f"{since(agent.since, now)} " if agent.since else ""), (agent.why, role))
    if agent.card.failed_at is not None:
        age = f"card is {since(agent.stale_since, now)} old: " if agent.stale_since else ""
        return line(muted(since(agent.card.failed_at, now) + " "), (age + agent.card.error, Tone.WARN))
    own = [failure for failure in agent.figures.recent_failures if failure.blame is Blame.AGENT]
    if own:
        last = own[0]
        return line(muted(since(last.timestamp, now) + " "), last.failure_reason or last.kind.value)
    if agent.card.fetched_at is None:
        return line(muted(f"fetching its card, {since(agent.listed_at, now)}"))
    return line(muted("-"))


def fields(agent: AgentRow) -> dict[str, str]:
    """What a filter looks at."""
    return {
        "agent": agent.name.lower(),
        "health": agent.health.value,
        "wire": agent.card.dialect.lower(),
        "skill": " ".join(skill.skill for skill in agent.skills).lower(),
    }


OUTCOME_COLUMNS = (
    Column(title="TIME", width=8),
    Column(title="STATE", width=11),
    Column(title="AGENT", width=10, flex=1, most=LABEL_MAX),
    Column(title="SKILL", width=12, flex=1, most=20),
    Column(title="TOOK", width=6, align=">"),
    Column(title="ORIGIN", width=14, flex=1, most=30, drop=3),
    Column(title="WHY", width=10, flex=6, drop=2),
    Column(title="TASK", width=8, drop=1),
)


def outcome_row(task: TaskRow) -> TableRow:
    """One recent outcome."""
    why = task.reason if not task.success else ""
    cells = (
        line(muted(f"{task.ended_at:%H:%M:%S}" if task.ended_at else "")),
        line(mark_of(STATE, task.state)),
        line(task.agent or "-"),
        line(task.skill or "-"),
        line(took(task.duration_ms)),
        line(muted(origin(task.origin))),
        line((why, Tone.WARN)),
        line(muted(task.correlation_id[:8])),
    )
    return TableRow(key=task.correlation_id, cells=cells)


def origin(actor: str) -> str:
    """Who asked: ``ceremony.quinn.daily`` is the ceremony quinn.daily."""
    return "ceremony " + actor[len("ceremony.") :] if actor.startswith("ceremony.") else actor or "-"


def cards(view: View, width: int) -> tuple[tuple[str, list[Line]], ...]:
    """The four cards, each (title, four lines of at most ``width`` cells)."""
    return (
        ("Fleet", fleet_card(view, width)),
        (f"Work, last {view.counters.span}", work_card(view, width)),
        ("Needs you", needs_card(view, width)),
        ("Ceremonies", ceremony_card(view, width)),
    )


def fleet_card(view: View, width: int) -> list[Line]:
    """Is it up, is it well, what does it cost."""
    c, f = view.counters, view.counters.figures
    numbers = [(mark, c.health.get(word, 0)) for word, mark in HEALTH.items()]
    counts = [line((f"{mark.glyph} {n} {mark.word}", mark.role if n else Tone.MUTED)) for mark, n in numbers]
    down, degraded, unknown, up, _ = counts
    share = percent(f.success_count, f.answered_outcomes)
    cost = [
        line(muted("cost "), f"${money(f.total_cost_usd)}"),
        line(f"${money(f.cost_per_successful_outcome)} per ok"),
    ]
    return [
        fitted([up, degraded], width),
        fitted([down, unknown if c.health.get(HealthWord.UNKNOWN) else ()], width),
        fitted(
            [
                line(
                    muted("ok "),
                    (share + ("%" if f.answered_outcomes else ""), share_role(f.success_count, f.answered_outcomes)),
                ),
                line(muted("p50 "), took(f.p50_latency_ms) if f.answered_outcomes else "-"),
                line(muted("p95 "), took(f.p95_latency_ms) if f.answered_outcomes else "-"),
            ],
            width,
            gap=1,
        ),
        fitted(cost, width) if f.total_cost_usd else line(muted("no costs reported")),
    ]


def work_card(view: View, width: int) -> list[Line]:
    """Is it working."""
    c = view.counters
    room = max(4, width - 12)
    done = [float(ok) for ok, _ in c.trend][-room:]
    failed = [float(runs - ok) for ok, runs in c.trend][-room:]
    working, waiting = mark_of(STATE, "working"), mark_of(STATE, "submitted")
    refused = line((f"{c.push_refused} refused", Tone.WARN if c.push_refused else Tone.MUTED))
    return [
        fitted(
            [
                line((f"{working.glyph} {c.working} working", working.role if c.working else Tone.MUTED)),
                line(muted(f"{waiting.glyph} {c.submitted} submitted")),
            ],
            width,
        ),
        line(muted("done "), (spark(done), Tone.CALM), f" {sum(map(int, done)):,}"),
        line(muted("fail "), (spark(failed), Tone.BAD if any(failed) else Tone.MUTED), f" {sum(map(int, failed)):,}"),
        fitted([line(muted("push "), f"{c.push_ok} ok"), refused, line(muted(f"{c.push_again} twice"))], width),
    ]


def needs_card(view: View, width: int) -> list[Line]:
    """Does it need me: questions first, then what changed by itself."""
    lines = needs(view)
    if not lines:
        return [line(("✓ nothing waits for you", Tone.GOOD))]
    return [fitted([one], width) for one in lines[:4]]


def needs(view: View) -> list[Line]:
    """Everything that asks for a person, the most urgent first."""
    found: list[Line] = []
    if view.questions:
        oldest = since(view.questions[0].asked_at, view.now)
        found.append(line((f"? {len(view.questions)} waiting, oldest {oldest}", Tone.ACCENT)))
    if view.config_error:
        found.append(line(("! " + view.config_error, Tone.BAD)))
    down = [row for row in view.agents if row.health is HealthWord.DOWN]
    found += [line(("! ", Tone.BAD), f"{row.name} is down{_lasting(row, view)}: {row.why}") for row in down]
    for notice in view.notices:
        if not notice.error:
            what = f"{notice.about} {notice.text}".strip()
            found.append(line(("! ", Tone.WARN), what, muted(f" {since(notice.at, view.now)}")))
    return found


def _lasting(row: AgentRow, view: View) -> str:
    """For how long, if that is known."""
    return f" {since(row.since, view.now)}" if row.since else ""


def upcoming(view: View) -> CeremonyRow | None:
    """The ceremony that fires next."""
    due = [row for row in view.ceremonies if row.enabled and not row.error and row.next_at is not None]
    return min(due, key=lambda row: row.next_at or view.now, default=None)


def ceremony_card(view: View, width: int) -> list[Line]:
    """What fires next, and how the last ones went."""
    c, soon = view.counters, upcoming(view)
    if not view.ceremonies:
        return [line(muted("no ceremonies"))]
    runs = sorted((run for row in view.ceremonies for run in row.runs), key=lambda run: run.at)[-12:]
    marks = [mark_of(RUN, run.status) for run in runs]
    broken = sum(bool(row.error) for row in view.ceremonies)
    lines = [line(muted("next "), strong(soon.ceremony_id)) if soon else line(muted("nothing is due"))]
    if soon and soon.next_at:
        left = countdown((soon.next_at - view.now).total_seconds())
        lines.append(line(muted("  in "), left, muted(f" ({near(soon.next_at, view.now)})")))
    lines.append(
        line(muted("last "), *((mark.glyph, mark.role) for mark in marks)) if marks else line(muted("none yet"))
    )
    troubles = [
        line((f"{broken} broken", Tone.BAD if broken else Tone.MUTED)),
        line((f"{c.missed} missed", Tone.WARN if c.missed else Tone.MUTED)),
        line((f"{c.skipped} skipped", Tone.WARN if c.skipped else Tone.MUTED)),
    ]
    return [fitted([one], width) for one in (*lines, fitted(troubles, width))]


def notes(view: View, width: int, limit: int) -> list[Line]:
    """The cards as lines, for a narrow terminal."""
    degraded = [row for row in view.agents if row.health is HealthWord.DEGRADED]
    told = needs(view) + [
        line(("! ", Tone.WARN), f"{row.name} is degraded{_lasting(row, view)}: {row.why}") for row in degraded
    ]
    lines = [(*line("  "), *one) for one in told[: max(1, limit - 1)]]
    if (soon := upcoming(view)) and soon.next_at:
        left = countdown((soon.next_at - view.now).total_seconds())
        lines.append(line(muted("  next "), soon.ceremony_id, " ", strong(left)))
    return [fitted([one], width) for one in lines[:limit]]


def empty(view: View) -> list[Line]:
    """What an empty table says: what is missing and the one command that fills it."""
    if view.configured:
        return [
            line(strong("No agents yet.")),
            line(muted("Add one to agents.yaml, or look at a made-up fleet:  "), ("fleetsim demo", Tone.PRIMARY)),
        ]
    return [line(muted("Waiting for the hub to read agents.yaml …"))]


def summary(shown: int, view: View) -> str:
    """The status line."""
    return f"{shown} of {plural(len(view.agents), 'agent')} shown   worst first"
