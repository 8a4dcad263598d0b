"""Observations of a fleet: outcomes, questions to people, and how agents are called.

They come from a hub's ledger, its journal or a recording; ``twin`` and ``comparison`` use them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from fleetsim.ledger.sqlite import read_ledger
from fleetsim.model.work import Decision, Outcome
from fleetsim.recording.reader import lines_of
from fleetsim.request.records import QuestionState
from fleetsim.sim.run import WANTED_OF_CALLS, ObservedAgent, Run

OUTCOMES_MAX = 100_000
"""The number of newest requests that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedQuestion:
    """A question of an agent. ``answered_s`` is how long its answer took; None if none came in time."""

    correlation_id: str
    answered_s: float | None
    rejected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observations from the first to the last of the requests that ended.

    ``outcomes`` are in the order of their requests, without text; ``scheduled`` has the requests of ceremonies.
    ``questions`` are those that are over.
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
    recent = sorted((o for o in outcomes if since is None or o.started_at >= since), key=lambda o: o.started_at)
    names = {outcome.correlation_id for outcome in recent}
    moment = since or datetime.min.replace(tzinfo=UTC)
    return Observed(
        source=source,
        since=recent[0].started_at if recent else moment,
        until=recent[-1].started_at if recent else moment,
        outcomes=tuple(structs.replace(outcome, text="", parts=(), effects=()) for outcome in recent),
        questions=tuple(question for question in questions if question.correlation_id in names),
        agents=agents,
        scheduled=frozenset(scheduled) & names,
    )


async def of_ledger(path: Path, *, since: datetime) -> Observed:
    """The requests in a hub's ledger since a moment. Raises ConfigError if it is no ledger that can be read."""
    async with read_ledger(path) as ledger:
        outcomes = await ledger.outcomes(since=since, limit=OUTCOMES_MAX)
        notes = await ledger.request_notes(since=since, limit=OUTCOMES_MAX)
        asked = await ledger.questions(open_only=False, limit=OUTCOMES_MAX)
        cards = {snapshot.agent: snapshot.card.get("capabilities") for snapshot in await ledger.cards()}
    called: dict[str, ObservedAgent] = {}
    for note in notes:
        if note.dialect is None:
            continue
        # The newest request decides. The hub asks a streaming agent for no webhooks; its card says if it can.
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
    """A recorded run. Replicas are one agent, as in the scenario. Raises ConfigError."""
    return of_run(Run.of(lines_of(path, WANTED_OF_CALLS)), str(path))


def of_run(
    run: Run, source: str, *, since: datetime | None = None, cards: Mapping[str, ObservedAgent] | None = None
) -> Observed:
    """Observations from a recording or a journal. ``cards`` say how agents are called, if there are cards."""
    outcomes = []
    for request in run.requests.values():
        if request.end is not None and (outcome := request.end.outcome) is not None:
            chunks = outcome.chunks if outcome.chunks is not None else request.chunks or None
            outcomes.append(structs.replace(outcome, agent=run.replica_of(outcome.agent), chunks=chunks))
    questions = (
        ObservedQuestion(
            correlation_id=question.asked.correlation_id, answered_s=question.answered_s, rejected=question.rejected
        )
        for question in run.questions.values()
        if question.answers or question.expired
    )
    called = dict(run.called)
    for agent, card in (cards or {}).items():
        # The webhooks of an agent that does not stream may not reach the hub; then the hub polls.
        reaches = card.streaming or called.get(agent, ObservedAgent()).push
        called[agent] = replace(card, push=card.push and reaches)
    scheduled = (cid for cid, request in run.requests.items() if request.scheduled)
    return _observed(source, outcomes, questions, called, scheduled, since)
