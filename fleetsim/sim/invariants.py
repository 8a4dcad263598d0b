"""What must be true of every run, whatever the weather: one function each, over the recording and the agents' truth.

Numbers are those of the invariants that caller and agent are held to, and from I-27 on our own; those over what passed
on the network stand in ``call_invariants``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleetsim.caller.health import window_start
from fleetsim.caller.track import Rules
from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import zone_of
from fleetsim.sim import call_invariants
from fleetsim.sim.agents import LIMITS
from fleetsim.sim.evidence import RULES, Evidence, Invariant, Line, ToldEvent, Violation, broken, invariant

KNOWN_WITHIN_S = 900.0
"""A look every interval, of 30 seconds by default, and twice as long after one that failed; agents that have just come
back are called slowly."""
ZONE_SEEN_S = 900.0
"""A file is seen within seconds; a hub that was down meanwhile catches up on ten minutes."""
EDIT_SEEN_S = 15.0
"""A look every five seconds, and what a host may sleep meanwhile."""
KEPT_BESIDE = 5
"""What may be kept beside the requests that are known to be in flight."""
PER_REQUEST = 6
"""Workers for one request: its send or stream, looks, a webhook's registration, a write, an answer or a cancel."""
TASK_LIFE_S = LIMITS.task_life_s + 2 * LIMITS.sweep_interval_s
"""How long an agent leaves a task open, and the pauses between two looks at that."""
HELD_UP_S = 0.05
STALL_S = 1.0
"""What passed no longer ago than this ends a request though nobody looked: no host is that punctual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one invariant: how many cases were looked at, and which were wrong."""

    invariant: Invariant
    cases: int
    violations: tuple[Violation, ...]


def verdicts(evidence: Evidence) -> tuple[Verdict, ...]:
    """Every invariant, held to a recording."""
    found = []
    for rule in INVARIANTS:
        count, wrong = 0, []
        for case in rule.check(evidence):
            count += 1
            if case is not None:
                wrong.append(case)
        found.append(Verdict(invariant=rule, cases=count, violations=tuple(wrong)))
    return tuple(found)


@invariant("I-01", "every accepted request has exactly one outcome")
def _one_outcome(e: Evidence) -> Iterator[Violation | None]:
    for cid, line in e.accepted.items():
        rows = e.outcomes.get(cid, ())
        yield None if len(rows) == 1 else broken("I-01", line, f"accepted, and has {len(rows)} outcomes")


@invariant("I-02", "nothing is sent, and nothing ends, that was not accepted before")
def _accepted_before(e: Evidence) -> Iterator[Violation | None]:
    for rows in e.outcomes.values():
        yield None if rows[0]["accepted"] else broken("I-02", rows[0], "an outcome of a request that nobody accepted")
    for truths in e.truths.values():
        for truth in truths:
            cid = truth["correlation_id"]
            told = e.accepted.get(cid)
            if told is not None:
                early = truth["begun_s"] < told.t
                yield broken("I-02", truth, "the agent had the task before the request was accepted") if early else None
            else:
                yield broken("I-02", truth, f"the agent had a task {truth['task_id']} that nobody asked for")


@invariant("I-03", "a request that has ended does not move any more")
def _no_move_after_the_end(e: Evidence) -> Iterator[Violation | None]:
    for cid, decided in e.decided.items():
        if not decided:
            continue
        seq = decided[0].seq
        late = next((move for move in e.moved.get(cid, ()) if move.seq > seq), None)
        yield None if late is None else broken("I-03", late, "moved after its outcome")


@invariant("I-04", "each outcome on record is told once, and none that is not")
def _told_once(e: Evidence) -> Iterator[Violation | None]:
    for cid in e.outcomes.keys() | e.decided.keys():
        told, kept = len(e.decided.get(cid, ())), len(e.outcomes.get(cid, ()))
        line = next(iter((*e.decided.get(cid, ()), *e.outcomes.get(cid, ()))), {"t": 0.0})
        yield None if told == kept == 1 else broken("I-04", line, f"told {told} times, on record {kept} times")


@invariant("I-29", "each request is told of once, and before its outcome is")
def _begun_once(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: what a hub that died could not tell of any more, its next start tells."""
    for cid in e.begun.keys() | e.decided.keys():
        begun, decided = e.begun.get(cid, ()), e.decided.get(cid, ())
        if len(begun) != 1:
            line = next(iter((*begun, *decided)), {"t": 0.0})
            yield broken("I-29", line, f"told {len(begun)} times that it was accepted")
        elif decided and decided[0].seq < begun[0].seq:
            yield broken("I-29", begun[0], "its outcome was told first")
        else:
            yield None


@invariant("I-05", "the day's figures are those of the outcomes that were told")
def _health_counts(e: Evidence) -> Iterator[Violation | None]:
    if "clock-jump" in e.troubles:
        return  # what "the last 24 hours" are is then another question
    ended = defaultdict(list)
    for cid, decided in e.decided.items():
        if decided and e.outcomes.get(cid):
            ended[decided[0].agent].append((datetime.fromisoformat(decided[0].ended_at), decided[0]))
    for line in e.health:
        since = window_start(datetime.fromisoformat(line["now"]))
        for agent, row in line["agents"].items():
            # What was told at the very moment of the look may be counted in it or not; in real time who writes it down
            # may hear of it after the look.
            heard = [told for at, told in ended[agent] if since <= at]
            inside = [told for told in heard if told.t <= line["t"] or told.seq <= line.get("seq", 0)]
            right = sum(told.t < line["t"] for told in inside) <= row["outcomes"] <= len(inside)
            said = f"{agent}: {row['outcomes']} outcomes in health, {len(inside)} told"
            yield None if right else broken("I-05", {**line, "agent": agent}, said)


@invariant("I-06", "a ceremony fires at most once for each of its slots")
def _slots_once(e: Evidence) -> Iterator[Violation | None]:
    """That a slot fires at all where a hub is up is not asked for: a full disk, a run that overlaps and an edited file
    may each keep one back, and only the hub knows why. The report has a table of them, the scheduler's tests the rest.
    """
    for slot, times in e.slots.items():
        line = {"t": e.slot_at[slot]}
        yield None if times == 1 else broken("I-06", line, f"{slot[0]} fired {times} times for {slot[1]}")


@invariant("I-07", "a ceremony does not fire while it is disabled or deleted")
def _edits_hold(e: Evidence) -> Iterator[Violation | None]:
    """Edits are seen within seconds; a file that is half written stays as it was. What is put back while no hub runs
    may catch up on a slot from before.
    """
    for name, edits in e.edited.items():
        for edit, after in zip(edits, [*edits[1:], None], strict=True):
            if edit["what"] not in {"disabled", "deleted"}:
                continue
            until_s = after["t"] if after is not None else e.last_s
            fired = [at for (of, _), at in e.slot_at.items() if of == name and edit["t"] + EDIT_SEEN_S < at < until_s]
            yield broken("I-07", {"t": fired[0]}, f"{name} was {edit['what']}, and fired") if fired else None


@invariant("I-31", "a ceremony fires when its file says so, on the clock of the zone that is named there")
def _on_schedule(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants. What was moved to another zone is seen, and caught up on, some minutes later."""
    for (name, scheduled_at), at in e.slot_at.items():
        if name not in e.schedules:
            continue
        schedule, zone = e.schedules[name]
        edits = (edit for edit in e.edited.get(name, ()) if edit["what"] in {"as it was", "disabled"})
        moves = [(0.0, zone), *((edit["t"], edit.get("zone") or zone) for edit in edits)]
        before = [zone for moved_s, zone in moves if moved_s <= at - ZONE_SEEN_S]
        zones = {before[-1] if before else zone, *(zone for moved_s, zone in moves if at - ZONE_SEEN_S < moved_s <= at)}
        slot, cron = datetime.fromisoformat(scheduled_at), parse_cron(schedule)
        due = any(next_slot(cron, slot - timedelta(seconds=1), zone_of(named)) == slot for named in zones)
        said = f"{name} fired for {scheduled_at}, which is no slot of it in {', '.join(sorted(zones))}"
        yield None if due else broken("I-31", {"t": at}, said)


@invariant("I-11", "what is shown as the answer is what the agent said, whole")
def _whole_text(e: Evidence) -> Iterator[Violation | None]:
    for rows in e.outcomes.values():
        for row, truth in _with_truth(e, rows):
            unsure = bool(row.get("reason"))  # it says itself that its result could not be confirmed
            if row["outcome"] == "completed" and truth["ended"] == "completed" and not unsure:
                said = f"{row['chars']} characters, the agent said {truth['chars']}"
                yield None if row["text"] == truth["text"] else broken("I-11", row, said)
                cost = f"cost {row['cost_usd']}, the agent reported {truth['cost_usd']}"
                yield None if row["cost_usd"] == truth["cost_usd"] else broken("I-11", row, cost)


@invariant("I-12", "an answer reaches the question it was given for, at most once")
def _answers_once(e: Evidence) -> Iterator[Violation | None]:
    for asked in e.questions.values():
        for question in asked:
            times = e.answered[question.question_id]
            yield None if times <= 1 else broken("I-12", question, f"the question was answered {times} times")
    for truths in e.truths.values():
        for truth in truths:
            if truth["answers"]:
                given = e.answers[truth["correlation_id"]]
                said = f"the agent was given {len(truth['answers'])} answers, people gave {given}"
                yield None if len(truth["answers"]) <= given else broken("I-12", truth, said)


@invariant("I-14", "once the weather is calm, the end of a task is known within a quarter of an hour")
def _known_soon(e: Evidence) -> Iterator[Violation | None]:
    """A hub that never learned of the task awaits the reply to its send until the request's own limit."""
    if e.calm_s is None or e.end is None:
        return
    never_told = {row["correlation_id"] for rows in e.outcomes.values() for row in rows if row["task_id"] is None}
    decided = {cid: events[0].t for cid, events in e.decided.items() if events and cid not in never_told}
    for truths in e.truths.values():
        for truth in truths:
            known = decided.get(truth["correlation_id"])
            if known is not None:
                late_s = known - max(truth["ended_s"], e.calm_s)
                said = f"the agent {truth['ended']} it, which was known {late_s:.0f} s later"
                yield None if late_s <= KNOWN_WITHIN_S else broken("I-14", truth, said)


@invariant("I-15", "what the hub keeps is bounded by the requests in flight")
def _bounded(e: Evidence) -> Iterator[Violation | None]:
    """A look falls into a moment: what has ended in it may still be there, what a dead hub began is not told."""
    for line, in_flight in e.kept:
        kept = line["hub"]
        few = in_flight + KEPT_BESIDE
        too_many = [what for what, count in kept.items() if count > few * (PER_REQUEST if what == "workers" else 1)]
        said = f"{in_flight} requests in flight, and {', '.join(f'{kept[what]} {what}' for what in too_many)}"
        yield broken("I-15", line, said) if too_many else None


@invariant("I-16", "an agent's key is sent to that agent alone, and stands in nothing that is kept")
def _keys_stay(e: Evidence) -> Iterator[Violation | None]:
    """Looked for in requests, the ledger and the recording; a run has no terminal and no log files, where the tests of
    the threats look (docs/reference/threats.md).
    """
    if e.keys is not None and e.keys["carried"]:
        yield broken("I-16", e.keys, e.keys["strayed"][0]) if e.keys["strayed"] else None


@invariant("I-17", "nobody is called who is not in the fleet")
def _known_destinations(e: Evidence) -> Iterator[Violation | None]:
    known = {f"http://{row['agent'].lower()}.sim:8000" for row in e.start.get("agents", ())} | {"http://hub.sim:8080"}
    for pair in e.reached:
        source, _, origin = pair.partition(" ")
        line = {"t": e.last_s, "agent": source}
        yield None if origin in known else broken("I-17", line, f"{source or 'somebody'} called {origin}")


@invariant("I-20", "an agent's tasks are no more than it may have, and none is open for ever")
def _tasks_end(e: Evidence) -> Iterator[Violation | None]:
    for line, _ in e.kept:
        for agent, kept in line["agents"].items():
            said = f"{kept['tasks']} tasks, {kept['open']} open, the oldest for {kept['oldest_s']:.0f} s"
            wrong = kept["tasks"] > LIMITS.tasks_max or kept["oldest_s"] > TASK_LIFE_S
            yield broken("I-20", {**line, "agent": agent}, said) if wrong else None


@invariant("I-21", "the ledger is whole whenever its hub has died, and at the end")
def _ledger_whole(e: Evidence) -> Iterator[Violation | None]:
    for line in e.ledgers:
        yield broken("I-21", line, line["damage"]) if line["damage"] else None


@invariant("I-24", "nothing that runs in the background fails unseen")
def _no_complaints(e: Evidence) -> Iterator[Violation | None]:
    for line in e.complaints:
        yield broken("I-24", line, line["said"])
    if e.end is not None and not e.complaints:
        yield None


@invariant("I-25", "the same seed gives the same run")
def _same_again(e: Evidence) -> Iterator[Violation | None]:
    """Of seeds that are played a second time, which of many seeds are."""
    if e.played is not None and e.played.get("again"):
        same = e.played["again"] == e.played["digest"]
        yield None if same else broken("I-25", e.played, "played again, the run was another")


@invariant("I-26", "once the weather is calm, everything comes to its end")
def _nothing_left(e: Evidence) -> Iterator[Violation | None]:
    """Whether an agent counts as healthy then is not asked for: that is told from the outcomes of a whole day."""
    if e.end is None:
        yield broken("I-26", {"t": e.last_s}, "the run itself did not come to its end")
        return
    left = ", ".join(f"{count} {what}" for what, count in e.end["kept"].items())
    yield broken("I-26", e.end, f"left at the end: {left}") if left else None


@invariant("I-27", "what is said of a task is what its agent did")
def _truthful(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: an outcome may know less than the agent, and never something else."""
    for rows in e.outcomes.values():
        for row, truth in _with_truth(e, rows):
            if row["cause"] == "task_gone" and truth["ended"] != "killed":
                forgot = any(at >= truth["ended_s"] and row["agent"].startswith(whose) for at, whose in e.restarts)
                said = f"said to be gone, the agent {truth['ended']} it"
                kept = row["duration_ms"] / 1000 < LIMITS.terminal_ttl_s and not forgot
                yield broken("I-27", row, said) if kept else None
            if row["cause"] == "cannot_follow":
                yield broken("I-27", row, "said that it cannot be followed, as every task here can be")
            if row["cause"] != "agent_said":
                continue
            same = row["outcome"] == truth["ended"]
            yield None if same else broken("I-27", row, f"said to be {row['outcome']}, the agent {truth['ended']} it")


@invariant("I-28", "a request becomes one task at most")
def _one_task(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: what may have arrived is never sent again."""
    tasks: dict[str, list[Line]] = defaultdict(list)
    for truths in e.truths.values():
        for truth in truths:
            tasks[truth["correlation_id"]].append(truth)
    for cid, mine in tasks.items():
        said = f"{len(mine)} tasks were begun for it"
        yield None if len(mine) == 1 or not cid else broken("I-28", mine[1], said)


@invariant("I-30", "nothing holds up the loop, and what passed while nobody looked ends no request")
def _not_held_up(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants: on virtual time work takes no time, so whatever does was put there."""
    for line in e.late:
        held_s = line["seconds"] - line["stalled"]
        yield broken("I-30", line, f"the loop was held up for {held_s:.3f} s") if held_s > HELD_UP_S else None
    for stall in e.stalled:
        ended = ((cid, decided[0]) for cid, decided in e.decided.items() if decided)
        unheard = [
            event
            for cid, event in ended
            if event.t == stall["ends_s"] and stall["ends_s"] - _due_s(e, cid, event, stall["t"]) > STALL_S
        ]
        yield broken("I-30", unheard[0], "its time ran out while nobody looked") if unheard else None


def _due_s(e: Evidence, cid: str, end: ToldEvent, stalled_s: float) -> float:
    """When the time of a request ran out that ended at the end of a stall; never if it was not that which ended it."""
    if end.kind != "expired":
        return e.last_s
    if end.cause == "unanswered" and e.questions.get(cid):
        return float(e.questions[cid][-1].t + e.start["rules"]["question_ttl_s"])
    if end.cause == "cancel_unconfirmed":
        asked = (c.began_s for c in e.calls if c.method in call_invariants.CANCELS and c.task_id == end.task_id)
        return float(min(asked, default=stalled_s)) + Rules().cancel_patience_s
    return stalled_s


def _with_truth(e: Evidence, rows: Iterable[Line]) -> Iterator[tuple[Line, Line]]:
    for row in rows:
        truths = e.truths.get((row["agent"], row["task_id"] or ""), ())
        if len(truths) == 1:
            yield row, truths[0]


INVARIANTS: tuple[Invariant, ...] = tuple(sorted(RULES, key=lambda rule: rule.number))
"""All of them by number."""
