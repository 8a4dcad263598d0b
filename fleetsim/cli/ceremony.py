"""``fleetsim ceremony``: what fires when, and firing it now."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.hub_client import at_hub, connect, find_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import timeout_option, within
from fleetsim.model.errors import TimedOut


@click.group()
def ceremony() -> None:
    """Scheduled skill requests, from ceremonies/*.yaml."""


@ceremony.command("list")
@click.option("--strict", is_flag=True, help="Exit 6 if a file is not in force or a target cannot be served.")
@click.pass_obj
def list_ceremonies(common: CommonOptions, strict: bool) -> int:
    """List every ceremony, its next fire and how its last run ended, and what is wrong with any.

    Without a running hub the files are read: targets are judged by agents.yaml, skills only by the hub, which
    reads the cards.
    """
    if find_hub(common):
        listing = at_hub(common, lambda hub: hub.get("/ceremonies"))
    else:
        listing = asyncio.run(_from_files(common))
    wrong = list(_wrong(listing))
    for line in wrong:
        common.note(line)
    if common.as_json:
        render.emit_json(listing)
    else:
        render.table(
            ["ON", "CEREMONY", "SCHEDULE", "NEXT", "SKILL", "TARGETS", "LAST"],
            [
                [
                    "yes" if row["enabled"] else "no",
                    row["id"],
                    row["schedule"],
                    row["nextFireAt"],
                    row["skill"],
                    ", ".join(row["targets"]),
                    render.word(row["lastRun"]["status"], plain=common.ascii) if row["lastRun"] else "-",
                ]
                for row in listing["ceremonies"]
            ],
        )
    return Exit.NOTHING_RAN if strict and wrong else Exit.OK


def _wrong(listing: dict[str, Any], ceremony_id: str | None = None) -> Iterator[str]:
    """What is wrong with files and targets, of one ceremony or of all, a line each."""
    for problem in listing["errors"]:
        if ceremony_id in {None, problem["ceremonyId"]}:
            kept = "not in force as it stands, its last good version is" if problem["kept"] else "not in force"
            yield f"{kept}: {problem['error']}"
    for row in listing["ceremonies"]:
        if ceremony_id in {None, row["id"]}:
            yield from (f"warning: {row['id']}: {warning}" for warning in row["warnings"])


@ceremony.command("run")
@click.argument("ceremony_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait for the run to end; exit 1 if it failed.")
@timeout_option("How long to wait in all; then exit 5, and the run goes on.  [default: until it ended]", default=None)
@click.pass_obj
def run(common: CommonOptions, ceremony_id: str, wait: bool, timeout_s: float | None) -> int:
    """Fire a ceremony now, whatever its schedule says."""
    done = asyncio.run(_run(common, ceremony_id, wait, timeout_s))
    if common.as_json:
        render.emit_json(done)
    else:
        render.labels([("run", done["runId"]), ("status", done.get("status"))])
    return Exit.OK if done.get("status") in {None, "success"} else Exit.FAILED


async def _from_files(common: CommonOptions) -> dict[str, Any]:
    """What the hub would list, from the same files, without runs."""
    from fleetsim.caller.ceremonies.ceremony import CeremonyRow, ceremony_facts, next_due
    from fleetsim.caller.ceremonies.folder import CeremonyFolder
    from fleetsim.caller.config import load_fleet
    from fleetsim.caller.jsonable import to_json
    from fleetsim.caller.registry import judge
    from fleetsim.runtime.files import DiskFiles
    from fleetsim.runtime.real import SystemClock

    path = common.require_agents_yaml()
    fleet = await load_fleet(path, files=DiskFiles(), env=os.environ)
    folder = CeremonyFolder(DiskFiles(), path.parent / "ceremonies")
    await folder.poll()
    # a credential that is not set here may be set where the hub runs
    working = [agent for agent in fleet.agents if agent.enabled or agent.disabled_why]
    offers = {agent.name: agent.skill_names for agent in working}
    disabled = {agent.name: "not enabled in agents.yaml" for agent in fleet.agents if agent not in working}
    say, now, loaded = judge(offers=offers, unread=offers, disabled=disabled), SystemClock().now(), folder.contents
    rows = [
        CeremonyRow(
            ceremony=one,
            path=loaded.paths[key],
            next_at=next_due(one, now) if one.enabled else None,
            warnings=tuple(filter(None, (say(one.skill, target) for target in one.targets))),
        )
        for key, one in sorted(loaded.ceremonies.items())
    ]
    common.note("no hub is running: read from the files")
    return {"ceremonies": [ceremony_facts(row) for row in rows], "errors": to_json(loaded.problems)}


async def _run(common: CommonOptions, ceremony_id: str, wait: bool, timeout_s: float | None) -> dict[str, Any]:
    run_id: str | None = None

    def late() -> TimedOut:
        if run_id is None:
            return TimedOut(f"the hub did not say within {timeout_s:g} s that it fired {ceremony_id}; it may have")
        still = f"run {run_id} has not ended after {timeout_s:g} s; it goes on"
        return TimedOut(still, hint="fleetsim ceremony list, fleetsim task list")

    async with within(timeout_s, late), connect(common) as hub:
        run_id = await hub.run_ceremony(ceremony_id)
        for line in _wrong(await hub.get("/ceremonies"), ceremony_id):
            common.note(line)
        while wait:
            runs = await hub.get(f"/ceremonies/{quote(ceremony_id, safe='')}/runs", limit=20)
            mine = next((r for r in runs if r["runId"] == run_id), None)
            if mine is not None and mine["status"] != "running":
                return {"runId": run_id, "status": mine["status"], "error": mine.get("error") or None}
            await asyncio.sleep(0.5)
        return {"runId": run_id}
