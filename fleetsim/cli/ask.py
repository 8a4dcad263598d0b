"""Asking an agent, at its address or through the running hub: ``send``, ``chat``, ``task`` and ``card`` share this.

``reach`` decides the way. From there on the verbs know only the protocols ``AskedAgent`` and ``FollowedRequest``.
Through the hub, requests are recorded and counted; directly, they are not. Ctrl-C leaves a task running either way.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec import structs

from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import with_scheme
from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.client.card_trust import CardTrust
from fleetsim.client.follow import AskedAgent
from fleetsim.client.results import FollowResult
from fleetsim.model.errors import ConfigError, TimedOut
from fleetsim.model.limits import TEXT_CHARS_MAX, wire_bytes
from fleetsim.model.task import TERMINAL, Part
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, OutcomeKind
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.ports import Runtime, WayOut
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.sse import StreamLimits

if TYPE_CHECKING:
    from fleetsim.fleet.settings import AgentEntry

_URL = re.compile(r"(https?://.*|[\w.-]+:\d{1,5}(/.*)?|\[[0-9a-fA-F:]+\]:\d{1,5}(/.*)?)", re.ASCII)

_AGENTS_CAUSES = frozenset(
    {
        "",
        Cause.AGENT_SAID,
        Cause.SUCCESS_DENIED,
        Cause.CANCELED_UNASKED,
        Cause.CANCELED_BY_PERSON,
        Cause.REJECTED_BY_PERSON,
    }
)
"""Causes of ends that the agent itself reported; a ``failed`` of another cause is an error in place of a task."""

_CODES = {"credential_refused": Exit.AUTH, "unreachable": Exit.UNREACHABLE, "never_sent": Exit.UNREACHABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """The options of a verb that asks an agent. ``agent`` is a name or an address; "" is the hub itself.

    With ``signers`` no other card counts, unless ``inspects``: then the card is read to be shown.
    ``follow_id`` is a task to follow, instead of a text to send.
    """

    agent: str = ""
    text: str = ""
    parts: tuple[Part, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    skill: str | None = None
    stream: bool = False
    detach: bool = False
    timeout_s: float = 300.0
    follow_id: str | None = None
    wire_log: str | None = None
    task_id: str | None = None
    context_id: str | None = None
    parent_id: str | None = None
    api_key_env: str | None = None
    bearer_env: str | None = None
    auth: str | None = None
    dialect: str | None = None
    rpc_url: str | None = None
    card_url: str | None = None
    signers: tuple[str, ...] = ()
    inspects: bool = False
    proxy: str | None = None
    ca: str | None = None
    text_max: int = TEXT_CHARS_MAX

    @classmethod
    def given(cls, **options: Any) -> AskOptions:
        """From the options of a command; one that was not given (None) has its default."""
        return cls(**{name: value for name, value in options.items() if value is not None})

    def trust(self, entry: CardTrust | None = None) -> CardTrust:
        """The demands on the card: those of agents.yaml (``entry``), with the signers given instead of its own."""
        entry = entry or CardTrust()
        required = entry.required or (bool(self.signers) and not self.inspects)
        return CardTrust(required=required, signers=self.signers or entry.signers)

    @property
    def credentials(self) -> tuple[Credential, ...]:
        """The credentials that the options name. Raises ConfigError."""
        return credentials_given(self.api_key_env, self.bearer_env, self.auth)


def credentials_given(api_key_env: str | None, bearer_env: str | None, auth: str | None) -> tuple[Credential, ...]:
    """The credentials that the options of ``auth_options`` name. Raises ConfigError."""
    credentials = [Credential("apiKey", api_key_env)] if api_key_env else []
    credentials += [Credential("bearer", bearer_env)] if bearer_env else []
    if auth:
        from fleetsim.fleet.auth import read_auth  # and with it pydantic

        credentials += read_auth(auth)
    return tuple(credentials)


# ------------------------------------------------------------------ the way to an agent


@asynccontextmanager
async def reach(common: CommonOptions, ask: AskOptions, *, interface: str = "cli") -> AsyncIterator[AskedAgent]:
    """The agent of ``ask``: through the hub if one runs that knows it by this name, else at its address.

    More text than a hub keeps (``text_max``) comes from the agent itself. ``interface`` is the way for the ledger.
    """
    if not is_url(ask.agent) and ask.text_max == TEXT_CHARS_MAX:
        from fleetsim.cli.hub_client import connect, find_hub  # a third of the time it takes to begin

        address = find_hub(common)
        if address is not None and not (address.demo and await _is_own(common, ask.agent)):
            if ask.signers:
                hint = "give the agent's URL, or name its signers in agents.yaml: `trust: signed` and `signers`"
                raise ConfigError("the running hub reads the agent's card, so --signer has no effect", hint=hint)
            if ask.wire_log is not None:
                hint = "give the agent's URL, or read the hub's wire log: docs/howto/see-the-wire.md"
                raise ConfigError("the running hub sends this request, and --wire-log records our own", hint=hint)
            async with connect(common) as hub:
                yield hub.agent(ask.agent, interface=interface)
            return
    async with agent_client(common, ask) as client:
        yield client


@asynccontextmanager
async def place_of(common: CommonOptions, ask: AskOptions) -> AsyncIterator[AskedAgent]:
    """The place that has a task already: the agent of ``ask``, or the hub if it names none."""
    if ask.agent:
        async with agent_client(common, ask) as client:
            yield client
        return
    from fleetsim.cli.hub_client import connect

    async with connect(common) as hub:
        yield hub.agent("")


async def _is_own(common: CommonOptions, agent: str) -> bool:
    """Whether the person's own agents.yaml has the name: then the demo's hub is not used."""
    try:
        await agent_entry(common, agent)
    except ConfigError:
        return False
    return True


def is_url(agent: str) -> bool:
    """Whether AGENT is an address rather than a name. Raises ConfigError for an address of another scheme."""
    if _URL.fullmatch(agent) is None and "://" in agent:
        scheme = one_line(agent.partition("://")[0], 40)
        raise ConfigError(f"an agent's address does not begin with “{scheme}://”", hint="give http://… or https://…")
    return _URL.fullmatch(agent) is not None


async def agent_entry(common: CommonOptions, name: str) -> AgentEntry:
    """The entry of that name in agents.yaml. Raises ConfigError with the names there are."""
    from fleetsim.fleet.config import load_fleet

    path = common.require_agents_yaml()
    fleet = await load_fleet(path, files=DiskFiles(), env=os.environ)
    for entry in fleet.agents:
        if entry.name == name:
            return entry
    names = ", ".join(a.name for a in fleet.agents)
    raise ConfigError(f"{path} has no agent {name!r}", hint=f"one of: {names}; or give a URL")


@asynccontextmanager
async def agent_client(common: CommonOptions, ask: AskOptions) -> AsyncIterator[AgentClient]:
    """The client of the agent itself, by its entry or its URL. Its answers may be ``text_max`` long."""
    size = wire_bytes(ask.text_max)
    stream = StreamLimits(line_bytes_max=size, event_bytes_max=size, stream_bytes_max=2 * size)
    limits = ClientLimits(body_bytes_max=size, stream=stream)
    entry = None if is_url(ask.agent) else await agent_entry(common, ask.agent)
    async with running_runtime() as plain, wire_logged(plain, ask.agent, ask.wire_log) as runtime:
        if entry is None:
            yield client_for(ask, runtime, limits)
            return
        yield AgentClient(
            entry.url,
            rpc_url=ask.rpc_url or entry.rpc_url,
            card_url=ask.card_url or entry.card_url,
            runtime=runtime,
            credential=ask.credentials or entry.credentials,
            headers=tuple(entry.headers.items()),
            dialect=ask.dialect or entry.wire,
            trust=ask.trust(entry.card_trust),
            limits=limits,
            way=way_given(ask.proxy, ask.ca, entry.way),
        )


@asynccontextmanager
async def wire_logged(runtime: Runtime, agent: str, file: str | None) -> AsyncIterator[Runtime]:
    """The runtime with a record of its exchanges, which is written to ``file`` at the end; unchanged without a file.

    Only the user can read the file: users' texts are in it. Raises ConfigError if it cannot be written.
    """
    if file is None:
        yield runtime
        return
    from fleetsim.api.wire_rows import as_text  # most calls have no log
    from fleetsim.cli import render
    from fleetsim.client.wire_log import WireLog

    log = WireLog(runtime.clock)
    log.keep_on()
    try:
        yield replace(runtime, transport=log.tap(runtime.transport, agent))
    finally:
        rows = log.read(agent)
        text = as_text(rows) if rows else "Nothing was sent."
        if file == "-":
            render.lines(f"{text}\n", err=True)
        else:
            await runtime.files.write(Path(file), f"{text}\n".encode("utf-8", "replace"))


def way_given(proxy: str | None, ca: str | None, way: WayOut | None = None) -> WayOut:
    """``way`` with the proxy and the authorities of ``--proxy`` and ``--ca``. Raises ConfigError."""
    way = way or WayOut()
    if proxy is not None:
        from fleetsim.fleet.settings import proxy_of

        way = structs.replace(way, proxy=proxy_of(proxy))
    return way if ca is None else structs.replace(way, tls=structs.replace(way.tls, ca=ca))


def client_for(ask: AskOptions, runtime: Runtime, limits: ClientLimits | None = None) -> AgentClient:
    """A client of the agent at an address as typed. Raises ConfigError."""
    return AgentClient(
        with_scheme(ask.agent),
        runtime=runtime,
        credential=ask.credentials,
        dialect=ask.dialect,
        trust=ask.trust(),
        limits=limits,
        rpc_url=with_scheme(ask.rpc_url),
        card_url=with_scheme(ask.card_url),
        way=way_given(ask.proxy, ask.ca),
    )


# ------------------------------------------------------------------ what a verb prints of a result


def exit_code(result: FollowResult) -> Exit:
    """The exit code without ``--exit-status``: OK while the request is open, and if it ended as its agent reported."""
    if result.state == OutcomeKind.EXPIRED:
        return Exit.TIMEOUT
    if result.open or (result.state in TERMINAL and result.cause in _AGENTS_CAUSES):
        return Exit.OK
    return _CODES.get(result.cause, Exit.FAILED)


def exit_status(result: FollowResult) -> Exit:
    """The exit code with ``--exit-status``."""
    if (code := exit_code(result)) is not Exit.OK:
        return code
    if result.question is not None:
        return Exit.WAITING
    return Exit.OK if result.open or result.success else Exit.FAILED


def late_error(ask: AskOptions, result: FollowResult) -> TimedOut:
    """The error after ``timeout_s``, with the command for another look. Nothing is cancelled."""
    what = f"request {result.correlation_id}" if result.correlation_id else f"task {result.task_id}"
    looks = f"; the last look at it: {result.reason}" if result.reason else ""
    message = f"{what} is still {result.state} after {ask.timeout_s:g} s{looks}; fleetsim did not stop it"
    return TimedOut(message, hint=f"look again: {task_command(ask, result)}")


def reply_command(question_id: str, *, data: bool) -> str:
    """The command that answers a question at the hub."""
    return f"fleetsim inbox reply {question_id} " + _answer(data)


def _answer(data: bool) -> str:
    return "--data '{…}'" if data else '"your answer"'


def whole_at(agent: str, task_id: str | None, chars: int) -> str:
    """The command that reads a text of ``chars`` characters from the agent that has it."""
    return f"fleetsim task get {quote(task_id or 'TASK')} --agent {quote(agent)} --text-max {chars}"


def task_command(ask: AskOptions, result: FollowResult, verb: str = "get") -> str:
    """``fleetsim task VERB`` for the request. Without a task the agent keeps nothing: the command asks it again."""
    if result.correlation_id:
        return f"fleetsim task {verb} {result.correlation_id}"
    if not result.task_id:
        return f"fleetsim send {quote(ask.agent)} TEXT{_call_options(ask, result)}"
    return f"fleetsim task {verb} {quote(result.task_id)} --agent {quote(ask.agent)}{_call_options(ask, result)}"


def download_command(ask: AskOptions, result: FollowResult) -> str:
    """The command that saves the files and data of the answer."""
    again = "" if result.correlation_id or result.task_id else " --out DIR"
    return task_command(ask, result, "download") + again


def rest_command(ask: AskOptions, result: FollowResult) -> str:
    """The command that shows the whole text."""
    if result.correlation_id and result.truncated:
        return whole_at(ask.agent, result.task_id, result.text_chars)
    more = f" --text-max {result.text_chars}" if result.truncated else ""
    return task_command(ask, result) + more


def answer_command(ask: AskOptions, result: FollowResult) -> str:
    """The command that answers the question."""
    if isinstance(result.question, str):
        return reply_command(result.question, data=result.asks_for_data)
    command = f"fleetsim send {quote(ask.agent)} --task-id {quote(result.task_id)}"
    if context_id := result.context_id or ask.context_id:
        command += f" --context-id {quote(context_id)}"
    return f"{command}{_call_options(ask, result)} {_answer(result.asks_for_data)}"


def _call_options(ask: AskOptions, result: FollowResult) -> str:
    """The options with which another command calls the agent in the same way, in the dialect it turned out to know."""
    options = (
        ("rpc-url", ask.rpc_url),
        ("card-url", ask.card_url),
        ("proxy", ask.proxy),
        ("ca", ask.ca),
        ("api-key-env", ask.api_key_env),
        ("bearer-env", ask.bearer_env),
        ("auth", ask.auth),
        *(("signer", signer) for signer in ask.signers),
        ("dialect", result.dialect or ask.dialect),
    )
    return "".join(f" --{name} {quote(value)}" for name, value in options if value)
