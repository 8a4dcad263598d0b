"""``fleetsim ceremony play``: a span of schedules, fired in seconds on virtual time, or for real."""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import report_files
from fleetsim.model.errors import ConfigError

if TYPE_CHECKING:
    from fleetsim.caller.fleet import FleetConfig
    from fleetsim.sim.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """What a person said on the command line; the options of ``play`` say what each means."""

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
        """What plays the same span again."""
        words = ["fleetsim", *(["--config", str(config)] if config else []), "ceremony", "play", *self.ceremony_ids]
        words += ["--from", self.begins, "--to", self.ends, "--tz", self.zone]
        words += ["--speed", self.speed, "--folder", str(folder)]
        words += ["--scenario", self.scenario] if self.scenario else []
        words += [word for text in self.expected for word in ("--expect", text)]
        return shlex.join([*words, "--seed", str(self.seed)])


@click.command("play")
@click.argument("ceremony_ids", metavar="[ID]...", nargs=-1)
@click.option("--from", "begins", metavar="TIME", required=True, help="The first moment: 2026-10-24T00:00.")
@click.option(
    "--to", "ends", metavar="TIME", required=True, help="Until there; what is due at that very moment is not."
)
@click.option("--tz", "zone", metavar="ZONE", default="UTC", show_default=True, help="The clock of those two times.")
@click.option(
    "--speed",
    default="virtual",
    show_default=True,
    metavar="SPEED",
    help="virtual: agents in memory. xN, or real: the agents of agents.yaml are really asked, N times as fast.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), metavar="DIR", help="The folder.  [default: beside agents.yaml]"
)
@click.option("--scenario", metavar="FILE", help="Its fleet, people and settings are played with, on virtual time.")
@click.option("--expect", "expected", multiple=True, metavar="EXPR", help="'missed == 0': else exit 1 (repeatable).")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="What chance is drawn from.")
@click.option(
    "--settle", default="5m", show_default=True, metavar="SPAN", help="With xN: how long runs may go on at the end."
)
@click.option("--record", type=click.Path(path_type=Path), help="Keep the run in this file, a JSON object a line.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=PATH", help="junit, html or json (repeatable).")
@click.option("--verbose", is_flag=True, help="Name every rule and how often it was looked at.")
@click.pass_obj
def play(common: CommonOptions, /, **options: Any) -> int:
    """Fire all that is due between two moments, and say what became of every slot.

    \b
    fleetsim ceremony play --from 2026-10-24T00:00 --to 2026-10-27T00:00 --tz Europe/Berlin
    fleetsim ceremony play quinn.daily-digest --from 2026-03-01T00:00 --to 2026-04-01T00:00 --expect 'missed == 0'
    fleetsim ceremony play --from 2026-03-02T08:00 --to 2026-03-02T18:00 --speed x60

    On virtual time the agents are simulated: each offers what it is asked for, and takes 5 seconds; --scenario FILE
    plays with a fleet that you described, or fitted to your own. With xN the agents of agents.yaml are asked: what they
    do, they do. Channels are told nothing, and nobody answers questions then. More than some hundred times as fast, the
    minute after which a slot counts as missed is too short for any machine.

    Exit codes: 0 as expected, 1 an expectation is broken, 2 a file or time is wrong, 8 a rule was broken that must
    hold in any run: a defect of fleetsim's.
    """
    return _play(common, SpanOptions(**options))


def _play(common: CommonOptions, options: SpanOptions) -> int:
    from fleetsim.caller.expectation import Expectation
    from fleetsim.cli import ceremony_files
    from fleetsim.cli.sim_play import play_and_tell, read_option
    from fleetsim.sim.ceremony_span import read_folder, span_scenario
    from fleetsim.sim.clocks import ClockRate
    from fleetsim.sim.files import FORMATS
    from fleetsim.sim.quantities import seconds_of
    from fleetsim.sim.scenario import with_seed

    clock = read_option("--speed", ClockRate.read, options.speed)
    settle_s = read_option("--settle", seconds_of, options.settle)
    expect = [read_option("--expect", Expectation.read, text) for text in options.expected]
    files, place = report_files(options.reports, FORMATS), ceremony_files.zone_of(options.zone)
    first, last = (ceremony_files.parse_moment(text, place).astimezone(UTC) for text in (options.begins, options.ends))
    where = options.folder or common.agents_yaml.parent / "ceremonies"
    texts, ceremonies = read_folder(where, options.ceremony_ids)
    fleet, config = _fleet(common, options.scenario, virtual=clock.virtual)
    entries = () if config is None else config.enabled
    wanted = span_scenario(
        ceremonies,
        first,
        last,
        fleet=fleet,
        entries=entries,
        settings=config.settings if config else None,
        expect=expect,
        nobody_answers=not clock.virtual,
    )
    if not clock.virtual:
        common.note(f"{len(entries)} agents of {common.agents_yaml} are really asked")
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
        entries=() if clock.virtual else entries,
        command=options.command(common.config, where),
    )


def _fleet(common: CommonOptions, scenario: str | None, *, virtual: bool) -> tuple[Scenario | None, FleetConfig | None]:
    """Who is asked: the fleet of a scenario, or that of agents.yaml; on virtual time there may be neither."""
    from fleetsim.caller.config import load_fleet
    from fleetsim.runtime.files import DiskFiles
    from fleetsim.sim import shipped
    from fleetsim.sim.scenario import parse_scenario

    if scenario is not None:
        if not virtual:
            hint = "with xN the agents of agents.yaml are asked; --config FILE names another"
            raise ConfigError("--scenario is for --speed virtual", hint=hint)
        source, text, _ = shipped.read(scenario)
        return parse_scenario(text, source)[0], None
    if virtual and not common.agents_yaml.exists():
        return None, None
    return None, asyncio.run(load_fleet(common.require_agents_yaml(), files=DiskFiles(), env=os.environ))
