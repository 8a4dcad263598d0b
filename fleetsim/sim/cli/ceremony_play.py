"""``fleetsim ceremony play``: fire every slot between two moments, with simulated agents or real ones."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import report_files, report_option
from fleetsim.fleet.settings import FleetConfig
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import ALL

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
    from fleetsim.sim.scenario import folder_files, parse_scenario, read_scenario, with_seed

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
    fleet = None
    if options.scenario is not None:
        if not clock.virtual:
            hint = "with xN the agents of agents.yaml are asked; --config FILE names another"
            raise ConfigError("--scenario is for --speed virtual", hint=hint)
        source, text, _ = read_scenario(options.scenario)
        fleet = parse_scenario(text, source)[0]
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
