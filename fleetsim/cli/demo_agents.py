"""The demo's fleet: five small agents, each with one way of being, on the library anybody can use.

``quinn`` is well: it streams, costs and reports effects. ``protopen`` asks a person before it acts. ``flaky``
fails once in ten. ``herald`` speaks A2A 1.0 alone, ``archivist`` only the legacy 0.1.
"""

from __future__ import annotations

import asyncio

from fleetsim.agent import Agent, AgentLimits, Effect, SkillContext, SkillFailed, skill

FINDINGS = (
    "Looked at the open work. Three items came in since yesterday: a login loop on one browser, a session "
    "that is not renewed, and a chart that counts twice. The first two share a cause; the third is new."
)


@skill("pr_review", description="Reviews a change and says what it found", tags=("quality",), cost=True, sure=True)
async def pr_review(task: SkillContext) -> None:
    """Streams its findings word by word."""
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
    """Works for a few seconds and changes the world a little."""
    for step in ("searching for duplicates", "reading the trace", "filing"):
        await task.status(step)
        await asyncio.sleep(task.rng.uniform(0.5, 1.5))
    task.effect("board", "bugs.open", "inc", 1)
    task.use(input_tokens=900, output_tokens=120, cost_usd=0.0041, model="demo")
    return f"filed as #{task.rng.randint(100, 999)}: {task.text[:60] or 'untitled'}"


@skill("qa_report", description="Sums up the day", tags=("report",), cost=True)
async def qa_report(task: SkillContext) -> str:
    """What the demo's ceremony asks for every minute."""
    await asyncio.sleep(task.rng.uniform(0.5, 2.0))
    task.use(input_tokens=600, output_tokens=80, cost_usd=0.0026, model="demo")
    return f"{task.rng.randint(2, 9)} reviews, {task.rng.randint(0, 4)} new bugs, nothing on fire"


@skill("scan", description="Scans a target, once a person has agreed to it", tags=("security",), hitl="gated")
async def scan(task: SkillContext) -> str:
    """Never acts without a yes."""
    await asyncio.sleep(0.5)
    answer = (await task.ask(f"May I scan {task.text or 'staging'}? Answer yes or no.")).strip().lower()
    if not answer.startswith("y"):
        raise SkillFailed(f"not approved: {answer[:60] or 'no answer'}")
    await task.status("scanning")
    await asyncio.sleep(2.0)
    return "no open ports but the expected ones"


@skill("inventory", description="Lists what there is to scan", tags=("security",))
async def inventory(task: SkillContext) -> str:
    """Long enough to be followed by webhook."""
    await asyncio.sleep(task.rng.uniform(2.0, 6.0))
    return "staging, preview, docs"


def flaky_echo() -> Agent:
    """An agent that fails one time in ten."""
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
    """Answers in A2A 1.0."""
    await asyncio.sleep(task.rng.uniform(0.5, 3.0))
    task.use(input_tokens=300, output_tokens=60, cost_usd=0.0009, model="demo")
    return "green on all boards"


@skill("lookup", description="Finds an old record", tags=("archive",))
async def lookup(task: SkillContext) -> str:
    """Answers in the legacy dialect."""
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
