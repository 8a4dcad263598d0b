"""``TapeServer``: acts as the agent of a tape. It finds the recorded exchange of a request and plays its reply with new
ids, at the recorded times. A request without one gets an error that names the nearest; no reply is invented.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleetsim.client.http import CARD_PATHS
from fleetsim.model.call import Operation, PushConfig
from fleetsim.model.errors import InternalError
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.inbound import Refusal, drop
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.webhook import Delivery, WebhookSender
from fleetsim.runtime.workers import Workers
from fleetsim.tape import tape as tapes
from fleetsim.tape.recorder import METHODS, TapeRecorder, origin, read_row, secrets_in
from fleetsim.tape.tape import CONTEXT_ID, HOOKS, Tape, TapeRequest, TapeRow, made_ids, params_of, renamed
from fleetsim.wire import jsonrpc, rest
from fleetsim.wire.cards import read_card
from fleetsim.wire.dialect import UNSAID
from fleetsim.wire.json import dump
from fleetsim.wire.sse import KEEPALIVE, frame

log = logging.getLogger(__name__)

Matching: TypeAlias = Literal["text", "skill", "order"]
KEEPALIVE_S = 15.0
SLACK_S = 0.25
"""A read that comes this much too early sees the task as it was read later."""
_MOVES = frozenset({Operation.SEND, Operation.STREAM, Operation.CANCEL})
"""The operations that change a task."""


@dataclass(slots=True, eq=False)
class TalkState:
    """A conversation, on the tape or with a present caller: its moves in order, the second of the last one, and for
    each of its ids the number of moves before it. ``names`` are the present ids by those of the tape, ``hooks`` the
    present webhooks by their numbers there, and ``now_at`` the conversation on the tape.
    """

    history: list[tuple[str, ...]] = field(default_factory=list)
    moved_s: float = 0.0
    owned: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    hooks: dict[int, PushConfig] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    now_at: TalkState | None = None

    def move(self, key: tuple[str, ...], at_s: float) -> None:
        self.history.append(key)
        self.moved_s = at_s

    def own(self, ids: Iterable[str], talks: dict[str, TalkState]) -> None:
        for name in ids:
            self.owned.setdefault(name, len(self.history))
            talks.setdefault(name, self)

    @classmethod
    def find(cls, asked: TapeRequest, talks: Mapping[str, TalkState]) -> tuple[TalkState, Any]:
        """The conversation that a request continues and its place there; "?" if no reply named its task."""
        talk = talks.get(asked.task_id) or talks.get(asked.context_id)
        if asked.task_id and (talk is None or asked.task_id not in talk.owned):
            return cls(), "?"
        if talk is None:
            return cls(), ""
        return talk, (*talk.history, talk.owned[asked.task_id or asked.context_id], bool(asked.task_id))


@dataclass(slots=True, eq=False)
class TapeEntry:
    """A recorded exchange and its place in a conversation, ``since_s`` seconds after the last move. ``made`` are the
    ids in its replies, ``hooks`` the webhooks that it registers, and ``webhooks`` those that follow."""

    row: TapeRow
    asked: TapeRequest
    key: tuple[str, ...]
    place: Any
    talk: TalkState
    since_s: float
    made: list[str]
    hooks: tuple[int, ...]
    webhooks: list[TapeRow] = field(default_factory=list)


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
        self._tape, self._runtime, self._matching, self._fast, self._live = tape, runtime, matching, fast, live
        self._sender, self._workers = WebhookSender(runtime, policy), Workers("tape")
        interfaces = () if tape.head.card is None else read_card(tape.head.card).interfaces
        at = {urlsplit(one.url).path.rstrip("/") for one in interfaces if one.binding.upper() == "HTTP+JSON"}
        self._places = sorted(at, key=len, reverse=True)
        self._read = len(tape.rows)
        self._entries: list[TapeEntry] = []
        self._recorded: dict[str, TalkState] = {}
        for row in sorted(tape.rows, key=lambda row: row.hook > 0):
            self._add(row)
        self._used: set[int] = set()
        self._talks: dict[str, TalkState] = {}
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=METHODS)], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._workers:
            yield

    def _key(self, asked: TapeRequest) -> tuple[str, ...]:
        """What is compared of a request."""
        matching = "text" if asked.operation is None else self._matching
        skill = (asked.skill,) if matching != "order" else ()
        return (*asked.kind, *skill, *((asked.text,) if matching == "text" else ()))

    def _add(self, row: TapeRow) -> None:
        """Find the place of a row. A webhook belongs to the last move of its task, or else to its registration."""
        if row.hook:
            ids, earlier = [*made_ids(row.body)], [entry for entry in self._entries if entry.row.at <= row.at]
            talks = [self._recorded[name] for name in ids if name in self._recorded]
            moves = [e for e in earlier if e.talk in talks and e.asked.operation in {*_MOVES, Operation.PUSH_SET}]
            for entry in (moves or [entry for entry in earlier if row.hook in entry.hooks])[-1:]:
                entry.webhooks.append(row)
                entry.made += ids
            return
        asked = tapes.read_request(row, self._places)
        talk, place = TalkState.find(asked, self._recorded)
        key = self._key(asked)
        if asked.operation in _MOVES:
            talk.move(key, row.at)
        made = [*made_ids(row.replies)]
        talk.own(made, self._recorded)
        urls = [str(config["url"]) for config in tapes.push_configs(params_of(row.body))]
        hooks = tuple(int(url.removeprefix(HOOKS)) for url in urls if url.startswith(HOOKS))
        self._entries.append(TapeEntry(row, asked, key, place, talk, row.at - talk.moved_s, made, hooks))

    # -- a request

    async def answer(self, request: Request) -> Response:
        """Play the reply to a request."""
        try:
            present, body = await read_row(request)
        except Refusal as refusal:
            return Response(str(refusal), refusal.status)
        asked = tapes.read_request(present, self._places, secrets_in(request))
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
        key = self._key(asked)
        fits = [number for number, entry in enumerate(self._entries) if (entry.key, entry.place) == (key, place)]

        def distance(number: int) -> tuple[int, bool]:
            entry = self._entries[number]
            different = sum(one != other for one, other in zip(entry.asked.variant, asked.variant, strict=True))
            return 0 if self._matching == "order" else different, entry.talk is not talk.now_at

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
        pairs = zip(entry.asked.ids, asked.ids, strict=False)
        names.update((one, other) for one, other in pairs if one in self._recorded and other)
        if asked.context_id and not entry.asked.context_id:  # the agent adopts the caller's
            names.update(dict.fromkeys(made_ids(entry.row.replies, CONTEXT_ID), asked.context_id))
        for name in entry.made:
            names.setdefault(name, self._runtime.ids.new())
        if asked.operation in _MOVES:
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
        reply, body = renamed(reply, talk.names), present.body
        if isinstance(reply, dict) and isinstance(body, dict) and "jsonrpc" in reply and reply.get("id") is not None:
            reply["id"] = body.get("id")
        return reply

    async def _send_webhooks(self, entry: TapeEntry, talk: TalkState, began_s: float) -> None:
        for row in entry.webhooks:
            await self._pause(row.at - entry.row.at - (self._runtime.clock.monotonic() - began_s))
            if (push := talk.hooks.get(row.hook)) is not None:
                delivery = Delivery(
                    url=push.url,
                    body=tapes.unpack(renamed(row.body, talk.names)),
                    token=push.token,
                    scheme=push.scheme,
                    credentials=push.credentials,
                    content_type=row.headers.get("content-type", "application/json"),
                )
                await self._sender.deliver(delivery)

    def _miss(self, asked: TapeRequest, present: TapeRow) -> Response:
        """An error in the caller's dialect that names the nearest recorded request."""

        def likeness(entry: TapeEntry) -> tuple[bool, bool, float]:
            ratio = SequenceMatcher(None, entry.asked.text[:500], asked.text[:500]).ratio()
            return entry.asked.operation is asked.operation, entry.asked.kind == asked.kind, ratio

        said = f"the tape has no reply to {asked}"
        if self._entries:
            nearest = max(self._entries, key=likeness)
            said += f"; the nearest, {nearest.row.at:g} s into the tape, is {nearest.asked}"
        self.misses.append(said)
        log.warning("%s", one_line(said, 1_000))
        problem, spoken = InternalError(said), asked.spoken
        if spoken is not None and spoken.paths:
            return Response(dump(rest.error(problem, spoken, 500)), 500, media_type="application/json")
        rpc_id = present.body.get("id") if isinstance(present.body, dict) else None
        error = jsonrpc.error(rpc_id, problem, spoken.name if spoken else UNSAID)
        return Response(dump(error), 200 if spoken else 404, media_type="application/json")
