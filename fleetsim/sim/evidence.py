"""A recording, gathered for those who hold it to rules: what was told, what was said on the way, and what agents know.

Nothing here is shared with what ran: what is known of a request is gathered from the lines alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Line: TypeAlias = Mapping[str, Any]

EVENTS_KEPT = frozenset(
    (
        *("RequestAccepted", "TaskMoved", "PollingStopped", "OutcomeDecided"),
        *("QuestionAsked", "QuestionAnswered", "CeremonyFired"),
    )
)
OUTCOME_KEPT = (
    *("t", "correlation_id", "agent", "task_id", "accepted", "outcome", "cause", "reason"),
    *("text", "chars", "cost_usd", "duration_ms"),
)
TRUTH_KEPT = (
    *("t", "correlation_id", "agent", "task_id", "begun_s", "ended_s", "ended"),
    *("text", "chars", "cost_usd", "answers"),
)
"""What rules ask for of the lines of that kind: a recording of a large day holds more than a machine should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that must not be. ``at_s`` is when, in seconds of the run."""

    invariant: str
    said: str
    at_s: float
    correlation_id: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call or webhook: of tens of thousands in a day only what rules ask for is kept, and each text once.

    ``order`` is its place in the recording; ``disk_full`` whether nothing could be written when it was over.
    """

    t: float
    began_s: float
    order: int
    source: str
    target: str
    method: str
    request: str
    door: str
    task_id: str
    state: str
    body: str
    status: int | None
    disk_full: bool


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """One of the hub's events about a request, likewise; ``order`` as of a call.

    ``kind`` is what a request ended as, ``cause`` why and ``ended_at`` when; ``question_id`` is of a question.
    """

    t: float
    order: int
    seq: int
    correlation_id: str
    agent: str
    task_id: str
    kind: str = ""
    cause: str = ""
    ended_at: str = ""
    question_id: str = ""


@dataclass(slots=True)
class Evidence:
    """A recording, gathered by what the invariants ask for: it is taken line by line, and not kept whole."""

    start: Line = field(default_factory=dict)
    accepted: dict[str, ToldEvent] = field(default_factory=dict)
    begun: dict[str, list[ToldEvent]] = field(default_factory=lambda: defaultdict(list))
    decided: dict[str, list[ToldEvent]] = field(default_factory=lambda: defaultdict(list))
    moved: dict[str, list[ToldEvent]] = field(default_factory=lambda: defaultdict(list))
    unpolled: dict[str, list[ToldEvent]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    truths: dict[tuple[str, str], list[Line]] = field(default_factory=lambda: defaultdict(list))
    questions: dict[str, list[ToldEvent]] = field(default_factory=lambda: defaultdict(list))
    answered: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    slots: Counter[tuple[str, str]] = field(default_factory=Counter)
    slot_at: dict[tuple[str, str], float] = field(default_factory=dict)
    health: list[Line] = field(default_factory=list)
    complaints: list[Line] = field(default_factory=list)
    calls: list[SeenCall] = field(default_factory=list)
    submitted: list[Line] = field(default_factory=list)
    killed_s: list[float] = field(default_factory=list)
    forged: list[Line] = field(default_factory=list)
    edited: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    repeated: list[Line] = field(default_factory=list)
    ledgers: list[Line] = field(default_factory=list)
    kept: list[tuple[Line, int]] = field(default_factory=list)
    late: list[Line] = field(default_factory=list)
    stalled: list[Line] = field(default_factory=list)
    restarts: list[tuple[float, str]] = field(default_factory=list)
    disk_full: bool = False
    keys: Line | None = None
    rekeyed_s: list[float] = field(default_factory=list)
    schedules: dict[str, list[str]] = field(default_factory=dict)
    reached: tuple[str, ...] = ()
    troubles: set[str] = field(default_factory=set)
    calm_s: float | None = None
    end: Line | None = None
    played: Line | None = None
    last_s: float = 0.0
    lines: int = 0
    _texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Evidence:
        found = cls()
        for line in lines:
            found.take(line)
        return found

    def take(self, line: Line) -> None:
        """Gather from the next line."""
        self.last_s = max(self.last_s, line["t"])
        self.lines += 1
        match line["kind"]:
            case "event":
                self._take_event(line)
            case "outcome":
                self.outcomes[line["correlation_id"]].append({name: line.get(name) for name in OUTCOME_KEPT})
            case "task":
                self.truths[line["agent"], line["task_id"]].append({name: line[name] for name in TRUTH_KEPT})
            case "answer":
                self.answers[line["correlation_id"]] += 1
            case "health":
                self.health.append(line)
            case "complaint":
                self.complaints.append(line)
            case "trouble":
                self.troubles.add(line["fault"])
                if line["fault"] == "agent-restart" and line["phase"] == "begins":
                    self.restarts.append((line["t"], line["agent"] or ""))
                if line["fault"] == "new-webhook-keys" and line["phase"] == "begins":
                    self.rekeyed_s.append(line["t"])
                if line["fault"] == "disk-full":
                    self.disk_full = line["phase"] == "begins"
                elif line["fault"] == "stall" and line["phase"] == "begins":
                    self.stalled.append({"t": line["t"], "ends_s": line["t"]})
                elif line["fault"] == "stall":
                    self.stalled[-1] = {**self.stalled[-1], "ends_s": line["t"]}
            case "keys":
                self.keys = line
            case "due":
                self.schedules = line.get("schedules", {})
            case "reached":
                self.reached = tuple(line["origins"])
            case "calm":
                self.calm_s = line["t"]
            case "call":
                self._take_call(line)
            case "forged":
                self.forged.append(line)
            case "edited":
                self.edited[line["file"]].append(line)
            case "repeated":
                self.repeated.append(line)
            case "ledger":
                self.ledgers.append(line)
            case "kept":
                self.kept.append((line, len(self.accepted) - sum(map(bool, self.decided.values()))))
            case "late":
                self.late.append(line)
            case "submitted":
                self.submitted.append(line)
            case "killed":
                self.killed_s.append(line["t"])
                self._forget_after(line["journalled"])
            case "start":
                self.start = line
            case "end":
                self.end = line
            case "played":
                self.played = line

    def _forget_after(self, seq: int) -> None:
        """The hub died before its last events were journalled: to whoever comes later they were not told."""
        for told in (self.begun, self.decided, self.moved):
            for cid, lines in told.items():
                told[cid] = [event for event in lines if event.seq <= seq]

    def _same(self, text: str) -> str:
        """A text that was met before, if it was: most name one of few tasks, agents and methods."""
        return self._texts.setdefault(text, text)

    def _take_call(self, line: Line) -> None:
        same = self._same
        self.calls.append(
            SeenCall(
                t=line["t"],
                began_s=line["began_s"],
                order=self.lines,
                source=same(line["source"]),
                target=same(line["target"]),
                method=same(line["method"]),
                request=same(line["request"]),
                door=same(line["door"]),
                task_id=same(line["task_id"]),
                state=same(line["state"]),
                body=line["body"],
                status=line["status"],
                disk_full=self.disk_full,
            )
        )

    def _take_event(self, line: Line) -> None:
        kind = line["type"]
        if kind not in EVENTS_KEPT:
            return
        event, same = line["event"], self._same
        cid, payload = same(event["correlationId"] or ""), event["payload"]
        if kind == "QuestionAnswered":
            self.answered[payload["questionId"]] += 1
            return
        if kind == "CeremonyFired":
            if payload["trigger"] != "manual":
                slot = (same(payload["ceremonyId"]), payload["scheduledAt"])
                self.slots[slot] += 1
                self.slot_at[slot] = line["t"]
            return
        told = ToldEvent(
            t=line["t"],
            order=self.lines,
            seq=event["seq"],
            correlation_id=cid,
            agent=same(event["agent"] or ""),
            task_id=same(event["taskId"] or ""),
            kind=same(payload["kind"]) if kind == "OutcomeDecided" else "",
            cause=same(payload.get("cause") or "") if kind == "OutcomeDecided" else "",
            ended_at=payload.get("endedAt", ""),
            question_id=payload.get("questionId", ""),
        )
        match kind:
            case "RequestAccepted":
                self.accepted.setdefault(cid, told)
                self.begun[cid].append(told)
            case "TaskMoved":
                self.moved[cid].append(told)
            case "PollingStopped":
                self.unpolled[cid].append(told)
            case "OutcomeDecided":
                self.decided[cid].append(told)
            case "QuestionAsked":
                self.questions[cid].append(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One thing that must be true. ``check`` yields None for each case that is as it must be."""

    number: str
    rule: str
    check: Callable[[Evidence], Iterator[Violation | None]]


RULES: list[Invariant] = []
"""Every rule there is, as its module was read."""


def invariant(number: str, rule: str) -> Callable[[Callable[[Evidence], Iterator[Violation | None]]], None]:
    """What follows is the rule of this number."""

    def take(check: Callable[[Evidence], Iterator[Violation | None]]) -> None:
        RULES.append(Invariant(number=number, rule=rule, check=check))

    return take


def broken(number: str, found: Line | ToldEvent, said: str) -> Violation:
    """What is wrong with what a line or an event tells of."""
    if isinstance(found, ToldEvent):
        at_s, cid, agent = found.t, found.correlation_id, found.agent
    else:
        at_s, cid, agent = found["t"], found.get("correlation_id") or "", found.get("agent") or ""
    return Violation(invariant=number, said=said, at_s=at_s, correlation_id=cid, agent=agent)
