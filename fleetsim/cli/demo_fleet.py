"""The demo's fleet: five small agents on the library anybody can use, and somebody who keeps them busy.

``quinn`` is well: it streams, costs and reports effects. ``protopen`` asks a person before it acts. ``flaky``
fails once in ten. ``herald`` speaks A2A 1.0 alone, ``archivist`` only the legacy 0.1.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fleetsim.agent import Agent, AgentLimits, Effect, SkillContext, SkillFailed, skill
from fleetsim.api.answers import InboxPage
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.terminal import Progress
from fleetsim.events.fleet import CeremonyCompleted, CeremonyFired
from fleetsim.events.request import OutcomeDecided
from fleetsim.hub.hub import Hub
from fleetsim.hub.state import StateDir
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import SkillRequest, Source
from fleetsim.runtime.workers import Workers

FINDINGS = (
    "Looked at the open work. Three items came in since yesterday: a login loop on one browser, a session "
    "that is not renewed, and a chart that counts twice. The first two share a cause; the third is new."
)


@skill("pr_review", description="Reviews a change and says what it found", tags=("quality",), cost=True, sure=True)
async def pr_review(task: SkillContext) -> None:
    await task.status("reading the diff")
    await asyncio.sleep(1.0)
    words = FINDINGS.split()
    for word in words:
        await task.say(f"{word} ")
        await asyncio.sleep(task.rng.uniform(0.05, 0.25))
    task.use(input_tokens=2_400, output_tokens=len(words) * 2, cost_usd=0.0112, model="demo")
    task.confidence(task.rng.uniform(0.7, 0.95), "all files were read")


@skill(
    "bug_triage",
    description="Sorts a bug and files it on the board",
    tags=("quality",),
    cost=True,
    effects=(Effect(domain="board", path="bugs.open"),),
)
async def bug_triage(task: SkillContext) -> str:
    for step in ("searching for duplicates", "reading the trace", "filing"):
        await task.status(step)
        await asyncio.sleep(task.rng.uniform(0.5, 1.5))
    task.effect("board", "bugs.open", "inc", 1)
    task.use(input_tokens=900, output_tokens=120, cost_usd=0.0041, model="demo")
    return f"filed as #{task.rng.randint(100, 999)}: {task.text[:60] or 'untitled'}"


@skill("qa_report", description="Sums up the day", tags=("report",), cost=True)
async def qa_report(task: SkillContext) -> str:
    await asyncio.sleep(task.rng.uniform(0.5, 2.0))
    task.use(input_tokens=600, output_tokens=80, cost_usd=0.0026, model="demo")
    return f"{task.rng.randint(2, 9)} reviews, {task.rng.randint(0, 4)} new bugs, nothing on fire"


@skill("scan", description="Scans a target, once a person has agreed to it", tags=("security",), hitl="gated")
async def scan(task: SkillContext) -> str:
    await asyncio.sleep(0.5)
    answer = (await task.ask(f"May I scan {task.text or 'staging'}? Answer yes or no.")).strip().lower()
    if not answer.startswith("y"):
        raise SkillFailed(f"not approved: {answer[:60] or 'no answer'}")
    await task.status("scanning")
    await asyncio.sleep(2.0)
    return "no open ports but the expected ones"


@skill("inventory", description="Lists what there is to scan", tags=("security",))
async def inventory(task: SkillContext) -> str:
    await asyncio.sleep(task.rng.uniform(2.0, 6.0))
    return "staging, preview, docs"


def flaky_echo() -> Agent:
    agent = Agent("flaky", description="Fails once in ten calls")
    left: list[bool] = []

    @agent.skill("echo", description="Says it back, usually")
    async def echo(task: SkillContext) -> str:
        await asyncio.sleep(task.rng.uniform(0.1, 1.0))
        if not left:
            left.extend(at == 0 for at in range(10))
            task.rng.shuffle(left)
        if left.pop():
            raise SkillFailed("upstream answered 503 three times")
        return task.text or "echo"

    return agent


@skill("sitrep", description="Says how things stand", tags=("report",), cost=True)
async def sitrep(task: SkillContext) -> str:
    await asyncio.sleep(task.rng.uniform(0.5, 3.0))
    task.use(input_tokens=300, output_tokens=60, cost_usd=0.0009, model="demo")
    return "green on all boards"


@skill("lookup", description="Finds an old record", tags=("archive",))
async def lookup(task: SkillContext) -> str:
    await asyncio.sleep(task.rng.uniform(0.5, 3.0))
    return f"record {task.rng.randint(1000, 9999)}: {task.text[:40] or 'blank'}"


def demo_agents(allow_webhook: str) -> tuple[Agent, ...]:
    """The five, each allowed to call the hub's webhook at ``HOST:PORT`` and no other private address."""
    modern = ("1.0", "0.3")
    agents = (
        Agent("quinn", description="Quality engineer", skills=(pr_review, bug_triage, qa_report), dialects=("0.3",)),
        Agent(
            "protopen",
            description="Careful security tester",
            skills=(scan, inventory),
            streaming=False,
            dialects=modern,
        ),
        flaky_echo(),
        Agent("herald", description="Speaks A2A 1.0 alone", skills=(sitrep,), dialects=("1.0",)),
        Agent("archivist", description="Speaks the legacy dialect 0.1", skills=(lookup,), dialects=("0.1",)),
    )
    leaving = AgentLimits(drain_s=0.2, stop_s=0.5)  # nobody waits for a demo to end
    return tuple(agent.replace(allow_webhook=(allow_webhook,), limits=leaving) for agent in agents)


# ------------------------------------------------------------------ what keeps them busy

SCRIPT = (
    ("quinn", "pr_review", "Review the change that renews sessions."),
    ("protopen", "scan", "staging"),
    ("herald", "sitrep", "How do the boards stand?"),
    ("flaky", "echo", "are you there?"),
    ("archivist", "lookup", "the first release"),
    ("quinn", "bug_triage", "Login loops on one browser"),
    ("protopen", "inventory", "What could be scanned?"),
    ("flaky", "echo", "still there?"),
)
QUESTIONS_MAX = 2
PAUSE_S = 1.5
_BY_CLOCK = frozenset({"cron", "catch-up"})


@asynccontextmanager
async def visitors(hub: Hub, *, forever: bool) -> AsyncIterator[Workers]:
    """Somebody who keeps asking for things; ``forever``, or through the script once."""
    async with Workers("demo") as workers:
        workers.start(_visit(hub, forever=forever), name="visitor")
        yield workers


async def _visit(hub: Hub, *, forever: bool) -> None:
    async with hub.events.subscribe(after_seq=0) as heard:
        while any(view.card is None for view in hub.broker.views()):  # before that, its skill would be unknown
            await heard.next_batch()
    rng = hub.runtime.rng.stream("demo")
    for agent, skill_id, text in itertools.cycle(SCRIPT) if forever else SCRIPT:
        if skill_id != "scan" or len(hub.tracker.questions()) < QUESTIONS_MAX:
            source, cid = Source(interface="demo"), hub.runtime.ids.new()
            try:
                await hub.submit(
                    SkillRequest(correlation_id=cid, text=text, skill=skill_id, targets=(agent,), source=source)
                )
            except FleetsimError:
                await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(PAUSE_S * rng.uniform(0.7, 2.5) if forever else 0.2)


async def watch(common: CommonOptions, hub: Hub, home: Path, *, deadline_s: float) -> list[str]:
    """Wait until the demo has shown everything, answering one question. Returns what is missing in the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    answered = False
    async with Progress("waiting for the fleet", quiet=common.quiet) as progress:
        while missing := _missing(hub, answered):
            if loop.time() > deadline:
                return missing
            progress.say("waiting for " + "; ".join(missing))
            address = None if answered else StateDir(home / "state").find()
            if address is not None:  # through the public API, key and all
                remote = address.client(hub.runtime)
                for question in (await remote.read(InboxPage, "/inbox")).questions[:1]:
                    await remote.answer(question.question_id, "yes, go ahead", by="demo")
                    answered = True
            await asyncio.sleep(0.25)
    return []


def _missing(hub: Hub, answered: bool) -> list[str]:
    """The events that are still missing, in words."""
    recent = hub.events.recent(limit=20_000)
    outcomes = [event for event in recent if isinstance(event, OutcomeDecided)]
    fired = {event.run_id for event in recent if isinstance(event, CeremonyFired) and event.trigger in _BY_CLOCK}
    done = {event.agent for event in outcomes}
    missing: list[str] = []
    if quiet := [view.entry.name for view in hub.broker.views() if view.entry.name not in done]:
        missing.append("an outcome of " + ", ".join(quiet))
    if not any(isinstance(event, CeremonyCompleted) and event.run_id in fired for event in recent):
        missing.append("a ceremony fired by its schedule (up to a minute)")
    if not answered:
        missing.append("a question to answer")
    elif not any(event.skill == "scan" for event in outcomes):
        missing.append("the end of the task whose question was answered")
    return missing
