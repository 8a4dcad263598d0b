"""A twin as the YAML of a scenario, with comments that say what each number is from. Pure.

Whatever came from an agent is written as quoted text, or as a name that a scenario may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fleetsim.caller.config import NAME
from fleetsim.ceremony.written import value_text
from fleetsim.model.work import ID
from fleetsim.sim.expectation import SECONDS_IN
from fleetsim.sim.observed import Observed
from fleetsim.sim.quantities import in_words, seconds_of
from fleetsim.sim.twin import FEW, AgentTwin, Distribution, LogNormal, PeopleTwin, SkillTwin, TrafficTwin, Twin

WORDS_ERROR_MAX = 0.003
"""How far a span in words may be from the number before it is written as a number."""
_AGENT = re.compile(NAME)


def twin_text(
    twin: Twin, seen: Observed, *, name: str, ceremonies: str | None, settings: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """The text of the scenario, and what of the fleet is not in it, since a scenario has no such names."""
    left_out = tuple(_left_out(twin))
    agents = {
        agent: replace(fitted, skills={skill: fit for skill, fit in fitted.skills.items() if ID.fullmatch(skill)})
        for agent, fitted in twin.agents.items()
        if _AGENT.fullmatch(agent)
    }
    agents = {agent: fitted for agent, fitted in agents.items() if fitted.skills}
    traffic = tuple(one for one in twin.traffic if one.agent in agents and one.skill in agents[one.agent].skills)
    twin = replace(twin, agents=agents, traffic=traffic)
    return "".join(f"{line}\n" for line in _lines(twin, seen, name, ceremonies, settings, left_out)), left_out


def _left_out(twin: Twin) -> Iterator[str]:
    for agent, fitted in twin.agents.items():
        if not _AGENT.fullmatch(agent):
            yield f"agent {value_text(agent)}"
        else:
            yield from (f"skill {value_text(s)} of {agent}" for s in fitted.skills if not ID.fullmatch(s))


def _lines(
    twin: Twin,
    seen: Observed,
    name: str,
    ceremonies: str | None,
    settings: Mapping[str, Any],
    left_out: tuple[str, ...],
) -> Iterator[str]:
    total = f"{len(seen.outcomes):,} requests from {seen.since:%Y-%m-%d %H:%M} to {seen.until:%Y-%m-%d %H:%M} UTC"
    yield f"# Fitted to what {value_text(seen.source)} holds: {total}."
    yield "# Everything may be edited. Play it: fleetsim sim FILE; compare: fleetsim sim diff FILE OTHER."
    if twin.others:
        ends = ", ".join(f"{count} {kind}" for kind, count in twin.others.items())
        yield f"# Ends that no agent answers for: {ends}."
        yield "# What caused them is not in this file: add it under `weather:` (docs/reference/scenarios.md)."
    yield from (f"# Left out, since a scenario has no such name: {what}" for what in left_out)
    yield f"name: {value_text(name)}"
    yield f"duration: {span(twin.duration_s)}"
    yield f'start: "{twin.start.isoformat().replace("+00:00", "Z")}"'
    if settings:
        yield "settings:  # from agents.yaml"
        yield from (f"  {key}: {value_text(value)}" for key, value in settings.items())
    yield "fleet:"
    for agent, fitted in twin.agents.items():
        yield from _agent(agent, fitted)
    if twin.traffic:
        yield "traffic:"
        for one in twin.traffic:
            yield from _traffic(one)
    if ceremonies is not None:
        yield f"ceremonies: {value_text(ceremonies)}  # their requests are none of the traffic above"
    yield from _people(twin.people)
    yield "# expect:"
    yield "#   - fleet.success_rate >= 95%"


def _agent(name: str, fitted: AgentTwin) -> Iterator[str]:
    called = fitted.called
    yield f"  {value_text(name)}:"
    if called.dialect is None:
        yield "    # which version of A2A it speaks was not seen"
    else:
        yield f'    dialect: "{called.dialect}"'
    yield f"    streaming: {value_text(called.streaming)}"
    yield f"    push: {value_text(called.push)}"
    if fitted.waits_s:
        yield f"    waits: {span(fitted.waits_s)}  # its reply brought the result"
    yield "    skills:"
    for skill, fit in fitted.skills.items():
        yield f"      {value_text(skill)}:"
        yield from (f"        {line}" for line in _skill(fit))


def _skill(fit: SkillTwin) -> Iterator[str]:
    ends = ", ".join(f"{count} {kind}" for kind, count in fit.kinds.items())
    few = f"; {fit.tasks} tasks only: shares and times are guesses" if fit.few else ""
    yield f"# {ends}{few}"
    yield f"takes: {_written(fit.takes, span)}"
    yield f"chunks: {_written(fit.chunks, number)}"
    yield f"succeeds: {number(fit.succeeds)}"
    for key, share in (("rejects", fit.rejects), ("asks", fit.asks), ("asksAgain", fit.asks_again)):
        if share:
            yield f"{key}: {number(share)}"
    if fit.cost is not None:
        yield f"cost: {_written(fit.cost, number)}"
    if fit.confidence is not None:
        yield f"confidence: {_written(fit.confidence, number)}"
    if fit.fails_with is not None:
        yield f"failsWith: {value_text(fit.fails_with)}"


def _traffic(one: TrafficTwin) -> Iterator[str]:
    requests = "request" if one.requests == 1 else "requests"
    yield f"  # {one.requests:,} {requests}"
    yield f"  - agent: {value_text(one.agent)}"
    yield f"    skill: {value_text(one.skill)}"
    yield f"    rate: {rate(one.per_s)}"
    if one.steady:
        yield "    arrivals: steady"
    if one.curve is not None:
        yield f"    curve: [{', '.join(number(weight) for weight in one.curve)}]  # UTC, an hour each"
    if one.burst > 1:
        yield f"    burst: {one.burst}"
        yield f"    within: {span(one.within_s)}"
    if one.turns > 1:
        yield f"    turns: {one.turns}"
    if one.pause is not None:
        yield f"    pause: {_written(one.pause, span)}"


def _people(people: PeopleTwin) -> Iterator[str]:
    lines = []
    if people.answer_after is not None:
        lines.append(f"answerAfter: {_written(people.answer_after, span)}")
    for key, share in (("never", people.never), ("reject", people.reject), ("cancel", people.cancel)):
        if share:
            lines.append(f"{key}: {number(share)}")
    if people.cancel_after is not None:
        lines.append(f"cancelAfter: {_written(people.cancel_after, span)}")
    if lines:
        few = ": too few to tell much" if people.questions < FEW else ""
        yield f"people:  # {people.questions} questions{few}"
        yield from (f"  {line}" for line in lines)


def _written(amount: Distribution, words: Any) -> str:
    match amount:
        case LogNormal(p50=p50, p95=p95):
            return f"{{p50: {words(p50)}, p95: {words(p95)}}}"
        case tuple():
            return f"{{quantiles: [{', '.join(map(words, amount))}]}}"
        case _:
            return str(words(amount))


def number(amount: float) -> str:
    """A number in four digits, never as a power of ten."""
    return _plain(float(f"{amount:.4g}"))


def _plain(amount: float) -> str:
    text = f"{amount:.10f}".rstrip("0").rstrip(".")
    return text or "0"


def span(seconds: float) -> str:
    """A span in a person's words where those are near enough, else in seconds."""
    words = in_words(seconds)
    if abs(seconds_of(words) - seconds) <= WORDS_ERROR_MAX * seconds:
        return words
    return f"{number(seconds * 1000)}ms" if seconds < 1 else f"{number(seconds)}s"


def rate(per_s: float) -> str:
    """A rate in the unit that makes it a small number of at least one."""
    for unit in ("s", "m", "h", "d"):
        if per_s * SECONDS_IN[unit] >= 1 or unit == "d":
            return f"{number(per_s * SECONDS_IN[unit])}/{unit}"
    raise AssertionError("unreachable: a day is the last unit")
