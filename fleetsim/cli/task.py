"""``fleetsim task``: requests of the running hub, in flight and ended."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.asking import Asked, whole_at
from fleetsim.cli.exits import Exit
from fleetsim.cli.hub_client import hub, request_id
from fleetsim.cli.main import Common
from fleetsim.cli.patience import timeout_option, within
from fleetsim.cli.reach import TEXT_MAX_HELP, TEXT_MAX_MAX
from fleetsim.cli.through_hub import until_news
from fleetsim.model.errors import TimedOut
from fleetsim.model.task import TERMINAL, TaskState

MARGIN_S = 0.5


@click.group()
def task() -> None:
    """Requests of the running hub. An ID is the correlation id that `send` and `task list` print, any
    unique beginning of it (4 characters or more), a ceremony run's id, or the agent's whole task id."""


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
@timeout_option("How long to wait in all; then exit 5, with the request as it is.")
@click.option("--agent", help="Read it from this agent (a name or URL), without a hub: ID is then the agent's task id.")
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key (with a URL).")
@click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as a bearer token (with a URL).")
@click.option(
    "--a2a-version", "dialect", type=click.Choice(["0.1", "0.3", "1.0"]), help="Speak this dialect (--agent)."
)
@click.option("--exit-status", is_flag=True, help="Exit 1 if it failed, 7 if it waits for somebody.")
@click.option("--text-max", type=click.IntRange(1, TEXT_MAX_MAX), help=TEXT_MAX_HELP)
@click.pass_obj
def get(
    common: Common,
    /,
    task_id: str,
    wait: bool,
    timeout_s: float,
    exit_status: bool,
    agent: str | None,
    **how: Any,
) -> int:
    """Show one request: of the running hub, or with --agent a task that an agent was asked for directly.

    The hub keeps text up to a limit and says what it left out; --agent with --text-max is the way to the rest.
    """
    given = {name: value for name, value in how.items() if value is not None}
    if agent is not None:
        row = asyncio.run(_of_agent(common, Asked(agent=agent, text="", timeout_s=timeout_s, **given), task_id, wait))
    elif "text_max" in given:
        raise click.UsageError("--text-max goes with --agent: the hub has no more than it shows")
    else:
        row = asyncio.run(_one(common, task_id, wait, timeout_s))
    if common.as_json:
        render.emit_json(row)
    else:
        render.labels(
            [
                ("state", render.word(row["state"], plain=common.ascii)),
                ("id", row.get("correlationId")),
                ("agent", row["agent"]),
                ("skill", row.get("skill")),
                ("task", row.get("taskId")),
                ("context", row.get("contextId")),
                ("asked by", row.get("systemActor")),
                ("took", render.seconds(row["durationMs"] / 1000) if "durationMs" in row else None),
                ("cost", f"${row['costUsd']:.4f}" if row.get("costUsd") else None),
                ("reason", row.get("reason")),
                ("text", row.get("text")),
            ]
        )
    if row.get("truncated"):
        rest = whole_at(row["agent"], row.get("taskId"), row["textChars"])
        common.warn(render.cut_short(len(row["text"]), row["textChars"], rest))
    if row.get("questionId"):
        common.note(f'  next: fleetsim inbox reply {row["questionId"]} "your answer"')
    if wait and row["open"] and not row.get("questionId"):
        common.note(f"not ended after {timeout_s:g} s; look again: fleetsim task get {task_id} --wait")
        return Exit.TIMEOUT
    if exit_status:
        return Exit.WAITING if row.get("questionId") else Exit.OK if row["open"] or row.get("success") else Exit.FAILED
    return Exit.OK


@task.command("cancel")
@click.argument("task_id", metavar="ID")
@click.pass_obj
def cancel(common: Common, task_id: str) -> None:
    """Ask for a request to be stopped."""
    task_id = asyncio.run(_cancel(common, task_id))
    if common.as_json:
        render.emit_json({"correlationId": task_id})
    common.note(f"asked for {task_id} to be stopped; see: fleetsim task get {task_id} --wait")


async def _get(common: Common, path: str) -> Any:
    async with hub(common) as found:
        return await found.get(path)


async def _cancel(common: Common, given: str) -> str:
    async with hub(common) as found:
        task_id = await request_id(found, given)
        await found.cancel(task_id)
        return task_id


async def _one(common: Common, task_id: str, wait: bool, timeout_s: float) -> Any:
    late = TimedOut(f"the hub did not answer within {timeout_s:g} s", hint="is it busy? see `fleetsim health`")
    deadline = asyncio.get_running_loop().time() + timeout_s
    async with within(timeout_s + MARGIN_S, lambda: late), hub(common) as found:
        task_id = await request_id(found, task_id)
        row = await (until_news(found, task_id, deadline) if wait else found.task(task_id))
    return {key: value for key, value in row.items() if key != "late"}


async def _of_agent(common: Common, asked: Asked, task_id: str, wait: bool) -> Any:
    from fleetsim.cli import direct

    found = await direct.look(common, asked, task_id, wait=wait)
    waits = bool(found.next_step)
    if waits:
        common.note(f"  next: {found.next_step}")
    return {
        "agent": asked.agent,
        "state": found.state,
        "open": found.state not in {state.value for state in TERMINAL},
        "success": found.state == TaskState.COMPLETED,
        "truncated": found.truncated,
        "textChars": found.text_chars,
        "taskId": found.task_id,
        "contextId": found.context_id,
        "text": found.text,
        "reason": found.reason or None,
        "costUsd": found.cost_usd,
    }
