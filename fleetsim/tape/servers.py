"""Two servers: ``TapeRecorder`` stands between any caller and a real agent, and keeps what passes on a tape;
``TapeServer`` acts as the agent of a tape.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from difflib import SequenceMatcher
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleetsim.client.http import CARD_PATHS
from fleetsim.model.call import Operation
from fleetsim.model.errors import FleetsimError, InternalError
from fleetsim.model.masking import MASK, masked_headers, masked_url
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.exchange import origin_of, read_whole
from fleetsim.runtime.inbound import BodyReader, Refusal, drop
from fleetsim.runtime.ports import IncomingResponse, Limits, Runtime
from fleetsim.runtime.ports import Request as Outgoing
from fleetsim.runtime.sse import EventReader, StreamLimits, is_event_stream
from fleetsim.runtime.webhook import is_signing, read_secret, sign
from fleetsim.runtime.workers import Workers
from fleetsim.tape import tape as tapes
from fleetsim.tape.talks import MOVES, Matching, TalkState, TapeEntry, TapeReader
from fleetsim.tape.tape import CONTEXT_ID, HOOKS, TOKENS, Tape, TapeFacts, TapeFrame, TapeRequest, TapeRow, made_ids
from fleetsim.wire import jsonrpc, rest
from fleetsim.wire.dialect import UNSAID
from fleetsim.wire.json import dump
from fleetsim.wire.sse import KEEPALIVE, frame

log = logging.getLogger(__name__)


async def refused(_: Request, error: Exception) -> Response:
    """The response to a body that is too large or too slow."""
    return Response(str(error), error.status if isinstance(error, Refusal) else 500)


REFUSED: Mapping[Any, Any] = {Refusal: refused}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
HOOK_PATH = "/.tape/webhook/"
LIMITS = Limits(total_s=None, first_byte_s=3_600.0)
"""The caller and the agent decide how long a reply may take."""
_OWN = re.compile(
    "host|connection|keep-alive|te|trailer|upgrade|expect|transfer-encoding|content-(length|encoding)|accept-encoding"
    "|proxy-authorization"
)
"""Headers of one connection, which are not passed on."""
_KEY = re.compile("authorization|cookie|.*(key|token).*")
_HARMLESS = frozenset({"x-parent-id", "origin", "referer", "accept-language", "content-disposition"})


class TapeRecorder:
    """``app`` is the server, ``tape`` what it kept so far, and ``secrets`` the texts to mask in it.

    ``webhook_origin`` is where the agent reaches the recorder; without it, where its callers do.
    """

    def __init__(
        self, url: str, runtime: Runtime, *, policy: AddressPolicy, tape: Tape | None = None, webhook_origin: str = ""
    ) -> None:
        self._runtime, self._origin = runtime, str(origin_of(url))
        self._guarded, self._webhook_origin = runtime.transport.guarded(policy), webhook_origin
        now = runtime.clock.now().isoformat(timespec="seconds")
        self.tape = tape or Tape(TapeFacts(tape=1, url=masked_url(url)[0], recorded=now))
        self.secrets: set[str] = set()
        self._began_s = runtime.clock.monotonic() - max((row.at for row in self.tape.rows), default=0.0)
        self._hook = max((row.hook for row in self.tape.rows), default=0)
        self._hooks: dict[int, str] = {}
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=METHODS)], exception_handlers=REFUSED)

    async def answer(self, request: Request) -> Response:
        """Pass a request on and keep it. Raises Refusal."""
        return await self.forward(request, *await read_row(request))

    async def forward(self, request: Request, row: TapeRow, body: bytes) -> Response:
        """Pass on a request that was read, and keep it."""
        row.at = self._now()
        self.secrets.update(secrets_in(request))
        if row.path.startswith(HOOK_PATH):
            return await self._pass_webhook(request, row, body)
        own = origin(request)
        hooks = (self._webhook_origin or own) + HOOK_PATH
        sent, url = self._with_hooks(row, body, hooks), self._origin + row.path
        row.path = masked_url(row.path)[0]
        self.tape.rows.append(row)
        headers = _passed(request.headers)
        outgoing = Outgoing(method=row.method, url=url, headers=headers, body=sent, limits=LIMITS, streaming=True)
        async with AsyncExitStack() as stack:
            try:
                incoming = await stack.enter_async_context(self._runtime.transport.open(outgoing))
                row.status, row.after = incoming.status, self._since(row)
                row.reply_headers = tapes.kept(incoming.headers)
                if is_event_stream(incoming):
                    chunks = self._stream(stack.pop_all(), incoming, row, request)
                    return StreamingResponse(chunks, incoming.status, _passed(incoming.headers))
                reply = await read_whole(incoming.chunks, self._runtime.room, owner=self._origin)
            except FleetsimError as error:
                row.broke = str(error)
                drop(request.scope)
                return Response(str(error), 502)
        return Response(self._kept_reply(row, reply, hooks, own), incoming.status, _passed(incoming.headers))

    def _now(self) -> float:
        return round(self._runtime.clock.monotonic() - self._began_s, 3)

    def _since(self, row: TapeRow) -> float:
        return round(self._now() - row.at, 3)

    def _with_hooks(self, row: TapeRow, body: bytes, hooks: str) -> bytes:
        """The body with our address in place of each webhook's."""
        sent = tapes.pack(body)
        configs = list(tapes.push_configs(tapes.params_of(sent)))
        for mine, ours in zip(configs, tapes.push_configs(tapes.params_of(row.body)), strict=True):
            self._hook += 1
            self._hooks[self._hook] = mine["url"]
            scheme = mine.get("authentication")
            secrets = [mine["url"], mine.get("token"), scheme.get("credentials") if isinstance(scheme, dict) else None]
            self.secrets.update(secret for secret in secrets if isinstance(secret, str))
            mine["url"], ours["url"] = f"{hooks}{self._hook}", f"{HOOKS}{self._hook}"
        return dump(sent) if configs else body

    def _kept_reply(self, row: TapeRow, reply: bytes, hooks: str, own: str) -> bytes:
        """Keep a whole reply; returns it with the caller's webhooks, and with our address on a card."""
        ours, passed = hooks.encode(), reply
        for number in sorted(self._hooks, reverse=True) if ours in reply else ():
            passed = passed.replace(b"%s%d" % (ours, number), dump(self._hooks[number])[1:-1])
        row.reply, row.ended = tapes.pack(reply.replace(ours, HOOKS.encode())), self._since(row)
        if (card := tapes.readdress(row.reply, own)) is None:
            return passed
        if self.tape.head.card is None:
            self.tape.head = structs.replace(self.tape.head, agent=card["name"], card=card)
        return dump(row.reply)

    async def _stream(
        self, stack: AsyncExitStack, incoming: IncomingResponse, row: TapeRow, request: Request
    ) -> AsyncIterator[bytes]:
        reader, row.frames = EventReader(StreamLimits()), []
        async with stack:
            try:
                async for chunk in incoming.chunks:
                    after = self._since(row)
                    for event in reader.read(chunk):
                        row.frames.append(TapeFrame(after, tapes.pack(event.data.encode()), event.event, event.id))
                    yield chunk
            except FleetsimError as error:
                row.broke = str(error)
                drop(request.scope)
            row.ended = self._since(row)

    async def _pass_webhook(self, request: Request, row: TapeRow, body: bytes) -> Response:
        """Pass a webhook to the caller that registered it, whose status goes back."""
        number = row.path.removeprefix(HOOK_PATH)
        row.hook, row.path = int(number) if number.isascii() and number.isdigit() else 0, ""
        if (url := self._hooks.get(row.hook)) is None:
            return Response(status_code=404)
        row.headers |= {name: MASK for name in request.headers if name in TOKENS}
        self.tape.rows.append(row)
        outgoing = Outgoing(method="POST", url=url, headers=_passed(request.headers), body=body)
        try:
            row.status = (await self._guarded.exchange(outgoing)).status
        except FleetsimError as error:
            return Response(str(error), 502)
        return Response(status_code=row.status)


async def read_row(request: Request) -> tuple[TapeRow, bytes]:
    """A request as a row of a tape, with its whole path, and its body. Raises Refusal."""
    body = await BodyReader(bytes_max=LIMITS.body_bytes_max, seconds=30.0).read(request)
    path = bytes(request.scope.get("raw_path") or request.url.path.encode()).partition(b"?")[0].decode("latin-1")
    path = f"{path}?{request.url.query}" if request.url.query else path
    headers, keyed = tapes.kept(request.headers), any(map(_KEY.fullmatch, request.headers))
    return TapeRow(at=0.0, method=request.method, path=path, keyed=keyed, headers=headers, body=tapes.pack(body)), body


def origin(request: Request) -> str:
    """The origin of the socket that a request came to. Never what a Host header says."""
    host, port = request.scope.get("server") or ("127.0.0.1", 80)
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def secrets_in(request: Request) -> tuple[str, ...]:
    """The values of headers that may hold a secret. A plain word, which may be a state, is one only in a key header."""
    headers = {name: value for name, value in request.headers.items() if name not in _HARMLESS}
    return masked_headers({n: v for n, v in headers.items() if _KEY.fullmatch(n) or not re.fullmatch("[a-z-]+", v)})[1]


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not _OWN.fullmatch(name)}


# -- the player ---------------------------------------------------------------------------------------------------


KEEPALIVE_S = 15.0
SLACK_S = 0.25
"""A read that comes this much too early sees the task as it was read later."""


class TapeServer:
    """``app`` is the server, and ``misses`` the requests without a recorded reply, each in a sentence.

    ``matching`` is what must be equal beside operation and dialect: the skill and the text, the skill, or only the
    order. ``fast`` plays without pauses. ``live`` records what is missing from the real agent, at the end of the tape.
    """

    def __init__(
        self,
        tape: Tape,
        runtime: Runtime,
        *,
        policy: AddressPolicy,
        matching: Matching = "text",
        fast: bool = False,
        live: TapeRecorder | None = None,
    ) -> None:
        self.misses: list[str] = []
        self._tape, self._runtime, self._fast, self._live = tape, runtime, fast, live
        self._guarded, self._workers = runtime.transport.guarded(policy), Workers("tape")
        self._reader = TapeReader(tape, matching)
        self._entries, self._read = self._reader.entries, len(tape.rows)
        self._used: set[int] = set()
        self._talks: dict[str, TalkState] = {}
        route = Route("/{path:path}", self.answer, methods=METHODS)
        self.app = Starlette(routes=[route], exception_handlers=REFUSED, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._workers:
            yield

    # -- a request

    async def answer(self, request: Request) -> Response:
        """Play the reply to a request. Raises Refusal."""
        present, body = await read_row(request)
        asked = tapes.read_request(present, self._reader.places, secrets_in(request))
        ids = (asked.task_id, asked.context_id)
        talk, place = TalkState.find(asked, self._talks)
        is_live = any(name in ids for row in self._tape.rows[self._read :] for name in made_ids(row.replies))
        entry = None if is_live else self._choose(asked, talk, place)
        if entry is not None:
            self._begin(entry, asked, talk)
            return await self._reply(entry.row, present, talk, request)
        if asked.operation is None and urlsplit(present.path).path.endswith(CARD_PATHS) and self._tape.head.card:
            return Response(dump(tapes.readdress(self._tape.head.card, origin(request))), media_type="application/json")
        if self._live is not None and (is_live or not talk.names):
            return await self._live.forward(request, present, body)
        return self._miss(asked, present)

    def _choose(self, asked: TapeRequest, talk: TalkState, place: Any) -> TapeEntry | None:
        """The exchange to play: the first of the best that was not played, else the last of them.

        Another conversation on the tape that began in the same way may go on with this request. A read of a task gets
        the newest recorded read of that moment, or the first.
        """
        key = self._reader.key(asked)
        fits = [
            number
            for number, entry in enumerate(self._entries)
            if (entry.key, entry.place) == (key, place)
            if self._reader.matching == "order" or len({entry.asked.skill, asked.skill, ""}) < 3  # one may be open
        ]

        def distance(number: int) -> tuple[int, bool]:
            entry = self._entries[number]
            different = sum(one != other for one, other in zip(entry.asked.variant, asked.variant, strict=True))
            return 0 if self._reader.matching == "order" else different, entry.talk is not talk.now_at

        least = min(map(distance, fits), default=None)
        best = [number for number in fits if distance(number) == least]
        if asked.operation is Operation.GET and talk.history:
            passed_s = math.inf if self._fast else self._runtime.clock.monotonic() - talk.moved_s + SLACK_S
            reads = [self._entries[number] for number in best]
            return next((entry for entry in reversed(reads) if entry.since_s <= passed_s), reads[0] if reads else None)
        used = talk.used if talk.history else self._used
        for number in [*(number for number in best if number not in used), *best[-1:]]:
            used.add(number)
            return self._entries[number]
        return None

    def _begin(self, entry: TapeEntry, asked: TapeRequest, talk: TalkState) -> None:
        """Give each id of an exchange its present form, and start its webhooks."""
        names, now_s = talk.names, self._runtime.clock.monotonic()
        names.update((one, other) for one, other in zip(entry.asked.ids, asked.ids, strict=False) if one and other)
        if asked.context_id and not entry.asked.context_id:  # the agent adopts the caller's
            names.update(dict.fromkeys(made_ids(entry.row.replies, CONTEXT_ID), asked.context_id))
        for name in entry.made:
            names.setdefault(name, self._runtime.ids.new())
        if asked.operation in MOVES:
            talk.now_at = entry.talk
            talk.move(entry.key, now_s)
        talk.own((names[name] for name in entry.made), self._talks)
        if asked.push is not None:
            talk.hooks.update(dict.fromkeys(entry.hooks, asked.push))
            names.update({f"{HOOKS}{number}": asked.push.url for number in entry.hooks})
        if entry.webhooks:
            self._workers.start(self._send_webhooks(entry, talk, now_s), name="webhooks")

    async def _reply(self, row: TapeRow, present: TapeRow, talk: TalkState, request: Request) -> Response:
        await self._pause(row.after)
        if row.status is None or (row.broke and row.frames is None):
            drop(request.scope)
            return Response(status_code=502)
        if row.frames is not None:
            return StreamingResponse(self._frames(row, present, talk, request), row.status, row.reply_headers)
        await self._pause(row.ended - row.after)
        reply = self._present(row.reply, present, talk)
        tapes.readdress(reply, origin(request))
        return Response(tapes.unpack(reply), row.status, row.reply_headers)

    async def _frames(self, row: TapeRow, present: TapeRow, talk: TalkState, request: Request) -> AsyncIterator[bytes]:
        passed_s = row.after
        for event in row.frames or ():
            while event.after - passed_s > KEEPALIVE_S and not self._fast:
                await asyncio.sleep(KEEPALIVE_S)
                passed_s += KEEPALIVE_S
                yield KEEPALIVE
            await self._pause(event.after - passed_s)
            passed_s = event.after
            text = tapes.unpack(self._present(event.body, present, talk)).decode("utf-8", "replace")
            yield frame(text, event=None if event.event == "message" else event.event, event_id=event.id or None)
        await self._pause(row.ended - passed_s)
        if row.broke:
            drop(request.scope)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0 and not self._fast:
            await asyncio.sleep(seconds)

    def _present(self, reply: Any, present: TapeRow, talk: TalkState) -> Any:
        """A recorded reply with the ids of the present request, its envelope's too."""
        reply, body = tapes.renamed(reply, talk.names), present.body
        if isinstance(reply, dict) and isinstance(body, dict) and "jsonrpc" in reply and reply.get("id") is not None:
            reply["id"] = body.get("id")
        return reply

    async def _send_webhooks(self, entry: TapeEntry, talk: TalkState, began_s: float) -> None:
        """Send webhooks as the agent did; a repetition goes out only if the present caller refused the earlier ones."""
        delivered: list[tuple[int, Any]] = []
        for row in entry.webhooks:
            await self._pause(row.at - entry.row.at - (self._runtime.clock.monotonic() - began_s))
            push = talk.hooks.get(row.hook)
            if push is None or (row.hook, row.body) in delivered:
                continue
            body = tapes.unpack(tapes.renamed(row.body, talk.names))
            secret = push.token or push.credentials or ""
            tokens = (f"{push.scheme or 'Bearer'} {push.credentials or secret}", secret)
            headers = row.headers | {n: v for n, v in zip(TOKENS, tokens, strict=True) if n in row.headers}
            if is_signing(push.scheme):
                seconds = round(self._runtime.clock.now().timestamp())
                headers |= sign(read_secret(push.credentials), self._runtime.ids.new(), seconds, body)
            with suppress(FleetsimError):
                reply = await self._guarded.exchange(Outgoing(method="POST", url=push.url, headers=headers, body=body))
                delivered += [(row.hook, row.body)] if 200 <= reply.status < 300 else []

    def _miss(self, asked: TapeRequest, present: TapeRow) -> Response:
        """An error in the caller's dialect that names the nearest recorded request."""

        def likeness(entry: TapeEntry) -> tuple[bool, float]:
            ratio = SequenceMatcher(None, entry.asked.text[:500], asked.text[:500]).ratio()
            return entry.asked.operation is asked.operation, ratio

        nearest = max(self._entries, key=likeness, default=None)
        said = f"the tape has no reply to {asked}"
        said += f"; the nearest, {nearest.row.at:g} s into the tape, is {nearest.asked}" if nearest else ""
        self.misses.append(said)
        log.warning("%s", one_line(said, 1_000))
        problem, spoken = InternalError(said), asked.spoken
        if spoken is not None and spoken.paths:
            return Response(dump(rest.error(problem, spoken, 500)), 500, media_type="application/json")
        rpc_id = present.body.get("id") if isinstance(present.body, dict) else None
        error = jsonrpc.error(rpc_id, problem, spoken.name if spoken else UNSAID)
        return Response(dump(error), 200 if spoken else 404, media_type="application/json")
