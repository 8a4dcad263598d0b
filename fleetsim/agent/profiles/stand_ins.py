"""The skills of the profiles that stand in for known agents: stand-ins that take time, cost and can fail.

What the official conformance kits expect goes by the prefix of the message's id (docs/reference/interop.md): fixed
texts and files for the 1.0 kit, and for the 0.3 kit a task that is still open a second later and then waits for input.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, SkillRejected, skill
from fleetsim.model.task import DataPart, FilePart, Part, TextPart

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
    return f"Summary: {task.prompt}"


@skill("explode", name="explode", description="Raise, to show what callers see of it", tags=("tool",))
async def explode(task: SkillContext) -> str:
    raise SkillFailed(f"Agent execution failed ({ValueError.__name__})")


def selectools_skills() -> tuple[Skill, ...]:
    """Tools, as skills."""
    return (summarize, explode)


# -- almanac -----------------------------------------------------------------------------------------


@skill("analyze", description="Analyses a dataset", tags=("data",), examples=("Analyze my dataset",))
async def analyze(task: SkillContext) -> str:
    await _tool(task, "load")
    subject = task.text.strip() or await task.ask("Which dataset?")
    await _tool(task, "analyze")
    return f"Analysed: {subject}"


def almanac_skills() -> tuple[Skill, ...]:
    """One skill is enough for a skill guide."""
    return (analyze,)


# -- the conformance kits ----------------------------------------------------------------------------

PLAIN = "text/plain"
OPEN_S = 3.0
RESUBSCRIBE_S = 5.0

_FILE = FilePart(raw=base64.b64encode(b"tck").decode(), filename="output.txt", media_type=PLAIN)
_LINK = FilePart(uri="https://example.com/output.txt", filename="output.txt", media_type=PLAIN)
_DATA = DataPart(data={"key": "value", "count": 42})

ARTIFACTS: dict[str, Part] = {
    "tck-artifact-text": TextPart(text="Generated text content"),
    "tck-artifact-file-url": _LINK,
    "tck-artifact-file": _FILE,
    "tck-artifact-data": _DATA,
    "tck-stream-artifact-text": TextPart(text="Streamed text content"),
    "tck-stream-artifact-file": _FILE,
    "tck-stream-ordering-001": TextPart(text="Ordered output"),
    "tck-stream-001": TextPart(text="Stream hello from TCK"),
    "tck-stream-003": TextPart(text="Stream task lifecycle"),
}
"""Prefix to the one artifact it stands for."""

DONE = "tck-complete-task"


async def _complete(task: SkillContext) -> str:
    return "Hello from TCK"


async def _quiet(task: SkillContext) -> None:
    return None


async def _ask(task: SkillContext, question: str = "Please provide additional input", open_s: float = 0.0) -> str:
    """As the kits' own agents: every message is answered by the question again, until one's id says otherwise."""
    while True:
        await asyncio.sleep(open_s)
        answer = await task.ask_message(question)
        if answer.message_id.startswith(DONE):
            return await _complete(task)


async def _reject(task: SkillContext) -> str:
    raise SkillRejected("rejected")


async def _chunked(task: SkillContext) -> None:
    for text, last in (("chunk-1 ", False), ("chunk-2", True)):
        part = TextPart(text=text)
        await task.attach(part, artifact_id="chunked", append=not text.startswith("chunk-1"), last_chunk=last)


async def _long(task: SkillContext) -> str:
    await asyncio.sleep(RESUBSCRIBE_S)
    return "still here"


async def _otherwise(task: SkillContext) -> str:
    """For the 0.3 kit: open for a while, then waiting, so that it can be continued and cancelled."""
    return await _ask(task, "Anything else?", OPEN_S)


PLAYS: dict[str, Callable[[SkillContext], Awaitable[str | None]]] = {
    DONE: _complete,
    "tck-input-required": _ask,
    "tck-reject-task": _reject,
    "tck-stream-002": _quiet,
    "tck-stream-artifact-chunked": _chunked,
    "test-resubscribe-message-id": _long,
}
"""Prefix to what is done."""


@skill("tck", description="Does what the conformance kit's message id asks for", tags=("conformance",))
async def tck(task: SkillContext) -> str | None:
    message_id = task.message.message_id
    fitting = [prefix for prefix in (*ARTIFACTS, *PLAYS) if message_id.startswith(prefix)]
    prefix = max(fitting, key=len, default="")
    if part := ARTIFACTS.get(prefix):
        await task.attach(part, artifact_id="result")
        return None
    return await PLAYS.get(prefix, _otherwise)(task)


def kit_skills() -> tuple[Skill, ...]:
    """The one skill of the profile."""
    return (tck,)
