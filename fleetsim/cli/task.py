"""``fleetsim task``: requests of the running hub, in flight and ended."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.exits import Exit
from fleetsim.cli.hub_client import hub
from fleetsim.cli.main import Common


@click.group()
def task() -> None:
    """Requests of the running hub. An ID is the correlation id that `send` and `task list` print."""


@task.command("list")
@click.option("--limit", default=20, show_default=True, help="How many ended ones to show.")
@click.pass_obj
def list_tasks(common: Common, limit: int) -> None:
    """List what is in flight, then what ended last."""
    found = asyncio.run(_get(common, f"/tasks?limit={limit}"))
    if common.as_json:
        render.emit_json(found)
        return
    rows = [*found["open"], *found["recent"]]
    render.table(
        ["STATE", "ID", "AGENT", "SKILL", "BY", "TOOK", "TEXT"],
        [
            [
                render.word(row["state"], plain=common.ascii),
                row["correlationId"],
                row["agent"],
                row["skill"],
                row["systemActor"],
                render.seconds((row["durationMs"]) / 1000) if "durationMs" in row else "-",
                row.get("reason") or row.get("text") or "",
            ]
            for row in rows
        ],
    )
    if not rows:
        common.note('nothing yet: fleetsim send AGENT "text"')


@task.command("get")
@click.argument("task_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until it ended or needs somebody.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds to wait.")
@click.option("--exit-status", is_flag=True, help="Exit 1 if it failed, 7 if it waits for somebody.")
@click.pass_obj
def get(common: Common, task_id: str, wait: bool, timeout_s: float, exit_status: bool) -> int:
    """Show one request."""
    row = asyncio.run(_one(common, task_id, wait, timeout_s))
    if common.as_json:
        render.emit_json(row)
    else:
        render.labels(
            [
                ("state", render.word(row["state"], plain=common.ascii)),
                ("agent", row["agent"]),
                ("skill", row["skill"]),
                ("task", row.get("taskId")),
                ("context", row.get("contextId")),
                ("asked by", row.get("systemActor")),
                ("took", render.seconds(row["durationMs"] / 1000) if "durationMs" in row else None),
                ("cost", f"${row['costUsd']:.4f}" if row.get("costUsd") else None),
                ("reason", row.get("reason")),
                ("text", row.get("text")),
            ]
        )
    if row.get("questionId"):
        common.note(f'  next: fleetsim inbox reply {row["questionId"]} "your answer"')
    if wait and row["open"] and not row.get("questionId"):
        return Exit.TIMEOUT
    if exit_status:
        return Exit.WAITING if row.get("questionId") else Exit.OK if row["open"] or row.get("success") else Exit.FAILED
    return Exit.OK


@task.command("cancel")
@click.argument("task_id", metavar="ID")
@click.pass_obj
def cancel(common: Common, task_id: str) -> None:
    """Ask for a request to be stopped."""
    asyncio.run(_cancel(common, task_id))
    if common.as_json:
        render.emit_json({"correlationId": task_id})
    common.note(f"asked for {task_id} to be stopped; see: fleetsim task get {task_id} --wait")


async def _get(common: Common, path: str) -> Any:
    async with hub(common) as found:
        return await found.get(path)


async def _cancel(common: Common, task_id: str) -> None:
    async with hub(common) as found:
        await found.cancel(task_id)


async def _one(common: Common, task_id: str, wait: bool, timeout_s: float) -> Any:
    async with hub(common) as found:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            row = await found.task(task_id, wait_s=20 if wait else 0)
            late = loop.time() > deadline
            if not wait or not row["open"] or row.get("questionId") or late:
                return row
