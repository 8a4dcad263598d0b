"""Reports of the running hub: ``fleetsim health``, ``fleetsim channel`` and ``fleetsim events``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any
from urllib.parse import quote

import click
from msgspec.structs import replace

from fleetsim.api.answer import iso
from fleetsim.api.answers import ChannelRow, SinkResult, SinkRow
from fleetsim.api.health import AgentHealth, HealthSnapshot, HubMember, OutcomeStats
from fleetsim.cli import render
from fleetsim.cli.hub_client import at_hub, connect
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span
from fleetsim.client.hub_client import HubClient
from fleetsim.health.figures import FLEET, Expectation, Figures, shown
from fleetsim.model.errors import Blame, ConfigError, TransportError
from fleetsim.model.text import one_line
from fleetsim.model.work import WHOSE, OutcomeKind
from fleetsim.runtime.explain import did_you_mean

_WATCH_S = 5


def _conditions(ctx: click.Context, option: click.Parameter, texts: Sequence[str]) -> tuple[Expectation, ...]:
    try:
        return tuple(Expectation.read(text) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=option) from None


@click.command()
@click.argument("agents", nargs=-1)
@click.option("--fail-if-down", is_flag=True, help="Exit 1 if a shown agent is down.")
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    metavar="EXPR",
    callback=_conditions,
    help="Exit 1 if this is so of the window, as 'quinn.p95 > 2m' (repeatable).",
)
@click.option(
    "--window",
    "window_s",
    callback=read_span,
    metavar="DURATION",
    help="Of the last 15m, 1h or any time up to 7d.  [default: 24h]",
)
@click.option("--watch", is_flag=True, help=f"Look again every {_WATCH_S} s until Ctrl-C, or until --fail-if holds.")
@click.pass_obj
def health(common: CommonOptions, /, watch: bool, window_s: float | None, **looked: Any) -> int:
    """Show success rate, latency, cost and failures per agent, worst first, from the running hub.

    An agent's figures count its successes and the failures that are its fault. BESIDE counts failures of people,
    callers and the network. Latency is the agent's own time, without waiting for people and without the queue. Below
    the table stands why an agent is not up, and since when (UTC). stderr reports a ledger that cannot be written and
    channels that fail.

    \b
    fleetsim health --fail-if 'success_rate < 95%' --fail-if 'quinn/review.p95 > 2m' --fail-if 'cost > $20'

    An EXPR is SCOPE.FIGURE COMPARISON VALUE, as under `expect` in a scenario. The scope is the whole fleet, an agent,
    agent/skill or fleet/skill. A comparison without outcomes is false.

    With --window, the health words are judged over that time too. With --watch, -o json writes one line for each look.
    """

    async def look() -> int:
        async with connect(common) as hub:
            window = None if window_s is None else round(window_s)
            fleet = await hub.read(HealthSnapshot, "/health", window=window)
            channels = await hub.read(list[ChannelRow], "/channels")
        if watch and not common.as_json:
            click.clear()
            render.line(f"the last {fleet.window_hours:g} h, at {_moment(fleet.collected_at)}")
        return _report(common, fleet, channels, emit=render.emit_json_line if watch else render.emit_json, **looked)

    async def looks() -> int:
        looked_once = False
        while True:
            try:
                if (code := await look()) is not Exit.OK or not watch:
                    return code
            except TransportError as error:  # the hub may come again
                if not looked_once:
                    raise
                common.warn(f"no figures: {error}")
            looked_once = True
            await asyncio.sleep(_WATCH_S)

    return asyncio.run(looks())


def _report(
    common: CommonOptions,
    fleet: HealthSnapshot,
    channels: Sequence[ChannelRow],
    *,
    emit: Callable[[Any], None],
    agents: Sequence[str],
    fail_if_down: bool,
    fail_if: tuple[Expectation, ...],
) -> int:
    """Print the health of the agents, and return the exit code."""
    rows = [row for row in fleet.agents if not agents or row.agent_name in agents]
    known = [row.agent_name for row in fleet.agents]
    for name in agents:
        if name not in known:
            common.note(f"there is no agent '{one_line(name, 60)}'{did_you_mean(name, known)}")
    if agents and not rows:
        return Exit.NOTHING_RAN
    figures = figures_of(fleet)
    for condition in fail_if:
        require_known(condition, figures)
    if common.as_json:
        emit(replace(fleet, agents=tuple(rows)))
    else:
        show(common, rows)
    for line in hub_lines(fleet.hubs or ()) if not common.as_json else ():
        render.line(line)
    if fleet.storage:
        common.warn(f"no request is accepted: {one_line(fleet.storage, 300)}")
    for line in chain.from_iterable(row.failures for row in channels):
        common.note(line)
    failed = fail_if_down and any(row.health == "down" for row in rows)
    for condition in fail_if:
        figure = condition.figure(figures)
        if figure is None:
            common.note(f"no outcomes yet for: {condition.text}")
        elif condition.holds(figures):
            common.warn(f"failed: {condition.text} (it is {shown(condition.unit, figure)})")
            failed = True
    return Exit.FAILED if failed else Exit.OK


def figures_of(fleet: HealthSnapshot) -> Figures:
    """The figures of ``GET /api/health``, named as in expectations, by scope; percentiles cannot be added up."""
    rows: dict[str, list[OutcomeStats]] = {row.agent_name: [row] for row in fleet.agents}
    rows[FLEET] = list(fleet.agents)
    for row in fleet.skills:
        rows[f"{row.agent_name}/{row.skill}"] = [row]
        rows.setdefault(f"{FLEET}/{row.skill}", []).append(row)
    return {scope: _figures(scope, mine) for scope, mine in rows.items()}


def _figures(scope: str, rows: Sequence[OutcomeStats]) -> dict[str, float | None]:
    def total(name: str) -> float:
        return float(sum(getattr(row, name) for row in rows))

    answered, successes = total("answered_outcomes"), total("success_count")
    spent = sum(row.cost_per_successful_outcome * row.success_count for row in rows)
    figures: dict[str, float | None] = {
        "outcomes": total("total_outcomes"),
        "successes": successes,
        "failures": total("failure_count"),
        "success_rate": successes / answered if answered else None,
        **{kind.value: float(sum(row.kinds.get(kind.value, 0) for row in rows)) for kind in OutcomeKind},
        "max": max(row.max_latency_ms for row in rows) / 1000 if answered else None,
        "cost": total("total_cost_usd"),
        "cost_per_success": spent / successes if successes else None,
    }
    if scope.partition("/")[0] != FLEET:
        (row,) = rows
        figures["p50"] = row.p50_latency_ms / 1000 if answered else None
        figures["p95"] = row.p95_latency_ms / 1000 if answered else None
    return figures


def require_known(condition: Expectation, figures: Figures) -> None:
    """Refuse a figure that health does not have, and an agent that nobody knows. Raises ConfigError."""
    agent = condition.agent or FLEET
    if agent not in figures:
        known = [scope for scope in figures if "/" not in scope]
        raise ConfigError(f"--fail-if {condition.text}: there is no agent '{agent}'{did_you_mean(agent, known)}")
    if condition.metric not in figures[agent]:
        has = ", ".join(figures[agent])
        whose = "the fleet as a whole" if agent == FLEET else "an agent"
        hint = "name the agent: quinn.p95" if condition.metric in {"p50", "p95"} else "`fleetsim sim` knows the others"
        raise ConfigError(f"--fail-if {condition.text}: health has no {condition.metric} of {whose}: {has}", hint=hint)


def hub_lines(hubs: Sequence[HubMember]) -> Iterator[str]:
    """The hubs of a fleet that has several: work, lease and the last take-over of each."""
    for row in hubs:
        took = f", took over {row.took}, last {_moment(row.took_at)}" if row.took_at else ""
        here = ", this one" if row.here else ""
        yield (
            f"hub {row.hub}: {one_line(row.name, NAME_MAX)}, fleetsim {one_line(row.version, 20)}{here}:"
            f" owns {row.owned}, lease {row.lease_age_s:.1f} s old of {row.lease_s:g} s{took}"
        )


_WORST_FIRST = ("down", "degraded", "too few", "unknown", "paused", "up")
NAME_MAX = 64
LINE_MAX = 60


def show(common: CommonOptions, rows: Sequence[AgentHealth]) -> None:
    """The health table, worst first, and what there is to say of each agent."""
    rows = sorted(rows, key=lambda row: (_WORST_FIRST.index(row.health), row.agent_name))
    render.table(
        ["HEALTH", "AGENT", "RUNS", "OK%", "BESIDE", "P50", "P95", "COST", "$/OK", "FAIL%1H"],
        [
            [
                render.word(row.health, plain=common.ascii),
                row.agent_name,
                row.total_outcomes,
                _percent(row.success_rate),
                row.total_outcomes - row.answered_outcomes,
                _latency(row, row.p50_latency_ms),
                _latency(row, row.p95_latency_ms),
                _money(row.total_cost_usd),
                _money(row.cost_per_successful_outcome),
                _percent(row.failure_rate_1h),
            ]
            for row in rows
        ],
        right=frozenset({2, 3, 4, 5, 6, 7, 8, 9}),
    )
    remarks: list[str] = []
    for row in rows:  # why it is not up and since when, what was not its doing, and its last failure
        name = one_line(row.agent_name, NAME_MAX)
        if row.health != "up":
            since = f" since {_moment(row.since)}" if row.since else ""
            remarks.append(f"{name}: {row.health}{since}: {one_line(row.why, 2 * LINE_MAX)}")
        if row.beside_counts:
            counts = ", ".join(f"{count} {WHOSE[Blame(blame)]}" for blame, count in row.beside_counts.items())
            remarks.append(f"{name}: beside its figures: {counts}")
        if own := [failure for failure in row.recent_failures if failure.blame is Blame.AGENT]:
            when, why = _moment(own[0].timestamp), one_line(own[0].failure_reason, LINE_MAX)
            remarks.append(f"{name}: last failure {when}, {one_line(own[0].skill, NAME_MAX)}: {why}")
    for line in ["", *remarks] if remarks else ():
        render.line(line)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%MZ}"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate * 100:.1f}"


def _money(usd: float) -> str:
    return f"${usd:.4f}" if usd else "-"


def _latency(row: OutcomeStats, ms: int) -> str:
    return render.seconds(ms / 1000) if row.answered_outcomes else "-"


LINE_CHARS_MAX = 4_000


@click.command()
@click.option("--after", type=int, help="Start after this event number; 0 replays what is kept.")
@click.option("--topic", default="*", show_default=True, help="Only topics like this, e.g. 'ceremony.*'.")
@click.pass_obj
def events(common: CommonOptions, after: int | None, topic: str) -> None:
    """Follow the running hub's events until Ctrl-C; `-o json` prints one JSON document a line."""

    async def follow(hub: HubClient) -> None:
        async for event in hub.events(after=after):
            if not fnmatchcase(event["topic"], topic):
                continue
            if common.as_json:
                render.emit_json_line(event)
                continue
            facts = " ".join(f"{k}={one_line(str(v), 80)}" for k, v in event["payload"].items() if v not in (None, ""))
            who = f" {event['agent']}" if event["agent"] else ""
            when, level = event["at"][11:23], event["level"]
            render.line(one_line(f"{when} {level:5} {event['topic']}{who}  {facts}", LINE_CHARS_MAX))

    at_hub(common, follow)


@click.group()
def channel() -> None:
    """The channels that notify people: those of agents.yaml, at the running hub."""


@channel.command("list")
@click.pass_obj
def list_channels(common: CommonOptions) -> None:
    """List every channel and how each of its sinks has fared since the hub started."""
    rows = at_hub(common, lambda hub: hub.read(list[ChannelRow], "/channels"))
    if common.as_json:
        render.emit_json(rows)
        return
    render.table(
        ["CHANNEL", "SINK", "STATE", "DELIVERED", "UNDELIVERED", "FAILED", "LEFT OUT", "LAST"],
        [[row.id, sink.sink, *_fared(sink)] for row in rows for sink in row.sinks],
        right=frozenset({3, 4, 5, 6}),
    )
    for line in chain.from_iterable(row.failures for row in rows):
        common.note(line)
    if not rows:
        common.note("the hub has no channels; agents.yaml can name some (docs/reference/channels.md)")


@channel.command("test")
@click.argument("channel_id", metavar="ID")
@click.pass_obj
def test(common: CommonOptions, channel_id: str) -> int:
    """Send a test notice to every sink of the channel ID, once; exit 1 if one did not take it."""
    path = f"/channels/{quote(channel_id, safe='')}/test"
    results = at_hub(common, lambda hub: hub.read(list[SinkResult], path, {}))
    if common.as_json:
        render.emit_json(results)
    else:
        for result in results:
            render.line(f"{result.sink}: {result.reason or 'delivered'}")
    return Exit.FAILED if any(result.reason for result in results) else Exit.OK


def _fared(sink: SinkRow) -> list[Any]:
    state = "failing" if sink.failing_since else "ok" if sink.delivered else "unused"
    return [
        state,
        sink.delivered,
        sink.undelivered,
        sink.failed,
        sink.left_out,
        iso(sink.last_at) if sink.last_at else None,
    ]
