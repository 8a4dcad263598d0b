"""Plays many seeds of a scenario, adds up their results, and cuts down a scenario that breaks a rule.

Cutting down is delta debugging (Zeller and Hildebrandt, 2002) over the keys of the file. Each try is the text of a
file, so the result is a file that breaks the same rule when it is played again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from fleetsim.model.errors import ConfigError
from fleetsim.model.spans import in_words, seconds_of
from fleetsim.model.text import one_line
from fleetsim.sim.call_invariants import TAKEN_OVER, Violation
from fleetsim.sim.generated import generated
from fleetsim.sim.invariants import INVARIANTS
from fleetsim.sim.live import played
from fleetsim.sim.report import Result
from fleetsim.sim.report_formats import SHOWN_MAX
from fleetsim.sim.scenario import Scenario, parse_scenario, scenario_text, with_mix_written, with_seed
from fleetsim.sim.troubles import KINDS, OF_SEVERAL_HUBS

AHEAD = 2
"""Seeds that wait per worker, so that no worker is idle while another plays a long one."""
AGAIN_EVERY = 20
"""Every twentieth seed is played twice: both runs must be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The result of one seed. ``times`` and ``hits`` are by kind of trouble, ``cases`` by number of the invariant;
    ``worker`` and ``wall_s`` are of a cluster. Two runs of a seed are equal.
    """

    seed: int
    result: Result
    violations: tuple[Violation, ...]
    broken: tuple[str, ...]
    times: Mapping[str, int]
    hits: Mapping[str, int]
    cases: Mapping[str, int]
    requests: int
    duration_s: float
    cpu_s: float = field(compare=False)
    worker: str = field(default="", compare=False)
    wall_s: float = field(default=0.0, compare=False)


def run_seed(text: bytes | None, source: str, ceremonies: Mapping[str, bytes], seed: int) -> SeedRun:
    """Play one seed, in any process. ``ceremonies`` are the files of its folder by name. Without a ``text`` the seed
    draws the whole scenario. Raises ConfigError for a wrong text.
    """
    if text is None:
        text, ceremonies = generated(seed)
    scenario = with_seed(parse_scenario(text, source)[0], seed)
    wanted = ceremonies if scenario.ceremonies is not None else {}
    with TemporaryDirectory() as folder:
        twice = seed % AGAIN_EVERY == 0
        report = played(scenario, wanted, source=source, record=Path(folder) / "run.jsonl", twice=twice)
    return SeedRun(
        seed=seed,
        result=report.result,
        violations=tuple(wrong for verdict in report.verdicts for wrong in verdict.violations),
        broken=(*report.problems, *(expectation.text for expectation, _, holds in report.expectations if not holds)),
        times={trouble.fault: trouble.times for trouble in report.troubles},
        hits={trouble.fault: trouble.hits for trouble in report.troubles},
        cases={verdict.invariant.number: verdict.cases for verdict in report.verdicts},
        requests=round(report.figures.get("fleet", {}).get("requests") or 0),
        duration_s=report.duration_s,
        cpu_s=report.cpu_s,
    )


def run_seeds(
    executor: Executor,
    text: bytes | None,
    source: str,
    ceremonies: Mapping[str, bytes],
    *,
    first: int,
    seeds: int,
    jobs: int = 1,
) -> Generator[SeedRun, None, None]:
    """The results of the seeds from ``first`` on, in their order, so that the first violation is always the same. When
    the caller stops, the rest is canceled.
    """
    wanted = iter(range(first, first + seeds))
    handed = deque(
        executor.submit(run_seed, text, source, ceremonies, seed) for seed in islice(wanted, max(1, jobs) * AHEAD)
    )
    try:
        while handed:
            yield handed.popleft().result()
            for seed in islice(wanted, 1):
                handed.append(executor.submit(run_seed, text, source, ceremonies, seed))
    finally:
        for future in handed:
            future.cancel()


@dataclass(slots=True)
class Coverage:
    """The sum of many seeds, each with ``hubs`` hubs. Kinds of trouble and invariants that no seed met have 0."""

    hubs: int = 1
    runs: int = 0
    first: int | None = None
    last: int | None = None
    seeds_with: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    times: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    hits: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    cases: Counter[str] = field(default_factory=lambda: Counter({i.number: 0 for i in INVARIANTS}))
    violated: list[SeedRun] = field(default_factory=list)
    unexpected: list[SeedRun] = field(default_factory=list)
    requests: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    workers: dict[str, list[SeedRun]] = field(default_factory=dict)
    """The seeds of each worker of a cluster, by its name."""

    def never_met(self) -> tuple[str, ...]:
        """Kinds of trouble that never came or met no message, and invariants without a case, of those that can be."""
        idle = [name for name, kind in KINDS.items() if not (self.hits if kind.fault else self.times)[name]]
        idle += [number for number, cases in self.cases.items() if not cases]
        return tuple(name for name in idle if self.hubs > 1 or name not in (*OF_SEVERAL_HUBS, TAKEN_OVER))

    def add(self, run: SeedRun) -> None:
        self.runs += 1
        self.first = run.seed if self.first is None else self.first
        self.last = run.seed
        self.seeds_with.update(run.times.keys())
        self.times.update(run.times)
        self.hits.update(run.hits)
        self.cases.update(run.cases)
        if run.result is Result.VIOLATED:
            self.violated.append(run)
        if run.broken:
            self.unexpected.append(run)
        self.requests += run.requests
        self.virtual_s += run.duration_s
        self.cpu_s += run.cpu_s
        if run.worker:
            self.workers.setdefault(run.worker, []).append(run)


SEEDS_SCHEMA = "fleetsim-sim-seeds/1"


def coverage_lines(coverage: Coverage, name: str, *, wanted: int, wall_s: float) -> Iterator[str]:
    """The coverage as lines: verdict, violations with their seeds, then each kind of trouble and each invariant."""
    seeds = "no seed" if not coverage.runs else f"seeds {coverage.first} to {coverage.last}"
    rules = f"{len(coverage.violated)} broke a rule that must always hold" if coverage.violated else "no rule broken"
    yield f"{name}, {seeds}: {rules}" + (f" ({coverage.runs:,} of {wanted:,} played)" if coverage.runs < wanted else "")
    yield (
        f"{in_words(coverage.virtual_s)} of {coverage.requests:,} requests played in {in_words(wall_s)}, "
        f"{in_words(coverage.cpu_s)} of processor time"
    )
    for worker, runs in sorted(coverage.workers.items()):
        took = in_words(sum(run.wall_s for run in runs))
        yield f"  {one_line(worker, 60)} played {len(runs):,} in {took}: {_spans([run.seed for run in runs])}"
    for run in coverage.violated[:SHOWN_MAX]:
        first = run.violations[0]
        who = " ".join(part for part in (first.agent, first.correlation_id) if part)
        yield f"  BROKEN {first.invariant} on seed {run.seed}, {len(run.violations)} times"
        yield f"         after {in_words(first.at_s)}, {who}: {one_line(first.said, 120)}"
    if coverage.unexpected:
        yield f"  {len(coverage.unexpected):,} seeds were not as expected:"
        broken = sorted({text for run in coverage.unexpected for text in run.broken})
        for text in broken:
            those = [run.seed for run in coverage.unexpected if text in run.broken]
            yield f"    {text}: {len(those):,} seeds, first {those[0]}"
    yield ""
    yield f"{'trouble':<26}{'SEEDS':>8}{'TIMES':>9}{'MESSAGES':>10}"
    for fault, seeds_with in coverage.seeds_with.items():
        yield f"  {fault:<24}{seeds_with:>8,}{coverage.times[fault]:>9,}{coverage.hits[fault]:>10,}"
    if missed := coverage.never_met():
        yield f"never met or looked at: {', '.join(missed)}"
    yield ""
    yield "rules that always hold, and in how many cases:"
    for invariant in INVARIANTS:
        yield f"  {invariant.number} {invariant.rule}: {coverage.cases[invariant.number]:,}"


def _spans(seeds: list[int]) -> str:
    """Seeds in order, those that follow each other as ``3-7``."""
    spans: list[list[int]] = []
    for seed in seeds:
        if spans and spans[-1][-1] == seed - 1:
            spans[-1][1:] = [seed]
        else:
            spans.append([seed])
    return one_line(", ".join("-".join(map(str, span)) for span in spans), 200)


def coverage_json(coverage: Coverage, name: str, *, wall_s: float, shrunk: str | None) -> dict[str, Any]:
    return {
        "schema": SEEDS_SCHEMA,
        "scenario": name,
        "seeds": {"first": coverage.first, "last": coverage.last, "played": coverage.runs},
        "virtualSeconds": coverage.virtual_s,
        "wallSeconds": round(wall_s, 3),
        "cpuSeconds": round(coverage.cpu_s, 3),
        "requests": coverage.requests,
        "workers": [
            {"worker": name, "seeds": [run.seed for run in runs], "seconds": round(sum(run.wall_s for run in runs), 3)}
            for name, runs in sorted(coverage.workers.items())
        ],
        "violated": [
            {"seed": run.seed, "violations": [{"id": v.invariant, **v.as_json()} for v in run.violations]}
            for run in coverage.violated
        ],
        "unexpected": [{"seed": run.seed, "broken": list(run.broken)} for run in coverage.unexpected],
        "troubles": {
            fault: {"seeds": seeds, "times": coverage.times[fault], "messages": coverage.hits[fault]}
            for fault, seeds in coverage.seeds_with.items()
        },
        "cases": dict(coverage.cases),
        "neverMet": list(coverage.never_met()),
        "shrunk": shrunk,
    }


Values: TypeAlias = dict[str, Any]
SHORTEST_S = 60.0
KEPT = {"name", "seed"}


def cut_down(
    executor: Executor,
    values: Values,
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    run: SeedRun,
    *,
    go_on: Callable[[int, Values], bool],
) -> Values | None:
    """The smallest scenario found that breaks the rule which ``run`` broke first, with its seed in it.

    ``values`` are the keys of ``scenario``'s file. None if the run cannot be repeated.
    """
    wrong = run.violations[0]
    seeded = {**values, "seed": run.seed}

    def breaks(text: str) -> bool:
        tried = executor.submit(run_seed, text.encode(), "shrunk", ceremonies, run.seed).result()
        return any(violation.invariant == wrong.invariant for violation in tried.violations)

    for start in (with_mix_written(seeded, with_seed(scenario, run.seed)), seeded):
        if breaks(scenario_text(start)):
            return Shrinker(start, breaks, go_on).run(wrong.at_s)
    return None


class _Enough(Exception):
    """No more tries."""


class Shrinker:
    """Looks for the smallest scenario that still breaks the rule, as ``values`` does.

    ``breaks`` plays the text of a scenario. ``go_on`` is called before each try with the number of tries and the
    smallest scenario so far, and returns whether to try again.
    """

    def __init__(self, values: Values, breaks: Callable[[str], bool], go_on: Callable[[int, Values], bool]) -> None:
        self.values = values
        self._tries = 0
        self._breaks = breaks
        self._go_on = go_on
        self._seen = {scenario_text(values)}

    def run(self, broken_at_s: float) -> Values:
        """The smallest found; ``values`` broke the rule at ``broken_at_s`` of its run."""
        before = None
        try:
            for end_s in (broken_at_s + SHORTEST_S, broken_at_s * 1.25 + SHORTEST_S):
                if end_s < seconds_of(self.values["duration"]) and self._lasts(end_s):
                    break
            while before != self.values:
                before = self.values
                for key in ("weather", "fleet", "traffic", "weather"):
                    parts = 2  # take out halves of the list or mapping first, then smaller parts, then single items
                    while whole := self.values.get(key):
                        items = list(whole.items() if isinstance(whole, Mapping) else whole)
                        size = max(1, len(items) // parts)
                        rests = ([*items[:at], *items[at + size :]] for at in range(0, len(items), size))
                        if any(self._try({**self.values, key: type(whole)(rest)}) for rest in rests):
                            parts = max(2, parts - 1)
                        elif size == 1:
                            break
                        else:
                            parts *= 2
                while self._lasts(seconds_of(self.values["duration"]) / 2):
                    pass
                while any(map(self._try, _without_one_key(self.values))):
                    pass
        except (_Enough, KeyboardInterrupt):  # the person has waited long enough, and gets the smallest so far
            pass
        return self.values

    def _lasts(self, seconds: float) -> bool:
        return seconds >= SHORTEST_S and self._try({**self.values, "duration": f"{round(seconds)}s"})

    def _try(self, values: Values) -> bool:
        """Whether it still breaks the rule, and so is the smallest yet. A text that is not a scenario does not."""
        try:
            values = _consistent(values)
            text = scenario_text(values)
            parse_scenario(text, "shrunk")
        except (ConfigError, KeyError):
            return False
        if text in self._seen:
            return False
        self._seen.add(text)
        if not self._go_on(self._tries, self.values):
            raise _Enough
        self._tries += 1
        if not self._breaks(text):
            return False
        self.values = values
        return True


def _consistent(values: Values) -> Values:
    """Without what names an agent or skill that is gone, or begins after the end."""
    fleet, end_s = values["fleet"], seconds_of(values["duration"])
    names = {None, *fleet} | {
        f"{name}-{n + 1}" for name, agent in fleet.items() for n in range(agent.get("replicas", 1))
    }
    offered = {None} | {skill for agent in fleet.values() for skill in agent["skills"]}

    def means_something(part: Values) -> bool:
        when = str(part.get("at", part.get("begins", "0s")))
        known = part.get("agent") in names and part.get("skill") in offered
        return known and (":" in when or seconds_of(when) < end_s)

    plausible = {}
    for key, value in values.items():
        plausible[key] = [*filter(means_something, value)] if key in {"traffic", "weather"} else value
    return {key: value for key, value in plausible.items() if value or key not in {"traffic", "weather"}}


def _without_one_key(value: Any) -> Iterator[Any]:
    """The value without one of its keys, at any depth."""
    for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(value, Mapping) and key not in KEPT:
            yield {other: item for other, item in value.items() if other != key}
        if isinstance(inner, Mapping | list):
            for smaller in _without_one_key(inner):
                yield (
                    {**value, key: smaller}
                    if isinstance(value, Mapping)
                    else [*value[:key], smaller, *value[key + 1 :]]
                )
