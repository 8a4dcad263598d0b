"""Ceremonies for ``fleetsim ceremony``: at the running hub or in a folder of files; their times."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from fleetsim.api.answer import HubAnswer
from fleetsim.api.answers import CeremonyFacts, DryRun, FileProblem
from fleetsim.ceremonies.folder import CeremonyFolder, CeremonyStore, StoredCeremony
from fleetsim.ceremonies.runs import CeremonyRow, ceremony_facts
from fleetsim.ceremonies.runs import dry_run as would_send
from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import Ceremony, next_due, parse_ceremony, zone_of
from fleetsim.cli.hub_client import connect, find_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.client.hub_client import HubClient
from fleetsim.fleet.access import AllowLists, Caller, access_of
from fleetsim.fleet.config import load_fleet
from fleetsim.fleet.registry import judge, nearest_of, resolve
from fleetsim.fleet.settings import FleetConfig
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.real import SystemClock
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

T = TypeVar("T")
CeremonySource: TypeAlias = "HubSource | FolderSource"
"""Ceremonies that a verb reads and changes."""


class CeremonyRows(HubAnswer, frozen=True, kw_only=True):
    """The ceremonies in force, and the problems of files."""

    ceremonies: list[CeremonyFacts]
    errors: list[FileProblem]


def with_ceremonies(
    common: CommonOptions, folder: Path | None, work: Callable[[CeremonySource], Awaitable[T]], *, reads: bool = False
) -> T:
    """The result of ``work`` at the running hub, whose folder may be another. Without a hub, or with a ``folder``, on
    the files; with ``reads``, a note says so.
    """

    return asyncio.run(among_ceremonies(common, folder, work, reads=reads))


async def among_ceremonies(
    common: CommonOptions, folder: Path | None, work: Callable[[CeremonySource], Awaitable[T]], *, reads: bool = False
) -> T:
    """As ``with_ceremonies``, inside an event loop."""
    if folder is None and find_hub(common):
        async with connect(common) as hub:
            return await work(HubSource(hub))
    result = await work(FolderSource(common, folder))
    if reads:
        common.note("no hub is running: read from the files")
    return result


class HubSource:
    """The ceremonies of the running hub, as rows of ``GET /api/ceremonies``."""

    def __init__(self, hub: HubClient) -> None:
        self._hub = hub
        self.dry_run = hub.dry_run
        self.delete = hub.delete_ceremony

    async def listing(self) -> CeremonyRows:
        return CeremonyRows(ceremonies=await self._hub.ceremonies(), errors=await self._hub.ceremony_errors())

    async def create(self, keys: Mapping[str, Any]) -> CeremonyFacts:
        return await self._hub.read(CeremonyFacts, "/ceremonies/create", keys)

    async def update(self, ceremony_id: str, changes: Mapping[str, Any]) -> CeremonyFacts:
        path = f"/ceremonies/{quote(ceremony_id, safe='')}/update"
        return await self._hub.read(CeremonyFacts, path, changes)


class FolderSource:
    """The same of the files of ``folder``, by default the one beside agents.yaml."""

    def __init__(self, common: CommonOptions, folder: Path | None) -> None:
        self._common = common
        self._folder = folder

    async def listing(self) -> CeremonyRows:
        """As the hub lists them, without runs. Only the hub reads cards, so that skills are not judged."""
        fleet = await self._fleet()
        folder = CeremonyFolder(DiskFiles(), self._common.agents_yaml.parent / "ceremonies")
        await folder.poll()
        # a credential that is not set here may be set where the hub runs
        working = [agent for agent in fleet.agents if agent.enabled or agent.disabled_why]
        offers = {agent.name: agent.skill_names for agent in working}
        disabled = {agent.name: agent.takes_no_work for agent in fleet.agents if agent not in working}
        say = judge(offers=offers, unread=offers, disabled=disabled, lists=AllowLists.of(fleet))
        loaded = folder.contents
        rows = [
            CeremonyRow(
                ceremony=one,
                path=loaded.stored[key].path,
                next_at=next_due(one, now()) if one.enabled else None,
                warnings=tuple(filter(None, (say(one.skill, target, Caller.firing(one)) for target in one.targets))),
            )
            for key, one in sorted(loaded.ceremonies.items())
        ]
        return CeremonyRows(ceremonies=[ceremony_facts(row) for row in rows], errors=list(loaded.problems))

    async def dry_run(self, ceremony_id: str) -> DryRun:
        """The requests that firing it would send, to the agents that agents.yaml says offer the skill."""
        ceremony = (await store(self._common, None)).get(ceremony_id).ceremony
        fleet = await self._fleet()
        offers = {agent.name: agent.skill_names for agent in fleet.agents if agent.enabled or agent.disabled_why}
        access = access_of(AllowLists.of(fleet), Caller.firing(ceremony))

        def resolved(skill: str, to: tuple[str, ...]) -> tuple[str, ...]:
            if access is not None:
                access.require(skill, to, of_key=True)
            here = offers if access is None else access.offers(offers)
            return resolve(skill, to, offers=here, weights={}, chance=lambda: 0.0)

        return would_send(ceremony, resolved)

    async def create(self, keys: Mapping[str, Any]) -> CeremonyFacts:
        return _row(await (await store(self._common, self._folder)).create(keys, created_by="system"))

    async def update(self, ceremony_id: str, changes: Mapping[str, Any]) -> CeremonyFacts:
        return _row(await (await store(self._common, self._folder)).update(ceremony_id, changes))

    async def delete(self, ceremony_id: str) -> None:
        await (await store(self._common, self._folder)).delete(ceremony_id)

    async def _fleet(self) -> FleetConfig:
        return await load_fleet(self._common.require_agents_yaml(), files=DiskFiles(), env=os.environ)


def _row(stored: StoredCeremony) -> CeremonyFacts:
    due = next_due(stored.ceremony, now()) if stored.ceremony.enabled else None
    return ceremony_facts(CeremonyRow(ceremony=stored.ceremony, path=stored.path, next_at=due))


async def store(common: CommonOptions, folder: Path | None) -> CeremonyStore:
    """The store of the folder, read once; without ``folder`` the one beside agents.yaml."""
    ceremonies = CeremonyFolder(DiskFiles(), folder or common.agents_yaml.parent / "ceremonies")
    await ceremonies.poll()
    return CeremonyStore(ceremonies, DiskFiles(), SystemClock())


def now() -> datetime:
    return SystemClock().now()


def chosen(listing: CeremonyRows, ids: Sequence[str]) -> list[CeremonyFacts]:
    """The rows of these ids, or all. Raises UnknownTarget."""
    rows = {row.id: row for row in listing.ceremonies}
    for key in ids:
        if key not in rows:
            errors = [problem.error for problem in listing.errors if problem.ceremony_id == key]
            raise UnknownTarget(f"there is no ceremony “{key}”", hint=errors[0] if errors else nearest_of(key, rows))
    return [rows[key] for key in ids] if ids else list(rows.values())


def wrong_in(listing: CeremonyRows, ceremony_id: str | None = None) -> Iterator[str]:
    """The faults of files and targets, of one ceremony or of all, a line each."""
    for problem in listing.errors:
        if ceremony_id in {None, problem.ceremony_id}:
            state = "not in force as it stands, its last good version is" if problem.kept else "not in force"
            yield f"{state}: {problem.error}"
    for row in listing.ceremonies:
        if ceremony_id in {None, row.id}:
            yield from (f"warning: {row.id}: {warning}" for warning in row.warnings)


def fires_of(rows: Sequence[CeremonyFacts], after: datetime, count: int) -> list[tuple[datetime, CeremonyFacts]]:
    """The next fires of these ceremonies together, the soonest first."""
    fires: list[tuple[datetime, CeremonyFacts]] = []
    for row in rows:
        due = after
        for _ in range(count):
            if row.schedule is None:
                slot = row.at if row.at and row.at > due else None
            else:
                slot = next_slot(parse_cron(row.schedule), due, zone_of(row.timezone))
            if slot is None:
                break
            fires.append((slot, row))
            due = slot
    return sorted(fires, key=lambda fire: (fire[0], fire[1].id))[:count]


def shown(moment: datetime, zone: str) -> str:
    """A time on the clock of a zone, with the zone; its offset tells an hour that a clock shows twice apart."""
    offset = "" if zone == "UTC" else "%z"
    return f"{moment.astimezone(zone_of(zone)):%a %Y-%m-%d %H:%M:%S{offset}} {zone}"


async def check(common: CommonOptions, files: Sequence[Path], folder: Path | None) -> list[dict[str, Any]]:
    """The fault of each of these files, or of each file of the folder; ``error`` is None if there is none. A target off
    an allow-list is a fault.
    """
    lists: AllowLists | None = None
    if common.agents_yaml.exists():
        with suppress(ConfigError):  # other verbs report it
            lists = AllowLists.of(await load_fleet(common.agents_yaml, files=DiskFiles(), env=os.environ))

    def row(path: str, ceremony: Ceremony) -> dict[str, Any]:
        error = None
        if (access := access_of(lists, Caller.firing(ceremony))) is not None:
            try:
                access.require(ceremony.skill, ceremony.targets, of_key=True)
            except UnknownTarget as refused:
                error = f"{path}: {refused} ({refused.hint})"
        return {"path": path, "id": ceremony.ceremony_id, "error": error}

    if not files:
        stored = await store(common, folder)
        fine = [row(entry.path, entry.ceremony) for entry in stored.list()]
        wrong = [{"path": failed.path, "id": failed.ceremony_id, "error": failed.error} for failed in stored.errors()]
        return sorted(fine + wrong, key=lambda results: str(results["path"]))
    results: list[dict[str, Any]] = []
    for path in files:
        try:
            text = await DiskFiles().read(path, bytes_max=CEREMONY_BYTES_MAX)
            results.append(row(str(path), parse_ceremony(load(text, str(path)))))
        except ConfigError as error:
            results.append(
                {"path": str(path), "id": None, "error": f"{error}{f' ({error.hint})' if error.hint else ''}"}
            )
    return results
