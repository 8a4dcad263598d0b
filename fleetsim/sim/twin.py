"""A twin: a scenario fitted to a fleet that was observed, and its YAML. Pure.

Each number has its rule in a comment or docstring. A member for which there is too little data keeps the default of a
scenario. Text of an agent is written as a quoted string, or as a name that a scenario may have.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Any, NamedTuple, TypeAlias

from pydantic.alias_generators import to_camel

from fleetsim.ceremony.file import Ceremony
from fleetsim.ceremony.written import value_text
from fleetsim.fleet.settings import NAME
from fleetsim.model.errors import ConfigError
from fleetsim.model.spans import SECONDS_IN, in_words, seconds_of
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID, Cause, Outcome, OutcomeKind, UpdateSource
from fleetsim.request.track import Rules
from fleetsim.sim.observed import Observed
from fleetsim.sim.quantities import NORMAL_95, between
from fleetsim.sim.run import ObservedAgent

GOLDEN = 0.618_033_988_75
"""The fractional parts of its multiples lie evenly between 0 and 1."""
FEW = 30
"""With fewer tasks, a share or a 95th percentile is a guess, and the comment says so."""
LOG_NORMAL_MIN = 20
KOLMOGOROV_95 = 1.36
"""Times 1/sqrt(n): how far a sample's distribution strays from its own law in 95 of 100 cases."""
MEAN_ERROR_MAX = 0.02
QUANTILES = (21, 41, 101, 201)
ALIKE = 0.01
"""The relative distance from the median within which all amounts count as one."""
STEADY_CV = 0.15
"""Gaps between arrivals that vary less than this, as a share of their mean, are even; those of chance vary by 1."""
ARRIVALS_MIN = 30
BURST_MIN = 2.0
SHORT_GAPS_MIN = 0.6
"""The least share of the gaps within bursts that must be shorter than a quarter of the mean. Of random arrivals 22 % of
all gaps are, and of pairs one half.
"""
CURVE_MIN = 240
"""Requests from which on a skill has a daily curve of its own; with fewer it has the fleet's."""
DAY_S = 86_400.0
CONVERSATIONS_MIN = 3
TURNS_MAX = 20
PLAYED_MAX = 2_000
"""How many requests the scenario plays at most, unless it needs more for a whole day."""
DURATION_MIN_S = 60.0
WAITS_S_MAX = 3_600.0
REASON_CHARS_MAX = 200


class LogNormal(NamedTuple):
    """Half lie below ``p50``, 95 of 100 below ``p95``."""

    p50: float
    p95: float


Quantiles: TypeAlias = tuple[float, ...]
Distribution: TypeAlias = float | LogNormal | Quantiles
"""One amount, a law, or amounts as they were seen, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillTwin:
    """The behaviour of a skill, fitted to the ``tasks`` blamed on the agent; ``kinds`` counts all outcomes."""

    tasks: int
    kinds: Mapping[str, int]
    takes: Distribution
    chunks: Distribution
    succeeds: float
    rejects: float
    asks: float
    asks_again: float
    cost: Distribution | None
    confidence: Distribution | None
    fails_with: str | None

    @property
    def few(self) -> bool:
        """Whether shares and times are guesses."""
        return self.tasks < FEW


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTwin:
    """An agent: how it is called, how long its replies wait for the result, and its skills."""

    called: ObservedAgent
    skills: Mapping[str, SkillTwin]
    waits_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficTwin:
    """Requests of one skill at one agent; ``per_s`` counts bursts and conversations, not their requests."""

    agent: str
    skill: str
    requests: int
    per_s: float
    steady: bool = False
    curve: tuple[float, ...] | None = None
    burst: int = 1
    within_s: float = 1.0
    turns: int = 1
    pause: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleTwin:
    """The people, fitted to the ``questions`` that are over; None without data."""

    questions: int
    answer_after: Distribution | None
    never: float
    reject: float
    cancel: float
    cancel_after: Distribution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The whole fleet. ``others`` counts outcomes that are blamed on no agent; a twin leaves out their causes.
    ``left_out`` are the agents and skills with names that a scenario cannot have.
    """

    agents: Mapping[str, AgentTwin]
    traffic: tuple[TrafficTwin, ...]
    people: PeopleTwin
    start: datetime
    duration_s: float
    others: Mapping[str, int]
    left_out: tuple[str, ...]


def twin_of(seen: Observed, *, ceremonies: Sequence[Ceremony], poll_interval_s: float) -> Twin:
    """Fits a fleet to observations. ``ceremonies`` fire in the twin too, so their requests are left out of the traffic.
    ``poll_interval_s`` is the hub's. Raises ConfigError if no observed outcome is blamed on its agent.
    """
    asked = Counter(question.correlation_id for question in seen.questions)
    agents: dict[str, dict[str, SkillTwin]] = defaultdict(dict)
    unnamed: dict[str, None] = {}
    for (agent, skill), outcomes in seen.by_skill().items():
        if not any(outcome.counts for outcome in outcomes):
            continue
        if not _AGENT.fullmatch(agent):
            unnamed[f"agent {value_text(agent)}"] = None
        elif not ID.fullmatch(skill):
            unnamed[f"skill {value_text(skill)} of {agent}"] = None
        else:
            called = seen.agents.get(agent, ObservedAgent())
            agents[agent][skill] = _skill(outcomes, asked, 0.0 if called.streaming or called.push else poll_interval_s)
    if not agents:
        hint = "send some work first (`fleetsim send`), or look further back with --since 30d"
        ended = (
            f"{len(seen.outcomes)} requests ended, none of them by its agent's doing" if seen.outcomes else "nothing"
        )
        raise ConfigError(f"{seen.source}: {ended} was seen that a fleet could be fitted to", hint=hint)
    fired = {(target, ceremony.skill) for ceremony in ceremonies if ceremony.enabled for target in ceremony.targets}
    left_out = {
        outcome.correlation_id
        for outcome in seen.outcomes
        if outcome.correlation_id in seen.scheduled and fired & {(outcome.agent, outcome.skill), (ALL, outcome.skill)}
    }
    traffic = _traffic(seen, agents, left_out=frozenset(left_out))
    others = Counter(f"{o.kind.value} ({o.blame.value})" for o in seen.outcomes if not o.counts)
    return Twin(
        agents={
            name: AgentTwin(called=seen.agents.get(name, ObservedAgent()), skills=s, waits_s=_waits_s(seen, name))
            for name, s in agents.items()
        },
        traffic=traffic,
        people=_people(seen),
        start=seen.since.replace(microsecond=0),
        duration_s=_duration(seen, traffic),
        others=dict(others.most_common()),
        left_out=tuple(unnamed),
    )


def _waits_s(seen: Observed, agent: str) -> float:
    """How long the agent's replies wait for the result: an hour if all brought it, else as long as one that did."""
    ends = [outcome for outcome in seen.outcomes if outcome.agent == agent and outcome.counts]
    in_reply = [outcome.duration_ms / 1000 for outcome in ends if outcome.via is UpdateSource.REPLY]
    if not in_reply:
        return 0.0
    return WAITS_S_MAX if len(in_reply) == len(ends) else max(in_reply)


def _skill(outcomes: Sequence[Outcome], asked: Mapping[str, int], poll_interval_s: float) -> SkillTwin:
    """``poll_interval_s`` is 0 for an agent that tells by itself when a task ends."""
    mine = [outcome for outcome in outcomes if outcome.counts]
    rejected = sum(outcome.kind is OutcomeKind.REJECTED for outcome in mine)
    worked = [outcome for outcome in mine if outcome.kind is not OutcomeKind.REJECTED]
    failed = [outcome for outcome in worked if not outcome.success]
    reached = [outcome for outcome in outcomes if outcome.task_id is not None]
    once, twice = (sum(asked[o.correlation_id] >= times for o in reached) for times in (1, 2))
    unasked = [outcome for outcome in worked if not asked[outcome.correlation_id]]
    undisturbed = [outcome for outcome in unasked if outcome.success]
    costs = [outcome.cost_usd or 0.0 for outcome in worked]
    sure = [outcome.confidence for outcome in worked if outcome.confidence is not None]
    reasons = Counter(one_line(outcome.reason, REASON_CHARS_MAX) for outcome in failed if outcome.reason)
    return SkillTwin(
        tasks=len(mine),
        kinds=dict(Counter(outcome.kind.value for outcome in outcomes).most_common()),
        takes=distribution(
            list(_worked_s(unasked if len(unasked) >= FEW else worked, asked, poll_interval_s)) or [0.0]
        ),
        chunks=distribution([float(o.chunks) for o in undisturbed if o.chunks] or [0.0]),
        succeeds=1 - len(failed) / len(worked) if worked else 1.0,
        rejects=rejected / len(mine),
        asks=once / len(reached) if reached else 0.0,
        asks_again=twice / once if once else 0.0,
        cost=distribution(costs) if any(costs) else None,
        confidence=distribution(sure) if sure else None,
        fails_with=reasons.most_common(1)[0][0] if reasons else None,
    )


def _worked_s(outcomes: Sequence[Outcome], asked: Mapping[str, int], poll_interval_s: float) -> Iterator[float]:
    """How long the agent worked on each.

    If a poll showed a question or the end, the agent had stopped some time after the poll before. The pause between two
    polls is half of the time so far, at most the interval; the first poll comes after a second. After an answer polls
    begin again, and the agent of a scenario goes on for no longer than to the first of them. The ends are spread evenly
    over the middle half of the pauses: the polls of the twin come up to a tenth earlier or later.
    """
    first_s = min(Rules().look_first_s, poll_interval_s)
    seen = []
    for outcome in outcomes:
        last = {UpdateSource.POLL: 1, UpdateSource.REPLY: 0}.get(outcome.via)
        took_ms = outcome.duration_ms if outcome.agent_ms is None else outcome.agent_ms
        seen.append((took_ms / 1000, 0 if last is None else asked[outcome.correlation_id] + last))
    for at, (seconds, polls) in enumerate(sorted(seen)):
        pause = 0.0
        if polls and poll_interval_s:
            seconds = max(0.0, seconds - (polls - 1) * first_s)
            pause = seconds if seconds < 1.5 * first_s else min(seconds / 2, poll_interval_s)
        yield seconds - pause * (0.25 + at * GOLDEN % 1 / 2)


# ------------------------------------------------------------------ amounts that vary


def distribution(amounts: Sequence[float]) -> Distribution:
    """One amount, if all lie within 1 % of their middle. A log-normal law, if there are 20 amounts or more and they
    stray no further than a sample of it would (Kolmogorov and Smirnov, 95 %). Else quantiles: as few as keep the mean
    within 2 %.
    """
    ordered = sorted(amounts)
    middle = between(ordered, 0.5) if len(ordered) > 1 else ordered[0]
    if ordered[-1] - ordered[0] <= ALIKE * abs(middle):
        return middle
    if len(ordered) >= LOG_NORMAL_MIN and ordered[0] > 0:
        law = LogNormal(middle, between(ordered, 0.95))
        if law.p95 > law.p50 and _strays(ordered, law) <= KOLMOGOROV_95 / math.sqrt(len(ordered)):
            return law
    mean = fmean(ordered)
    seen = tuple(ordered)
    for count in QUANTILES:
        if count >= len(ordered):
            return tuple(ordered)
        seen = tuple(between(ordered, at / (count - 1)) for at in range(count))
        if abs(fmean((low + high) / 2 for low, high in pairwise(seen)) - mean) <= MEAN_ERROR_MAX * mean:
            break
    return seen


def _strays(ordered: Sequence[float], law: LogNormal) -> float:
    """The greatest distance between the share of the sample and that of the law below any amount."""
    normal = NormalDist(math.log(law.p50), math.log(law.p95 / law.p50) / NORMAL_95)
    shares = [normal.cdf(math.log(amount)) for amount in ordered]
    return max(max((at + 1) / len(shares) - share, share - at / len(shares)) for at, share in enumerate(shares))


# ------------------------------------------------------------------ requests that come in


def _traffic(
    seen: Observed, agents: Mapping[str, Mapping[str, object]], left_out: frozenset[str]
) -> tuple[TrafficTwin, ...]:
    fleet = [outcome.started_at for outcome in seen.outcomes if outcome.correlation_id not in left_out]
    traffic: list[TrafficTwin] = []
    for (agent, skill), outcomes in seen.by_skill().items():
        if skill not in agents.get(agent, {}):
            continue
        contexts: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            if outcome.correlation_id not in left_out:
                contexts[outcome.context_id or outcome.correlation_id].append(outcome)
        # Requests of one context are a conversation if each came after the answer to the one before.
        several = (turns for turns in contexts.values() if len(turns) > 1)
        talks = [turns for turns in several if all(b.started_at >= a.ended_at for a, b in pairwise(turns))]
        talks = talks if len(talks) >= CONVERSATIONS_MIN else []
        in_talks = {id(turns) for turns in talks}
        single = [turn.started_at for turns in contexts.values() if id(turns) not in in_talks for turn in turns]
        if single:
            traffic.append(_arrivals(seen, agent, skill, sorted(single), fleet))
        if talks:
            turns = min(TURNS_MAX, round(fmean(map(len, talks))))
            pauses = [(b.started_at - a.ended_at).total_seconds() for talk in talks for a, b in pairwise(talk)]
            requests = sum(map(len, talks))
            per_s = requests / turns / max(seen.seconds, 1.0)
            pause = distribution([max(0.0, pause_s) for pause_s in pauses])
            traffic.append(
                TrafficTwin(agent=agent, skill=skill, requests=requests, per_s=per_s, turns=turns, pause=pause)
            )
    return tuple(traffic)


def _arrivals(
    seen: Observed, agent: str, skill: str, moments: Sequence[datetime], fleet: Sequence[datetime]
) -> TrafficTwin:
    """Steady, by chance or in bursts; with a daily curve if more than a day was seen."""
    window_s = max(seen.seconds, 1.0)
    curve = _curve(moments if len(moments) >= CURVE_MIN else fleet, seen) if window_s > DAY_S else None
    per_s = len(moments) / window_s
    if curve is not None:
        # The rate is that of the mean weight, which is not the mean rate unless all hours were seen alike.
        per_s = len(moments) / sum(seconds * curve[hour] for hour, seconds in _exposure(seen).items())
    made = TrafficTwin(agent=agent, skill=skill, requests=len(moments), per_s=per_s, curve=curve)
    if len(moments) < ARRIVALS_MIN:
        return made
    at_s = [(moment - seen.since).total_seconds() for moment in moments]
    gaps = [b - a for a, b in pairwise(at_s)]
    mean = fmean(gaps)
    if curve is None and mean > 0 and math.sqrt(fmean((gap - mean) ** 2 for gap in gaps)) < STEADY_CV * mean:
        return replace(made, steady=True)
    size = _dispersion(at_s, seen, curve)
    if size < BURST_MIN:
        return made
    burst = round(size)
    groups = [[at_s[0]]]
    for before, at in pairwise(at_s):
        if at - before > mean / 4:
            groups.append([])
        groups[-1].append(at)
    if len(gaps) + 1 - len(groups) < SHORT_GAPS_MIN * (1 - 1 / burst) * len(gaps):
        return made  # more came at one time of the day than at another, and each by itself
    spans = [group[-1] - group[0] for group in groups if len(group) > 1]
    within_s = fmean(spans) * (burst + 1) / (burst - 1) if spans else 1.0
    return replace(made, burst=burst, within_s=max(0.01, within_s), per_s=per_s / burst)


def _exposure(seen: Observed) -> dict[int, float]:
    """For how many seconds each hour of the day (UTC) was seen."""
    exposure: dict[int, float] = defaultdict(float)
    at = seen.since
    while at < seen.until:
        end = min(seen.until, at.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1))
        exposure[at.hour] += (end - at).total_seconds()
        at = end
    return exposure


def _curve(moments: Sequence[datetime], seen: Observed) -> tuple[float, ...] | None:
    """24 weights of a mean of 1, one an hour from midnight, UTC; None if the hours differ no more than by chance: as
    counts within hours do, which is more, the more come at once.
    """
    counts, exposure = Counter(moment.hour for moment in moments), _exposure(seen)
    rates = [counts[hour] / exposure[hour] if exposure[hour] else 0.0 for hour in range(24)]
    mean = fmean(rates)
    weights = tuple(round(rate / mean, 2) for rate in rates)
    expected = [len(moments) * exposure[hour] / sum(exposure.values()) for hour in range(24)]
    chi2 = sum((counts[hour] - many) ** 2 / many for hour, many in enumerate(expected) if many)
    at_once = _dispersion([(moment - seen.since).total_seconds() for moment in moments], seen, weights)
    return weights if chi2 > max(1.0, at_once) * (24 + 3 * math.sqrt(2 * 24)) else None


def _dispersion(at_s: Sequence[float], seen: Observed, curve: Sequence[float] | None) -> float:
    """How many requests come at once: the variance of counts in windows of about five requests over the mean that the
    curve lets expect. 0 if it may be chance, which has 1.
    """
    windows = max(5, len(at_s) // 5)
    width = max(seen.seconds, 1.0) / windows
    counts = Counter(min(windows - 1, int(at / width)) for at in at_s)
    weights = [1.0] * windows
    if curve is not None:
        weights = [curve[(seen.since + timedelta(seconds=(at + 0.5) * width)).hour] for at in range(windows)]
    whole = sum(weights)
    expected = [len(at_s) * weight / whole for weight in weights]
    chi2 = sum((counts[at] - mean) ** 2 / mean for at, mean in enumerate(expected) if mean > 0)
    degrees = sum(mean > 0 for mean in expected) - 1
    return chi2 / degrees if chi2 > degrees + 3 * math.sqrt(2 * degrees) else 0.0


# ------------------------------------------------------------------ people


def _people(seen: Observed) -> PeopleTwin:
    waits = [question.answered_s for question in seen.questions if question.answered_s is not None]
    asked = len(seen.questions)
    gave_up = [o for o in seen.outcomes if o.cause in {Cause.CANCELED_BY_PERSON, Cause.CANCEL_UNCONFIRMED}]
    return PeopleTwin(
        questions=asked,
        answer_after=distribution(waits) if waits else None,
        never=(asked - len(waits)) / asked if asked else 0.0,
        reject=sum(q.rejected for q in seen.questions) / len(waits) if waits else 0.0,
        cancel=len(gave_up) / len(seen.outcomes) if seen.outcomes else 0.0,
        cancel_after=distribution([o.duration_ms / 1000 for o in gave_up]) if gave_up else None,
    )


def _duration(seen: Observed, traffic: Sequence[TrafficTwin]) -> float:
    """As long as was seen, but no longer than ``PLAYED_MAX`` requests take; of a curve whole days."""
    per_s = sum(source.per_s * source.burst * source.turns for source in traffic)
    seconds = min(max(seen.seconds, DURATION_MIN_S), PLAYED_MAX / per_s if per_s else seen.seconds)
    if any(source.curve for source in traffic):
        return max(1, int(seconds // DAY_S)) * DAY_S
    return max(DURATION_MIN_S, seconds)


WORDS_ERROR_MAX = 0.003
"""How far a span in words may be from the number before it is written as a number."""
SPANS = frozenset({"takes", "pause", "answer_after", "cancel_after"})
SHARES = frozenset({"rejects", "asks", "asks_again", "never", "reject", "cancel"})
"""The keys that are 0 unless given."""
_AGENT = re.compile(NAME)


def twin_text(twin: Twin, seen: Observed, *, name: str, ceremonies: str | None, settings: Mapping[str, Any]) -> str:
    """The text of the scenario."""
    return "".join(f"{line}\n" for line in _lines(twin, seen, name, ceremonies, settings))


def _lines(twin: Twin, seen: Observed, name: str, ceremonies: str | None, settings: Mapping[str, Any]) -> Iterator[str]:
    total = f"{len(seen.outcomes):,} requests from {seen.since:%Y-%m-%d %H:%M} to {seen.until:%Y-%m-%d %H:%M} UTC"
    yield f"# Fitted to what {value_text(seen.source)} holds: {total}."
    yield "# Everything may be edited. Play it: fleetsim sim FILE; compare: fleetsim sim diff FILE OTHER."
    if twin.others:
        ends = ", ".join(f"{count} {kind}" for kind, count in twin.others.items())
        yield f"# Ends that no agent answers for: {ends}."
        yield "# What caused them is not in this file: add it under `weather:` (docs/reference/scenarios.md)."
    yield from (f"# Left out, since a scenario has no such name: {what}" for what in twin.left_out)
    yield f"name: {value_text(name)}"
    yield f"duration: {span(twin.duration_s)}"
    yield f'start: "{twin.start.isoformat().replace("+00:00", "Z")}"'
    if settings:
        yield "settings:  # from agents.yaml"
        yield from (f"  {key}: {value_text(value)}" for key, value in settings.items())
    yield "fleet:"
    for agent, fitted in twin.agents.items():
        called = fitted.called
        yield f"  {value_text(agent)}:"
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
            yield from (f"        {line}" for line in _skill_lines(fit))
    if twin.traffic:
        yield "traffic:"
        for source in twin.traffic:
            yield from _traffic_lines(source)
    if ceremonies is not None:
        yield f"ceremonies: {value_text(ceremonies)}  # the traffic above is without their requests"
    yield from _people_lines(twin.people)
    yield "# expect:"
    yield "#   - fleet.success_rate >= 95%"


def _skill_lines(fit: SkillTwin) -> Iterator[str]:
    ends = ", ".join(f"{count} {kind}" for kind, count in fit.kinds.items())
    few = f"; {fit.tasks} tasks only: shares and times are guesses" if fit.few else ""
    yield f"# {ends}{few}"
    yield from _keys(fit, "takes", "chunks", "succeeds", "rejects", "asks", "asks_again", "cost", "confidence")
    if fit.fails_with is not None:
        yield f"failsWith: {value_text(fit.fails_with)}"


def _traffic_lines(one: TrafficTwin) -> Iterator[str]:
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
    yield from (f"    {line}" for line in _keys(one, "pause"))


def _people_lines(people: PeopleTwin) -> Iterator[str]:
    lines = list(_keys(people, "answer_after", "never", "reject", "cancel", "cancel_after"))
    if lines:
        few = ": too few to tell much" if people.questions < FEW else ""
        yield f"people:  # {people.questions} question{'s' * (people.questions != 1)}{few}"
        yield from (f"  {line}" for line in lines)


def _keys(fitted: SkillTwin | TrafficTwin | PeopleTwin, *names: str) -> Iterator[str]:
    """A line for each of the keys that were fitted."""
    for name in names:
        amount = getattr(fitted, name)
        if amount is not None and (amount or name not in SHARES):
            yield f"{to_camel(name)}: {_written(amount, span if name in SPANS else number)}"


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
    text = f"{float(f'{amount:.4g}'):.10f}".rstrip("0").rstrip(".")
    return text or "0"


def span(seconds: float) -> str:
    """A span in a person's words where those are near enough, else in seconds."""
    words = in_words(seconds)
    if abs(seconds_of(words) - seconds) <= WORDS_ERROR_MAX * seconds:
        return words
    return f"{number(seconds * 1000)}ms" if seconds < 1 else f"{number(seconds)}s"


def rate(per_s: float) -> str:
    """A rate in the unit that makes it a small number of at least one."""
    unit = next((unit for unit in ("s", "m", "h") if per_s * SECONDS_IN[unit] >= 1), "d")
    return f"{number(per_s * SECONDS_IN[unit])}/{unit}"
