"""``fleetsim health``: how the fleet has done over the last day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.channel import failing
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import Blame
from fleetsim.model.text import one_line
from fleetsim.model.work import WHOSE


@click.command()
@click.argument("agents", nargs=-1)
@click.option("--fail-if-down", is_flag=True, help="Exit 1 if a shown agent is down.")
@click.pass_obj
def health(common: CommonOptions, agents: Sequence[str], fail_if_down: bool) -> int:
    """Show success rate, latency, cost and failures per agent, worst first, from the running hub.

    Only what an agent answers for is in its figures: its successes, and the failures blamed on it. What people,
    callers and the network did is counted BESIDE. Latency is the time the agent had, without people's and the
    queue's. Under the table: why an agent is not up, and since when (UTC). On stderr: channels that fail.
    """

    async def read(hub: HubClient) -> tuple[Any, Any]:
        return await hub.get("/health"), await hub.get("/channels")

    fleet, channels = at_hub(common, read)
    shown = [row for row in fleet["agents"] if not agents or row["agentName"] in agents]
    if agents and not shown:
        common.note(f"no such agent: {', '.join(agents)}")
        return Exit.NOTHING_RAN
    if common.as_json:
        render.emit_json({**fleet, "agents": shown})
    else:
        show(common, shown)
    for line in failing(channels):
        common.note(line)
    return Exit.FAILED if fail_if_down and any(row["health"] == "down" for row in shown) else Exit.OK


_WORST_FIRST = ("down", "degraded", "unknown", "paused", "up")
NAME_MAX = 64
LINE_MAX = 60


def show(common: CommonOptions, rows: Sequence[Mapping[str, Any]]) -> None:
    """The health table, worst first, and what there is to say of each agent."""
    rows = sorted(rows, key=lambda row: (_WORST_FIRST.index(row["health"]), row["agentName"]))
    render.table(
        ["HEALTH", "AGENT", "RUNS", "OK%", "BESIDE", "P50", "P95", "COST", "$/OK", "FAIL%1H"],
        [
            [
                render.word(row["health"], plain=common.ascii),
                row["agentName"],
                row["totalOutcomes"],
                _percent(row["successRate"]),
                row["totalOutcomes"] - row["answeredOutcomes"],
                _latency(row, "p50LatencyMs"),
                _latency(row, "p95LatencyMs"),
                _money(row["totalCostUsd"]),
                _money(row["costPerSuccessfulOutcome"]),
                _percent(row["failureRate1h"]),
            ]
            for row in rows
        ],
        right=frozenset({2, 3, 4, 5, 6, 7, 8, 9}),
    )
    remarks = [line for row in rows for line in _remarks(row)]
    for line in ["", *remarks] if remarks else ():
        render.line(line)


def _remarks(row: Mapping[str, Any]) -> Iterator[str]:
    """Why it is not up and since when, what was not its doing, and its last failure."""
    name = one_line(row["agentName"], NAME_MAX)
    if row["health"] != "up":
        since = f" since {_moment(row['since'])}" if row["since"] else ""
        yield f"{name} is {row['health']}{since}: {one_line(row['why'], LINE_MAX)}"
    if row["besideCounts"]:
        counts = ", ".join(f"{count} {WHOSE[Blame(blame)]}" for blame, count in row["besideCounts"].items())
        yield f"{name}: beside its figures: {counts}"
    own = [failure for failure in row["recentFailures"] if failure["blame"] == "agent"]
    if own:
        when, why = _moment(own[0]["timestamp"]), one_line(own[0]["failureReason"], LINE_MAX)
        yield f"{name}: last failure {when}, {one_line(own[0]['skill'], NAME_MAX)}: {why}"


def _moment(iso: str) -> str:
    return iso[:16].replace("T", " ") + "Z"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate * 100:.1f}"


def _money(usd: float) -> str:
    return f"${usd:.4f}" if usd else "-"


def _latency(row: Mapping[str, Any], key: str) -> str:
    return render.seconds(row[key] / 1000) if row["answeredOutcomes"] else "-"
