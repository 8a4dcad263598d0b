"""``fleetsim sim SCENARIO --seeds N``: play many seeds, add up what they met, cut down the first that breaks a rule."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.terminal import rewrite
from fleetsim.model.errors import ConfigError, FleetsimError
from fleetsim.runtime.yaml import YamlDocument
from fleetsim.sim.generated import ANY, generated
from fleetsim.sim.quantities import in_words
from fleetsim.sim.scenario import Scenario, ceremonies_of, parse_scenario, read_scenario, scenario_text
from fleetsim.sim.seeds import Coverage, SeedRun, Values, coverage_json, coverage_lines, cut_down, run_seeds

LINE_EVERY_S = 30.0
"""How often a line of progress is written where no terminal is: into a log, which may be of hours."""


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


def play_seeds(
    common: CommonOptions,
    source: ScenarioSource,
    *,
    first: int,
    seeds: int,
    jobs: int,
    covered: bool,
    keep_going: bool,
    shrunk: Path | None,
    tries: int,
) -> Exit:
    """Plays seeds, reports their coverage, and cuts down the first that breaks a rule.

    Ctrl-C, SIGTERM and a closed terminal report the seeds until then. ``covered``: a kind of trouble or an invariant
    that no seed met is a failure, too.
    """
    coverage, began = Coverage(), time.perf_counter()
    say = _Progress(common, began)
    stopped, smaller = False, None
    try:
        with _ended_by_signals(), _players(jobs) as executor:
            runs = run_seeds(
                executor,
                None if source.source == ANY else source.text,
                source.source,
                source.ceremonies,
                first=first,
                seeds=seeds,
                jobs=jobs,
            )
            for run in runs:
                coverage.add(run)
                say.seeds(coverage, seeds)
                if run.violations and not keep_going:
                    break
            runs.close()
            if coverage.violated and tries:
                smaller = _cut_down(executor, source, coverage.violated[0], tries=tries, say=say, path=shrunk)
    except KeyboardInterrupt:
        stopped = True
    except BrokenProcessPool:
        raise FleetsimError("a process that played seeds was killed", hint="fewer of them: --jobs") from None
    finally:
        say.nothing()
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
    if coverage.violated:
        return Exit.VIOLATED
    if stopped:
        return Exit.INTERRUPTED
    missed = covered and bool(coverage.never_met())
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
def _players(jobs: int) -> Iterator[Executor]:
    """Processes that play seeds; those still at one that nobody wants any more are not waited for."""
    others = set(active_children())
    # Not forks of this process: the same on every system, and nothing of the terminal in them.
    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_at_once)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        players = set(active_children()) - others
        for player in players:
            player.terminate()
        for player in players:
            player.join()


def _end_at_once() -> None:
    """Ctrl-C reaches everybody at this terminal; what is reported is ours to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _cut_down(
    executor: Executor, source: ScenarioSource, run: SeedRun, *, tries: int, say: _Progress, path: Path | None
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


class _Progress:
    """One line on stderr that is written over; without a terminal one now and then, and one for each broken rule."""

    def __init__(self, common: CommonOptions, began: float) -> None:
        self._common = common
        self._drawn = sys.stderr.isatty() and not common.quiet
        self._began = self._told = began
        self._violated = 0

    def seeds(self, coverage: Coverage, wanted: int) -> None:
        rate = coverage.runs / (time.perf_counter() - self._began)
        left = in_words((wanted - coverage.runs) / rate)
        new, self._violated = len(coverage.violated) > self._violated, len(coverage.violated)
        bad = f", {self._violated} broke a rule, last {coverage.violated[-1].seed}" if self._violated else ""
        line = f"{coverage.runs:,} of {wanted:,} seeds, {rate:.2g} a second, {left} to go{bad}"
        self._show(line, at_once=new or coverage.runs == 1)

    def shrinking(self, tried: int, tries: int, smallest: Mapping[str, Any]) -> None:
        sizes = (f"{len(smallest.get(key, ()))} {key}" for key in ("fleet", "traffic", "weather"))
        line = f"cutting it down: {tried} of at most {tries} tries, {', '.join(sizes)}, {smallest['duration']}"
        self._show(line, at_once=not tried)

    def nothing(self) -> None:
        if self._drawn:
            rewrite("")

    def _show(self, line: str, *, at_once: bool) -> None:
        now = time.perf_counter()
        if self._drawn:
            rewrite(line)
        elif at_once or now - self._told >= LINE_EVERY_S:
            self._told = now
            self._common.note(line)
