"""A scenario that breaks a rule, cut down to what it takes: fewer troubles, less traffic, fewer agents, less time.

Delta debugging (Zeller and Hildebrandt, 2002) over the keys of the file. What is tried is always the text of a file, so
what is found is a file that breaks the same rule when it is played again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, TypeAlias

from fleetsim.model.errors import ConfigError
from fleetsim.sim.quantities import seconds_of
from fleetsim.sim.scenario import Scenario, parse_scenario, with_seed
from fleetsim.sim.seeds import SeedRun, run_seed
from fleetsim.sim.written import scenario_text, with_mix_written

Values: TypeAlias = dict[str, Any]
SHORTEST_S = 60.0
KEPT = {"name", "seed"}


def shrink(
    values: Values, breaks: Callable[[str], bool], *, broken_at_s: float, go_on: Callable[[int, Values], bool]
) -> Values:
    """The smallest scenario found that still breaks the rule; ``values`` does, at ``broken_at_s`` of its run.

    ``breaks`` plays the text of a scenario; ``go_on`` is told before each try how many there were and the smallest
    scenario so far, and says whether to go on.
    """
    return _Search(values, breaks, go_on).run(broken_at_s)


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
            return shrink(start, breaks, broken_at_s=wrong.at_s, go_on=go_on)
    return None


class _Enough(Exception):
    """No more tries."""


class _Search:
    def __init__(self, values: Values, breaks: Callable[[str], bool], go_on: Callable[[int, Values], bool]) -> None:
        self.values = values
        self._tries = 0
        self._breaks = breaks
        self._go_on = go_on
        self._seen = {scenario_text(values)}

    def run(self, broken_at_s: float) -> Values:
        before = None
        try:
            for end_s in (broken_at_s + SHORTEST_S, broken_at_s * 1.25 + SHORTEST_S):
                if end_s < seconds_of(self.values["duration"]) and self._lasts(end_s):
                    break
            while before != self.values:
                before = self.values
                for key in ("weather", "fleet", "traffic", "weather"):
                    self._fewer(key)
                while self._lasts(seconds_of(self.values["duration"]) / 2):
                    pass
                while any(map(self._try, _without_one_key(self.values))):
                    pass
        except (_Enough, KeyboardInterrupt):  # whoever has waited long enough is given what there is
            pass
        return self.values

    def _lasts(self, seconds: float) -> bool:
        return seconds >= SHORTEST_S and self._try({**self.values, "duration": f"{round(seconds)}s"})

    def _fewer(self, key: str) -> None:
        """Take out parts of a list or mapping: halves first, then smaller ones, then each by itself."""
        parts = 2
        while self.values.get(key):
            whole = self.values[key]
            items = list(whole.items() if isinstance(whole, Mapping) else whole)
            size = max(1, len(items) // parts)
            rests = ([*items[:at], *items[at + size :]] for at in range(0, len(items), size))
            if any(self._try({**self.values, key: type(whole)(rest)}) for rest in rests):
                parts = max(2, parts - 1)
            elif size == 1:
                return
            else:
                parts *= 2

    def _try(self, values: Values) -> bool:
        """Whether it still breaks, and so is the smallest yet. What is no scenario breaks nothing."""
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

    kept = {}
    for key, value in values.items():
        kept[key] = [*filter(means_something, value)] if key in {"traffic", "weather"} else value
    return {key: value for key, value in kept.items() if value or key not in {"traffic", "weather"}}


def _without_one_key(value: Any) -> Iterator[Any]:
    """The value without one of its keys, at any depth."""
    for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(value, Mapping) and key not in KEPT:
            yield {other: kept for other, kept in value.items() if other != key}
        if isinstance(inner, Mapping | list):
            for smaller in _without_one_key(inner):
                yield (
                    {**value, key: smaller}
                    if isinstance(value, Mapping)
                    else [*value[:key], smaller, *value[key + 1 :]]
                )
