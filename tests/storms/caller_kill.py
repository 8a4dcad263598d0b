"""Kill a hub with -9 during real work with real agents, again and again; then compare it with their records.

A child runs the whole hub on its ledger file and loopback, sends requests, as an A2A client too, answers questions
and fires ceremonies, and reports on a pipe which requests were accepted. It dies at a random moment, at a named point
of the code or while it starts; the next one continues from the same file. The agents live in another process and
record every task they really ran. In the end each accepted request must have exactly one outcome, published once; the
agents must have run each at most once; each question must have had a notice; no ceremony slot
may have fired twice; work must have been resumed within 5 s of each start, not counting the time in which the hub had
no processor; every webhook that our receiver answered with a 2xx, by the agents' own list, must show in its request's
outcome; every task that ``/a2a`` returned must exist under its id and end like its request; and a request may be
``unknown`` only if the ledger itself recorded, at some kill, that its send was under way, and its agent offered no
way to look (docs/explanation/ledger.md).
``python -m tests.storms.caller_kill --kills 1000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetsim.agent.limits import AgentLimits
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.client import AgentClient, Credential
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger import LedgerLimits, NoticeState
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.call import GetTask, SendMessage
from fleetsim.model.errors import FleetsimError, TaskNotFound
from fleetsim.model.task import Message, Role, Task, TextPart
from fleetsim.model.work import Answer, Outcome, OutcomeKind, SkillRequest
from fleetsim.request.records import Phase
from fleetsim.runtime.failpoints import installed
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.runtime import VirtualClock
from tests.loop_time import own_time_s
from tests.ports import held_port
from tests.storms.caller_fleet import HASTY, WAYS, Agents, Truth

POINTS = {
    "before_send": 6,
    "after_send_before_bind": 4,
    "after_poll_before_hear": 8,
    "after_push_before_answer": 8,
    "before_close": 6,
    "after_close_before_tell": 6,
    "after_answer_before_resume": 2,
    "after_resume_before_bind": 2,
    "ledger.before_commit": 40,
    "ledger.after_commit": 40,
}
"""Where to die, and how often the point may be passed before."""

FLEET = {**WAYS, **HASTY}
NO_LIST = {"ava", "rex", "hugo"}
"""Who offers no way to look for a task whose id we do not know: those of 0.3."""

RESUME_S_MAX = 5.0
INTERVAL_S = 0.5
TIME_LIMIT_S = 4 * 3_600.0
"""For a request: longer than any storm. A life is shorter than a webhook is waited for whose send a kill caught, at an
agent that has no list; such a request stays open to the last life, and must not expire before it."""

CEREMONY = (
    'id: tick\nname: Tick\nschedule: "* * * * *"\nskill: echo\ntargets: [all]\nprompt: good morning\n'
    f"timeoutMs: {TIME_LIMIT_S * 1000:.0f}\n"
)
LIMITS = LedgerLimits(events_max=10_000_000, outcomes_min=10_000_000)


class KillError(AssertionError):
    """A problem that a storm found."""


@dataclass
class Ground:
    """The place of a storm, and its results so far."""

    folder: Path
    port: int
    rng: random.Random
    life_s: float = 1.2
    accepted: set[str] = field(default_factory=set)
    tasks: dict[str, str] = field(default_factory=dict)
    """The tasks that ``/a2a`` answered with, and their requests."""
    ended: dict[str, tuple[str, str]] = field(default_factory=dict)
    """How these ended: state and text."""

    forgotten: set[str] = field(default_factory=set)
    """Those of them that the hub holds no more, having more of one caller than it keeps."""
    in_air: set[str] = field(default_factory=set)
    resumes: list[float] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)

    @property
    def ledger(self) -> Path:
        return StateDir(self.folder / "state").ledger_path


# ------------------------------------------------------------------ the child: one life of the hub


class Life:
    """One run of the hub with traffic; ``last`` sends no new work and ends once no request is open."""

    def __init__(self, hub: Hub, report: int, seed: int, born: float, *, tasks: Iterable[str], last: bool) -> None:
        self.hub, self.report, self.born, self.last = hub, report, born, last
        self.tasks = tuple(tasks)
        credential = Credential.of("apiKey", hub.keys.api_key)
        self.client = AgentClient(f"{hub.url}/a2a", runtime=hub.runtime, credential=credential)
        self.rng = random.Random(seed)
        self.answered: set[str] = set()

    def say(self, line: str) -> None:
        os.write(self.report, f"{line}\n".encode())

    async def resume(self, owed: set[str]) -> None:
        """Report when every task that was under way has been polled again."""
        while owed:
            tracks = {t.correlation_id: t for t in self.hub.tracker.tracks()}
            owed = {
                c
                for c in owed
                if (t := tracks.get(c)) and not t.polling.count and not t.outcome and not t.pushing.received
            }
            await asyncio.sleep(0.02)
        self.say(f"resumed {own_time_s() - self.born:.3f}")

    async def ask(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(12))
            cid = f"{self.rng.getrandbits(64):016x}"
            skill = self.rng.choices(("echo", "work", "ask"), (5, 3, 2))[0]
            agent = self.rng.choice(list(FLEET))
            with suppress(FleetsimError):
                await self.hub.submit(SkillRequest(correlation_id=cid, text=cid, skill=skill, targets=(agent,)))
                self.say(f"accepted {cid}")

    async def ask_over_a2a(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(3))
            text = f"{self.rng.getrandbits(64):016x}"
            said = Message(message_id=text, role=Role.USER, parts=(TextPart(text=text),))
            hint = {"skillHint": self.rng.choice(("echo", "work", "ask"))}
            with suppress(FleetsimError):
                task = await self.client.call(SendMessage(message=said, metadata=hint))
                assert isinstance(task, Task)
                self.say(f"taken {task.task_id} {task.metadata['correlationId']}")

    async def see_ends(self) -> None:
        """Report the end of each task that was started over ``/a2a`` in any life."""
        for task_id in self.tasks:
            try:
                while True:
                    task = await self.client.call(GetTask(task_id=task_id))
                    assert isinstance(task, Task)
                    if task.terminal:
                        break
                    await asyncio.sleep(0.1)
            except TaskNotFound:
                self.say(f"forgotten {task_id}")
            else:
                self.say(f"ended {task_id} {task.state.value} {task.text}")

    async def answer(self) -> None:
        """Answer each question whose notice was delivered: a person knows of no other."""
        while True:
            for question in self.hub.tracker.questions():
                name = question.question_id
                notices = await self.hub.ledger.notices(name)
                if name not in self.answered and any(row.state is NoticeState.DELIVERED for row in notices):
                    self.answered.add(name)
                    with suppress(FleetsimError):
                        await self.hub.tracker.answer(Answer(question_id=name, text=f"re {name}"))
            await asyncio.sleep(self.rng.choice((0.02, 0.3)))

    async def fire(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(0.5))
            with suppress(FleetsimError):
                await self.hub.require_scheduler().run_now("tick")

    async def run(self, owed: set[str]) -> None:
        async with asyncio.TaskGroup() as group:
            busy = [group.create_task(self.answer())]
            if not self.last:
                busy += [group.create_task(work()) for work in (self.ask, self.ask_over_a2a, self.fire)]
            await self.resume(owed)
            if self.last:
                await self.see_ends()
            while not self.last or self.hub.tracker.tracks():  # noqa: ASYNC110 - several rooms, no one bell
                await asyncio.sleep(0.1)
            for worker in busy:
                worker.cancel()


async def _live(ground: Ground, entries: tuple[AgentEntry, ...], report: int, *, last: bool) -> None:
    born = own_time_s()
    settings = FleetSettings(
        poll_interval_s=INTERVAL_S,
        retry_waits_s=(0.1, 0.3, 0.9),
        task_limit_s=TIME_LIMIT_S,
        question_channels=("ops",),
    )
    ops = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.LOG),))
    config = FleetConfig(agents=entries, settings=settings, channels={"ops": ops})
    state = StateDir(ground.folder / "state").open()
    async with (
        running_runtime() as runtime,
        open_ledger(state.ledger_path, clock=runtime.clock, limits=LIMITS) as ledger,
    ):
        owed = {r.request.correlation_id for r in await ledger.open_requests() if r.phase is Phase.ACCEPTED}
        ceremonies = ground.folder / "ceremonies"
        async with running_hub(config, runtime, ledger, state=state, port=ground.port, ceremonies=ceremonies) as hub:
            os.write(report, b"up\n")
            life = Life(hub, report, ground.rng.getrandbits(64), born, tasks=ground.tasks, last=last)
            await life.run(owed)


def child(
    ground: Ground, entries: tuple[AgentEntry, ...], report: int, die_at: tuple[str, int] | None, *, last: bool
) -> None:
    """One life; never returns to the parent's code."""
    left = [die_at[1] if die_at else 0]

    def on_point(point: str) -> None:
        if die_at and point == die_at[0]:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    logging.basicConfig(filename=ground.folder / "hub.log", level=logging.WARNING, force=True)
    with installed(on_point):
        asyncio.run(_live(ground, entries, report, last=last))


def spawn(
    ground: Ground, entries: tuple[AgentEntry, ...], die_at: tuple[str, int] | None, *, last: bool = False
) -> tuple[int, int]:
    """Fork a life; returns its pid and the end of the pipe to read."""
    ground.rng.random()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.close(reading)
        child(ground, entries, writing, die_at, last=last)
        code = 0
    except Exception:
        logging.exception("the life ended")
    finally:
        os._exit(code)


# ------------------------------------------------------------------ the parent: killing and checking


def drain(ground: Ground, said: str) -> None:
    """Read the reports of a life; a line that the kill cut off does not count."""
    for line in said.splitlines(keepends=True):
        what, _, rest = line.rstrip("\n").partition(" ")
        if not line.endswith("\n"):
            continue
        if what == "accepted":
            ground.accepted.add(rest)
        elif what == "resumed":
            ground.resumes.append(float(rest))
        elif what == "taken":
            task_id, cid = rest.split()
            ground.tasks[task_id] = cid
            ground.accepted.add(cid)
        elif what == "ended":
            task_id, state, text = rest.split(" ", 2)
            ground.ended[task_id] = state, text
        elif what == "forgotten":
            ground.forgotten.add(rest)


async def _look(ground: Ground) -> None:
    """The sends that were under way when the hub died, by the ledger."""
    async with open_ledger(ground.ledger, clock=VirtualClock(), storage="inline", limits=LIMITS) as ledger:
        for record in await ledger.open_requests():
            if record.phase is Phase.SENDING:
                ground.in_air.add(record.request.correlation_id)


def read_all(reading: int, until: bytes | None = None) -> str:
    """The lines of the child, until it ends or has written ``until``."""
    said = b""
    while (until is None or until not in said) and (more := os.read(reading, 65_536)):
        said += more
    return said.decode()


def kill_one(ground: Ground, entries: tuple[AgentEntry, ...]) -> None:
    """One life and its end."""
    rng = ground.rng
    way = rng.choices(("random moment", "named point", "while starting"), (5, 4, 1))[0]
    point = rng.choice(list(POINTS))
    die_at = (point, rng.randrange(POINTS[point])) if way == "named point" else None
    pid, reading = spawn(ground, entries, die_at)
    said = "" if way == "while starting" else read_all(reading, b"up\n")
    time.sleep(rng.random() * (0.3 if way == "while starting" else ground.life_s))
    os.kill(pid, signal.SIGKILL)
    said += read_all(reading)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        raise KillError(f"the hub ended by itself with {os.WEXITSTATUS(status)} ({way}); see {ground.folder}/hub.log")
    drain(ground, said)
    ground.ways[way] += 1
    asyncio.run(_look(ground))


def finish(ground: Ground, entries: tuple[AgentEntry, ...], patience_s: float = 60.0) -> None:
    """A last life, left alone until no request is open."""
    pid, reading = spawn(ground, entries, None, last=True)
    os.set_blocking(reading, False)
    said = b""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        with suppress(BlockingIOError):
            while more := os.read(reading, 65_536):  # a thousand tasks are more than a pipe holds
                said += more
        if done:
            drain(ground, said.decode())
            os.close(reading)
            if status:
                raise KillError(f"the last life failed; see {ground.folder}/hub.log")
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise KillError(f"requests were still open {patience_s:.0f} s after the last start")


@dataclass
class Found:
    """The ends of requests; the reasons of the unknown ones among those under way at a kill; and the problems."""

    ends: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    promises: int = 0
    early: int = 0
    early_at_kill: int = 0
    problems: list[str] = field(default_factory=list)


def why_unknown(cid: str, agent: str, truth: Truth) -> str:
    """The class of an unknown request by its agent's record; "" if its end could have been known."""
    if cid not in truth.arrived:
        return "never reached its agent"
    if agent not in NO_LIST:
        return ""
    if FLEET[agent].get("push") == "off":
        return "ran at an agent with neither list nor webhook"
    return "ran, and no webhook got through"


def keep_promises(truth: Truth, outcomes: Mapping[str, Outcome], ground: Ground, found: Found) -> None:
    """Every 2xx of our receiver before the request's end shows in the outcome."""
    for cid, promises in truth.promised.items():
        outcome = outcomes.get(cid)
        if outcome is None:
            continue  # ended as lost
        promises = [p for p in promises if p.at <= outcome.ended_at.timestamp()]
        early = [p for p in promises if p.early]
        found.promises += len(promises)
        found.early += len(early)
        found.early_at_kill += bool(early) and cid in ground.in_air
        ends = {p.state for p in promises} & {"completed", "failed", "canceled", "rejected"}
        if outcome.kind is OutcomeKind.UNKNOWN and promises:
            states = ", ".join(p.state for p in promises)
            found.problems.append(f"{cid} at {outcome.agent} is unknown although we acknowledged its webhook: {states}")
        elif ends and outcome.kind.value not in ends:
            found.problems.append(f"{cid} at {outcome.agent} is {outcome.kind} although we acknowledged {ends}")


async def check(ground: Ground) -> Found:
    """Compare the accepted requests, the ledger and the agents' records."""
    truth, found = Truth.read(ground.folder / "truth"), Found()
    ends, problems = found.ends, found.problems
    async with open_ledger(ground.ledger, clock=VirtualClock(), storage="inline", limits=LIMITS) as ledger:
        if await ledger.open_requests():
            problems.append("requests are open that nobody works on")
        told = Counter[str]()
        after = 0
        while page := await ledger.events(after_seq=after, limit=10_000):
            after = page[-1].seq
            told.update(str(e.correlation_id) for e in page if e.topic.startswith("autonomous.outcome."))
        outcomes = {o.correlation_id: o for o in await ledger.outcomes(since=datetime(2020, 1, 1, tzinfo=UTC))}
        runs = await ledger.runs(limit=100_000)
        for asked in await ledger.questions(open_only=False):
            states = [notice.state for notice in await ledger.notices(asked.question.question_id)]
            if states != [NoticeState.DELIVERED]:
                problems.append(f"{asked.question.question_id} ({asked.state}) has the notices {states}")
    lost = ground.accepted - outcomes.keys()
    problems += [f"{cid} was accepted and has no outcome" for cid in sorted(lost)]
    problems += [f"{cid} has an outcome told {told[cid]} times" for cid in outcomes if told[cid] != 1]
    problems += [f"{cid} was run {n} times" for cid, n in truth.begun.items() if n > 1]
    problems += [f"{cid} got an answer twice" for cid, a in truth.answers.items() if len(set(a)) < len(a)]
    for cid, outcome in outcomes.items():
        ends[f"{outcome.agent} {outcome.kind.value}"] += 1
        if outcome.kind is OutcomeKind.UNKNOWN:
            why = why_unknown(cid, outcome.agent, truth)
            found.unknown[f"{outcome.agent} {why}"] += 1
            if cid not in ground.in_air:
                problems.append(f"{cid} at {outcome.agent} is unknown although its reply was not lost")
            elif not why:
                problems.append(
                    f"{cid} at {outcome.agent} is unknown although it could be looked for: {outcome.reason}"
                )
        elif outcome.kind is not OutcomeKind.COMPLETED or outcome.text != truth.said.get(cid):
            problems.append(f"{cid} at {outcome.agent}: {outcome.kind} {outcome.text!r} {outcome.reason!r}")
    slots = Counter((run.claim.ceremony_id, run.claim.scheduled_at) for run in runs)
    problems += [f"{slot} fired {n} times" for slot, n in slots.items() if n > 1]
    problems += [f"{run.claim.run_id} never ended" for run in runs if run.ended_at is None]
    minutes = sorted(run.claim.scheduled_at for run in runs if run.claim.trigger == "cron")
    problems += [f"no slot between {a} and {b}" for a, b in itertools.pairwise(minutes) if b - a > _MINUTE]
    problems += [f"work was taken up again after {s:.1f} s" for s in ground.resumes if s > RESUME_S_MAX]
    keep_promises(truth, outcomes, ground, found)
    # A kill hides hardly more than one acceptance from us.
    may_go = max(0, len(ground.tasks) + ground.ways.total() - AgentLimits().tasks_per_caller_max)
    if len(ground.forgotten) > may_go:
        problems.append(f"{len(ground.forgotten)} tasks of /a2a are forgotten, of {len(ground.tasks)}")
    for task_id, cid in ground.tasks.items():
        request, ended = outcomes.get(cid), ground.ended.get(task_id)
        if task_id in ground.forgotten:
            continue
        if ended is None:
            problems.append(f"task {task_id} of /a2a did not end")
        elif request is not None and request.success and ended != ("completed", request.text):
            problems.append(f"task {task_id} of /a2a is {ended}, its request is {request.text!r}")
        elif request is not None and not request.success and ended[0] == "completed":
            problems.append(f"task {task_id} of /a2a is completed, its request is {request.kind}")
    ends["slots"] = len(minutes)
    ends["runs by hand"] = len(slots) - len(minutes)
    return found


_MINUTE = timedelta(minutes=1)


def storm(kills: int, seed: int, *, life_s: float = 1.2, keep: bool = False) -> str:
    """Kill one hub ``kills`` times, each within ``life_s`` of its start. Raises KillError; returns the figures."""
    folder, good = Path(tempfile.mkdtemp(prefix="kill-")), False
    (folder / "ceremonies").mkdir()
    (folder / "ceremonies" / "tick.yaml").write_text(CEREMONY)
    try:
        with held_port() as port, Agents(folder / "truth", port, ways=FLEET) as agents:
            ground = Ground(folder, port, random.Random(seed), life_s)
            for done in range(1, kills + 1):
                kill_one(ground, agents.entries)
                if done % 100 == 0:
                    print(f"{done} kills, {len(ground.accepted)} requests", flush=True)
            finish(ground, agents.entries)
            found = asyncio.run(check(ground))
        good = not found.problems
    finally:
        if good and not keep:
            shutil.rmtree(folder)
    resumes = sorted(ground.resumes)
    slowest = f"{resumes[-1]:.2f} s (median {resumes[len(resumes) // 2]:.2f} s of {len(resumes)})" if resumes else "-"
    unknown = ", ".join(f"{count} {why}" for why, count in sorted(found.unknown.items()))
    figures = (
        f"caller: {sum(ground.ways.values())} kills {dict(ground.ways)}, {len(ground.accepted)} requests accepted, "
        f"{len(ground.tasks)} of them over /a2a, "
        f"{len(ground.in_air)} with their send in the air; taken up again within {slowest}; "
        f"{found.promises} webhooks acknowledged, {found.early} of them before the reply, and of these those of "
        f"{found.early_at_kill} requests whose send a kill caught in the air; ends {dict(sorted(found.ends.items()))}; "
        f"{found.unknown.total()} unknown: {unknown or 'none'}"
    )
    if found.problems:
        raise KillError(
            "\n".join([f"{len(found.problems)} problems in {ground.folder}", *found.problems[:20], figures])
        )
    return f"{figures}; 0 lost, 0 twice, 0 slots twice, 0 promises broken"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    parser.add_argument("--life", type=float, default=1.2, help="seconds a hub may live at most")
    options = parser.parse_args()
    gc.freeze()
    print(storm(options.kills, options.seed, life_s=options.life, keep=options.keep))


if __name__ == "__main__":
    main()
