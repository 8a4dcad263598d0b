"""``fleetsim chat``: talk with one agent, turn by turn, through the running hub or directly."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from fleetsim.api.part_rows import part_row
from fleetsim.cli import render
from fleetsim.cli.ask import (
    AskOptions,
    answer_command,
    download_command,
    exit_code,
    reach,
    rest_command,
    task_command,
)
from fleetsim.cli.exit_codes import Exit, NoAnswer
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import call_options, timeout_option
from fleetsim.cli.parts import list_parts
from fleetsim.cli.terminal import Progress, TypedLines
from fleetsim.client.conversation import Conversation, Turn
from fleetsim.model.errors import FleetsimError, TimedOut


@click.command()
@click.argument("agent")
@click.option("--skill", help="The skill to talk with.  [default: chat if the agent has it, else its own choice]")
@click.option("--context-id", help="Go on with an earlier conversation.")
@call_options
@timeout_option("How long to wait for each answer; the work goes on.")
@click.pass_obj
def chat(common: CommonOptions, /, **options: Any) -> None:
    """Talk with AGENT (a name from agents.yaml, or a URL). Ctrl-D ends the conversation, Ctrl-C leaves at once.

    The agent's contextId is carried from turn to turn, and its taskId while it waits for your answer. With
    text piped in, each line is a turn. If a hub is running (fleetsim up), a named agent is talked with through
    it: each turn is recorded and counted, and what the agent asks is in the inbox too.
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
        render.say(text)
        list_parts(common, turn.parts, turn.parts_total, next_step=download_command(ask, result))
    if result.truncated:
        common.warn(*render.cut_short(len(text), result.text_chars, rest_command(ask, result)))
    if turn.state != "completed":
        common.note(render.word(turn.state, plain=common.ascii))
    for warning in turn.warnings:
        common.note(f"warning: {warning}")
