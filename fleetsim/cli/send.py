"""``fleetsim send`` and ``fleetsim chat``: ask one agent, once or turn by turn, through the running hub or directly."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fleetsim.api.part_rows import part_row
from fleetsim.cli import render
from fleetsim.cli.ask import (
    AskOptions,
    answer_command,
    download_command,
    exit_code,
    late_error,
    place_of,
    reach,
    rest_command,
    task_command,
)
from fleetsim.cli.ask import exit_status as status_of
from fleetsim.cli.main import CommonOptions, Exit, NoAnswer
from fleetsim.cli.options import TEXT_MAX_HELP, TEXT_MAX_MAX, call_options, timeout_option, wire_log_option
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
from fleetsim.cli.terminal import LivePieces, Progress, TypedLines
from fleetsim.client.conversation import Conversation, Turn
from fleetsim.client.follow import FollowedRequest
from fleetsim.client.results import FollowResult
from fleetsim.model.asking import text_of
from fleetsim.model.errors import FleetsimError, TimedOut
from fleetsim.model.event import ArtifactUpdate, Snapshot, bounded
from fleetsim.model.extensions import REASON_CHARS_MAX
from fleetsim.model.limits import check_text
from fleetsim.model.parts import require_parts
from fleetsim.model.task import INTERRUPTED, UNSUCCESSFUL, Artifact, TaskState, left_out
from fleetsim.model.text import placeholder
from fleetsim.model.work import Cause, plain_id

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
    help="Metadata of the message: one text, or a JSON object; may be repeated. fleetsim's own entries "
    "(skillHint, correlationId, parentId, a2a.trace) win.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save the files and data of the answer in this folder (see: fleetsim task download --help).",
)
@click.option("--skill", help="The skill to use  [default: chat if the agent has it, else its choice].")
@click.option("--stream", is_flag=True, help="Show the answer as it comes; on stderr, what the agent says at work.")
@click.option("--async", "detach", is_flag=True, help="Do not wait; print the ids and leave.")
@timeout_option("How long to wait in all; then exit 5. The work goes on; its id is printed.")
@click.option("--task-id", help="Continue this task of the agent's (answer its question).")
@click.option("--context-id", help="Continue this conversation.")
@click.option(
    "--parent-id",
    metavar="ID",
    callback=_parent_id,
    help="The id of the work that this is a step of, for the agent (parentId, X-Parent-Id) and the hub's record.",
)
@call_options
@click.option("--text-max", type=click.IntRange(1, TEXT_MAX_MAX), help=TEXT_MAX_HELP)
@click.option("--exit-status", is_flag=True, help="Exit 1 if the task failed, 7 if it waits for somebody.")
@wire_log_option
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
    """Send TEXT to AGENT, and wait for the answer.

    AGENT is a name from agents.yaml, or the URL of any A2A agent. TEXT may be "-" for standard input; with a file or
    data it may be left out. stdout has the answer, on a terminal behind a gutter; stderr has progress and lists files
    and data, which -o json contains. If a hub is running (fleetsim up), the request to a named agent goes through it,
    so that the hub records, tracks and counts it.

    --timeout limits how long this command waits in all. It does not stop the work. To limit the work, set the hub's
    task_limit_s.

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
    return follow(common, ask, out, exit_status=exit_status)


def follow(common: CommonOptions, ask: AskOptions, out: Path | None = None, *, exit_status: bool) -> int:
    """Send the text, or join the task of ``follow_id``; show what comes of it, and return the exit code."""
    sent = asyncio.run(_send(common, ask))
    if not ask.agent and sent.result.row is not None:
        ask = replace(ask, agent=sent.result.row.agent)
    saved = asyncio.run(save_parts(sent.result.parts, out)) if out is not None else None
    if common.as_json:
        (render.emit_json_line if ask.stream else render.emit_json)(_answer_row(ask, sent, saved))
    if sent.late:
        raise late_error(ask, sent.result)
    if not common.as_json:
        _show_text(common, ask, sent)
    _tell_person(common, ask, sent.result, saved)
    if saved is not None and saved.failed:
        return Exit.FAILED
    return status_of(sent.result) if exit_status else exit_code(sent.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A request as it is when the command stops waiting. ``shown`` is the text that stdout has already."""

    result: FollowResult
    shown: str
    said: render.AgentText
    late: bool = False


async def _send(common: CommonOptions, ask: AskOptions) -> _Sent:
    """Follow the request to its end, to a question or to the time limit."""

    def fell_back(error: FleetsimError) -> None:
        progress.clear()
        common.note(
            f"the stream broke off ({error}); polling"
            if following.task
            else f"no streaming after all, sending plainly: {error}"
        )

    def retrying(error: FleetsimError, seconds: float) -> None:
        progress.clear()
        common.note(f"{error}; it is called again in {seconds:.0f} s")

    live, said = LivePieces(joined=ask.follow_id is not None), render.AgentText(plain=common.ascii)
    async with (
        reach(common, ask) if ask.follow_id is None else place_of(common, ask) as agent,
        Progress(
            f"{ask.agent or 'the agent'} is at work", quiet=common.quiet or (ask.stream and common.as_json)
        ) as progress,
    ):
        following = (
            agent.follow(
                ask.text,
                skill=ask.skill,
                parts=ask.parts,
                metadata=ask.metadata,
                parent_id=ask.parent_id,
                task_id=ask.task_id,
                context_id=ask.context_id,
                stream=ask.stream and not ask.detach,
                fell_back=fell_back,
                retrying=retrying,
                timeout_s=ask.timeout_s,
            )
            if ask.follow_id is None
            else agent.follow_task(ask.follow_id, stream=True, fell_back=fell_back, timeout_s=ask.timeout_s)
        )
        late = False
        try:
            await _follow(common, following, ask, progress, live, said)
        except TimedOut as error:
            if following.task is None:
                hint = "look for it before you send it again, or wait longer with --timeout" if error.sent else None
                raise TimedOut(str(error), sent=error.sent, hint=hint) from error
            late = True
        except asyncio.CancelledError:
            if following.lookup_id:
                common.note(f"it goes on: {task_command(ask, following.report())}")
            raise
        return _Sent(result=following.report(ask.text_max), shown=live.shown, said=said, late=late)


async def _follow(
    common: CommonOptions,
    following: FollowedRequest,
    ask: AskOptions,
    progress: Progress,
    live: LivePieces,
    said: render.AgentText,
) -> None:
    """Follow the request, and show the text of a stream as it arrives."""

    def show(artifact: Artifact, *, append: bool, last: bool) -> None:
        progress.close()
        left = max(ask.text_max - len(live.shown) - 1, 0)  # a line may end between
        text = artifact.text
        cut = len(text) > left or left_out(artifact.parts) > 0
        said.add(live.more(artifact.artifact_id, text[:left], append=append, last=last, cut=cut))

    try:
        async for task in following:
            event = following.event
            if live.joined and isinstance(event, Snapshot | None) and not task.terminal and not common.as_json:
                for artifact in task.artifacts:  # those before the last one are whole
                    show(artifact, append=False, last=artifact is not task.artifacts[-1])
            if event is None:
                if following.lookup_id:
                    progress.say(f"{ask.agent or 'the agent'} is at work on {following.lookup_id}")
                if ask.detach:
                    await following.aclose()
                    return
            elif common.as_json:
                text, _ = text_of(bounded(task, ask.text_max))
                render.emit_json_line({"state": task.state.value, "text": text})
            elif isinstance(event, ArtifactUpdate):
                show(event.artifact, append=event.append, last=event.last_chunk)
            elif isinstance(event, Snapshot) and task.text and not live.joined:
                live.hold()
            elif task.state is TaskState.WORKING and task.status.message is not None:
                progress.remark(task.status.message.text)
    except BaseException:
        if live.shown:
            said.end()
        raise


def _answer_row(ask: AskOptions, sent: _Sent, saved: SavedParts | None) -> dict[str, Any]:
    result, saved_at = sent.result, saved.paths if saved is not None else {}
    row = {
        "schema": "fleetsim/send/1",
        "agent": ask.agent,
        **result.facts(),
        "correlationId": result.correlation_id or None,
        "durationMs": None if _unseen(ask, result) else round(result.duration_s * 1000),
    }
    if sent.late:
        row["reason"] = f"still running after {ask.timeout_s:g} s; fleetsim did not stop it"
    for part in row["parts"]:
        if part["index"] in saved_at:
            part["path"] = str(saved_at[part["index"]])
    return row


def _unseen(ask: AskOptions, result: FollowResult) -> bool:
    """Whether the request began before it was followed, and no hub knows when."""
    return ask.follow_id is not None and result.row is None


def _show_text(common: CommonOptions, ask: AskOptions, sent: _Sent) -> None:
    """Print a result or a question, as far as stdout does not have it already."""
    result, shown = sent.result, sent.shown
    if result.text and result.state in _ANSWERS:
        goes_on = result.text.startswith(shown) or shown.startswith(result.text)
        if not goes_on:
            sent.said.end()
        sent.said.end(result.text[len(shown) :] if goes_on else result.text)
        if not goes_on and result.state == TaskState.COMPLETED:
            common.note("the agent replaced its text: the answer is the last one")
    elif shown:
        sent.said.end()
    elif result.state == TaskState.COMPLETED:
        common.note(placeholder(ask.skill, ask.agent))


def _tell_person(common: CommonOptions, ask: AskOptions, result: FollowResult, saved: SavedParts | None) -> None:
    """On stderr: the end of the request, its cost and ids, what is left out, and the next step."""
    cost = f", ${result.cost_usd:.4f}" if result.cost_usd else ""
    ids = f" (task {result.correlation_id or result.task_id})" if result.correlation_id or result.task_id else ""
    took = "" if _unseen(ask, result) else f" in {render.seconds(result.duration_s)}"
    ended = f"{render.word(result.state, plain=common.ascii)}{took}{cost}{ids}"
    if not common.quiet:
        render.quote(ended, result.reason, plain=common.ascii, err=True)
    for warning in result.warnings:
        common.note(f"warning: {warning}")
    if result.truncated:
        common.warn(*render.cut_short(len(result.text), result.text_chars, rest_command(ask, result)))
    elif result.state in UNSUCCESSFUL and len(result.text) > REASON_CHARS_MAX and not common.as_json:
        rest = rest_command(ask, result)
        common.note(f"  next: all {len(result.text):,} characters of its reason: {rest}")
    if saved is not None:
        for index, path in saved.paths.items():
            common.note(f"  {result.parts[index - 1]}: saved as {path}")
        report_unsaved(common, result.parts, saved)
    elif not common.as_json:
        list_parts(common, result.parts, result.parts_total, next_step=download_command(ask, result))
    if next_step := _next_step(ask, result):
        common.note(f"  next: {next_step}")


def _next_step(ask: AskOptions, result: FollowResult) -> str:
    if result.question is not None:
        return answer_command(ask, result)
    if ask.task_id is not None and result.cause == Cause.REQUEST_WRONG:
        # the agent does not have the task, or accepts nothing for it any more
        context = f" --context-id {quote(result.context_id)}" if result.context_id else ""
        return f'without the task: fleetsim send {quote(ask.agent)}{context} "…"'
    return task_command(ask, result) if ask.detach and result.open else ""


@click.command()
@click.argument("agent")
@click.option("--skill", help="The skill to talk with.  [default: chat if the agent has it, else its own choice]")
@click.option("--context-id", help="Go on with an earlier conversation.")
@call_options
@timeout_option("How long to wait for each answer; the work goes on.")
@click.pass_obj
def chat(common: CommonOptions, /, **options: Any) -> None:
    """Talk with AGENT (a name from agents.yaml, or a URL). Ctrl-D ends the conversation, Ctrl-C leaves at once.

    Every turn carries the agent's contextId, and its taskId while the agent waits for your answer. With text piped in,
    each line is a turn. If a hub is running (fleetsim up), turns with a named agent go through it: it records each
    turn, and questions are in the inbox too.
    """
    asyncio.run(_talk(common, AskOptions.given(**options)))


async def _talk(common: CommonOptions, ask: AskOptions) -> None:
    async with reach(common, ask, interface="chat") as agent:
        talk = Conversation(agent, context_id=ask.context_id, skill=ask.skill)
        try:
            lines = TypedLines()
            while (text := await lines.next()) is not None:
                if not text.strip():
                    continue
                try:
                    _show(common, ask, await _say(common, ask, talk, text))
                except FleetsimError as error:
                    if not lines.typed:
                        raise
                    common.note(f"error: {error}", *([f"  next: {error.hint}"] if error.hint else []))
        except asyncio.CancelledError:
            if left := _left(ask, talk):
                common.note("", left)
            raise
        finally:
            common.note(
                f"context {talk.context_id}: go on with --context-id" if talk.context_id else "nothing was said"
            )


async def _say(common: CommonOptions, ask: AskOptions, talk: Conversation, text: str) -> Turn:
    """One turn. Raises NoAnswer where the request came to no end of the agent's own."""

    def at_work() -> str:
        lookup_id = talk.following.lookup_id if talk.following is not None else ""
        return f"{ask.agent} is at work" + (f" on {lookup_id}" if lookup_id else "")

    try:
        async with Progress(at_work, quiet=common.quiet):
            turn = await talk.say(text, timeout_s=ask.timeout_s)
    except TimedOut as error:
        hint = error.hint or _left(ask, talk) or None
        raise TimedOut(f"no answer within {ask.timeout_s:g} s", sent=error.sent, hint=hint) from error
    if (code := exit_code(turn.result)) is not Exit.OK:
        raise NoAnswer(turn.error or f"the request ended as {turn.state}", code, turn.result.correlation_id)
    return turn


def _left(ask: AskOptions, talk: Conversation) -> str:
    """A sentence about the request of the last turn if the person leaves now; "" if there is nothing to follow."""
    following = talk.following
    if following is None or not following.sent:
        return ""
    if not following.lookup_id:
        return "left without the answer: the agent may go on with it"
    result = following.report()
    if result.question is not None:
        return f"the question stays open: {answer_command(ask, result)}"
    return f"the work goes on: {task_command(ask, result)}" if result.open else ""


def _show(common: CommonOptions, ask: AskOptions, turn: Turn) -> None:
    result, text = turn.result, turn.error or turn.text
    if common.as_json:
        row = {
            "state": turn.state,
            "text": text,
            "truncated": result.truncated,
            "textChars": max(result.text_chars, len(text)),
            "contextId": turn.context_id,
            "taskId": turn.task_id,
            "warnings": list(turn.warnings),
            "parts": [part_row(part) for part in turn.parts],
            "partsTotal": turn.parts_total,
        }
        render.emit_json_line(row)
    else:
        render.AgentText(plain=common.ascii).end(text)
        list_parts(common, turn.parts, turn.parts_total, next_step=download_command(ask, result))
    if result.truncated:
        common.warn(*render.cut_short(len(text), result.text_chars, rest_command(ask, result)))
    if turn.state != "completed":
        common.note(render.word(turn.state, plain=common.ascii))
    for warning in turn.warnings:
        common.note(f"warning: {warning}")
