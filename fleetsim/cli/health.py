"""``fleetsim health``: how the fleet has done over the last day."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.exits import Exit
from fleetsim.cli.hub_client import hub
from fleetsim.cli.main import Common


@click.command()
@click.argument("agents", nargs=-1)
@click.option("--fail-if-down", is_flag=True, help="Exit 1 if a shown agent is down.")
@click.pass_obj
def health(common: Common, agents: Sequence[str], fail_if_down: bool) -> int:
    """Show success rate, latency, cost and failures per agent, worst first, from the running hub.

    Success means the agent met the goal. Requests whose fate is unknown, or that could not be delivered, are
    counted beside the rate, not in it.
    """
    found = asyncio.run(_get(common))
    shown = [row for row in found["agents"] if not agents or row["agentName"] in agents]
    if agents and not shown:
        common.note(f"no such agent: {', '.join(agents)}")
        return Exit.NOTHING_RAN
    if common.as_json:
        render.emit_json({**found, "agents": shown})
    else:
        show(common, shown)
    return Exit.FAILED if fail_if_down and any(row["health"] == "down" for row in shown) else Exit.OK


_WORST_FIRST = ("down", "degraded", "unknown", "paused", "up")


def show(common: Common, rows: Sequence[Mapping[str, Any]]) -> None:
    """The health table, worst first."""
    rows = sorted(rows, key=lambda row: (_WORST_FIRST.index(row["health"]), row["agentName"]))
    render.table(
        ["HEALTH", "AGENT", "RUNS", "OK%", "P50", "P95", "COST", "$/OK", "FAIL%1H", "LAST FAILURE"],
        [
            [
                render.word(row["health"], plain=common.ascii),
                row["agentName"],
                row["totalOutcomes"],
                _percent(row["successRate"]),
                _latency(row, "p50LatencyMs"),
                _latency(row, "p95LatencyMs"),
                f"${row['totalCostUsd']:.4f}" if row["totalCostUsd"] else "-",
                f"${row['costPerSuccessfulOutcome']:.4f}" if row["costPerSuccessfulOutcome"] else "-",
                _percent(row["failureRate1h"]),
                _failure(row),
            ]
            for row in rows
        ],
        right=frozenset({2, 3, 4, 5, 6, 7, 8}),
    )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate * 100:.1f}"


def _latency(row: Mapping[str, Any], key: str) -> str:
    return render.seconds(row[key] / 1000) if row["totalOutcomes"] and row[key] is not None else "-"


def _failure(row: Mapping[str, Any]) -> str:
    recent = row.get("recentFailures") or []
    return str(recent[0].get("failureReason") or recent[0].get("reason") or "")[:60] if recent else "-"


async def _get(common: Common) -> Any:
    async with hub(common) as found:
        return await found.get("/health")
