"""Asking an agent directly, without a hub: nothing is recorded, and Ctrl-C leaves the task running."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from fleetsim.cli import render
from fleetsim.cli.asking import REASON_MAX, AskOptions, AskResult, TurnAnswer
from fleetsim.cli.exits import Exit
from fleetsim.cli.main import Common
from fleetsim.cli.options import with_scheme, within
from fleetsim.cli.terminal import LiveText, Progress
from fleetsim.client import AgentClient, ClientLimits, Credential, Following
from fleetsim.client.conversation import Conversation
from fleetsim.model.asking import answer_schema, asking_of
from fleetsim.model.errors import ConfigError, TimedOut
from fleetsim.model.event import ArtifactUpdate, bounded
from fleetsim.model.extensions import read_extras
from fleetsim.model.limits import wire_bytes
from fleetsim.model.parts import answer_parts
from fleetsim.model.task import INTERRUPTED, Task, TaskState, answer_chars, answer_text, elsewhere
from fleetsim.model.text import one_line
from fleetsim.model.work import MEANING, Cause
from fleetsim.runtime.http_sse import StreamLimits
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import real_runtime
from fleetsim.wire.choice import disagreement

if TYPE_CHECKING:
    from fleetsim.caller.fleet import AgentEntry

MARGIN_S = 1.0
"""How much longer the call itself may take than the verb that waits for it: the verb says what is known."""
_URL = re.compile(r"(https?://.*|[\w.-]+:\d{1,5}(/.*)?|\[[0-9a-fA-F:]+\]:\d{1,5}(/.*)?)", re.ASCII)


def is_url(agent: str) -> bool:
    """Whether AGENT is an address rather than a name."""
    return _URL.fullmatch(agent) is not None


async def entry(common: Common, name: str) -> AgentEntry:
    """The entry of that name in agents.yaml. Raises ConfigError naming what there is."""
    from fleetsim.caller.config import load_fleet

    runtime = real_runtime()
    path = common.require_agents_yaml()
    try:
        fleet = await load_fleet(path, files=runtime.files, env=os.environ)
    finally:
        await runtime.transport.aclose()
    for found in fleet.agents:
        if found.name == name:
            return found
    names = ", ".join(a.name for a in fleet.agents)
    raise ConfigError(f"{path} has no agent {name!r}", hint=f"one of: {names}; or give a URL")


async def send(common: Common, asked: AskOptions, found: AgentEntry | None) -> AskResult:
    """Send, follow to the end or to a question, and say what came of it."""
    runtime = real_runtime()
    client_ = client(asked, found, runtime)
    began = runtime.clock.monotonic()
    following = client_.follow(
        asked.text,
        skill=asked.skill,
        parts=asked.parts,
        metadata={**asked.metadata, **({"parentId": asked.parent_id} if asked.parent_id else {})},
        headers={"X-Parent-Id": asked.parent_id} if asked.parent_id else {},
        task_id=asked.task_id,
        context_id=asked.context_id,
        stream=asked.stream and not asked.detach,
        fell_back=lambda error: common.note(
            f"the stream broke off ({error}); polling" if following.task else "no streaming after all: sending plainly"
        ),
        timeout_s=asked.timeout_s + MARGIN_S,
    )
    try:
        async with (
            within(asked.timeout_s, lambda: _late(_as_spoken(asked, client_), following)),
            Progress(f"{asked.agent} is at work", quiet=common.quiet or asked.stream) as progress,
        ):
            shown = await _show(common, following, asked, progress)
    finally:
        await runtime.transport.aclose()
    assert following.task is not None  # it said something, or there was an error
    return _result(asked, client_, following.task, runtime.clock.monotonic() - began, shown=shown)


async def _show(common: Common, following: Following, asked: AskOptions, progress: Progress) -> bool:
    """Follow it, and show what is streamed as it comes. Whether the answer was shown so."""
    live = LiveText()
    streamed = False
    try:
        async for task in following:
            if following.event is not None:
                streamed = True
                said = bounded(task, asked.text_max).text
                if common.as_json:
                    render.emit_json_line({"state": task.state.value, "text": said})
                elif isinstance(following.event, ArtifactUpdate):
                    render.say(live.more(said), end="")
            elif asked.detach:
                break
            elif task.task_id:
                progress.say(f"{asked.agent} is at work on task {task.task_id}")
    except asyncio.CancelledError:
        if live.shown and not common.as_json:
            render.say("")
        raise
    shown = streamed and not common.as_json
    if shown and following.task is not None:
        render.say(live.more(answer_text(bounded(following.task, asked.text_max))), end="")
    return shown


def _as_spoken(asked: AskOptions, client: AgentClient) -> AskOptions:
    """As asked, in the dialect that the agent turned out to speak: another command starts from the card again."""
    return replace(asked, dialect=client.spoken) if client.spoken else asked


@asynccontextmanager
async def talk(common: Common, asked: AskOptions) -> AsyncIterator[DirectTalk]:
    """A conversation with the agent itself."""
    runtime = real_runtime()
    found = None if is_url(asked.agent) else await entry(common, asked.agent)
    try:
        client_ = client(asked, found, runtime)
        yield DirectTalk(Conversation(client_, context_id=asked.context_id, skill=asked.skill), asked.timeout_s)
    finally:
        await runtime.transport.aclose()


class DirectTalk:
    """Turns with the agent itself."""

    def __init__(self, conversation: Conversation, timeout_s: float) -> None:
        self._conversation = conversation
        self._timeout_s = timeout_s
        self._asking = False

    @property
    def context_id(self) -> str | None:
        """The agent's, once it made one."""
        return self._conversation.context_id

    async def say(self, text: str) -> TurnAnswer:
        """Say ``text`` and wait for the answer or the agent's next question. Raises as ``Conversation.say``."""
        self._asking = True
        turn = await self._conversation.say(text, timeout_s=self._timeout_s + MARGIN_S)
        self._asking = False
        return TurnAnswer(
            state=turn.state.value,
            text=turn.text or turn.error or "",
            context_id=turn.context_id,
            task_id=turn.task_id,
            warnings=turn.warnings,
            parts=turn.parts,
            parts_total=turn.parts_total,
        )

    def left(self) -> str:
        """What becomes of what was asked."""
        return "left without the answer: the agent may go on with it" if self._asking else ""


def client(asked: AskOptions, found: AgentEntry | None, runtime: Runtime) -> AgentClient:
    """The client of the agent asked for: by its entry, or by the URL given."""
    if found is None:
        return client_for(
            asked.agent,
            runtime,
            api_key_env=asked.api_key_env,
            bearer_env=asked.bearer_env,
            dialect=asked.dialect,
            limits=limits_for(asked.text_max),
            rpc_url=asked.rpc_url,
            card_url=asked.card_url,
        )
    return AgentClient(
        found.url,
        rpc_url=asked.rpc_url or found.rpc_url,
        card_url=asked.card_url or found.card_url,
        runtime=runtime,
        credential=found.auth.credential() if found.auth else None,
        headers=tuple(found.headers.items()),
        dialect=asked.dialect or found.wire,
        limits=limits_for(asked.text_max),
    )


def limits_for(text_chars: int) -> ClientLimits:
    """What an agent is allowed that may say so much."""
    size = wire_bytes(text_chars)
    stream = StreamLimits(line_bytes_max=size, event_bytes_max=size, stream_bytes_max=2 * size)
    return ClientLimits(body_bytes_max=size, stream=stream)


def client_for(
    url: str,
    runtime: Runtime,
    *,
    api_key_env: str | None = None,
    bearer_env: str | None = None,
    dialect: str | None = None,
    limits: ClientLimits | None = None,
    rpc_url: str | None = None,
    card_url: str | None = None,
) -> AgentClient:
    """A client of the agent at ``url``, the addresses as typed. Raises ConfigError."""
    credential = None
    if api_key_env:
        credential = Credential(scheme="apiKey", env=api_key_env)
    elif bearer_env:
        credential = Credential(scheme="bearer", env=bearer_env)
    return AgentClient(
        with_scheme(url),
        runtime=runtime,
        credential=credential,
        dialect=dialect,
        limits=limits,
        rpc_url=with_scheme(rpc_url),
        card_url=with_scheme(card_url),
    )


def _late(asked: AskOptions, following: Following) -> TimedOut:
    """The time is over: where the work is, and how to look again. Nothing is cancelled."""
    after = f"{asked.timeout_s:g} s"
    if following.task is not None:
        about = following.task.task_id
        return TimedOut(
            f"task {about} is still {following.task.state.value} after {after}; it was left running",
            hint=f"look again with `fleetsim task get {quote(about)} --agent {quote(asked.agent)}{_how(asked)}`",
        )
    if following.sent:
        return TimedOut(
            f"{asked.agent} gave no answer within {after}; it may have taken the work",
            hint="look at the agent before you send it again, or wait longer with --timeout",
        )
    return TimedOut(f"{asked.agent} did not show its card within {after}; nothing was sent", sent=False)


def _how(asked: AskOptions) -> str:
    """The options that say how the agent is called, for another command."""
    given = (
        ("rpc-url", asked.rpc_url),
        ("card-url", asked.card_url),
        ("api-key-env", asked.api_key_env),
        ("bearer-env", asked.bearer_env),
        ("a2a-version", asked.dialect),
    )
    return "".join(f" --{name} {quote(value)}" for name, value in given if value)


async def look(common: Common, asked: AskOptions, task_id: str, *, wait: bool) -> AskResult:
    """A task of the agent's own, read from it; ``wait`` until it ended or waits for somebody."""
    runtime = real_runtime()
    found = None if is_url(asked.agent) else await entry(common, asked.agent)
    client_, began = client(asked, found, runtime), runtime.clock.monotonic()
    following = client_.follow_task(task_id, timeout_s=asked.timeout_s + MARGIN_S)
    try:
        async with within(asked.timeout_s, lambda: _late(_as_spoken(asked, client_), following)):
            await (following.end() if wait else following.first())
    finally:
        await runtime.transport.aclose()
    assert following.task is not None  # it showed one, or there was an error
    return _result(asked, client_, following.task, runtime.clock.monotonic() - began)


def _rest(asked: AskOptions, task_id: str, chars: int) -> str:
    """The command that shows all of a text: the agent keeps a task; what came without one must be asked for again."""
    again = f"fleetsim task get {quote(task_id)} --agent {quote(asked.agent)}" if task_id else ""
    more = f" --text-max {chars}" if chars > asked.text_max else ""
    return (again or f"fleetsim send {quote(asked.agent)} TEXT") + _how(asked) + more


def download_command(asked: AskOptions, task_id: str) -> str:
    """The command that saves files and data: of a task from its agent, of an answer without one by asking again."""
    if not task_id:
        return f"fleetsim send {quote(asked.agent)} TEXT{_how(asked)} --out DIR"
    return f"fleetsim task download {quote(task_id)} --agent {quote(asked.agent)}{_how(asked)}"


def _result(asked: AskOptions, client: AgentClient, task: Task, took_s: float, *, shown: bool = False) -> AskResult:
    asked = _as_spoken(asked, client)
    parts, parts_total = answer_parts(task)
    task = bounded(task, asked.text_max)
    text, chars = answer_text(task), answer_chars(task)
    bad = task.state in {TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED}
    waiting = task.state in INTERRUPTED
    wants_data = False
    if waiting:
        asking = asking_of(task)
        text, chars, wants_data = asking.text, asking.chars, answer_schema(asking.parts) is not None
    extras = read_extras(task)
    denied = task.state is TaskState.COMPLETED and extras.denies_success
    reason = one_line(text, REASON_MAX) if bad else MEANING[Cause.SUCCESS_DENIED] if denied else ""
    follow = f"fleetsim send {quote(asked.agent)} --task-id {quote(task.task_id)}"
    if asked.context_id or task.context_id:
        follow += f" --context-id {quote(task.context_id)}"
    follow += _how(asked)
    return AskResult(
        state=task.state.value,
        text=text,
        text_chars=chars,
        rest=_rest(asked, task.task_id, chars),
        reason=reason,
        task_id=task.task_id or None,
        context_id=task.context_id or None,
        duration_s=took_s,
        cost_usd=extras.cost.cost_usd if extras.cost else None,
        denied=denied,
        code=Exit.OK,
        warnings=(
            *((disagreement(client.spoken),) if client.spoken else ()),
            *elsewhere(task.task_id, task.context_id, asked_task=asked.task_id, asked_context=asked.context_id),
        ),
        next_step=follow + (" --data '{…}'" if wants_data else ' "your answer"') if waiting else "",
        parts=parts,
        parts_total=parts_total,
        download=download_command(asked, task.task_id),
        shown=shown and not waiting and not bad,
    )
