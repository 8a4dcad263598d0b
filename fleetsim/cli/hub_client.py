"""A running hub, as the other verbs reach it: found through its state directory, called with its key.

And the two verbs that only pass on what it says: ``fleetsim events`` and ``fleetsim channel``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import click

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.client.hub_client import HubClient
from fleetsim.hub.state import HubAddress, StateDir, state_path
from fleetsim.model.errors import FleetsimError, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.real import running_runtime

_REJECTED_S = 1.0
_START = "start one with `fleetsim up`, or look at a demo with `fleetsim demo`"
_BEGIN = "write agents.yaml with `fleetsim init URL`, then start one with `fleetsim up`; or `fleetsim demo`"


def find_hub(common: CommonOptions) -> HubAddress | None:
    """The hub running on this machine for this state directory, if there is one; else a demo's, if one runs."""
    state = StateDir(state_path(os.environ, common.state))
    return state.find() or state.find_demo()


@asynccontextmanager
async def connect(common: CommonOptions) -> AsyncIterator[HubClient]:
    """The running hub; what it rejected of agents.yaml is reported.

    Raises:
        Unreachable: there is none, or it is announced and does not answer.
    """
    address = find_hub(common)
    if address is None:
        raise Unreachable(
            "no hub is running for this state directory", hint=_START if common.agents_yaml.exists() else _BEGIN
        )
    if address.demo:
        common.note("no hub of yours is running: this is the demo's")
    async with running_runtime() as runtime:
        hub = address.client(runtime)
        with suppress(FleetsimError, TimeoutError):  # the verb itself says what is wrong with the hub
            async with asyncio.timeout(_REJECTED_S):
                for problem in (await hub.get("/whoami")).get("rejected", ()):
                    common.warn(f"warning: the hub goes on with the last good version: {problem}")
        yield hub


def at_hub(common: CommonOptions, work: Callable[[HubClient], Awaitable[Any]]) -> Any:
    """What ``work`` brings from the running hub. Raises as ``connect`` and ``HubClient``."""

    async def run() -> Any:
        async with connect(common) as hub:
            return await work(hub)

    return asyncio.run(run())


LINE_CHARS_MAX = 4_000


@click.command()
@click.option("--after", type=int, help="Start after this event number; 0 replays what is kept.")
@click.option("--topic", default="*", show_default=True, help="Only topics like this, e.g. 'ceremony.*'.")
@click.pass_obj
def events(common: CommonOptions, after: int | None, topic: str) -> None:
    """Follow the running hub's events until Ctrl-C; `-o json` prints one JSON document a line."""

    async def follow(hub: HubClient) -> None:
        async for event in hub.events(after=after):
            if not fnmatchcase(event["topic"], topic):
                continue
            if common.as_json:
                render.emit_json_line(event)
                continue
            facts = " ".join(f"{k}={one_line(str(v), 80)}" for k, v in event["payload"].items() if v not in (None, ""))
            who = f" {event['agent']}" if event["agent"] else ""
            when, level = event["at"][11:23], event["level"]
            render.line(one_line(f"{when} {level:5} {event['topic']}{who}  {facts}", LINE_CHARS_MAX))

    at_hub(common, follow)


@click.group()
def channel() -> None:
    """The channels that notify people: those of agents.yaml, at the running hub."""


@channel.command("list")
@click.pass_obj
def list_channels(common: CommonOptions) -> None:
    """List every channel and how each of its sinks has fared since the hub started."""
    rows = at_hub(common, lambda hub: hub.get("/channels"))
    if common.as_json:
        render.emit_json(rows)
        return
    render.table(
        ["CHANNEL", "SINK", "STATE", "DELIVERED", "FAILED", "LEFT OUT", "LAST"],
        [[row["id"], sink["sink"], *_fared(sink)] for row in rows for sink in row["sinks"]],
        right=frozenset({3, 4, 5}),
    )
    for line in failing(rows):
        common.note(line)
    if not rows:
        common.note("the hub has no channels; agents.yaml can name some (docs/reference/channels.md)")


@channel.command("test")
@click.argument("channel_id", metavar="ID")
@click.pass_obj
def test(common: CommonOptions, channel_id: str) -> int:
    """Send a test notice to every sink of the channel ID, once; exit 1 if one did not take it."""
    results = at_hub(common, lambda hub: hub.post(f"/channels/{quote(channel_id, safe='')}/test"))
    if common.as_json:
        render.emit_json(results)
    else:
        for result in results:
            render.line(f"{result['sink']}: {result['reason'] or 'delivered'}")
    return Exit.FAILED if any(result["reason"] for result in results) else Exit.OK


def failing(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each sink whose last notice did not arrive."""
    return [
        f"channel {row['id']}: {sink['sink']} fails since {sink['failingSince']}: {sink['lastError']}"
        for row in rows
        for sink in row["sinks"]
        if sink["failingSince"]
    ]


def _fared(sink: dict[str, Any]) -> list[Any]:
    state = "failing" if sink["failingSince"] else "ok" if sink["delivered"] else "unused"
    return [state, sink["delivered"], sink["failed"], sink["leftOut"], sink["lastAt"]]
