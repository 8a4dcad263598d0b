"""A client of a hub's API: for programs and agents, and what the command line's verbs are made of.

Calls are checked by the hub's own models before they are sent; a call loads the checks that it needs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack
from urllib.parse import quote, urlencode

from msgspec import ValidationError, convert, structs

from fleetsim.api import answers
from fleetsim.api.health import LimitFacts
from fleetsim.api.state import HubState
from fleetsim.client.blocking import blocking
from fleetsim.client.credential import Credential
from fleetsim.client.http import check_url
from fleetsim.client.hub_follow import TASK_WAIT_S, AgentAtHub, HubFollowing, with_parts
from fleetsim.client.hub_proof import prove
from fleetsim.client.results import ChatResponse
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    ConnectionLost,
    FleetsimError,
    HttpRefused,
    LimitReached,
    MayHaveRun,
    NotAccepting,
    TimedOut,
    UnfitAnswer,
    UnknownTarget,
    Unreachable,
    WireError,
)
from fleetsim.model.limits import WIRE_BYTES_MAX, TooMuch
from fleetsim.model.task import Part
from fleetsim.model.text import one_line
from fleetsim.model.work import ID
from fleetsim.model.work import ceremony_id as valid_id
from fleetsim.runtime.ports import Limits, Reply, Request, Runtime, WayOut
from fleetsim.runtime.real import SystemResolver, real_runtime
from fleetsim.runtime.retry import retry_after_s
from fleetsim.runtime.sse import StreamLimits, read_events
from fleetsim.wire.json import dump, parse_untrusted

T = TypeVar("T")

if TYPE_CHECKING:
    from fleetsim.api.bodies import CeremonyKeys
    from fleetsim.client.hub_tools import ToolResult

URL_VARIABLE, KEY_VARIABLE = "WORKSTACEAN_URL", "WORKSTACEAN_API_KEY"
"""The environment variables that Workstacean's own tools read: where the hub is, and the agent's key there."""

DEFAULT_URL = "http://127.0.0.1:3000"
REPLY_BYTES_MAX = 2 * WIRE_BYTES_MAX
"""Bytes of one answer of the hub: a request and what came of it, or a page of excerpts."""

CHAT_WAIT_S, POLL_WAIT_S = 25.0, 50

_START = "start one there with `fleetsim up`, or check its address; from another machine, it needs `up --host`"
_MARGIN_S, _PROOF_S, _PROOF_BYTES_MAX = 10.0, 15.0, 4_096
_NO_EVENT: Mapping[str, Any] = dict(
    dict.fromkeys(("seq", "correlationId", "parentId", "agent", "skill", "taskId")), at="", level="warn"
)

_ERRORS: Mapping[str, type[FleetsimError]] = {
    "FLEETSIM_ERR_UNKNOWN_TARGET": UnknownTarget,
    "FLEETSIM_ERR_NOT_OPEN": UnknownTarget,
    "FLEETSIM_ERR_NO_VETO": UnknownTarget,
    "FLEETSIM_ERR_UNFIT_ANSWER": UnfitAnswer,
    "FLEETSIM_ERR_TOO_LARGE": TooMuch,
    **{f"FLEETSIM_ERR_{name}": NotAccepting for name in ("BUSY", "NOT_OPEN_YET", "NOT_ACCEPTING")},
    "FLEETSIM_ERR_MAY_HAVE_RUN": MayHaveRun,
    "FLEETSIM_ERR_BAD_REQUEST": ConfigError,
    "FLEETSIM_ERR_BAD_JSON": ConfigError,
}


class HubClient:
    """A hub, by its API (docs/reference/api.md).

    ::

        async with HubClient() as hub:  # WORKSTACEAN_URL and WORKSTACEAN_API_KEY
            await hub.create_ceremony("quinn.sweep", name="Sweep", schedule="0 * * * *", skill="audit")
            print((await hub.chat_with_agent("ava", "what is open?")).text)

        HubClient("http://127.0.0.1:3000", api_key=key).pause_ceremony_sync("quinn.sweep")

    Without a ``url`` it uses WORKSTACEAN_URL, else port 3000 of this machine; without an ``api_key`` it reads
    WORKSTACEAN_API_KEY for each call. An agent's key reaches its own ceremonies and requests. The key goes to that
    address and nowhere else, and is in no message, repr or log. ``proof`` is the secret with which a hub of this
    machine announced itself. The server must then prove that it is that hub before it receives the key, because a hub
    may have died and another program may have its port. Without a ``runtime`` the client makes and closes its own.
    ``way`` names a proxy or authorities for a hub elsewhere.

    Every method raises ConfigError (an argument is wrong, or there is no key; nothing was done), UnknownTarget (no such
    thing, or somebody else's), NotAccepting (busy, or trouble with storage), AuthRefused (the key is not for this),
    HttpRefused (anything else the hub refuses; 409: it exists already, or is not to be changed), TransportError (the
    hub did not answer) and WireError (the server is not a hub).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        proof: str | None = None,
        runtime: Runtime | None = None,
        way: WayOut | None = None,
    ) -> None:
        given = url if url is not None else os.environ.get(URL_VARIABLE, "").strip() or DEFAULT_URL
        self.url = check_url(given, "the hub's url")[0].rstrip("/")
        self._credential = (
            Credential.of("apiKey", api_key) if api_key is not None else Credential("apiKey", KEY_VARIABLE)
        )
        self._proof = proof
        self._given_runtime, self._way = runtime, way
        self._own_runtime: Runtime | None = None

    def __repr__(self) -> str:
        return f"HubClient({self.url!r})"

    @property
    def runtime(self) -> Runtime:
        """The runtime in use, on its way out: the one given, else a real one made at first need."""
        if self._given_runtime is None and self._own_runtime is None:
            self._own_runtime = real_runtime()
        runtime = self._given_runtime or self._own_runtime
        assert runtime is not None
        way = self._way
        return runtime if way is None else replace(runtime, transport=runtime.transport.through(way))

    async def __aenter__(self) -> HubClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of a runtime the client made itself; one that was given is left alone."""
        runtime, self._own_runtime = self._own_runtime, None
        if runtime is not None:
            await runtime.transport.aclose()
            if isinstance(runtime.resolver, SystemResolver):
                runtime.resolver.close()

    @asynccontextmanager
    async def twin(self, *, alone: bool) -> AsyncIterator[HubClient]:
        """The same client with connections of its own, for one call in another loop."""
        twin = copy(self)
        twin._given_runtime = twin._own_runtime = None
        async with twin:
            yield twin

    # ------------------------------------------------------------------ ceremonies (Workstacean's manage_cron)

    async def ceremonies(self) -> list[answers.CeremonyFacts]:
        """The ceremonies in force that the key may see, disabled ones too."""
        return await self.read(list[answers.CeremonyFacts], "/ceremonies")

    async def ceremony_errors(self) -> list[answers.FileProblem]:
        """The files that are wrong, and why (the hub's own key)."""
        return await self.read(list[answers.FileProblem], "/ceremonies/errors")

    async def create_ceremony(self, ceremony_id: str, **keys: Unpack[CeremonyKeys]) -> answers.CeremonyFacts:
        """Make a ceremony, never over another: with ``name``, ``skill``, and ``schedule``, ``at`` or ``in_``.

        Without ``targets`` every agent with the skill is asked. Raises HttpRefused (409) if there is one of that id.
        """
        from fleetsim.api.bodies import CreateCeremonyBody, read
        from fleetsim.ceremony.written import checked, timed, written

        body = {"id": ceremony_id, **_given(keys)}
        targets = read(CreateCeremonyBody, body).targets
        checked(written(timed({**body, "targets": targets}, self.runtime.clock.now())))
        return await self.read(answers.CeremonyFacts, "/ceremonies/create", body)

    async def update_ceremony(
        self, ceremony_id: str, *, without: Sequence[str] = (), **keys: Unpack[CeremonyKeys]
    ) -> answers.CeremonyFacts:
        """Change only what is named: a paused ceremony stays paused. ``without`` names keys to take out of the file."""
        from fleetsim.api.bodies import UpdateCeremonyBody, read
        from fleetsim.ceremony.written import KEYS, check_changes

        body = {**_given(keys), **dict.fromkeys(without)}
        if not body:
            updatable = ", ".join(key for key in KEYS if key not in {"id", "createdBy", "notifyWebhookEnv"})
            raise ConfigError("update changes nothing", hint=f"name at least one of {updatable}")
        path = f"/ceremonies/{valid_id(ceremony_id)}/update"
        read(UpdateCeremonyBody, body)
        check_changes(body, self.runtime.clock.now())
        return await self.read(answers.CeremonyFacts, path, body)

    async def pause_ceremony(self, ceremony_id: str) -> answers.CeremonyFacts:
        """Let it fire neither by schedule nor by hand."""
        return await self.update_ceremony(ceremony_id, enabled=False)

    async def resume_ceremony(self, ceremony_id: str) -> answers.CeremonyFacts:
        """Let it fire again."""
        return await self.update_ceremony(ceremony_id, enabled=True)

    async def delete_ceremony(self, ceremony_id: str) -> None:
        """Remove it and its file."""
        await self.post(f"/ceremonies/{valid_id(ceremony_id)}/delete")

    async def run_ceremony(self, ceremony_id: str) -> str:
        """Fire it now, whatever its schedule says, and return the run's id."""
        return (await self.read(answers.StartedRun, f"/ceremonies/{valid_id(ceremony_id)}/run", {})).run_id

    async def dry_run(self, ceremony_id: str) -> answers.DryRun:
        """The requests that firing it would send."""
        return await self.read(answers.DryRun, f"/ceremonies/{valid_id(ceremony_id)}/run", {"dryRun": True})

    async def ceremony_runs(self, ceremony_id: str, *, limit: int = 20) -> list[answers.RunFacts]:
        """Its runs, newest first."""
        return await self.read(list[answers.RunFacts], f"/ceremonies/{valid_id(ceremony_id)}/runs", limit=limit)

    # ------------------------------------------------------------------ other agents

    async def list_agents(self) -> list[answers.AgentFacts] | list[answers.SharedAgent]:
        """The agents of the fleet; only the hub's own key sees their addresses."""
        rows = await self.get("/agents")
        return (
            _read(list[answers.AgentFacts], rows)
            if rows and "url" in rows[0]
            else _read(list[answers.SharedAgent], rows)
        )

    async def find_skills(
        self,
        text: str = "",
        *,
        domain: str | None = None,
        path: str | None = None,
        direction: Literal["increase", "decrease"] | None = None,
        agent: str | None = None,
        limit: int | None = None,
    ) -> list[answers.FoundSkill]:
        """Skills by words and by the effect that their card declares, the most promising first.

        The rank is declared confidence times measured success. The hub lists ``limit`` skills (20), at most 100.
        """
        query: dict[str, Any] = {"domain": domain, "path": path, "direction": direction, "agent": agent, "limit": limit}
        return await self.read(list[answers.FoundSkill], "/skills", text=text or None, **query)

    async def chat_with_agent(
        self,
        agent: str,
        message: str = "",
        *,
        parts: Sequence[Part | Mapping[str, Any]] = (),
        context_id: str | None = None,
        task_id: str | None = None,
        skill: str | None = None,
        done: bool = False,
        wait_s: float = CHAT_WAIT_S,
    ) -> ChatResponse:
        """Say something to an agent, and wait up to ``wait_s`` seconds (at most 60) for its answer or question.

        ``parts`` are files and data to go with the message, or instead of it: ``FilePart`` and ``DataPart``, or
        mappings as ``POST /api/requests`` has them.
        ``context_id`` and ``task_id``, as a response before had them, go on with the conversation and with the task;
        ``done`` says that it is the last turn. A response that is still ``working`` is had later by ``wait_for_task``.
        """
        from fleetsim.api.bodies import ChatBody, read

        options = {"contextId": context_id, "taskId": task_id, "skill": skill, "done": done or None}
        body: dict[str, Any] = {"agent": agent, "message": message, "waitMs": round(wait_s * 1000)}
        body |= {key: value for key, value in options.items() if value is not None} | with_parts(parts)
        read(ChatBody, body)
        answer = await self._exchange("POST", "/a2a/chat", dump(body), wait_s + _MARGIN_S)
        return ChatResponse.of(_read(answers.ChatAnswer, answer))

    async def delegate(
        self,
        agent: str,
        skill: str,
        message: str = "",
        *,
        parts: Sequence[Part | Mapping[str, Any]] = (),
        project_slug: str | None = None,
    ) -> str:
        """Ask an agent for work, and return its correlation id at once; ``wait_for_task`` has what came of it.

        ``parts`` are as in ``chat_with_agent``.
        """
        from fleetsim.api.bodies import DelegateBody, read

        body: dict[str, Any] = {"agent": agent, "skill": skill, "message": message, **with_parts(parts)}
        if project_slug is not None:
            body["projectSlug"] = project_slug
        read(DelegateBody, body)
        return (await self.read(answers.NamedRequest, "/a2a/delegate", body)).correlation_id

    async def chat_task(self, correlation_id: str, *, wait_s: int = 0) -> ChatResponse:
        """The answer to a request so far, after at most ``wait_s`` seconds (60) for its end or its question."""
        path = f"/a2a/task/{_request_id(correlation_id)}"
        answer = await self.read(answers.ChatAnswer, path, total_s=wait_s + _MARGIN_S, wait=wait_s or None)
        return ChatResponse.of(answer)

    async def wait_for_task(self, correlation_id: str, *, timeout_s: float = TASK_WAIT_S) -> ChatResponse:
        """Wait for the answer or the question of an agent. Raises TimedOut after ``timeout_s``; the agent goes on."""
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            left = deadline - clock.monotonic()
            try:
                response = await self.chat_task(correlation_id, wait_s=max(0, min(POLL_WAIT_S, int(left))))
            except HttpRefused as error:  # at a limit of its key, such as the number of requests at once
                if error.status != 429 or left < 1:
                    raise
                await asyncio.sleep(min(left, error.retry_after_s or 1.0))
                continue
            if response.status != "working":
                return response
            if left < 1:
                still = f"{one_line(response.agent, 64)} is at work on {response.correlation_id} after {timeout_s:g} s"
                raise TimedOut(still, hint="it goes on: wait for the same task again")

    async def whoami(self) -> str | None:
        """The agent whose key this is; None for the hub's own."""
        return (await self.read(answers.KeyIdentity, "/whoami")).agent

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Carry out a model's call of one of ``hub_tools``; raises nothing of the above, the result tells it."""
        from fleetsim.client import hub_tools

        return await hub_tools.call(self, name, arguments)

    # ------------------------------------------------------------------ requests and questions

    def agent(self, name: str, *, interface: str = "api") -> AgentAtHub:
        """One agent of the fleet, to be asked as ``AgentClient`` asks one, and to talk with (``Conversation``).

        ``interface`` is the way by which the requests come, for the ledger.
        """
        return AgentAtHub(self, name, interface=interface)

    def follow(self, agent: str, text: str, **options: Any) -> HubFollowing:
        """Have the hub ask an agent, and follow the request: the counterpart of ``AgentClient.follow``.

        ::

            async for task in hub.follow("ava", "Plan the week."):
                print(task.state, task.text)

        The options are those of ``AgentAtHub.follow``.
        """
        return self.agent(agent).follow(text, **options)

    def follow_task(self, task_id: str, *, timeout_s: float | None = TASK_WAIT_S) -> HubFollowing:
        """Follow a request that the hub has, by an id as ``hub_follow.request_id`` takes it."""
        return self.agent("").follow_task(task_id, timeout_s=timeout_s)

    async def submit(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Ask for work; the keys are those of ``POST /api/requests``."""
        return (await self.read(answers.Accepted, "/requests", body)).correlation_ids

    async def task(self, correlation_id: str, *, wait_s: int = 0) -> answers.OpenRequest | answers.EndedRequest:
        """One request, after at most ``wait_s`` seconds for news of it."""
        path = f"/tasks/{_part(correlation_id)}"
        row = await self.get(path, total_s=wait_s + _MARGIN_S, wait=wait_s or None)
        return _read(answers.OpenRequest, row) if row["open"] else _read(answers.EndedRequest, row)

    async def tasks(self, *, limit: int = 50) -> answers.TaskPage:
        """All requests in flight (``open``, read page by page) and the newest ``limit`` that ended (``recent``)."""
        tasks = await self.read(answers.TaskPage, "/tasks", limit=limit)
        while tasks.next is not None:
            page = await self.read(answers.TaskPage, "/tasks", limit=0, after=tasks.next)
            tasks = structs.replace(tasks, open=tasks.open + page.open, next=page.next)
        return tasks

    async def state(self, *, requests: bool = True) -> HubState:
        """Everything that a screen of the key shows; the events after ``seq`` continue it."""
        state = await self.read(HubState, "/state", limit=None if requests else 0)
        while state.next is not None:
            state = state.then(await self.read(HubState, "/state", after=state.next))
        return state

    async def wire(
        self, *, agent: str | None = None, task: str | None = None, after: int = 0
    ) -> list[answers.WireExchange]:
        """The recent exchanges with an agent, or those about one request (``task``), oldest first, secrets masked.

        The hub records them for 30 s after each call. Only the hub's own key may read them.
        """
        return await self.read(list[answers.WireExchange], "/wire", agent=agent, task=task, after=after)

    async def question(self, question_id: str) -> answers.QuestionFacts:
        return await self.read(answers.QuestionFacts, f"/inbox/{_part(question_id)}")

    async def cancel(self, correlation_id: str) -> None:
        await self.post(f"/tasks/{_request_id(correlation_id)}/cancel")

    async def retry(self, correlation_id: str, *, may_repeat: bool = False) -> str:
        """Send a request that ended again; the id of the new one. Raises MayHaveRun without ``may_repeat``."""
        path = f"/tasks/{_request_id(correlation_id)}/retry"
        return (await self.read(answers.NamedRequest, path, {"mayRepeat": may_repeat})).correlation_id

    async def retries(self, /, kinds: str = "undeliverable", **only: Any) -> answers.RetryReport:
        """The ended requests that ``retry`` would send again. ``only``: ``agent``, ``skill``, ``window`` in seconds."""
        return await self.read(answers.RetryReport, "/retries", total_s=6 * _MARGIN_S, kind=kinds, **only)

    async def answer(
        self,
        question_id: str,
        text: str,
        *,
        parts: Sequence[Part | Mapping[str, Any]] = (),
        decision: str = "answer",
        by: str = "operator",
    ) -> answers.QuestionFacts:
        """Answer or reject a question; ``parts`` are as in ``chat_with_agent``."""
        body: dict[str, Any] = {"text": text, "decision": decision, "by": by, **with_parts(parts)}
        return await self.read(answers.QuestionFacts, f"/inbox/{_part(question_id)}/answer", body)

    async def veto(self, correlation_id: str, *, by: str = "operator") -> answers.NamedRequest:
        """Stop work whose window for a veto is open."""
        return await self.read(answers.NamedRequest, f"/tasks/{_part(correlation_id)}/veto", {"by": by})

    async def limits(self) -> list[LimitFacts]:
        """What is used of each limit, at all hubs."""
        return await self.read(list[LimitFacts], "/limits")

    async def raise_limit(self, name: str, amount: float, *, by: str = "operator") -> LimitFacts:
        """Raise a limit by an amount in its unit until its period ends."""
        return await self.read(LimitFacts, f"/limits/{_part(name)}/raise", {"amount": amount, "by": by})

    async def events(self, *, after: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Events as they happen, those after ``after`` first; ends when the hub closes.

        If this reader was too slow, an event of topic ``events.dropped`` counts the events that it lost.
        """
        path = "/events" + (f"?after={after}" if after is not None else "")
        limits = StreamLimits(stream_bytes_max=2**40, events_max=2**40, lines_max=2**40)
        await self._require_proof()
        head = Limits(first_byte_s=10.0, total_s=None, body_bytes_max=2**40)
        request = self._request("GET", path, b"", head, streaming=True)
        try:
            async with self.runtime.transport.open(request) as incoming:
                if incoming.status != 200:
                    raise HttpRefused(f"the hub refused its events (HTTP {incoming.status})", status=incoming.status)
                async for event in read_events(incoming, limits=limits):
                    if event.event == "message":
                        yield json.loads(event.data)
                    elif event.event == "dropped":
                        yield {**_NO_EVENT, "topic": "events.dropped", "payload": json.loads(event.data)}
        except json.JSONDecodeError as error:
            raise ConnectionLost("the connection to the hub broke within an event") from error
        except Unreachable as error:
            raise self._silent(error) from error

    # ------------------------------------------------------------------ anything

    async def read(self, kind: type[T], path: str, /, body: Mapping[str, Any] | None = None, **query: Any) -> T:
        """Read ``/api`` + ``path``, or do it with a ``body``; the answer is a struct of ``fleetsim.api``."""
        return _read(kind, await (self.get(path, **query) if body is None else self.post(path, body)))

    async def get(self, path: str, /, *, total_s: float = 15.0, **query: Any) -> Any:
        """Read ``/api`` + ``path``."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return await self._exchange("GET", f"{path}?{given}" if given else path, b"", total_s)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Do ``/api`` + ``path``."""
        return await self._exchange("POST", path, dump(dict(body or {})), 15.0)

    ceremonies_sync = blocking(ceremonies)
    ceremony_errors_sync = blocking(ceremony_errors)
    create_ceremony_sync = blocking(create_ceremony)
    update_ceremony_sync = blocking(update_ceremony)
    pause_ceremony_sync = blocking(pause_ceremony)
    resume_ceremony_sync = blocking(resume_ceremony)
    delete_ceremony_sync = blocking(delete_ceremony)
    run_ceremony_sync = blocking(run_ceremony)
    dry_run_sync = blocking(dry_run)
    ceremony_runs_sync = blocking(ceremony_runs)
    list_agents_sync = blocking(list_agents)
    find_skills_sync = blocking(find_skills)
    chat_with_agent_sync = blocking(chat_with_agent)
    delegate_sync = blocking(delegate)
    chat_task_sync = blocking(chat_task)
    wait_for_task_sync = blocking(wait_for_task)
    whoami_sync = blocking(whoami)
    call_sync = blocking(call)
    submit_sync = blocking(submit)
    task_sync = blocking(task)
    tasks_sync = blocking(tasks)
    state_sync = blocking(state)
    wire_sync = blocking(wire)
    question_sync = blocking(question)
    cancel_sync = blocking(cancel)
    retry_sync = blocking(retry)
    retries_sync = blocking(retries)
    answer_sync = blocking(answer)
    veto_sync = blocking(veto)
    limits_sync = blocking(limits)
    raise_limit_sync = blocking(raise_limit)
    read_sync = blocking(read)
    get_sync = blocking(get)
    post_sync = blocking(post)

    async def _exchange(self, method: str, path: str, body: bytes, total_s: float) -> Any:
        await self._require_proof()
        limits = Limits(total_s=total_s, body_bytes_max=REPLY_BYTES_MAX)
        reply = await self._reach(self._request(method, path, body, limits))
        try:
            content = parse_untrusted(reply.body, bytes_max=REPLY_BYTES_MAX)
        except WireError:
            content = None
        if isinstance(content, dict) and reply.status < 300:
            return content.get("data", content)
        if not isinstance(content, dict) or not isinstance(content.get("error"), str):
            raise WireError(
                f"{self.url} does not reply as a hub does (HTTP {reply.status})",
                hint=f"check the address; if an agent is there, call it: fleetsim card {self.url}",
            )
        message = one_line(content["error"] or f"HTTP {reply.status}", 500)
        hint = one_line(str(content["hint"]), 300) if content.get("hint") else None
        if kind := _ERRORS.get(str(content.get("code"))):
            raise kind(message, hint=hint)
        if reply.status in {401, 403}:
            raise AuthRefused(message, status=reply.status, hint=hint)
        pause_s = retry_after_s(reply.headers, self.runtime.clock.now())
        raise HttpRefused(message, status=reply.status, hint=hint, retry_after_s=pause_s)

    async def _require_proof(self) -> None:
        if self._proof is None:
            return
        challenge = self.runtime.ids.secret()
        url = f"{self.url}/health?challenge={challenge}"
        limits = Limits(total_s=_PROOF_S, body_bytes_max=_PROOF_BYTES_MAX)
        try:
            reply = await self._reach(Request(method="GET", url=url, limits=limits))
            body = parse_untrusted(reply.body, bytes_max=_PROOF_BYTES_MAX)
        except (WireError, LimitReached):
            body = None
        given = str(body.get("proof")) if isinstance(body, dict) else ""
        if not hmac.compare_digest(given.encode(), prove(self._proof, self.url, challenge).encode()):
            raise Unreachable(
                f"who listens at {self.url} is not the hub that announced itself there, and was sent no key",
                hint="see what uses that port, then start the hub with `fleetsim up`",
            )

    async def _reach(self, request: Request) -> Reply:
        try:
            return await self.runtime.transport.exchange(request)
        except Unreachable as error:
            raise self._silent(error) from error

    def _silent(self, error: Unreachable) -> Unreachable:
        return Unreachable(f"the hub at {self.url} does not answer: {error}", hint=_START)

    def _request(self, method: str, path: str, body: bytes, limits: Limits, *, streaming: bool = False) -> Request:
        headers = {**self._credential.headers(), "content-type": "application/json"}
        url = f"{self.url}/api{path}"
        return Request(method=method, url=url, headers=headers, body=body, limits=limits, streaming=streaming)


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are not None, as a ceremony's file spells them: ``notifyChannel`` and ``in``."""
    from pydantic.alias_generators import to_camel

    plain = {to_camel(name.removesuffix("_")): value for name, value in keys.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def _read(kind: type[T], answer: Any) -> T:
    """The answer as a struct. Raises WireError if it is another one."""
    try:
        return convert(answer, kind)
    except ValidationError as error:
        raise WireError(f"the hub's answer is not as fleetsim {version('fleetsim')} knows it: {error}") from None


def _request_id(text: str) -> str:
    """The id as given. Raises UnknownTarget if no request can have it."""
    if not ID.fullmatch(text):
        raise UnknownTarget(f"no request “{one_line(text, 64)}” is known")
    return text


def _part(text: str) -> str:
    return quote(text, safe="")
