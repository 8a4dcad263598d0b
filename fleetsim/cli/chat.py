"""``fleetsim chat``: talk with one agent, turn by turn, through the running hub or directly."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Protocol

import click

from fleetsim.caller.part_rows import part_row
from fleetsim.cli import render
from fleetsim.cli.ask import AskOptions, TurnAnswer
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

    async def say(self, text: str) -> TurnAnswer:
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
def chat(
    common: CommonOptions,
    agent: str,
    skill: str | None,
    context_id: str | None,
    api_key_env: str | None,
    bearer_env: str | None,
    timeout_s: float,
    rpc_url: str | None,
    card_url: str | None,
) -> None:
    """Talk with AGENT (a name from agents.yaml, or a URL). Ctrl-D ends the conversation, Ctrl-C leaves at once.

    The agent's contextId is carried from turn to turn, and its taskId while it waits for your answer. With
    text piped in, each line is a turn. If a hub is running (fleetsim up), a named agent is talked with through
    it: each turn is recorded and counted, and what the agent asks is in the inbox too.
    """
    ask = AskOptions(
        agent=agent,
        text="",
        skill=skill,
        context_id=context_id,
        api_key_env=api_key_env,
        bearer_env=bearer_env,
        timeout_s=timeout_s,
        rpc_url=rpc_url,
        card_url=card_url,
    )
    asyncio.run(_talk(common, ask))


async def _talk(common: CommonOptions, ask: AskOptions) -> None:
    from fleetsim.cli import direct, through_hub

    async with AsyncExitStack() as stack:
        talk: ChatSession
        if await through_hub.applies_to(common, ask.agent):
            talk = await stack.enter_async_context(through_hub.chat(common, ask))
        else:
            talk = await stack.enter_async_context(direct.chat(common, ask))
        try:
            await _turns(common, talk, ask.timeout_s)
        except asyncio.CancelledError:
            if told := talk.left():
                common.note("", told)
            raise
        finally:
            common.note(
                f"context {talk.context_id}: go on with --context-id" if talk.context_id else "nothing was said"
            )


async def _turns(common: CommonOptions, talk: ChatSession, timeout_s: float) -> None:
    def late() -> TimedOut:
        return TimedOut(f"no answer within {timeout_s:g} s", hint=talk.left() or None)

    lines = TypedLines()
    while (text := await lines.next()) is not None:
        if not text.strip():
            continue
        try:
            async with within(timeout_s, late):
                turn = await talk.say(text)
        except FleetsimError as error:
            if not lines.typed:
                raise
            common.note(f"error: {error}", *([f"  next: {error.hint}"] if error.hint else []))
            continue
        _show(common, turn)


def _show(common: CommonOptions, turn: TurnAnswer) -> None:
    if common.as_json:
        told = {
            "state": turn.state,
            "text": turn.text,
            "truncated": turn.text_chars > len(turn.text),
            "textChars": max(turn.text_chars, len(turn.text)),
            "contextId": turn.context_id,
            "taskId": turn.task_id,
            "warnings": list(turn.warnings),
            "parts": [part_row(part) for part in turn.parts],
            "partsTotal": turn.parts_total,
        }
        render.emit_json_line(told)
    else:
        render.say(turn.text)
        list_parts(common, turn.parts, turn.parts_total, next_step=turn.download)
    if turn.text_chars > len(turn.text):
        common.warn(*render.cut_short(len(turn.text), turn.text_chars, turn.rest))
    if turn.state != "completed":
        common.note(render.word(turn.state, plain=common.ascii))
    for warning in turn.warnings:
        common.note(f"warning: {warning}")
