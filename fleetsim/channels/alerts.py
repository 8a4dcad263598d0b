"""Alerts: problems of the fleet as a whole, published once when they begin and once when they end. Pure.

Each look reads the facts from fleet health. An alert is sent once a channel's sink took it; ``Alerts`` remembers
that, so that it is sent no more often than the cooldown says, and is raised again while no sink took it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from fleetsim.api.answer import iso
from fleetsim.api.health import HealthSnapshot
from fleetsim.channels.channel import ChannelIds
from fleetsim.events.fleet import AlertCleared, AlertRaised, NoticeDelivered
from fleetsim.events.request import EPOCH
from fleetsim.health.fleet_health import Condition, Share
from fleetsim.health.outcome_stats import FailureRate
from fleetsim.model.text import one_line
from fleetsim.runtime.explain import DECLARED

AGAIN_S = 300.0
"""After how long an alert that no sink took is raised again: a full queue is empty by then, and each retry made."""


class AlertKind(StrEnum):
    FAILURE_RATE = "failure_rate"
    COST = "cost"
    ORPHANED_SKILL = "orphaned_skill"
    AGENT_DOWN = "agent_down"
    CEREMONY_MISSED = "ceremony_missed"
    STORAGE = "storage"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """``fleet.alerts``: the channels that get alerts, and the limits. Null switches a limit off."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    channels: ChannelIds = ()
    """Channels that get the alerts; without any channel the fleet is not checked."""
    failure_rate_above: Share | None = 0.5
    """An agent that failed at more than this share of its last hour's outcomes."""
    failure_outcomes_min: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 5
    """How many outcomes of that hour it takes to judge by."""
    cost_usd_1d_above: Annotated[float, Field(ge=0, le=1e9, strict=True)] | None = None
    """The fleet cost more than this number of US dollars in the last 24 hours."""
    agent_down_s: Annotated[float, Field(ge=0, le=86_400, strict=True)] | None = 60.0
    """The seconds for which an agent has been unreachable, left alone after failures, or refusing our credential."""
    orphaned_skills: bool = True
    """A skill that failed in the last 24 hours, and at which no agent succeeded."""
    ceremony_missed: bool = True
    """A ceremony that missed a slot, until it fires again."""
    storage: bool = True
    """The hub's ledger takes no writes, as with a full disk: no request is accepted."""
    limit_share_from: Share | None = 0.8
    """A limit of which this share is used and reserved, until its period ends or it is raised."""
    cooldown_s: Annotated[float, Field(ge=0, le=86_400, strict=True)] = 3_600.0
    """The least time between two alerts of one kind about the same thing."""


class AlertKey(NamedTuple):
    """The subject of an alert: an agent, a skill, a ceremony, or the whole fleet."""

    kind: AlertKind
    subject: str = ""

    @property
    def what(self) -> str:
        subject = one_line(self.subject, 80)
        return {
            AlertKind.FAILURE_RATE: f"{subject} fails too often",
            AlertKind.COST: "the fleet costs too much",
            AlertKind.ORPHANED_SKILL: f"nobody succeeds at {subject}",
            AlertKind.AGENT_DOWN: f"{subject} is down",
            AlertKind.CEREMONY_MISSED: f"ceremony {subject} missed its time",
            AlertKind.STORAGE: "the hub cannot record anything",
            AlertKind.LIMIT: f"the limit {subject} is nearly reached",
        }[self.kind]


class AlertFacts(NamedTuple):
    """The problems of this moment with their figures; ``undecided`` ones may hold or not."""

    holding: Mapping[AlertKey, str]
    undecided: Collection[AlertKey] = ()


def what_holds(
    settings: AlertSettings,
    snapshot: HealthSnapshot,
    last_hour: Mapping[str, FailureRate],
    missed: Mapping[str, str],
    conditions: Mapping[str, Condition],
) -> AlertFacts:
    """The problems of the fleet at the moment of ``snapshot``.

    ``conditions`` are those of the agents that take work; ``missed`` are ceremonies and why. An agent is down if it
    would take no work; one that is not yet known, or has not been down for long enough, is neither down nor up.
    """
    holding: dict[AlertKey, str] = {}
    undecided: set[AlertKey] = set()
    for row in (row for row in snapshot.agents if row.agent_name in conditions):
        rate, condition = last_hour.get(row.agent_name), conditions[row.agent_name]
        limit = settings.failure_rate_above
        if (
            rate is not None
            and limit is not None
            and rate.answered >= settings.failure_outcomes_min
            and rate.share > limit
        ):
            text = f"{rate.failures} of {rate.answered} in the last hour"
            holding[AlertKey(AlertKind.FAILURE_RATE, row.agent_name)] = text
        down = AlertKey(AlertKind.AGENT_DOWN, row.agent_name)
        if condition.barred and settings.agent_down_s is not None:
            lasted_s = (snapshot.collected_at - row.since).total_seconds() if row.since else settings.agent_down_s
            if lasted_s >= settings.agent_down_s:
                holding[down] = row.why
            else:
                undecided.add(down)
        elif condition.reachable is None:
            undecided.add(down)
    limit = settings.cost_usd_1d_above
    if limit is not None and snapshot.total_cost_usd_1d > limit:
        text = f"${snapshot.total_cost_usd_1d:,.2f} in the last 24 hours, more than ${limit:,.2f}"
        holding[AlertKey(AlertKind.COST)] = text
    if settings.orphaned_skills:
        for skill in snapshot.orphaned_skills:
            holding[AlertKey(AlertKind.ORPHANED_SKILL, skill)] = "it failed, and not one success in the last 24 hours"
    if settings.ceremony_missed:
        holding |= {AlertKey(AlertKind.CEREMONY_MISSED, ceremony): why for ceremony, why in missed.items()}
    for use in snapshot.limits or ():
        if settings.limit_share_from is not None and use.share >= settings.limit_share_from:
            text = f"{use.share:.0%} of {use.most:,g} {use.unit} used and reserved until {iso(use.resets_at)}"
            holding[AlertKey(AlertKind.LIMIT, use.name)] = text
    if settings.storage and snapshot.storage:
        holding[AlertKey(AlertKind.STORAGE)] = one_line(snapshot.storage, 300)
    return AlertFacts(holding, undecided)


@dataclass(slots=True)
class _State:
    """``since`` it holds, None if it does not; ``raised_at`` until it is cleared; whether that alert was delivered, and
    when the newest one was. A clock that was set back delays nothing."""

    since: datetime | None = None
    raised_at: datetime | None = None
    delivered: bool = False
    delivered_at: datetime | None = None

    def on_its_way(self, now: datetime) -> bool:
        """Whether the alert was raised, and may still be delivered."""
        raised_at = None if self.delivered else self.raised_at
        return raised_at is not None and 0 <= (now - raised_at).total_seconds() < AGAIN_S

    def cooling(self, now: datetime, cooldown_s: float) -> bool:
        """Whether the newest alert was delivered too lately for another."""
        return self.delivered_at is not None and 0 <= (now - self.delivered_at).total_seconds() < cooldown_s


class Alerts:
    """The facts that hold, and the alerts that were raised and delivered."""

    def __init__(self) -> None:
        self._states: dict[AlertKey, _State] = {}

    def recall(self, events: Iterable[AlertRaised | AlertCleared | NoticeDelivered]) -> tuple[AlertKey, ...]:
        """Take up the events of an earlier run of the hub, oldest first; the alerts without an end."""
        for event in events:
            if isinstance(event, NoticeDelivered):
                if event.kind == "alert" and event.alert in set(AlertKind):
                    self.delivered(AlertKey(AlertKind(event.alert), event.subject), event.at)
            elif event.kind in set(AlertKind):
                state = self._states.setdefault(AlertKey(AlertKind(event.kind), event.subject), _State())
                raised = isinstance(event, AlertRaised)
                state.since = (event.since or event.at) if raised else None
                state.raised_at, state.delivered = event.at if raised else None, False
        open_now = {key: state for key, state in self._states.items() if state.raised_at is not None}
        for state in open_now.values():
            state.raised_at = EPOCH  # the run that had it on its way is over
        return tuple(open_now)

    def delivered(self, key: AlertKey, at: datetime) -> None:
        """A sink took the alert."""
        state = self._states.get(key)
        if state is not None and state.raised_at is not None:
            state.delivered, state.delivered_at = True, at

    def forget_agents_but(self, agents: Collection[str]) -> None:
        """Drop the alerts about agents that were removed or paused."""
        about = {AlertKind.AGENT_DOWN, AlertKind.FAILURE_RATE}
        for key in [key for key in self._states if key.kind in about and key.subject not in agents]:
            del self._states[key]

    def judge(self, facts: AlertFacts, now: datetime, cooldown_s: float) -> tuple[AlertRaised | AlertCleared, ...]:
        """The alerts that begin or end at ``now``."""
        news: list[AlertRaised | AlertCleared] = []
        for key, detail in facts.holding.items():
            state = self._states.setdefault(key, _State())
            state.since = state.since or now
            if not (state.delivered or state.on_its_way(now) or state.cooling(now, cooldown_s)):
                state.raised_at = now
                news.append(AlertRaised(**_about(key), detail=detail, since=state.since))
        for key, state in tuple(self._states.items()):
            if key in facts.holding or key in facts.undecided or state.on_its_way(now):
                continue
            if state.raised_at is not None:
                news.append(AlertCleared(**_about(key), since=state.since, delivered=state.delivered))
            state.since, state.raised_at, state.delivered = None, None, False
            if not state.cooling(now, cooldown_s):
                del self._states[key]
        return tuple(news)


def _about(key: AlertKey) -> dict[str, Any]:
    """The members of an event that say what an alert is about."""
    agent = key.subject if key.kind in {AlertKind.AGENT_DOWN, AlertKind.FAILURE_RATE} else None
    skill = key.subject if key.kind is AlertKind.ORPHANED_SKILL else None
    return {"agent": agent, "skill": skill, "kind": key.kind.value, "subject": key.subject}
