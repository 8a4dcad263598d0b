"""HTTP with an agent: its address, credential and limits, redirects, the meaning of a response; calls, and the card.

The status comes first, then the body: peers refuse with a status alone, with a JSON-RPC error under any
status, or with a page of HTML, and the three must not be taken for each other (interop.md section 7).
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from msgspec import structs

from fleetsim.client.card_trust import CardTrust
from fleetsim.client.credential import AgentCredentials
from fleetsim.client.stream import AnswerRequest, EventStream, read_event
from fleetsim.model.call import Call, GetExtendedCard, SendMessage, SubscribeToTask
from fleetsim.model.card import AgentCard, ProofState
from fleetsim.model.errors import (
    AuthRefused,
    BlockedAddress,
    BodyTooLarge,
    ConfigError,
    FleetsimError,
    HttpRefused,
    MethodNotFound,
    TaskNotFound,
    WireError,
)
from fleetsim.model.limits import LARGE_JSON_BYTES, TEXT_CHARS_MAX, WIRE_BYTES_MAX
from fleetsim.model.task import Message, Task
from fleetsim.model.text import one_line
from fleetsim.runtime.exchange import BoundedChunks, deadline_of, read_whole, tls_advice, too_large
from fleetsim.runtime.ports import IncomingResponse, Limits, Request, Runtime, Turns
from fleetsim.runtime.ports import Reply as HttpReply
from fleetsim.runtime.retry import retry_after_s
from fleetsim.runtime.sse import StreamLimits, is_event_stream, read_events, recognised
from fleetsim.wire.binding import read_result as read_answer
from fleetsim.wire.binding import write_call
from fleetsim.wire.choice import Choice, origin_of
from fleetsim.wire.dialect import CARD_HEADERS, Reply, dialect
from fleetsim.wire.json import parse_untrusted

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card may be, newest first (A2A 0.3 section 5.3 and 0.2)."""

_PLAIN = re.compile(r"[\x21-\x7e]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class AgentUrl:
    """A configured address, checked once. ``rpc_url`` and ``card_url`` pin endpoint and card; "" leaves them."""

    text: str
    origin: tuple[str, str, int]
    where: str
    rpc_url: str = ""
    card_url: str = ""

    @classmethod
    def parse(cls, url: str, *, rpc_url: str | None = None, card_url: str | None = None) -> AgentUrl:
        """Check an address: http or https, a host, no userinfo, no fragment; what is pinned is at its origin. Raises
        ConfigError with the rule, without the address: that may hold a password.
        """
        url, origin = check_url(url, "the agent's url")
        pinned = []
        for given, name in ((rpc_url, "rpcUrl"), (card_url, "cardUrl")):
            text, its_origin = check_url(given, name) if given is not None else ("", origin)
            if its_origin != origin:
                raise ConfigError(
                    f"{name} must be at the origin of the agent's url: the same scheme, host and port",
                    hint="the credential belongs to one origin; configure the other one as the agent's url",
                )
            pinned.append(text)
        _, host, port = origin
        where = one_line(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", 120)
        return cls(url, origin, where, *pinned)

    def card_urls(self) -> tuple[str, ...]:
        """Where to look for the card, in order: below the configured path, beside it, at the root; or where pinned."""
        if self.card_url:
            return (self.card_url,)
        parts = urlsplit(self.text)
        root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        bases = (path, path.removesuffix("/a2a").rstrip("/"), "")
        return tuple(dict.fromkeys(root + base + card for base in bases for card in CARD_PATHS))

    def require(self, url: str) -> None:
        """Raises BlockedAddress for another origin: nothing of ours, the credential least of all, goes there."""
        if origin_of(url) != self.origin:
            raise BlockedAddress(f"{self.where}: a call to another address than the configured one was refused")


def check_url(url: str, name: str) -> tuple[str, tuple[str, str, int]]:
    """An address and its origin; ``name`` is what it is, for the message. Raises ConfigError."""
    url = url.strip()
    if not _PLAIN.fullmatch(url) or "\\" in url or "#" in url:
        raise ConfigError(f"{name} must be plain ASCII without spaces, backslashes or #")
    origin = origin_of(url)
    if origin is None or "@" in urlsplit(url).netloc:
        raise ConfigError(f"{name} must be http:// or https:// with a host and without a password")
    return url, origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits for an agent: deadlines in seconds, sizes in bytes (docs/reference/limits.md).

    ``total_s`` is for calls that an agent answers at once: its card, a look at a task, a cancel. A send may take as
    long as the work: the caller's ``timeout_s`` alone limits it.
    """

    connect_s: float = 3.0
    total_s: float = 15.0
    card_bytes_max: int = 1024 * 1024
    body_bytes_max: int = WIRE_BYTES_MAX
    text_chars_max: int = TEXT_CHARS_MAX
    stream: StreamLimits = field(default_factory=StreamLimits)

    def for_call(self, call: Call | None = None, timeout_s: float | None = None) -> Limits:
        """The limits of a call, or of a card without one. ``timeout_s`` replaces the deadline for the answer."""
        total_s = None if isinstance(call, SendMessage) else self.total_s
        return Limits(connect_s=self.connect_s, total_s=timeout_s or total_s, body_bytes_max=self.body_bytes_max)


# -- redirects ---------------------------------------------------------------------------------------------------
# Within the agent's origin one is followed, once; every other is an error that names where it leads. A card is read
# wherever a 3xx leads. A call is repeated for 307 and 308 alone: those say that nothing was done and that the same
# request is wanted elsewhere, where after 301, 302 and 303 clients ask with a GET.

REPEATED = frozenset({307, 308})
"""The statuses after which a call is repeated as it was (RFC 9110 section 15.4)."""


async def exchange_following(runtime: Runtime, address: AgentUrl, request: Request) -> HttpReply:
    """Send a request and follow one redirect, both within ``total_s``. Raises as the transport."""
    began = runtime.clock.monotonic()
    reply = await runtime.transport.exchange(request, runtime.room)
    instead = followed(address, request.method, request.url, reply.status, reply.headers)
    if instead is None:
        return reply
    return await runtime.transport.exchange(_again(request, instead, runtime.clock.monotonic() - began), runtime.room)


@asynccontextmanager
async def open_following(runtime: Runtime, address: AgentUrl, request: Request) -> AsyncIterator[IncomingResponse]:
    """As ``exchange_following``, for a response that is read as it arrives."""
    began = runtime.clock.monotonic()
    async with runtime.transport.open(request) as incoming:
        instead = followed(address, request.method, request.url, incoming.status, incoming.headers)
        if instead is None:
            yield incoming
            return
    again = _again(request, instead, runtime.clock.monotonic() - began)
    async with runtime.transport.open(again) as incoming:
        yield incoming


def _again(request: Request, url: str, spent_s: float) -> Request:
    if "?" not in url and (query := urlsplit(request.url).query):  # a key may be there
        url = f"{url}?{query}"
    limits = request.limits
    if limits.total_s is not None:
        limits = structs.replace(limits, total_s=max(limits.total_s - spent_s, 0.001))
    return structs.replace(request, url=url, limits=limits)


def followed(address: AgentUrl, method: str, url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Where to go instead, at the agent's origin as configured; None if the response is to be taken as it is."""
    if not 300 <= status < 400 or (method != "GET" and status not in REPEATED):
        return None
    said = headers.get("location", "")
    try:
        there = urljoin(url, said)
        if not said or AgentUrl.parse(there.partition("#")[0]).origin != address.origin:
            return None
        parts, own = urlsplit(there), urlsplit(address.text)
    except (ValueError, ConfigError):
        return None
    return f"{own.scheme}://{own.netloc}{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"


def destination(headers: Mapping[str, str]) -> str:
    """Where a redirect leads, for a message: without user, password and query, which may be secret."""
    try:
        parts = urlsplit(headers.get("location", ""))
    except ValueError:
        return "an invalid address"
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme else ""
    if parts.netloc and not origin:
        origin = f"//{parts.netloc.rpartition('@')[2]}"
    return one_line(origin + parts.path, 200) or "nowhere"


# -- responses ---------------------------------------------------------------------------------------------------

EXCERPT_CHARACTERS = 200
CHALLENGE_CHARACTERS = 160

_LATER = frozenset({429, 503})
_TITLE = re.compile(rb"<title[^>]{0,200}>(.{0,400}?)</title", re.IGNORECASE | re.DOTALL)
_HTML = re.compile(rb"\s{0,200}(?:<!--.{0,2000}?-->\s{0,200})?<(?:!doctype\s+html|html|head|body)", re.I | re.S)


def read_result(asked: AnswerRequest, reply: HttpReply, now: datetime) -> Any:
    """The JSON-RPC result in a response.

    Raises:
        AuthRefused: 401 or 403.
        HttpRefused: another status outside 2xx without a JSON-RPC error, and 429 and 503 whatever they hold.
        RpcError: a JSON-RPC error, under whatever status.
        WireError: a redirect, or a 2xx that holds no JSON-RPC answer to this request.
    """
    where, status, body = asked.where, reply.status, reply.body
    sent = "" if status == 200 else one_line(f"{asked.http} {urlsplit(asked.url).path}", 160)
    refuse_status(where, asked.credential, asked.requested, reply, now, sent=sent, tolerate_rpc=True)
    try:
        # Its size was bounded while it was read. Over HTTP+JSON an empty body answers a deletion.
        value = parse_untrusted(body, bytes_max=len(body)) if body else None
        return read_answer(value, asked.dialect, asked.operation, request_id=asked.request_id, status=status)
    except (TaskNotFound, MethodNotFound) as error:
        raise asked.named(error) from error
    except WireError as error:
        if not 200 <= status < 300:
            raise http_refused(where, reply, now, sent=sent) from None
        raise wire_error(where, str(error), reply) from error


def refuse_status(
    where: str,
    credential: str | None,
    requested: str,
    reply: HttpReply,
    now: datetime,
    *,
    sent: str = "",
    tolerate_rpc: bool = False,
) -> None:
    """Raise the error of a status; with ``tolerate_rpc`` leave those that may carry a JSON-RPC error. ``sent`` is the
    request's method and path, if ``where`` lacks the path."""
    status = reply.status
    if status in {401, 403}:
        raise auth_refused(where, credential, requested, reply, sent=sent)
    if 300 <= status < 400:
        raise WireError(
            f"{where}: answered with a redirect (HTTP {status}) to {destination(reply.headers)}, which is not followed",
            hint="configure the address it leads to",
        )
    if 200 <= status < 300 or (tolerate_rpc and status not in _LATER):
        return
    raise http_refused(where, reply, now, sent=sent)


def auth_refused(
    where: str, credential: str | None, requested: str, reply: HttpReply, *, sent: str = ""
) -> AuthRefused:
    """401 or 403, with the scheme as the card and the challenge name it (RFC 9110 section 11.6.1)."""
    if credential is None:
        why = "wants a credential and none is configured"
        hint = "`fleetsim card` prints what it requests and the entry of `auth`, for agents.yaml or --auth"
    else:
        why, hint = "refused the credential", f"check {one_line(credential, 160)}"
    challenge = one_line(reply.headers.get("www-authenticate", ""), CHALLENGE_CHARACTERS)
    if "insufficient_scope" in challenge:  # RFC 6750 section 3.1: the token is valid, and grants too little
        wanted = re.search(r'scope="([^"]+)"', challenge)
        why = "requires a further scope"
        hint = (
            f"add the scope {wanted[1]} to auth.scopes" if wanted else "add the scope that it requires to auth.scopes"
        )
    reasons = [f"its card requests {one_line(requested, 240)}"] if requested else []
    reasons += [f"WWW-Authenticate: {challenge}"] if challenge else []
    why += f" (HTTP {reply.status}{sent and f' to {sent}'})" + (f": {'; '.join(reasons)}" if reasons else "")
    return AuthRefused(f"{where}: the agent {why}", status=reply.status, why=why, said=describe(reply), hint=hint)


def http_refused(where: str, reply: HttpReply, now: datetime, *, sent: str = "") -> HttpRefused:
    status = reply.status
    said, asked_s = describe(reply), retry_after_s(reply.headers, now) if status in _LATER else None
    return HttpRefused(
        f"{where}: HTTP {status}{sent and f' to {sent}'}, {said}"
        + ("" if asked_s is None else f"; it asks for a pause of {asked_s:.0f} s")
        + ("" if 200 <= status < 600 else "; it does not say what became of the request"),
        status=status,
        said=said,
        retry_after_s=asked_s,
        hint=tls_advice(said) if status == 400 else None,
    )


def wire_error(where: str, why: str, reply: HttpReply) -> WireError:
    """The error for a body that is not the protocol."""
    kind = one_line(reply.headers.get("content-type", "") or "no content type", 80)
    return WireError(f"{where}: {why} ({kind}): {describe(reply)}")


def describe(reply: HttpReply) -> str:
    """One harmless line about a body: HTML by its title, JSON by its error message, the rest by an excerpt."""
    body = reply.body
    if not body.strip():
        return "an empty body"
    if _HTML.match(body) or reply.headers.get("content-type", "").lower().startswith("text/html"):
        title = _TITLE.search(body[:65_536])
        if title is None:
            return "an HTML page"
        said = html.unescape(title[1].decode("utf-8", "replace"))
        return f"an HTML page titled {one_line(' '.join(said.split()), 100)!r}"
    return repr(one_line(_error_message(body) or body[:2_000].decode("utf-8", "replace").strip(), EXCERPT_CHARACTERS))


def _error_message(body: bytes) -> str | None:
    """The message of ``{"error": ...}`` in the forms in use; a large body is not read for it."""
    if len(body) > LARGE_JSON_BYTES:
        return None
    try:
        value = parse_untrusted(body, bytes_max=len(body))
    except WireError:
        return None
    found = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    if isinstance(found, dict):
        found = found.get("message")
    return found if isinstance(found, str) else None


# -- calls -------------------------------------------------------------------------------------------------------


_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]{1,200}"', re.ASCII)
"""An entity tag (RFC 9110 section 8.8.3), of a length that can be sent with each request."""


@dataclass(frozen=True, slots=True)
class FoundCard:
    """A card, where it was found, and its agent's name for this state of it; "" where nobody told."""

    card: AgentCard
    url: str = ""
    etag: str = ""


@dataclass(slots=True, kw_only=True)
class AgentHttp:
    """Calls to one agent as HTTP. The credential and configured headers go to the configured origin alone."""

    address: AgentUrl
    limits: ClientLimits
    headers: Mapping[str, str]
    credentials: AgentCredentials
    extensions: tuple[str, ...]
    trust: CardTrust
    requested: str = ""
    """The credentials that the card requests, in words."""

    async def call(
        self,
        runtime: Runtime,
        call: Call,
        choice: Choice,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
        turns: Turns | None,
    ) -> tuple[Reply, Any]:
        """One call that is answered at once: the reply, and its undecoded ``result``."""
        limits = self.limits.for_call(call, timeout_s)
        request, asked = self._request(runtime, call, choice, headers, limits, turns=turns)
        answer = await self._exchange(runtime, request)
        result = read_result(asked, answer, runtime.clock.now())
        try:
            reply = asked.dialect.decode_reply(asked.operation, result)
        except WireError as error:
            raise wire_error(asked.where, str(error), answer) from error
        if isinstance(reply, AgentCard):  # the extended one
            reply = await self.trust.read(result, self.address.text, runtime, limits)
        if asked.session and isinstance(reply, Task | Message) and not reply.context_id:
            reply = structs.replace(reply, context_id=asked.session)
        return reply, result

    @asynccontextmanager
    async def stream(
        self,
        runtime: Runtime,
        call: Call,
        choice: Choice,
        headers: Mapping[str, str] | None,
        limits: StreamLimits,
        turns: Turns | None,
        *,
        method: str = "",
    ) -> AsyncIterator[EventStream]:
        """The stream of a call, by its method's name or by ``method``, an alias of it.

        A body that begins as a stream does is one, whatever its type. JSON instead of a stream is an error, or one
        event (interop.md section 7).
        """
        whole = self.limits.for_call(call)
        allowed = structs.replace(
            whole, first_byte_s=whole.total_s, total_s=None, body_bytes_max=limits.stream_bytes_max
        )
        if whole.total_s is None and limits.first_event_s is None:
            limits = replace(limits, first_event_s=math.inf)
        request, asked = self._request(runtime, call, choice, headers, allowed, streaming=True, alias=method)
        async with self._open(runtime, request) as incoming:
            chunks = BoundedChunks(incoming.chunks, limits=whole, deadline=deadline_of(whole), where=asked.where)
            incoming, begun = await recognised(incoming, chunks)
            if is_event_stream(incoming):
                document = runtime.room.document(asked.where if turns is None else turns.owner)
                frames = read_events(incoming, limits=limits, turns=turns, document=document)
                stream = EventStream(asked, frames, joins=isinstance(call, SubscribeToTask))
            else:
                body = begun + await read_whole(chunks, runtime.room, owner=asked.where, turns=turns)
                answer = HttpReply(status=incoming.status, headers=incoming.headers, body=body)
                result = read_result(asked, answer, runtime.clock.now())
                try:
                    stream = EventStream(asked, read_event(result, asked))
                except WireError as error:
                    raise wire_error(asked.where, str(error), answer) from error
            async with aclosing(stream):
                yield stream

    def _request(
        self,
        runtime: Runtime,
        call: Call,
        choice: Choice,
        headers: Mapping[str, str] | None,
        limits: Limits,
        *,
        streaming: bool = False,
        turns: Turns | None = None,
        alias: str = "",
    ) -> tuple[Request, AnswerRequest]:
        operation, spoken = call.operation, dialect(choice.dialect_name).at(choice.url)
        request_id = runtime.ids.new()
        http_call = write_call(spoken, call, choice.url, request_id=request_id, tenant=choice.tenant, alias=alias)
        own_headers = spoken.headers(operation)
        self.address.require(http_call.url)
        # Configured headers first, then the call's and the dialect's. The credential comes last: nothing overrides it.
        more = (*(headers or {}).items(), *own_headers.items())
        merged = {**self.headers, **{name.lower(): value for name, value in more}}
        if self.extensions:
            merged[spoken.extensions_header.lower()] = ", ".join(self.extensions)
        if http_call.media_type:
            merged["content-type"] = http_call.media_type
        task_id = call.message.task_id if isinstance(call, SendMessage) else getattr(call, "task_id", None)
        asked = AnswerRequest(
            request_id=request_id,
            task_id=task_id or "",
            dialect=spoken,
            operation=operation,
            where=self.address.where,
            credential=self.credentials.source,
            requested=self.requested,
            session=spoken.session(call) if spoken.caller_names_task else "",
            http=http_call.method,
            url=http_call.url,
        )
        request = Request(
            method=http_call.method,
            url=http_call.url,
            headers=merged,
            body=http_call.body,
            limits=limits,
            streaming=streaming,
            turns=turns,
        )
        return request, asked

    async def _exchange(self, runtime: Runtime, request: Request) -> HttpReply:
        """Send with the credential, and once more with a new OAuth2 token if the agent refuses the one it got."""
        signed = await self.credentials.sign(runtime, request)
        reply = await exchange_following(runtime, self.address, signed)
        if reply.status >= 400 and self.credentials.forget(signed, reply.status, reply.headers):
            reply = await exchange_following(runtime, self.address, await self.credentials.sign(runtime, request))
        return reply

    @asynccontextmanager
    async def _open(self, runtime: Runtime, request: Request) -> AsyncIterator[IncomingResponse]:
        """As ``_exchange``, for a response that is read as it arrives."""
        signed = await self.credentials.sign(runtime, request)
        async with open_following(runtime, self.address, signed) as incoming:
            if incoming.status < 400 or not self.credentials.forget(signed, incoming.status, incoming.headers):
                yield incoming
                return
        signed = await self.credentials.sign(runtime, request)
        async with open_following(runtime, self.address, signed) as incoming:
            yield incoming

    async def fetch_card(
        self, runtime: Runtime, known: FoundCard | None = None, timeout_s: float | None = None
    ) -> FoundCard:
        """The first card found at the addresses where one may be. ``timeout_s`` replaces the deadline for each.

        A ``known`` card is requested at its address, with a condition (A2A 1.0 section 8.6). If there is no card any
        more, the search begins again. A path that is missing, leads elsewhere or holds something else is skipped, and
        so are others beside one that refuses the credential: an endpoint may guard all that is below it, and the card
        be open. An overloaded agent and a failed connection end the search. Raises AuthRefused, HttpRefused, WireError,
        LimitReached, TransportError and CardNotTrusted.
        """
        if known is not None and known.url:
            try:
                return await self._card_at(runtime, known.url, timeout_s, known)
            except (HttpRefused, WireError) as error:
                if error.retryable:
                    raise
        found: FleetsimError | None = None
        closed: set[str] = set()
        for url in self.address.card_urls():
            if (folder := url.rpartition("/.well-known/")[0]) in closed:
                continue
            try:
                return await self._card_at(runtime, url, timeout_s)
            except AuthRefused as error:
                closed.add(folder)
                found = error
            except HttpRefused as error:
                if error.retryable:
                    raise
                found = found or error
            except WireError as error:
                found = found if isinstance(found, AuthRefused) else error
        if isinstance(found, HttpRefused) and not isinstance(found, AuthRefused):
            paths = " or ".join(_path(url) for url in self.address.card_urls())
            body = "" if found.status == 404 else f", {found.said}"  # a gateway states what it requires
            raise HttpRefused(
                f"{self.address.where}: no agent card at {paths} (HTTP {found.status}{body})",
                status=found.status,
                hint=found.hint or "is this the address of an A2A agent?",
            ) from found
        assert found is not None  # there is always at least one address
        raise found

    async def extended_card(
        self, runtime: Runtime, public: AgentCard, choice: Choice, timeout_s: float | None
    ) -> tuple[AgentCard, str]:
        """The extended card if the agent offers one to our credential; else the public card, and the reason if any."""
        if not public.capabilities.extended_card or choice.no_way or self.credentials.source is None:
            return public, ""
        try:
            limit_s = timeout_s or self.limits.total_s
            card, _ = await self.call(runtime, GetExtendedCard(), choice, None, limit_s, None)
        except FleetsimError as error:
            return public, str(error)
        return (card, "") if isinstance(card, AgentCard) else (public, "the reply is not a card")

    async def _card_at(
        self, runtime: Runtime, url: str, timeout_s: float | None, known: FoundCard | None = None
    ) -> FoundCard:
        """The card at one address; the one that is known if the agent says that it is the same."""
        self.address.require(url)
        headers = {**self.headers, **CARD_HEADERS}
        if known is not None and known.etag:
            headers["if-none-match"] = known.etag
        limits = structs.replace(self.limits.for_call(timeout_s=timeout_s), body_bytes_max=self.limits.card_bytes_max)
        where = f"{self.address.where}{_path(url)}"
        request = Request(method="GET", url=url, headers=headers, limits=limits)
        try:
            reply = await self._exchange(runtime, request)
        except BodyTooLarge as error:
            raise too_large(f"{where}: the agent card", limits, error.size) from error
        if known is not None and known.etag and reply.status == 304:
            return known
        refuse_status(where, self.credentials.source, self.requested, reply, runtime.clock.now())
        try:
            value = parse_untrusted(reply.body, bytes_max=limits.body_bytes_max)
            card = await self.trust.read(value, self.address.text, runtime, limits)
        except WireError as error:
            raise wire_error(where, str(error), reply) from error
        etag = reply.headers.get("etag", "")
        sure = card.proof.state in {ProofState.UNSIGNED, ProofState.VERIFIED}  # else a key or signature may come later
        return FoundCard(card, url, etag if sure and _ETAG.fullmatch(etag) else "")


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3]
