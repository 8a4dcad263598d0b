"""Ceremonies for ``fleetsim ceremony``: at the running hub or in a folder of files; their times, and playing them."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import click

from fleetsim.ceremonies.folder import CeremonyFolder, CeremonyStore, StoredCeremony
from fleetsim.ceremonies.runs import CeremonyRow, ceremony_facts
from fleetsim.ceremonies.runs import dry_run as would_send
from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import next_due, parse_ceremony, zone_of
from fleetsim.cli.hub_client import connect, find_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import report_files, report_option
from fleetsim.client.hub_client import HubClient
from fleetsim.events.wire import to_json
from fleetsim.fleet.config import load_fleet
from fleetsim.fleet.registry import judge, nearest_of, resolve
from fleetsim.fleet.settings import FleetConfig
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.model.work import ALL
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.real import SystemClock
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, load

T = TypeVar("T")


class CeremonySource(Protocol):
    """Ceremonies as the verbs read and change them: those of the running hub, or those of a folder.

    Rows are those of ``GET /api/ceremonies``.
    """

    async def listing(self) -> dict[str, Any]:
        """Every ceremony (``ceremonies``), and every file that is wrong (``errors``)."""
        ...

    async def dry_run(self, ceremony_id: str) -> dict[str, Any]:
        """The requests that firing it would send."""
        ...

    async def create(self, keys: Mapping[str, Any]) -> dict[str, Any]: ...

    async def update(self, ceremony_id: str, changes: Mapping[str, Any]) -> dict[str, Any]: ...

    async def delete(self, ceremony_id: str) -> None: ...


def with_ceremonies(
    common: CommonOptions, folder: Path | None, work: Callable[[CeremonySource], Awaitable[T]], *, reads: bool = False
) -> T:
    """The result of ``work`` at the running hub, whose folder may be another. Without a hub, or with a ``folder``, on
    the files; with ``reads``, a note says so.
    """

    async def run() -> T:
        if folder is None and find_hub(common):
            async with connect(common) as hub:
                return await work(_HubSource(hub))
        result = await work(_FolderSource(common, folder))
        if reads:
            common.note("no hub is running: read from the files")
        return result

    return asyncio.run(run())


class _HubSource:
    def __init__(self, hub: HubClient) -> None:
        self._hub = hub
        self.dry_run = hub.dry_run
        self.delete = hub.delete_ceremony

    async def listing(self) -> dict[str, Any]:
        return {"ceremonies": await self._hub.ceremonies(), "errors": await self._hub.ceremony_errors()}

    async def create(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = await self._hub.post("/ceremonies/create", keys)
        return row

    async def update(self, ceremony_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = await self._hub.post(f"/ceremonies/{quote(ceremony_id, safe='')}/update", changes)
        return row


class _FolderSource:
    """The files of ``folder``, by default the one beside agents.yaml."""

    def __init__(self, common: CommonOptions, folder: Path | None) -> None:
        self._common = common
        self._folder = folder

    async def listing(self) -> dict[str, Any]:
        """As the hub lists them, without runs. Only the hub reads cards, so that skills are not judged."""
        fleet = await self._fleet()
        folder = CeremonyFolder(DiskFiles(), self._common.agents_yaml.parent / "ceremonies")
        await folder.poll()
        # a credential that is not set here may be set where the hub runs
        working = [agent for agent in fleet.agents if agent.enabled or agent.disabled_why]
        offers = {agent.name: agent.skill_names for agent in working}
        disabled = {agent.name: agent.takes_no_work for agent in fleet.agents if agent not in working}
        say, loaded = judge(offers=offers, unread=offers, disabled=disabled), folder.contents
        rows = [
            CeremonyRow(
                ceremony=one,
                path=loaded.paths[key],
                next_at=next_due(one, now()) if one.enabled else None,
                warnings=tuple(filter(None, (say(one.skill, target) for target in one.targets))),
            )
            for key, one in sorted(loaded.ceremonies.items())
        ]
        return {"ceremonies": [ceremony_facts(row) for row in rows], "errors": to_json(loaded.problems)}

    async def dry_run(self, ceremony_id: str) -> dict[str, Any]:
        """Agents are those that agents.yaml says offer the skill."""
        ceremony = (await store(self._common, None)).get(ceremony_id).ceremony
        fleet = await self._fleet()
        offers = {agent.name: agent.skill_names for agent in fleet.agents if agent.enabled or agent.disabled_why}
        return would_send(ceremony, lambda skill, to: resolve(skill, to, offers=offers, weights={}, chance=lambda: 0.0))

    async def create(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        return _row(await (await store(self._common, self._folder)).create(keys, created_by="system"))

    async def update(self, ceremony_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return _row(await (await store(self._common, self._folder)).update(ceremony_id, changes))

    async def delete(self, ceremony_id: str) -> None:
        await (await store(self._common, self._folder)).delete(ceremony_id)

    async def _fleet(self) -> FleetConfig:
        return await load_fleet(self._common.require_agents_yaml(), files=DiskFiles(), env=os.environ)


def _row(stored: StoredCeremony) -> dict[str, Any]:
    due = next_due(stored.ceremony, now()) if stored.ceremony.enabled else None
    return ceremony_facts(CeremonyRow(ceremony=stored.ceremony, path=stored.path, next_at=due))


async def store(common: CommonOptions, folder: Path | None) -> CeremonyStore:
    """The store of the folder, read once; without ``folder`` the one beside agents.yaml."""
    ceremonies = CeremonyFolder(DiskFiles(), folder or common.agents_yaml.parent / "ceremonies")
    await ceremonies.poll()
    return CeremonyStore(ceremonies, DiskFiles(), SystemClock())


def now() -> datetime:
    """The wall clock."""
    return SystemClock().now()


def chosen(listing: dict[str, Any], ids: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of these ids, or all. Raises UnknownTarget."""
    rows = {row["id"]: row for row in listing["ceremonies"]}
    for one in ids:
        if one not in rows:
            errors = [problem["error"] for problem in listing["errors"] if problem["ceremonyId"] == one]
            raise UnknownTarget(f"there is no ceremony “{one}”", hint=errors[0] if errors else nearest_of(one, rows))
    return [rows[one] for one in ids] if ids else list(rows.values())


def fires_of(rows: Sequence[dict[str, Any]], after: datetime, count: int) -> list[tuple[datetime, dict[str, Any]]]:
    """The next fires of these ceremonies together, the soonest first."""
    fires: list[tuple[datetime, dict[str, Any]]] = []
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
            fires.append((slot, row))
            due = slot
    return sorted(fires, key=lambda fire: (fire[0], fire[1]["id"]))[:count]


def shown(moment: datetime, zone: str) -> str:
    """A time on the clock of a zone, with the zone; its offset tells an hour that a clock shows twice apart."""
    offset = "" if zone == "UTC" else "%z"
    return f"{moment.astimezone(zone_of(zone)):%a %Y-%m-%d %H:%M:%S{offset}} {zone}"


async def check(common: CommonOptions, files: Sequence[Path], folder: Path | None) -> list[dict[str, Any]]:
    """The fault of each of these files, or of each file of the folder; ``error`` is None if there is none."""
    if not files:
        stored = await store(common, folder)
        fine = [{"path": one.path, "id": one.ceremony.ceremony_id, "error": None} for one in stored.list()]
        wrong = [{"path": one.path, "id": one.ceremony_id, "error": one.error} for one in stored.errors()]
        return sorted(fine + wrong, key=lambda results: str(results["path"]))
    results: list[dict[str, Any]] = []
    for path in files:
        try:
            text = await DiskFiles().read(path, bytes_max=CEREMONY_BYTES_MAX)
            results.append({"path": str(path), "id": parse_ceremony(load(text, str(path))).ceremony_id, "error": None})
        except ConfigError as error:
            results.append(
                {"path": str(path), "id": None, "error": f"{error}{f' ({error.hint})' if error.hint else ''}"}
            )
    return results


if TYPE_CHECKING:
    from fleetsim.sim.scenario import Scenario


UNREAD_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """The options of ``play``, as its help describes them."""

    ceremony_ids: tuple[str, ...]
    begins: str
    ends: str
    zone: str
    speed: str
    folder: Path | None
    scenario: str | None
    expected: tuple[str, ...]
    seed: int
    settle: str
    record: Path | None
    reports: tuple[str, ...]
    verbose: bool

    def command(self, config: Path | None, folder: Path) -> str:
        """The command that plays the same span again."""
        words = ["fleetsim", *(["--config", str(config)] if config else []), "ceremony", "play", *self.ceremony_ids]
        words += ["--from", self.begins, "--to", self.ends, "--tz", self.zone]
        words += ["--speed", self.speed, "--folder", str(folder)]
        words += ["--scenario", self.scenario] if self.scenario else []
        words += [word for text in self.expected for word in ("--expect", text)]
        return shlex.join([*words, "--seed", str(self.seed)])


@click.command("play")
@click.argument("ceremony_ids", metavar="[ID]...", nargs=-1)
@click.option("--from", "begins", metavar="TIME", required=True, help="The start: 2026-10-24T00:00.")
@click.option("--to", "ends", metavar="TIME", required=True, help="The end; a slot that is due then is not played.")
@click.option("--tz", "zone", metavar="ZONE", default="UTC", show_default=True, help="The time zone of start and end.")
@click.option(
    "--speed",
    default="virtual",
    show_default=True,
    metavar="SPEED",
    help="virtual: simulated agents. xN, or real: the agents of agents.yaml, N times as fast.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), metavar="DIR", help="The ceremonies.  [default: beside agents.yaml]"
)
@click.option("--scenario", metavar="FILE", help="Play with its fleet, people and settings, on virtual time.")
@click.option("--expect", "expected", multiple=True, metavar="EXPR", help="'missed == 0': else exit 1 (repeatable).")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The seed of all chance.")
@click.option(
    "--settle", default="5m", show_default=True, metavar="SPAN", help="With xN: how long runs may go on at the end."
)
@click.option("--record", type=click.Path(path_type=Path), help="Keep the run in this file, a JSON object a line.")
@report_option
@click.option("--verbose", is_flag=True, help="Name every rule and how often it was looked at.")
@click.pass_obj
def play(common: CommonOptions, /, **options: Any) -> int:
    """Fire every slot between two moments, and report what became of each.

    \b
    fleetsim ceremony play --from 2026-10-24T00:00 --to 2026-10-27T00:00 --tz Europe/Berlin
    fleetsim ceremony play quinn.daily-digest --from 2026-03-01T00:00 --to 2026-04-01T00:00 --expect 'missed == 0'
    fleetsim ceremony play --from 2026-03-02T08:00 --to 2026-03-02T18:00 --speed x60

    On virtual time the agents are simulated. They are those of agents.yaml, with the skills on their cards; a task
    takes 5 seconds. An agent with an unreadable card gets every skill that a ceremony requests from it. --scenario FILE
    plays another fleet, for example the one that `fleetsim sim init` fitted to yours. The command first prints the
    number of requests and how long they take.

    With --speed xN the real agents of agents.yaml get the requests, N times as fast. Their questions stay unanswered,
    and channels get no notices. If N is more than some hundred, a machine cannot fire every slot in time, and slots
    count as missed.

    Targets, skills and files follow the hub's rules: a run without an agent fails, and the verdict names the wrong
    target or file.

    Exit codes: 0 as expected, 1 an expectation is broken, or a target, skill or file is wrong, 2 no such ceremony or
    time, 8 a rule was broken that must hold in any run: a defect of fleetsim's.
    """
    return _play(common, SpanOptions(**options))


def _play(common: CommonOptions, options: SpanOptions) -> int:
    from fleetsim.ceremonies.folder import contents_of
    from fleetsim.ceremony.file import parse_moment, zone_of
    from fleetsim.health.figures import Expectation
    from fleetsim.model.spans import in_words, seconds_of
    from fleetsim.sim.ceremonies import REQUEST_S, chosen, due_in, requests_in, span_scenario
    from fleetsim.sim.cli.play import play_and_tell, read_option
    from fleetsim.sim.clocks import ClockRate
    from fleetsim.sim.report_formats import FORMATS
    from fleetsim.sim.scenario import folder_files, with_seed

    clock = read_option("--speed", ClockRate.read, options.speed)
    settle_s = read_option("--settle", seconds_of, options.settle)
    expect = [read_option("--expect", Expectation.read, text) for text in options.expected]
    files, place = report_files(options.reports, FORMATS), zone_of(options.zone)
    first, last = (parse_moment(text, place).astimezone(UTC) for text in (options.begins, options.ends))
    where = options.folder or common.agents_yaml.parent / "ceremonies"
    texts = folder_files(where)
    if options.ceremony_ids:
        texts = chosen(texts, options.ceremony_ids, where)
    ceremonies = tuple(contents_of(texts, where).ceremonies.values())
    fleet = None if options.scenario is None else _described(options.scenario, virtual=clock.virtual)
    seen = _Seen() if fleet is not None else asyncio.run(_look(common, virtual=clock.virtual))
    wanted = span_scenario(
        ceremonies,
        first,
        last,
        fleet=fleet,
        offers=seen.offers,
        unread=seen.unread,
        settings=seen.config.settings,
        expect=expect,
        nobody_answers=not clock.virtual,
    )
    offers = {name: agent.skills for name, agent in wanted.agents}
    due = due_in(ceremonies, wanted.start, wanted.start + timedelta(seconds=wanted.duration))
    requests = requests_in(ceremonies, due, offers)
    lasts_s = requests * REQUEST_S if clock.virtual else wanted.duration / clock.times
    if seen.unread:
        names = ", ".join(seen.unread[:UNREAD_SHOWN])
        more = len(seen.unread) - UNREAD_SHOWN
        names += f" and {more} more" if more > 0 else ""
        common.note(f"no card could be read of {names}: assumed to have every skill that is asked of them")
    if not clock.virtual:
        common.note(f"{len(seen.config.enabled)} agents of {common.agents_yaml} are really asked")
    common.note(
        f"{requests:,} requests in {sum(due.values()):,} slots are played: about {in_words(max(1, round(lasts_s)))}"
    )
    return play_and_tell(
        common,
        with_seed(wanted, options.seed),
        texts,
        source=str(where),
        record=options.record,
        files=files,
        clock=clock,
        settle_s=settle_s,
        verbose=options.verbose,
        entries=[entry for entry in seen.config.agents if not clock.virtual or entry.name not in seen.offers],
        command=options.command(common.config, where),
    )


def _described(scenario: str, *, virtual: bool) -> Scenario:
    from fleetsim.sim.scenario import parse_scenario, read_scenario

    if not virtual:
        hint = "with xN the agents of agents.yaml are asked; --config FILE names another"
        raise ConfigError("--scenario is for --speed virtual", hint=hint)
    source, text, _ = read_scenario(scenario)
    return parse_scenario(text, source)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The fleet of agents.yaml: the skills of each agent as its card has them, and whose card nobody could read."""

    config: FleetConfig = field(default_factory=lambda: FleetConfig(agents=()))
    offers: Mapping[str, Collection[str]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


async def _look(common: CommonOptions, *, virtual: bool) -> _Seen:
    """Read agents.yaml, and each agent's card as the hub does. Raises ConfigError."""
    from fleetsim.events.log import EventLog
    from fleetsim.fleet.cards import CardBroker
    from fleetsim.fleet.config import load_fleet
    from fleetsim.runtime.files import DiskFiles
    from fleetsim.runtime.real import running_runtime

    config = await load_fleet(common.require_agents_yaml(), files=DiskFiles(), env=os.environ)
    async with (
        running_runtime() as runtime,
        CardBroker(runtime, config, EventLog(runtime.clock)) as broker,
    ):
        await broker.until_read(None, (ALL,))
        # On virtual time a credential that is not set here may be set where the hub runs.
        views = [view for view in broker.views() if view.entry.enabled or (virtual and view.entry.disabled_why)]
    unread = tuple(view.entry.name for view in views if view.card is None)
    return _Seen(config=config, offers={view.entry.name: view.skills for view in views}, unread=unread)
