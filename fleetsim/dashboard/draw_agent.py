"""One agent's page: what its card says, its figures, its skills and its failures. Pure."""

from __future__ import annotations

from datetime import datetime

from fleetsim.caller.health import HealthWord
from fleetsim.dashboard.draw_fleet import push, share_role, trouble
from fleetsim.dashboard.labels import HEALTH, STATE, Tone, mark_of, money, percent, since, took
from fleetsim.dashboard.text import BLANK, Column, Line, TableRow, fitted, line, muted, strong, wrap
from fleetsim.dashboard.view_fleet import RUNS_MIN, AgentRow, SkillRow
from fleetsim.model.errors import Blame
from fleetsim.model.work import WHOSE

WHY_LINES_MAX = 4
SKILL_COLUMNS = (
    Column(title="SKILL", width=14, flex=2, most=40),
    Column(title="RUNS", width=5, align=">"),
    Column(title="OK%", width=5, align=">"),
    Column(title="P50", width=6, align=">", drop=2),
    Column(title="P95", width=6, align=">"),
    Column(title="$/OK", width=6, align=">", drop=4),
    Column(title="LAST", width=8, drop=3),
    Column(title="LAST OUTCOME", width=12, flex=1, most=13, drop=1),
    Column(title="ON CARD", width=7, drop=5),
)


def skill_row(skill: SkillRow, now: datetime) -> TableRow:
    """One skill as a row."""
    f = skill.figures
    runs = f.answered_outcomes
    share = percent(f.success_count, runs) if runs >= RUNS_MIN else f"{f.success_count}/{runs}" if runs else "-"
    role = share_role(f.success_count, runs) if runs >= RUNS_MIN else Tone.MUTED
    cells: tuple[Line, ...] = (
        line(strong(skill.skill)),
        line((str(f.total_outcomes), Tone.PLAIN if f.total_outcomes else Tone.MUTED)),
        line((share, role)),
        line(took(f.p50_latency_ms) if runs else muted("-")),
        line(took(f.p95_latency_ms) if runs else muted("-")),
        line(money(f.cost_per_successful_outcome) if f.total_cost_usd else muted("-")),
        line(since(f.last_outcome_at, now) + " ago" if f.last_outcome_at else muted("never")),
        line(mark_of(STATE, f.last_outcome_kind.value) if f.last_outcome_kind else muted("-")),
        line("✓ yes" if skill.offered else ("✗ no", Tone.WARN)),
    )
    return TableRow(key=skill.skill, cells=cells)


def _pairs(pairs: list[tuple[str, Line]], width: int) -> list[Line]:
    return [(*line(muted(f"{name:<9} ")), *fitted([value], width - 10)) for name, value in pairs]


def facts(agent: AgentRow, now: datetime, width: int) -> list[Line]:
    """How it is, where it is, what it claims."""
    card = agent.card
    fetched = f"fetched {since(card.fetched_at, now)} ago" if card.fetched_at else "never fetched"
    latency = f"in {took(card.latency_ms)}, " if card.latency_ms is not None and card.fetched_at else ""
    health = HEALTH[agent.health]
    why = wrap(agent.why, width - 10)[:WHY_LINES_MAX] if agent.health is not HealthWord.UP else []
    lines = _pairs(
        [
            ("state", line(health, muted(f"  for {since(agent.since, now)}" if agent.since else ""))),
            *[("" if at else "why", one) for at, one in enumerate(why)],
            ("card", line(latency + fetched)),
            ("card url", line(card.url or muted("-"))),
            ("rpc url", line(card.rpc_url or muted("-"))),
            ("wire", line(card.dialect or "?", muted("   auth "), card.auth or "none")),
            ("claims", line(_claim("streaming", card.streaming), "   ", _claim("push", card.push))),
            ("webhooks", push(agent)),
        ],
        width,
    )
    lines += [fitted([line(("! ", Tone.WARN), warning)], width) for warning in card.warnings[:3]]
    if card.changed_at is not None:
        changed = f"card changed {since(card.changed_at, now)} ago: {card.changes}"
        lines.append(fitted([line(("! ", Tone.WARN), changed)], width))
    return lines


def _claim(word: str, claimed: bool | None) -> tuple[str, Tone]:
    glyph, role = {True: ("✓", Tone.GOOD), False: ("✗", Tone.MUTED), None: ("?", Tone.MUTED)}[claimed]
    return f"{glyph} {word}", role


def figures(agent: AgentRow, now: datetime, width: int) -> list[Line]:
    """The last 24 hours."""
    f = agent.figures
    if not f.total_outcomes:
        return [line(muted("No outcome in the last 24 hours.")), BLANK, fitted([trouble(agent, now)], width)]
    marks = [mark_of(STATE, kind) for kind in f.kinds]
    kinds = [
        line((f"{mark.glyph} {count} {mark.word}", mark.role))
        for mark, count in zip(marks, f.kinds.values(), strict=True)
    ]
    channels = [line(muted(f"{via} "), str(count)) for via, count in f.channels.items()]
    share = percent(f.success_count, f.answered_outcomes)
    cost = line(f"${money(f.total_cost_usd)}", muted("  per ok "), f"${money(f.cost_per_successful_outcome)}")
    tokens = f"{f.input_tokens:,} in {f.output_tokens:,} out"
    others = [line(f"{count} ", muted(WHOSE[Blame(blame)])) for blame, count in f.beside_counts.items()]
    beside = [("beside", fitted(others, width - 10))] if others else []
    lines = _pairs(
        [
            (
                "ok",
                line(
                    (f"{share} %", share_role(f.success_count, f.answered_outcomes)),
                    muted(f"  {f.success_count} of {f.answered_outcomes}"),
                ),
            ),
            (
                "latency",
                line(
                    muted("p50 "),
                    took(f.p50_latency_ms),
                    muted("  p95 "),
                    took(f.p95_latency_ms),
                    muted("  max "),
                    took(f.max_latency_ms),
                ),
            ),
            ("outcomes", fitted(kinds, width - 10)),
            *beside,
            ("arrived", fitted(channels, width - 10)),
            ("cost", cost if f.total_cost_usd else line(muted("none reported"))),
            ("tokens", line(tokens)),
        ],
        width,
    )
    if f.mean_confidence is not None:
        sure = f"{f.mean_confidence:.2f} mean, {f.confident_failures} sure and wrong"
        lines += _pairs([("sure", line(sure))], width)
    for failure in f.recent_failures[:3]:
        text = f"{since(failure.timestamp, now)} ago {failure.skill}: {failure.failure_reason}"
        mark = ("✗ ", Tone.BAD) if failure.blame is Blame.AGENT else ("– ", Tone.MUTED)
        lines.append(fitted([line(mark, text)], width))
    return lines
