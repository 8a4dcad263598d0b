"""``fleetsim sim SCENARIO``: plays, watches or replays a scenario, and reports."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from fleetsim.caller.fleet import AgentEntry
from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import report_files
from fleetsim.cli.sim_seeds import ScenarioSource, play_seeds
from fleetsim.cli.terminal import rewrite
from fleetsim.model.errors import ConfigError
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.live import check_clock, played
from fleetsim.sim.quantities import in_words, seconds_of
from fleetsim.sim.recording import lines_of
from fleetsim.sim.report import Report, Result, report_of
from fleetsim.sim.report_formats import FORMATS
from fleetsim.sim.report_formats import render as report_lines
from fleetsim.sim.run import WANTED
from fleetsim.sim.scenario import Scenario, with_seed

T = TypeVar("T")
LOOK_EVERY_S = 0.2
EXIT = {Result.OK: Exit.OK, Result.UNEXPECTED: Exit.FAILED, Result.VIOLATED: Exit.VIOLATED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command line; ``cli.sim`` documents them."""

    scenario: str | None
    rate: str
    settle: str
    replay: Path | None
    seed: int | None
    record: Path | None
    watch: bool
    reports: tuple[str, ...]
    verbose: bool
    seeds: int | None
    first: int | None
    jobs: int
    covered: bool
    keep_going: bool
    shrunk: Path | None
    tries: int


def run_scenario(common: CommonOptions, options: RunOptions) -> int:
    """Plays or replays, and returns the exit code. Raises UsageError for options that contradict each other."""
    files = report_files(options.reports, FORMATS)
    clock = read_option("--clock", ClockRate.read, options.rate)
    settle_s = read_option("--settle", seconds_of, options.settle)
    seed, record = options.seed, options.record
    if options.replay is not None:
        if options.scenario is not None or seed is not None or record is not None or options.watch:
            raise click.UsageError(
                "--replay reports on a run that was played: it takes no SCENARIO, --seed, --record or --watch"
            )
        return _tell(common, report_of(lines_of(options.replay, WANTED)), files, verbose=options.verbose)
    if options.scenario is None:
        raise click.UsageError("Which scenario? A file, or a name of `fleetsim sim list`.")
    source = ScenarioSource.read(options.scenario, seed)
    wanted = source.scenario
    check_clock(wanted, source.written, clock)
    if options.seeds is not None:
        if seed is not None or record is not None or files or options.watch or not clock.virtual:
            raise click.UsageError(
                "--seeds plays many runs: --seed, --record, --watch, --report and --clock are about one"
            )
        return play_seeds(
            common,
            source,
            first=wanted.seed if options.first is None else options.first,
            seeds=options.seeds,
            jobs=options.jobs,
            covered=options.covered,
            keep_going=options.keep_going,
            shrunk=options.shrunk,
            tries=options.tries,
        )
    if seed is not None:
        wanted = with_seed(wanted, seed)
    if options.watch:
        from fleetsim.cli.sim_watch import watched

        record = record or Path(f"{wanted.name}-{wanted.seed}.jsonl")
        ended = watched(common, click.get_current_context(), options.scenario, record)
        if ended is not None:
            return ended
        return _tell(common, report_of(lines_of(record, WANTED)), files, verbose=options.verbose)
    return play_and_tell(
        common,
        wanted,
        source.ceremonies,
        source=source.source,
        record=record,
        files=files,
        clock=clock,
        settle_s=settle_s,
        verbose=options.verbose,
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
    """Plays a scenario with its progress on stderr, reports, and returns the exit code."""
    drawn = sys.stderr.isatty() and not common.quiet
    with ExitStack() as stack:
        if record is None:
            record = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.jsonl"
        try:
            report = played(
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
        return _tell(common, report, files, verbose=verbose)


def _tell(common: CommonOptions, report: Report, files: tuple[tuple[str, Path], ...], *, verbose: bool) -> int:
    for kind, path in files:
        try:
            path.write_text(FORMATS[kind](report), encoding="utf-8", errors="replace")
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
    """Reads the text of an option. Raises BadParameter."""
    try:
        return read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def progress_of(scenario: Scenario, clock: ClockRate) -> Callable[[float, int], None]:
    """A callback that shows the progress of a run on the terminal."""
    began = shown = time.perf_counter()

    def show(at_s: float, lines: int) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown < LOOK_EVERY_S:
            return
        shown = now
        settling = "settling" if clock.virtual else "waiting for open requests (Ctrl-C ends it)"
        part = settling if at_s > scenario.duration else f"{in_words(at_s)} of {in_words(scenario.duration)}"
        speed = at_s / (now - began)
        rewrite(f"{scenario.name}: {part}, {speed:,.0f} times real time, {lines:,} lines")

    return show
