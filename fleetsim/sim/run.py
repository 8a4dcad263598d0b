"""The one fold of a recording: requests, troubles, ceremonies, health and figures so far. Pure.

The invariants, the report, the charts, the twin and the scenario screen read it. A hub that is killed repeats, after
its next start, the events that were not in its journal: a request counts once, with its first acceptance and its first
end. The invariants use the later ones, which alone are in the journal.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from sys import intern
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from msgspec import structs

from fleetsim.events.fleet import (
    CeremonyCompleted,
    CeremonyFired,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
    NoticeDelivered,
    WebhookAccepted,
    WebhookRegistered,
)
from fleetsim.events.request import (
    Event,
    OutcomeDecided,
    PollingStopped,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    RequestAccepted,
    StreamReceived,
    TaskBound,
    TaskMoved,
)
from fleetsim.health.figures import FigureCounters
from fleetsim.model.work import Decision, Outcome
from fleetsim.recording.events import (
    AgentTaskEnded,
    EventsLost,
    HealthLooked,
    HubKilled,
    MemoryCounted,
    OutcomeRecorded,
    RequestTimed,
    RunEvent,
    ScenarioStarted,
    TrafficEnded,
    TroubleBegan,
    TroubleEnded,
)
from fleetsim.recording.reader import RecordingLine

RUNNING = "running"

E = TypeVar("E", bound=RunEvent)
_COUNTED: Mapping[type[Event], str] = {
    QuestionAsked: "questions",
    QuestionAnswered: "answered",
    QuestionExpired: "unanswered",
    CeremonyFired: "fired",
    CeremonyMissed: "missed",
    CeremonySkipped: "skipped",
    CeremonyLate: "late",
}
"""The figure of each event that has one, beside requests and outcomes."""


class RequestEvent(NamedTuple):
    """An event of the hub about a request: second of the run, line of the recording, and number of the event.

    ``outcome`` is that of an ``OutcomeDecided``, without text and parts.
    """

    t: float
    line: int
    seq: int
    correlation_id: str
    agent: str
    task_id: str
    outcome: Outcome | None = None


@dataclass(slots=True)
class QuestionRun:
    """A question, by its newest event. ``answered_s`` is how long its answer took; None without one.

    Without an answer it is open, ``expired``, or the agent continued without one.
    """

    asked: RequestEvent
    asked_at: datetime
    answers: int = 0
    answered_s: float | None = None
    rejected: bool = False
    expired: bool = False


@dataclass(slots=True)
class RequestRun:
    """A request, as the hub's events show it. ``begun`` and ``end`` are the first acceptance and the first outcome.

    The lists have every event that was in the journal, or may still be. ``late_s`` is how long after its time the hub
    accepted it, ``scheduled`` whether a ceremony made it, ``chunks`` in how many pieces its artifacts came.
    """

    begun: RequestEvent | None = None
    end: RequestEvent | None = None
    late_s: float | None = None
    scheduled: bool = False
    chunks: int = 0
    accepted: list[RequestEvent] = field(default_factory=list)
    moved: list[RequestEvent] = field(default_factory=list)
    decided: list[RequestEvent] = field(default_factory=list)
    unpolled: list[RequestEvent] = field(default_factory=list)
    questions: list[QuestionRun] = field(default_factory=list)
    artifacts: set[str | None] = field(default_factory=set)


Ending: TypeAlias = tuple[RequestRun, RequestEvent, Outcome]
"""A request that ended, its end, and its outcome."""


@dataclass(slots=True)
class TroubleSpan:
    """A trouble from its begin to its end, in seconds and lines; without an end while it lasts."""

    fault: str
    agent: str | None
    said: str
    begins_s: float
    begins_line: int
    ends_s: float | None = None
    ends_line: int | None = None

    @property
    def name(self) -> str:
        """The fault and whose it is."""
        return f"{self.fault} of {self.agent}" if self.agent else self.fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAgent:
    """How the hub calls an agent; ``dialect`` is None if no task of it shows it."""

    dialect: str | None = None
    streaming: bool = False
    push: bool = False


@dataclass(slots=True)
class CeremonyRun:
    """A slot that fired. ``status`` is that of ``CeremonyCompleted``, or ``RUNNING``."""

    at_s: float
    event: CeremonyFired
    status: str = RUNNING


_MORE: tuple[type[Event], ...] = (RequestAccepted, TaskMoved, PollingStopped, OutcomeDecided, CeremonyCompleted)
WANTED = frozenset(kind.__name__ for kind in (*_COUNTED, *_MORE)) | {NoticeDelivered.__name__}
"""The classes of the hub's events that count here, by name."""
WANTED_OF_CALLS = WANTED | {kind.__name__ for kind in (TaskBound, StreamReceived, WebhookAccepted, WebhookRegistered)}
"""The same, with those that show how agents are called."""


class Run:
    """Fold lines with ``take``, or whole recordings and journals with ``of`` and ``of_events``."""

    def __init__(self) -> None:
        self.start: ScenarioStarted | None = None
        self.last_s = 0.0
        self.calm_s: float | None = None
        self.requests: dict[str, RequestRun] = defaultdict(RequestRun)
        self.in_flight = 0
        """Requests that have begun and not ended."""
        self.counters = FigureCounters()
        self.questions: dict[str, QuestionRun] = {}
        self.noticed: dict[str, list[float]] = defaultdict(list)
        """The seconds at which a notice was delivered, by its subject."""
        self.called: dict[str, ObservedAgent] = {}
        self.outcomes: dict[str, list[OutcomeRecorded]] = defaultdict(list)
        self.tasks: dict[tuple[str, str], list[AgentTaskEnded]] = defaultdict(list)
        self.memory: list[tuple[MemoryCounted, int]] = []
        """Each count of the memory, with the requests in flight at that moment."""
        self.troubles: list[TroubleSpan] = []
        self._lasting: dict[tuple[str, str | None], deque[TroubleSpan]] = defaultdict(deque)
        self.health: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """By agent, the seconds at which its health became another."""
        self.ceremonies: dict[str, CeremonyRun] = {}
        self.slots: dict[tuple[str, datetime], list[float]] = defaultdict(list)
        """The seconds at which each slot of a ceremony fired."""
        self.unfired: list[tuple[float, CeremonyLate | CeremonyMissed | CeremonySkipped]] = []
        self._all: dict[type[Event], list[RunEvent]] = defaultdict(list)
        self._handlers: dict[type[Event], Any] = {
            RequestAccepted: self._accepted,
            TaskMoved: self._followed,
            PollingStopped: self._followed,
            OutcomeDecided: self._decided,
            QuestionAsked: self._asked,
            QuestionAnswered: self._answered,
            QuestionExpired: self._expired,
            NoticeDelivered: self._noticed,
            TaskBound: self._bound,
            StreamReceived: self._streamed,
            WebhookAccepted: self._pushed,
            WebhookRegistered: self._pushed,
            CeremonyFired: self._fired,
            CeremonyCompleted: self._completed,
            CeremonyLate: self._unfired,
            CeremonyMissed: self._unfired,
            CeremonySkipped: self._unfired,
            ScenarioStarted: self._started,
            TrafficEnded: self._traffic_ended,
            TroubleBegan: self._trouble_began,
            TroubleEnded: self._trouble_ended,
            HubKilled: self._killed,
            EventsLost: self._lost,
            HealthLooked: self._looked,
            RequestTimed: self._timed,
            AgentTaskEnded: self._task_ended,
            OutcomeRecorded: self._recorded,
            MemoryCounted: self._counted,
        }

    @classmethod
    def of(cls, lines: Iterable[RecordingLine]) -> Run:
        """A whole recording, or what there is of it."""
        run = cls()
        for line in lines:
            run.take(line)
        return run

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> Run:
        """The events of a journal, which has no seconds."""
        return cls.of(RecordingLine(number, 0.0, event) for number, event in enumerate(events, 1))

    def all(self, kind: type[E]) -> Sequence[E]:
        """The events of a class of the run, in order. The hub's own events are not kept."""
        return cast(Sequence[E], self._all.get(kind, ()))

    @property
    def started(self) -> ScenarioStarted:
        """The first event of a recording. Raises ValueError if there is none yet."""
        if self.start is None:
            raise ValueError("the recording has not started")
        return self.start

    @property
    def duration_s(self) -> float:
        """Seconds of planned traffic; for a hub, seconds of its recording."""
        return 0.0 if self.start is None else self.last_s if self.start.of_hub else self.start.duration_s

    def replica_of(self, agent: str) -> str:
        """The scenario's name of an agent of the run."""
        return agent if self.start is None else self.start.replicas.get(agent, agent)

    def endings(self) -> list[Ending]:
        """The requests that ended in the run, in the order of their ends."""
        ended = ((request, request.end) for request in self.requests.values() if request.end is not None)
        found = [(request, end, end.outcome) for request, end in ended if end.outcome is not None and end.t >= 0]
        return sorted(found, key=lambda row: row[1].line)

    def troubles_met(self, request: RequestRun) -> list[str]:
        """The troubles of the request's agent, or of the whole fleet, between its acceptance and its end."""
        begun, end = request.begun, request.end
        if begun is None or end is None:
            return []
        whose = {None, end.agent, self.replica_of(end.agent)}
        return sorted(
            {
                trouble.name
                for trouble in self.troubles
                if trouble.agent in whose
                and trouble.begins_line < end.line
                and (trouble.ends_line is None or trouble.ends_line > begun.line)
            }
        )

    def take(self, line: RecordingLine) -> RequestRun | None:
        """Fold one line. Returns the request that it shows to begin or to end, for the first time."""
        event = line.event
        self.last_s = max(self.last_s, line.at_s)
        if event is None:
            return None
        handle = self._handlers.get(type(event))
        at_s = -1.0 if line.past else line.at_s
        if (name := _COUNTED.get(type(event))) and at_s >= 0:
            self.counters.count(event.agent, event.skill, name, getattr(event, "count", 1))
        if handle is not None:
            return cast("RequestRun | None", handle(at_s, line.number, event))
        if isinstance(event, RunEvent):
            self._all[type(event)].append(event)
        return None

    # ------------------------------------------------------------------ requests

    def _entry(self, at_s: float, line: int, event: Event) -> tuple[RequestEvent, RequestRun]:
        cid = intern(event.correlation_id or f"seq-{event.seq}")
        entry = RequestEvent(at_s, line, event.seq, cid, intern(event.agent or ""), intern(event.task_id or ""))
        return entry, self.requests[cid]

    def _accepted(self, at_s: float, line: int, event: RequestAccepted) -> RequestRun | None:
        entry, request = self._entry(at_s, line, event)
        request.accepted.append(entry)
        if request.begun is not None or request.end is not None:
            return None
        request.begun, request.scheduled = entry, event.source == "cron"
        self.in_flight += 1
        if at_s >= 0:
            self.counters.count(event.agent, event.skill, "requests")
        return request

    def _followed(self, at_s: float, line: int, event: TaskMoved | PollingStopped) -> None:
        entry, request = self._entry(at_s, line, event)
        (request.moved if isinstance(event, TaskMoved) else request.unpolled).append(entry)

    def _decided(self, at_s: float, line: int, event: OutcomeDecided) -> RequestRun | None:
        entry, request = self._entry(at_s, line, event)
        outcome = structs.replace(event.outcome, text="", parts=(), effects=())
        entry = entry._replace(outcome=outcome)
        request.decided.append(entry)
        if request.end is not None:
            return None
        request.end = entry
        self.in_flight -= request.begun is not None
        if at_s >= 0:
            self.counters.ended(outcome, late_s=request.late_s or 0.0)
        return request

    def _asked(self, at_s: float, line: int, event: QuestionAsked) -> None:
        entry, request = self._entry(at_s, line, event)
        question = self.questions.get(event.question_id)
        if question is None:
            question = self.questions[event.question_id] = QuestionRun(entry, event.at)
            request.questions.append(question)
        question.asked, question.asked_at = entry, event.at

    def _answered(self, at_s: float, line: int, event: QuestionAnswered) -> None:
        if (question := self.questions.get(event.question_id)) is not None:
            question.answers += 1
            question.answered_s = max(0.0, (event.at - question.asked_at).total_seconds())
            question.rejected = event.decision == Decision.REJECT

    def _expired(self, at_s: float, line: int, event: QuestionExpired) -> None:
        if (question := self.questions.get(event.question_id)) is not None:
            question.expired = True

    def _noticed(self, at_s: float, line: int, event: NoticeDelivered) -> None:
        self.noticed[event.subject].append(at_s)

    def _bound(self, at_s: float, line: int, event: TaskBound) -> None:
        if event.dialect:
            self._call(event, dialect=event.dialect)

    def _streamed(self, at_s: float, line: int, event: StreamReceived) -> None:
        self._call(event, streaming=True)
        request = self.requests[event.correlation_id or ""]
        if event.type == "artifact" and (event.append or event.artifact_id not in request.artifacts):
            request.chunks += 1
            request.artifacts.add(event.artifact_id)

    def _pushed(self, at_s: float, line: int, event: WebhookAccepted | WebhookRegistered) -> None:
        self._call(event, push=True)

    def _call(self, event: Event, **members: Any) -> None:
        agent = self.replica_of(event.agent or "")
        self.called[agent] = replace(self.called.get(agent, ObservedAgent()), **members)

    def _killed(self, at_s: float, line: int, event: HubKilled) -> None:
        self._all[HubKilled].append(event)
        self._keep(lambda entry: entry.seq <= event.journalled)

    def _lost(self, at_s: float, line: int, event: EventsLost) -> None:
        lost = frozenset(event.events)
        self._keep(lambda entry: entry.seq not in lost)

    def _keep(self, in_journal: Callable[[RequestEvent], bool]) -> None:
        for request in self.requests.values():
            for entries in (request.accepted, request.moved, request.decided):
                entries[:] = filter(in_journal, entries)

    def _timed(self, at_s: float, line: int, event: RequestTimed) -> None:
        self._all[RequestTimed].append(event)
        self.requests[event.correlation_id or ""].late_s = event.late_s

    def _task_ended(self, at_s: float, line: int, event: AgentTaskEnded) -> None:
        self.tasks[event.agent or "", event.task_id or ""].append(event)

    def _recorded(self, at_s: float, line: int, event: OutcomeRecorded) -> None:
        self.outcomes[event.correlation_id or ""].append(event)

    def _counted(self, at_s: float, line: int, event: MemoryCounted) -> None:
        known = sum(1 for request in self.requests.values() if request.begun is not None and not request.decided)
        self.memory.append((event, known))

    # ------------------------------------------------------------------ the fleet

    def _started(self, at_s: float, line: int, event: ScenarioStarted) -> None:
        self.start = event
        self.counters = FigureCounters(event.replicas)

    def _traffic_ended(self, at_s: float, line: int, event: TrafficEnded) -> None:
        self.calm_s = at_s

    def _trouble_began(self, at_s: float, line: int, event: TroubleBegan) -> None:
        self.troubles.append(TroubleSpan(event.fault, event.agent, event.said, at_s, line))
        self._lasting[event.fault, event.agent].append(self.troubles[-1])

    def _trouble_ended(self, at_s: float, line: int, event: TroubleEnded) -> None:
        """The oldest of its kind at that agent is over."""
        if lasting := self._lasting[event.fault, event.agent]:
            trouble = lasting.popleft()
            trouble.ends_s, trouble.ends_line = at_s, line

    def _looked(self, at_s: float, line: int, event: HealthLooked) -> None:
        self._all[HealthLooked].append(event)
        for agent, seen in event.agents.items():
            if not (looks := self.health[agent]) or looks[-1][1] != seen.health:
                looks.append((at_s, seen.health))

    def _fired(self, at_s: float, line: int, event: CeremonyFired) -> None:
        self.ceremonies[event.run_id] = CeremonyRun(at_s, event)
        if event.trigger != "manual" and event.scheduled_at is not None:
            self.slots[event.ceremony_id, event.scheduled_at].append(at_s)

    def _completed(self, at_s: float, line: int, event: CeremonyCompleted) -> None:
        if event.run_id in self.ceremonies:
            self.ceremonies[event.run_id].status = event.status

    def _unfired(self, at_s: float, line: int, event: CeremonyLate | CeremonyMissed | CeremonySkipped) -> None:
        self.unfired.append((at_s, event))
