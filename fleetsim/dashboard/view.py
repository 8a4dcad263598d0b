"""The content of the screens: one frozen value, folded from the hub's events. Pure.

``ViewBuilder.fold`` takes events as they arrive; ``snapshot`` runs a few times a second and rebuilds only what changed.
The caller passes ``now``, so a recorded run gives the same screen as the live one. Text from outside is neutralised
here. Ids stay unchanged because Controls need them; the widgets neutralise ids when they draw them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

import msgspec

from fleetsim.api.answer import to_json
from fleetsim.api.health import HealthWord, HubMember, LimitFacts, OutcomeStats
from fleetsim.api.state import FleetFigures, HubState
from fleetsim.dashboard import read
from fleetsim.dashboard.labels import HEALTH, at_most, moment
from fleetsim.dashboard.view_ceremonies import CeremonyFold, CeremonyView
from fleetsim.dashboard.view_fleet import AgentRow, FleetFold
from fleetsim.dashboard.view_tasks import TaskDetail, TaskFold, TaskRow
from fleetsim.events import fleet as fleet_events
from fleetsim.events import request as events
from fleetsim.events.request import Event, Excerpt, Level
from fleetsim.events.wire import from_wire, of_row
from fleetsim.health.trend import DAY_S, span_for
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.text import neutralise, one_line
from fleetsim.model.work import Outcome
from fleetsim.recording import events as scenario_events

log = logging.getLogger(__name__)
T = TypeVar("T")

EVENTS_MAX = 20_000
"""The newest events stay in memory. Only visible events are formatted."""
SETTLED_MAX = 100
OPEN_MAX = 12_000
FAULTS_MAX = 20
VETO = "veto"
RECENT_MAX = 100
NOTICES_MAX = 20
ERRORS_WINDOW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """A question, or a request that a person may still stop (kind ``veto``).

    ``decision`` is empty while it is open, else answer, reject, expired, withdrawn, vetoed or lapsed. ``parts`` names
    the question's data and files.
    """

    question_id: str
    correlation_id: str
    agent: str
    skill: str
    task_id: str
    context_id: str
    kind: str
    text: str
    origin: str
    asked_at: datetime
    expires_at: datetime | None
    checkpoint: int
    decision: str = ""
    by: str = ""
    settled_at: datetime | None = None
    chars: int = 0
    asks_for_data: bool = False
    parts: tuple[str, ...] = ()

    @property
    def cut(self) -> bool:
        """Whether ``text`` holds only the first of ``chars`` characters."""
        return self.chars > len(self.text)

    @property
    def veto(self) -> bool:
        """Whether this is a veto window and not a question."""
        return self.kind == VETO


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A message for a person. ``about`` is an agent, a file or empty."""

    at: datetime
    about: str
    text: str
    error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The numbers of the header and the cards. ``trend`` is (ok, all) per cell of ``span``."""

    health: Mapping[HealthWord, int] = field(default_factory=dict)
    agents: int = 0
    working: int = 0
    submitted: int = 0
    waiting: int = 0
    errors_5m: int = 0
    figures: OutcomeStats = field(default_factory=OutcomeStats)
    trend: tuple[tuple[int, int], ...] = ()
    span: str = "4m"
    push_ok: int = 0
    push_again: int = 0
    push_refused: int = 0
    missed: int = 0
    skipped: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of all lists at one moment."""

    now: datetime
    began_at: datetime | None = None
    window_from: datetime | None = None
    """The beginning of the outcomes in the figures; None is ``began_at``."""
    last_at: datetime | None = None
    stopping: bool = False
    config_error: str = ""
    storage: str = ""
    troubles: tuple[str, ...] = ()
    """Limits that keys reached in the last minute, and channels whose notices do not arrive."""
    faults: tuple[str, ...] = ()
    """Errors of the fold: the figures may be wrong."""
    configured: bool = False
    ceremonies_loaded: bool = False
    counters: Counters = field(default_factory=Counters)
    agents: tuple[AgentRow, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    recent: tuple[TaskRow, ...] = ()
    questions: tuple[QuestionRow, ...] = ()
    vetoes: tuple[QuestionRow, ...] = ()
    settled: tuple[QuestionRow, ...] = ()
    ceremonies: tuple[CeremonyView, ...] = ()
    notices: tuple[NoticeRow, ...] = ()
    events: tuple[Event, ...] = ()
    hubs: tuple[HubMember, ...] = ()
    """The hubs that share the ledger."""
    limits: tuple[LimitFacts, ...] = ()
    scenario: object | None = None
    """The recorded run, in the form of the screen that shows it."""

    @property
    def window(self) -> str:
        """The span of the shares, latencies and costs: 24 hours, or less if the hub is younger."""
        began_at = self.window_from or self.began_at or self.now
        return at_most(min(DAY_S, (self.now - began_at).total_seconds()))

    @property
    def beginning(self) -> str:
        """The moment of the first event, from which counts without a span are counted."""
        return moment(self.began_at or self.now, self.now)

    def agent(self, name: str) -> AgentRow | None:
        return next((row for row in self.agents if row.name == name), None)

    def question(self, question_id: str) -> QuestionRow | None:
        return next((row for row in (*self.questions, *self.vetoes) if row.question_id == question_id), None)

    def ceremony(self, ceremony_id: str) -> CeremonyView | None:
        return next((row for row in self.ceremonies if row.ceremony_id == ceremony_id), None)


class InboxFold:
    """Open questions by id, oldest first; veto windows by correlation id; and the newest closed ones of both kinds."""

    def __init__(self) -> None:
        self._vetoes: dict[str, QuestionRow] = {}
        self.open: dict[str, QuestionRow] = {}
        self.settled: deque[QuestionRow] = deque(maxlen=SETTLED_MAX)

    def asked(self, event: events.QuestionAsked) -> QuestionRow | None:
        """The question's row; None for an event without a question."""
        key = event.question_id
        if not key or len(self.open) >= OPEN_MAX:
            return None
        row = QuestionRow(
            question_id=key,
            correlation_id=event.correlation_id or "",
            agent=one_line(event.agent or "", 100),
            skill=one_line(event.skill or "", 100),
            task_id=one_line(event.task_id or "", 200),
            context_id=one_line(event.context_id or ""),
            kind=one_line(event.kind, 40) or "input-required",
            text=neutralise(event.question.text, limit=16_384),
            origin=one_line(event.system_actor, 100),
            asked_at=event.at,
            expires_at=event.expires_at,
            checkpoint=event.checkpoint or 1,
            chars=event.question.chars if event.question.truncated else 0,
            asks_for_data=event.asks_for_data,
            parts=read.parts(event.parts),
        )
        self.open[key] = row
        return row

    def take(self, state: HubState) -> None:
        """Set the open questions and veto windows to those of the hub."""
        self.open.clear()
        self._vetoes.clear()
        for row in state.questions:
            if asked := of_row(events.QuestionAsked, row, row.asked_at):
                self.asked(asked)
        for veto in state.vetoes:
            if opened := of_row(events.VetoWindowMoved, veto, state.at, decision="open"):
                self.veto(opened)

    def settle(self, question_id: str, at: datetime, decision: str, by: str = "") -> None:
        """Close the question if it is open."""
        if row := self.open.pop(question_id, None):
            self._close(row, at, decision, by)

    def veto(self, event: events.VetoWindowMoved) -> None:
        """A veto window opens, is used or expires."""
        cid = event.correlation_id or ""
        if event.decision == "open":
            if len(self._vetoes) < OPEN_MAX:
                skill = one_line(event.skill or "", 100)
                begun = f"{skill or 'The work'} has begun."
                self._vetoes[cid] = QuestionRow(
                    question_id=f"{VETO}:{cid}",
                    correlation_id=cid,
                    agent=one_line(event.agent or "", 100),
                    skill=skill,
                    task_id=one_line(event.task_id or "", 200),
                    context_id="",
                    kind=VETO,
                    text=f"{begun} You can stop it until the window closes; after that it continues.",
                    origin="",
                    asked_at=event.at,
                    expires_at=event.expires_at,
                    checkpoint=1,
                )
            return
        row = self._vetoes.pop(cid, None)
        if row is not None and event.decision in {"vetoed", "lapsed"}:
            self._close(row, event.at, event.decision, one_line(event.decided_by or "", 60))

    def vetoes(self, now: datetime) -> tuple[QuestionRow, ...]:
        """Open veto windows, oldest first; expired windows are closed."""
        return tuple(row for row in self._vetoes.values() if row.expires_at is None or row.expires_at > now)

    def withdraw(self, correlation_id: str | None, at: datetime) -> None:
        """The task ended: close its questions and its veto window."""
        self._vetoes.pop(correlation_id or "", None)
        for row in [row for row in self.open.values() if row.correlation_id == correlation_id]:
            self.settle(row.question_id, at, "withdrawn")

    def _close(self, row: QuestionRow, at: datetime, decision: str, by: str) -> None:
        self.settled.appendleft(replace(row, decision=decision, by=by, settled_at=at))


class RunFold(Protocol):
    """Folds the events of a recorded run for the screen that shows it."""

    def fold(self, event: Event) -> object: ...
    def snapshot(self, now: datetime) -> object | None: ...


class ViewBuilder:
    """The fold. ``version`` grows with every event, so that a screen draws only after a change."""

    def __init__(self, run: RunFold | None = None) -> None:
        self.version = 0
        self._run = run
        self._faults: dict[str, None] = {}
        self._made: dict[str, object] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget the hub."""
        self._tasks = TaskFold()
        self._fleet = FleetFold()
        self._inbox = InboxFold()
        self._ceremonies = CeremonyFold()
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._listed: tuple[Event, ...] | None = ()
        self._seen = 0
        self._recent: deque[TaskRow] = deque(maxlen=RECENT_MAX)
        self._notices: deque[NoticeRow] = deque(maxlen=NOTICES_MAX)
        self._errors: deque[datetime] = deque(maxlen=100_000)
        self._began_at: datetime | None = None
        self._last_at: datetime | None = None
        self._stopping = self._configured = False
        self._config_errors: dict[str, str] = {}
        self._storage = ""
        self._troubles: tuple[str, ...] = ()
        self._figures: FleetFigures | None = None
        self._hubs: tuple[HubMember, ...] = ()
        self._limits: tuple[LimitFacts, ...] = ()
        tasks, fleet, ceremonies, inbox = self._tasks, self._fleet, self._ceremonies, self._inbox
        self._handlers: Mapping[type[Event], tuple[Callable[[Any], object], ...]] = {
            events.RequestAccepted: (fleet.meet, tasks.request),
            events.TaskBound: (fleet.meet, tasks.bound),
            events.TaskMoved: (fleet.meet, tasks.moved),
            events.UpdateIgnored: (tasks.stale,),
            events.CallRetried: (tasks.retry,),
            events.PollingStopped: (tasks.unwatched,),
            events.StreamReceived: (tasks.inbound,),
            events.RequestAnswered: (tasks.response,),
            events.OutcomeDecided: (self._outcome,),
            events.QuestionAsked: (self._asked,),
            events.QuestionAnswered: (self._answered,),
            events.QuestionExpired: (self._over,),
            events.QuestionWithdrawn: (self._over,),
            events.VetoWindowMoved: (inbox.veto,),
            fleet_events.ActionTaken: (self._tasks.acted,),
            fleet_events.CeremonyFired: (ceremonies.fired,),
            fleet_events.CeremonyCompleted: (ceremonies.completed,),
            fleet_events.CeremonySkipped: (ceremonies.skipped_slot,),
            fleet_events.CeremonyMissed: (ceremonies.missed_slot,),
            fleet_events.CeremoniesLoaded: (self._ceremonies_loaded,),
            fleet_events.CardFetched: (self._card_fetched,),
            fleet_events.CardFailed: (fleet.card_failed,),
            fleet_events.BreakerOpened: (fleet.breaker_opened,),
            fleet_events.BreakerClosed: (fleet.breaker_closed,),
            fleet_events.HealthChanged: (fleet.health_changed,),
            fleet_events.WebhookAccepted: (fleet.webhook,),
            fleet_events.WebhookRejected: (fleet.webhook,),
            fleet_events.WebhookRegistered: (fleet.webhook,),
            fleet_events.WebhooksDegraded: (fleet.webhook,),
            fleet_events.ConfigLoaded: (self._config_loaded, fleet.config),
            fleet_events.ConfigReloaded: (self._config_reloaded, fleet.reconfigured),
            fleet_events.ConfigRejected: (self._config_rejected,),
            fleet_events.StorageFailed: (self._storage_changed,),
            fleet_events.StorageRecovered: (self._storage_changed,),
            fleet_events.StateRead: (self._state_read,),
            fleet_events.HubStarted: (self._hub_moved,),
            fleet_events.HubStopping: (self._hub_moved,),
            scenario_events.HealthLooked: (fleet.health_looked,),
        }

    def fold_all(self, batch: Iterable[Event]) -> None:
        for event in batch:
            self.fold(event)

    def fold(self, event: Event) -> None:
        """Take one event. An event without a handler only joins the list of events."""
        self.version += 1
        if type(event) not in scenario_events.UNLISTED and not isinstance(event, fleet_events.StateRead):
            self._list(event)
        of_run = () if self._run is None else (self._run.fold,)
        for handle in (*of_run, *self._handlers.get(type(event), ())):
            try:
                handle(event)
            except Exception as error:
                if self._fault(f"an event {event.TOPIC or 'of another kind'} was not counted", error):
                    log.exception("an event %s was not counted", event.TOPIC)

    def _fault(self, what: str, error: Exception) -> bool:
        """Note an error of ours; the other events and lists go on. True at its first occurrence, which is logged."""
        fault = f"{what} ({type(error).__name__})"
        fresh = fault not in self._faults and len(self._faults) < FAULTS_MAX
        if fresh:
            self._faults[fault] = None
        return fresh

    def _rows(self, what: str, make: Callable[[], T], none: T) -> T:
        """The rows of one list; after an error its last rows, so that the other lists are shown."""
        try:
            self._made[what] = make()
        except Exception as error:
            if self._fault(f"the {what} are old", error):
                log.exception("the %s are old", what)
        return cast("T", self._made.get(what, none))

    def _list(self, event: Event) -> None:
        self._began_at = self._began_at or event.at
        self._last_at = event.at
        self._events.append(_slim(event))
        self._listed = None
        self._seen += 1
        if event.level is Level.ERROR:
            self._errors.append(event.at)

    def _state_read(self, event: fleet_events.StateRead) -> None:
        """Begin with the hub's state, or renew what has no event of its own. Events before it only give timelines."""
        state = event.state
        if event.whole:
            self._begin()
            self.fold_all(filter(None, map(from_wire, state.events)))
            self._began_at = self._began_at or state.at
            self._recent.clear()
            ended = self._tasks.take(state.open, state.recent)
            self._recent.extendleft(ended)
            self._inbox.take(state)
            self._ceremonies.take_runs(state.runs)
        self._fleet.take(state)
        rows, problems = tuple(to_json(state.ceremonies)), tuple(to_json(state.ceremony_errors))
        self._ceremonies.loaded(fleet_events.CeremoniesLoaded(at=state.at, ceremonies=rows, errors=problems))
        self._figures, self._hubs, self._limits = state.figures, state.hubs, state.limit_uses
        self._configured, self._stopping, self._storage = True, state.stopping, one_line(state.storage, 400)
        self._config_errors = {problem: one_line(problem, 400) for problem in state.rejected}
        troubles = [f"{owner or 'the hub'} is at its limit {limit}" for owner, limit in state.limits]
        for row in state.channels:
            troubles += row.failures
        self._troubles = tuple(one_line(trouble, 300) for trouble in troubles)

    def _outcome(self, event: events.OutcomeDecided) -> None:
        row = self._tasks.outcome(event)
        self._inbox.withdraw(event.correlation_id, event.at)
        if row is not None:
            self._recent.appendleft(row)
            self._fleet.outcome(event)

    def _asked(self, event: events.QuestionAsked) -> None:
        if row := self._inbox.asked(event):
            self._tasks.asked(event, row.question_id, one_line(row.text), row.kind)

    def _answered(self, event: events.QuestionAnswered) -> None:
        decision = "reject" if event.decision == "reject" else "answer"
        by = one_line(event.decided_by, 60)
        self._inbox.settle(event.question_id, event.at, decision, by)
        what = "rejected" if decision == "reject" else "answered"
        self._tasks.settled(event, f"{what} by {by or 'somebody'}", event.answer)

    def _over(self, event: events.QuestionExpired | events.QuestionWithdrawn) -> None:
        expired = isinstance(event, events.QuestionExpired)
        self._inbox.settle(event.question_id, event.at, "expired" if expired else "withdrawn")
        self._tasks.settled(event, "no answer in time" if expired else "the question was withdrawn")

    def _card_fetched(self, event: fleet_events.CardFetched) -> None:
        known = self._fleet.card_fetched(event)
        if known is None:
            return
        name, before, card = known
        if before.fetched_at is not None and card.changed_at == event.at:
            self._notice(event, name, "card changed")
        for warning in card.warnings:
            if warning not in before.warnings:
                self._notice(event, name, warning)

    def _notice(self, event: Event, about: str, text: str, error: bool = False) -> None:
        self._notices.appendleft(NoticeRow(event.at, one_line(about, 100), one_line(text, 300), error))

    def _config_loaded(self, event: fleet_events.ConfigLoaded) -> None:
        self._configured = True
        self._config_errors.pop(one_line(event.path, 300), None)

    def _config_reloaded(self, event: fleet_events.ConfigReloaded) -> None:
        path = one_line(event.path, 300)
        self._config_errors.pop(path, None)
        for warning in read.lines(event.warnings, 300):
            self._notice(event, path.rsplit("/", 1)[-1], warning)

    def _config_rejected(self, event: fleet_events.ConfigRejected) -> None:
        path = one_line(event.path, 300)
        self._config_errors[path] = one_line(event.error, 400) or f"{path} is broken"
        self._notice(event, path.rsplit("/", 1)[-1], self._config_errors[path], error=True)

    def _storage_changed(self, event: fleet_events.StorageFailed | fleet_events.StorageRecovered) -> None:
        if event.correlation_id is None:
            self._storage = one_line(event.reason, 400) if isinstance(event, fleet_events.StorageFailed) else ""

    def _ceremonies_loaded(self, event: fleet_events.CeremoniesLoaded) -> None:
        """Rejected ceremony files are rows of that screen; other ones and unserved targets become notices."""
        before = self._ceremonies.warnings()
        self._ceremonies.loaded(event)
        for key, warnings in self._ceremonies.warnings().items():
            for warning in warnings:
                if warning not in before.get(key, ()):
                    self._notice(event, key, warning)
        for path in self._ceremonies.broken_paths():
            self._config_errors.pop(path, None)

    def _hub_moved(self, event: fleet_events.HubStarted | fleet_events.HubStopping) -> None:
        self._stopping = isinstance(event, fleet_events.HubStopping)
        self._storage = ""

    def detail(self, correlation_id: str) -> TaskDetail | None:
        return self._tasks.detail(correlation_id)

    def snapshot(self, now: datetime, *, exact: bool = False) -> View:
        """The view at ``now``. With ``exact``, figures that are normally updated every few seconds are updated, too."""
        if self._listed is None:
            self._listed = tuple(self._events)
        while self._errors and now - self._errors[0] > ERRORS_WINDOW:
            self._errors.popleft()
        tasks, fleet, ceremonies = self._tasks, self._fleet, self._ceremonies
        rows: tuple[TaskRow, ...] = self._rows("tasks", tasks.rows, ())
        questions, told = tuple(self._inbox.open.values()), self._figures
        span, span_s = span_for((now - self._began_at).total_seconds() if self._began_at else 0.0)
        agents: tuple[AgentRow, ...] = self._rows(
            "agents", lambda: fleet.rows(now, span_s, tasks.at_work, exact=exact), ()
        )
        health = [row.health for row in agents]
        counters = Counters(
            health={word: health.count(word) for word in HEALTH},
            agents=len(agents),
            working=sum(running for running, _ in tasks.at_work.values()) - tasks.submitted,
            submitted=tasks.submitted,
            waiting=len(questions),
            errors_5m=told.errors_5m if told else len(self._errors),
            figures=fleet.total,
            trend=fleet.cells,
            span=told.span if told else span,
            push_ok=fleet.pushes.get("ok", 0),
            push_again=fleet.pushes.get("again", 0),
            push_refused=fleet.pushes.get("refused", 0),
            missed=ceremonies.missed,
            skipped=ceremonies.skipped,
            events=self._seen,
        )
        return View(
            now=now,
            began_at=self._began_at,
            window_from=told.window_from if told else None,
            last_at=self._last_at,
            stopping=self._stopping,
            configured=self._configured,
            ceremonies_loaded=ceremonies.loaded_at is not None,
            config_error=next(iter(self._config_errors.values()), ""),
            storage=self._storage,
            troubles=self._troubles,
            counters=counters,
            agents=agents,
            tasks=rows,
            recent=tuple(self._recent),
            questions=questions,
            vetoes=self._rows("vetoes", lambda: self._inbox.vetoes(now), ()),
            settled=tuple(self._inbox.settled),
            ceremonies=self._rows("ceremonies", ceremonies.rows, ()),
            notices=tuple(self._notices),
            events=self._listed,
            hubs=self._hubs,
            limits=self._limits,
            scenario=self._rows("figures of the run", lambda: self._run and self._run.snapshot(now), None),
            faults=tuple(self._faults),
        )


def _slim(event: Event) -> Event:
    """The event with its texts cut to excerpts, so that the list stays small with whole recordings."""
    cut: dict[str, Any] = {}
    for member in event.__struct_fields__:
        value = getattr(event, member)
        if isinstance(value, Excerpt) and len(value.text) > EXCERPT_CHARS_MAX:
            cut[member] = Excerpt.of(value.text, value.chars)
        elif isinstance(value, Outcome):
            cut[member] = value.excerpt(EXCERPT_CHARS_MAX)
        elif isinstance(value, str) and len(value) > EXCERPT_CHARS_MAX:
            cut[member] = value[:EXCERPT_CHARS_MAX]
    return msgspec.structs.replace(event, **cut) if cut else event
