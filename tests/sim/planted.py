"""Defects of caller, hub and agent, planted one at a time into a simulated fleet: the checker must find each.

A checker that has never found a defect proves nothing. Every row describes a defect and its edit: ``old`` becomes
``new`` in a function of a module, in a process of its own that has imported it. ``python -m tests.sim.planted
--seeds 200`` looks for them all, one seed after another, and prints for each the seed and the rule that found it;
``--only NAME`` for one of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import fleetsim
from fleetsim.sim.scenario import parse_scenario, scenario_text
from fleetsim.sim.seeds import cut_down, run_seed
from tests import command
from tests.sim.here import Here
from tests.storms import planted

TOP = Path(__file__).resolve().parents[2]
CUTS_MAX = 10
CANARY_SEEDS = 20
"""On how many seeds what has no defect must break no rule."""

STORM = b"""
name: canary
duration: 20m
fleet:
  quinn:
    skills:
      review: {takes: {p50: 20s, p95: 60s}, chunks: 5, asks: 0.3, asksAgain: 0.3, cost: {low: 0.01, high: 0.03}}
  scribe:
    dialect: "1.0"
    skills:
      note: {takes: {low: 2s, high: 30s}, chunks: 3}
traffic:
  - {skill: review, rate: 40/h}
  - {skill: note, rate: 40/h}
people: {answerAfter: {low: 5s, high: 60s}, cancel: 0.05}
settings: {task_limit_s: 7200}
mix:
  scale: 12
  without: [slower, lost-sends, disk-error, slow-disk, stall, ceremony-edits, forged-webhooks, busy, redirects,
            stalled-bodies, doubled-events, new-api-keys, new-webhook-keys, new-zone]
"""
"""Much trouble of the kinds that kill, lose and cut: what it hides, the one below shows."""

DRIZZLE = b"""
name: drizzle
duration: 20m
fleet:
  quinn:
    skills:
      review: {takes: {p50: 20s, p95: 60s}, chunks: 5, asks: 0.3, asksAgain: 0.3, cost: {low: 0.01, high: 0.03}}
  scribe:
    dialect: "1.0"
    skills:
      note: {takes: {low: 2s, high: 30s}, chunks: 3}
  archivist:
    streaming: false
    skills:
      lookup: {takes: {low: 5s, high: 20m}}
traffic:
  - {skill: review, rate: 40/h}
  - {skill: note, rate: 40/h}
  - {skill: lookup, rate: 40/h}
ceremonies: theirs
people: {answerAfter: {low: 5s, high: 60s}, never: 0.3, cancel: 0.1}
settings: {task_limit_s: 7200, question_ttl_s: 120}
mix:
  scale: 3
  without: [hub-restart, hub-dies-writing, agent-restart, agent-down, hub-unreachable, junk, bad-gateway, lost-request,
            lost-reply, lost-sends, slow-answers, failing-polls, card-gone, card-junk, new-api-keys, new-webhook-keys,
            new-zone]
weather:
  - {fault: ceremony-edits}
  - {fault: forged-webhooks}
  - {fault: clock-jump, at: 7m, amount: -300}
"""
MOVES = b"""
name: moves
duration: 80m
fleet:
  scribe:
    dialect: "1.0"
    skills:
      note: {takes: {low: 2s, high: 10m}, chunks: 3}
traffic:
  - {skill: note, rate: 20/h}
ceremonies: theirs
weather:
  - {fault: new-zone, at: 1m, lasts: 75m}
  - {fault: new-webhook-keys, at: 30m, lasts: 2s}
  - {fault: new-api-keys, at: 50m, amount: 3}
"""

TRIO = b"""
name: trio
duration: 10m
hubs: 3
fleet:
  quinn:
    skills:
      review: {takes: {p50: 20s, p95: 60s}, chunks: 5, asks: 0.5, cost: {low: 0.01, high: 0.03}}
  scribe:
    dialect: "1.0"
    streaming: false
    skills:
      note: {takes: {low: 2s, high: 30s}, chunks: 3}
traffic:
  - {skill: review, rate: 120/h}
  - {skill: note, rate: 120/h}
ceremonies: theirs
people: {answerAfter: {low: 5s, high: 30s}, cancel: 0.1}
settings: {lease_s: 5, poll_interval_s: 15}
weather:
  - {fault: clock-jump, hub: 2, amount: 5}
  - {fault: hub-pause, hub: 1, at: 1m, lasts: 12s}
  - {fault: hub-restart, hub: 2, at: 2m, lasts: 20s}
  - {fault: hub-cut, hub: 3, at: 3m, lasts: 12s}
  - {fault: hub-pause, hub: 2, at: 4m, lasts: 9s}
  - {fault: hub-dies-writing, hub: 1, at: 5m, lasts: 10s}
  - {fault: hub-cut, hub: 2, at: 6m, lasts: 9s}
  - {fault: hub-pause, hub: 3, at: 7m, lasts: 20s}
  - {fault: hub-pause, hub: 1, at: 8m, lasts: 7s}
  - {fault: hub-cut, hub: 1, at: 9m, lasts: 20s}
"""
"""Three hubs, of which one at a time is lost."""


CEREMONIES = {
    f"{name}.yaml": f"id: {name}\nname: {name}\nschedule: '*/2 * * * *'\nskill: note\ntargets: [scribe]\n".encode()
    for name in ("rounds", "watch")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One defect. ``found_by`` is the invariant that finds it, ``seed`` the first seed that shows it."""

    name: str
    wrong: str
    file: str
    old: str
    new: str
    found_by: str
    seed: int = 1
    scenario: bytes = STORM


def _known(name: str, found_by: str, seed: int = 1, scenario: bytes = STORM) -> Planted:
    """A defect by its name, those for tests included."""
    row = next(defect for defect in planted.DEFECTS if defect.name == name)
    edit = {"file": row.file, "old": row.old, "new": row.new}
    return Planted(name=name, wrong=row.wrong, **edit, found_by=found_by, seed=seed, scenario=scenario)


_in_drizzle, _in_moves, _in_trio = (partial(Planted, scenario=scenario) for scenario in (DRIZZLE, MOVES, TRIO))

DEFECTS: tuple[Planted, ...] = (
    Planted(
        name="for-ever",
        wrong="a look at a task that its agent has forgotten is repeated for ever",
        file="request/following.py",
        old="    elif gone:\n        _gone(context, error)\n",
        new="    elif gone:\n        context.poll_at(context.now.mono + rules.poll_interval_s)\n",
        found_by="I-14",
    ),
    _known("U6", "I-28"),
    _known("U7", "I-04", 9),
    Planted(
        name="open-requests",
        wrong="what was open when the hub was killed is not taken up again",
        file="hub/hub.py",
        old="        async for page in self.ledger.open_pages():",
        new="        for page in list[list[RequestRecord]]():",
        found_by="I-01",
    ),
    Planted(
        name="untold-requests",
        wrong="an outcome that a killed hub recorded without its event has no event of the next hub",
        file="hub/hub.py",
        old="        for record in await self.ledger.untold_requests():\n",
        new="        for record in ():\n",
        found_by="I-29",
    ),
    Planted(
        name="announced",
        wrong="outcomes are published again after a restart",
        file="ledger/sqlite/ledger.py",
        old="        if announced:\n",
        new="        if False:\n",
        found_by="I-04",
    ),
    Planted(
        name="doubled-text",
        wrong="a repeated artifact is appended to itself",
        file="model/event.py",
        old="    return _with_artifact(task, artifact, _place(task.artifacts, artifact.artifact_id))\n",
        new="    return _with_artifact(task, artifact, None)\n",
        found_by="I-11",
        seed=8,
    ),
    _known("U2", "I-10", 3),
    _known("U9b", "I-01", 2),
    Planted(
        name="resent",
        wrong="a send whose reply was lost is sent again",
        file="request/sending.py",
        old="    elif maybe_taken:\n        _reply_lost(context, str(error))\n",
        new="    elif maybe_taken:\n        _retry_or_end(context, error)\n",
        found_by="I-28",
    ),
    Planted(
        name="health-anew",
        wrong="health begins at nothing after a restart",
        file="hub/hub.py",
        old="            for outcome in page:\n",
        new="            for outcome in page[:0]:\n",
        found_by="I-05",
    ),
    Planted(
        name="kept",
        wrong="what is known of a task's request is kept when it has ended",
        file="caller/tracker.py",
        old="        if self.find(agent, task_id) == correlation_id:\n",
        new="        if False:\n",
        found_by="I-15",
    ),
    Planted(
        name="stream-end",
        wrong="a stream that ends is taken for the end of its task",
        file="request/sending.py",
        old="    if context.ended or track.asking.question is not None:\n        return\n",
        new="    close(context, OutcomeKind.LOST, Cause.TASK_GONE, 'the stream ended')\n    return\n",
        found_by="I-27",
    ),
    _in_drizzle(
        name="unrecorded",
        wrong="a webhook is acknowledged and not recorded",
        file="caller/tracker.py",
        old="        await self._recorded(cid)\n        return False\n",
        new="        return False\n",
        found_by="I-22",
        seed=30,
    ),
    _in_drizzle(
        name="loop",
        wrong="what one agent streams takes the loop while it is read",
        file="caller/tracker.py",
        old="                            silent = False\n",
        new="                            silent = False\n"
        "                            asyncio.get_running_loop().hold_up(0.2)\n",
        found_by="I-30",
    ),
    _known("U3", "I-26", 3, DRIZZLE),
    _in_drizzle(
        name="U10",
        wrong="a token is not held to the request it was made for",
        file="caller/receiver.py",
        old="        if last not in {cid, bound} or (bound is not None and not named <= {bound}):\n",
        new="        if False:\n",
        found_by="I-08",
    ),
    _known("U11", "I-08", scenario=DRIZZLE),
    _in_drizzle(
        name="U12",
        wrong="a reply has no deadline once it began",
        file="testbed/network.py",
        old="None if request.limits.total_s is None else began + request.limits.total_s",
        new="None",
        found_by="I-26",
        seed=2,
    ),
    _known("U15", "I-26", scenario=DRIZZLE),
    _known("U16", "I-24", scenario=DRIZZLE),
    _in_drizzle(
        name="deleted",
        wrong="a ceremony whose file is deleted goes on",
        file="ceremonies/folder.py",
        old="        for path in changes.gone:\n",
        new="        for path in ():\n",
        found_by="I-07",
        seed=2,
    ),
    _in_drizzle(
        name="disabled",
        wrong="a ceremony that is disabled goes on",
        file="ceremonies/scheduler.py",
        old="            if not ceremony.enabled:\n                continue\n",
        new="",
        found_by="I-07",
    ),
    _in_drizzle(
        name="unconfirmed",
        wrong="an end is believed to bring all of the answer: no look is owed",
        file="request/following.py",
        old='            complete = task.text != "" and '
        "all(a.artifact_id in track.ending.whole for a in task.artifacts)\n",
        new="            complete = True\n",
        found_by="I-11",
    ),
    _in_drizzle(
        name="U23",
        wrong="a notice says how the task stands when it leaves, not when it moved",
        file="agent/notify.py",
        old="        written = dialect(push.dialect)\n",
        new="""        live = self._store.retention.get(queue.key).snapshot().task
        notice = TaskNotice(event=replace(notice.event, status=live.status), task=live)
        written = dialect(push.dialect)
""",
        found_by="I-18",
        seed=7,
    ),
    _in_drizzle(
        name="U24",
        wrong="a cancel is published twice: by the cancel call and by the running task",
        file="agent/notify.py",
        old="        for push in record.pushes:\n",
        new="        for push in record.pushes * (1 + (transition.state is TaskState.CANCELED)):\n",
        found_by="I-18",
    ),
    _in_drizzle(
        name="listener",
        wrong="a task is canceled when whoever listened to it is gone",
        file="agent/service.py",
        old="        return Watch(\n            record=record,\n",
        new="""        store, runner = self._store, self._runner

        class Owner(Watch):
            def close(self) -> None:
                self.slot.leave()
                if not self.feed.closed and store.knows(record.key):
                    store.cancel(record.key)
                    runner.stop(record.key)

        return Owner(
            record=record,
""",
        found_by="I-19",
    ),
    _in_moves(
        name="zone",
        wrong="a ceremony fires by UTC whatever zone its file names",
        file="ceremony/file.py",
        old="    return next_slot(ceremony.schedule, after, zone_of(ceremony.timezone))\n",
        new="    return next_slot(ceremony.schedule, after)\n",
        found_by="I-31",
        seed=3,
    ),
    _in_moves(
        name="epoch",
        wrong="with new webhook keys, tokens of the previous epoch are refused",
        file="hub/keys.py",
        old="    return epoch + 1, {**newest, epoch + 1: ids.secret().encode()}\n",
        new="    return epoch + 1, {epoch + 1: ids.secret().encode()}\n",
        found_by="I-32",
    ),
    _in_drizzle(
        name="key",
        wrong="the first agent's key is shown to all of them",
        file="fleet/settings.py",
        old="        return credentials_of(self.auth, self.api_key_env, self.folder)\n",
        new="        first = getattr(AgentFile, 'first', None) or credentials_of(self.auth, self.api_key_env)\n"
        "        AgentFile.first = first\n        return first\n",
        found_by="I-16",
    ),
    _in_trio(
        name="unfollowed",
        wrong="a hub takes requests over, and does not follow them",
        file="hub/members.py",
        old="            hub.resume(taken.requests, taken.questions, taken.webhooks)\n",
        new="            hub.resume((), taken.questions, taken.webhooks)\n",
        found_by="I-01",
    ),
    _in_trio(
        name="lapsed",
        wrong="a hub goes on and writes when its lease has lapsed and another hub has taken over",
        file="sim/shared_ledger.py",
        old="        if member.ended:\n            if hub",
        new="        if False:\n            if hub",
        found_by="I-03",
    ),
    _in_trio(
        name="unforgone",
        wrong="a hub that lost its lease publishes moves of requests that another hub has taken over",
        file="hub/members.py",
        old="            self._events.forgo(hub.journal.forgo())\n",
        new="            pass\n",
        found_by="I-03",
    ),
)

CANARIES = tuple(
    Planted(
        name=name,
        wrong="nothing: what finds this would find anything",
        file="model/event.py",
        old="    return _with_artifact(task, artifact, _place(task.artifacts, artifact.artifact_id))\n",
        new="    return _with_artifact(task, artifact, _place(task.artifacts, artifact.artifact_id))  # as it is\n",
        found_by="",
        scenario=scenario,
    )
    for name, scenario in (
        ("canary", STORM),
        ("canary-drizzle", DRIZZLE),
        ("canary-moves", MOVES),
        ("canary-trio", TRIO),
    )
)
"""They must not be found: that the others are, is then no chance."""


def _plant(defect: Planted) -> None:
    """Give every live function of the module the code it has with the defect in its text."""
    path = Path(fleetsim.__file__).parent / defect.file
    importlib.import_module("fleetsim." + defect.file.removesuffix(".py").replace("/", "."))
    text = path.read_text(encoding="utf-8")
    if text.count(defect.old) != 1:
        raise SystemExit(f"{defect.name}: {defect.file} does not contain the old text exactly once")
    edited: dict[str, list[CodeType]] = defaultdict(list)
    for code in _functions(compile(text.replace(defect.old, defect.new), str(path), "exec", dont_inherit=True)):
        edited[code.co_qualname].append(code)
    live: dict[str, set[FunctionType]] = defaultdict(set)
    gc.unfreeze()  # the fork server froze its heap, and frozen objects are not listed
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(path):
            live[function.__code__.co_qualname].add(function)
    for name, functions in live.items():
        lines = sorted({function.__code__.co_firstlineno for function in functions})
        if len(lines) == len(edited[name]):  # or a nested function, which its outer function creates again
            codes = dict(zip(lines, edited[name], strict=True))
            for function in functions:
                function.__code__ = codes[function.__code__.co_firstlineno]


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The code of each function, in the order of their lines."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


def look_for(defect: Planted, *, first: int, seeds: int, cut: Path | None = None) -> str:
    """Plant the defect in a process of its own and play seeds until one breaks its rule: ``SEED RULES``, or empty. The
    scenario that broke it is cut down to the file ``cut``, if given; an existing file is played instead."""
    words = ["--plant", defect.name, "--first", f"{first}", "--seeds", f"{seeds}"]
    words += ["--cut", str(cut)] if cut else []
    done = command.run(words, TOP, os.environ, module="tests.sim.planted")
    if done.returncode:
        raise AssertionError(done.stderr[-2_000:])
    return done.stdout.strip()


def _planted(name: str, first: int, seeds: int, cut: Path | None) -> None:
    defect = next(defect for defect in (*DEFECTS, *CANARIES) if defect.name == name)
    _plant(defect)
    text = cut.read_bytes() if cut and cut.exists() else defect.scenario
    for seed in range(first, first + seeds):
        run = run_seed(text, "canary.yaml", CEREMONIES, seed)
        rules = sorted({wrong.invariant for wrong in run.violations})
        if rules and (not defect.found_by or defect.found_by in rules):  # or planting it has broken something else
            print(seed, *rules)
            if cut and not cut.exists():
                scenario, written = parse_scenario(text, "canary.yaml")
                smallest = cut_down(
                    Here(), written.value, scenario, CEREMONIES, run, go_on=lambda tries, _: tries < CUTS_MAX
                )
                assert smallest is not None
                cut.write_text(scenario_text(smallest), encoding="utf-8")
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="the names of defects to look for")
    parser.add_argument("--plant", help=argparse.SUPPRESS)
    parser.add_argument("--cut", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.plant:
        _planted(options.plant, options.first, options.seeds, options.cut)
        return
    wanted = [defect for defect in DEFECTS if not options.only or defect.name in options.only]
    missed = []
    with ThreadPoolExecutor(options.jobs) as looking:
        look = partial(look_for, first=options.first, seeds=options.seeds)
        for defect, found in zip(wanted, looking.map(look, wanted), strict=True):
            print(f"{defect.name:16} {found or 'NOT FOUND':24} {defect.wrong}", flush=True)
            missed += [] if found else [defect.name]
        canaries = [] if options.only else CANARIES
        look = partial(look_for, first=options.first, seeds=min(CANARY_SEEDS, options.seeds))
        for canary, found in zip(canaries, looking.map(look, canaries), strict=True):
            print(f"{canary.name:16} {found or 'not found':24} {canary.wrong}", flush=True)
            missed += [f"{canary.name}, which is none, was"] if found else []
    if missed:
        raise SystemExit(f"not found in {options.seeds} seeds: {', '.join(missed)}")


if __name__ == "__main__":
    main()
