"""The skills of the profiles that stand in for known agents: stand-ins that take time, cost and can fail."""

from __future__ import annotations

import asyncio

from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, skill

_TOOL_S = 0.4


async def _tool(task: SkillContext, name: str) -> None:
    """Pretend to use a tool, visibly."""
    await task.status(f"running {name}")
    await asyncio.sleep(_TOOL_S)


def _spend(task: SkillContext, answer: str) -> None:
    """Account for a model call of about the text's size."""
    task.use(input_tokens=len(task.prompt) // 4 + 200, output_tokens=len(answer) // 4 + 1, model="stand-in")


# -- quinn (first seed; workstacean-facts section 10) ------------------------------------------------


@skill(
    "qa_report",
    name="QA report",
    description="Summarises test runs and open bugs for a project",
    tags=("qa", "report"),
    examples=("/qa_report", "daily QA digest"),
    cost=True,
    radius="self",
    hitl="autonomous",
)
async def qa_report(task: SkillContext) -> str:
    """A report in markdown."""
    for tool in ("list_test_runs", "list_bugs"):
        await _tool(task, tool)
    answer = "## QA report\n\n- 412 tests passed, 0 failed\n- 3 bugs open"
    _spend(task, answer)
    return answer


@skill(
    "board_audit",
    name="Board audit",
    description="Checks the board for stale and unowned work",
    tags=("qa", "board"),
    cost=True,
    sure=True,
    radius="project",
    hitl="notification",
)
async def board_audit(task: SkillContext) -> str:
    """Findings, with how sure it is."""
    await _tool(task, "list_board")
    answer = "## Board audit\n\n- 2 items without an owner"
    _spend(task, answer)
    task.confidence(0.9, "the whole board was read")
    return answer


@skill(
    "bug_triage",
    name="Bug triage",
    description="Files the bug described in the text on the board",
    tags=("qa", "bugs"),
    examples=("/bug_triage login fails on Safari",),
    cost=True,
    effects=(Effect(domain="board", path="bugs.open", delta=1.0, confidence=0.9),),
    radius="repo",
    hitl="notification",
)
async def bug_triage(task: SkillContext) -> str:
    """A change of the world that the card declares."""
    await _tool(task, "file_bug")
    answer = f"## Filed\n\n{task.prompt}"
    _spend(task, answer)
    task.effect("board", "bugs.open", "inc", 1)
    return answer


@skill(
    "pr_review",
    name="PR review",
    description="Reviews the pull request named in the text",
    tags=("qa", "review"),
    examples=("/pr_review 42",),
    cost=True,
    radius="project",
    hitl="autonomous",
)
async def pr_review(task: SkillContext) -> str:
    """Fails when there is nothing to review: completed would say the goal was met."""
    await _tool(task, "get_pull_request")
    if not task.text.strip():
        _spend(task, "")
        raise SkillFailed("no pull request was named")
    answer = f"## Review of {task.text}\n\nAPPROVE"
    _spend(task, answer)
    return answer


def quinn_skills() -> tuple[Skill, ...]:
    """The four skills of the seed's agent."""
    return (qa_report, board_audit, bug_triage, pr_review)


# -- selectools --------------------------------------------------------------------------------------


@skill("summarize", name="summarize", description="Summarize a text", tags=("tool",))
async def summarize(task: SkillContext) -> str:
    """Text first; data as JSON in the prompt, files named and not read."""
    return f"Summary: {task.prompt}"


@skill("explode", name="explode", description="Raise, to show what callers see of it", tags=("tool",))
async def explode(task: SkillContext) -> str:
    """The caller learns the type only."""
    raise ValueError(task.prompt)


def selectools_skills() -> tuple[Skill, ...]:
    """Tools, as skills."""
    return (summarize, explode)


# -- almanac -----------------------------------------------------------------------------------------


@skill("analyze", description="Analyses a dataset", tags=("data",), examples=("Analyze my dataset",))
async def analyze(task: SkillContext) -> str:
    """Asks which dataset if none is named."""
    await _tool(task, "load")
    subject = task.text.strip() or await task.ask("Which dataset?")
    await _tool(task, "analyze")
    return f"Analysed: {subject}"


def almanac_skills() -> tuple[Skill, ...]:
    """One skill is enough for a skill guide."""
    return (analyze,)
