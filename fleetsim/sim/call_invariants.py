"""The class of an invariant, and the invariants about the network: calls to agents, and webhooks from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from fleetsim.hub.keys import EPOCHS_KEPT
from fleetsim.model.task import TERMINAL
from fleetsim.recording.events import (
    AgentTaskEnded,
    CallEnded,
    HubKilled,
    RequestsTaken,
    RequestSubmitted,
    RunEvent,
    WebhookForged,
    WebhooksRepeated,
)
from fleetsim.sim.run import RequestEvent, RequestRun, Run
from fleetsim.sim.troubles import SENDS

POLLS = {"tasks/get", "GetTask"}
SEARCHES = {"tasks/list", "ListTasks"}
CANCELS = {"tasks/cancel", "CancelTask"}
POLLED_WITHIN = 2.3
"""Poll intervals between two polls of a task: two, with a tenth of jitter, and seconds for the call itself."""
HEALED_S = 300.0
"""Effects of trouble last some minutes: pauses of breakers, calls that hang until their deadline."""
RECORDED_WITHIN_S = 900.0
ENDS = {state.value for state in TERMINAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule. ``at_s`` is the second of the run; ``verdicts`` sets the number of the invariant."""

    said: str
    at_s: float
    correlation_id: str = ""
    agent: str = ""
    invariant: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"at": self.at_s, "said": self.said, "correlationId": self.correlation_id, "agent": self.agent}


Check: TypeAlias = Callable[[Run], Iterator[Violation | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A rule. ``check`` yields None for each case that keeps it."""

    number: str
    rule: str
    check: Check


RULES: list[Invariant] = []
"""The rules of all modules that were imported."""


def invariant(number: str, rule: str) -> Callable[[Check], Check]:
    """Registers a check under the number and the sentence of its rule."""

    def register(check: Check) -> Check:
        RULES.append(Invariant(number=number, rule=rule, check=check))
        return check

    return register


def broken(
    where: RunEvent | RequestEvent | float, reason: str, *, agent: str = "", at_s: float | None = None
) -> Violation:
    """A violation that an event, or a second of the run, shows."""
    if isinstance(where, float):
        return Violation(said=reason, at_s=where, agent=agent)
    return Violation(
        said=reason,
        at_s=where.t if at_s is None else at_s,
        correlation_id=where.correlation_id or "",
        agent=agent or where.agent or "",
    )


def tasks_of(run: Run) -> Iterator[AgentTaskEnded]:
    for tasks in run.tasks.values():
        yield from tasks


def request_of(run: Run, task: AgentTaskEnded) -> RequestRun:
    return run.requests.get(task.correlation_id or "", RequestRun())


@invariant("I-08", "the hub refuses a webhook that no agent sent")
def _forged(run: Run) -> Iterator[Violation | None]:
    """Each of them says that its task is completed, so one that is accepted shows."""
    for webhook in run.all(WebhookForged):
        reason = f"a webhook with {webhook.how} was taken with {webhook.status}"
        yield broken(webhook, reason) if 200 <= webhook.status < 300 else None


@invariant("I-32", "the hub accepts the genuine webhooks of an agent, also after its webhook keys changed")
def _let_in(run: Run) -> Iterator[Violation | None]:
    """The keys of two epochs are good at a time."""
    agents = {row.agent for row in run.started.agents}
    changed_s = [trouble.begins_s for trouble in run.troubles if trouble.fault == "new-webhook-keys"]
    for call in run.all(CallEnded):
        tasks = run.tasks.get((call.source, call.task_id or ""), ())
        if call.method == "webhook" and call.source in agents and tasks:
            changes = sum(tasks[0].begun_s - RECORDED_WITHIN_S < at <= call.t for at in changed_s)
            wrong = call.status == 401 and changes < EPOCHS_KEPT
            yield broken(call, "a webhook of its own was refused", agent=call.source) if wrong else None


@invariant("I-09", "repeated webhooks, in any order, change no outcome on record")
def _repeated(run: Run) -> Iterator[Violation | None]:
    for repeated in run.all(WebhooksRepeated):
        if repeated.webhooks:
            reason = f"{len(repeated.changed)} outcomes changed, first {' '.join(repeated.changed[:1])}"
            yield broken(repeated, reason) if repeated.changed else None


@invariant("I-10", "the polls of a task never overlap, and those of an agent and of the fleet stay within their limits")
def _polled_at_once(run: Run) -> Iterator[Violation | None]:
    """Polls of one moment count as one after the other. A poll after a search for a task whose reply was lost is part
    of that search. Of several hubs each keeps the rule: the poll of one that stands still goes on after a take-over.
    """
    rules = run.started.rules
    searched = {(call.request, call.t) for call in run.all(CallEnded) if call.method in SEARCHES}
    polls = sorted(
        (c for c in run.all(CallEnded) if c.method in POLLS and (c.request, c.began_s) not in searched),
        key=lambda call: (call.began_s, call.t),
    )
    of_hub: dict[str, list[CallEnded]] = defaultdict(list)
    for poll in polls:
        under_way = [*(call for call in of_hub[poll.source] if call.t > poll.began_s), poll]
        of_hub[poll.source] = under_way
        same = sum(call.task_id == poll.task_id and call.target == poll.target for call in under_way)
        agents = sum(call.target == poll.target for call in under_way)
        # The first call to each agent needs none of the places that agents share.
        shared = len(under_way) - len({call.target for call in under_way})
        if same > 1:
            yield broken(poll, f"{same} looks at task {poll.task_id} of {poll.target} at once")
        elif agents > rules["calls_per_agent_max"] or shared > rules["calls_max"]:
            yield broken(poll, f"{agents} looks at {poll.target} at once, {len(under_way)} in all")
        else:
            yield None


TAKEN_OVER = "I-33"
"""The rule that has cases only where several hubs share a ledger."""


@invariant(TAKEN_OVER, "a hub sends nothing about a request that another hub has taken over")
def _fenced(run: Run) -> Iterator[Violation | None]:
    """Polls change nothing, and may be under way. A send in the moment of the take-over may be that of either hub."""
    owners: dict[str, list[RequestsTaken]] = defaultdict(list)
    for taken in run.all(RequestsTaken):
        for cid in taken.requests:
            owners[cid].append(taken)
    for call in run.all(CallEnded):
        if call.method in {*SENDS, *CANCELS}:
            taken_over = [taken for taken in owners.get(call.request, ()) if taken.t <= call.began_s]
            before = [taken.hub for taken in taken_over if taken.t < call.began_s]
            if before:
                reason = f"{call.source} sent {call.method} for {call.request}, which {before[-1]} had taken over"
                yield None if call.source in {before[-1], taken_over[-1].hub} else broken(call, reason)


@invariant("I-13", "after all trouble a task is polled, or sends an event, at least every second poll interval")
def _polled(run: Run) -> Iterator[Violation | None]:
    """From when the hub knows the task until it says that it polls no more: three refused polls end its polling."""
    if run.calm_s is None or not run.all(CallEnded):
        return
    within_s = run.started.rules["poll_interval_s"] * POLLED_WITHIN + 5.0
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in run.all(CallEnded):
        if call.status == 200 and call.task_id:
            seen[call.source if call.method == "webhook" else call.target, call.task_id].append(call.t)
    for task in tasks_of(run):
        request = request_of(run, task)
        known = request.moved[0].t if request.moved else run.last_s
        begins_s = max(known, task.begun_s, run.calm_s + HEALED_S)
        ends = (ends_known[0].t if ends_known else run.last_s for ends_known in (request.decided, request.unpolled))
        ends_s = min(task.t if task.ended_s is None else task.ended_s, *ends)
        key = (task.agent or "", task.task_id or "")
        moments = [begins_s, *(at for at in seen[key] if begins_s < at < ends_s), ends_s]
        for before, after in pairwise(moments):
            if after > before:
                reason = f"nobody looked at task {task.task_id} for {after - before:.0f} s"
                yield None if after - before <= within_s else broken(task, reason, at_s=after)


@invariant("I-18", "an agent sends each webhook each state once, in order, and the end last")
def _notices_in_order(run: Run) -> Iterator[Violation | None]:
    """A retry after a failed try is the same notice. An agent that is killed sends no more. A webhook that is
    registered again replaces the one before, and gets the present state of the task. An agent pauses some minutes for a
    hub that did not take its notices lately, also at the end of a task. In 0.1 the artifact has its own notice, with
    the state.
    """
    failed: dict[str, list[float]] = defaultdict(list)
    for call in run.all(CallEnded):
        if call.method == "webhook" and call.status != 200:
            failed[call.source].append(call.t)
    older = {row.agent for row in run.started.agents if row.dialect == "0.1"}
    anew = Counter((c.target, c.task_id or "") for c in run.all(CallEnded) if "pushnotification" in c.method.lower())
    ends: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (agent, task_id, _), notices in _notices(run).items():
        ends[agent, task_id] |= {call.state for call in notices} & ENDS
    for (agent, task_id, _), notices in _notices(run).items():
        task = next(iter(run.tasks.get((agent, task_id), ())), None)
        if task is None or task.ended_s is None or task.ended in {"killed", "open"}:
            continue
        sent = list(dict.fromkeys((call.state, call.body) for call in notices))
        taken = Counter((call.state, call.body) for call in notices if call.status in {200, 202})
        reason = ""
        if ends[agent, task_id] - {task.ended}:
            reason = f"sent that it was {', '.join(sorted(ends[agent, task_id]))}, and it was {task.ended}"
        elif any(before in ENDS and after not in ENDS for (before, _), (after, _) in pairwise(sent)):
            reason = "sent another state after the end"
        elif sum(state in ENDS for state, _ in sent) > (2 if agent in older else 1) + anew[agent, task_id]:
            reason = "sent the end in one notice too many"
        elif (
            not ends[agent, task_id]
            and all(call.status == 200 for call in notices)
            and not any(task.ended_s - HEALED_S <= at <= task.ended_s for at in failed[agent])
        ):
            reason = "never sent the end, though the hub took every notice"
        elif twice := next((state for (state, _), times in taken.items() if times > 1 + anew[agent, task_id]), None):
            reason = f"sent {twice} again after the hub had taken it"
        yield broken(task, reason, at_s=notices[-1].t) if reason else None


@invariant("I-19", "an agent's task is canceled only on request, also if its listeners disconnect")
def _canceled_if_asked(run: Run) -> Iterator[Violation | None]:
    asked: dict[tuple[str, str], float] = {}
    for call in run.all(CallEnded):
        if call.method in CANCELS:
            asked.setdefault((call.target, call.task_id or ""), call.began_s)
    for key, tasks in run.tasks.items():
        for task in tasks:
            ended_s = task.t if task.ended_s is None else task.ended_s
            unasked = task.ended == "canceled" and asked.get(key, run.last_s) > ended_s
            yield broken(task, "the task was canceled, and nobody had asked for that") if unasked else None


@invariant("I-22", "an acknowledged request, and the end of a task in an acknowledged webhook, are on record")
def _on_record(run: Run) -> Iterator[Violation | None]:
    """A request that was given up here cancels its task there: the webhook about that is accepted, and changes nothing.
    While the disk is full, nothing new can be on record.
    """
    for submitted in run.all(RequestSubmitted):
        rows = run.outcomes.get(submitted.correlation_id or "", ())
        yield None if rows and rows[0].accepted else broken(submitted, "accepted, and not on record")
    # The lines between which the disk was full; the first trouble that ends makes room for all.
    full: list[tuple[float, float]] = []
    for trouble in run.troubles:
        if trouble.fault == "disk-full" and not (full and trouble.begins_line < full[-1][1]):
            full.append((trouble.begins_line, float("inf") if trouble.ends_line is None else trouble.ends_line))
    for (agent, task_id, _), notices in _notices(run).items():
        task = next(iter(run.tasks.get((agent, task_id), ())), None)
        if task is None:
            continue
        end = next(iter(request_of(run, task).decided), None)
        for call in notices:
            if any(begins < call.line < ends for begins, ends in full) and not (end and end.line < call.line):
                reason = f"a webhook ({call.state}) was taken with {call.status} while nothing could be written"
                yield broken(call, reason, agent=agent) if call.status == 200 else None
        last = next((call for call in notices if call.state in ENDS and call.status in {200, 202}), None)
        if last is None or end is None or end.outcome is None or end.line < last.line:
            continue
        kind, late_s = end.outcome.kind.value, end.t - last.t
        matches = kind == last.state or (kind, last.state) == ("expired", "canceled")
        reason = f"a webhook said {last.state}, and {late_s:.0f} s later it ended as {kind}"
        yield None if matches and late_s <= RECORDED_WITHIN_S else broken(end, reason)


@invariant("I-23", "a broken message gets a reply, and causes no internal error")
def _no_errors_inside(run: Run) -> Iterator[Violation | None]:
    """A server answers 500 if it met what it did not expect, or was killed; trouble on the way gives 502 or 503."""
    killed_s = {killed.t for killed in run.all(HubKilled)}
    for call in run.all(CallEnded):
        wrong = call.status == 500 and not (call.target == "hub" and call.t in killed_s)
        reason = f"{call.target} answered {call.method} of {call.source} with 500"
        yield broken(call, reason, agent=call.target) if wrong else None


def _notices(run: Run) -> dict[tuple[str, str, str], list[CallEnded]]:
    """The webhooks that have a state, by agent, task and URL, in the order of their first tries."""
    notices: dict[tuple[str, str, str], list[CallEnded]] = defaultdict(list)
    webhooks: Iterable[CallEnded] = (call for call in run.all(CallEnded) if call.method == "webhook" and call.state)
    for call in sorted(webhooks, key=lambda call: call.began_s):
        notices[call.source, call.task_id or "", call.door].append(call)
    return notices
