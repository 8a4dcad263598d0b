"""The content of a ledger according to a second, much simpler one: dictionaries, no transactions, no files.

It shares no code with the ledger under test. A call that the ledger refused (NotAccepting) is not applied here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from fleetsim.events.request import Event
from fleetsim.ledger import CardSnapshot, EarlyWebhook, Ledger, LedgerLimits, RunRecord
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.records import Phase, QuestionRecord, QuestionState, RequestRecord

LONG_AGO = datetime.fromisoformat("1990-01-01T00:00:00+00:00")


class Model:
    """The calls of a ledger with the same results; ValueError where the ledger must raise it."""

    def __init__(self, limits: LedgerLimits) -> None:
        self.limits = limits
        self.requests: dict[str, RequestRecord] = {}
        self.results: dict[str, Outcome] = {}
        self.asked: dict[str, QuestionRecord] = {}
        self.slots: dict[tuple[str, datetime], RunRecord] = {}
        self.run_of: dict[str, str] = {}
        self.shots: dict[str, CardSnapshot] = {}
        self.journal: list[Event] = []
        self.told: set[str] = set()
        self.early: list[EarlyWebhook] = []

    def accept(self, records: Sequence[RequestRecord], run: RunRecord | None = None) -> bool:
        if run and (run.claim.ceremony_id, run.claim.scheduled_at) in self.slots:
            return False
        if run and run.claim.run_id in {r.claim.run_id for r in self.slots.values()}:
            raise ValueError(run.claim.run_id)
        names = [r.request.correlation_id for r in records]
        if len(set(names)) < len(names) or set(names) & set(self.requests):
            raise ValueError(names)
        if run:
            self.slots[run.claim.ceremony_id, run.claim.scheduled_at] = run
            self.run_of.update(dict.fromkeys(names, run.claim.run_id))
        self.requests.update(zip(names, records, strict=True))
        return True

    def open(self, name: str) -> bool:
        return name in self.requests and name not in self.results

    def update(self, record: RequestRecord) -> None:
        name = record.request.correlation_id
        if self.open(name):
            self.requests[name] = record

    def close(self, outcome: Outcome) -> bool:
        name = outcome.correlation_id
        if not self.open(name):
            return False
        self.results[name] = outcome
        self.early = [w for w in self.early if w.correlation_id != name]
        self.requests[name] = replace(self.requests[name], phase=Phase.CLOSED)
        end = QuestionState.EXPIRED if outcome.kind is OutcomeKind.EXPIRED else QuestionState.WITHDRAWN
        for key, entry in self.asked.items():
            if entry.question.correlation_id == name and entry.state is QuestionState.OPEN:
                self.asked[key] = replace(entry, state=end)
        return True

    def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        if not self.open(webhook.correlation_id):
            return False
        self.early.append(webhook)
        return True

    def ask(self, question: Question) -> bool:
        if question.question_id in self.asked or not self.open(question.correlation_id):
            return False
        self.asked[question.question_id] = QuestionRecord(question=question)
        return True

    def answer(self, answer: Answer, at: datetime) -> Question | None:
        entry = self.asked.get(answer.question_id)
        if entry is None or entry.state is not QuestionState.OPEN:
            return None
        self.asked[answer.question_id] = replace(entry, state=QuestionState.ANSWERED, answer=answer, answered_at=at)
        return entry.question

    def settle(self, name: str, state: QuestionState) -> None:
        entry = self.asked.get(name)
        if entry and entry.state in {QuestionState.OPEN, QuestionState.ANSWERED}:
            self.asked[name] = replace(entry, state=state)

    def save_run(self, run: RunRecord) -> None:
        slot = run.claim.ceremony_id, run.claim.scheduled_at
        mine = self.slots.get(slot)
        if mine is None and run.claim.run_id in {r.claim.run_id for r in self.slots.values()}:
            raise ValueError(run.claim.run_id)
        if mine is None or mine.claim.run_id == run.claim.run_id:
            self.slots[slot] = run

    def save_card(self, snapshot: CardSnapshot) -> None:
        self.shots[snapshot.agent] = snapshot

    def append(self, events: Sequence[Event]) -> None:
        seqs = [e.seq for e in events]
        if len(set(seqs)) < len(seqs) or set(seqs) & {e.seq for e in self.journal}:
            raise ValueError(seqs)
        self.journal = sorted([*self.journal, *events], key=lambda e: e.seq)
        while len(self.journal) > self.limits.events_max:
            agents = Counter(e.agent for e in self.journal if e.agent)
            agent, count = max(agents.items(), key=lambda item: item[1], default=(None, 0))
            own = [e for e in self.journal if e.agent == agent] if 2 * count > self.limits.events_max else self.journal
            self.journal.remove(own[0])
        self.told |= {
            e.correlation_id for e in events if e.correlation_id and e.topic.startswith("autonomous.outcome.")
        } & set(self.results)

    def untold(self, name: str, record: RequestRecord) -> bool:
        """Whether the journal lacks a request's event although it goes back far enough."""
        began = self.journal[0].at if self.journal and self.journal[0].seq > 1 else LONG_AGO
        told = {e.correlation_id for e in self.journal if e.topic == "agent.skill.request"}
        owed = self.open(name) or (name in self.results and name not in self.told)
        return owed and record.accepted_at >= began and name not in told

    def prune(self, now: datetime) -> int:
        """Drop the oldest outcomes in the order of their decision while they are too old or too many."""
        gone: list[str] = []
        old = now - timedelta(seconds=self.limits.keep_s)
        order = list(self.results)
        for place, name in enumerate(order):
            left = len(order) - place
            too_old, too_many = self.results[name].ended_at < old, left > self.limits.outcomes_max
            if left <= self.limits.outcomes_min or not (too_old or too_many):
                break
            gone.append(name)
        for name in gone:
            del self.results[name], self.requests[name]
            self.told.discard(name)
        self.asked = {k: q for k, q in self.asked.items() if q.question.correlation_id not in gone}
        kept = {self.run_of[name] for name in self.requests if name in self.run_of}
        self.slots = {slot: r for slot, r in self.slots.items() if r.started_at >= old or r.claim.run_id in kept}
        return len(gone)

    def apply(self, method: str, *args: Any) -> object:
        """The result that the ledger's method of that name must have, or "ValueError"."""
        try:
            return getattr(self, method)(*args)
        except ValueError:
            return "ValueError"

    def view(self) -> dict[str, object]:
        """The content that a caller must be able to read."""
        waiting = {QuestionState.OPEN, QuestionState.ANSWERED}
        asked = self.asked.values()
        return {
            "open": tuple(r for n, r in self.requests.items() if self.open(n)),
            "requests": dict(self.requests),
            "outcomes": dict(self.results),
            "by end": tuple(sorted(self.results.values(), key=lambda o: o.ended_at)),
            "unannounced": tuple(o for n, o in self.results.items() if n not in self.told),
            "untold": tuple(r for n, r in self.requests.items() if self.untold(n, r)),
            "early": tuple(self.early),
            "questions": tuple(asked),
            "waiting": tuple(q for q in asked if q.state in waiting and self.open(q.question.correlation_id)),
            "runs": tuple(self.slots.values())[::-1],
            "cards": tuple(self.shots[a] for a in sorted(self.shots)),
            "events": tuple(self.journal),
            "last": max((e.seq for e in self.journal), default=0),
        }

    async def agrees_with(self, ledger: Ledger) -> None:
        """Check that a caller reads exactly the content of the model."""
        assert await read_all(ledger, self.requests) == self.view()


async def read_all(ledger: Ledger, names: Iterable[str]) -> dict[str, object]:
    """Everything that a caller can read; ``names`` are the requests to look for."""
    asked = sorted(set(names))
    requests = {name: await ledger.request(name) for name in asked}
    outcomes = {name: await ledger.outcome(name) for name in asked}
    return {
        "open": await ledger.open_requests(),
        "requests": {name: found for name, found in requests.items() if found is not None},
        "outcomes": {name: found for name, found in outcomes.items() if found is not None},
        "by end": await ledger.outcomes(since=LONG_AGO),
        "unannounced": await ledger.unannounced(limit=100_000),
        "untold": await ledger.untold_requests(),
        "early": await ledger.early_webhooks(),
        "questions": await ledger.questions(open_only=False, limit=100_000),
        "waiting": await ledger.questions(limit=100_000),
        "runs": await ledger.runs(limit=100_000),
        "cards": await ledger.cards(),
        "events": await ledger.events(limit=100_000),
        "last": await ledger.last_seq(),
    }
