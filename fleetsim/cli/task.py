"""``fleetsim task`` and ``fleetsim inbox``: requests of the running hub, in flight and ended, and what agents ask."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fleetsim.api.answer import iso
from fleetsim.api.answers import InboxPage, NamedRequest, QuestionFacts
from fleetsim.api.part_rows import body_part, read_part_row
from fleetsim.cli import render
from fleetsim.cli.ask import (
    AskOptions,
    agent_client,
    agent_entry,
    answer_command,
    download_command,
    is_url,
    late_error,
    place_of,
    reply_command,
    rest_command,
    way_given,
    whole_at,
)
from fleetsim.cli.ask import (
    exit_status as status_of,
)
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions, Exit, load_verb
from fleetsim.cli.options import TEXT_MAX_HELP, TEXT_MAX_MAX, call_options, timeout_option
from fleetsim.cli.parts import SavedParts, data_option, file_option, list_parts, read_parts, report_unsaved, save_parts
from fleetsim.cli.push_config import push_config
from fleetsim.cli.retry import retry
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_follow import question_id, request_id
from fleetsim.client.results import FollowResult, SentTask
from fleetsim.model.errors import TimedOut, UnknownTarget
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import Part, Task, TaskState
from fleetsim.model.text import placeholder
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.files import safe_name
from fleetsim.runtime.ports import WayOut
from fleetsim.runtime.real import running_runtime
from fleetsim.wire.base import PAGE_SIZE_MAX


@click.group()
def task() -> None:
    """Requests of the running hub, or with --agent the tasks of an agent (a URL, or a name in agents.yaml).

    An ID is the correlation id that `send` and `task list` print, any unique beginning of it (4 characters or more), a
    ceremony run's id, or the agent's whole task id. With --agent it is the agent's whole task id."""


task.add_command(push_config)
task.add_command(retry)
task.add_command(load_verb("save", "fleetsim.tape.save:save"))


@task.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many ended ones to show.")
@click.option("--agent", help="List the tasks that this agent (a name or URL) has for you, newest first.")
@click.option(
    "--status", type=click.Choice([s.value for s in TaskState]), metavar="STATE", help="With --agent: only those."
)
@click.option("--context-id", help="With --agent: only those of this conversation.")
@call_options
@click.pass_obj
def list_tasks(
    common: CommonOptions, /, limit: int, agent: str | None, status: str | None, context_id: str | None, **how: Any
) -> None:
    """List what is in flight at the hub, then what ended last; or with --agent the tasks of an agent, at most --limit.

    An agent of A2A 1.0, or of 0.3 over HTTP+JSON, has a list.
    """
    if agent is not None:
        wanted = TaskState(status) if status is not None else None
        _show_tasks_of(common, AskOptions.given(agent=agent, context_id=context_id, **how), limit, wanted)
        return
    if status is not None or context_id is not None:
        raise click.UsageError("--status and --context-id go with --agent")
    tasks = at_hub(common, lambda hub: hub.tasks(limit=limit))
    if common.as_json:
        render.emit_json(tasks)
        return
    rows = [*tasks.open, *tasks.recent]
    render.table(
        ["STATE", "ID", "AGENT", "SKILL", "BY", "TOOK", "TEXT"],
        [
            [
                render.word(row.state, plain=common.ascii),
                row.correlation_id,
                row.agent,
                row.skill,
                row.system_actor,
                "-" if row.duration_ms is None else render.seconds(row.duration_ms / 1000),
                row.reason or row.text,
            ]
            for row in rows
        ],
    )
    if not rows:
        common.note('nothing yet: fleetsim send AGENT "text"')


def _show_tasks_of(common: CommonOptions, ask: AskOptions, limit: int, state: TaskState | None) -> None:
    tasks, total = asyncio.run(_tasks_of(common, ask, limit, state))
    results = [FollowResult.of_task(task) for task in tasks]
    at = [task.status.timestamp for task in tasks]
    if common.as_json:
        rows = [{**result.facts(), "at": when and when.isoformat()} for result, when in zip(results, at, strict=True)]
        render.emit_json({"schema": "fleetsim/tasks-of-agent/1", "agent": ask.agent, "tasks": rows, "total": total})
        return
    render.table(
        ["STATE", "TASK", "CONTEXT", "AT", "TEXT"],
        [
            [
                render.word(one.state, plain=common.ascii),
                one.task_id,
                one.context_id,
                when and f"{when:%F %TZ}",
                one.text,
            ]
            for one, when in zip(results, at, strict=True)
        ],
    )
    common.note(f"{len(results)} of {max(total, len(results))}, newest first (UTC)" if results else "it has no task")


async def _tasks_of(
    common: CommonOptions, ask: AskOptions, limit: int, state: TaskState | None
) -> tuple[list[Task], int]:
    """Up to ``limit`` tasks of an agent, newest first, and how many it has by its own word.

    The list ends at a page without a new task: some agents return their first page again for every token.
    """
    tasks: dict[str, Task] = {}
    token: str | None = None
    async with agent_client(common, ask) as client:
        while True:
            size = max(1, min(limit - len(tasks), PAGE_SIZE_MAX))
            page = await client.list_tasks(context_id=ask.context_id, state=state, page_size=size, page_token=token)
            before, token = len(tasks), page.next_page_token
            tasks |= {task.task_id: task for task in page.tasks if task.task_id not in tasks}
            if not token or len(tasks) == before or len(tasks) >= limit:
                return list(tasks.values())[:limit], page.total_size


@task.command("get")
@click.argument("task_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until it ended or needs somebody.")
@timeout_option("How long to wait in all; then exit 5, with the request as it is.")
@click.option("--agent", help="Read it from this agent (a name or URL), without a hub: ID is then the agent's task id.")
@call_options
@click.option("--exit-status", is_flag=True, help="Exit 1 if it failed, 7 if it waits for somebody.")
@click.option("--text-max", type=click.IntRange(1, TEXT_MAX_MAX), help=TEXT_MAX_HELP)
@click.pass_obj
def get(
    common: CommonOptions,
    /,
    task_id: str,
    wait: bool,
    timeout_s: float,
    exit_status: bool,
    agent: str | None,
    **how: Any,
) -> int:
    """Show one request: of the running hub, or with --agent a task that an agent was asked for directly.

    The hub keeps text up to a limit and marks text that it cut. `--agent` with `--text-max` reads the rest from the
    agent.
    """
    if agent is None and how["text_max"] is not None:
        raise click.UsageError("--text-max goes with --agent: the hub has no more than it shows")
    ask = AskOptions.given(agent=agent, timeout_s=timeout_s, **how)
    result, late = asyncio.run(_read(common, ask, task_id, wait=wait))
    row, agent = result.row, result.row.agent if result.row else ask.agent
    if common.as_json:
        facts = {"agent": agent, "open": result.open, "success": result.success, **result.facts()}
        render.emit_json(row or facts)
    else:
        render.labels(
            [
                ("state", render.word(result.state, plain=common.ascii)),
                ("id", result.correlation_id),
                ("agent", agent),
                ("skill", row.skill if row else None),
                ("task", result.task_id),
                ("context", result.context_id),
                ("asked by", row.system_actor if row else None),
                ("retry of", row.retry_of if row else None),
                ("retried as", (getattr(row, "retried_as", None) or None) if row else None),
                ("took", render.seconds(row.duration_ms / 1000) if row and row.duration_ms is not None else None),
                ("cost", f"${result.cost_usd:.4f}" if result.cost_usd else None),
            ]
        )
        for label, text in (("reason", result.reason), ("text", result.text)):
            if text:
                render.quote(label, text, plain=common.ascii)
        if result.state == TaskState.COMPLETED and not result.text:
            common.note(placeholder(row.skill if row else None, agent or ""))
        list_parts(common, result.parts, result.parts_total, next_step=download_command(ask, result))
    if result.truncated:
        rest = rest_command(replace(ask, agent=agent), result)
        common.warn(*render.cut_short(len(result.text), result.text_chars, rest))
    for warning in result.warnings:
        common.note(f"warning: {warning}")
    if result.question is not None:
        common.note(f"  next: {answer_command(ask, result)}")
    if late:
        raise late_error(ask, result)
    return status_of(result) if exit_status else Exit.OK


async def _read(common: CommonOptions, ask: AskOptions, task_id: str, *, wait: bool) -> tuple[FollowResult, bool]:
    """The task as it is, or with ``wait`` as it ends or asks; True: it did not by the time limit."""
    async with place_of(common, ask) as place:
        following = place.follow_task(task_id, timeout_s=ask.timeout_s)
        try:
            await (following.finish() if wait else following.begin())
        except TimedOut:
            if following.task is None:
                raise
            return following.report(ask.text_max), True
        return following.report(ask.text_max), False


@task.command("subscribe")
@click.argument("task_id", metavar="ID")
@timeout_option("How long to follow it in all; then exit 5. The work goes on.")
@click.option("--agent", help="Ask this agent (a URL, or a name in agents.yaml) instead of the hub; ID is its task id.")
@call_options
@click.option("--exit-status", is_flag=True, help="Exit 1 if it failed, 7 if it waits for somebody.")
@click.pass_obj
def subscribe(common: CommonOptions, /, exit_status: bool, **options: Any) -> int:
    """Join the stream of a request that runs, and show its answer as it comes, until it ends or asks.

    Of an agent it shows the text so far first. If the agent has no stream for its tasks, it is polled. Of the hub it
    shows what comes from now on, and at the end the whole text. -o json writes a line for each event; the last one is
    the end, as `send` writes it.

    \b
    fleetsim task subscribe 4f6b1c2e
    fleetsim task subscribe 7c0d --agent http://127.0.0.1:9000
    """
    from fleetsim.cli.send import follow  # not for the verbs that follow nothing

    options["follow_id"] = options.pop("task_id")
    return follow(common, AskOptions.given(stream=True, **options), exit_status=exit_status)


@task.command("cancel")
@click.argument("task_id", metavar="ID")
@click.option("--agent", help="Ask this agent (a URL, or a name in agents.yaml) instead of the hub; ID is its task id.")
@call_options
@click.pass_obj
def cancel(common: CommonOptions, /, task_id: str, agent: str | None, **how: Any) -> None:
    """Ask for a request to be stopped, or with --agent for a task of that agent's."""

    if agent is not None:
        stopped = asyncio.run(_cancel_at_agent(common, AskOptions.given(agent=agent, **how), task_id))
        if common.as_json:
            render.emit_json({"taskId": stopped.id, "state": stopped.state})
        common.note(f"task {stopped.id} is {render.word(stopped.state, plain=common.ascii)}")
        return

    async def stop(hub: HubClient) -> str:
        request = await request_id(hub, task_id)
        await hub.cancel(request)
        return request

    request = at_hub(common, stop)
    if common.as_json:
        render.emit_json({"correlationId": request})
    common.note(f"asked for {request} to be stopped; see: fleetsim task get {request} --wait")


async def _cancel_at_agent(common: CommonOptions, ask: AskOptions, task_id: str) -> SentTask:
    async with agent_client(common, ask) as client:
        return await client.cancel(task_id)


@task.command("download")
@click.argument("task_id", metavar="ID")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to  [default: a folder named ID].")
@click.option("--part", "wanted", multiple=True, type=int, metavar="N", help="Only this one, by its number.")
@click.option("--remote", is_flag=True, help="Also fetch files that are given by their address.")
@click.option("--allow", multiple=True, metavar="HOST:PORT", help="Let --remote call this private address.")
@click.option("--agent", help="Ask this agent (a URL, or a name in agents.yaml) instead of the hub; ID is its task id.")
@call_options
@click.pass_obj
def download(
    common: CommonOptions,
    /,
    task_id: str,
    out: Path | None,
    wanted: tuple[int, ...],
    remote: bool,
    allow: tuple[str, ...],
    agent: str | None,
    **how: Any,
) -> int:
    """Save the files and data a task answered with; stdout has the paths written.

    File names are the agent's, without unsafe characters. No file is overwritten (a second report.pdf becomes "report
    (2).pdf"), and symlinks in the folder are not followed. Data is saved as data-1.json, by its number in `task get`.
    For a file given by address, --remote fetches it: without a credential, without redirects, at most 64 MiB, and only
    from public addresses unless --allow names another. Exits 1 if a file could not be saved.

    \b
    fleetsim task download 4f6b1c2e --out answer
    fleetsim task download 7c0d --agent http://127.0.0.1:9000
    """
    if allow and not remote:
        raise click.UsageError("--allow is for --remote")
    policy = AddressPolicy.allowing(*allow) if remote else None
    folder = out if out is not None else Path(safe_name(task_id, "task"))
    ask = AskOptions.given(agent=agent, **how)
    parts, total, saved = asyncio.run(_download(common, ask, task_id, folder, wanted, policy))
    if common.as_json:
        summary = {
            "schema": "fleetsim/download/1",
            "id": task_id,
            "saved": [{"index": index, "path": str(path)} for index, path in saved.paths.items()],
            "remote": [{"index": index, "uri": uri} for index, uri in saved.remote.items()],
            "failed": [{"index": index, "reason": reason} for index, reason in saved.failed.items()],
            "partsTotal": total,
        }
        render.emit_json(summary)
    else:
        for path in saved.paths.values():
            render.line(str(path))
    again = "".join(f" --part {index}" for index in saved.remote)
    report_unsaved(common, parts, saved, next_step=f"the same with --remote{again}")
    if not parts:
        common.note("it answered with text alone: no files and no data")
    if total > len(parts):
        common.note(f"{total - len(parts):,} more were too many to be kept")
    return Exit.FAILED if saved.failed or total > len(parts) else Exit.OK


async def _download(
    common: CommonOptions,
    ask: AskOptions,
    task_id: str,
    out: Path,
    wanted: tuple[int, ...],
    policy: AddressPolicy | None,
) -> tuple[tuple[ListedPart, ...], int, SavedParts]:
    result, _ = await _read(common, ask, task_id, wait=False)
    chosen = [part for part in result.parts if not wanted or part.index in wanted]
    if missing := set(wanted) - {part.index for part in chosen}:
        raise UnknownTarget(f"it has no file or data {min(missing)}", hint=f"see: fleetsim task get {task_id}")
    named = ask.agent and not is_url(ask.agent)
    # The agent's authorities are for the agent alone; its proxy leads to other hosts as well.
    way = WayOut(proxy=(await agent_entry(common, ask.agent)).way.proxy) if named else None
    async with running_runtime() as direct:
        runtime = replace(direct, transport=direct.transport.through(way_given(ask.proxy, ask.ca, way)))
        return result.parts, result.parts_total, await save_parts(chosen, out, runtime=runtime, policy=policy)


@click.group()
def inbox() -> None:
    """Questions of agents. A question takes one answer, once. Any unique beginning of an id will do."""


@inbox.command("list")
@click.pass_obj
def list_questions(common: CommonOptions) -> None:
    """List open questions and work that may still be vetoed."""
    waiting = at_hub(common, lambda hub: hub.read(InboxPage, "/inbox"))
    if common.as_json:
        render.emit_json(waiting)
        return
    questions = waiting.questions
    render.table(
        ["QUESTION", "AGENT", "SKILL", "KIND", "EXPIRES", "TEXT"],
        [[q.question_id, q.agent, q.skill, q.kind, iso(q.expires_at), q.question] for q in questions],
    )
    for veto in waiting.vetoes:
        common.note(
            f"may be stopped until {iso(veto.expires_at)}: {veto.agent} {veto.skill}",
            f"  next: fleetsim inbox veto {veto.correlation_id}",
        )
    if any(q.truncated for q in questions):
        common.note("  long questions are cut here; all of one: fleetsim inbox show QUESTION")
    if questions:
        common.note('  next: fleetsim inbox reply QUESTION "your answer"')
    else:
        common.note("nobody waits for you")


@inbox.command("show")
@click.argument("question")
@click.pass_obj
def show(common: CommonOptions, question: str) -> None:
    """Show the whole of QUESTION."""

    async def read(hub: HubClient) -> QuestionFacts:
        return await hub.question(await question_id(hub, question))

    row = at_hub(common, read)
    if common.as_json:
        render.emit_json(row)
    else:
        render.AgentText(plain=common.ascii).end(row.question)
    if row.truncated:
        rest = whole_at(row.agent, row.task_id, row.text_chars)
        common.warn(*render.cut_short(len(row.question), row.text_chars, rest))
    if not common.as_json:
        parts = tuple(map(read_part_row, row.parts))
        list_parts(common, parts, row.parts_total, next_step=f"fleetsim task download {row.correlation_id}")
        if row.answer_schema:
            common.note("  the answer is data that fits this schema:")
            common.note(json.dumps(row.answer_schema, ensure_ascii=False, indent=2))
    common.note(f"  next: {reply_command(question, data=row.asks_for_data)}")


@inbox.command("reply")
@click.argument("question")
@click.argument("text", required=False)
@click.option("--by", default="operator", show_default=True, help="Who answers.")
@file_option
@data_option
@click.pass_obj
def reply(
    common: CommonOptions, question: str, text: str | None, by: str, files: tuple[Path, ...], data: tuple[str, ...]
) -> None:
    """Answer QUESTION with TEXT ("-" or nothing reads standard input), with data, with files, or with all of them.

    If the question has a JSON Schema (see: fleetsim inbox show QUESTION), data that does not match it is refused and
    the question stays open.

    \b
    fleetsim inbox reply q-1 "the second one"
    fleetsim inbox reply q-1 --data '{"amount": 3}'
    """
    parts = read_parts(files, data)
    if text == "-" or (text is None and not parts and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if not text and not parts:
        raise click.UsageError("an answer says something: give a TEXT, --data or --file")
    _settle(common, question, text or "", "answer", by, parts)


@inbox.command("reject")
@click.argument("question")
@click.option("--by", default="operator", show_default=True, help="Who rejects.")
@click.pass_obj
def reject(common: CommonOptions, question: str, by: str) -> None:
    """Reject QUESTION: its task is cancelled."""
    _settle(common, question, "", "reject", by)


@inbox.command("veto")
@click.argument("correlation_id", metavar="ID")
@click.option("--by", default="operator", show_default=True, help="Who vetoes.")
@click.pass_obj
def veto(common: CommonOptions, correlation_id: str, by: str) -> None:
    """Stop the work ID while its window for a veto is open: its task is cancelled."""

    async def stop(hub: HubClient) -> NamedRequest:
        return await hub.veto(await request_id(hub, correlation_id), by=by)

    _report(common, at_hub(common, stop), "vetoed")


def _settle(
    common: CommonOptions, question: str, text: str, decision: str, by: str, parts: tuple[Part, ...] = ()
) -> None:
    rows = [body_part(part) for part in parts]

    async def settle(hub: HubClient) -> QuestionFacts:
        return await hub.answer(await question_id(hub, question), text, parts=rows, decision=decision, by=by)

    _report(common, at_hub(common, settle), "answered" if decision == "answer" else "rejected")


def _report(common: CommonOptions, row: QuestionFacts | NamedRequest, what: str) -> None:
    if common.as_json:
        render.emit_json(row)
    common.note(f"{what}; see: fleetsim task get {row.correlation_id} --wait")
