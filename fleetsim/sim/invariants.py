"""What must be true of every run, whatever the weather: one function each, over the recording and the agents' truth.

Numbers are those of the invariants that caller and agent are held to. Nothing here is shared with what ran: what is
known of a request is gathered from the lines alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

Line: TypeAlias = Mapping[str, Any]
KNOWN_WITHIN_S = 900.0
"""A look every interval, of 30 seconds by default, and twice as long after one that failed; agents that have just come
back are called slowly."""


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
    """A recording, gathered by what the invariants ask for."""

    start: Line = field(default_factory=dict)
    accepted: dict[str, Line] = field(default_factory=dict)
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
    reached: tuple[str, ...] = ()
    troubles: set[str] = field(default_factory=set)
    calm_s: float | None = None
    end: Line | None = None
    last_s: float = 0.0

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Evidence:
        found = cls()
        for line in lines:
            found._take(line)
        return found

    def _take(self, line: Line) -> None:
        self.last_s = max(self.last_s, line["t"])
        match line["kind"]:
            case "event":
                self._take_event(line)
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
            case "reached":
                self.reached = tuple(line["origins"])
            case "calm":
                self.calm_s = line["t"]
            case "killed":
                self._forget_after(line["journalled"])
            case "start":
                self.start = line
            case "end":
                self.end = line

    def _forget_after(self, seq: int) -> None:
        """The hub died before its last events were journalled: to whoever comes later they were not told."""
        for told in (self.decided, self.moved):
            for cid, lines in told.items():
                told[cid] = [line for line in lines if line["event"]["seq"] <= seq]

    def _take_event(self, line: Line) -> None:
        event = line["event"]
        cid, payload = event["correlationId"], event["payload"]
        match line["type"]:
            case "RequestAccepted":
                self.accepted[cid] = line
            case "TaskMoved":
                self.moved[cid].append(line)
            case "OutcomeDecided":
                self.decided[cid].append(line)
            case "QuestionAsked":
                self.questions[cid].append(line)
            case "QuestionAnswered":
                self.answered[payload["questionId"]] += 1
            case "CeremonyFired" if payload["trigger"] != "manual":
                ceremony = event["topic"].removeprefix("ceremony.").removesuffix(".execute")
                slot = (ceremony, payload["scheduledAt"])
                self.slots[slot] += 1
                self.slot_at[slot] = line["t"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One thing that must be true. ``check`` yields None for each case that is as it must be."""

    number: str
    rule: str
    check: Callable[[Evidence], Iterator[Violation | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one invariant: how many cases were looked at, and which were wrong."""

    invariant: Invariant
    cases: int
    violations: tuple[Violation, ...]


INVARIANTS: list[Invariant] = []


def _invariant(number: str, rule: str) -> Callable[[Callable[[Evidence], Iterator[Violation | None]]], None]:
    def take(check: Callable[[Evidence], Iterator[Violation | None]]) -> None:
        INVARIANTS.append(Invariant(number=number, rule=rule, check=check))

    return take


def verdicts(lines: Iterable[Line]) -> tuple[Verdict, ...]:
    """Every invariant, held to a recording."""
    evidence = Evidence.of(lines)
    found = []
    for invariant in INVARIANTS:
        cases = list(invariant.check(evidence))
        wrong = tuple(case for case in cases if case is not None)
        found.append(Verdict(invariant=invariant, cases=len(cases), violations=wrong))
    return tuple(found)


def _of(number: str, line: Line, said: str) -> Violation:
    event = line.get("event", {})
    return Violation(
        invariant=number,
        said=said,
        at_s=line["t"],
        correlation_id=line.get("correlation_id") or event.get("correlationId") or "",
        agent=line.get("agent") or event.get("agent") or "",
    )


@_invariant("I-01", "every accepted request has exactly one outcome")
def _one_outcome(e: Evidence) -> Iterator[Violation | None]:
    for cid, line in e.accepted.items():
        rows = e.outcomes.get(cid, ())
        yield None if len(rows) == 1 else _of("I-01", line, f"accepted, and has {len(rows)} outcomes")


@_invariant("I-02", "nothing is sent, and nothing ends, that was not accepted before")
def _accepted_before(e: Evidence) -> Iterator[Violation | None]:
    """What is on record was accepted, though a hub that died writing it could not tell of it any more."""
    for rows in e.outcomes.values():
        yield None if rows[0]["accepted"] else _of("I-02", rows[0], "an outcome of a request that nobody accepted")
    for truths in e.truths.values():
        for truth in truths:
            cid = truth["correlation_id"]
            told = e.accepted.get(cid)
            if told is not None:
                early = truth["begun_s"] < told["t"]
                yield _of("I-02", truth, "the agent had the task before the request was accepted") if early else None
            else:
                known = any(row["accepted"] for row in e.outcomes.get(cid, ()))
                said = f"the agent had a task {truth['task_id']} that nobody asked for"
                yield None if known else _of("I-02", truth, said)


@_invariant("I-03", "a request that has ended does not move any more")
def _no_move_after_the_end(e: Evidence) -> Iterator[Violation | None]:
    for cid, decided in e.decided.items():
        if not decided:
            continue
        seq = decided[0]["event"]["seq"]
        late = next((line for line in e.moved.get(cid, ()) if line["event"]["seq"] > seq), None)
        yield None if late is None else _of("I-03", late, "moved after its outcome")


@_invariant("I-04", "each outcome on record is told once, and none that is not")
def _told_once(e: Evidence) -> Iterator[Violation | None]:
    for cid in e.outcomes.keys() | e.decided.keys():
        told, kept = len(e.decided.get(cid, ())), len(e.outcomes.get(cid, ()))
        line = (e.decided.get(cid) or e.outcomes.get(cid) or [{"t": 0.0}])[0]
        yield None if told == kept == 1 else _of("I-04", line, f"told {told} times, on record {kept} times")


@_invariant("I-05", "the day's figures are those of the outcomes that were told")
def _health_counts(e: Evidence) -> Iterator[Violation | None]:
    if "clock-jump" in e.troubles:
        return  # what "the last 24 hours" are is then another question
    ended = defaultdict(list)
    for cid, lines in e.decided.items():
        if not lines:
            continue
        event = lines[0]["event"]
        if e.outcomes.get(cid):
            ended[event["agent"]].append((datetime.fromisoformat(event["payload"]["endedAt"]), lines[0]["t"]))
    for line in e.health:
        now = datetime.fromisoformat(line["now"])
        for agent, row in line["agents"].items():
            # What was told at the very moment of the look may be counted in it or not.
            inside = [told for at, told in ended[agent] if now - timedelta(hours=24) < at and told <= line["t"]]
            right = sum(told < line["t"] for told in inside) <= row["outcomes"] <= len(inside)
            said = f"{agent}: {row['outcomes']} outcomes in health, {len(inside)} told"
            yield None if right else _of("I-05", {**line, "agent": agent}, said)


@_invariant("I-06", "a ceremony fires at most once for each of its slots")
def _slots_once(e: Evidence) -> Iterator[Violation | None]:
    for slot, times in e.slots.items():
        line = {"t": e.slot_at[slot]}
        yield None if times == 1 else _of("I-06", line, f"{slot[0]} fired {times} times for {slot[1]}")


@_invariant("I-11", "what is shown as the answer is what the agent said, whole")
def _whole_text(e: Evidence) -> Iterator[Violation | None]:
    for rows in e.outcomes.values():
        for row, truth in _with_truth(e, rows):
            if row["outcome"] == "completed" and truth["ended"] == "completed":
                said = f"{row['chars']} characters, the agent said {truth['chars']}"
                yield None if row["text"] == truth["text"] else _of("I-11", row, said)
                cost = f"cost {row['cost_usd']}, the agent reported {truth['cost_usd']}"
                yield None if row["cost_usd"] == truth["cost_usd"] else _of("I-11", row, cost)


@_invariant("I-12", "an answer reaches the question it was given for, at most once")
def _answers_once(e: Evidence) -> Iterator[Violation | None]:
    for lines in e.questions.values():
        for line in lines:
            times = e.answered[line["event"]["payload"]["questionId"]]
            yield None if times <= 1 else _of("I-12", line, f"the question was answered {times} times")
    for truths in e.truths.values():
        for truth in truths:
            if truth["answers"]:
                given = e.answers[truth["correlation_id"]]
                said = f"the agent was given {len(truth['answers'])} answers, people gave {given}"
                yield None if len(truth["answers"]) <= given else _of("I-12", truth, said)


@_invariant("I-14", "once the weather is calm, the end of a task is known within a quarter of an hour")
def _known_soon(e: Evidence) -> Iterator[Violation | None]:
    if e.calm_s is None or e.end is None:
        return
    decided = {cid: lines[0]["t"] for cid, lines in e.decided.items() if lines}
    for truths in e.truths.values():
        for truth in truths:
            known = decided.get(truth["correlation_id"])
            if known is not None:
                late_s = known - max(truth["ended_s"], e.calm_s)
                said = f"the agent {truth['ended']} it, which was known {late_s:.0f} s later"
                yield None if late_s <= KNOWN_WITHIN_S else _of("I-14", truth, said)


@_invariant("I-17", "nobody is called who is not in the fleet")
def _known_destinations(e: Evidence) -> Iterator[Violation | None]:
    known = {f"http://{row['agent'].lower()}.sim:8000" for row in e.start.get("agents", ())} | {"http://hub.sim:8080"}
    for pair in e.reached:
        source, _, origin = pair.partition(" ")
        line = {"t": e.last_s, "agent": source}
        yield None if origin in known else _of("I-17", line, f"{source or 'somebody'} called {origin}")


@_invariant("I-24", "nothing that runs in the background fails unseen")
def _no_complaints(e: Evidence) -> Iterator[Violation | None]:
    for line in e.complaints:
        yield _of("I-24", line, line["said"])
    if e.end is not None and not e.complaints:
        yield None


@_invariant("I-26", "once the weather is calm, everything comes to its end")
def _nothing_left(e: Evidence) -> Iterator[Violation | None]:
    if e.end is None:
        yield _of("I-26", {"t": e.last_s}, "the run itself did not come to its end")
        return
    left = ", ".join(f"{count} {what}" for what, count in e.end["kept"].items())
    yield _of("I-26", e.end, f"left at the end: {left}") if left else None


@_invariant("I-27", "what is said of a task is what its agent did")
def _truthful(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: an outcome may know less than the agent, and never something else."""
    for rows in e.outcomes.values():
        for row, truth in _with_truth(e, rows):
            if row["cause"] != "agent_said":
                continue
            same = row["outcome"] == truth["ended"]
            yield None if same else _of("I-27", row, f"said to be {row['outcome']}, the agent {truth['ended']} it")


@_invariant("I-28", "a request becomes one task at most")
def _one_task(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: what may have arrived is never sent again."""
    tasks: dict[str, list[Line]] = defaultdict(list)
    for truths in e.truths.values():
        for truth in truths:
            tasks[truth["correlation_id"]].append(truth)
    for cid, mine in tasks.items():
        said = f"{len(mine)} tasks were begun for it"
        yield None if len(mine) == 1 or not cid else _of("I-28", mine[1], said)


def _with_truth(e: Evidence, rows: Iterable[Line]) -> Iterator[tuple[Line, Line]]:
    for row in rows:
        truths = e.truths.get((row["agent"], row["task_id"] or ""), ())
        if len(truths) == 1:
            yield row, truths[0]
