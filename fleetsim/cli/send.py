"""``fleetsim send``: ask one agent to do something, through the running hub or directly."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from fleetsim.api.part_rows import part_row
from fleetsim.cli import render
from fleetsim.cli.ask import REASON_MAX, AskOptions, AskResult
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import TEXT_MAX_HELP, TEXT_MAX_MAX, call_options, timeout_option
from fleetsim.cli.parts import (
    SavedParts,
    data_option,
    file_option,
    list_parts,
    read_metadata,
    read_parts,
    report_unsaved,
    save_parts,
)
from fleetsim.model.limits import TEXT_CHARS_MAX, check_text
from fleetsim.model.parts import require_parts
from fleetsim.model.task import INTERRUPTED, UNSUCCESSFUL, TaskState
from fleetsim.model.text import placeholder
from fleetsim.model.work import plain_id

_ANSWERS = frozenset({TaskState.COMPLETED}) | INTERRUPTED
"""States whose text goes to stdout: a result, or a question."""


def _parent_id(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else plain_id(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("agent")
@click.argument("text", required=False)
@file_option
@data_option
@click.option(
    "--metadata",
    multiple=True,
    metavar="KEY=VALUE|JSON",
    help="Metadata of the message: one text, or a JSON object; may be repeated. What fleetsim says there itself "
    "(skillHint, correlationId, parentId, a2a.trace) wins.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save the files and data of the answer in this folder (see: fleetsim task download --help).",
)
@click.option("--skill", help="The skill to use  [default: chat if the agent has it, else its choice].")
@click.option("--stream", is_flag=True, help="Show the answer as it comes; on stderr, what the agent says at work.")
@click.option("--async", "detach", is_flag=True, help="Do not wait; print the ids and leave.")
@timeout_option("How long to wait in all; then exit 5. The work is left running, and where it is is said.")
@click.option("--task-id", help="Continue this task of the agent's (answer its question).")
@click.option("--context-id", help="Continue this conversation.")
@click.option(
    "--parent-id",
    metavar="ID",
    callback=_parent_id,
    help="The id of what this is a step of: the agent is told (parentId, X-Parent-Id), and it is kept with the work.",
)
@call_options
@click.option("--text-max", type=click.IntRange(1, TEXT_MAX_MAX), help=TEXT_MAX_HELP)
@click.option("--exit-status", is_flag=True, help="Exit 1 if the task failed, 7 if it waits for somebody.")
@click.pass_obj
def send(
    common: CommonOptions,
    /,
    text: str | None,
    files: tuple[Path, ...],
    data: tuple[str, ...],
    metadata: tuple[str, ...],
    out: Path | None,
    exit_status: bool,
    **options: Any,
) -> int:
    """Ask AGENT to do TEXT, and wait for the answer.

    AGENT is a name from agents.yaml, or the URL of any A2A agent. TEXT may be "-" for standard input, or absent
    if there is a file or data. The answer goes to stdout; files and data in it are listed on stderr and are
    whole in -o json; what happens meanwhile to stderr. If a hub is running (fleetsim up), a named agent
    is asked through it, so that the work is recorded, tracked and counted. --timeout is how long this command
    waits, whatever it waits for (the card, the answer, the stream, the hub); it is no limit for the work itself,
    which the hub's task_limit_s, or timeoutMs of a request over the API, is.

    \b
    fleetsim send http://127.0.0.1:9000 "hello"
    fleetsim send quinn "what is open?" --skill board_health --stream
    fleetsim send quinn "what does it say?" --file report.pdf --data '{"pages": [1, 2]}' --out answer
    """
    parts = read_parts(files, data)
    if text == "-" or (text is None and not parts and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if not text and not parts:
        raise click.UsageError("nothing to send: give a TEXT, '-' for standard input, a --file or --data")
    ask = AskOptions.given(text=text or "", parts=parts, metadata=read_metadata(metadata), **options)
    check_text(ask.text, "the text")
    require_parts(ask.parts, ask.metadata)
    result = asyncio.run(_carry_out(common, ask))
    saved = asyncio.run(save_parts(result.parts, out)) if out is not None else None
    _show(common, ask, result, saved)
    if saved is not None and saved.failed:
        return Exit.FAILED
    if exit_status and result.code is Exit.OK:
        badly = result.denied or result.state in UNSUCCESSFUL
        return Exit.FAILED if badly else Exit.WAITING if result.state in INTERRUPTED else Exit.OK
    return result.code


async def _carry_out(common: CommonOptions, ask: AskOptions) -> AskResult:
    from fleetsim.cli import direct

    if not direct.is_url(ask.agent) and ask.text_max == TEXT_CHARS_MAX:
        from fleetsim.cli import through_hub  # a third of the time it takes to begin

        if await through_hub.applies_to(common, ask.agent):
            return await through_hub.send(common, ask)
    return await direct.send(common, ask)


def _show(common: CommonOptions, ask: AskOptions, result: AskResult, saved: SavedParts | None) -> None:
    if common.as_json:
        saved_at = saved.paths if saved is not None else {}
        rows = [part_row(p) | ({"path": str(saved_at[p.index])} if p.index in saved_at else {}) for p in result.parts]
        answer = {
            "schema": "fleetsim/send/1",
            "agent": ask.agent,
            "state": result.state,
            "text": result.text,
            "truncated": result.truncated,
            "textChars": max(result.text_chars, len(result.text)),
            "reason": result.reason or None,
            "parts": rows,
            "partsTotal": result.parts_total,
            "taskId": result.task_id,
            "contextId": result.context_id,
            "correlationId": result.correlation_id,
            "durationMs": round(result.duration_s * 1000),
            "costUsd": result.cost_usd,
            "warnings": list(result.warnings),
        }
        (render.emit_json_line if ask.stream else render.emit_json)(answer)
    elif result.text and result.state in _ANSWERS:
        shown = result.shown or ""
        goes_on = result.text.startswith(shown) or shown.startswith(result.text)
        render.say(result.text[len(shown) :] if goes_on else f"\n{result.text}")
        if not goes_on and result.state == TaskState.COMPLETED:
            common.note("the agent replaced its text: the answer is the last one")
    elif result.shown:
        render.say("")
    elif result.state == TaskState.COMPLETED:
        common.note(placeholder(ask.skill, ask.agent))
    cost = f", ${result.cost_usd:.4f}" if result.cost_usd else ""
    ids = f" (task {result.correlation_id or result.task_id})" if result.correlation_id or result.task_id else ""
    common.note(
        f"{render.word(result.state, plain=common.ascii)} in {render.seconds(result.duration_s)}{cost}{ids}"
        + (f": {result.reason}" if result.reason else "")
    )
    for warning in result.warnings:
        common.note(f"warning: {warning}")
    if result.truncated:
        common.warn(*render.cut_short(len(result.text), result.text_chars, result.rest))
    elif result.state in UNSUCCESSFUL and len(result.text) > REASON_MAX and not common.as_json:
        common.note(f"  next: all {len(result.text):,} characters of its reason: {result.rest}")
    if saved is not None:
        for index, path in saved.paths.items():
            common.note(f"  {result.parts[index - 1]}: saved as {path}")
        report_unsaved(common, result.parts, saved)
    elif not common.as_json:
        list_parts(common, result.parts, result.parts_total, next_step=result.download)
    if result.next_step:
        common.note(f"  next: {result.next_step}")
