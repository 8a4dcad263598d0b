"""A recording, gathered for those who hold it to rules: what was told, what was said on the way, and what agents know.

Nothing here is shared with what ran: what is known of a request is gathered from the lines alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that must not be. ``at_s`` is when, in seconds of the run."""

    invariant: str
    said: str
    at_s: float
    correlation_id: str = ""
    agent: str = ""


@dataclass(slots=True)
class Evidence:
    """A recording, gathered by what the invariants ask for. ``order`` of a call or event is its place in it."""

    start: Line = field(default_factory=dict)
    accepted: dict[str, Line] = field(default_factory=dict)
    begun: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    decided: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    moved: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    truths: dict[tuple[str, str], list[Line]] = field(default_factory=lambda: defaultdict(list))
    questions: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    answered: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    slots: Counter[tuple[str, str]] = field(default_factory=Counter)
    slot_at: dict[tuple[str, str], float] = field(default_factory=dict)
    health: list[Line] = field(default_factory=list)
    complaints: list[Line] = field(default_factory=list)
    calls: list[Line] = field(default_factory=list)
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

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Evidence:
        found = cls()
        for line in lines:
            found._take(line)
        return found

    def _take(self, line: Line) -> None:
        self.last_s = max(self.last_s, line["t"])
        self.lines += 1
        match line["kind"]:
            case "event":
                self._take_event({**line, "order": self.lines})
            case "outcome":
                self.outcomes[line["correlation_id"]].append(line)
            case "task":
                self.truths[line["agent"], line["task_id"]].append(line)
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
                self.calls.append({**line, "order": self.lines, "disk_full": self.disk_full})
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
                told[cid] = [line for line in lines if line["event"]["seq"] <= seq]

    def _take_event(self, line: Line) -> None:
        event = line["event"]
        cid, payload = event["correlationId"], event["payload"]
        match line["type"]:
            case "RequestAccepted":
                self.accepted.setdefault(cid, line)
                self.begun[cid].append(line)
            case "TaskMoved":
                self.moved[cid].append(line)
            case "OutcomeDecided":
                self.decided[cid].append(line)
            case "QuestionAsked":
                self.questions[cid].append(line)
            case "QuestionAnswered":
                self.answered[payload["questionId"]] += 1
            case "CeremonyFired" if payload["trigger"] != "manual":
                slot = (payload["ceremonyId"], payload["scheduledAt"])
                self.slots[slot] += 1
                self.slot_at[slot] = line["t"]


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


def broken(number: str, line: Line, said: str) -> Violation:
    """What is wrong with what a line tells of."""
    event = line.get("event", {})
    return Violation(
        invariant=number,
        said=said,
        at_s=line["t"],
        correlation_id=line.get("correlation_id") or event.get("correlationId") or "",
        agent=line.get("agent") or event.get("agent") or "",
    )
