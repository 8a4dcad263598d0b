"""``fleetsim sim SCENARIO``: plays, watches or replays a scenario, or plays it with many seeds, and reports."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeVar

import click

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import STDOUT, in_repository, no_commands, report_files
from fleetsim.cli.terminal import rewrite
from fleetsim.fleet.settings import AgentEntry
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.model.spans import in_words, seconds_of
from fleetsim.recording.reader import lines_of
from fleetsim.runtime.files import read_file
from fleetsim.runtime.yaml import YamlDocument
from fleetsim.runtime.yaml import load as load_yaml
from fleetsim.sim.ceremonies import REQUEST_S, requests_of
from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.cluster import ClusterLost, check_parts, cluster, play_parts
from fleetsim.sim.generated import ANY, generated
from fleetsim.sim.live import check_clock, played
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.report import Result, SimulationReport, report_of
from fleetsim.sim.report_formats import FORMATS
from fleetsim.sim.report_formats import render as report_lines
from fleetsim.sim.run import WANTED
from fleetsim.sim.scenario import (
    SCENARIO_BYTES_MAX,
    SCENARIO_NODES_MAX,
    Scenario,
    ceremonies_of,
    parse_scenario,
    read_scenario,
    scenario_text,
    with_seed,
)
from fleetsim.sim.seeds import Coverage, SeedRun, Values, coverage_json, coverage_lines, cut_down, run_seeds

T = TypeVar("T")
LOOK_EVERY_S = 0.2
LINE_EVERY_S = 30.0
"""How often a line of progress is written where no terminal is: into a log, which may be of hours."""
LONG_S = 5.0
"""From which estimate on a run is announced."""
CLUSTER_AHEAD = 4
"""Times as many seeds wait per worker of a cluster: the others go on while one is lost and its seed is played again."""
EXIT = {Result.OK: Exit.OK, Result.UNEXPECTED: Exit.FAILED, Result.VIOLATED: Exit.VIOLATED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command line; ``sim`` documents them."""

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
    cluster: str | None
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
    if options.cluster is not None and options.jobs > 1:
        raise click.UsageError("--cluster plays one run at a time on each worker: it takes no --jobs")
    if options.seeds is not None:
        if seed is not None or record is not None or files or options.watch or not clock.virtual:
            raise click.UsageError(
                "--seeds plays many runs: --seed, --record, --watch, --report and --clock are about one"
            )
        return play_seeds(common, source, options, options.seeds)
    if seed is not None:
        wanted = with_seed(wanted, seed)
    if options.cluster is not None:
        if clock.virtual or record is not None or files or options.watch:
            raise click.UsageError(
                "--cluster plays --seeds N, or load with --clock real: without --record, --watch and --report"
            )
        check_parts(wanted, source.written)
        return play_on_cluster(common, wanted, source, options.cluster, clock, settle_s, verbose=options.verbose)
    if options.watch:
        from fleetsim.sim.cli.watch import watched

        record = record or Path(f"{wanted.name}-{wanted.seed}.jsonl")
        ended = watched(common, click.get_current_context(), options.scenario, record)
        if ended is not None:
            return ended
        return _tell(common, report_of(lines_of(record, WANTED)), files, verbose=options.verbose)
    requests = requests_of(wanted, source.ceremonies)
    lasts_s = requests * REQUEST_S if clock.virtual else wanted.duration / clock.times
    if lasts_s >= LONG_S:
        common.note(f"about {requests:,} requests are played: about {in_words(round(lasts_s))}")
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
    with ExitStack() as stack:
        if record is None:
            record = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.jsonl"
        with Progress(common) as say:
            report = played(
                scenario,
                ceremonies,
                source=source,
                record=record,
                rate=clock,
                settle_s=settle_s,
                entries=entries,
                command=command,
                progress=say.run_of(scenario, clock),
            )
        return _tell(common, report, files, verbose=verbose)


def play_on_cluster(
    common: CommonOptions,
    scenario: Scenario,
    source: ScenarioSource,
    address: str,
    clock: ClockRate,
    settle_s: float,
    *,
    verbose: bool,
) -> int:
    """Plays a load run in parts on the workers of a cluster, reports, and returns the exit code."""
    command = f"fleetsim sim {shlex.quote(source.source)} --seed {scenario.seed} --clock {clock} --cluster {address}"
    with Progress(common) as say, _ended_by_signals(), cluster(address) as connected:
        report = play_parts(
            connected,
            scenario,
            source.ceremonies,
            source=source.source,
            rate=clock,
            settle_s=settle_s,
            command=command,
            show=say.line,
        )
    return _tell(common, report, (), verbose=verbose)


def _tell(
    common: CommonOptions, report: SimulationReport, files: tuple[tuple[str, Path], ...], *, verbose: bool
) -> int:
    report = _placed(report) if files else report
    with no_commands(files):
        if common.as_json:
            render.emit_json(report.as_json())
        else:
            for line in report_lines(report, verbose=verbose):
                render.line(line)
    for kind, path in files:
        if path == STDOUT:
            render.lines(FORMATS[kind](report))
            continue
        try:
            path.write_text(FORMATS[kind](report), encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    if report.stopped_s is not None:
        return Exit.INTERRUPTED
    return EXIT[report.result]


def _placed(report: SimulationReport) -> SimulationReport:
    """The report with the file of its scenario and the lines of its expectations, if the file can still be read."""
    path = Path(report.source)
    try:
        text = read_file(path, SCENARIO_BYTES_MAX, private=False)
        written = load_yaml(text, report.source, bytes_max=SCENARIO_BYTES_MAX, nodes_max=SCENARIO_NODES_MAX)
    except ConfigError:
        return report
    places = tuple(written.place(("expect", place), key=False).line for place in range(len(report.expectations)))
    return replace(report, file=in_repository(path), places=places)


def read_option(option: str, read: Callable[[str], T], text: str) -> T:
    """Reads the text of an option. Raises BadParameter."""
    try:
        return read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSource:
    """A scenario as it was read: the file, its text, and the files of its ceremonies."""

    source: str
    folder: Path
    text: bytes
    scenario: Scenario
    written: YamlDocument
    ceremonies: Mapping[str, bytes]

    @classmethod
    def read(cls, source: str, seed: int | None) -> ScenarioSource:
        """The scenario of a file, a shipped one, or the one that the seed draws. Raises ConfigError."""
        if source == ANY:
            text, ceremonies = generated(Scenario.model_fields["seed"].default if seed is None else seed)
            scenario, written = parse_scenario(text, source)
            folder = Path()
        else:
            source, text, folder = read_scenario(source)
            scenario, written = parse_scenario(text, source)
            ceremonies = ceremonies_of(scenario, written, folder)
        return cls(source=source, folder=folder, text=text, scenario=scenario, written=written, ceremonies=ceremonies)


def play_seeds(common: CommonOptions, source: ScenarioSource, options: RunOptions, seeds: int) -> Exit:
    """Plays seeds, reports their coverage, and cuts down the first that breaks a rule.

    Ctrl-C, SIGTERM and a closed terminal report the seeds until then. ``options.covered``: a kind of trouble or an
    invariant that no seed met is a failure, too.
    """
    coverage, began = Coverage(hubs=source.scenario.hubs), time.perf_counter()
    stopped, lost, smaller = False, None, None
    try:
        with Progress(common) as say, _ended_by_signals(), _players(common, options) as (executor, jobs):
            runs = run_seeds(
                executor,
                None if source.source == ANY else source.text,
                source.source,
                source.ceremonies,
                first=source.scenario.seed if options.first is None else options.first,
                seeds=seeds,
                jobs=jobs,
            )
            for run in runs:
                coverage.add(run)
                say.seeds(coverage, seeds)
                if run.violations and not options.keep_going:
                    break
            runs.close()
            if coverage.violated and options.tries:
                smaller = _cut_down(
                    executor, source, coverage.violated[0], tries=options.tries, say=say, path=options.shrunk
                )
    except KeyboardInterrupt:
        stopped = True
    except ClusterLost as error:
        lost = error  # reported after what was played
    except BrokenProcessPool:
        raise FleetsimError("a process that played seeds was killed", hint="fewer of them: --jobs") from None
    wall_s = time.perf_counter() - began
    again = [f"fleetsim sim {shlex.quote(source.source)} --seed {run.seed}" for run in coverage.violated]
    if common.as_json:
        render.emit_json(
            coverage_json(coverage, source.scenario.name, wall_s=wall_s, shrunk=str(smaller) if smaller else None)
        )
    else:
        for line in coverage_lines(coverage, source.scenario.name, wanted=seeds, wall_s=wall_s):
            render.line(line)
        if again:
            render.line(f"play it again: {again[0]} --record run.jsonl")
        if smaller is not None:
            render.line(f"cut down: fleetsim sim {shlex.quote(str(smaller))}")
    if lost is not None:
        raise lost
    if coverage.violated:
        return Exit.VIOLATED
    if stopped:
        return Exit.INTERRUPTED
    missed = options.covered and bool(coverage.never_met())
    return Exit.FAILED if coverage.unexpected or missed else Exit.OK


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end it as Ctrl-C does."""
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _players(common: CommonOptions, options: RunOptions) -> Iterator[tuple[Executor, int]]:
    """Who plays seeds, and how many at once: a cluster, or processes.

    Those still at a seed that nobody wants any more are not waited for.
    """
    if options.cluster is not None:
        with cluster(options.cluster) as connected:
            common.note(*connected.notes())
            yield connected, len(connected.workers()) * CLUSTER_AHEAD
        return
    jobs, others = options.jobs, set(active_children())
    # Not forks of this process: the same on every system, and nothing of the terminal in them. Ctrl-C reaches everybody
    # at this terminal: they end at once, and this process reports.
    end_at_once = (signal.SIGINT, signal.SIG_DFL)
    executor = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=signal.signal, initargs=end_at_once)
    try:
        yield executor, jobs
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        players = set(active_children()) - others
        for player in players:
            player.terminate()
        for player in players:
            player.join()


def _cut_down(
    executor: Executor, source: ScenarioSource, run: SeedRun, *, tries: int, say: Progress, path: Path | None
) -> Path | None:
    """Write the smallest scenario found that breaks the rule the run broke first. None if the run does not repeat."""
    target = path or Path(f"{source.scenario.name}-{run.seed}.yaml")
    if source.source == ANY:
        source = ScenarioSource.read(ANY, run.seed)
    values: Values = {**source.written.value}
    if source.scenario.ceremonies is not None:
        where = (
            source.folder / source.scenario.ceremonies if source.source != ANY else target.with_suffix(".ceremonies")
        )
        values["ceremonies"] = os.path.relpath(where.resolve(), target.resolve().parent)

    def go_on(tried: int, smallest: Values) -> bool:
        say.shrinking(tried, tries, smallest)
        return tried < tries

    smallest = cut_down(executor, values, source.scenario, source.ceremonies, run, go_on=go_on)
    if smallest is None:
        return None
    about = f"# Breaks {run.violations[0].invariant}: seed {run.seed} of {source.scenario.name}, cut down.\n"
    try:
        target.write_text(about + scenario_text(smallest), encoding="utf-8")
        if source.source == ANY and "ceremonies" in smallest:
            where.mkdir(exist_ok=True)
            for name, content in source.ceremonies.items():
                (where / name).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}") from None
    return target


class Progress:
    """One line on stderr that is written over, until the block ends; without a terminal one now and then, and one for
    each broken rule.
    """

    def __init__(self, common: CommonOptions) -> None:
        self._common = common
        self._drawn = sys.stderr.isatty() and not common.quiet
        self._began = self._shown = time.perf_counter()
        self._violated = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            rewrite("")

    def run_of(self, scenario: Scenario, clock: ClockRate) -> Callable[[float, Recorder], None]:
        """A callback that shows the progress of a run, in real time with the load of the last seconds.

        Without a terminal only a run in real time has one: it may last for hours.
        """

        def show(at_s: float, recorder: Recorder) -> None:
            if (clock.virtual and not self._drawn) or not self._due():
                return
            settling = "settling" if clock.virtual else "waiting for open requests (Ctrl-C ends it)"
            part = settling if at_s > scenario.duration else f"{in_words(at_s)} of {in_words(scenario.duration)}"
            speed = f"{at_s / (self._shown - self._began):,.0f} times real time, {recorder.lines:,} lines"
            self._show(f"{scenario.name}: {part}, {speed if clock.virtual else recorder.load.line(at_s, clock)}")

        return show

    def seeds(self, coverage: Coverage, wanted: int) -> None:
        new, self._violated = len(coverage.violated) > self._violated, len(coverage.violated)
        rate = coverage.runs / (time.perf_counter() - self._began)
        left = in_words((wanted - coverage.runs) / rate)
        bad = f", {self._violated} broke a rule, last {coverage.violated[-1].seed}" if self._violated else ""
        by = f" on {len(coverage.workers)} workers" if coverage.workers else ""
        line = f"{coverage.runs:,} of {wanted:,} seeds{by}, {rate:.2g} a second, {left} to go{bad}"
        self.line(line, at_once=new or coverage.runs == 1)

    def shrinking(self, tried: int, tries: int, smallest: Mapping[str, Any]) -> None:
        sizes = (f"{len(smallest.get(key, ()))} {key}" for key in ("fleet", "traffic", "weather"))
        line = f"cutting it down: {tried} of at most {tries} tries, {', '.join(sizes)}, {smallest['duration']}"
        self.line(line, at_once=not tried)

    def line(self, line: str, *, at_once: bool = False) -> None:
        if self._due(at_once=at_once):
            self._show(line)

    def _due(self, *, at_once: bool = False) -> bool:
        now = time.perf_counter()
        due = at_once or now - self._shown >= (LOOK_EVERY_S if self._drawn else LINE_EVERY_S)
        self._shown = now if due else self._shown
        return due

    def _show(self, line: str) -> None:
        if self._drawn:
            rewrite(line)
        else:
            self._common.note(line)
