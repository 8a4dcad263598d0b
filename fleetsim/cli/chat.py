"""``fleetsim chat``: talk with one agent, turn by turn."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from fleetsim.cli import render
from fleetsim.cli.main import Common
from fleetsim.model.errors import HttpRefused, WireError

if TYPE_CHECKING:
    from fleetsim.client import AgentClient

DEFAULT_SKILL = "chat"


@click.command()
@click.argument("agent")
@click.option("--skill", help="The skill to talk with.  [default: chat if the agent offers it, else its own choice]")
@click.option("--context-id", help="Go on with an earlier conversation.")
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key (with a URL).")
@click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as a bearer token (with a URL).")
@click.pass_obj
def chat(
    common: Common,
    agent: str,
    skill: str | None,
    context_id: str | None,
    api_key_env: str | None,
    bearer_env: str | None,
) -> None:
    """Talk with AGENT (a name from agents.yaml, or a URL). Ctrl-D ends the conversation.

    The agent's contextId is carried from turn to turn, and its taskId while it waits for your answer. With
    text piped in, each line is a turn.
    """
    asyncio.run(_talk(common, agent, skill, context_id, api_key_env, bearer_env))


async def _talk(
    common: Common,
    agent: str,
    skill: str | None,
    context_id: str | None,
    api_key_env: str | None,
    bearer_env: str | None,
) -> None:
    from fleetsim.cli import direct
    from fleetsim.cli.asking import Asked
    from fleetsim.client.conversation import Conversation
    from fleetsim.runtime.real import real_runtime

    runtime = real_runtime()
    asked = Asked(agent=agent, text="", api_key_env=api_key_env, bearer_env=bearer_env)
    entry = None if direct.is_url(agent) else await direct.entry(common, agent)
    try:
        client = direct.client(asked, entry, runtime)
        skill = skill if skill is not None else await _usual_skill(client)
        talk = Conversation(client, context_id=context_id, skill=skill or None)
        while (text := await asyncio.to_thread(_line)) is not None:
            if not text.strip():
                continue
            turn = await talk.say(text)
            if common.as_json:
                told = {
                    "state": turn.state.value,
                    "text": turn.text,
                    "contextId": turn.context_id,
                    "taskId": turn.task_id,
                }
                render.emit_json_line(told)
            else:
                render.say(turn.text or turn.error or "")
            if turn.state.value != "completed":
                common.note(render.word(turn.state.value, plain=common.ascii))
        common.note(f"context {talk.context_id}: go on with --context-id" if talk.context_id else "nothing was said")
    finally:
        await runtime.transport.aclose()


async def _usual_skill(client: AgentClient) -> str:
    """``chat``, Workstacean's word for talking, unless the card shows that there is no such skill."""
    try:
        card = await client.discover()
    except (HttpRefused, WireError):
        return DEFAULT_SKILL  # an agent without a card may still be called, in the dialect agents.yaml names
    return DEFAULT_SKILL if any(skill.skill_id == DEFAULT_SKILL for skill in card.skills) else ""


def _line() -> str | None:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
