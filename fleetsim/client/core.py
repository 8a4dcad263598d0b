"""One agent, called in whatever dialect its card asks for: discover, call, stream.

The credential and the configured headers go to the configured origin and nowhere else. Ids come from the
runtime; nothing here waits but for the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fleetsim.client.address import AgentUrl
from fleetsim.client.answer import AnswerRequest, is_event_stream, read_result, wire_error
from fleetsim.client.credential import Credential
from fleetsim.client.discovery import fetch_card
from fleetsim.client.redirect import open_following
from fleetsim.client.stream import EventStream
from fleetsim.model.call import Call, SendMessage, SubscribeToTask, operation_of
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import ConfigError, HttpRefused, MethodNotFound, VersionNotSupported, WireError
from fleetsim.model.limits import TEXT_CHARS_MAX, WIRE_BYTES_MAX, check_text
from fleetsim.runtime.exchange import BoundedChunks, deadline_of, exchange, read_whole
from fleetsim.runtime.http_given import Given, as_transport
from fleetsim.runtime.http_sse import StreamLimits, Turns, read_events
from fleetsim.runtime.ports import Incoming, Limits, Request, Runtime
from fleetsim.runtime.real import real_runtime
from fleetsim.wire import dialect as wire
from fleetsim.wire.jsonrpc import request as rpc_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a client allows an agent: deadlines in seconds, sizes in bytes (docs/reference/limits.md)."""

    connect_s: float = 3.0
    first_byte_s: float = 10.0
    total_s: float = 15.0
    card_bytes_max: int = 256 * 1024
    body_bytes_max: int = WIRE_BYTES_MAX
    text_chars_max: int = TEXT_CHARS_MAX
    stream: StreamLimits = field(default_factory=StreamLimits)

    def for_call(self, timeout_s: float | None) -> Limits:
        """The limits of one exchange; ``timeout_s`` replaces both deadlines for the answer."""
        return Limits(
            connect_s=self.connect_s,
            first_byte_s=timeout_s or self.first_byte_s,
            total_s=timeout_s or self.total_s,
            body_bytes_max=self.body_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    request: Request
    asked: AnswerRequest
    dialect: wire.Dialect


class AgentCaller:
    """What every form of client has in common; see ``AgentClient``."""

    def __init__(
        self,
        url: str,
        *,
        runtime: Runtime | None = None,
        transport: Given | None = None,
        credential: Credential | None = None,
        auth_token: str | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        dialect: str | None = None,
        extensions: tuple[str, ...] = (),
        limits: ClientLimits | None = None,
        rpc_url: str | None = None,
        card_url: str | None = None,
    ) -> None:
        self._address = AgentUrl.parse(url, rpc_url=rpc_url, card_url=card_url)
        self._given_runtime = runtime
        self._given_transport = None if transport is None else as_transport(transport)
        self._runtime_now: Runtime | None = None
        if auth_token is not None:
            if credential is not None:
                raise ConfigError("auth_token and credential are two ways to say one thing: give one")
            credential = Credential.of("bearer", auth_token)
        self._credential = credential
        self._headers = {name.lower(): value for name, value in dict(headers).items()}
        self._pinned = wire.dialect(dialect).name if dialect is not None else None
        self._extensions = extensions
        self.limits = limits or ClientLimits()
        self._card: AgentCard | None = None
        self._card_at = ""
        self._spoken = ""
        self._choice: wire.Choice | None = None
        self._discovering = asyncio.Lock()

    @property
    def url(self) -> str:
        """The configured address."""
        return self._address.text

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return self._address.where

    @property
    def card(self) -> AgentCard | None:
        """The card last discovered or adopted."""
        return self._card

    @property
    def card_at(self) -> str:
        """The address of that card; "" if nobody told."""
        return self._card_at

    @property
    def spoken(self) -> str:
        """The dialect the agent turned out to speak though its card reads otherwise; "" while it does as it says."""
        return self._choice.dialect_name if self._choice is not None and self._choice.instead_of else ""

    @property
    def runtime(self) -> Runtime:
        """The runtime in use: the one given, with the transport given, else a real one made at first need."""
        if self._runtime_now is None:
            runtime = self._given_runtime or real_runtime()
            self._runtime_now = replace(runtime, transport=self._given_transport) if self._given_transport else runtime
        return self._runtime_now

    async def aclose(self) -> None:
        """Close the connections of a runtime the client made itself; one that was given is left alone."""
        if self._runtime_now is not None and self._given_runtime is None and self._given_transport is None:
            await self._runtime_now.transport.aclose()
            self._runtime_now = None

    async def discover(self, refresh: bool = False) -> AgentCard:
        """The agent's card, fetched once; ``refresh`` fetches it again.

        Raises:
            AuthRefused, HttpRefused, WireError, TransportError, LimitReached: no card could be had. A card
            already known stays in use.
        """
        before = self._card
        async with self._discovering:
            if self._card is not None and (not refresh or self._card is not before):
                return self._card
            card, found_at = await fetch_card(
                self.runtime,
                self._address,
                headers={**self._headers, **self._credential_headers()},
                limits=replace(self.limits.for_call(None), body_bytes_max=self.limits.card_bytes_max),
                credential=self._credential.source if self._credential else None,
            )
            self.adopt(card, found_at)
            return card

    async def card_if_any(self) -> AgentCard | None:
        """The agent's card, fetched once; None if it has none and its dialect is pinned, so that it can be called.

        Raises as ``discover``.
        """
        try:
            return await self.discover()
        except (HttpRefused, WireError):
            if self._pinned is None:
                raise
            return None

    def adopt(self, card: AgentCard, found_at: str = "") -> wire.Choice:
        """Use ``card`` from now on, as if discovered at ``found_at``, and say how the agent will be called."""
        if self._card is not None and card.interfaces != self._card.interfaces:
            self._spoken = ""  # another card may be a mended one
        self._choice = self._choose(card, found_at)
        self._card, self._card_at = card, found_at
        return self._choice

    def speak(self, dialect_name: str) -> None:
        """Call the agent in this dialect from now on, whatever its card reads as, unless the operator said one."""
        if self._pinned is None and dialect_name in {"0.3", "1.0"}:
            self._spoken = dialect_name
            if self._card is not None:
                self._choice = self._choose(self._card, self._card_at)

    def _choose(self, card: AgentCard, found_at: str) -> wire.Choice:
        chosen = self._as_the_card_says(card, found_at)
        return chosen.otherwise() if self._spoken not in {"", chosen.dialect_name} else chosen

    def _as_the_card_says(self, card: AgentCard, found_at: str) -> wire.Choice:
        address = self._address
        return wire.choose(card, address.text, found_at=found_at, rpc_url=address.rpc_url, dialect_name=self._pinned)

    async def choice(self) -> wire.Choice:
        """How the agent is called: dialect and address. Discovers if need be.

        An agent whose dialect is pinned and that has no card is called at the configured address.

        Raises as ``discover``.
        """
        if self._choice is not None:
            return self._choice
        card = await self.card_if_any()
        if card is None:
            return self._choose(AgentCard(name=""), "")
        return self._choice or self.adopt(card, self._card_at)

    async def call(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        choice: wire.Choice | None = None,
    ) -> wire.Reply:
        """Carry out one call that is answered at once.

        ``headers`` are added to this request (trace headers); ``timeout_s`` replaces the deadline for the
        answer, for agents that answer when the work is done; ``choice`` calls the agent as it was chosen
        earlier, at the configured origin, whatever its card and the configuration say by now.

        Raises:
            RpcError: the agent's refusal, as the class of its code.
            AuthRefused, HttpRefused: a status instead of an answer.
            WireError, LimitReached: an answer that is not the protocol.
            TransportError: no answer; ``sent`` says whether the agent may have acted.
            ConfigError: the credential is not there.
            BlockedAddress: ``choice`` is of another origin.
            TooMuchText: a message longer than ``text_chars_max``; nothing was sent.
        """
        reply, _ = await self.call_raw(call, headers=headers, timeout_s=timeout_s, choice=choice)
        return reply

    async def call_raw(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        choice: wire.Choice | None = None,
    ) -> tuple[wire.Reply, Any]:
        """As ``call``, with the undecoded ``result`` beside the reply.

        A send that the agent does not know in the dialect of its card is made once more in the other one: an answer
        of -32601 or -32009 says that nothing was done. Where that is known, the agent is called so from then on.
        """
        try:
            return await self._call_once(call, headers, timeout_s, choice)
        except (MethodNotFound, VersionNotSupported):
            chosen = self._choice
            if not isinstance(call, SendMessage) or choice is not None or chosen is None or chosen.other is None:
                raise
            try:
                answer = await self._call_once(call, headers, timeout_s, chosen.other)
            except (MethodNotFound, VersionNotSupported):
                answer = None
            if answer is None:
                raise
        self.speak(chosen.other.dialect_name)
        return answer

    async def _call_once(
        self, call: Call, headers: Mapping[str, str] | None, timeout_s: float | None, choice: wire.Choice | None
    ) -> tuple[wire.Reply, Any]:
        made = await self._prepare(call, headers, self.limits.for_call(timeout_s), choice)
        answer = await exchange(self._open, made.request, self.runtime.room)
        now = self.runtime.clock.now()
        result = read_result(made.asked, answer.status, answer.headers, answer.body, now)
        try:
            return made.dialect.decode_reply(operation_of(call), result), result
        except WireError as error:
            raise wire_error(self.where, str(error), answer.headers, answer.body) from error

    @asynccontextmanager
    async def events(
        self,
        call: Call,
        *,
        headers: Mapping[str, str] | None = None,
        limits: StreamLimits | None = None,
        choice: wire.Choice | None = None,
        turns: Turns | None = None,
    ) -> AsyncIterator[EventStream]:
        """Open the stream of a send or subscription; leaving the context drops the connection.

        ``turns`` says when to read on. An agent that answers with plain JSON yields one event. Entering raises as
        ``call`` does; iterating raises RpcError, WireError, LimitReached and TransportError.
        """
        if isinstance(call, SendMessage) and not call.streaming:
            call = replace(call, streaming=True)
        allowed = limits or self.limits.stream
        made = await self._prepare(
            call,
            headers,
            replace(self.limits.for_call(None), total_s=None, body_bytes_max=allowed.stream_bytes_max),
            choice,
            streaming=True,
        )
        async with self._open(made.request) as incoming:
            if incoming.status == 200 and is_event_stream(incoming.headers):
                document = self.runtime.room.document(self.where)
                frames, joins = (
                    read_events(incoming, limits=allowed, turns=turns, document=document),
                    isinstance(call, SubscribeToTask),
                )
                stream = EventStream(frames, made.asked, made.dialect, joins=joins)
            else:
                stream = await self._plain_answer(made, incoming)
            async with aclosing(stream):
                yield stream

    def _open(self, request: Request) -> AbstractAsyncContextManager[Incoming]:
        return open_following(self.runtime, self._address, request)

    async def _plain_answer(self, made: _Prepared, incoming: Incoming) -> EventStream:
        """JSON where a stream was expected: an error, or one event (interop.md section 7)."""
        body = await self._read(incoming)
        now = self.runtime.clock.now()
        result = read_result(made.asked, incoming.status, incoming.headers, body, now)
        try:
            event = made.dialect.decode_event(result)
        except WireError as error:
            raise wire_error(self.where, str(error), incoming.headers, body) from error
        return EventStream.single(event, made.asked, made.dialect)

    async def _read(self, incoming: Incoming) -> bytes:
        limits = self.limits.for_call(None)
        chunks = BoundedChunks(incoming.chunks, limits=limits, deadline=deadline_of(limits), where=self.where)
        return await read_whole(chunks, self.runtime.room, owner=self.where)

    async def _prepare(
        self,
        call: Call,
        headers: Mapping[str, str] | None,
        limits: Limits,
        chosen: wire.Choice | None,
        *,
        streaming: bool = False,
    ) -> _Prepared:
        if isinstance(call, SendMessage):
            check_text(call.message.text, "the message", self.limits.text_chars_max)
        choice = chosen if chosen is not None else await self.choice()
        dialect = wire.dialect(choice.dialect_name)
        call = self._fitted(call, choice.dialect_name)
        method, params = dialect.encode_call(call)
        if choice.tenant is not None:
            params = {**params, "tenant": choice.tenant}
        request_id = self.runtime.ids.new()
        self._address.require(choice.url)
        request = Request(
            method="POST",
            url=choice.url,
            headers=self._request_headers(call, dialect, headers),
            body=rpc_body(request_id, method, params),
            limits=limits,
            streaming=streaming,
        )
        source = self._credential.source if self._credential else None
        asked = AnswerRequest(request_id=request_id, dialect_name=dialect.name, where=self.where, credential=source)
        return _Prepared(request, asked, dialect)

    def _fitted(self, call: Call, dialect_name: str) -> Call:
        """In 0.1 the client names the task."""
        if dialect_name == "0.1" and isinstance(call, SendMessage) and call.task_id is None:
            return replace(call, task_id=call.message.task_id or self.runtime.ids.new())
        return call

    def _request_headers(
        self, call: Call, dialect: wire.Dialect, headers: Mapping[str, str] | None
    ) -> Mapping[str, str]:
        """Configured headers first, then the call's, the dialect's and the credential, which nothing overrides."""
        merged = dict(self._headers)
        merged.update((name.lower(), value) for name, value in (headers or {}).items())
        merged.update((name.lower(), value) for name, value in dialect.headers(operation_of(call)).items())
        if self._extensions:
            merged[dialect.extensions_header.lower()] = ", ".join(self._extensions)
        merged["content-type"] = "application/json"
        merged.update(self._credential_headers())
        return merged

    def _credential_headers(self) -> Mapping[str, str]:
        return self._credential.headers() if self._credential is not None else {}
