"""Many seeds, of one scenario or each of its own: played by any ``Executor``, told of one by one, and added up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from fleetsim.sim.call_invariants import Violation
from fleetsim.sim.generated import generated
from fleetsim.sim.invariants import INVARIANTS
from fleetsim.sim.played import played
from fleetsim.sim.report import Result
from fleetsim.sim.scenario import parse_scenario, with_seed
from fleetsim.sim.troubles import KINDS

AHEAD = 2
"""How many seeds a worker has waiting: none is idle while another is at a long one."""
AGAIN_EVERY = 20
"""One seed of so many is played twice: it must be the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """What became of one seed. ``times`` and ``hits`` are by kind of trouble, ``cases`` by number of the invariant."""

    seed: int
    result: Result
    violations: tuple[Violation, ...]
    broken: tuple[str, ...]
    times: Mapping[str, int]
    hits: Mapping[str, int]
    cases: Mapping[str, int]
    requests: int
    duration_s: float
    cpu_s: float


def run_seed(text: bytes | None, source: str, ceremonies: Mapping[str, bytes], seed: int) -> SeedRun:
    """Play one seed. Plain values in and out, so that any process can do it.

    ``ceremonies`` are the files of its folder, by name, if it has one. Without a ``text`` the seed draws the whole
    scenario. Raises ConfigError for a wrong text.
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
    """What became of each seed from ``first`` on, in their order, so that the first violation is always the same.

    No more than ``jobs`` times ``AHEAD`` are handed out at once; what is not wanted any more is withdrawn.
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
    """What many seeds came to, added up: a kind of trouble or a rule that no seed met is there with 0."""

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

    def never_met(self) -> tuple[str, ...]:
        """Kinds of trouble that no seed brought, or that met no message, and rules that were never looked at."""
        idle = [name for name, kind in KINDS.items() if not (self.hits if kind.fault else self.times)[name]]
        return (*idle, *(number for number, cases in self.cases.items() if not cases))

    def add(self, run: SeedRun) -> None:
        """One more."""
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
