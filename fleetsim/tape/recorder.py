"""``TapeRecorder``: a server between any caller and a real agent that keeps what passes on a tape.

Bytes pass unchanged, except addresses: the card names the recorder, and so does each webhook that a caller registers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import FleetsimError
from fleetsim.model.masking import masked_headers, masked_url
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.exchange import origin_of, read_whole
from fleetsim.runtime.inbound import BodyReader, Refusal, drop
from fleetsim.runtime.ports import IncomingResponse, Limits, Runtime
from fleetsim.runtime.ports import Request as Outgoing
from fleetsim.runtime.sse import EventReader, StreamLimits, is_event_stream
from fleetsim.tape import tape as tapes
from fleetsim.tape.tape import HOOKS, Tape, TapeFacts, TapeFrame, TapeRow, pack, params_of
from fleetsim.wire.json import dump

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
HOOK_PATH = "/.tape/webhook/"
LIMITS = Limits(total_s=None, first_byte_s=3_600.0)
"""The caller and the agent decide how long a reply may take."""
_KEPT = re.compile(
    "accept|content-type|cache-control|(x-)?a2a-(extensions|version)|last-event-id|www-authenticate|location|allow"
    "|retry-after|vary|etag|if-none-match|access-control-[a-z-]+|x-accel-buffering|x-content-type-options"
)
"""The only headers on a tape: a key may be in any other one."""
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
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=METHODS)])

    async def answer(self, request: Request) -> Response:
        """Pass a request on and keep it."""
        try:
            row, body = await read_row(request)
        except Refusal as refusal:
            return Response(str(refusal), refusal.status)
        return await self.forward(request, row, body)

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
                row.reply_headers = kept(incoming.headers)
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
        sent = pack(body)
        configs = list(tapes.push_configs(params_of(sent)))
        for mine, ours in zip(configs, tapes.push_configs(params_of(row.body)), strict=True):
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
        row.reply, row.ended = pack(reply.replace(ours, HOOKS.encode())), self._since(row)
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
                        row.frames.append(TapeFrame(after, pack(event.data.encode()), event.event, event.id))
                    yield chunk
            except FleetsimError as error:
                row.broke = str(error)
                drop(request.scope)
            row.ended = self._since(row)

    async def _pass_webhook(self, request: Request, row: TapeRow, body: bytes) -> Response:
        """Pass a webhook to the caller that registered it, whose status goes back. The tape keeps no repetition."""
        number = row.path.removeprefix(HOOK_PATH)
        row.hook, row.path = int(number) if number.isascii() and number.isdigit() else 0, ""
        if (url := self._hooks.get(row.hook)) is None:
            return Response(status_code=404)
        again = any(
            (old.hook, old.body) == (row.hook, row.body) and (old.status or 0) // 100 != 2 for old in self.tape.rows
        )
        self.tape.rows += [] if again else [row]
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
    headers, keyed = kept(request.headers), any(map(_KEY.fullmatch, request.headers))
    return TapeRow(at=0.0, method=request.method, path=path, keyed=keyed, headers=headers, body=pack(body)), body


def origin(request: Request) -> str:
    """The origin of the socket that a request came to. Never what a Host header says."""
    host, port = request.scope.get("server") or ("127.0.0.1", 80)
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def secrets_in(request: Request) -> tuple[str, ...]:
    """The values of headers that may hold a secret."""
    return masked_headers({name: value for name, value in request.headers.items() if name not in _HARMLESS})[1]


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if _KEPT.fullmatch(name)}


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not _OWN.fullmatch(name)}
