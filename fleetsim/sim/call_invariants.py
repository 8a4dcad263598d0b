"""What must be true of every run of what passed on the network: calls to agents, and webhooks from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from fleetsim.hub.keys import EPOCHS_KEPT
from fleetsim.model.task import TERMINAL
from fleetsim.sim.evidence import Evidence, SeenCall, Violation, broken, invariant

LOOKS = {"tasks/get", "GetTask"}
SEARCHES = {"tasks/list", "ListTasks"}
CANCELS = {"tasks/cancel", "CancelTask"}
LOOKED_AT_WITHIN = 2.3
"""Poll intervals between two looks at a task: two, give or take a tenth, and a second or two for the call itself."""
HEALED_S = 300.0
"""What is left of trouble some minutes after it: pauses of breakers, calls that hang until their time is up."""
RECORDED_WITHIN_S = 900.0
ENDS = {state.value for state in TERMINAL}


@invariant("I-08", "a webhook that no agent sent is refused")
def _forged(e: Evidence) -> Iterator[Violation | None]:
    """What it says would be seen: each claims that its task is completed."""
    for line in e.forged:
        said = f"a webhook with {line['how']} was taken with {line['status']}"
        yield broken("I-08", line, said) if 200 <= line["status"] < 300 else None


@invariant("I-32", "what an agent truly tells is let in, though webhook keys were changed meanwhile")
def _let_in(e: Evidence) -> Iterator[Violation | None]:
    """Beside the numbered invariants. Two epochs of keys are good at a time."""
    agents = {row["agent"] for row in e.start.get("agents", ())}
    for call in e.calls:
        truths = e.truths.get((call.source, call.task_id), ())
        if call.method == "webhook" and call.source in agents and truths:
            changes = sum(truths[0]["begun_s"] - RECORDED_WITHIN_S < at <= call.t for at in e.rekeyed_s)
            wrong = call.status == 401 and changes < EPOCHS_KEPT
            yield (
                broken("I-32", {"t": call.t, "agent": call.source}, "a webhook of its own was refused")
                if wrong
                else None
            )


@invariant("I-09", "webhooks that come again, in any order, change nothing that is on record")
def _repeated(e: Evidence) -> Iterator[Violation | None]:
    for line in e.repeated:
        said = f"{len(line['changed'])} outcomes changed, first {' '.join(line['changed'][:1])}"
        if line["webhooks"]:
            yield broken("I-09", line, said) if line["changed"] else None


@invariant("I-10", "a task is looked at once at a time, and an agent and the fleet no more often than they may")
def _looks_at_once(e: Evidence) -> Iterator[Violation | None]:
    """Looks that fall into one moment count as one after the other; one that follows a search for a task whose reply
    was lost is part of that.
    """
    rules = e.start.get("rules", {})
    searched = {(call.request, call.t) for call in e.calls if call.method in SEARCHES}
    looks = sorted(
        (c for c in e.calls if c.method in LOOKS and (c.request, c.began_s) not in searched),
        key=lambda call: (call.began_s, call.t),
    )
    under_way: list[SeenCall] = []
    for look in looks:
        under_way = [call for call in under_way if call.t > look.began_s]
        under_way.append(look)
        same = sum(call.task_id == look.task_id and call.target == look.target for call in under_way)
        agents = sum(call.target == look.target for call in under_way)
        # The first call to each agent needs none of the places that agents share.
        shared = len(under_way) - len({call.target for call in under_way})
        if same > 1:
            yield broken("I-10", {"t": look.t}, f"{same} looks at task {look.task_id} of {look.target} at once")
        elif agents > rules["calls_per_agent_max"] or shared > rules["calls_max"]:
            yield broken("I-10", {"t": look.t}, f"{agents} looks at {look.target} at once, {len(under_way)} in all")
        else:
            yield None


@invariant("I-13", "in calm weather a task is looked at, or heard of, at least every second poll interval")
def _looked_at(e: Evidence) -> Iterator[Violation | None]:
    """From when the hub knows the task until it says that it polls no more: three refused polls end its polling."""
    if e.calm_s is None or not e.calls:
        return
    within_s = e.start["rules"]["poll_interval_s"] * LOOKED_AT_WITHIN + 5.0
    heard: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in e.calls:
        if call.status == 200 and call.task_id:
            agent = call.source if call.method == "webhook" else call.target
            heard[agent, call.task_id].append(call.t)
    for key, truths in e.truths.items():
        for truth in truths:
            decided, unpolled = e.decided.get(truth["correlation_id"]), e.unpolled.get(truth["correlation_id"])
            known = e.moved.get(truth["correlation_id"])
            begins_s = max(known[0].t if known else e.last_s, truth["begun_s"], e.calm_s + HEALED_S)
            ends_s = min(truth["ended_s"], *(told[0].t if told else e.last_s for told in (decided, unpolled)))
            moments = [begins_s, *(at for at in heard[key] if begins_s < at < ends_s), ends_s]
            for before, after in pairwise(moments):
                if after > before:
                    said = f"nobody looked at task {truth['task_id']} for {after - before:.0f} s"
                    yield None if after - before <= within_s else broken("I-13", {**truth, "t": after}, said)


@invariant("I-18", "an agent tells each webhook of each move once, in order, and of the end last")
def _told_in_order(e: Evidence) -> Iterator[Violation | None]:
    """What is sent again after a failed try is the same notice; what an agent had still to say when it was killed is
    nobody's. A webhook that is registered anew takes the place of the one before, and is told how the task stands. To
    a hub that did not take what it told it lately, an agent tells nothing for some minutes, not an end either. In 0.1
    the artifact has a notice of its own, which says the state, too.
    """
    failed: dict[str, list[float]] = defaultdict(list)
    for call in e.calls:
        if call.method == "webhook" and call.status != 200:
            failed[call.source].append(call.t)
    older = {row["agent"] for row in e.start.get("agents", ()) if row.get("dialect") == "0.1"}
    anew = Counter((c.target, c.task_id) for c in e.calls if "pushnotification" in c.method.lower())
    ends: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (agent, task_id, _), notices in _notices(e).items():
        ends[agent, task_id] |= {call.state for call in notices} & ENDS
    for (agent, task_id, _), notices in _notices(e).items():
        truth = next(iter(e.truths.get((agent, task_id), ())), None)
        if truth is None or truth["ended"] in {"killed", "open"}:
            continue
        told = list(dict.fromkeys((call.state, call.body) for call in notices))
        taken = Counter((call.state, call.body) for call in notices if call.status in {200, 202})
        said = ""
        if ends[agent, task_id] - {truth["ended"]}:
            said = f"told that it was {', '.join(sorted(ends[agent, task_id]))}, and it was {truth['ended']}"
        elif any(before in ENDS and after not in ENDS for (before, _), (after, _) in pairwise(told)):
            said = "told of another move after the end"
        elif sum(state in ENDS for state, _ in told) > (2 if agent in older else 1) + anew[agent, task_id]:
            said = "told of the end in one notice too many"
        elif (
            not ends[agent, task_id]
            and all(call.status == 200 for call in notices)
            and not any(truth["ended_s"] - HEALED_S <= at <= truth["ended_s"] for at in failed[agent])
        ):
            said = "never told of the end, though every notice was taken"
        elif twice := next((state for (state, _), times in taken.items() if times > 1 + anew[agent, task_id]), None):
            said = f"told of {twice} again after it had been taken"
        yield broken("I-18", {**truth, "t": notices[-1].t}, said) if said else None


@invariant("I-19", "an agent's task is canceled only if that was asked for, whatever becomes of who listens")
def _goes_on(e: Evidence) -> Iterator[Violation | None]:
    asked: dict[tuple[str, str], float] = {}
    for call in e.calls:
        if call.method in CANCELS:
            asked.setdefault((call.target, call.task_id), call.began_s)
    for key, truths in e.truths.items():
        for truth in truths:
            unasked = truth["ended"] == "canceled" and asked.get(key, e.last_s) > truth["ended_s"]
            yield broken("I-19", truth, "the task was canceled, and nobody had asked for that") if unasked else None


@invariant("I-22", "what was acknowledged is on record: a request, and the end of a task that a webhook told of")
def _kept(e: Evidence) -> Iterator[Violation | None]:
    """A task that was given up here is canceled there: that webhook is thanked for, and changes nothing. While the disk
    is full nothing can be on record that was not before.
    """
    for line in e.submitted:
        rows = e.outcomes.get(line["correlation_id"], ())
        said = "accepted, and not on record"
        yield None if rows and rows[0]["accepted"] else broken("I-22", line, said)
    for (agent, task_id, _), notices in _notices(e).items():
        truth = next(iter(e.truths.get((agent, task_id), ())), None)
        decided = e.decided.get(truth["correlation_id"]) if truth is not None else None
        for call in notices if truth is not None else ():
            if call.disk_full and not (decided and decided[0].order < call.order):
                said = f"a webhook ({call.state}) was taken with {call.status} while nothing could be written"
                yield broken("I-22", {"t": call.t, "agent": agent}, said) if call.status == 200 else None
        end = next((c for c in notices if c.state in ENDS and c.status in {200, 202}), None)
        if end is None or truth is None or not decided or decided[0].order < end.order:
            continue
        kind, late_s = decided[0].kind, decided[0].t - end.t
        as_said = kind == end.state or (kind, end.state) == ("expired", "canceled")
        said = f"a webhook said {end.state}, and {late_s:.0f} s later it ended as {kind}"
        yield None if as_said and late_s <= RECORDED_WITHIN_S else broken("I-22", decided[0], said)


@invariant("I-23", "what arrives broken is answered, and breaks nobody")
def _no_errors_inside(e: Evidence) -> Iterator[Violation | None]:
    """500 is what a server says that did not expect what it met, or dies of it; trouble on the way says 502 or 503."""
    for call in e.calls:
        died = call.target == "hub" and call.t in e.killed_s
        said = f"{call.target} answered {call.method} of {call.source} with 500"
        wrong = call.status == 500 and not died
        yield broken("I-23", {"t": call.t, "agent": call.target}, said) if wrong else None


def _notices(e: Evidence) -> dict[tuple[str, str, str], list[SeenCall]]:
    """The webhooks that tell of a state, by agent, task and where they are sent, in the order of their first tries."""
    found: dict[tuple[str, str, str], list[SeenCall]] = defaultdict(list)
    webhooks: Iterable[SeenCall] = (call for call in e.calls if call.method == "webhook" and call.state)
    for call in sorted(webhooks, key=lambda call: call.began_s):
        found[call.source, call.task_id, call.door].append(call)
    return found
