"""What ``fleetsim ceremony`` reads and writes by itself: the files of the folder, and times. Imported by the verbs that
need it, as it brings half of the caller along.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetsim.caller.ceremonies.facts import CeremonyRow, ceremony_facts
from fleetsim.caller.ceremonies.facts import dry_run as would_send
from fleetsim.caller.ceremonies.folder import CeremonyFolder
from fleetsim.caller.ceremonies.store import CeremonyStore, StoredCeremony
from fleetsim.caller.config import load_fleet
from fleetsim.caller.jsonable import to_json
from fleetsim.caller.registry import judge, nearest_of, resolve
from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import next_due, parse_ceremony, parse_moment, zone_of
from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.real import SystemClock
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

__all__ = [
    "change",
    "check",
    "chosen",
    "dry_run",
    "fires",
    "listing",
    "next_due",
    "now",
    "parse_moment",
    "shown",
    "store",
    "zone_of",
]


def now() -> datetime:
    """The wall clock."""
    return SystemClock().now()


async def store(common: CommonOptions, folder: Path | None) -> CeremonyStore:
    """The store of the folder, read once; without ``folder`` the one beside agents.yaml."""
    ceremonies = CeremonyFolder(DiskFiles(), folder or common.agents_yaml.parent / "ceremonies")
    await ceremonies.poll()
    return CeremonyStore(ceremonies, DiskFiles(), SystemClock())


async def change(
    common: CommonOptions, folder: Path | None, how: Callable[[CeremonyStore], Awaitable[StoredCeremony | None]]
) -> dict[str, Any]:
    """Change the files; the ceremony as it is then, nothing if there is none any more."""
    stored = await how(await store(common, folder))
    if stored is None:
        return {}
    due = next_due(stored.ceremony, now()) if stored.ceremony.enabled else None
    return ceremony_facts(CeremonyRow(ceremony=stored.ceremony, path=stored.path, next_at=due))


async def listing(common: CommonOptions) -> dict[str, Any]:
    """What the hub would list, from the same files, without runs."""
    path = common.require_agents_yaml()
    fleet = await load_fleet(path, files=DiskFiles(), env=os.environ)
    folder = CeremonyFolder(DiskFiles(), path.parent / "ceremonies")
    await folder.poll()
    # a credential that is not set here may be set where the hub runs
    working = [agent for agent in fleet.agents if agent.enabled or agent.disabled_why]
    offers = {agent.name: agent.skill_names for agent in working}
    disabled = {agent.name: agent.takes_no_work for agent in fleet.agents if agent not in working}
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


def chosen(listing: dict[str, Any], ids: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of these ids, or all. Raises UnknownTarget."""
    rows = {row["id"]: row for row in listing["ceremonies"]}
    for one in ids:
        if one not in rows:
            told = [problem["error"] for problem in listing["errors"] if problem["ceremonyId"] == one]
            raise UnknownTarget(f"there is no ceremony “{one}”", hint=told[0] if told else nearest_of(one, rows))
    return [rows[one] for one in ids] if ids else list(rows.values())


def fires(rows: Sequence[dict[str, Any]], after: datetime, count: int) -> list[tuple[datetime, dict[str, Any]]]:
    """The next fires of these ceremonies together, the soonest first."""
    found: list[tuple[datetime, dict[str, Any]]] = []
    for row in rows:
        due = after
        for _ in range(count):
            if row["schedule"] is None:
                at = datetime.fromisoformat(row["at"])
                slot = at if at > due else None
            else:
                slot = next_slot(parse_cron(row["schedule"]), due, zone_of(row["timezone"]))
            if slot is None:
                break
            found.append((slot, row))
            due = slot
    return sorted(found, key=lambda fire: (fire[0], fire[1]["id"]))[:count]


def shown(moment: datetime, zone: str) -> str:
    """A time on the clock of a zone, and which that is."""
    return f"{moment.astimezone(zone_of(zone)):%a %Y-%m-%d %H:%M:%S%z} {zone}"


async def dry_run(common: CommonOptions, ceremony_id: str) -> dict[str, Any]:
    """What firing a ceremony of the files would send, and to whom as far as agents.yaml says it."""
    ceremony = (await store(common, None)).get(ceremony_id).ceremony
    fleet = await load_fleet(common.require_agents_yaml(), files=DiskFiles(), env=os.environ)
    offers = {agent.name: agent.skill_names for agent in fleet.agents if agent.enabled or agent.disabled_why}
    return would_send(ceremony, lambda skill, to: resolve(skill, to, offers=offers, weights={}, chance=lambda: 0.0))


async def check(common: CommonOptions, files: Sequence[Path], folder: Path | None) -> list[dict[str, Any]]:
    """What is wrong with each of these files, or with each of the folder; ``error`` None: nothing."""
    if not files:
        kept = await store(common, folder)
        fine = [{"path": one.path, "id": one.ceremony.ceremony_id, "error": None} for one in kept.list()]
        wrong = [{"path": one.path, "id": one.ceremony_id, "error": one.error} for one in kept.errors()]
        return sorted(fine + wrong, key=lambda found: str(found["path"]))
    found: list[dict[str, Any]] = []
    for path in files:
        try:
            text = await DiskFiles().read(path, bytes_max=CEREMONY_BYTES_MAX)
            found.append({"path": str(path), "id": parse_ceremony(load(text, str(path))).ceremony_id, "error": None})
        except ConfigError as error:
            found.append({"path": str(path), "id": None, "error": f"{error}{f' ({error.hint})' if error.hint else ''}"})
    return found
