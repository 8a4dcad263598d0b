"""One agent's page: its card, figures, course over the day, skills with their examples, and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal

from fleetsim.api.answers import FoundSkill
from fleetsim.api.health import HealthWord, TrendBucket
from fleetsim.dashboard import read
from fleetsim.dashboard.chrome import Size
from fleetsim.dashboard.labels import HEALTH, MUTED, STATE, STRONG, Tone, duration, money, percent, plural, since, spark
from fleetsim.dashboard.screens.fleet import PUSH, FleetPane, share_tone, trend, trouble
from fleetsim.dashboard.text import BLANK, Column, Rows, TableRow, fitted, line, named
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_fleet import RUNS_MIN, AgentRow, SkillRow
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.model.errors import Blame, FleetsimError
from fleetsim.model.work import WHOSE

SKILL_COLUMNS = (
    Column(title="SKILL", width=14, flex=2, most=40),
    Column(title="RUNS", width=5, align=">"),
    Column(title="OK%", width=5, align=">"),
    Column(title="P50", width=6, align=">", drop=2),
    Column(title="P95", width=6, align=">"),
    Column(title="$/OK", width=6, align=">", drop=4),
    Column(title="LAST", width=8, drop=3),
    Column(title="LAST OUTCOME", width=12, flex=1, most=16, drop=1),
    Column(title="ON CARD", width=7, drop=5),
)


def skill_row(skill: SkillRow, now: datetime) -> TableRow:
    f = skill.figures
    runs = f.answered_outcomes
    share = percent(f.success_count, runs) if runs >= RUNS_MIN else f"{f.success_count}/{runs}" if runs else "-"
    return TableRow(
        (
            line((skill.skill, STRONG)),
            line((str(f.total_outcomes), Tone.PLAIN if f.total_outcomes else MUTED)),
            line((share, share_tone(f.success_count, runs) if runs >= RUNS_MIN else MUTED)),
            line(duration(f.p50_latency_ms) if runs else ("-", MUTED)),
            line(duration(f.p95_latency_ms) if runs else ("-", MUTED)),
            line(money(f.cost_per_successful_outcome) if f.total_cost_usd and f.success_count else ("-", MUTED)),
            line(since(f.last_outcome_at, now) + " ago" if f.last_outcome_at else ("never", MUTED)),
            line(STATE[f.last_outcome_kind.value].piece if f.last_outcome_kind else ("-", MUTED)),
            line("✓ yes" if skill.offered else ("✗ no", Tone.WARN)),
        )
    )


def facts(agent: AgentRow, now: datetime, width: int) -> list[Text]:
    """Its health, its address and its card's claims."""
    card = agent.card
    fetched = f"fetched {since(card.fetched_at, now)} ago" if card.fetched_at else "never fetched"
    latency = f"in {duration(card.latency_ms)}, " if card.latency_ms is not None and card.fetched_at else ""
    lasting = f"  for {since(agent.since, now)}" if agent.since else ""
    claims = {True: ("✓ ", Tone.GOOD), False: ("✗ ", MUTED), None: ("? ", MUTED)}
    (streams, streams_tone), (pushes, pushes_tone) = claims[card.streaming], claims[card.push]
    pairs = [
        ("state", line(HEALTH[agent.health].piece, (lasting, MUTED))),
        *([("why", line(agent.why))] if agent.health is not HealthWord.UP and agent.why else []),
        *([("about", line(card.description))] if card.description else []),
        ("card", line(latency + fetched)),
        ("card url", line(card.url or ("-", MUTED))),
        ("rpc url", line(card.rpc_url or ("-", MUTED))),
        ("wire", line(card.dialect or "?", ("   auth ", MUTED), card.auth or "none")),
        ("claims", line((streams + "streaming", streams_tone), "   ", (pushes + "push", pushes_tone))),
        ("webhooks", PUSH[agent.push]),
    ]
    warnings = list(card.warnings)
    if card.changed_at is not None:
        warnings.append(f"card changed {since(card.changed_at, now)} ago: {card.changes}")
    return [*named(pairs, width), *named([("warning", line((warning, Tone.WARN))) for warning in warnings], width)]


def figures(agent: AgentRow, now: datetime, width: int) -> list[Text]:
    """The figures of the view's window."""
    f = agent.figures
    if not f.total_outcomes:
        return [line(("No outcome in this time.", MUTED)), BLANK, fitted([trouble(agent, now)], width)]
    kinds = [(STATE[kind], count) for kind, count in f.kinds.items()]
    outcomes = [line((f"{mark.glyph} {count} {mark.word}", mark.tone)) for mark, count in kinds]
    channels = [line((f"{via} ", MUTED), str(count)) for via, count in f.channels.items()]
    others = [line(f"{count} ", (WHOSE[Blame(blame)], MUTED)) for blame, count in f.beside_counts.items()]
    share, tone = percent(f.success_count, f.answered_outcomes), share_tone(f.success_count, f.answered_outcomes)
    each = (("  per ok ", MUTED), f"${money(f.cost_per_successful_outcome)}") if f.success_count else ()
    cost = line(f"${money(f.total_cost_usd)}", *each)
    latency = line(
        ("p50 ", MUTED),
        duration(f.p50_latency_ms),
        ("  p95 ", MUTED),
        duration(f.p95_latency_ms),
        ("  max ", MUTED),
        duration(f.max_latency_ms),
    )
    pairs = [
        ("ok", line((f"{share} %", tone), (f"  {f.success_count} of {f.answered_outcomes}", MUTED))),
        ("latency", latency),
        ("outcomes", fitted(outcomes, width - 10)),
        *([("beside", fitted(others, width - 10))] if others else []),
        ("arrived", fitted(channels, width - 10)),
        *course(f.trend, now),
        ("cost", cost if f.total_cost_usd else line(("none reported", MUTED))),
        ("tokens", line(f"{f.input_tokens:,} in {f.output_tokens:,} out")),
    ]
    if f.mean_confidence is not None:
        sure = f"{f.mean_confidence:.2f} on average, {f.confident_failures} confident and wrong"
        pairs.append(("confident", line(sure)))
    lines = named(pairs, width)
    for failure in f.recent_failures[:3]:
        mark = ("✗ ", Tone.BAD) if failure.blame is Blame.AGENT else ("– ", MUTED)
        said = line(mark, f"{failure.skill}: {failure.failure_reason}")
        lines += named([(f"{since(failure.timestamp, now)} ago", said)], width)
    return lines


COURSE_H = 24
HEIGHT_OF_ALL = 28
"""From this height of the screen on, the skill under the cursor is described below the list."""


def course(buckets: Sequence[TrendBucket], now: datetime) -> list[tuple[str, Text]]:
    """Outcomes and their share of successes over the day, with the hours (UTC) below; nothing without outcomes."""
    if not any(bucket.outcomes for bucket in buckets):
        return []
    counts, quarter = [bucket.outcomes for bucket in buckets], len(buckets) // 4
    hours = [f"{now - timedelta(hours=COURSE_H * (4 - n) / 4):%H:%M}" for n in (0, 2)]
    axis = "".join(f"{hour:<{2 * quarter}}" for hour in hours) + "now"
    return [
        ("course", line(trend([(bucket.successes, bucket.outcomes) for bucket in buckets]), (" ok", MUTED))),
        ("", line((spark(counts), Tone.CALM), (f" runs, to {max(counts):,}", MUTED))),
        ("", line((axis, MUTED))),
    ]


def about(skill: FoundSkill, width: int) -> list[Text]:
    """The words of an agent's card about a skill."""
    name = [("name", line(skill.name))] if skill.name not in {"", skill.skill} else []
    tags = [("tags", line(", ".join(skill.tags)))] if skill.tags else []
    examples = [("example" if not at else "", line(example)) for at, example in enumerate(skill.examples)]
    return named([*name, ("about", line(skill.description or ("no description", MUTED))), *examples, *tags], width)


class AgentPane(FleetPane):
    """One agent; ``agent`` is its name."""

    agent = ""
    _card: object = None
    """The agent and the moment of the card whose skills were read; None before."""
    _skills: Mapping[str, FoundSkill] | str = ""
    """The skills by id, or the reason why there are none."""

    def compose(self) -> ComposeResult:
        self._facts = Page(id="agent-facts")
        self._figures = Page(id="agent-figures")
        self.main = Grid(SKILL_COLUMNS, id="agent-skills", classes="framed")
        self._top = Horizontal(id="agent-top")
        with self._top:
            yield self._facts
            yield self._figures
        yield self.main
        self._skill = Page(id="agent-skill")
        yield self._skill

    def begin_anew(self) -> None:
        self._card = None

    async def _read_skills(self, agent: str, card: object) -> None:
        try:
            known: Mapping[str, FoundSkill] | str = {
                row.skill: read.harmless(row) for row in await self.host.controls.skills(agent)
            }
        except FleetsimError as error:
            known = f"no descriptions: {error}"
        if self._card == card:
            self._skills = known
            self.host.draw_soon()

    def draw(self, view: View) -> None:
        agent, second = view.agent(self.agent), int(view.now.timestamp())
        self._top.set_class(agent is None, "-bare")
        if agent is None:
            self.main.set_titles(self.agent)
            self._skill.add_class("-bare")
            self.main.show(Rows(), empty=self.instead(view, (), line(("This agent has left agents.yaml.", STRONG))))
            return
        self._facts.set_titles(agent.name)
        self._facts.show((agent, second), lambda width: facts(agent, view.now, width))
        self._figures.set_titles(f"Last {view.window}")
        self._figures.show((agent, second), lambda width: figures(agent, view.now, width))
        heights = [2 + len(page.lines) for page in (self._facts, self._figures)]
        self._top.styles.height = max(heights) if self.size_class is Size.FULL else sum(heights)
        self.main.set_titles(f"Skills, last {view.window}")
        rows = Rows(agent.skills, lambda skill: skill.skill, lambda skill: skill_row(skill, view.now), second)
        self.main.show(rows, empty=[line(("Its card names no skill.", MUTED))])
        if self._card != (card := (agent.name, agent.card.fetched_at)):
            self._card, self._skills = card, "reading its card"
            self.run_worker(self._read_skills(agent.name, card), name="skills", exit_on_error=False)
        known = self._skills
        skill = known if isinstance(known, str) else known.get(self.main.key or "") or "its card does not describe it"
        roomy = self.size_class is Size.FULL and self.size.height >= HEIGHT_OF_ALL
        self._skill.set_class(self.main.key is None or not (roomy or self.has_class("-opened")), "-bare")
        self._skill.set_titles(self.main.key or "")
        self._skill.show(skill, lambda width: [line((skill, MUTED))] if isinstance(skill, str) else about(skill, width))

    def status(self, view: View) -> str:
        rows = self.main.rows.items
        offered = sum(row.offered for row in rows)
        others = f"   {len(rows) - offered} not on its card" if len(rows) > offered else ""
        return f"{self.agent}   {plural(offered, 'skill')}{others}"

    def copyable(self) -> str | None:
        return self.agent

    def facts_of(self, item: SkillRow | None) -> object:
        return self.host.view.agent(self.agent)

    def chosen_agent(self) -> str | None:
        return self.agent

    def back(self) -> bool:
        if not super().back():
            self.host.show_screen("fleet")
        return True

    def opened(self, grid: Grid, key: str) -> None:
        """Give the words about the skill half of the screen."""
        self.add_class("-opened")
        self.host.draw_soon()
