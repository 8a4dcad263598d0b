"""The rules that every run must keep, whatever trouble it met: one function each, over the recording alone.

The checks share nothing with the run but its recording, which also holds what the agents know of their tasks. Numbers
are those of docs/reference/scenarios.md; from I-27 on they are ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import zone_of
from fleetsim.health.fleet_health import window_start
from fleetsim.model.extensions import Usage
from fleetsim.recording.events import (
    AgentTaskEnded,
    AnswerGiven,
    CallEnded,
    CeremonyEdited,
    FailureLogged,
    HealthLooked,
    KeysChecked,
    LedgerChecked,
    LoopBlocked,
    OriginsReached,
    OutcomeRecorded,
    RecordingEnded,
    RunEnded,
    RunEvent,
    SlotsCounted,
)
from fleetsim.request.limits import Unit, period_at
from fleetsim.request.track import Rules
from fleetsim.sim.agents import LIMITS
from fleetsim.sim.call_invariants import CANCELS, RULES, Invariant, Violation, broken, invariant, request_of, tasks_of
from fleetsim.sim.run import RequestEvent, RequestRun, Run
from fleetsim.sim.troubles import KINDS

KNOWN_WITHIN_S = 900.0
"""A poll each interval, twice as long after one that failed; an agent that has just come back is called slowly."""
ZONE_SEEN_S = 900.0
"""The hub reads a changed file within seconds; after it was down it catches up on ten minutes."""
HEARD_S = 5.0
"""How long after its lease an outcome of a lost hub is known to the others."""
EDIT_SEEN_S = 15.0
"""The hub reads the folder every five seconds; the rest is for a host that sleeps."""
KEPT_BESIDE = 5
"""How many more entries than requests in flight the hub may have in memory."""
PER_REQUEST = {"workers": 6, "calls": 2, "writes": 4}
"""Workers for one request: its send or stream, polls, a webhook's registration, a write, an answer or a cancel. Writes:
its record, the end of one question, the next question and its end, which all wait while the disk is slow."""
TASK_LIFE_S = LIMITS.task_life_s + 2 * LIMITS.sweep_interval_s
"""How long an agent leaves a task open, and the pauses between two sweeps."""
NOTED_S = 60.0
"""How soon a delivered notice is on record."""
HELD_UP_S = 0.05
STALL_S = 1.0
"""A deadline that passed this short a time before the end of a stall may end a request: no host is more punctual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantResult:
    """The result of one invariant: how many cases there were, and which break it."""

    invariant: Invariant
    cases: int
    violations: tuple[Violation, ...]


def verdicts(run: Run) -> tuple[InvariantResult, ...]:
    results = []
    for rule in INVARIANTS:
        cases = list(rule.check(run))
        wrong = tuple(replace(case, invariant=rule.number) for case in cases if case is not None)
        results.append(InvariantResult(invariant=rule, cases=len(cases), violations=wrong))
    return tuple(results)


@invariant("I-01", "every accepted request has exactly one outcome")
def _one_outcome(run: Run) -> Iterator[Violation | None]:
    for cid, request in run.requests.items():
        if request.begun is not None:
            count = len(run.outcomes.get(cid, ()))
            yield None if count == 1 else broken(request.begun, f"accepted, and has {count} outcomes")


@invariant("I-02", "every task and every outcome has a request that was accepted before")
def _accepted_before(run: Run) -> Iterator[Violation | None]:
    for rows in run.outcomes.values():
        yield None if rows[0].accepted else broken(rows[0], "an outcome of a request that nobody accepted")
    for task in tasks_of(run):
        request = request_of(run, task)
        if request.begun is None:
            yield broken(task, f"the agent had a task {task.task_id} that nobody asked for")
        else:
            early = task.begun_s < request.begun.t
            yield broken(task, "the agent had the task before the request was accepted") if early else None


@invariant("I-03", "a request that has ended does not move any more")
def _no_move_after_the_end(run: Run) -> Iterator[Violation | None]:
    for request in run.requests.values():
        if request.decided:
            late = next((move for move in request.moved if move.seq > request.decided[0].seq), None)
            yield None if late is None else broken(late, "moved after its outcome")


@invariant("I-04", "each outcome on record has exactly one event, and each event an outcome on record")
def _one_record(run: Run) -> Iterator[Violation | None]:
    for cid in run.outcomes.keys() | {cid for cid, request in run.requests.items() if request.end is not None}:
        request, rows = run.requests.get(cid, RequestRun()), run.outcomes.get(cid, [])
        first: list[RequestEvent | RunEvent] = [*request.decided, *rows]
        reason = f"{len(request.decided)} events of its outcome, {len(rows)} outcomes on record"
        yield None if len(request.decided) == len(rows) == 1 else broken(first[0] if first else 0.0, reason)


@invariant("I-29", "each request has exactly one event of its acceptance, before that of its outcome")
def _begun_once(run: Run) -> Iterator[Violation | None]:
    """A hub that was killed before it could publish an event publishes it after its next start."""
    for request in run.requests.values():
        accepted, decided = request.accepted, request.decided
        if request.begun is None and request.end is None:
            continue
        if len(accepted) != 1:
            yield broken(next(iter((*accepted, *decided)), 0.0), f"{len(accepted)} events of its acceptance")
        else:
            early = decided and decided[0].seq < accepted[0].seq
            yield broken(accepted[0], "the event of its outcome came first") if early else None


@invariant("I-05", "the figures of health are those of the published outcomes of the last day")
def _health_counts(run: Run) -> Iterator[Violation | None]:
    if run.started.hubs == 1 and any(trouble.fault == "clock-jump" for trouble in run.troubles):
        return  # which hours are the last 24 is another question then
    ended = defaultdict(list)
    for cid, request in run.requests.items():
        if request.decided and run.outcomes.get(cid):
            ended[request.decided[0].agent].append(request.decided[0])
    lag_s = run.started.rules.get("lease_s", -HEARD_S) + HEARD_S
    for look in run.all(HealthLooked):
        since = window_start(look.now)
        for agent, row in look.agents.items():
            # An outcome of the same moment may be counted or not; in real time its event may be written after the look.
            recent = [end for end in ended[agent] if end.outcome is not None and since <= end.outcome.ended_at]
            inside = [end for end in recent if end.t <= look.t + lag_s or end.seq <= look.seq]
            right = sum(end.t < look.t - lag_s for end in inside) <= row.outcomes <= len(inside)
            reason = f"{agent}: {row.outcomes} outcomes in health, {len(inside)} published"
            yield None if right else broken(look, reason, agent=agent)


@invariant("I-06", "a ceremony fires at most once for each of its slots")
def _slots_once(run: Run) -> Iterator[Violation | None]:
    """A slot need not fire while a hub is up: a full disk, a run that overlaps or an edited file may prevent it."""
    for (name, slot), fired_s in run.slots.items():
        reason = f"{name} fired {len(fired_s)} times for {slot.isoformat()}"
        yield None if len(fired_s) == 1 else broken(fired_s[-1], reason)


@invariant("I-07", "a ceremony does not fire while it is disabled or deleted")
def _edits_hold(run: Run) -> Iterator[Violation | None]:
    """The hub sees an edit within seconds. A file that is put back while no hub runs may catch up on an older slot."""
    for name, edits in _edits(run).items():
        for edit, after in zip(edits, [*edits[1:], None], strict=True):
            if edit.what not in {"disabled", "deleted"}:
                continue
            until_s = after.t if after is not None else run.last_s
            moments = [at for (of, _), fired_s in run.slots.items() if of == name for at in fired_s]
            fired = [at for at in moments if edit.t + EDIT_SEEN_S < at < until_s]
            yield broken(fired[0], f"{name} was {edit.what}, and fired") if fired else None


@invariant("I-31", "a ceremony fires at the times of its file, in the time zone of its file")
def _on_schedule(run: Run) -> Iterator[Violation | None]:
    """A ceremony that was moved to another zone follows it some minutes later, and may catch up."""
    schedules = {name: schedule for due in run.all(SlotsCounted) for name, schedule in due.schedules.items()}
    for (name, slot), fired_s in run.slots.items():
        if name not in schedules:
            continue
        (schedule, zone), at = schedules[name], fired_s[-1]
        edits = (edit for edit in _edits(run).get(name, ()) if edit.what in {"as it was", "disabled"})
        moves = [(0.0, zone), *((edit.t, edit.zone or zone) for edit in edits)]
        before = [zone for moved_s, zone in moves if moved_s <= at - ZONE_SEEN_S]
        zones = {before[-1] if before else zone, *(zone for moved_s, zone in moves if at - ZONE_SEEN_S < moved_s <= at)}
        cron = parse_cron(schedule)
        due = any(next_slot(cron, slot - timedelta(seconds=1), zone_of(named)) == slot for named in zones)
        reason = f"{name} fired for {slot.isoformat()}, which is not a slot in {', '.join(sorted(zones))}"
        yield None if due else broken(at, reason)


@invariant("I-11", "text and cost of an outcome are those of the agent's task, complete")
def _whole_text(run: Run) -> Iterator[Violation | None]:
    for row, task in _with_task(run):
        unsure = bool(row.reason)  # the reason is that the result could not be confirmed
        if row.outcome == "completed" and task.ended == "completed" and not unsure:
            reason = f"{row.chars} characters, the agent said {task.chars}"
            yield None if row.text == task.text else broken(row, reason)
            cost = f"cost {row.cost_usd}, the agent reported {task.cost_usd}"
            yield None if row.cost_usd == task.cost_usd else broken(row, cost)


@invariant("I-12", "an answer reaches the question it was given for, at most once")
def _answers_once(run: Run) -> Iterator[Violation | None]:
    for question in run.questions.values():
        times = question.answers
        yield None if times <= 1 else broken(question.asked, f"the question was answered {times} times")
    given = Counter(answer.correlation_id for answer in run.all(AnswerGiven))
    for task in tasks_of(run):
        if task.answers:
            people = given[task.correlation_id]
            reason = f"the agent was given {len(task.answers)} answers, people gave {people}"
            yield None if len(task.answers) <= people else broken(task, reason)


@invariant("I-14", "after all trouble the hub knows the end of a task within a quarter of an hour")
def _known_soon(run: Run) -> Iterator[Violation | None]:
    """A hub that never learned of the task waits for the reply to its send until the request's own limit."""
    if run.calm_s is None or not run.all(RunEnded):
        return
    untold = {row.correlation_id for rows in run.outcomes.values() for row in rows if row.task_id is None}
    for task in tasks_of(run):
        decided = request_of(run, task).decided
        if decided and task.correlation_id not in untold:
            late_s = decided[0].t - max(task.ended_s or task.t, run.calm_s)
            reason = f"the agent {task.ended} it, which was known {late_s:.0f} s later"
            yield None if late_s <= KNOWN_WITHIN_S else broken(task, reason)


@invariant("I-15", "the memory of the hub is bounded by the requests in flight")
def _bounded(run: Run) -> Iterator[Violation | None]:
    """A request that ended in the same moment may still have an entry; requests of a killed hub have none."""
    for memory, in_flight in run.memory:
        most = in_flight + KEPT_BESIDE
        many = [what for what, n in memory.hub.items() if n > most * PER_REQUEST.get(what, 1)]
        reason = f"{in_flight} requests in flight, and {', '.join(f'{memory.hub[what]} {what}' for what in many)}"
        yield broken(memory, reason) if many else None


@invariant("I-16", "an agent's key is sent to that agent alone, and is not in the ledger or the recording")
def _keys_stay(run: Run) -> Iterator[Violation | None]:
    """Searches requests, ledger and recording; the tests of threats search terminals and log files."""
    for keys in run.all(KeysChecked):
        if keys.carried:
            yield broken(keys, keys.strayed[0]) if keys.strayed else None


@invariant("I-17", "hub and agents call only addresses of the fleet")
def _known_destinations(run: Run) -> Iterator[Violation | None]:
    known = {f"http://{row.agent.lower()}.sim:8000" for row in run.started.agents} | {"http://hub.sim:8080"}
    for reached in run.all(OriginsReached):
        for pair in reached.origins:
            source, _, origin = pair.partition(" ")
            reason = f"{source or 'somebody'} called {origin}"
            yield None if origin in known else broken(run.last_s, reason, agent=source)


@invariant("I-20", "an agent keeps its limit of tasks, and none stays open for ever")
def _tasks_end(run: Run) -> Iterator[Violation | None]:
    for memory, _ in run.memory:
        for agent, held in memory.agents.items():
            reason = f"{held.tasks} tasks, {held.open} open, the oldest for {held.oldest_s:.0f} s"
            wrong = held.tasks > LIMITS.tasks_max or held.oldest_s > TASK_LIFE_S
            yield broken(memory, reason, agent=agent) if wrong else None


@invariant("I-21", "the ledger is whole after each kill of the hub, and at the end")
def _ledger_whole(run: Run) -> Iterator[Violation | None]:
    for checked in run.all(LedgerChecked):
        yield broken(checked, checked.damage) if checked.damage else None


@invariant("I-36", "each question has one notice, which is delivered once or given up with a reason")
def _noticed(run: Run) -> Iterator[Violation | None]:
    """A hub lost between a delivery and its record repeats the notice. A question that ends at once needs none."""
    lost = [trouble for trouble in run.troubles if KINDS[trouble.fault].on == "process"]
    for checked in run.all(LedgerChecked):
        for name, rows in checked.notices.items():
            question, sent_s = run.questions.get(name), run.noticed[name]
            begins_s = sent_s[0] if sent_s else 0.0
            near = any(t.begins_s < begins_s + NOTED_S and (t.ends_s or run.last_s) >= begins_s for t in lost)
            needed = question is not None and (question.expired or question.answers > 0)
            wrong = "raised" in rows or len(rows) > 1 or (not rows and needed) or (len(sent_s) > 1 and not near)
            yield broken(checked, f"question {name} has the notices {rows}, delivered at {sent_s}") if wrong else None


@invariant("I-24", "no background work fails without an error")
def _no_failures(run: Run) -> Iterator[Violation | None]:
    for failure in run.all(FailureLogged):
        yield broken(failure, failure.said)
    if run.all(RunEnded) and not run.all(FailureLogged):
        yield None


@invariant("I-25", "the same seed gives the same run")
def _same_again(run: Run) -> Iterator[Violation | None]:
    """Some of many seeds are played twice."""
    for played in run.all(RecordingEnded):
        if played.again:
            same = played.again == played.digest
            yield None if same else broken(played, "played again, the run was another")


@invariant("I-26", "after all trouble everything comes to its end")
def _nothing_left(run: Run) -> Iterator[Violation | None]:
    """The rule leaves out health, which depends on the outcomes of a whole day."""
    ends = run.all(RunEnded)
    if not ends:
        yield broken(run.last_s, "the run itself did not come to its end")
    for end in ends:
        left = ", ".join(f"{count} {what}" for what, count in end.kept.items())
        yield broken(end, f"left at the end: {left}") if left else None


@invariant("I-27", "an outcome agrees with the task at the agent")
def _truthful(run: Run) -> Iterator[Violation | None]:
    """An outcome may know less than the agent, and never something else."""
    restarts = [(trouble.begins_s, trouble.agent or "") for trouble in run.troubles if trouble.fault == "agent-restart"]
    for row, task in _with_task(run):
        if row.cause == "task_gone" and task.ended != "killed":
            ended_s = task.t if task.ended_s is None else task.ended_s
            forgot = any(at >= ended_s and (row.agent or "").startswith(whose) for at, whose in restarts)
            retained = row.duration_ms / 1000 < LIMITS.terminal_ttl_s and not forgot
            yield broken(row, f"said to be gone, the agent {task.ended} it") if retained else None
        if row.cause == "cannot_follow":
            yield broken(row, "said that it cannot be followed, as every task here can be")
        if row.cause == "agent_said":
            reason = f"said to be {row.outcome}, the agent {task.ended} it"
            yield None if row.outcome == task.ended else broken(row, reason)


@invariant("I-28", "a request becomes at most one task")
def _one_task(run: Run) -> Iterator[Violation | None]:
    """A send that may have arrived is never sent again."""
    tasks: dict[str, list[AgentTaskEnded]] = defaultdict(list)
    for task in tasks_of(run):
        tasks[task.correlation_id or ""].append(task)
    for cid, mine in tasks.items():
        yield None if len(mine) == 1 or not cid else broken(mine[1], f"{len(mine)} tasks were begun for it")


@invariant("I-34", "work that an agent has begun is sent again only if its skill is declared idempotent")
def _repeats_declared(run: Run) -> Iterator[Violation | None]:
    declared = {(row.agent, skill) for row in run.started.agents for skill in row.idempotent}
    begun = {task.correlation_id: task.agent for task in tasks_of(run)}
    for end in (end for request in run.requests.values() for end in request.decided):
        old, skill = (end.outcome.retry_of, end.outcome.skill) if end.outcome is not None else (None, "")
        fine = old not in begun or (begun[old], skill) in declared
        yield None if fine else broken(end, f"{old} was sent again, on which {begun[old]} had worked")


@invariant("I-35", "no request is accepted once a limit is reached by what is known to be used")
def _limits_hold(run: Run) -> Iterator[Violation | None]:
    """Reservations are not on record: only requests, and the costs of those that ended before. Nor are keys. A limit
    that asks may be raised."""
    known = ((request.begun, request.end) for request in run.requests.values())
    begun = sorted(((begin, end) for begin, end in known if begin), key=lambda pair: pair[0].t)
    for limit in run.started.limits.values():
        if (limit.key, limit.ceremony, limit.at_limit) != (None, None, "refuse"):
            continue
        ((unit, most),) = limit.units.items()
        used: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for begin, end in begun:
            outcome = end.outcome if end else None
            agent, skill = (outcome.agent, outcome.skill) if outcome else (begin.agent, None)
            if limit.agent not in {None, agent} or limit.skill not in {None, skill}:
                continue
            before = used[period_at(limit.per, limit.zone, run.started.start + timedelta(seconds=begin.t)).key]
            spent = sum(number for known_s, number in before if known_s < begin.t)
            yield broken(begin, f"{spent:g} of {most:g} {unit} were used") if spent >= most else None
            if unit is Unit.REQUESTS:
                before.append((begin.t, 1.0))
            elif end and outcome:
                usage = outcome.usage or Usage()
                tokens = usage.input_tokens + usage.output_tokens
                before.append((end.t, (outcome.cost_usd or 0.0) if unit is Unit.USD else tokens))


@invariant("I-30", "nothing blocks the loop, and a deadline that passes in a stall ends no request at once")
def _not_held_up(run: Run) -> Iterator[Violation | None]:
    """On virtual time work takes no time, so only a trouble can block the loop."""
    for late in run.all(LoopBlocked):
        held_s = late.seconds - late.stalled
        yield broken(late, f"the loop was held up for {held_s:.3f} s") if held_s > HELD_UP_S else None
    for stall in run.troubles:
        if stall.fault != "stall":
            continue
        ends_s = stall.begins_s if stall.ends_s is None else stall.ends_s
        unseen = [
            request.decided[0]
            for request in run.requests.values()
            if request.decided
            and request.decided[0].t == ends_s
            and ends_s - _due_s(run, request, stall.begins_s) > STALL_S
        ]
        yield broken(unseen[0], "its time ran out while nobody looked") if unseen else None


def _due_s(run: Run, request: RequestRun, stalled_s: float) -> float:
    """The deadline of a request that ended at the end of a stall; the end of the run if no deadline ended it."""
    end = request.decided[0]
    if end.outcome is None or end.outcome.kind != "expired":
        return run.last_s
    if end.outcome.cause == "unanswered" and request.questions:
        return request.questions[-1].asked.t + run.started.rules["question_ttl_s"]
    if end.outcome.cause == "cancel_unconfirmed":
        canceled = (c.began_s for c in run.all(CallEnded) if c.method in CANCELS and c.task_id == end.task_id)
        return min(canceled, default=stalled_s) + Rules().cancel_patience_s
    return stalled_s


def _with_task(run: Run) -> Iterator[tuple[OutcomeRecorded, AgentTaskEnded]]:
    """Each outcome on record with its task, if the agent has exactly one."""
    for rows in run.outcomes.values():
        for row in rows:
            tasks = run.tasks.get((row.agent or "", row.task_id or ""), ())
            if len(tasks) == 1:
                yield row, tasks[0]


def _edits(run: Run) -> dict[str, list[CeremonyEdited]]:
    edits: dict[str, list[CeremonyEdited]] = defaultdict(list)
    for edit in run.all(CeremonyEdited):
        edits[edit.file].append(edit)
    return edits


INVARIANTS: tuple[Invariant, ...] = tuple(sorted(RULES, key=lambda rule: rule.number))
