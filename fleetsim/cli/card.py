"""``fleetsim card``: read an agent's card and say how it would be called."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.main import Common


@click.command()
@click.argument("url")
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as Authorization: Bearer.")
@click.pass_obj
def card(common: Common, url: str, api_key_env: str | None, bearer_env: str | None) -> None:
    """Read the card at URL: who the agent is, what it offers, and in which dialect it would be called."""
    found = asyncio.run(_read(url, api_key_env, bearer_env))
    if common.as_json:
        render.emit_json(found)
        return
    render.labels(
        [
            ("name", found["name"]),
            ("description", found["description"]),
            ("version", found["version"]),
            ("rpc url", found["rpcUrl"]),
            ("dialect", found["dialect"]),
            ("streaming", "yes" if found["streaming"] else "no"),
            ("push notifications", "yes" if found["pushNotifications"] else "no"),
            *(("warning", warning) for warning in found["warnings"]),
        ]
    )
    render.table(["SKILL", "NAME", "DESCRIPTION"], [[s["id"], s["name"], s["description"]] for s in found["skills"]])


async def _read(url: str, api_key_env: str | None, bearer_env: str | None) -> dict[str, Any]:
    from fleetsim.cli.reach import client_for
    from fleetsim.runtime.real import real_runtime

    runtime = real_runtime()
    try:
        client = client_for(url, runtime, api_key_env=api_key_env, bearer_env=bearer_env)
        card = await client.discover()
        choice = await client.choice()
    finally:
        await runtime.transport.aclose()
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "rpcUrl": choice.url,
        "dialect": choice.dialect_name,
        "streaming": card.capabilities.streaming,
        "pushNotifications": card.capabilities.push_notifications,
        "skills": [{"id": s.skill_id, "name": s.name, "description": s.description} for s in card.skills],
        "warnings": list(choice.warnings),
    }
