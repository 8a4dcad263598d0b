"""The agents of ``fleetsim agent``: the reference agent, and the profiles quinn, selectools and almanac.

A profile is a set of skills and the options of an ``Agent``; the differences of a product stand around the agent, as
ASGI middleware and as interceptors. Sources: the first seed (quinn), the selectools seed, the two almanac seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.agent.agent import Agent
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.operations import BEHAVIOURS, CallerContext, Interceptor, Reply
from fleetsim.agent.skills import Effect, Skill, SkillContext, SkillFailed, SkillRejected, choose_skill, skill
from fleetsim.agent.streams import Watch
from fleetsim.model.call import Call, CancelTask, GetTask, Operation, SendMessage, SetPush, SubscribeToTask
from fleetsim.model.errors import (
    ConfigError,
    InvalidParams,
    MethodNotFound,
    RpcError,
    TaskNotCancelable,
    UnsupportedOperation,
)
from fleetsim.model.limits import MIB
from fleetsim.model.task import JsonObject, Task, TextPart
from fleetsim.wire.json import dump

# -- the reference agent: each skill shows one thing that an agent can do -----------------------------

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
    return profile_agent("reference", name, **options)


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


# -- selectools --------------------------------------------------------------------------------------


@skill("summarize", name="summarize", description="Summarize a text", tags=("tool",))
async def summarize(task: SkillContext) -> str:
    return f"Summary: {task.prompt}"


@skill("explode", name="explode", description="Raise, to show what callers see of it", tags=("tool",))
async def explode(task: SkillContext) -> str:
    raise SkillFailed(f"Agent execution failed ({ValueError.__name__})")


# -- almanac -----------------------------------------------------------------------------------------


@skill("analyze", description="Analyses a dataset", tags=("data",), examples=("Analyze my dataset",))
async def analyze(task: SkillContext) -> str:
    await _tool(task, "load")
    subject = task.text.strip() or await task.ask("Which dataset?")
    await _tool(task, "analyze")
    return f"Analysed: {subject}"


class NeedsText(Interceptor):
    """Refuses messages without a text part."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if isinstance(call, SendMessage) and not any(isinstance(part, TextPart) for part in call.message.parts):
            raise InvalidParams("message has no text part")
        return call


class ForgetsTasks(Interceptor):
    """Takes every message for a new task."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        return (
            structs.replace(call, message=structs.replace(call.message, task_id=None))
            if isinstance(call, SendMessage)
            else call
        )


class Selectools(Interceptor):
    """Sends, reads, and cancels nothing; every send waits, even if asked not to."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if call.operation not in {Operation.SEND, Operation.GET, Operation.CANCEL}:
            raise MethodNotFound
        if isinstance(call, CancelTask):
            task = await self.inner.call(GetTask(task_id=call.task_id), caller)
            raise TaskNotCancelable(f"the task is already {task.state if isinstance(task, Task) else 'there'}")
        return structs.replace(call, wait=True) if isinstance(call, SendMessage) else call


class SelectoolsHttp:
    """Two paths alone, a card without an address, and refusals in words of its own."""

    CARD, CALLS = "/.well-known/agent.json", "/a2a"

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if path not in {self.CARD, self.CALLS}:
            scope = {**scope, "path": f"{root}/nothing-here"}
        start: Message = {}
        body = bytearray()

        async def edited(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            status, headers, whole = start["status"], dict(start["headers"]), bytes(body)
            if status == 413:
                status = 200
            elif status == 401:
                whole = dump({"error": {"message": "Unauthorized"}})
            elif status == 200 and path == self.CARD:
                whole = dump(_without_address(json.loads(whole)))
                headers[b"etag"] = f'"{hashlib.sha256(whole).hexdigest()[:32]}"'.encode()
            if b"content-length" in headers and scope["method"] != "HEAD":
                headers[b"content-length"] = str(len(whole)).encode()
            await send({**start, "status": status, "headers": list(headers.items())})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, edited)


def _without_address(value: Any) -> Any:
    """The card for an endpoint that does not say where it is, in the version that the product names."""
    if isinstance(value, list):
        return [_without_address(item) for item in value]
    if not isinstance(value, dict):
        return value
    own: dict[str, Any] = {"url": "", "protocolVersion": "0.2.6"}
    return {key: own.get(key, _without_address(item)) if key != "provider" else item for key, item in value.items()}


_at_subscribe: ContextVar[list[str] | None] = ContextVar("_at_subscribe", default=None)
"""At the path for streams: what to answer instead."""


class Almanac(Interceptor):
    """Webhooks over HTTPS alone, a code of its own when full, and streams alone at the path for streams."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        push = call.config if isinstance(call, SetPush) else call.push if isinstance(call, SendMessage) else None
        if push is not None and push.url.partition(":")[0].lower() != "https":
            raise RpcError("a webhook must use https", code=-32004)
        return call

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if (refused := _at_subscribe.get()) is not None:
            refused.append("Only streaming calls are taken at /subscribe")
            raise UnsupportedOperation
        try:
            return await super().call(call, caller)
        except AtCapacity as full:
            raise RpcError(str(full), code=-32003) from None

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        try:
            return await super().stream(call, caller)
        except AtCapacity as full:
            raise RpcError(str(full), code=-32003) from None


class AlmanacHttp:
    """Calls at the root, and streams at ``/subscribe`` as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")
        if scope["type"] != "http" or scope["path"] != f"{root}/subscribe":
            await self._app(scope, receive, send)
            return
        refused: list[str] = []

        async def edited(message: Message) -> None:
            if not refused:
                await send(message)
            elif message["type"] == "http.response.start":
                body = dump({"error": refused[0]})
                headers = {**dict(message["headers"]), b"content-length": str(len(body)).encode()}
                await send({**message, "status": 400, "headers": list(headers.items())})
                await send({"type": "http.response.body", "body": body})

        token = _at_subscribe.set(refused)
        try:
            await self._app({**scope, "path": f"{root}/"}, receive, edited)
        finally:
            _at_subscribe.reset(token)


def by_words(skills: Mapping[str, Skill], default: str, metadata: JsonObject, text: str) -> Skill | None:
    """The skill a message names by hint or command, else the first that has a word of its in name, tags or examples."""
    command = text.lstrip().partition(" ")[0]
    named = command.startswith("/") and command[1:] in skills
    if metadata.get("skillHint", metadata.get("skillId")) or named or not text.strip():
        return choose_skill(skills, default, metadata, text)
    asked = _words(text)
    return next(
        (s for s in skills.values() if asked & _words(" ".join((s.skill_id, s.name, *s.tags, *s.examples)))), None
    )


def _words(text: str) -> frozenset[str]:
    """The words of four letters and more: shorter ones are in every sentence."""
    return frozenset(re.findall(r"[^\W\d_]{4,}", text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of agent. ``first`` is a text to try it with; ``options`` are those of ``Agent``."""

    name: str
    about: str
    first: str
    skills: Callable[[], tuple[Skill, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)


_SELECTOOLS_BEHAVIOURS = {
    **BEHAVIOURS,
    "0.3": replace(BEHAVIOURS["0.3"], wait_s=math.inf, stream_errors_as_events=False),
}

_SELECTOOLS = Profile(
    name="selectools",
    about="synchronous v1: every message is a new task that is finished within the request",
    first="/summarize a long text",
    skills=lambda: (summarize, explode),
    options={
        "description": "Research agent that answers within the request",
        "version": "0.21.0",
        "dialects": ("0.3",),
        "rest": False,
        "streaming": False,
        "behaviours": _SELECTOOLS_BEHAVIOURS,
        "interceptors": (ForgetsTasks, NeedsText, Selectools),
        "middleware": (SelectoolsHttp,),
        "push_notifications": False,
        "limits": AgentLimits(tasks_max=2_000, tasks_per_caller_max=2_000, terminal_ttl_s=1e9, body_bytes_max=MIB),
    },
)

_ALMANAC = Profile(
    name="almanac",
    about="legacy 0.1 at / and /subscribe, webhooks over HTTPS only",
    first="/analyze sales",
    skills=lambda: (analyze,),
    options={
        "description": "Answers dataset questions in the legacy dialect",
        "version": "1.0.0",
        "dialects": ("0.1",),
        "path": "/",
        "choose": by_words,
        "drop_failed_webhooks": True,
        "interceptors": (Almanac,),
        "middleware": (AlmanacHttp,),
        "state_transition_history": True,
    },
)

_QUINN = Profile(
    name="quinn",
    about="the seed's own agent: QA skills, effects, cost, an API key",
    first="/qa_report",
    skills=lambda: (qa_report, board_audit, bug_triage, pr_review),
    options={
        "description": "QA engineer: reviews pull requests, triages bugs, audits the board",
        "version": "1.0.0",
        "dialects": ("0.3",),
        "organization": "protoLabsAI",
        "interceptors": (NeedsText,),
        "output_modes": ("text/markdown",),
    },
)

_REFERENCE = Profile(
    name="reference",
    about="one skill for everything an agent can do, every dialect",
    first="/echo hello",
    skills=builtin_skills,
    options={
        "description": "The fleet's reference agent: one skill for everything an agent can do",
        "organization": "fleetsim",
        "output_modes": ("text/markdown", "text/plain"),
    },
)

PROFILES: Mapping[str, Profile] = {p.name: p for p in (_REFERENCE, _QUINN, _SELECTOOLS, _ALMANAC)}
"""Every profile by name."""


def profile_agent(profile: str, name: str | None = None, **options: Any) -> Agent:
    """An agent of that profile; ``options`` are those of ``Agent`` and win over the profile's. Raises ConfigError."""
    known = PROFILES.get(profile)
    if known is None:
        raise ConfigError(f"unknown profile {profile!r}", hint=f"one of {', '.join(PROFILES)}")
    chosen = {"skills": known.skills(), **known.options, **options}
    return Agent(name or known.name, **chosen)
