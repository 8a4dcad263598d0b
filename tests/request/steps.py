"""A helper that drives ``step``: one track, a clock that is moved by hand, and the effects so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from fleetsim.events.request import EPOCH, Level
from fleetsim.events.wire import payload
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.extensions import COST_TYPE
from fleetsim.model.task import Artifact, DataPart, Message, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Outcome, Question, SkillRequest, UpdateSource
from fleetsim.request.machine import TRANSITIONS, new_track, stage_of, step
from fleetsim.request.records import RequestRecord
from fleetsim.request.signals import Begin, Close, Due, Effect, Left, Publish, Replied
from fleetsim.request.track import Now, Rules, Signal, TaskUpdate, Timer, Track
from tests.recorded import recorded

E = TypeVar("E", bound=Effect)
START = datetime(2026, 1, 1, tzinfo=UTC)
NEVER = float("inf")
W, C, F, S, I, X, R = (  # noqa: E741
    TaskState.WORKING,
    TaskState.COMPLETED,
    TaskState.FAILED,
    TaskState.SUBMITTED,
    TaskState.INPUT_REQUIRED,
    TaskState.CANCELED,
    TaskState.REJECTED,
)


def record(*, streaming: bool = False, push: bool = False, rejoin: bool = True, limit_s: float = 3600) -> RequestRecord:
    return RequestRecord(
        request=SkillRequest(correlation_id="c-1", text="do it", skill="echo", targets=("a",)),
        agent="a",
        skill="echo",
        accepted_at=START,
        deadline_at=START + timedelta(seconds=limit_s),
        message_id="m-1",
        dialect="0.3",
        streaming=streaming,
        rejoin=rejoin,
        push=push,
    )


def message(text: str, message_id: str = "s-1") -> Message:
    return Message(message_id=message_id, role=Role.AGENT, parts=(TextPart(text=text),))


def task(state: TaskState, text: str = "", said: str = "", *, said_id: str = "s-1", cost: bool = False) -> Task:
    parts = (TextPart(text=text),) if text else ()
    if cost:
        data = {"usage": {"input_tokens": 10, "output_tokens": 5}, "costUsd": 0.5}
        parts = (*parts, DataPart(data=data, metadata={"mimeType": COST_TYPE}))
    return Task(
        task_id="t-1",
        context_id="ctx",
        status=TaskStatus(state=state, message=message(said, said_id) if said else None),
        artifacts=(Artifact(artifact_id="t-1", parts=parts),) if parts else (),
    )


WHICH = task(I, said="which?", said_id="q1")


def status(state: TaskState, said: str = "", *, said_id: str = "s-1", final: bool = False) -> StatusUpdate:
    told = message(said, said_id) if said else None
    return StatusUpdate(task_id="t-1", context_id="ctx", status=TaskStatus(state=state, message=told), final=final)


def chunk(text: str, *, append: bool = True, last: bool = False) -> ArtifactUpdate:
    artifact = Artifact(artifact_id="t-1", parts=(TextPart(text=text),))
    return ArtifactUpdate(task_id="t-1", context_id="ctx", artifact=artifact, append=append, last_chunk=last)


def wake_of(track: Track) -> float:
    """The moment of its next timer; never, once it is closed."""
    return min(track.timers.values(), default=NEVER)


def in_table(track: Track, signal: Signal, now: Now, rules: Rules) -> tuple[Track, tuple[Effect, ...]]:
    """A step that must follow the table and must not change its input."""
    before = replace(track, timers=dict(track.timers))
    new, effects = step(track, signal, now, rules)
    assert track == before, "a step changed the track it was given"
    transition = TRANSITIONS[stage_of(track)].get(type(signal))
    assert (new, effects) == (track, ()) if transition is None else stage_of(new) in transition.to
    return new, effects


@dataclass
class Hand:
    """Signals in, effects out. ``effects`` holds those of the latest signal; ``jitter`` is every draw of chance."""

    track: Track
    rules: Rules = field(default_factory=Rules)
    mono: float = 0.0
    effects: tuple[Effect, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)
    jitter: float = 0.5

    @classmethod
    def begun(cls, rules: Rules | None = None, **kind: bool) -> Hand:
        hand = cls(track=new_track(record(**kind), Now(0.0, START)), rules=rules or Rules())
        hand.tell(Begin())
        return hand

    @classmethod
    def sent(cls, rules: Rules | None = None, **kind: bool) -> Hand:
        """As ``begun``, and the send has left."""
        return cls.begun(rules, **kind).tell(Left())

    def now(self) -> Now:
        return Now(self.mono, START + timedelta(seconds=self.mono), self.jitter)

    def at(self, mono: float) -> Hand:
        """The same track at another moment, with no poll meanwhile."""
        self.mono = mono
        return self

    def tell(self, signal: Signal) -> Hand:
        self.track, self.effects = in_table(self.track, signal, self.now(), self.rules)
        self.outcomes += [e.outcome for e in self.effects if isinstance(e, Close)]
        return self

    def hear(self, event: TaskEvent | Task, via: UpdateSource, *, began: float | None = None) -> Hand:
        event = Snapshot(task=event) if isinstance(event, Task) else event
        return self.tell(TaskUpdate(event=event, via=via, began=self.mono if began is None else began))

    def wait(self, seconds: float) -> Hand:
        """Let time pass, stopping at every timer; collects all effects."""
        until, seen = self.mono + seconds, []
        while (before := wake_of(self.track)) <= until:
            self.mono = max(self.mono, before)
            self.tell(Due())
            seen += self.effects
            assert wake_of(self.track) > before or self.effects, "time stands still"
        self.mono = until
        self.effects = tuple(seen)
        return self

    @property
    def question(self) -> Question:
        """The question of the task, which must have one."""
        question = self.track.asking.question
        assert question is not None
        return question

    @property
    def next_look(self) -> float | None:
        """Seconds to the poll that is due, or will be once the one in the air is over."""
        polling = self.track.polling
        due = self.due(Timer.POLL) if polling.began is None else polling.next_at
        return None if due is None else due - self.mono

    def due(self, timer: Timer) -> float | None:
        """When a timer falls due."""
        return self.track.timers.get(timer)

    @property
    def said(self) -> list[tuple[str, Level, dict[str, Any]]]:
        """The events of the latest signal: topic, level, payload."""
        return [(e.event.topic, e.event.level, payload(e.event)) for e in self.effects if isinstance(e, Publish)]

    def asked_for(self, kind: type[E]) -> list[E]:
        return [e for e in self.effects if isinstance(e, kind)]


def bound(state: TaskState = S, rules: Rules | None = None, **kind: bool) -> Hand:
    """A send that was answered with a task."""
    return Hand.begun(rules, **kind).tell(Replied(reply=task(state), began=0.0))


def asking(rules: Rules | None = None, seen: Task = WHICH, **kind: bool) -> Hand:
    """Sent at 0 s; at 10 s the agent asks, and its time stops."""
    return Hand.sent(rules, **kind).tell(Replied(reply=task(S), began=0.0)).at(10.0).hear(seen, UpdateSource.POLL)


def published(*, topic: str, level: Level = Level.INFO, payload: Mapping[str, Any] | None = None) -> Publish:
    """An event of a step before its subject is set."""
    return Publish(event=recorded(topic, payload, at=EPOCH, level=level))
