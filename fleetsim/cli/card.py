"""``fleetsim card``: read an agent's card and say how it would be called."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.ask import AskOptions, agent_client
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import pin_options


@click.command()
@click.argument("agent", metavar="AGENT")
@pin_options
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as Authorization: Bearer.")
@click.pass_obj
def card(common: CommonOptions, /, agent: str, **how: Any) -> None:
    """Read the card of AGENT, a URL or a name of agents.yaml: the agent, its skills, and the address and the dialect
    of a call.

    A URL with a path is tried as the base of an agent mounted there: where a card is found below it, and names an
    endpoint below it, that is what is called. Otherwise the URL itself is the endpoint. --rpc-url and --card-url pin
    either.

    \b
    fleetsim card http://127.0.0.1:9000
    fleetsim card http://127.0.0.1:9000/agents/quinn
    fleetsim card quinn
    """
    facts = asyncio.run(_read(common, agent, how))
    if common.as_json:
        render.emit_json(facts)
        return
    render.labels(
        [
            ("name", facts["name"]),
            ("description", facts["description"]),
            ("version", facts["version"]),
            ("card url", facts["cardUrl"]),
            ("rpc url", facts["rpcUrl"]),
            ("dialect", facts["dialect"]),
            ("streaming", "yes" if facts["streaming"] else "no"),
            ("push notifications", "yes" if facts["pushNotifications"] else "no"),
            *(("warning", warning) for warning in facts["warnings"]),
        ]
    )
    render.table(["SKILL", "NAME", "DESCRIPTION"], [list(skill.values()) for skill in facts["skills"]])


async def _read(common: CommonOptions, agent: str, how: Mapping[str, Any]) -> dict[str, Any]:
    async with agent_client(common, AskOptions.given(agent=agent, **how)) as client:
        card = await client.discover()
        choice = await client.choice()
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "cardUrl": client.card_at,
        "rpcUrl": choice.url or None,
        "dialect": choice.spoken,
        "streaming": card.capabilities.streaming,
        "pushNotifications": card.capabilities.push_notifications,
        "skills": [{"id": s.skill_id, "name": s.name, "description": s.description} for s in card.skills],
        "warnings": list(choice.warnings),
    }
