"""``fleetsim chat``: talk with one agent, turn by turn, through the running hub or directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import click

from fleetsim.api.part_rows import part_row
from fleetsim.cli import render
from fleetsim.cli.ask import AskOptions, AskResult
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import call_options, timeout_option, within
from fleetsim.cli.parts import list_parts
from fleetsim.cli.terminal import TypedLines
from fleetsim.model.errors import FleetsimError, TimedOut


class ChatSession(Protocol):
    """A conversation under way. ``left`` says what becomes of what was asked, should the person leave now."""

    @property
    def context_id(self) -> str | None:
        """The conversation's, once the agent made one."""
        ...

    async def say(self, text: str) -> AskResult:
        """Say ``text`` and wait for the answer or the agent's next question."""
        ...

    def left(self) -> str:
        """A sentence, or nothing."""
        ...


@click.command()
@click.argument("agent")
@click.option("--skill", help="The skill to talk with.  [default: chat if the agent has it, else its own choice]")
@click.option("--context-id", help="Go on with an earlier conversation.")
@call_options
@timeout_option("How long to wait for each answer; what was asked goes on.")
@click.pass_obj
def chat(common: CommonOptions, /, **options: Any) -> None:
    """Talk with AGENT (a name from agents.yaml, or a URL). Ctrl-D ends the conversation, Ctrl-C leaves at once.

    The agent's contextId is carried from turn to turn, and its taskId while it waits for your answer. With
    text piped in, each line is a turn. If a hub is running (fleetsim up), a named agent is talked with through
    it: each turn is recorded and counted, and what the agent asks is in the inbox too.
    """
    asyncio.run(_talk(common, AskOptions.given(text="", **options)))


async def _talk(common: CommonOptions, ask: AskOptions) -> None:
    from fleetsim.cli import direct, through_hub

    def late() -> TimedOut:
        return TimedOut(f"no answer within {ask.timeout_s:g} s", hint=talk.left() or None)

    begin: Callable[[CommonOptions, AskOptions], AbstractAsyncContextManager[ChatSession]] = direct.chat
    if await through_hub.applies_to(common, ask.agent):
        begin = through_hub.chat
    async with begin(common, ask) as talk:
        try:
            lines = TypedLines()
            while (text := await lines.next()) is not None:
                if not text.strip():
                    continue
                try:
                    async with within(ask.timeout_s, late):
                        turn = await talk.say(text)
                except FleetsimError as error:
                    if not lines.typed:
                        raise
                    common.note(f"error: {error}", *([f"  next: {error.hint}"] if error.hint else []))
                    continue
                _show(common, turn)
        except asyncio.CancelledError:
            if left := talk.left():
                common.note("", left)
            raise
        finally:
            common.note(
                f"context {talk.context_id}: go on with --context-id" if talk.context_id else "nothing was said"
            )


def _show(common: CommonOptions, turn: AskResult) -> None:
    if common.as_json:
        row = {
            "state": turn.state,
            "text": turn.text,
            "truncated": turn.truncated,
            "textChars": max(turn.text_chars, len(turn.text)),
            "contextId": turn.context_id,
            "taskId": turn.task_id,
            "warnings": list(turn.warnings),
            "parts": [part_row(part) for part in turn.parts],
            "partsTotal": turn.parts_total,
        }
        render.emit_json_line(row)
    else:
        render.say(turn.text)
        list_parts(common, turn.parts, turn.parts_total, next_step=turn.download)
    if turn.truncated:
        common.warn(*render.cut_short(len(turn.text), turn.text_chars, turn.rest))
    if turn.state != "completed":
        common.note(render.word(turn.state, plain=common.ascii))
    for warning in turn.warnings:
        common.note(f"warning: {warning}")
