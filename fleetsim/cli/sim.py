"""``fleetsim sim``: plays a scenario of a whole fleet in seconds, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.sim_twin import diff, init


class ScenarioGroup(click.Group):
    """A group of verbs in which anything else is a scenario to run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the scenario are those of playing it; the group itself has but --help.
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ScenarioGroup, no_args_is_help=True)
def sim() -> None:
    """Play a day of a fleet in seconds: the real hub and agents, on virtual time, from a seed.

    \b
    fleetsim sim list                      scenarios that come with fleetsim
    fleetsim sim agent-restart             play one of them
    fleetsim sim my.yaml --seed 7          play your own
    fleetsim sim my.yaml --record run.jsonl
    fleetsim sim my.yaml --watch           follow it on the dashboard while it is played
    fleetsim sim my.yaml --clock real      a load test: real HTTP, real time, real agents by url
    fleetsim sim --replay run.jsonl --report html=run.html
    fleetsim sim storm --seeds 1000 --jobs 4  play many seeds, and cut down the first that breaks a rule
    fleetsim sim any --seeds 500           the same, with a whole scenario drawn from each seed
    fleetsim sim init --from-hub           write a scenario fitted to your own fleet
    fleetsim sim diff twin.yaml slower.yaml   compare two scenarios, recordings or ledgers

    A scenario describes the agents, their traffic, the people who answer, the troubles and the expectations
    (docs/reference/scenarios.md). The same seed gives the same run.

    Exit codes: 0 as expected, 1 an expectation is broken or a ceremony is wrong, 2 the scenario is wrong, 8 an
    invariant is broken: a defect of fleetsim, please report it.
    """


sim.add_command(init)
sim.add_command(diff)


@sim.command("list")
@click.pass_obj
def list_(common: CommonOptions) -> int:
    """Show the scenarios that come with fleetsim, and what each teaches."""
    from fleetsim.sim.scenario import parse_scenario, shipped_scenarios

    rows = [(name, parse_scenario(path.read_bytes(), name)[0]) for name, path in shipped_scenarios().items()]
    if common.as_json:
        render.emit_json([{"name": name, "about": s.about, "durationSeconds": s.duration} for name, s in rows])
    else:
        for name, scenario in rows:
            render.line(f"{name}: {scenario.about}")
        common.note("play one: fleetsim sim NAME; see how it is written: fleetsim sim show NAME")
    return Exit.OK


@sim.command()
@click.argument("scenario")
@click.pass_obj
def show(common: CommonOptions, scenario: str) -> int:
    """Print the file of a scenario that comes with fleetsim, to begin your own with."""

    from fleetsim.sim.scenario import read_scenario

    render.lines(read_scenario(scenario)[1].decode())
    return Exit.OK


@sim.command()
@click.argument("scenario", required=False)
@click.option(
    "--clock",
    "rate",
    default="virtual",
    metavar="CLOCK",
    help="virtual, real, or xN: real sockets, and traffic N times as fast [virtual].",
)
@click.option(
    "--settle", default="5m", metavar="SPAN", help="In real time: how long requests may go on after the traffic [5m]."
)
@click.option("--replay", type=click.Path(path_type=Path), help="Report on a run that was kept, without playing it.")
@click.option("--seed", type=click.IntRange(min=0), help="The seed of all random draws [the scenario's].")
@click.option("--record", type=click.Path(path_type=Path), help="Keep the run in this file, a JSON object a line.")
@click.option("--watch", is_flag=True, help="Follow it on the dashboard; kept in NAME-SEED.jsonl without --record.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=PATH", help="junit, html or json (repeatable).")
@click.option("--verbose", is_flag=True, help="Name every rule and how often it was looked at.")
@click.option("--seeds", type=click.IntRange(min=1), help="Play this many seeds, until one breaks a rule.")
@click.option("--first", type=click.IntRange(min=0), help="The first of those seeds [the scenario's].")
@click.option("--jobs", type=click.IntRange(min=1, max=512), default=1, help="How many processes play them [1].")
@click.option(
    "--covered", is_flag=True, help="Fail, too, if those seeds never met a kind of trouble or looked at a rule."
)
@click.option("--keep-going", is_flag=True, help="Play all seeds, whatever they break.")
@click.option(
    "--shrunk", type=click.Path(path_type=Path), help="Where the scenario cut down is written [NAME-SEED.yaml]."
)
@click.option("--tries", type=click.IntRange(min=0), default=200, help="How often to play it to cut it down [200].")
@click.pass_obj
def run(common: CommonOptions, /, **options: Any) -> int:
    """Play SCENARIO and report: a file, the name of a scenario that comes with fleetsim, or `any`, which the seed
    draws.
    """
    from fleetsim.cli.sim_play import RunOptions, run_scenario  # what it takes is loaded where it is asked for

    return run_scenario(common, RunOptions(**options))
