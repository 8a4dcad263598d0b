"""What was seen of a fleet: requests and how they ended, what was asked of people, how agents are called.

One shape, whether a hub's ledger tells it, its journal, or the recording of a run; ``twin`` and ``comparison`` read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from fleetsim.caller.event_wire import from_wire
from fleetsim.caller.events import (
    Event,
    OutcomeDecided,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    RequestAccepted,
    StreamReceived,
    TaskBound,
)
from fleetsim.caller.fleet_events import WebhookAccepted, WebhookRegistered
from fleetsim.caller.ledger import QuestionState
from fleetsim.caller.ledger.sqlite import read_ledger
from fleetsim.model.work import Decision, Outcome
from fleetsim.sim.recording import lines_of

OUTCOMES_MAX = 100_000
"""The newest requests that are looked at."""

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedQuestion:
    """Something an agent asked. ``answered_s`` is after how long it had its answer; None: nobody gave one in time."""

    correlation_id: str
    answered_s: float | None
    rejected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAgent:
    """How an agent was called; ``dialect`` is None if none of its tasks shows it."""

    dialect: str | None = None
    streaming: bool = False
    push: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen between two moments, of the requests that ended: the first and the last that came.

    ``outcomes`` are in the order in which their requests came, without what was said; ``scheduled`` names those that
    ceremonies made. ``questions`` are those that are over.
    """

    source: str
    since: datetime
    until: datetime
    outcomes: tuple[Outcome, ...] = field(repr=False)
    questions: tuple[ObservedQuestion, ...] = field(repr=False)
    agents: Mapping[str, ObservedAgent]
    scheduled: frozenset[str] = field(repr=False)

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return (self.until - self.since).total_seconds()

    def by_skill(self) -> dict[tuple[str, str], list[Outcome]]:
        """The outcomes of each skill at each agent, both in the order of their names."""
        groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for outcome in self.outcomes:
            groups[outcome.agent, outcome.skill].append(outcome)
        return dict(sorted(groups.items()))


def _observed(
    source: str,
    outcomes: Iterable[Outcome],
    questions: Iterable[ObservedQuestion],
    agents: Mapping[str, ObservedAgent],
    scheduled: Iterable[str],
    since: datetime | None,
) -> Observed:
    kept = sorted((o for o in outcomes if since is None or o.started_at >= since), key=lambda o: o.started_at)
    names = {outcome.correlation_id for outcome in kept}
    moment = since or datetime.min.replace(tzinfo=UTC)
    return Observed(
        source=source,
        since=kept[0].started_at if kept else moment,
        until=kept[-1].started_at if kept else moment,
        outcomes=tuple(replace(outcome, text="", parts=(), effects=()) for outcome in kept),
        questions=tuple(question for question in questions if question.correlation_id in names),
        agents=agents,
        scheduled=frozenset(scheduled) & names,
    )


async def of_ledger(path: Path, *, since: datetime) -> Observed:
    """What a hub's ledger holds of the requests that came since then.

    Raises:
        ConfigError: it cannot be read, or is no ledger.
    """
    async with read_ledger(path) as ledger:
        outcomes = await ledger.outcomes(since=since, limit=OUTCOMES_MAX)
        notes = await ledger.request_notes(since=since, limit=OUTCOMES_MAX)
        asked = await ledger.questions(open_only=False, limit=OUTCOMES_MAX)
        cards = {snapshot.agent: snapshot.card.get("capabilities") for snapshot in await ledger.cards()}
    called: dict[str, ObservedAgent] = {}
    for note in notes:
        if note.dialect is None:
            continue
        # How it is called now is what counts. Of one that streams no webhooks are asked for: its card says if it could.
        card = cards.get(note.agent)
        could = note.streaming and isinstance(card, Mapping) and card.get("pushNotifications") is True
        called[note.agent] = ObservedAgent(dialect=note.dialect, streaming=note.streaming, push=note.push or could)
    questions = [
        ObservedQuestion(
            correlation_id=record.question.correlation_id,
            answered_s=_after(record.question.asked_at, record.answered_at) if record.answer else None,
            rejected=record.answer is not None and record.answer.decision is Decision.REJECT,
        )
        for record in asked
        if record.answer is not None or record.state is QuestionState.EXPIRED
    ]
    scheduled = (note.correlation_id for note in notes if note.scheduled)
    return _observed(str(path), outcomes, questions, called, scheduled, since)


def _after(asked: datetime, answered: datetime | None) -> float:
    return max(0.0, ((answered or asked) - asked).total_seconds())


def of_recording(path: Path) -> Observed:
    """What the recording of a run holds; replicas are one agent, as in its scenario. Raises ConfigError."""
    lines = lines_of(path)
    start = next(lines)
    events = (from_wire(line["event"]) for line in lines if line["kind"] == "event")
    return of_events((event for event in events if event is not None), str(path), replicas=start["replicas"])


def of_events(
    events: Iterable[Event],
    source: str,
    *,
    since: datetime | None = None,
    cards: Mapping[str, ObservedAgent] | None = None,
    replicas: Mapping[str, str] | None = None,
) -> Observed:
    """What events tell. ``cards`` say how agents are called, where the events need not be asked."""
    of = replicas or {}
    outcomes: dict[str, Outcome] = {}
    asked: dict[str, tuple[str, datetime]] = {}
    over: dict[str, ObservedQuestion] = {}
    chunks: Counter[str] = Counter()
    artifacts: set[tuple[str, str | None]] = set()
    scheduled: set[str] = set()
    called: dict[str, ObservedAgent] = {}
    for event in events:
        cid, agent = event.correlation_id or "", of.get(event.agent or "", event.agent or "")
        seen = called.get(agent, ObservedAgent())
        match event:
            case RequestAccepted(source="cron"):
                scheduled.add(cid)
            case TaskBound(dialect=str(dialect)):
                called[agent] = replace(seen, dialect=dialect)
            case StreamReceived(type=kind):
                if kind == "artifact" and (event.append or (cid, event.artifact_id) not in artifacts):
                    chunks[cid] += 1
                    artifacts.add((cid, event.artifact_id))
                if not seen.streaming:
                    called[agent] = replace(seen, streaming=True)
            case WebhookAccepted() | WebhookRegistered():
                called[agent] = replace(seen, push=True)
            case QuestionAsked(question_id=name):
                asked[name] = (cid, event.at)
            case QuestionAnswered(question_id=name, decision=decision) if name in asked:
                mine, at = asked[name]
                rejected = decision == Decision.REJECT
                over[name] = ObservedQuestion(correlation_id=mine, answered_s=_after(at, event.at), rejected=rejected)
            case QuestionExpired(question_id=name) if name in asked:
                over[name] = ObservedQuestion(correlation_id=asked[name][0], answered_s=None)
            case OutcomeDecided():
                outcome = event.outcome
                counted = outcome.chunks if outcome.chunks is not None else chunks.pop(cid, None)
                outcomes[outcome.correlation_id] = replace(outcome, agent=agent, chunks=counted)
            case _:
                pass
    for agent, card in (cards or {}).items():
        # One that does not stream and says it calls webhooks may reach nobody: then it is polled.
        reaches = card.streaming or called.get(agent, ObservedAgent()).push
        called[agent] = replace(card, push=card.push and reaches)
    return _observed(source, outcomes.values(), over.values(), called, scheduled, since)
