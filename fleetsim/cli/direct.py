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
from fleetsim.cli.ask import REASON_MAX, AskOptions, AskResult
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import with_scheme, within
from fleetsim.cli.terminal import LivePieces, Progress
from fleetsim.client import AgentClient, ClientLimits, Credential, Following
from fleetsim.client.conversation import Conversation
from fleetsim.model.asking import answer_schema, asking_of, text_of
from fleetsim.model.call import CancelTask
from fleetsim.model.errors import ConfigError, FleetsimError, TimedOut, WireError
from fleetsim.model.event import ArtifactUpdate, Snapshot, bounded
from fleetsim.model.extensions import read_extras
from fleetsim.model.limits import wire_bytes
from fleetsim.model.parts import answer_parts
from fleetsim.model.task import INTERRUPTED, UNSUCCESSFUL, Task, TaskState, elsewhere
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.sse import StreamLimits
from fleetsim.wire.choice import disagreement

if TYPE_CHECKING:
    from fleetsim.caller.fleet import AgentEntry

MARGIN_S = 1.0
"""How much longer the call itself may take than the verb that waits for it: the verb says what is known."""
_URL = re.compile(r"(https?://.*|[\w.-]+:\d{1,5}(/.*)?|\[[0-9a-fA-F:]+\]:\d{1,5}(/.*)?)", re.ASCII)


def is_url(agent: str) -> bool:
    """Whether AGENT is an address rather than a name."""
    return _URL.fullmatch(agent) is not None


async def agent_entry(common: CommonOptions, name: str) -> AgentEntry:
    """The entry of that name in agents.yaml. Raises ConfigError naming what there is."""
    from fleetsim.caller.config import load_fleet

    path = common.require_agents_yaml()
    fleet = await load_fleet(path, files=DiskFiles(), env=os.environ)
    for entry in fleet.agents:
        if entry.name == name:
            return entry
    names = ", ".join(a.name for a in fleet.agents)
    raise ConfigError(f"{path} has no agent {name!r}", hint=f"one of: {names}; or give a URL")


async def send(common: CommonOptions, ask: AskOptions) -> AskResult:
    """Send, follow to the end or to a question, and say what came of it."""

    def fell_back(error: FleetsimError) -> None:
        progress.clear()
        common.note(
            f"the stream broke off ({error}); polling"
            if following.task
            else f"no streaming after all, sending plainly: {error}"
        )

    def retrying(error: FleetsimError, seconds: float) -> None:
        progress.clear()
        common.note(f"{error}; it is called again in {seconds:.0f} s")

    async with agent_client(common, ask) as client:
        began = asyncio.get_running_loop().time()
        following = client.follow(
            ask.text,
            skill=ask.skill,
            parts=ask.parts,
            metadata={**ask.metadata, **({"parentId": ask.parent_id} if ask.parent_id else {})},
            headers={"X-Parent-Id": ask.parent_id} if ask.parent_id else {},
            task_id=ask.task_id,
            context_id=ask.context_id,
            stream=ask.stream and not ask.detach,
            fell_back=fell_back,
            retrying=retrying,
            timeout_s=ask.timeout_s + MARGIN_S,
        )
        async with (
            within(ask.timeout_s, lambda: _timed_out(_in_its_dialect(ask, client), following)),
            Progress(f"{ask.agent} is at work", quiet=common.quiet or (ask.stream and common.as_json)) as progress,
        ):
            shown = await _show(common, following, ask, progress)
    assert following.task is not None  # it said something, or there was an error
    return _result(ask, client, following.task, asyncio.get_running_loop().time() - began, shown=shown)


async def _show(common: CommonOptions, following: Following, ask: AskOptions, progress: Progress) -> str:
    """Follow it, and show what is streamed as it comes. Returns the text that was shown."""
    live = LivePieces()
    try:
        async for task in following:
            if following.event is not None:
                if common.as_json:
                    text, _ = text_of(bounded(task, ask.text_max))
                    render.emit_json_line({"state": task.state.value, "text": text})
                elif isinstance(piece := following.event, ArtifactUpdate):
                    progress.close()
                    left = max(ask.text_max - len(live.shown) - 1, 0)  # a line may end between
                    said, name = piece.artifact.text, piece.artifact.artifact_id
                    last, cut = piece.last_chunk, len(said) > left
                    render.say(live.more(name, said[:left], append=piece.append, last=last, cut=cut), end="")
                elif isinstance(following.event, Snapshot) and task.text:
                    live.hold()
                elif task.state is TaskState.WORKING and task.status.message is not None:
                    progress.remark(task.status.message.text)
            elif ask.detach:
                break
            elif task.task_id:
                progress.say(f"{ask.agent} is at work on task {task.task_id}")
    except BaseException:
        if live.shown:
            render.say("")
        raise
    return live.shown


def _in_its_dialect(ask: AskOptions, client: AgentClient) -> AskOptions:
    """The same in the dialect that the agent turned out to know: another command starts from the card again."""
    return replace(ask, dialect=client.spoken) if client.spoken else ask


@asynccontextmanager
async def chat(common: CommonOptions, ask: AskOptions) -> AsyncIterator[DirectChat]:
    async with agent_client(common, ask) as client:
        yield DirectChat(Conversation(client, context_id=ask.context_id, skill=ask.skill), ask.timeout_s)


class DirectChat:
    def __init__(self, conversation: Conversation, timeout_s: float) -> None:
        self._conversation = conversation
        self._timeout_s = timeout_s
        self._asking = False

    @property
    def context_id(self) -> str | None:
        return self._conversation.context_id

    async def say(self, text: str) -> AskResult:
        """Say ``text`` and wait for the answer or the agent's next question. Raises as ``Conversation.say``."""
        self._asking = True
        turn = await self._conversation.say(text, timeout_s=self._timeout_s + MARGIN_S)
        self._asking = False
        return AskResult(
            state=turn.state.value,
            text=turn.text or turn.error or "",
            context_id=turn.context_id,
            task_id=turn.task_id,
            warnings=turn.warnings,
            parts=turn.parts,
            parts_total=turn.parts_total,
        )

    def left(self) -> str:
        return "left without the answer: the agent may go on with it" if self._asking else ""


@asynccontextmanager
async def agent_client(common: CommonOptions, ask: AskOptions) -> AsyncIterator[AgentClient]:
    """The client of the agent asked for, by its entry or by the URL given. Its answers may be ``text_max`` long."""
    size = wire_bytes(ask.text_max)
    stream = StreamLimits(line_bytes_max=size, event_bytes_max=size, stream_bytes_max=2 * size)
    limits = ClientLimits(body_bytes_max=size, stream=stream)
    entry = None if is_url(ask.agent) else await agent_entry(common, ask.agent)
    async with running_runtime() as runtime:
        if entry is None:
            yield client_for(
                ask.agent,
                runtime,
                api_key_env=ask.api_key_env,
                bearer_env=ask.bearer_env,
                dialect=ask.dialect,
                limits=limits,
                rpc_url=ask.rpc_url,
                card_url=ask.card_url,
            )
            return
        yield AgentClient(
            entry.url,
            rpc_url=ask.rpc_url or entry.rpc_url,
            card_url=ask.card_url or entry.card_url,
            runtime=runtime,
            credential=entry.auth.credential() if entry.auth else None,
            headers=tuple(entry.headers.items()),
            dialect=ask.dialect or entry.wire,
            limits=limits,
        )


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


def _timed_out(ask: AskOptions, following: Following) -> FleetsimError:
    """The time is over: where the work is, and how to look again. Nothing is cancelled."""
    if following.refused is not None:
        return following.refused
    after = f"{ask.timeout_s:g} s"
    if following.task is not None:
        task_id, state = following.task.task_id, following.task.state.value
        again = f"fleetsim task get {quote(task_id)} --agent {quote(ask.agent)}{_call_options(ask)}"
        return TimedOut(
            f"task {task_id} is still {state} after {after}; it was left running", hint=f"look again with `{again}`"
        )
    if following.sent:
        return TimedOut(
            f"{ask.agent} gave no answer within {after}; it may have taken the work",
            hint="look at the agent before you send it again, or wait longer with --timeout",
        )
    return TimedOut(f"{ask.agent} did not show its card within {after}; nothing was sent", sent=False)


def _call_options(ask: AskOptions) -> str:
    """The options that say how the agent is called, for another command."""
    given = (
        ("rpc-url", ask.rpc_url),
        ("card-url", ask.card_url),
        ("api-key-env", ask.api_key_env),
        ("bearer-env", ask.bearer_env),
        ("a2a-version", ask.dialect),
    )
    return "".join(f" --{name} {quote(value)}" for name, value in given if value)


async def read_task(common: CommonOptions, ask: AskOptions, task_id: str, *, wait: bool) -> AskResult:
    """A task of the agent's own, read from it; ``wait`` until it ended or waits for somebody."""
    async with agent_client(common, ask) as client:
        began = asyncio.get_running_loop().time()
        following = client.follow_task(task_id, timeout_s=ask.timeout_s + MARGIN_S)
        async with within(ask.timeout_s, lambda: _timed_out(_in_its_dialect(ask, client), following)):
            await (following.end() if wait else following.first())
    assert following.task is not None  # it showed one, or there was an error
    return _result(ask, client, following.task, asyncio.get_running_loop().time() - began)


async def cancel_task(common: CommonOptions, ask: AskOptions, task_id: str) -> AskResult:
    """Ask the agent to stop a task, and return the task as it then is. Raises as ``AgentClient.cancel``."""
    async with agent_client(common, ask) as client:
        task = await client.call(CancelTask(task_id=task_id))
    if not isinstance(task, Task):
        raise WireError(f"{client.where}: the reply to the cancel is not a task")
    return _result(ask, client, task, 0.0)


def download_command(ask: AskOptions, task_id: str) -> str:
    """The command that saves files and data: of a task from its agent, of an answer without one by asking again."""
    if not task_id:
        return f"fleetsim send {quote(ask.agent)} TEXT{_call_options(ask)} --out DIR"
    return f"fleetsim task download {quote(task_id)} --agent {quote(ask.agent)}{_call_options(ask)}"


def _result(ask: AskOptions, client: AgentClient, task: Task, took_s: float, *, shown: str | None = None) -> AskResult:
    ask = _in_its_dialect(ask, client)
    parts, parts_total = answer_parts(task)
    task = bounded(task, ask.text_max)
    text, chars = text_of(task)
    bad = task.state in UNSUCCESSFUL
    waiting = task.state in INTERRUPTED
    wants_data = False
    if waiting:
        asking = asking_of(task)
        text, chars, wants_data = asking.text, asking.chars, answer_schema(asking.parts) is not None
    extras = read_extras(task)
    denied = task.state is TaskState.COMPLETED and extras.denies_success
    reason = one_line(text, REASON_MAX) if bad else Cause.SUCCESS_DENIED.meaning if denied else ""
    follow = f"fleetsim send {quote(ask.agent)} --task-id {quote(task.task_id)}"
    if context_id := task.context_id or ask.context_id:
        follow += f" --context-id {quote(context_id)}"
    follow += _call_options(ask)
    # The agent keeps a task; what came without one must be asked for again.
    kept_in = f"task get {quote(task.task_id)} --agent {quote(ask.agent)}" if task.task_id else ""
    rest = f"fleetsim {kept_in or f'send {quote(ask.agent)} TEXT'}{_call_options(ask)}"
    return AskResult(
        state=task.state.value,
        text=text,
        text_chars=chars,
        rest=rest + (f" --text-max {chars}" if chars > ask.text_max else ""),
        reason=reason,
        task_id=task.task_id or None,
        context_id=task.context_id or None,
        duration_s=took_s,
        cost_usd=extras.cost.cost_usd if extras.cost else None,
        denied=denied,
        code=Exit.OK,
        warnings=(
            *((disagreement(client.spoken),) if client.spoken else ()),
            *elsewhere(task.task_id, task.context_id, asked_task=ask.task_id, asked_context=ask.context_id),
        ),
        next_step=follow + (" --data '{…}'" if wants_data else ' "your answer"') if waiting else "",
        parts=parts,
        parts_total=parts_total,
        download=download_command(ask, task.task_id),
        shown=shown,
    )
