"""The skills of ``fleetsim agent``: quick, slow, streaming, asking, failing, flaky, costing, changing.

Each shows one thing an agent can do, in as few lines as a person would write.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fleetsim.agent.agent import Agent
from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, SkillRejected, skill

SLOW_STEPS = 5
SLOW_SECONDS_MAX = 3600.0
FLAKY_BLOCK = 10


@skill("echo", description="Returns the text it was sent", tags=("demo", "quick"), examples=("/echo hello",))
async def echo(task: SkillContext) -> str:
    return task.text


@skill(
    "slow",
    description="Works for the seconds named in the text (5 without), telling how far it is",
    tags=("demo", "slow"),
    examples=("/slow 20",),
    hitl="veto",
)
async def slow(task: SkillContext) -> str:
    seconds = 5.0
    with suppress(ValueError):
        asked = float(task.text.strip() or seconds)
        seconds = min(max(asked, 0.0), SLOW_SECONDS_MAX) if asked == asked else seconds
    for step in range(1, SLOW_STEPS + 1):
        await task.status(f"step {step} of {SLOW_STEPS}")
        await asyncio.sleep(seconds / SLOW_STEPS)
    return f"done after {seconds:g} s"


@skill(
    "stream",
    description="Says the text back word by word",
    tags=("demo", "streaming"),
    examples=("/stream one two three",),
    cost=True,
)
async def stream(task: SkillContext) -> None:
    words = task.text.split(" ")
    for at, word in enumerate(words):
        await task.say(word if at == 0 else f" {word}")
        await asyncio.sleep(0.05)
    task.use(input_tokens=len(words), output_tokens=len(words), cost_usd=len(words) * 1e-5, model="parrot")


@skill(
    "ask",
    description="Asks for a name before it greets",
    tags=("demo", "human-in-the-loop"),
    examples=("/ask",),
    hitl="gated",
)
async def ask(task: SkillContext) -> str:
    name = (await task.ask("Who shall I greet?")).strip()
    if not name:
        raise SkillFailed("no name was given")
    return f"Hello {name}"


@skill("auth", description="Waits until somebody says they have signed in", tags=("demo", "human-in-the-loop"))
async def auth(task: SkillContext) -> str:
    await task.ask("Sign in at the vault, then say so.", auth=True)
    return "signed in"


@skill("fail", description="Fails, with the text as its reason", tags=("demo", "failing"), examples=("/fail no disk",))
async def fail(task: SkillContext) -> str:
    raise SkillFailed(task.text or "it was asked to")


@skill("reject", description="Refuses what it is asked", tags=("demo", "failing"))
async def reject(task: SkillContext) -> str:
    raise SkillRejected("this agent does not do that")


@skill("crash", description="Breaks in a way nobody foresaw", tags=("demo", "failing"))
async def crash(task: SkillContext) -> str:
    raise RuntimeError(f"unexpected: {task.text}")


def flaky_skill() -> Skill:
    """A skill that fails once in every ten calls, at a place the seed decides."""
    left: list[bool] = []

    @skill("flaky", description="Fails once in every ten calls", tags=("demo", "failing"))
    async def flaky(task: SkillContext) -> str:
        if not left:
            left.extend(at == 0 for at in range(FLAKY_BLOCK))
            task.rng.shuffle(left)
        if left.pop():
            raise SkillFailed("this was the one in ten")
        return task.text or "fine this time"

    return flaky


@skill("estimate", description="Estimates, with cost and confidence", tags=("demo", "extensions"), cost=True, sure=True)
async def estimate(task: SkillContext) -> str:
    task.use(input_tokens=120, output_tokens=40, cost_usd=0.0042, model="abacus")
    task.confidence(0.8, "two of three sources agree")
    return f"{len(task.text)} characters, give or take"


@skill(
    "file_bug",
    description="Files a bug on the board",
    tags=("demo", "extensions"),
    effects=(Effect(domain="board", path="bugs.open", delta=1.0, confidence=0.95),),
    radius="project",
)
async def file_bug(task: SkillContext) -> str:
    task.effect("board", "bugs.open", "inc", 1)
    return f"filed: {task.text or 'untitled'}"


def builtin_skills() -> tuple[Skill, ...]:
    """All of them; ``echo`` first, which makes it the default."""
    return (echo, slow, stream, ask, auth, fail, reject, crash, flaky_skill(), estimate, file_bug)


def reference_agent(name: str = "reference", **options: object) -> Agent:
    """The agent that ``fleetsim agent`` runs. ``options`` are those of ``Agent``."""
    description = "The fleet's reference agent: one skill for everything an agent can do"
    return Agent(name, **{"description": description, "skills": builtin_skills(), **options})  # type: ignore[arg-type]
