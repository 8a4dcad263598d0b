"""Counters of a hub since its start, for Prometheus, folded from its events; ``MetricsEndpoint`` reads the gauges at
each scrape. No label holds an id, and an unlimited set of names from agents becomes ``other``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram

from fleetsim.events.fleet import (
    CeremoniesLoaded,
    CeremonyCompleted,
    CeremonyFired,
    CeremonyMissed,
    CeremonySkipped,
    NoticeDelivered,
    NoticeFailed,
    WebhookAccepted,
    WebhookRejected,
)
from fleetsim.events.log import EventLog
from fleetsim.events.request import (
    Event,
    OutcomeDecided,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    QuestionWithdrawn,
    RequestAccepted,
    RequestRefused,
    TaskBound,
    TaskMoved,
    UpdateIgnored,
)
from fleetsim.fleet.cards import CardBroker
from fleetsim.ledger import RunStatus
from fleetsim.model.call import Operation
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line
from fleetsim.model.work import DEFAULT_SKILL, Decision, Outcome
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.workers import Workers

OTHER = "other"
AGENTS_MAX = 1_000
SKILLS_PER_AGENT_MAX = 50
CEREMONIES_MAX = 1_000
LABEL_CHARS_MAX = 64

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LATE_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ACK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REASONS = {401: "token", 413: "size"}
_ENDS = {QuestionExpired: "expired", QuestionWithdrawn: "withdrawn"}
_COUNTED = (
    CeremoniesLoaded,
    CeremonyCompleted,
    CeremonyFired,
    CeremonyMissed,
    CeremonySkipped,
    NoticeDelivered,
    NoticeFailed,
    OutcomeDecided,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    QuestionWithdrawn,
    RequestAccepted,
    RequestRefused,
    TaskBound,
    TaskMoved,
    UpdateIgnored,
    WebhookAccepted,
    WebhookRejected,
)


class Labels:
    """Names as values of a label: the first ``most`` as they are, every other one is ``other``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: set[str] = set()

    def __call__(self, name: str | None) -> str:
        if name is not None and name in self._taken:
            return name
        value = one_line(name or OTHER, LABEL_CHARS_MAX)
        if value not in self._taken:
            if len(self._taken) >= self._most:
                return OTHER
            self._taken.add(value)
        return value


class Metrics:
    """A hub's counters, in a registry of their own. ``async with`` has them follow its events after ``after_seq``.

    A skill that its agent does not offer now is counted as ``other``.
    """

    def __init__(self, events: EventLog, fleet: CardBroker) -> None:
        self.registry = CollectorRegistry()
        self._events = events
        self._fleet = fleet
        self._agents = Labels(AGENTS_MAX)
        self._skill_labels: defaultdict[str, Labels] = defaultdict(lambda: Labels(SKILLS_PER_AGENT_MAX))
        self._ceremonies = Labels(CEREMONIES_MAX)
        self._scheduled: frozenset[str] = frozenset()
        self._accepted: dict[str, datetime] = {}
        self._workers = Workers("metrics")

        def counter(name: str, meaning: str, *labels: str) -> Callable[..., Counter]:
            """From values of its labels to what counts them: found again without the library's lock and checks."""
            return cache(Counter(f"fleetsim_{name}", meaning, labels, registry=self.registry).labels)

        def histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"fleetsim_{name}", meaning, labels, buckets=buckets, registry=self.registry)

        self._tasks = counter("tasks_total", "Requests that ended, by how.", "agent", "skill", "state")
        self._failures = counter(
            "task_failures_total", "Requests that ended without success, by whose doing it was.", "agent", "blame"
        )
        duration = histogram("task_duration_seconds", "From the acceptance of a request to its end.", SECONDS, "agent")
        ack = histogram(
            "task_ack_seconds", "From the acceptance of a request to the agent's first word.", ACK_SECONDS, "agent"
        )
        self._duration, self._ack = cache(duration.labels), cache(ack.labels)
        self._cost = counter("cost_usd_total", "US dollars that requests cost, told or estimated.", "agent")
        self._refused = counter("requests_refused_total", "Requests that were not accepted.", "reason")
        self._calls = counter(
            "calls_total", "Calls to agents (get is a poll), by the party to blame for the error.",
            "agent", "operation", "result",
        )  # fmt: skip
        self._delivery = counter(
            "delivery_total", "News of tasks: what brought it, and whether it was applied.", "agent", "via", "result"
        )
        self._webhooks = counter("webhooks_total", "Webhooks that were genuine.", "agent", "result")
        self._rejected = counter("webhook_rejected_total", "Webhooks that were refused.", "reason")
        self._asked = counter("questions_total", "Questions that agents asked.", "agent")
        self._question_ends = counter("question_ends_total", "What became of questions.", "agent", "end")
        self._runs = counter("ceremony_runs_total", "Runs of ceremonies, by how they ended.", "ceremony", "outcome")
        self._lateness = histogram("ceremony_lateness_seconds", "How late ceremonies fired.", SECONDS)
        self._poll_lateness = histogram(
            "poll_lateness_seconds", "How long polls that fell due waited for the pace.", LATE_SECONDS
        )
        self._notices = counter("notices_total", "Notices to people, by sink.", "channel", "result")
        # Labels that are known in advance start at 0 instead of being absent.
        for reason in _REASONS.values():
            self._rejected(reason)

    # ------------------------------------------------------------------ calls

    @contextmanager
    def calling(self, record: RequestRecord, operation: Operation) -> Iterator[Mapping[str, str]]:
        """Count one call to an agent, for as long as it is under way (``executor.CallObserver``)."""
        result = "ok"
        try:
            yield {}
        except FleetsimError as error:
            result = error.blame.value
            raise
        except BaseException:
            result = "broken_off"
            raise
        finally:
            self._calls(self._agents(record.agent), operation.value, result).inc()

    def poll_late(self, seconds: float) -> None:
        """Count a poll that left this many seconds after it was due."""
        self._poll_lateness.observe(seconds)

    # ------------------------------------------------------------------ events

    def fold(self, event: Event) -> None:
        agent = self._agents(event.agent)
        match event:
            case RequestAccepted(correlation_id=str(cid)):
                self._accepted[cid] = event.at
            case RequestRefused(reason=reason):
                self._refused(reason).inc()
            case TaskBound(correlation_id=cid, via=via):
                self._delivery(agent, via, "applied").inc()
                if (since := self._accepted.pop(cid or "", None)) is not None:
                    self._ack(agent).observe((event.at - since).total_seconds())
            case TaskMoved(via=via):
                self._delivery(agent, via, "applied").inc()
            case UpdateIgnored(via=via):
                self._delivery(agent, via, "ignored").inc()
            case OutcomeDecided(outcome=outcome):
                self._end(outcome, agent)
            case WebhookAccepted(duplicate=duplicate, parked=parked):
                result = "duplicate" if duplicate else "early" if parked else "taken"
                self._webhooks(agent, result).inc()
            case WebhookRejected(status=status):
                self._rejected(_REASONS.get(status, OTHER)).inc()
            case QuestionAsked():
                self._asked(agent).inc()
            case QuestionAnswered(decision=decision):
                self._question_ends(agent, "rejected" if decision == Decision.REJECT else "answered").inc()
            case QuestionExpired() | QuestionWithdrawn():
                self._question_ends(agent, _ENDS[type(event)]).inc()
            case NoticeDelivered(channel=channel):
                self._notices(one_line(channel, LABEL_CHARS_MAX), "delivered").inc()
            case NoticeFailed(channel=channel):
                self._notices(one_line(channel, LABEL_CHARS_MAX), "failed").inc()
            case CeremoniesLoaded(ceremonies=facts):
                self._scheduled = frozenset(str(fact["id"]) for fact in facts if fact["schedule"])
            case CeremonyFired(trigger="cron", lateness_ms=int(late)):
                self._lateness.observe(late / 1000)
            case CeremonyCompleted(ceremony_id=key, status=status):
                self._runs(self.ceremony(key), status).inc()
            case CeremonySkipped(ceremony_id=key, count=count):
                self._runs(self.ceremony(key), RunStatus.SKIPPED.value).inc(count)
            case CeremonyMissed(ceremony_id=key, count=count):
                self._runs(self.ceremony(key), RunStatus.MISSED.value).inc(count)

    def _end(self, outcome: Outcome, agent: str) -> None:
        self._accepted.pop(outcome.correlation_id, None)
        skill = outcome.skill
        offered = skill == DEFAULT_SKILL or skill in self._fleet.offers().get(outcome.agent, ())
        label = self._skill_labels[agent](skill) if offered else OTHER
        self._tasks(agent, label, outcome.kind.value).inc()
        if not outcome.success:
            self._failures(agent, outcome.blame.value).inc()
        self._duration(agent).observe(outcome.duration_ms / 1000)
        if outcome.cost_usd:
            self._cost(agent).inc(outcome.cost_usd)

    def ceremony(self, ceremony_id: str) -> str:
        """The id of a ceremony with a schedule; ceremonies that fire once are ``other``, because they are many."""
        return self._ceremonies(ceremony_id) if ceremony_id in self._scheduled else OTHER

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Metrics:
        self._heard = self._events.subscribe(after_seq=0, kinds=_COUNTED)
        self._workers.start(self._follow(), name="follow")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()
        self._heard.close()

    async def _follow(self) -> None:
        async for batch in self._heard:
            for event in batch:
                self.fold(event)

    async def catch_up(self) -> None:
        """Count all pending events, so that a scrape includes every earlier event."""
        while self._heard.behind:
            for event in await self._heard.next_batch():
                self.fold(event)
