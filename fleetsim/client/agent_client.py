"""The public client: one agent, called in whatever dialect its card asks for.

The credential and the configured headers go to the configured origin and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from fleetsim.client.blocking import blocking
from fleetsim.client.card_trust import CardTrust
from fleetsim.client.credential import AgentCredentials, Credential, way_with
from fleetsim.client.follow import WAIT_S, Ask, FellBack, Following, OutgoingMessage, Retrying
from fleetsim.client.http import AgentHttp, AgentUrl, ClientLimits, FoundCard
from fleetsim.client.results import SentTask
from fleetsim.client.stream import EventStream
from fleetsim.client.ways import Ways
from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    GetExtendedCard,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
    TaskPush,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import (
    CardNotTrusted,
    ConfigError,
    HttpRefused,
    MethodNotFound,
    NoSharedInterface,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.model.extensions import doubts_of, required_extensions
from fleetsim.model.limits import check_text
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.task import Part, Task, TaskState
from fleetsim.runtime.ports import Runtime, Transport, Turns, WayOut
from fleetsim.runtime.real import real_runtime
from fleetsim.runtime.sse import StreamLimits
from fleetsim.wire import dialect as wire
from fleetsim.wire.choice import Choice, choose

if TYPE_CHECKING:
    from fleetsim.runtime.http_given import Given

T = TypeVar("T")


class AgentClient:
    """A client for one agent, in every dialect of A2A.

    ::

        async with AgentClient("http://localhost:8001", credential=Credential("bearer", "MY_KEY")) as agent:
            task = await agent.send_task("hello")
            print(task.state, task.text)

        print(AgentClient("http://localhost:8001").send_task_sync("hello").text)

    ``url`` is the agent's base address; with a path that of an agent mounted there, or else its exact endpoint
    (decision 0012); ``rpc_url`` and ``card_url`` pin endpoint and card, at the same origin. Without a ``runtime``
    the client makes a real one and closes it at the end. ``transport`` replaces its way out: an
    ``httpx.AsyncClient`` with authentication, proxies and hooks of its own, an ``httpx.ASGITransport`` for an agent
    in the same process (its streams arrive at their end), or another Transport. It stays its owner's, and a client of
    httpx keeps fewer promises (decision 15). ``way`` says how connections are made; a credential of mutual TLS adds its
    certificate. ``auth_token`` is a bearer token. ``dialect`` ("1.0", "0.3", "0.1") overrules the card, ``trust`` names
    its signers and whether it must be signed. ``card`` is the last one discovered or adopted, ``card_at`` its address.
    """

    def __init__(
        self,
        url: str,
        *,
        runtime: Runtime | None = None,
        transport: Given | None = None,
        credential: Credential | Iterable[Credential] | None = None,
        auth_token: str | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        dialect: str | None = None,
        extensions: tuple[str, ...] = (),
        trust: CardTrust | None = None,
        limits: ClientLimits | None = None,
        way: WayOut | None = None,
        rpc_url: str | None = None,
        card_url: str | None = None,
    ) -> None:
        self._address = AgentUrl.parse(url, rpc_url=rpc_url, card_url=card_url)
        self._given_runtime = runtime
        self._given_transport: Transport | None = None
        if transport is not None:
            from fleetsim.runtime.http_given import as_transport  # imports httpx, which commands do without

            self._given_transport = as_transport(transport)
        self._runtime_now: Runtime | None = None
        if auth_token is not None:
            if credential is not None:
                raise ConfigError("auth_token and credential are two ways to say one thing: give one")
            credential = Credential.of("bearer", auth_token)
        credentials = (credential,) if isinstance(credential, Credential) else tuple(credential or ())
        self._way = way_with(credentials, way)
        self.credentials = AgentCredentials(credentials, self.where)
        self._pinned = wire.dialect(dialect).name if dialect is not None else None
        self.limits = limits or ClientLimits()
        self._http = AgentHttp(
            address=self._address,
            limits=self.limits,
            headers={name.lower(): value for name, value in dict(headers).items()},
            credentials=self.credentials,
            extensions=extensions,
            trust=trust or CardTrust(),
        )
        self._extensions = extensions
        self.extended_refused = ""
        self._public: AgentCard | None = None
        self.card: AgentCard | None = None
        self.card_at = ""
        self._etag = ""
        self._spoken = ""
        self._choice: Choice | None = None
        self._ways = Ways()
        self._discovering = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._address.text

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return self._address.where

    @property
    def spoken(self) -> str:
        """The dialect the agent turned out to speak though its card reads otherwise; "" while it does as it says."""
        return self._choice.dialect_name if self._choice is not None and self._choice.instead_of else ""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings of the card that concern each request to the agent."""
        return doubts_of(self.card, self._extensions)

    @property
    def runtime(self) -> Runtime:
        """The runtime in use: the one given, with the transport given, else a real one made at first need."""
        if self._runtime_now is None:
            runtime = self._given_runtime or real_runtime()
            transport = self._given_transport or runtime.transport
            transport = transport if self._way is None else transport.through(self._way)
            self._runtime_now = runtime if transport is runtime.transport else replace(runtime, transport=transport)
        return self._runtime_now

    async def __aenter__(self) -> AgentClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of a runtime the client made itself; one that was given is left alone."""
        if self._runtime_now is not None and self._given_runtime is None and self._given_transport is None:
            await self._runtime_now.transport.aclose()
            self._runtime_now = None

    # -- card and dialect

    async def discover(
        self, refresh: bool = False, *, where_found: bool = False, timeout_s: float | None = None
    ) -> AgentCard:
        """The agent's card, fetched once; ``refresh`` looks for it again wherever a card may be. ``timeout_s`` replaces
        the limit for it. With ``where_found`` it is requested where it was, and looked for only if it is gone.

        With a credential, the extended card replaces it (A2A 0.3 section 7.10, 1.0 section 3.1.11) if the agent offers
        one. If that is refused or missing, the public card stays, and a warning of ``choice`` has the reason.

        Raises:
            AuthRefused, HttpRefused, WireError, TransportError, LimitReached: no card could be had. A card already
            known stays in use.
            CardNotTrusted: a required signature is missing or failed. No earlier card counts any more.
        """
        before = self.card
        async with self._discovering:
            if self.card is not None and (not refresh or self.card is not before):
                return self.card
            public = self._public or self.card
            known = FoundCard(public, self.card_at, self._etag) if where_found and public is not None else None
            try:
                found = await self._http.fetch_card(self.runtime, known, timeout_s)
            except CardNotTrusted:
                self.card = self._public = self._choice = None
                raise
            if self.card is None:
                self.adopt(found.card, found.url)
            way = self._choose(found.card, found.url)
            extended, self.extended_refused = await self._http.extended_card(self.runtime, found.card, way, timeout_s)
            if found is not known or extended != self.card:
                self.adopt(extended, found.url)
            self._public, self._etag = found.card, found.etag
            return extended

    async def card_if_any(self, timeout_s: float | None = None) -> AgentCard | None:
        """The agent's card, fetched once; None without one if its dialect is pinned. Else as ``discover``."""
        try:
            return await self.discover(timeout_s=timeout_s)
        except (HttpRefused, WireError):
            if self._pinned is None:
                raise
            return None

    def adopt(self, card: AgentCard, found_at: str = "") -> Choice:
        """Use ``card`` from now on, as if discovered at ``found_at``, and say how the agent will be called."""
        if self.card is not None and card.interfaces != self.card.interfaces:
            self._spoken = ""  # another card may be a mended one
            self._ways.forget()
        self._choice = self._choose(card, found_at)
        self.card, self.card_at, self._etag, self._public = card, found_at, "", None
        self._http.requested = in_words(requested_schemes(card))
        self._http.extensions = tuple(dict.fromkeys((*self._extensions, *required_extensions(card)[0])))
        return self._choice

    def speak(self, dialect_name: str) -> None:
        """Call the agent in this dialect from now on, whatever its card reads as, unless the operator said one."""
        if self._pinned is None and dialect_name in wire.DIALECTS and wire.DIALECTS[dialect_name].guessed:
            self._spoken = dialect_name
            if self.card is not None:
                self._choice = self._choose(self.card, self.card_at)

    def _choose(self, card: AgentCard, found_at: str) -> Choice:
        at = self._address
        chosen = choose(card, at.text, found_at=found_at, rpc_url=at.rpc_url, dialect_name=self._pinned)
        if self._spoken not in {"", chosen.dialect_name}:
            chosen = chosen.speaking(self._spoken)
        refused = (why := self.extended_refused) and f"its extended card was not read, so its public card counts: {why}"
        warnings = (*doubts_of(card, self._extensions), *filter(None, [refused]))
        return structs.replace(chosen, warnings=(*chosen.warnings, *warnings)) if warnings else chosen

    async def choice(self, timeout_s: float | None = None) -> Choice:
        """How the agent is called: dialect and address. Discovers if need be.

        An agent whose dialect is pinned and that has no card is called at the configured address. ``timeout_s`` and
        errors as for ``discover``.
        """
        if self._choice is not None:
            return self._choice
        card = await self.card_if_any(timeout_s)
        return self._choice or self._choose(card or AgentCard(name=""), self.card_at)

    # -- calls

    async def call(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        choice: Choice | None = None,
        turns: Turns | None = None,
    ) -> wire.Reply:
        """Carry out one call that is answered at once.

        ``headers`` are added to this request (trace headers). ``timeout_s`` is the limit for the reply and, if the card
        must be read first, for the card; without it a send has no limit, since an agent may reply when the work is
        done, and other calls have that of ``limits``. ``choice`` calls the agent as it was chosen earlier, whatever its
        card and the configuration say by now; ``turns`` says when to read on in a large answer.

        Raises:
            RpcError: the agent's refusal, as the class of its code.
            AuthRefused, HttpRefused: a status instead of an answer.
            WireError, LimitReached: an answer that is not the protocol.
            TransportError: no answer; ``sent`` says whether the agent may have acted.
            ConfigError: the credential is not there.
            BlockedAddress: ``choice`` is of another origin.
            NoSharedInterface: the card offers nothing that fleetsim speaks; nothing was sent.
            TooMuchText: a message longer than ``text_chars_max``; nothing was sent.
        """
        reply, _ = await self.call_raw(call, headers=headers, timeout_s=timeout_s, choice=choice, turns=turns)
        return reply

    async def call_raw(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        choice: Choice | None = None,
        turns: Turns | None = None,
    ) -> tuple[wire.Reply, Any]:
        """As ``call``, with the undecoded ``result`` beside the reply.

        A send or read whose dialect the agent refuses is made once more in the other one, since nothing was done. If
        that works, the agent is called so from then on."""
        out = await self._way_out(call, choice, timeout_s)
        return await self._first_known(
            call, out, choice, lambda way, _: self._http.call(self.runtime, call, way, headers, timeout_s, turns)
        )

    async def _first_known(
        self, call: Call, out: Choice, choice: Choice | None, make: Callable[[Choice, str], Awaitable[T]]
    ) -> T:
        """The result in the first way that the agent knows. A refusal says where the card's address may be to blame."""
        others = self._choice.others if choice is None and self._choice is not None else ()
        try:
            result, way = await self._ways.first_known(call, out, others, make)
        except (HttpRefused, WireError, MethodNotFound) as error:
            doubt = self._choice.doubt if self._choice is not None else ""
            if doubt and doubt not in str(error):  # calls may share the failure of a token
                error.args = (f"{error}; {doubt}",)
            raise
        if way.dialect_name != out.dialect_name:
            self.speak(way.dialect_name)
        return result

    async def _way_out(self, call: Call, choice: Choice | None, timeout_s: float | None = None) -> Choice:
        """How a call is made. Raises TooMuchText, and NoSharedInterface if the agent offers no way for it."""
        if isinstance(call, SendMessage):
            check_text(call.message.text, "the message", self.limits.text_chars_max)
            if self._http.trust.required and self.card is None:
                await self.discover(timeout_s=timeout_s)  # a ``choice`` may be of a card that does not count any more
        out = choice or self._choice or await self.choice(timeout_s)
        if out.no_way:
            raise NoSharedInterface(f"{self.where}: {out.no_way}")
        return out

    @asynccontextmanager
    async def events(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        limits: StreamLimits | None = None,
        choice: Choice | None = None,
        turns: Turns | None = None,
    ) -> AsyncIterator[EventStream]:
        """Open the stream of a send or subscription; leaving the context drops the connection.

        A send waits for the response and its first event for as long as its caller does. ``turns`` says when to read
        on. An agent that answers with plain JSON yields one event. The other dialect is tried as ``call_raw`` does.
        Entering raises as ``call`` does; iterating raises RpcError, WireError, LimitReached and TransportError.
        """
        if isinstance(call, SendMessage) and call.operation is Operation.SEND:
            call = structs.replace(call, operation=Operation.STREAM)
        limits = limits or self.limits.stream
        out = await self._way_out(call, choice)
        async with AsyncExitStack() as opened:
            yield await self._first_known(
                call,
                out,
                choice,
                lambda way, method: opened.enter_async_context(
                    self._http.stream(self.runtime, call, way, headers, limits, turns, method=method)
                ),
            )

    @asynccontextmanager
    async def twin(self, *, alone: bool) -> AsyncIterator[AgentClient]:
        """The same client with connections of its own, for one call in another loop; what it learns is kept.

        They are closed after it, those of a transport that was given too if it was ``alone`` in using that.
        """
        twin = copy(self)
        twin._given_runtime = twin._runtime_now = None
        twin._discovering = asyncio.Lock()
        twin._http = replace(self._http, credentials=self._http.credentials.twin())
        try:
            async with twin:
                yield twin
        finally:
            self.card, self.card_at = twin.card, twin.card_at
            self._etag, self._spoken, self._choice = twin._etag, twin._spoken, twin._choice
            self._public, self.extended_refused = twin._public, twin.extended_refused
            self._http.requested, self._http.extensions = twin._http.requested, twin._http.extensions
            if alone and self._given_transport is not None:
                await self._given_transport.aclose()

    # -- in plain words

    async def send_task(
        self,
        text: str,
        *,
        task_id: str | None = None,
        context_id: str | None = None,
        parts: tuple[Part, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        push: PushConfig | None = None,
        headers: Mapping[str, str] | None = None,
        wait: bool = True,
        timeout_s: float | None = WAIT_S,
        answers: Task | None = None,
    ) -> SentTask:
        """Send ``text`` (and ``parts``) and, unless ``wait`` is false, poll until it is done or waits for somebody.

        ``task_id`` and ``context_id`` continue a task or conversation. ``timeout_s`` is for all of it, the card and the
        first reply included: some agents reply when the work is done. The task is left as it is then. ``answers`` is
        the task as it asked: an agent that shows the same question still, because it has not moved yet, is waited for.
        A refusal that names ``push`` is sent once more without it, with a line in ``warnings``. Raises LimitReached if
        the files, data and metadata are more than one message may carry (nothing was sent), and TimedOut, which names
        the task.
        """
        outgoing = OutgoingMessage(
            text=text, parts=parts, task_id=task_id, context_id=context_id, metadata=metadata or {}, push=push
        )
        following = Following(self, outgoing, headers=headers, answers=answers, timeout_s=timeout_s)
        return await (following.end() if wait else following.first())

    def follow(
        self,
        text: str,
        *,
        skill: str | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        parent_id: str | None = None,
        parts: tuple[Part, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = True,
        answers: Task | None = None,
        ask: Ask | None = None,
        fell_back: FellBack = lambda _: None,
        retrying: Retrying = lambda *_: None,
        timeout_s: float | None = WAIT_S,
    ) -> Following:
        """Send ``text`` (and ``parts``) and follow what comes of it: iterate for the task after each piece of news.

        ::

            async for task in agent.follow("Plan the week."):
                print(task.state, task.text)

        It is streamed if the agent says that it streams (and ``stream``), else polled; polls follow a stream that
        breaks off, and ``fell_back`` gets the reason. A call that an overloaded agent refuses (429, 503) is repeated,
        unless the agent asks for a pause beyond ``timeout_s``; ``retrying`` is called before each pause.
        Without a ``skill`` the card decides which one the message names. ``parent_id`` is the id of the work that this
        is a step of, for the agent (``parentId``, ``X-Parent-Id``). ``task_id`` and ``context_id`` continue a task or
        conversation; an answer to a question goes out in the form that the task asks for. ``answers`` is the task as it
        asked, read from the agent if it is not given. ``ask`` is awaited with a task that asks for input, and the
        words or parts it returns are sent on that task; None, or no ``ask``, ends the following there. ``timeout_s`` is
        for all of it: the card, each reply, the answers.

        Raises:
            UnfitAnswer: an answer's data is not what the task's schema asks for; it was not sent.
            TimedOut: not ended by ``timeout_s``; the task is left as it is.
            EmptyStream: the agent ended the stream without an event; it may still be at work.
            FleetsimError: as ``call`` does.
        """
        if parent_id:
            metadata = {**(metadata or {}), "parentId": parent_id}
            headers = {**(headers or {}), "X-Parent-Id": parent_id}
        outgoing = OutgoingMessage(text=text, parts=parts, task_id=task_id, context_id=context_id, metadata=metadata)
        return Following(
            self,
            outgoing,
            headers=headers,
            streamed=stream,
            hinted=True,
            skill=skill,
            answers=answers,
            ask=ask,
            fell_back=fell_back,
            retrying=retrying,
            timeout_s=timeout_s,
        )

    def follow_task(
        self,
        task: str | Task,
        *,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        ask: Ask | None = None,
        fell_back: FellBack = lambda _: None,
        timeout_s: float | None = WAIT_S,
    ) -> Following:
        """Look at a task the agent has, by its id or as it was seen last, until it ends or asks; as ``follow``. With
        ``stream`` it joins the task's stream after the first look, if the agent streams."""
        return Following(
            self,
            task=task,
            headers=headers,
            streamed=stream,
            hinted=True,
            ask=ask,
            fell_back=fell_back,
            timeout_s=timeout_s,
        )

    async def stream(
        self,
        text: str,
        *,
        task_id: str | None = None,
        context_id: str | None = None,
        parts: tuple[Part, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[TaskEvent]:
        """Send ``text`` and yield the agent's events as they arrive. Close the iterator if you stop early. Raises
        EmptyStream if the agent ends the stream without an event; it may still be at work.
        """
        outgoing = OutgoingMessage(text=text, parts=parts, task_id=task_id, context_id=context_id, metadata=metadata)
        async with self.events(outgoing.call(self.runtime.ids.new()), headers=headers) as events:
            async for event in events:
                yield event

    async def resubscribe(self, task_id: str, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[TaskEvent]:
        """Join the stream of a running task."""
        async with self.events(SubscribeToTask(task_id=task_id), headers=headers) as events:
            async for event in events:
                yield event

    async def get(
        self, task_id: str, *, history_length: int | None = None, headers: Mapping[str, str] | None = None
    ) -> SentTask:
        call = GetTask(task_id=task_id, history_length=history_length)
        return SentTask.of(*await self.call_raw(call, headers=headers))

    async def cancel(self, task_id: str, *, headers: Mapping[str, str] | None = None) -> SentTask:
        """Ask the agent to stop a task."""
        return SentTask.of(*await self.call_raw(CancelTask(task_id=task_id), headers=headers))

    async def set_push(self, task_id: str, config: PushConfig) -> TaskPush:
        return await self._expect(TaskPush, SetPush(task_id=task_id, config=config), "a webhook")

    async def get_push(self, task_id: str, config_id: str | None = None) -> TaskPush:
        return await self._expect(TaskPush, GetPush(task_id=task_id, config_id=config_id), "a webhook")

    async def list_push(self, task_id: str) -> tuple[TaskPush, ...]:
        return await self._expect(tuple, ListPush(task_id=task_id), "a list of webhooks")

    async def delete_push(self, task_id: str, config_id: str | None = None) -> None:
        await self.call(DeletePush(task_id=task_id, config_id=config_id))

    async def list_tasks(
        self,
        *,
        context_id: str | None = None,
        state: TaskState | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> TaskPage:
        """One page of tasks (1.0 alone)."""
        call = ListTasks(context_id=context_id, state=state, page_size=page_size, page_token=page_token)
        return await self._expect(TaskPage, call, "a page of tasks")

    async def extended_card(self) -> AgentCard:
        """The card that only authenticated callers see."""
        return await self._expect(AgentCard, GetExtendedCard(), "a card")

    async def _expect(self, kind: type[T], call: Call, what: str) -> T:
        reply = await self.call(call)
        if not isinstance(reply, kind):
            raise WireError(f"{self.where}: the reply is not {what}")
        return reply

    # -- blocking twins

    async def _stream_whole(self, /, text: str, **options: Any) -> tuple[TaskEvent, ...]:
        return tuple([event async for event in self.stream(text, **options)])

    discover_sync = blocking(discover)
    send_task_sync = blocking(send_task)
    stream_sync = blocking(_stream_whole)
    get_sync = blocking(get)
    cancel_sync = blocking(cancel)
    set_push_sync = blocking(set_push)
    get_push_sync = blocking(get_push)
    list_push_sync = blocking(list_push)
    delete_push_sync = blocking(delete_push)
    list_tasks_sync = blocking(list_tasks)
    extended_card_sync = blocking(extended_card)
