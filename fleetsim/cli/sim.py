"""``fleetsim sim``: play a scenario of a whole fleet in seconds, and say what became of it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import click

from fleetsim.caller.fleet import AgentEntry
from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import report_files
from fleetsim.cli.sim_twin import diff, init
from fleetsim.cli.terminal import rewrite
from fleetsim.model.errors import ConfigError
from fleetsim.sim import shipped
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.files import FORMATS
from fleetsim.sim.live import check_clock
from fleetsim.sim.quantities import in_words, seconds_of
from fleetsim.sim.recording import lines_of
from fleetsim.sim.report import Result, report_of
from fleetsim.sim.scenario import Scenario, parse_scenario, with_seed
from fleetsim.sim.text import render as report_lines

T = TypeVar("T")
LOOK_EVERY_S = 0.2
EXIT = {Result.OK: Exit.OK, Result.UNEXPECTED: Exit.FAILED, Result.VIOLATED: Exit.VIOLATED}


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
    fleetsim sim init --from-hub           write a scenario fitted to your own fleet
    fleetsim sim diff twin.yaml slower.yaml   compare two scenarios, recordings or ledgers

    A scenario says which agents there are, what they are asked, who answers their questions, what goes wrong and
    when, and what you expect (docs/reference/scenarios.md). The same seed gives the same run.

    Exit codes: 0 as expected, 1 an expectation is broken, 2 the scenario is wrong, 8 a rule was broken that must
    hold in any run, whatever the weather: a defect of fleetsim's, please report it.
    """


sim.add_command(init)
sim.add_command(diff)


@sim.command("list")
@click.pass_obj
def list_(common: CommonOptions) -> int:
    """Show the scenarios that come with fleetsim, and what each teaches."""
    rows = [(name, parse_scenario(path.read_bytes(), name)[0]) for name, path in shipped.scenarios().items()]
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
    render.lines(shipped.read(scenario)[1].decode())
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
@click.option("--seed", type=click.IntRange(min=0), help="What chance is drawn from [the scenario's].")
@click.option("--record", type=click.Path(path_type=Path), help="Keep the run in this file, a JSON object a line.")
@click.option("--watch", is_flag=True, help="Follow it on the dashboard; kept in NAME-SEED.jsonl without --record.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=PATH", help="junit, html or json (repeatable).")
@click.option("--verbose", is_flag=True, help="Name every rule and how often it was looked at.")
@click.option("--seeds", type=click.IntRange(min=1), help="Play so many seeds, until one breaks a rule.")
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
def run(
    common: CommonOptions,
    scenario: str | None,
    rate: str,
    settle: str,
    replay: Path | None,
    seed: int | None,
    record: Path | None,
    watch: bool,
    reports: tuple[str, ...],
    verbose: bool,
    seeds: int | None,
    first: int | None,
    jobs: int,
    covered: bool,
    keep_going: bool,
    shrunk: Path | None,
    tries: int,
) -> int:
    """Play SCENARIO, a file or the name of one that comes with fleetsim, and say what became of it."""
    files = report_files(reports, FORMATS)
    clock, settle_s = read_option("--clock", ClockRate.read, rate), read_option("--settle", seconds_of, settle)
    if replay is not None:
        if scenario is not None or seed is not None or record is not None or watch:
            raise click.UsageError(
                "--replay reports on a run that was played: it takes no SCENARIO, --seed, --record or --watch"
            )
        return _tell(common, replay, files, verbose=verbose)
    if scenario is None:
        raise click.UsageError("Which scenario? A file, or a name of `fleetsim sim list`.")
    source, text, folder = shipped.read(scenario)
    wanted, written = parse_scenario(text, source)
    ceremonies = shipped.ceremonies_of(wanted, written, folder)
    check_clock(wanted, written, clock)
    if seeds is not None:
        if seed is not None or record is not None or files or watch or not clock.virtual:
            raise click.UsageError(
                "--seeds plays many runs: --seed, --record, --watch, --report and --clock are about one"
            )
        from fleetsim.cli.sim_seeds import ScenarioSource, play_seeds

        return play_seeds(
            common,
            ScenarioSource(
                source=source, folder=folder, text=text, scenario=wanted, written=written, ceremonies=ceremonies
            ),
            first=wanted.seed if first is None else first,
            seeds=seeds,
            jobs=jobs,
            covered=covered,
            keep_going=keep_going,
            shrunk=shrunk,
            tries=tries,
        )
    if seed is not None:
        wanted = with_seed(wanted, seed)
    if watch:
        from fleetsim.cli.sim_watch import watched

        record = record or Path(f"{wanted.name}-{wanted.seed}.jsonl")
        ended = watched(common, click.get_current_context(), scenario, record)
        return _tell(common, record, files, verbose=verbose) if ended is None else ended
    return play_and_tell(
        common,
        wanted,
        ceremonies,
        source=source,
        record=record,
        files=files,
        clock=clock,
        settle_s=settle_s,
        verbose=verbose,
    )


def play_and_tell(
    common: CommonOptions,
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    *,
    source: str,
    record: Path | None,
    files: tuple[tuple[str, Path], ...],
    clock: ClockRate,
    settle_s: float,
    verbose: bool,
    entries: Sequence[AgentEntry] = (),
    command: str = "",
) -> int:
    """Play it with its progress on stderr, tell what became of it, and return the exit code."""
    from fleetsim.sim.played import played

    drawn = sys.stderr.isatty() and not common.quiet
    with ExitStack() as stack:
        if record is None:
            record = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.jsonl"
        try:
            played(
                scenario,
                ceremonies,
                source=source,
                record=record,
                rate=clock,
                settle_s=settle_s,
                entries=entries,
                command=command,
                progress=progress_of(scenario, clock) if drawn else lambda at_s, lines: None,
            )
        finally:
            if drawn:
                rewrite("")
        return _tell(common, record, files, verbose=verbose)


def _tell(common: CommonOptions, recording: Path, files: tuple[tuple[str, Path], ...], *, verbose: bool) -> int:
    report = report_of(lines_of(recording))
    for kind, path in files:
        try:
            path.write_text(FORMATS[kind](report, lines_of(recording)), encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    if common.as_json:
        render.emit_json(report.as_json())
    else:
        for line in report_lines(report, verbose=verbose):
            render.line(line)
    if report.stopped_s is not None:
        return Exit.INTERRUPTED
    return EXIT[report.result]


def read_option(option: str, read: Callable[[str], T], text: str) -> T:
    """What an option's text means. Raises BadParameter."""
    try:
        return read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def progress_of(scenario: Scenario, clock: ClockRate) -> Callable[[float, int], None]:
    """What shows on a terminal how far a run has come."""
    began = shown = time.perf_counter()

    def show(at_s: float, lines: int) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown < LOOK_EVERY_S:
            return
        shown = now
        settling = "settling" if clock.virtual else "waiting for what is under way (Ctrl-C ends it)"
        part = settling if at_s > scenario.duration else f"{in_words(at_s)} of {in_words(scenario.duration)}"
        speed = at_s / (now - began)
        rewrite(f"{scenario.name}: {part}, {speed:,.0f} times real time, {lines:,} lines")

    return show
